"""The metadata cache of a client: its contents, its refreshes and their events."""

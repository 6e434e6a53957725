"""Refresh events on their way out of a process."""

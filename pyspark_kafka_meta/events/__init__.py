"""Publishing of refresh events: to the log, to folders and to topics."""

"""Many metadata caches through a rolling restart, simulated event by event: no socket, thread or clock."""

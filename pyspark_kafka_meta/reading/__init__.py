"""Offsets to rows: what to read, in which tasks, and the reader that does it."""

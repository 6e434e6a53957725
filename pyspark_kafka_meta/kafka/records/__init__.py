"""Decodes record batches into Arrow columns and encodes them, without I/O."""

"""Decodes record batches into Arrow columns, without I/O."""

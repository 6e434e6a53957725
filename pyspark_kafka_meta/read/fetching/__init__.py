"""Offset ranges to rows: the task reader, one cursor for each partition, in-flight fetches."""

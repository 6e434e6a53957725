"""Rows to record batches to leaders."""

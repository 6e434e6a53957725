"""Exactly-once writes: the driver decides which transactions of a batch's tasks become visible, and ends them."""

"""Shared by reading and writing: clients and their pool, ListOffsets, replicas, throttling, consumer groups."""

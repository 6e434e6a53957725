"""Shared by reading and writing: the client, ListOffsets, replicas, throttling, groups, transactions."""

"""Shared by reading and writing: clients and their pool, ListOffsets, sequence numbers, coordinators, groups."""

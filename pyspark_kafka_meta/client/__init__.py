"""What reading and writing share: a client, its worker pool, ListOffsets, replicas, throttling, consumer groups."""

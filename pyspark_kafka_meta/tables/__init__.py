"""The side tables: refresh events, metadata caches, and the brokers, partitions and transactions of a cluster."""

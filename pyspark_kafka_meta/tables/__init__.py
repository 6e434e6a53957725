"""The side tables: refresh events, the state of metadata caches, and the cluster's brokers and partitions."""

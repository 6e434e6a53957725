"""The side tables: refresh events back in, the caches folded from them, and the cluster as its brokers see it now."""

"""What the tools share: events, the state of cluster, caches and query, and its text."""

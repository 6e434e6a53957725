"""What the demo, the page and the commands share: the state of cluster, caches and query."""

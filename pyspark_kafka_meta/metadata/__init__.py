"""What a client knows of the cluster, and when it asks again."""

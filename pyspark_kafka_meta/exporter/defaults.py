"""Where, how often and how patiently the exporter and the listener of queries work."""

PORT = 9_840
HOST = "127.0.0.1"
"""This machine alone."""
INTERVAL_S = 15.0
"""Between two polls. Prometheus scrapes as often in its examples."""
TIMEOUT_MS = 5_000
"""For the brokers to respond to one question."""

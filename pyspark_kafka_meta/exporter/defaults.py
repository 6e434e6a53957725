"""Where and how often the exporter works unless set otherwise."""

PORT = 9_840
HOST = "127.0.0.1"
"""This machine alone."""
INTERVAL_S = 15.0
"""Between two polls. Prometheus scrapes as often in its examples."""

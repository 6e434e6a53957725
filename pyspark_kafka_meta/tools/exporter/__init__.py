"""Metrics for Prometheus, and a listener of streaming queries. Where, how often and how patiently both work."""

from __future__ import annotations

PORT = 9_840
HOST = "127.0.0.1"
"""This machine alone."""
PORTS = (0, 65_535)
"""The allowed ports, both included; 0 is a free port."""
INTERVAL_S = 15.0
"""Between two polls. Prometheus scrapes as often in its examples."""
INTERVALS_S = (0.1, 86_400.0)
"""The allowed intervals, both included."""
ENDED_KEPT_S = 3_600
"""Metrics of a query that was stopped stay for this long: the last micro-batch is scraped. Events of an ended cache may
come late, or twice, for as long after its last event."""
SILENT_KEPT_S = 24 * 3_600
"""As long for a query that failed, and for a cache that reported no end: the planner of a query that runs once an hour
is silent for an hour."""
TIMEOUT_MS = 5_000
"""For the brokers to respond to one question."""

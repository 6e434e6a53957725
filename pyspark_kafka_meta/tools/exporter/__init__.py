"""What operators watch: metrics for Prometheus, and a listener of streaming queries."""

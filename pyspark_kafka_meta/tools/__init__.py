"""What users start beside a query: the `kafkameta` command and what its commands do, the exporter, the page."""

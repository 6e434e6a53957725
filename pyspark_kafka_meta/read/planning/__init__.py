"""Which offsets a query reads, and in which tasks: checkpoint offsets, log ends, rate limits."""

"""The readers that Spark calls, without logic of their own."""

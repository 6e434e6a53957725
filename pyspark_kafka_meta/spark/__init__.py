"""The readers and writers that Spark calls, without logic of their own, and settings of Spark's Python processes."""

"""The readers that Spark calls: glue only."""

"""Takes over the state of a query from Spark's own checkpoint."""

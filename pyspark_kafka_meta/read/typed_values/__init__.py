"""Keys and values of a query as typed columns: its schemas, and the conversion of record batches."""

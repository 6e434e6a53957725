"""Keys and values with a schema: the schemas of a query, its records' typed columns, and bytes of typed columns."""

"""Changes of databases: rows of the table itself, with `_change`, from typed keys and values.

`schema` finds the columns of a query, `semantic_types` what Connect and Debezium mean by a type, `rows` converts the
records of a task, `apply` keeps a table equal to the database.
"""

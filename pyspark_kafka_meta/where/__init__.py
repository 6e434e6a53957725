"""The option `where`: from the text of a condition to the records that a query returns. Pure."""

"""Reading: `planning` decides which offsets a query reads in which tasks, `fetching` makes rows of them."""

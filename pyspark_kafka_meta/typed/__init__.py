"""Keys and values with a schema: the schemas of a query, its records' typed columns, and bytes of typed columns.

Other packages import three modules. `reading` finds the schemas of a query, which can be pickled, and makes typed
columns of the records of a task; `writing` finds the encodings of columns, which can be pickled too. Both open clients
of the schema registry themselves. `formats` tells the options which formats there are: each is a folder, and no edit
elsewhere.
"""

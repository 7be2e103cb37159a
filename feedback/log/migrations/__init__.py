"""How the tables of the log came to be: one step a schema, run by `feedback.log.schema.migrate`.

A step has its own copy of the tables that it makes, since those of `feedback.log.tables` go on changing. It
keeps every fact, speaks to both databases, and leaves the moving of rows to them.
"""

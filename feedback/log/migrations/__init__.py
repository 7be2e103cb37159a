"""Alembic revisions of the log's tables, one for each schema number, run by `feedback.log.schema.migrate`.

A revision has its own copy of the tables that it creates, since `armwise.feedback.log.tables` keeps changing.
It keeps every fact, works on both databases, and moves rows by SQL statements, not in Python.
"""

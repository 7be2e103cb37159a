"""What is generated from the code: pages of the documentation, and the schema of a configuration file.

A module writes or prints a page: `python -m tests.documents.configuration`.
"""

"""What is generated from the code: pages of the documentation, and the schema of a configuration file.

`python -m tests.documents` writes all of it anew, and `make pages` compares it.
"""

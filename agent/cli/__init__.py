"""The `armwise` command line."""

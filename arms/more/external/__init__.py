"""Arms that search with what speaks another protocol, or is of another framework."""

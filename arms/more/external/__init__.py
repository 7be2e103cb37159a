"""Arms that search by MCP tools or by retrievers of other frameworks."""

"""Arms over search engines."""

"""External search engines: an arm searches a collection of an engine, and `ingest` fills it."""

"""Search engines beside the service: a collection of one is searched by an arm, and filled by `ingest`."""

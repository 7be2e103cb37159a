"""The revisions: `revision` is the schema number a step leads to, `down_revision` the one it starts from."""

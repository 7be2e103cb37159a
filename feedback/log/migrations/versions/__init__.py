"""The steps: `revision` is the schema that a step leads to, `down_revision` the one that it starts from."""

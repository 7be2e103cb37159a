"""A seeded world in which the real service runs: see `tests.simulation.__main__`."""

"""What holds for all tests: the same examples each time, and no limit that a busy machine would break."""

from hypothesis import settings

settings.register_profile("armwise", derandomize=True, deadline=None, database=None)
settings.load_profile("armwise")

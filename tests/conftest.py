"""What holds for all tests: the same examples, no limit that a busy machine would break, one Ray."""

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("armwise", derandomize=True, deadline=None, database=None)
settings.load_profile("armwise")


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A Ray of one processor inside this process, which leaves the environment as it was."""
    from arms import crew  # here: most tests need no Ray, and it takes a second to load

    before = dict(os.environ)
    # its own folder: short, for its sockets, and not shared with another Ray on this machine
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    os.environ.pop("RAY_ADDRESS", None)
    os.environ["RAY_TMPDIR"] = folder
    with crew.cluster(1):
        yield
    shutil.rmtree(folder, ignore_errors=True)
    os.environ.clear()
    os.environ |= before

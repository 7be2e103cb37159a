"""What callers see when the service, or what it needs, loses a process: what platform.md says."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from rich.console import Console

from benchmarks.outages import killed
from tests.live.conftest import free_port

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]

SEEN = {
    ("search", "retrieve"): {"502 arm_failed"},
    ("search", "chat"): {"502 arm_failed"},
    ("model", "retrieve"): set[str](),
    ("model", "chat"): {"502 llm_failed"},
    ("learner", "retrieve"): set[str](),
    ("learner", "chat"): set[str](),
}
"""By what is killed and what is asked: the failures that may be seen."""


def test_a_killed_part_fails_only_what_needs_it_and_loses_nothing() -> None:
    parts = ["search", "model", "learner"]
    with TemporaryDirectory(prefix="o", dir="/tmp", ignore_cleanup_errors=True) as name:  # short, for sockets
        rows, gone = killed("sqlite", parts, 1, free_port(), Path(name), Console())
    assert gone == set()
    assert {(row.part, row.route): set(row.others) for row in rows} == SEEN
    assert all(row.answered > 20 for row in rows)
    assert all(row.failed_until_s < 30 for row in rows)

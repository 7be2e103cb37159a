"""Parts of a service in one process: one that fails is opened again, and the others go on."""

import logging
from itertools import pairwise

import pytest

from armwise.agent.hosts.single_process import LONGEST_PAUSE_S, PAUSE_S, Reopened


class Part:
    """Fails at a check, or when it is opened."""

    opened = 0

    def __init__(self, fails: bool = False) -> None:
        type(self).opened += 1
        self.well = True
        if fails:
            raise OSError("the log is gone")

    def check_health(self) -> None:
        if not self.well:
            raise ValueError("no longer")


def test_a_part_that_fails_is_opened_again_after_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    now, parts = [0.0], list[Part]()

    def make() -> Part:
        parts.append(Part())
        return parts[-1]

    part = Reopened("the learner", make, lambda: now[0])
    assert parts == []
    for _ in range(3):
        part.check()
    assert len(parts) == 1
    parts[0].well = False
    with caplog.at_level(logging.ERROR):
        part.check()
    assert "the learner has failed, and is opened again in 1 s" in caplog.text
    now[0] = PAUSE_S - 0.01
    part.check()
    assert len(parts) == 1
    now[0] = PAUSE_S
    part.check()
    part.check()
    assert len(parts) == 2


def test_the_pause_of_a_part_that_cannot_be_opened_doubles_up_to_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Part, "opened", 0)
    now, tried_at = [0.0], list[float]()

    def make() -> Part:
        tried_at.append(now[0])
        return Part(fails=True)

    part = Reopened("what runs jobs", make, lambda: now[0])
    while len(tried_at) < 9:
        part.check()
        now[0] += 0.5
    pauses = [after - before for before, after in pairwise(tried_at)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S]

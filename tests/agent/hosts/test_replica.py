"""A replica starts once it can write: the log is there, and the clock of the machine is not behind it."""

from contextlib import closing
from pathlib import Path

import pytest

from armwise.agent.config import parse
from armwise.agent.hosts.replica import once_the_log_answers
from armwise.feedback.clock import SteadyClock
from armwise.feedback.errors import BehindError, ClockError, LogUnavailableError, SchemaError
from armwise.feedback.events import Tick
from armwise.feedback.log import Store, open_log
from tests.agent.fakes import CONFIG
from tests.feedback.test_clock import Hands


@pytest.mark.parametrize("kind", [LogUnavailableError, BehindError, ClockError])
def test_a_replica_waits_for_the_log_and_for_its_clock_and_says_so_once_a_minute(
    kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter([kind("not yet"), kind("not yet")])

    def make() -> str:
        if (failure := next(failures, None)) is not None:
            raise failure
        return "a replica"

    assert once_the_log_answers(make, pause_s=0.0) == "a replica"
    said = [record.getMessage() for record in caplog.records]
    assert said == ["a replica is waiting until it can write to the log: not yet"]


def test_a_replica_starts_once_a_clock_that_was_set_back_has_passed_the_log(tmp_path: Path) -> None:
    hands, url, tries = Hands(), f"sqlite:///{tmp_path / 'log.db'}", 0
    rule = parse({**CONFIG, "log_url": url}).reward

    def make() -> Store:
        nonlocal tries
        tries += 1
        hands.move(100.0)  # as time passes
        return open_log(url, rule, SteadyClock(hands.wall, hands.steady))

    with closing(make()) as store:
        store.append([Tick(hands.wall_at)])
    hands.move(0.0, jump_s=-600.0)
    once_the_log_answers(make, pause_s=0.0).close()
    assert tries == 1 + 6, "after 600 s, less the minute that a clock may be behind, in steps of 100 s"


def test_a_replica_that_cannot_use_the_log_says_so_at_once() -> None:
    def make() -> str:
        raise SchemaError("the log has schema 3")

    with pytest.raises(SchemaError, match="schema 3"):
        once_the_log_answers(make, pause_s=0.0)

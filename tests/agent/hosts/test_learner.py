"""The learners of a service with several decision points."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.config import parse
from agent.hosts.learner import LearnerHost
from agent.learning import Learner
from tests.agent.fakes import CONFIG


def test_every_point_has_a_learner_with_its_own_log_and_a_failed_one_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = list[Any]()

    class Started:
        """A thread that does nothing until it fails."""

        superseded = False
        failed = False

        def __init__(self, make: Callable[[], Learner], interval_s: float) -> None:
            self.make, self.interval_s = make, interval_s
            started.append(self)

        def check(self) -> None:
            if self.failed:
                raise RuntimeError("learning has failed")

    monkeypatch.setattr("agent.hosts.learner.LearnerThread", Started)
    points = {"cheap": {"learning": {"interval_s": 7.0}}, "plain": {}}
    url = f"sqlite:///{tmp_path / 'log.db'}"
    host = LearnerHost(parse({**CONFIG, "log_url": url, "learning": {"interval_s": 2.0}, "points": points}))
    assert [one.interval_s for one in started] == [2.0, 7.0, 2.0]
    for one in started:
        one.make()
    assert sorted(path.name for path in tmp_path.glob("*.db")) == ["log.cheap.db", "log.db", "log.plain.db"]
    host.check_health()
    started[-1].failed = True
    with pytest.raises(RuntimeError, match="learning has failed"):
        host.check_health()

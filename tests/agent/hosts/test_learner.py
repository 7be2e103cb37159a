"""The process of the learner."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from armwise.agent.background import Work, read_failures
from armwise.agent.config import parse
from armwise.agent.hosts.learner import LearnerHost
from armwise.agent.learning import Learner
from armwise.agent.run_folder import RUN_FOLDER
from armwise.feedback.training_log import newest_epoch
from tests.agent.fakes import CONFIG


class Idle:
    """A thread that does nothing until it fails."""

    superseded = False
    failed = False

    def __init__(
        self,
        make: Callable[[], Learner],
        interval_s: float,
        is_due: Callable[[], bool],
        after_step: Callable[[], None],
    ) -> None:
        self.make, self.interval_s, self.is_due, self.after_step = make, interval_s, is_due, after_step

    def check(self) -> None:
        if self.failed:
            raise RuntimeError("learning has failed")


def test_a_learner_gets_all_that_the_configuration_says_of_learning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[tuple[Any, ...]]()

    def learner(*given: Any, **options: Any) -> SimpleNamespace:
        made.append((given, options))
        return SimpleNamespace(recipe=given[1])

    monkeypatch.setattr("armwise.agent.hosts.learner.LearnerThread", Idle)
    monkeypatch.setattr("armwise.agent.hosts.learner.Learner", learner)
    priced = {
        "engine": "openai",
        "base_url": "http://127.0.0.1:9/v1",
        "model": "m",
        "usd_per_kilotoken_in": 2.0,
    }
    own = {
        "privacy": {"keep_texts_days": 30.0},
        "budget": {"steps_per_request": 1.5},
        "drift": {"exploration": 0.1},
    }
    config = parse({**CONFIG, **own, "llm": priced, "log_url": f"sqlite:///{tmp_path / 'log.db'}"})
    host = LearnerHost(config)
    first = host._learner()  # noqa: SLF001
    (((store, recipe, arms, epoch, clock), options),) = made
    with store.reading() as connection:
        assert epoch == newest_epoch(connection)[0]
    assert sorted(arms) == ["bm25", "dense", "none"]
    assert store.counts()["decisions"] == 0
    assert recipe.policy.kind == "vowpal"
    assert clock is host._clock  # noqa: SLF001
    assert options == {
        "drift": config.drift,
        "budget": config.budget,
        "token_prices": {"default": (2.0, 0.0, 2.0)},
        "backbones": config.backbones,
        "keep_texts_days": 30.0,
    }
    assert None not in options.values()
    assert host._learner(first) is first, "nothing was promoted"  # noqa: SLF001
    assert len(made) == 1


def test_a_learner_that_failed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[Any]()

    class Started(Idle):
        def __init__(self, *what: Any) -> None:
            super().__init__(*what)
            started.append(self)

    monkeypatch.setattr("armwise.agent.hosts.learner.LearnerThread", Started)
    url = f"sqlite:///{tmp_path / 'log.db'}"
    host = LearnerHost(parse({**CONFIG, "log_url": url}))
    (thread,) = started
    thread.make()
    host.check_health()
    thread.failed = True
    with pytest.raises(RuntimeError, match="learning has failed"):
        host.check_health()


def test_what_learning_fails_with_is_on_record_until_a_step_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
    monkeypatch.setattr("armwise.agent.hosts.learner.LearnerThread", Idle)
    config = parse({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}"})

    def seen() -> list[tuple[str, int]]:
        assert all(failure.work == Work.LEARNER for failure in read_failures())
        return [(failure.why, failure.attempts) for failure in read_failures()]

    for attempt in (1, 2):  # and the process that replaces it
        host = LearnerHost(config)
        running = host._learner()  # noqa: SLF001
        host.check_health()
        monkeypatch.setattr(host._thread, "failed", True)  # noqa: SLF001
        for _ in range(3):  # before the process is replaced
            with pytest.raises(RuntimeError, match="learning has failed"):
                host.check_health()
            assert seen() == [("RuntimeError: learning has failed", attempt)]
    host = LearnerHost(config)
    running = host._learner()  # noqa: SLF001
    assert seen() == [("RuntimeError: learning has failed", 2)], "no step was made yet"
    host._learner(running)  # noqa: SLF001
    assert seen() == []

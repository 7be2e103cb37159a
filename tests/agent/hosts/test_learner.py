"""Learning as a task: what is learned under which epoch, and what a failure leaves."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from armwise.agent.background import Work, read_failures
from armwise.agent.config import AppConfig, parse
from armwise.agent.hosts.jobs import JobsHost
from armwise.agent.hosts.learner import LOOK_S, Learning
from armwise.agent.learning import Recipe
from armwise.agent.run_folder import RUN_FOLDER
from armwise.feedback.clock import SteadyClock
from armwise.feedback.errors import (
    BehindError,
    ClockError,
    LogGapError,
    LogUnavailableError,
    RebuiltError,
    SupersededError,
)
from armwise.feedback.events import Tick
from armwise.feedback.log import Store, open_log
from armwise.feedback.registry import versions
from armwise.feedback.training_log import newest_epoch, take_epoch
from tests.agent.fakes import CONFIG

NEVER = threading.Event()


@pytest.fixture
def config(tmp_path: Path) -> AppConfig:
    return parse({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}"})


@pytest.fixture
def store(config: AppConfig) -> Iterator[Store]:
    store = open_log(config.database_url, config.reward)
    yield store
    store.close()


def epoch(store: Store) -> int:
    with store.reading() as connection:
        return newest_epoch(connection)[0]


class Scripted:
    """A learner whose steps end as told, behind before each of them."""

    def __init__(self, recipe: Recipe, ends: list[Exception | None]) -> None:
        self.recipe, self._ends, self.behind = recipe, ends, True

    def step(self) -> None:
        end = self._ends.pop(0)
        self.behind = bool(self._ends)
        if end is not None:
            raise end


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Let learners take steps that end as told; returns the epoch of each learner, when it is made."""

    def script(*ends: Exception | None) -> list[int]:
        made, left = list[int](), [*ends]

        def make(_store: Store, recipe: Recipe, _arms: object, number: int, *_: Any, **__: Any) -> Scripted:
            made.append(number)
            return Scripted(recipe, left)

        monkeypatch.setattr("armwise.agent.hosts.learner.Learner", make)
        return made

    return script


def test_a_learner_makes_the_view_of_rewards_for_its_rule(
    store: Store, config: AppConfig, scripted: Callable[..., list[int]]
) -> None:
    scripted(None)
    Learning(store, config, SteadyClock()).run(NEVER)
    with store.reading() as connection:
        definition = connection.exec_driver_sql(
            "SELECT sql FROM sqlite_master WHERE name = 'rewards'"
        ).scalar()
    assert config.reward.join in str(definition)


def test_a_learner_gets_all_that_the_configuration_says_of_learning(
    store: Store, config: AppConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[tuple[Any, ...]]()

    def learner(*given: Any, **options: Any) -> SimpleNamespace:
        made.append((given, options))
        return SimpleNamespace(recipe=given[1], step=lambda: None, behind=False)

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
        "guard": {"reference": "bm25"},
    }
    config = parse({**CONFIG, **own, "llm": priced, "log_url": config.database_url})
    clock = SteadyClock()
    learning = Learning(store, config, clock)
    for _ in range(2):  # nothing was promoted in between
        learning.run(NEVER)
    (((given, recipe, arms, number, timed), options),) = made
    assert (given, number, timed) == (store, epoch(store), clock)
    assert sorted(arms) == ["bm25", "dense", "none"]
    assert recipe.policy.kind == "vowpal"
    assert options == {
        "drift": config.drift,
        "budget": config.budget,
        "guard": config.guard,
        "token_prices": {"default": (2.0, 0.0, 2.0)},
        "backbones": config.backbones,
        "keep_texts_days": 30.0,
    }
    assert None not in options.values()


@pytest.mark.parametrize(
    ("failure", "same"),
    [
        (LogUnavailableError("not yet"), True),
        (BehindError("not yet"), True),
        (KeyError("a bug"), True),
        (LogGapError("the log continues at 7 after 5"), True),
        (RebuiltError("epoch 1 ended"), False),
    ],
)
def test_after_a_failure_a_new_learner_begins_in_the_same_epoch_unless_the_log_was_rebuilt(
    store: Store,
    config: AppConfig,
    scripted: Callable[..., list[int]],
    failure: Exception,
    same: bool,
) -> None:
    made = scripted(None, failure, None, None)
    learning = Learning(store, config, SteadyClock())
    with pytest.raises(type(failure)):
        learning.run(NEVER)
    assert learning.due(0.0), "at once: what waits between two attempts is what calls it"
    learning.run(NEVER)
    assert (len(made), made[0] == made[-1]) == (2, same)


def test_a_learner_that_is_behind_goes_on_until_it_is_told_to_stop(
    store: Store, config: AppConfig, scripted: Callable[..., list[int]]
) -> None:
    left, stop = [None] * 5, threading.Event()
    scripted(*left)
    learning = Learning(store, config, SteadyClock())
    stop.set()
    learning.run(stop)
    stop.clear()
    learning.run(stop)
    with pytest.raises(IndexError, match="pop from empty"):  # all five steps were made, in one run
        learning.run(stop)


def test_nothing_is_due_until_something_is_committed(store: Store, config: AppConfig) -> None:
    learning = Learning(store, config, SteadyClock())
    assert learning.due(0.0)
    learning.run(NEVER)
    while learning.due(0.0):  # its own commits
        learning.run(NEVER)
    assert not learning.due(0.0)
    store.append([Tick(time.time())])
    assert learning.due(0.0)


def test_a_learner_leaves_the_log_to_its_successor_until_nobody_reads_it(
    store: Store, config: AppConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armwise.feedback.training_log.lag.ABANDONED_S", 0.0)
    learning = Learning(store, config, SteadyClock())
    learning.run(NEVER)
    assert versions.latest(store, Recipe.from_config(config).digest) is not None
    newer = take_epoch(store, "a trial that ended at once", time.time())
    store.append([Tick(time.time())])
    learning.run(NEVER)
    now, looks = 100.0, list[bool]()
    for seconds in (0.0, LOOK_S - 0.1, LOOK_S):  # it looks at the first and at the last of these
        looks.append(learning.due(now + seconds))
    assert (looks, epoch(store)) == ([False, False, True], newer)
    learning.run(NEVER)
    assert epoch(store) > newer


def test_what_learning_fails_with_is_on_record_until_it_is_done_again(
    config: AppConfig,
    scripted: Callable[..., list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
    scripted(KeyError("a bug"), KeyError("a bug"), SupersededError("not ours"))
    host = JobsHost(config, [Work.LEARNER], 0.02)
    seen = list[tuple[str, int]]()
    deadline = time.monotonic() + 30
    while len(seen) < 2 or read_failures():
        assert time.monotonic() < deadline
        said = [(failure.why, failure.attempts) for failure in read_failures()]
        seen += [one for one in said if one not in seen]
        host.check_health()
    host.stop()
    assert seen == [("KeyError: 'a bug'", 1), ("KeyError: 'a bug'", 2)]


def test_a_host_whose_wall_clock_jumped_asks_to_be_replaced(config: AppConfig) -> None:
    host = JobsHost(config, [])
    host.check_health()
    host._clock._wall = lambda: time.time() + 3600.0  # noqa: SLF001
    with pytest.raises(ClockError, match=r"jumped by \+3600.0 s"):
        host.check_health()
    host.stop()

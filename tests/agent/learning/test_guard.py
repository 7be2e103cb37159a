"""A guard sees each rated answer once, whoever learns, and writes what it decides once."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from armwise.agent.config import AppConfig, parse
from armwise.agent.learning import guard as keeping
from armwise.agent.learning.guard import GuardKeeper
from armwise.feedback import guard as watching
from armwise.feedback.errors import SupersededError
from armwise.feedback.events import INCUMBENT, LABELS, Context, Decision, Execution, Feedback, Mode
from armwise.feedback.guard import GuardSpec
from armwise.feedback.log import Store
from armwise.feedback.registry import guards
from armwise.feedback.training_log import read_learned_examples, take_epoch
from tests.agent.asking import join
from tests.agent.fakes import CONFIG
from tests.feedback.conftest import execution

ARMS = ("none", "bm25", "dense")
SPEC = GuardSpec(reference="dense", by="task", share=0.3)


def turn(number: int, task: str, drawn: str, thumb: float, **changes: Any) -> list[Any]:
    context = Context("q", {f"task={task}": 1.0})
    name, at = f"d-{number}", 1000.0 + number
    p = {"none": 0.6, "bm25": 0.1, "dense": 0.3}
    made = Decision(name, context, ARMS, tuple(p.values()), drawn, "uniform", 1, decided_at=at)
    made = replace(made, deadline=at + 60.0, **changes)
    rated = Feedback(f"f-{number}", name, "thumb", thumb, at)
    return [made, execution(name), rated]


def turns_of(n: int) -> Iterator[list[Any]]:
    """Yield turns in which taxes are bad, but for the reference."""
    rng = np.random.default_rng(2)
    for number in range(1, n + 1):
        task, drawn = ("tax", "code")[number % 2], ARMS[rng.choice(3, p=(0.6, 0.1, 0.3))]
        yield turn(number, task, drawn, 1.0 if task == "code" or drawn == "dense" else -1.0)


def facts(n: int) -> Iterator[Any]:
    """Yield the facts of turns, every third of which is rated 20 turns later."""
    late = dict[tuple[int, int], Any]()
    for number, (made, ran, rated) in enumerate(turns_of(n), 1):
        yield from (made, ran)
        late[number + (20 if number % 3 == 0 else 0), number] = rated
        yield from (late.pop(due) for due in [*late] if due[0] <= number)
    yield from late.values()


@contextmanager
def a_log(path: Path) -> Iterator[tuple[Store, AppConfig]]:
    config = parse({**CONFIG, "log_url": f"sqlite:///{path}.db"})
    with closing(Store(config.database_url, config.reward.join)) as store:
        yield store, config


def follow(keeper: GuardKeeper, store: Store, config: AppConfig, after: int, upto: int) -> None:
    for example in read_learned_examples(store, config.reward, None, after, upto):
        keeper.see(example)
        keeper.report()


def test_a_keeper_that_is_restarted_decides_what_one_that_ran_through_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "ERROR", 2.0)
    monkeypatch.setattr(watching, "EARLY", 5)
    monkeypatch.setattr(keeping, "EVERY", 7)
    found = []
    for stops in ([0, 210], [0, 43, 57, 61, 133, 210]):
        with a_log(tmp_path / str(len(stops))) as (store, config):
            epoch, name = take_epoch(store, "test", 0.0), SPEC.name(config.reward.join)
            GuardKeeper(store, config.reward, SPEC, epoch, 0, lambda: 900.0).report()
            store.append([*facts(210)])
            join(store, config)
            epoch = take_epoch(store, "test", 0.0)
            for after, upto in pairwise(stops):
                keeper = GuardKeeper(store, config.reward, SPEC, epoch, after, lambda: 1e4)
                follow(keeper, store, config, after, upto)
                follow(keeper, store, config, max(0, upto - 30), upto)  # as another recipe may learn again
            monkeypatch.setattr(keeping, "EVERY", 0)
            keeper.report()
            monkeypatch.setattr(keeping, "EVERY", 7)
            found.append((guards.read_state(store, name), guards.read_returned(store, name)))
    assert found[0] == found[1]
    ((fall,), state) = found[0][1].falls, found[0][0]
    assert (fall.name, fall.at) == ("tax", 1e4)
    assert state is not None
    counted = 210 - 60  # each is decided a second after the one before, and has a minute
    assert sum(one[0] for one in state["classes"].values()) == counted // 2 + fall.rated


def test_it_does_not_matter_how_soon_a_rating_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "EVERY", 1)
    found = []
    for late in (-1.0, 1.0, None):
        with a_log(tmp_path / str(late)) as (store, config):
            keeper = GuardKeeper(store, config.reward, SPEC, take_epoch(store, "test", 0.0), 0, lambda: 0.0)
            turns = [*turns_of(60)]
            if late is not None:  # of one value 30 seconds after the others
                turns.sort(key=lambda one: one[0].decided_at + 30.0 * (one[2].value == late))
            for seq, (made, ran, rated) in enumerate(turns, 1):
                keeper.see(keeping.Example(seq, made, ran.cost, {"thumb": rated.value}))
            keeper.see(keeping.Example(61, replace(made, decided_at=1e4, deadline=1e5), ran.cost, {}))
            keeper.report()
            state = guards.read_state(store, SPEC.name(config.reward.join))
            assert state is not None
            found.append(state["classes"])
    assert found[0] == found[1] == found[2]
    assert sum(one[0] for one in found[0].values()) == 60


def test_only_so_many_answers_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "MOST_WAITING", 5)
    with a_log(tmp_path / "log") as (store, config):
        keeper = GuardKeeper(store, config.reward, SPEC, take_epoch(store, "test", 0.0), 0, lambda: 0.0)
        for seq, (made, ran, rated) in enumerate(turns_of(8), 1):
            keeper.see(keeping.Example(seq, made, ran.cost, {"thumb": rated.value}))
        keeper.report()
        state = guards.read_state(store, SPEC.name(config.reward.join))
        assert state is not None
        assert sum(one[0] for one in state["classes"].values()) == 3


@pytest.mark.parametrize("wait_time", ["PT30M", "PT40M"])
def test_a_new_guard_counts_decisions_since_its_start_even_where_all_are_joined_anew(
    tmp_path: Path, wait_time: str
) -> None:
    with a_log(tmp_path / "log") as (store, config):
        store.append([*facts(30)])
        join(store, config)
        rule = parse({**CONFIG, "reward": {**CONFIG["reward"], "wait_time": wait_time}}).reward
        keeper = GuardKeeper(store, rule, SPEC, take_epoch(store, "test", 0.0), 0, lambda: 1021.0)
        for seq, (made, ran, rated) in enumerate(turns_of(100), 1):
            keeper.see(keeping.Example(seq, made, ran.cost, {"thumb": rated.value}))
        keeper.report()
        state = guards.read_state(store, SPEC.name(rule.join))
        assert state is not None
        assert sum(one[0] for one in state["classes"].values()) == 100 - 60 - 20


def test_a_failure_says_nothing_since_answers_need_a_rating_to_count(tmp_path: Path) -> None:
    with a_log(tmp_path / "log") as (store, config):
        rule = config.reward.model_copy(update={"failed": 0.0})
        keeper = GuardKeeper(store, rule, SPEC, take_epoch(store, "test", 0.0), 0, lambda: 0.0)
        for seq, (made, ran, rated) in enumerate(turns_of(70), 1):
            keeper.see(keeping.Example(seq, made, ran.cost, {"thumb": rated.value}, failed=seq <= 4))
        keeper.report()
        state = guards.read_state(store, SPEC.name(rule.join))
        assert state is not None
        assert sum(one[0] for one in state["classes"].values()) == 70 - 60 - 4


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": LABELS},
        {"policy": INCUMBENT},
        {"mode": Mode.GREEDY},
        {"arms": ("bm25",), "probabilities": (0.1,)},
        {"arms": ("none", "bm25"), "probabilities": (0.9, 0.1)},
        {"probabilities": ()},
        {"erased": True},
    ],
    ids=str,
)
def test_a_decision_that_was_not_drawn_here_beside_the_reference_says_nothing(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    with a_log(tmp_path / "log") as (store, config):
        keeper = GuardKeeper(store, config.reward, SPEC, take_epoch(store, "test", 0.0), 0, lambda: 0.0)
        made, ran, rated = turn(1, "tax", "bm25", 1.0)
        assert isinstance(made, Decision)
        assert isinstance(ran, Execution)
        for seq, one in ((1, made), (2, replace(made, **changes))):
            keeper.see(keeping.Example(seq, one, ran.cost, {"thumb": rated.value}))
        keeper.see(keeping.Example(3, replace(made, decided_at=1062.0), ran.cost, {}))
        keeper.report()
        state = guards.read_state(store, SPEC.name(config.reward.join))
        assert state is not None
        (watched,) = state["classes"].values()
        assert watched[0] == 1


def test_a_superseded_learner_sends_no_class_back(tmp_path: Path) -> None:
    with a_log(tmp_path / "log") as (store, config):
        keeper = GuardKeeper(store, config.reward, SPEC, take_epoch(store, "old", 0.0), 0)
        take_epoch(store, "new", 0.0)
        with pytest.raises(SupersededError):
            keeper.report()
        with pytest.raises(SupersededError):
            guards.publish(store, 1, "one", {"since": 0}, (), 0.0)
        assert guards.read_state(store, "one") is None

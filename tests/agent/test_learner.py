"""The learner: a state is a function of the log and the recipe, however often it was interrupted."""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from agent.app import LearnerHost
from agent.config import parse
from agent.learner import Learner, LearnerThread, recipe_of
from agent.policies.catalog import PolicySpec, build_policy
from agent.policy import Policy
from feedback import tables as t
from feedback.events import Context, Cost, Decision, Execution, Feedback, Status
from feedback.joins import SupersededError, take_epoch
from feedback.reward import Metric, RewardRule
from feedback.store import LogUnavailableError, Store
from feedback.versions import Version, checkpoint, digest_of, latest
from tests.agent.fakes import CONFIG

ARMS = ("none", "bm25", "dense")
EXACT = PolicySpec(kind="vowpal", params={"args": "--cb_explore_adf --epsilon 0.05 -q sa"})
BAGGED = PolicySpec(kind="vowpal", params={"args": "--cb_explore_adf --bag 3 -q sa --random_seed 7"})
RULE = RewardRule(metrics={"thumb": Metric(range=(-1, 1))}, cost_weight=0.1)
NOW = 1000.0


def facts(number: int) -> list[Decision | Execution | Feedback]:
    """One judged turn; each number always gives the same."""
    rng = np.random.default_rng(number)
    drawn = int(rng.integers(3))
    features = {"w=river": 1.0} if rng.random() < 0.5 else {"w=king": 1.0}
    name = f"d-{number}"
    return [
        Decision(
            id=name,
            context=Context("what?", features, (), {arm: {"steps": float(i)} for i, arm in enumerate(ARMS)}),
            arms=ARMS,
            probabilities=(0.25, 0.25, 0.5),
            drawn=ARMS[drawn],
            policy="vowpal",
            version=1,
            decided_at=NOW,
            deadline=NOW + 60,
        ),
        Execution(name, ARMS[drawn], Status.OK, Cost(steps=drawn)),
        Feedback(f"{name}:thumb", name, "thumb", float(rng.uniform(-1, 1)), NOW),
    ]


MakeStore = Callable[[str], Store]


@pytest.fixture
def a_store(tmp_path: Path) -> Iterator[MakeStore]:
    """Make logs by name; the same name is the same log."""
    made: list[Store] = []

    def make(name: str) -> Store:
        made.append(Store(f"sqlite:///{tmp_path / name}.db"))
        return made[-1]

    yield make
    for store in made:
        store.close()


def a_learner(store: Store, spec: PolicySpec = EXACT, rule: RewardRule = RULE) -> Learner:
    epoch = take_epoch(store, "test", NOW)
    return Learner(store, build_policy(spec, ARMS), spec, rule, epoch, clock=lambda: NOW + 1)


def live(store: Store, numbers: range, learner: Learner) -> Version:
    """Let turns happen and be learned, a few at a time; return the last version."""
    version: Version | None = None
    for start in range(numbers.start, numbers.stop, 7):
        for number in range(start, min(start + 7, numbers.stop)):
            store.append(facts(number))
        version = learner.step() or version
    assert version is not None
    return version


def test_an_empty_log_gives_a_first_version_and_then_nothing_new(a_store: MakeStore) -> None:
    store = a_store("log")
    learner = a_learner(store)
    version = learner.step()
    assert version is not None
    assert (version.version, version.parent, version.examples_seq, version.applied_seq) == (1, None, 0, 0)
    assert version == latest(store)
    assert learner.step() is None


def test_what_is_judged_is_learned_and_published(a_store: MakeStore) -> None:
    store = a_store("log")
    learner = a_learner(store)
    first = learner.step()
    assert first is not None
    for number in range(30):
        store.append(facts(number))
    second = learner.step()
    assert second is not None
    assert (second.parent, second.examples_seq, second.applied_seq) == (first.version, 30, 30)
    assert second.digest != first.digest
    state = checkpoint(store, second.version)
    assert state is not None
    assert digest_of(state) == second.digest
    policy = build_policy(EXACT, ARMS).load(state)
    decision = facts(0)[0]
    assert isinstance(decision, Decision)
    assert policy.probabilities(decision.context, ARMS).max() > 0.9


def test_feedback_that_teaches_nothing_moves_the_position_and_not_the_digest(a_store: MakeStore) -> None:
    store = a_store("log")
    learner = a_learner(store)
    version = live(store, range(7), learner)
    store.append([Feedback("late", "d-0", "thumb", 1.0, NOW)])
    later = learner.step()
    assert later is not None
    assert (later.examples_seq, later.applied_seq) == (7, 8)
    assert later.digest == version.digest


@pytest.mark.parametrize("spec", [EXACT, BAGGED], ids=["resumes", "replays"])
def test_equal_logs_give_equal_digests_whatever_the_steps_and_the_restarts(
    a_store: MakeStore, spec: PolicySpec
) -> None:
    uninterrupted = live(a_store("a"), range(40), a_learner(a_store("a"), spec))

    at_once = a_store("b")
    for number in range(40):
        at_once.append(facts(number))
    whole = a_learner(at_once, spec).step()

    restarted = a_store("c")
    live(restarted, range(11), a_learner(restarted, spec))
    live(restarted, range(11, 25), a_learner(restarted, spec))
    last = live(restarted, range(25, 40), a_learner(restarted, spec))

    assert whole is not None
    assert uninterrupted.digest == whole.digest == last.digest
    assert {version.examples_seq for version in (uninterrupted, whole, last)} == {40}


@pytest.mark.parametrize(("spec", "learned"), [(EXACT, 0), (BAGGED, 14)], ids=["resumes", "replays"])
def test_a_restart_learns_again_only_what_its_checkpoint_cannot_hold(
    a_store: MakeStore, monkeypatch: pytest.MonkeyPatch, spec: PolicySpec, learned: int
) -> None:
    store = a_store("log")
    live(store, range(14), a_learner(store, spec))
    again: list[str] = []
    kind = type(build_policy(spec, ARMS))
    learn = kind.learn

    def noted(policy: Policy, decision: Decision, reward: float) -> None:
        again.append(decision.id)
        learn(policy, decision, reward)

    monkeypatch.setattr(kind, "learn", noted)
    assert a_learner(store, spec).step() is None, "nothing is new"
    assert len(again) == learned


@pytest.mark.parametrize("spec", [EXACT, BAGGED], ids=["resumes", "replays"])
@pytest.mark.parametrize("state", [b"damaged", None], ids=["damaged", "missing"])
def test_a_lost_checkpoint_is_replayed_and_published_anew(
    a_store: MakeStore, caplog: pytest.LogCaptureFixture, spec: PolicySpec, state: bytes | None
) -> None:
    store = a_store("log")
    version = live(store, range(14), a_learner(store, spec))
    where = t.checkpoints.c.version == version.version
    with store.writing() as connection:
        if state is None:
            connection.execute(sa.delete(t.checkpoints).where(where))
        else:
            connection.execute(sa.update(t.checkpoints).where(where).values(state=state))
    with caplog.at_level(logging.WARNING):
        learner = a_learner(store, spec)
    assert f"checkpoint of version {version.version} is missing or damaged" in caplog.text
    again = learner.step()
    assert again is not None
    assert (again.parent, again.digest) == (version.version, version.digest)
    sound = checkpoint(store, again.version)
    assert sound is not None
    assert digest_of(sound) == again.digest
    assert learner.step() is None


@pytest.mark.parametrize("spec", [EXACT, BAGGED], ids=["resumes", "replays"])
def test_a_checkpoint_of_another_library_is_replayed_and_published_anew(
    a_store: MakeStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, spec: PolicySpec
) -> None:
    store = a_store("log")
    with monkeypatch.context() as before:
        before.setattr("agent.policies.vowpal.VW", "8.0.0")
        old = live(store, range(14), a_learner(store, spec))
    with caplog.at_level(logging.WARNING):
        again = a_learner(store, spec).step()
    assert f"checkpoint of version {old.version} cannot be loaded" in caplog.text
    assert again is not None
    assert (again.parent, again.examples_seq) == (old.version, 14)
    always = a_store("always")
    assert again.digest == live(always, range(14), a_learner(always, spec)).digest


def test_of_two_learners_the_older_one_is_superseded_and_writes_nothing_more(a_store: MakeStore) -> None:
    store = a_store("log")
    old = a_learner(store)
    live(store, range(7), old)
    new = a_learner(store)
    store.append(facts(7))
    counts = store.counts()
    with pytest.raises(SupersededError, match="epoch 1 was superseded by epoch 2"):
        old.step()
    assert store.counts() == counts
    version = new.step()
    assert version is not None
    assert (version.epoch, version.examples_seq) == (2, 8)


def test_a_changed_cost_weight_scores_all_of_history_again(a_store: MakeStore) -> None:
    dear = RULE.model_copy(update={"cost_weight": 0.9})
    changed = a_store("changed")
    cheap = live(changed, range(20), a_learner(changed))
    rescored = a_learner(changed, rule=dear).step()
    always = a_store("always")
    expected = live(always, range(20), a_learner(always, rule=dear))
    assert rescored is not None
    assert rescored.digest == expected.digest != cheap.digest
    assert (rescored.parent, rescored.examples_seq) == (None, 20)
    assert rescored.recipe == expected.recipe != cheap.recipe


def test_a_recipe_that_comes_back_goes_on_where_it_was(a_store: MakeStore) -> None:
    store = a_store("log")
    first = live(store, range(14), a_learner(store))
    live(store, range(14, 21), a_learner(store, BAGGED))
    back = live(store, range(21, 28), a_learner(store))
    always = a_store("always")
    assert back.digest == live(always, range(28), a_learner(always)).digest
    assert back.parent == first.version


def test_a_recipe_is_all_that_shapes_a_policy_and_nothing_else() -> None:
    base = recipe_of(EXACT, RULE)
    assert recipe_of(EXACT.model_copy(), RewardRule.model_validate(RULE.model_dump(mode="json"))) == base
    assert recipe_of(BAGGED, RULE) != base
    assert recipe_of(EXACT, RULE.model_copy(update={"clip": (-2.0, 2.0)})) != base


# -- the thread -----------------------------------------------------------------------------------------


class Scripted:
    """A learner whose steps end as told; the one after the last says so and does nothing."""

    def __init__(self, *ends: Exception | None) -> None:
        self.ends = list(ends)
        self.steps = 0
        self.made = 0
        self.done = threading.Event()

    def make(self) -> Learner:
        self.made += 1
        self._end()
        return self  # type: ignore[return-value]

    def step(self) -> None:
        self.steps += 1
        self._end()

    def _end(self) -> None:
        if not self.ends:
            self.done.set()
        elif (end := self.ends.pop(0)) is not None:
            raise end


def test_the_thread_learns_until_it_is_stopped(a_store: MakeStore) -> None:
    store = a_store("log")
    seen = threading.Event()

    def make() -> Learner:
        learner = a_learner(store)
        step = learner.step

        def watched() -> Version | None:
            version = step()
            if version is not None and version.examples_seq == 5:
                seen.set()
            return version

        learner.step = watched  # type: ignore[method-assign]
        return learner

    thread = LearnerThread(make, interval_s=0.001)
    for number in range(5):
        store.append(facts(number))
    assert seen.wait(30)
    thread.check()
    thread.stop()
    thread.check()


def test_the_thread_outlives_a_log_that_is_away_and_starts_from_what_is_published() -> None:
    away = LogUnavailableError("the disk is full")
    script = Scripted(away, away, None, None, away, None)
    thread = LearnerThread(script.make, interval_s=0.001)
    assert script.done.wait(30)
    thread.check()
    thread.stop()
    assert script.made == 4, "once after each time that the log was away: its policy may be ahead of it"


def test_the_thread_stops_for_a_bug_and_tells_it_when_asked() -> None:
    script = Scripted(None, None, KeyError("a bug"))
    thread = LearnerThread(script.make, interval_s=0.001)
    thread._thread.join(30)  # noqa: SLF001 - it ends by itself, and nothing public waits for that
    with pytest.raises(KeyError, match="a bug"):
        thread.check()
    assert script.steps == 2


def test_a_superseded_thread_ends_and_stays_healthy_so_that_nobody_starts_it_again() -> None:
    script = Scripted(None, None, SupersededError("epoch 1 was superseded"))
    thread = LearnerThread(script.make, interval_s=0.001)
    thread._thread.join(30)  # noqa: SLF001
    assert not thread._thread.is_alive()  # noqa: SLF001
    thread.check()
    assert (script.made, script.steps) == (1, 2)


def test_a_host_goes_on_under_its_epoch_and_never_takes_it_back(a_store: MakeStore, tmp_path: Path) -> None:
    store = a_store("log")
    config = parse({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}"})
    host = LearnerHost(config)
    host._learner().step()  # noqa: SLF001 - as its thread does, at the start and after the log was away
    newer = take_epoch(store, "a replacement", NOW)
    with pytest.raises(SupersededError, match=f"superseded by epoch {newer}"):
        host._learner().step()  # noqa: SLF001
    host._thread._thread.join(30)  # noqa: SLF001
    host.check_health()

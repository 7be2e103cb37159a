"""The learner: a state is a function of the log and the recipe, however often it was interrupted."""

import json
import logging
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from armwise.agent.learning.learner import Learner
from armwise.agent.learning.recipe import Recipe
from armwise.agent.policies import Policy, PolicySpec, build_policy
from armwise.agent.policies.serialization import seal
from armwise.feedback.errors import (
    SupersededError,
)
from armwise.feedback.events import Context, Cost, Decision, Example, Execution, Feedback, Status
from armwise.feedback.log import Store, erasures
from armwise.feedback.log import tables as t
from armwise.feedback.registry import Version, versions
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.training_log import Joiner, read_learned_examples, take_epoch
from armwise.feedback.training_log import lag as training_log_lag
from tests.agent.attacks import Command

ARMS = ("none", "bm25", "dense")
EXACT = PolicySpec(kind="vowpal", params={"args": "--cb_explore_adf --epsilon 0.05 -q sa"})
BAGGED = PolicySpec(kind="vowpal", params={"args": "--cb_explore_adf --bag 3 -q sa --random_seed 7"})
RULE = RewardRule(correction_time="PT0S", metrics={"thumb": Metric(range=(-1, 1))}, cost_weight=0.1)
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
    return Learner(store, Recipe(spec, rule), ARMS, epoch, clock=lambda: NOW + 1)


def live(store: Store, numbers: range, learner: Learner) -> Version:
    """Let turns happen and be learned, a few at a time; return the last version."""
    version: Version | None = None
    for start in range(numbers.start, numbers.stop, 7):
        for number in range(start, min(start + 7, numbers.stop)):
            store.append(facts(number))
        version = learner.step() or version
    assert version is not None
    return version


def learned_at_once(numbers: range, spec: PolicySpec = EXACT) -> str:
    """Return the digest of a policy that has learned these turns, one after the other, and no log."""
    policy = build_policy(spec, ARMS)
    for number in numbers:
        decision, execution, feedback = facts(number)
        assert isinstance(decision, Decision)
        assert isinstance(execution, Execution)
        assert isinstance(feedback, Feedback)
        reward = RULE.reward({"thumb": feedback.value or 0.0}, execution.cost)
        assert reward is not None
        policy.learn(decision, reward)
    return versions.digest_state(policy.save())


def test_an_empty_log_gives_a_first_version_and_then_nothing_new(a_store: MakeStore) -> None:
    store = a_store("log")
    learner = a_learner(store)
    version = learner.step()
    assert version is not None
    assert (version.version, version.parent, version.examples_seq, version.applied_seq) == (1, None, 0, 0)
    assert version == versions.latest(store)
    assert learner.step() is None


def test_a_learner_erases_texts_by_age_and_its_digests_stay(a_store: MakeStore) -> None:
    digests = []
    for name, days in (("kept", None), ("erased", 0.5)):
        store = a_store(name)
        store.append([one for number in range(10) for one in facts(number)])
        later = NOW + erasures.DAY_S
        epoch = take_epoch(store, "test", NOW)
        learner = Learner(store, Recipe(EXACT, RULE), ARMS, epoch, lambda at=later: at, keep_texts_days=days)
        version = learner.step()
        assert version is not None
        digests.append(version.digest)
        gone = [one.decisions for one in erasures.erasures(store)]
        assert gone == ([] if days is None else [10])
        again = [example.decision.erased for example in read_learned_examples(store, RULE)]
        assert again == [days is not None] * 10
    assert digests[0] == digests[1]


def test_what_is_judged_is_learned_and_published(a_store: MakeStore) -> None:
    store = a_store("log")
    learner = a_learner(store)
    first = learner.step()
    assert first is not None
    for number in range(30):
        store.append(facts(number))
    second = learner.step()
    assert second is not None
    assert (second.parent, second.examples_seq, second.applied_seq) == (first.version, 30, 90)
    assert second.digest != first.digest
    state = versions.checkpoint(store, second.version)
    assert state is not None
    assert versions.digest_state(state) == second.digest
    policy = build_policy(EXACT, ARMS).load(state)
    decision = facts(0)[0]
    assert isinstance(decision, Decision)
    assert policy.probabilities(decision.context, ARMS).max() > 0.9


def test_facts_that_teach_nothing_are_applied_without_a_version(a_store: MakeStore) -> None:
    store = a_store("log")
    learner = a_learner(store)
    version = live(store, range(7), learner)
    decision, execution, _ = facts(7)
    for fact in (decision, execution, Feedback("late", "d-0", "thumb", 1.0, NOW)):
        store.append([fact])
        assert learner.step() is None
        lag = training_log_lag.measure_lag(store, RULE, version.examples_seq)
        assert (lag.applied_seq, lag.facts) == (store.log_seq(), 0)
    assert versions.latest(store) == version


@pytest.mark.parametrize("spec", [EXACT, BAGGED], ids=["resumes", "replays"])
@pytest.mark.slow
def test_digests_do_not_depend_on_steps_or_restarts(a_store: MakeStore, spec: PolicySpec) -> None:
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
    assert uninterrupted.digest == whole.digest == last.digest == learned_at_once(range(40), spec)
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
    where = t.versions.c.version == version.version
    with store.writing() as connection:
        connection.execute(sa.update(t.versions).where(where).values(state=state))
    with caplog.at_level(logging.WARNING):
        learner = a_learner(store, spec)
    assert caplog.text.count(f"checkpoint of version {version.version} is missing or damaged") == 1
    again = learner.step()
    assert again is not None
    assert (again.parent, again.digest) == (version.version, version.digest)
    sound = versions.checkpoint(store, again.version)
    assert sound is not None
    assert versions.digest_state(sound) == again.digest
    assert learner.step() is None


@pytest.mark.parametrize("spec", [EXACT, BAGGED], ids=["resumes", "replays"])
def test_a_checkpoint_of_another_library_is_replayed_and_published_anew(
    a_store: MakeStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, spec: PolicySpec
) -> None:
    store = a_store("log")
    with monkeypatch.context() as before:
        before.setattr("armwise.agent.policies.vowpal.VW_VERSION", "8.0.0")
        old = live(store, range(14), a_learner(store, spec))
    with caplog.at_level(logging.WARNING):
        again = a_learner(store, spec).step()
    assert f"checkpoint of version {old.version} cannot be loaded" in caplog.text
    assert again is not None
    assert (again.parent, again.examples_seq) == (old.version, 14)
    always = a_store("always")
    assert again.digest == live(always, range(14), a_learner(always, spec)).digest


def test_a_pickle_among_the_checkpoints_is_not_read_and_the_log_is_learned_again(
    a_store: MakeStore, tmp_path: Path
) -> None:
    """What an attacker writes to the database has digests that fit; older states are pickles, too."""
    called, store = tmp_path / "called", a_store("log")
    spec = PolicySpec(kind="epsilon_greedy")
    old = live(store, range(14), a_learner(store, spec))
    sound = versions.checkpoint(store, old.version)
    assert sound is not None
    settings = json.loads(sound.partition(b"\n")[0])
    del settings["blake2b"]
    state = seal(settings, pickle.dumps(Command(f"touch {called}")))
    with store.writing() as connection:
        found = sa.update(t.versions).where(t.versions.c.version == old.version)
        connection.execute(found.values(state=state))
        digest = versions.digest_state(state)
        row = sa.update(t.versions).where(t.versions.c.version == old.version)
        connection.execute(row.values(digest=digest))
    again = a_learner(store, spec).step()
    assert again is not None
    assert (again.parent, again.digest) == (old.version, versions.digest_state(sound))
    assert not called.exists()


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


# -- a backlog -------------------------------------------------------------------------------------------


class Backlog:
    """A log of turns that nobody has learned, and a learner that takes a few at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: Store, turns: range) -> None:
        monkeypatch.setattr("armwise.agent.learning.learner.BATCH", 4)
        for number in turns:
            store.append(facts(number))
        self.store = store
        self.now = 0.0

    def learner(self, spec: PolicySpec = EXACT) -> Learner:
        epoch = take_epoch(self.store, "test", NOW)
        clocks = {"clock": lambda: NOW + 1, "timer": lambda: self.now}
        return Learner(self.store, Recipe(spec, RULE), ARMS, epoch, **clocks)

    def caught_up(self, learner: Learner, seconds_a_step: float) -> list[int]:
        """Let it learn all there is; return how many examples each of its versions has learned."""
        published = []
        while True:
            self.now += seconds_a_step
            version = learner.step()
            if version is not None:
                published.append(version.examples_seq)
            if not learner.behind:
                return published


@pytest.mark.parametrize("seconds_a_step", [0.1, 3.0], ids=["at once", "slowly"])
def test_the_first_version_of_a_recipe_has_learned_all_there_is(
    a_store: MakeStore, monkeypatch: pytest.MonkeyPatch, seconds_a_step: float
) -> None:
    backlog = Backlog(monkeypatch, a_store("log"), range(30))
    assert backlog.caught_up(backlog.learner(), seconds_a_step) == [30]
    assert versions.latest(backlog.store).digest == learned_at_once(range(30))  # type: ignore[union-attr]


def test_later_ones_are_published_every_few_seconds_while_there_is_more(
    a_store: MakeStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backlog = Backlog(monkeypatch, a_store("log"), range(0))
    learner = backlog.learner()
    assert learner.step() is not None
    for number in range(30):
        backlog.store.append(facts(number))
    with caplog.at_level(logging.INFO):
        assert backlog.caught_up(learner, 3.0) == [8, 16, 24, 30]
    assert [record.getMessage() for record in caplog.records] == [
        f"learning: {learned} of 30 examples, from 90 of 90 facts" for learned in (8, 16, 24)
    ]
    version = versions.latest(backlog.store)
    assert version is not None
    assert (version.digest, version.applied_seq) == (learned_at_once(range(30)), 90)
    with backlog.store.reading() as connection:
        applied = connection.scalars(sa.select(t.versions.c.applied_seq).order_by(t.versions.c.version))
        assert list(applied) == [0, 26, 50, 74, 90], "up to the fact before the next that teaches"


@pytest.mark.slow
def test_a_replay_publishes_only_what_is_new(a_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    backlog = Backlog(monkeypatch, a_store("log"), range(20))
    backlog.caught_up(backlog.learner(BAGGED), 3.0)
    assert backlog.caught_up(backlog.learner(BAGGED), 3.0) == []
    for number in range(20, 30):
        backlog.store.append(facts(number))
    assert backlog.caught_up(backlog.learner(BAGGED), 3.0) == [24, 30]


def test_a_joiner_with_a_part_read_is_behind(a_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    backlog = Backlog(monkeypatch, a_store("log"), range(10))
    monkeypatch.setattr("armwise.agent.learning.learner.Joiner", partial(Joiner, batch=11))
    learner = backlog.learner()
    assert learner.step() is None
    assert learner.behind
    assert backlog.caught_up(learner, 0.1) == [10]


def test_a_damaged_checkpoint_is_learned_again_from_the_one_before_it(
    a_store: MakeStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = a_store("log")
    version = live(store, range(28), a_learner(store))
    with store.writing() as connection:
        newest = t.versions.c.version >= version.version - 1
        connection.execute(sa.update(t.versions).where(newest).values(state=b"damaged"))
    again: list[int] = []
    read = read_learned_examples

    def noted(*arguments: Any) -> Iterator[Example]:
        for example in read(*arguments):
            again.append(example.seq)
            yield example

    monkeypatch.setattr("armwise.agent.learning.training.read_learned_examples", noted)
    learner = a_learner(store)
    assert [record.getMessage().split(" is ")[0] for record in caplog.records] == [
        f"checkpoint of version {version.version}",
        f"checkpoint of version {version.version - 1}",
    ]
    assert learner.step().digest == version.digest  # type: ignore[union-attr]
    assert again == list(range(15, 29))


def test_values_are_kept_at_their_limits(a_store: MakeStore, caplog: pytest.LogCaptureFixture) -> None:
    store = a_store("log")
    one, done, said = facts(1)
    assert isinstance(done, Execution)
    spent = replace(done, cost=Cost(prompt_tokens=10**30, usd=1e300), tokens_by_model={"m": (1, 10**30, 0)})
    store.append([one, spent, said])
    record = store.record("d-1")
    assert record is not None
    assert record.execution is not None
    assert (record.execution.cost.prompt_tokens, record.execution.cost.usd) == (2**31 - 1, 1e9)
    assert record.execution.tokens_by_model == {"m": (1, 2**53, 0)}
    lines = caplog.text.splitlines()
    for column in ("prompt_tokens", "usd", "tokens_by_model"):
        assert len([line for line in lines if f"executions.{column} of decision 'd-1'" in line]) == 1

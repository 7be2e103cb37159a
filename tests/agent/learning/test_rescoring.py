"""A changed rule: all of history is joined and scored again, as if the rule had always been so."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import sqlalchemy as sa

from armwise.agent.learning.learner import Learner
from armwise.agent.learning.recipe import Recipe
from armwise.agent.policies import PolicySpec
from armwise.feedback.events import Context, Cost, Decision, Execution, Feedback, FeedbackKind, Status, Tick
from armwise.feedback.log import Fact, Store
from armwise.feedback.log import tables as t
from armwise.feedback.registry import Version, versions
from armwise.feedback.reward import Aggregation, Complete, Metric, Prices, RewardRule
from armwise.feedback.training_log import read_examples, take_epoch

ARMS = ("none", "bm25", "dense")
EXACT = PolicySpec(kind="vowpal", params={"args": "--cb_explore_adf --epsilon 0.05 -q sa"})
BAGGED = PolicySpec(kind="vowpal", params={"args": "--cb_explore_adf --bag 3 -q sa --random_seed 7"})
METRICS = {"right": Metric(type="boolean"), "thumb": Metric(range=(-1, 1))}
RULE = RewardRule(correction_time="PT0S", metrics=METRICS, wait_time="PT1M")
CHANGES = {
    "cost_weight": {"cost_weight": 0.5},
    "prices": {"cost": Prices(steps=0.0, seconds=2.0)},
    "token prices": {"cost": Prices(usd=1.0), "token_prices": {"large": (0.5, 1.0, 0.5)}},
    "weight": {"metrics": METRICS | {"thumb": Metric(range=(-1, 1), weight=5.0)}},
    "direction": {"metrics": METRICS | {"thumb": Metric(range=(-1, 1), optimize="min")}},
    "aggregation": {"metrics": METRICS | {"right": Metric(type="boolean", aggregation=Aggregation.FIRST)}},
    "a metric less": {"metrics": {"right": Metric(type="boolean")}},
    "wait_time": {"wait_time": "PT15S"},
    "complete": {"complete": Complete.ALL},
    "default": {"default": -0.5},
    "failed": {"failed": -1.0},
}
FIRST = RULE.model_copy(update={"complete": Complete.DEADLINE})
"""The rule of the service before it is changed; feedback of all kinds comes in before it is learned."""

Commit = Sequence[Fact]


def traffic(turns: int, start: float) -> list[tuple[float, Commit]]:
    """What happens, in the order of the clock: turns 5 s apart, some failed, with feedback of all kinds."""
    rng = np.random.default_rng(int(start))
    found: list[tuple[float, Commit]] = []
    for number in range(turns):
        name, at = f"d-{start:g}-{number}", start + 5.0 * number
        drawn, episode = int(rng.integers(3)), f"e-{start:g}-{number // 3}"
        features = {"w=river": 1.0} if rng.random() < 0.5 else {"w=king": 1.0}
        context = Context("what?", features, (), {arm: {"steps": float(i)} for i, arm in enumerate(ARMS)})
        decision = Decision(
            name,
            context,
            ARMS,
            (0.25, 0.25, 0.5),
            ARMS[drawn],
            "vowpal",
            1,
            decided_at=at,
            deadline=at + 60.0,
        )
        status = Status.ARM_FAILED if rng.random() < 0.2 else Status.OK
        cost = Cost(steps=drawn, retrieval_s=float(rng.uniform()), usd=drawn / 4)
        tokens = {"large": (200 * drawn, 50, 0)} if number % 2 else {}
        done = Execution(name, ARMS[drawn], status, cost, finished_at=at + 1.0, tokens_by_model=tokens)
        found.append((at, [decision, done]))
        for key in range(rng.poisson(3.0)):
            later = at + float(rng.exponential(20.0))
            metric = "thumb" if rng.random() < 0.5 else "right"
            number_ = float(rng.uniform(-1, 1)) if metric == "thumb" else float(rng.integers(2))
            about = (None, episode) if rng.random() < 0.2 else (name, None)
            said = Feedback(f"{name}:{key}", about[0], metric, number_, later, episode_id=about[1])
            found.append((later, [said]))
            if rng.random() < 0.2:
                back = Feedback(
                    said.id, about[0], metric, None, later + 1.0, None, {}, about[1], FeedbackKind.RETRACTION
                )
                found.append((later + 1.0, [back]))
    return sorted(found, key=lambda one: one[0])


MakeStore = Callable[[], Store]


@pytest.fixture
def a_store() -> Iterator[MakeStore]:
    """Make empty logs."""
    made: list[Store] = []

    def make() -> Store:
        made.append(Store("sqlite://"))
        return made[-1]

    yield make
    for store in made:
        store.close()


class Service:
    """A log, and a learner under a rule that may change.

    Attributes:
        commits: All facts of the log, as they were committed; ticks of the learner, too.
    """

    def __init__(self, store: Store, spec: PolicySpec) -> None:
        self.store = store
        self.commits: list[Commit] = []
        self._spec = spec
        self._n = 0

    def learner(self, rule: RewardRule, clock: Callable[[], float] = lambda: 0.0) -> Learner:
        epoch = take_epoch(self.store, "test", 0.0)
        return Learner(self.store, Recipe(self._spec, rule), ARMS, epoch, clock)

    def run(self, happens: Sequence[tuple[float, Commit]], rule: RewardRule) -> Version:
        """Let things happen, with a look of the learner now and then, until all windows are over."""
        now = happens[0][0]
        learner = self.learner(rule, lambda: now)
        for number, (now, facts) in enumerate(happens):  # noqa: B007 - the clock reads it
            self.append(facts)
            if number % 3 == 0:
                learner.step()
                self._note_ticks()
        self.append([Tick(now + 1000.0)])  # all windows are over
        learner.step()
        return self.newest(rule)

    def append(self, facts: Commit) -> None:
        self.store.append(facts)
        self.commits.append(facts)
        self._n += len(facts)

    def newest(self, rule: RewardRule) -> Version:
        version = versions.latest(self.store, Recipe(self._spec, rule).digest)
        assert version is not None
        return version

    def _note_ticks(self) -> None:
        query = sa.select(t.ticks).where(t.ticks.c.seq > self._n).order_by(t.ticks.c.seq)
        with self.store.reading() as connection:
            ticks = [Tick(at) for _, at in connection.execute(query)]
        self.commits += [[tick] for tick in ticks]
        self._n += len(ticks)


class Always:
    """A log into which the facts of another one come, and a learner that was always under one rule.

    Its clock stands still: all ticks are those of the other log.
    """

    def __init__(self, store: Store, spec: PolicySpec, rule: RewardRule) -> None:
        self.service = Service(store, spec)
        self._rule = rule
        self._learner = self.service.learner(rule)

    def follow(self, commits: Sequence[Commit]) -> Version:
        """Take in what is new, a few commits at a time; return the last version."""
        for number, facts in enumerate(commits[len(self.service.commits) :]):
            self.service.append(facts)
            if number % 5 == 0:
                self._learner.step()
        self._learner.step()
        assert self.service.store.log_seq() == sum(map(len, commits)), "it wrote no tick of its own"
        return self.service.newest(self._rule)


def learned(store: Store, rule: RewardRule) -> list[tuple[str, dict[str, float]]]:
    return [(one.decision.id, dict(one.metrics)) for one in read_examples(store, rule.join)]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("spec", [EXACT, BAGGED], ids=["resumes", "replays"])
@pytest.mark.slow
def test_a_changed_rule_rescores_all_history(a_store: MakeStore, spec: PolicySpec, change: str) -> None:
    rule = FIRST.model_copy(update=CHANGES[change])
    service, always = Service(a_store(), spec), Always(a_store(), spec, rule)
    before = service.run(traffic(20, 1000.0), FIRST)

    rescored = service.learner(rule).step()
    assert rescored is not None
    expected = always.follow(service.commits)
    assert learned(service.store, rule) == learned(always.service.store, rule)
    assert rescored.digest == expected.digest != before.digest
    assert (rescored.parent, rescored.examples_seq) == (None, expected.examples_seq)

    went_on = service.run(traffic(8, 3000.0), rule)
    assert went_on.digest == always.follow(service.commits).digest != rescored.digest


@pytest.mark.parametrize("change", ["cost_weight", "aggregation", "wait_time"])
@pytest.mark.parametrize("spec", [EXACT, BAGGED], ids=["resumes", "replays"])
@pytest.mark.slow
def test_a_rule_that_comes_back_gives_what_it_gave(a_store: MakeStore, spec: PolicySpec, change: str) -> None:
    rule = FIRST.model_copy(update=CHANGES[change])
    service, always = Service(a_store(), spec), Always(a_store(), spec, FIRST)
    first = service.run(traffic(20, 1000.0), FIRST)
    service.learner(rule).step()
    assert service.learner(FIRST).step() is None, "nothing is new, and what was published is served again"
    assert service.newest(FIRST) == first

    with service.store.writing() as connection:
        connection.execute(sa.update(t.versions).values(state=None))
    again = service.learner(FIRST).step()
    assert again is not None
    assert (again.digest, again.parent) == (first.digest, first.version)

    service.run(traffic(8, 3000.0), rule)
    back = service.learner(FIRST).step()
    assert back is not None
    assert back.digest == always.follow(service.commits).digest != first.digest

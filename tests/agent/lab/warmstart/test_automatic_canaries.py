"""Automatic canaries: what the evidence leads to, what is recorded, and who may overrule it."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from armwise.agent.config import AppConfig
from armwise.agent.lab.warmstart import AutomaticCanaries
from armwise.agent.lab.warmstart.canary import CanaryAction, NextStep, first_share, grow_share, next_step
from armwise.agent.learning import Recipe, digest_configuration, publish_candidate
from armwise.agent.policies import Exploration, PolicySpec
from armwise.feedback.errors import QueueFullError
from armwise.feedback.log import Store
from armwise.feedback.registry import active_policy, arm_sets, evaluations, promotions
from armwise.feedback.training_log import Joiner, take_epoch
from tests.agent.evaluation.test_evaluate import ARMS, turn
from tests.agent.lab.warmstart.test_run import configured

FIGURES = {"n": 400, "gain": 0.0, "low": -0.25, "high": 0.3, "margin": 0.0, "level": 0.975}
HELD: dict[str, Any] = {"promote": False, "undecided": True, "reasons": ["too little"], "figures": FIGURES}


def held(share: float = 0.0, **figures: float) -> dict[str, Any]:
    """Return a verdict that holds a candidate for want of evidence.

    Bounds are of its gain over the active policy, of which what is served has 1 - share.
    """
    bounds = {name: (1.0 - share) * (FIGURES | figures)[name] for name in ("low", "high")}
    return {**HELD, "figures": {**FIGURES, **figures, **bounds}}


# -- the steps -----------------------------------------------------------------------------------------------


@given(st.floats(0.02, 0.5), st.floats(-2.0, 1.0), st.sampled_from([1.0, 2.0]))
def test_the_possible_loss_never_grows(first: float, low: float, width: float) -> None:
    low = max(low, -width)
    share = grow_share(first, low, width)
    assert first <= share <= 0.5
    assert share * max(-low, 0.0) <= first * width * (1.0 + 1e-12)


@given(st.floats(0.0, 0.25), st.integers(2, 40))
def test_floor_and_share_together_explore_as_much_as_the_floor_alone(floor: float, n_arms: int) -> None:
    floor = min(floor, 1.0 / n_arms)
    share = first_share(Exploration(0.03, floor), n_arms)
    assert 0.02 <= share <= 0.5
    if 0.02 < share < 0.5:
        assert share + 0.25 * floor * n_arms == pytest.approx(floor * n_arms)


def test_a_verdict_that_promotes_is_followed() -> None:
    step = next_step({**held(low=0.012, gain=0.05, high=0.09), "promote": True}, 0.5, 0.06, 1.0)
    assert step.action is CanaryAction.PROMOTE
    assert step.reason == (
        "it gains +0.0120 a decision at least (at 97.5 %), +0.0500 as estimated, by 400 decisions"
    )


@pytest.mark.parametrize(
    ("high", "margin", "action", "said"),
    [
        (-0.001, 0.0, CanaryAction.END, "it is worse: it gains -0.0010 a decision at most"),
        (0.01, 0.0, CanaryAction.END, "it is hardly better, if at all: it gains +0.0100 a decision at most"),
        (0.0101, 0.0, CanaryAction.SHARE, ""),
        (0.06, 0.05, CanaryAction.END, "it is hardly better, if at all"),
        (-0.03, -0.05, CanaryAction.END, "it is worse"),
    ],
)
def test_a_candidate_is_ended_once_it_cannot_gain(
    high: float, margin: float, action: CanaryAction, said: str
) -> None:
    step = next_step(held(0.06, high=high, margin=margin), 0.06, 0.06, 1.0)
    assert step.action is action
    assert step.reason.startswith(said)
    assert (step.share == 0.0) == (action is CanaryAction.END)


def test_a_candidate_whose_log_is_wrong_is_ended_with_the_reasons() -> None:
    step = next_step({**HELD, "undecided": False, "reasons": ["2 of 100 differ."]}, 0.06, 0.06, 1.0)
    assert step == NextStep(CanaryAction.END, 0.0, "the gate cannot judge it: 2 of 100 differ.")


def test_a_candidate_is_ended_without_a_verdict_after_many_decisions() -> None:
    assert next_step(held(0.24, n=19_999), 0.24, 0.06, 1.0).action is CanaryAction.WAIT
    step = next_step(held(0.24, n=20_000), 0.24, 0.06, 1.0)
    assert step.action is CanaryAction.END
    assert step.reason == "20,000 decisions did not settle it: it gains -0.2500 to +0.3000 at 97.5 %"


@pytest.mark.parametrize(
    ("low", "share", "expected"),
    [
        (-1.0, 0.06, None),  # nothing is known
        (-0.81, 0.06, None),  # it would grow by less than a quarter
        (-0.5, 0.06, 0.12),
        (-0.25, 0.06, 0.24),
        (-0.25, 0.5, 0.24),  # it has become worse
        (-0.1, 0.45, 0.5),  # the largest is always reached
        (0.0, 0.5, None),
    ],
)
def test_the_share_follows_the_bound_in_steps(low: float, share: float, expected: float | None) -> None:
    step = next_step(held(share, low=low), share, 0.06, 1.0)
    assert step.action is (CanaryAction.WAIT if expected is None else CanaryAction.SHARE)
    assert step.share == pytest.approx(share if expected is None else expected)


def test_bounds_are_of_the_gain_over_the_policy_beside_the_canary() -> None:
    half = held(low=-0.12, high=0.017)  # over what was served, of which half was the canary
    step = next_step(half, 0.5, 0.06, 1.0)
    assert (step.action, step.share) == (CanaryAction.SHARE, pytest.approx(0.25))
    assert step.reason.startswith("it loses 0.2400 a decision at most")
    earlier = next_step({**half, "canary_share": 0.5}, 0.1, 0.06, 1.0)
    assert earlier.share == pytest.approx(0.25), "the largest share that it had counts"
    assert next_step(held(low=-1.0), 0.5, 0.06, 1.0).share == 0.06, "no loss is above the range"


def test_without_a_judged_decision_it_waits_and_not_for_ever() -> None:
    unjudged = {**HELD, "figures": None, "reasons": ["no decision is left."]}
    assert next_step(unjudged, 0.06, 0.06, 1.0, 99_999) == NextStep(CanaryAction.WAIT, 0.06)
    step = next_step(unjudged, 0.06, 0.06, 1.0, 100_000)
    assert step == NextStep(CanaryAction.END, 0.0, "no verdict after 100,000 examples: no decision is left.")
    assert next_step(held(0.06), 0.06, 0.06, 1.0, 100_000).action is CanaryAction.END, "it takes part no more"
    impossible = {**unjudged, "undecided": False}
    assert next_step(impossible, 0.06, 0.06, 1.0).action is CanaryAction.END


# -- the task ------------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> AppConfig:
    return configured(tmp_path, canary="auto")


@pytest.fixture
def store(config: AppConfig) -> Iterator[Store]:
    with closing(Store(config.database_url, config.reward.join, lambda: 1e6)) as opened:
        yield opened


class Answering(threading.Event):
    """A stop signal whose wait lets the evaluation that was asked for be answered as told."""

    def __init__(
        self, store: Store, configured: str, verdict: dict[str, Any] | None, then: Any = None
    ) -> None:
        super().__init__()
        self._store, self._configured, self._verdict, self._then = store, configured, verdict, then

    @override
    def wait(self, timeout: float | None = None) -> bool:
        """Answer; with no verdict, the evaluation fails."""
        mine = evaluations.claim(self._store, self._configured, "worker", 1e6)
        assert mine is not None
        assert mine.request["gate"]
        (name,) = mine.request["candidates"]
        if self._verdict is None:
            evaluations.fail(self._store, mine, "no", 1e6)
        else:
            report = {"candidates": [{"name": name, "verdict": self._verdict}]}
            evaluations.finish(self._store, mine, evaluations.StoredResult(report, ""), 1e6)
        if self._then is not None:
            self._then()
        return False


class Beside:
    """A log with traffic, a task that looks at its canaries, and evaluations that are answered as told."""

    def __init__(self, store: Store, config: AppConfig) -> None:
        self.store, self.config = store, config
        self.now, self.asked = 1e6, 0
        self.configured = Recipe.from_config(config).digest
        self.epoch = take_epoch(store, "test", 0.0)
        self.task = AutomaticCanaries(store, config, lambda: self.now)
        self.traffic(1)

    def canary(self, arm: str = "none", share: float = 0.0225, *, automatic: bool = True) -> int:
        """Give a candidate a share; return its version."""
        recipe = Recipe(PolicySpec(kind="fixed", params={"arm": arm}), self.config.reward)
        version = publish_candidate(self.store, recipe, list(self.config.actions)).version
        self.record(version, share, automatic=automatic)
        assert not self.due(), "it has only begun"
        return version

    def record(self, version: int, share: float, *, automatic: bool) -> None:
        """Record a share."""
        action = promotions.Action.CANARY
        promotion = promotions.Promotion(0, version, action, "held", 9.0, share=share, automatic=automatic)
        promotions.record(self.store, self.configured, promotion)

    def traffic(self, n: int) -> None:
        """Have judged turns."""
        facts = [fact for k in range(self.asked, self.asked + n) for fact in turn(k, ARMS[k % 3])]
        self.asked += n
        self.store.append(facts)
        Joiner(self.store, self.config.reward, self.epoch).advance(self.now)

    def due(self) -> bool:
        """Return whether a look is due, two seconds later."""
        self.now += 2.0
        return self.task.due(self.now)

    def look(self, verdict: dict[str, Any] | None, then: Any = None) -> None:
        """Do what is due, while the evaluation is answered."""
        assert self.due()
        self.task.run(Answering(self.store, digest_configuration(self.config), verdict, then))

    @property
    def last(self) -> promotions.Promotion:
        """The newest row of the promotions."""
        return promotions.newest(self.store, 1)[0]

    @property
    def shares(self) -> dict[int, float]:
        """The share of each canary."""
        return {one.version: one.share for one in active_policy(self.store, self.configured).canaries}


@pytest.fixture
def beside(store: Store, config: AppConfig) -> Beside:
    return Beside(store, config)


@pytest.mark.slow
def test_a_canary_is_looked_at_every_fifty_examples_and_then_more_rarely(beside: Beside) -> None:
    version = beside.canary()
    beside.traffic(49)
    assert not beside.due()
    beside.traffic(1)
    beside.look(held(low=-2.0))
    assert beside.shares == {version: 0.0225}
    for more in (50, 50, 50, 50):
        beside.traffic(more - 1)
        assert not beside.due()
        beside.traffic(1)
        beside.look(held(low=-2.0))
    beside.traffic(50)
    beside.look(held(low=-2.0))  # 300 examples after it began
    beside.traffic(59)
    assert not beside.due()
    beside.traffic(1)
    assert beside.due()


def test_canaries_are_looked_at_where_the_log_is_worth_it(beside: Beside) -> None:
    beside.canary()
    worth, task = iter([True, False, True]), beside.task
    beside.task = AutomaticCanaries(beside.store, beside.config, lambda: beside.now, lambda: next(worth))
    assert not beside.due(), "its first look"
    beside.traffic(50)
    assert [beside.due(), beside.due(), task.due(beside.now)] == [False, True, True]


def test_a_canary_that_begins_again_is_looked_at_anew(beside: Beside) -> None:
    version = beside.canary()
    beside.traffic(300)
    beside.record(version, 0.0, automatic=True)
    assert not beside.due()
    beside.record(version, 0.1, automatic=True)
    assert not beside.due()
    beside.traffic(49)
    assert not beside.due()
    beside.traffic(1)
    assert beside.due()


def test_a_share_grows_with_the_evidence_and_the_evaluation_is_on_record(beside: Beside) -> None:
    version = beside.canary()
    beside.traffic(50)
    beside.look(held(0.0225, low=-0.5))  # of rewards from -1 to 1
    low, high = beside.config.reward.reward_range
    first = first_share(beside.config.explores, len(beside.config.actions))
    assert beside.shares == {version: pytest.approx(first * (high - low) / 0.5)}
    assert (beside.last.evaluation, beside.last.automatic, beside.last.forced) == (1, True, False)
    assert beside.last.reason == "canary: it loses 0.5000 a decision at most (at 97.5 %), by 400 decisions"
    report = evaluations.page(beside.store, 1)[0].request
    assert (report["candidates"], report["name"]) == ([f"canary:{version}"], "canary")


def test_a_canary_that_the_gate_lets_through_is_promoted_without_force(beside: Beside) -> None:
    version = beside.canary()
    beside.traffic(50)
    beside.look({**held(low=0.01), "promote": True})
    active = active_policy(beside.store, beside.configured)
    assert active.promotion is not None
    assert (active.promotion.version, active.promotion.forced, active.canaries) == (version, False, ())
    assert active.promotion.evaluation == 1
    assert not beside.due()


def test_with_promote_never_a_passing_canary_keeps_its_share(store: Store, tmp_path: Path) -> None:
    beside = Beside(store, configured(tmp_path, canary="auto", promote="never"))
    version = beside.canary()
    beside.traffic(50)
    beside.look({**held(low=0.01), "promote": True})
    assert beside.shares == {version: 0.0225}


def test_a_canary_that_is_worse_is_ended(beside: Beside) -> None:
    beside.canary()
    beside.traffic(50)
    beside.look(held(high=-0.02))
    assert beside.shares == {}
    assert (beside.last.action, beside.last.share) == (promotions.Action.CANARY, 0.0)
    assert beside.last.reason.startswith("canary: it is worse")


def test_the_canary_of_an_operator_is_left_alone(beside: Beside) -> None:
    version = beside.canary(automatic=False)
    beside.traffic(500)
    assert not beside.due()
    beside.record(version, 0.3, automatic=True)
    assert not beside.due()
    beside.traffic(50)
    assert beside.due()
    beside.record(version, 0.4, automatic=False)
    beside.task.run(Answering(beside.store, "", HELD))
    assert beside.shares == {version: 0.4}, "an operator has taken it over before the look"


def test_what_an_operator_does_while_a_canary_is_judged_counts(beside: Beside) -> None:
    version = beside.canary()
    beside.traffic(50)
    beside.look(held(high=-0.02), then=lambda: beside.record(version, 0.2, automatic=False))
    assert beside.shares == {version: 0.2}


def test_each_of_several_canaries_is_looked_at_in_turn(beside: Beside) -> None:
    first, second = beside.canary("none"), beside.canary("bm25")
    beside.traffic(50)
    beside.look(held(high=-0.02))
    beside.look(held(low=-0.5))
    assert set(beside.shares) == {second}
    assert first != second
    assert not beside.due()


def test_an_evaluation_that_fails_or_is_interrupted_changes_nothing(beside: Beside) -> None:
    version = beside.canary()
    beside.traffic(50)
    beside.look(None)
    assert beside.shares == {version: 0.0225}
    assert not beside.due(), "the same log would fail again"
    beside.traffic(50)
    assert beside.due()
    stopped = threading.Event()
    stopped.set()
    beside.task.run(stopped)
    assert beside.shares == {version: 0.0225}


def test_a_canary_that_cannot_be_judged_holds_up_no_other(beside: Beside) -> None:
    first, second = beside.canary("none"), beside.canary("bm25")
    beside.traffic(50)
    beside.look(None)
    beside.look(held(high=-0.02))
    assert set(beside.shares) == {first}
    assert first != second


def test_a_share_follows_from_the_arms_that_are_live_now(beside: Beside) -> None:
    version = beside.canary(share=0.3)
    arms = dict(beside.config.arm_documents)
    arm_sets.start(beside.store, arms)
    arm_sets.replace(beside.store, [*arms, "more-1", "more-2", "more-3"], arms)
    beside.traffic(50)
    beside.look(held(0.3, low=-2.0))
    explores, live = beside.config.explores, len(beside.config.actions) + 3
    assert beside.shares == {version: pytest.approx(first_share(explores, live))}


def test_a_queue_that_is_full_is_tried_again(beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    version = beside.canary()
    beside.traffic(50)
    assert beside.due()

    def full(*_: object) -> None:
        raise QueueFullError("20 evaluations wait")

    monkeypatch.setattr(evaluations, "submit", full)
    beside.task.run(threading.Event())
    assert beside.shares == {version: 0.0225}
    assert beside.due()

"""An apprentice: the baseline decides, the policy learns, and what it would have done is on record."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from armwise.agent.learning import Learner, Recipe
from armwise.agent.policies.base import Fixed, Policy, PolicyError, Uniform
from armwise.agent.policies.catalog import PolicySpec, build_policy
from armwise.agent.policies.linear import LinUCB
from armwise.agent.policies.sampling import served_distribution, shadow_distribution
from armwise.agent.policies.shadow import Agreement, ShadowPolicy, agreement
from armwise.agent.turn import Ask, TurnLoop, check_eligibility
from armwise.feedback.events import Context, Decision, Feedback
from armwise.feedback.log import Store
from armwise.feedback.registry import versions
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.training_log import take_epoch
from tests.agent.fakes import MemoryLog, Preferring
from tests.agent.serving.test_turn import a_loop
from tests.contracts import (
    ARMS,
    CONTEXT_CHECKS,
    EXACT_CHECKS,
    LEARNING_CHECKS,
    Build,
    contexts,
    history,
    teach,
)

POLICY = {"kind": "linucb", "params": {"dims": 8}}
BASELINE = {"kind": "fixed", "params": {"arm": "dense"}}
INNER = PolicySpec.model_validate(POLICY)
APPRENTICE = PolicySpec(kind="apprentice", params={"baseline": BASELINE, "policy": POLICY})


def an_apprentice() -> Policy:
    return build_policy(APPRENTICE, ARMS)


class Shadow:
    """The policy in the shadow of an apprentice, by itself."""

    def __init__(self, apprentice: ShadowPolicy) -> None:
        self.kind, self.resumes_exactly = "linucb", apprentice.resumes_exactly
        self._apprentice = apprentice
        self.learn, self.save = apprentice.learn, apprentice.save

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        return self._apprentice.in_shadow.probabilities(context, arms)

    def load(self, state: bytes) -> Self:
        return type(self)(self._apprentice.load(state))


@pytest.mark.parametrize(
    "check", [*LEARNING_CHECKS, *CONTEXT_CHECKS, *EXACT_CHECKS], ids=lambda check: check.__name__
)
def test_what_is_in_the_shadow_keeps_every_promise_of_a_policy_that_learns(
    check: Callable[[Build], None],
) -> None:
    check(lambda: Shadow(ShadowPolicy(Uniform(), LinUCB(dims=8))))


def test_the_baseline_decides_whatever_was_learned() -> None:
    apprentice = an_apprentice()
    for n in (0, 50):
        teach(apprentice, history(apprentice, n, seed=1, best="bm25"))
        for seen in contexts(5, seed=2):
            assert apprentice.probabilities(seen, ARMS).tolist() == [0.0, 1.0, 0.0]


def test_the_policy_alone_that_learned_the_same_is_the_same_to_the_byte() -> None:
    apprentice, alone = an_apprentice(), build_policy(INNER, ARMS)
    rows = history(alone, 60, seed=3)
    teach(apprentice, rows)
    teach(alone, rows)
    assert apprentice.save() == alone.save()
    promoted = build_policy(INNER, ARMS).load(apprentice.save())
    for seen in contexts(5, seed=4):
        would_have = shadow_distribution(apprentice, seen, ARMS, 0.05).tolist()
        assert served_distribution(promoted, seen, ARMS, 0.05).tolist() == would_have


@pytest.mark.parametrize("args", ["--cb_explore_adf --epsilon 0.05", "--cb_explore_adf --cover 3"])
def test_it_resumes_as_exactly_as_its_policy(args: str) -> None:
    inner = build_policy(PolicySpec(kind="vowpal", params={"args": args}), ARMS)
    assert ShadowPolicy(Uniform(), inner).resumes_exactly is inner.resumes_exactly


# -- over the log --------------------------------------------------------------------------------------

RULE = RewardRule(metrics={"right": Metric()}, cost_weight=0.0)
NOW = 1000.0


class Journal:
    """A log of a loop on disk."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def append(self, *facts: Any) -> "asyncio.Future[Any]":
        done = asyncio.get_running_loop().create_future()
        done.set_result(self.store.append(facts))
        return done


def a_learner(store: Store, spec: PolicySpec) -> Learner:
    epoch = take_epoch(store, "test", NOW)
    return Learner(store, Recipe(spec, RULE), ARMS, epoch, clock=lambda: NOW + 1)


async def test_to_serve_the_policy_is_to_replay_the_log_to_the_same_digest(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'log.db'}", RULE.join)
    apprentice = a_learner(store, APPRENTICE)
    loop = a_loop(Journal(store), policy=an_apprentice(), floor=0.1)
    for i in range(40):
        async for _ in loop.turn(Ask(f"d-{i}", "which river?" if i % 3 else "a king", context={"i": i % 5})):
            pass
        store.append([Feedback(f"f-{i}", f"d-{i}", "right", i % 2, received_at=NOW)])
    learned = apprentice.step()
    promoted = a_learner(store, INNER).step()
    assert learned is not None
    assert promoted is not None
    assert learned.examples_seq == promoted.examples_seq == 40
    assert learned.digest == promoted.digest
    assert learned.digest != versions.digest_state(build_policy(INNER, ARMS).save()), "it has learned"
    store.close()


def decided(policy: Policy, **wishes: Any) -> Decision:
    loop: TurnLoop = a_loop(MemoryLog(), policy=policy, floor=0.1)
    ask = Ask("d-1", "which river?", **wishes)
    return loop.decider.decide(
        ask, check_eligibility(ask, loop.arms)[0], asyncio.run(loop.describe(ask, loop.arms))[1]
    )


def test_a_decision_says_what_the_policy_would_have_drawn_from() -> None:
    apprentice = ShadowPolicy(Fixed("dense"), Preferring(none=0, bm25=1, dense=0))
    decision = decided(apprentice, excluded=frozenset({"none"}))
    assert (decision.policy, decision.arms) == ("apprentice", ("bm25", "dense"))
    assert decision.probabilities == pytest.approx((0.1, 0.9))
    assert decision.shadow == pytest.approx((0.9, 0.1))
    again = shadow_distribution(apprentice, decision.context, decision.arms, decision.floor)
    assert decision.shadow == tuple(again.tolist())


def test_only_an_apprentice_that_was_asked_has_a_shadow() -> None:
    assert decided(LinUCB()).shadow == ()
    assert decided(an_apprentice(), forced="bm25").shadow == ()
    assert len(decided(an_apprentice(), explore=False).shadow) == 3


# -- agreement -----------------------------------------------------------------------------------------


def a_decision(p: Sequence[float], shadow: Sequence[float]) -> Decision:
    arms = tuple(f"arm{i}" for i in range(len(p)))
    return Decision("d", Context("?"), arms, tuple(p), arms[0], "apprentice", 1, shadow=tuple(shadow))


distributions = st.integers(2, 5).flatmap(
    lambda n: st.lists(
        st.tuples(*[st.lists(st.integers(1, 100), min_size=n, max_size=n)] * 2), min_size=1, max_size=5
    )
)


@given(distributions)
def test_the_mass_that_is_shared_is_what_total_variation_leaves(counts: list[tuple[list[int], ...]]) -> None:
    pairs = [tuple(np.array(one) / sum(one) for one in pair) for pair in counts]
    found = agreement(a_decision(p.tolist(), q.tolist()) for p, q in pairs)
    assert found.shared == pytest.approx(np.mean([1 - np.abs(p - q).sum() / 2 for p, q in pairs]))
    assert found.same_arm == np.mean([p.argmax() == q.argmax() for p, q in pairs])


def test_decisions_without_a_shadow_are_passed_over() -> None:
    alike = a_decision((0.75, 0.25), (0.75, 0.25))
    alone = replace(alike, shadow=())
    assert agreement([alone, alike, alone]) == Agreement(1, 1.0, 1.0)
    with pytest.raises(ValueError, match="no decision has a shadow to compare it with"):
        agreement([alone])


# -- what cannot be ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"baseline": POLICY}, "baseline 'linucb' learns: take one that does not, such as 'fixed'"),
        ({"baseline": {"kind": "fixd"}}, "policy.params.baseline: no policy of kind 'fixd'; did you mean"),
        (
            {"baseline": {"kind": "fixed", "params": {"arm": "dens"}}},
            "policy.params.baseline: policy 'fixed' names the arm 'dens'; did you mean 'dense'?",
        ),
        (
            {"baseline": "fixed"},
            "policy.params.baseline: `kind` and `params` of a policy were expected, got 'fixed'",
        ),
        (
            {"policy": {"kind": "linucb", "parms": {}}},
            "policy.params.policy: unknown key 'parms'; did you mean 'params'?",
        ),
        (
            {"policy": {"kind": "linucb", "params": {"alpa": 1}}},
            "policy.params.policy: policy 'linucb' has no parameter 'alpa'; did you mean 'alpha'?",
        ),
        (
            {"policy": {"kind": "apprentice", "params": {"baseline": BASELINE, "policy": POLICY}}},
            "policy 'apprentice' cannot be the policy of an apprentice",
        ),
        (
            {"baseline": {"kind": "apprentice", "params": {"baseline": BASELINE, "policy": POLICY}}},
            "baseline 'apprentice' learns",
        ),
        ({"baselin": BASELINE}, "policy 'apprentice' has no parameter 'baselin'; did you mean 'baseline'?"),
    ],
)
def test_what_is_wrong_with_an_apprentice_is_named(params: dict[str, object], message: str) -> None:
    spec = PolicySpec(kind="apprentice", params={"baseline": BASELINE, "policy": POLICY, **params})
    with pytest.raises(PolicyError) as error:
        build_policy(spec, ARMS)
    assert str(error.value).startswith(message)


def test_a_policy_that_is_missing_is_named() -> None:
    spec = PolicySpec(kind="apprentice", params={"baseline": BASELINE})
    with pytest.raises(PolicyError, match=r"cannot be built: .*'policy'"):
        build_policy(spec, ARMS)


def test_the_baseline_may_be_any_policy_that_learns_nothing() -> None:
    for kind, params in (("uniform", {}), ("routed", {"epsilon": 0.1}), ("fixed", {"arm": "none"})):
        spec = PolicySpec(
            kind="apprentice", params={"baseline": {"kind": kind, "params": params}, "policy": POLICY}
        )
        assert build_policy(spec, ARMS).probabilities(contexts(1, seed=0)[0], ARMS).sum() == pytest.approx(
            1.0
        )

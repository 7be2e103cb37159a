"""Whatever a caller may send as context, every policy gives a distribution and learns finite numbers."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armwise.agent.api import request_fields
from armwise.agent.policies import (
    FeatureSpec,
    PolicySpec,
    build_policy,
    choose,
    compute_served_distribution,
    describe,
)
from armwise.agent.policies.sampling import TOLERANCE
from armwise.feedback.events import Context, Decision
from tests.agent.policies.test_contracts import ALL
from tests.contracts import ARMS

ARM_FEATURES = {arm: {"steps": float(i), f"family={arm}": 1.0} for i, arm in enumerate(ARMS)}

SOME = {
    name: spec
    for name, spec in ALL.items()
    if spec.kind != "vowpal" or name in ("vowpal", "vowpal --epsilon 0.05 --cb_type dr")
}
"""Every kind; VW's algorithms share their regression."""

NUMBERS = st.floats(-request_fields.CONTEXT_NUMBER, request_fields.CONTEXT_NUMBER)

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)

CONTEXTS = st.dictionaries(
    TEXTS, st.one_of(NUMBERS, st.booleans(), TEXTS), max_size=request_fields.CONTEXT_NAMES
)


def seen(question: str, extra: Mapping[str, Any]) -> Context:
    return describe(question, FeatureSpec(), extra=extra, arms=ARM_FEATURES)


def numbers_of(part: object, depth: int = 0) -> Iterator[float]:
    """Yield every number in a policy that Python can see: weights, moments, covariances."""
    match part:
        case float():
            yield part
        case np.ndarray() if part.dtype.kind == "f":
            yield from part.ravel().tolist()
        case dict():
            for value in part.values():
                yield from numbers_of(value, depth + 1)
        case _ if depth < 8 and hasattr(part, "__dict__"):
            yield from numbers_of(vars(part), depth + 1)


@pytest.mark.parametrize("spec", SOME.values(), ids=SOME.keys())
@settings(max_examples=15)
@given(asked=st.lists(st.tuples(CONTEXTS, st.integers(0, len(ARMS) - 1), st.floats(-1.0, 1.0)), max_size=12))
@pytest.mark.slow
def test_any_accepted_context_gives_a_distribution_and_leaves_finite_numbers(
    spec: PolicySpec, asked: list[tuple[dict[str, Any], int, float]]
) -> None:
    policy = build_policy(spec, ARMS)
    plain = seen("who wrote Emma?", {})
    for extra, arm, reward in asked:
        context = seen("which river?", extra)
        for one in (context, plain):
            p = compute_served_distribution(policy, one, ARMS, 0.01)
            assert abs(p.sum() - 1.0) <= TOLERANCE
            assert (p >= 0.01 - TOLERANCE).all()
        policy.learn(Decision("d", context, tuple(ARMS), tuple(p), ARMS[arm], "x", 1), reward)
    compute_served_distribution(policy, plain, ARMS, 0.01)
    assert np.isfinite(list(numbers_of(policy))).all()


LEARNERS = ("epsilon_greedy", "linucb", "linucb disjoint", "linear_thompson", "neural", "vowpal")


def right_answers(spec: PolicySpec, disturbance: float) -> float:
    """Return the share of right arms of an ordinary caller while a tenth of the requests is another's.

    Args:
        spec: The policy.
        disturbance: Magnitude of that caller's numbers, whose rewards are arbitrary; 0 for none.
    """
    rng = np.random.default_rng(0)
    policy = build_policy(spec, ARMS)
    right = []
    for number in range(1200):
        disturbed = rng.random() < 0.1
        answer = int(rng.integers(3))
        size = disturbance if disturbed else 0.0
        names = {f"x{i}": size * float(rng.choice([-1.0, 1.0, rng.random()])) for i in range(32)}
        word = ("river", "sea", "lake")[answer]
        context = seen("some question?" if disturbed else f"which {word}?", names if size else {})
        p = compute_served_distribution(policy, context, ARMS, 0.01)
        drawn = choose(p, rng.random())
        reward = float(rng.choice([-1.0, 1.0])) if disturbed else float(drawn == answer)
        policy.learn(Decision("d", context, tuple(ARMS), tuple(p), ARMS[drawn], "x", 1), reward)
        if number >= 600 and not disturbed:
            right.append(drawn == answer)
    return float(np.mean(right))


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.slow
def test_numbers_at_the_limit_do_not_spoil_the_policy_for_other_callers(name: str) -> None:
    assert right_answers(ALL[name], request_fields.CONTEXT_NUMBER) > right_answers(ALL[name], 0.0) - 0.06

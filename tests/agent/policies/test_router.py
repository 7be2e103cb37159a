"""The policy that hears a router: how scores become a distribution, and what happens without them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.agent.policies.router import Routed
from armwise.feedback.events import Context, Decision

ARMS = ("none", "bm25", "dense")


def heard(**scores: float) -> Context:
    """A context in which a router scored some arms; every arm has another feature, too."""
    told = {arm: {"steps": 1.0} for arm in ARMS}
    return Context("?", arms={**told, **{arm: {"steps": 1.0, "router": s} for arm, s in scores.items()}})


def test_epsilon_is_spread_over_all_arms_and_the_rest_goes_to_the_best() -> None:
    p = Routed(epsilon=0.3).probabilities(heard(none=0.1, bm25=0.5, dense=0.4), ARMS)
    assert p == pytest.approx([0.1, 0.8, 0.1])


def test_ties_share_what_the_best_arm_gets() -> None:
    p = Routed().probabilities(heard(none=0.1, bm25=0.5, dense=0.5), ARMS)
    assert p[1] == p[2] > 0.45


def test_an_arm_without_a_score_counts_as_the_mean_of_the_others() -> None:
    assert Routed(0.0).probabilities(heard(none=0.2, dense=0.6), ARMS).tolist() == [0.0, 0.0, 1.0]
    assert Routed(0.0).probabilities(heard(none=0.4, dense=0.4), ARMS) == pytest.approx([1 / 3] * 3)


def test_without_any_score_all_arms_are_alike() -> None:
    assert Routed().probabilities(heard(), ARMS) == pytest.approx([1 / 3] * 3)
    assert Routed().probabilities(Context("?"), ARMS) == pytest.approx([1 / 3] * 3), "no features at all"


def test_rewards_change_nothing() -> None:
    policy, seen = Routed(), heard(none=0.2, bm25=0.7, dense=0.6)
    before = policy.probabilities(seen, ARMS).tolist()
    policy.learn(Decision("d-1", seen, ARMS, (1 / 3,) * 3, "none", "routed", 1), 1.0)
    assert policy.probabilities(seen, ARMS).tolist() == before
    assert policy.save() == b""


@given(st.lists(st.none() | st.floats(-1e6, 1e6), min_size=3, max_size=3))
def test_a_better_arm_is_never_less_probable(scores: list[float | None]) -> None:
    policy = Routed()
    known = {arm: score for arm, score in zip(ARMS, scores, strict=True) if score is not None}
    p = dict(zip(ARMS, policy.probabilities(heard(**known), ARMS).tolist(), strict=True))
    assert sum(p.values()) == pytest.approx(1.0)
    for better in known:
        for worse in known:
            assert known[better] < known[worse] or p[better] >= p[worse] - 1e-12
    assert policy.probabilities(heard(**known), ARMS[::-1]) == pytest.approx([p[arm] for arm in ARMS[::-1]])

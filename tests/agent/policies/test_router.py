"""The policy that hears a router: how scores become a distribution, and what happens without them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.agent.policies.base import PolicyError
from armwise.agent.policies.catalog import PolicySpec, build_policy
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


@pytest.mark.parametrize("explore", ["epsilon", "squarecb"])
def test_ties_share_what_the_best_arm_gets(explore: str) -> None:
    policy = build_policy(PolicySpec(kind="routed", params={"explore": explore, "gamma": 1e9}), ARMS)
    p = policy.probabilities(heard(none=0.1, bm25=0.5, dense=0.5), ARMS)
    assert p[1] == p[2] > 0.45


def test_softmax_weighs_by_the_exponential_of_the_score() -> None:
    p = Routed("softmax", temperature=0.5).probabilities(heard(none=0.0, bm25=1.0, dense=0.5), ARMS)
    weights = np.exp([0.0, 2.0, 1.0])
    assert p == pytest.approx(weights / weights.sum())


def test_squarecb_weighs_by_the_inverse_of_the_gap_to_the_best() -> None:
    p = Routed("squarecb", gamma=10.0).probabilities(heard(none=0.2, bm25=0.7, dense=0.6), ARMS)
    assert p[[0, 2]] == pytest.approx([1 / (3 + 10 * 0.5), 1 / (3 + 10 * 0.1)])
    assert p.sum() == pytest.approx(1.0)


def test_the_larger_gamma_the_greedier() -> None:
    seen = heard(none=0.2, bm25=0.7, dense=0.6)
    assert Routed("squarecb", gamma=0.0).probabilities(seen, ARMS) == pytest.approx([1 / 3] * 3)
    assert Routed("squarecb", gamma=1e9).probabilities(seen, ARMS)[1] == pytest.approx(1.0)


def test_an_arm_without_a_score_counts_as_the_mean_of_the_others() -> None:
    policy = Routed("softmax", temperature=0.1)
    p = policy.probabilities(heard(none=0.2, dense=0.6), ARMS)
    assert p == pytest.approx(policy.probabilities(heard(none=0.2, bm25=0.4, dense=0.6), ARMS))


@pytest.mark.parametrize("explore", ["epsilon", "softmax", "squarecb"])
def test_without_any_score_all_arms_are_alike(explore: str) -> None:
    policy = build_policy(PolicySpec(kind="routed", params={"explore": explore}), ARMS)
    assert policy.probabilities(heard(), ARMS) == pytest.approx([1 / 3] * 3)
    assert policy.probabilities(Context("?"), ARMS) == pytest.approx([1 / 3] * 3), "no features at all"


def test_another_feature_can_be_heard() -> None:
    seen = Context("?", arms={"none": {"worth": 0.1}, "bm25": {"worth": 0.9, "router": 0.0}})
    assert Routed(epsilon=0.0, feature="worth").probabilities(seen, ("none", "bm25")).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("score", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_not_finite_is_refused(score: float) -> None:
    with pytest.raises(PolicyError, match=f"feature 'router' of arm 'bm25' is {score}; a finite number"):
        Routed().probabilities(heard(none=0.2, bm25=score), ARMS)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"explore": "softmx"}, "explore 'softmx' is not known; did you mean 'softmax'"),
        ({"epsilon": 1.5}, r"epsilon 1\.5 is not in \[0, 1\]"),
        ({"temperature": 0.0}, r"temperature 0\.0 is not a positive number"),
        ({"gamma": -1.0}, r"gamma -1\.0 is not a number of at least 0"),
        ({"gamma": float("nan")}, "gamma nan is not"),
        ({"gama": 1.0}, "has no parameter 'gama'; did you mean 'gamma'"),
    ],
)
def test_a_wrong_parameter_is_named(params: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        build_policy(PolicySpec(kind="routed", params=params), ARMS)


def test_rewards_change_nothing() -> None:
    policy, seen = Routed("softmax"), heard(none=0.2, bm25=0.7, dense=0.6)
    before = policy.probabilities(seen, ARMS).tolist()
    policy.learn(Decision("d-1", seen, ARMS, (1 / 3,) * 3, "none", "routed", 1), 1.0)
    assert policy.probabilities(seen, ARMS).tolist() == before
    assert policy.save() == b""


@given(
    st.lists(st.none() | st.floats(-1e6, 1e6), min_size=3, max_size=3),
    st.sampled_from(["epsilon", "softmax", "squarecb"]),
)
def test_a_better_arm_is_never_less_probable_and_the_order_does_not_matter(
    scores: list[float | None], explore: str
) -> None:
    policy = build_policy(PolicySpec(kind="routed", params={"explore": explore}), ARMS)
    known = {arm: score for arm, score in zip(ARMS, scores, strict=True) if score is not None}
    p = dict(zip(ARMS, policy.probabilities(heard(**known), ARMS).tolist(), strict=True))
    assert sum(p.values()) == pytest.approx(1.0)
    for better in known:
        for worse in known:
            assert known[better] < known[worse] or p[better] >= p[worse] - 1e-12
    assert policy.probabilities(heard(**known), ARMS[::-1]) == pytest.approx([p[arm] for arm in ARMS[::-1]])

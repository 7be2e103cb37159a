"""From what arms did to what they are worth."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from armwise.agent.lab.routers.utilities import price_costs, routing_labels, utilities
from armwise.agent.routers.dataset import Features, Floats, RouterError
from armwise.agent.routers.utility import LTRR, R3AG, Utility
from armwise.arms.lab.portfolio import Outcomes
from armwise.arms.questions import Question
from armwise.feedback.reward import Prices

ARMS = ("none", "bm25", "dense")


def outcomes(**scores: list[list[float]]) -> Outcomes:
    n = len(next(iter(scores.values())))
    nothing = ((None,) * 3,) * n
    return Outcomes(
        tuple(Question(f"q{i}", f"{i}?") for i in range(n)),
        ARMS,
        {name: np.array(rows) for name, rows in scores.items()},
        {"steps": np.tile([0.0, 1.0, 2.0], (n, 1)), "prompt_tokens": np.full((n, 3), 500.0)},
        nothing,
        nothing,
    )


def test_ltrr_is_the_gain_over_no_retrieval_scaled_a_question() -> None:
    told = utilities(outcomes(f1=[[0.2, 0.6, 0.4], [0.5, 0.5, 0.5]]), LTRR)
    np.testing.assert_allclose(told, [[0.0, 1.0, 0.5], [0.5, 0.5, 0.5]])


@given(arrays(np.float64, (4, 3), elements=st.sampled_from([0.0, 0.25, 0.5, 1.0])))
def test_a_gain_over_an_arm_vanishes_in_the_scaling(f1: Floats) -> None:
    rows = outcomes(f1=f1.tolist())
    scaled = utilities(rows, Utility(scale="minmax"))
    np.testing.assert_allclose(utilities(rows, LTRR), scaled, atol=1e-12)
    assert (scaled[np.ptp(f1, axis=1) == 0.0] == 0.5).all()


def test_r3ag_adds_what_the_arm_earns_on_average() -> None:
    rows = outcomes(em=[[0.0, 1.0, 0.0], [0.0, 1.0, 1.0]], f1=[[0.0, 1.0, 0.5], [0.0, 1.0, 1.0]])
    expected = np.array([[0.0, 1.0, 0.0], [0.0, 1.0, 1.0]]) + 0.2 * np.array(
        [[0.0, 1.0, 0.5], [0.0, 1.0, 1.0]]
    )
    np.testing.assert_allclose(utilities(rows, R3AG), expected + 0.2 * np.array([0.0, 1.0, 0.5]))


@pytest.mark.parametrize("scale", ["none", "minmax"])
def test_labels_know_their_utility_without_the_prior(scale: str) -> None:
    rows = outcomes(em=[[0.0, 1.0, 0.0], [0.0, 1.0, 1.0]], f1=[[0.0, 1.0, 0.5], [0.0, 1.0, 1.0]])
    utility = R3AG.model_copy(update={"scale": scale})
    labels = routing_labels(
        Features(ARMS, ("0?", "1?"), (), np.zeros((2, 0)), np.zeros((2, 0))), rows, utility
    )
    np.testing.assert_array_equal(labels.utility, utilities(rows, utility))
    np.testing.assert_allclose(labels.outcome, [[0.0, 1.2, 0.1], [0.0, 1.2, 1.2]])
    plain = routing_labels(labels.features, rows, Utility(measures={"f1": 1.0}), rows.scores["em"])
    assert plain.without_prior is None
    np.testing.assert_array_equal(plain.quality, rows.scores["em"])


def test_cost_is_priced_and_weighed() -> None:
    rows = outcomes(acc=[[1.0, 1.0, 1.0]])
    told = utilities(rows, Utility(measures={"acc": 1.0}, cost_weight=0.1))
    np.testing.assert_allclose(told, [[1.0, 0.9, 0.8]])
    with pytest.raises(RouterError, match=r"kilotokens have the price 1.*'completion_tokens'"):
        price_costs(rows, Prices(kilotokens=1.0))


def test_an_unknown_cost_hides_its_own_arm_alone() -> None:
    rows = outcomes(f1=[[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]])
    rows.costs["steps"][0, 1] = np.nan
    np.testing.assert_array_equal(price_costs(rows, Prices(steps=1.0)), [[0.0, np.nan, 2.0], [0.0, 1.0, 2.0]])
    told = utilities(rows, Utility(cost_weight=0.1, over="none", scale="minmax"))
    np.testing.assert_allclose(told, [[1.0, np.nan, 0.0], [1.0, 0.5, 0.0]])


def test_an_unknown_price_in_dollars_counts_as_none() -> None:
    rows = outcomes(f1=[[0.5, 0.5, 0.5]])
    paid = replace(rows, costs={**rows.costs, "usd": np.array([[0.25, np.nan, 0.5]])})
    np.testing.assert_array_equal(price_costs(paid, Prices(steps=0.0, usd=2.0)), [[0.5, 0.0, 1.0]])


def test_of_two_arms_that_find_the_same_the_cheaper_one_has_the_higher_utility() -> None:
    rows = outcomes(f1=[[0.0, 1.0, 1.0]] * 2)
    paid = replace(rows, costs={**rows.costs, "usd": np.tile([0.0, 0.002, 0.0], (2, 1))})
    dollars = Prices(steps=0.0, usd=100.0)
    np.testing.assert_allclose(utilities(paid, Utility(cost_weight=1.0, cost=dollars)), [[0.0, 0.8, 1.0]] * 2)
    scaled = Utility(cost_weight=1.0, cost=dollars, over="none", scale="minmax")
    np.testing.assert_allclose(utilities(paid, scaled), [[0.0, 0.8, 1.0]] * 2)


def test_an_unknown_score_stays_unknown_and_hides_nothing() -> None:
    told = utilities(outcomes(f1=[[0.2, np.nan, 0.4]]), Utility(scale="minmax"))
    np.testing.assert_array_equal(told, [[0.0, np.nan, 1.0]])


def test_without_the_utility_of_the_arm_to_compare_with_nothing_is_known() -> None:
    assert np.isnan(utilities(outcomes(f1=[[np.nan, 0.5, 0.4]]), LTRR)).all()


def test_a_weight_must_be_positive() -> None:
    with pytest.raises(ValueError, match="measure 'f1' has weight 0"):
        Utility(measures={"f1": 0.0})

"""The worth of a router on held-out outcomes, of which some are unknown."""

from dataclasses import replace

import numpy as np
import pytest

from armwise.agent.lab.routers.validation import charge_stage, validate_router
from armwise.agent.routers.dataset import Stage
from armwise.agent.routers.utility import Utility
from armwise.arms.lab.portfolio import Outcomes
from armwise.arms.questions import Question

ARMS = ("none", "bm25", "dense")
PLAIN = Utility(measures={"f1": 1.0})
PRICED = Utility(measures={"f1": 1.0}, cost_weight=0.1)
NAN = np.nan


def outcomes(f1: list[list[float]], steps: list[list[float]]) -> Outcomes:
    n = len(f1)
    missing = ((None,) * 3,) * n
    questions = tuple(Question(f"q{i}", f"{i}?") for i in range(n))
    return Outcomes(questions, ARMS, {"f1": np.array(f1)}, {"steps": np.array(steps)}, missing, missing)


def test_a_question_with_an_unknown_arm_is_left_out_of_every_row() -> None:
    rows = outcomes([[0.0, 1.0, 0.5], [1.0, NAN, 0.0], [0.0, 0.5, 1.0]], [[0.0, 1.0, 2.0]] * 3)
    found = validate_router(
        rows, np.array([[0.0, 1.0, 0.0], [9.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), PLAIN, Stage.QUESTION
    )
    assert found is not None
    assert found.questions == 2
    assert {arm: row.utility for arm, row in found.arms.items()} == {"none": 0.0, "bm25": 0.75, "dense": 0.75}
    assert (found.router.utility, found.oracle.utility, found.gap) == (0.75, 1.0, 0.0)


def test_shares_of_picks_sum_to_one_and_split_ties() -> None:
    rows = outcomes(
        [[0.0, 1.0, 0.5], [1.0, NAN, 0.0], [0.0, 0.5, 1.0], [0.0, 0.5, 1.0]], [[0.0, 1.0, 2.0]] * 4
    )
    scores = np.array([[1.0, 0.0, 0.0], [0.0, 9.0, 0.0], [0.0, 2.0, 2.0], [0.0, 2.0, 1.0]])
    found = validate_router(rows, scores, PLAIN, Stage.QUESTION)
    assert found is not None
    assert found.picks == pytest.approx({"none": 1 / 3, "bm25": 1 / 2, "dense": 1 / 6})


def test_a_question_with_an_unknown_cost_is_left_out_where_costs_count() -> None:
    rows = outcomes([[0.0, 1.0, 0.5]] * 2, [[0.0, 1.0, 2.0], [0.0, NAN, 2.0]])
    scores = np.array([[0.0, 1.0, 0.0]] * 2)
    plain, priced = (validate_router(rows, scores, utility, Stage.QUESTION) for utility in (PLAIN, PRICED))
    assert plain is not None
    assert priced is not None
    assert (plain.questions, priced.questions) == (2, 1)
    assert priced.router.utility == pytest.approx(0.9)


def test_a_score_that_is_unknown_everywhere_is_not_reported() -> None:
    rows = outcomes([[0.0, 1.0, 0.5]], [[0.0, 1.0, 2.0]])
    rows = replace(rows, scores={**rows.scores, "em": np.full((1, 3), NAN)})
    found = validate_router(rows, np.zeros((1, 3)), PLAIN, Stage.QUESTION)
    assert found is not None
    assert (found.router.scores, found.oracle.scores) == ({"f1": 0.5}, {"f1": 1.0})


def test_where_no_question_is_known_whole_there_is_nothing_to_report() -> None:
    rows = outcomes([[0.0, NAN, 0.5]], [[0.0, 1.0, 2.0]])
    assert validate_router(rows, np.zeros((1, 3)), PLAIN, Stage.QUESTION) is None


def test_looking_at_all_arms_costs_their_sum_and_is_unknown_where_one_of_them_is() -> None:
    rows = outcomes([[0.0, 1.0, 0.5]] * 2, [[1.0, 2.0, 4.0], [1.0, NAN, 4.0]])
    assert charge_stage(rows, Stage.QUESTION).costs["steps"][0].tolist() == [1.0, 2.0, 4.0]
    np.testing.assert_array_equal(charge_stage(rows, Stage.RETRIEVED).costs["steps"], [[7.0] * 3, [NAN] * 3])


def test_a_router_that_looks_at_all_arms_pays_for_the_searches_of_all_and_for_one_answer() -> None:
    rows = outcomes([[0.0, 1.0, 0.5]], [[0.0, 1.0, 2.0]])
    paid = {"usd": np.array([[NAN, 3.0, 5.0]]), "search_usd": np.array([[NAN, 1.0, 4.0]])}
    costs = replace(rows, costs={**rows.costs, **paid})
    assert charge_stage(costs, Stage.RETRIEVED).costs["usd"].tolist() == [[5.0, 7.0, 6.0]]
    assert charge_stage(costs, Stage.ANSWERED).costs["usd"].tolist() == [[8.0] * 3]
    np.testing.assert_array_equal(charge_stage(costs, Stage.QUESTION).costs["usd"], [[0.0, 3.0, 5.0]])
    for name in paid:
        alone = replace(rows, costs={name: paid[name]})
        assert charge_stage(alone, Stage.RETRIEVED).costs.keys() == {name}

"""Tables with the outcome of every arm: a log with true propensities is drawn from them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.lab.portfolio import read_outcomes
from armwise.feedback.exchange.outcomes import uniform_unit
from armwise.feedback.jsonl import ExchangeError
from tests.feedback.exchange.traffic import ARMS, TRUTH, as_csv, as_lines, near_the_truth, read

N = 3000


def routerbench_rows(n: int = N, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of RouterBench: scores, responses and dollars of every model on every prompt."""
    rng = np.random.default_rng(seed)
    return [
        {
            "sample_id": f"arc.{i}",
            "prompt": f"['Question {i}?']",
            "eval_name": "arc",
            **{arm: float(rng.random() < TRUTH[arm]) for arm in ARMS},
            **{f"{arm}|model_response": "A" for arm in ARMS},
            **{f"{arm}|total_cost": 0.001 * (1 + at) for at, arm in enumerate(ARMS)},
            "oracle_model_to_route_to": "small",
        }
        for i in range(n)
    ]


@pytest.mark.parametrize("shares", [None, {"small": 0.6, "medium": 0.1, "large": 0.3}])
@pytest.mark.slow
def test_the_values_of_a_table_come_back_from_the_log_that_is_drawn(
    tmp_path: Path, shares: dict[str, float] | None
) -> None:
    path = as_csv(tmp_path / "routerbench.csv", routerbench_rows())
    examples, log = read(path, "routerbench", shares=shares, features={"task": "eval_name"})
    near_the_truth(examples, most=0.06)
    assert log.summary.whole == N
    for one in examples[:20]:
        assert dict(zip(one.decision.arms, one.decision.probabilities, strict=True)) == pytest.approx(
            shares or dict.fromkeys(ARMS, 1 / 3)
        )
        assert one.cost.usd == 0.001 * (1 + ARMS.index(one.decision.drawn))
        assert one.decision.context.features == {"task=arc": 1.0}
    for arm, n in log.summary.arms.items():
        assert abs(n / N - (shares or dict.fromkeys(ARMS, 1 / 3))[arm]) < 0.04


def test_a_seed_gives_the_same_draws_and_another_one_others(tmp_path: Path) -> None:
    path = as_csv(tmp_path / "routerbench.csv", routerbench_rows(200))
    first, again, other = (read(path, "routerbench", seed=seed)[0] for seed in (1, 1, 2))
    assert first == again
    assert [one.decision.drawn for one in first] != [one.decision.drawn for one in other]


def test_the_tables_of_routellm_are_read_by_the_names_of_their_arms(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{i}", "weak": i % 2 == 0, "strong": True} for i in range(400)]
    examples, _ = read(as_csv(tmp_path / "mmlu.csv", rows), "wide", arms=("weak", "strong"))
    values = {
        arm: np.mean([one.metrics["reward"] for one in examples if one.decision.drawn == arm])
        for arm in ("weak", "strong")
    }
    assert values["strong"] == 1.0
    assert 0.35 < values["weak"] < 0.65
    assert examples[3].decision.context.question == "q3"


def test_columns_of_scores_and_of_dollars_may_have_a_prefix(tmp_path: Path) -> None:
    row: dict[str, Any] = {
        "id": "a",
        "question": "?",
        "score|x": 0.25,
        "cost_usd|x": 2.0,
        "score|y": 0.25,
        "cost_usd|y": 2.0,
    }
    ((example,), _) = read(
        as_csv(tmp_path / "x.csv", [row]), "wide", score_prefix="score|", cost_prefix="cost_usd|"
    )
    assert set(example.decision.arms) == {"x", "y"}
    assert (example.metrics, example.cost.usd) == ({"reward": 0.25}, 2.0)


def test_an_arm_without_a_score_was_not_eligible(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"q": "?", "x": 1, "y": None},
        {"q": "?", "x": None, "y": None},
        {"q": "?", "x": "meh", "y": 1},
    ]
    examples, log = read(as_csv(tmp_path / "x.csv", rows), "wide", arms=("x", "y"), question="q")
    assert [(one.decision.arms, one.decision.probabilities) for one in examples] == [(("x",), (1.0,))]
    assert log.faults.counts == {"no outcome": 1, "score is not a number": 1}


@pytest.mark.parametrize(
    "rows",
    [
        [
            {"model_a": "x", "model_b": "y", "winner": winner}
            for winner in ("model_a", "model_b", "tie (bothbad)")
        ],
        [
            {"model_a": "x", "model_b": "y", "winner_model_a": a, "winner_model_b": b, "winner_tie": t}
            for a, b, t in ((1, 0, 0), (0, 1, 0), (0, 0, 1))
        ],
    ],
    ids=["winner", "three columns"],
)
def test_battles_reward_the_winner_and_halve_a_tie(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    path = as_lines(
        tmp_path / "battles.jsonl", [{"id": str(i), "prompt": f"q{i}", **row} for i, row in enumerate(rows)]
    )
    for seed in range(6):
        examples, log = read(path, "battles", seed=seed)
        expected = {"x": (1.0, 0.0, 0.5), "y": (0.0, 1.0, 0.5)}
        assert [one.metrics["reward"] for one in examples] == [
            expected[one.decision.drawn][i] for i, one in enumerate(examples)
        ]
        assert all(one.decision.probabilities == (0.5, 0.5) for one in examples)
        assert not log.faults.counts


def test_battles_without_a_winner_are_left_out(tmp_path: Path) -> None:
    rows = [
        {"model_a": "x", "model_b": "y", "winner": "nobody"},
        {"model_a": "x", "model_b": "x", "winner": "model_a"},
        {"model_a": "x", "model_b": "y", "winner": "y"},
    ]
    examples, log = read(as_lines(tmp_path / "battles.jsonl", rows), "battles")
    assert len(examples) == 1
    assert log.faults.counts == {"no winner": 1, "no two models": 1}


def test_the_conversations_of_an_arena_are_its_questions_and_ties_have_many_names(tmp_path: Path) -> None:
    ties = ["tie", "tie (bothbad)", "both_bad", "Both bad", "bothbad"]
    winners = ["model_a", *ties, "Tie-7B"]
    rows = [
        {
            "question_id": f"q{at}",
            "model_a": "Tie-7B",
            "model_b": "y",
            "winner": winner,
            "conversation_a": [
                {"role": "user", "content": f"ask {at}"},
                {"role": "assistant", "content": "a"},
            ],
        }
        for at, winner in enumerate(winners)
    ]
    examples, log = read(as_lines(tmp_path / "arena.jsonl", rows), "battles")
    assert log.faults.counts == {}
    assert [one.decision.context.question for one in examples] == [f"ask {at}" for at in range(len(rows))]
    assert [one.metrics["reward"] for one in examples[1:-1]] == [0.5] * len(ties)
    assert {(one.decision.drawn, one.metrics["reward"]) for one in (examples[0], examples[-1])} <= {
        ("Tie-7B", 1.0),
        ("y", 0.0),
    }


def test_the_prompts_of_a_battle_are_a_list_of_which_the_last_one_is_asked(tmp_path: Path) -> None:
    row = {"id": 1, "model_a": "x", "model_b": "y", "prompt": '["ask","and then"]', "winner": "tie"}
    ((example,), _) = read(as_csv(tmp_path / "kaggle.csv", [row]), "battles")
    assert example.decision.context.question == "and then"


def test_all_outcomes_are_written_as_training_reads_them(tmp_path: Path) -> None:
    rows = routerbench_rows(30)
    rows[7]["medium"] = None
    rows[9]["sample_id"] = rows[8]["sample_id"]
    _, log = read(as_csv(tmp_path / "routerbench.csv", rows), "routerbench")
    (tmp_path / "outcomes.jsonl").write_bytes(b"".join(log.outcomes()))
    found = read_outcomes(tmp_path / "outcomes.jsonl")
    assert found.arms == ARMS
    assert [question.text for question in found.questions[:2]] == ["['Question 0?']", "['Question 1?']"]
    assert len(found.questions) == 29
    assert np.isnan(found.scores["acc"][7, 1])
    assert found.scores["acc"][3].tolist() == [rows[3][arm] for arm in ARMS]
    assert found.costs["usd"][3].tolist() == [0.001, 0.002, 0.003]


@pytest.mark.parametrize(
    ("form", "options", "message"),
    [
        ("routerbench", {}, "there is no pair of columns <arm> and <arm>.total_cost"),
        ("wide", {}, "name the columns of arms"),
        ("wide", {"arms": ("x", "z")}, "no column 'z' for an arm"),
        ("wide", {"score_prefix": "s_"}, "no column begins with 's_'"),
        ("wide", {"arms": ("x",), "shares": {"y": 1.0}}, "--draw names 'y'"),
    ],
)
def test_a_table_without_such_columns_is_refused(
    tmp_path: Path, form: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ExchangeError, match=message):
        read(as_csv(tmp_path / "x.csv", [{"question": "?", "x": 1}]), form, **options)


def test_outcomes_of_one_arm_a_row_are_none_of_every_arm(tmp_path: Path) -> None:
    _, log = read(as_csv(tmp_path / "x.csv", [{"question": "?", "arm": "a"}]))
    with pytest.raises(ExchangeError, match="for outcomes of all arms, use one of"):
        list(log.outcomes())


@given(st.integers(0, 2**70), st.text(max_size=20))
def test_the_draw_is_a_number_from_0_up_to_1(seed: int, name: str) -> None:
    assert 0.0 <= uniform_unit(seed, name) < 1.0
    assert uniform_unit(seed, name) == uniform_unit(seed, name)

"""Evaluating a trained model on a second file of outcomes: exact by hand, and never on its own questions."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from rich.console import Console
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.agent.config import AppConfig
from armwise.agent.lab.offline import EvaluationSettings, evaluate_model
from armwise.agent.lab.offline import evaluate as evaluation
from armwise.agent.lab.offline.evaluate import RouterEvaluation, evaluate_scores
from armwise.agent.lab.offline.router_training import learn_relevance, refit_scores
from armwise.agent.routers import RouterError, Stage
from armwise.agent.routers.utility import Utility
from armwise.arms.lab.portfolio import Outcomes
from armwise.arms.lab.portfolio import outcomes as portfolio_outcomes
from armwise.arms.questions import Question
from armwise.feedback.reward import Prices
from tests.agent.fakes import CONFIG
from tests.agent.lab.offline.test_train_relevance import config, router, train, write
from tests.agent.lab.offline.test_train_router import outcomes as routed_outcomes
from tests.agent.lab.offline.test_train_router import train as train_router

__all__ = ["config"]

COSTED = Utility(measures={"em": 1.0}, cost_weight=0.1, cost=Prices(steps=1.0))


def table(em: list[list[float]], steps: list[float]) -> Outcomes:
    """Return outcomes of arms a, b, ... on as many questions as there are rows."""
    scores = np.array(em)
    n, arms = scores.shape
    nothing = ((None,) * arms,) * n
    questions = tuple(Question(f"q{row}", f"{row}?") for row in range(n))
    costs = {"steps": np.tile(steps, (n, 1))}
    return Outcomes(questions, tuple("abc"[:arms]), {"em": scores}, costs, nothing, nothing)


def evaluated(known: Outcomes, scores: Any, utility: Utility, stage: Stage) -> RouterEvaluation:
    rng = np.random.default_rng(0)
    return evaluate_scores(known, np.array(scores, dtype=np.float64), utility, stage, 200, rng)


def test_what_a_router_earns_is_counted_as_by_hand() -> None:
    known = table([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [0.0, 1.0])
    result = evaluated(known, [[1, 0], [1, 0], [0, 1], [0, 1]], COSTED, Stage.QUESTION)
    assert (result.questions, result.single) == (4, "a")
    assert result.rows["a"] == pytest.approx({"utility": 0.5, "em": 0.5, "cost": 0.0})
    assert result.rows["router"] == pytest.approx({"utility": (2 + 0.9 - 0.1) / 4, "em": 0.75, "cost": 0.5})
    assert result.rows["oracle"] == pytest.approx({"utility": 2.9 / 4, "em": 0.75, "cost": 0.25})
    assert result.gap == pytest.approx(0.8 / 0.9)
    assert result.picks == {"a": 0.5, "b": 0.5}


@given(scores=arrays(np.float64, (6, 3), elements=st.floats(-1, 1)))
def test_shares_of_picks_are_those_of_the_first_best_arm(scores: np.ndarray) -> None:
    known = table([[1.0, 0.0, 0.0]] * 6, [0.0, 1.0, 2.0])
    picks = evaluated(known, scores, Utility(measures={"em": 1.0}), Stage.QUESTION).picks
    first = [max(range(3), key=row.__getitem__) for row in scores.tolist()]
    assert picks == {arm: first.count(column) / 6 for column, arm in enumerate("abc")}


def test_a_router_that_looks_at_passages_is_charged_all_searches() -> None:
    known = table([[1.0, 0.0], [0.0, 1.0]], [1.0, 2.0])
    result = evaluated(known, [[1, 0], [0, 1]], COSTED, Stage.RETRIEVED)
    assert result.rows["router"] == pytest.approx({"utility": 0.7, "em": 1.0, "cost": 3.0})
    assert result.rows["b"]["cost"] == 2.0


def test_the_curve_of_a_router_is_counted_as_by_hand() -> None:
    known = table([[1.0, 1.0], [1.0, 1.0], [0.0, 1.0], [0.0, 0.0]], [1.0, 3.0])
    result = evaluated(known, [[1, 1], [1, 1], [0, 1], [0, 0]], Utility(measures={"em": 1.0}), Stage.QUESTION)
    curve = result.curve
    assert curve is not None
    assert (curve.unit, curve.single) == ("steps", "b")
    assert curve.cost.tolist() == [3.0, 1.5, 1.0, 1.0]
    assert curve.quality.tolist() == [0.75, 0.75, 0.5, 0.5]
    assert curve.calls.tolist() == [1.0, 0.25, 0.0, 0.0]
    assert curve.area == pytest.approx((0.5 * 0.625 + 1.5 * 0.75) / 2.0)
    assert curve.gain == pytest.approx(curve.area - 0.625)
    whole = curve.needs[0]
    assert (whole.target, whole.calls, whole.cost) == pytest.approx((1.0, 0.25, 0.5), abs=1e-6)
    assert whole.mixture == pytest.approx(1.0)
    assert "100% of the quality of b: 25.0% of its calls" in curve.conclusion()


def test_a_curve_charges_what_the_router_had_to_see() -> None:
    known = table([[1.0, 1.0], [0.0, 1.0]], [1.0, 3.0])
    curve = evaluated(known, [[1, 1], [0, 1]], COSTED, Stage.RETRIEVED).curve
    assert curve is not None
    assert curve.unit == "cost"
    assert curve.cost.tolist() == [3.0, 4.0, 4.0, 1.0]


def test_resamples_in_which_nothing_can_be_saved_do_not_count() -> None:
    known = table([[0.0, 1.0], [0.0, 1.0]], [1.0, 1.0])
    known = replace(known, costs={"steps": np.array([[1.0, 1.0], [1.0, 3.0]])})
    curve = evaluated(known, [[0, 1], [0, 1]], Utility(measures={"em": 1.0}), Stage.QUESTION).curve
    assert curve is not None
    assert np.isfinite([*curve.interval, *curve.gain_interval]).all()


def test_the_interval_of_a_gap_holds_95_in_100_resamples() -> None:
    """Of 50 questions that the single arm has wrong, the router has half right."""
    known = table([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]] * 25, [1.0, 1.0])
    scores, rng = np.array([[1, 0], [0, 1], [1, 0], [1, 0]] * 25, dtype=np.float64), np.random.default_rng(0)
    result = evaluate_scores(known, scores, Utility(measures={"em": 1.0}), Stage.QUESTION, 2000, rng)
    assert (result.single, result.gap) == ("a", pytest.approx(0.5))
    half = 1.96 * 0.5 / 50**0.5
    assert result.interval == pytest.approx((0.5 - half, 0.5 + half), abs=0.012)


@pytest.mark.slow
def test_the_intervals_of_a_curve_hold_95_in_100_resamples() -> None:
    """The dearer arm is right on half of 100 questions, the cheaper one on none: the area is a line's."""
    known = table([[0.0, 1.0], [0.0, 0.0]] * 50, [1.0, 3.0])
    scores, rng = np.tile([0.0, 1.0], (100, 1)), np.random.default_rng(0)
    result = evaluate_scores(known, scores, Utility(measures={"em": 1.0}), Stage.QUESTION, 2000, rng)
    assert result.curve is not None
    assert result.curve.area == pytest.approx(0.25)
    half = 1.96 * 0.25 / 100**0.5
    assert result.curve.interval == pytest.approx((0.25 - half, 0.25 + half), abs=0.004)


def test_a_router_that_overlooks_the_best_arm_for_its_cost_has_a_gain_below_none() -> None:
    """The second arm is nearly as good as the first for half the cost, and the router never asks it."""
    known = table([[1.0, 0.9, 0.0], [0.5, 0.5, 0.0]] * 20, [3.0, 1.5, 1.0])
    curve = evaluated(
        known, np.tile([1.0, 0.0, 0.9], (40, 1)), Utility(measures={"em": 1.0}), Stage.QUESTION
    ).curve
    assert curve is not None
    assert curve.gain < -0.1
    assert curve.gain_interval[0] <= curve.gain <= curve.gain_interval[1] < 0.0


@pytest.mark.parametrize(
    ("costs", "unit"),
    [
        ({"usd": (0.0, 1.0), "steps": (1.0, 3.0), "prompt_tokens": (1.0, 2.0)}, "dollars"),
        ({"usd": (1.0, 1.0), "prompt_tokens": (1.0, 2.0), "completion_tokens": (0.0, 0.0)}, "kilotokens"),
        ({"usd": (1.0, 1.0), "prompt_tokens": (1.0, 2.0), "steps": (1.0, 3.0)}, "steps"),
    ],
    ids=["dollars", "tokens", "steps"],
)
def test_a_curve_is_over_the_first_known_cost(costs: dict[str, tuple[float, float]], unit: str) -> None:
    known = table([[0.0, 1.0], [0.0, 1.0]], [1.0, 1.0])
    known = replace(known, costs={name: np.tile(values, (2, 1)) for name, values in costs.items()})
    curve = evaluated(known, [[0, 1], [0, 1]], Utility(measures={"em": 1.0}), Stage.QUESTION).curve
    assert curve is not None
    assert curve.unit == unit


EM = arrays(np.float64, (8, 3), elements=st.sampled_from([0.0, 0.5, 1.0]))


@given(EM)
@pytest.mark.slow
def test_the_oracle_closes_the_gap_and_the_best_single_arm_nothing_of_it(em: Any) -> None:
    known = table(em.tolist(), [1.0, 1.0, 1.0])
    plain = Utility(measures={"em": 1.0})
    best = evaluated(known, em, plain, Stage.QUESTION)
    single = np.tile(em.mean(axis=0), (8, 1))
    same = evaluated(known, single, plain, Stage.QUESTION)
    if best.gap is None:
        assert "no arm is better than" in best.conclusion()
        return
    assert best.gap == pytest.approx(1.0)
    assert best.interval is not None
    assert best.interval[0] < 0.9, "eight questions do not show that it always does"
    assert best.interval[1] == pytest.approx(1.0)
    assert (same.gap, same.p) == (pytest.approx(0.0), 1.0)
    assert same.interval is not None
    assert same.interval[0] < 0.0 < same.interval[1]
    assert 0.0 <= best.p <= 1.0


@settings(max_examples=20)
@given(EM)
@pytest.mark.slow
def test_the_curve_of_the_oracle_has_the_largest_area_and_that_of_no_router_is_below_a_line(em: Any) -> None:
    known = table(em.tolist(), [1.0, 2.0, 3.0])
    plain, rng = Utility(measures={"em": 1.0}), np.random.default_rng(0)
    best, other = (evaluated(known, one, plain, Stage.QUESTION).curve for one in (em, rng.random((8, 3))))
    if best is None or other is None:
        assert em.mean(axis=0).argmax() == 0 or not em.any()
        return
    assert best.area >= other.area - 1e-9
    assert best.gain >= -1e-9
    for need in (*best.needs, *other.needs):
        assert 0.0 <= need.cost_interval[0] <= need.cost_interval[1] <= 1.0 + 1e-9


# -- folders ---------------------------------------------------------------------------------------------


def evaluate(config: AppConfig, model: Path, files: dict[str, Any], **fields: Any) -> tuple[Any, str]:
    output = StringIO()
    wanted = EvaluationSettings.model_validate(
        {"config": config, "model": model, "resamples": 200} | files | fields
    )
    return evaluate_model(wanted, Console(file=output, width=120), lambda *_: None), output.getvalue()


def test_a_router_is_evaluated_on_the_questions_that_it_was_not_trained_on(
    config: AppConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = routed_outcomes(60)
    portfolio_outcomes.write_outcomes(tmp_path / "first.jsonl", rows[:90])
    portfolio_outcomes.write_outcomes(tmp_path / "second.jsonl", rows[45:])
    train_router(config, tmp_path / "first.jsonl")
    drawn: list[tuple[int, float]] = []

    def resampled(*given: Any) -> RouterEvaluation:
        drawn.append((given[-2], given[-1].random()))
        return evaluate_scores(*given)

    monkeypatch.setattr(evaluation, "evaluate_scores", resampled)
    figures, said = evaluate(
        config,
        config.home_path / "router",
        {"outcomes": [tmp_path / "second.jsonl"]},
        output=tmp_path / "figures.json",
        resamples=150,
        seed=7,
    )
    assert drawn == [(150, np.random.default_rng(7).random())]
    assert (figures["questions"], figures["known"]) == (30, 15)
    assert figures["gap"] > 0.9
    assert "left out, as the router was trained on them: 15 questions" in said
    assert f"the router closes {figures['gap']:.1%} of the gap between {figures['single']}" in said
    document = json.loads((tmp_path / "figures.json").read_bytes())
    assert (document["rows"], document["picks"]) == (figures["rows"], figures["picks"])
    (none,) = (line for line in said.splitlines() if "│ none " in line)
    assert none.split("│")[-2].strip() == f"{figures['picks']['none']:.1%}" == "33.3%"


def test_an_evaluation_reads_as_many_passages_as_training(config: AppConfig, tmp_path: Path) -> None:
    rows = routed_outcomes(60)
    first, short, long = (tmp_path / f"{name}.jsonl" for name in ("first", "short", "long"))
    cut = [replace(row, passages=(row.passages or ())[:1]) for row in rows]
    portfolio_outcomes.write_outcomes(first, cut[:90])
    portfolio_outcomes.write_outcomes(short, cut[90:])
    portfolio_outcomes.write_outcomes(long, rows[90:])
    router, _ = train_router(config, first, router={"kind": "max_sim"}, held_out=0.0)
    assert router.about.k == 1
    figures = [
        evaluate(config, config.home_path / "router", {"outcomes": [path]})[0]["rows"]
        for path in (short, long)
    ]
    assert figures[0] == figures[1]


@pytest.mark.slow
def test_a_router_is_evaluated_with_its_own_relevance(config: AppConfig, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    router(config, write(tmp_path / "first", 40))
    figures, _ = evaluate(config, config.home_path / "router", write(tmp_path, 60))
    assert (figures["questions"], figures["known"]) == (20, 40)
    assert figures["rows"]["router"]["em"] > 0.9


def test_a_model_of_relevance_is_evaluated_by_its_recall(config: AppConfig, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    train(config, **write(tmp_path / "first", 40))
    figures, said = evaluate(config, config.home_path / "relevance", write(tmp_path, 60))
    assert figures["questions"] == 20
    assert figures["recall"]["learned fusion"] > 0.9 > figures["recall"]["first"]
    assert "left out, as the model was trained on them: 40 questions" in said


@pytest.mark.parametrize(("model", "kind"), [("router", "router"), ("relevance", "model")])
@pytest.mark.slow
def test_its_own_questions_alone_are_refused(
    config: AppConfig, tmp_path: Path, model: str, kind: str
) -> None:
    files = write(tmp_path)
    if model == "router":
        router(config, files)
    else:
        train(config, **files)
    with pytest.raises(RouterError, match=f"the {kind} was trained on all of these 60"):
        evaluate(config, config.home_path / model, files)


def test_a_folder_without_a_model_exits_with_2(tmp_path: Path) -> None:
    files = write(tmp_path)
    (tmp_path / "serve.yaml").write_text(
        json.dumps({"applications": [{"import_path": "armwise.agent.app:build", "args": CONFIG}]})
    )
    words = ["lab", "evaluate-router", str(tmp_path), str(files["outcomes"][0])]
    words += ["-c", str(tmp_path / "serve.yaml")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert (
        "holds no trained model: none of router.json, cascade.json, relevance.model is there" in done.stderr
    )


# -- kinds of questions that are left out ---------------------------------------------------------------

KINDS = {"who": "people", "when": "times", "where": "places"}


def typed(folder: Path, rows: Any, **changes: str) -> dict[str, Any]:
    """Write outcomes, and their questions with a type by the first word."""
    questions = {row.question.id: row.question for row in rows}
    lines = [
        {"id": name, "question": question.text, "answers": ["it"], "type": KINDS[question.text.split()[0]]}
        for name, question in questions.items()
    ]
    lines = [line | {"type": changes.get(line["id"], line["type"])} for line in lines]
    portfolio_outcomes.write_outcomes(folder / "outcomes.jsonl", rows)
    (folder / "queries.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"outcomes": [folder / "outcomes.jsonl"], "queries": folder / "queries.jsonl"}


def test_a_kind_is_evaluated_by_a_router_of_the_others(config: AppConfig, tmp_path: Path) -> None:
    """The word of a kind tells its best arm, so a router that never saw that kind takes another one."""
    files = typed(tmp_path, routed_outcomes(60))
    train_router(config, *files["outcomes"])
    whole, _ = evaluate(config, config.home_path / "router", files, leave_out="type", output=tmp_path / "out")
    assert {name: row["questions"] for name, row in whole["rows"].items()} == dict.fromkeys(
        ("people", "places", "times"), 20
    )
    assert {name: row["single"] for name, row in whole["rows"].items()} == {
        "people": "none", "times": "bm25", "places": "dense"
    }  # fmt: skip
    assert all(row["router"] == pytest.approx(0.2) for row in whole["rows"].values())
    assert whole["mean"]["router"] == pytest.approx(0.2)
    assert (whole["mean"]["single_utility"], whole["mean"]["oracle"]) == (1.0, 1.0)
    assert whole["mean"]["gap"] is None, "the best arm of a kind is right on each of its questions"
    assert json.loads((tmp_path / "out").read_bytes()) == json.loads(json.dumps(whole))


def test_a_router_that_needs_no_kind_holds_on_each(config: AppConfig, tmp_path: Path) -> None:
    rows = routed_outcomes(60)
    changes = {row.question.id: ("odd" if int(row.question.id[1:]) % 2 else "even") for row in rows}
    files = typed(tmp_path, rows, **changes)
    train_router(config, *files["outcomes"])
    whole, said_ = evaluate(config, config.home_path / "router", files, leave_out="type")
    assert whole["rows"].keys() == {"even", "odd"}
    assert whole["mean"]["gap"] == pytest.approx(1.0)
    assert "on questions of a type that it was not trained on, the router closes 100.0%" in said_


def test_a_text_of_two_kinds_is_in_no_training_of_either(
    config: AppConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = routed_outcomes(30)
    rows += [replace(row, question=replace(row.question, id=f"{row.question.id}-b")) for row in rows[:9]]
    files = typed(tmp_path, rows, **{f"q{number}-b": "copies" for number in range(3)})
    train_router(config, *files["outcomes"])
    given: list[Any] = []

    def seen(recipe: Any, outcomes: Outcomes, features: Any, parts: Any, *more: Any) -> Any:
        given.extend((outcomes.only(training), outcomes.only(held_out)) for training, held_out in parts)
        return refit_scores(recipe, outcomes, features, parts, *more)

    monkeypatch.setattr("armwise.agent.lab.offline.evaluate.refit_scores", seen)
    evaluate(config, config.home_path / "router", files, leave_out="type")
    assert len(given) == 4
    for training, held_out in given:
        assert not {q.text for q in training.questions} & {q.text for q in held_out.questions}
        assert len(training.questions) + len(held_out.questions) >= 30


def test_the_fitted_router_is_the_one_that_was_trained(
    config: AppConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = typed(tmp_path, routed_outcomes(30))
    recipe = {"kind": "capability"}
    utility = {"measures": {"em": 1.0}, "over": "none", "scale": "minmax"}
    router, _ = train_router(
        config, *files["outcomes"], router=recipe, utility=utility, quality="recall", arms=["none", "bm25"]
    )
    recipes: list[Any] = []

    def seen(recipe: Any, *given: Any) -> Any:
        recipes.append(recipe)
        return refit_scores(recipe, *given)

    monkeypatch.setattr("armwise.agent.lab.offline.evaluate.refit_scores", seen)
    evaluate(config, config.home_path / "router", files, leave_out="type")
    (used,) = recipes
    assert (used.router.kind, used.router.params) == ("capability", dict(router.about.params))
    assert (used.quality, used.arms) == ("recall", ("none", "bm25"))
    assert used.utility.model_dump(mode="json") == router.about.utility


def test_a_router_of_few_passages_reads_as_few_again(config: AppConfig, tmp_path: Path) -> None:
    rows = routed_outcomes(60)
    cut = [replace(row, passages=(row.passages or ())[:1]) for row in rows]
    figures = []
    for number, of in enumerate((cut, rows)):
        (tmp_path / str(number)).mkdir()
        files = typed(tmp_path / str(number), of)
        if number == 0:
            train_router(config, *files["outcomes"], router={"kind": "max_sim"}, held_out=0.0)
        figures.append(evaluate(config, config.home_path / "router", files, leave_out="type")[0])
    assert figures[0] == figures[1]


@pytest.mark.slow
def test_relevance_is_learned_without_the_kind_too(
    config: AppConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write(tmp_path, 40)
    lines = [json.loads(line) for line in files["queries"].read_text().splitlines()]
    for number, line in enumerate(lines):
        line["dataset"] = "ab"[number // 20]
    files["queries"].write_text("".join(json.dumps(line) + "\n" for line in lines))
    router(config, files)
    fitted: list[list[int]] = []

    def seen(*given: Any) -> Any:
        predict = learn_relevance(*given)

        def with_relevance(rows: Any) -> Any:
            fitted.append(rows.tolist())
            return predict(rows)

        return with_relevance

    monkeypatch.setattr("armwise.agent.lab.offline.evaluate.learn_relevance", seen)
    evaluate(config, config.home_path / "router", files, leave_out="dataset")
    assert fitted == [list(range(20, 40)), list(range(20))]


def test_the_mean_counts_each_kind_alike() -> None:
    """Two questions of one kind and one of another: by hand (0.5 + 1) / 2, and gaps of the means."""
    known = table([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], [1.0, 1.0])
    values, rng = np.array(["x", "x", "y"]), np.random.default_rng(0)
    result = evaluation.evaluate_left_out(
        known, np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), values, "type",
        Utility(measures={"em": 1.0}), Stage.QUESTION, 100, rng,
    )  # fmt: skip
    mean = result.mean
    assert (result.rows["x"].router, result.rows["y"].router) == (0.5, 0.0)
    assert (mean.questions, mean.router, mean.single_utility, mean.oracle) == (3, 0.25, 0.75, 1.0)
    assert mean.gap == pytest.approx((0.25 - 0.75) / 0.25)
    assert result.rows["x"].p == 1.0


def test_the_interval_of_a_mean_is_that_of_its_kinds() -> None:
    """Two kinds of 50 questions, on each of which the router closes a half: the variance halves."""
    em = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]] * 50
    known, scores = table(em, [1.0, 1.0]), np.array([[1, 0], [0, 1], [1, 0], [1, 0]] * 50, dtype=np.float64)
    values, rng = np.repeat(["x", "y"], 100), np.random.default_rng(0)
    result = evaluation.evaluate_left_out(
        known, scores, values, "type", Utility(measures={"em": 1.0}), Stage.QUESTION, 2000, rng
    )
    half = 1.96 * 0.5 / 100**0.5
    assert result.mean.interval == pytest.approx((0.5 - half, 0.5 + half), abs=0.012)
    alone = evaluated(known.only(values == "x"), scores[:100], Utility(measures={"em": 1.0}), Stage.QUESTION)
    assert 0.0 < alone.p < 0.01
    assert result.rows["x"].p == pytest.approx(2 * alone.p), "two kinds are compared"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queries": None}, "leave_out reads the type of the questions: give them with --queries"),
        ({"leave_out": "dataset"}, "question 'q0' has no dataset"),
    ],
)
def test_a_kind_that_is_not_told_is_refused(
    config: AppConfig, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    files = typed(tmp_path, routed_outcomes(30))
    train_router(config, *files["outcomes"])
    with pytest.raises(RouterError, match=message):
        evaluate(config, config.home_path / "router", files | {"leave_out": "type"} | change)


def test_one_kind_alone_cannot_be_left_out(config: AppConfig, tmp_path: Path) -> None:
    rows = routed_outcomes(30)
    files = typed(tmp_path, rows, **{row.question.id: "one" for row in rows})
    train_router(config, *files["outcomes"])
    with pytest.raises(RouterError, match="every question has the type 'one'"):
        evaluate(config, config.home_path / "router", files, leave_out="type")


def test_only_a_router_is_fitted_again(config: AppConfig, tmp_path: Path) -> None:
    files = write(tmp_path, 40)
    train(config, **files)
    with pytest.raises(RouterError, match="only a router is evaluated with leave_out"):
        evaluate(config, config.home_path / "relevance", files, leave_out="type")

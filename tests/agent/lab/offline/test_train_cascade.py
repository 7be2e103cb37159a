"""Training a cascade as a user does: from outcomes to a folder, an arm and figures of what was held out."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.agent.config import AppConfig
from armwise.agent.lab.offline import (
    CascadeTraining,
    EvaluationSettings,
    cascade_spec,
    evaluate_model,
    train_cascade,
)
from armwise.agent.lab.routers import cascade
from armwise.agent.routers import RouterError
from armwise.arms.lab.portfolio import outcomes as portfolio_outcomes
from armwise.arms.questions import Question
from tests.agent.fakes import CONFIG
from tests.agent.lab.offline.test_train_router import ARMS, config, labelled, outcomes
from tests.agent.lab.routers.test_answer_selector import job_folder
from tests.router_contracts import grow_few_trees

__all__ = ["config", "labelled"]

SPEC: dict[str, Any] = {"stages": [["none"], ["bm25", "dense"]]}
CHARGED = {"cost_weight": 0.1}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    grow_few_trees(monkeypatch)


def train(config: AppConfig, *paths: Path, **fields: Any) -> tuple[cascade.TrainedCascade, str]:
    """Train, and return the cascade with what was printed."""
    output = StringIO()
    given = {"config": config, "outcomes": paths, "spec": SPEC, "utility": CHARGED}
    given |= {"output": config.home_path / "cascade"}
    made = train_cascade(
        CascadeTraining.model_validate(given | fields), Console(file=output, width=120), lambda *_: None
    )
    return made, output.getvalue()


def test_a_trained_cascade_stops_well_on_held_out_questions(config: AppConfig, labelled: Path) -> None:
    made, said = train(config, labelled)
    held_out = made.about.held_out
    assert held_out is not None
    assert held_out["questions"] == 12
    assert held_out["gap"] > 0.9
    assert held_out["rows"].keys() == {*ARMS, "stage 1, always", "stage 2, always", "cascade", "oracle"}
    assert held_out["rows"]["stage 2, always"]["costs"]["steps"] == 3.0
    assert held_out["rows"]["cascade"]["costs"]["steps"] < 3.0
    assert "12 questions that were held out" in said
    read = cascade.read_cascade(config.home_path / "cascade")
    assert read.about.model_dump(mode="json") == made.about.model_dump(mode="json")
    assert (read.about.k, read.about.questions, read.about.writing) == (3, 60, None)
    assert read.about.corpus is not None


def test_the_arm_that_is_printed_is_the_one_that_fits(config: AppConfig, tmp_path: Path) -> None:
    stages = [["none"], ["bm25"], ["dense"]]
    made, said = train(config, job_folder(tmp_path / "labels"), spec=SPEC | {"stages": stages}, held_out=0.0)
    assert made.about.held_out is None
    assert "not validated: no question was held out" in said
    _, _, arm = said.partition("serve it as an arm   ")
    assert yaml.safe_load(arm) == {
        "kind": "cascade",
        "params": {
            "stages": stages,
            "decider": str(config.home_path / "cascade"),
            "form": "short",
            "word_budget": 400,
            "max_tokens": 32,
        },
    }


def test_a_cascade_is_evaluated_on_other_outcomes(config: AppConfig, labelled: Path, tmp_path: Path) -> None:
    train(config, labelled, held_out=0.0)
    output = StringIO()
    later = tmp_path / "later.jsonl"
    portfolio_outcomes.write_outcomes(later, outcomes(96)[180:])
    evaluation = EvaluationSettings(config=config, model=config.home_path / "cascade", outcomes=(later,))
    found = evaluate_model(evaluation, Console(file=output, width=120), lambda *_: None)
    assert found["questions"] == 36
    rows = found["rows"]
    assert rows["dense"]["reward"] == pytest.approx(0.2 + 0.8 / 3.0 - 0.1 * 2.0), "two steps at a tenth each"
    assert rows["cascade"]["reward"] > rows[found["single"]]["reward"] + 0.1
    assert "36 questions that were held out" in output.getvalue()
    assert found["gap_of_all"] is None, "the cascade asks all arms of the file"
    low, high = found["gain"]
    assert low < rows["cascade"]["reward"] - rows[found["single"]]["reward"] < high
    others = [evaluation.model_copy(update={"seed": seed, "resamples": 100}) for seed in range(4)]
    gains = [evaluate_model(one, Console(file=output), lambda *_: None)["gain"] for one in others]
    assert len({*gains}) > 1, "each seed has resamples of its own"


def test_unasked_arms_count_for_the_oracle(config: AppConfig, labelled: Path, tmp_path: Path) -> None:
    train(config, labelled, held_out=0.0, spec=SPEC | {"stages": [["none"], ["bm25"]]})
    later = tmp_path / "later.jsonl"
    portfolio_outcomes.write_outcomes(later, outcomes(72)[180:])
    evaluation = EvaluationSettings(config=config, model=config.home_path / "cascade", outcomes=(later,))
    found = evaluate_model(evaluation, Console(file=StringIO(), width=120), lambda *_: None)
    assert "dense" not in found["rows"]
    assert found["gap_of_all"] is not None
    assert found["gap_of_all"] != found["gap"]
    rows = outcomes(72)[180:]
    rows[1] = portfolio_outcomes.Outcome(rows[1].question, "bm25", error="away")
    portfolio_outcomes.write_outcomes(tmp_path / "gaps.jsonl", rows)
    portfolio_outcomes.write_outcomes(tmp_path / "rest.jsonl", rows[3:])
    figures = [
        evaluate_model(
            evaluation.model_copy(update={"outcomes": (tmp_path / name,)}),
            Console(file=StringIO()),
            lambda *_: None,
        )
        for name in ("gaps.jsonl", "rest.jsonl")
    ]
    assert figures[0] == figures[1], "a question without the outcomes of its arms is left out of all"


def test_questions_without_the_outcomes_of_every_arm_are_left_out(config: AppConfig, tmp_path: Path) -> None:
    rows = outcomes()
    rows[4] = portfolio_outcomes.Outcome(rows[4].question, "bm25", error="away")
    portfolio_outcomes.write_outcomes(tmp_path / "gaps.jsonl", rows)
    made, said = train(config, tmp_path / "gaps.jsonl", held_out=0.0)
    assert made.about.questions == 59
    assert "left out: 1 questions without the outcomes of every arm" in said


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": [["none"], ["bm52"]]}, "'bm52' is unknown here; did you mean 'bm25'"),
        ({"right": "acc"}, "no score 'acc' among the outcomes, which have em, f1, recall"),
    ],
)
def test_what_does_not_fit_the_outcomes_is_refused(
    config: AppConfig, labelled: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(RouterError, match=message):
        train(config, labelled, spec=SPEC | changes)


def test_passages_of_another_corpus_are_refused(config: AppConfig, tmp_path: Path) -> None:
    question = Question("q", "who?")
    rows = [
        portfolio_outcomes.Outcome(question, arm, ("x1",), arm, {"em": 1.0, "f1": 1.0}, {"steps": 1.0})
        for arm in ARMS
    ]
    portfolio_outcomes.write_outcomes(tmp_path / "foreign.jsonl", rows)
    with pytest.raises(RouterError, match=r"none of the 1 passages.*'x1'"):
        train(config, tmp_path / "foreign.jsonl")


def test_the_command_trains_a_cascade(config: AppConfig, labelled: Path, tmp_path: Path) -> None:
    file, spec, output = tmp_path / "serve.yaml", tmp_path / "cascade.yaml", tmp_path / "made"
    args = CONFIG | {"home": str(config.home_path), "corpus": config.corpus.model_dump()}
    file.write_text(yaml.safe_dump({"applications": [{"name": "armwise", "args": args}]}))
    spec.write_text(yaml.safe_dump(SPEC))
    command = ["lab", "train", str(labelled), "--model", "cascade", "-o", str(output), "-c", str(file)]
    done = CliRunner().invoke(app, [*command, "--spec", str(spec), "--cost-weight", "0.1"])
    assert done.exit_code == 0, done.output
    assert cascade.read_cascade(output).about.spec == cascade_spec(spec)
    for wrong, message in (
        ([], "needs --spec"),
        (["--spec", str(spec), "--router", "ridge"], "--router: only a router has that, not --model cascade"),
        (["--spec", str(spec), "--folds", "3"], "folds: Extra inputs are not permitted"),
        (["--spec", str(tmp_path / "missing.yaml")], "describes no cascade"),
    ):
        refused = CliRunner().invoke(app, [*command, *wrong])
        assert refused.exit_code == 2
        assert message in refused.output.replace("\n", " ")


def test_the_example_is_a_cascade() -> None:
    assert cascade_spec(Path("examples/cascade.yaml")).right == "em"

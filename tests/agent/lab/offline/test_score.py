"""Scoring as a user asks for it: by measures, answers and judges on a small corpus, and by the log."""

import itertools
import json
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pydantic import ValidationError
from rich.console import Console

from armwise.agent.config import AppConfig, parse
from armwise.agent.lab.offline import PortfolioSelection, Scoring, open_corpus, score_arms, select_portfolio
from armwise.agent.lab.offline.score import choose_scorer
from armwise.agent.lab.simulation.questions import QuestionsError
from armwise.agent.routers import RouterError
from armwise.arms.corpus import CorpusError
from armwise.arms.lab.portfolio import pool as portfolio_pool
from armwise.arms.lab.portfolio import read_matrix
from armwise.arms.lab.portfolio.outcomes import Outcome, OutcomesError
from armwise.arms.lab.scoring import ScoringError
from armwise.arms.llm import Chunk
from armwise.arms.llm.judge import FiveScores
from armwise.arms.questions import Question
from armwise.feedback.events import Context, Cost, Decision, Execution, Feedback, Mode, Status
from armwise.feedback.log import Store
from armwise.feedback.reward import UnknownMetricError
from armwise.feedback.training_log import logged_labels
from tests.agent.asking import join
from tests.neighbours import SUBJECTS, write_corpus

ASKED = "What stands beside the {}?"


@pytest.fixture
def config(tmp_path: Path) -> AppConfig:
    """A corpus of twelve passages, four arms, and a model that answers one question right."""
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    return parse(
        {
            "home": str(tmp_path / "home"),
            "corpus": {"name": "small", "source": str(corpus)},
            "backbones": {"tiny": {"model": "hashing:64"}},
            "arms": {
                "none": {"kind": "none"},
                "bm25": {"kind": "bm25"},
                "dense": {"kind": "dense", "params": {"backbone": "tiny"}},
                "rrf": {"kind": "rrf", "params": {"arms": ["bm25", "dense"]}},
            },
            "llm": {
                "engine": "scripted",
                "replies": {ASKED.format("sea"): "the mountain"},
                "default": json.dumps(dict.fromkeys(FiveScores.model_fields, 3)),
            },
            "policy": {"kind": "uniform"},
            "reward": {"metrics": {"thumb": {"range": [-1, 1]}}},
        }
    )


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    """One question a passage: what stands beside its subject is the title of the next one."""
    path = tmp_path / "queries.jsonl"
    rows = [
        {
            "id": f"q{i}",
            "question": ASKED.format(subject),
            "answers": [f"the {beside}"],
            "gold_ids": [f"p{i + 1}"],
        }
        for i, (subject, beside) in enumerate(itertools.pairwise(SUBJECTS))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def scored(tmp_path: Path, config: AppConfig, **fields: Any) -> str:
    """Run, and return what was printed."""
    output = StringIO()
    fast = {"timed": 0, "workers": 1} if "queries" in fields else {}
    settings = Scoring.model_validate({"config": config, "output": tmp_path / "scores", **fast, **fields})
    score_arms(settings, Console(file=output, width=120), lambda *_: None)
    return output.getvalue()


def test_configured_arms_are_scored_on_the_corpus(tmp_path: Path, config: AppConfig, queries: Path) -> None:
    said = scored(tmp_path, config, queries=queries, measure="R@3")
    matrix = read_matrix(tmp_path / "scores")
    assert matrix.arms == ("none", "bm25", "dense", "rrf")
    assert (matrix.table.measure, len(matrix.questions)) == ("R@3", 11)
    assert matrix.scores[0].max() == 0.0
    assert matrix.scores[1].min() == 1.0, "both words of a question occur in the passage that answers it"
    assert "4 arms on 11 questions by R@3, 0 of 44 scores unknown" in said
    assert "(11 of them before)" in scored(tmp_path, config, queries=queries, measure="R@3")


def test_a_pool_is_scored_by_the_model(tmp_path: Path, config: AppConfig, queries: Path) -> None:
    away = {"kind": "tests.arms.lab.jobs.test_score_job:Away"}
    pool = {"discounted": None, "vendi": None, "graph": None, "extra": {"away": away, "b": {"kind": "bm25"}}}
    path = tmp_path / "pool.yaml"
    path.write_text(yaml.safe_dump({"backbones": {"small": {"model": "hashing:32"}}, "pool": pool}))
    said = scored(tmp_path, config, queries=queries, measure="judge", pool=path, limit=9, seed=1)
    matrix = read_matrix(tmp_path / "scores")
    assert matrix.arms == ("dense-small", "away", "b")
    assert len({question.id for question in matrix.questions}) == 9
    np.testing.assert_array_equal(matrix.scores, [[0.5] * 9, [np.nan] * 9, [0.5] * 9])
    assert "9 of 27 scores unknown" in said
    assert "NO SCORE AT ALL: away" in said
    assert "it is away" in said


@pytest.mark.slow
def test_a_portfolio_is_chosen_from_labels_within_dollars(tmp_path: Path, config: AppConfig) -> None:
    questions = [Question(f"q{i}", f"Question {i}?") for i in range(8)]
    right = {
        "none": lambda i: i < 2,
        "bm25": lambda i: i < 6,
        "dense": lambda i: i >= 6,
        "rrf": lambda i: i < 7,
    }
    usd = {"none": 0.0, "bm25": 0.001, "dense": 0.001, "rrf": 0.01}
    lines = [
        Outcome(one, arm, scores={"f1": float(good(i))}, costs={"usd": usd[arm]}).line()
        for i, one in enumerate(questions)
        for arm, good in right.items()
    ]
    (tmp_path / "labels.jsonl").write_bytes(b"".join(lines))
    said = scored(tmp_path, config, from_labels=tmp_path / "labels.jsonl", measure="f1")
    assert "4 arms on 8 questions by f1, 0 of 32 scores unknown" in said
    budget = {"budget": 0.003, "cost": "usd", "held_out": 0.25, "output": tmp_path / "portfolio"}
    settings = PortfolioSelection.model_validate({"scores": tmp_path / "scores", **budget})
    report = select_portfolio(settings, Console(file=StringIO()))
    assert set(report.arms) == {"none", "bm25", "dense"}
    with pytest.raises(RouterError, match="no label has a score 'em'"):
        scored(tmp_path, config, from_labels=tmp_path / "labels.jsonl", measure="em")


def test_members_of_labelled_arms_are_arms_without_a_score(tmp_path: Path, config: AppConfig) -> None:
    questions = [Question(f"q{i}", f"Question {i}?") for i in range(2)]
    lines = [
        Outcome(one, arm, scores={"f1": 1.0}, costs={"steps": 2.0}).line()
        for one in questions
        for arm in ("rrf", "dense")
    ]
    (tmp_path / "labels.jsonl").write_bytes(b"".join(lines))
    scored(tmp_path, config, from_labels=tmp_path / "labels.jsonl", measure="f1")
    matrix = read_matrix(tmp_path / "scores")
    assert matrix.arms == ("rrf", "dense", "bm25")
    np.testing.assert_array_equal(matrix.scores, [[1.0] * 2, [1.0] * 2, [np.nan] * 2])
    assert matrix.table.costs["steps"] == {"rrf": 2.0, "dense": 2.0, "bm25": 0.0}


def test_labels_take_their_texts_from_questions(tmp_path: Path, config: AppConfig, queries: Path) -> None:
    (tmp_path / "labels.jsonl").write_text('{"id": "q0", "arm": "bm25", "f1": 1.0}')
    fields = {"from_labels": tmp_path / "labels.jsonl", "measure": "f1"}
    with pytest.raises(OutcomesError, match="has no text: add it, or pass the questions with --queries"):
        scored(tmp_path, config, **fields)
    settings = Scoring.model_validate(
        {"config": config, "queries": queries, "output": tmp_path / "scores", **fields}
    )
    printed = StringIO()
    score_arms(settings, Console(file=printed, width=120), lambda *_: None)
    (question,) = read_matrix(tmp_path / "scores").questions
    assert question.text == ASKED.format(SUBJECTS[0])
    assert "1 arms on 1 questions by f1, 0 of 1 scores unknown" in printed.getvalue()


def test_a_cost_that_one_label_lacks_is_no_cost_of_the_arms(tmp_path: Path, config: AppConfig) -> None:
    lines = [
        Outcome(
            Question(f"q{i}", f"Question {i}?"), arm, scores={"f1": 1.0}, costs={"steps": 2.0, **usd}
        ).line()
        for i, arm, usd in (
            (0, "bm25", {"usd": 0.5}),
            (0, "none", {"usd": 0.5}),
            (1, "bm25", {}),
            (1, "none", {}),
        )
    ]
    (tmp_path / "labels.jsonl").write_bytes(b"".join(lines))
    scored(tmp_path, config, from_labels=tmp_path / "labels.jsonl", measure="f1")
    assert read_matrix(tmp_path / "scores").table.costs == {"steps": {"bm25": 2.0, "none": 2.0}}


def test_a_judge_needs_nothing_but_questions(tmp_path: Path, config: AppConfig) -> None:
    (tmp_path / "bare.jsonl").write_text('{"id": "q", "question": "What is in the sea?"}')
    scored(tmp_path, config, queries=tmp_path / "bare.jsonl", measure="judge")
    matrix = read_matrix(tmp_path / "scores")
    assert (matrix.table.measure, matrix.scores.tolist()) == ("judge", [[0.5]] * 4)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"measure": "recall"}, ScoringError, "measure 'recall'"),
        ({"measure": "em"}, ScoringError, "'em' compares answers: let `armwise lab label` write them"),
        ({"queries": Path("nowhere.jsonl")}, QuestionsError, r"nowhere\.jsonl"),
        ({"pool": Path("nowhere.yaml")}, portfolio_pool.PoolError, r"nowhere\.yaml: no such file"),
        ({"corpus": "large"}, CorpusError, "no corpus in .*large: run ingest first"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_anything_is_written(
    tmp_path: Path,
    config: AppConfig,
    queries: Path,
    fields: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        scored(tmp_path, config, **{"queries": queries, **fields})
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.jsonl", "queries.jsonl"}


def test_an_empty_corpus_is_refused(tmp_path: Path, config: AppConfig, queries: Path) -> None:
    Path(config.corpus.source).write_text("")
    with pytest.raises(CorpusError, match="has no passages"):
        scored(tmp_path, config, queries=queries)


def test_the_judge_reads_as_many_words_as_told(tmp_path: Path, config: AppConfig) -> None:
    short = parse({**config.model_dump(mode="json"), "answering": {"word_budget": 70}})
    settings = Scoring(
        config=short, queries=tmp_path / "q.jsonl", measure="judge", output=tmp_path / "scores"
    )
    assert choose_scorer(settings)(lambda _: ("", Chunk())).identity["word budget"] == 70


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "one of queries, from_log and from_labels"),
        ({"queries": "q.jsonl", "from_log": True}, "one of queries, from_log and from_labels"),
        ({"queries": "q", "from_labels": "l", "from_log": True}, "one of queries, from_log and from_labels"),
        ({"queries": "q.jsonl", "from_labels": "l", "pool": "pool.yaml"}, r"leave out pool \["),
        ({"from_log": True, "pool": "pool.yaml"}, r"with the arms that they name: leave out pool \["),
        ({"from_log": True, "corpus": "small"}, r"leave out corpus \["),
        ({"from_log": True, "timed": 4, "k": 4, "seed": 0}, r"leave out k, seed, timed \["),
        ({"from_log": True, "block": 8, "limit": 9, "workers": 1}, r"leave out block, limit, workers \["),
        ({"queries": "q.jsonl", "block": 0}, "greater than or equal to 1"),
        ({"queries": "q.jsonl", "blocks": 1}, "Extra inputs"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(
    tmp_path: Path, config: AppConfig, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        Scoring.model_validate({"config": config, "output": tmp_path / "scores", **fields})


def turn(number: int, question: str, arm: str, thumb: float | None, mode: Mode = Mode.EXPLORE) -> list[Any]:
    """Facts of one decision: judged, unless `thumb` is None."""
    arms = ("none", "bm25", "dense", "rrf") if mode is Mode.EXPLORE else (arm,)
    name = f"d-{number}"
    facts: list[Any] = [
        Decision(
            name, Context(question), arms, (1 / len(arms),) * len(arms), arm, "uniform", 1, mode, 1.0, 100.0
        ),
        Execution(name, arm, Status.OK, Cost(steps=2, prompt_tokens=10, retrieval_s=0.5)),
    ]
    return facts if thumb is None else [*facts, Feedback(f"{name}:f", name, "thumb", thumb, 1.0)]


def test_the_log_is_a_matrix_with_unknown_cells(tmp_path: Path, config: AppConfig, store: Store) -> None:
    store.append(
        turn(0, "the sea?", "bm25", 1.0)
        + turn(1, "the sea?", "bm25", 0.0)
        + turn(2, "the moon?", "dense", -1.0)
        + turn(3, "the moon?", "rrf", None)
        + turn(4, "the moon?", "rrf", 1.0, Mode.FORCED)
        + turn(5, "the moon?", "none", 1.0, Mode.FORCED)
    )
    join(store, config)
    said = scored(tmp_path, config, from_log=True, measure="thumb")
    matrix = read_matrix(tmp_path / "scores")
    assert matrix.arms == ("bm25", "dense"), "no other arm was drawn and judged"
    assert [question.text for question in matrix.questions] == ["the sea?", "the moon?"]
    np.testing.assert_array_equal(matrix.scores, [[0.75, np.nan], [np.nan, 0.0]])
    assert matrix.chances is not None
    np.testing.assert_allclose(matrix.chances, [[1 - 0.75**2, 0.25]] * 2)
    assert matrix.table.measure == "thumb of the log"
    assert dict(matrix.table.specs) == {name: config.arms[name] for name in ("bm25", "dense")}
    assert matrix.table.costs == {
        "steps": {"bm25": 2.0, "dense": 2.0},
        "total_tokens": {"bm25": 10.0, "dense": 10.0},
        "seconds": {"bm25": 0.5, "dense": 0.5},
    }
    assert "3 decisions used; left out: 2 forced, 1 no reward" in said
    assert "2 of 4 scores unknown" in said
    assert "NO SCORE" not in said


def test_parts_of_logged_arms_come_along(tmp_path: Path, config: AppConfig, store: Store) -> None:
    store.append(turn(0, "the sea?", "bm25", 1.0) + turn(1, "the sea?", "rrf", 0.0))
    join(store, config)
    scored(tmp_path, config, from_log=True, measure="thumb")
    matrix = read_matrix(tmp_path / "scores")
    assert matrix.arms == ("bm25", "rrf", "dense"), "a part that was not drawn itself comes last"
    np.testing.assert_array_equal(matrix.scores, [[1.0], [0.5], [np.nan]])
    assert matrix.table.costs["steps"] == {"bm25": 2.0, "rrf": 2.0, "dense": 0.0}


def test_the_reward_of_the_log_is_a_measure_too(tmp_path: Path, config: AppConfig, store: Store) -> None:
    store.append(turn(0, "the sea?", "bm25", 1.0))
    join(store, config)
    scored(tmp_path, config, from_log=True, measure="reward")
    assert read_matrix(tmp_path / "scores").scores == pytest.approx((1.0 - 0.1 * 2 + 1.0) / 2)


def test_a_log_that_has_nothing_to_say_is_refused(tmp_path: Path, config: AppConfig) -> None:
    Store(config.database_url).close()
    with pytest.raises(logged_labels.LabelsError, match="has no feedback"):
        scored(tmp_path, config, from_log=True, measure="thumb")
    with pytest.raises(UnknownMetricError, match="'stars' is not declared; available: thumb"):
        scored(tmp_path, config, from_log=True, measure="stars")
    assert not (tmp_path / "scores").exists()


def several(tmp_path: Path) -> AppConfig:
    """Two corpora of six passages each, with an arm over each and one over both."""
    passages = write_corpus(tmp_path / "all.jsonl").read_text().splitlines(keepends=True)
    for name, half in (("docs", passages[:6]), ("tickets", passages[6:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(half))
    return parse(
        {
            "home": str(tmp_path / "home"),
            "corpora": {name: {"source": str(tmp_path / f"{name}.jsonl")} for name in ("docs", "tickets")},
            "arms": {
                "docs": {"kind": "bm25", "corpus": "docs"},
                "tickets": {"kind": "bm25", "corpus": "tickets"},
                "both": {"kind": "rrf", "params": {"arms": ["docs", "tickets"]}},
            },
            "llm": {"engine": "scripted"},
            "policy": {"kind": "uniform"},
            "reward": {"metrics": {"thumb": {"range": [-1, 1]}}},
        }
    )


def test_arms_over_several_corpora_are_scored_by_the_names_of_their_passages(tmp_path: Path) -> None:
    config = several(tmp_path)
    rows = [
        {"id": f"q{n}", "question": ASKED.format(SUBJECTS[n]), "gold_ids": [f"{name}/p{n}"]}
        for n, name in ((0, "docs"), (5, "docs"), (6, "tickets"), (11, "tickets"))
    ]
    queries = tmp_path / "several.jsonl"
    queries.write_text("".join(json.dumps(row) + "\n" for row in rows))
    scored(tmp_path, config, queries=queries, measure="R@2")
    matrix = read_matrix(tmp_path / "scores")
    assert matrix.scores.T.tolist() == [[1, 0, 1], [1, 0, 1], [0, 1, 1], [0, 1, 1]]


def test_one_of_several_corpora_has_its_name_in_the_ids(tmp_path: Path) -> None:
    config = several(tmp_path)
    every = open_corpus(config, None, lambda *_: None)
    assert every.ids() == [f"docs/p{n}" for n in range(6)] + [f"tickets/p{n}" for n in range(6, 12)]
    assert open_corpus(config, "tickets", lambda *_: None).ids() == every.ids()[6:]

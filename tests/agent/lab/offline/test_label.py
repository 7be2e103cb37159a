"""Labelling as a user asks for it: which arms, which questions, by what, and what is told of it."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from rich.console import Console

from armwise.agent.config import AppConfig, parse
from armwise.agent.lab.offline import Labelling, label_questions
from armwise.agent.lab.simulation.questions import QuestionsError
from armwise.arms.corpus import CorpusError
from armwise.arms.lab.jobs.checkpoint import JobError
from armwise.arms.lab.portfolio import pool as portfolio_pool
from armwise.arms.lab.portfolio import read_outcomes
from armwise.arms.lab.scoring import ScoringError
from tests.neighbours import write_corpus

SEA = {"id": "s", "question": "What is beside the sea?", "answers": ["The mountain"], "gold_ids": ["p2"]}
MOON = {"id": "m", "question": "What is beside the moon?", "answers": ["star"], "dataset": "sky"}
BARE = {"id": "b", "question": "What is beside the wall?", "gold_ids": ["p11"]}


@pytest.fixture
def config(tmp_path: Path) -> AppConfig:
    """A corpus of twelve passages, three arms and a part of one, and a model with two answers."""
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    return parse(
        {
            "home": str(tmp_path / "home"),
            "corpus": {"name": "small", "source": str(corpus)},
            "backbones": {"tiny": {"model": "hashing:64"}},
            "arms": {
                "none": {"kind": "none"},
                "bm25": {"kind": "bm25"},
                "dense": {"kind": "dense", "params": {"backbone": "tiny"}, "action": False},
                "rrf": {"kind": "rrf", "params": {"arms": ["bm25", "dense"]}},
            },
            "llm": {
                "engine": "scripted",
                "replies": {SEA["question"]: "mountain", MOON["question"]: "a bright star"},
                "default": '{"relevance": 5, "coverage": 5, "accuracy": 5, "ranking": 5, "redundancy": 1}',
            },
            "policy": {"kind": "uniform"},
            "reward": {"metrics": {"thumb": {"range": [-1, 1]}}},
        }
    )


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    path = tmp_path / "queries.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (SEA, MOON, BARE)))
    return path


def labelled(tmp_path: Path, config: AppConfig, **fields: Any) -> str:
    """Run, and return what was printed."""
    output = StringIO()
    settings = Labelling.model_validate(
        {"config": config, "output": tmp_path / "labels", "workers": 1, **fields}
    )
    label_questions(settings, Console(file=output, width=100), lambda *_: None)
    return output.getvalue()


def test_every_action_answers_every_question(tmp_path: Path, config: AppConfig, queries: Path) -> None:
    said = labelled(tmp_path, config, queries=queries)
    outcomes = read_outcomes(tmp_path / "labels")
    assert outcomes.arms == ("none", "bm25", "rrf"), "the other is only a part"
    assert [(q.id, q.text, q.dataset) for q in outcomes.questions] == [
        ("s", SEA["question"], ""),
        ("m", MOON["question"], "sky"),
    ]
    assert outcomes.answers == (("mountain",) * 3, ("a bright star",) * 3)
    assert outcomes.scores["em"].tolist() == [[1.0] * 3, [0.0] * 3]
    assert outcomes.scores["f1"][1] == pytest.approx([2 / 3] * 3)
    assert outcomes.scores["acc"].tolist() == [[1.0] * 3] * 2
    assert outcomes.scores["recall"][0].tolist() == [0.0, 1.0, 1.0]
    assert outcomes.costs["steps"].tolist() == [[0.0, 1.0, 1.0]] * 2
    assert "1 questions without answers are left out" in said
    assert f"3 arms on 2 questions; written to {tmp_path / 'labels'}" in said
    (row,) = [line for line in said.splitlines() if "bm25" in line]
    cells = [cell.strip() for cell in row.strip("│ ").split("│")]
    assert cells[:7] == ["bm25", "2", "0.500", "0.833", "1.000", "1.000", "1.00"]
    assert cells[-1] == "0"
    assert "not known" not in said
    assert "(2 of them before)" in labelled(tmp_path, config, queries=queries)
    with pytest.raises(JobError, match=r"labels was made with form 'short', .*form 'direct'"):
        labelled(tmp_path, config, queries=queries, form="direct")


def test_failures_are_counted_by_arm_and_measure(tmp_path: Path, config: AppConfig, queries: Path) -> None:
    away = {"kind": "tests.arms.lab.jobs.test_score_job:Away"}
    extra = {"away": away, "b": {"kind": "bm25"}, "both": {"kind": "rrf", "params": {"arms": ["b", "away"]}}}
    path = tmp_path / "pool.yaml"
    pool = {"discounted": None, "vendi": None, "graph": None, "extra": extra}
    path.write_text(yaml.safe_dump({"backbones": {"small": {"model": "hashing:32"}}, "pool": pool}))
    said = labelled(
        tmp_path,
        config,
        queries=queries,
        pool=path,
        arms=["[ab]", "away"],
        measures=["judge", "answer_correctness", "em"],
    )
    outcomes = read_outcomes(tmp_path / "labels")
    assert outcomes.arms == ("away", "b")
    assert outcomes.scores["judge"][:, 1].tolist() == [0.8, 0.8]
    assert "answer_correctness" not in outcomes.scores
    gaps = [" ".join(line.replace("│", " ").split()) for line in said.splitlines()]
    assert "away 2 question 's': it is away" in gaps
    assert any(line.startswith("answer_correctness 2 question 's': answer_correctness: ") for line in gaps)
    assert f"to retry, delete {tmp_path / 'labels'} and label again" in said


def test_a_judge_needs_nothing_but_questions(tmp_path: Path, config: AppConfig, queries: Path) -> None:
    said = labelled(
        tmp_path,
        config,
        queries=queries,
        measures=["judge"],
        arms=["none"],
        limit=2,
        seed=1,
        form="reasoning",
    )
    outcomes = read_outcomes(tmp_path / "labels")
    assert len(outcomes.questions) == 2
    assert outcomes.scores["judge"].tolist() == [[0.8]] * 2
    assert "left out" not in said
    rows = [json.loads(line) for line in (tmp_path / "labels" / "outcomes.jsonl").read_bytes().splitlines()]
    assert {(row["prompt"], row["tagged"], row["llm_calls"]) for row in rows} == {
        ("reasoning_without", False, 2)
    }


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"queries": Path("nowhere.jsonl")}, QuestionsError, r"nowhere\.jsonl"),
        ({"pool": Path("nowhere.yaml")}, portfolio_pool.PoolError, r"nowhere\.yaml: no such file"),
        ({"corpus": "large"}, CorpusError, "no corpus in .*large: run ingest first"),
        ({"arms": ["bm25", "bm52"]}, ValueError, "no arm is called 'bm52'; did you mean 'bm25'"),
        ({"arms": ["dense"]}, ValueError, "no arm is called 'dense'"),
    ],
)
def test_what_cannot_be_labelled_is_refused_before_anything_is_asked(
    tmp_path: Path,
    config: AppConfig,
    queries: Path,
    fields: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        labelled(tmp_path, config, **{"queries": queries, **fields})
    assert not (tmp_path / "labels").exists()
    assert not (tmp_path / "labels.blocks").exists()


def test_questions_that_no_measure_can_use_are_refused(tmp_path: Path, config: AppConfig) -> None:
    path = tmp_path / "queries.jsonl"
    path.write_text(json.dumps({"id": "q", "question": "What is in the sea?"}))
    with pytest.raises(ValueError, match="no question has answers, which em, f1, acc needs"):
        labelled(tmp_path, config, queries=path)
    with pytest.raises(ValueError, match="no question has gold_ids, which recall needs"):
        labelled(tmp_path, config, queries=path, measures=["recall"])
    with pytest.raises(ValueError, match="no question has gold_ids, which recall needs"):
        labelled(tmp_path, config, queries=path, measures=["judge", "recall"])
    path.write_text(json.dumps({**SEA, "gold_ids": ["p99"]}))
    with pytest.raises(ScoringError, match="question 's': no passage 'p99'"):
        labelled(tmp_path, config, queries=path)


@pytest.mark.parametrize(
    ("llm", "fields", "workers"),
    [
        ({"engine": "scripted"}, {}, None),
        ({"engine": "scripted"}, {"workers": 3}, 3),
        ({"engine": "vllm", "model": "m"}, {}, 1),
        ({"engine": "vllm", "model": "m"}, {"workers": 3}, 3),
    ],
)
def test_one_process_asks_a_model_on_a_gpu_unless_more_are_asked_for(
    tmp_path: Path,
    config: AppConfig,
    queries: Path,
    monkeypatch: pytest.MonkeyPatch,
    llm: dict[str, Any],
    fields: dict[str, Any],
    workers: int | None,
) -> None:
    asked = []

    def label(*_: object, workers: int | None, **__: object) -> None:
        asked.append(workers)
        raise JobError("enough")

    monkeypatch.setattr("armwise.agent.lab.offline.label.label", label)
    given = parse({**config.model_dump(mode="json"), "llm": llm})
    with pytest.raises(JobError, match="enough"):
        labelled(tmp_path, given, queries=queries, **{"workers": None, **fields})
    assert asked == [workers]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"measures": ["em", "f2"]}, "no measure 'f2'"),
        ({"measures": ["answer_correctness"]}, "answer_correctness needs a sentence encoder"),
        ({"form": "long"}, "'direct', 'short' or 'reasoning'"),
        ({"at_once": 0}, "greater than or equal to 1"),
        ({"blocks": 1}, "Extra inputs"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    tmp_path: Path, config: AppConfig, fields: dict[str, Any], message: str
) -> None:
    bare = parse({**config.model_dump(mode="json"), "backbones": {}, "arms": {"none": {"kind": "none"}}})
    given = {"config": bare, "queries": "q.jsonl", "output": tmp_path / "labels", **fields}
    with pytest.raises(ValidationError, match=message):
        Labelling.model_validate(given)

"""A block of a job: what each cell is, what it took, and what its scores follow from."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import HttpUrl

from armwise.arms.base import ArmError, Query, Retrieval
from armwise.arms.corpus import Corpus
from armwise.arms.lab.jobs.job import derive_seed
from armwise.arms.lab.jobs.score_job import ScoreBlock, ScoreJob, ScoreWorker
from armwise.arms.lab.scoring import JudgeScorer, RetrievalScorer
from armwise.arms.llm import LateWriter, Prompt, catalog
from armwise.arms.llm.catalog import ModelStartError
from armwise.arms.llm.judge import FiveScores
from armwise.arms.models import Backbone
from armwise.arms.questions import Question
from armwise.arms.retrievers import ArmSpec, Resources, build_arm, prepare
from tests.arms.contract import DIM, ask

HERE = "tests.arms.lab.jobs.test_score_worker"
TINY = {"tiny": Backbone(model=f"hashing:{DIM}")}

QUESTIONS = (
    Question("q1", "Which river flows through Vienna?", ("danube", "vienna"), ("the Danube",), "rivers"),
    Question("q2", "Who composed an opera in Vienna?", ("mozart",), ("Mozart",), "people"),
    Question("q3", "Where does the red fox live?", ("fox", "fox-again", "alps"), ("in forests",), "animals"),
    Question("q4", "What flows slowly down a valley?", ("glacier",), ("a glacier",), "rivers"),
    Question("q5", "zyzzyva", ("tide",), ("nobody knows",), ""),
)

SPECS = {
    "none": ArmSpec(kind="none"),
    "bm25": ArmSpec(kind="bm25"),
    "dense": ArmSpec(kind="dense", params={"backbone": "tiny"}),
    "ivf_pq": ArmSpec(kind="dense", params={"backbone": "tiny", "index": "ivf_pq"}),
    "rrf": ArmSpec(kind="rrf", params={"arms": ["bm25", "dense"]}),
    "drawn": ArmSpec(kind=f"{HERE}:Drawn"),
}


class Drawn:
    """Takes as many steps as the seed of the query says, for nothing, and fails on the fox."""

    backbones = frozenset({"tiny"})

    def __init__(self, name: str) -> None:
        self.name = name

    def search(self, query: Query, k: int) -> Retrieval:
        del k
        if "fox" in query.text:
            raise ArmError("no foxes")
        return Retrieval(steps=int(np.random.default_rng(query.seed).integers(1000)), tokens=7)


def make_job(corpus: Corpus, indexes: Path, **fields: Any) -> ScoreJob:
    """A job on the questions above, with its indexes prepared."""
    job = ScoreJob(
        questions=QUESTIONS,
        corpus=corpus,
        indexes=indexes,
        specs=SPECS,
        backbones=TINY,
        scorer=lambda _: RetrievalScorer("R@3"),
        block=2,
    )
    job = replace(job, **fields)
    prepare(Resources(corpus, indexes, job.backbones, job.specs))
    return job


def recalls(job: ScoreJob, k: int) -> np.ndarray[Any, Any]:
    """Return what a direct search of each arm gives, shape (n_questions, n_arms)."""
    have = Resources(job.corpus, job.indexes, job.backbones, job.specs)
    rows = []
    for question in job.questions:
        row = []
        for name in job.specs:
            try:
                query = replace(ask(question.text, frozenset(TINY)), seed=derive_seed(job.seed, question.id))
                found = {passage.id for passage in build_arm(name, have).search(query, k).passages}
                row.append(len(found & set(question.gold_ids)) / len(question.gold_ids))
            except ArmError:
                row.append(np.nan)
        rows.append(row)
    return np.array(rows, dtype=np.float32)


def test_blocks_hold_what_every_arm_earns_by_itself(corpus: Corpus, tmp_path: Path) -> None:
    job = make_job(corpus, tmp_path)
    worker = ScoreWorker(job)
    blocks = [worker.block(number) for number in range(job.n_blocks)]
    assert [block.scores.shape for block in blocks] == [(2, 6), (2, 6), (1, 6)]
    scores = np.concatenate([block.scores for block in blocks])
    np.testing.assert_array_equal(scores, recalls(job, 3))
    assert 0.0 < np.nanmean(scores) < 1.0


def test_a_text_of_an_arm_is_embedded_as_a_question(corpus: Corpus, tmp_path: Path) -> None:
    worker = ScoreWorker(make_job(corpus, tmp_path))
    (query,) = worker.queries(QUESTIONS[:1])
    found = worker.embed(QUESTIONS[0].text, frozenset(TINY))
    assert found.keys() == {"tiny"}
    np.testing.assert_array_equal(found["tiny"], query.embeddings["tiny"])


def test_an_unknown_cell_is_in_no_cost_and_explained(corpus: Corpus, tmp_path: Path) -> None:
    job = make_job(corpus, tmp_path)
    block = ScoreWorker(job).block(1)
    drawn = list(SPECS).index("drawn")
    assert np.isnan(block.scores[0, drawn])
    assert np.isnan(block.scores).sum() == 1
    assert block.answered.tolist() == [2, 2, 2, 2, 2, 1]
    expected = np.random.default_rng(derive_seed(0, "q4")).integers(1000)
    assert block.steps.tolist() == [0, 2, 2, 2, 2, expected]
    assert block.tokens.tolist() == [0, 0, 0, 0, 0, 7]
    assert block.problems == {drawn: "question 'q3': no foxes"}


def test_a_block_without_one_score_says_why(corpus: Corpus, tmp_path: Path) -> None:
    worker = ScoreWorker(make_job(corpus, tmp_path, specs={"drawn": SPECS["drawn"]}, block=1))
    assert not np.isnan(worker.block(1).scores).any()
    block = worker.block(2)
    assert np.isnan(block.scores).all()
    assert block.problems == {0: "question 'q3': no foxes"}
    assert (worker.block(1).problem, block.problem) == ("", "question 'q3': no foxes")


def test_a_block_comes_back_as_it_was_packed() -> None:
    scores = np.array([[0.5, np.nan], [1.0, 0.25], [0.0, 1.0]], dtype=np.float32)
    block = ScoreBlock(
        scores,
        np.array([3.0, 2.0]),
        np.array([3.0, 8.0]),
        np.array([0.0, 9.5]),
        np.array([0.0, 0.25]),
        {1: "q: “no”"},
    )
    back = ScoreBlock.unpack(block.pack())
    for field in fields(ScoreBlock):
        np.testing.assert_equal(getattr(back, field.name), getattr(block, field.name))
    assert (back.scores.dtype, back.problem) == (np.float32, "")


def test_draws_follow_from_the_question_and_the_seed(corpus: Corpus, tmp_path: Path) -> None:
    steps = [
        ScoreWorker(make_job(corpus, tmp_path, block=5, seed=seed)).block(0).steps[-1] for seed in (0, 0, 1)
    ]
    in_blocks = sum(
        ScoreWorker(make_job(corpus, tmp_path, block=1)).block(number).steps[-1] for number in range(5)
    )
    assert steps[0] == steps[1] == in_blocks != steps[2]


def test_the_language_model_judges_the_passages(corpus: Corpus, tmp_path: Path) -> None:
    best = json.dumps(dict.fromkeys(FiveScores.model_fields, 5))
    job = make_job(
        corpus, tmp_path, scorer=JudgeScorer, llm=catalog.ScriptedSpec(engine="scripted", default=best)
    )
    assert ScoreWorker(job).block(0).scores.tolist() == [[1.0] * 6] * 2


def test_what_needs_a_language_model_is_refused_without(corpus: Corpus, tmp_path: Path) -> None:
    job = make_job(corpus, tmp_path, scorer=JudgeScorer)
    with pytest.raises(
        ModelStartError, match="a language model is needed, but none is configured: set `llm`"
    ):
        ScoreWorker(job).block(0)


def test_the_language_model_is_loaded_by_the_first_prompt() -> None:
    prompt = Prompt(({"role": "user", "content": "2 + 2?"},))
    url = HttpUrl("http://127.0.0.1:1/v1")
    write = LateWriter(
        catalog.EndpointSpec(engine="openai", base_url=url, model="m", api_key_env="NO_SUCH_KEY")
    )
    with pytest.raises(ModelStartError, match=r"the language model did not start: .*NO_SUCH_KEY"):
        write(prompt)
    assert LateWriter(catalog.ScriptedSpec(engine="scripted", default="4"))(prompt)[0] == "4"


def test_every_arm_is_timed(corpus: Corpus, tmp_path: Path) -> None:
    worker = ScoreWorker(make_job(corpus, tmp_path, timed=1))
    seconds = worker.seconds(["rrf", "none"]) | worker.seconds(["bm25"])
    assert seconds.keys() == {"rrf", "none", "bm25"}
    assert all(taken > 0.0 for taken in seconds.values())


RECALL = RetrievalScorer("R@3")
OTHER_BM25 = {**SPECS, "bm25": ArmSpec(kind="bm25", params={"b": 0.5})}
OTHER_GOLD = (replace(QUESTIONS[0], gold_ids=("fox",)), *QUESTIONS[1:])


@pytest.mark.parametrize(
    ("fact", "fields"),
    [
        ("questions", {"questions": QUESTIONS[::-1]}),
        ("questions", {"questions": OTHER_GOLD}),
        ("arms", {"specs": OTHER_BM25}),
        ("arms", {"backbones": {"tiny": Backbone(model=f"hashing:{DIM}", query_prefix="query: ")}}),
        ("model tiny", {"backbones": {"tiny": Backbone(model="hashing:65")}}),
        ("language model", {"llm": catalog.ScriptedSpec(engine="scripted")}),
        ("seed", {"seed": 1}),
        ("block", {"block": 3}),
    ],
)
def test_what_changes_scores_or_blocks_changes_the_identity(
    corpus: Corpus, tmp_path: Path, fact: str, fields: dict[str, Any]
) -> None:
    job = make_job(corpus, tmp_path)
    before = job.identity(RECALL)
    assert before[fact] != replace(job, **fields).identity(RECALL)[fact]


def test_the_identity_names_corpus_and_measure(corpus: Corpus, tmp_path: Path) -> None:
    job = make_job(corpus, tmp_path)
    identity = job.identity(RECALL)
    assert (identity["corpus"], identity["measure"]) == (corpus.digest, "R@3")
    assert identity["model tiny"] == f"hashing-{DIM}-3"
    assert replace(job, timed=9).identity(RECALL) == identity


def test_the_identity_names_what_the_scorer_says(corpus: Corpus, tmp_path: Path) -> None:
    job = make_job(corpus, tmp_path)
    told = job.identity(JudgeScorer(LateWriter(None), k=3, word_budget=99)).items()
    assert told >= {("k", "3"), ("word budget", "99")}
    assert job.identity(RetrievalScorer("RR", 3)) != job.identity(RetrievalScorer("RR", 5))


def test_the_identity_follows_the_weights_of_an_arms_model(corpus: Corpus, tmp_path: Path) -> None:
    reader = tmp_path / "reader"
    reader.mkdir()
    (reader / "weights").write_text("1")
    specs = {
        **SPECS,
        "reader": ArmSpec(kind="cross_encoder", params={"arm": "bm25", "model": str(reader)}),
        "hub": ArmSpec(kind="cross_encoder", params={"arm": "bm25", "model": "owner/name"}),
    }
    job = replace(make_job(corpus, tmp_path / "indexes"), specs=specs)
    before = job.identity(RECALL)
    assert before["weights of owner/name"] == "owner/name"
    (reader / "weights").write_text("22")
    after = job.identity(RECALL)
    assert {fact for fact in before if before[fact] != after[fact]} == {f"weights of {reader}"}


def test_the_identity_follows_the_weights_of_a_language_model(corpus: Corpus, tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    job = replace(make_job(corpus, tmp_path / "indexes"), llm=catalog.EmbeddedSpec(model=str(model)))
    told = [job.identity(RECALL)["language model"]]  # not there, and perhaps not needed
    for weights in ("1", "22"):
        model.write_text(weights)
        told.append(job.identity(RECALL)["language model"])
    assert len(set(told)) == 3
    assert job.identity(RECALL)["language model"] == told[-1]


def test_a_job_waits_for_other_services_as_long_as_it_says(corpus: Corpus, tmp_path: Path) -> None:
    assert ScoreWorker(make_job(corpus, tmp_path, wait_s=3.5)).resources.wait_s == 3.5

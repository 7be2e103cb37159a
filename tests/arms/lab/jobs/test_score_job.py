"""The Ray job: the matrix of a direct computation, whatever was killed on the way."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from armwise.arms.base import ArmError, Query, Retrieval
from armwise.arms.corpus import Corpus
from armwise.arms.lab.jobs import score_job
from armwise.arms.lab.jobs.checkpoint import JobError
from armwise.arms.lab.jobs.job import derive_seed
from armwise.arms.lab.jobs.score_job import ScoreJob, ScoreWorker, score
from armwise.arms.lab.portfolio import read_matrix, score_matrix
from armwise.arms.lab.scoring import RetrievalScorer, ScoringError
from armwise.arms.models import Backbone, ModelNotFoundError
from armwise.arms.questions import Question
from armwise.arms.retrievers import ArmSpec, ArmSpecError
from tests.arms.lab.jobs.test_score_worker import QUESTIONS, SPECS, make_job, recalls

HERE = "tests.arms.lab.jobs.test_score_job"


class Diary:
    """Records what it is asked.

    Attributes:
        folder: Where `asked` is written. Where `gate` is a pipe there, the last question waits at it.
    """

    backbones: frozenset[str] = frozenset()

    def __init__(self, name: str, folder: str) -> None:
        self.name = name
        self.folder = Path(folder)

    def search(self, query: Query, k: int) -> Retrieval:
        del k
        with (self.folder / "asked").open("a") as file:
            file.write(query.text + "\n")
        if "zyzzyva" in query.text and (self.folder / "gate").exists():
            (self.folder / "gate").read_text()
        return Retrieval()

    @staticmethod
    def asked(folder: Path) -> Counter[str]:
        """Return how often each question was asked."""
        return Counter((folder / "asked").read_text().splitlines())


class Away:
    """Fails on every question."""

    backbones: frozenset[str] = frozenset()

    def __init__(self, name: str) -> None:
        self.name = name

    def search(self, query: Query, k: int) -> Retrieval:
        del query, k
        raise ArmError("it is away")


def diary_job(corpus: Corpus, folder: Path) -> ScoreJob:
    """A job with an arm that records what it is asked in the folder, one question per block."""
    specs = {**SPECS, "diary": ArmSpec(kind=f"{HERE}:Diary", params={"folder": str(folder)})}
    return make_job(corpus, folder / "indexes", specs=specs, block=1, timed=1)


def test_what_an_arm_searches_and_costs_is_a_fact_of_a_job(corpus: Corpus, tmp_path: Path) -> None:
    job = make_job(corpus, tmp_path / "indexes")
    specs = (ArmSpec(kind="bm25", corpus="docs"), ArmSpec(kind="bm25", corpus="tickets"))
    specs += (ArmSpec(kind="bm25", corpus="docs", usd=0.5),)
    assert len({replace(job, specs={"words": spec}).facts()["arms"] for spec in specs}) == 3
    elsewhere = {name: one.model_copy(update={"host": "own"}) for name, one in job.backbones.items()}
    assert replace(job, backbones=elsewhere).facts() == job.facts(), "where a backbone serves is none"


def test_a_matrix_has_the_dollars_of_searches(corpus: Corpus, tmp_path: Path) -> None:
    specs = {
        "away": ArmSpec(kind=f"{HERE}:Away", usd=4.0),
        "bm25": SPECS["bm25"].model_copy(update={"usd": 0.5}),
        "drawn": SPECS["drawn"].model_copy(update={"usd": 2.0}),
        "rrf": ArmSpec(kind="rrf", params={"arms": ["bm25", "none"]}),
        "none": SPECS["none"],
    }
    job = make_job(corpus, tmp_path / "indexes", specs=specs, timed=0)
    score(job, tmp_path / "scores", workers=1)
    matrix = read_matrix(tmp_path / "scores")
    assert matrix.arms == tuple(specs)
    assert matrix.costs("usd").tolist() == [4.0, 0.5, 2.0, 0.5, 0.0], (
        "away: as expected; drawn: where it found"
    )
    free = replace(job, specs={"none": SPECS["none"]})
    score(free, tmp_path / "free", workers=1)
    assert "usd" not in read_matrix(tmp_path / "free").table.costs


@pytest.mark.usefixtures("cluster")
@pytest.mark.slow
def test_the_matrix_is_that_of_every_arm_searched_by_itself(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score_job, "TIMED_AT_ONCE", 3)
    names = ["none", "away", "bm25", "dense", "ivf_pq", "rrf", "drawn"]
    every = {**SPECS, "away": ArmSpec(kind=f"{HERE}:Away")}
    specs = {name: every[name] for name in names}
    job = make_job(corpus, tmp_path / "indexes", specs=specs, timed=1)
    unused = {**job.backbones, "unused": Backbone(model="./nowhere")}
    told: list[tuple[str, int, int | None]] = []
    report = score(
        replace(job, backbones=unused), tmp_path / "scores", progress=lambda *news: told.append(news)
    )
    matrix, table = read_matrix(tmp_path / "scores"), read_matrix(tmp_path / "scores").table
    assert matrix.arms == tuple(specs)
    assert [(q.id, q.text, q.dataset) for q in matrix.questions] == [
        (q.id, q.text, q.dataset) for q in QUESTIONS
    ]
    np.testing.assert_array_equal(matrix.scores, recalls(job, 3).T)
    assert (table.measure, table.manifest) == ("R@3", job.identity(RetrievalScorer("R@3")))
    assert (table.specs, table.backbones) == (specs, job.backbones)
    draws = [np.random.default_rng(derive_seed(0, f"q{n}")).integers(1000) for n in (1, 2, 4, 5)]
    assert matrix.costs("steps").tolist() == [0, 1, 1, 1, 1, 1, np.mean(draws)], "away: as its kind does"
    assert matrix.costs("tokens").tolist() == [0, 0, 0, 0, 0, 0, 7]
    assert np.all(matrix.costs("seconds") > 0.0)
    assert (report.n_questions, report.resumed) == (5, 0)
    assert report.unknown == {**dict.fromkeys(specs, 0), "drawn": 1, "away": 5}
    assert report.problems == {"away": "question 'q1': it is away", "drawn": "question 'q3': no foxes"}
    assert ("scoring questions", 0, 5) in told
    assert told[-4:] == [("scoring questions", 5, 5), *(("timing arms", n, 7) for n in (3, 6, 7))]
    assert {path.name for path in tmp_path.iterdir()} == {"indexes", "scores"}

    # a second time there is nothing to do; another job is refused
    again = score(job, tmp_path / "scores")
    assert (again.resumed, again.unknown) == (5, report.unknown)
    with pytest.raises(JobError, match=r"scores was made with seed '0', .*seed '1'"):
        score(replace(job, seed=1), tmp_path / "scores")


def test_an_interrupted_job_does_nothing_again(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StoppedError(Exception):
        pass

    def stop_after_two(_what: str, done: int, _total: int | None) -> None:
        if done == 2:
            raise StoppedError

    def stop(*_: object) -> None:
        raise StoppedError

    job, output, blocks = diary_job(corpus, tmp_path), tmp_path / "scores", tmp_path / "scores.blocks"

    def files() -> dict[str, tuple[int, int]]:
        return {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in blocks.glob("*.block")}

    with pytest.raises(StoppedError):
        score(job, output, workers=1, progress=stop_after_two)
    first = files()
    assert sorted(first) == ["000000.block", "000001.block"]
    with pytest.raises(JobError, match=r"scores\.blocks was made with seed '0', .*seed '7'"):
        score(replace(job, seed=7), output, workers=1)

    with monkeypatch.context() as broken:
        broken.setattr(score_job, "write_matrix", stop)
        with pytest.raises(StoppedError):
            score(job, output, workers=1)  # stopped when all is scored and timed
    second = files()
    assert len(second) == 5
    assert {name: second[name] for name in first} == first, "what was finished is not written again"
    timed = Diary.asked(tmp_path)

    told: list[str] = []
    report = score(job, output, workers=1, progress=lambda what, *_: told.append(what))
    assert not {"scoring questions", "timing arms"}.intersection(told)
    assert Diary.asked(tmp_path) == timed
    assert (report.n_questions, report.resumed) == (5, 5)
    matrix = read_matrix(output)
    worker = ScoreWorker(job)
    whole = [worker.block(number).scores for number in range(5)]
    np.testing.assert_array_equal(matrix.scores, np.concatenate(whole).T)
    assert np.all(matrix.costs("seconds") > 0.0)
    assert not blocks.exists()


def test_questions_that_no_arm_answers_are_kept_as_unknown(corpus: Corpus, tmp_path: Path) -> None:
    job = make_job(
        corpus,
        tmp_path / "indexes",
        specs={"drawn": SPECS["drawn"]},
        block=1,
        timed=0,
        questions=QUESTIONS[:3],
    )
    report = score(job, tmp_path / "scores", workers=1)  # its last block is the one without a score
    assert report.unknown == {"drawn": 1}
    assert np.isnan(read_matrix(tmp_path / "scores").scores).tolist() == [[False, False, True]]


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"questions": ()}, ScoringError, "there are no questions"),
        ({"questions": (Question("q", "?"),)}, ScoringError, "question 'q' has no gold_ids"),
        ({"backbones": {}}, ArmSpecError, "unknown backbone 'tiny'"),
        ({"backbones": {"tiny": Backbone(model="./nowhere")}}, ModelNotFoundError, "nowhere"),
        ({"specs": {"b": ArmSpec(kind="bm52")}}, ArmSpecError, "unknown kind 'bm52'.*bm25"),
        ({"specs": {}}, score_matrix.MatrixError, "at least one arm"),
    ],
)
def test_nothing_is_begun_on_what_cannot_be_scored(
    corpus: Corpus, tmp_path: Path, fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    job = replace(make_job(corpus, tmp_path / "indexes"), **fields)
    with pytest.raises(error, match=message):
        score(job, tmp_path / "scores")
    assert [path.name for path in tmp_path.iterdir()] == ["indexes"]


def test_an_output_that_holds_something_else_is_left_alone(corpus: Corpus, tmp_path: Path) -> None:
    job = make_job(corpus, tmp_path / "indexes")
    with pytest.raises(JobError, match="indexes exists"):
        score(job, tmp_path / "indexes")

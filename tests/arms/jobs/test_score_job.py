"""The Ray job: the matrix of a direct computation, whatever was killed on the way."""

import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from arms.base import ArmError, Query, Retrieval
from arms.corpus import Corpus
from arms.jobs import worker_pool as crew
from arms.jobs.checkpoint import JobError
from arms.jobs.job import seed_of
from arms.jobs.score_job import ScoreJob, ScoreWorker, score
from arms.models import Backbone, ModelNotFoundError
from arms.portfolio import read_matrix, score_matrix
from arms.questions import Question
from arms.retrievers import ArmSpec, ArmSpecError
from arms.scoring import RetrievalScorer, ScoringError
from tests.arms.jobs.test_score_worker import QUESTIONS, SPECS, make_job, recalls

HERE = "tests.arms.jobs.test_score_job"
ROOT = Path(__file__).parents[3]
START_S = 60.0


class Diary:
    """Writes down what it is asked, and obeys: a question may stop it, or kill its process.

    Attributes:
        folder: Where `asked` is written. When `gate` is a pipe there, the last question waits at it;
            `fatal` holds how many more times the question of the fox kills.
    """

    backbones: frozenset[str] = frozenset()

    def __init__(self, name: str, folder: str) -> None:
        self.name = name
        self.folder = Path(folder)

    def search(self, query: Query, k: int) -> Retrieval:
        del k
        with (self.folder / "asked").open("a") as file:
            file.write(query.text + "\n")
        if "zyzzyva" in query.text:
            (self.folder / "gate").read_text()
        if "fox" in query.text and (left := int((self.folder / "fatal").read_text())):
            (self.folder / "fatal").write_text(str(left - 1))
            os.kill(os.getpid(), signal.SIGKILL)
        return Retrieval()

    @staticmethod
    def asked(folder: Path) -> Counter[str]:
        """Return how often each question was asked."""
        return Counter((folder / "asked").read_text().splitlines())


class Broken:
    """Has a bug, or fails on every question."""

    backbones: frozenset[str] = frozenset()

    def __init__(self, name: str, bug: bool) -> None:
        self.name = name
        self._bug = bug

    def search(self, query: Query, k: int) -> Retrieval:
        del k
        raise KeyError(query.text) if self._bug else ArmError("it is away")


class Fragile:
    """Fails on the questions that stand in a file, on all where the file is empty, on none without it."""

    backbones: frozenset[str] = frozenset()

    def __init__(self, name: str, away: str) -> None:
        self.name = name
        self._away = Path(away)

    def search(self, query: Query, k: int) -> Retrieval:
        del k
        if self._away.exists() and query.text in (self._away.read_text() or query.text):
            raise ArmError("away")
        return Retrieval()


def diary_job(corpus: Corpus, folder: Path, *, fatal: int = 0) -> ScoreJob:
    """A job with an arm that keeps a diary in the folder, a block a question, and nothing timed."""
    (folder / "fatal").write_text(str(fatal))
    specs = {**SPECS, "diary": ArmSpec(kind=f"{HERE}:Diary", params={"folder": str(folder)})}
    return make_job(corpus, folder / "indexes", specs=specs, block=1, timed=0)


def run_until_killed(corpus_folder: str, folder: str) -> None:
    """What the process does that is killed: score, with one worker, until a question waits at the gate."""
    job = diary_job(Corpus.open(Path(corpus_folder)), Path(folder))
    score(job, Path(folder) / "scores", workers=1)


@pytest.mark.usefixtures("cluster")
def test_the_matrix_is_that_of_every_arm_searched_by_itself(corpus: Corpus, tmp_path: Path) -> None:
    specs = {**SPECS, "away": ArmSpec(kind=f"{HERE}:Broken", params={"bug": False})}
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
    draws = [np.random.default_rng(seed_of(0, f"q{n}")).integers(1000) for n in (1, 2, 4, 5)]
    assert matrix.costs("steps").tolist() == [0, 1, 1, 1, 1, np.mean(draws), 1], "the last as its kind does"
    assert matrix.costs("tokens").tolist() == [0, 0, 0, 0, 0, 7, 0]
    assert np.all(matrix.costs("seconds") > 0.0)
    assert (report.n_questions, report.resumed) == (5, 0)
    assert report.unknown == {**dict.fromkeys(specs, 0), "drawn": 1, "away": 5}
    assert report.problems == {"drawn": "question 'q3': no foxes", "away": "question 'q1': it is away"}
    assert ("scoring questions", 0, 5) in told
    assert told[-2:] == [("scoring questions", 5, 5), ("timing arms", 7, 7)]
    assert {path.name for path in tmp_path.iterdir()} == {"indexes", "scores"}

    # a second time there is nothing to do; another job is refused
    again = score(job, tmp_path / "scores")
    assert (again.resumed, again.unknown) == (5, report.unknown)
    with pytest.raises(JobError, match="scores was made with seed '0', but seed '1'"):
        score(replace(job, seed=1), tmp_path / "scores")


@pytest.mark.usefixtures("cluster")
def test_a_killed_job_goes_on_where_it_was_and_ends_as_if_it_had_not_been(
    corpus: Corpus, tmp_path: Path
) -> None:
    gate, blocks = tmp_path / "gate", tmp_path / "scores.blocks"
    os.mkfifo(gate)
    corpus_folder = corpus.__reduce__()[1][0]
    code = f"import {HERE} as t; t.run_until_killed({str(corpus_folder)!r}, {str(tmp_path)!r})"
    address = ray.get_runtime_context().gcs_address  # the job joins the cluster that is there
    environment = {**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": str(ROOT)}
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, env=environment, stdout=output, stderr=output
        )
    wait_for_reader(gate, process, tmp_path / "output")
    process.kill()
    process.wait()
    kept = {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in blocks.glob("*.block")}
    assert sorted(kept) == [f"{number:06}.block" for number in range(4)]
    assert not (tmp_path / "scores").exists()

    gate.unlink()
    gate.write_text("open")
    job = diary_job(corpus, tmp_path)
    with pytest.raises(JobError, match=r"scores\.blocks was made with seed '0', but seed '7'"):
        score(replace(job, seed=7), tmp_path / "scores")
    seen: list[dict[str, tuple[int, int]]] = []

    def look(what: str, *_: int | None) -> None:
        if what == "scoring questions":
            seen.append({p.name: (p.stat().st_mtime_ns, p.stat().st_ino) for p in blocks.glob("*.block")})

    report = score(job, tmp_path / "scores", progress=look)
    assert report.resumed == 4
    assert seen[0] == kept
    assert {name: seen[-1][name] for name in kept} == kept, "what was finished is not written again"
    asked = Diary.asked(tmp_path)
    assert asked == {**{question.text: 1 for question in QUESTIONS}, QUESTIONS[4].text: 2}
    whole = [ScoreWorker(job).block(number).scores for number in range(5)]
    np.testing.assert_array_equal(read_matrix(tmp_path / "scores").scores, np.concatenate(whole).T)
    assert not blocks.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_worker_that_dies_is_replaced_until_its_block_has_killed_three(
    corpus: Corpus, tmp_path: Path
) -> None:
    (tmp_path / "gate").write_text("open")
    job = diary_job(corpus, tmp_path, fatal=4)
    with pytest.raises(JobError, match=r"questions 'q3' to 'q3': .*worker"):
        score(job, tmp_path / "scores")
    assert Diary.asked(tmp_path) == {QUESTIONS[0].text: 1, QUESTIONS[1].text: 1, QUESTIONS[2].text: 3}
    assert not (tmp_path / "scores").exists()

    report = score(job, tmp_path / "scores")
    assert report.resumed == 2, "what was finished is kept"
    assert Diary.asked(tmp_path) == {**{q.text: 1 for q in QUESTIONS}, QUESTIONS[2].text: 5}
    assert report.unknown == {**dict.fromkeys(job.specs, 0), "drawn": 1}


@pytest.mark.usefixtures("cluster")
def test_questions_that_no_arm_answers_are_kept_as_unknown(corpus: Corpus, tmp_path: Path) -> None:
    job = make_job(
        corpus,
        tmp_path / "indexes",
        specs={"drawn": SPECS["drawn"]},
        block=1,
        timed=0,
        questions=QUESTIONS[:3],
    )
    report = score(job, tmp_path / "scores")  # its last block is the one without a score
    assert report.unknown == {"drawn": 1}
    assert np.isnan(read_matrix(tmp_path / "scores").scores).tolist() == [[False, False, True]]


@pytest.mark.usefixtures("cluster")
def test_many_questions_in_a_row_that_no_arm_answers_end_the_job_and_are_asked_again(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = tmp_path / "away"
    specs = {"fragile": ArmSpec(kind=f"{HERE}:Fragile", params={"away": str(away)})}
    job = make_job(corpus, tmp_path / "indexes", specs=specs, block=1, timed=0)
    blocks = tmp_path / "scores.blocks"

    away.touch()
    with pytest.raises(JobError, match=r"nothing came of 5 questions in a row: .*'q5': away"):
        score(job, tmp_path / "scores")  # all that there are
    assert not list(blocks.glob("*.block"))
    monkeypatch.setattr(crew, "MAX_FAILED_QUESTIONS", 2)
    away.write_text(QUESTIONS[1].text + QUESTIONS[3].text + QUESTIONS[4].text)
    with pytest.raises(JobError, match=r"of 2 questions in a row: question 'q5': away"):
        score(job, tmp_path / "scores")
    assert sorted(path.stem for path in blocks.glob("*.block")) == ["000000", "000001", "000002"]

    away.unlink()
    report = score(job, tmp_path / "scores")
    assert (report.resumed, report.unknown) == (3, {"fragile": 1})
    assert np.isnan(read_matrix(tmp_path / "scores").scores).tolist() == [[False, True, False, False, False]]


@pytest.mark.usefixtures("cluster")
def test_a_cluster_without_a_free_processor_is_not_waited_for(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(corpus, tmp_path / "indexes")
    monkeypatch.setattr(crew, "FREE_WITHIN_S", 0.0)
    monkeypatch.setattr(ray, "available_resources", lambda: {"memory": 1.0})
    with pytest.raises(JobError, match=r"Ray cluster at \S+:\d+ has no free processor: .*RAY_ADDRESS"):
        score(job, tmp_path / "scores")


@pytest.mark.usefixtures("cluster")
def test_an_arm_with_a_bug_ends_the_job_with_its_error(corpus: Corpus, tmp_path: Path) -> None:
    specs = {**SPECS, "broken": ArmSpec(kind=f"{HERE}:Broken", params={"bug": True})}
    job = make_job(corpus, tmp_path / "indexes", specs=specs)
    with pytest.raises(JobError, match="questions 'q1' to 'q2': KeyError: 'Which river"):
        score(job, tmp_path / "scores")


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"questions": ()}, ScoringError, "there are no questions"),
        ({"questions": QUESTIONS + QUESTIONS[:1]}, ScoringError, "question id 'q1' stands there twice"),
        ({"questions": (Question("q", "?", ("rhine",)),)}, ScoringError, "question 'q'.*no passage 'rhine'"),
        ({"questions": (Question("q", "?"),)}, ScoringError, "question 'q' has no gold_ids"),
        ({"backbones": {}}, ArmSpecError, "unknown backbone 'tiny'"),
        ({"backbones": {"tiny": Backbone(model="./nowhere")}}, ModelNotFoundError, "nowhere"),
        ({"specs": {"b": ArmSpec(kind="bm52")}}, ArmSpecError, "unknown kind 'bm52'.*bm25"),
        (
            {"specs": {"question": ArmSpec(kind="bm25")}},
            score_matrix.MatrixError,
            "no arm can be called 'question'",
        ),
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
    with pytest.raises(JobError, match="indexes exists, and is no output of such a job"):
        score(job, tmp_path / "indexes")


def wait_for_reader(pipe: Path, process: "subprocess.Popen[bytes]", output: Path) -> None:
    """Return once another process has opened the pipe to read, and leave it waiting there."""
    for _ in range(int(START_S / 0.1)):
        try:
            os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)  # left open: closing it would let the reader go on
        except OSError:
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError(output.read_text()) from None
        return
    raise AssertionError(f"nobody came to {pipe} within {START_S:g} s")

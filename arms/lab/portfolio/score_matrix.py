"""The score of every arm on every question, NaN if unknown.

    blocks of questions --write_matrix--> questions.jsonl  id, text and data set of each question
                                          scores.npy       float32, a row per question, a column per arm
                                          arms.json        the arms, their costs, the measure
                                          chances.npy      of a log: probability that each score was known
                                          manifest.json    the identity of the scores, the files' digests
                        <--read_matrix---

On disk a row is a question, so that a job can append; in memory a row is an arm, so that selection reads
memory sequentially.
"""

import shutil
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from armwise.arms import manifest
from armwise.arms.indexes import build_once
from armwise.arms.manifest import DamagedFileError
from armwise.arms.models import Backbone
from armwise.arms.questions import Question
from armwise.arms.retrievers import ArmSpec
from armwise.arms.suggestions import did_you_mean

Scores = NDArray[np.float32]

QUESTIONS, SCORES, ARMS, CHANCES = "questions.jsonl", "scores.npy", "arms.json", "chances.npy"

AGAIN = "delete it and make the scores again (`armwise lab score`)"


class MatrixError(ValueError):
    """Scores cannot be written or read."""


Blocks = Iterable[tuple[Sequence[Question], Scores]]
"""Questions with their scores, shape (n_block, n_arms)."""


@dataclass(frozen=True, slots=True)
class MatrixArms:
    """The arms of a matrix, their costs and the measure.

    Attributes:
        specs: The arms by name, in the order of their columns.
        backbones: Their backbones.
        costs: Mean cost per question by kind of cost, such as `steps` or `seconds`, and by arm.
        measure: Measure of the scores, such as `R@4`.
        manifest: Identity of the scores, such as digests of the corpus and of the models.

    Raises:
        MatrixError: There are no arms, or a cost is invalid or of another arm.
    """

    specs: Mapping[str, ArmSpec]
    backbones: Mapping[str, Backbone]
    costs: Mapping[str, Mapping[str, float]]
    measure: str
    manifest: Mapping[str, str]

    def __post_init__(self) -> None:
        if not self.specs:
            raise MatrixError("a score matrix needs at least one arm")
        for cost, by_arm in self.costs.items():
            for arm in self.specs.keys() ^ by_arm.keys():
                lacks = "an arm without one" if arm in self.specs else "not an arm of the matrix"
                raise MatrixError(f"cost {cost!r}: {arm!r} is {lacks}")
            for arm, value in by_arm.items():
                if not 0.0 <= value < np.inf:
                    raise MatrixError(
                        f"cost {cost!r} of arm {arm!r} is {value}; it must be finite and not negative"
                    )

    def only(self, arms: Collection[str]) -> "MatrixArms":
        """Return the table of these arms, in the same order."""
        return replace(
            self,
            specs={arm: spec for arm, spec in self.specs.items() if arm in arms},
            costs={
                cost: {arm: value for arm, value in by_arm.items() if arm in arms}
                for cost, by_arm in self.costs.items()
            },
        )


@dataclass(frozen=True, slots=True)
class ScoreMatrix:
    """The scores of all arms on all questions.

    Attributes:
        questions: Ids, texts and data sets of the questions.
        table: The arms.
        scores: In [0, 1], NaN where unknown, shape (n_arms, n_questions), C-contiguous.
        chances: Probability that each score would be known, in [0, 1], of the same shape; None: it was
            certain which scores would be known.

    Raises:
        MatrixError: A wrong shape, a duplicate id, or a score outside of [0, 1].
    """

    questions: tuple[Question, ...]
    table: MatrixArms
    scores: Scores
    chances: Scores | None = None

    def __post_init__(self) -> None:
        expected = (len(self.table.specs), len(self.questions))
        if self.chances is not None and self.chances.shape != expected:
            raise MatrixError(f"chances of shape {expected} were expected, got {self.chances.shape}")
        if self.scores.shape != expected or not self.scores.flags.c_contiguous:
            raise MatrixError(f"scores of shape {expected} in C order were expected, got {self.scores.shape}")
        if not self.questions:
            raise MatrixError("a score matrix needs at least one question")
        _check_ids(self.questions, set())
        for arm, row in zip(self.arms, self.scores, strict=True):
            _check_range(row, arm, self.questions)

    @property
    def arms(self) -> tuple[str, ...]:
        """The names of the arms, in the order of the rows."""
        return tuple(self.table.specs)

    def costs(self, name: str) -> NDArray[np.float64]:
        """Return a kind of cost by arm, shape (n_arms,). Raises MatrixError."""
        if name not in self.table.costs:
            raise MatrixError(f"no cost {name!r} was measured{did_you_mean(name, self.table.costs)}")
        return np.array([self.table.costs[name][arm] for arm in self.arms])


def write_matrix(folder: Path, arms: MatrixArms, blocks: Blocks, chances: Scores | None = None) -> None:
    """Write a score matrix into a new folder, atomically.

    Args:
        folder: Must not exist.
        arms: The arms, in the order of the columns of the blocks.
        blocks: Questions with their scores, each of shape (n_block, n_arms), NaN where unknown.
        chances: Probability that each score would be known, shape (n_questions, n_arms); None: it was
            certain which scores would be known.

    Raises:
        MatrixError: The folder exists, there are no questions, or a block has a wrong shape, a duplicate id
            or a score outside [0, 1].
    """
    if not build_once.publish(
        folder, arms.manifest, partial(_write, arms=arms, blocks=blocks, chances=chances)
    ):
        raise MatrixError(f"{folder} exists already; scores are never overwritten")


def read_arms(folder: Path) -> MatrixArms:
    """Read the arms of a matrix without their scores. Raises MatrixError."""
    try:
        table, identity = orjson.loads(manifest.read(folder, ARMS)), manifest.identify(folder)
        return TypeAdapter(MatrixArms).validate_python({**table, "manifest": identity})
    except FileNotFoundError as error:
        raise MatrixError(
            f"{folder} has no score matrix: {error.filename} is missing; run `armwise lab score` to write one"
        ) from None
    except DamagedFileError as error:
        raise MatrixError(f"{folder}: {error}; {AGAIN}") from None
    except (OSError, TypeError, orjson.JSONDecodeError, ValidationError) as error:
        raise MatrixError(f"cannot read the arms in {folder}: {error}") from error


def read_matrix(folder: Path, arms: Collection[str] | None = None) -> ScoreMatrix:
    """Read a matrix, or some of its arms, into one array.

    Raises:
        MatrixError: A file is missing or damaged, the files do not match, or an arm is missing.
    """
    whole = read_arms(folder)
    if problems := manifest.problems(folder, contents=True):
        raise MatrixError(f"{folder}: {', '.join(problems)}; {AGAIN}")
    for arm in arms or ():
        if arm not in whole.specs:
            raise MatrixError(f"{folder} has no arm {arm!r}{did_you_mean(arm, whole.specs)}")
    table = whole if arms is None else whole.only(arms)
    columns = [at for at, name in enumerate(whole.specs) if name in table.specs]
    try:
        with (folder / QUESTIONS).open("rb") as lines:
            questions = tuple(
                Question(id_, text, dataset=sys.intern(dataset))
                for id_, text, dataset in map(orjson.loads, lines)
            )
        scores = _read_columns(folder / SCORES, len(whole.specs), columns)
        chances = (
            _read_columns(path, len(whole.specs), columns) if (path := folder / CHANCES).exists() else None
        )
    except (OSError, ValueError, TypeError) as error:
        raise MatrixError(f"cannot read the scores in {folder}: {error}") from error
    return ScoreMatrix(questions, table, scores, chances)


def _read_columns(path: Path, n_arms: int, columns: Sequence[int]) -> Scores:
    """Read columns of an array of shape (n_questions, n_arms) as rows. Raises ValueError."""
    array: Scores = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.ndim != 2 or array.shape[1] != n_arms:
        raise ValueError(f"{path.name} has shape {array.shape}, and {ARMS} {n_arms} arms")
    rows = np.empty((len(columns), len(array)), dtype=np.float32)
    for row, column in zip(rows, columns, strict=True):
        row[:] = array[:, column]
    return rows


def _write(folder: Path, arms: MatrixArms, blocks: Blocks, chances: Scores | None) -> None:
    document = TypeAdapter(MatrixArms).dump_python(arms, mode="json", exclude={"manifest"})
    (folder / ARMS).write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    if chances is not None:
        np.save(folder / CHANCES, np.asarray(chances, dtype=np.float32))
    n_questions = 0
    try:
        with (folder / QUESTIONS).open("wb") as lines, (folder / SCORES).open("wb") as file:
            _write_header(file, (0, len(arms.specs)))
            for questions, scores in _check_blocks(blocks, arms):
                lines.writelines(orjson.dumps([q.id, q.text, q.dataset]) + b"\n" for q in questions)
                file.write(scores.tobytes())
                n_questions += len(questions)
            file.seek(0)
            _write_header(file, (n_questions, len(arms.specs)))
    except BaseException:
        shutil.rmtree(folder)
        raise


def _write_header(file: BinaryIO, shape: tuple[int, int]) -> None:
    """Write the head of an npy file, which NumPy pads so that the first dimension can be written again."""
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})


def _check_blocks(blocks: Blocks, arms: MatrixArms) -> Blocks:
    """Check the blocks, and yield those with questions. Raises MatrixError."""
    ids: set[str] = set()
    for questions, given in blocks:
        scores = np.asarray(given, dtype=np.float32)
        if scores.shape != (len(questions), len(arms.specs)):
            raise MatrixError(
                f"a block of {len(questions)} questions and {len(arms.specs)} arms "
                f"has scores of shape {scores.shape}"
            )
        _check_ids(questions, ids)
        for arm, column in zip(arms.specs, scores.T, strict=True):
            _check_range(column, arm, questions)
        if questions:
            yield questions, scores
    if not ids:
        raise MatrixError("a score matrix needs at least one question")


def _check_ids(questions: Sequence[Question], ids: set[str]) -> None:
    """Add the ids of questions to `ids`. Raises MatrixError for a duplicate."""
    for question in questions:
        if question.id in ids:
            raise MatrixError(f"question id {question.id!r} occurs twice")
        ids.add(question.id)


def _check_range(scores: Scores, arm: str, questions: Sequence[Question]) -> None:
    """Check that an arm's scores, shape (n_questions,), are NaN or in [0, 1]. Raises MatrixError."""
    if not len(scores) or not (np.fmin.reduce(scores) < 0.0 or np.fmax.reduce(scores) > 1.0):
        return
    at = int(np.flatnonzero((scores < 0.0) | (scores > 1.0))[0])
    raise MatrixError(
        f"arm {arm!r} scores {scores[at]:g} on question {questions[at].id!r}; a score must be in [0, 1], "
        "or NaN"
    )

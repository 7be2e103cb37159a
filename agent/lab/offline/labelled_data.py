"""Training data of models: outcomes and score matrices, read as one table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console

from armwise.agent.config import AppConfig
from armwise.agent.config.warm_start import QUESTION_LINE
from armwise.agent.lab.routers import utilities
from armwise.agent.lab.simulation import load_questions
from armwise.agent.routers import RouterError, dataset
from armwise.arms import manifest
from armwise.arms.base import Passage, Progress
from armwise.arms.corpus import Corpus, ingest_all
from armwise.arms.lab.portfolio import (
    MatrixArms,
    Outcomes,
    read_matrix,
    read_outcomes,
    score_matrix,
    write_matrix,
)
from armwise.arms.llm import prompts
from armwise.arms.models import Backbone, digest_file
from armwise.arms.questions import Question
from armwise.arms.retrievers import ArmGraph, ArmSpec, catalog
from armwise.arms.suggestions import did_you_mean

OF_LOG = " of the log"
"""Suffix of the measure of a matrix that was made from the log."""

PLAIN: Any = {"markup": False, "highlight": False, "soft_wrap": True}

Rows = tuple[tuple[Any, ...], ...]


class LabelledQuestions(BaseModel):
    """Outcomes of arms on questions, and the configuration that they were measured with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: AppConfig = Field(description="Configuration with the backbone, the corpus and its vectors.")
    outcomes: tuple[Path, ...] = Field(
        min_length=1,
        description="Outcomes of arms, from `armwise lab label`, or score matrices, from `armwise lab "
        "score`.",
    )
    queries: Path | None = Field(default=None, description=f"JSON lines, plain or .gz, each {QUESTION_LINE}.")

    def read(self) -> Outcomes:
        """Read the outcomes. Raises ValueError."""
        return read_labelled(self.outcomes, [] if self.queries is None else read_questions(self.queries))

    def digests(self) -> dict[str, str]:
        """Return the digest of each file and folder, by its path."""
        return {str(path): digest_file(path) for path in (*self.outcomes, self.queries) if path}


def read_questions(queries: Path) -> list[Question]:
    """Return the questions of a file, as arms are scored on them. Raises QuestionsError."""
    return [
        Question(q.id, q.question, q.gold_ids, q.answers, q.dataset or "") for q in load_questions(queries)
    ]


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The passages of arms on questions.

    Attributes:
        rankings: Passages of each arm on each question; passages of another corpus are left out.
        corpus: The corpus, if the outcomes have passages.
        foreign: Number of passages of another corpus.
    """

    rankings: list[list[list[Passage]]]
    corpus: Corpus | None
    foreign: int

    @classmethod
    def look_up(cls, outcomes: Outcomes, config: AppConfig, on_progress: Progress) -> "Retrieved":
        """Look up the passages of outcomes.

        Args:
            outcomes: Outcomes with the ids of passages.
            config: Configuration with defaults resolved, which has the corpus.
            on_progress: Called with the progress of ingesting the corpus, if that is needed.

        Raises:
            RouterError: All passages are of another corpus.
            CorpusError: The corpus cannot be read.
        """
        ids = sorted({name for row in outcomes.passages for ranking in row for name in ranking or ()})
        if not ids:
            return cls([[[] for _ in row] for row in outcomes.passages], None, 0)
        corpus = ingest_all(config.corpus_sources, progress=on_progress)
        positions = corpus.find_positions(ids)
        if not positions:
            raise RouterError(
                f"none of the {len(ids):,} passages of the outcomes, such as {ids[0]!r}, is in corpus "
                f"{' or '.join(map(repr, config.corpus_names))}"
            )
        passages = {passage.id: passage for passage in corpus.passages(positions.values())}
        rankings = [
            [[passages[name] for name in ranking or () if name in passages] for ranking in row]
            for row in outcomes.passages
        ]
        return cls(rankings, corpus, len(ids) - len(positions))


def print_foreign(n: int, config: AppConfig, console: Console) -> None:
    """Print the number of passages of another corpus, if there are any."""
    if n:
        corpora = " or ".join(map(repr, config.corpus_names))
        console.print(f"{n:,} passages not of corpus {corpora} count as not found", **PLAIN)


def read_labelled(paths: Sequence[Path], questions: Sequence[Question] = ()) -> Outcomes:
    """Read outcomes of arms on questions, from one or more places.

    Args:
        paths: Files of outcomes, folders that `armwise lab label` wrote, or folders that `armwise lab score`
            wrote, whose score is named by its measure.
        questions: The questions, for outcomes without their texts.

    Raises:
        OutcomesError: Outcomes cannot be read.
        MatrixError: A score matrix cannot be read.
        RouterError: Two folders contradict each other on a question, or on an arm and a question.
    """
    return join_outcomes([read_place(path, questions) for path in paths])


def read_place(
    path: Path, questions: Sequence[Question] = (), arms: Mapping[str, ArmSpec] | None = None
) -> Outcomes:
    """Read outcomes of arms on questions, from one place.

    Args:
        path: A file or folder, as in `read_labelled`.
        questions: The questions, for outcomes without their texts.
        arms: Expected descriptions of arms, compared with those in the folder, if it has any.

    Raises:
        OutcomesError: Outcomes cannot be read.
        MatrixError: A score matrix cannot be read.
        RouterError: The description of an arm differs.
    """
    if not any((path / name).exists() for name in (score_matrix.ARMS, score_matrix.SCORES)):
        return read_outcomes(path, questions)
    matrix = read_matrix(path)
    for arm, spec in matrix.table.specs.items():
        if arms is not None and arm in arms and not catalog.are_equivalent(spec, arms[arm]):
            raise RouterError(f"arm {arm!r} is another in {path} than in the configuration")
    return utilities.to_outcomes(matrix, matrix.table.measure.removesuffix(OF_LOG))


def write_scores(
    outcomes: Outcomes,
    measure: str,
    specs: Mapping[str, ArmSpec],
    backbones: Mapping[str, Backbone],
    folder: Path,
    source: str,
) -> MatrixArms:
    """Write a score of outcomes as a matrix, for the arms with a spec, and return its arms.

    Args:
        outcomes: Outcomes of arms on questions.
        measure: Name of a score in the outcomes.
        specs: Arms by name, and their members.
        backbones: Sentence encoders by name.
        folder: Folder of the matrix; must not hold another matrix.
        source: Origin of the outcomes.

    Raises:
        RouterError: The outcomes lack this score, or no arm of the outcomes has a spec.
        MatrixError: The folder holds another matrix.
    """
    if measure not in outcomes.scores:
        raise RouterError(f"no label has a score {measure!r}{did_you_mean(measure, outcomes.scores)}")
    arms = [arm for arm in outcomes.arms if arm in specs]
    if not arms:
        raise RouterError(f"no labelled arm has a known spec: {', '.join(outcomes.arms)}")
    subset = select_arms(outcomes, dataset.positions(outcomes.arms, arms))
    every = {**{arm: specs[arm] for arm in arms}, **ArmGraph(specs).closure(*arms)}
    parts = len(every) - len(arms)  # parts of arms, which were not run themselves, come last
    costs = {
        name: dict(zip(every, [*values.mean(axis=0).tolist(), *[0.0] * parts], strict=True))
        for name, values in subset.costs.items()
        if not np.isnan(values).any()
    }
    scores = np.pad(subset.scores[measure].astype(np.float32), ((0, 0), (0, parts)), constant_values=np.nan)
    table = MatrixArms(every, dict(backbones), costs, measure, {"source": source})
    write_matrix(folder, table, [(subset.questions, scores)])
    return table


def find_writing(paths: Sequence[Path]) -> prompts.Writing | None:
    """Return the settings with which the answers of these folders were written; None: unrecorded.

    Raises:
        RouterError: The folders differ, or a record is damaged.
    """
    writings = [_read_writing(path) for path in paths]
    records = [writing for writing in writings if writing is not None]
    if len(records) < len(writings):
        return None
    first, *others = records
    for path, other in zip(paths[1:], others, strict=True):
        if other != first:
            raise RouterError(
                f"the answers in {paths[0]} were written with {_describe(first)}, but the answers in "
                f"{path} with {_describe(other)}: a router that compares answers needs the same settings "
                "in all folders"
            )
    return first


def _read_writing(folder: Path) -> prompts.Writing | None:
    if not (folder / manifest.MANIFEST).exists():
        return None
    try:
        facts = {name: str(value) for name, value in manifest.identify(folder).items()}
        return prompts.Writing.from_facts(facts) if facts.keys() >= {"form"} else None
    except (ValueError, KeyError, TypeError) as error:
        raise RouterError(
            f"{folder / manifest.MANIFEST} is damaged: {error!r}; without it, it is unknown how the answers "
            "were written"
        ) from None


def _describe(writing: prompts.Writing) -> str:
    return ", ".join(f"{fact} {value}" for fact, value in writing.facts.items())


def join_outcomes(outcomes: Sequence[Outcomes]) -> Outcomes:
    """Join outcomes by the ids of questions and the names of arms; gaps are NaN or None.

    Raises:
        RouterError: An id has two texts, or an arm has two outcomes on a question.
    """
    if len(outcomes) == 1:
        return outcomes[0]
    questions = _questions(outcomes)
    arms = tuple(dict.fromkeys(arm for part in outcomes for arm in part.arms))
    row = {name: number for number, name in enumerate(questions)}
    parts = []
    count = np.zeros((len(questions), len(arms)), dtype=np.intp)
    for part in outcomes:
        at = np.ix_([row[question.id] for question in part.questions], [arms.index(arm) for arm in part.arms])
        parts.append(_OutcomePart(part, at, _find_known(part)))
        count[at] += parts[-1].known
    if (count > 1).any():
        twice, arm = np.argwhere(count > 1)[0].tolist()
        raise RouterError(f"arm {arms[arm]!r} on question {list(questions)[twice]!r} stands in two places")
    return Outcomes(
        tuple(questions.values()),
        arms,
        _numbers([(part, part.outcomes.scores) for part in parts], count.shape),
        _numbers([(part, part.outcomes.costs) for part in parts], count.shape),
        _things([(part, part.outcomes.passages) for part in parts], count.shape),
        _things([(part, part.outcomes.answers) for part in parts], count.shape),
    )


def select_arms(outcomes: Outcomes, at: Sequence[int]) -> Outcomes:
    """Return the outcomes of the arms with these indices."""
    return Outcomes(
        outcomes.questions,
        tuple(outcomes.arms[arm] for arm in at),
        {name: values[:, at] for name, values in outcomes.scores.items()},
        {name: values[:, at] for name, values in outcomes.costs.items()},
        tuple(tuple(row[arm] for arm in at) for row in outcomes.passages),
        tuple(tuple(row[arm] for arm in at) for row in outcomes.answers),
    )


@dataclass(frozen=True, slots=True)
class _OutcomePart:
    """Outcomes, their positions in the joined table, and the mask of the known ones."""

    outcomes: Outcomes
    at: tuple[NDArray[np.intp], ...]
    known: NDArray[np.bool_]


def _questions(outcomes: Sequence[Outcomes]) -> dict[str, Question]:
    """Return all questions by id. Raises RouterError if an id has two texts."""
    questions: dict[str, Question] = {}
    for question in (question for part in outcomes for question in part.questions):
        text = questions.setdefault(question.id, question).text
        if text != question.text:
            raise RouterError(f"{question.id!r} is {question.text!r} in one place, and {text!r} in another")
    return questions


def _numbers(
    parts: Sequence[tuple[_OutcomePart, Mapping[str, dataset.Floats]]], shape: tuple[int, int]
) -> dict[str, dataset.Floats]:
    whole: dict[str, dataset.Floats] = {}
    for part, table in parts:
        for name, values in table.items():
            mine = whole.setdefault(name, np.full(shape, np.nan))
            mine[part.at] = np.where(part.known, values, mine[part.at])
    return whole


def _things(parts: Sequence[tuple[_OutcomePart, Rows]], shape: tuple[int, int]) -> Rows:
    whole = np.full(shape, None, dtype=object)
    for part, table in parts:
        rows, columns = part.at[0].ravel(), part.at[1].ravel()
        for i, j in np.argwhere(part.known).tolist():
            whole[rows[i], columns[j]] = table[i][j]
    return tuple(map(tuple, whole))


def _find_known(outcomes: Outcomes) -> NDArray[np.bool_]:
    """Return whether each arm has any known value on each question, shape (n_questions, n_arms)."""
    is_known = np.array([[ids is not None for ids in row] for row in outcomes.passages])
    for values in (*outcomes.scores.values(), *outcomes.costs.values()):
        is_known |= ~np.isnan(values)
    return is_known

"""A trained cascade in a folder: its routers, and the facts of its training.

cascade.json           the facts of its training, and calibrations
stage-<n>.answers      the router of the answers of a stage, from 1
stage-<n>.gain         the router of what going on gains
relevance.model        the relevance model, if it reads one
manifest.json          size and digest of each of these (`armwise.arms.manifest`)
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from armwise.agent.lab.routers.cascade.fitted import Cascade, CascadeSpec, StageModel
from armwise.agent.lab.routers.cascade.trees import AnswerTrees, GainTrees
from armwise.agent.routers.dataset import RouterError
from armwise.agent.routers.saved import AGAIN, check_digest, digest_router, read_file, write_files
from armwise.arms.llm import prompts
from armwise.arms.relevance import RelevanceError, RelevanceModel

ABOUT, RELEVANCE = "cascade.json", "relevance.model"


class CalibrationKnots(BaseModel):
    """Knots of the probability of the best answer of a stage."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scores: tuple[float, ...] = Field(min_length=1)
    probabilities: tuple[float, ...] = Field(min_length=1)


class CascadeFacts(BaseModel):
    """The facts of a cascade's training.

    Attributes:
        format: Version of the folder.
        spec: Stages of the cascade, and how it was fitted.
        calibrations: Calibrations of each stage.
        digests: Digests of the files of its routers, by name.
        k: Most passages of an arm.
        corpus: Digest of the corpus of these passages, if there were any.
        writing: How the answers were written, if known.
        utility: The utility by the reward.
        inputs: Digests of the files that it was trained on, by path.
        questions: Number of training questions.
        held_out: Results on held-out questions, if it was evaluated.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    spec: CascadeSpec
    calibrations: tuple[CalibrationKnots, ...]
    digests: dict[str, str]
    k: int = Field(ge=0)
    corpus: str | None
    writing: prompts.Writing | None
    utility: dict[str, Any]
    inputs: dict[str, str]
    questions: int
    held_out: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class TrainedCascade:
    """A fitted cascade, and the facts of its training."""

    cascade: Cascade
    about: CascadeFacts


def name_files(cascade: Cascade) -> dict[str, bytes]:
    """Return the routers of a cascade by the names of their files."""
    files = {}
    for number, model in enumerate(cascade.models, start=1):
        files[f"stage-{number}.answers"] = model.answers.save()
        if model.gain is not None:
            files[f"stage-{number}.gain"] = model.gain.save()
    if cascade.relevance is not None:
        files[RELEVANCE] = cascade.relevance.save()
    return files


def write_cascade(folder: Path, cascade: Cascade, **facts: Any) -> TrainedCascade:
    """Write a cascade, replacing another one in the folder, and return it with the facts of its training.

    Args:
        folder: The folder, which is made if missing.
        cascade: The fitted cascade.
        facts: The fields of `CascadeFacts` that the cascade does not determine.
    """
    files = name_files(cascade)
    about = CascadeFacts(
        spec=cascade.spec,
        calibrations=tuple(
            CalibrationKnots(
                scores=tuple(model.scores.tolist()), probabilities=tuple(model.probabilities.tolist())
            )
            for model in cascade.models
        ),
        digests={name: digest_router(saved) for name, saved in files.items()},
        **facts,
    )
    document = orjson.dumps(about.model_dump(mode="json"), option=orjson.OPT_INDENT_2)
    write_files(folder, {**files, ABOUT: document})
    return TrainedCascade(cascade, about)


def read_cascade(folder: Path) -> TrainedCascade:
    """Read a cascade.

    Raises:
        RouterError: It is missing, damaged or of another version, or a digest differs.
    """
    folder = folder.expanduser()
    try:
        about = CascadeFacts.model_validate_json(read_file(folder, ABOUT))
        models = [_stage(folder, about, number) for number in range(len(about.spec.stages))]
        relevance = RelevanceModel.load(_read(folder, about, RELEVANCE)) if about.spec.relevance else None
    except OSError as error:
        raise RouterError(
            f"{folder} holds no trained cascade: {error}; `armwise lab train --model cascade` writes one"
        ) from None
    except (ValidationError, IndexError, RelevanceError) as error:
        raise RouterError(f"{folder / ABOUT} is damaged, or of another version: {error}; {AGAIN}") from None
    return TrainedCascade(Cascade(about.spec, tuple(models), relevance), about)


def _stage(folder: Path, about: CascadeFacts, number: int) -> StageModel:
    answers = AnswerTrees().load(_read(folder, about, f"stage-{number + 1}.answers"))
    is_last = number + 1 == len(about.spec.stages)
    gain = None if is_last else GainTrees().load(_read(folder, about, f"stage-{number + 1}.gain"))
    knots = about.calibrations[number]
    return StageModel(answers, np.array(knots.scores), np.array(knots.probabilities), gain)


def _read(folder: Path, about: CascadeFacts, name: str) -> bytes:
    """Return the content of a file, checked against its digest. Raises RouterError."""
    saved = read_file(folder, name)
    check_digest(saved, about.digests.get(name), str(folder / name))
    return saved

"""The common parts of training any model: its data, its output, and its report.

outcomes --> labels --fit--> model --> figures on held-out questions
                '------fit-----------> the model that is kept, of all questions

router_training     learns the utility of each arm; served by `router: {path: FOLDER}`, or by an arm of kind
                    `ensemble`. Out-of-fold scores are saved with it
relevance_training  learns which passages are gold; served by an arm of kind `learned_fusion`
cascade_training    learns at which stage an answer is good enough; served by an arm of kind `cascade`
"""

import math
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import yaml
from pydantic import BaseModel, Field, ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from armwise.agent.lab.offline.labelled_data import PLAIN, LabelledQuestions
from armwise.agent.lab.routers import cross_validation
from armwise.agent.routers import RouterError, TooLittleError
from armwise.arms.llm import prompts

S = TypeVar("S", bound=BaseModel)


class TrainingData(LabelledQuestions):
    """Training data of a model, and its output."""

    held_out: float = Field(
        default=0.2, ge=0, lt=1, description="Share of the questions to validate on; 0 for none."
    )
    seed: int = Field(default=0, ge=0, description="Seed that draws the held-out questions.")
    output: Path = Field(description="Folder of the model. An earlier one is replaced.")


class FoldedData(TrainingData):
    """Training data of a model that may be cross-validated."""

    arms: tuple[str, ...] = Field(
        default=("*",),
        min_length=1,
        description="Choose only among arms that match this pattern; by default all. The model does "
        "not see the others.",
    )
    folds: int | None = Field(
        default=None,
        ge=2,
        description="Validate by so many folds instead of one held-out part. A warm start with this "
        "router needs the folds of its questions.",
    )

    def parts(self, texts: Sequence[str]) -> list[tuple[cross_validation.Rows, cross_validation.Rows]]:
        """Return (training, held-out) indices of questions; equal texts stay together. Raises RouterError."""
        if self.folds is not None:
            if self.folds > (n := len(set(texts))):
                raise TooLittleError(f"{n} questions are too few for {self.folds} folds")
            return cross_validation.folds(texts, self.folds, self.seed)
        if self.held_out == 0.0:
            return []
        held_out = cross_validation.draw_part(texts, self.held_out, self.seed)
        if held_out.all() or not held_out.any():
            n = len(set(texts))
            raise TooLittleError(
                f"{n} questions cannot be split so that {self.held_out:g} of them is held out"
            )
        return [(np.flatnonzero(~held_out), np.flatnonzero(held_out))]


def read_spec(spec: type[S], name: str, file: Path) -> S:
    """Read a spec from a YAML file; messages call it `name`. Raises RouterError."""
    try:
        return spec.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValidationError) as error:
        raise RouterError(f"{file} describes no {name}: {error}") from None


class Results(Protocol):
    """Figures of a model on held-out questions."""

    def table(self) -> Table:
        """Return the results as a table."""

    def conclusion(self) -> str:
        """Return a summary."""


def print_results(results: Results | None, console: Console, missing: str = "") -> None:
    """Print the figures of a model, or why there are none."""
    if results is None:
        console.print(f"not validated: {missing}", **PLAIN)
    else:
        console.print(results.table())
        console.print(Text(results.conclusion()), **PLAIN)


def check_output(folder: Path) -> None:
    """Check that an output can be a folder, before training starts. Raises RouterError."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        why = "is not a folder" if not there.is_dir() else "cannot be written to"
        raise RouterError(f"{folder} cannot hold a model, as {there} {why}: choose another output")


def print_arm(kind: str, params: dict[str, Any], writing: prompts.Writing | None, console: Console) -> None:
    """Print the arm that serves a model, as configuration in one line."""
    if writing is not None:
        params |= asdict(writing) | {"form": writing.form.value}
    arm = {"kind": kind, "params": params}
    line = yaml.safe_dump(arm, default_flow_style=True, sort_keys=False, width=math.inf).strip()
    console.print(f"serve it as an arm   {line}", **PLAIN)

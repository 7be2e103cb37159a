"""Train a cascade on the outcomes of arms, validate it on held-out questions, and save it to a folder."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.console import Console

from agent.config import AppConfig
from agent.offline.labelled_data import of_arms, read_labelled, written
from agent.offline.score import read_questions
from agent.offline.train_router import PLAIN, check_output, flow
from agent.routers import RouterError, cascade, dataset
from agent.routers import utility as router_utility
from agent.simulation import SHAPE
from arms.base import Passage, Progress
from arms.corpus import ingest
from arms.models import digest_of
from arms.portfolio import Outcomes

BLOCK = 256
"""Questions between two steps of the progress."""


class CascadeTraining(BaseModel):
    """What a cascade is trained on, and for which utility."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: AppConfig = Field(description="Names the corpus.")
    outcomes: tuple[Path, ...] = Field(min_length=1, description="Outcomes of arms, from `armwise label`.")
    queries: Path | None = Field(default=None, description=f"JSON lines, plain or .gz, each {SHAPE}.")
    spec: cascade.CascadeSpec = Field(description="Stages, routers and stopping rule of the cascade.")
    utility: router_utility.Utility = Field(
        default=router_utility.Utility(),
        description="Utility of an answer; its costs are those of all asked.",
    )
    held_out: float = Field(
        default=0.2, ge=0, lt=1, description="Part of the questions to validate on; 0 for none."
    )
    seed: int = Field(default=0, ge=0, description="Seed that draws the held-out questions.")
    output: Path = Field(description="Folder of the cascade; one that is there is replaced.")


def read_spec(file: Path) -> cascade.CascadeSpec:
    """Return the cascade that a YAML file describes. Raises RouterError."""
    try:
        return cascade.CascadeSpec.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValidationError) as error:
        raise RouterError(f"{file} describes no cascade: {error}") from None


def run(settings: CascadeTraining, console: Console, on_progress: Progress) -> cascade.TrainedCascade:
    """Train a cascade, write it to `settings.output`, print its validation, and return it.

    Args:
        settings: What to train.
        console: Where the report goes.
        on_progress: Called with the progress.

    Raises:
        ValueError: Outcomes, questions, stages, utility or output do not fit; a subclass of it says which.
        CorpusError: The corpus cannot be read.
    """
    check_output(settings.output)
    spec, writing = settings.spec, written(settings.outcomes)
    outcomes = _outcomes(settings.outcomes, settings.queries, spec, settings.utility, console)
    labels, corpus = _labels(outcomes, spec, settings.utility, settings.config, console, on_progress)
    held_out = cascade.part_of(labels.features[0].texts, settings.held_out, settings.seed)
    validated = None
    if held_out.any() and not held_out.all():
        fitted = cascade.fit_cascade(spec, labels.rows(np.flatnonzero(~held_out)), on_progress)
        rest = labels.rows(np.flatnonzero(held_out))
        validated = cascade.validate_cascade(fitted, rest, outcomes.only(held_out))
    fitted = cascade.fit_cascade(spec, labels, on_progress)
    trained = cascade.write_cascade(
        settings.output,
        fitted,
        k=max(len(ids or ()) for row in outcomes.passages for ids in row),
        corpus=corpus,
        writing=writing,
        utility=settings.utility.model_dump(mode="json"),
        inputs={str(path): digest_of(path) for path in (*settings.outcomes, settings.queries) if path},
        questions=len(labels),
        held_out=None if validated is None else asdict(validated),
    )
    if validated is None:
        console.print("not validated: no question was held out", **PLAIN)
    else:
        console.print(validated.table())
        console.print(validated.conclusion(), **PLAIN)
    console.print(f"cascade on {len(labels):,} questions, written to {settings.output}", **PLAIN)
    console.print(f"serve it as an arm   {_arm(trained, settings.output.absolute())}", **PLAIN)
    return trained


def evaluate(
    folder: Path,
    outcomes: Sequence[Path],
    queries: Path | None,
    config: AppConfig,
    console: Console,
    on_progress: Progress,
) -> cascade.CascadeValidation:
    """Print the results of a trained cascade on other outcomes, and return them.

    Args:
        folder: Folder of the cascade.
        outcomes: Outcomes of its arms, on questions that it was not trained on.
        queries: Texts of the questions, where the outcomes leave them out.
        config: Names the corpus.
        console: Where the report goes.
        on_progress: Called with the progress.

    Raises:
        ValueError: The cascade cannot be read, or the outcomes do not fit; a subclass of it says which.
        CorpusError: The corpus cannot be read.
    """
    trained = cascade.read_cascade(folder)
    spec, utility = trained.cascade.spec, router_utility.Utility.model_validate(trained.about.utility)
    found = _outcomes(outcomes, queries, spec, utility, console)
    labels, _ = _labels(found, spec, utility, config, console, on_progress)
    validated = cascade.validate_cascade(trained.cascade, labels, found)
    console.print(validated.table())
    console.print(validated.conclusion(), **PLAIN)
    return validated


def _outcomes(
    paths: Sequence[Path],
    queries: Path | None,
    spec: cascade.CascadeSpec,
    utility: router_utility.Utility,
    console: Console,
) -> Outcomes:
    """Read the outcomes of the arms of a cascade, in its order, on questions where all are known."""
    everything = read_labelled(paths, [] if queries is None else read_questions(queries))
    outcomes = of_arms(everything, dataset.positions(everything.arms, spec.arms))
    if spec.right not in outcomes.scores:
        raise RouterError(
            f"no score {spec.right!r} among the outcomes, which have {', '.join(outcomes.scores)}"
        )
    known = np.isfinite(router_utility.utilities(outcomes, utility) + outcomes.scores[spec.right]).all(axis=1)
    if not known.any():
        raise RouterError(f"no question has the outcomes of all of {', '.join(spec.arms)}")
    if not known.all():
        console.print(f"left out: {(~known).sum():,} questions without the outcomes of every arm", **PLAIN)
    return outcomes.only(known)


def _labels(
    outcomes: Outcomes,
    spec: cascade.CascadeSpec,
    utility: router_utility.Utility,
    config: AppConfig,
    console: Console,
    on_progress: Progress,
) -> tuple[cascade.CascadeDataset, str | None]:
    """Return what a cascade is fitted to, and the digest of the corpus, if anything was found."""
    passages, corpus = _passages(outcomes, config.settled(), console, on_progress)
    found = [
        [[passages[name] for name in ids or () if name in passages] for ids in row]
        for row in outcomes.passages
    ]
    answers = [[answer or "" for answer in row] for row in outcomes.answers]
    texts = [question.text for question in outcomes.questions]
    features = []
    for stage, count in enumerate(spec.counts, start=1):
        of_stage = [row[:count] for row in found], [row[:count] for row in answers]
        features.append(cascade.stage_features(texts, spec.arms[:count], *of_stage))
        on_progress("looking at answers", stage, len(spec.counts))
    gross = utility.model_copy(update={"cost_weight": 0.0})
    quality = router_utility.utilities(outcomes, gross)
    cost = quality - router_utility.utilities(outcomes, utility)
    gold = tuple(frozenset(question.gold_ids) for question in outcomes.questions)
    seen = cascade.Observed(tuple(found), tuple(answers), gold)
    return cascade.CascadeDataset(tuple(features), outcomes.scores[spec.right], quality, cost, seen), corpus


def _passages(
    outcomes: Outcomes, config: AppConfig, console: Console, on_progress: Progress
) -> tuple[Mapping[str, Passage], str | None]:
    """Return the passages that were found and are of the corpus, by id. Raises RouterError."""
    wanted = sorted({name for row in outcomes.passages for ids in row for name in ids or ()})
    if not wanted:
        return {}, None
    corpus = ingest(config.corpus.source, config.corpus_path, progress=on_progress)
    known = corpus.known(wanted)
    if not known:
        raise RouterError(
            f"none of the {len(wanted):,} passages of the outcomes, such as {wanted[0]!r}, is of corpus "
            f"{config.corpus.name!r}"
        )
    if foreign := len(wanted) - len(known):
        console.print(
            f"{foreign:,} passages not of corpus {config.corpus.name!r} count as not found", **PLAIN
        )
    return {one.id: one for one in corpus.passages(known.values())}, corpus.digest


def _arm(trained: cascade.TrainedCascade, folder: Path) -> str:
    """Return the arm of a cascade, as configuration."""
    about = trained.about
    params: dict[str, Any] = {"stages": [list(stage) for stage in about.spec.stages], "decider": str(folder)}
    if about.writing is not None:
        params |= asdict(about.writing) | {"form": about.writing.form.value}
    return flow({"kind": "cascade", "params": params})

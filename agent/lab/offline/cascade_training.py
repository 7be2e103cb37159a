"""Train a cascade: it learns at which stage an answer is good enough."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
from pydantic import Field
from rich.console import Console

from armwise.agent.config import AppConfig
from armwise.agent.lab.offline.labelled_data import (
    PLAIN,
    Retrieved,
    find_writing,
    print_foreign,
    select_arms,
)
from armwise.agent.lab.offline.training import TrainingData, check_output, print_arm, print_results, read_spec
from armwise.agent.lab.routers import cascade, cross_validation, utilities
from armwise.agent.routers import (
    RouterError,
    dataset,
)
from armwise.agent.routers.utility import Utility
from armwise.arms.base import Progress
from armwise.arms.lab.portfolio import Outcomes


class CascadeTraining(TrainingData):
    """Training data of a cascade, and its utility."""

    spec: cascade.CascadeSpec = Field(description="Stages, routers and stopping rule of the cascade.")
    utility: Utility = Field(
        default=Utility(),
        description="Utility of an answer. It costs what all asked arms cost.",
    )


def cascade_spec(file: Path) -> cascade.CascadeSpec:
    """Return the cascade that a YAML file describes. Raises RouterError."""
    return read_spec(cascade.CascadeSpec, "cascade", file)


def train_cascade(
    settings: CascadeTraining, console: Console, on_progress: Progress
) -> cascade.TrainedCascade:
    """Train a cascade, write it to `settings.output`, print its validation, and return it.

    Args:
        settings: The cascade, its data and the output.
        console: Where the report goes.
        on_progress: Called with the progress.

    Raises:
        ValueError: Outcomes, questions, stages, utility or output are invalid; subclasses distinguish these.
        CorpusError: The corpus cannot be read.
    """
    check_output(settings.output)
    spec, writing = settings.spec, find_writing(settings.outcomes)
    outcomes = cascade_outcomes(settings.read(), spec, settings.utility, console)
    labels, corpus = cascade_labels(outcomes, spec, settings.utility, settings.config, console, on_progress)
    held_out = cross_validation.draw_part(labels.features[0].texts, settings.held_out, settings.seed)
    validated = None
    if held_out.any() and not held_out.all():
        fitted, _ = cascade.fit_cascade(spec, labels.rows(np.flatnonzero(~held_out)), on_progress)
        rest = labels.rows(np.flatnonzero(held_out))
        validated = cascade.validate_cascade(fitted, rest, outcomes.only(held_out))
    fitted, _ = cascade.fit_cascade(spec, labels, on_progress)
    trained = cascade.write_cascade(
        settings.output,
        fitted,
        k=max(len(ids or ()) for row in outcomes.passages for ids in row),
        corpus=corpus,
        writing=writing,
        utility=settings.utility.model_dump(mode="json"),
        inputs=settings.digests(),
        questions=len(labels),
        held_out=None if validated is None else asdict(validated),
    )
    print_results(validated, console, "no question was held out")
    console.print(f"cascade on {len(labels):,} questions, written to {settings.output}", **PLAIN)
    stages = [list(stage) for stage in trained.about.spec.stages]
    params = {"stages": stages, "decider": str(settings.output.absolute())}
    print_arm("cascade", params, trained.about.writing, console)
    return trained


def cascade_outcomes(
    everything: Outcomes,
    spec: cascade.CascadeSpec,
    utility: Utility,
    console: Console,
) -> Outcomes:
    """Return the outcomes of a cascade's arms, in its order, on the questions where all of them are known."""
    outcomes = select_arms(everything, dataset.positions(everything.arms, spec.arms))
    if spec.right not in outcomes.scores:
        raise RouterError(
            f"no score {spec.right!r} among the outcomes, which have {', '.join(outcomes.scores)}"
        )
    complete = np.isfinite(utilities.utilities(outcomes, utility) + outcomes.scores[spec.right]).all(axis=1)
    if not complete.any():
        raise RouterError(f"no question has the outcomes of all of {', '.join(spec.arms)}")
    if not complete.all():
        console.print(f"left out: {(~complete).sum():,} questions without the outcomes of every arm", **PLAIN)
    return outcomes.only(complete)


def cascade_labels(
    outcomes: Outcomes,
    spec: cascade.CascadeSpec,
    utility: Utility,
    config: AppConfig,
    console: Console,
    on_progress: Progress,
) -> tuple[cascade.CascadeDataset, str | None]:
    """Return the data that a cascade is fitted to, and the digest of the corpus, if it has passages."""
    retrieved = Retrieved.look_up(outcomes, config.resolve_places(), on_progress)
    print_foreign(retrieved.foreign, config, console)
    answers = [[answer or "" for answer in row] for row in outcomes.answers]
    texts = [question.text for question in outcomes.questions]
    features = []
    for stage, count in enumerate(spec.counts, start=1):
        passages, texts_of_stage = (
            [row[:count] for row in retrieved.rankings],
            [row[:count] for row in answers],
        )
        features.append(cascade.stage_features(texts, spec.arms[:count], passages, texts_of_stage))
        on_progress("looking at answers", stage, len(spec.counts))
    gross = utility.model_copy(update={"cost_weight": 0.0})
    quality = utilities.utilities(outcomes, gross)
    cost = quality - utilities.utilities(outcomes, utility)
    gold = tuple(frozenset(question.gold_ids) for question in outcomes.questions)
    observed = cascade.StageObservations(tuple(retrieved.rankings), tuple(answers), gold)
    labels = cascade.CascadeDataset(tuple(features), outcomes.scores[spec.right], quality, cost, observed)
    return labels, None if retrieved.corpus is None else retrieved.corpus.digest

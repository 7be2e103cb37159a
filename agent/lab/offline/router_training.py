"""Train a router: it learns the utility of each arm for a question."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from pydantic import Field
from rich.console import Console

from armwise.agent.lab.offline.labelled_data import (
    PLAIN,
    find_writing,
    print_foreign,
    select_arms,
)
from armwise.agent.lab.offline.router_features import ObservedFeatures, observe_features, relevance_of_others
from armwise.agent.lab.offline.training import FoldedData, check_output, print_arm, print_results, read_spec
from armwise.agent.lab.routers import cross_validation, utilities, validation
from armwise.agent.routers import (
    Features,
    RouterError,
    RouterSpec,
    RoutingDataset,
    Stage,
    Trained,
    build_router,
    dataset,
    out_of_fold,
    saved,
)
from armwise.agent.routers.utility import Utility
from armwise.arms.base import Progress
from armwise.arms.lab.portfolio import Outcomes
from armwise.arms.models import digest_backbone
from armwise.arms.relevance import RelevanceModel
from armwise.arms.suggestions import did_you_mean, select_names


class Training(FoldedData):
    """Training data of a router, and its utility."""

    router: RouterSpec = Field(description="Kind and parameters of the router.")
    utility: Utility = Field(default=Utility(), description="Utility of an answer.")
    quality: str | None = Field(
        default=None, description="Score of the retrieved passages, for routers that learn it."
    )
    backbone: str | None = Field(
        default=None, description="Backbone of the configuration that embeds questions; by default its first."
    )
    relevance: bool = Field(
        default=False,
        description="Also use the predicted relevance of passages, by a model that learns it from the "
        "gold_ids of the questions and is saved with the router.",
    )


def router_spec(kind: str | None, stage: str | None, file: Path | None) -> RouterSpec:
    """Return the router of a kind and stage, or the one that a YAML file describes.

    Raises:
        RouterError: Neither or both are given, or the file does not describe a router.
    """
    if (kind is None) == (file is None):
        raise RouterError("either a kind or a file must name the router that is trained")
    if file is None:
        return RouterSpec(kind=str(kind), params={"stage": stage} if stage else {})
    if stage is not None:
        raise RouterError(f"{file} describes the whole router, its stage too: leave out {stage!r}")
    return read_spec(RouterSpec, "router", file)


def train_router(settings: Training, console: Console, on_progress: Progress) -> Trained:
    """Train a router, write it to `settings.output`, print its validation, and return it.

    Args:
        settings: The router, its data and the output.
        console: Where the report goes.
        on_progress: Called with the progress.

    Raises:
        ValueError: Outcomes, questions, router, utility or backbone are invalid; subclasses say which.
        CorpusError: The corpus cannot be read.
        ModelNotFoundError: The model of the backbone cannot be found.
    """
    config = settings.config.resolve_places()
    check_output(settings.output)
    name = _backbone(settings)
    stage = build_router(settings.router).stage
    outcomes = read_trainable(settings, console)
    writing = find_writing(settings.outcomes) if stage is Stage.ANSWERED else None
    parts = settings.parts([question.text for question in outcomes.questions])
    observed = observe_features(outcomes, config, name, stage, on_progress)
    print_foreign(observed.foreign, config, console)
    predict = learn_relevance(settings, outcomes, observed, on_progress) if settings.relevance else None
    held_out_scores = refit_scores(settings, outcomes, observed.features, parts, on_progress, predict)
    validated = _validate(settings, outcomes, held_out_scores, stage)
    utility = settings.utility
    if (
        validated
        and utility.cost_weight > 0.0
        and (free := validation.warn_uncharged(outcomes, utility.cost, stage))
    ):
        console.print(free, **PLAIN)
    features, relevance = predict(None) if predict else (observed.features, None)
    router = build_router(settings.router).fit(_labels(settings, outcomes, features))
    backbone = config.backbones[name]
    about = saved.RouterFacts(
        kind=router.kind,
        params=dict(router.params),
        stage=stage.name.lower(),
        digest=saved.digest_router(router.save()),
        arms=outcomes.arms,
        backbone=name,
        encoder=digest_backbone(backbone),
        query_prefix=backbone.query_prefix,
        k=observed.k,
        corpus=observed.corpus,
        relevance=None if relevance is None else saved.digest_router(relevance.save()),
        writing=writing,
        utility=settings.utility.model_dump(mode="json"),
        quality=settings.quality,
        inputs=settings.digests(),
        questions=len(outcomes.questions),
        held_out=None if validated is None else asdict(validated),
    )
    trained = Trained(router, about, relevance)
    saved.write_trained(settings.output, trained)
    out_of_fold.write_out_of_fold(settings.output, about, observed.features.texts, held_out_scores)
    print_results(validated, console, "no held-out question has the outcomes of every arm")
    console.print(
        f"{about.kind} on {about.questions:,} questions and {len(about.arms)} arms, written to "
        f"{settings.output}",
        **PLAIN,
    )
    _print_use(trained, settings.output.absolute(), console)
    return trained


def _backbone(settings: Training) -> str:
    """Return the name of the backbone. Raises RouterError if it is not declared."""
    backbones = settings.config.backbones
    if not backbones:
        raise RouterError("a router needs a sentence encoder: declare one in `backbones`")
    name = settings.backbone or next(iter(backbones))
    if name not in backbones:
        raise RouterError(f"backbone {name!r} is not declared{did_you_mean(name, backbones)}")
    return name


def read_trainable(settings: Training, console: Console) -> Outcomes:
    """Read the outcomes of the arms that have any known utility. Raises ValueError."""
    outcomes = settings.read()
    if settings.quality is not None and settings.quality not in outcomes.scores:
        hint = did_you_mean(settings.quality, outcomes.scores)
        raise RouterError(f"no score {settings.quality!r} among the outcomes{hint}")
    arms = select_names(outcomes.arms, settings.arms, "no arm of the outcomes", RouterError)
    outcomes = select_arms(outcomes, dataset.positions(outcomes.arms, arms))
    has_utility = ~np.isnan(utilities.utilities(outcomes, settings.utility)).all(axis=0)
    left = select_arms(outcomes, np.flatnonzero(has_utility).tolist())
    if unknown := [arm for arm in outcomes.arms if arm not in left.arms]:
        names = ", ".join(unknown)
        console.print(f"left out, as their utility is unknown on every question: {names}", **PLAIN)
    return left


def _labels(settings: Training, outcomes: Outcomes, features: Features) -> RoutingDataset:
    """Return the labels of questions. Raises RouterError."""
    quality = None if settings.quality is None else outcomes.scores[settings.quality]
    return utilities.routing_labels(features, outcomes, settings.utility, quality)


FeaturesWithRelevance = Callable[[cross_validation.Rows | None], tuple[Features, RelevanceModel]]
"""Questions whose gold passages may be used (None: all) -> features of all questions, and the model."""


def learn_relevance(
    settings: Training, outcomes: Outcomes, observed: ObservedFeatures, on_progress: Progress
) -> FeaturesWithRelevance:
    """Return a function that adds out-of-fold relevance columns to the features.

    Raises:
        RouterError: No question has gold passages, or the router ignores passages.
    """
    gold = [question.gold_ids for question in outcomes.questions]
    labelled = np.array([bool(ids) for ids in gold])
    if not observed.k:
        raise RouterError("--relevance needs a router that sees passages: of stage retrieved or answered")
    if not labelled.any():
        raise RouterError("relevance is learned from the gold_ids of questions: give them with --queries")
    texts, examples = observed.features.texts, observed.examples(gold, on_progress)

    def with_relevance(rows: cross_validation.Rows | None) -> tuple[Features, RelevanceModel]:
        every = np.flatnonzero(labelled)
        usable = every if rows is None else rows[labelled[rows]]
        model, relevance = relevance_of_others(examples, texts, usable, settings.seed)
        return observed.with_relevance(relevance), model

    return with_relevance


def refit_scores(
    settings: Training,
    outcomes: Outcomes,
    features: Features,
    parts: Sequence[tuple[cross_validation.Rows, cross_validation.Rows]],
    on_progress: Progress,
    with_relevance: FeaturesWithRelevance | None,
) -> dataset.Floats:
    """Return out-of-fold scores; NaN for questions that are never held out.

    Returns:
        Shape (n_questions, n_arms).

    Raises:
        RouterError: A router cannot be fitted to a fold.
    """
    scores = np.full((len(features), len(features.arms)), np.nan)
    for number, (training, held_out) in enumerate(parts, start=1):
        if with_relevance is not None:
            features, _ = with_relevance(training)
        labels = _labels(settings, outcomes.only(training), features.rows(training))
        scores[held_out] = build_router(settings.router).fit(labels).scores(features.rows(held_out))
        on_progress("fitting to a part", number, len(parts))
    return scores


def _validate(
    settings: Training, outcomes: Outcomes, scores: dataset.Floats, stage: Stage
) -> validation.RouterValidation | None:
    """Validate a router by its out-of-fold scores; None: all scores are unknown."""
    validated = ~np.isnan(scores).any(axis=1)
    if not validated.any():
        return None
    return validation.validate_router(outcomes.only(validated), scores[validated], settings.utility, stage)


def _print_use(trained: Trained, folder: Path, console: Console) -> None:
    """Print how to serve a router."""
    about = trained.about
    if trained.router.stage is Stage.ANSWERED:
        console.print(
            "it compares the answers of all arms: each is asked, whichever answer is picked", **PLAIN
        )
        params = {"arms": list(about.arms), "select": "learned", "router": str(folder)}
        print_arm("ensemble", params | {"backbone": about.backbone}, about.writing, console)
        return
    if about.k:
        console.print("it reads the passages of every arm: all of them search before one is drawn", **PLAIN)
    console.print(f"serve it with   router: {{path: {folder}}}", **PLAIN)

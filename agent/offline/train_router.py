"""Train a router on the outcomes of arms, validate it on held-out questions, and save it to a folder.

outcomes --utility--> labels --fit--> router --> figures on held-out questions
                        '------------fit------> the router that is kept, of all questions

Scores of held-out questions are saved beside the router (`agent.routers.out_of_fold`).
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.console import Console

from agent.config import AppConfig
from agent.offline.labelled_data import of_arms, read_labelled, written
from agent.offline.router_features import ObservedFeatures, observed_features, relevance_of_others
from agent.offline.score import read_questions
from agent.routers import (
    Features,
    RouterError,
    RouterSpec,
    RoutingDataset,
    Stage,
    Trained,
    build_router,
    cross_validation,
    dataset,
    out_of_fold,
    saved,
    validation,
)
from agent.routers import utility as router_utility
from agent.simulation import SHAPE
from arms.base import Progress
from arms.models import digest_backbone
from arms.models import digest_of as digest_of_file
from arms.portfolio import Outcomes
from arms.relevance import RelevanceModel
from arms.suggestions import did_you_mean, select_names

PLAIN: Any = {"markup": False, "highlight": False, "soft_wrap": True}


class FromOutcomes(BaseModel):
    """What any model is trained on, and where it is kept."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: AppConfig = Field(description="Names the backbone, the corpus and its vectors.")
    outcomes: tuple[Path, ...] = Field(
        min_length=1, description="Outcomes of arms, from `armwise label`; or matrices, from `armwise score`."
    )
    queries: Path | None = Field(default=None, description=f"JSON lines, plain or .gz, each {SHAPE}.")
    arms: tuple[str, ...] = Field(
        default=("*",),
        min_length=1,
        description="Pattern of arms to choose among, else all; the model does not see others.",
    )
    held_out: float = Field(
        default=0.2, ge=0, lt=1, description="Part of the questions to validate on; 0 for none."
    )
    folds: int | None = Field(
        default=None,
        ge=2,
        description="Hold out each of so many parts in turn, in place of one part. A warm start that goes "
        "with this router needs that of its questions.",
    )
    seed: int = Field(default=0, ge=0, description="Seed that draws the held-out questions.")
    output: Path = Field(description="Folder of the model; one that is there is replaced.")

    def parts(self, texts: Sequence[str]) -> list[tuple[cross_validation.Rows, cross_validation.Rows]]:
        """Return the questions to fit to and to validate on, equal texts together. Raises RouterError."""
        if self.folds is not None:
            if self.folds > (n := len(set(texts))):
                raise RouterError(f"{n} questions cannot be cut into {self.folds} folds: take {n} or fewer")
            return cross_validation.folds(texts, self.folds, self.seed)
        if self.held_out == 0.0:
            return []
        _, text = np.unique(np.array(texts), return_inverse=True)
        n = int(text.max()) + 1
        order = np.random.default_rng(self.seed).permutation(n)
        held_out = np.isin(text, order[: round(n * self.held_out)])
        if held_out.all() or not held_out.any():
            raise RouterError(f"{n} questions cannot be split so that {self.held_out:g} of them is held out")
        return [(np.flatnonzero(~held_out), np.flatnonzero(held_out))]


class Training(FromOutcomes):
    """What a router is trained on, and for which utility."""

    router: RouterSpec = Field(description="Kind and parameters of the router.")
    utility: router_utility.Utility = Field(
        default=router_utility.Utility(), description="Utility of an answer."
    )
    quality: str | None = Field(
        default=None, description="Score of the retrieved passages, for routers that learn it."
    )
    backbone: str | None = Field(
        default=None, description="Backbone of the configuration that embeds questions; else its first."
    )
    relevance: bool = Field(
        default=False,
        description="Also see the predicted relevance of passages, by a model that learns it from the "
        "gold_ids of the questions and is kept beside the router.",
    )


def read_spec(kind: str | None, stage: str | None, file: Path | None) -> RouterSpec:
    """Return the router of a kind and stage, or the one that a YAML file describes.

    Raises:
        RouterError: Neither or both are given, or the file describes no router.
    """
    if (kind is None) == (file is None):
        raise RouterError("either a kind or a file must name the router that is trained")
    if file is None:
        return RouterSpec(kind=str(kind), params={"stage": stage} if stage else {})
    if stage is not None:
        raise RouterError(f"{file} describes the whole router, its stage too: leave out {stage!r}")
    try:
        return RouterSpec.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValidationError) as error:
        raise RouterError(f"{file} describes no router: {error}") from None


def run(settings: Training, console: Console, on_progress: Progress) -> Trained:
    """Train a router, write it to `settings.output`, print its validation, and return it.

    Args:
        settings: What to train.
        console: Where the report goes.
        on_progress: Called with the progress.

    Raises:
        ValueError: Outcomes, questions, router, utility or backbone do not fit; a subclass of it says which.
        CorpusError: The corpus cannot be read.
        ModelNotFoundError: The model of the backbone is not where its name says.
    """
    config = settings.config.settled()
    check_output(settings.output)
    name = _backbone(settings)
    stage = build_router(settings.router).stage
    outcomes = _labelled(settings, console)
    writing = written(settings.outcomes) if stage is Stage.ANSWERED else None
    parts = settings.parts([question.text for question in outcomes.questions])
    observed = observed_features(outcomes, config, name, stage, on_progress)
    if observed.foreign:
        corpus = config.corpus.name
        console.print(f"{observed.foreign:,} passages not of corpus {corpus!r} count as not found", **PLAIN)
    seen = _seen(settings, outcomes, observed, on_progress) if settings.relevance else None
    held_out_scores = _out_of_fold_scores(settings, outcomes, observed.features, parts, on_progress, seen)
    validated = _validated(settings, outcomes, held_out_scores, stage)
    utility = settings.utility
    if (
        validated
        and utility.cost_weight > 0.0
        and (free := validation.uncharged(outcomes, utility.cost, stage))
    ):
        console.print(free, **PLAIN)
    features, relevance = seen(None) if seen else (observed.features, None)
    router = build_router(settings.router).fit(_labels(settings, outcomes, features))
    backbone = config.backbones[name]
    about = saved.About(
        kind=router.kind,
        params=dict(router.params),
        stage=stage.name.lower(),
        digest=saved.digest_of(router.save()),
        arms=outcomes.arms,
        backbone=name,
        encoder=digest_backbone(backbone),
        query_prefix=backbone.query_prefix,
        k=observed.k,
        corpus=observed.corpus,
        relevance=None if relevance is None else saved.digest_of(relevance.save()),
        writing=writing,
        utility=settings.utility.model_dump(mode="json"),
        inputs={str(path): digest_of_file(path) for path in (*settings.outcomes, settings.queries) if path},
        questions=len(outcomes.questions),
        held_out=None if validated is None else asdict(validated),
    )
    trained = Trained(router, about, relevance)
    saved.write_trained(settings.output, trained)
    out_of_fold.write_out_of_fold(settings.output, about, observed.features.texts, held_out_scores)
    _print_report(validated, trained, settings, console)
    return trained


def check_output(folder: Path) -> None:
    """Refuse an output that cannot become a folder, before anything is trained. Raises RouterError."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        why = "is not a folder" if not there.is_dir() else "cannot be written to"
        raise RouterError(f"{folder} cannot hold a model, as {there} {why}: choose another output")


def _backbone(settings: Training) -> str:
    """Name the backbone. Raises RouterError where it is not declared."""
    known = settings.config.backbones
    if not known:
        raise RouterError("a router needs a sentence encoder: declare one in `backbones`")
    name = settings.backbone or next(iter(known))
    if name not in known:
        raise RouterError(f"backbone {name!r} is not declared{did_you_mean(name, known)}")
    return name


def _labelled(settings: Training, console: Console) -> Outcomes:
    """Read the outcomes of the arms that have any known utility. Raises ValueError."""
    questions = [] if settings.queries is None else read_questions(settings.queries)
    outcomes = read_labelled(settings.outcomes, questions)
    if settings.quality is not None and settings.quality not in outcomes.scores:
        hint = did_you_mean(settings.quality, outcomes.scores)
        raise RouterError(f"no score {settings.quality!r} among the outcomes{hint}")
    asked = select_names(outcomes.arms, settings.arms, "no arm of the outcomes", RouterError)
    outcomes = of_arms(outcomes, dataset.positions(outcomes.arms, asked))
    known = ~np.isnan(router_utility.utilities(outcomes, settings.utility)).all(axis=0)
    left = of_arms(outcomes, np.flatnonzero(known).tolist())
    if unknown := [arm for arm in outcomes.arms if arm not in left.arms]:
        names = ", ".join(unknown)
        console.print(f"left out, as their utility is unknown on every question: {names}", **PLAIN)
    return left


def _labels(settings: Training, outcomes: Outcomes, features: Features) -> RoutingDataset:
    """Return the labels of questions. Raises RouterError."""
    quality = None if settings.quality is None else outcomes.scores[settings.quality]
    return RoutingDataset(features, router_utility.utilities(outcomes, settings.utility), quality)


SeenWithRelevance = Callable[[cross_validation.Rows | None], tuple[Features, RelevanceModel]]
"""Questions whose gold passages may be used, None for all -> features of all questions, and the model."""


def _seen(
    settings: Training, outcomes: Outcomes, observed: ObservedFeatures, on_progress: Progress
) -> SeenWithRelevance:
    """Return what gives features with columns of relevance that no question's own gold passages shaped.

    Raises:
        RouterError: No question has gold passages, or the router does not look at passages.
    """
    gold = [question.gold_ids for question in outcomes.questions]
    labelled = np.array([bool(ids) for ids in gold])
    if not observed.k:
        raise RouterError("relevance is that of passages: take a router of stage retrieved or answered")
    if not labelled.any():
        raise RouterError("relevance is learned from the gold_ids of questions: give them with --queries")
    texts, examples = observed.features.texts, observed.examples(gold, on_progress)

    def seen(known: cross_validation.Rows | None) -> tuple[Features, RelevanceModel]:
        every = np.flatnonzero(labelled)
        usable = every if known is None else known[labelled[known]]
        model, relevance = relevance_of_others(examples, texts, usable, settings.seed)
        return observed.with_relevance(relevance), model

    return seen


def _out_of_fold_scores(
    settings: Training,
    outcomes: Outcomes,
    features: Features,
    parts: Sequence[tuple[cross_validation.Rows, cross_validation.Rows]],
    on_progress: Progress,
    with_relevance: SeenWithRelevance | None,
) -> dataset.Floats:
    """Return out-of-fold scores; NaN for questions that are never held out.

    Returns:
        Shape (n_questions, n_arms).

    Raises:
        RouterError: They cannot be fitted to.
    """
    scores = np.full((len(features), len(features.arms)), np.nan)
    for number, (seen, held_out) in enumerate(parts, start=1):
        if with_relevance is not None:
            features, _ = with_relevance(seen)
        labels = _labels(settings, outcomes.only(seen), features.rows(seen))
        scores[held_out] = build_router(settings.router).fit(labels).scores(features.rows(held_out))
        on_progress("fitting to a part", number, len(parts))
    return scores


def _validated(
    settings: Training, outcomes: Outcomes, scores: dataset.Floats, stage: Stage
) -> validation.RouterValidation | None:
    """Validate a router by its out-of-fold scores; None where there are none."""
    asked = ~np.isnan(scores).any(axis=1)
    if not asked.any():
        return None
    return validation.validate_router(outcomes.only(asked), scores[asked], settings.utility, stage)


def _print_report(
    validated: validation.RouterValidation | None, trained: Trained, settings: Training, console: Console
) -> None:
    """Print the validation, and how to serve the router."""
    if validated is None:
        console.print("not validated: no held-out question has the outcomes of every arm", **PLAIN)
    else:
        console.print(validated.table())
        console.print(validated.conclusion(), **PLAIN)
    about = trained.about
    console.print(
        f"{about.kind} on {about.questions:,} questions and {len(about.arms)} arms, written to "
        f"{settings.output}",
        **PLAIN,
    )
    folder = settings.output.absolute()
    if trained.router.stage is Stage.ANSWERED:
        console.print(
            "it compares the answers of all arms: each is asked, whichever answer is picked", **PLAIN
        )
        console.print(f"serve it as an arm   {_ensemble(about, folder)}", **PLAIN)
        return
    if about.k:
        console.print("it reads the passages of every arm: all of them search before one is drawn", **PLAIN)
    console.print(f"serve it with   router: {{path: {folder}}}", **PLAIN)


def _ensemble(about: saved.About, folder: Path) -> str:
    """Return the ensemble arm of a router that selects among answers, as configuration."""
    params: dict[str, Any] = {"arms": list(about.arms), "select": "learned", "router": str(folder)}
    params["backbone"] = about.backbone
    if about.writing is not None:
        params |= asdict(about.writing) | {"form": about.writing.form.value}
    return flow({"kind": "ensemble", "params": params})


def flow(document: dict[str, Any]) -> str:
    """Return a document as one line of YAML."""
    return str(yaml.safe_dump(document, default_flow_style=True, sort_keys=False, width=math.inf)).strip()

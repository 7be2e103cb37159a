"""Train a model on the outcomes of arms, validate it on held-out questions, and save it to a folder.

outcomes --> labels --fit--> model --> figures on held-out questions
                '------fit-----------> the model that is kept, of all questions

router       learns the utility of each arm; served by `router: {path: FOLDER}`, or by an ensemble of answers.
             Scores of held-out questions are saved beside it (`armwise.agent.routers.out_of_fold`)
relevance    learns which passages are gold; served by an arm of kind `learned_fusion`
cascade      learns which stage answers well enough; served by an arm of kind `cascade`
"""

import hashlib
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import orjson
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError
from rich.console import Console
from rich.table import Table

from armwise.agent.config import AppConfig
from armwise.agent.lab.offline.labelled_data import (
    PLAIN,
    LabelledQuestions,
    Retrieved,
    of_arms,
    print_foreign,
    written,
)
from armwise.agent.lab.offline.router_features import ObservedFeatures, observed_features, relevance_of_others
from armwise.agent.lab.routers import cascade, cross_validation, utilities, validation
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
from armwise.arms.llm import prompts
from armwise.arms.models import digest_backbone
from armwise.arms.relevance import Case, Examples, Fitting, RelevanceModel, write_model
from armwise.arms.retrievers import fuse
from armwise.arms.suggestions import did_you_mean, select_names

ABOUT = "relevance.json"
"""What a model of relevance was trained on, with digests of the questions, and figures on held-out ones."""

LEARNED, RRF, BEST, EVERY = "learned fusion", "rrf of all", "best arm a question", "every passage found"

FUSION_CONSTANT = 60.0

S = TypeVar("S", bound=BaseModel)


class TrainingData(LabelledQuestions):
    """What any model is trained on, and where it is kept."""

    held_out: float = Field(
        default=0.2, ge=0, lt=1, description="Part of the questions to validate on; 0 for none."
    )
    seed: int = Field(default=0, ge=0, description="Seed that draws the held-out questions.")
    output: Path = Field(description="Folder of the model; one that is there is replaced.")


class FoldedData(TrainingData):
    """What a model is trained on that may be validated fold by fold."""

    arms: tuple[str, ...] = Field(
        default=("*",),
        min_length=1,
        description="Pattern of arms to choose among, else all; the model does not see others.",
    )
    folds: int | None = Field(
        default=None,
        ge=2,
        description="Hold out each of so many parts in turn, in place of one part. A warm start that goes "
        "with this router needs that of its questions.",
    )

    def parts(self, texts: Sequence[str]) -> list[tuple[cross_validation.Rows, cross_validation.Rows]]:
        """Return the questions to fit to and to validate on, equal texts together. Raises RouterError."""
        if self.folds is not None:
            if self.folds > (n := len(set(texts))):
                raise RouterError(f"{n} questions cannot be cut into {self.folds} folds: take {n} or fewer")
            return cross_validation.folds(texts, self.folds, self.seed)
        if self.held_out == 0.0:
            return []
        held_out = cross_validation.part_of(texts, self.held_out, self.seed)
        if held_out.all() or not held_out.any():
            n = len(set(texts))
            raise RouterError(f"{n} questions cannot be split so that {self.held_out:g} of them is held out")
        return [(np.flatnonzero(~held_out), np.flatnonzero(held_out))]


class Training(FoldedData):
    """What a router is trained on, and for which utility."""

    router: RouterSpec = Field(description="Kind and parameters of the router.")
    utility: Utility = Field(default=Utility(), description="Utility of an answer.")
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


class RelevanceTraining(FoldedData):
    """What a model of relevance is trained on."""

    fitting: Fitting = Field(default=Fitting(), description="How it is fitted.")


class CascadeTraining(TrainingData):
    """What a cascade is trained on, and for which utility."""

    spec: cascade.CascadeSpec = Field(description="Stages, routers and stopping rule of the cascade.")
    utility: Utility = Field(
        default=Utility(),
        description="Utility of an answer; its costs are those of all asked.",
    )


def router_spec(kind: str | None, stage: str | None, file: Path | None) -> RouterSpec:
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
    return _described(RouterSpec, "router", file)


def cascade_spec(file: Path) -> cascade.CascadeSpec:
    """Return the cascade that a YAML file describes. Raises RouterError."""
    return _described(cascade.CascadeSpec, "cascade", file)


def _described(spec: type[S], name: str, file: Path) -> S:
    try:
        return spec.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValidationError) as error:
        raise RouterError(f"{file} describes no {name}: {error}") from None


def train_router(settings: Training, console: Console, on_progress: Progress) -> Trained:
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
    _check_output(settings.output)
    name = _backbone(settings)
    stage = build_router(settings.router).stage
    outcomes = _labelled(settings, console)
    writing = written(settings.outcomes) if stage is Stage.ANSWERED else None
    parts = settings.parts([question.text for question in outcomes.questions])
    observed = observed_features(outcomes, config, name, stage, on_progress)
    print_foreign(observed.foreign, config, console)
    predict = _with_relevance(settings, outcomes, observed, on_progress) if settings.relevance else None
    held_out_scores = _out_of_fold_scores(settings, outcomes, observed.features, parts, on_progress, predict)
    validated = _validated(settings, outcomes, held_out_scores, stage)
    utility = settings.utility
    if (
        validated
        and utility.cost_weight > 0.0
        and (free := validation.uncharged(outcomes, utility.cost, stage))
    ):
        console.print(free, **PLAIN)
    features, relevance = predict(None) if predict else (observed.features, None)
    router = build_router(settings.router).fit(_labels(settings, outcomes, features))
    backbone = config.backbones[name]
    about = saved.RouterFacts(
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


class Results(Protocol):
    """Figures of a model on questions that it was not fitted to."""

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
        console.print(results.conclusion(), **PLAIN)


def _check_output(folder: Path) -> None:
    """Refuse an output that cannot become a folder, before anything is trained. Raises RouterError."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        why = "is not a folder" if not there.is_dir() else "cannot be written to"
        raise RouterError(f"{folder} cannot hold a model, as {there} {why}: choose another output")


def _backbone(settings: Training) -> str:
    """Name the backbone. Raises RouterError where it is not declared."""
    backbones = settings.config.backbones
    if not backbones:
        raise RouterError("a router needs a sentence encoder: declare one in `backbones`")
    name = settings.backbone or next(iter(backbones))
    if name not in backbones:
        raise RouterError(f"backbone {name!r} is not declared{did_you_mean(name, backbones)}")
    return name


def _labelled(settings: Training, console: Console) -> Outcomes:
    """Read the outcomes of the arms that have any known utility. Raises ValueError."""
    outcomes = settings.read()
    if settings.quality is not None and settings.quality not in outcomes.scores:
        hint = did_you_mean(settings.quality, outcomes.scores)
        raise RouterError(f"no score {settings.quality!r} among the outcomes{hint}")
    arms = select_names(outcomes.arms, settings.arms, "no arm of the outcomes", RouterError)
    outcomes = of_arms(outcomes, dataset.positions(outcomes.arms, arms))
    has_utility = ~np.isnan(utilities.utilities(outcomes, settings.utility)).all(axis=0)
    left = of_arms(outcomes, np.flatnonzero(has_utility).tolist())
    if unknown := [arm for arm in outcomes.arms if arm not in left.arms]:
        names = ", ".join(unknown)
        console.print(f"left out, as their utility is unknown on every question: {names}", **PLAIN)
    return left


def _labels(settings: Training, outcomes: Outcomes, features: Features) -> RoutingDataset:
    """Return the labels of questions. Raises RouterError."""
    quality = None if settings.quality is None else outcomes.scores[settings.quality]
    return RoutingDataset(features, utilities.utilities(outcomes, settings.utility), quality)


FeaturesWithRelevance = Callable[[cross_validation.Rows | None], tuple[Features, RelevanceModel]]
"""Questions whose gold passages may be used, None for all -> features of all questions, and the model."""


def _with_relevance(
    settings: Training, outcomes: Outcomes, observed: ObservedFeatures, on_progress: Progress
) -> FeaturesWithRelevance:
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

    def with_relevance(rows: cross_validation.Rows | None) -> tuple[Features, RelevanceModel]:
        every = np.flatnonzero(labelled)
        usable = every if rows is None else rows[labelled[rows]]
        model, relevance = relevance_of_others(examples, texts, usable, settings.seed)
        return observed.with_relevance(relevance), model

    return with_relevance


def _out_of_fold_scores(
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
        RouterError: They cannot be fitted to.
    """
    scores = np.full((len(features), len(features.arms)), np.nan)
    for number, (training, held_out) in enumerate(parts, start=1):
        if with_relevance is not None:
            features, _ = with_relevance(training)
        labels = _labels(settings, outcomes.only(training), features.rows(training))
        scores[held_out] = build_router(settings.router).fit(labels).scores(features.rows(held_out))
        on_progress("fitting to a part", number, len(parts))
    return scores


def _validated(
    settings: Training, outcomes: Outcomes, scores: dataset.Floats, stage: Stage
) -> validation.RouterValidation | None:
    """Validate a router by its out-of-fold scores; None where there are none."""
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
        _print_arm("ensemble", params | {"backbone": about.backbone}, about.writing, console)
        return
    if about.k:
        console.print("it reads the passages of every arm: all of them search before one is drawn", **PLAIN)
    console.print(f"serve it with   router: {{path: {folder}}}", **PLAIN)


def _print_arm(kind: str, params: dict[str, Any], writing: prompts.Writing | None, console: Console) -> None:
    """Print the arm that serves a model, as configuration in one line."""
    if writing is not None:
        params |= asdict(writing) | {"form": writing.form.value}
    arm = {"kind": kind, "params": params}
    line = yaml.safe_dump(arm, default_flow_style=True, sort_keys=False, width=math.inf).strip()
    console.print(f"serve it as an arm   {line}", **PLAIN)


@dataclass(frozen=True, slots=True)
class RelevanceValidation:
    """The recall of rankings on held-out questions.

    Attributes:
        questions: Number of questions.
        k: Passages of a ranking.
        auc: Probability that a gold passage has a higher relevance than another one.
        recall: Mean share of the gold passages among the first k, by ranking.
        complete: Share of questions with all gold passages among them, by ranking.
    """

    questions: int
    k: int
    auc: float
    recall: Mapping[str, float]
    complete: Mapping[str, float]

    def table(self) -> Table:
        """Return the results as a table."""
        table = Table(title=f"{self.questions:,} questions that were held out")
        for column in ("", f"recall@{self.k}", "all found"):
            table.add_column(column, justify="right" if column else "left")
        for name, recall in self.recall.items():
            style = "bold" if name == LEARNED else None
            table.add_row(name, f"{recall:.4f}", f"{self.complete[name]:.4f}", style=style)
        return table

    def conclusion(self) -> str:
        """Return a summary in one line."""
        return f"AUC of the relevance of a passage: {self.auc:.4f}"


def train_relevance(settings: RelevanceTraining, console: Console, on_progress: Progress) -> RelevanceModel:
    """Train a model of relevance, write it to `settings.output`, print its validation, and return it.

    Args:
        settings: What to train.
        console: Where the report goes.
        on_progress: Called with the progress.

    Raises:
        ValueError: Outcomes or questions do not fit; a subclass of it says which.
        CorpusError: The corpus cannot be read.
    """
    _check_output(settings.output)
    outcomes = with_gold(settings, settings.arms)
    cases, foreign = cases_of(outcomes, settings.config.settled(), on_progress)
    print_foreign(foreign, settings.config, console)
    parts = settings.parts([case.question for case in cases])
    examples = Examples.of(cases, settings.fitting, on_progress)
    relevance = examples.out_of_fold(parts, on_progress)
    validated = validate_relevance(cases, relevance, examples.k)
    model = examples.fit()
    write_model(settings.output, model)
    about: dict[str, Any] = {
        "fitting": settings.fitting.model_dump(),
        "questions": len(cases),
        "inputs": settings.digests(),
        "held_out": validated,
        "trained_on": sorted({digest_of_text(case.question) for case in cases}),
    }
    saved.write_files(settings.output, {ABOUT: orjson.dumps(about, option=orjson.OPT_INDENT_2)})
    print_results(validated, console, "no question was held out")
    console.print(
        f"relevance on {len(cases):,} questions and {len(outcomes.arms)} arms, written to {settings.output}",
        **PLAIN,
    )
    members = ", ".join(arm for arm in outcomes.arms if any(case.found.get(arm) for case in cases))
    arm = f"{{kind: learned_fusion, params: {{arms: [{members}], model: {settings.output.absolute()}}}}}"
    console.print(f"serve it as an arm   {arm}", **PLAIN)
    return model


def digest_of_text(text: str) -> str:
    """Return the digest by which `relevance.json` lists a training question."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def trained_on(folder: Path) -> frozenset[str]:
    """Return the digests of a model's training questions; none for a model without a record of them.

    Raises:
        RouterError: The record is damaged.
    """
    path = folder / ABOUT
    if not path.exists():
        return frozenset()
    try:
        return frozenset(orjson.loads(saved.read_file(folder, ABOUT))["trained_on"])
    except RouterError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RouterError(f"{path} is damaged: {error!r}; train the model again") from None


def with_gold(labelled: LabelledQuestions, arms: Sequence[str]) -> Outcomes:
    """Read the outcomes of some arms on the questions whose gold passages are known. Raises ValueError."""
    outcomes = labelled.read()
    names = select_names(outcomes.arms, arms, "no arm of the outcomes", RouterError)
    has_gold = [bool(question.gold_ids) for question in outcomes.questions]
    if not any(has_gold):
        queries = labelled.queries
        where = "give them with --queries" if queries is None else f"those of {queries} have none"
        raise RouterError(f"relevance is learned from the gold_ids of questions: {where}")
    return of_arms(outcomes.only(has_gold), dataset.positions(outcomes.arms, names))


def cases_of(outcomes: Outcomes, config: AppConfig, on_progress: Progress) -> tuple[list[Case], int]:
    """Return the questions of outcomes with what each arm found.

    Args:
        outcomes: With passages.
        config: Settled; names the corpus.
        on_progress: Called with the progress.

    Returns:
        The questions, and the number of passages that are not of the corpus, which count as not found.

    Raises:
        RouterError: The outcomes have no passages, or only those of another corpus.
        CorpusError: The corpus cannot be read.
    """
    retrieved = Retrieved.of(outcomes, config, on_progress)
    if retrieved.corpus is None:
        raise RouterError("relevance is that of passages; the outcomes have no passages")
    cases = [
        Case(question.text, dict(zip(outcomes.arms, row, strict=True)), frozenset(question.gold_ids))
        for question, row in zip(outcomes.questions, retrieved.rankings, strict=True)
    ]
    return cases, retrieved.foreign


def validate_relevance(
    cases: Sequence[Case], relevance: Sequence[Mapping[str, float] | None], k: int
) -> RelevanceValidation | None:
    """Compare the passages of the highest relevance with those of each arm and of rank fusion.

    Args:
        cases: The questions.
        relevance: Relevance of the passages of each question, by a model not fitted to it; None to omit it.
        k: Passages of a ranking.

    Returns:
        None if all are left out.
    """
    pairs = [
        (case, predicted) for case, predicted in zip(cases, relevance, strict=True) if predicted is not None
    ]
    if not pairs:
        return None
    arms = dict.fromkeys(arm for case in cases for arm, passages in case.found.items() if passages)
    shares: dict[str, list[float]] = {name: [] for name in (*arms, RRF, LEARNED, BEST, EVERY)}
    for case, predicted in pairs:
        rankings = [case.found.get(arm, ()) for arm in arms]
        single = [recall([passage.id for passage in passages[:k]], case.gold) for passages in rankings]
        for arm, share in zip(arms, single, strict=True):
            shares[arm].append(share)
        shares[RRF].append(recall([passage.id for passage in fuse(rankings, FUSION_CONSTANT)[:k]], case.gold))
        shares[LEARNED].append(recall(top(predicted, k), case.gold))
        shares[BEST].append(max(single))
        shares[EVERY].append(recall(predicted, case.gold))
    every = [(value, name in case.gold) for case, predicted in pairs for name, value in predicted.items()]
    return RelevanceValidation(
        len(pairs),
        k,
        auc(np.array([value for value, _ in every]), np.array([gold for _, gold in every])),
        {name: float(np.mean(values)) for name, values in shares.items()},
        {name: float(np.mean(np.array(values) == 1.0)) for name, values in shares.items()},
    )


def recall(ids: Collection[str], gold: Collection[str]) -> float:
    """Return the share of the gold passages among some.

    >>> recall(["a", "b"], {"a", "c"})
    0.5
    """
    return len(set(ids) & set(gold)) / len(gold)


def top(relevance: Mapping[str, float], k: int) -> list[str]:
    """Return the ids of the k passages of the highest relevance, ties broken by id.

    >>> top({"b": 0.5, "a": 0.5, "c": 0.7}, 2)
    ['c', 'a']
    """
    return sorted(relevance, key=lambda name: (-relevance[name], name))[:k]


def auc(values: dataset.Floats, positive: NDArray[np.bool_]) -> float:
    """Return the area under the curve: how often a positive has a higher value than a negative.

    >>> auc(np.array([0.1, 0.4, 0.4]), np.array([False, False, True]))
    0.75
    """
    from scipy.stats import rankdata

    n = int(positive.sum())
    above = rankdata(values)[positive].sum() - n * (n + 1) / 2
    return float(above / max(1, n * (len(values) - n)))


def train_cascade(
    settings: CascadeTraining, console: Console, on_progress: Progress
) -> cascade.TrainedCascade:
    """Train a cascade, write it to `settings.output`, print its validation, and return it.

    Args:
        settings: What to train.
        console: Where the report goes.
        on_progress: Called with the progress.

    Raises:
        ValueError: Outcomes, questions, stages, utility or output do not fit; a subclass of it says which.
        CorpusError: The corpus cannot be read.
    """
    _check_output(settings.output)
    spec, writing = settings.spec, written(settings.outcomes)
    outcomes = cascade_outcomes(settings.read(), spec, settings.utility, console)
    labels, corpus = cascade_labels(outcomes, spec, settings.utility, settings.config, console, on_progress)
    held_out = cross_validation.part_of(labels.features[0].texts, settings.held_out, settings.seed)
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
        inputs=settings.digests(),
        questions=len(labels),
        held_out=None if validated is None else asdict(validated),
    )
    print_results(validated, console, "no question was held out")
    console.print(f"cascade on {len(labels):,} questions, written to {settings.output}", **PLAIN)
    stages = [list(stage) for stage in trained.about.spec.stages]
    params = {"stages": stages, "decider": str(settings.output.absolute())}
    _print_arm("cascade", params, trained.about.writing, console)
    return trained


def cascade_outcomes(
    everything: Outcomes,
    spec: cascade.CascadeSpec,
    utility: Utility,
    console: Console,
) -> Outcomes:
    """Return the outcomes of the arms of a cascade, in its order, on questions where all are known."""
    outcomes = of_arms(everything, dataset.positions(everything.arms, spec.arms))
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
    """Return what a cascade is fitted to, and the digest of the corpus, if anything was found."""
    retrieved = Retrieved.of(outcomes, config.settled(), on_progress)
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

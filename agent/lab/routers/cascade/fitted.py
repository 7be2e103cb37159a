"""A fitted cascade: at each stage, it picks the best answer so far, and predicts the gain of going on.

    answers so far --router--> a score each --isotonic--> probability that the best answer is right
                                         '--router of the gain--> go on if it is above 0

The gain of a training question comes from out-of-fold scores: the reward of going on, by the rule of the
later stages, minus that of stopping, both net of the cost so far.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from armwise.agent.lab.routers.cascade.trees import AnswerTrees, GainTrees
from armwise.agent.lab.routers.cross_validation import folds, out_of_fold_scores
from armwise.agent.routers import features as router_features
from armwise.agent.routers.base import Router
from armwise.agent.routers.dataset import ArmTable, Features, Floats, RouterError, RoutingDataset
from armwise.agent.routers.features import QUESTION, build_answered_table, build_question_table
from armwise.arms import signals
from armwise.arms.base import Passage, Progress
from armwise.arms.lab.relevance import Case, Examples, Fitting
from armwise.arms.relevance import RelevanceError, RelevanceModel
from armwise.arms.retrievers import Stages

GO_ON = "go on"
"""The only arm of the router that predicts the gain."""

Integers = NDArray[np.intp]

FITTING = Fitting(draws=1, rounds=150, learning_rate=0.06)
"""Settings of the relevance models."""

FOUND = (*signals.FOUND, *signals.WORDED)
"""Features of each member's passages; they need only words, no encoder."""

Found = Sequence[Sequence[Passage]]

Build = Callable[[], Router]
"""Builds an unfitted router."""


class CascadeSpec(BaseModel):
    """What a cascade asks, and how it is fitted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stages: Stages = Field(
        description="Names of arms, cheap ones first. The arms of a stage answer together."
    )
    right: str = Field("em", description="Score of the outcomes whose expectation is the probability.")
    relevance: bool = Field(
        default=False,
        description="Whether the predicted relevance of passages is a feature, of a model that is fitted to "
        "the `gold_ids` of the questions.",
    )

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms of all stages, in order."""
        return tuple(arm for stage in self.stages for arm in stage)

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of arms that have answered at the end of each stage."""
        return tuple(np.cumsum([len(stage) for stage in self.stages]).tolist())


@dataclass(frozen=True, slots=True)
class StageObservations:
    """Passages and answers of the arms of a cascade on questions.

    Attributes:
        found: Passages that each answer was written from, best first: `found[question][arm]`.
        answers: The answers: `answers[question][arm]`.
        gold: Ids of the passages that support the right answer of each question; empty: unknown.
    """

    found: tuple[Found, ...]
    answers: tuple[Sequence[str], ...]
    gold: tuple[frozenset[str], ...]

    def rows(self, at: NDArray[np.intp]) -> "StageObservations":
        """Return the questions with these indices."""
        return StageObservations(
            *(tuple(values[row] for row in at) for values in (self.found, self.answers, self.gold))
        )


@dataclass(frozen=True, slots=True, eq=False)
class CascadeDataset:
    """Questions that a cascade is fitted to.

    Attributes:
        features: For each stage, features of the arms that have answered by then, without relevance.
        right: Score to predict, in [0, 1], shape (n_questions, n_arms).
        quality: Utility of each answer before costs, shape (n_questions, n_arms).
        cost: Priced cost of each answer, shape (n_questions, n_arms).
        seen: Passages and answers, for features of relevance.

    Raises:
        RouterError: A value is unknown.
    """

    features: tuple[Features, ...]
    right: Floats
    quality: Floats
    cost: Floats
    seen: StageObservations | None = None

    def __post_init__(self) -> None:
        for what, values in (("score", self.right), ("quality", self.quality), ("cost", self.cost)):
            if not np.isfinite(values).all():
                row, arm = np.argwhere(~np.isfinite(values))[0].tolist()
                name, text = self.features[-1].arms[arm], self.features[-1].texts[row]
                raise RouterError(f"the {what} of {name!r} on {text!r} is {values[row, arm]}: leave it out")

    def __len__(self) -> int:
        return len(self.right)

    def rows(self, at: NDArray[np.intp]) -> "CascadeDataset":
        """Return the questions with these indices."""
        features = tuple(of_stage.rows(at) for of_stage in self.features)
        observed = None if self.seen is None else self.seen.rows(at)
        return CascadeDataset(features, self.right[at], self.quality[at], self.cost[at], observed)

    def reward(self, stage: int, picks: Integers) -> Floats:
        """Return the reward of stopping at a stage with these answers, shape (n_questions,)."""
        spent = self.cost[:, : len(self.features[stage].arms)].sum(axis=1)
        return np.asarray(self.quality[np.arange(len(self)), picks] - spent)


@dataclass(frozen=True, slots=True, eq=False)
class StageModel:
    """The models of a stage.

    Attributes:
        answers: Router that scores the answers so far.
        scores: Knots of the calibration: scores of best answers, increasing, shape (n_knots,).
        probabilities: Probability at each knot that the answer is right, shape (n_knots,).
        gain: Router that predicts the gain of going on; None: it is the last stage.
    """

    answers: Router
    scores: Floats
    probabilities: Floats
    gain: Router | None = None

    def probability(self, scores: Floats) -> Floats:
        """Return the probability that a best answer with this score is right, shape (n,)."""
        return np.interp(scores, self.scores, self.probabilities)


@dataclass(frozen=True, slots=True, eq=False)
class CascadeWalk:
    """The stops of a cascade on some questions.

    Attributes:
        stage: Index of the last stage that ran, shape (n,).
        pick: Index of the arm whose answer was picked, shape (n,).
        probability: Predicted probability that this answer is right, shape (n,).
    """

    stage: Integers
    pick: Integers
    probability: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Cascade:
    """A fitted cascade.

    Attributes:
        spec: Stages of the cascade, and how it was fitted.
        models: Models of each stage.
        relevance: Relevance model of passages, if it reads relevance.
    """

    spec: CascadeSpec
    models: tuple[StageModel, ...]
    relevance: RelevanceModel | None = None

    def features(self, labels: CascadeDataset) -> tuple[Features, ...]:
        """Return the features of questions as its routers read them. Raises RouterError."""
        return tuple(_add_relevance(features, labels.seen, self.relevance) for features in labels.features)

    def gains(self, stage: int, features: Features, scores: Floats) -> Floats:
        """Return the predicted gain of going on, shape (n,); -inf at the last stage. Raises RouterError.

        Args:
            stage: Index of the stage.
            features: Features of the arms that have answered by then, from `features`.
            scores: Scores of the answers by the stage's router, shape (n, n_arms).
        """
        gain = self.models[stage].gain
        return np.full(len(features), -np.inf) if gain is None else gain.scores(_flat(features, scores))[:, 0]

    def walk(self, features: Sequence[Features], thresholds: Floats | None = None) -> CascadeWalk:
        """Run the stages on questions whose answers are all known. Raises RouterError.

        Args:
            features: For each stage, features of the arms that have answered by then, from `features`.
            thresholds: Gain above which each stage but the last goes on, shape (n_stages - 1,); None: 0.
        """
        limits = np.append(np.zeros(len(self.models) - 1) if thresholds is None else thresholds, np.inf)
        n = len(features[0])
        stage, pick, probability = np.zeros(n, dtype=np.intp), np.zeros(n, dtype=np.intp), np.zeros(n)
        here = np.arange(n)
        for number, model in enumerate(self.models):
            remaining_features = features[number].rows(here)
            scores = model.answers.scores(remaining_features)
            stage[here], pick[here] = number, scores.argmax(axis=1)
            probability[here] = model.probability(scores.max(axis=1))
            here = here[self.gains(number, remaining_features, scores) > limits[number]]
            if not len(here):
                break
        return CascadeWalk(stage, pick, probability)


def stage_features(
    texts: Sequence[str],
    arms: Sequence[str],
    found: Sequence[Sequence[Sequence[Passage]]],
    answers: Sequence[Sequence[str]],
) -> Features:
    """Return the features of the members that have answered so far; later members have no influence.

    Args:
        texts: The questions.
        arms: Names of these members.
        found: Passages that each answer was written from, best first: `found[question][arm]`.
        answers: The answers, empty if a member failed: `answers[question][arm]`.
    """
    rows = [
        np.hstack(
            [
                signals.measure_agreement([[passage.id for passage in passages] for passages in of_arms]),
                signals.word_signals(text, of_arms),
            ]
        )
        for text, of_arms in zip(texts, found, strict=True)
    ]
    return Features(
        tuple(arms),
        tuple(texts),
        QUESTION,
        build_question_table(texts),
        np.empty((len(texts), 0), dtype=np.float32),
        ArmTable(FOUND, np.array(rows).reshape(len(texts), len(arms), len(FOUND))),
        build_answered_table(texts, arms, answers, found),
    )


def fit_cascade(
    spec: CascadeSpec,
    labels: CascadeDataset,
    on_progress: Progress,
    build_answers: Build = AnswerTrees,
    build_gain: Build = GainTrees,
) -> tuple[Cascade, list[Floats]]:
    """Return a cascade, and out-of-fold gains of each stage but the last, each of shape (n,).

    Args:
        spec: Stages of the cascade.
        labels: The questions.
        on_progress: Called with each step.
        build_answers: Builds the router that scores each answer so far.
        build_gain: Builds the router that predicts the reward gained by going on.

    Raises:
        RouterError: A router cannot be fitted.
    """
    parts = folds(labels.features[0].texts)
    relevance = None
    if spec.relevance:
        relevance, labels = _with_relevance(labels, parts, on_progress)
    last, row = len(spec.stages) - 1, np.arange(len(labels))
    models: list[StageModel] = []
    stage_scores: list[Floats] = []
    for stage, features in enumerate(labels.features):
        answers = RoutingDataset(features, labels.right[:, : len(features.arms)], is_choice=False)
        router, scores = _fit_out_of_fold(build_answers, answers, parts)
        best = labels.right[row, scores.argmax(axis=1)]
        models.append(StageModel(router, *_fit_knots(scores.max(axis=1), best)))
        stage_scores.append(scores)
        on_progress("fitting to the answers of each stage", stage + 1, last + 1)
    rewards = [labels.reward(stage, scores.argmax(axis=1)) for stage, scores in enumerate(stage_scores)]
    onwards, gains = rewards[last], [np.empty(0)] * last
    for stage in reversed(range(last)):
        gain_labels = RoutingDataset(
            _flat(labels.features[stage], stage_scores[stage]),
            (onwards - rewards[stage])[:, None],
            is_choice=False,
        )
        router, scores = _fit_out_of_fold(build_gain, gain_labels, parts)
        models[stage], gains[stage] = replace(models[stage], gain=router), scores[:, 0]
        onwards = np.where(gains[stage] > 0.0, onwards, rewards[stage])
        on_progress("fitting to the gains of going on", last - stage, last)
    return Cascade(spec, tuple(models), relevance), gains


def _with_relevance(
    labels: CascadeDataset, parts: Sequence[tuple[Integers, Integers]], on_progress: Progress
) -> tuple[RelevanceModel, CascadeDataset]:
    """Return a relevance model fitted to all questions, and the data with out-of-fold relevance."""
    observed = labels.seen
    if observed is None or not any(observed.gold):
        raise RouterError("relevance is learned from gold_ids, and no question has any")
    examples, owners = make_examples(labels.features, observed)
    rows, features = [], []
    for number, (training, held_out) in enumerate(parts, start=1):
        model = _fit_relevance(examples, np.isin(owners, training))
        rest = observed.rows(held_out)
        features.append(
            [_add_relevance(of_stage.rows(held_out), rest, model) for of_stage in labels.features]
        )
        rows.append(held_out)
        on_progress("fitting relevance", number, len(parts) + 1)
    order = np.argsort(np.concatenate(rows))
    whole = tuple(stack_features(stages).rows(order) for stages in zip(*features, strict=True))
    model = _fit_relevance(examples, np.ones(len(owners), dtype=bool))
    on_progress("fitting relevance", len(parts) + 1, len(parts) + 1)
    return model, replace(labels, features=whole)


def _fit_relevance(examples: Examples, chosen: NDArray[np.bool_]) -> RelevanceModel:
    try:
        return examples.fit(np.flatnonzero(chosen))
    except RelevanceError as error:
        raise RouterError(f"the cascade cannot learn relevance: {error}") from error


def _add_relevance(
    features: Features, observed: StageObservations | None, model: RelevanceModel | None
) -> Features:
    """Return the features of a stage, with relevance if there is a model. Raises RouterError."""
    if model is None:
        return features
    if observed is None:
        raise RouterError("the cascade reads the relevance of passages: give it what was found and answered")
    return with_relevance(features, observed, model)


def _fit_out_of_fold(
    build: Build, labels: RoutingDataset, parts: Sequence[tuple[Integers, Integers]]
) -> tuple[Router, Floats]:
    """Return a router fitted to all labels, and out-of-fold scores, shape (n, n_arms)."""
    scores = out_of_fold_scores(build, labels, parts)
    return build().fit(labels), scores


def _fit_knots(scores: Floats, right: Floats) -> tuple[Floats, Floats]:
    """Return the knots of the isotonic regression of `right` on `scores`, each of shape (n_knots,)."""
    from scipy.optimize import isotonic_regression  # here: replicas read what is fitted

    distinct, at, counts = np.unique(scores, return_inverse=True, return_counts=True)
    fitted = isotonic_regression(np.bincount(at, right) / counts, weights=counts)
    knots = np.unique(np.concatenate([fitted.blocks[:-1], fitted.blocks[1:] - 1]))
    return distinct[knots], np.clip(fitted.x[knots], 0.0, 1.0)


def _flat(features: Features, scores: Floats) -> Features:
    """Return the features of the arm `GO_ON`: those of all arms of a question, and their scores."""
    tables = [table for table in (features.retrieved, features.answered) if table is not None]
    tables.append(ArmTable(("score",), scores[:, :, None]))
    names = [f"{name} of {arm}" for table in tables for arm in features.arms for name in table.names]
    values = np.hstack([table.values.reshape(len(features), -1) for table in tables])
    best = np.sort(scores, axis=1)[:, ::-1]
    lead = best[:, :1] - (best[:, 1:2] if best.shape[1] > 1 else 0.0)
    table = ArmTable((*names, "best score", "lead"), np.hstack([values, best[:, :1], lead])[:, None, :])
    return replace(features, arms=(GO_ON,), retrieved=table, answered=None)


def make_examples(features: Sequence[Features], seen: StageObservations) -> tuple[Examples, NDArray[np.intp]]:
    """Return the examples of a relevance model, and the index of each example's question.

    A question gives an example for each stage with passages. Raises RouterError.
    """
    cases, owners = [], []
    for stage in features:
        for number, (text, row, gold) in enumerate(zip(stage.texts, seen.found, seen.gold, strict=True)):
            if gold and (by_arm := _by_arm(stage.arms, row)):
                cases.append(Case(text, by_arm, gold))
                owners.append(number)
    try:
        return Examples.from_cases(cases, FITTING), np.array(owners, dtype=np.intp)
    except RelevanceError as error:
        raise RouterError(f"the cascade cannot learn relevance: {error}") from error


def _by_arm(arms: Sequence[str], row: Found) -> dict[str, Sequence[Passage]]:
    return {arm: passages for arm, passages in zip(arms, row, strict=False) if passages}


def with_relevance(features: Features, seen: StageObservations, model: RelevanceModel) -> Features:
    """Add the predicted relevance of passages to the features of a stage."""
    n = len(features.arms)
    relevance = [
        model.relevance(text, _by_arm(features.arms, row))
        for text, row in zip(features.texts, seen.found, strict=True)
    ]
    passages, answers = [row[:n] for row in seen.found], [row[:n] for row in seen.answers]
    return router_features.with_relevance(features, relevance, passages, answers)


def stack_features(parts: Sequence[Features]) -> Features:
    """Concatenate features of the same arms and columns along the questions."""
    first = parts[0]
    retrieved, answered = (
        None
        if table is None
        else ArmTable(table.names, np.concatenate([getattr(part, name).values for part in parts]))
        for name, table in (("retrieved", first.retrieved), ("answered", first.answered))
    )
    return Features(
        first.arms,
        tuple(text for part in parts for text in part.texts),
        first.names,
        np.concatenate([part.question for part in parts]),
        np.concatenate([part.embedding for part in parts]),
        retrieved,
        answered,
        None if first.fit is None else np.concatenate([part.fit for part in parts if part.fit is not None]),
    )

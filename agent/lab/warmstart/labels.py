"""Labels: outcomes of arms enter the log as decisions, which every learner reads.

    outcomes of arms, questions --choose_labels--> labels --turns--> decisions of `labels` --> the log

A label is a decision of the policy `labels`: one of the arms with a known outcome on the question was drawn
uniformly. A learner handles it like any decision; evaluation excludes it.

With n known arms its propensity is 1 / n. If all n are drawn, one decision each, they are a stratified
sample: each draw is uniform, and their mean weighted by the inverse propensity is exactly that of the
question. Unlike the draws of a service they are dependent, since they exclude one another.

A running service learns labels with its next step; a stopped one, when it starts. Labels also close an open
drift alarm. Labels of a warm start are learned only by its candidate; see `armwise.agent.lab.warmstart.run`.

Labels reach a policy in two ways; either is enough.

    as decisions   this module: the policy learns from them as from traffic. For policies without a router,
                   for few labels or few arms per question, for new arms.
    as a router    `armwise lab train`, and a policy with `prior_feature: router`, which starts from its
                   scores and learns the rest. Better from the first question on if every arm was labelled
                   on hundreds of questions.

With a router in the configuration, the contexts of labels have its scores, as a service with this router
would have computed them, so that a policy learns how reliable that feature is.

    question that the router was trained on  -->  out-of-fold score      (armwise.agent.routers.out_of_fold)
    any other question                       -->  score of the router

For a router that reads passages, all arms that it knows search first. So a label is charged like a turn, with
the searches of all arms.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console
from rich.table import Table

from armwise.agent.config import AppConfig
from armwise.agent.config.warm_start import QUESTION_LINE
from armwise.agent.lab.offline import (
    embed_questions,
    measure_fit,
    observe_features,
    read_place,
    read_questions,
    sample_profiles,
    select_arms,
)
from armwise.agent.lab.routers import utilities, validation
from armwise.agent.routers import (
    Features,
    RouterError,
    Stage,
    Trained,
    dataset,
    out_of_fold,
    read_trained,
    saved,
)
from armwise.agent.serving import arm_infos
from armwise.agent.turn import Embeddings, build_context
from armwise.arms.base import Progress
from armwise.arms.lab.portfolio import Outcomes
from armwise.arms.models import digest_backbone
from armwise.arms.profile import NO_PROFILES, Profiles
from armwise.arms.suggestions import did_you_mean
from armwise.feedback.drift import record_warm_start
from armwise.feedback.events import LABELS, Context, Cost, Decision, Execution, Feedback, Status
from armwise.feedback.log import Store
from armwise.feedback.registry import arm_sets
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import examples, label_turns, traffic

Floats = NDArray[np.float64]

COSTS = ("steps", "prompt_tokens", "completion_tokens", "retrieval_s", "llm_s", "usd")
"""The fields of `Cost`."""

IN_TWO = {"kilotokens": ("prompt_tokens", "completion_tokens"), "seconds": ("retrieval_s", "llm_s")}
"""Components of a price that are the sum of two fields; a total is stored in the first."""

OF_RUN = "."
"""Separator between the digest of a label and the run that inserted it, in the id of its decision."""


BATCH = 64
"""Labels per commit; a service on the same log may have to wait for a commit."""


class WarmStartError(ValueError):
    """Labels or sources are missing or unusable; the message lists what is left out, and why."""


@dataclass(frozen=True, slots=True)
class LabelDecisions:
    """The outcomes that become decisions. All tables have the shape (n_questions, n_arms).

    Attributes:
        outcomes: Outcomes of the arms.
        arms: Labelled actions, in the order of the actions.
        columns: Column of each of these arms in the outcomes.
        values: The values of each metric, NaN if unknown.
        costs: The costs by field of `Cost`, NaN if unknown.
        known: Whether a cell can be drawn.
        cells: Question and arm of each decision, in the order of insertion, shape (n, 2).
        left_out: Number of cells that are left out, by reason.
    """

    outcomes: Outcomes
    arms: tuple[str, ...]
    columns: tuple[int, ...]
    values: Mapping[str, Floats]
    costs: Mapping[str, Floats]
    known: NDArray[np.bool_]
    cells: NDArray[np.intp]
    left_out: Mapping[str, int]


def choose_labels(
    outcomes: Outcomes,
    rule: RewardRule,
    metrics: Mapping[str, str],
    arms: Sequence[str],
    seed: int = 0,
) -> LabelDecisions:
    """Choose the cells that become decisions, and their order.

    A cell is known if it has a value of every metric that any arm has on the question, and every cost with a
    price, so that arms cannot gain from missing measurements.

    Args:
        outcomes: Outcomes of the arms.
        rule: Declares the metrics and the prices.
        metrics: Maps at least one declared metric to the score that is its value.
        arms: The actions; actions without labels, and labels of other arms, are skipped.
        seed: Seed of the order.

    Raises:
        RewardError: A metric is undeclared, or a value is out of its range.
        WarmStartError: A score does not exist, or all cells are left out.
    """
    labelled = tuple(arm for arm in arms if arm in outcomes.arms)
    if not labelled:
        raise WarmStartError(f"no labelled arm ({', '.join(outcomes.arms)}) is an action ({', '.join(arms)})")
    columns = tuple(outcomes.arms.index(arm) for arm in labelled)
    values = {metric: _values(outcomes, rule, metric, score)[:, columns] for metric, score in metrics.items()}
    costs = {field: values[:, columns] for field, values in _costs(outcomes).items()}
    given = ~np.isnan(list(values.values()))
    lacking = given.any(axis=2, keepdims=True) & ~given
    gaps = {"without a score": lacking.any(axis=0) | ~given.any(axis=0)}
    remedies: list[tuple[NDArray[np.bool_], str]] = []
    for component, names in (
        utilities.list_needed_costs(rule.cost, outcomes.costs).items() if rule.cost_weight > 0.0 else ()
    ):
        spent = np.array([_read_cost(outcomes, name)[:, columns] for name in names])
        unknown: NDArray[np.bool_] = np.isnan(spent).any(axis=0)
        gaps[f"without {component}, which have a price"] = unknown
        remedies.append((unknown, utilities.remedy(component)))
    is_known = np.ones((len(outcomes.questions), len(labelled)), dtype=np.bool_)
    left_out: dict[str, int] = {}
    for reason, gap in gaps.items():
        if n := int((is_known & gap).sum()):
            left_out[reason] = n
        is_known &= ~gap
    if not is_known.any():
        why = ", ".join(f"{n:,} {reason}" for reason, n in left_out.items())
        do = "; ".join(remedy for unknown, remedy in remedies if unknown.any())
        raise WarmStartError(f"no label of {', '.join(labelled)} is left: {why}" + (f"; {do}" if do else ""))
    cells = np.argwhere(is_known)
    order = np.random.default_rng(seed).permutation(len(cells))  # mixes the arms
    return LabelDecisions(outcomes, labelled, columns, values, costs, is_known, cells[order], left_out)


def _values(outcomes: Outcomes, rule: RewardRule, metric: str, score: str) -> Floats:
    """Return the values of a metric, checked against its declaration."""
    declared = rule.metric(metric)
    if score not in outcomes.scores:
        raise WarmStartError(f"metric {metric!r} is to get {score!r}{did_you_mean(score, outcomes.scores)}")
    values = outcomes.scores[score]
    for value in np.unique(values[~np.isnan(values)]).tolist():
        declared.parse(value, metric)
    return values


def _costs(outcomes: Outcomes) -> dict[str, Floats]:
    """Return the fields of `Cost`, NaN if unknown, each of shape (n_questions, n_arms)."""
    costs = {field: _read_cost(outcomes, field) for field in COSTS}
    for component, (first, second) in IN_TWO.items():
        if len(way := utilities.choose_costs(component, outcomes.costs)) == 1:
            costs |= {first: _read_cost(outcomes, way[0]), second: _read_cost(outcomes, "")}
    return costs


def _read_cost(outcomes: Outcomes, name: str) -> Floats:
    """Return a cost; all NaN if it was not measured."""
    shape = len(outcomes.questions), len(outcomes.arms)
    return outcomes.costs.get(name, np.full(shape, np.nan))


def turns(
    labels: LabelDecisions,
    contexts: Sequence[Context],
    *,
    seen_as: Mapping[str, str] | None = None,
    run: int | None = None,
    clock: Callable[[], float] = time.time,
) -> Iterator[label_turns.LabelTurn]:
    """Yield the facts of each label.

    The id of a decision consists of the run and a digest of the arm's outcome on the question and of
    `seen_as`. So inserting a label again, in any order, and with other live arms, gives the same decision.
    Times are left out of the digest, since every measurement of the same outcome gives others.

    Args:
        labels: The labels.
        contexts: Context of each question, shape (n_questions,).
        seen_as: Inputs of the contexts by arm, as a text: a question with other features is another label.
        run: The warm start that inserts them; None: every recipe learns them.
        clock: Seconds since the epoch.
    """
    episode = None if run is None else examples.name_episode(run)
    outcomes = labels.outcomes
    for row, at in labels.cells.tolist():
        question, arm, column = outcomes.questions[row], labels.arms[at], labels.columns[at]
        values = _select_known(labels.values, row, at)
        cost = _cost(_select_known(labels.costs, row, at))
        passages, answer = outcomes.passages[row][column] or (), outcomes.answers[row][column]
        untimed = replace(cost, retrieval_s=0.0, llm_s=0.0)
        seen = seen_as[arm] if seen_as else ""
        content = [seen, question.id, question.text, arm, values, untimed, passages, answer]
        digest = f"label-{blake2b(orjson.dumps(content), digest_size=16).hexdigest()}"
        name = digest if run is None else f"{digest}{OF_RUN}{run}"
        arms = tuple(other for other, could in zip(labels.arms, labels.known[row], strict=True) if could)
        now = clock()
        yield label_turns.LabelTurn(
            Decision(
                id=name,
                context=contexts[row],
                arms=arms,
                probabilities=(1.0 / len(arms),) * len(arms),
                drawn=arm,
                policy=LABELS,
                version=0,
                decided_at=now,
                deadline=now,  # its feedback is known already
                episode_id=episode,
            ),
            Execution(name, arm, Status.OK, cost, passages, answer, finished_at=now),
            tuple(Feedback(f"{name}:{metric}", name, metric, value, now) for metric, value in values.items()),
        )


def label_digest(decision_id: str) -> str:
    """Return the part of a label's id that is the same for all runs.

    >>> label_digest("label-5eed.7"), label_digest("label-5eed")
    ('label-5eed', 'label-5eed')
    """
    return decision_id.partition(OF_RUN)[0]


def _select_known(tables: Mapping[str, Floats], row: int, column: int) -> dict[str, float]:
    """Return the known values of a cell."""
    values = {name: table[row, column].item() for name, table in tables.items()}
    return {name: value for name, value in values.items() if not np.isnan(value)}


def _cost(amounts: Mapping[str, float]) -> Cost:
    """Return a cost as the log stores it: counts are integers, and missing fields are 0.

    >>> _cost({"steps": 1.6, "llm_s": 0.5})
    Cost(steps=2, prompt_tokens=0, completion_tokens=0, retrieval_s=0.0, llm_s=0.5, usd=0.0)
    """
    steps, read, written, retrieval_s, llm_s, usd = (amounts.get(name, 0.0) for name in COSTS)
    return Cost(round(steps), round(read), round(written), retrieval_s, llm_s, usd)


def compute_reward(turn: label_turns.LabelTurn, rule: RewardRule) -> float:
    """Return the reward of a label."""
    reward = rule.reward(rule.aggregate(turn.feedback), turn.execution.cost)
    assert reward is not None  # every label has a value
    return reward


def label_decisions(
    outcomes: Outcomes,
    contexts: Sequence[Context],
    rule: RewardRule,
    metrics: Mapping[str, str],
    arms: Sequence[str],
) -> Iterator[tuple[Decision, float]]:
    """Yield labels as a learner reads them from the log, for `policy.learn`.

    `contexts` has the context of each question; the other arguments are those of `choose_labels`.
    """
    labels = choose_labels(outcomes, rule, metrics, arms)
    return (
        (turn.decision, compute_reward(turn, rule)) for turn in turns(labels, contexts, clock=lambda: 0.0)
    )


@dataclass(frozen=True, slots=True)
class RouterScores:
    """Scores of a router on some questions.

    Attributes:
        scores: Scores of each question, by arm.
        out_of_fold: Number of questions that the router was trained on, whose scores are out-of-fold.
        backbone: Name of the router's sentence encoder.
        embedding: Unit vectors of the questions by that encoder, shape (n_questions, dim).
        outcomes: Outcomes of the arms, with the costs of turns with this router.
        source: Digests of the inputs of the scores.
    """

    scores: tuple[Mapping[str, float], ...]
    out_of_fold: int
    backbone: str
    embedding: NDArray[np.float32]
    outcomes: Outcomes
    source: str

    def summary(self) -> str:
        """Return a summary of the scores, in a line."""
        return (
            f"the router scores {len(self.scores) - self.out_of_fold:,} questions as in service, and "
            f"{self.out_of_fold:,} that it was trained on as routers that were not"
        )


def score_labelled(outcomes: Outcomes, config: AppConfig, on_progress: Progress) -> RouterScores:
    """Score labelled questions with the configured router.

    Args:
        outcomes: Outcomes of arms on the questions.
        config: Configuration with the router and the live arms; arms that the router knows are scored.
        on_progress: Called with the progress.

    Raises:
        RouterError: The router cannot be read, lacks out-of-fold scores of its training questions, or reads
            passages of an arm without outcomes.
        CorpusError: The corpus cannot be read.
        ModelNotFoundError: The model of the backbone cannot be found.
    """
    assert config.router is not None
    trained = read_trained(config.router.path)
    about, kept = trained.about, out_of_fold.read_out_of_fold(config.router.path, trained.about)
    arms = [arm for arm in config.actions if arm in about.arms]
    texts = [question.text for question in outcomes.questions]
    fitted, before = kept.look_up(texts, len(about.arms))
    if lacking := int((fitted & np.isnan(before).any(axis=1)).sum()):
        raise RouterError(
            f"the router was trained on {lacking:,} of these {len(texts):,} questions and has no "
            "out-of-fold scores of them: train it with --folds 5, or take other questions"
        )
    if trained.router.stage is Stage.QUESTION:
        observed = observe_features(outcomes, config, about.backbone, Stage.QUESTION, on_progress).features
        features = replace(observed, arms=tuple(arms), fit=None)  # arms without outcomes have scores, too
        if trained.router.reads_fit:
            features = replace(features, fit=measure_fit(features, config, about.backbone, on_progress))
        which = np.ones((len(texts), len(arms)), dtype=np.bool_)
    else:
        features = _features_with_passages(outcomes, config, trained, arms, on_progress)
        which, outcomes = _answering(outcomes, arms), charge_searches(outcomes, arms)
    scores = trained.router.scores(features)
    scores[fitted] = before[fitted][:, dataset.positions(about.arms, arms)]
    return RouterScores(
        tuple(
            {arm: score for arm, score, answered in zip(arms, row, answering, strict=True) if answered}
            for row, answering in zip(scores.tolist(), which.tolist(), strict=True)
        ),
        int(fitted.sum()),
        about.backbone,
        features.embedding,
        outcomes,
        orjson.dumps([about.digest, about.k, kept.digest]).decode(),
    )


def _features_with_passages(
    outcomes: Outcomes,
    config: AppConfig,
    trained: Trained,
    arms: Sequence[str],
    on_progress: Progress,
) -> Features:
    """Return the features of the router after all arms have searched.

    Raises:
        RouterError: An arm has no outcomes.
    """
    if missing := [arm for arm in arms if arm not in outcomes.arms]:
        raise RouterError(
            f"the router reads what every arm retrieves, and there are no outcomes of {', '.join(missing)}: "
            "label these arms, too"
        )
    subset = select_arms(outcomes, dataset.positions(outcomes.arms, arms))
    passages = tuple(tuple(ids and ids[: trained.about.k] for ids in row) for row in subset.passages)
    return observe_features(
        replace(subset, passages=passages),
        config,
        trained.about.backbone,
        Stage.RETRIEVED,
        on_progress,
        trained.relevance,
    ).features


def charge_searches(outcomes: Outcomes, arms: Sequence[str]) -> Outcomes:
    """Return outcomes with the costs of turns in which some arms search before the draw.

    Each of these arms costs the sum of their searches; any other arm costs its search in addition. Failed
    searches are free. Prices of searches are charged; the cost of language models within searches is left
    out, since outcomes do not list it separately.

    Args:
        outcomes: Outcomes with the costs of turns without a router.
        arms: Arms that search before the draw.
    """
    at, costs = dataset.positions(outcomes.arms, arms), dict(outcomes.costs)
    searches_first = np.isin(np.arange(len(outcomes.arms)), at)
    for name in validation.PAID[Stage.RETRIEVED]:
        if name in costs:
            cost = utilities.read_cost(outcomes, name)
            first = np.where(_answering(outcomes, arms), cost[:, at], 0.0).sum(axis=1, keepdims=True)
            costs[name] = first + np.where(searches_first & ~np.isnan(cost), 0.0, cost)
    return validation.with_searches(replace(outcomes, costs=costs), outcomes)


def _answering(outcomes: Outcomes, arms: Sequence[str]) -> NDArray[np.bool_]:
    """Return whether each of some arms searched successfully, shape (n_questions, n_arms)."""
    at = dataset.positions(outcomes.arms, arms)
    return np.array([[row[arm] is not None for arm in at] for row in outcomes.passages], dtype=np.bool_)


class OtherLabels(BaseModel):
    """Labels that the same recipe learns already, which are therefore not inserted again."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    runs: tuple[int, ...] = Field(default=(), description="Warm starts that have inserted them.")
    after: int = Field(
        default=0,
        ge=0,
        description="Position of the training log after which it learns the labels of no warm start.",
    )


class InsertSettings(BaseModel):
    """Settings of an insertion of labels."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: AppConfig = Field(
        description="Configuration with the arms, the metrics, the features and the log."
    )
    outcomes: Path = Field(description="Outcomes, or the folder of a job or of a score matrix.")
    queries: Path | None = Field(
        default=None,
        description="Insert only the labels of these questions: JSON lines, plain or .gz, each "
        f"{QUESTION_LINE}.",
    )
    metrics: dict[str, str] = Field(min_length=1, description="Score to use for each declared metric.")
    seed: int = Field(default=0, ge=0, description="Seed that shuffles the labels.")
    dry_run: bool = Field(default=False, description="Report what would be inserted, without inserting it.")
    run: int | None = Field(
        default=None,
        ge=1,
        description="The warm start that inserts them; null for labels that every recipe learns.",
    )
    beside: OtherLabels | None = Field(
        default=None, description="Labels that the same recipe learns already; null for none."
    )


def insert_labels(settings: InsertSettings, console: Console, on_progress: Progress) -> int:
    """Insert labels into the log, print a summary, and return the number of new ones.

    Labels that are in the log already are skipped, so an interrupted run can simply be repeated.

    Args:
        settings: The labels to insert.
        console: Prints the summary.
        on_progress: Called with the progress.

    Raises:
        ValueError: Outcomes, questions, arms, metrics or router are invalid; subclasses say which.
        CorpusError: The corpus of a router that reads passages cannot be read.
        ModelNotFoundError: The model of a backbone cannot be found.
        StoreError: The log cannot be read or written.
    """
    store = Store(settings.config.database_url, redact=settings.config.privacy.redactor())
    try:
        # the live arms, which may differ from those of the configuration
        config = settings.config.with_arms(arm_sets.at_start(store, settings.config.arm_documents))
        outcomes = _outcomes(settings, config, console)
        scored = (
            None if config.router is None else score_labelled(outcomes, config.resolve_places(), on_progress)
        )
        if scored is not None:
            outcomes = scored.outcomes
        labels = choose_labels(outcomes, config.reward, settings.metrics, list(config.actions), settings.seed)
        texts = [question.text for question in outcomes.questions]
        profiles = sample_profiles(config.resolve_places(), on_progress)
        contexts = make_contexts(config, texts, on_progress, scored, profiles)
        source = describe_inputs(config, profiles, "" if scored is None else scored.source)
        rewards: defaultdict[str, list[float]] = defaultdict(list)
        done, new, total = 0, 0, len(labels.cells)
        digests = _read_known(store, config.reward.join, settings.beside)
        pending = turns(labels, contexts, seen_as=source, run=settings.run)
        while batch := list(islice(pending, BATCH)):
            unknown = [turn for turn in batch if label_digest(turn.decision.id) not in digests]
            new += (
                len(label_turns.missing_from_log(store, unknown))
                if settings.dry_run
                else label_turns.insert(store, unknown)
            )
            done += len(batch)
            for turn in batch:
                rewards[turn.decision.drawn].append(compute_reward(turn, config.reward))
            on_progress("inserting labels", done, total)
        if new and settings.run is None and not settings.dry_run:  # a run does so with its promotion
            record_warm_start(store, new, time.time())
    finally:
        store.close()
    _print_summary(labels, list(config.actions), rewards, new, settings.dry_run, console)
    if scored is not None:
        console.print(scored.summary(), markup=False, highlight=False, soft_wrap=True)
        stage = Stage.RETRIEVED if saved.find_passage_backbone(config.router) else Stage.QUESTION
        if config.reward.cost_weight > 0.0 and (
            free := validation.warn_uncharged(outcomes, config.reward.cost, stage)
        ):
            console.print(free, markup=False, highlight=False, soft_wrap=True)
    return new


def _read_known(store: Store, join: str, beside: OtherLabels | None) -> set[str]:
    """Return the digests of labels that are in the log already."""
    if beside is None:
        return set()
    return {
        label_digest(decision_id)
        for decision_id in traffic.label_ids(store, beside.runs, join, after=beside.after)
    }


def describe_inputs(config: AppConfig, profiles: Profiles = NO_PROFILES, scores: str = "") -> dict[str, str]:
    """Return the inputs of a context besides the question, as JSON by arm.

    They are the features, the encoder, what is known of this arm and of its sources, and the source of the
    router's scores. The other arms are left out: labels of an arm stay the same when others come and go.

    Raises:
        ModelNotFoundError: The model of the backbone cannot be found.
    """
    encoder = None
    if embedding := config.features.embedding:
        backbone = config.backbones[embedding.backbone]
        encoder = digest_backbone(backbone), backbone.query_prefix
    arms = {name: info.features for name, info in arm_infos(config).items()}
    features = config.features.model_dump(mode="json")
    sampled = {
        name: [
            blake2b(array.tobytes(), digest_size=8).hexdigest()
            for one in known
            for array in (one.terms, one.shares, one.vectors)
            if array is not None
        ]
        for name, known in profiles.items()
    }
    return {
        name: orjson.dumps([features, encoder, known, sampled.get(name), scores]).decode()
        for name, known in arms.items()
    }


def make_contexts(
    config: AppConfig,
    texts: Sequence[str],
    on_progress: Progress,
    scored: RouterScores | None = None,
    profiles: Profiles = NO_PROFILES,
) -> list[Context]:
    """Return the contexts of questions, as a service with this configuration would make them.

    Args:
        config: Configuration with the features and the arms.
        texts: The questions.
        on_progress: Called with the progress.
        scored: Scores of the configured router, if there is one.
        profiles: Profiles of the arms' sources, if the features include similarities.
    """
    arms, specs = arm_infos(config, profiles), (config.features.embedding, config.features.similarity)
    vectors: list[Embeddings] = [{} for _ in texts]
    for backbone in dict.fromkeys(spec.backbone for spec in specs if spec is not None and spec.backbone):
        embeddings = _embed(config, backbone, texts, on_progress, scored)
        vectors = [{**row, **more} for row, more in zip(vectors, embeddings, strict=True)]
    contexts = [
        build_context(text, config.features, embedding, arms)
        for text, embedding in zip(texts, vectors, strict=True)
    ]
    if scored is None:
        return contexts
    return [context.with_scores(scores) for context, scores in zip(contexts, scored.scores, strict=True)]


def _embed(
    config: AppConfig, backbone: str, texts: Sequence[str], on_progress: Progress, scored: RouterScores | None
) -> list[Embeddings]:
    """Return the embedding of each question, reused from the router if the backbone is the same."""
    if scored is not None and scored.backbone == backbone:
        return [{backbone: vector} for vector in scored.embedding]
    return [{backbone: vector} for vector in embed_questions(texts, config.backbones[backbone], on_progress)]


def _outcomes(settings: InsertSettings, config: AppConfig, console: Console) -> Outcomes:
    """Read the outcomes of the requested questions. Raises ValueError."""
    path = settings.outcomes
    requested = [] if settings.queries is None else read_questions(settings.queries)
    outcomes = read_place(path, requested, {arm: config.arms[arm] for arm in config.actions})
    rows = list(range(len(outcomes.questions)))
    if settings.queries is not None:
        ids = {question.id for question in requested}
        rows = [row for row in rows if outcomes.questions[row].id in ids]
        if not rows:
            raise WarmStartError(f"{path} has no question of {settings.queries}")
        if left_out := len(outcomes.questions) - len(rows):
            console.print(f"{left_out:,} questions are left out: {settings.queries} does not name them")
    return outcomes.only(rows)


def _print_summary(
    labels: LabelDecisions,
    actions: Sequence[str],
    rewards: dict[str, list[float]],
    new: int,
    dry_run: bool,
    console: Console,
) -> None:
    total, questions = len(labels.cells), len(np.unique(labels.cells[:, 0]))
    lines = [
        f"{total:,} labels of {len(rewards):,} arms on {questions:,} questions: "
        f"{new:,} {'would be ' if dry_run else ''}new, {total - new:,} in the log before"
    ]
    lines += [f"left out: {n:,} labels {reason}" for reason, n in labels.left_out.items()]
    lines += [
        f"left out: arm {arm!r}, which is not an action" for arm in labels.outcomes.arms if arm not in actions
    ]
    if unlabelled := [arm for arm in actions if arm not in rewards]:
        lines.append(f"without any label: {', '.join(unlabelled)}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    table = Table("arm", "labels", "mean reward")
    for column in table.columns[1:]:
        column.justify = "right"
    for arm in labels.arms:
        if arm_rewards := rewards.get(arm):
            table.add_row(arm, f"{len(arm_rewards):,}", f"{np.mean(arm_rewards):+.4f}")
    console.print(table)

"""Evaluate a trained model on outcomes outside its training set.

    folder of a router     its choices, compared with each arm, the best single arm and the oracle
    folder of a cascade    its choices, compared with each arm, each stage and the oracle
    folder of relevance    the passages of a learned fusion, compared with each arm and rank fusion

The best single arm is selected on these outcomes, so the comparison favours it. Intervals are from a
bootstrap over questions, as `intervals.present`; the test is Wilcoxon's signed-rank test of the utility,
question by question. A router also has a cost-quality curve, unless the best arm is the cheapest one.

With `leave_out`, a router is fitted again without each type of question, or each data set, and evaluated on
that.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import Field
from rich.console import Console
from rich.table import Table

from armwise.agent.lab.offline.cascade_training import cascade_labels, cascade_outcomes
from armwise.agent.lab.offline.cost_curve import CostCurve, cost_curve
from armwise.agent.lab.offline.labelled_data import PLAIN, LabelledQuestions, select_arms
from armwise.agent.lab.offline.relevance_training import (
    digest_of_text,
    read_cases,
    read_trained_on,
    validate_relevance,
    with_gold,
)
from armwise.agent.lab.offline.router_features import observe_features
from armwise.agent.lab.offline.router_training import Training, learn_relevance, read_trainable, refit_scores
from armwise.agent.lab.offline.training import print_results
from armwise.agent.lab.routers import cascade, utilities, validation
from armwise.agent.lab.simulation import load_questions
from armwise.agent.routers import (
    RouterError,
    RouterSpec,
    Trained,
    dataset,
    out_of_fold,
    read_trained,
    saved,
)
from armwise.agent.routers.utility import Utility
from armwise.arms.base import Progress
from armwise.arms.lab.portfolio import Outcomes
from armwise.arms.relevance import FILE, read_model
from armwise.feedback.ope import Interval, intervals
from armwise.feedback.reward import Prices

COLUMNS = ("utility", "em", "f1", "cost")

AXES = {"dollars": Prices(steps=0, usd=1), "kilotokens": Prices(steps=0, kilotokens=1), "steps": Prices()}
"""Costs for the curve if the utility includes none: the first that is known and differs between arms."""

WRITTEN = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY


class EvaluationSettings(LabelledQuestions):
    """A trained model, and the outcomes to evaluate it on."""

    model: Path = Field(description="Folder that `armwise lab train` wrote.")
    resamples: int = Field(default=2000, ge=100, le=100_000, description="Number of bootstrap resamples.")
    seed: int = Field(default=0, ge=0, description="Seed of the bootstrap.")
    output: Path | None = Field(default=None, description="File for the figures, as JSON.")
    leave_out: Literal["type", "dataset"] | None = Field(
        default=None,
        description="Leave out each value of this field of the questions in turn, fit the router "
        "again to all other questions, and evaluate it on those with that value.",
    )


@dataclass(frozen=True, slots=True)
class RouterEvaluation:
    """The results of a router on questions outside its training set.

    Attributes:
        questions: Number of questions.
        known: Number of questions left out, since the router was trained on them.
        single: The arm with the highest mean utility on these questions.
        rows: Known means of `COLUMNS`, for each arm, the router and the oracle; the cost is that of the
            utility, including the router's inputs.
        picks: Share of the questions on which the router picks each arm, by arm; they sum to 1.
        gap: Share of the utility gap between best single arm and oracle that is closed; None: no gap.
        interval: 95 % interval of that share.
        p: p-value of the differences to the best single arm.
        curve: Cost and utility of the router over the weight of cost; None: the best arm is the cheapest.
    """

    questions: int
    known: int
    single: str
    rows: Mapping[str, Mapping[str, float]]
    picks: Mapping[str, float]
    gap: float | None
    interval: Interval | None
    p: float
    curve: CostCurve | None

    def table(self) -> Table:
        """Return the results as a table."""
        table = Table(title=f"{self.questions:,} questions that the router was not trained on")
        columns = [name for name in COLUMNS if any(name in row for row in self.rows.values())]
        for column in ("", *columns, "picked"):
            table.add_column(column, justify="right" if column else "left")
        for name, row in self.rows.items():
            numbers = [f"{row[column]:.4f}" if column in row else "" for column in columns]
            picked = f"{self.picks[name]:.1%}" if name in self.picks else ""
            table.add_row(name, *numbers, picked, style="bold" if name == validation.ROUTER else None)
        return table

    def conclusion(self) -> str:
        """Return a summary in one line."""
        if self.gap is None or self.interval is None:
            return f"no arm is better than {self.single} on any question"
        low, high = self.interval
        return (
            f"the router closes {self.gap:.1%} of the gap between {self.single} and the oracle, "
            f"95 % interval {low:.1%} to {high:.1%}, p = {self.p:.2g}"
        )


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The results of a router on questions of a kind that it was not trained on.

    Attributes:
        questions: Number of questions.
        single: The arm with the highest mean utility on these questions.
        router: Mean utility of the router, including the cost of its inputs.
        single_utility: That of the best single arm.
        oracle: That of the best arm of each question.
        gap: Share of the utility gap between best single arm and oracle that is closed; None: no gap.
        interval: 95 % interval of that share.
        p: p-value of the differences to the best single arm, times the number of kinds (Bonferroni).
    """

    questions: int
    single: str
    router: float
    single_utility: float
    oracle: float
    gap: float | None
    interval: Interval | None
    p: float | None


@dataclass(frozen=True, slots=True)
class LeaveOutEvaluation:
    """The results of a router on each kind of question that it was not trained on.

    Attributes:
        column: Field of the questions that has the kind.
        rows: Results by kind.
        mean: Their mean, each kind counting alike; its gap is that of the mean utilities.

    Source: Kim and Diaz 2025, LTRR, arXiv:2506.13743, section 5.2, the unseen splits of table 1.
    """

    column: str
    rows: Mapping[str, LeftOut]
    mean: LeftOut

    def table(self) -> Table:
        """Return the results as a table."""
        table = Table(title=f"questions of each {self.column}, by a router trained on all others", padding=0)
        headings = ("questions", "best arm", "its utility", "router", "oracle", "gap", "95 % interval", "p")
        for heading in (self.column, *headings):
            table.add_column(heading, justify="left" if heading in (self.column, "best arm") else "right")
        for name, row in {**self.rows, "mean": self.mean}.items():
            span = "" if row.interval is None else "{:+.0%} to {:+.0%}".format(*row.interval)
            utility = (f"{value:.4f}" for value in (row.single_utility, row.router, row.oracle))
            gap, p = "" if row.gap is None else f"{row.gap:+.1%}", "" if row.p is None else f"{row.p:.2g}"
            table.add_row(name, f"{row.questions:,}", row.single, *utility, gap, span, p)
        return table

    def conclusion(self) -> str:
        """Return a summary in one line."""
        if self.mean.gap is None or self.mean.interval is None:
            return "no router can be better than the best arm of each kind"
        low, high = self.mean.interval
        return (
            f"on questions of a {self.column} that it was not trained on, the router closes "
            f"{self.mean.gap:.1%} of the gap between the best arm of the {self.column} and the oracle, "
            f"95 % interval {low:.1%} to {high:.1%}"
        )


def evaluate_model(
    settings: EvaluationSettings, console: Console, on_progress: Progress
) -> Mapping[str, Any]:
    """Evaluate the model in a folder, print the results, and return them.

    Raises:
        ValueError: The folder has no model, or outcomes or questions are invalid; subclasses say which.
        CorpusError: The corpus cannot be read.
        ModelNotFoundError: The model of the backbone cannot be found.
    """
    folder = settings.model.expanduser()
    for name, evaluate in MODELS.items():
        if (folder / name).exists():
            if settings.leave_out is not None and name != saved.ABOUT:
                raise RouterError(f"{folder} holds no router: only a router is evaluated with leave_out")
            figures = evaluate(settings, console, on_progress)
            if settings.output is not None:
                settings.output.write_bytes(orjson.dumps(figures, option=WRITTEN))
            return figures
    raise RouterError(f"{folder} holds no trained model: none of {', '.join(MODELS)} is there")


def _router(settings: EvaluationSettings, console: Console, on_progress: Progress) -> Mapping[str, Any]:
    """Evaluate a router."""
    trained = read_trained(settings.model)
    if settings.leave_out is not None:
        return _leave_out(settings, settings.leave_out, trained, console, on_progress)
    config = settings.config.resolve_places()
    outcomes, n_left_out = _unknown(settings, trained)
    about, stage = trained.about, trained.router.stage
    if about.backbone not in config.backbones:
        raise RouterError(f"the router was trained on backbone {about.backbone!r}, which is not declared")
    trained.check_encoder(config.backbones[about.backbone])
    passages = tuple(tuple(ids and ids[: about.k] for ids in row) for row in outcomes.passages)
    observed = observe_features(
        replace(outcomes, passages=passages), config, about.backbone, stage, on_progress, trained.relevance
    )
    result = evaluate_scores(
        outcomes,
        trained.router.scores(observed.features),
        Utility.model_validate(about.utility),
        stage,
        settings.resamples,
        np.random.default_rng(settings.seed),
    )
    result = replace(result, known=n_left_out)
    if n_left_out:
        console.print(f"left out, as the router was trained on them: {n_left_out:,} questions", **PLAIN)
    print_results(result, console)
    if result.curve is not None:
        print_results(result.curve, console)
    return asdict(result)


def _unknown(settings: EvaluationSettings, trained: Trained) -> tuple[Outcomes, int]:
    """Return the outcomes of the router's arms outside its training set, and how many are left out.

    Raises:
        RouterError: An arm of the router is missing, or no question is left.
    """
    outcomes = settings.read()
    arms = trained.about.arms
    outcomes = select_arms(outcomes, dataset.positions(outcomes.arms, arms))
    kept = out_of_fold.read_out_of_fold(settings.model, trained.about)
    fitted, _ = kept.look_up([question.text for question in outcomes.questions], len(arms))
    if fitted.all():
        raise RouterError(f"the router was trained on all of these {len(fitted):,} questions: take others")
    return outcomes.only(~fitted), int(fitted.sum())


def evaluate_scores(
    outcomes: Outcomes,
    scores: dataset.Floats,
    utility: Utility,
    stage: dataset.Stage,
    resamples: int,
    rng: np.random.Generator,
) -> RouterEvaluation:
    """Evaluate the arms that a router scores highest; of tied arms, the first.

    Args:
        outcomes: Outcomes of its arms.
        scores: Scores of the router, shape (n_questions, n_arms).
        utility: The utility; it is reported unscaled, and without subtracting that of another arm.
        stage: Stage of the router, which determines the cost of its inputs.
        resamples: Number of resamples of the bootstrap.
        rng: Random generator of the bootstrap.

    Raises:
        RouterError: The utility lacks a score or cost, or no question has the utility of every arm.
    """
    plain = _plain(utility)
    compared = _compare(outcomes, scores, plain, stage)
    complete, paid, worth, picks = compared.complete, compared.paid, compared.worth, compared.picks
    rows = {
        arm: _means(complete, plain, np.full(len(worth), column)) for column, arm in enumerate(outcomes.arms)
    }
    best = worth.argmax(axis=1)
    rows |= {validation.ROUTER: _means(paid, plain, picks), validation.ORACLE: _means(complete, plain, best)}
    shares = np.bincount(picks, minlength=len(outcomes.arms)) / len(picks)
    gap, span = _measure_gap([compared], resamples, rng)
    return RouterEvaluation(
        len(worth),
        0,
        outcomes.arms[compared.single],
        rows,
        dict(zip(outcomes.arms, shares.tolist(), strict=True)),
        gap,
        span,
        compared.p,
        _curve(complete, paid, compared.scores, plain, resamples, rng),
    )


def _leave_out(
    settings: EvaluationSettings,
    column: Literal["type", "dataset"],
    trained: Trained,
    console: Console,
    on_progress: Progress,
) -> Mapping[str, Any]:
    """Evaluate a router on each value of a column, fitted again to the questions with other values."""
    if settings.queries is None:
        raise RouterError(f"leave_out reads the {column} of the questions: give them with --queries")
    about, stage = trained.about, trained.router.stage
    recipe = Training.model_validate(
        {
            **{name: getattr(settings, name) for name in LabelledQuestions.model_fields},
            "arms": about.arms,
            "router": RouterSpec(kind=about.kind, params=about.params),
            "utility": about.utility,
            "quality": about.quality,
            "backbone": about.backbone,
            "relevance": about.relevance is not None,
            "seed": settings.seed,
            "output": settings.model,
        }
    )
    outcomes = read_trainable(recipe, console)
    if about.k:
        passages = tuple(tuple(ids and ids[: about.k] for ids in row) for row in outcomes.passages)
        outcomes = replace(outcomes, passages=passages)
    value_by_id = {question.id: getattr(question, column) for question in load_questions(settings.queries)}
    values = np.array([value_by_id.get(question.id) or "" for question in outcomes.questions])
    if not values.all():
        unnamed = outcomes.questions[int((values == "").argmax())].id
        raise RouterError(f"question {unnamed!r} has no {column}")
    names = np.unique(values).tolist()
    if len(names) < 2:
        raise RouterError(f"every question has the {column} {names[0]!r}: no other is left to train on")
    texts = np.array([question.text for question in outcomes.questions])
    parts = [
        (
            np.flatnonzero((values != name) & ~np.isin(texts, texts[values == name])),
            np.flatnonzero(values == name),
        )
        for name in names
    ]
    observed = observe_features(
        outcomes, settings.config.resolve_places(), about.backbone, stage, on_progress
    )
    predict = learn_relevance(recipe, outcomes, observed, on_progress) if recipe.relevance else None
    scores = refit_scores(recipe, outcomes, observed.features, parts, on_progress, predict)
    result = evaluate_left_out(
        outcomes, scores, values, column, recipe.utility, stage, settings.resamples,
        np.random.default_rng(settings.seed),
    )  # fmt: skip
    print_results(result, console)
    return asdict(result)


def evaluate_left_out(
    outcomes: Outcomes,
    scores: dataset.Floats,
    values: NDArray[np.str_],
    column: str,
    utility: Utility,
    stage: dataset.Stage,
    resamples: int,
    rng: np.random.Generator,
) -> LeaveOutEvaluation:
    """Evaluate the scores of routers that were each fitted without the kind of question that they score.

    Args:
        outcomes: Outcomes of the arms.
        scores: Scores of each question by the router of its kind, shape (n_questions, n_arms).
        values: Kind of each question, shape (n_questions,).
        column: Name of the field that has the kind.
        utility: The utility, as in `evaluate_scores`.
        stage: Stage of the routers.
        resamples: Number of resamples of the bootstrap, which draws questions within each kind.
        rng: Random generator of the bootstrap.

    Raises:
        RouterError: The utility lacks a score or cost, or no question of a kind has the utility of every arm.
    """
    compared = {
        name: _compare(outcomes.only(values == name), scores[values == name], _plain(utility), stage)
        for name in np.unique(values).tolist()
    }

    def row(parts: Sequence[_Compared], single: str, p: float | None) -> LeftOut:
        router, best, oracle = np.mean([part.earned.mean(axis=0) for part in parts], axis=0).tolist()
        n = sum(len(part.earned) for part in parts)
        return LeftOut(n, single, router, best, oracle, *_measure_gap(parts, resamples, rng), p)

    rows = {
        name: row([part], outcomes.arms[part.single], min(1.0, len(compared) * part.p))
        for name, part in compared.items()
    }
    return LeaveOutEvaluation(column, rows, row([*compared.values()], "", None))


def _plain(utility: Utility) -> Utility:
    """Return a utility in the unit of its measures: unscaled, and over no other arm."""
    return utility.model_copy(update={"scale": "none", "over": None, "prior": 0.0})


@dataclass(frozen=True, slots=True)
class _Compared:
    """A router, the best single arm and the oracle on the questions on which every arm is known.

    Attributes:
        complete: Outcomes of these questions.
        paid: The outcomes with the charges of the router.
        worth: Utility of each arm, shape (n_questions, n_arms).
        scores: Scores of the router, shape (n_questions, n_arms).
        picks: Best-scored arms, shape (n_questions,).
        single: The arm with the highest mean utility.
        earned: Utility of router, single arm and oracle, shape (n_questions, 3).
    """

    complete: Outcomes
    paid: Outcomes
    worth: dataset.Floats
    scores: dataset.Floats
    picks: NDArray[np.intp]
    single: int
    earned: dataset.Floats

    @property
    def p(self) -> float:
        """The p-value of Wilcoxon's signed-rank test of the differences to the single arm."""
        from scipy.stats import wilcoxon

        gains = self.earned[:, 0] - self.earned[:, 1]
        return float(wilcoxon(gains).pvalue) if gains.any() else 1.0


def _compare(outcomes: Outcomes, scores: dataset.Floats, plain: Utility, stage: dataset.Stage) -> _Compared:
    """Compare a router with the arms. Raises RouterError."""
    worth = utilities.utilities(outcomes, plain)
    whole = ~np.isnan(worth).any(axis=1)
    if not whole.any():
        raise RouterError("no question has the outcomes of every arm of the router")
    complete, worth, scores = outcomes.only(whole), worth[whole], scores[whole]
    paid, at = validation.charge_stage(complete, stage), np.arange(len(worth))
    picks, single, best = scores.argmax(axis=1), int(worth.mean(axis=0).argmax()), worth.argmax(axis=1)
    earned = np.column_stack([utilities.utilities(paid, plain)[at, picks], worth[:, single], worth[at, best]])
    return _Compared(complete, paid, worth, scores, picks, single, earned)


def _curve(
    outcomes: Outcomes,
    paid: Outcomes,
    scores: dataset.Floats,
    utility: Utility,
    resamples: int,
    rng: np.random.Generator,
) -> CostCurve | None:
    """Return the cost-quality curve; `paid` has the outcomes with the charges of the router."""
    quality = utilities.utilities(outcomes, utility.model_copy(update={"cost_weight": 0.0}))
    axes = {"cost": utility.cost} if utility.cost_weight > 0.0 else AXES
    for unit, prices in axes.items():
        names = {
            name for group in utilities.list_needed_costs(prices, outcomes.costs).values() for name in group
        }
        if not names <= outcomes.costs.keys():
            continue
        cost, charged = (utilities.price_costs(results, prices) for results in (outcomes, paid))
        if np.isfinite(cost).all() and np.isfinite(charged).all() and np.ptp(cost.mean(axis=0)) > 0.0:
            return cost_curve(scores, quality, cost, charged, outcomes.arms, unit, resamples, rng)
    return None


def _gap(means: dataset.Floats) -> dataset.Floats:
    """Return the share of the way from the single arm to the oracle; columns are router, single, oracle.

    >>> _gap(np.array([[0.5, 0.4, 0.8]])).round(2).tolist()
    [0.25]
    """
    return np.asarray((means[:, 0] - means[:, 1]) / (means[:, 2] - means[:, 1]))


def _measure_gap(
    parts: Sequence[_Compared], resamples: int, rng: np.random.Generator
) -> tuple[float | None, Interval | None]:
    """Return the share of the gap that is closed, and its 95 % interval; None if there is no gap.

    Args:
        parts: Parts of the questions, whose means count alike.
        resamples: Number of resamples; each draws questions within every part.
        rng: Random generator of the resamples.
    """
    means = np.mean([part.earned.mean(axis=0) for part in parts], axis=0)[None]
    resampled = np.mean(
        [
            [
                part.earned[rng.integers(len(part.earned), size=len(part.earned))].mean(axis=0)
                for _ in range(resamples)
            ]
            for part in parts
        ],
        axis=0,
    )
    if not means[0, 2] > means[0, 1]:
        return None, None
    gap = float(_gap(means)[0])
    shares = _gap(resampled[resampled[:, 2] > resampled[:, 1]])
    low, high = np.quantile(shares, [0.025, 0.975]).tolist() if len(shares) else (np.nan, np.nan)
    worst = np.mean([part.worth.min(axis=1).mean() for part in parts])
    least = float(_gap(np.array([[worst, *means[0, 1:]]]))[0])
    possible = min([least, gap, *([low] if len(shares) else [])]), 1.0
    return gap, intervals.present(gap, (low, high), possible, n=sum(len(part.worth) for part in parts))[1]


def _means(outcomes: Outcomes, utility: Utility, picks: NDArray[np.intp]) -> Mapping[str, float]:
    """Return the known means of `COLUMNS` for the picked arms, by column."""
    at = np.arange(len(picks))
    values = {name: outcomes.scores[name][at, picks] for name in ("em", "f1") if name in outcomes.scores}
    values = {"utility": utilities.utilities(outcomes, utility)[at, picks], **values}
    if utility.cost_weight > 0.0:
        values["cost"] = utilities.price_costs(outcomes, utility.cost)[at, picks]
    return {name: float(value.mean()) for name, value in values.items() if not np.isnan(value).any()}


def _relevance(settings: EvaluationSettings, console: Console, on_progress: Progress) -> Mapping[str, Any]:
    """Evaluate a relevance model."""
    model = read_model(settings.model)
    outcomes = with_gold(settings, ("*",))
    fitted = read_trained_on(settings.model.expanduser())
    in_training = np.array([digest_of_text(question.text) in fitted for question in outcomes.questions])
    if in_training.all():
        raise RouterError(
            f"the model was trained on all of these {len(in_training):,} questions: take others"
        )
    if in_training.any():
        console.print(f"left out, as the model was trained on them: {in_training.sum():,} questions", **PLAIN)
    outcomes = outcomes.only(~in_training)
    if arms := [arm for arm in model.header.arms if arm in outcomes.arms]:
        outcomes = select_arms(outcomes, dataset.positions(outcomes.arms, arms))
    cases, _ = read_cases(outcomes, settings.config.resolve_places(), on_progress)
    relevance = []
    for number, case in enumerate(cases, start=1):
        relevance.append(model.relevance(case.question, case.found))
        on_progress("predicting relevance", number, len(cases))
    result = validate_relevance(cases, relevance, model.header.k)
    assert result is not None
    print_results(result, console)
    return asdict(result)


def _cascade(settings: EvaluationSettings, console: Console, on_progress: Progress) -> Mapping[str, Any]:
    """Evaluate a cascade on all questions, since it stores no list of its training questions."""
    trained = cascade.read_cascade(settings.model)
    spec, utility = trained.cascade.spec, Utility.model_validate(trained.about.utility)
    everything = settings.read()
    outcomes = cascade_outcomes(everything, spec, utility, console)
    labels, _ = cascade_labels(outcomes, spec, utility, settings.config, console, on_progress)
    result = cascade.validate_cascade(
        trained.cascade,
        labels,
        outcomes,
        right=_right_of_all(everything, spec, outcomes),
        resamples=settings.resamples,
        seed=settings.seed,
    )
    print_results(result, console)
    return asdict(result)


def _right_of_all(
    everything: Outcomes, spec: cascade.CascadeSpec, of_cascade: Outcomes
) -> dataset.Floats | None:
    """Return the predicted score of all arms of the outcomes; None: the cascade asks all of them."""
    if set(everything.arms) <= set(of_cascade.arms):
        return None
    kept = {question.id for question in of_cascade.questions}
    rows = np.array([question.id in kept for question in everything.questions])
    return np.asarray(everything.only(rows).scores[spec.right])


MODELS: Mapping[str, Callable[[EvaluationSettings, Console, Progress], Mapping[str, Any]]] = {
    saved.ABOUT: _router,
    cascade.saved.ABOUT: _cascade,
    FILE: _relevance,
}
"""Evaluation by the file in a folder, in this order: the first two may include a relevance model."""

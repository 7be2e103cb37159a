"""Evaluate a trained model on outcomes outside its training set.

    folder of a router     its choices, compared with each arm, the best single arm and the oracle
    folder of a cascade    its choices, compared with each arm, each stage and the oracle
    folder of relevance    the passages of a learned fusion, compared with each arm and rank fusion

The best single arm is selected on these outcomes, so the comparison favours it. Intervals are from a
bootstrap over questions, as `intervals.shown`; the test is Wilcoxon's signed-rank test of the utility,
question by question. A router also has a cost-quality curve, unless the best arm is the cheapest one.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import Field
from rich.console import Console
from rich.table import Table

from armwise.agent.lab.offline.cascade_training import cascade_labels, cascade_outcomes
from armwise.agent.lab.offline.cost_curve import CostCurve, cost_curve
from armwise.agent.lab.offline.labelled_data import PLAIN, LabelledQuestions, of_arms
from armwise.agent.lab.offline.relevance_training import (
    digest_of_text,
    read_cases,
    trained_on,
    validate_relevance,
    with_gold,
)
from armwise.agent.lab.offline.router_features import observed_features
from armwise.agent.lab.offline.training import print_results
from armwise.agent.lab.routers import cascade, utilities, validation
from armwise.agent.routers import RouterError, Trained, dataset, out_of_fold, read_trained, saved
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

    model: Path = Field(description="Folder that `armwise train` wrote.")
    resamples: int = Field(
        default=2000, ge=100, le=100_000, description="Number of resamples of the bootstrap."
    )
    seed: int = Field(default=0, ge=0, description="Seed of the bootstrap.")
    output: Path | None = Field(default=None, description="File for the figures, as JSON.")


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
            figures = evaluate(settings, console, on_progress)
            if settings.output is not None:
                settings.output.write_bytes(orjson.dumps(figures, option=WRITTEN))
            return figures
    raise RouterError(f"{folder} holds no trained model: none of {', '.join(MODELS)} is there")


def _router(settings: EvaluationSettings, console: Console, on_progress: Progress) -> Mapping[str, Any]:
    """Evaluate a router."""
    trained = read_trained(settings.model)
    config = settings.config.settled()
    outcomes, n_left_out = _unknown(settings, trained)
    about, stage = trained.about, trained.router.stage
    if about.backbone not in config.backbones:
        raise RouterError(f"the router was trained on backbone {about.backbone!r}, which is not declared")
    trained.check_encoder(config.backbones[about.backbone])
    passages = tuple(tuple(ids and ids[: about.k] for ids in row) for row in outcomes.passages)
    observed = observed_features(
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
    outcomes = of_arms(outcomes, dataset.positions(outcomes.arms, arms))
    kept = out_of_fold.read_out_of_fold(settings.model, trained.about)
    fitted, _ = kept.of([question.text for question in outcomes.questions], len(arms))
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
    from scipy.stats import wilcoxon

    plain = utility.model_copy(update={"scale": "none", "over": None, "prior": 0.0})
    worth = utilities.utilities(outcomes, plain)
    whole = ~np.isnan(worth).any(axis=1)
    if not whole.any():
        raise RouterError("no question has the outcomes of every arm of the router")
    complete, worth, scores = outcomes.only(whole), worth[whole], scores[whole]
    paid, at = validation.charged(complete, stage), np.arange(len(worth))
    picks, single, best = scores.argmax(axis=1), int(worth.mean(axis=0).argmax()), worth.argmax(axis=1)
    rows = {
        arm: _means(complete, plain, np.full(len(worth), column)) for column, arm in enumerate(outcomes.arms)
    }
    rows |= {validation.ROUTER: _means(paid, plain, picks), validation.ORACLE: _means(complete, plain, best)}
    earned = np.column_stack([utilities.utilities(paid, plain)[at, picks], worth[:, single], worth[at, best]])
    gains = earned[:, 0] - earned[:, 1]
    resampled = np.array(
        [earned[rng.integers(len(earned), size=len(earned))].mean(axis=0) for _ in range(resamples)]
    )
    gaps = _gap(resampled[resampled[:, 2] > resampled[:, 1]])
    differ = bool(earned[:, 2].mean() > earned[:, 1].mean())
    gap = float(_gap(earned.mean(axis=0)[None])[0]) if differ else None
    span = None if gap is None else _span(gap, gaps, earned, worth.min(axis=1))
    shares = np.bincount(picks, minlength=len(outcomes.arms)) / len(picks)
    return RouterEvaluation(
        len(worth),
        0,
        outcomes.arms[single],
        rows,
        dict(zip(outcomes.arms, shares.tolist(), strict=True)),
        gap,
        span,
        float(wilcoxon(gains).pvalue) if gains.any() else 1.0,
        _curve(complete, paid, scores, plain, resamples, rng),
    )


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
        names = {name for group in utilities.needed(prices, outcomes.costs).values() for name in group}
        if not names <= outcomes.costs.keys():
            continue
        cost, charged = (utilities.priced(results, prices) for results in (outcomes, paid))
        if np.isfinite(cost).all() and np.isfinite(charged).all() and np.ptp(cost.mean(axis=0)) > 0.0:
            return cost_curve(scores, quality, cost, charged, outcomes.arms, unit, resamples, rng)
    return None


def _gap(means: dataset.Floats) -> dataset.Floats:
    """Return the share of the way from the single arm to the oracle; columns are router, single, oracle.

    >>> _gap(np.array([[0.5, 0.4, 0.8]])).round(2).tolist()
    [0.25]
    """
    return np.asarray((means[:, 0] - means[:, 1]) / (means[:, 2] - means[:, 1]))


def _span(gap: float, shares: dataset.Floats, earned: dataset.Floats, least: dataset.Floats) -> Interval:
    """Return the 95 % interval of a gap.

    Args:
        gap: The gap on all questions.
        shares: Gaps on resampled questions.
        earned: Utility of router, single arm and oracle on each question, shape (n_questions, 3).
        least: Utility of the worst arm on each question, shape (n_questions,).
    """
    low, high = np.quantile(shares, [0.025, 0.975]).tolist() if len(shares) else (np.nan, np.nan)
    worst = np.array([[least.mean(), *earned[:, 1:].mean(axis=0)]])
    possible = min([float(_gap(worst)[0]), gap, *([low] if len(shares) else [])]), 1.0
    return intervals.shown(gap, (low, high), possible, n=len(earned))[1]


def _means(outcomes: Outcomes, utility: Utility, picks: NDArray[np.intp]) -> Mapping[str, float]:
    """Return the known means of `COLUMNS` for the picked arms, by column."""
    at = np.arange(len(picks))
    values = {name: outcomes.scores[name][at, picks] for name in ("em", "f1") if name in outcomes.scores}
    values = {"utility": utilities.utilities(outcomes, utility)[at, picks], **values}
    if utility.cost_weight > 0.0:
        values["cost"] = utilities.priced(outcomes, utility.cost)[at, picks]
    return {name: float(value.mean()) for name, value in values.items() if not np.isnan(value).any()}


def _relevance(settings: EvaluationSettings, console: Console, on_progress: Progress) -> Mapping[str, Any]:
    """Evaluate a relevance model."""
    model = read_model(settings.model)
    outcomes = with_gold(settings, ("*",))
    fitted = trained_on(settings.model.expanduser())
    in_training = np.array([digest_of_text(question.text) in fitted for question in outcomes.questions])
    if in_training.all():
        raise RouterError(
            f"the model was trained on all of these {len(in_training):,} questions: take others"
        )
    if in_training.any():
        console.print(f"left out, as the model was trained on them: {in_training.sum():,} questions", **PLAIN)
    outcomes = outcomes.only(~in_training)
    if arms := [arm for arm in model.header.arms if arm in outcomes.arms]:
        outcomes = of_arms(outcomes, dataset.positions(outcomes.arms, arms))
    cases, _ = read_cases(outcomes, settings.config.settled(), on_progress)
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

"""The proposals that a warm start makes from labels: a portfolio of arms, and a router.

Both are written to folders, with their results. With `live` the candidate brings them, and its promotion puts
them in service together with its policy; otherwise they are proposals for an operator to apply.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from armwise.agent.config import AppConfig, warm_start
from armwise.agent.lab.offline import (
    YAML,
    PortfolioSelection,
    Training,
    on_par,
    read_labelled,
    select_portfolio,
    train_router,
    write_scores,
)
from armwise.agent.lab.routers.cross_validation import FOLDS
from armwise.agent.lab.warmstart.journal import Step
from armwise.agent.lab.warmstart.label_sources import Lot
from armwise.agent.lab.warmstart.labels import WarmStartError
from armwise.agent.routers import RouterSpec, Stage
from armwise.arms.base import Progress
from armwise.arms.lab.portfolio import Outcomes, read_matrix, score_matrix
from armwise.arms.suggestions import did_you_mean

KEPT = 5
"""Number of runs whose proposals are kept."""


def remove_older(folder: Path, run: int, configured: Path | None) -> None:
    """Remove the proposals of all but the last runs, except a configured one.

    Args:
        folder: Folder with a subfolder per run, named by its number.
        run: Number of the newest run.
        configured: Folder of the configured router, which is kept.
    """
    runs = sorted(
        int(path.name) for path in folder.glob("*") if path.name.isdecimal() and int(path.name) <= run
    )
    for number in runs[:-KEPT]:
        old = folder / str(number)
        if configured is None or not configured.is_relative_to(old):
            shutil.rmtree(old, ignore_errors=True)


def propose_portfolio(
    plan: warm_start.PortfolioPlan,
    config: AppConfig,
    live: Sequence[str],
    lots: Sequence[Lot],
    folder: Path,
    step: Step,
    console: Console,
) -> AppConfig | None:
    """Choose arms by the labels, and write the choice to a folder.

    Args:
        plan: Size or budget, and the measure.
        config: Configuration with the live arms and the arms of the pool.
        live: Names of the live arms, which stay unless others certainly score higher.
        lots: Fetched labels.
        folder: Folder of the run; its content is replaced.
        step: Receives the result.
        console: Prints the tables.

    Returns:
        The configuration with the chosen arms; None: the choice is only a proposal.

    Raises:
        ValueError: The labels lack the score, the choice fails, or an arm cannot go live here; subclasses say
            which.
    """
    outcomes = _on_par(read_labelled([lot.path for lot in lots]), lots)
    if plan.measure not in outcomes.scores:
        hint = did_you_mean(plan.measure, outcomes.scores)
        raise WarmStartError(f"portfolio.measure: no label has a score {plan.measure!r}{hint}")
    specs, backbones = dict(config.arms), dict(config.backbones)
    for lot in lots:
        if (lot.path / score_matrix.ARMS).exists():  # a score matrix has the specs of its arms
            table = score_matrix.read_arms(lot.path)
            specs, backbones = {**table.specs, **specs}, {**table.backbones, **backbones}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_scores(outcomes, plan.measure, specs, backbones, folder / "scores", "warm start")
    output = folder / "portfolio"
    given = plan.model_dump(include={"k", "budget", "cost"})
    selection = PortfolioSelection(scores=folder / "scores", output=output, keep=tuple(live), **given)
    report = select_portfolio(selection, console)
    held_out = report.held_out
    command = f"armwise policy apply {output / YAML}"
    step.said = (
        f"{'chose' if report.rejected is None else 'kept'} {', '.join(report.arms)}: {plan.measure} "
        f"{held_out.portfolio[-1]:.3f} on held-out questions, the best single arm {held_out.single:.3f}; "
    )
    if report.rejected is not None:
        step.said += f"{report.rejected}; "
    step.said += "the candidate brings them" if plan.live else f"serve them with `{command}`"
    step.found = {
        "arms": list(report.arms),
        "measure": plan.measure,
        "value": held_out.portfolio[-1],
        "single": held_out.single,
        "curve": {"portfolio": list(held_out.portfolio), "average": list(held_out.average)},
        "questions": held_out.questions,
        "path": str(output / YAML),
        "apply": command,
    }
    named = [arm for arm in (config.fallback, config.baseline) if arm is not None]
    return config.with_arms({*report.arms, *named}) if plan.live else None


def _on_par(outcomes: Outcomes, lots: Sequence[Lot]) -> Outcomes:
    """Leave out made questions so that lexical and dense arms score alike on those that remain.

    Made questions share the words of their passages, so that lexical arms would be chosen.
    """
    left_out = set[str]()
    for lot in lots:
        if lot.kind == "synthetic":
            matrix = read_matrix(lot.path)
            kept = {matrix.questions[row].id for row in on_par(matrix).tolist()}
            left_out |= {question.id for question in matrix.questions} - kept
    return outcomes.only([question.id not in left_out for question in outcomes.questions])


def explain_no_gain(held_out: Mapping[str, Any] | None) -> str:
    """Return a sentence if a router gained nothing on held-out questions; empty if it did, or none is known.

    >>> rows = {"router": {"utility": 0.71}, "arms": {"bm25": {"utility": 0.71}}, "single": "bm25"}
    >>> explain_no_gain({**rows, "gap": 0.0002})
    'Its router gains nothing: on held-out questions it earns 0.7100, and bm25 for all of them 0.7100.'
    >>> explain_no_gain({**rows, "gap": 0.2}), explain_no_gain(None)
    ('', '')
    """
    if held_out is None or ((gap := held_out["gap"]) is not None and round(gap, 3) > 0.0):
        return ""
    single = held_out["single"]
    return (
        f"Its router gains nothing: on held-out questions it earns {held_out['router']['utility']:.4f}, "
        f"and {single} for all of them {held_out['arms'][single]['utility']:.4f}."
    )


def propose_router(
    plan: warm_start.RouterPlan,
    config: AppConfig,
    lots: Sequence[Lot],
    folder: Path,
    step: Step,
    console: Console,
    on_progress: Progress,
) -> str | None:
    """Train a router on the labels, validate it out of fold, and keep it.

    Args:
        plan: Kind of the router, and the utility of an answer.
        config: Configuration with the live arms and the backbones.
        lots: Fetched labels.
        folder: Folder of the router; its content is replaced.
        step: Receives the result.
        console: Prints the tables.
        on_progress: Called with the progress.

    Returns:
        Name of the router as a candidate of an evaluation; None: the candidate brings it, or the log cannot
        evaluate it.

    Raises:
        ValueError: The labels lack what the plan needs; subclasses say which.
    """
    places = tuple(lot.path for lot in lots)
    arms = tuple(arm for arm in read_labelled(places).arms if arm in config.actions)
    if not arms:
        raise WarmStartError("router: no live arm is labelled, so there is none to choose among")
    training = Training(
        config=config,
        outcomes=places,
        arms=arms,
        router=RouterSpec(kind=plan.kind, params=plan.params),
        utility=plan.utility,
        quality=plan.quality,
        backbone=plan.backbone,
        folds=FOLDS,
        output=folder,
    )
    trained = train_router(training, console, on_progress)
    about = trained.about
    held_out = about.held_out
    evaluable = trained.router.stage is Stage.QUESTION
    step.found = {
        "path": str(folder),
        "kind": about.kind,
        "digest": about.digest,
        "questions": about.questions,
        "held_out": held_out,
        "utility": plan.utility.model_dump(mode="json"),
        "quality": plan.quality,
        "configure": f"router: {{path: {folder}}}",
    }
    step.said = f"trained {about.kind} on {about.questions:,} questions"
    if held_out is not None:
        single = held_out["single"]
        step.said += (
            f": of those that it has not seen it earns {held_out['router']['utility']:.4f}, "
            f"the best single arm, {single}, {held_out['arms'][single]['utility']:.4f}"
        )
    if plan.live:
        step.said += "; the candidate brings it"
        return None
    step.said += f"; serve it with `{step.found['configure']}`"
    if not evaluable:
        step.said += (
            "; it is not evaluated, because it reads every arm's passages, and the log has only one arm's"
        )
    return f"router:{folder}" if evaluable else None

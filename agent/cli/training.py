"""The verbs that make and use labels without a service: label, train, enter-labels, warm-start."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from agent.cli.console import console, errors, explained, progress
from agent.cli.options import ConfigPath
from agent.config import CONFIG, load
from agent.offline import Labelling, Training, train_router
from agent.offline import label as offline_label
from agent.warmstart import RunFailedError, foreseen, insert_labels
from agent.warmstart import warm_start as run_warm_start
from arms.llm import prompts
from feedback.registry import runs


def label(
    queries: Annotated[
        Path, typer.Option("--queries", help="JSON lines with questions, answers and gold_ids; plain or .gz.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the outcomes.")],
    form: Annotated[
        prompts.Form | None, typer.Option("--form", help="What an answer looks like; else short.")
    ] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(
            "--measure",
            help="em, f1, acc, recall (those four if none), answer_correctness, judge, bem; repeatable.",
        ),
    ] = None,
    arms: Annotated[
        list[str] | None, typer.Option("--arms", help="Pattern of arms to ask, else all; repeatable.")
    ] = None,
    pool: Annotated[
        Path | None, typer.Option("--pool", help="A pool of arms; else the arms of the configuration.")
    ] = None,
    corpus: Annotated[
        str | None, typer.Option("--corpus", help="An ingested corpus; else that of the configuration.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Ask this many of the questions.")] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Of their order, and of arms that draw; else 0.")
    ] = None,
    block: Annotated[
        int | None, typer.Option("--block", help="Questions that are finished together; else 16.")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Processes; else one a processor.")] = None,
    at_once: Annotated[
        int | None, typer.Option("--at-once", help="Prompts that a process has in flight; else 64.")
    ] = None,
    bem_model: Annotated[
        str | None, typer.Option("--bem-model", help="Classifier of bem, which is then measured, too.")
    ] = None,
    config: ConfigPath = CONFIG,
) -> None:
    """Have every arm's passages answered on every question; an interrupted run goes on where it stopped.

    Kept are scores, steps and tokens. Seconds are not: they would be others after an interruption.
    """
    with explained():
        given = {
            "form": form,
            "measures": measure,
            "arms": arms,
            "pool": pool,
            "corpus": corpus,
            "limit": limit,
            "seed": seed,
            "block": block,
            "workers": workers,
            "at_once": at_once,
            "bem_model": bem_model,
        }
        asked = {name: value for name, value in given.items() if value is not None}
        settings = load(config, without=["router"])  # it may be about to be trained
        named = {"config": settings, "queries": queries, "output": output}
        with progress() as tell:
            offline_label.run(Labelling.model_validate({**named, **asked}), console, tell)


def scored(text: str) -> tuple[str, str]:
    """Read one `declared=score`; a name alone is both.

    >>> scored("answer_correct=em"), scored("recall")
    (('answer_correct', 'em'), ('recall', 'recall'))
    """
    name, _, score = text.partition("=")
    return name, score or name


def enter_labels(
    outcomes: Annotated[
        Path, typer.Argument(help="What arms did, from `armwise label`; or a matrix, from `armwise score`.")
    ],
    metric: Annotated[
        list[str],
        typer.Option("--metric", help="declared=score, such as answer_correct=em; repeatable."),
    ],
    queries: Annotated[
        Path | None,
        typer.Option("--queries", help="Take the labels of these questions alone; JSON lines, plain or .gz."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Take this many of the questions.")] = None,
    draws: Annotated[str, typer.Option("--draws", help="Arms to draw on a question, or all.")] = "all",
    seed: Annotated[int, typer.Option("--seed", help="Of questions, draws, and order.")] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be entered, and enter nothing.")
    ] = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Enter labels into the log, so that a policy has learned from them before its first question.

    Where every arm was labelled on hundreds of questions, `armwise train` and a policy with
    `prior_feature: router` make more of them. Labels as decisions are for policies without a router, for few
    labels, and for arms that a router does not know. With a router in the configuration they tell its scores,
    too: of a question that it was trained on what it would have said unseen, which `train --folds 5` keeps.
    """
    with explained():
        settings = insert_labels.Entering.model_validate(
            {
                "config": load(config),
                "outcomes": outcomes,
                "metrics": named_once("--metric", map(scored, metric)),
                "queries": queries,
                "limit": limit,
                "draws": None if draws == "all" else draws,
                "seed": seed,
                "dry_run": dry_run,
            }
        )
        with progress() as tell:
            insert_labels.run(settings, console, tell)


def warm_start(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say which labels are new, and do nothing.")
    ] = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Do a warm start now: gather labels, learn a candidate from them, evaluate it, promote or hold it.

    It is the run that a service does by the schedule of `warm_start` in the configuration, in this process,
    whether a service runs or not. Exits with 0 where the candidate was promoted or held, or nothing was new.
    """
    with explained():
        settings = load(config)
        if dry_run:
            with progress() as tell:
                lots = foreseen(settings, tell)
            for lot in lots:
                told = f"{lot.source}: {lot.kind}, {'new' if lot.new else 'known'}, {lot.path}"
                console.print(told, markup=False, highlight=False, soft_wrap=True)
            return
        try:
            with progress() as tell:
                run = run_warm_start(settings, runs.Trigger.COMMAND, console, tell)
        except RunFailedError as error:
            errors.print(str(error), style="red", markup=False, soft_wrap=True)
            raise typer.Exit(1) from None
        console.print(f"run {run.seq}: {run.status.replace('_', ' ')}", markup=False, highlight=False)


def train(
    outcomes: Annotated[
        list[Path],
        typer.Argument(help="What arms did, from `armwise label`; or matrices, from `armwise score`."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the router.")],
    router: Annotated[str | None, typer.Option("--router", help="Kind of the router.")] = None,
    stage: Annotated[
        str | None,
        typer.Option("--stage", help="How far it looks: question, retrieved or answered; else as its kind."),
    ] = None,
    spec: Annotated[
        Path | None, typer.Option("--spec", help="YAML with `kind` and `params` instead of --router.")
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option("--queries", help="JSON lines with questions, where outcomes lack them."),
    ] = None,
    arms: Annotated[
        list[str] | None,
        typer.Option("--arms", help="Pattern of arms to choose among, else all; repeatable."),
    ] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option("--measure", help="Score of the outcomes, with =WEIGHT if not 1; else f1; repeatable."),
    ] = None,
    prior: Annotated[
        float, typer.Option("--prior", help="Weight of the arm's mean exact match over all questions.")
    ] = 0.0,
    cost_weight: Annotated[
        float,
        typer.Option(
            "--cost-weight", help="Utility given up for a unit of cost, at the prices of the reward."
        ),
    ] = 0.0,
    over: Annotated[
        str | None, typer.Option("--over", help="Arm whose utility is subtracted on each question.")
    ] = None,
    minmax: Annotated[
        bool, typer.Option("--minmax", help="Scale the utilities of each question to [0, 1].")
    ] = False,
    quality: Annotated[
        str | None, typer.Option("--quality", help="Score of what was retrieved, for routers that learn it.")
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option("--backbone", help="Of the configuration, to embed questions; else its first."),
    ] = None,
    held_out: Annotated[
        float, typer.Option("--held-out", help="Part of the questions to see what the router is worth on.")
    ] = 0.2,
    folds: Annotated[
        int | None,
        typer.Option(
            "--folds", help="Hold out each of so many parts in turn, as a warm start with it needs."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of what is held out.")] = 0,
    config: ConfigPath = CONFIG,
) -> None:
    """Train a router on outcomes and see what it is worth; `router` in the configuration serves it."""
    with explained():
        settings = load(config, without=["router"])  # it may be about to be trained
        utility = {
            "measures": named_once("--measure", map(weighted, measure or ["f1"])),
            "prior": prior,
            "cost_weight": cost_weight,
            "cost": settings.reward.cost,
            "over": over,
            "scale": "minmax" if minmax else "none",
        }
        given = {
            "config": settings,
            "outcomes": outcomes,
            "queries": queries,
            "arms": arms or ("*",),
            "router": train_router.read_spec(router, stage, spec),
            "utility": utility,
            "quality": quality,
            "backbone": backbone,
            "held_out": held_out,
            "folds": folds,
            "seed": seed,
            "output": output,
        }
        with progress() as tell:
            train_router.run(Training.model_validate(given), console, tell)


def weighted(text: str) -> tuple[str, float]:
    """Read one `score=weight`; a name alone has weight 1.

    >>> weighted("em"), weighted("f1=0.2")
    (('em', 1.0), ('f1', 0.2))
    """
    name, _, weight = text.partition("=")
    try:
        return name, float(weight or 1.0)
    except ValueError:
        raise ValueError(f"--measure {text}: {weight!r} is no number; score=weight was expected") from None


T = TypeVar("T")


def named_once(option: str, pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return what an option gave for each name.

    Raises:
        ValueError: A name is given twice.

    >>> named_once("--measure", [("em", 1.0), ("f1", 0.2)])
    {'em': 1.0, 'f1': 0.2}
    """
    found: dict[str, T] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{option} {name} is given twice: with {found[name]} and with {value}")
        found[name] = value
    return found

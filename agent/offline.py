"""The verbs that need no service: score, portfolio, label, train, warm-start, replay.

More than 300 lines, most of them the options of the verbs and their help.
"""

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from agent.config import load
from agent.console import console, explained, progress
from agent.evaluation import evaluate_log
from agent.label import Labelling
from agent.label import run as run_labelling
from agent.score import Scoring
from agent.score import run as run_scoring
from agent.selection import Selection, select_portfolio
from agent.train import Training, read_spec
from agent.train import run as run_training
from agent.warmstart import WarmStart
from agent.warmstart import run as run_warm_start
from arms.prompts import Form

ConfigPath = Annotated[Path, typer.Option("--config", "-c", help="The Ray Serve configuration file.")]

CONFIG = Path("serve_config.yaml")


def score(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the score matrix.")],
    queries: Annotated[
        Path | None,
        typer.Option("--queries", help="JSON lines with questions, answers and gold_ids; plain or .gz."),
    ] = None,
    from_log: Annotated[
        bool, typer.Option("--from-log", help="Take questions and scores from the log's feedback instead.")
    ] = False,
    corpus: Annotated[
        str | None, typer.Option("--corpus", help="An ingested corpus; else that of the configuration.")
    ] = None,
    pool: Annotated[
        Path | None, typer.Option("--pool", help="A pool of arms; else the arms of the configuration.")
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option(
            "--measure",
            help="R@4 (the default), nDCG@4, RR@4 and the like, em, f1, acc, judge; of the log a metric.",
        ),
    ] = None,
    k: Annotated[
        int | None, typer.Option("-k", help="Passages, where the measure does not say; else 4.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Score this many of the questions.")] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Of their order, and of arms that draw; else 0.")
    ] = None,
    block: Annotated[
        int | None, typer.Option("--block", help="Questions that are finished together; else 32.")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Processes; else one a processor.")] = None,
    timed: Annotated[
        int | None, typer.Option("--timed", help="Searches to time each arm by, else 4; 0 times none.")
    ] = None,
    config: ConfigPath = CONFIG,
) -> None:
    """Score every arm of a pool on every question; an interrupted run goes on where it stopped."""
    with explained():
        given = {
            "measure": measure,
            "queries": queries,
            "corpus": corpus,
            "pool": pool,
            "k": k,
            "limit": limit,
            "seed": seed,
            "block": block,
            "workers": workers,
            "timed": timed,
        }
        asked = {name: value for name, value in given.items() if value is not None}
        named = {"config": load(config), "output": output, "from_log": from_log}
        settings = Scoring.model_validate({**named, **asked})
        with progress() as tell:
            run_scoring(settings, console, tell)


def portfolio(
    scores: Annotated[Path, typer.Argument(help="Folder of a score matrix, from `armwise score`.")],
    k: Annotated[int, typer.Option("-k", help="Arms to choose, those of --start included.")] = 5,
    budget: Annotated[
        float | None, typer.Option("--budget", help="What the arms may cost together, instead of -k.")
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option("--cost", help="What a budget is in: seconds, steps, tokens, or of a log total_tokens."),
    ] = None,
    start: Annotated[
        list[str] | None, typer.Option("--start", help="An arm that must be chosen; repeatable.")
    ] = None,
    include: Annotated[
        list[str] | None, typer.Option("--include", help="Pattern of arms to choose from; repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", help="Pattern of arms to leave out; repeatable.")
    ] = None,
    held_out: Annotated[
        float, typer.Option("--held-out", help="Part of the questions to check the choice on.")
    ] = 0.5,
    splits: Annotated[int, typer.Option("--splits", help="Ways to split the questions.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="Of the splits, and of intervals.")] = 0,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for arms, figures and plot.")] = Path(
        "portfolio"
    ),
) -> None:
    """Choose the few arms that together serve most; the result is configuration for `armwise apply`."""
    with explained():
        settings = Selection(
            scores=scores,
            k=k,
            budget=budget,
            cost=cost,
            start=tuple(start or ()),
            include=tuple(include or ("*",)),
            exclude=tuple(exclude or ()),
            held_out=held_out,
            splits=splits,
            seed=seed,
            output=output,
        )
        select_portfolio(settings, console)


def label(
    queries: Annotated[
        Path, typer.Option("--queries", help="JSON lines with questions, answers and gold_ids; plain or .gz.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the outcomes.")],
    form: Annotated[
        Form | None, typer.Option("--form", help="What an answer looks like; else short.")
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
    """Have every arm's passages answered on every question; an interrupted run goes on where it stopped."""
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
        named = {"config": load(config), "queries": queries, "output": output}
        settings = Labelling.model_validate({**named, **asked})
        with progress() as tell:
            run_labelling(settings, console, tell)


def scored(text: str) -> tuple[str, str]:
    """Read one `declared=score`; a name alone is both.

    >>> scored("answer_correct=em"), scored("recall")
    (('answer_correct', 'em'), ('recall', 'recall'))
    """
    name, _, score = text.partition("=")
    return name, score or name


def warm_start(
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
    """Enter labels into the log, so that a policy has learned from them before its first question."""
    with explained():
        settings = WarmStart.model_validate(
            {
                "config": load(config),
                "outcomes": outcomes,
                "metrics": dict(scored(text) for text in metric),
                "queries": queries,
                "limit": limit,
                "draws": None if draws == "all" else draws,
                "seed": seed,
                "dry_run": dry_run,
            }
        )
        with progress() as tell:
            run_warm_start(settings, console, tell)


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
        int | None, typer.Option("--folds", help="Hold out each of so many parts in turn, instead.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of what is held out.")] = 0,
    config: ConfigPath = CONFIG,
) -> None:
    """Train a router on outcomes and see what it is worth; `router` in the configuration serves it."""
    with explained():
        settings = load(config, without=["router"])  # it may be about to be trained
        utility = {
            "measures": dict(weighted(text) for text in measure or ["f1"]),
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
            "router": read_spec(router, stage, spec),
            "utility": utility,
            "quality": quality,
            "backbone": backbone,
            "held_out": held_out,
            "folds": folds,
            "seed": seed,
            "output": output,
        }
        with progress() as tell:
            run_training(Training.model_validate(given), console, tell)


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


def replay(
    config: ConfigPath = CONFIG,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy", help="uniform, fixed:<arm>, or configured; repeatable; all of them when not given."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the folds of the reward model.")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the estimates as JSON, too.")
    ] = None,
) -> None:
    """Estimate from the log what other policies would have earned."""
    with explained():
        settings = load(config)
        with progress() as tell:
            report = evaluate_log(settings, policy, np.random.default_rng(seed), tell)
        console.print(report.table())
        console.print(report.footnote(), markup=False, style="dim")
        if output is not None:
            output.write_text(json.dumps(report.as_json(), indent=2))

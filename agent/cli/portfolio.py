"""Score a pool of arms and choose a portfolio; neither needs a running service."""

from pathlib import Path
from typing import Annotated

import typer

from agent.cli.console import console, explained, progress
from agent.cli.options import ConfigPath
from agent.config import CONFIG, load
from agent.offline import Scoring, Selection, select_portfolio
from agent.offline import score as offline_score


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
        settings = load(config, without=["router"])  # it may be about to be trained
        named = {"config": settings, "output": output, "from_log": from_log}
        with progress() as tell:
            offline_score.run(Scoring.model_validate({**named, **asked}), console, tell)


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

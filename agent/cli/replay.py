"""The verb that judges candidates on the log: `armwise replay`."""

import json
import re
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from agent.cli.console import console, explained, progress
from agent.cli.options import ConfigPath
from agent.config import CONFIG, load
from agent.evaluation import EvaluationRequest, candidate_names, evaluate_log
from agent.evaluation import request as evaluation_request
from feedback.dataset import ExportSource, LogSource
from feedback.log import Store

SUFFIXES = (".json", ".html")
"""What a report can be written as."""

RANGE = re.compile(r"(\d+)(?:-(\d+))?")

Value = TypeVar("Value")


def replay(
    config: ConfigPath = CONFIG,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            help=f"{', '.join(candidate_names.NAMES)}; a policy is YAML or a file of it. "
            "Repeatable; else uniform, "
            "each logged arm, and configured.",
        ),
    ] = None,
    baseline: Annotated[
        str, typer.Option("--baseline", help="The candidate that the others are compared with.")
    ] = candidate_names.BASELINE,
    since: Annotated[
        str | None, typer.Option("--since", help="Only decisions from then on, such as 2026-05-01T12:00.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Only decisions before then.")] = None,
    version: Annotated[
        str | None, typer.Option("--version", help="Only decisions of these versions: FROM-TO, or one.")
    ] = None,
    feature: Annotated[
        list[str] | None,
        typer.Option("--feature", help="Only decisions with this feature, such as tier=free; repeatable."),
    ] = None,
    cost_weight: Annotated[
        float | None, typer.Option("--cost-weight", help="In place of the configured one.")
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option("--price", help="In place of a configured one, such as steps=0.02; repeatable."),
    ] = None,
    estimator: Annotated[
        list[str] | None, typer.Option("--estimator", help="Repeatable; else ips, snips and dr.")
    ] = None,
    interval: Annotated[
        str, typer.Option("--interval", help="How the intervals are made; see docs/reference/intervals.md.")
    ] = "normal",
    reward_model: Annotated[
        str, typer.Option("--reward-model", help="What predicts rewards: ridge, or the faster means.")
    ] = "ridge",
    gate: Annotated[bool, typer.Option("--gate", help="Have the gate judge each candidate.")] = False,
    seed: Annotated[
        int, typer.Option("--seed", help="Of folds, of resamples, and of what is recomputed.")
    ] = 0,
    export: Annotated[
        Path | None, typer.Option("--from", help="Read a file of `armwise export` instead of the log.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a report, too: .html to send, or .json.")
    ] = None,
) -> None:
    """Estimate from the log what other policies would have earned."""
    with explained():
        if output is not None and output.suffix not in SUFFIXES:
            raise ValueError(f"--output {output}: a name that ends with {' or '.join(SUFFIXES)} was expected")
        asked = {
            "candidates": [candidate_names.spelled_out(name) for name in policy or ()],
            "baseline": candidate_names.spelled_out(baseline),
            "since": _moment("--since", since),
            "until": _moment("--until", until),
            "versions": _versions(version),
            "features": dict(_pair("--feature", one, _value) for one in feature or ()),
            "cost_weight": cost_weight,
            "cost": dict(_pair("--price", one, float) for one in price or ()),
            "interval": interval,
            "reward_model": reward_model,
            "gate": gate,
            "seed": seed,
            **({"estimators": estimator} if estimator else {}),
        }
        request = EvaluationRequest.model_validate(asked)
        settings = load(config)
        with progress() as tell:
            if export is None:
                with closing(Store(settings.database_url, settings.reward.join)) as store:
                    report = evaluate_log(settings, request, LogSource(store, settings.reward), store, tell)
            else:
                found = evaluate_log(settings, request, ExportSource(export), None, tell)
                report = found.model_copy(update={"source": str(export)})
        report = report.model_copy(update={"config": str(config)})
        console.print(report.table())
        for note in report.footnotes():
            console.print(note, markup=False, style="dim")
        if output is not None:
            told = report.html() if output.suffix == ".html" else json.dumps(report.as_json(), indent=2)
            output.write_text(told, encoding="utf-8")


def _moment(option: str, told: str | None) -> datetime | None:
    """Read a date and a time, UTC where no zone is told. Raises ValueError."""
    if told is None:
        return None
    try:
        return evaluation_request.moment_of(told)
    except ValueError as error:
        raise ValueError(f"{option} {error}") from None


def _versions(told: str | None) -> tuple[int, int] | None:
    """Read a range of versions. Raises ValueError."""
    if told is None:
        return None
    if not (found := RANGE.fullmatch(told)):
        raise ValueError(f"--version {told!r}: FROM-TO such as 12-20, or one number, was expected")
    first, last = found.groups()
    return int(first), int(last or first)


def _pair(option: str, told: str, read: Callable[[str], Value]) -> tuple[str, Value]:
    """Read a name and a value. Raises ValueError."""
    name, equals, value = told.partition("=")
    if not (name and equals and value):
        raise ValueError(f"{option} {told!r}: name=value was expected")
    try:
        return name, read(value)
    except ValueError:
        raise ValueError(f"{option} {told!r}: {value!r} is no number") from None


def _value(told: str) -> float | str | bool:
    """Read what a caller may say of a context.

    >>> _value("2"), _value("true"), _value("free")
    (2.0, True, 'free')
    """
    if told in ("true", "false"):
        return told == "true"
    try:
        return float(told)
    except ValueError:
        return told

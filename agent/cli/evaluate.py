"""The verb `replay`: evaluate candidates on the log."""

import gc
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from armwise.agent import evaluation
from armwise.agent.cli.console import console, progress, report_errors
from armwise.agent.cli.options import (
    CONFIG,
    ConfigPath,
    moment,
    require_report,
    settings_options,
    with_log,
    write_report,
)
from armwise.agent.evaluation import CANDIDATE_NAMES, EvaluationRequest, spell_out
from armwise.arms.base import is_name
from armwise.feedback.jsonl import Header
from armwise.feedback.log import Store
from armwise.feedback.sources import ExportSource, LogSource

if TYPE_CHECKING:
    from armwise.agent.config import AppConfig

RANGE = re.compile(r"(\d+)(?:-(\d+))?")

Value = TypeVar("Value")


REPLAY_FLAGS = {"candidates": "--policy", "features": "--feature", "versions": "--version"} | {
    "cost": "--price",
    "estimators": "--estimator",
}


@settings_options(
    EvaluationRequest,
    REPLAY_FLAGS,
    without=("name",),
    text=("since", "until", "versions", "features", "cost", "budget"),
    help_texts={
        "candidates": f"{', '.join(CANDIDATE_NAMES)}. A policy is YAML or a YAML file. "
        "Repeatable; by default uniform, each logged arm, and configured.",
        "since": "Only decisions since then, such as 2026-05-01T12:00 or 7d.",
        "versions": "Only decisions of these versions: FROM-TO, or one number.",
        "features": "Only decisions with this feature, such as tier=free; repeatable.",
        "cost": "Price instead of the configured one, such as steps=0.02; repeatable.",
        "budget": "Ceiling for policies, such as usd_per_request=0.001; repeatable.",
        "estimators": "Estimator; repeatable. By default ips, snips and dr.",
        "interval": "Kind of the intervals: normal, bootstrap or anytime.",
        "cluster": "Decisions that share this count as one observation: question, episode, user or none.",
        "reward_model": "What predicts rewards: ridge, or means, which is faster.",
        "gate": "Apply the gate to each candidate.",
        "seed": "Seed of folds, resamples and recomputed draws.",
    },
)
def replay(
    given: dict[str, Any],
    config: ConfigPath = CONFIG,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="A file of `armwise log export` or `armwise import`. By default the log of the service."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write a report, as .html or .json.")
    ] = None,
) -> None:
    """Estimate from the log what other policies would have earned."""
    with report_errors():
        from armwise.agent.config import load

        require_report(output)
        request = EvaluationRequest.model_validate({**given, **_parse_options(given)})
        exported = ExportSource(file or Path())
        if file is not None and config == CONFIG and not config.exists():
            config, settings = file, derive_config(file, exported.headers)
        else:
            settings = with_log(config, without=()) if file is None else load(config)
        notes = list[str]()
        with _frozen(), progress() as on_progress:
            if file is None:
                with closing(Store(settings.database_url, settings.reward.join, create=False)) as store:
                    source = LogSource(store, settings.reward)
                    document = evaluation.replay(settings, request, source, store, on_progress)
            else:
                rule = exported.applicable_rule(settings.reward)
                if rule is not settings.reward:
                    settings = settings.model_copy(update={"reward": rule})
                    notes.append(
                        f"Rewards are those that {file} declares, {', '.join(rule.metrics)}: {config} has "
                        "none of these metrics."
                    )
                document = evaluation.replay(settings, request, exported, None, on_progress)
                document["source"] = str(file)
        document["assumptions"] = [*notes, *document["assumptions"]]
        console.print(evaluation.make_table(document))
        for note in evaluation.list_footnotes(document):
            console.print(note, style="dim")
        write_report(output, document, lambda: evaluation.make_page(document))
        if not any(each["value"] for one in document["candidates"] for each in one["estimates"]):
            raise typer.Exit(1)  # nothing can be estimated from this log


@contextmanager
def _frozen() -> Iterator[None]:
    """Look for garbage rarely, and not among what is imported: no row leaves cycles."""
    usual = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()


def derive_config(export: Path, headers: Sequence[Header]) -> "AppConfig":
    """Return a configuration with the rewards and the arms of a file, for one who has no other.

    Raises:
        ConfigError: It has no metrics, or several, whose weights only a configuration says.
    """
    from armwise.agent.config import ConfigError, parse

    rules = {header.reward.model_dump_json(): header.reward for header in headers}
    rule = headers[0].reward
    if len(rules) > 1 or not rule.metrics:
        metrics = sorted({name for header in headers for name in header.reward.metrics})
        raise ConfigError(
            f"{export} has {len(rules)} rules of rewards, with the metrics {', '.join(metrics) or 'none'}: "
            "-c names a configuration that says what they are worth"
        )
    # others cannot be configured
    arms = {name for header in headers for name in header.arms if is_name(name)}
    document = {
        "arms": {name: {"kind": "external"} for name in sorted(arms)} or {"none": {"kind": "none"}},
        "llm": {"engine": "scripted"},  # nothing is answered
        "policy": {"kind": "adaptive"},
        "reward": rule.model_dump(mode="json", exclude_defaults=True),
    }
    return parse(document)


def _parse_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the options that are written in a form of their own. Raises ValueError."""
    readers: Mapping[str, Callable[[Any], Any]] = {
        "candidates": lambda names: [spell_out(name) for name in names],
        "baseline": spell_out,
        "since": partial(moment, "--since"),
        "until": partial(moment, "--until"),
        "versions": _versions,
        "features": lambda pairs: dict(_pair("--feature", pair, _value) for pair in pairs),
        "cost": lambda pairs: dict(_pair("--price", pair, float) for pair in pairs),
        "budget": lambda pairs: dict(_pair("--budget", pair, float) for pair in pairs),
    }
    return {name: readers[name](value) for name, value in given.items() if name in readers}


def _versions(text: str) -> tuple[int, int]:
    """Read a range of versions. Raises ValueError.

    >>> _versions("12-20"), _versions("7")
    ((12, 20), (7, 7))
    """
    if not (match := RANGE.fullmatch(text)):
        raise ValueError(f"--version {text!r}: FROM-TO such as 12-20, or one number, was expected")
    first, last = match.groups()
    return int(first), int(last or first)


def _pair(option: str, text: str, read: Callable[[str], Value]) -> tuple[str, Value]:
    """Read a name and a value. Raises ValueError."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ValueError(f"{option} {text!r}: name=value was expected")
    try:
        return name, read(value)
    except ValueError:
        raise ValueError(f"{option} {text!r}: {value!r} is not a number") from None


def _value(text: str) -> float | str | bool:
    """Read the value of a feature.

    >>> _value("2"), _value("true"), _value("false"), _value("free")
    (2.0, True, False, 'free')
    """
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text)
    except ValueError:
        return text

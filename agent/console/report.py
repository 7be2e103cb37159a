"""The verb that reports a period: a page to forward, and a text for a chat."""

import json
import re
import shlex
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from armwise.agent.cli.console import console, errors, progress, report_errors
from armwise.agent.cli.options import CONFIG, ConfigPath, moment, with_log
from armwise.agent.console import digest
from armwise.agent.console.period import Period, read_period
from armwise.agent.console.period_report import write_page, write_text
from armwise.agent.evaluation import read_moment
from armwise.feedback.log import Store

DURATION = re.compile(r"(\d{1,6})([mhdw])")

WEEK = "7d"

SECONDS = {"m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}


def report(
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            help="Start: a duration before the end, such as 7d, 24h or 90m, or a date. By default 7d.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            help="End, such as 2026-05-01T12:00, in UTC. By default now.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="HTML file to write, such as week.html.")
    ] = None,
    text: Annotated[
        bool, typer.Option("--text", help="Also print a short text; without -o it is always printed.")
    ] = False,
    send: Annotated[
        bool, typer.Option("--send", help="Send it now, to the address of `digest` in the configuration.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --send: print what would be sent, and send nothing.")
    ] = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Report a period: what was served, what it saved, how it was rated, and what changed."""
    with report_errors():
        if send or dry_run:
            if output is not None or text:
                raise ValueError("--send has the form of `digest.form`: leave out --output and --text")
            _send(config, since, until, dry_run=dry_run)
            return
        if output is not None and output.suffix != ".html":
            raise ValueError(f"--output {output}: a name that ends with .html was expected")
        if output is not None and not output.parent.is_dir():
            raise ValueError(f"--output {output}: there is no folder {output.parent}")
        period, command = _report_log(config, since, until)
        if output is not None:
            output.write_text(write_page(period, shlex.join([*command, "-o", output.name])), encoding="utf-8")
            console.print(f"{output}: {period.decisions:,} decisions", soft_wrap=True)
        if text or output is None:
            console.print(Text(write_text(period)), highlight=False, soft_wrap=True)
        if period.statements.doubt:
            raise typer.Exit(1)


def _send(path: Path, since: str | None, until: str | None, *, dry_run: bool) -> None:
    """Send a period, or print what would be sent; a failure exits with 1."""
    end = time.time() if until is None else moment("--until", until).timestamp()
    begin = read_begin(since or WEEK, end)
    config = with_log(path)
    spec = config.digest
    if spec is None and not dry_run:
        raise ValueError(f"{path}: set `digest`, for example to {{url_env: SLACK_WEBHOOK_URL}}")
    with closing(Store(config.database_url, config.reward.join, create=False)) as store:
        if spec is None or dry_run:
            form, by = ("slack", "topic") if spec is None else (spec.form, spec.by)
            body = digest.read_body(store, config, begin, end, form, by)
            said = Text(json.dumps(body, indent=2, ensure_ascii=False))
            console.print(said, highlight=False, soft_wrap=True)
            return
        outcome = digest.send_now(store, config, spec, begin, end)
    if outcome.why:
        errors.print(f"The digest was not sent: {outcome.why}.", style="red", soft_wrap=True)
        raise typer.Exit(1)
    console.print("The digest was sent.")


def _report_log(config: Path, since: str | None, until: str | None) -> tuple[Period, list[str]]:
    """Return the report of a service's log, and the command that reproduces it, without `-o`."""
    end = time.time() if until is None else moment("--until", until).timestamp()
    begin = read_begin(since or WEEK, end)
    settings = with_log(config)
    with (
        closing(Store(settings.database_url, settings.reward.join, create=False)) as store,
        progress(errors) as on_progress,
    ):
        period = read_period(store, settings, begin, end, on_progress)
    words = ["armwise", "report", *(["-c", str(config)] if config != CONFIG else [])]
    return period, [*words, *_window(begin, end)]


def read_begin(text: str, end: float) -> float:
    """Return the begin of a period from a duration before its end, or from a date. Raises ValueError.

    >>> read_begin("7d", 1e6), read_begin("90m", 1e6), read_begin("2w", 2e6), read_begin("1970-01-02", 1e6)
    (395200.0, 994600.0, 790400.0, 86400.0)
    """
    if match := DURATION.fullmatch(text):
        number, unit = match.groups()
        begin = end - int(number) * SECONDS[unit]
    else:
        try:
            begin = read_moment(text).timestamp()
        except ValueError:
            raise ValueError(
                f"--since {text!r}: a duration such as 7d, 24h or 90m, or a date such as 2026-05-01 or "
                "2026-05-01T12:00, was expected"
            ) from None
    if begin < 0.0:
        raise ValueError(f"--since {text}: the log has no year before 1970")
    if not begin < end:
        raise ValueError(f"--since {text}: a time before the end of the period was expected")
    return begin


def _window(begin: float, end: float) -> list[str]:
    """Return a period as command line options."""
    return [
        word
        for option, at in (("--since", begin), ("--until", end))
        for word in (option, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)))
    ]

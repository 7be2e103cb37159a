"""The verb that audits a log: are the propensities on record those that arms were drawn with?"""

import json
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from agent.cli.console import console, errors, explained, progress
from agent.cli.options import CONFIG, POINT, ConfigPath, Point
from agent.config import ConfigError, load
from agent.evaluation import audit_file, audit_store, moment_of
from feedback.exchange import appearing
from feedback.log import Store
from feedback.ope import Status

SUFFIXES = (".json", ".html")
"""What a report can be written as."""


def audit(
    log: Annotated[
        Path | None,
        typer.Argument(help="A file of `armwise export` or `armwise import`; else the log of the service."),
    ] = None,
    export: Annotated[Path | None, typer.Option("--from", help="The same file, as for `replay`.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Only decisions from then on, such as 2026-05-01T12:00.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Only decisions before then.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a report, too: .html to send, or .json.")
    ] = None,
    config: ConfigPath = CONFIG,
    point: Point = POINT,
) -> None:
    """Check whether the propensities of a log are true; exits with 1 where they are not."""
    with explained():
        if output is not None and output.suffix not in SUFFIXES:
            raise ValueError(f"--output {output}: a name that ends with {' or '.join(SUFFIXES)} was expected")
        if log is not None and export is not None:
            raise ValueError(f"--from {export}: {log} was named already; name one of them")
        path = log or export
        window = _moment("--since", since), _moment("--until", until)
        if window[0] is not None and window[1] is not None and window[0] >= window[1]:
            raise ValueError(f"--since {since}: a time before --until {until} was expected")
        with progress(errors) as on_progress:
            if path is not None:
                report = audit_file(path, on_progress, *window)
            else:
                settings = load(config, ["router"]).of(point)
                if settings.log_path is not None and not settings.log_path.exists():
                    raise ConfigError(f"{settings.log_path}: there is no log yet; `armwise serve` begins one")
                with closing(Store(settings.database_url, settings.reward.join)) as store:
                    report = audit_store(store, settings, on_progress, *window)
        console.print(report.table())
        for line in (report.summary, *report.footnotes()):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        if output is not None:
            html = output.suffix == ".html"
            document = report.html() if html else json.dumps(report.as_json(), indent=2)
            with appearing(output) as file:
                file.write(document.encode())
    if report.found.status is Status.FAIL:
        raise typer.Exit(1)


def _moment(option: str, text: str | None) -> datetime | None:
    """Read a date and a time, UTC where no zone is given. Raises ValueError."""
    try:
        return None if text is None else moment_of(text)
    except ValueError as error:
        raise ValueError(f"{option} {error}") from None

"""The verb that audits a log: are the propensities on record those that arms were drawn with?"""

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from armwise.agent.cli.console import console, errors, progress, report_errors
from armwise.agent.cli.options import CONFIG, ConfigPath, moment, with_log
from armwise.agent.proof.audit import list_footnotes, make_table, report_log
from armwise.agent.proof.audit_table import is_export, report_table
from armwise.agent.proof.propensity_audit import CheckStatus
from armwise.feedback.exchange import Columns
from armwise.feedback.jsonl import appearing, read_headers
from armwise.feedback.log import Store, without_password
from armwise.feedback.sources import ExportSource, LogSource


def audit(
    log: Annotated[
        Path | None,
        typer.Argument(
            help="A file of `armwise log export` or `armwise import`, or a table that another router logged: "
            "CSV, JSON lines, JSON or Parquet. By default the log of the service."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only decisions since then, such as 2026-05-01T12:00 or 7d."),
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Only decisions before then.")] = None,
    arm: Annotated[
        str | None, typer.Option("--arm", help="In a table: column of the arm that was drawn.")
    ] = None,
    propensity: Annotated[
        str | None,
        typer.Option("--propensity", help="In a table: column of the probability with which it was drawn."),
    ] = None,
    reward: Annotated[str | None, typer.Option("--reward", help="In a table: column of the reward.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write the checks to this .json file.")
    ] = None,
    config: ConfigPath = CONFIG,
) -> None:
    """Check whether the propensities of a log are true. Exits with 1 if they are not."""
    with report_errors():
        if output is not None and output.suffix != ".json":
            raise ValueError(f"--output {output}: a name that ends with .json was expected")
        begin = None if since is None else moment("--since", since)
        end = None if until is None else moment("--until", until)
        if begin is not None and end is not None and begin >= end:
            raise ValueError(f"--since {since}: a time before --until {until} was expected")
        given = Columns(arm=arm, propensity=propensity, reward=reward)
        if log is None and given != Columns():
            raise ValueError("--arm, --propensity and --reward name columns of a table: name its file")
        with progress(errors) as on_progress:
            if log is not None and (given != Columns() or not is_export(log)):
                report = report_table(log, given, (begin, end), on_progress)
            elif log is not None:
                rule = next(iter(read_headers(log))).reward
                report = report_log(ExportSource(log), str(log), rule, (begin, end), on_progress)
            else:
                settings = with_log(config)
                rule, name = settings.reward, without_password(settings.database_url)
                with closing(Store(settings.database_url, rule.join, create=False)) as store:
                    source = LogSource(store, rule)
                    report = report_log(source, name, rule, (begin, end), on_progress)
        console.print(make_table(report))
        for line in (report["summary"], *list_footnotes(report)):
            console.print(line, highlight=False, soft_wrap=True)
        if output is not None:
            with appearing(output) as file:
                file.write(json.dumps(report, indent=2).encode())
    if report["status"] == CheckStatus.FAIL:
        raise typer.Exit(1)

"""The part of `verify` that is about the whole log."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from types import MappingProxyType

import typer

from armwise.agent.cli.console import PLAIN, console, errors, progress, report_errors
from armwise.agent.cli.options import CONFIG, with_log
from armwise.feedback.log import Store, chain
from armwise.feedback.registry import versions


def verify_log(
    config: Path = CONFIG, checkpoints: Mapping[str, chain.LogHead] = MappingProxyType({})
) -> None:
    """Fold the facts of the log again, and print whether they are unchanged, and what that covers.

    Exits with 1 if something was changed.

    Args:
        config: The configuration.
        checkpoints: Earlier heads of the log, besides those of its versions, by what has them.
    """
    with report_errors():
        settings = with_log(config)
        with (
            closing(Store(settings.database_url, create=False)) as store,
            progress() as on_progress,
        ):
            of_versions = versions.list_heads(store)
            known = {**of_versions, **checkpoints}
            report = chain.verify_chain(store, known, partial(on_progress, "facts"))
        for change in report.changes:
            errors.print(change, style="red", **PLAIN)
        if report.changes:
            raise typer.Exit(1)
        console.print(f"The log is unchanged: {report.head.seq:,} facts, head {report.head.chain}.", **PLAIN)
        for line in _describe_coverage(report, len(of_versions)):
            console.print(line, **PLAIN)


def _describe_coverage(report: chain.ChainReport, n_versions: int) -> Iterator[str]:
    if report.compared:
        yield (
            f"Facts 1 to {report.compared:,} have the bytes that the learner read: its own hash agrees, and "
            f"so do the hashes of {n_versions:,} versions. Each text is the one that was stored with it."
        )
    if later := report.head.seq - report.compared:
        yield f"No hash of the newest {later:,} facts is kept yet. Only their texts are verified."
    if report.erased:
        erasures = ", ".join(f"{n:,} by erasure {number}" for number, n in sorted(report.erased.items()))
        yield f"Decisions without texts: {erasures}. `GET /v1/erasures` lists the erasures."
    yield (
        "Not covered: keys, usage, jobs, and what operators decided. "
        "`armwise log rebuild --verify` computes the training log and the versions again."
    )

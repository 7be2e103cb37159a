"""The part of `verify` that is about the whole log."""

from collections.abc import Mapping
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
    """Fold the facts of the log again, and print whether they are unchanged; exit with 1 where they are not.

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
        console.print(
            f"the log is unchanged: {report.head.seq:,} facts, {len(of_versions):,} versions, "
            f"head {report.head.chain}",
            **PLAIN,
        )

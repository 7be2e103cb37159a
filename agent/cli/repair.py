"""The verbs that work on the log without a service: migrate, rebuild."""

from contextlib import closing
from functools import partial
from typing import Annotated

import typer

from agent.cli.console import console, errors, explained, progress
from agent.cli.options import CONFIG, ConfigPath
from agent.config import load
from agent.learning import rebuild as learning_rebuild
from feedback.log import Store, schema


def migrate(config: ConfigPath = CONFIG) -> None:
    """Migrate the log to the tables of this version; stop the service first."""
    with explained():
        before, after = schema.migrate(load(config, without=["router"]).database_url)
        console.print(f"the log had schema {before}, it has schema {after}", markup=False)


def rebuild(
    config: ConfigPath = CONFIG,
    verify: Annotated[bool, typer.Option("--verify", help="Compare only, and change nothing.")] = False,
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="Compare this version, too; else the newest alone.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Compare every version whose bytes are kept, too.")
    ] = False,
) -> None:
    """Recompute the training log and the policy from the facts alone, compare, and repair what differs.

    Exits with 1 where something differs and is not repaired. A running learner stops when something is
    repaired; its service starts another one, which continues from the repaired state.
    """
    with explained():
        settings = load(config)
        with closing(Store(settings.database_url, settings.reward.join)) as store, progress() as on_progress:
            report = learning_rebuild.rebuild(
                store, settings, partial(on_progress, "facts"), number=version, every=every, mend=not verify
            )
        console.print(report.table())
        for note in report.notes:
            console.print(note, markup=False, soft_wrap=True)
        if not report.sound:
            errors.print(report.remedy, style="red", markup=False, soft_wrap=True)
            raise typer.Exit(1)

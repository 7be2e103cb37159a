"""The verbs on the log, which need no service: export, key, rebuild, backup, erase."""

import time
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from armwise.agent import learning
from armwise.agent.access import NewKey
from armwise.agent.api.operations.export import Export, ExportWindow, Format
from armwise.agent.cli.console import console, errors, progress, report_errors
from armwise.agent.cli.options import (
    CONFIG,
    ConfigPath,
    open_config,
    settings_options,
    unique,
    with_log,
)
from armwise.agent.reporting import moment
from armwise.feedback.jsonl import ExchangeError, appearing
from armwise.feedback.log import Store, erasures
from armwise.feedback.registry import keys, usage


def export(
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="The file, compressed if its name ends in .gz."),
    ],
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="jsonl: everything. dsjson: for Vowpal Wabbit. feedback: the items of feedback.",
        ),
    ] = "jsonl",
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only decisions since then, such as 2026-01-31T12:00."),
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Only decisions before then.")] = None,
    config: ConfigPath = CONFIG,
) -> None:
    """Write the training log to a file, for other programs or `armwise replay`."""
    with report_errors():
        window = ExportWindow.model_validate({"since": since, "until": until})
        settings = with_log(config)
        with (
            closing(Store(settings.database_url, settings.reward.join, create=False)) as store,
            progress() as on_progress,
        ):
            export = Export(store, settings.reward, settings.actions, window)
            with appearing(output) as file:
                file.writelines(export.lines(form, on_progress))
                if not export.count:
                    what = "item of feedback" if form == "feedback" else f"example of {export.length:,}"
                    raise ExchangeError(f"no {what} is in that period: nothing was written")
        written = export.count - export.left_out.total()
        what = "items of feedback" if form == "feedback" else "decisions"
        console.print(f"{written:,} {what} written to {output}", highlight=False, soft_wrap=True)
        for reason, n in export.left_out.most_common():
            console.print(f"left out {n:,}: {reason}", highlight=False)


def rebuild(
    config: ConfigPath = CONFIG,
    verify: Annotated[bool, typer.Option("--verify", help="Only compare, and change nothing.")] = False,
    version: Annotated[
        int | None,
        typer.Option("--version", min=1, help="Also compare this version; by default only the newest."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Also compare every version that is still stored.")
    ] = False,
) -> None:
    """Delete the training log, learn it again from the logged facts, and verify the result.

    Exits with 1 if something differs from what the facts give. A running learner stops, and its service
    starts a new one.
    """
    with report_errors():
        settings = with_log(config, without=(), writes=not verify)
        with (
            closing(Store(settings.database_url, settings.reward.join, create=False)) as store,
            progress() as on_progress,
        ):
            follower = None
            if version is not None:
                learning.find_version(store, settings, version)  # refused before anything is deleted
            if not verify:
                follower = learning.rebuild(store, settings, partial(on_progress, "learned"))
            report = learning.verify_states(
                store, settings, partial(on_progress, "facts"), number=version, every=every
            )
        console.print(report.table())
        for note in report.notes:
            console.print(note, soft_wrap=True)
        if follower is not None:
            console.print(
                f"Version {follower} holds what the log gives, and is now the newest.",
                highlight=False,
                soft_wrap=True,
            )
        if not report.sound:
            if verify:
                remedy = "To delete the training log and learn it again, run: armwise log rebuild"
            else:
                remedy = (
                    "Versions that have decided stay as they are. The newest version is what the log gives."
                )
            errors.print(remedy, style="red", soft_wrap=True)
            raise typer.Exit(1)


def backup(
    to: Annotated[Path, typer.Argument(help="Folder for the copy.")],
    config: ConfigPath = CONFIG,
) -> None:
    """Copy the SQLite log while the service runs, and check the copy."""
    with report_errors():
        settings = with_log(config)
        with closing(Store(settings.database_url, create=False)) as store:
            to.mkdir(parents=True, exist_ok=True)
            copy = to / (settings.log_path.name if settings.log_path else "log.db")
            store.backup(copy)
            console.print(
                f"{copy}: {store.counts()['decisions']:,} decisions, {copy.stat().st_size / 1e6:,.1f} MB",
                highlight=False,
                soft_wrap=True,
            )


def erase(
    user: Annotated[str | None, typer.Option("--user", help="The `user` of the requests.")] = None,
    project: Annotated[
        str, typer.Option("--project", help="Project whose keys sent the requests of the user.")
    ] = keys.DEFAULT,
    episode: Annotated[str | None, typer.Option("--episode", help="Id of an episode in the log.")] = None,
    decision: Annotated[str | None, typer.Option("--decision", help="Id of a decision in the log.")] = None,
    config: ConfigPath = CONFIG,
) -> None:
    """Erase questions, answers, passages, comments and names of features; numbers stay.

    It does not reach exports, backups and reports that were made before.
    """
    with report_errors():
        if [user, episode, decision].count(None) != 2:
            raise ValueError("one of --user, --episode and --decision was expected")
        settings, now = with_log(config, writes=True), time.time()
        with closing(Store(settings.database_url, create=False)) as store:
            if user is not None:
                done = erasures.erase_user(store, project, user, "cli", now)
            elif episode is not None:
                done = erasures.erase_episode(store, episode, "cli", now)
            else:
                done = erasures.erase_decision(store, decision or "", "cli", now)
        console.print(
            f"erasure {done.number}: erased the texts of {done.decisions:,} decisions and "
            f"{done.feedback:,} items of feedback"
        )
        console.print(
            "Earlier exports, backups and files of warm starts still have copies: remove old ones yourself.",
            soft_wrap=True,
        )


key = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)
"""Keys of callers, in the log: a running service follows within a second."""


@key.command()
@settings_options(
    NewKey,
    {"scopes": "--scope", "groups": "--group", "tags": "--tag"},
    text=("expires", "tags"),
    help_texts={
        "groups": "Group whose passages its callers may see; repeatable.",
        "scopes": "chat, decide, feedback, read, operate or admin; repeatable. By default decide, feedback.",
        "tags": "Your own name=value.",
    },
)
def create(given: dict[str, Any], config: ConfigPath = CONFIG) -> None:
    """Make a key and print it once; the log stores only its hash."""
    with report_errors():
        given["tags"] = unique("--tag", map(_tag, given.get("tags") or ()))
        now = time.time()
        settings, service = (
            NewKey.model_validate(given).settings(now),
            open_config(config, without=["router"]),
        )
        problem = service.describe_unpriced("the key would have a budget in dollars")
        if problem and settings.limits.max_budget is not None:
            raise ValueError(problem)
        with closing(Store(service.database_url)) as store:
            made, token = keys.create(store, settings, now)
        errors.print(f"key {made.public_id} of project {settings.project!r}; it is not shown again:")
        console.print(token, highlight=False, soft_wrap=True)


@key.command("list")
def list_keys(config: ConfigPath = CONFIG) -> None:
    """List the keys in the log, and what each key has used."""
    with report_errors():
        now = time.time()
        with closing(Store(with_log(config).database_url, create=False)) as store:
            made, spent = keys.read(store), usage.spend(store, now)
        table = Table(
            *(Column("key", min_width=12), "name", "project", "scopes", "groups", "limits", "state"),
            "this month",
        )
        for api_key in made:
            s = api_key.settings
            lists = " ".join(s.scopes), ", ".join(s.groups)
            row = api_key.public_id, s.name, s.project, *lists, _limits(api_key), _state(api_key, now)
            table.add_row(*row, _format_usage(spent.pop(api_key.public_id, {})))
        for name, amounts in spent.items():
            table.add_row(name, "of the configuration", *[""] * 5, _format_usage(amounts))
        console.print(table)


@key.command()
def disable(
    public_id: Annotated[str, typer.Argument(help="The 12 characters after sk-aw-.")],
    config: ConfigPath = CONFIG,
) -> None:
    """Disable a key permanently."""
    with report_errors():
        with closing(Store(with_log(config, writes=True).database_url, create=False)) as store:
            if keys.disable(store, public_id, time.time()) is None:
                raise ValueError(f"there is no key {public_id!r}; `armwise key list` shows them")
        console.print(f"key {public_id} is disabled")


def _tag(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"--tag {text}: name=value was expected, such as team=search")
    return name, value


def _limits(api_key: keys.ApiKey) -> str:
    limits = api_key.settings.limits
    shown = [
        (limits.rpm_limit, "requests/min"),
        (limits.tpm_limit, "tokens/min"),
        (limits.max_budget, f"USD/{limits.budget_duration}"),
        (limits.token_budget, f"tokens/{limits.budget_duration}"),
    ]
    return ", ".join(f"{amount:,g} {unit}" for amount, unit in shown if amount is not None)


def _state(api_key: keys.ApiKey, now: float) -> str:
    if api_key.disabled_at is not None:
        return "disabled"
    expires = api_key.settings.expires
    if expires is None:
        return "valid"
    at = moment(expires)
    return f"expired {at}" if expires <= now else f"until {at}"


def _format_usage(amounts: Mapping[str, usage.UsageAmount]) -> str:
    amount = amounts.get("month", usage.UsageAmount())
    return f"{amount.requests:,} requests, {amount.tokens:,} tokens, ${amount.usd:,.4f}"

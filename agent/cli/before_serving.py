"""What comes before a service: checks, and what is missing is built.

A separate process builds, `armwise serve --prepare-only`, whose memory is free again at its end. The one
process of a service without Ray does the same by `look`, and serves at once where nothing is missing.
"""

import os
import shlex
from itertools import chain
from pathlib import Path
from typing import NoReturn

from armwise.agent.access import is_loopback, require_closed
from armwise.agent.checks import (
    check_configuration,
    check_endpoints,
    check_files,
    describe_budget_without_prices,
    is_open_to_all,
    require_libraries,
    require_models,
)
from armwise.agent.cli import first_start
from armwise.agent.cli.console import PLAIN, ProgressCallback, console, errors
from armwise.agent.cli.options import open_home, warn_of_a_copy
from armwise.agent.cli.preparation import install_missing_models, prepare, print_oddities, suggest_question
from armwise.agent.cli.serve_config import read_listening_address
from armwise.agent.config import AppConfig, ConfigError
from armwise.agent.process_limits import hard_limit_of_files, most_connections
from armwise.agent.run_folder import BEHIND, QUESTION, RUN_FOLDER, TO_BUILD, BuildingProgress


class NotBuiltError(Exception):
    """Something has to be built before the service answers."""


def look(*_: object) -> NoReturn:
    """Refuse to build: in place of a callback of the progress. Raises NotBuiltError."""
    raise NotBuiltError


def prepare_service(config: Path, settings: AppConfig, on_progress: ProgressCallback) -> None:
    """Check a configuration, build what is missing, and write what the other processes of its run read.

    Args:
        config: A Ray Serve configuration file.
        settings: What it says.
        on_progress: Progress callback; `look` to build nothing that takes long.

    Raises:
        NotBuiltError: By `look`; the checks are made, which another process of this run then leaves out.
        ConfigError, ArmError, StoreError, ModelNotFoundError: What is configured cannot be served.
    """
    run = os.environ.get(RUN_FOLDER)
    folder = None if run is None else Path(run)
    if folder is None or not (folder / TO_BUILD).exists():
        _check(config, settings, read_listening_address(config)[0])
    try:
        _build(settings, folder, on_progress)
    except NotBuiltError:
        if folder is not None:
            (folder / TO_BUILD).touch()
        raise
    sources = settings.resolve_places().corpus_sources
    print_oddities(sources)
    if folder is None:
        return
    (folder / QUESTION).write_text(suggest_question(sources), encoding="utf-8")
    if settings.http.connections > (most := most_connections()):
        errors.print(
            f"The service accepts {most:,} connections instead of {settings.http.connections:,}: a process "
            f"may open only {hard_limit_of_files():,} files. Raise the hard limit (`ulimit -Hn`).",
            style="yellow",
            soft_wrap=True,
        )


def _check(config: Path, settings: AppConfig, host: str) -> None:
    """Make the home, install missing models, and print what is serious, or raise what is wrong."""
    require_libraries(settings)
    if settings.log_path is not None:
        warn_of_a_copy(settings.log_path)
    open_to_all = is_open_to_all(settings, host)
    require_closed(host, is_open=bool(open_to_all), allowed=settings.open)
    if problem := describe_budget_without_prices(settings):
        raise ConfigError(problem)
    findings = check_configuration(settings, host, is_open=open_to_all)
    for finding in chain(findings, check_files(settings), check_endpoints(settings)):
        if finding.serious:
            errors.print(str(finding), style="yellow", soft_wrap=True)
    open_home(settings)
    install_missing_models(settings)
    require_models(settings)
    if open_to_all and is_loopback(host):
        closes = shlex.join(["armwise", "key", "create", "--name", "me", "-c", str(config)])
        warning = "No API key is set, so any program on this machine can use the service. To require one"
        console.print(f"{warning}: {closes}", **PLAIN)


def _build(settings: AppConfig, folder: Path | None, on_progress: ProgressCallback) -> None:
    if folder is None or not first_start.begin(settings, on_progress):
        prepare(settings, on_progress)
        return
    (folder / BEHIND).touch()
    BuildingProgress(folder)("waiting for the service")

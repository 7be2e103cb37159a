"""What comes before a service: checks, and what is missing is built.

A child builds, `armwise serve --prepare-only`, whose memory is free again at its end.
"""

import os
import shlex
import subprocess
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

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
from armwise.agent.cli.console import PLAIN, ProgressCallback, console, errors, print_left_out
from armwise.agent.cli.options import open_home, warn_of_a_copy
from armwise.agent.cli.preparation import install_missing_models, prepare, suggest_question
from armwise.agent.config import AppConfig, ConfigError
from armwise.agent.process_limits import hard_limit_of_files, most_connections
from armwise.agent.run_folder import BEHIND, QUESTION, RUN_FOLDER, BuildingProgress
from armwise.arms.own_processes import ends_with_its_parent, python


class ProcessLostError(Exception):
    """A process that the service needs was killed; the message names it and the remedy."""


def check_service(config: Path, settings: AppConfig, host: str) -> None:
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
    if settings.http.connections > (most := most_connections()):
        errors.print(
            f"The service accepts {most:,} connections instead of {settings.http.connections:,}: a process "
            f"may open only {hard_limit_of_files():,} files. Raise the hard limit (`ulimit -Hn`).",
            style="yellow",
            soft_wrap=True,
        )


def build_service(settings: AppConfig, on_progress: ProgressCallback, folder: Path | None) -> None:
    """Build what is missing, and write what the other processes of a run read.

    Args:
        settings: The configuration, which was checked.
        on_progress: Progress callback; `preparation.look` to build nothing that takes long.
        folder: The folder of the run; None: of no run, and all is built.

    Raises:
        NotBuiltError: By `look`.
        ConfigError, ArmError, StoreError, ModelNotFoundError: What is configured cannot be served.
    """
    if folder is not None and first_start.begin(settings, on_progress):
        (folder / BEHIND).touch()
        BuildingProgress(folder)("waiting for the service")
    else:
        prepare(settings, on_progress)
    sources = settings.resolve_places().corpus_sources
    print_left_out([source.open() for source in sources])
    if folder is not None:
        (folder / QUESTION).write_text(suggest_question(sources), encoding="utf-8")


def start_builder(
    config: Path, folder: Path | None, environment: Mapping[str, str] = os.environ
) -> "subprocess.Popen[bytes]":
    """Start the child that builds what is missing for a run; without a folder, it checks all before."""
    return subprocess.Popen(
        python("-m", "armwise", "serve", "--prepare-only", "--config", str(config)),
        env={**environment, **({} if folder is None else {RUN_FOLDER: str(folder)})},
        preexec_fn=ends_with_its_parent,
    )


def wait_for_builder(builder: "subprocess.Popen[bytes]") -> int:
    """Return the exit code of a builder; end it where waiting is interrupted. Raises ProcessLostError."""
    try:
        code = builder.wait()
    finally:
        builder.terminate()
    if code < 0:
        raise ProcessLostError(
            f"the process that builds what is missing has ended (killed by signal {-code}): start the "
            "service again. If it happens again, look for the out-of-memory killer (`journalctl -k`), "
            "and at `armwise doctor`"
        )
    return code

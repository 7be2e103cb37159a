"""How a replica of the HTTP interface is opened, whatever runs it."""

import gc
import logging
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import TypeVar

from armwise.agent.api.errors import choose_code
from armwise.agent.config import AppConfig
from armwise.agent.evaluation import verdict
from armwise.agent.serving import Backends, Replica, Telemetry
from armwise.feedback.clock import SteadyClock
from armwise.feedback.errors import ClockError, LogUnavailableError

OPENING_S, SAID_S = 1.0, 60.0
"""Pause between two attempts of a replica to open a log, and between two log messages about it."""

T = TypeVar("T")

Deployments = Callable[[], dict[str, tuple[bool, str]]]
"""Returns whether each part of a service is healthy, and how it is; blocks."""

logger = logging.getLogger(__name__)


def open_replica(
    config: AppConfig, backends: Backends, counters: Path, deployments: Deployments | None = None
) -> Replica:
    """Open a replica once its log answers.

    Args:
        config: The configuration, with absolute paths.
        backends: The arms, encoders and language models.
        counters: Folder of the counters of all replicas on a machine.
        deployments: Returns how the parts of the service are; None: they all run in this process.
    """
    counters.mkdir(mode=0o700, parents=True, exist_ok=True)  # a cluster deploys from another machine
    telemetry = Telemetry(str(counters))
    return once_the_log_answers(
        lambda: Replica(
            config,
            backends,
            clock=SteadyClock(),
            telemetry=telemetry,
            gate=verdict,
            choose_code=choose_code,
            deployments=deployments,
        )
    )


def keep_what_is_loaded() -> None:
    """Exclude modules and models from garbage collections, which would take longer than a request."""
    gc.collect()
    gc.freeze()


def once_the_log_answers(make: Callable[[], T], pause_s: float = OPENING_S) -> T:
    """Return the result of `make`, which is called again while the log is unavailable or ahead of the clock.

    Ray Serve abandons a deployment whose replicas fail a few times at their start. A clock that was set back
    passes the log again; a wrong one is set right by people.
    """
    say_at = -inf
    while True:
        try:
            return make()
        except (LogUnavailableError, ClockError) as error:
            if time.monotonic() >= say_at:
                say_at = time.monotonic() + SAID_S
                logger.warning("a replica is waiting until it can write to the log: %s", error)
            time.sleep(pause_s)

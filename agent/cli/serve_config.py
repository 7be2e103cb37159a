"""What a configuration says of Ray Serve: where it listens, its replicas, its log."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from armwise.agent.configuration_file import read_file

MOST_AUTOMATIC = 100
"""Replicas at most of a deployment with `num_replicas: auto`, by Ray Serve."""


class LaunchError(Exception):
    """The service cannot be started; the message says why and what would be right."""


def read_listening_address(config: Path) -> tuple[str, int]:
    """Return the host and the port that a Serve configuration names. Raises LaunchError."""
    http = read_document(config).get("http_options") or {}
    try:
        return str(http.get("host", "127.0.0.1")), int(http.get("port", 8000))
    except (AttributeError, TypeError, ValueError):
        raise LaunchError(
            f"{config}: http_options {http!r} is not of the form {{host: 127.0.0.1, port: 8000}}"
        ) from None


def base_url(address: tuple[str, int]) -> str:
    """Return the URL of a host and a port.

    >>> base_url(("::1", 8000))
    'http://[::1]:8000'
    """
    host, port = address
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


@dataclass(frozen=True, slots=True)
class Replicas:
    """Replicas of a deployment.

    Attributes:
        first: How many are started at first.
        most: How many there are at most.
    """

    first: int = 1
    most: int = 1


def ingress_replicas(config: Path) -> Replicas:
    """Return the replicas of the ingress that a Serve configuration asks for."""
    (application,) = read_document(config)["applications"]
    for deployment in application.get("deployments") or ():
        if deployment.get("name") == "Ingress":
            autoscaling, number = deployment.get("autoscaling_config") or {}, deployment.get("num_replicas")
            fixed = 1 if number in (None, "auto") else int(number)
            most = autoscaling.get("max_replicas") or (MOST_AUTOMATIC if number == "auto" else fixed)
            first = autoscaling.get("initial_replicas") or autoscaling.get("min_replicas") or 1
            return Replicas(first if autoscaling else fixed, most)
    return Replicas()


def logs_json(config: Path) -> bool:
    """Return whether a Serve configuration asks for a log in JSON."""
    (application,) = read_document(config)["applications"]
    telemetry = (application.get("args") or {}).get("telemetry") or {}
    return bool(telemetry.get("logs") == "json")


def read_document(config: Path) -> dict[str, Any]:
    """Return what a Serve configuration says; empty where it is no mapping. Raises ConfigError."""
    document = read_file(config)
    return document if isinstance(document, dict) else {}

"""What a configuration says of Ray Serve: where it listens, its replicas, its log."""

from pathlib import Path
from typing import Any

import yaml

from armwise.agent.config import describe_unreadable

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


def ingress_replicas(config: Path) -> int:
    """Return how many replicas of the ingress a Serve configuration asks for at most."""
    (application,) = read_document(config)["applications"]
    for deployment in application.get("deployments") or ():
        if deployment.get("name") == "Ingress":
            autoscaling = deployment.get("autoscaling_config") or {}
            most = autoscaling.get("max_replicas") or deployment.get("num_replicas") or 1
            return MOST_AUTOMATIC if most == "auto" else int(most)
    return 1


def logs_json(config: Path) -> bool:
    """Return whether a Serve configuration asks for a log in JSON."""
    (application,) = read_document(config)["applications"]
    telemetry = (application.get("args") or {}).get("telemetry") or {}
    return bool(telemetry.get("logs") == "json")


def read_document(config: Path) -> dict[str, Any]:
    """Return what a Serve configuration says; empty where it is no mapping.

    Raises:
        LaunchError: The file is no YAML.
    """
    try:
        document = yaml.safe_load(config.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise LaunchError(f"{config}: {describe_unreadable(error)}") from None
    return document if isinstance(document, dict) else {}

"""What a configuration says of Ray Serve: where it listens, its deployments, its log."""

from pathlib import Path
from typing import Any

from armwise.agent.configuration_file import read_file


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


def find_deployments(config: Path) -> list[str]:
    """Return the names of deployments for which a Serve configuration has options."""
    applications = read_document(config).get("applications")
    return [
        str(deployment.get("name"))
        for application in (applications if isinstance(applications, list) else ())
        for deployment in application.get("deployments") or ()
    ]


def read_document(config: Path) -> dict[str, Any]:
    """Return what a Serve configuration says; empty where it is no mapping. Raises ConfigError."""
    document = read_file(config)
    return document if isinstance(document, dict) else {}

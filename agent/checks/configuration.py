"""Checks of a configuration: keys, the way to the database, and where remote arms send questions."""

import ipaddress
import os
import socket
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

from agent.access import is_loopback
from agent.checks.finding import Finding
from agent.config import AppConfig
from arms.secrets import secret_of

SHORTEST_KEY = 16
"""Characters of a key that cannot be guessed, at least."""

ENCRYPTED = ("require", "verify-ca", "verify-full")
"""Values of sslmode with which PostgreSQL is never read in plain text."""


def configuration_findings(config: AppConfig, host: str, *, is_open: bool) -> Iterator[Finding]:
    """Yield what is open by configuration.

    Args:
        config: The configuration.
        host: Where the service listens.
        is_open: Whether there is no key, in the configuration or in the log.
    """
    yield from _keys(config, host, is_open)
    yield from _database(config)
    found = [each for one in config.by_point.values() for each in one.arms.items()]
    remote = {
        (name, str(spec.params.get("url", ""))) for name, spec in found if spec.kind in ("remote", "mcp")
    }
    for name, url in sorted(remote):
        yield from _remote(name, url)


def _keys(config: AppConfig, host: str, is_open: bool) -> Iterator[Finding]:
    if is_open:
        what = f"there is no key: all who reach {host} can ask, give feedback and administer the service"
        yield Finding(what, "call `armwise key create`, or declare `keys`", serious=not is_loopback(host))
    for key in config.keys:
        length = len(secret_of(key.env))
        if length < SHORTEST_KEY:
            yield Finding(
                f"the key in {key.env} has {length} characters",
                f"set it to {SHORTEST_KEY} random ones or more, such as those of `openssl rand -hex 32`",
            )
    if not is_open and not is_loopback(host):
        yield Finding(
            f"keys and questions pass {host} in plain text", "terminate TLS in front of it", serious=False
        )


def _database(config: AppConfig) -> Iterator[Finding]:
    address = urlsplit(config.database_url)
    if not address.scheme.startswith("postgresql"):
        return
    options = parse_qs(address.query)
    host = address.hostname or options.get("host", [""])[0]
    mode = options.get("sslmode", [os.environ.get("PGSSLMODE", "prefer")])[0]
    if host and not host.startswith("/") and not is_loopback(host):
        if mode not in ENCRYPTED:
            what = f"PostgreSQL on {host} may be used without TLS (sslmode {mode})"
            yield Finding(what, "add ?sslmode=verify-full to log_url")
        elif mode == "require":
            what = f"sslmode require does not check that it is {host} which answers"
            yield Finding(what, "use sslmode=verify-full with sslrootcert", serious=False)
    if address.password or "password" in options:
        yield Finding("log_url holds a password", "put it in PGPASSFILE", serious=False)


def _remote(name: str, url: str) -> Iterator[Finding]:
    address = urlsplit(url)
    for found in _addresses(address.hostname or ""):
        if found.is_link_local:
            what = (
                f"arm {name!r} sends questions to {found}, an address of the machine's own network or cloud"
            )
            yield Finding(what, "name the search service by its address")
            return
        if found.is_private:
            what = f"arm {name!r} sends questions to {found}, which is private"
            yield Finding(what, "nothing is wrong if that is your own search", serious=False)
            return
    if address.scheme == "http":
        what = f"arm {name!r} sends questions to {address.hostname} in plain text"
        yield Finding(what, "use https", serious=False)


def _addresses(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return the addresses of a host; none of a name that cannot be resolved here."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [ipaddress.ip_address(str(place[0]).partition("%")[0]) for *_, place in found]

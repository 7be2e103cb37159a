"""The names and addresses of the service: which a request may name, and where no key is needed."""

import ipaddress
import re
from collections.abc import Collection
from functools import lru_cache

_HOST = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::\d*)?")
"""An address of IPv6, or another name, and a port."""


class OpenServiceError(ValueError):
    """A service without keys would listen where others reach it."""


class UnknownHostError(ValueError):
    """A request names another host than the service."""


class Hosts:
    """Host names that requests may name.

    A page of another site can have its name resolve to this machine, and then read what the service
    answers (DNS rebinding); but it cannot choose the name that the browser sends. An address as a name
    cannot be made to resolve to another one, so that every address is accepted.

    Args:
        names: Names besides localhost and addresses: `api.example.com`, `*.example.com` or `*`.
    """

    def __init__(self, names: Collection[str]) -> None:
        patterns = ("localhost", "*.localhost", *(name.lower() for name in names))
        self._any = "*" in patterns
        self._names = frozenset(patterns)
        self._endings = tuple(name[1:] for name in patterns if name.startswith("*."))

    def check(self, header: str) -> None:
        """Check a `Host` header. Raises UnknownHostError.

        >>> Hosts(["api.example.com"]).check("api.example.com:8000")
        >>> Hosts([]).check("[::1]:8000")
        """
        name = _name(header)
        if not (self._any or self._is_named(name) or _is_address(name)):
            raise UnknownHostError(f"the service is not {name!r}: add it to `hosts` if it is a name of it")

    def has_page(self, origin: str, host: str) -> bool:
        """Return whether the site of a page is the service, a name of it or this machine.

        `*` among the names is for any name of the service, and for no other site.

        Args:
            origin: The `Origin` header.
            host: The `Host` header; empty where there is none.

        >>> hosts = Hosts(["api.example.com"])
        >>> [hosts.has_page("http://10.0.0.7", host) for host in ("10.0.0.7", "api.example.com")]
        [True, False]
        >>> [hosts.has_page(page, "10.0.0.7") for page in ("https://api.example.com", "http://localhost:6274")]
        [True, True]
        """
        place = origin.partition("://")[2].lower()
        if not place:  # `null`: a page without a site
            return False
        name = _name(place)
        return place == host.lower() or self._is_named(name) or is_loopback(name)

    def _is_named(self, name: str) -> bool:
        return name in self._names or name.endswith(self._endings)


def _name(place: str) -> str:
    """Return the host of a `host:port`; other texts unchanged."""
    match = _HOST.fullmatch(place)
    return (match[1] or match[2]).lower().removesuffix(".") if match else place


def require_closed(host: str, *, is_open: bool, allowed: bool) -> None:
    """Refuse to listen where others reach a service without keys.

    Args:
        host: Address that it listens on.
        is_open: Whether it has no keys.
        allowed: Whether the configuration says that it may.

    Raises:
        OpenServiceError: It would be open to others.
    """
    if is_open and not allowed and not is_loopback(host):
        raise OpenServiceError(
            f"the service would listen on {host} without any key: make one with `armwise key create`, "
            "or set `open: true` if everybody may use it"
        )


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine reach an address.

    Names other than localhost are not resolved.

    >>> [is_loopback(host) for host in ("127.0.0.1", "[::1]", "::ffff:127.0.0.1", "0.0.0.0", "db.internal")]
    [True, True, True, False, False]
    """
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


@lru_cache(maxsize=256)  # of each request, which mostly names the same one
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

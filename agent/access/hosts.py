"""Host names and addresses: those that a request may use, that need keys, and that count as one client."""

import re
from collections.abc import Collection
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address

_HOST = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::\d*)?")
"""An IPv6 address or another host name, and an optional port."""


_ALL_OF_IPV4 = "0.0.0.0"  # it is only compared # nosec B104

_HERE = {_ALL_OF_IPV4: "127.0.0.1", "::": "::1"}
"""Addresses that stand for all of a machine, and one at which it reaches itself."""


class OpenServiceError(ValueError):
    """A service without keys would listen on an address that others can reach."""


class UnknownHostError(ValueError):
    """The `Host` header of a request is not a name of the service."""


class Hosts:
    """Host names that requests may use, as a defence against DNS rebinding.

    A foreign site can let its name resolve to this machine, and read the answers of the service; but the
    browser still sends the foreign name. An address resolves to itself, so every address is accepted.

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
            raise UnknownHostError(
                f"{name!r} is not a known name of this service: if it should be, add it to `hosts`"
            )

    def has_page(self, origin: str, host: str) -> bool:
        """Return whether the site of a page is the service, one of its names, or this machine.

        The name `*` accepts any name as the service's host; it does not admit other sites.

        Args:
            origin: The `Origin` header.
            host: The `Host` header; empty if missing.

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


def local_url(host: str, port: int) -> str:
    """Return the URL at which a program of this machine reaches a service that listens there.

    >>> local_url("0.0.0.0", 8000), local_url("::", 8000)
    ('http://127.0.0.1:8000', 'http://[::1]:8000')
    """
    name = _HERE.get(host, host)
    return f"http://{f'[{name}]' if ':' in name else name}:{port}"


def require_closed(host: str, *, is_open: bool, allowed: bool) -> None:
    """Check that a service without keys listens on loopback only.

    Args:
        host: Address that it listens on.
        is_open: Whether the service lacks keys.
        allowed: Whether the configuration permits an open service.

    Raises:
        OpenServiceError: The service would be open to others.
    """
    if is_open and not allowed and not is_loopback(host):
        raise OpenServiceError(
            f"the service would listen on {host} without any key: create one with `armwise key create`, "
            "or set `open: true` if anybody may use it"
        )


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine can reach an address.

    Names are not resolved; all except localhost count as reachable by others.

    >>> [is_loopback(host) for host in ("127.0.0.1", "[::1]", "::ffff:127.0.0.1", "0.0.0.0", "db.internal")]
    [True, True, True, False, False]
    """
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return host == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


@lru_cache(maxsize=256)  # most requests name the same host
def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


@lru_cache(4096)
def count_as(address: str | None, trusted: tuple[IPv4Network | IPv6Network, ...] = ()) -> str | None:
    """Return what limits on one client count an address as: IPv6 by its /64, the network of one subscriber.

    Returns:
        None for an address that is not limited: of a Unix socket, or in a trusted network.
    """
    try:
        parsed = ip_address((address or "").partition("%")[0])
    except ValueError:
        return None  # a Unix socket, which only this user can open
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if any(parsed in network for network in trusted):
        return None
    return str(IPv6Network((parsed, 64), strict=False)) if isinstance(parsed, IPv6Address) else str(parsed)

"""Which proxy of the environment a request goes through: one rule for every HTTP client of Armwise.

HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY count, in capitals or not; the lower-case name wins. This
machine is never asked through a proxy. A proxy that cannot be used is an error that names the variable, not a
request that goes round it. Make a client with `client` or `async_client`; for a library with a client of its
own, pass it `find_proxy` or call `require_usable` first.
"""

import os
import re
import shlex
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

import httpx
from typing_extensions import override

from armwise.arms.extras import find_missing

SOCKS = ("socks5", "socks5h", "socks")
"""Schemes of SOCKS proxies. Desktops write the last one."""

PACKAGES = {"socksio": "httpx[socks]", "aiohttp_socks": "aiohttp-socks", "socks": "requests[socks]"}
"""What to install for the module with which a library talks to a SOCKS proxy."""

LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20)
"""Connections of a client at once, as httpx has them by default."""


class ProxySettingError(httpx.ProxyError):
    """A proxy of the environment cannot be used; the message names the variable and what to do."""


@dataclass(frozen=True, slots=True)
class ProxySetting:
    """A proxy of the environment.

    Attributes:
        variable: The variable that names it.
        url: The address, with a scheme.
    """

    variable: str
    url: str

    @property
    def is_socks(self) -> bool:
        """Whether the protocol is SOCKS."""
        return self.url.startswith("socks5")

    def __str__(self) -> str:
        """The variable and its value, without a password."""
        return f"{self.variable}={_without_credentials(self.url)}"


def is_this_machine(host: str) -> bool:
    """Return whether a host is this machine by its name or address.

    >>> [is_this_machine(host) for host in ("localhost", "127.9.0.1", "[::1]", "::ffff:127.0.0.1", "0.0.0.0")]
    [True, True, True, True, True]
    >>> is_this_machine("localhost.example"), is_this_machine("10.0.0.1")
    (False, False)
    """
    name = host.strip("[]").rstrip(".").lower()
    try:
        address = ip_address(name)
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback or address.is_unspecified or _has_address(address)


def _has_address(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an interface of this machine has an address."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as own:
            own.bind((str(address), 0))
    except OSError:
        return False
    return True


def find_proxy(url: str | httpx.URL, modules: tuple[str, ...] = ("socksio",)) -> ProxySetting | None:
    """Return the proxy for an address; None: it is asked directly.

    Args:
        url: The address.
        modules: What the library of the client needs for a SOCKS proxy.

    Raises:
        ProxySettingError: The variable has no address of a proxy, or a module is missing.
    """
    address = httpx.URL(url)
    port = {"http": address.port or 80, "https": address.port or 443}.get(address.scheme)
    if port is None:  # not HTTP
        return None
    found = next(filter(None, (_read(name) for name in (address.scheme, "all"))), None)
    # the variables come first: whether an address is of this machine takes a socket
    if found is None or is_this_machine(address.host) or _is_excepted(address.host.lower(), port):
        return None
    return _require_sound(found, f"to reach {address.scheme}://{address.netloc.decode()}", modules)


def require_usable(modules: tuple[str, ...] = ("socksio",)) -> None:
    """Check every proxy of the environment, for a library that reads them all.

    Raises:
        ProxySettingError: One of them cannot be used.
    """
    for setting in filter(None, (_read(name) for name in ("http", "https", "all"))):
        _require_sound(setting, "to reach other machines", modules)
    try:
        httpx.Client().close()
    except httpx.InvalidURL as error:
        excepted = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
        raise ProxySettingError(
            f"NO_PROXY={excepted} has an address that a library cannot read ({error}): leave out brackets "
            "and networks of IPv6"
        ) from None


def describe_way(url: str | httpx.URL) -> str:
    """Return ` through` and the proxy for an address, to append to what failed there; empty without one."""
    try:
        proxy = find_proxy(url)
    except (ProxySettingError, httpx.InvalidURL):
        return ""
    return "" if proxy is None else f" through {proxy}"


def client(limits: httpx.Limits = LIMITS, **settings: Any) -> httpx.Client:
    """Return an HTTP client that follows the rule of this module; it takes the arguments of httpx.Client."""
    return httpx.Client(transport=_Routed(limits), **settings)


def async_client(limits: httpx.Limits = LIMITS, **settings: Any) -> httpx.AsyncClient:
    """Return an HTTP client that follows the rule of this module; see `client`."""
    return httpx.AsyncClient(transport=_AsyncRouted(limits), **settings)


def connect_by_socks(proxy: ProxySetting, **settings: Any) -> Any:
    """Return a connector of aiohttp over a SOCKS proxy, which looks names up itself.

    Args:
        proxy: The proxy.
        **settings: Arguments of aiohttp.TCPConnector.
    """
    from aiohttp_socks import ProxyConnector

    return ProxyConnector.from_url(proxy.url, rdns=True, **settings)


class _Routes:
    """Transports by proxy, made when a request needs one.

    Args:
        make: Makes a transport for a proxy; None: without one.
    """

    def __init__(self, make: Callable[[httpx.Proxy | None], Any]) -> None:
        self._make = make
        self._made = dict[str, Any]()

    def find(self, url: httpx.URL) -> Any:
        proxy = find_proxy(url)
        key = "" if proxy is None else proxy.url
        if key not in self._made:  # another thread may make it, too: the first one stays
            self._made.setdefault(key, self._make(None if proxy is None else httpx.Proxy(proxy.url)))
        return self._made[key]

    @property
    def made(self) -> list[Any]:
        return list(self._made.values())


class _Routed(httpx.BaseTransport):
    """Sends each request through the proxy for its address."""

    def __init__(self, limits: httpx.Limits) -> None:
        self._routes = _Routes(lambda proxy: httpx.HTTPTransport(proxy=proxy, limits=limits))

    @override
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response: httpx.Response = self._routes.find(request.url).handle_request(request)
        return response

    @override
    def close(self) -> None:
        for transport in self._routes.made:
            transport.close()


class _AsyncRouted(httpx.AsyncBaseTransport):
    """Sends each request through the proxy for its address."""

    def __init__(self, limits: httpx.Limits) -> None:
        self._routes = _Routes(lambda proxy: httpx.AsyncHTTPTransport(proxy=proxy, limits=limits))

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response: httpx.Response = await self._routes.find(request.url).handle_async_request(request)
        return response

    @override
    async def aclose(self) -> None:
        for transport in self._routes.made:
            await transport.aclose()


def _read(name: str) -> ProxySetting | None:
    """Return the proxy that the variables of a scheme, or of all, name; an empty one counts as unset."""
    for variable in (f"{name}_proxy", f"{name}_PROXY".upper()):
        if variable in os.environ:
            value = os.environ[variable].strip()
            url = value if "://" in value else f"http://{value}"
            scheme, _, rest = url.partition("://")
            scheme = "socks5" if scheme.lower() in SOCKS else scheme.lower()
            return ProxySetting(variable, f"{scheme}://{rest}") if value else None
    return None


def _require_sound(setting: ProxySetting, purpose: str, modules: tuple[str, ...]) -> ProxySetting:
    try:
        address = urlsplit(setting.url)
        sound = address.scheme in ("http", "https", "socks5") and bool(address.hostname)
        httpx.Proxy(setting.url)
        address.port  # noqa: B018 - raises for one that is none
    except (ValueError, httpx.InvalidURL):
        sound = False
    if not sound:
        raise ProxySettingError(
            f"{setting} is not the address of a proxy, which is needed {purpose}: set it to one such as "
            f"http://proxy.example:3128, or unset {setting.variable}"
        )
    if setting.is_socks and (missing := find_missing(modules)):
        packages = " ".join(shlex.quote(PACKAGES[module]) for module in missing)
        raise ProxySettingError(
            f"{setting} is a SOCKS proxy, which needs one more package {purpose}: pip install {packages}"
        )
    return setting


def _is_excepted(host: str, port: int) -> bool:
    """Return whether NO_PROXY names a host: by its name, a domain above it, its network, or all by `*`."""
    variable = "no_proxy" if "no_proxy" in os.environ else "NO_PROXY"
    return any(
        _names(entry, host, port) for entry in re.split(r"[\s,]+", os.environ.get(variable, "").lower())
    )


def _names(entry: str, host: str, port: int) -> bool:
    entry = entry.rpartition("://")[2].rstrip("/")
    with suppress(ValueError):
        return ip_address(host.strip("[]")) in ip_network(
            entry.replace("[", "").replace("]", ""), strict=False
        )
    name, colon, number = entry.partition(":") if entry.count(":") == 1 else (entry, "", "")
    if colon and number != str(port):
        return False
    domain = name.lstrip("*").lstrip(".")
    return name == "*" or (bool(domain) and (host == domain or host.endswith(f".{domain}")))


def _without_credentials(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"

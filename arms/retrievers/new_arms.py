"""What an arm may reach that does not stand in the configuration file, and connections that keep to it.

The arms of the file were written by the operator. Others come over HTTP, by way of the log: they reach the
hosts, variables and models that the file names, and no inner address of a network beside these.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Collection, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any

import httpcore
import httpx
from pydantic import BaseModel, ConfigDict, Field, field_validator
from typing_extensions import override

from armwise.arms.base import ArmError

DEFAULT_PORTS = {"http": 80, "https": 443}

Networks = tuple[IPv4Network | IPv6Network, ...]


class EngineAccess(BaseModel):
    """Collections of a search engine that arms added over HTTP may search."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    place: str = Field(description="Address or folder of the engine, as arms write it.")
    collections: tuple[str, ...] = Field(description="Names of collections there.")
    variables: tuple[str, ...] = Field(
        default=(), description="Environment variables that may be sent there, as `key_env`."
    )


class NewArms(BaseModel):
    """What arms added over HTTP may use, besides what the arms of this file use."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hosts: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Hosts of `remote` and `mcp` arms, such as `search.example` or `10.0.0.7:8080`, each "
        "with the environment variables that may be sent to it. Without a port, that of http or https.",
    )
    networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        default=(),
        description="Private networks in which hosts named by such arms may be, such as `10.0.0.0/8`; an "
        "address in `hosts` is always allowed.",
    )
    models: tuple[str, ...] = Field(
        default=(),
        description="Models and trained routers, as an arm names them; those that this file names, and "
        "those below `home`, are always allowed.",
    )
    engines: tuple[EngineAccess, ...] = Field(
        default=(), description="Search engines that arms such as `postgres` and `qdrant` may search."
    )
    retrievers: tuple[str, ...] = Field(
        default=(),
        description="Functions that return retrievers, `package.module:function`, which arms of kind "
        "`langchain`, `llamaindex` and `haystack` may name, without arguments.",
    )

    @field_validator("hosts")
    @classmethod
    def _are_hosts(cls, hosts: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for host in hosts:
            try:
                sound = read_place(httpx.URL(f"http://{host}/")) in (host, f"{host}:80")
            except httpx.InvalidURL:
                sound = False
            if not sound or not host:
                raise ValueError(
                    f"{host!r} is not a host: search.example or 10.0.0.7:8080 was expected, lower case"
                )
        return hosts

    @property
    def inner(self) -> Networks:
        """Networks that may be reached although they are not public."""
        hosts = (httpx.URL(f"http://{host}").host for host in self.hosts)
        return (*self.networks, *(ipaddress.ip_network(host) for host in hosts if _is_address(host)))

    def variables(self, url: httpx.URL) -> Collection[str] | None:
        """Return the variables that may be sent to a host; None for a host that may not be reached."""
        place = read_place(url)
        host, _, port = place.rpartition(":")
        variables = self.hosts.get(place)
        return (
            self.hosts.get(host)
            if variables is None and int(port) == DEFAULT_PORTS[url.scheme]
            else variables
        )


def read_place(url: httpx.URL) -> str:
    """Return the host and the port of an address.

    >>> read_place(httpx.URL("https://Search.example/a?b")), read_place(httpx.URL("http://u:p@[::1]:8080"))
    ('search.example:443', '[::1]:8080')
    """
    host = url.raw_host.decode()
    return f"[{host}]:{_port(url)}" if ":" in host else f"{host}:{_port(url)}"


def _port(url: httpx.URL) -> int:
    return url.port or DEFAULT_PORTS[url.scheme]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address is one of the public internet, also where it holds an older one.

    >>> [is_public(ipaddress.ip_address(one)) for one in ("1.1.1.1", "10.0.0.1", "::ffff:127.0.0.1")]
    [True, False, False]
    """
    inside = (address.ipv4_mapped or address.sixtofour) if isinstance(address, IPv6Address) else None
    if inside is not None:
        return is_public(inside)
    old = isinstance(address, IPv6Address) and address.is_site_local
    return address.is_global and not (address.is_multicast or address.is_reserved or old)


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host. Raises OSError."""
    addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[4][0]) for address in addresses))


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects to addresses that may be reached: those that it has resolved and checked, and no later ones.

    Args:
        inner: Networks that may be reached although they are not public.
    """

    def __init__(self, inner: Networks) -> None:
        self._inner = inner
        self._backend = httpcore.AnyIOBackend()

    @override
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            addresses = await resolve(host, port)
        except OSError as error:
            raise httpcore.ConnectError(f"{host}: {error}") from error
        for address in addresses:
            if not self._may_be_reached(ipaddress.ip_address(address)):
                raise ArmError(
                    f"{host} is at {address}, which is not a public address: only `new_arms` of the "
                    "configuration can name it, or its network"
                )
        failed = httpcore.ConnectError(f"{host} has no address")
        for address in addresses:
            try:
                return await self._backend.connect_tcp(address, port, timeout, local_address, socket_options)
            except httpcore.ConnectError as error:
                failed = error
        raise failed

    @override
    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)

    def _may_be_reached(self, address: IPv4Address | IPv6Address) -> bool:
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return is_public(address) or any(address in network for network in self._inner)


class CheckedTransport(httpx.AsyncHTTPTransport):
    """A transport over `CheckedBackend`; it uses no proxy, which would resolve names itself."""

    def __init__(self, inner: Networks, limits: httpx.Limits) -> None:
        super().__init__(limits=limits, trust_env=False)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=httpx.create_ssl_context(),
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            network_backend=CheckedBackend(inner),
        )

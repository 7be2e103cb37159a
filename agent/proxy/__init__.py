"""The HTTP proxy of a machine: HAProxy in front of the ingress replicas, which listen on Unix sockets."""

from .configuration import ADMIN_SOCKET, CONFIGURATION, Listening, socket_path, write_configuration
from .limits import (
    OTHER_HANDLES,
    bind_problem,
    hard_limit_of_files,
    most_connections,
    raise_limit_of_files,
)
from .process import Proxy, ProxyError, ends_with_its_parent, haproxy_binary, wait_for_end

__all__ = [
    "ADMIN_SOCKET",
    "CONFIGURATION",
    "OTHER_HANDLES",
    "Listening",
    "Proxy",
    "ProxyError",
    "bind_problem",
    "ends_with_its_parent",
    "haproxy_binary",
    "hard_limit_of_files",
    "most_connections",
    "raise_limit_of_files",
    "socket_path",
    "wait_for_end",
    "write_configuration",
]

"""The HTTP proxy of one machine: HAProxy in front of the ingress replicas, which answer on Unix sockets."""

from .configuration import Listening, socket_path, write_configuration
from .listener import listening
from .process import Proxy, ProxyError, ends_with_its_parent, haproxy_binary

__all__ = [
    "Listening",
    "Proxy",
    "ProxyError",
    "ends_with_its_parent",
    "haproxy_binary",
    "listening",
    "socket_path",
    "write_configuration",
]

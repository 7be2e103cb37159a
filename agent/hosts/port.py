"""Where a service listens: a port, which a new process can take over, or the socket of a replica.

Two processes of one user listen on the port for a moment (SO_REUSEPORT). Then the kernel gives all new
connections to the new one, and the old one accepts what was queued for it before it closes its sockets.
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

BACKLOG = 2048
"""Connections that the kernel queues."""

SOCKETS = 8
"""Most replicas of the ingress on a machine, old and new ones."""

HAND_OVER_S = 1.0
"""Seconds for which a process that is replaced still accepts: longer than a handshake takes."""

SO_ATTACH_REUSEPORT_CBPF = 51
"""Option of Linux: a program that chooses one of the sockets of a port."""

RETURN_1 = struct.pack("HBBI", 0x06, 0, 0, 1)
"""A classic BPF program that returns 1: the second socket. With one socket, Linux ignores it."""


def open_port(host: str, port: int, *, shared: bool) -> list[socket.socket]:
    """Listen on an address, and take all new connections from a process that has it.

    Args:
        host: A name or an address, perhaps with several addresses.
        port: The port.
        shared: Whether another process of this user listens there, by this function.

    Raises:
        OSError: Another program has the port.
    """
    sockets = []
    with ExitStack() as opened:
        for family, *_, address in dict.fromkeys(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)):
            listener = opened.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if shared:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(address)
            # only now: a program that was started twice by mistake is refused, a successor is not
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.listen(BACKLOG)
            if shared and sys.platform == "linux":
                program = ctypes.create_string_buffer(RETURN_1, len(RETURN_1))
                option = struct.pack("HP", 1, ctypes.addressof(program))
                listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, option)
            sockets.append(listener)
        opened.pop_all()
    return sockets


@contextmanager
def open_socket(folder: Path) -> Iterator[socket.socket]:
    """Listen on the first free socket of a folder, for HAProxy (`haproxy.cfg` has their names).

    A lock that the kernel releases with the process says which are taken.
    """
    for number in range(SOCKETS):
        with ExitStack() as stack:
            path = folder / f"ingress-{number}.sock"
            lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            path.unlink(missing_ok=True)  # of a replica that was killed
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listener.bind(str(path))
            stack.callback(path.unlink, missing_ok=True)
            listener.listen(BACKLOG)
            yield listener
            return
    raise RuntimeError(f"{folder}: {SOCKETS} replicas already listen there, which is all that HAProxy knows")

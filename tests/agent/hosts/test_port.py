"""A port is handed from one process to the next, and no connection is lost meanwhile."""

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from armwise.agent.hosts.port import SOCKETS, open_port, open_socket
from armwise.agent.process_limits import bind_problem


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """Closes the sockets of a test."""
    with ExitStack() as stack:
        yield stack


def listen(opened: ExitStack, port: int, *, shared: bool) -> socket.socket:
    (listener,) = open_port("127.0.0.1", port, shared=shared)
    listener.settimeout(0.05)
    return opened.enter_context(listener)


def knock(opened: ExitStack, port: int, times: int = 50) -> None:
    for _ in range(times):
        opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))


def accepted(opened: ExitStack, listener: socket.socket) -> int:
    """Return how many connections a listener gets."""
    for count in range(1000):
        try:
            opened.enter_context(listener.accept()[0])
        except TimeoutError:
            return count
    raise AssertionError("there is no end")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone chooses the socket by a program")
def test_the_newest_process_gets_all_new_connections_and_the_older_one_what_was_queued(
    opened: ExitStack,
) -> None:
    first = listen(opened, 0, shared=False)
    port = first.getsockname()[1]
    for _ in range(3):  # as often as a service is replaced
        knock(opened, port)
        second = listen(opened, port, shared=True)
        knock(opened, port)
        assert (accepted(opened, first), accepted(opened, second)) == (50, 50)
        first.close()
        knock(opened, port)
        assert accepted(opened, second) == 50
        first = second


def test_a_port_is_shared_with_a_successor_alone(opened: ExitStack) -> None:
    first = listen(opened, 0, shared=False)
    port = first.getsockname()[1]
    assert bind_problem("127.0.0.1", port, shared=True) is None
    with pytest.raises(OSError, match="in use"):
        open_port("127.0.0.1", port, shared=False)
    other = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
    assert "in use" in str(bind_problem("127.0.0.1", other.getsockname()[1], shared=True))


def test_each_replica_has_a_socket_of_its_own_and_frees_it(tmp_path: Path) -> None:
    with ExitStack() as stack:
        names = [stack.enter_context(open_socket(tmp_path)).getsockname() for _ in range(SOCKETS)]
        assert names == [str(tmp_path / f"ingress-{n}.sock") for n in range(SOCKETS)]
        with pytest.raises(RuntimeError, match="8 replicas already listen"), open_socket(tmp_path):
            pass
    (tmp_path / "ingress-0.sock").touch()  # of a replica that was killed
    with open_socket(tmp_path) as listener:
        assert listener.getsockname() == str(tmp_path / "ingress-0.sock")

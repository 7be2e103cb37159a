"""Machines are killed, settings deployed, clusters exchanged under traffic: what was acknowledged stays true.

The long form, with a table, is `python benchmarks/nodes.py`.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from armwise.agent.proxy import haproxy_binary
from benchmarks.nodes import Scenario, scenario
from benchmarks.nodes_cluster import ARMS, SECOND
from benchmarks.nodes_machines import NetworkError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of Linux take root"),
    pytest.mark.skipif(haproxy_binary() is None, reason="there is no HAProxy for this platform"),
]


@pytest.fixture(scope="module")
def run() -> Iterator[Scenario]:
    """Three machines with clients that ask all the time."""
    with ExitStack() as stack:
        try:
            begun = stack.enter_context(scenario(clients=2))
        except NetworkError as error:
            pytest.skip(f"no machines can be made here: {error}")
        yield begun


def test_a_machine_with_an_ingress_is_killed_and_the_other_one_answers(run: Scenario) -> None:
    change = run.cluster.kill(SECOND)
    assert change.longest_s < change.whole_s, "clients waited for another machine"
    assert set(change.failed) <= {"arm_failed", "llm_failed", "llm_timeout"}


def test_the_machine_with_the_arms_is_killed_and_other_arms_answer(run: Scenario) -> None:
    change = run.cluster.kill(ARMS)
    assert change.longest_s < change.whole_s
    assert set(change.failed) <= {"arm_failed", "llm_failed", "llm_timeout"}


def test_settings_are_deployed_and_no_request_fails(run: Scenario) -> None:
    change = run.deploy()
    assert (change.refused, change.failed) == (0, {})


def test_a_second_cluster_takes_the_log_over_and_stops_in_order(run: Scenario) -> None:
    with run.successor() as single:
        run.upgrade(single)
        run.end(single)
    assert run.learners is not None
    assert run.learners.in_turn
    assert run.learners.hosts[-1] == socket.gethostname(), "the second cluster learns"
    assert run.learners.hosts.count(socket.gethostname()) == 1, "and no other one has taken it back"
    assert run.stopped is not None
    assert run.stopped.finished == (200, 200, 200, 200)
    assert run.stopped.refused == ((True, "not_ready"),)
    assert run.stopped.gone
    assert run.verdict.faults == ()
    assert run.cluster.ledger.odd == []
    assert run.verdict.examples > 0

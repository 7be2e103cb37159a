"""Machines are killed and cut off, and settings deployed, under traffic: what was acknowledged stays true."""

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.nodes.cluster import ARMS, SECOND, Change, Cluster
from tests.nodes.machines import Network, NetworkError
from tests.postgres import running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of Linux take root"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three machines with clients that ask all the time."""
    with ExitStack() as stack:
        server = stack.enter_context(running())
        try:
            network = stack.enter_context(Network())
        except NetworkError as error:
            pytest.skip(f"no machines can be made here: {error}")
        yield stack.enter_context(Cluster(server.fresh(), network, clients=2, seed=7).running())


def others_answered(change: Change) -> bool:
    """Say whether clients waited less than for another machine, and failed by what was lost alone."""
    failed_there = set(change.failed) <= {"arm_failed", "llm_failed", "llm_timeout"}
    return failed_there and change.longest_s < change.whole_s


def test_a_machine_with_an_ingress_is_killed_and_the_other_one_answers(cluster: Cluster) -> None:
    assert others_answered(cluster.kill(SECOND))


def test_a_machine_that_is_cut_off_is_replaced_and_its_learner_learns_nothing_twice(cluster: Cluster) -> None:
    assert others_answered(cluster.cut_off(SECOND))


def test_the_machine_with_the_arms_is_killed_and_other_arms_answer(cluster: Cluster) -> None:
    assert others_answered(cluster.kill(ARMS))


def test_settings_are_deployed_and_no_request_fails(cluster: Cluster) -> None:
    limits = cluster.document["limits"]
    change = cluster.redeploy(limits={**limits, "in_flight": limits["in_flight"] + 1})
    assert (change.refused, change.failed) == (0, {})


def test_nothing_that_was_acknowledged_is_lost_or_learned_twice(cluster: Cluster) -> None:
    cluster.quiet()
    verdict = cluster.audited()
    assert verdict.faults == ()
    assert cluster.ledger.odd == []
    assert verdict.examples > 0

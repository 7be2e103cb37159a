"""A service that loses a process of its own: it is whole again, or it ends and says why."""

import pytest

from benchmarks.kills import outcomes
from tests.live.conftest import free_port

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]


def test_what_can_be_started_again_is_and_the_end_of_ray_is_the_end_of_the_service() -> None:
    parts = ["learner", "HAProxy", "runtime-environment agent"]
    learner, proxy, agent = outcomes("ready", parts, free_port())
    assert learner.followed.startswith("started again")
    assert "200, failed: deployments" in learner.said
    assert proxy.followed.startswith("started again")
    assert agent.followed.startswith("ended with code 1")
    assert "processes left" not in agent.followed
    assert float(agent.followed.split()[-2]) < 30.0
    assert "Ray's runtime-environment agent" in agent.line


def test_a_builder_that_is_killed_at_the_first_start_is_started_again() -> None:
    (builder,) = outcomes("start", ["builder behind the service"], free_port())
    assert builder.followed.startswith("started again")
    assert any("failed: first_start" in words for words in builder.said)

"""The clock of the machine is set back or forward while the service runs, on a real log."""

import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from armwise.feedback.clock import AHEAD_S, SteadyClock
from armwise.feedback.errors import ClockError
from armwise.feedback.log import Store, open_log
from armwise.feedback.log import tables as t
from tests.agent.asking import look_up, refused, tell
from tests.agent.fakes import Service
from tests.feedback.test_clock import Hands

JUMPS = (-600.0, 600.0)


@pytest.fixture
def hands() -> Hands:
    """Both clocks of the machine, which the test moves; they begin with the real time."""
    made = Hands()
    made.wall_at = time.time()
    return made


@pytest.fixture
async def clocked(tmp_path: Path, hands: Hands, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    monkeypatch.setattr("tests.agent.fakes.SteadyClock", lambda: SteadyClock(hands.wall, hands.steady))
    monkeypatch.setenv("ADMIN_KEY", "a-secret")
    keys = [{"env": "ADMIN_KEY", "scopes": ["admin"]}]
    reward = {"metrics": {"thumb": {"range": [-1, 1]}}, "complete": "deadline", "wait_time": "PT5M"}
    limits = {"arm_timeout_s": 1.0, "llm_timeout_s": 1.0}
    async with Service(tmp_path, keys=keys, reward=reward, limits=limits).running() as service:
        service.client.headers["authorization"] = "Bearer a-secret"
        yield service


def stamps(service: Service) -> list[float]:
    """Return the times of all decisions, executions and feedback, in the order of the log."""
    columns = (
        sa.select(t.decisions.c.seq, t.decisions.c.decided_at.label("at")),
        sa.select(t.feedback.c.seq, t.feedback.c.received_at.label("at")),
    )
    both = sa.union_all(*columns).subquery()
    with service.replica.store.reading() as connection:
        return [at for _, at in connection.execute(sa.select(both).order_by(both.c.seq))]


async def make_key(service: Service, **fields: Any) -> httpx.Response:
    body = {"name": "app", "scopes": ["decide", "feedback"]} | fields
    return await service.client.post("/v1/keys", json=body)


@pytest.mark.parametrize("jump_s", JUMPS)
async def test_decisions_feedback_and_keys_go_on_in_order_over_a_jump(
    clocked: Service, hands: Hands, jump_s: float
) -> None:
    before = (await look_up(clocked)).json()["agent"]
    hands.move(1.0, jump_s=jump_s)
    assert (await tell(clocked, before["decision_id"])).json()["status"] == "stored"
    hands.move(1.0)
    after = (await look_up(clocked)).json()["agent"]
    made = await make_key(clocked)
    assert made.status_code == 201
    assert stamps(clocked) == sorted(stamps(clocked))
    assert after["reward_deadline"] - before["reward_deadline"] == pytest.approx(2.0, abs=0.5)
    with clocked.replica.store.reading() as connection:
        head = connection.scalar(sa.select(t.log.c.at))
    assert head == pytest.approx(hands.wall_at - jump_s, abs=1.0), "elapsed time, and not the wall clock"
    row = next(one for one in (await clocked.client.get("/v1/keys")).json()["keys"] if one["name"] == "app")
    assert row["created_at"] >= head


@pytest.mark.parametrize("jump_s", JUMPS)
async def test_a_jump_neither_opens_nor_closes_the_time_for_feedback(
    clocked: Service, hands: Hands, jump_s: float
) -> None:
    first = (await look_up(clocked)).json()["agent"]["decision_id"]
    hands.move(200.0, jump_s=jump_s)
    assert (await tell(clocked, first, feedback_id="in time")).json()["status"] == "stored"
    hands.move(200.0)
    await look_up(clocked)  # moves the log's time over the deadline
    clocked.learner.step()
    late = (await tell(clocked, first, feedback_id="too late")).json()
    assert late["status"] == "stored"


@pytest.mark.parametrize("jump_s", JUMPS)
async def test_a_jump_neither_ends_a_key_nor_brings_it_back(
    clocked: Service, hands: Hands, jump_s: float
) -> None:
    expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(hands.wall_at + 120.0))
    token = (await make_key(clocked, expires=expires)).json()["key"]
    own = {"authorization": f"Bearer {token}"}
    hands.move(60.0, jump_s=jump_s)
    assert (await look_up(clocked, headers=own)).status_code == 200
    hands.move(70.0)
    assert (await look_up(clocked, headers=own)).status_code == 401


@pytest.mark.parametrize("jump_s", JUMPS)
async def test_a_jump_gives_no_key_another_minute(clocked: Service, hands: Hands, jump_s: float) -> None:
    hands.move(60.0 - hands.wall_at % 60.0)  # the limit is of a minute by the clock: a new one begins
    token = (await make_key(clocked, rpm_limit=2)).json()["key"]
    own = {"authorization": f"Bearer {token}"}
    assert [(await look_up(clocked, headers=own)).status_code for _ in range(3)] == [200, 200, 429]
    hands.move(5.0, jump_s=jump_s)
    assert (await look_up(clocked, headers=own)).status_code == 429
    hands.move(60.0)
    assert (await look_up(clocked, headers=own)).status_code == 200


async def test_after_a_long_jump_the_next_replica_waits_for_the_log(clocked: Service, hands: Hands) -> None:
    await look_up(clocked)
    hands.move(1.0, jump_s=-AHEAD_S / 2)
    clocked.replica.check()
    hands.move(1.0, jump_s=-600.0)
    with pytest.raises(ClockError, match=r"the wall clock jumped by -630\.0 s"):
        clocked.replica.check()
    restarted = SteadyClock(hands.wall, hands.steady)
    with pytest.raises(ClockError, match=r"the log's latest entry is from .*, but this machine's clock says"):
        open_log(clocked.config.database_url, clocked.config.reward, restarted).close()
    with closing(Store(clocked.config.database_url, clock=restarted)) as behind:
        assert behind.log_seq() > 0, "it can be read"
    hands.move(700.0)
    open_log(clocked.config.database_url, clocked.config.reward, restarted).close()


async def test_a_replica_behind_the_log_of_others_writes_nothing(clocked: Service) -> None:
    decision_id = (await look_up(clocked)).json()["agent"]["decision_id"]
    with clocked.replica.store.writing() as connection:  # as another machine has moved it
        connection.execute(sa.update(t.log).values(at=time.time() + 3600.0))
    seq = clocked.replica.store.log_seq()
    message = refused(await look_up(clocked), 503, "log_unavailable")
    assert "a clock is or was wrong" in message
    refused(await tell(clocked, decision_id), 503, "log_unavailable")
    assert clocked.replica.store.log_seq() == seq

"""Work in the background that fails: a service that answers is ready, and says what fails and what to do."""

import asyncio
import html
import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from armwise.agent.background import Work, WorkFailure, clear, record
from armwise.agent.jobs import RETRIES_S
from armwise.agent.run_folder import RUN_FOLDER
from armwise.feedback.events import Tick
from armwise.feedback.log import Store
from armwise.feedback.registry import DigestState, digests, runs
from armwise.feedback.training_log import Joiner, take_epoch
from armwise.feedback.training_log.lag import ABANDONED_S, SuccessorCheck
from tests.agent.fakes import Service

WARM_START = {"sources": {"users": {"kind": "feedback"}}, "portfolio": {"measure": "thumb"}}
WHY = "the current node timed out during startup"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the run."""
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
async def warmed(tmp_path: Path) -> AsyncIterator[Service]:
    """A service with a warm start."""
    async with Service(tmp_path, warm_start=WARM_START).running() as service:
        yield service


def fails(service: Service, trigger: runs.Trigger) -> None:
    """Do a run that fails."""
    store, now = service.replica.store, service.clock()
    run = runs.claim(store, service.replica.versions.configured.digest, trigger, "here:1", now)
    runs.finish(store, run, runs.RunState.FAILED, now, WHY)


async def failures(service: Service) -> list[dict[str, object]]:
    answer = await service.client.get("/ready")
    assert answer.status_code == 200, "it answers"
    found: list[dict[str, object]] = answer.json()["failed"]
    return found


async def page(service: Service) -> str:
    text = (await service.client.get("/console/system")).text
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", text)))


async def gauges(service: Service) -> dict[str, float]:
    """The failed attempts of each work."""
    families = text_string_to_metric_families((await service.client.get("/metrics")).text)
    (family,) = (one for one in families if one.name == "armwise_background_failures")
    return {sample.labels["work"]: sample.value for sample in family.samples}


NONE = dict.fromkeys(map(str, Work), 0.0)


async def test_where_all_goes_well_nothing_is_listed_and_every_gauge_is_0(warmed: Service) -> None:
    assert await failures(warmed) == []
    assert await gauges(warmed) == NONE


async def test_a_failed_warm_start_is_shown_until_one_ends(warmed: Service) -> None:
    fails(warmed, runs.Trigger.FIRST)
    (found,) = await failures(warmed)
    last = runs.page(warmed.replica.store, 1)[0]
    assert (found["work"], found["attempts"]) == ("warm_start", 1)
    assert found["why"] == f"run 1: {WHY}"
    assert "`armwise lab warm-start`" in str(found["remedy"])
    assert found["next_attempt_at"] == pytest.approx(last.alive_at + RETRIES_S[0])
    assert await gauges(warmed) == {**NONE, "warm_start": 1.0}

    for _ in RETRIES_S:
        fails(warmed, runs.Trigger.RESUMED)
    (found,) = await failures(warmed)
    assert (found["attempts"], found["next_attempt_at"]) == (len(RETRIES_S) + 1, None)
    assert await gauges(warmed) == {**NONE, "warm_start": len(RETRIES_S) + 1.0}

    store, ours = warmed.replica.store, warmed.replica.versions.configured.digest
    again = runs.claim(store, ours, runs.Trigger.REQUEST, "here:1", warmed.clock())
    runs.finish(store, again, runs.RunState.HELD, warmed.clock())
    assert await failures(warmed) == []
    assert await gauges(warmed) == NONE


async def test_what_another_process_has_recorded_is_shown_until_it_clears_it(warmed: Service) -> None:
    record(WorkFailure(Work.FIRST_START, "<b>the disk is full</b>", 2, 60.0))
    (found,) = await failures(warmed)
    assert (found["what"], found["attempts"]) == ("arms behind the first start", 2)
    shown = await page(warmed)
    assert "arms behind the first start failing" in shown
    assert "<b>the disk is full</b> (failed 2 times; trying again now)" in shown
    assert await gauges(warmed) == {**NONE, "first_start": 2.0}
    clear(Work.FIRST_START)
    assert await failures(warmed) == []


async def test_why_something_fails_is_for_keys_that_may_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(WorkFailure(Work.CANARY, "/home/of/the/service is full", 1, None))
    scopes = {"READER": ["read"], "ASKER": ["decide"]}
    for name in scopes:
        monkeypatch.setenv(name, name.lower())
    keys = [{"env": name, "scopes": granted} for name, granted in scopes.items()]
    async with Service(tmp_path, keys=keys).running() as service:

        async def why(key: str | None) -> object:
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            (found,) = (await service.client.get("/ready", headers=headers)).json()["failed"]
            assert (found["work"], found["attempts"]) == ("canary", 1)
            return found["why"]

        assert await why("reader") == "/home/of/the/service is full"
        assert await why("asker") is None
        assert await why(None) is None
        assert await why("no key of this service") is None, "a probe is not refused"


async def test_facts_that_no_learner_reads_are_shown_everywhere_until_one_reads_them(
    warmed: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, looks = 0.0, list[float]()

    class Check(SuccessorCheck):
        def __init__(self, store: Store) -> None:
            super().__init__(store, lambda: now)

        def check(self) -> None:
            looks.append(now)
            super().check()

    monkeypatch.setattr("armwise.feedback.training_log.lag.SuccessorCheck", Check)
    monkeypatch.setattr("armwise.agent.serving.replica.LEARNING_S", 0.001)
    replica = warmed.replica
    replica._tasks["learner"].cancel()  # noqa: SLF001 - another one looks, by this clock
    epoch = take_epoch(replica.store, "here:1", 0.0)
    replica.store.append([Tick(100.0)])
    replica._tasks["learner"] = asyncio.create_task(replica._watch_learner())  # noqa: SLF001

    async def looked(times: int = 3) -> None:
        looks.clear()
        while len(looks) < times:
            await asyncio.sleep(0.001)

    await looked()
    now = ABANDONED_S
    await looked()
    assert await failures(warmed) == []
    now += 1.0
    await looked()
    (found,) = await failures(warmed)
    assert (found["work"], found["attempts"]) == ("learner", 1)
    why = f"1 facts are waiting for epoch {epoch} of here:1, which has read none for 61 s: restart a learner"
    assert found["why"] == why
    assert await gauges(warmed) == {**NONE, "learner": 1.0}

    record(WorkFailure(Work.LEARNER, "the disk is full", 3, None))
    (found,) = await failures(warmed)
    assert (found["why"], found["attempts"]) == ("the disk is full", 3), "why, where that is known"
    clear(Work.LEARNER)

    Joiner(replica.store, replica.config.reward, epoch).advance(110.0)
    await looked()
    assert await failures(warmed) == []
    assert await gauges(warmed) == NONE


async def test_whether_a_learner_reads_the_log_is_looked_at_every_few_seconds(
    warmed: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = list[int]()
    check = SimpleNamespace(check=lambda: looks.append(1))
    monkeypatch.setattr("armwise.feedback.training_log.lag.SuccessorCheck", lambda _: check)
    watching = asyncio.create_task(warmed.replica._watch_learner())  # noqa: SLF001
    while not looks:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    watching.cancel()
    assert len(looks) == 1


async def test_a_digest_that_failed_is_shown_until_one_arrives(tmp_path: Path) -> None:
    async with Service(tmp_path, digest={"url": "https://hooks.example.com/T0/secret"}).running() as service:
        store, now = service.replica.store, service.clock()
        mine = digests.claim(store, now - 60.0, now, 1, now)
        assert mine is not None
        digests.advance(store, mine, DigestState.FAILED, now, "the receiver answered 404")
        (failure,) = await failures(service)
        assert failure["work"] == "digest"
        assert "armwise report --send" in str(failure["remedy"])
        shown = await page(service)
        assert "the receiver answered 404" in shown
        assert "url: https://hooks.example.com/..." in shown
        assert "secret" not in shown
        digests.advance(store, mine, DigestState.SENT, now)
        assert await failures(service) == []

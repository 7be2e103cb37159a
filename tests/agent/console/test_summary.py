"""The summary that the learner writes for the console: when, and what survives."""

import asyncio
from pathlib import Path

import pytest

from armwise.agent.background import Work
from armwise.agent.console import summary as module
from armwise.agent.console.summary import Summarizer, read_summary, write_summary
from armwise.agent.hosts.jobs import JobsHost
from armwise.agent.proof import About
from armwise.feedback.events import Feedback, Tick
from tests.agent.console.test_overview import play, two_models
from tests.agent.fakes import Service


async def test_a_summary_is_read_as_it_was_written(tmp_path: Path) -> None:
    service = two_models(tmp_path)
    await asyncio.to_thread(play, service, 300)
    store, now = service.replica.store, service.clock()
    write_summary(store, service.config, now)
    found = read_summary(store)
    assert found is not None
    assert (found.statements, found.audited_to) == module.read_statements(store, service.config)
    assert (found.at, found.any_rating, found.total["decisions"]) == (now, True, 300)
    assert found.statements.find(About.DOLLARS) is not None


async def test_rewards_of_the_last_hour_are_those_of_the_metrics(tmp_path: Path) -> None:
    service = two_models(tmp_path)
    await asyncio.to_thread(play, service, 300, ago_s=1900.0)
    now = service.clock()
    write_summary(service.replica.store, service.config, now)
    text = (await service.client.get("/metrics")).text
    rated = [
        record.metrics["right"]
        for i in range(300)
        if (record := service.replica.store.record(f"d{i}")) is not None
        and record.metrics
        and record.decision.drawn == "dear"
        and record.decision.decided_at >= now - 3600.0
    ]
    assert f'armwise_rewarded_decisions{{arm="dear"}} {len(rated)}.0' in text
    assert f'armwise_reward{{arm="dear"}} {sum(rated) / len(rated)}' in text


Timed = tuple[Service, Summarizer, list[float], list[float]]


@pytest.fixture
def timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Timed:
    """A service, what summarises its log, the time, and when summaries were written."""
    service, now, written = two_models(tmp_path), [0.0], list[float]()

    def write(*_: object) -> None:
        written.append(now[0])
        now[0] += 1.0

    monkeypatch.setattr(module, "write_summary", write)
    summarizer = Summarizer(service.replica.store, service.config, service.clock, lambda: now[0])
    return service, summarizer, now, written


def test_a_summary_is_written_every_minute_and_sooner_after_feedback(
    timed: Timed,
) -> None:
    service, summarizer, now, written = timed
    store = service.replica.store

    def step(at: float) -> bool:
        now[0] = at
        summarizer.step()
        return len(written) > 0 and written[-1] == at

    assert step(0.0), "the first one"
    assert not step(500.0), "the log is the same"
    assert not summarizer.is_due()
    store.append([Tick(service.clock())])
    assert step(501.0), "it ends at 502"
    store.append([Tick(service.clock())])
    assert not step(561.0)
    now[0] = 561.9
    assert not summarizer.is_due()
    now[0] = 562.0
    assert summarizer.is_due(), "without another fact"
    assert step(562.0), "it ends at 563"
    store.append([Feedback("f", "d", "right", 1.0, service.clock())])
    assert not step(592.9), "30 times as long as the last one took"
    assert step(593.0)


def test_a_summary_that_fails_is_no_failure_of_the_learner(
    timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, summarizer, now, written = timed

    def fail(*_: object) -> None:
        raise OverflowError("a huge number")

    monkeypatch.setattr(module, "write_summary", fail)
    summarizer.step()
    monkeypatch.undo()
    service.replica.store.append([Tick(service.clock())])
    now[0] = 3.0
    summarizer.step()
    assert read_summary(service.replica.store) is not None
    assert written == []


@pytest.mark.slow
async def test_the_learner_writes_it_by_itself(tmp_path: Path) -> None:
    service = two_models(tmp_path)
    await asyncio.to_thread(play, service, 40)
    host = JobsHost(service.config, [Work.LEARNER], 0.01)
    async with asyncio.timeout(30.0):
        while (found := read_summary(service.replica.store)) is None:
            host.check_health()
            await asyncio.sleep(0.01)
    host.stop()
    assert found.total["decisions"] == 40

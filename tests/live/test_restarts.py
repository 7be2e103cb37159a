"""A replica is killed while clients ask: what they were told stays true, and another takes its place."""

import os
import signal

import pytest

from tests.crashes.ledger import Ledger
from tests.crashes.traffic import Traffic
from tests.live.conftest import Live, Process, until

pytestmark = pytest.mark.slow


def test_a_killed_replica_takes_nothing_with_it_that_was_acknowledged(live: Live) -> None:
    ledger = Ledger()
    traffic = Traffic([live.url], ledger, clients=2, seed=7, second="thumb")
    killed, left = live.replicas("Ingress")
    traffic.begin()
    until(lambda: len(ledger) > 20)
    os.kill(killed.pid, signal.SIGKILL)
    seen = len(ledger)
    until(lambda: len(ledger) > seen + 20)

    def back() -> list[Process] | None:
        there = live.replicas("Ingress")
        return there if len(there) == 2 and killed not in there else None

    assert left in until(back, 60.0)
    traffic.end()
    traffic.check()
    assert ledger.odd == []
    for one in ledger.answered:
        kept = live.client.get(f"/v1/decisions/{one.id}").json()
        assert {name: kept[name] for name in one.fields} == one.fields
        assert one.status in (None, kept["status"])
        assert one.text in (None, kept["answer"])
    for kept in ledger.kept:
        decision_id, metric, value = kept.decision_id, kept.metric, kept.value
        if metric and value is not None and decision_id is not None:
            listed = live.client.get(f"/v1/decisions/{decision_id}").json()["feedback"]
            (found,) = (row for row in listed if row["feedback_id"] == kept.id and row["value"] is not None)
            assert (found["metric_name"], found["value"]) == (metric, value)
    live.learned(live.policy()["log_seq"])

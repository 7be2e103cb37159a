"""A new service takes the port of a running one: nobody is refused, and no decision is lost."""

import threading
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.live.conftest import START_S, STOP_S, single, stopped, until

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]

SMALL = {"arms": {"none": {"kind": "none"}, "bm25": {"kind": "bm25"}}, "router": None}


class Traffic:
    """Clients that look something up until they are stopped, half of them with a connection for each request.

    Attributes:
        seen: Statuses, texts of refusals, and exceptions, by how often they were met.
        decisions: Ids of the decisions that were answered.
        cut: Requests on a kept connection that was closed as they were sent.
    """

    def __init__(self, url: str) -> None:
        self.seen: Counter[str] = Counter()
        self.decisions: list[str] = []
        self.cut = 0
        self._url, self._end = url, threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(n % 2 == 0,)) for n in range(4)]
        for thread in self._threads:
            thread.start()

    def _ask(self, anew: bool) -> None:
        client = httpx.Client(timeout=60, verify=False)
        while not self._end.wait(0.2):  # a pause, or the new service would hardly get a processor to start
            if anew:
                client.close()
                client = httpx.Client(timeout=60, verify=False)
            try:
                reply = client.post(f"{self._url}/v1/retrieve", json={"query": "Which river is long?"})
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as error:
                if anew:
                    self.seen[repr(error)] += 1
                self.cut += not anew  # an idle connection that was closed while the request was sent
            except httpx.HTTPError as error:
                self.seen[repr(error)] += 1
            else:
                self.seen[str(reply.status_code) if reply.is_success else reply.text] += 1
                if reply.is_success:
                    self.decisions.append(reply.json()["agent"]["decision_id"])
        client.close()

    def stop(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


def test_new_services_take_the_port_over_one_after_the_other_and_nobody_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    with single(tmp_path, **SMALL) as first:
        traffic, running = Traffic(first.url), [first.process]
        try:
            for _ in range(2):
                old = running[-1]
                running.append(first.begin("--replace"))
                until(lambda old=old: f"from process {old.pid}" in output.read_text(), START_S)
                assert old.wait(STOP_S) == 0
            traffic.stop()
            assert set(traffic.seen) == {"200"}, traffic.seen
            assert traffic.cut <= 4, "once for each client that keeps its connection, at most"
            assert len(traffic.decisions) > 50
            for decision in traffic.decisions:
                assert first.client.get(f"/v1/decisions/{decision}").status_code == 200
            last = traffic.decisions[-1]
            reply = first.client.post(
                "/v1/feedback", json={"decision_id": last, "metric_name": "thumb", "value": 1}
            )
            assert reply.status_code == 202, reply.text
            until(lambda: first.client.get("/v1/policy").json()["applied_seq"] >= reply.json()["log_seq"])
        finally:
            traffic.stop()
            left = [title for process in running[1:] for title in stopped(process)]
        assert left == []

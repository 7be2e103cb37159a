"""A new service takes the port of a running one: nobody is refused, and no decision is lost."""

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import httpx
import pytest

from armwise.agent.cli.predecessor import find_predecessor
from tests.live.conftest import ROOT, START_S, STOP_S, Live, free_port, started, stopped, until

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


def test_a_new_service_takes_the_port_over_and_nobody_is_refused(tmp_path: Path) -> None:
    with started(tmp_path, {}, **SMALL) as old:
        port = httpx.URL(old.url).port or 0
        predecessor = find_predecessor(port)
        assert predecessor is not None
        assert predecessor.pid == old.pid
        assert find_predecessor(free_port()) is None
        traffic = Traffic(old.url)
        command = [
            str(Path(sys.executable).with_name("armwise")),
            "serve",
            "-c",
            str(old.config),
            "--replace",
        ]
        output = tmp_path / "second.txt"
        with output.open("wb") as printed:
            new = subprocess.Popen(command, cwd=ROOT, stdout=printed, stderr=printed)
        try:
            until(lambda: f"from process {old.pid}" in output.read_text(), 2 * START_S)
            until(lambda: not old.replicas("Ingress"), STOP_S)
            until(lambda: len(Live(old.url, old.config, old.client, new.pid).replicas("Ingress")) == 2)
            traffic.stop()
            assert set(traffic.seen) == {"200"}, traffic.seen
            assert traffic.cut <= 2, "once for each client that keeps its connection, at most"
            assert len(traffic.decisions) > 50
            for decision in (
                traffic.decisions[0],
                traffic.decisions[len(traffic.decisions) // 2],
                traffic.decisions[-1],
            ):
                assert old.client.get(f"/v1/decisions/{decision}").status_code == 200
            last = traffic.decisions[-1]
            reply = old.client.post(
                "/v1/feedback", json={"decision_id": last, "metric_name": "thumb", "value": 1}
            )
            assert reply.status_code == 202, reply.text
            until(lambda: old.client.get("/v1/policy").json()["applied_seq"] >= reply.json()["log_seq"])
        finally:
            traffic.stop()
            left = stopped(new)
        assert left == []

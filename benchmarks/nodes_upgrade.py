"""Blue and green: a second cluster takes over the log of a first one, while clients go on asking.

The green one is `armwise serve`, with a Ray of its own. A learner of each runs; the epochs of the log say
which of them writes.
"""

import itertools
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa
import yaml

from armwise.agent.config import parse
from armwise.feedback.log import Operation, Store, operations
from armwise.feedback.log import tables as t
from benchmarks.crash_children import PATIENCE_S, CrashError
from benchmarks.nodes_cluster import GATE, program

LOOK_S = 0.05
START_S = 300.0


@dataclass(frozen=True, slots=True)
class Stopped:
    """What became of requests when the service got SIGTERM.

    Attributes:
        finished: Statuses of those that were under way, in order.
        refused: Later answers of 503: whether they had Retry-After, and their code; each once.
        refused_after_s: Seconds until the first one was refused.
        ended_after_s: Seconds until the service had ended.
        exit_code: Of the service.
        gone: Whether its port was closed then.
    """

    finished: tuple[int, ...]
    refused: tuple[tuple[bool, str], ...]
    refused_after_s: float
    ended_after_s: float
    exit_code: int
    gone: bool


class Single:
    """`armwise serve` on this machine; made by `served`.

    Args:
        document: Its settings.
        folder: Where its files are.
        port: Where it listens.
        environment: Of its processes.
    """

    def __init__(
        self, document: dict[str, Any], folder: Path, port: int, environment: dict[str, str]
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._output = folder / "output.txt"
        application = {
            "name": "armwise",
            "route_prefix": "/",
            "import_path": "armwise.agent.app:build",
            "args": document | {"home": str(folder / "home")},
        }
        options = {"host": "127.0.0.1", "port": port}
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump({"http_options": options, "applications": [application]}))
        variables = {name: value for name, value in environment.items() if not name.startswith("RAY_AUTH")}
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", program("armwise"), "serve", "-c", str(path)],
                cwd=environment["PYTHONPATH"],
                env=variables | {"RAY_TMPDIR": str(folder)},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def ready(self) -> None:
        """Wait until it is. Raises CrashError."""
        self._until(lambda: self._asked("/ready") == 200, START_S)

    def stop(self, gate: Path) -> Stopped:
        """Tell it to stop while four questions wait for an arm, whose gate opens when another is refused.

        Raises:
            CrashError: It does not refuse, or does not end.
        """
        gate.unlink()
        client = httpx.Client(base_url=self.url, timeout=PATIENCE_S)
        with client, ThreadPoolExecutor(4) as pool:
            before = _decided_at_the_gate(client)
            under_way = [pool.submit(_asked_at_the_gate, client, kind) for kind in range(4)]
            self._until(lambda: _decided_at_the_gate(client) == before + 4)
            self._process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            refused = set[tuple[bool, str]]()
            with httpx.Client(base_url=self.url, timeout=PATIENCE_S) as other:

                def refuses() -> bool:
                    for path in ("/v1/retrieve", "/v1/feedback"):
                        answer = other.post(path, json={"query": "is anybody there?"})
                        if answer.status_code == 503:
                            code = answer.json()["error"]["code"]
                            refused.add(("retry-after" in answer.headers, code))
                    return bool(refused)

                self._until(refuses)
                refused_after_s = time.monotonic() - began
                gate.touch()
                finished = tuple(future.result() for future in under_way)
        code = self._process.wait(START_S)
        ended_after_s = time.monotonic() - began
        gone = self._asked("/ready") is None
        return Stopped(finished, tuple(sorted(refused)), refused_after_s, ended_after_s, code, gone)

    def close(self) -> None:
        """Stop it, if it runs."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(START_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)

    def _asked(self, path: str) -> int | None:
        try:
            return httpx.get(f"{self.url}{path}", timeout=PATIENCE_S).status_code
        except httpx.TransportError:
            return None

    def _until(self, look: Any, patience_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience_s
        while not look():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise CrashError(f"{self.url}: {self._output.read_text()[-3000:]}")
            time.sleep(LOOK_S)


def _decided_at_the_gate(client: httpx.Client) -> float:
    """Return how many decisions for the arm that waits were committed."""
    lines = client.get("/metrics").text.splitlines()
    counts = [line for line in lines if line.startswith(f'armwise_decisions_total{{arm="{GATE}"')]
    return sum(float(line.rpartition(" ")[2]) for line in counts)


def _asked_at_the_gate(client: httpx.Client, kind: int) -> int:
    """Ask for the arm that waits, in one of four ways; return the status, or 0 where no whole answer came."""
    question = f"what stands beside the bridge, in the way of {kind}?"
    if kind == 0:
        return client.post("/v1/retrieve", json={"query": question, "model": f"arm/{GATE}"}).status_code
    body: dict[str, Any] = {"model": f"arm/{GATE}", "messages": [{"role": "user", "content": question}]}
    if kind == 1:
        return client.post("/v1/chat/completions", json=body).status_code
    with client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as answer:
        words = "".join(answer.iter_lines())
        return answer.status_code if words.endswith("[DONE]") else 0


@contextmanager
def served(
    document: dict[str, Any], folder: Path, port: int, environment: dict[str, str]
) -> Iterator[Single]:
    """Run `armwise serve` over a log, and wait until it is ready."""
    folder.mkdir()
    single = Single(document, folder, port, environment)
    try:
        single.ready()
        yield single
    finally:
        single.close()


@dataclass(frozen=True, slots=True)
class Learners:
    """Who learned a log, in order.

    Attributes:
        hosts: Names of the machines of the learners, one for each epoch.
        epochs: The epoch that published each version.
    """

    hosts: tuple[str, ...]
    epochs: tuple[int, ...]

    def __str__(self) -> str:
        """Return it as a line of a report."""
        versions = Counter(self.epochs)
        turns = (f"{host} ({versions[epoch]} versions)" for epoch, host in enumerate(self.hosts, 1))
        return f"{'in turn' if self.in_turn else 'NOT IN TURN'}: {', '.join(turns)}"

    @property
    def in_turn(self) -> bool:
        """Whether no learner published after a later one had taken the log."""
        return all(earlier <= later for earlier, later in itertools.pairwise(self.epochs))


def learners_of(document: dict[str, Any]) -> Learners:
    """Read who learned a log."""
    config = parse(document)
    store = Store(config.database_url, config.reward.join)
    try:
        with store.reading() as connection:
            taken = operations.read_all(connection, Operation.EPOCH)
            holders: Sequence[str] = [row.document["holder"] for row in taken]
            epochs: Sequence[int] = connection.scalars(
                sa.select(t.versions.c.epoch).order_by(t.versions.c.version)
            ).all()
    finally:
        store.close()
    return Learners(tuple(holder.rpartition(":")[0] for holder in holders), tuple(map(int, epochs)))

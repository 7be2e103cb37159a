"""The same for the service as users run it: `armwise serve`, with every process of Ray, or in one process.

Here Ray Serve's controller restarts replicas, and there are no points inside: what is killed is killed at any
moment. Where the service ends, the same command is given once more, as a service manager does.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from typing_extensions import override

from tests.crashes.audit import Verdict
from tests.crashes.children import CrashError, configuration, free_port
from tests.crashes.points import LEARNER, REPLICA
from tests.crashes.rounds import ALL, ANY_MOMENT, DATABASE, PROXY, VICTIMS
from tests.crashes.service import Kill, Service
from tests.neighbours import write_corpus
from tests.postgres import Server

ROOT = Path(__file__).resolve().parents[1]

REPLICAS = 2
"""Of the ingress of Ray Serve: one of them is killed."""


@dataclass(frozen=True)
class Way:
    """How the service is run.

    Attributes:
        name: For the table.
        titles: What the processes call themselves that are killed one by one.
        counts: How many there are of each.
        started: What a process calls itself that runs when all is prepared.
        words: More words of the command.
        deployments: Options of deployments.
    """

    name: str
    titles: Mapping[str, str]
    counts: Mapping[str, int]
    started: str
    words: tuple[str, ...] = ()
    deployments: tuple[dict[str, Any], ...] = ()


RAY_SERVE = Way(
    "in Ray Serve",
    {
        REPLICA: "ServeReplica:armwise:Ingress",
        LEARNER: "ServeReplica:armwise:Learner",
        PROXY: "haproxy -db",
    },
    {REPLICA: REPLICAS, LEARNER: 1, PROXY: 1},
    "haproxy -db",
    deployments=({"name": "Ingress", "num_replicas": REPLICAS},),
)
ONE_PROCESS = Way(
    "in one process",
    {REPLICA: "--single-process"},
    {REPLICA: 1},
    "--single-process",
    ("--single-process",),
)

EVERYTHING_EACH = 6
"""Among so many kills, one is of everything: that start takes as long as a first one."""

AWAY_S = 60.0
"""How long the database may be away while the service starts."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is killed, and when.

    Attributes:
        victim: One of `VICTIMS`.
        after_s: Seconds after the service is whole again.
        away_s: Where everything is killed, seconds for which the database is away once more while
            the service starts.
    """

    victim: str
    after_s: float
    away_s: float = 0.0


def plan(kills: int, seed: int, *, database: bool, way: Way = RAY_SERVE) -> list[Case]:
    """Return what is killed in turn; of the kills of everything, every other one starts into an outage."""
    rng = np.random.default_rng(seed)
    often = [*way.titles, *([DATABASE] if database else [])]
    cases = []
    for number in range(kills):
        turn, last = divmod(number, EVERYTHING_EACH)
        victim = ALL if last == EVERYTHING_EACH - 1 else often[number % len(often)]
        away_s = AWAY_S if database and victim == ALL and turn % 2 else 0.0
        cases.append(Case(victim, float(rng.uniform(0.2, 1.5)), away_s))
    return cases


class Deployed(Service):
    """The service as it is run one way; made by `deployed`.

    Args:
        args: Its settings.
        folder: Where its configuration and its output are.
        ray: Where Ray keeps what it needs: a short path.
        port: Where it listens.
        server: The database server; None for SQLite.
        clients: How many ask at once.
        seed: Draws what they ask.
        way: How it is run.

    Attributes:
        base_url: Where it listens.
    """

    patience_s = 300.0

    def __init__(
        self,
        args: dict[str, Any],
        folder: Path,
        ray: Path,
        port: int,
        server: Server | None,
        *,
        clients: int,
        seed: int,
        way: Way,
    ) -> None:
        super().__init__(args, [f"http://127.0.0.1:{port}"], clients, seed)
        self._way = way
        self.base_url = f"http://127.0.0.1:{port}"
        self._server = server
        self._config, self._output = folder / "config.yaml", folder / "output.txt"
        application = {
            "name": "armwise",
            "route_prefix": "/",
            "import_path": "armwise.agent.app:build",
            "args": args,
            **({"deployments": [*way.deployments]} if way.deployments else {}),
        }
        options = {"host": "127.0.0.1", "port": port}
        document = {"proxy_location": "HeadOnly", "http_options": options, "applications": [application]}
        self._config.write_text(yaml.safe_dump(document))
        without = {"ARMWISE_HOME", "RAY_ADDRESS", "PROMETHEUS_MULTIPROC_DIR"}
        variables = {"RAY_TMPDIR": str(ray), "PYTHONPATH": str(ROOT)}
        self._environment = {k: v for k, v in os.environ.items() if k not in without} | variables
        self._start()

    def strike(self, case: Case) -> Kill:
        """Kill something, and wait until the service is back by itself. Raises CrashError."""
        self.until(self._whole)
        time.sleep(case.after_s)
        began = time.monotonic()
        if case.victim in self._way.titles:
            self._processes(self._way.titles[case.victim])[0].kill()
            if case.victim == PROXY or self._way is ONE_PROCESS:
                self._process.wait(self.patience_s)
                self._start()
        if case.victim == ALL:
            self.kill()
        if self._server is not None and case.victim not in self._way.titles:
            self._server.kill()
            self._server.start()
        if case.victim == ALL:
            self._start()
        if self._server is not None and case.away_s:
            self.until(lambda: self._processes(self._way.started) or None)
            self._server.kill()
            time.sleep(case.away_s)
            self._server.start()
            began = time.monotonic()
        return self.recovered(Kill(VICTIMS[case.victim], ANY_MOMENT, ANY_MOMENT), began)

    def kill(self) -> None:
        """Kill every process of it at once, if it runs."""
        if self._process.poll() is not None:
            return
        first = psutil.Process(self._process.pid)
        for process in (first, *first.children(recursive=True)):
            process.kill()
        self._process.wait()

    def end(self) -> Verdict:
        """Let the clients end, kill everything once more, and check the log. Raises CrashError."""
        self.quiet()
        self.close()
        return self.audited()

    @override
    def close(self) -> None:
        self.kill()
        super().close()

    @property
    @override
    def output(self) -> str:
        return self._output.read_text(errors="replace")[-3000:]

    def _start(self) -> None:
        armwise = str(Path(sys.executable).with_name("armwise"))
        command = [armwise, "serve", "-c", str(self._config), *self._way.words]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self._environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _whole(self) -> bool | None:
        """Say that every process is there that is killed one by one; None where one is missing."""
        if self._process.poll() is not None:
            raise CrashError(f"the service has ended:\n{self.output}")
        there = {name: len(self._processes(title)) for name, title in self._way.titles.items()}
        return there == self._way.counts or None

    @property
    def pid(self) -> int:
        """The process that runs it, another one after each start."""
        return self._process.pid

    def _processes(self, title: str) -> list[psutil.Process]:
        processes = []
        first = psutil.Process(self._process.pid)
        for process in (first, *first.children(recursive=True)):
            try:
                if title in " ".join(process.cmdline()):
                    processes.append(process)
            except psutil.NoSuchProcess:
                continue
        return processes


@contextmanager
def deployed(
    url: str,
    policy: str,
    server: Server | None = None,
    *,
    clients: int = 3,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    way: Way = RAY_SERVE,
) -> Iterator[Deployed]:
    """Run the service with clients over an empty log.

    Args:
        url: The log.
        policy: Arguments of the policy.
        server: The database server of the log, if it has one.
        clients: How many ask at once.
        seed: Draws what they ask.
        settings: More settings of the service, or others.
        way: How it is run.
    """
    # Short paths, for the sockets of Ray, and not those of another Ray on this machine.
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        corpus = write_corpus(folder / "corpus.jsonl")
        args = configuration(url, policy) | {
            "home": str(folder / "home"),
            "corpus": {"name": "small", "source": str(corpus)},
            "limits": {"in_flight": 16, "arm_timeout_s": 2.0, "llm_timeout_s": 2.0},
        }
        args["reward"] = {**args["reward"], "wait_time": "PT15S"}
        args |= settings or {}
        service = Deployed(args, folder, folder, free_port(), server, clients=clients, seed=seed, way=way)
        try:
            service.begin()
            yield service
        finally:
            service.close()

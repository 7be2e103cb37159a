"""The service on a Ray cluster of three machines over one PostgreSQL, with clients that ask two of them.

    head     Ray's own processes, one replica of the ingress, the model, jobs
    second   the other replica, and the learner while it lives
    arms     every arm that is not searched by the replicas themselves

Machines are namespaces of Linux (`machines.py`). One that is killed loses every process at once, and an
empty one takes its place, as on Kubernetes.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import httpx
import yaml
from typing_extensions import override

from tests.crashes.children import EXACT, CrashError, configuration
from tests.crashes.service import Kill, Service
from tests.neighbours import write_corpus
from tests.nodes.machines import Machine, Network

HEAD, SECOND, ARMS = "head", "second ingress", "arms"
RESOURCES = {HEAD: {"door": 1}, SECOND: {"door": 1, "learner": 1}, ARMS: {"arms": 1, "learner": 1}}
"""Where a deployment that asks for a resource can be placed."""

DOOR, SMALLER_DOOR = 0.6, 0.3
"""What a replica of the ingress takes of a machine: so much that no other fits in; later, half of it."""

STARTS_S = 300.0
PORT = 8000

CLIENTS_ROWS = 30
"""Acknowledgements after which clients count as back."""

DEPLOYED = "configuration deployed"


@dataclass(slots=True)
class Change:
    """What clients saw of one kill or deployment.

    Attributes:
        what: What was done.
        rows: Acknowledgements meanwhile.
        longest_s: Longest time from one acknowledgement of a client to its next.
        refused: Answers with Retry-After, after which the same was sent again.
        failed: Turns that failed after their decision, by status.
        noticed_s: Seconds until Ray Serve missed a replica.
        whole_s: Seconds until every replica ran again.
        learned_s: Seconds until everything in the log was learned.
    """

    what: str
    rows: int = 0
    longest_s: float = 0.0
    refused: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    noticed_s: float = 0.0
    whole_s: float = 0.0
    learned_s: float = 0.0


class Cluster(Service):
    """The service on three machines, with clients over an empty log.

    Args:
        url: The log.
        network: Where the machines are.
        clients: How many ask at once.
        seed: Draws what they ask.

    Attributes:
        document: Its settings.
        changes: What was done to it.
    """

    patience_s = STARTS_S

    def __init__(
        self,
        url: str,
        network: Network,
        *,
        clients: int,
        seed: int,
    ) -> None:
        self._network = network
        self.environment = environment(network)
        self._machines = {HEAD: network.machine(), SECOND: network.machine(), ARMS: network.machine()}
        urls = [f"http://{self._machines[name].address}:{PORT}" for name in (HEAD, SECOND)]
        self.document = settings(url, network)
        self.changes: list[Change] = []
        super().__init__(self.document, urls, clients, seed)
        head = self._machines[HEAD].address
        self._dashboard = httpx.Client(
            base_url=f"http://{head}:8265",
            headers={"Authorization": f"Bearer {self.environment['RAY_AUTH_TOKEN']}"},
            timeout=10,
        )
        self._boot(HEAD)
        self.until(self._applications)
        self._boot(SECOND)
        self._boot(ARMS)

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Deploy the service and start its clients, until the end of the context."""
        try:
            self.deploy(DOOR)
            self.begin()
            yield self
        finally:
            self.close()

    def deploy(self, door: float, **settings: Any) -> None:
        """Deploy the configuration with other settings: `serve deploy`. Raises CrashError.

        Args:
            door: What a replica of the ingress takes of a machine.
            settings: The others.
        """
        self.document |= settings
        path = self._network.folder / "cluster.yaml"
        path.write_text(yaml.safe_dump(serve_configuration(self.document, door)))
        before = self._deployed_at()
        command = [program("serve"), "deploy", "-a", str(self._dashboard.base_url), str(path)]
        subprocess.run(
            command, cwd=self._network.release, env=self.environment, check=True, capture_output=True
        )
        self.until(lambda: self._deployed_at() != before or None)
        self.until(self.whole)

    def redeploy(self, **settings: Any) -> Change:
        """Replace every replica under traffic by one with other settings. Raises CrashError."""
        change, began = self._beginning(DEPLOYED)
        self.deploy(SMALLER_DOOR, **settings)
        change.whole_s = time.monotonic() - began
        return self._over(change, began)

    def kill(self, name: str) -> Change:
        """Kill a machine, and start an empty one for it. Raises CrashError."""
        change, began = self._beginning(f"{name} killed")
        self._machines[name].kill()
        self._replaced(name, change, began)
        return self._over(change, began)

    def cut_off(self, name: str) -> Change:
        """Cut a machine off, with a learner that still reaches the log; connect it once it is replaced.

        Raises:
            CrashError: The service did not come back.
        """
        change, began = self._beginning(f"{name} cut off")
        lonely = self._machines[name]
        lonely.cut()
        self._replaced(name, change, began)
        lonely.connect()
        return self._over(change, began)

    def _replaced(self, name: str, change: Change, began: float) -> None:
        """Start an empty machine once the loss of another was noticed, and wait until every replica runs."""
        self.until(lambda: None if self.whole() else True)
        change.noticed_s = time.monotonic() - began
        self._machines[name] = self._network.machine()
        self._boot(name)
        self.until(self.whole)
        change.whole_s = time.monotonic() - began

    def _beginning(self, what: str) -> tuple[Change, float]:
        """Return a record of what is about to be done, with what was refused before, and the time."""
        return Change(what, refused=-self.ledger.refused), time.monotonic()

    def _over(self, change: Change, began: float) -> Change:
        """Wait until the log is learned, and write down what clients saw."""
        ledger, rows = self.ledger, len(self.ledger)
        self.until(lambda: len(ledger) > rows + CLIENTS_ROWS or None)
        version = self.learned()
        change.learned_s = time.monotonic() - began
        self.check()
        number = ledger.round
        answered = [answer for answer in list(ledger.answered) if ledger.rounds[answer.id] == number]
        change.rows = len(answered) + sum(ledger.rounds[fact.id] == number for fact in list(ledger.kept))
        change.failed = Counter(answer.status for answer in answered if answer.status not in (None, "ok"))
        change.refused += ledger.refused
        for client in {answer.id.partition("-")[0] for answer in answered}:
            times = [
                answer.at for answer in answered if answer.id.startswith(f"{client}-") and answer.at >= began
            ]
            waits = [later - earlier for earlier, later in pairwise([began, *times])]
            change.longest_s = max([change.longest_s, *waits])
        self.changes.append(change)
        self.kills.append(Kill(change.what, "", "", version=version))
        ledger.round += 1
        return change

    def whole(self) -> bool | None:
        """Say that every replica runs and no other one does; None where that is not so."""
        try:
            application = self._applications()["armwise"]
        except (TypeError, KeyError):
            return None
        if application["status"] == "DEPLOY_FAILED":
            raise CrashError(application["message"])
        deployments = application["deployments"].values()
        states = {replica["state"] for deployment in deployments for replica in deployment["replicas"]}
        healthy = application["status"] == "RUNNING" and states == {"RUNNING"}
        return healthy or None

    def _deployed_at(self) -> float:
        applications = self._applications() or {}
        return float(applications.get("armwise", {}).get("last_deployed_time_s", 0.0))

    def _applications(self) -> dict[str, Any] | None:
        try:
            answer = self._dashboard.get("/api/serve/applications/")
        except httpx.TransportError:
            return None
        return dict(answer.json()["applications"]) if answer.is_success else None

    def _boot(self, name: str) -> None:
        machine, head = self._machines[name], self._machines[HEAD].address
        start = ["--address", f"{head}:6379"]
        if name == HEAD:
            start = ["--head", "--port", "6379", "--include-dashboard", "true", "--dashboard-host", head]
        command = [*ray_start(machine, self._network.home), *start, *resources(RESOURCES[name])]
        machine.run(command, self.environment)

    @property
    @override
    def output(self) -> str:
        application = (self._applications() or {}).get("armwise", {})
        deployments = application.get("deployments", {}).items()
        states = {name: (deployment["message"], deployment["replicas"]) for name, deployment in deployments}
        written = (machine.output.read_text()[-1000:] for machine in self._machines.values())
        return "\n".join([*written, json.dumps({"armwise": application.get("message"), **states}, indent=1)])

    @override
    def close(self) -> None:
        self._network.kill()
        self._dashboard.close()
        super().close()


def settings(url: str, network: Network) -> dict[str, Any]:
    """Return the settings of a service over a log: a light arm, and two on a host of their own."""
    arms = {
        "none": {"kind": "none"},
        "bm25": {"kind": "bm25"},
        "far": {"kind": "bm25", "host": "Arms"},
        "oracle": {"kind": "tests.live.arm:Oracle", "params": {"steps": 2}},
    }
    made = configuration(url, EXACT) | {
        "home": str(network.home / "home"),
        "corpus": {"name": "small", "source": str(write_corpus(network.folder / "corpus.jsonl"))},
        "backbones": {"tiny": {"model": "hashing:16"}},
        "arms": arms,
        "open": True,
        "limits": {"in_flight": 16, "arm_timeout_s": 4.0, "llm_timeout_s": 4.0},
    }
    return made | {"reward": {**made["reward"], "wait_time": "PT30S"}}


def serve_configuration(args: dict[str, Any], door: float) -> dict[str, Any]:
    """Return what Ray Serve reads: two replicas of the ingress on different machines, arms on a third one."""

    def placed(name: str, share: float) -> dict[str, Any]:
        return {"ray_actor_options": {"num_cpus": 0.1, "resources": {name: share}}}

    application = {
        "name": "armwise",
        "route_prefix": "/",
        "import_path": "armwise.agent.app:build",
        "args": args,
        "deployments": [
            {"name": "Ingress", "num_replicas": 2, **placed("door", door)},
            {"name": "Generator", "num_replicas": 2},
            {"name": "Arms", **placed("arms", 0.1)},
            {"name": "Learner", **placed("learner", 0.1)},
        ],
    }
    options = {"host": "0.0.0.0", "port": PORT}
    return {"proxy_location": "EveryNode", "http_options": options, "applications": [application]}


def environment(network: Network) -> dict[str, str]:
    """Return the environment of every process of a cluster, with the token of its network."""
    without = {"ARMWISE_HOME", "RAY_ADDRESS", "PROMETHEUS_MULTIPROC_DIR"}
    variables = {
        "PYTHONPATH": str(network.release),
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": os.urandom(32).hex(),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_metrics_collection": "0",
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(int(STARTS_S)),
    }
    return {name: value for name, value in os.environ.items() if name not in without} | variables


def program(name: str) -> str:
    """Return the path of a program of this environment."""
    return str(Path(sys.executable).with_name(name))


def ray_start(machine: Machine, home: Path) -> list[str]:
    """Return the command that starts Ray on a machine."""
    small = ["--num-cpus", "4", "--object-store-memory", str(80 * 2**20), "--include-log-monitor", "false"]
    options = ["--node-ip-address", machine.address, "--temp-dir", str(home / "ray")]
    return [program("ray"), "start", "--block", "--disable-usage-stats", *small, *options]


def resources(named: dict[str, int]) -> list[str]:
    """Return the words of `ray start` that give a machine resources."""
    return ["--resources", json.dumps(named)]

"""What survives the loss of a machine: a Ray cluster of three under traffic, one PostgreSQL, kill -9.

    python benchmarks/nodes.py [--kills 6] [--cuts 1] [--deploys 2] [--seed 7] [--out FILE]

Machines are namespaces of Linux with addresses, names, processes and folders of their own; it takes root.
Clients ask two of them, move on to the next where one does not answer, send again what was not answered, and
write down what was. Machines with an ingress and with the arms are killed in turn and replaced by empty ones;
one is cut off, with a learner that still reaches the log; the configuration is deployed anew; another cluster
takes over the log, and all machines of the first one are killed; then it is run to stop while requests are
under way. Last, the log is checked as by `crash.py`.

Ends with 1 where anything was lost, changed, learned twice or different from the replay, a client was refused
during a deployment, two learners wrote, or a request that was under way did not end.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import orjson
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.crash_audit import Verdict
from benchmarks.crash_children import free_port
from benchmarks.crash_ledger import Ledger
from benchmarks.nodes_cluster import ARMS, DEPLOYED, GATE, SECOND, Change, Cluster
from benchmarks.nodes_machines import Network
from benchmarks.nodes_upgrade import Learners, Single, Stopped, learners_of, served
from tests.postgres import running

WIDTH = 140

CAPTION = """\
rows: acknowledged meanwhile; wait: longest time from one acknowledgement of a client to its next
refused: answers with Retry-After, and sent again; failed: turns whose arm or model failed, as logged
noticed, whole, learned: seconds until Ray Serve missed a replica, until all ran, until all was learned"""


@dataclass
class Scenario:
    """A service on three machines, and its successor.

    Attributes:
        cluster: The service.
        network: Its machines.
        port: Where its successor listens.
        learners: Who learned its log.
        stopped: How its successor stopped.
        verdict: What was found in its log.
    """

    cluster: Cluster
    network: Network
    port: int
    learners: Learners | None = None
    stopped: Stopped | None = None
    verdict: Verdict = field(default_factory=Verdict)

    def deploy(self) -> Change:
        """Deploy other settings than those that serve."""
        limits = self.cluster.document["limits"]
        return self.cluster.redeploy(limits={**limits, "in_flight": limits["in_flight"] + 1})

    @contextmanager
    def successor(self) -> Iterator[Single]:
        """Run a second cluster over the same log; the clients find it where the first one does not answer."""
        settings = self.cluster.document
        green = settings | {"limits": {**settings["limits"], "arm_timeout_s": 10.0}}
        folder, environment = self.network.folder / "green", self.cluster.environment
        with served(green, folder, self.port, environment) as single:
            yield single

    def upgrade(self, single: Single) -> Change:
        """Kill every machine of the first cluster, once the learner of the second one learns."""
        self.cluster.learned()
        return self.cluster.abandon(single.url)

    def end(self, single: Single) -> None:
        """Let the clients end, stop the second cluster, and check the log."""
        self.cluster.quiet()
        self.stopped = single.stop(self.network.folder / GATE)
        self.learners = learners_of(self.cluster.document)
        self.verdict = self.cluster.audited()

    @property
    def broken(self) -> bool:
        """Whether a promise was broken."""
        deployed = [change for change in self.cluster.changes if change.what == DEPLOYED]
        refused = any(change.refused or change.failed for change in deployed)
        in_turn = self.learners is not None and self.learners.in_turn
        stopped = self.stopped is not None and set(self.stopped.finished) == {200}
        return bool(self.verdict.faults or self.cluster.ledger.odd or refused or not in_turn or not stopped)


@contextmanager
def scenario(seed: int = 7, clients: int = 3) -> Iterator[Scenario]:
    """Run the service on three machines. Raises NetworkError, PostgresError."""
    port = free_port()
    with running() as server, Network() as network:
        (network.folder / GATE).touch()
        second = f"http://127.0.0.1:{port}"
        with Cluster(server.fresh(), network, [second], clients=clients, seed=seed).running() as cluster:
            yield Scenario(cluster, network, port)


def table_of(changes: Sequence[Change]) -> Table:
    """Return a table of what clients saw."""
    table = Table(title="three machines, PostgreSQL", caption=CAPTION, box=box.SIMPLE_HEAD)
    table.add_column("what was done", no_wrap=True)
    for name in ("rows", "wait, s", "refused", "failed", "noticed, s", "whole, s", "learned, s"):
        table.add_column(name, no_wrap=True, justify="right")
    for change in changes:
        seconds = (f"{at:.1f}" if at else "" for at in (change.noticed_s, change.whole_s, change.learned_s))
        failed = ", ".join(f"{count} {status}" for status, count in sorted(change.failed.items())) or "0"
        table.add_row(
            change.what, str(change.rows), f"{change.longest_s:.1f}", str(change.refused), failed, *seconds
        )
    return table


def print_verdict(console: Console, v: Verdict, ledger: Ledger) -> None:
    """Print what was found in a log, and up to five faults."""
    console.print(
        f"{len(ledger)} rows acknowledged, {v.facts} facts, {v.examples} examples; {len(v.versions)} "
        f"versions replayed, {v.decisions} distributions computed again; {len(v.faults)} faults, "
        f"{len(ledger.odd)} odd answers"
    )
    for what in [*(f"{fault.kind}: {fault.what}" for fault in v.faults), *ledger.odd][:5]:
        console.print(f"  {what[:300]}", style="red", markup=False, highlight=False)


def main(
    kills: Annotated[int, typer.Option(min=0, help="Machines that are killed, in turn.")] = 6,
    cuts: Annotated[int, typer.Option(min=0, help="Machines that are cut off.")] = 1,
    deploys: Annotated[int, typer.Option(min=0, help="Deployments of other settings.")] = 2,
    seed: Annotated[int, typer.Option(help="Draws what the clients ask.")] = 7,
    out: Annotated[Path | None, typer.Option(help="Where all of it is written, as JSON.")] = None,
) -> None:
    """Kill, deploy, take over, stop, check and print."""
    console = Console(width=WIDTH)
    began = time.monotonic()
    with scenario(seed) as run:
        console.print(f"all replicas run {time.monotonic() - began:.0f} s after the start", highlight=False)
        for number in range(kills):
            run.cluster.kill((SECOND, ARMS)[number % 2])
        for _ in range(cuts):
            run.cluster.cut_off(SECOND)
        for _ in range(deploys):
            run.deploy()
        with run.successor() as single:
            run.upgrade(single)
            run.end(single)
        console.print(table_of(run.cluster.changes))
        console.print(f"learners {run.learners}", f"{run.stopped}", sep="\n", highlight=False)
        print_verdict(console, run.verdict, run.cluster.ledger)
    if out is not None:
        document = {
            "changes": run.cluster.changes,
            "stopped": run.stopped,
            "verdict": run.verdict,
            "learners": run.learners,
        }
        out.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2, default=asdict))
    raise typer.Exit(run.broken)


if __name__ == "__main__":
    typer.run(main)

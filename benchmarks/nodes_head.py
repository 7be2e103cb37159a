"""What clients see of the loss of Ray's head: killed under traffic, and started again with the same address.

    python benchmarks/nodes_head.py [--storage redis|rocksdb] [--kills 2] [--seed 7]

Ray's head keeps its state in a Redis beside the cluster (`redis-server` is looked for on the PATH), or in
files of its own machine. Machines, clients and checks are those of `nodes.py`. Ends with 1 where anything
was lost.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import typer
from rich.console import Console

from benchmarks.nodes import WIDTH, print_verdict, table_of
from benchmarks.nodes_cluster import GATE, HEAD, Cluster
from benchmarks.nodes_machines import Network
from tests.postgres import running

REDIS_PORT = 6380


class Storage(StrEnum):
    """Where the head keeps its state."""

    REDIS = "redis"
    ROCKSDB = "rocksdb"


@contextmanager
def stored(storage: Storage, network: Network) -> Iterator[dict[str, str]]:
    """Return the variables of a head that keeps its state; run what they name meanwhile."""
    if storage is Storage.ROCKSDB:
        yield {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(network.home / "gcs")}
        return
    if (program := shutil.which("redis-server")) is None:
        raise typer.BadParameter(
            "there is no redis-server: apt-get install redis-server, or --storage rocksdb"
        )
    options = ("--bind", network.address, "--port", str(REDIS_PORT), "--protected-mode", "no", "--save", "")
    server = subprocess.Popen([program, *options, "--dir", str(network.folder)], stdout=subprocess.DEVNULL)
    try:
        yield {"RAY_REDIS_ADDRESS": f"{network.address}:{REDIS_PORT}"}
    finally:
        server.kill()
        server.wait()


def main(
    storage: Annotated[Storage, typer.Option(help="Where Ray's head keeps its state.")] = Storage.REDIS,
    kills: Annotated[int, typer.Option(min=1, help="How often it is killed.")] = 2,
    seed: Annotated[int, typer.Option(help="Draws what the clients ask.")] = 7,
) -> None:
    """Kill the head, check and print."""
    console = Console(width=WIDTH)
    with running() as server, Network() as network, stored(storage, network) as variables:
        (network.folder / GATE).touch()
        with Cluster(server.fresh(), network, seed=seed, stored=variables).running() as cluster:
            for _ in range(kills):
                cluster.restart(HEAD)
            cluster.quiet()
        verdict = cluster.audited()
        console.print(table_of(cluster.changes))
        print_verdict(console, verdict, cluster.ledger)
    raise typer.Exit(bool(verdict.faults or cluster.ledger.odd))


if __name__ == "__main__":
    typer.run(main)

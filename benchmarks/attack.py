"""Attack a running service over HTTP and TCP, and print what honest clients saw meanwhile.

    python benchmarks/attack.py [--only NAME ...] [--open] [--json FILE] [--compare FILE]
    python benchmarks/attack.py --url http://127.0.0.1:8000 [--key KEY] [--metric recall]

Without `--url` a service is started for the purpose with `armwise serve`: arms that do nothing and one
that is slow, one passage, a stand-in of a language model with four slots, and keys unless `--open`. Every
attack has a criterion; its verdict is `ok` or what speaks against it. `--json` keeps the results,
`--compare` prints kept ones beside them.

Four honest clients ask /health, /ready, /v1/retrieve and /v1/feedback during each attack, each request over
a new connection. Latencies include the waiting for the CPU that the attacker shares with the service; the
attack `calm` does nothing and shows what the machine has to itself.
"""

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any
from urllib.parse import urlsplit

import orjson
import typer
import uvloop
import yaml
from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.attack_catalog import (
    ATTACKS,
    HONEST_S,
    ROUTES,
    TLS_PROXY,
    SkippedError,
    Target,
    crowd_on,
)
from benchmarks.attack_report import PATIENCE_S, Honest, comparison, table
from benchmarks.http_load import Answer, ask_once, request
from benchmarks.http_target import (
    answer_constantly,
    armwise,
    free_port,
    in_process,
    require_alive,
    settings,
    started,
    write_slowly,
)

START_S, POLL_S = 180.0, 0.05
"""Longest start that is waited for, and the pause between two polls of a route meanwhile."""

CALM_S = 60.0
"""Time for the service to answer as before, after an attack."""

LEAST_S = 5.0
"""An attack that is over earlier is watched for this long nevertheless."""

KEY = "attack-key"
SLOW = "slow"


async def watch_start(target: Target) -> None:
    """Poll every route until each has been answered. Raises TimeoutError, and RuntimeError where it ended."""
    began = time.perf_counter()
    others = ("/v1/policy", "/v1/arms", "/metrics", "/docs")
    more = {path: request("GET", path, key=target.key) for path in others}
    async with Honest(target.address, target.wires() | more, POLL_S) as honest:
        while not all(any(probe.good for probe in probes) for probes in honest.probes.values()):
            await asyncio.sleep(POLL_S)
            if target.pid is not None:
                require_alive(target.pid)
            if time.perf_counter() - began > START_S:
                raise TimeoutError(f"not ready within {START_S:g} s")
        target.ready_s = time.perf_counter() - began
        await asyncio.sleep(1)
    target.start = honest


async def settled(target: Target) -> list[str]:
    """Wait until the service answers as before; return a fault where it does not."""
    wires, end = target.wires(), time.perf_counter() + CALM_S
    while time.perf_counter() < end:
        answers = [await ask_once(target.address, wires[route], HONEST_S) for route in ROUTES]
        if all(isinstance(answer, Answer) and answer.status < 300 for answer in answers):
            return []
        await asyncio.sleep(0.2)
    return [f"not back {CALM_S:g} s after the attack"]


async def run(target: Target, names: list[str], console: Console) -> dict[str, dict[str, Any]]:
    """Run attacks in turn; return by name what was done, seen and concluded."""
    results: dict[str, dict[str, Any]] = {}
    if target.pid is not None:
        await watch_start(target)
    first = request("POST", "/v1/retrieve", target.question(), target.key, idempotency_key="attack-honest")
    await ask_once(target.address, first, PATIENCE_S)
    if "crowd" in names:
        with in_process(answer_constantly) as port:
            target.reference = await crowd_on(("127.0.0.1", port), target.wires()["retrieve"], 3)
    with Progress(console=console) as progress:
        for name in progress.track(names, description="attacks"):
            chosen, skipped = ATTACKS[name], ""
            honest = Honest(target.address, target.wires(), source=chosen.source)
            target.honest = honest
            console.print(name, style="dim")
            async with honest:
                try:
                    (got, faults), _ = await asyncio.gather(
                        chosen.run(target), asyncio.sleep(LEAST_S if chosen.routes else 0)
                    )
                except SkippedError as reason:
                    got, faults, skipped = "", [], str(reason)
            if not skipped:
                faults = [*faults, *honest.faults(chosen.routes, HONEST_S), *await settled(target)]
            results[name] = {
                "did": chosen.did,
                "criterion": chosen.criterion,
                "got": got,
                "faults": faults,
                "skipped": skipped,
                "honest": {} if skipped else honest.summary(),
            }
    return results


@contextmanager
def own_service(*, keyed: bool) -> Iterator[Target]:
    """Start a service for the purpose."""
    with (
        TemporaryDirectory(prefix="attack", dir="/tmp", ignore_cleanup_errors=True) as name,
        in_process(write_slowly) as model,
    ):
        folder, port = Path(name), free_port()
        args = settings(folder) | {"http": {"trusted_proxies": [TLS_PROXY]}}
        args["arms"][SLOW] = {"kind": "benchmarks.http_target:Slow"}
        args["llm"] = {"engine": "openai", "base_url": f"http://127.0.0.1:{model}/v1", "model": "slow"}
        if keyed:
            args["keys"] = [{"env": "ATTACK_KEY", "scopes": ["decide", "feedback"]}]
        application = {
            "name": "armwise",
            "route_prefix": "/",
            "import_path": "armwise.agent.app:build",
            "args": args,
        }
        document = {
            "proxy_location": "HeadOnly",
            "http_options": {"host": "127.0.0.1", "port": port},
            "logging_config": {"enable_access_log": False},
            "applications": [application],
        }
        config = folder / "config.yaml"
        config.write_text(yaml.safe_dump(document))
        with started(armwise(config), folder, {"ATTACK_KEY": KEY}) as pid:
            yield Target(("127.0.0.1", port), KEY if keyed else None, "recall", SLOW, pid)


def main(
    only: Annotated[list[str] | None, typer.Option(help="Name of an attack; may be repeated.")] = None,
    url: Annotated[str | None, typer.Option(help="A service that runs; without it one is started.")] = None,
    key: Annotated[str | None, typer.Option(help="Its key, with the scopes decide and feedback.")] = None,
    metric: Annotated[str, typer.Option(help="A metric that it declares.")] = "recall",
    unkeyed: Annotated[bool, typer.Option("--open", help="Start a service without keys.")] = False,
    json: Annotated[Path | None, typer.Option(help="Where the results are kept.")] = None,
    compare: Annotated[Path | None, typer.Option(help="Kept results to print beside these.")] = None,
) -> None:
    """Attack and print."""
    console = Console()
    names = list(ATTACKS) if not only else [name for name in ATTACKS if name in only]
    if unknown := set(only or ()) - set(ATTACKS):
        raise typer.BadParameter(f"no attack {', '.join(unknown)}; there are: {', '.join(ATTACKS)}")
    with ExitStack() as stack:
        if url is None:
            target = stack.enter_context(own_service(keyed=not unkeyed))
        else:
            parts = urlsplit(url)
            target = Target((parts.hostname or "127.0.0.1", parts.port or 80), key, metric)
        results = uvloop.run(run(target, names, console))
    if not console.is_terminal:
        console = Console(width=200)
    if json is not None:
        json.write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY))
    console.print(table(results))
    if compare is not None:
        console.print(comparison(orjson.loads(compare.read_bytes()), results))


if __name__ == "__main__":
    typer.run(main)

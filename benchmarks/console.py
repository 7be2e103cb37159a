"""How long each page of the console takes on a long log, and how long its summary takes.

    python benchmarks/console.py [--decisions 1000000] [--folder FOLDER] [--repeats 30] [--postgres]
    python benchmarks/console.py --watchers 5 [--address http://127.0.0.1:8000]

Writes a log of 90 days by bulk insert, unless the folder has one already, summarises it as a learner does,
and asks one replica for every page, on one connection in this process. Half of the pages are
chosen to be slow: filters that match nothing near. The processor time is the
mean of this process; the rest of the time it waited for the disk, or for others on the machine.

With `--watchers`, compares the latency of `POST /v1/retrieve` while so many people watch the overview and
while nobody does, in pairs of rounds, of a service in another process or at an `--address`.
"""

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import httpx
import numpy as np
import sqlalchemy as sa
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from armwise.agent.learning import Recipe
from armwise.agent.policies import PolicySpec
from armwise.feedback.events import Context, Cost, Decision, Execution, Feedback, Status
from armwise.feedback.log import Store, facts
from armwise.feedback.log import tables as t
from armwise.feedback.log.facts import list_texts
from armwise.feedback.registry import versions
from armwise.feedback.training_log import summary, take_epoch
from benchmarks.http_load import connect, request
from tests.agent.browsing import listening
from tests.agent.fakes import Service
from tests.postgres import running

GOAL_MS = 100.0

DAYS = 90

START = time.time() - DAYS * 86400.0 - 600.0
"""So that the log ended some minutes ago, and the windows of the last hours have traffic."""

CHUNK = 10_000

VERSIONS = 50_000
"""Versions of the configured recipe: half of the minutes of the days have one."""

ARMS = {"none": 0.1, "bm25": 0.4, "dense": 0.5}
"""The arms of the service, and what each earns on average."""

POLICY = {"kind": "linucb", "params": {"ridge": 10.0}}

TIERS = ("free", "paid", "trial")

WORDS = [f"word{i}" for i in range(2000)]

console = Console(width=100)


def turn(i: int, n: int, rng: np.random.Generator) -> tuple[Decision, Execution, Feedback]:
    """A question with features, an answer of 60 words, and a judgement."""
    p = rng.dirichlet((2.0, 2.0, 4.0)) * 0.97 + 0.01
    drawn = int(rng.choice(3, p=p / p.sum()))
    at, arms, name = START + DAYS * 86400.0 * i / n, tuple(ARMS), f"{i:032x}"
    words = [WORDS[j] for j in rng.integers(len(WORDS), size=70)]
    context = Context(
        " ".join(words[:10]),
        {**{f"w={word}": 1.0 for word in words[:10]}, f"tier={TIERS[i % len(TIERS)]}": 1.0},
        (),
        {arm: {"steps": float(arm != "none")} for arm in ARMS},
    )
    decision = Decision(
        name, context, arms, tuple((p / p.sum()).tolist()), arms[drawn], "linucb", 1, decided_at=at
    )
    status = Status.LLM_TIMEOUT if i == n // 50 else Status.OK
    cost = Cost(int(drawn > 0), 400, 60, rng.random() / 50, rng.random())
    answer = " ".join(words[10:])
    execution = Execution(name, arms[drawn], status, cost, ("p1", "p2", "p3", "p4"), answer, "", at + 1)
    value = float(rng.random() < ARMS[arms[drawn]])
    return decision, execution, Feedback(f"f{i}", name, "right", value, at + 5)


def fill(store: Store, n: int, join: str) -> None:
    """Write the log and its training log, as a learner has joined it."""
    rng, end = np.random.default_rng(0), START + DAYS * 86400.0
    for start in track(range(0, n, CHUNK), "writing the log", console=console):
        made: dict[sa.Table, list[dict[str, Any]]] = {
            table: [] for table in (t.decisions, t.executions, t.feedback, t.texts, t.examples)
        }
        for i in range(start, min(n, start + CHUNK)):
            decision, execution, value = turn(i, n, rng)
            made[t.decisions].append(facts.decision_row(decision, 3 * i + 1, decision.decided_at))
            made[t.executions].append(facts.execution_row(execution, 3 * i + 2))
            made[t.feedback].append(facts.feedback_row(value, 3 * i + 3, value.received_at, early=False))
            made[t.texts] += [
                {"seq": 3 * i + n, "document": document, "salt": ""}
                for n, fact in enumerate((decision, execution), 1)
                if (document := list_texts(fact))
            ]
            row = {"join": join, "seq": i + 1, "decision_id": decision.id, "joined_by": 3 * i + 3}
            made[t.examples].append({**row, "metrics": {"right": value.value}})
        with store.writing() as connection:
            for table, some in made.items():
                connection.execute(sa.insert(table), some)
    read = {"reader": join, "log_seq": 3 * n, "log_at": end, "chain": t.NO_FACTS, "examples_seq": n}
    with store.writing() as connection:
        connection.execute(sa.update(t.log).values(seq=3 * n, at=end))
        connection.execute(sa.insert(t.progress), {**read, "left_out": [], "settled_seq": 0})


def publish(service: Service, n: int) -> None:
    """Publish versions that have learned a little of the log, and a candidate of another recipe."""
    recipe, store, rng = Recipe.from_config(service.config), service.replica.store, np.random.default_rng(1)
    epoch = take_epoch(store, "benchmark", START + DAYS * 86400.0)
    policy = recipe.build(list(service.config.actions))
    states = []
    for parent in (None, 1):
        for i in range(2000):
            decision, _, value = turn(i, n, rng)
            policy.learn(decision, value.value or 0.0)
        states.append(state := policy.save())
        versions.publish(store, recipe.draft(state, n, 3 * n, parent, epoch, START), state)
    draft = recipe.draft(state, n, 3 * n, 2, epoch, START)
    row = {name: getattr(draft, name) for name in versions.Version.__slots__ if name != "version"}
    row |= {"logged_seq": 0, "chain": t.NO_FACTS}
    with store.writing() as connection:  # as of a learner that published one a minute, most without states
        connection.execute(sa.insert(t.versions), [row] * (VERSIONS - 2))
    versions.publish(store, recipe.draft(state, n, 3 * n, VERSIONS, epoch, START), state)
    other = Recipe(PolicySpec(kind="linucb", params={"ridge": 1.0}), service.config.reward)
    versions.publish(store, other.draft(state, n, 3 * n, None, epoch, START), state)
    with store.writing() as connection:  # those that pages ask for
        for number, kept in enumerate(states, 1):
            versions.restore_state(connection, number, kept)


def pages(n: int, recipe: str) -> Iterator[tuple[str, str]]:
    """What is asked for, with its path."""
    yield "overview", ""
    yield "details", "/details"
    yield "decisions", "/decisions"
    yield "decisions, in the middle", f"/decisions?before={3 * n // 2}"
    yield "decisions of an arm", "/decisions?arm=none"
    yield "decisions, a text that is nowhere", "/decisions?text=nowhere+at+all"
    yield "decisions, a status 49/50 back", "/decisions?status=llm_timeout"
    yield "decisions, rewards that are nowhere", "/decisions?least=1.5"
    yield "decisions, feedback by a key that gave none", "/decisions?key=nobody"
    since = time.strftime("%Y-%m-%d", time.gmtime(START + DAYS * 43200.0))
    yield "decisions from the middle on", f"/decisions?until={since}"
    yield "one decision", f"/decisions/{n // 2:032x}"
    yield "arms", "/arms"
    yield "playground", "/playground"
    yield "policies", "/policies"
    yield "versions in the middle of a recipe", f"/policies?recipe={recipe}&earlier={VERSIONS // 2}"
    yield "what a promotion will do", f"/policies/act?action=promote&version={VERSIONS + 2}"
    yield "verdicts of the gate", "/policies/gate"
    yield "evaluations", "/evaluations"
    yield "warm starts", "/warm-starts"
    yield "system", "/system"


async def evaluate(service: Service) -> None:
    """Have the gate judge a version twice, on the turns of a day and of two, unless it has."""
    done = (await service.client.get("/v1/evaluations")).json()["evaluations"]
    for days in (1, 2)[len(done) :]:
        since = time.strftime("%Y-%m-%d", time.gmtime(START + (DAYS - days) * 86400.0))
        body = {"candidates": ["recipe:2", "uniform"], "gate": True, "since": since}
        (await service.client.post("/v1/evaluations", json=body)).raise_for_status()
    with service.working():
        while any(
            evaluation["status"] in ("queued", "running")
            for evaluation in (await service.client.get("/v1/evaluations")).json()["evaluations"]
        ):
            await asyncio.sleep(0.1)


async def measure(service: Service, n: int, repeats: int) -> None:
    """Ask for each page, and print how long it took."""
    columns = ("page", "first ms", "median ms", "slowest ms", "CPU ms", "kB")
    table = Table(*columns, title=f"{n:,} decisions, one replica, load {os.getloadavg()[0]:.0f}")
    async with service.running(ready=False):
        await service.refresh()
        await evaluate(service)
        slowest = 0.0
        for name, path in pages(n, service.replica.versions.configured.digest):
            took, worked = [], time.process_time()
            for _ in range(repeats):
                started = time.perf_counter()
                answer = await service.client.get("/console" + path)
                took.append(1000 * (time.perf_counter() - started))
                answer.raise_for_status()
            worked = 1000 * (time.process_time() - worked) / repeats
            slowest = max(slowest, float(np.median(took)))
            shown = (
                f"{took[0]:.0f}",
                f"{np.median(took):.0f}",
                f"{max(took):.0f}",
                f"{worked:.0f}",
                f"{len(answer.content) / 1000:.0f}",
            )
            table.add_row(name, *shown)
    console.print(table)
    console.print(f"slowest median {slowest:.0f} ms, goal {GOAL_MS:.0f} ms")


PAIRS, REQUESTS, WATCH_S = 12, 5000, 5.0

QUANTILES = {"median": 0.5, "p99": 0.99}


def serve(folder: Path, pipe: Connection) -> None:
    """Serve the log of a folder, in a process of its own, until told to end."""
    with listening(Service(folder, policy=POLICY)) as address:
        pipe.send(address)
        pipe.recv()


async def latencies(address: str, watchers: int) -> list[float]:
    """Return the milliseconds of requests, one after the other, while so many people watch the overview."""
    place = httpx.URL(address)
    host = place.host, place.port or 80
    retrieve = request("POST", "/v1/retrieve", {"query": "Which river?"})
    overview = request("GET", "/console", hx_request="true")

    async def watch(after_s: float) -> None:
        connection = await connect(host)
        await asyncio.sleep(after_s)
        while True:
            await connection.send(overview)
            await asyncio.sleep(WATCH_S)

    took, asking = [], await connect(host)
    tasks = [asyncio.create_task(watch(WATCH_S * j / watchers)) for j in range(watchers)]
    for _ in range(REQUESTS):
        answer = await asking.send(retrieve)
        if answer.status != 200:
            raise RuntimeError(f"the service answered {answer.status}: {answer.body.decode()}")
        took.append(1000 * answer.seconds)
    for task in tasks:
        task.cancel()
    asking.close()
    return took


def compare(folder: Path, watchers: int, address: str | None) -> None:
    """Print the latency of retrieval with and without people who watch, in pairs of rounds."""
    here, there = Pipe()
    served = None if address else get_context("spawn").Process(target=serve, args=(folder, there))
    if served is not None:
        served.start()
        address = here.recv()
    assert address is not None
    rounds_by_watchers: dict[int, list[list[float]]] = {0: [], watchers: []}
    for pair in track(range(PAIRS), "pairs of rounds", console=console):
        for many in ((0, watchers), (watchers, 0))[pair % 2]:  # neither always comes first
            rounds_by_watchers[many].append(asyncio.run(latencies(address, many)))
    if served is not None:
        here.send("end")
        served.join()
    table = Table(
        *("", "nobody, ms", f"{watchers} watch, ms", "ratio: smallest", "median", "largest"),
        title=f"{PAIRS} pairs of rounds of {REQUESTS:,} requests, load {os.getloadavg()[0]:.0f}",
    )
    for name, q in QUANTILES.items():
        alone, watched = (np.quantile(np.array(rounds), q, axis=1) for rounds in rounds_by_watchers.values())
        pooled = (np.quantile(np.array(rounds), q) for rounds in rounds_by_watchers.values())
        ratios = np.quantile(watched / alone, (0.0, 0.5, 1.0))
        table.add_row(name, *(f"{value:.2f}" for value in pooled), *(f"{ratio:.3f}" for ratio in ratios))
    console.print(table)


def main(
    decisions: Annotated[int, typer.Option(help="Length of the log.")] = 1_000_000,
    folder: Annotated[Path, typer.Option(help="Where the log is kept.")] = Path("build/console"),
    repeats: Annotated[int, typer.Option(help="Times that each page is asked for.")] = 30,
    watchers: Annotated[int, typer.Option(help="People who watch the overview.")] = 0,
    address: Annotated[str | None, typer.Option(help="Of a service that runs, to watch that one.")] = None,
    postgres: Annotated[bool, typer.Option("--postgres", help="Write the log to a new PostgreSQL.")] = False,
) -> None:
    """Print the figures."""
    if address is not None:
        compare(folder, watchers or 5, address)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with running() if postgres else nullcontext() as server:
        settings = {} if server is None else {"log_url": server.fresh()}
        measure_pages(Service(folder, policy=POLICY, **settings), folder, decisions, repeats, watchers)


def measure_pages(service: Service, folder: Path, decisions: int, repeats: int, watchers: int) -> None:
    """Write the log unless it is there, summarise it, and print how long its pages take."""
    store, rule = service.replica.store, service.config.reward
    if not store.log_seq():
        fill(store, decisions, rule.join)
        publish(service, decisions)
    if not watchers:
        summary.clear(store)
    took = []
    for _ in range(2):
        begun = time.perf_counter()
        service.summarise()
        took.append(time.perf_counter() - begun)
    console.print(
        f"{store.engine.dialect.name}: the first summary took {took[0]:.1f} s, the next one {took[1]:.1f} s"
    )
    if watchers:
        compare(folder, watchers, None)
    else:
        asyncio.run(measure(service, decisions, repeats))


if __name__ == "__main__":
    typer.run(main)

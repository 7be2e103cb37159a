"""What a long log costs: its size, the start of a service, a turn, learning, replay, pages and verification.

    python benchmarks/growth.py [--database sqlite] [--sizes 1000000,3000000,10000000] [--folder FOLDER]

A block of 10,000 turns is committed through `Store.append`, as a service does, and joined and added up by a
learner. The database then copies it, with later positions, times and ids, until the log has each of the
sizes; each copy is a turn with an answer of 60 words and a judgement. At each size a replica and a learner
are opened on the log, in this process. What they add is removed again before the log grows on. With
`--dims` each turn has an embedding of so many numbers, and only the size is measured. PostgreSQL is the one
that the tests start, with its settings as they are; all is in the folder, and removed at the end.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import sqlalchemy as sa
import typer
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from armwise.agent.learning import Learner, Recipe
from armwise.feedback.decisions import EVERYTHING
from armwise.feedback.log import Store, open_log
from armwise.feedback.log import tables as t
from armwise.feedback.log_columns import CHUNK, read_learned
from armwise.feedback.training_log import Joiner, delete_training_log, take_epoch
from benchmarks.console import POLICY, turn
from tests.agent.fakes import Service
from tests.postgres import Server, running

BLOCK = 10_000
FACTS = 3 * BLOCK
SPAN_S = 7200.0
"""Seconds that a block takes: whole hours, so that the sums of hours can be copied, too."""

NEW, STEPS = 5_000, 50
"""Turns that a learner finds when it starts."""

REPLAYED = 1_000_000
"""Examples of a replay, or all where there are fewer."""

console = Console(width=110)
Rows = dict[str, list[str]]


@contextmanager
def timed(rows: Rows, name: str, form: Callable[[float], str] = lambda s: f"{s:.2f} s") -> Iterator[None]:
    """Add the duration of a block to a row of the table."""
    began = time.perf_counter()
    yield
    rows.setdefault(name, []).append(form(time.perf_counter() - began))


def begin(service: Service, dims: int) -> None:
    """Write the first block as a service and a learner do, with embeddings of so many numbers."""
    store, rule, rng = service.replica.store, service.config.reward, np.random.default_rng(0)
    start = 3600.0 * ((time.time() - 1000 * SPAN_S) // 3600)
    with store.writing() as connection:
        connection.execute(sa.update(t.log).values(at=start))
    turns = [turn(i, 90 * 86400 * BLOCK // 7200, rng) for i in range(BLOCK)]
    early = turns[0][0].decided_at
    for first in range(0, BLOCK, 500):
        some: list[Any] = []
        for decided, done, feedback in turns[first : first + 500]:
            at = start + decided.decided_at - early + 0.01
            context = replace(decided.context, embedding=tuple(rng.standard_normal(dims).tolist()))
            some += [
                replace(decided, context=context, decided_at=at, deadline=at + rule.wait_s),
                replace(done, finished_at=at + 0.1),
                replace(feedback, id=decided.id, received_at=at + 0.2),
            ]
        store.append(some)
    recipe, arms = Recipe.from_config(service.config), list(service.config.actions)
    learner = Learner(store, recipe, arms, take_epoch(store, "growth", start), lambda: start + SPAN_S)
    learner.step()
    while learner.behind:
        learner.step()


def grow(store: Store, have: int, want: int) -> None:
    """Copy the first block until the log has so many turns."""
    moved = {
        "seq": FACTS,
        "decided_at": SPAN_S,
        "deadline": SPAN_S,
        "logged_at": SPAN_S,
        "finished_at": SPAN_S,
    }
    moved |= {"received_at": SPAN_S, "joined_by": FACTS}
    named = {
        "decisions": "id",
        "executions": "decision_id",
        "feedback": "decision_id",
        "examples": "decision_id",
    }

    def copied(table: sa.Table) -> str:
        columns = []
        for column in table.c:
            size = BLOCK if (table is t.examples and column.name == "seq") else moved.get(column.name)
            text = f'"{column.name}"'
            if column.name == named.get(table.name) or (table is t.feedback and column.name == "id"):
                text = f"'{{block:06d}}' || substr({text}, 7)"
            elif size is not None:
                text = f"{text} + {size} * {{block}}"
            columns.append(text)
        last = BLOCK if table is t.examples else FACTS
        names = ", ".join(f'"{column.name}"' for column in table.c)
        return (
            f"INSERT INTO {table.name} ({names}) SELECT {', '.join(columns)} FROM {table.name} "
            f"WHERE seq <= {last}"
        )

    statements = [copied(table) for table in (t.decisions, t.executions, t.feedback, t.texts, t.examples)]
    for block in range(have // BLOCK, want // BLOCK):
        with store.engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql(
                    "SET LOCAL statement_timeout = 0; SET LOCAL synchronous_commit = off"
                )
            for statement in statements:
                connection.exec_driver_sql(statement.format(block=block))
    settle(store, want)


def settle(store: Store, n: int) -> None:
    """Say how long the log is, and remove what is after its end."""
    facts = (t.decisions, t.executions, t.feedback, t.observations, t.ticks, t.texts)
    with store.writing() as connection:
        at = connection.scalar(sa.select(t.decisions.c.logged_at).where(t.decisions.c.seq == 3 * n - 2))
        for table in facts:
            connection.execute(sa.delete(table).where(table.c.seq > 3 * n))
        connection.execute(sa.delete(t.examples).where(t.examples.c.seq > n))
        connection.execute(sa.update(t.log).values(seq=3 * n, at=at))
        p = t.progress
        connection.execute(sa.update(p).values(log_seq=3 * n, log_at=at, examples_seq=n, settled_seq=0))
        connection.execute(sa.update(t.versions).values(examples_seq=n, applied_seq=3 * n))


def calm(store: Store) -> None:
    """Wait until what was copied is on the disk, and vacuumed, which would compete with what is measured."""
    if store.engine.dialect.name == "postgresql":
        driver: Any = store.engine.raw_connection().driver_connection
        driver.execute("SET statement_timeout = 0")
        driver.execute("VACUUM ANALYZE")
    store.forget()
    os.sync()


def size_of(store: Store) -> int:
    """Bytes of the database."""
    with store.reading() as connection:
        if connection.dialect.name == "postgresql":
            return int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())
        pages, size = (
            connection.exec_driver_sql(f"PRAGMA page_{unit}").scalar_one() for unit in ("count", "size")
        )
        return int(pages) * int(size)


async def serve(folder: Path, url: str, n: int, rows: Rows) -> None:
    """Open a replica on the log, and ask it for everything."""
    with timed(rows, "start of a replica until it decides"):
        service = Service(folder, log_url=url, policy=POLICY)
        running = service.running(ready=False)
        await running.__aenter__()
        await service.refresh()

    def median(took: list[float]) -> str:
        return f"{1000 * float(np.median(took)):.1f} ms"

    async def ask(name: str, times: int, method: str, path: Callable[[int], str], body: Any = None) -> None:
        took = []
        for i in range(times):
            began = time.perf_counter()
            answer = await service.client.request(method, path(i), json=body and body(i))
            took.append(time.perf_counter() - began)
            answer.raise_for_status()
        rows.setdefault(name, []).append(median(took))

    def fed(i: int) -> Any:
        return {
            "decision_id": f"{n // BLOCK - 1:06d}{i:026x}",
            "metric_name": "thumb",
            "value": 1,
            "feedback_id": f"new-{i}",
        }

    await ask("a retrieval", 300, "POST", lambda _: "/v1/retrieve", lambda _: {"query": "Which river?"})
    await ask("an item of feedback", 300, "POST", lambda _: "/v1/feedback", fed)
    with service.replica.store.reading() as connection:
        some = list(
            connection.scalars(
                sa.select(t.decisions.c.id).where(t.decisions.c.seq.in_(range(1, 3 * n, 3 * n // 20)))
            )
        )
    await ask("a decision", 10, "GET", lambda i: f"/v1/decisions/{some[i % len(some)]}")
    await ask("`verify` of a decision", 10, "GET", lambda i: f"/v1/decisions/{some[i % len(some)]}/verify")
    for which in ("the first summary for the console", "the next one"):
        with timed(rows, which):
            await asyncio.to_thread(service.summarise)
    await ask("console: overview, at first", 1, "GET", lambda _: "/console")
    while tasks := [*service.app.state.background.under_way.values()]:
        await asyncio.wait(tasks)
        await service.client.get("/console")
    for name, path in (
        ("overview", ""),
        ("details", "/details"),
        ("decisions", "/decisions"),
        ("decisions, in the middle", f"/decisions?before={3 * n // 2}"),
        ("decisions, a text that is nowhere", "/decisions?text=nowhere+at+all"),
        ("arms", "/arms"),
        ("policies", "/policies"),
        ("system", "/system"),
    ):
        await ask(f"console: {name}", 5, "GET", lambda _, path=path: "/console" + path)  # type: ignore[misc]
    await running.__aexit__(None, None, None)


def learn(url: str, service: Service, n: int, rows: Rows) -> None:
    """Open a learner on the log, and let it learn new turns."""
    rule, rng = service.config.reward, np.random.default_rng(n)
    with timed(rows, "opening the log"):
        store = open_log(url, rule)
    epoch, now = take_epoch(store, "growth", time.time()), time.time()
    for first in range(0, NEW, 500):
        some: list[Any] = []
        for i in range(first, first + 500):
            decided, done, feedback = turn(i, 10 * NEW, rng)
            name, at = f"new-{i}", now + 0.01 * (i - NEW)
            some += [
                replace(decided, id=name, decided_at=at, deadline=at + rule.wait_s),
                replace(done, decision_id=name, finished_at=at),
                replace(feedback, id=name, decision_id=name, received_at=at),
            ]
        store.append(some)
    with timed(rows, "start of a learner"):
        learner = Learner(store, Recipe.from_config(service.config), list(service.config.actions), epoch)
    with timed(rows, "until it has learned 5,000 turns"):
        learner.step()
        while learner.behind:
            learner.step()
    took, joiner = list[float](), Joiner(store, rule, epoch)
    joiner.advance(now)
    for i in range(STEPS):
        decided, done, feedback = turn(i, 10 * NEW, rng)
        name, at = f"step-{i}", now + 0.01 * (i + 1)
        store.append(
            [
                replace(decided, id=name, decided_at=at, deadline=at + rule.wait_s),
                replace(done, decision_id=name, finished_at=at),
                replace(feedback, id=name, decision_id=name, received_at=at),
            ]
        )
        began = time.perf_counter()
        joiner.advance(at)
        took.append(time.perf_counter() - began)
    rows.setdefault("joining one new turn", []).append(f"{1000 * float(np.median(took)):.1f} ms")
    with timed(rows, f"reading {REPLAYED:,} for a replay"):
        for after in range(0, min(n, REPLAYED), CHUNK):
            read_learned(store, rule, EVERYTHING, after, min(after + CHUNK, n, REPLAYED))
    store.close()


def join_again(store: Store, service: Service, rows: Rows) -> None:
    """Delete the training log, and join all facts again, as a rebuild does."""
    rule = service.config.reward
    joiner = Joiner(store, rule, take_epoch(store, "growth", time.time()))
    with timed(rows, "joining all of it again"):
        with store.writing() as connection:
            delete_training_log(connection, rule.join)
        joiner.advance(time.time())
        while joiner.left:
            joiner.advance(time.time())


def back_up(store: Store, server: Server | None, folder: Path, rows: Rows) -> None:
    """Copy the log as a backup does, and add what that takes: `armwise log backup`, or `pg_dump`."""
    copy = folder / "copy"
    with timed(rows, "a backup"):
        if server is None:
            store.backup(copy)
        else:
            schema = store.engine.url.username
            server.run(f"pg_dump --format=custom --schema={schema} --file={server.folder}/copy postgres")
            copy = server.folder / "copy"
    rows.setdefault("bytes a decision in a backup", []).append(f"{copy.stat().st_size / rows_of(store):,.0f}")
    copy.unlink()


def rows_of(store: Store) -> int:
    """Return the number of decisions."""
    return store.counts()["decisions"]


def main(
    database: Annotated[Literal["sqlite", "postgresql"], typer.Option(help="Which.")] = "sqlite",
    sizes: Annotated[
        str, typer.Option(help="Numbers of turns, rising, whole blocks.")
    ] = "1000000,3000000,10000000",
    folder: Annotated[Path | None, typer.Option(help="Where the log is; needs 30 GB for 10,000,000.")] = None,
    dims: Annotated[int, typer.Option(help="Numbers of the embedding of a turn.")] = 0,
) -> None:
    """Print the figures."""
    turn_counts, rows = [int(text) for text in sizes.split(",")], Rows()
    with ExitStack() as stack:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        if database == "sqlite":
            url, server = f"sqlite:///{place / 'log.db'}", None
        else:
            server = stack.enter_context(running())
            url = server.fresh()
        service = Service(place, log_url=url, policy=POLICY)
        begin(service, dims)
        have = BLOCK
        for n in turn_counts:
            store = service.replica.store
            began = time.perf_counter()
            grow(store, have, n)
            console.print(f"{n:,} turns after {time.perf_counter() - began:.0f} s of copying")
            calm(store)
            rows.setdefault("bytes a decision", []).append(f"{size_of(store) / n:,.0f}")
            back_up(store, server, place, rows)
            if not dims:  # the service here has no encoder
                learn(url, service, n, rows)
                settle(store, n)
                join_again(store, service, rows)
                settle(store, n)
                asyncio.run(serve(place, url, n, rows))
                settle(store, n)
            have = n
            table = Table(database, *(f"{count:,}" for count in turn_counts[: turn_counts.index(n) + 1]))
            table.title = f"load {os.getloadavg()[0]:.0f}"
            for name, values in rows.items():
                table.add_row(name, *values)
            console.print(table)


if __name__ == "__main__":
    typer.run(main)

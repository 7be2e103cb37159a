"""What the log of a service takes, by part: chats are asked and rated, then the tables are measured.

    armwise serve                                 # elsewhere: the example, or --config of your own
    python benchmarks/log_parts.py [--chats 3000] [--retrievals 0] [--url URL] [--config FILE]

The questions are those of `examples/`, in turn; every chat gets a thumb. What is measured is a copy as
`armwise backup` makes it: bytes of the pages of each table with its indexes, and of what is free.
"""

import itertools
import json
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.table import Table

from armwise.agent.config import load
from armwise.feedback.log import Store

QUESTIONS = Path(__file__).parents[1] / "examples"

EXAMPLE = Path("~/.armwise/example/serve_config.yaml")
"""Configuration of what `armwise serve` serves without one."""

PARTS = {
    "versions, with checkpoints": ("versions",),
    "routers": ("routers",),
    "decisions": ("decisions",),
    "answers, ids of their passages": ("executions",),
    "feedback": ("feedback",),
    "training log": ("examples",),
}
"""Tables by what is in them; all others are the rest."""

SETTLE_S = 10.0
"""Seconds after the last rating in which the learner writes what it has learned."""


def run(
    chats: Annotated[int, typer.Option(help="Chats to ask, each with a rating.")] = 3000,
    retrievals: Annotated[int, typer.Option(help="Retrievals to ask, without a rating.")] = 0,
    url: Annotated[str, typer.Option(help="Address of the service.")] = "http://127.0.0.1:8000",
    config: Annotated[Path, typer.Option(help="Its configuration, with a log in SQLite.")] = EXAMPLE,
) -> None:
    """Ask, rate, and print a table of the parts of the log before and after."""
    log_url = load(config.expanduser(), ["router"]).database_url
    before = measure(log_url)
    questions = itertools.cycle(sorted(read_questions()))
    with httpx.Client(base_url=url, timeout=120.0) as client:
        for question in itertools.islice(questions, retrievals):
            post(client, "/v1/retrieve", {"query": question})
        for question in itertools.islice(questions, chats):
            body = {"model": "auto", "messages": [{"role": "user", "content": question}]}
            answer = post(client, "/v1/chat/completions", body)
            rating = {"decision_id": answer["agent"]["decision_id"], "metric_name": "thumb", "value": 1}
            post(client, "/v1/feedback", rating)
    time.sleep(SETTLE_S)
    after = measure(log_url)
    table = Table("part", "MB before", "MB after", "kB a decision", title=f"{chats + retrievals:,} decisions")
    for part, size in after.items():
        added = (size - before[part]) / (chats + retrievals)
        table.add_row(part, f"{before[part] / 1e6:.2f}", f"{size / 1e6:.2f}", f"{added / 1e3:.2f}")
    Console(width=110).print(table)


def read_questions() -> set[str]:
    """Return the questions of the examples."""
    files = (QUESTIONS / name for name in ("questions.jsonl", "stdlib_questions.jsonl"))
    return {json.loads(line)["question"] for file in files for line in file.read_text().splitlines()}


def post(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to a request. Raises HTTPStatusError."""
    reply: dict[str, Any] = client.post(path, json=body).raise_for_status().json()
    return reply


def measure(log_url: str) -> dict[str, int]:
    """Return the bytes of each part of a log, and of all of it."""
    with tempfile.TemporaryDirectory() as folder, closing(Store(log_url)) as store:
        copy = Path(folder) / "log.db"
        store.backup(copy)
        with closing(sqlite3.connect(copy)) as database:
            tables = dict(database.execute("SELECT name, tbl_name FROM sqlite_schema").fetchall())
            pages = database.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name").fetchall()
        whole = copy.stat().st_size
    sizes = {
        part: sum(size for name, size in pages if tables.get(name, name) in names)
        for part, names in PARTS.items()
    }
    return {**sizes, "the rest, and free pages": whole - sum(sizes.values()), "all": whole}


if __name__ == "__main__":
    typer.run(run)

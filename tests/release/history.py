"""The log of a release: what a small service of it decided, learned and was sent, as the text of its tables.

Later versions open the log, migrate it and recompute its decisions. The configuration is of that time, too.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.agent.fakes import CONFIG, Service

KEY = "ARMWISE_RELEASED_KEY"
"""Variable of the key that the configuration names."""

CONFIGURATION: dict[str, Any] = {
    **CONFIG,
    "policy": {"kind": "adaptive"},
    "keys": [{"env": KEY, "scopes": ["admin"]}],
    "sticky": {"of": "episode", "turns": 3},
    "tap": {},
}
"""Three arms, the policy that a new configuration has, conversations, and the tap."""

QUESTIONS = [
    f"which river runs through {city}?" for city in ("Vienna", "Ulm", "Passau", "Linz", "Bratislava")
]


@contextmanager
def keyed() -> Iterator[dict[str, str]]:
    """Set the variable of the key; yields the headers of a request with it."""
    before = os.environ.get(KEY)
    os.environ[KEY] = "a key of the release"
    try:
        yield {"authorization": f"Bearer {os.environ[KEY]}"}
    finally:
        del os.environ[KEY]
        if before is not None:
            os.environ[KEY] = before


async def write(folder: Path) -> str:
    """Serve in a folder, and return the log as SQL; every kind of a decision and of feedback is in it.

    Of the checkpoints the last is kept: earlier versions are learned again from their examples.
    """
    with keyed() as headers:
        async with Service(folder, **CONFIGURATION).running() as service:
            service.client.headers.update(headers)
            await _live(service)
    with closing(sqlite3.connect(folder / "log.db")) as connection:
        connection.execute("DELETE FROM checkpoints WHERE version < (SELECT max(version) FROM checkpoints)")
        connection.commit()
    return dumped(folder / "log.db")


def dumped(file: Path) -> str:
    """Return a database of SQLite as statements that make it again."""
    with closing(sqlite3.connect(file)) as connection:
        return "\n".join(connection.iterdump()) + "\n"


def restored(script: str, file: Path) -> None:
    """Make a database of SQLite from statements."""
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(script)


async def _live(service: Service) -> None:
    send = _Sender(service)
    for day in range(3):
        for number, question in enumerate(QUESTIONS):
            found = await send("POST", "/v1/retrieve", query=question)
            value = 1.0 if number % 2 else -0.5
            name = found["agent"]["decision_id"]
            await send("POST", "/v1/feedback", decision_id=name, metric_name="thumb", value=value)
        await service.learn()
        await send("POST", "/v1/chat/completions", **_chat(f"day {day}"))
    await _conversation(send)
    await _tapped(send)
    await service.learn()
    await _operate(send, service)


async def _conversation(send: "_Sender") -> None:
    for _ in range(4):
        answered = await send("POST", "/v1/chat/completions", **_chat("and then?", episode_id="talk"))
    last = answered["agent"]["decision_id"]
    await send("POST", "/v1/feedback", decision_id=last, metric_name="right", value=True)
    await send("POST", "/v1/feedback", episode_id="talk", metric_name="thumb", value=0.5)
    await send("POST", "/v1/feedback", decision_id=last, metric_name="comment", value="clear")


async def _tapped(send: "_Sender") -> None:
    drawn = {"distribution": {"none": 0.2, "bm25": 0.3, "dense": 0.5}}
    items = [
        {"id": "elsewhere-1", "question": QUESTIONS[0], "arm": "bm25"},
        {"id": "elsewhere-2", "question": QUESTIONS[1], "arm": "dense", **drawn},
    ]
    await send("POST", "/v1/observations", items=items)


async def _operate(send: "_Sender", service: Service) -> None:
    await send("POST", "/v1/retrieve", query=QUESTIONS[0], model="arm/bm25")
    await send("PATCH", "/v1/arms/dense", enabled=False)
    await send("POST", "/v1/retrieve", query=QUESTIONS[1])
    await send("PATCH", "/v1/arms/dense", enabled=True)
    policy = await send("GET", "/v1/policy")
    version = policy["version"]
    await send("POST", f"/v1/policies/{version}/canary", share=0.2, reason="a try")
    await service.refresh()
    for question in QUESTIONS:
        await send("POST", "/v1/retrieve", query=question)
    made = await send("POST", "/v1/keys", name="an application", scopes=["decide"])
    await send("DELETE", f"/v1/keys/{made['public_id']}")
    await send("DELETE", "/v1/episodes/talk")
    await send("POST", "/v1/evaluations", candidates=["uniform"])


def _chat(text: str, **options: Any) -> dict[str, Any]:
    return {"model": "auto", "messages": [{"role": "user", "content": text}], "agent": options}


class _Sender:
    """Sends requests that have to succeed."""

    def __init__(self, service: Service) -> None:
        self._client = service.client

    async def __call__(self, method: str, path: str, **body: Any) -> Any:
        reply = await self._client.request(method, path, json=body or None)
        if not reply.is_success:
            raise RuntimeError(f"{method} {path}: {reply.status_code} {reply.text}")
        return reply.json() if reply.content else None

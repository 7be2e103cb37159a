"""Doors read requests as FastAPI does: large bodies one by one, beside the event loop."""

import asyncio
import threading
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI, Response
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field, StrictInt, StrictStr

from armwise.agent.api.doors import Door
from armwise.agent.api.middleware import answer_errors
from armwise.agent.api.schemas import IdempotencyKey, Timeout
from armwise.arms.large import SMALL

VALIDATED_IN: list[str] = []
"""The thread of each validation of a body."""

GO_ON = threading.Event()
"""Set while bodies with the query `wait` may be validated."""


def note_thread(query: str) -> str:
    VALIDATED_IN.append(threading.current_thread().name)
    if query == "wait":
        GO_ON.wait(10)
    return query


class Body(BaseModel):
    query: Annotated[StrictStr, AfterValidator(note_thread)]
    k: StrictInt | None = None
    more: dict[str, Any] = Field(default_factory=dict)


APP = FastAPI()
answer_errors(APP)


@APP.post("/framework")
async def by_framework(body: Body, key: IdempotencyKey = None, timeout_s: Timeout = None) -> Response:
    return Response(ascii([body.model_dump(), key, timeout_s]))


APP.router.add_api_route("/door", by_framework, methods=["POST"], route_class_override=Door)


async def answer(path: str, body: bytes, *headers: tuple[str, str]) -> tuple[int, str]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(APP), base_url="http://service") as client:
        reply = await client.post(path, content=body, headers=headers)
        return reply.status_code, reply.text


JSON = ("content-type", "application/json")

VALID = b'{"query": "which", "k": 2}'

BODIES = (
    *(VALID, b'{"query": "which"}', b"", b"null", b"[]", b"{", b'{"query": 1}', b'{"k": 2}'),
    *(b'{"query": "a"} b', b'{"query": "a", "k": "b"}', b'{"query": "a", "k": NaN}', b"NaN"),
    *(b'{"query": "\\ud800"}', b'{"query": "a", "query": "b"}', b"\xff\xfe", b"\xff"),
    *(b'{"query": "a", "k": 1e999}', '{"query": "é"}'.encode("utf-16")),
    b'{"query": "a", "more": ' + b'{"deep": ' * 200 + b"1" + b"}" * 201,
)

HEADERS = (
    *(("idempotency-key", "abcd"), ("idempotency-key", "no such"), ("x-request-id", "other")),
    *(("x-request-timeout-seconds", sent) for sent in ("2", "0", "soon", "", "1_0")),
)

TYPES = (
    *("application/json", "application/json; charset=utf-8", " Application/JSON ;charset=utf-8"),
    *("application/vnd.api+json", "text/plain", "text/json", ""),
)


@given(
    body=st.one_of(st.sampled_from(BODIES), st.binary(max_size=8)),
    header=st.sampled_from([None, *HEADERS]),
    content_type=st.sampled_from(TYPES),
)
async def test_a_request_is_read_as_fastapi_reads_it(
    body: bytes, header: tuple[str, str] | None, content_type: str
) -> None:
    headers = [("content-type", content_type), *([header] if header else [])]
    (status, text), expected = (
        await answer("/door", body, *headers),
        await answer("/framework", body, *headers),
    )
    assert status == expected[0]
    if header is None:  # of two faults, that of a header is named
        assert text == expected[1]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        *((body, [JSON]) for body in BODIES),
        *((VALID, [JSON, header]) for header in HEADERS),
        *((VALID, [("content-type", content_type)]) for content_type in TYPES),
        (VALID, []),
    ],
)
async def test_a_single_fault_is_named_as_fastapi_names_it(
    body: bytes, headers: list[tuple[str, str]]
) -> None:
    assert await answer("/door", body, *headers) == await answer("/framework", body, *headers)


async def test_large_bodies_are_validated_one_by_one_beside_the_event_loop() -> None:
    VALIDATED_IN.clear()
    GO_ON.clear()
    large = b'{"query": "wait"' + b" " * SMALL + b"}"
    answers = [asyncio.create_task(answer("/door", large, JSON)) for _ in range(3)]
    while not VALIDATED_IN:
        await asyncio.sleep(0)
    for _ in range(1000):  # the others are waiting by now
        await asyncio.sleep(0)
    assert (await answer("/door", VALID, JSON))[0] == 200
    one, small = VALIDATED_IN
    GO_ON.set()
    assert [status for status, _ in await asyncio.gather(*answers)] == [200] * 3
    assert small == threading.current_thread().name
    assert {*VALIDATED_IN} == {one, small}

"""Read the body of a request within bounds: its bytes, its time, its members, and what it unpacks to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Self, TypeVar
from weakref import WeakValueDictionary

from fastapi import HTTPException
from starlette.types import Message, Receive

from armwise.agent.api import encodings
from armwise.agent.api.errors import ApiError, translate
from armwise.agent.turn import OverloadedError, Places
from armwise.arms.large import call_beside
from armwise.arms.llm import LONGEST_NUMBER, MOST_MEMBERS, count_members, has_long_number

T = TypeVar("T")

BODY_S, BODY_RATE = 10.0, 64 * 1024
"""Seconds that a body may take, and bytes for which it gets one more; a slower one gets 408."""

SMALL_BODY = 64 * 1024
"""Bytes of a body that need no place while they arrive."""

UPLOADS, UPLOADS_OF_ONE = 32, 8
"""Larger bodies that may arrive at once, of all callers and of one."""

UPLOADS_WAITING, UPLOAD_S = 64, 5.0
"""Larger bodies that wait for a place, and for how many seconds; others get 503."""


class Uploads:
    """Places for bodies that are still arriving, in total and by the key or the address of their sender."""

    def __init__(self) -> None:
        self._all = Places("places for uploads", UPLOADS, UPLOADS_WAITING, UPLOAD_S)
        self._of_one = WeakValueDictionary[str | None, Places]()  # while one is held

    @asynccontextmanager
    async def hold(self, who: str | None) -> AsyncIterator[None]:
        """Hold a place of a caller. Raises OverloadedError."""
        if (own := self._of_one.get(who)) is None:
            own = Places("places for uploads of one caller", UPLOADS_OF_ONE, UPLOADS_WAITING, UPLOAD_S)
            self._of_one[who] = own
        async with own.hold(), self._all.hold():
            yield


class BodyReader:
    """Reads one body, and refuses it where it is too large or too slow, or has too many members.

    Args:
        receive: Receives the body.
        most: Bytes that it may have, packed and unpacked.
        hold: Holds a place for its upload, if it is large. Raises OverloadedError.
        coding: The content coding that the body was packed with; empty for none.
    """

    def __init__(
        self,
        receive: Receive,
        most: int,
        hold: Callable[[], AbstractAsyncContextManager[None]],
        coding: str = "",
    ) -> None:
        self._receive, self._most, self._hold = receive, most, hold
        self._unpacker = encodings.Unpacker(coding, most) if coding else None
        self._received, self._size, self._is_whole = 0, 0, False
        self._parts = list[bytes]()
        self._place, self._has_place = AsyncExitStack(), False
        self._clock = asyncio.get_running_loop().time
        self._begun = self._clock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._place.aclose()

    async def receive(self) -> Message:
        """Return the next part of the body. Raises HTTPException, from the ApiError of a refusal."""
        if self._is_whole:  # only the end of the connection can follow
            return await self._receive()
        try:
            return await self._read()
        except (ApiError, OverloadedError) as error:
            failure = translate(error)
            raise HTTPException(failure.status) from failure  # FastAPI lets no other exception pass here

    async def _read(self) -> Message:
        if max(self._received, self._size) > SMALL_BODY:
            await self._without_clock(self._take_place())
        message = await self._receive_in_time()
        part = message.get("body", b"")
        self._received += len(part)
        self._is_whole = not message.get("more_body", False)
        if self._received > self._most:
            raise encodings.too_large(self._most)
        if self._unpacker is not None:
            part = await self._without_clock(self._unpacker.add(part, self._take_place))
            message = {**message, "body": part}
            if self._is_whole:
                self._unpacker.end()
        self._parts.append(part)
        self._size += len(part)
        if self._is_whole:
            await self._place.aclose()
            await self._check_members()
            self._parts.clear()  # the application has them
        return message

    async def _take_place(self) -> None:
        if not self._has_place:
            await self._place.enter_async_context(self._hold())
            self._has_place = True

    async def _without_clock(self, work: Awaitable[T]) -> T:
        """Await work of the service, which takes no time of the client's."""
        asked = self._clock()
        done = await work
        self._begun += self._clock() - asked
        return done

    async def _receive_in_time(self) -> Message:
        try:
            async with asyncio.timeout_at(self._begun + BODY_S + self._received / BODY_RATE):
                return await self._receive()
        except TimeoutError:
            late = f"after {self._received:,} bytes, the body was slower than {BODY_RATE:,} bytes a second"
            raise ApiError("request_timeout", late) from None

    async def _check_members(self) -> None:
        if self._size <= 2 * MOST_MEMBERS:  # each takes two bytes or more
            return
        parts = self._parts
        refused = await call_beside(self._size, lambda: _refuse_content(b"".join(parts)))
        if refused is not None:
            raise refused


def _refuse_content(body: bytes) -> ApiError | None:
    """Return the error of a body that would take long to parse, if it would."""
    most = sum(map(body.count, (b",", b"[", b"{")))  # those in texts, too, which take long to leave out
    if most > MOST_MEMBERS and (count := count_members(body)) > MOST_MEMBERS:
        message = f"the body has {count:,} fields and items; at most {MOST_MEMBERS:,} are read"
        return ApiError("payload_too_large", message)
    if has_long_number(body):
        return ApiError("invalid_request", f"the body has a number of more than {LONGEST_NUMBER:,} digits")
    return None

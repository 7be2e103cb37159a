"""Export the training log, `/v1/export`: as lines, or in the layout of another system.

The log is read up to its length at the start, some hundred examples in memory at a time. Over HTTP a
replica runs one export at a time, beside its event loop.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import asdict
from typing import Annotated, Literal, Self
from weakref import WeakSet

import orjson
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator

from armwise.agent.api.documented import document_route
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppReplica
from armwise.agent.evaluation import Moment
from armwise.agent.wings import WRITE_DSJSON, load
from armwise.arms.base import Progress
from armwise.feedback.events import Example
from armwise.feedback.jsonl import ExchangeError, Header, export_lines
from armwise.feedback.log import Store
from armwise.feedback.logged_draws import UNSETTLED
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import read_examples, read_position, settled

Format = Literal["jsonl", "dsjson", "feedback"]

AT_ONCE = 200
"""Examples that are read together: few, as unpacking them holds the interpreter lock."""

BLOCK = 1 << 16
"""Least bytes of a block, other than the last."""

MEDIA_TYPE = "application/x-ndjson"


class ExportWindow(BaseModel):
    """Which decisions are exported."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    since: Moment | None = Field(default=None, description="Only decisions made at this time or later.")
    until: Moment | None = Field(default=None, description="Only decisions made before this time.")

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ValueError(f"since {self.since} must be before until {self.until}")
        return self

    def __contains__(self, at: float) -> bool:
        """Return whether a time, in seconds since the epoch, is in it."""
        since, until = self.since, self.until
        return (since is None or since.timestamp() <= at) and (until is None or at < until.timestamp())


class Export:
    """A training log, as long as it was when this object was made.

    Args:
        store: The log.
        rule: Defines which training log, and the reward of a decision.
        arms: The arms that are live.
        window: Which decisions are exported.

    Attributes:
        length: Examples that are read, in the window or not.
        count: Examples in the window that were read so far.
        left_out: How many of them another format cannot represent, by reason.
    """

    def __init__(self, store: Store, rule: RewardRule, arms: Iterable[str], window: ExportWindow) -> None:
        self._store, self._rule, self._window = store, rule, window
        with store.reading() as connection:
            self.length = read_position(connection, rule.join).examples_seq
            self._settled = settled.find_settled(connection, rule)
        self._header = Header(
            written_at=time.time(),
            arms=tuple(arms),
            reward=rule,
            settled=None if self._settled.is_whole else self._settled.before,
        )
        self.count = 0
        self.left_out: Counter[str] = Counter()

    def examples(self, on_progress: Progress | None = None) -> Iterator[Example]:
        """Yield the examples of the window in order."""
        self.count = 0
        for example in read_examples(self._store, self._rule.join, upto=self.length, chunk=AT_ONCE):
            if on_progress is not None and (example.seq % AT_ONCE == 0 or example.seq == self.length):
                on_progress("examples", example.seq, self.length)
            if example.decision.decided_at in self._window:
                self.count += 1
                yield example

    def feedback(self) -> Iterator[bytes]:
        """Yield every item of feedback that was received in the window, as it was sent, in order."""
        for item in self._store.feedback(AT_ONCE):
            if item.received_at in self._window:
                self.count += 1
                yield orjson.dumps(asdict(item), option=orjson.OPT_APPEND_NEWLINE)

    def lines(self, form: Format, on_progress: Progress | None = None) -> Iterator[bytes]:
        """Yield the lines of a file."""
        if form == "feedback":
            return self.feedback()
        if form == "jsonl":
            return export_lines(self.examples(on_progress), self._header)
        lines: Iterator[bytes] = load(WRITE_DSJSON)(
            self._final(on_progress), self._rule.compute_reward, self.left_out
        )
        return lines

    def _final(self, on_progress: Progress | None = None) -> Iterator[Example]:
        """Yield the settled examples of the window: dsjson does not say which ones are."""
        unsettled = 0
        for example in self.examples(on_progress):
            if example.decision.decided_at < self._settled.before:
                yield example
            else:
                unsettled += 1
        if unsettled:
            self.left_out[UNSETTLED] = unsettled


router = APIRouter(tags=["log"])


async def _under_way(request: Request) -> WeakSet[Iterator[bytes]]:
    """Return the exports that this application is sending; one that nothing reads any more is not in it."""
    state = request.app.state
    if not hasattr(state, "exports"):
        state.exports = WeakSet()
    exports: WeakSet[Iterator[bytes]] = state.exports
    return exports


@router.get(
    "/v1/export",
    response_class=Response,
    **document_route(
        "exportLog",
        None,
        scopes=("admin",),
        success={"content": {MEDIA_TYPE: {"schema": {"type": "string"}}}},
    ),
)
async def export(
    replica: AppReplica,
    under_way: Annotated[WeakSet[Iterator[bytes]], Depends(_under_way)],
    form: Annotated[Format, Query(alias="format", description="Layout of the reply.")] = "jsonl",
    since: Annotated[Moment | None, Query(description="Decisions of then or later.")] = None,
    until: Annotated[Moment | None, Query(description="Decisions before then.")] = None,
) -> Response:
    """Stream the training log, of decisions made at `since` or later and before `until`.

    `jsonl` is everything that was learned from, and ends with a line that says so; `dsjson` is what
    VW reads; `feedback` is every item of feedback with labels, comments, demonstrations and preferences,
    by the time when it was received.
    While another export is running the response is 503.
    """
    if since is not None and until is not None and since >= until:
        raise ApiError("invalid_value", f"since {since} must be before until {until}", "since")
    if under_way:
        raise ApiError("overloaded", "another export is running", retry_after_s=10)
    window = ExportWindow(since=since, until=until)
    blocks = _blocks(replica.store, replica.config.reward, list(replica.config.actions), window, form)
    under_way.add(blocks)
    try:
        first = await asyncio.to_thread(next, blocks, b"")
    except BaseException as error:
        under_way.discard(blocks)
        if isinstance(error, ExchangeError):
            raise ApiError("invalid_value", str(error), "since") from None
        raise
    headers = {"content-disposition": f'attachment; filename="armwise.{form}"'}
    stream = _stream(first, blocks, under_way)
    return StreamingResponse(stream, media_type=MEDIA_TYPE, headers=headers)


async def _stream(
    first: bytes, blocks: Iterator[bytes], under_way: WeakSet[Iterator[bytes]]
) -> AsyncIterator[bytes]:
    """Yield blocks, each made in a thread."""
    block: bytes | None = first
    try:
        while block is not None:
            yield block
            block = await asyncio.to_thread(next, blocks, None)
    finally:
        under_way.discard(blocks)


def _blocks(
    store: Store, rule: RewardRule, arms: list[str], window: ExportWindow, form: Format
) -> Iterator[bytes]:
    """Yield an export in blocks large enough for a thread each. Raises ExchangeError."""
    whole = Export(store, rule, arms, window)
    block = bytearray()
    for line in whole.lines(form):
        block += line
        if len(block) >= BLOCK:
            yield bytes(block)
            block.clear()
    yield bytes(block)

"""Give the training log away: as lines, or as the folder of another system.

The log is read up to where it was at the beginning, some hundred examples in memory at a time. Over
HTTP one such reading at a time goes on in a replica, beside its event loop.
"""

import asyncio
import math
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Self
from weakref import WeakSet

from fastapi import Query
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator

from agent.api.errors import ApiError
from agent.evaluation import request
from agent.serving import Replica
from arms.base import Progress
from feedback.events import Example
from feedback.exchange import ExchangeError, Header, export_lines, write_dsjson, write_obp
from feedback.log import Store
from feedback.reward import RewardRule
from feedback.training_log import lag, position_of, read_examples

Format = Literal["jsonl", "dsjson", "obp"]

AT_ONCE = 200
"""Examples that are read together: few, as nothing else is done in the process while they are unpacked."""

BLOCK = 1 << 16
"""Bytes that are sent together, at least."""

MEDIA_TYPES = {"jsonl": "application/x-ndjson", "dsjson": "application/x-ndjson", "obp": "application/zip"}


class Window(BaseModel):
    """Which decisions are given away."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    since: request.Moment | None = Field(default=None, description="Only decisions of then or later.")
    until: request.Moment | None = Field(default=None, description="Only decisions before then.")

    @model_validator(mode="after")
    def _holds_something(self) -> Self:
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ValueError(f"since {self.since} must be before until {self.until}")
        return self

    def __contains__(self, at: float) -> bool:
        """Return whether a time, in seconds since the epoch, is in it."""
        since, until = self.since, self.until
        return (since is None or since.timestamp() <= at) and (until is None or at < until.timestamp())


class Export:
    """A training log as it was when this was made.

    Args:
        store: The log.
        rule: Says which training log, and what a decision is worth.
        arms: The arms that are live.
        window: Which decisions are given away.

    Attributes:
        length: Examples that are read, in the window or not.
        count: Examples in the window, up to where it was last read.
        left_out: How many of them another format has no place for, by reason.
    """

    def __init__(self, store: Store, rule: RewardRule, arms: Iterable[str], window: Window) -> None:
        self._store, self._rule, self._window = store, rule, window
        with store.reading() as connection:
            self.length = position_of(connection, rule.join).examples_seq
        settled = lag.first_waiting(store, rule, self.length)
        self._header = Header(
            written_at=time.time(),
            arms=tuple(arms),
            reward=rule,
            settled=settled if math.isfinite(settled) else None,
        )
        self.count = 0
        self.left_out: Counter[str] = Counter()

    def examples(self, tell: Progress | None = None) -> Iterator[Example]:
        """Yield the examples of the window in order."""
        self.count = 0
        for example in read_examples(self._store, self._rule.join, upto=self.length, chunk=AT_ONCE):
            if tell is not None and (example.seq % AT_ONCE == 0 or example.seq == self.length):
                tell("examples", example.seq, self.length)
            if example.decision.decided_at in self._window:
                self.count += 1
                yield example

    def lines(self, form: Literal["jsonl", "dsjson"], tell: Progress | None = None) -> Iterator[bytes]:
        """Yield the lines of a file."""
        if form == "jsonl":
            return export_lines(self.examples(tell), self._header)
        return write_dsjson(self.examples(tell), self._rule.reward_of, self.left_out)

    def fill(self, folder: Path, tell: Progress | None = None) -> int:
        """Write obp's layout into a folder; return how many named features became no column.

        Raises:
            ExchangeError: Nothing is left to write.
        """
        return write_obp(folder, partial(self.examples, tell), self._rule.reward_of, self.left_out).lost

    def zipped(self) -> Iterator[bytes]:
        """Yield obp's layout as the bytes of a .zip. Raises ExchangeError."""
        with tempfile.TemporaryDirectory() as here:
            self.fill(whole := Path(here, "obp"))
            with Path(shutil.make_archive(str(whole), "zip", whole)).open("rb") as packed:
                while block := packed.read(BLOCK):
                    yield block


class ExportRoutes:
    """The route that gives the training log away. Its docstring is what the OpenAPI document says."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._under_way: WeakSet[Iterator[bytes]] = WeakSet()  # one that nobody reads any more is gone

    async def export(
        self,
        form: Annotated[Format, Query(alias="format")] = "jsonl",
        since: Annotated[request.Moment | None, Query()] = None,
        until: Annotated[request.Moment | None, Query()] = None,
    ) -> Response:
        """The training log, as it is now: of decisions made from `since` on and before `until`.

        `jsonl` is everything that was learned from, and ends with a line that says so; `dsjson` is what
        VW reads; `obp` is a .zip of what the Open Bandit Pipeline reads. While another one is under way
        the answer is 503.
        """
        if since is not None and until is not None and since >= until:
            raise ApiError(400, "invalid_value", f"since {since} must be before until {until}", "since")
        if self._under_way:
            raise ApiError(503, "overloaded", "another export is under way here", retry_after_s=10)
        replica, window = self._replica, Window(since=since, until=until)
        blocks = _blocks(replica.store, replica.config.reward, list(replica.config.actions), window, form)
        self._under_way.add(blocks)
        try:
            first = await asyncio.to_thread(next, blocks, b"")
        except BaseException as error:
            self._under_way.discard(blocks)
            if isinstance(error, ExchangeError):
                raise ApiError(400, "invalid_value", str(error), "since") from None
            raise
        name = f"armwise.{'zip' if form == 'obp' else form}"
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return StreamingResponse(self._stream(first, blocks), media_type=MEDIA_TYPES[form], headers=headers)

    async def _stream(self, first: bytes, blocks: Iterator[bytes]) -> AsyncIterator[bytes]:
        """Yield blocks that are made in threads, one after another."""
        block: bytes | None = first
        try:
            while block is not None:
                yield block
                block = await asyncio.to_thread(next, blocks, None)
        finally:
            self._under_way.discard(blocks)


def _blocks(store: Store, rule: RewardRule, arms: list[str], window: Window, form: Format) -> Iterator[bytes]:
    """Yield an export in pieces that are worth a thread's while. Raises ExchangeError."""
    export = Export(store, rule, arms, window)
    block = bytearray()
    for line in export.zipped() if form == "obp" else export.lines(form):
        block += line
        if len(block) >= BLOCK:
            yield bytes(block)
            block.clear()
    yield bytes(block)

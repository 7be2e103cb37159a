"""Group commit: requests that arrive during a commit share the next one.

No request waits for a timer. The first one is committed at once; those that arrive meanwhile form the next
batch. A separate thread writes, so a client that disconnects loses nothing.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from armwise.feedback.errors import LOG_UNUSABLE, LogUnavailableError, StoreError
from armwise.feedback.log.append import Receipt
from armwise.feedback.log.facts import Fact
from armwise.feedback.log.store import Store

MAX_BATCH = 512
"""Facts in one transaction; with more, the first waits too long for the last."""

SLOW_S = 5.0
"""Duration of a commit after which the log counts as unavailable: a disk that hangs raises no error."""

PROBE_S = 1.0
"""Pause between two probes of a log that is unavailable."""

QUIET_S = 10.0
"""Seconds since the last write after which it is not known any more whether the log can be written."""


@dataclass(slots=True)
class _Item:
    facts: Sequence[Fact]
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[list[Receipt]]"


class GroupCommit:
    """Append facts from an event loop; each append resolves once it is durable.

    Args:
        store: The log.
        max_waiting: Appends that may queue; further ones are refused.
        clock: Monotonic seconds.
    """

    def __init__(
        self, store: Store, max_waiting: int = 4096, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._max_waiting = max_waiting
        self._clock = clock
        self._began: float | None = None  # when the current commit began
        self._failure = ""  # why the last write failed
        self._wrote_at = -math.inf  # when a write has last succeeded
        self._probe_at = 0.0
        self._probing = threading.Lock()
        self._waiting: deque[_Item] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)
        self._thread.start()

    def append(self, *facts: Fact) -> "asyncio.Future[list[Receipt]]":
        """Queue facts to be committed together; the future holds their receipts.

        The future fails with ConflictError or LogUnavailableError; an append that is at fault does not fail
        those that share its commit.

        Raises:
            LogUnavailableError: Too many appends are queued, or the log is closed.
        """
        loop = asyncio.get_running_loop()
        item = _Item(facts, loop, loop.create_future())
        with self._wake:
            if self._closed:
                raise LogUnavailableError("the log is closed")
            if len(self._waiting) >= self._max_waiting:
                raise LogUnavailableError(f"{self._max_waiting} appends are already queued for the log")
            self._waiting.append(item)
            self._wake.notify()
        return item.future

    @property
    def trouble(self) -> str:
        """Why facts cannot be committed, by the last write; empty if they can."""
        began = self._began
        if began is not None and (took_s := self._clock() - began) > SLOW_S:
            return f"the log does not respond: a commit is under way for {took_s:.0f} s"
        return self._failure

    def suspect(self, why: str) -> None:
        """Count the log as unavailable until a write, or a probe by `check`, succeeds."""
        self._failure = self._failure or why

    def check(self) -> None:
        """Check that facts can be committed; probe the log after a failed write, or a pause. May block.

        Raises:
            LogUnavailableError: They cannot.
        """
        is_quiet = self._began is None and self._clock() > self._wrote_at + QUIET_S
        doubtful = (self._failure or is_quiet) and self._clock() >= self._probe_at
        if doubtful and self._probing.acquire(blocking=False):
            try:
                self._store.probe()
                self._failure, self._wrote_at = "", self._clock()
            except StoreError as error:
                self._failure = str(error)
            finally:
                self._probe_at = self._clock() + PROBE_S
                self._probing.release()
        if trouble := self.trouble:
            raise LogUnavailableError(trouble)

    def close(self) -> None:
        """Commit what is queued, then stop."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next_batch():
            self._commit(batch)

    def _next_batch(self) -> list[_Item]:
        with self._wake:
            self._wake.wait_for(lambda: self._waiting or self._closed)
            batch: list[_Item] = []
            size = 0
            while self._waiting and (not batch or size + len(self._waiting[0].facts) <= MAX_BATCH):
                batch.append(self._waiting.popleft())
                size += len(batch[-1].facts)
            return batch

    def _commit(self, batch: list[_Item]) -> None:
        self._began = self._clock()
        try:
            receipts = iter(self._store.append([fact for item in batch for fact in item.facts]))
        except LOG_UNUSABLE as error:
            self._failure = str(error)  # not the fault of a fact: each would fail by itself, too
            away = error if isinstance(error, LogUnavailableError) else LogUnavailableError(str(error))
            _settle([(item, away) for item in batch])
        except Exception as error:  # noqa: BLE001 - a faulty fact must fail its own request only
            if len(batch) > 1:  # bisect, so that most still share a commit
                middle = len(batch) // 2
                self._commit(batch[:middle])
                self._commit(batch[middle:])
            else:
                named = (
                    error if isinstance(error, StoreError) else StoreError(f"{type(error).__name__}: {error}")
                )
                _settle([(batch[0], named)])
        else:
            self._failure, self._wrote_at = "", self._clock()
            _settle([(item, list(islice(receipts, len(item.facts)))) for item in batch])
        finally:
            self._began = None


Outcome = list[Receipt] | StoreError


def _settle(outcomes: Sequence[tuple[_Item, Outcome]]) -> None:
    """Resolve the futures, waking each event loop once."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[_Item, Outcome]]] = {}
    for item, outcome in outcomes:
        loops.setdefault(item.loop, []).append((item, outcome))
    for loop, of_loop in loops.items():
        with suppress(RuntimeError):  # the loop is closed: nothing awaits the future
            loop.call_soon_threadsafe(_resolve, of_loop)


def _resolve(outcomes: Sequence[tuple[_Item, Outcome]]) -> None:
    for item, outcome in outcomes:
        if item.future.done():  # the request was cancelled; its facts are durable
            continue
        if isinstance(outcome, StoreError):
            item.future.set_exception(outcome)
        else:
            item.future.set_result(outcome)

"""The summary of the log that the learner writes, and that the pages show.

Summarizer.step --write_summary--> one document in the log --read_summary--> pages, /metrics
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import inf, isnan

from pydantic import TypeAdapter, ValidationError

from armwise.agent.config import AppConfig
from armwise.agent.console.savings import read_statements
from armwise.agent.proof import Statements
from armwise.feedback.errors import LogUnavailableError
from armwise.feedback.events import NOT_SERVED
from armwise.feedback.log import Store, listing
from armwise.feedback.log_columns import read_decisions
from armwise.feedback.training_log import settled, summary
from armwise.feedback.training_log.summary import LogSums, NewestTurns

logger = logging.getLogger(__name__)

NEWEST = 2000
"""Turns that the figures of arms and latencies cover."""

REWARDED_S, REWARDED = 3600.0, 60_000
"""Seconds, and positions of the log, before its settled end whose mean rewards `/metrics` shows."""

SOON_S, MINUTE_S = 1.0, 60.0
"""Seconds from one summary to the next: after new feedback or on a short log, and otherwise."""

SHORT_S = 0.1
"""Seconds that the summary of a short log takes."""

RESTED = 30
"""Pause between two summaries, as a multiple of the time that the first took."""


@dataclass(frozen=True, slots=True)
class ServiceSummary:
    """What the pages show of a log.

    Attributes:
        at: When it was read, seconds since the epoch.
        sums: Decisions, their outcomes and costs by arm, from the first one on.
        newest: The same of the newest turns, with latencies.
        statements: What can be said of savings and quality.
        audited_to: Position of the log up to which it was audited for that.
        n_open: Explored decisions that may still get feedback.
        any_rating: Whether any feedback was ever received.
        rewards: Number and sum of the newest settled rewards by arm.
    """

    at: float = 0.0
    sums: LogSums = field(default_factory=LogSums)
    newest: NewestTurns = field(default_factory=NewestTurns)
    statements: Statements = field(default_factory=Statements)
    audited_to: int = 0
    n_open: int = 0
    any_rating: bool = False
    rewards: Mapping[str, tuple[int, float]] = field(default_factory=dict)

    @property
    def total(self) -> Mapping[str, float]:
        """The sums over all arms; a name without a value is 0."""
        return summary.total(self.sums.arms.values())


@cache
def _adapter() -> TypeAdapter[ServiceSummary]:
    return TypeAdapter(ServiceSummary)


def read_summary(store: Store) -> ServiceSummary | None:
    """Return the newest summary; None: the learner has written none yet. Raises LogUnavailableError."""
    document = summary.read_document(store)
    try:
        return None if document is None else _adapter().validate_python(document)
    except ValidationError:
        return None  # that of another version; the learner of this one replaces it


def write_summary(store: Store, config: AppConfig, now: float) -> None:
    """Summarise the log, and replace the last summary. Raises LogUnavailableError."""
    before = read_summary(store) or ServiceSummary()
    state = settled.read(store, config.reward, counted=True)
    found = ServiceSummary(
        now,
        summary.add_up(store, before.sums),
        summary.read_newest(store, NEWEST),
        *read_statements(store, config, before.statements.doubt, before.audited_to),
        state.n_open,
        listing.has_rating(store),
        _read_rewards(store, config, min(now, state.before)),
    )
    summary.write_document(store, _adapter().dump_python(found, mode="json"))


def _read_rewards(store: Store, config: AppConfig, until: float) -> dict[str, tuple[int, float]]:
    since = max(until - REWARDED_S, listing.find_time(store, store.log_seq() - REWARDED) or 0.0)
    found = dict[str, tuple[int, float]]()
    for part in read_decisions(store, config.reward, since, until, without=NOT_SERVED):
        for code, reward in zip(part.draw.codes.tolist(), part.reward.tolist(), strict=True):
            if not isnan(reward):
                n, total = found.get(arm := part.draw.values[code].drawn, (0, 0.0))
                found[arm] = n + 1, total + reward
    return found


class Summarizer:
    """Keeps the summary of a log up to date, while a learner follows that.

    Args:
        store: The log.
        config: The configuration.
        clock: Seconds since the epoch.
        timer: Seconds since any time.
    """

    def __init__(
        self,
        store: Store,
        config: AppConfig,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._config, self._clock, self._timer = store, config, clock, timer
        self._ends: tuple[int, ...] = ()
        self._waits, self._due_at = False, 0.0
        self._took_s, self._ended_at = 0.0, -inf

    def is_due(self) -> bool:
        """Return whether a summary that had to wait is due now."""
        return self._waits and self._timer() >= self._due_at

    def step(self) -> None:
        """Write the summary, unless the log is the same or the last one is too new.

        Raises:
            LogUnavailableError: Try again later.
        """
        began, ends = self._timer(), summary.read_ends(self._store, self._config.reward.join)
        soon = not self._ends or ends[0] > self._ends[0] or self._took_s < SHORT_S
        self._due_at = self._ended_at + max(RESTED * self._took_s, SOON_S if soon else MINUTE_S)
        self._waits = ends != self._ends and began < self._due_at
        if self._waits or ends == self._ends:
            return
        try:
            write_summary(self._store, self._config, self._clock())
        except LogUnavailableError:
            raise
        except Exception:  # what pages show must not keep the learner from learning
            logger.exception("the summary of the log for the console was not written")
        self._ends, self._ended_at = ends, self._timer()
        self._took_s = self._ended_at - began

"""An audit of a log: its decisions as arrays, the checks of `feedback.ope.audit`, and the report of them.

    turns of the log, or examples of a file --> Columns --> Draws --> audit --> AuditReport

Features are chosen by the first rows, and stay: a bet must not know the rows that it bets on.
"""

import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from importlib import metadata
from itertools import islice
from math import inf, isnan, nan
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table
from rich.text import Text

from armwise.agent.config import AppConfig
from armwise.agent.reporting import counted, filled, moment
from armwise.arms.base import Progress
from armwise.arms.tokenizer import words
from armwise.feedback.arrays import Flags, Floats, Integers
from armwise.feedback.dataset import Log
from armwise.feedback.events import FOREIGN, LABELS, Example
from armwise.feedback.jsonl import read_export, read_headers
from armwise.feedback.log import Store, without_password
from armwise.feedback.ope import Audit, Check, CheckStatus, Draws, audit
from armwise.feedback.reward import RewardRule
from armwise.feedback.sources import ExportSource, LogSource
from armwise.feedback.texts import value_of
from armwise.feedback.training_log import drawn_turns

SEEN_FIRST = 1000
"""Decisions by which features are chosen and cut into parts."""

MOST_FEATURES = 24
"""Named features that are tested at most: those that divide the first decisions best."""

WORD_BUCKETS = 16
"""Features that the words of questions are hashed into."""

DIMENSIONS = 8
"""Leading dimensions of the embedding that are tested."""

FEWEST = 0.02
"""Share of the first decisions that a part of a feature has at least."""

ENOUGH = 200
"""Settled decisions of an export that are enough to audit them alone."""

REPORT_EVERY = 5000
"""Decisions between two reports of progress."""

UNSETTLED = "made after the first decision that waits for feedback"

OUTSIDE = "outside the window"


class NothingToAuditError(ValueError):
    """No decision of the log was drawn; the message names what it has."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The audit of a log.

    Attributes:
        source: The file, or the database without its password.
        made_at: When it was made, seconds since the epoch.
        first_at: When the first audited decision was made.
        last_at: When the last one was.
        found: The checks.
        excluded: Decisions that are not audited, by reason.
        notes: Remarks, a sentence each.
        command: The command that makes it again.
    """

    source: str
    made_at: float
    first_at: float
    last_at: float
    found: Audit
    excluded: Mapping[str, int]
    notes: tuple[str, ...]
    command: str = ""

    @property
    def summary(self) -> str:
        """What the audit says, in a sentence or two."""
        return summary_of(self.found)

    def table(self) -> Table:
        """Return the checks as a table for a terminal."""
        table = Table(
            title=Text(f"{self.source}: {self.found.rows:,} decisions"),
            title_justify="left",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            padding=0,
        )
        for name in ("check", "verdict", "expected", "found"):
            table.add_column(name, overflow="fold")
        table.add_column("p", justify="right", no_wrap=True)
        for check in self.found.checks:
            cells = (check.name, check.status, check.expected, check.found, p_in_words(check.p_value))
            table.add_row(*(Text(cell, style=_STYLES[check.status]) for cell in cells))
        return table

    def footnotes(self) -> list[str]:
        """Return the advice of each check that does not pass, what is left out, and the notes."""
        return [
            *(f"{check.status}, {check.name}: {check.advice}" for check in self.raised),
            f"Left out: {counted(self.excluded) or 'none'}.",
            *self.notes,
        ]

    @property
    def raised(self) -> list[Check]:
        """The checks that fail, and then those that warn."""
        return [
            check
            for status in (CheckStatus.FAIL, CheckStatus.WARN)
            for check in self.found.checks
            if check.status is status
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            "source": self.source,
            "armwise": metadata.version("armwise"),
            "made_at": self.made_at,
            "status": str(self.found.status),
            "summary": self.summary,
            "decisions": self.found.rows,
            "tested": self.found.tested,
            "first_at": self.first_at,
            "last_at": self.last_at,
            "excluded": dict(self.excluded),
            "checks": [
                {name: getattr(check, name) for name in check.__slots__} | {"status": str(check.status)}
                for check in self.found.checks
            ],
            "arms": [{name: getattr(arm, name) for name in arm.__slots__} for arm in self.found.arms],
            "notes": list(self.notes),
        }

    def html(self) -> str:
        """Return the report as a page without a resource of another file."""
        return filled(
            "audit.html",
            {},
            report=self,
            window=f"{moment(self.first_at)} to {moment(self.last_at)}",
            found=self.found,
            raised=self.raised,
            p_in_words=p_in_words,
            excluded=counted(self.excluded),
            armwise=metadata.version("armwise"),
        )


_STYLES = {
    CheckStatus.PASS: "",
    CheckStatus.SKIPPED: "dim",
    CheckStatus.WARN: "yellow",
    CheckStatus.FAIL: "red",
}


def p_in_words(p: float | None) -> str:
    """Return a p-value as text; empty where there is none.

    >>> p_in_words(None), p_in_words(0.2), p_in_words(3e-40)
    ('', '0.2', '< 1e-12')
    """
    if p is None:
        return ""
    return "< 1e-12" if p < 1e-12 else f"{p:.2g}"


def summary_of(found: Audit) -> str:
    """Return what an audit says, in a sentence or two."""
    warned = [check.name for check in found.checks if check.status is CheckStatus.WARN]
    warnings = f" Warnings: {', '.join(warned)}." if warned else ""
    if found.faults:
        names = ", ".join(check.name for check in found.faults)
        return f"The log fails: {names}. Estimates from it would be wrong.{warnings}"
    return (
        f"No fault was found in {found.tested:,} draws: estimates may rest on these propensities.{warnings}"
    )


# -- reading -----------------------------------------------------------------------------------------


def audit_store(
    store: Store,
    config: AppConfig,
    on_progress: Progress,
    since: datetime | None = None,
    until: datetime | None = None,
) -> AuditReport:
    """Audit the log of a service.

    Args:
        store: The log.
        config: The configuration of its decision point.
        on_progress: Called with the progress.
        since: Only decisions of then or later.
        until: Only decisions before then.

    Raises:
        NothingToAuditError: No decision was drawn in that time.
        LogUnavailableError: Try again later.
    """
    source = LogSource(store, config.reward)
    waiting = source.waiting(None, MOST_WAITING)
    ids = {decision.id for decision in waiting.decisions}
    turns = drawn_turns.read(store, config.reward, _seconds(since), _seconds(until))
    columns = AuditColumns(
        turns,
        lambda turn: turn.decision.id in ids or turn.decision.decided_at >= waiting.settled,
        on_progress,
    )
    return _report(without_password(config.database_url), columns, ())


MOST_WAITING = 100_000
"""Decisions that wait for feedback and are looked up at most; later ones count as waiting."""


def audit_file(
    path: Path, on_progress: Progress, since: datetime | None = None, until: datetime | None = None
) -> AuditReport:
    """Audit an export, or the converted log of another system.

    Args:
        path: The file.
        on_progress: Called with the progress.
        since: Only decisions of then or later.
        until: Only decisions before then.

    Raises:
        NothingToAuditError: The file has no decision that was drawn.
        ExchangeError: It cannot be read.
    """
    rule = next(iter(read_headers(path))).reward
    settled = ExportSource(path).waiting(None, 0).settled
    begin, end = _seconds(since) or -inf, inf if until is None else until.timestamp()
    excluded: Counter[str] = Counter()

    def turns() -> Iterator[drawn_turns.DrawnTurn]:
        for example in read_export(path):
            if begin <= example.decision.decided_at < end:
                yield turn_of(example, rule)
            else:
                excluded[OUTSIDE] += 1

    columns = AuditColumns(turns(), lambda _: False, on_progress)
    columns.excluded.update(excluded)
    notes = (EXPORTED,) if columns.ours else ()
    return _report(str(path), columns, notes, settled)


EXPORTED = (
    "An export has the decisions that are learned from: without a default reward those with feedback, and "
    "failed ones only where failures have a reward. Where that depends on the arm, weights differ from 1; "
    "the log itself is audited without --from, on all its decisions."
)


def turn_of(example: Example, rule: RewardRule) -> drawn_turns.DrawnTurn:
    """Return an example as a turn."""
    decision = example.decision
    return drawn_turns.DrawnTurn(decision, rule.reward_of(example), example.failed, nan, decision.user_digest)


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def _report(
    source: str, columns: "AuditColumns", notes: tuple[str, ...], settled: float = inf
) -> AuditReport:
    """Return the audit of columns. Raises NothingToAuditError."""
    if not columns.n:
        left_out = counted(columns.excluded)
        raise NothingToAuditError(
            f"{source}: no decision was drawn; left out: {left_out or 'none, it is empty'}"
        )
    draws = columns.draws()
    assert draws.at is not None
    unsettled = draws.at >= settled
    if unsettled.any() and (~unsettled).sum() >= ENOUGH:
        columns.excluded[UNSETTLED] += int(unsettled.sum())
        draws = draws.where(~unsettled)
    elif unsettled.any():
        draws = replace(draws, waiting=unsettled)
    assert draws.at is not None
    return AuditReport(
        source,
        time.time(),
        float(draws.at.min()),
        float(draws.at.max()),
        audit(draws),
        dict(columns.excluded.most_common()),
        notes,
    )


# -- columns -----------------------------------------------------------------------------------------


class AuditColumns:
    """Turns that were drawn, as columns; the others are counted.

    Args:
        turns: The turns.
        waits: Whether the reward of a turn may still come.
        on_progress: Called with the progress.

    Attributes:
        n: Number of decisions that were drawn.
        excluded: The others, by reason.
        ours: Whether any was drawn by a policy of a service.
    """

    def __init__(
        self,
        turns: Iterable[drawn_turns.DrawnTurn],
        waits: Callable[[drawn_turns.DrawnTurn], bool],
        on_progress: Progress,
    ) -> None:
        self.n, self.excluded, self.ours = 0, Counter[str](), False
        self._column: dict[str, int] = {}
        self._pools: dict[tuple[str, ...], int] = {}
        self._codes: dict[str, dict[str, int]] = {"episode": {}, "user": {}}
        self._whole = True
        self._p, self._width = array("d"), array("q")
        names = ("pool", "drawn", "id", "episode", "user", "failed", "waiting")
        self._integers = {name: array("q") for name in names}
        numbers = ("propensity", "at", "floor", "reward", "rewarded_at", "deadline")
        self._floats = {name: array("d") for name in numbers}
        drawn = self._drawn(turns)
        first = list(islice(drawn, SEEN_FIRST))
        self._features = _Features(first)
        for rest in (first, drawn):
            for turn in rest:
                self._add(turn, waiting=waits(turn))
                if self.n % REPORT_EVERY == 0:
                    on_progress("decisions", self.n, None)
        on_progress("decisions", self.n, self.n)

    def _drawn(self, turns: Iterable[drawn_turns.DrawnTurn]) -> Iterator[drawn_turns.DrawnTurn]:
        for turn in turns:
            if drawn_turns.explored(turn):
                yield turn
            else:
                label = turn.decision.policy == LABELS
                self.excluded[LABELS if label else str(turn.decision.mode)] += 1

    def _add(self, turn: drawn_turns.DrawnTurn, *, waiting: bool) -> None:
        d = turn.decision
        for arm in d.arms:
            self._column.setdefault(arm, len(self._column))
        alone = len(d.probabilities) < len(d.arms)
        self._whole = self._whole and not (alone and d.probabilities)
        self._p.extend(d.probabilities if not alone else ())
        self._width.append(0 if alone else len(d.arms))
        self.ours = self.ours or d.policy not in FOREIGN
        floor = d.floor if d.floor and not d.share else nan
        deadline = d.deadline if d.deadline > d.decided_at else nan
        reward = nan if turn.reward is None else turn.reward
        integers = (
            self._pools.setdefault(d.arms, len(self._pools)),
            self._column[d.drawn],
            hash(d.id),
            self._code("episode", d.episode_id),
            self._code("user", turn.user),
            int(turn.failed),
            int(waiting and isnan(reward)),
        )
        for column, integer in zip(self._integers.values(), integers, strict=True):
            column.append(integer)
        floats = (d.propensity, d.decided_at, floor, reward, turn.rewarded_at, deadline)
        for numbers, number in zip(self._floats.values(), floats, strict=True):
            numbers.append(number)
        self._features.add(turn)
        self.n += 1

    def _code(self, kind: str, name: str | None) -> int:
        codes = self._codes[kind]
        return -1 if name is None else codes.setdefault(name, len(codes))

    def draws(self) -> Draws:
        """Return the decisions in the order in which they were made."""
        integers = {name: np.array(column) for name, column in self._integers.items()}
        floats = {name: np.array(column) for name, column in self._floats.items()}
        pool, n_arms = integers.pop("pool"), len(self._column)
        eligible_of = np.zeros((len(self._pools), n_arms), dtype=np.bool_)
        columns_of = [[self._column[arm] for arm in arms] for arms in self._pools]
        for row, columns in enumerate(columns_of):
            eligible_of[row, columns] = True
        p = self._distributions(pool, columns_of) if self._whole else None
        codes, values = self._features.columns()
        groups = {kind: integers[kind] for kind in ("episode", "user") if (integers[kind] >= 0).any()}
        waiting: Flags = integers["waiting"].astype(np.bool_)
        rewarded, deadline = floats["rewarded_at"], floats["deadline"]
        draws = Draws(
            tuple(self._column),
            integers["drawn"],
            floats["propensity"],
            p,
            eligible_of[pool],
            codes,
            values,
            floats["reward"],
            integers["failed"].astype(np.bool_),
            integers["id"],
            groups,
            floats["at"],
            floats["floor"],
            None if np.isnan(rewarded).all() else rewarded,
            None if np.isnan(deadline).all() else deadline,
            waiting if waiting.any() else None,
        )
        return draws.where(np.argsort(floats["at"], kind="stable"))

    def _distributions(self, pool: Integers, columns_of: list[list[int]]) -> Floats:
        """Return the distributions, shape (n, n_arms); rows of NaN where none is known."""
        p = np.zeros((self.n, len(self._column)))
        flat, width = np.array(self._p), np.array(self._width)
        start = np.cumsum(width) - width
        for code, columns in enumerate(columns_of):
            rows = np.flatnonzero((pool == code) & (width > 0))
            p[rows[:, np.newaxis], columns] = flat[start[rows, np.newaxis] + np.arange(len(columns))]
        p[width == 0] = nan
        return p


class _Features:
    """Features of the questions that a test can bet on, chosen by some of them.

    Args:
        first: The decisions by which they are chosen.
    """

    def __init__(self, first: list[drawn_turns.DrawnTurn]) -> None:
        counts = Counter(name for turn in first for name in turn.decision.context.features)
        cut: list[tuple[float, str, Floats]] = []
        for name in counts:
            values = np.array([value_of(turn.decision.context.features, name, 0.0) for turn in first])
            edges = _edges(values)
            if len(edges):
                cut.append((_balance(np.searchsorted(edges, values, side="left")), name, edges))
        cut.sort(key=lambda feature: (-feature[0], feature[1]))
        self._named = [(name, edges.tolist()) for _, name, edges in cut[:MOST_FEATURES]]
        dims = min((len(turn.decision.context.embedding) for turn in first), default=0)
        embeddings = (
            np.array([turn.decision.context.embedding[:DIMENSIONS] for turn in first]) if dims else None
        )
        self._middle = [] if embeddings is None else np.median(embeddings, axis=0).tolist()
        self._codes = bytearray()
        self._values = array("d")
        self._width = len(self._named) + WORD_BUCKETS + len(self._middle)

    def add(self, turn: drawn_turns.DrawnTurn) -> None:
        """Append the features of a turn."""
        context = turn.decision.context
        for name, edges in self._named:
            value = value_of(context.features, name, 0.0)
            self._values.append(value)
            self._codes.append(sum(value > edge for edge in edges))
        buckets = {crc32(word.encode()) % WORD_BUCKETS for word in words(context.question)}
        self._codes.extend(bucket in buckets for bucket in range(WORD_BUCKETS))
        vector = context.embedding
        self._codes.extend(at < len(vector) and vector[at] > middle for at, middle in enumerate(self._middle))

    def columns(self) -> tuple[dict[str, Integers], dict[str, Floats]]:
        """Return the codes and the numbers by name, those that are the same in all rows left out."""
        codes = np.frombuffer(bytes(self._codes), dtype=np.uint8).reshape(-1, self._width)
        values = np.array(self._values).reshape(len(codes), len(self._named))
        names = [name for name, _ in self._named]
        labels = [
            *(f"feature {name}" for name in names),
            *(f"words of bucket {bucket}" for bucket in range(WORD_BUCKETS)),
            *(f"dimension {at} of the embedding" for at in range(len(self._middle))),
        ]
        kept = [at for at in range(self._width) if codes[:, at].min() != codes[:, at].max()]
        return (
            {labels[at]: codes[:, at].astype(np.int64) for at in kept},
            {name: values[:, at] for at, name in enumerate(names)},
        )


def _edges(values: NDArray[np.float64]) -> Floats:
    """Return the edges that cut values into two or three parts; none where one of them has too few.

    >>> _edges(np.array([0.0, 1.0, 1.0, 0.0])).tolist(), _edges(np.zeros(4)).tolist()
    ([0.0], [])
    """
    several = np.unique(values)
    if len(several) < 2:
        return np.zeros(0)
    edges = several[:1] if len(several) == 2 else np.unique(np.quantile(values, [1 / 3, 2 / 3]))
    edges = edges[edges < several[-1]]
    sizes = np.bincount(np.searchsorted(edges, values, side="left"), minlength=len(edges) + 1)
    return edges if len(edges) and sizes.min() >= FEWEST * len(values) else np.zeros(0)


def _balance(codes: Integers) -> float:
    """Return the entropy of codes: high where parts are as large as each other."""
    share = np.bincount(codes) / len(codes)
    return float(-(share[share > 0.0] * np.log(share[share > 0.0])).sum())


# -- for a replay ------------------------------------------------------------------------------------


def propensity_note(log: Log, settled: float = inf) -> str | None:
    """Return what an evaluation must say of the propensities it rests on; None where they pass.

    Args:
        log: The rows that are evaluated.
        settled: When the first decision was made that waits for feedback, seconds since the epoch: later rows
            were chosen by how soon feedback came.
    """
    order = np.argsort(log.at, kind="stable")
    order = order[log.at[order] < settled]
    if not len(order):
        return None
    eligible = None if log.p_log is None else log.p_log[order] > 0.0
    p = None if log.p_log is None else log.p_log[order]
    draws = Draws(log.arms, log.drawn[order], log.propensity[order], p, eligible)
    if (doubt := propensity_doubt(draws)) is None:
        return None
    return (
        f"{doubt} Every estimate that rests on them is wrong, also of `uniform` and of a single arm; "
        "`armwise audit` shows more."
    )


def propensity_doubt(draws: Draws) -> str | None:
    """Return why the propensities of some draws cannot be trusted; None where the tests find no fault.

    Args:
        draws: The draws, all with a propensity.
    """
    tests = [check for check in audit(draws).faults if check.p_value is not None] if len(draws) else []
    if not tests:
        return None
    worst = min(tests, key=lambda check: check.p_value or 0.0)
    return f"The propensities on record fail the audit: {worst.advice}"

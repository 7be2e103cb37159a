"""An audit of a log: its decisions as arrays, the checks of `feedback.ope.audit`, and the report of them.

    decisions of the log, or of a file --> DrawnDecisions --> Draws --> audit --> AuditReport

Features are selected by the first rows and then fixed, since a bet must be placed before its row is seen.
"""

import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from importlib import metadata
from math import inf, nan
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table
from rich.text import Text

from armwise.agent.config import AppConfig
from armwise.agent.reporting import fill_template, format_counts, moment
from armwise.arms.base import Progress
from armwise.arms.tokenizer import words
from armwise.feedback.arrays import Flags, Floats, Integers
from armwise.feedback.dataset import Log
from armwise.feedback.decisions import Decisions, concatenate, encode, tabulate
from armwise.feedback.events import FOREIGN, LABELS, Context, Example
from armwise.feedback.jsonl import read_export, read_headers
from armwise.feedback.log import Store, without_password
from armwise.feedback.ope import Audit, Check, CheckStatus, Draws, audit
from armwise.feedback.sources import ExportSource, read_decisions
from armwise.feedback.texts import find_value

SEEN_FIRST = 1000
"""First decisions, by which features are selected and divided into parts."""

MOST_FEATURES = 24
"""Most named features that are tested: those that divide the first decisions best."""

WORD_BUCKETS = 16
"""Features that the words of questions are hashed into."""

DIMENSIONS = 8
"""Leading dimensions of the embedding that are tested."""

FEWEST = 0.02
"""Smallest share of the first decisions in a part of a feature."""

ENOUGH = 200
"""Number of settled decisions from which on an export is audited without the unsettled ones."""

REPORT_EVERY = 5000
"""Decisions between two reports of progress."""

UNSETTLED = "made after the first decision that waits for feedback"

OUTSIDE = "outside the window"


class NothingToAuditError(ValueError):
    """No decision of the log was drawn; the message lists what the log has."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The audit of a log.

    Attributes:
        source: The file, or the database without its password.
        made_at: When the report was made, seconds since the epoch.
        first_at: Time of the first audited decision.
        last_at: Time of the last one.
        found: The checks.
        excluded: Number of decisions that are left out, by reason.
        notes: Remarks, a sentence each.
        command: The command that repeats the audit.
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
        """The result of the audit, in one or two sentences."""
        return summarise_audit(self.found)

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
        """Return the advice of each failed or warning check, the excluded decisions, and the notes."""
        return [
            *(f"{check.status}, {check.name}: {check.advice}" for check in self.raised),
            f"Left out: {format_counts(self.excluded) or 'none'}.",
            *self.notes,
        ]

    @property
    def raised(self) -> list[Check]:
        """The failed checks, then the warnings."""
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
        """Return the report as a self-contained page."""
        return fill_template(
            "audit.html",
            {},
            report=self,
            window=f"{moment(self.first_at)} to {moment(self.last_at)}",
            found=self.found,
            raised=self.raised,
            p_in_words=p_in_words,
            excluded=format_counts(self.excluded),
            armwise=metadata.version("armwise"),
        )


_STYLES = {
    CheckStatus.PASS: "",
    CheckStatus.SKIPPED: "dim",
    CheckStatus.WARN: "yellow",
    CheckStatus.FAIL: "red",
}


def p_in_words(p: float | None) -> str:
    """Return a p-value as text; empty for None.

    >>> p_in_words(None), p_in_words(0.2), p_in_words(3e-40)
    ('', '0.2', '< 1e-12')
    """
    if p is None:
        return ""
    return "< 1e-12" if p < 1e-12 else f"{p:.2g}"


def summarise_audit(found: Audit) -> str:
    """Return the result of an audit, in one or two sentences."""
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
        config: The configuration.
        on_progress: Called with the progress.
        since: Only decisions of then or later.
        until: Only decisions before then.

    Raises:
        NothingToAuditError: No decision was drawn in that time.
        LogUnavailableError: Try again later.
    """
    window = _seconds(since), _seconds(until)
    decisions = DrawnDecisions(
        read_decisions(store, config.reward, *window, audited=True, on_progress=on_progress),
        lambda part: ~part.settled,
    )
    return _report(without_password(config.database_url), decisions, ())


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
        NothingToAuditError: No decision in the file was drawn.
        ExchangeError: The file cannot be read.
    """
    rule = next(iter(read_headers(path))).reward
    settled = ExportSource(path).settled.before
    begin, end = _seconds(since) or -inf, inf if until is None else until.timestamp()
    excluded: Counter[str] = Counter()

    def examples() -> Iterator[Example]:
        for done, example in enumerate(read_export(path), start=1):
            if begin <= example.decision.decided_at < end:
                yield example
            else:
                excluded[OUTSIDE] += 1
            if done % REPORT_EVERY == 0:
                on_progress("decisions", done, None)

    decisions = DrawnDecisions(tabulate(examples(), rule), lambda part: np.zeros(len(part), dtype=np.bool_))
    on_progress("decisions", decisions.n, decisions.n)
    decisions.excluded.update(excluded)
    notes = (EXPORTED,) if decisions.ours else ()
    return _report(str(path), decisions, notes, settled)


EXPORTED = (
    "An export has the decisions that are learned from: without a default reward those with feedback, and "
    "failed ones only where failures have a reward. Where that depends on the arm, weights differ from 1; "
    "the log itself is audited without --from, on all its decisions."
)


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def _report(
    source: str, decisions: "DrawnDecisions", notes: tuple[str, ...], settled: float = inf
) -> AuditReport:
    """Return the audit of decisions. Raises NothingToAuditError."""
    if not decisions.n:
        left_out = format_counts(decisions.excluded)
        raise NothingToAuditError(
            f"{source}: it has no decision that a policy drew; left out: {left_out or 'none, it is empty'}"
        )
    draws = decisions.draws()
    assert draws.at is not None
    unsettled = draws.at >= settled
    if unsettled.any() and (~unsettled).sum() >= ENOUGH:
        decisions.excluded[UNSETTLED] += int(unsettled.sum())
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
        dict(decisions.excluded.most_common()),
        notes,
    )


# -- decisions ---------------------------------------------------------------------------------------


class DrawnDecisions:
    """The drawn decisions of a log; the others are counted.

    Args:
        parts: Decisions of a log, in order, with their contexts.
        waits: Returns whether the reward of each decision may still come, shape (n,).

    Attributes:
        n: Number of drawn decisions.
        excluded: Number of other decisions, by reason.
        ours: Whether a policy of this service drew any of them.
    """

    def __init__(self, parts: Iterable[Decisions], waits: Callable[[Decisions], Flags]) -> None:
        self.n, self.excluded, self.ours = 0, Counter[str](), False
        self._parts, self._waiting = list[Decisions](), list[Flags]()
        features, contexts = None, list[Context]()
        for part in parts:
            drawn = part.explored & part.draw.each(lambda key: key.policy != LABELS)
            codes, counts = np.unique(part.draw.codes[~drawn], return_counts=True)
            for code, n in zip(codes.tolist(), counts.tolist(), strict=True):
                key = part.draw.values[code]
                self.excluded[LABELS if key.policy == LABELS else key.mode] += n
            some = part.where(drawn)
            self.n += len(some)
            self.ours = self.ours or any(key.policy not in FOREIGN for key in some.draw.values)
            self._parts.append(replace(some, context=()))
            self._waiting.append(waits(some) & np.isnan(some.reward))
            contexts += some.context
            if features is None and len(contexts) >= SEEN_FIRST:
                features = _Features(contexts[:SEEN_FIRST])
            if features is not None:
                features.add(contexts)
                contexts = []
        if features is None:
            features = _Features(contexts)
            features.add(contexts)
        self._features = features

    def draws(self) -> Draws:
        """Return the decisions in the order in which they were made."""
        d, waiting = concatenate(self._parts), np.concatenate(self._waiting)
        arms = dict.fromkeys(arm for key in d.draw.values for arm in (*key.arms, key.drawn))
        column = {arm: place for place, arm in enumerate(arms)}
        eligible = np.array([[arm in key.arms for arm in arms] for key in d.draw.values], dtype=np.bool_)
        p = None
        if not ((d.n_p > 0) & (d.n_p < d.width)).any():
            known = np.flatnonzero(d.whole)
            p = np.full((len(d), len(arms)), nan)
            p[known] = d.distributions(known, column)
        codes, values = self._features.columns()
        draws = Draws(
            tuple(arms),
            np.array([column[key.drawn] for key in d.draw.values])[d.draw.codes],
            d.propensity,
            p,
            eligible[d.draw.codes],
            codes,
            values,
            d.reward,
            d.draw.each(lambda key: key.failed),
            d.id,
            dict(_groups(d)),
            d.at,
            d.floor,
            None if np.isnan(d.rewarded_at).all() else d.rewarded_at,
            None if np.isnan(d.deadline).all() else d.deadline,
            waiting if waiting.any() else None,
        )
        return draws.where(np.argsort(d.at, kind="stable"))


def _groups(decisions: Decisions) -> Iterator[tuple[str, Integers]]:
    """Yield each kind of group, such as episodes, with the code of each row, shape (n,); -1: in no group."""
    for kind, names in (("episode", decisions.episode), ("user", decisions.user)):
        if (named := names != decisions.id).any():
            codes = np.full(len(names), -1)
            codes[named] = encode(names[named])
            yield kind, codes


class _Features:
    """Features of questions that a test can bet on.

    Args:
        first: Contexts of the first decisions, by which features are selected.
    """

    def __init__(self, first: Sequence[Context]) -> None:
        counts = Counter(name for context in first for name in context.features)
        cut: list[tuple[float, str, Floats]] = []
        for name in counts:
            values = np.array([find_value(context.features, name, 0.0) for context in first])
            edges = _edges(values)
            if len(edges):
                cut.append((_balance(np.searchsorted(edges, values, side="left")), name, edges))
        cut.sort(key=lambda feature: (-feature[0], feature[1]))
        self._named = [(name, edges.tolist()) for _, name, edges in cut[:MOST_FEATURES]]
        dims = min((len(context.embedding) for context in first), default=0)
        embeddings = np.array([context.embedding[:DIMENSIONS] for context in first]) if dims else None
        self._middle = [] if embeddings is None else np.median(embeddings, axis=0).tolist()
        self._codes = bytearray()
        self._values = array("d")
        self._width = len(self._named) + WORD_BUCKETS + len(self._middle)

    def add(self, contexts: Iterable[Context]) -> None:
        """Append the features of contexts."""
        for context in contexts:
            for name, edges in self._named:
                value = find_value(context.features, name, 0.0)
                self._values.append(value)
                self._codes.append(sum(value > edge for edge in edges))
            buckets = {crc32(word.encode()) % WORD_BUCKETS for word in words(context.question)}
            self._codes.extend(bucket in buckets for bucket in range(WORD_BUCKETS))
            vector = context.embedding
            dimensions = enumerate(self._middle)
            self._codes.extend(at < len(vector) and vector[at] > middle for at, middle in dimensions)

    def columns(self) -> tuple[dict[str, Integers], dict[str, Floats]]:
        """Return the codes and the numbers by name, without those that are constant."""
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
    """Return the edges that divide values into two or three parts; empty if a part would be too small.

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
    """Return the entropy of codes, which is largest if all parts have the same size."""
    share = np.bincount(codes) / len(codes)
    return float(-(share[share > 0.0] * np.log(share[share > 0.0])).sum())


# -- for a replay ------------------------------------------------------------------------------------


def propensity_note(log: Log, settled: float) -> str | None:
    """Return a warning about the propensities of an evaluation, if they fail the tests.

    Args:
        log: The rows that are evaluated.
        settled: Only decisions before this time are tested, seconds since the epoch: whether later ones have
            a reward yet depends on how soon feedback came.
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
    """Return why the propensities of draws cannot be trusted, if a test fails.

    Args:
        draws: The draws, all with a propensity.
    """
    tests = [check for check in audit(draws).faults if check.p_value is not None] if len(draws) else []
    if not tests:
        return None
    worst = min(tests, key=lambda check: check.p_value or 0.0)
    return f"The logged propensities fail the audit: {worst.advice}"

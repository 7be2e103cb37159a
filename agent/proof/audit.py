"""Whether a log may be used, and the report of `armwise audit`.

    decisions --LogAudit--> Draws --audit--> Audit.doubt   the verdict of audit, prove, replay, report, gate
                                             report_log    the document of `armwise audit`

Features are selected by the first rows and then fixed, since a bet must be placed before its row is seen.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from functools import cached_property, lru_cache
from importlib import metadata
from itertools import chain, zip_longest
from math import inf, nan
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table
from rich.text import Text

from armwise.agent.proof.propensity_audit import CERTAIN, ON_RECORD, Audit, Check, CheckStatus, Draws, audit
from armwise.agent.reporting import format_counts
from armwise.arms.base import Progress
from armwise.arms.tokenizer import words
from armwise.feedback.arrays import Floats, Integers
from armwise.feedback.decisions import Decisions, Selection, concatenate, encode
from armwise.feedback.events import FOREIGN, LABELS, Context
from armwise.feedback.reward import RewardRule
from armwise.feedback.sources import ExportSource, TrainingLog
from armwise.feedback.texts import find_value

Codes = NDArray[np.uint8]

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
"""Number of settled decisions from which on a file is audited without the unsettled ones."""

UNSETTLED = "made after the first decision that waits for feedback"

EXPORTED = (
    "An export has the decisions that are learned from: without a default reward those with feedback, and "
    "failed ones only where failures have a reward. The audit allows for arms that get more feedback than "
    "others; the log itself is audited without a file, on all its decisions."
)


class NothingToAuditError(ValueError):
    """No decision of the log was drawn; the message lists what the log has."""


class LogAudit:
    """Audits a log, read in parts.

    Args:
        rule: The rule of the rewards.
        partial: Whether the log is a file, which may lack decisions without feedback.

    Attributes:
        n: Number of drawn decisions that were kept.
        excluded: Number of other decisions, by reason.
    """

    def __init__(self, rule: RewardRule, *, partial: bool) -> None:
        self.n, self.excluded = 0, Counter[str]()
        self._rule, self._partial = rule, partial
        self._parts, self._coded = list[Decisions](), list[tuple[Codes, Floats]]()
        self._first = list[Sequence[Context]]()  # the contexts that are not coded yet
        self._features: _Features | None = None

    def add(self, part: Decisions) -> None:
        """Take the drawn decisions of the next part, with their contexts."""
        drawn = part.drawn
        codes, counts = np.unique(part.draw.codes[~drawn], return_counts=True)
        for code, n in zip(codes.tolist(), counts.tolist(), strict=True):
            key = part.draw.values[code]
            self.excluded[LABELS if key.policy == LABELS else key.mode] += n
        some = part.where(drawn)
        if not len(some):
            return
        self._parts.append(replace(some, context=()))
        self._first.append(some.context)
        self.n += len(some)
        if self._features is not None or self.n >= SEEN_FIRST:
            self._code()

    def _code(self) -> "_Features":
        """Fix the features if they are not, and reduce the contexts at hand to them."""
        if self._features is None:
            first = [context for part in self._first for context in part]
            self._features = _Features(first[:SEEN_FIRST])
        self._coded += map(self._features.encode, self._first)
        self._first.clear()
        return self._features

    @property
    def is_export(self) -> bool:
        """Whether it is a file of this service, which may lack decisions without feedback."""
        policies = {key.policy for part in self._parts for key in part.draw.values}
        return self._partial and bool(policies.difference(FOREIGN))

    @cached_property
    def draws(self) -> Draws:
        """The decisions in the order in which they were made; call it once all parts are there."""
        d = concatenate(self._parts)
        arms = dict.fromkeys(arm for key in d.draw.values for arm in (*key.arms, key.drawn))
        column = {arm: place for place, arm in enumerate(arms)}
        eligible = np.array([[arm in key.arms for arm in arms] for key in d.draw.values], dtype=np.bool_)
        p = None
        if not ((d.n_p > 0) & (d.n_p < d.width)).any():
            known = np.flatnonzero(d.whole)
            p = np.full((len(d), len(arms)), nan)
            p[known] = d.distributions(known, column)
        features = self._code()
        codes, values = features.name(*map(np.concatenate, zip(*self._coded, strict=True)))
        waiting = np.isnan(d.reward) & ~d.settled
        draws = Draws(
            tuple(arms),
            np.array([column[key.drawn] for key in d.draw.values])[d.draw.codes],
            d.propensity,
            p,
            eligible[d.draw.codes],
            codes,
            values,
            d.reward,
            d.id,
            dict(_groups(d)),
            d.at,
            d.floor,
            waiting if waiting.any() else None,
            rated=self.is_export and self._rule.default is None,
        )
        unsettled = ~d.settled
        if self._partial and unsettled.any():
            # which of them are there depends on how soon feedback came
            if (~unsettled).sum() >= ENOUGH:
                self.excluded[UNSETTLED] += int(unsettled.sum())
                order = np.argsort(d.at, kind="stable")
                return draws.where(order[~unsettled[order]])
            draws = replace(draws, waiting=unsettled)
        return draws.where(np.argsort(d.at, kind="stable"))

    @cached_property
    def found(self) -> Audit:
        """The result of the audit; call it once all parts are there."""
        return audit(self.draws)

    @property
    def doubt(self) -> str:
        """Why nothing can be estimated from the log, in a few sentences; empty: something can."""
        return self.found.doubt if self.n else ""


def audit_log(source: TrainingLog, rule: RewardRule, selection: Selection, on_progress: Progress) -> LogAudit:
    """Audit selected decisions.

    Args:
        source: The log.
        rule: The rule of its rewards.
        selection: Which decisions are audited.
        on_progress: Called with the progress.

    Raises:
        ExchangeError: The file cannot be read.
        LogUnavailableError: Try again later.
    """
    rule = rule.model_copy(update={"cost_weight": 0.0})  # the same for every command
    found = LogAudit(rule, partial=isinstance(source, ExportSource))
    for part in source.sample(rule, selection, on_progress):
        found.add(part)
    return found


def find_doubt(
    source: TrainingLog,
    rule: RewardRule,
    selection: Selection,
    on_progress: Progress,
    *,
    missing: bool = True,
) -> str:
    """Return why nothing can be estimated from selected decisions, if that is so; see `audit_log`.

    Without `missing`, that no propensity is on record is no reason: a model of rewards needs none.
    """

    def report(_: str, done: int, total: int | None) -> None:
        on_progress("decisions audited", done, total)  # the caller reads "decisions", too

    log = audit_log(source, rule, selection, report)
    if missing or not log.n:
        return log.doubt
    checks = tuple(check for check in log.found.checks if check.name != ON_RECORD)
    return replace(log.found, checks=checks).doubt


# -- the report ------------------------------------------------------------------------------------


def make_table(document: Mapping[str, Any]) -> Table:
    """Return the checks of a report as a table for a terminal."""
    table = Table(
        title=Text(f"{document['source']}: {document['decisions']:,} decisions"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=0,
    )
    for name in ("check", "verdict", "expected", "found"):
        table.add_column(name, overflow="fold")
    table.add_column("p", justify="right", no_wrap=True)
    for check in document["checks"]:
        cells = (check["name"], check["status"], check["expected"], check["found"])
        style = _STYLES.get(check["status"], "")
        table.add_row(*(Text(cell, style=style) for cell in (*cells, p_in_words(check["p_value"]))))
    return table


def list_footnotes(document: Mapping[str, Any]) -> list[str]:
    """Return the advice of each failed check, then of each warning; the excluded decisions; and the notes."""
    return [
        *(
            f"{status}, {check['name']}: {check['advice']}"
            for status in (CheckStatus.FAIL, CheckStatus.WARN)
            for check in document["checks"]
            if check["status"] == status
        ),
        f"Left out: {format_counts(document['excluded']) or 'none'}.",
        *document["notes"],
    ]


_STYLES = {"skipped": "dim", "warn": "yellow", "fail": "red"}


def p_in_words(p: float | None) -> str:
    """Return a p-value as text; empty for None.

    >>> p_in_words(None), p_in_words(0.2), p_in_words(3e-40)
    ('', '0.2', '< 1e-12')
    """
    if p is None:
        return ""
    return "< 1e-12" if p < 1e-12 else f"{p:.2g}"


def _summarise(found: Audit) -> str:
    warned = [check.name for check in found.checks if check.status is CheckStatus.WARN]
    warnings = f" Warnings: {', '.join(warned)}." if warned else ""
    sound = f"No fault was found in {found.tested:,} draws: estimates may rest on these propensities."
    if CERTAIN in warned:
        sound = "No arm can be compared: nothing was left to chance."
    return f"{found.doubt or sound}{warnings}"


When = tuple[datetime | None, datetime | None]
"""From when and until when decisions count; None: from the first, or to the last."""


def report_log(
    source: TrainingLog,
    name: str,
    rule: RewardRule,
    when: When,
    on_progress: Progress,
    checks: Sequence[Check] = (),
    *,
    may_be_empty: bool = False,
) -> dict[str, Any]:
    """Audit a log, and return the report of it, as JSON.

    Args:
        source: The log.
        name: What to call it.
        rule: The rule of its rewards.
        when: Which decisions count.
        on_progress: Called with the progress.
        checks: Checks that were made before; each replaces the audit's own of the same name.
        may_be_empty: Whether these suffice where the log has no decision.

    Raises:
        NothingToAuditError: No decision was drawn in that time.
        ExchangeError: The file cannot be read.
        LogUnavailableError: Try again later.
    """
    begin, end = (None if at is None else at.timestamp() for at in when)
    log = audit_log(source, rule, Selection(since=begin, until=end), on_progress)
    if not log.n and not may_be_empty:
        if outside := _count_outside(source, rule, begin, end):
            log.excluded["outside the window"] = outside
        left_out = format_counts(log.excluded)
        raise NothingToAuditError(
            f"{name}: it has no decision that a policy drew in that time; left out: {left_out or 'none'}"
        )
    found, at = Audit(0, 0, ()), np.zeros(0)
    if log.n:
        assert log.draws.at is not None
        found, at = log.found, log.draws.at
    made = {check.name: check for check in (*found.checks, *_check_values(source), *checks)}
    found = replace(found, checks=tuple(made.values()))
    return {
        "source": name,
        "armwise": metadata.version("armwise"),
        "made_at": time.time(),
        "status": str(found.status),
        "summary": _summarise(found),
        "decisions": found.rows,
        "tested": found.tested,
        "first_at": float(at.min()) if len(at) else None,
        "last_at": float(at.max()) if len(at) else None,
        "excluded": dict(log.excluded.most_common()),
        "checks": [asdict(check) | {"status": str(check.status)} for check in found.checks],
        "notes": [EXPORTED] if log.is_export else [],
    }


def _check_values(source: TrainingLog) -> Iterator[Check]:
    """Yield a warning if the ratings of a file that were read are outside their ranges."""
    outside = source.outside if isinstance(source, ExportSource) else None
    if outside is not None and outside.n:
        n, expected = f"{outside.n:,} of {outside.rated:,} are not", "ratings in the range of their metric"
        yield Check("ratings in range", CheckStatus.WARN, expected, n, advice=outside.remark)


def _count_outside(source: TrainingLog, rule: RewardRule, begin: float | None, end: float | None) -> int:
    since, until = -inf if begin is None else begin, inf if end is None else end
    parts = (part.at for part, _ in source.blocks(rule))
    return sum(int(((at < since) | (at >= until)).sum()) for at in parts)


# -- features --------------------------------------------------------------------------------------


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
        self._named = [(name, edges) for _, name, edges in cut[:MOST_FEATURES]]
        dims = min((len(context.embedding) for context in first), default=0)
        embeddings = (
            np.array([context.embedding[: min(dims, DIMENSIONS)] for context in first]) if dims else None
        )
        self._middle = [] if embeddings is None else np.median(embeddings, axis=0).tolist()
        self._labels = [
            *(f"feature {name}" for name, _ in self._named),
            *(f"words of bucket {bucket}" for bucket in range(WORD_BUCKETS)),
            *(f"dimension {at} of the embedding" for at in range(len(self._middle))),
        ]

    def encode(self, contexts: Sequence[Context]) -> tuple[Codes, Floats]:
        """Return the codes of all features, and the numbers of those with a name, a row for each context."""
        n, named = len(contexts), len(self._named)
        values = np.array(
            [[find_value(one.features, name, 0.0) for name, _ in self._named] for one in contexts]
        )
        codes = np.zeros((n, len(self._labels)), dtype=np.uint8)
        for at, (_, edges) in enumerate(self._named):
            codes[:, at] = (values[:, at, np.newaxis] > edges).sum(axis=1)
        buckets = [[*map(_find_bucket, words(context.question))] for context in contexts]
        rows = np.repeat(np.arange(n), [*map(len, buckets)])
        codes[rows, named + np.fromiter(chain.from_iterable(buckets), np.int64, len(rows))] = 1
        if self._middle:
            leading = [one.embedding[: len(self._middle)] for one in contexts]
            columns = np.array(
                [*zip_longest(*leading, self._middle, fillvalue=nan)]
            )  # a shorter one is not above
            codes[:, named + WORD_BUCKETS :] = (columns[:, :-1] > columns[:, -1:]).T
        return codes, values.reshape(n, named)

    def name(self, codes: Codes, values: Floats) -> tuple[dict[str, Integers], dict[str, Floats]]:
        """Return codes and numbers by name, without the codes that are constant."""
        kept = [at for at in range(codes.shape[1]) if codes[:, at].min() != codes[:, at].max()]
        return (
            {self._labels[at]: codes[:, at].astype(np.int64) for at in kept},
            {name: values[:, at] for at, (name, _) in enumerate(self._named)},
        )


@lru_cache(1 << 16)
def _find_bucket(word: str) -> int:
    return crc32(word.encode()) % WORD_BUCKETS


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

"""The decisions of a training log that can be evaluated, as arrays.

    log = Log.from_examples(examples, rule)                from facts, one by one
    log = LogSource(store, rule).log(Selection(since=...))  from a database, in bulk (`feedback.sources`)

Both go through four steps, in the order of this file:

    Selection    which decisions are selected
    Batch        examples as columns, with `rewards`: the reward formula over columns
    LogFilter    keeps the rows that can be evaluated, and counts the others by reason
    Log          the rows that are left
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import chain, islice
from math import fsum
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from armwise.feedback.arrays import (
    TOLERANCE,
    Flags,
    Floats,
    Integers,
    drawn_of,
    refuse,
    refuse_unless_distributions,
)
from armwise.feedback.events import ESTIMATED, LABELS, Cost, Example, Mode
from armwise.feedback.reward import Arithmetic, Prices, RewardRule
from armwise.feedback.texts import value_of


@dataclass(frozen=True, slots=True)
class Selection:
    """Which decisions of a log are selected; the default selects all.

    Attributes:
        since: Decided at this time or later, seconds since the epoch, UTC.
        until: Decided before this time, seconds since the epoch, UTC.
        versions: Drawn by one of these versions; empty for any.
        policies: Drawn by one of these kinds of policy; empty for any.
        features: Named features that the context has with these values; one it lacks counts as 0.
        prefix: What their ids begin with.
        apart: Text that their ids do not contain; empty for any.
        after: Position of the training log up to which examples are not even read.
    """

    since: float | None = None
    until: float | None = None
    versions: tuple[int, ...] = ()
    policies: tuple[str, ...] = ()
    features: Mapping[str, float] = field(default_factory=dict)
    prefix: str = ""
    apart: str = ""
    after: int = 0

    def __post_init__(self) -> None:
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ValueError(f"the window from {shown(self.since)} to {shown(self.until)} is empty")

    def __str__(self) -> str:
        """Return the selection as text.

        >>> str(Selection(until=0.0, versions=(3, 4), features={"tier=free": 1.0}))
        'until 1970-01-01T00:00:00Z, versions 3, 4, tier=free is 1'
        """
        parts = [
            *([f"since {shown(self.since)}"] if self.since is not None else []),
            *([f"until {shown(self.until)}"] if self.until is not None else []),
            *([f"versions {', '.join(map(str, self.versions))}"] if self.versions else []),
            *([f"policies {', '.join(self.policies)}"] if self.policies else []),
            *(f"{name} is {value:g}" for name, value in self.features.items()),
            *([f"ids with {self.prefix!r} first"] if self.prefix else []),
            *([f"ids without {self.apart!r}"] if self.apart else []),
            *([f"after example {self.after:,}"] if self.after else []),
        ]
        return ", ".join(parts) or "all decisions"

    def has_id(self, name: str) -> bool:
        """Return whether the id of a decision is one of those that are selected.

        >>> acme, others = Selection(prefix="acme~"), Selection(apart="~")
        >>> [selection.has_id(name) for selection in (acme, others) for name in ("acme~d", "d")]
        [True, False, False, True]
        """
        return name.startswith(self.prefix) and (not self.apart or self.apart not in name)


def shown(at: float) -> str:
    """Return seconds since the epoch as a date and a time, UTC.

    >>> shown(1.5)
    '1970-01-01T00:00:01.500Z'
    """
    moment = datetime.fromtimestamp(at, UTC)
    return moment.isoformat(timespec="milliseconds" if at % 1 else "seconds").replace("+00:00", "Z")


# -- examples as columns ---------------------------------------------------------------------------


T = TypeVar("T")

_CHUNK = 4096
"""Examples that become columns at a time."""


@dataclass(frozen=True, slots=True)
class Categorical(Generic[T]):
    """A dictionary-encoded column.

    Attributes:
        values: The distinct values.
        codes: Index of the value of each row, shape (n,).
    """

    values: Sequence[T]
    codes: Integers

    @classmethod
    def of(cls, column: Sequence[T]) -> "Categorical[T]":
        """Encode a column, values in order of first occurrence.

        >>> Categorical.of("abba").codes.tolist()
        [0, 1, 1, 0]
        """
        values = list(dict.fromkeys(column))
        code = {value: i for i, value in enumerate(values)}
        return cls(values, np.fromiter(map(code.__getitem__, column), np.int64, len(column)))

    def each(self, of: Callable[[T], bool]) -> Flags:
        """Return a predicate of each row, shape (n,), evaluated once for each value."""
        return np.array([of(value) for value in self.values], dtype=np.bool_)[self.codes]


class DrawKey(NamedTuple):
    """The part of a draw that many decisions share: everything but numbers.

    Attributes:
        mode: How the arm was chosen.
        policy: Kind of policy.
        arms: The eligible arms.
        drawn: The arm that the draw fell on.
        failed: Whether that arm failed.
    """

    mode: str
    policy: str
    arms: tuple[str, ...]
    drawn: str
    failed: bool


@dataclass(frozen=True, slots=True)
class ExampleBatch:
    """Examples in a row, as columns of shape (n,).

    Attributes:
        seq: Positions in the training log.
        at: When they were decided, seconds since the epoch, UTC.
        version: Versions that they were drawn by.
        draw: How each arm was drawn.
        question: A hash of the question, the same in all batches of a log.
        episode: A hash of the episode; of the decision where it has none.
        user: A hash of the end user; of the decision where none is on record.
        propensity: Probability of the arms that were drawn, as it was logged.
        p: Probabilities of the first row, then those of the second, and so on; shape (sum of n_p,).
        n_p: How many probabilities each has: one an arm, or none; a single one of several arms is that
            of the first arm, where no more is known.
        reward: Their rewards; NaN where not known.
        has_id: Whether their ids are selected.
        features: Values of the named features that are selected by; 0 for one that a context lacks.
    """

    seq: Integers
    at: Floats
    version: Integers
    draw: Categorical[DrawKey]
    question: Integers
    episode: Integers
    user: Integers
    propensity: Floats
    p: Floats
    n_p: Integers
    reward: Floats
    has_id: Flags
    features: Mapping[str, Floats]


def batches_of(examples: Iterable[Example], rule: RewardRule, selection: Selection) -> Iterator[ExampleBatch]:
    """Yield examples as columns, some thousands at a time."""
    rest = (example for example in examples if example.seq > selection.after)
    while chunk := list(islice(rest, _CHUNK)):
        decisions = [example.decision for example in chunk]
        yield ExampleBatch(
            seq=np.array([example.seq for example in chunk]),
            at=np.array([d.decided_at for d in decisions], dtype=np.float64),
            version=np.array([d.version for d in decisions]),
            draw=Categorical.of(
                [
                    DrawKey(str(d.mode), d.policy, d.arms, d.drawn, x.failed)
                    for x, d in zip(chunk, decisions, strict=True)
                ]
            ),
            question=np.array([hash(d.id if d.erased else d.context.question) for d in decisions]),
            episode=np.array([hash(d.id if d.episode_id is None else d.episode_id) for d in decisions]),
            user=np.array([hash(d.id if d.user_digest is None else d.user_digest) for d in decisions]),
            propensity=np.array([_propensity(d.arms, d.probabilities, d.drawn) for d in decisions]),
            p=np.fromiter(chain.from_iterable(d.probabilities for d in decisions), dtype=np.float64),
            n_p=np.array([len(d.probabilities) for d in decisions]),
            reward=rewards(
                rule,
                {name: _column(x.metrics.get(name, np.nan) for x in chunk) for name in rule.metrics},
                _costs(chunk, rule),
                np.array([d.cost_weight for d in decisions], dtype=np.float64),
                np.array([x.failed for x in chunk], dtype=np.bool_),
            ),
            has_id=np.array([selection.has_id(d.id) for d in decisions], dtype=np.bool_),
            features={
                name: _column(value_of(d.context.features, name, 0.0) for d in decisions)
                for name in selection.features
            },
        )


def _costs(chunk: Sequence[Example], rule: RewardRule) -> dict[str, Floats]:
    """Return the parts of the raw cost of a turn that have a price, tokens at the prices of today."""
    columns = {name: _column(getattr(x.cost, name) for x in chunk) for name in priced(rule.cost)}
    if rule.prices_tokens:
        columns["usd"] = _column(rule.usd_today(x.cost.usd, x.tokens_by_model) for x in chunk)
    turns = _column(x.turns for x in chunk)
    return {name: values / turns for name, values in columns.items()}


def _column(values: Iterable[float]) -> Floats:
    return np.fromiter(values, np.float64)


def _propensity(arms: tuple[str, ...], p: tuple[float, ...], drawn: str) -> float:
    """Return the probability of the drawn arm; NaN where there is none."""
    return dict(zip(arms, p, strict=False)).get(drawn, np.nan)


# -- rewards over columns --------------------------------------------------------------------------


PRICED: Mapping[str, tuple[str, ...]] = {
    "steps": ("steps",),
    "kilotokens": ("prompt_tokens", "completion_tokens"),
    "seconds": ("retrieval_s", "llm_s"),
    "usd": ("usd",),
}
"""The attributes of `Cost` that each price applies to."""


def priced(prices: Prices) -> tuple[str, ...]:
    """Return the attributes of `Cost` that have a price.

    >>> priced(Prices(steps=0.5, usd=1.0))
    ('steps', 'usd')
    """
    return tuple(name for price, names in PRICED.items() if getattr(prices, price) for name in names)


def rewards(
    rule: RewardRule,
    metrics: Mapping[str, Floats],
    cost: Mapping[str, Floats],
    cost_weight: Floats,
    failed: Flags,
) -> Floats:
    """Return `RewardRule.reward_of` of each decision, shape (n,); NaN where the rule declares no reward.

    Args:
        rule: The reward formula.
        metrics: Aggregated values of each metric that the rule declares, shape (n,); NaN where a
            decision has none.
        cost: The parts of the raw cost that have a price, shape (n,), by attribute of `Cost`.
        cost_weight: What each request gave up for a unit of priced cost, shape (n,); NaN for the rule's.
        failed: Whether the drawn arm failed, shape (n,).

    >>> rule = RewardRule.model_validate({"metrics": {"right": {}}, "cost_weight": 0.1, "failed": 0.0})
    >>> values, steps = np.array([1.0, 1.0, np.nan, np.nan]), np.array([2.0, 2.0, 1.0, 1.0])
    >>> weights, failed = np.array([np.nan, 0.25, np.nan, np.nan]), np.array([False, False, False, True])
    >>> rewards(rule, {"right": values}, {"steps": steps}, weights, failed).tolist()
    [0.8, 0.5, nan, -0.1]
    """
    total = cast(Any, rule.cost).total(cast(Any, Cost)(**{name: cost.get(name, 0.0) for name in _COST}))
    priced_cost = np.broadcast_to(np.float64(total), failed.shape)
    weights = np.where(np.isnan(cost_weight), rule.cost_weight, cost_weight)
    has_value = {name: ~np.isnan(metrics[name]) for name in rule.metrics}
    column = np.full(failed.shape, np.nan)
    for rows in _alike([failed, *has_value.values()]):
        values = {name: metrics[name][rows] for name, some in has_value.items() if some[rows[0]]}
        lost = bool(failed[rows[0]])
        reward = rule.formula(values, priced_cost[rows], weights[rows], failed=lost, arithmetic=COLUMNS)
        if reward is not None:
            column[rows] = reward
    return column


_COST = tuple(name for names in PRICED.values() for name in names)


def _alike(columns: Sequence[Flags]) -> Iterator[Integers]:
    """Yield the rows that agree in all columns, shape (n_alike,), for each combination that occurs."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        _, code = np.unique(2 * code + column, return_inverse=True)
    for group in range(code.max(initial=-1) + 1):
        yield np.flatnonzero(code == group)


def _total(columns: Sequence[Floats]) -> Floats:
    """Add columns up as `math.fsum` adds numbers; the sum of two is rounded correctly anyway."""
    if len(columns) <= 2:
        return sum(columns, np.zeros(len(columns[0])))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return np.fromiter(map(fsum, rows), np.float64, len(columns[0]))


def _clip(values: Floats, low: float, high: float) -> Floats:
    clipped: Floats = np.minimum(high, np.maximum(low, values))
    return clipped


COLUMNS: Arithmetic[Floats] = Arithmetic(_total, _clip)
"""Arithmetic of many decisions with the same metrics."""


# -- what can be evaluated -------------------------------------------------------------------------


OUTSIDE = "outside the window"

UNSETTLED = "may still get feedback"

OTHER_VERSION = "another version"

OTHER_POLICY = "another policy"

OTHER_FEATURES = "other features"

OTHER_PROJECT = "another project"

NO_DISTRIBUTION = "no distribution"

NO_PROPENSITY = "no propensity on record"

NOT_ELIGIBLE = "drawn arm not in the distribution"

IMPOSSIBLE = "propensity not in (0, 1]"

DISAGREES = "propensity not that of the distribution"

FAILED = "failed"

NO_REWARD = "no reward"

_SAME = 1e-9
"""How far a propensity may be from its distribution."""


class EmptyLogError(ValueError):
    """No decision can be evaluated; the message names the selection and the contents of the log."""


class LogFilter:
    """Collects the rows that can be evaluated, in order, and counts the others by their first reason.

    Rows without any propensity are left out where others have one. Where none has one, they are a log without
    propensities, on which only predictions of rewards can be averaged.

    Args:
        selection: Which decisions are wanted.
    """

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._excluded: Counter[str] = Counter()
        self._column: dict[str, int] = {}
        self._unknown_column: dict[str, int] = {}
        self._parts: list[dict[str, NDArray[np.generic]]] = []
        self._unknown: list[dict[str, NDArray[np.generic]]] = []  # rows without any propensity
        self._whole = True  # whether every distribution that was kept is known whole
        self._estimated = 0
        self._cut: set[int] = set()  # episodes of which a row was left out
        self._first, self._last, self._seen = np.inf, -np.inf, 0

    def add(self, batch: ExampleBatch) -> None:
        """Append the rows that can be evaluated, and count the others."""
        if not len(batch.seq):
            return
        self._seen += len(batch.seq)
        self._first = min(self._first, float(batch.at.min()))
        self._last = max(self._last, float(batch.at.max()))
        draw = batch.draw
        place = np.array([_place(key) for key in draw.values])[draw.codes]
        width = np.array([len(key.arms) for key in draw.values])[draw.codes]
        alone = (batch.n_p == 1) & (width > 1) & (place == 0)
        start = np.cumsum(batch.n_p) - batch.n_p
        kept = np.ones(len(batch.seq), dtype=np.bool_)
        whole = (batch.n_p == width) & (batch.n_p > 0)
        none = (batch.n_p == 0) & np.isnan(batch.propensity)
        for reason, out in _reasons(batch, self._selection, place, start, whole, alone, none):
            if n := int((out & kept).sum()):
                self._excluded[reason] += n
                kept &= ~out
        self._cut.update(batch.episode[~kept].tolist())
        self._keep(batch, np.flatnonzero(kept & ~none), place, start, alone)
        self._keep_unknown(batch, np.flatnonzero(kept & none))

    def _keep_unknown(self, batch: ExampleBatch, rows: Integers) -> None:
        """Append rows without any propensity."""
        self._enter(self._unknown_column, batch, rows)
        propensity = np.full(len(rows), np.nan)
        self._unknown.append(_part(self._unknown_column, batch, rows, propensity))

    def _enter(
        self, columns: dict[str, int], batch: ExampleBatch, rows: Integers
    ) -> tuple[Integers, Integers]:
        """Number the arms of rows that have no column yet; return the draws, and which one each row is."""
        draws, first, which = np.unique(batch.draw.codes[rows], return_index=True, return_inverse=True)
        for code in draws[np.argsort(first)]:
            for name in batch.draw.values[code].arms:
                columns.setdefault(name, len(columns))
        return draws, which

    def _keep(
        self, batch: ExampleBatch, rows: Integers, place: Integers, start: Integers, alone: Flags
    ) -> None:
        draws, which = self._enter(self._column, batch, rows)
        self._whole = self._whole and not alone[rows].any()
        self._estimated += int(batch.draw.each(_is_estimated)[rows].sum())
        part = _part(self._column, batch, rows, batch.p[start[rows] + place[rows]])
        if self._whole:
            p = np.zeros((len(rows), len(self._column)))
            for i, code in enumerate(draws):
                of_draw = np.flatnonzero(which == i)
                columns = [self._column[name] for name in batch.draw.values[code].arms]
                p[of_draw[:, np.newaxis], columns] = batch.p[
                    start[rows[of_draw], np.newaxis] + np.arange(len(columns))
                ]
            part["p_log"] = p
        self._parts.append(part)

    def kept(self) -> dict[str, Any]:
        """Return the kept rows as arguments of `Log`; the filter is empty afterwards.

        Raises:
            EmptyLogError: No row was kept.
        """
        unknown = sum(len(part["seq"]) for part in self._unknown)
        if unknown and not any(len(part["seq"]) for part in self._parts):
            self._parts, self._column, self._whole = self._unknown, self._unknown_column, False
        elif unknown:
            self._excluded[NO_PROPENSITY] += unknown
            self._cut.update(*(part["episodes"].tolist() for part in self._unknown))
        excluded = dict(sorted(self._excluded.items(), key=lambda item: (-item[1], item[0])))
        if not any(len(part["seq"]) for part in self._parts):
            raise EmptyLogError(self._nothing(excluded))
        p_log = self._distributions() if self._whole else None
        names = ("drawn", "propensity", "reward", *CLUSTERS.values(), "seq", "at", "version")
        column = {name: np.concatenate([part.pop(name) for part in self._parts]) for name in names}
        self._parts.clear()
        cut = np.isin(column["episodes"], np.fromiter(self._cut, np.int64, len(self._cut)))
        column |= {name: _by_first(column[name]) for name in CLUSTERS.values()}
        about = {"arms": tuple(self._column), "p_log": p_log, "excluded": excluded}
        return {**about, **column, "cut": cut, "estimated": self._estimated}

    def _distributions(self) -> Floats:
        """Move the distributions from the parts into one array, with a column for each arm."""
        p_log = np.zeros((sum(len(part["seq"]) for part in self._parts), len(self._column)))
        start = 0
        for part in self._parts:
            p = part.pop("p_log")
            p_log[start : start + len(p), : p.shape[1]] = p
            start += len(p)
        return p_log

    def _nothing(self, excluded: Mapping[str, int]) -> str:
        if not self._seen:
            return f"the training log is empty: nothing to evaluate (selected: {self._selection})"
        return (
            f"no decision can be evaluated (selected: {self._selection}): the training log has "
            f"{self._seen:,} from {shown(self._first)} to {shown(self._last)}; left out: "
            + ", ".join(f"{n:,} {reason}" for reason, n in excluded.items())
        )


def _part(
    columns: Mapping[str, int], batch: ExampleBatch, rows: Integers, propensity: Floats
) -> dict[str, NDArray[np.generic]]:
    """Return some rows of a batch as columns of a log."""
    column = np.array([columns.get(key.drawn, -1) for key in batch.draw.values])
    return {
        "drawn": column[batch.draw.codes[rows]],
        "propensity": propensity,
        "reward": batch.reward[rows],
        "questions": batch.question[rows],
        "episodes": batch.episode[rows],
        "users": batch.user[rows],
        "seq": batch.seq[rows],
        "at": batch.at[rows],
        "version": batch.version[rows],
    }


def _is_estimated(draw: DrawKey) -> bool:
    return draw.policy == ESTIMATED


def _has_mode(mode: Mode, draw: DrawKey) -> bool:
    return draw.mode == mode


def _place(draw: DrawKey) -> int:
    """Return the index of the drawn arm among the eligible ones; -1 where it is not."""
    return draw.arms.index(draw.drawn) if draw.drawn in draw.arms else -1


def _reasons(
    batch: ExampleBatch,
    selection: Selection,
    place: Integers,
    start: Integers,
    whole: Flags,
    alone: Flags,
    none: Flags,
) -> Iterator[tuple[str, Flags]]:
    """Yield each reason with the rows that it excludes, by precedence."""
    yield OTHER_PROJECT, ~batch.has_id
    if selection.since is not None:
        yield OUTSIDE, batch.at < selection.since
    if selection.until is not None:
        yield OUTSIDE, batch.at >= selection.until
    if selection.versions:
        yield OTHER_VERSION, ~np.isin(batch.version, selection.versions)
    if selection.policies:
        yield OTHER_POLICY, batch.draw.each(lambda key: key.policy not in selection.policies)
    for name, value in selection.features.items():
        yield OTHER_FEATURES, batch.features[name] != value
    for mode in (Mode.GREEDY, Mode.FORCED, Mode.CONTINUED):
        yield str(mode), batch.draw.each(partial(_has_mode, mode))
    yield LABELS, batch.draw.each(lambda key: key.policy == LABELS)
    yield NO_DISTRIBUTION, ~(whole | alone | none)
    yield NOT_ELIGIBLE, place < 0
    row = np.repeat(np.arange(len(batch.seq)), batch.n_p)
    total = np.bincount(row, batch.p, minlength=len(batch.seq))
    odd = np.bincount(row, ~(batch.p >= 0.0), minlength=len(batch.seq)) > 0
    yield NO_DISTRIBUTION, whole & (odd | ~(np.abs(total - 1.0) <= TOLERANCE))
    p = batch.p[np.minimum(start + np.maximum(place, 0), len(batch.p) - 1)] if len(batch.p) else batch.reward
    yield IMPOSSIBLE, ~none & ~((p > 0.0) & (p <= 1.0 + TOLERANCE))
    yield DISAGREES, ~none & ~(np.abs(p - batch.propensity) <= _SAME)
    yield FAILED, np.isnan(batch.reward) & batch.draw.each(lambda key: key.failed)
    yield NO_REWARD, np.isnan(batch.reward)


def _renumbered(codes: Integers) -> Integers:
    """Return codes from 0, none left out, in the order of the old ones."""
    return np.unique(codes, return_inverse=True)[1]


def _by_first(values: Integers) -> Integers:
    """Code values by the order in which they first come, shape (n,).

    >>> _by_first(np.array([7, -2, 7, 5])).tolist()
    [0, 1, 0, 2]
    """
    _, first, code = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[code]


# -- the log ---------------------------------------------------------------------------------------


CLUSTERS = {"question": "questions", "episode": "episodes", "user": "users"}
"""What rows can share so that they are one observation, and the attribute of `Log` with the codes of it."""

Describe = Callable[[Integers], Any]
"""Returns features of the rows at some positions of the training log, shape (n, d), sparse or dense."""

Categorize = Callable[[tuple[str, ...], Integers], Integers]
"""Returns the discrete features of arms, by name, at some positions, shape (n, n_arms, n_features)."""

EVERYTHING = Selection()

ProgressCallback = Callable[[str, int, int | None], None]
"""Called with the step, how much of it is done, and out of how much, where that is known."""


@dataclass(frozen=True, eq=False)
class Log:
    """The decisions that can be evaluated, as arrays. Row i is one decision; rows are in order.

    Attributes:
        arms: Every arm that was eligible in some row.
        drawn: Column of the arm that was drawn, shape (n,).
        propensity: Probability with which it was drawn, shape (n,), in (0, 1]; NaN in all rows where none is
            on record.
        reward: Reward, shape (n,), finite.
        questions: Rows that ask the same have the same code, shape (n,), from 0, none left out.
        seq: Position in the training log, shape (n,), rising.
        at: When it was decided, seconds since the epoch, UTC, shape (n,).
        version: Version of the policy that it was drawn by, shape (n,).
        p_log: The logged distribution, shape (n, n_arms), 0 where an arm was not eligible; None where
            only the drawn arm's probability is known.
        excluded: Examples that were left out, by reason.
        describe: Returns the features of rows; None where there are none.
        estimated: Rows whose propensity was estimated from frequencies, and not recorded.
        episodes: Rows of the same episode have the same code, shape (n,), from 0, none left out; None where
            that is not known.
        users: Rows of the same end user have the same code, as `episodes`.
        cut: Whether a decision of the episode of a row is not among the rows, shape (n,); None for none.
        categorize: Returns the discrete features of the arms of rows; None where there are none.

    Raises:
        ValueError: Shapes that differ, an empty log, or a value out of its range.
    """

    arms: tuple[str, ...]
    drawn: Integers
    propensity: Floats
    reward: Floats
    questions: Integers
    seq: Integers
    at: Floats
    version: Integers
    p_log: Floats | None
    excluded: Mapping[str, int] = field(default_factory=dict)
    describe: Describe | None = None
    estimated: int = 0
    episodes: Integers | None = None
    users: Integers | None = None
    cut: Flags | None = None
    categorize: Describe | None = None

    def __post_init__(self) -> None:
        n = len(self.reward)
        if not n:
            raise EmptyLogError(f"no example can be evaluated; left out: {dict(self.excluded)}")
        for name in ("drawn", "propensity", "reward", "questions", "seq", "at", "version"):
            if (shape := getattr(self, name).shape) != (n,):
                raise ValueError(f"{name} must have the shape ({n},) of reward, got {shape}")
        refuse("drawn", self.drawn, (self.drawn >= 0) & (self.drawn < len(self.arms)), "a column of arms")
        refuse("reward", self.reward, np.isfinite(self.reward), "finite")
        if self.has_propensities or self.p_log is not None:
            possible = (self.propensity > 0.0) & (self.propensity <= 1.0 + TOLERANCE)
            refuse("propensity", self.propensity, possible, "in (0, 1]")
        for what, name in CLUSTERS.items():
            codes = getattr(self, name)
            if codes is None and what != "question":
                continue
            if codes.shape != (n,):
                raise ValueError(f"{name} must have the shape ({n},) of reward, got {codes.shape}")
            refuse(f"{what} code", codes, (codes >= 0) & (codes < n), f"below {n}")
            rows = np.bincount(codes)
            refuse(f"rows of a {what} code", rows, rows > 0, "above 0: codes are 0, 1, 2 and so on")
        if self.p_log is not None:
            if self.p_log.shape != (n, len(self.arms)):
                raise ValueError(f"p_log must have the shape ({n}, {len(self.arms)}), got {self.p_log.shape}")
            refuse_unless_distributions("p_log", self.p_log)
            same = np.abs(drawn_of(self.p_log, self.drawn) - self.propensity) <= TOLERANCE
            refuse("propensity", self.propensity, same, "the value of p_log for the drawn arm")

    def __len__(self) -> int:
        return len(self.reward)

    @cached_property
    def has_propensities(self) -> bool:
        """Whether propensities are known: without them nothing can be weighed."""
        return not bool(np.isnan(self.propensity).all())

    @property
    def n_questions(self) -> int:
        """Number of different questions."""
        return int(self.questions.max()) + 1

    @cached_property
    def column(self) -> Mapping[str, int]:
        """The column of each arm."""
        return {arm: j for j, arm in enumerate(self.arms)}

    @cached_property
    def X(self) -> Any:  # noqa: N802 - a matrix, as in scikit-learn
        """Features of each row, shape (n, d), sparse or dense; computed on first access.

        Raises:
            ValueError: The log has none.
        """
        if self.describe is None:
            raise ValueError("the log has no features: read it from a source, or give `describe`")
        return self.describe(self.seq)

    @cached_property
    def categories(self) -> Integers:
        """Discrete features of each arm in each row, shape (n, n_arms, n_features); see `arm_categories`.

        Raises:
            ValueError: The log has none.
        """
        if self.categorize is None:
            raise ValueError("the log has no features of its arms")
        codes: Integers = self.categorize(self.seq)
        if codes.ndim != 3 or codes.shape[:2] != (len(self), len(self.arms)):
            raise ValueError(
                f"categories must be {len(self), len(self.arms)} and features, got {codes.shape}"
            )
        if not codes.shape[2]:
            raise ValueError("the log has no features of its arms")
        return codes

    def clustered(self, by: str | None) -> "Log":
        """Return the log with rows that share something as one observation, in the place of a question.

        Args:
            by: A name out of `CLUSTERS`; None where each row is one observation.

        Raises:
            ValueError: Another name, or the log does not have it.

        >>> pairs = Log.from_arrays(("a",), np.array([0, 0]), np.ones(2), propensity=np.ones(2))
        >>> pairs.clustered(None).questions.tolist()
        [0, 1]
        """
        if by is None:
            return replace(self, questions=np.arange(len(self)))
        if by not in CLUSTERS:
            raise ValueError(f"no cluster {by!r}; there are: {', '.join(CLUSTERS)}")
        codes = getattr(self, CLUSTERS[by])
        if codes is None:
            raise ValueError(f"the log does not say which rows share a {by}")
        return self if by == "question" else replace(self, questions=codes)

    def where(self, kept: Flags) -> "Log":
        """Return the log of some rows, at least one; `kept` has shape (n,)."""
        cut = None if self.cut is None else self.cut[kept]
        if self.episodes is not None:
            missing = np.bincount(self.episodes, ~kept) > 0
            cut = missing[self.episodes[kept]] | (False if cut is None else cut)
        describe = self.describe
        if "X" in self.__dict__:  # computing them again may take minutes

            def describe(seq: Integers) -> Any:
                return self.X[np.searchsorted(self.seq, seq)]

        categorize = self.categorize
        if "categories" in self.__dict__:

            def categorize(seq: Integers) -> Any:
                return self.categories[np.searchsorted(self.seq, seq)]

        return replace(
            self,
            describe=describe,
            categorize=categorize,
            cut=cut,
            drawn=self.drawn[kept],
            propensity=self.propensity[kept],
            reward=self.reward[kept],
            questions=_renumbered(self.questions[kept]),
            episodes=None if self.episodes is None else _renumbered(self.episodes[kept]),
            users=None if self.users is None else _renumbered(self.users[kept]),
            seq=self.seq[kept],
            at=self.at[kept],
            version=self.version[kept],
            p_log=None if self.p_log is None else self.p_log[kept],
        )

    def eligible(self, arm: str) -> Flags:
        """Return the rows in which an arm was eligible, shape (n,); all rows where that is not known.

        Raises:
            ValueError: The arm is not in the log.
        """
        if arm not in self.column:
            raise ValueError(f"arm {arm!r} is not in the log; it has: {', '.join(self.arms)}")
        if self.p_log is None:
            return np.ones(len(self), dtype=np.bool_)
        possible: Flags = self.p_log[:, self.column[arm]] > 0.0
        return possible

    def reach(self, p_target: Floats) -> Floats:
        """Return the largest weight that each row could have had under a target, shape (n,).

        Where only the propensity of the drawn arm is known, the other arms are taken to be as likely: a
        guess for hedging, not a bound. Where none is known, nothing has a weight.

        Args:
            p_target: The distribution of the target, shape (n, n_arms).

        >>> log = Log.from_arrays(("bm25", "dense"), np.array([0]), np.ones(1), p_log=np.array([[0.8, 0.2]]))
        >>> log.reach(np.array([[0.5, 0.5]])).tolist()
        [2.5]
        """
        if not self.has_propensities:
            return np.zeros(len(self))
        # A propensity may differ from p_log by a rounding error, and with it the drawn arm's weight.
        weight = drawn_of(p_target, self.drawn) / self.propensity
        if self.p_log is None:
            ratio = p_target / self.propensity[:, np.newaxis]
        else:
            ratio = np.divide(p_target, self.p_log, out=np.zeros_like(p_target), where=self.p_log > 0.0)
        reach: Floats = np.maximum(ratio.max(axis=1), weight)
        return reach

    @classmethod
    def from_arrays(
        cls,
        arms: tuple[str, ...],
        drawn: Integers,
        reward: Floats,
        *,
        p_log: Floats | None = None,
        propensity: Floats | None = None,
        questions: Integers | None = None,
        X: Any = None,  # noqa: N803 - a matrix, as in scikit-learn
        episodes: Integers | None = None,
        users: Integers | None = None,
        categories: Integers | None = None,
    ) -> "Log":
        """Return a log made from arrays, such as those of a simulation.

        Args:
            arms: Names of the columns.
            drawn: Column of the arm that was drawn, shape (n,).
            reward: Reward, shape (n,).
            p_log: The logged distribution, shape (n, n_arms).
            propensity: Propensity of the drawn arm, shape (n,); by default taken from `p_log`.
            questions: Codes of the questions, shape (n,); None where each row has its own.
            X: Features, shape (n, d).
            episodes: Codes of the episodes or slates, shape (n,), in the order of the rows.
            users: Codes of the end users, shape (n,).
            categories: Discrete features of each arm in each row, as codes, shape (n, n_arms, n_features).

        Raises:
            ValueError: Neither `p_log` nor `propensity`, or as `Log`.
        """
        n = len(reward)
        if propensity is None:
            if p_log is None:
                raise ValueError("a log needs p_log, or the propensity of the drawn arms")
            propensity = drawn_of(p_log, drawn)
        return cls(
            arms=arms,
            drawn=drawn,
            propensity=propensity,
            reward=reward,
            questions=np.arange(n) if questions is None else questions,
            seq=np.arange(1, n + 1),
            at=np.zeros(n),
            version=np.zeros(n, dtype=np.int64),
            p_log=p_log,
            describe=None if X is None else lambda seq: X[seq - 1],
            episodes=episodes,
            users=users,
            categorize=None if categories is None else lambda seq: categories[seq - 1],
        )

    @classmethod
    def from_examples(
        cls,
        examples: Iterable[Example],
        rule: RewardRule,
        selection: Selection = EVERYTHING,
        describe: Describe | None = None,
        categorize: Categorize | None = None,
    ) -> "Log":
        """Return a log of the examples that a policy drew from a distribution and that have a reward.

        Args:
            examples: The training log, in order.
            rule: The rule of their rewards.
            selection: Which of them are selected.
            describe: Returns their features.
            categorize: Returns the discrete features of arms, by their names, at some positions.

        Raises:
            EmptyLogError: No example is left.
        """
        return cls.from_batches(batches_of(examples, rule, selection), selection, describe, categorize)

    @classmethod
    def from_batches(
        cls,
        batches: Iterable[ExampleBatch],
        selection: Selection = EVERYTHING,
        describe: Describe | None = None,
        categorize: Categorize | None = None,
    ) -> "Log":
        """Return a log of columns, which must include the features of the selection."""
        rows = LogFilter(selection)
        for batch in batches:
            rows.add(batch)
        columns = rows.kept()
        arms = columns["arms"]
        return cls(
            **columns,
            describe=describe,
            categorize=None if categorize is None else partial(categorize, arms),
        )

"""The table of decisions: draws and their outcomes as columns. Row i is one decision.

    tabulate(examples, rule)                             from facts, such as those of a file
    log_columns.read_learned(store, rule, selection)     from a database: the training log
    log_columns.read_decisions(store, rule, since=...)   from a database: all decisions of a time

Replay, audits, proofs and reports read it. Which decisions are settled is determined in
`feedback.training_log.settled` alone, and is a column.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain, islice
from math import fsum, inf, nan
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np

from armwise.feedback.arrays import Flags, Floats, Integers
from armwise.feedback.events import (
    ELSEWHERE,
    FAILURES,
    LABELS,
    Context,
    Cost,
    Decision,
    Example,
    Mode,
    Status,
)
from armwise.feedback.reward import Arithmetic, Prices, RewardRule
from armwise.feedback.texts import digest_question, find_value


@dataclass(frozen=True, slots=True)
class Selection:
    """Which decisions of a log are selected; the default selects all.

    Attributes:
        since: Earliest time of the decision, seconds since the epoch, UTC.
        until: Time before which it was made, seconds since the epoch, UTC.
        versions: Versions that drew it; empty: any.
        features: Values of named features of the context; a feature that it lacks counts as 0.
        prefix: Prefix of the id.
        excluded_id_part: Text whose presence in an id leaves the decision out; empty: none.
        after: Position of the training log after which reading starts.
    """

    since: float | None = None
    until: float | None = None
    versions: tuple[int, ...] = ()
    features: Mapping[str, float] = field(default_factory=dict)
    prefix: str = ""
    excluded_id_part: str = ""
    after: int = 0

    def __post_init__(self) -> None:
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ValueError(
                f"the window from {format_time(self.since)} to {format_time(self.until)} is empty"
            )

    def __str__(self) -> str:
        """Return the selection as text.

        >>> str(Selection(until=0.0, versions=(3, 4), features={"tier=free": 1.0}))
        'until 1970-01-01T00:00:00Z, versions 3, 4, tier=free is 1'
        """
        parts = [
            *([f"since {format_time(self.since)}"] if self.since is not None else []),
            *([f"until {format_time(self.until)}"] if self.until is not None else []),
            *([f"versions {', '.join(map(str, self.versions))}"] if self.versions else []),
            *(f"{name} is {value:g}" for name, value in self.features.items()),
            *([f"ids with {self.prefix!r} first"] if self.prefix else []),
            *([f"ids without {self.excluded_id_part!r}"] if self.excluded_id_part else []),
            *([f"after example {self.after:,}"] if self.after else []),
        ]
        return ", ".join(parts) or "all decisions"

    def has_id(self, name: str) -> bool:
        """Return whether the id of a decision is selected.

        >>> acme, others = Selection(prefix="acme~"), Selection(excluded_id_part="~")
        >>> [selection.has_id(name) for selection in (acme, others) for name in ("acme~d", "d")]
        [True, False, False, True]
        """
        return name.startswith(self.prefix) and (
            not self.excluded_id_part or self.excluded_id_part not in name
        )

    def has(self, decision: Decision) -> bool:
        """Return whether a decision is selected, as `Decisions.match` says of many."""
        at, features = decision.decided_at, decision.context.features
        return (
            self.has_id(decision.id)
            and (self.since is None or at >= self.since)
            and (self.until is None or at < self.until)
            and (not self.versions or decision.version in self.versions)
            and all(find_value(features, name, 0.0) == value for name, value in self.features.items())
        )


EVERYTHING = Selection()


def format_time(at: float) -> str:
    """Return seconds since the epoch as a date and a time, UTC.

    >>> format_time(1.5)
    '1970-01-01T00:00:01.500Z'
    """
    moment = datetime.fromtimestamp(at, UTC)
    return moment.isoformat(timespec="milliseconds" if at % 1 else "seconds").replace("+00:00", "Z")


# -- examples as columns ---------------------------------------------------------------------------


ProgressCallback = Callable[[str, int, int | None], None]
"""Called with the step, the amount that is done, and the total if it is known."""

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
    def from_column(cls, column: Sequence[T]) -> "Categorical[T]":
        """Encode a column, values in order of first occurrence.

        >>> Categorical.from_column("abba").codes.tolist()
        [0, 1, 1, 0]
        """
        values = list(dict.fromkeys(column))
        code = {value: i for i, value in enumerate(values)}
        return cls(values, np.fromiter(map(code.__getitem__, column), np.int64, len(column)))

    def each(self, of: Callable[[T], bool]) -> Flags:
        """Return a predicate of each row, shape (n,), evaluated once for each value."""
        return np.array([of(value) for value in self.values], dtype=np.bool_)[self.codes]


class DrawKey(NamedTuple):
    """The part of a decision that many share: its texts.

    Attributes:
        mode: How the arm was chosen.
        policy: Kind of policy.
        arms: The eligible arms.
        drawn: The drawn arm.
        status: How its execution ended; empty before that.
    """

    mode: str
    policy: str
    arms: tuple[str, ...]
    drawn: str
    status: str

    @property
    def failed(self) -> bool:
        """Whether the drawn arm, or what answered with it, failed."""
        return self.status in FAILURES


@dataclass(frozen=True)
class Decisions:
    """Consecutive decisions, as columns of shape (n,); NaN stands for what is missing.

    Columns that a reader was not asked for are NaN, `settled` is True and `context` empty.

    Attributes:
        seq: Positions in the log, or in the training log.
        at: Times of the decisions, seconds since the epoch, UTC.
        version: Versions that drew them.
        draw: How each arm was drawn, and how its execution ended.
        id: A hash of the id.
        question: A hash of the question, the same in all parts of a log.
        episode: A hash of the episode; `id` outside of episodes.
        user: A hash of the end user; `id` if the user is unknown.
        propensity: Logged probability of the drawn arm.
        p: Probabilities of the first row, then of the second, and so on; shape (sum of n_p,).
        n_p: Number of probabilities of each row: one for each arm, 0, or 1 if only that of the first arm is
            known.
        reward: Rewards.
        has_id: Whether the id is selected.
        features: Values of the named features of the selection; 0 if a context lacks one.
        settled: Whether the reward is final.
        usd: Dollars of the answer.
        seconds: Seconds of the answer.
        floor: Least probability that the row claims for an eligible arm; NaN: it claims none, as where
            another decider takes part.
        context: The input of the policy.
        unreadable: Number of decisions among these that cannot be read, and are no rows.
    """

    seq: Integers
    at: Floats
    version: Integers
    draw: Categorical[DrawKey]
    id: Integers
    question: Integers
    episode: Integers
    user: Integers
    propensity: Floats
    p: Floats
    n_p: Integers
    reward: Floats
    has_id: Flags
    features: Mapping[str, Floats]
    settled: Flags
    usd: Floats
    seconds: Floats
    floor: Floats
    context: Sequence[Context] = ()
    unreadable: int = 0

    def __len__(self) -> int:
        return len(self.seq)

    @cached_property
    def width(self) -> Integers:
        """Number of eligible arms, shape (n,)."""
        return np.array([len(key.arms) for key in self.draw.values], dtype=np.int64)[self.draw.codes]

    @cached_property
    def start(self) -> Integers:
        """Index in `p` of the first probability of each row, shape (n,)."""
        start: Integers = np.cumsum(self.n_p) - self.n_p
        return start

    @cached_property
    def whole(self) -> Flags:
        """Whether a probability of each eligible arm is known, shape (n,)."""
        whole: Flags = (self.n_p == self.width) & (self.n_p > 0)
        return whole

    @cached_property
    def explored(self) -> Flags:
        """Whether the arm was drawn from the distribution, shape (n,)."""
        return self.draw.each(lambda key: key.mode == Mode.EXPLORE)

    @cached_property
    def drawn(self) -> Flags:
        """Whether a policy drew the arm, shape (n,): not the caller, and not for a label."""
        return self.explored & self.draw.each(lambda key: key.policy != LABELS)

    def match(self, selection: Selection) -> Flags:
        """Return whether each row is selected, shape (n,); its columns were read for that selection."""
        kept: Flags = np.array(self.has_id, dtype=np.bool_)
        if selection.since is not None:
            kept &= self.at >= selection.since
        if selection.until is not None:
            kept &= self.at < selection.until
        if selection.versions:
            kept &= np.isin(self.version, selection.versions)
        for name, value in selection.features.items():
            kept &= self.features[name] == value
        return kept

    def place(self, arm: str | None = None) -> Integers:
        """Return the index of an arm among the eligible ones, shape (n,); -1: it was not eligible.

        Args:
            arm: The arm; None: the drawn arm.
        """
        named = [(key.drawn if arm is None else arm, key.arms) for key in self.draw.values]
        places = [arms.index(name) if name in arms else -1 for name, arms in named]
        return np.array(places, dtype=np.int64)[self.draw.codes]

    def possible(self, arm: str) -> Flags:
        """Return whether an arm could be drawn, shape (n,): eligible, its probability above 0 or unknown."""
        place = self.place(arm)
        possible: Flags = place >= 0
        known = np.flatnonzero(possible & self.whole)
        possible[known] = self.p[self.start[known] + place[known]] > 0.0
        return possible

    def distributions(self, rows: Integers, column: Mapping[str, int]) -> Floats:
        """Return distributions, with a column for each arm, shape (len(rows), n_columns).

        An eligible arm whose probability is not on record has NaN.

        Args:
            rows: Indices of the decisions.
            column: The column of each arm.
        """
        p, codes = np.zeros((len(rows), len(column))), self.draw.codes[rows]
        for code in np.unique(codes).tolist():
            same = np.flatnonzero(codes == code)
            columns = [column[arm] for arm in self.draw.values[code].arms]
            known = self.whole[rows[same]]
            p[same[known, np.newaxis], columns] = self.p[
                self.start[rows[same[known]], np.newaxis] + np.arange(len(columns))
            ]
            p[same[~known, np.newaxis], columns] = nan
        return p

    def where(self, kept: Flags) -> "Decisions":
        """Return the rows selected by `kept`, shape (n,)."""
        return self.take(np.flatnonzero(kept))

    def take(self, order: Integers) -> "Decisions":
        """Return the rows at some indices, in that order, shape (n_taken,)."""
        sizes = self.n_p[order]
        within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        columns = {name: getattr(self, name)[order] for name in _COLUMNS}
        values, codes = np.unique(self.draw.codes[order], return_inverse=True)
        return replace(
            self,
            **columns,
            draw=Categorical([self.draw.values[code] for code in values.tolist()], codes),
            p=self.p[np.repeat(self.start[order], sizes) + within],
            features={name: values[order] for name, values in self.features.items()},
            context=[self.context[row] for row in order.tolist()] if self.context else (),
        )


_COLUMNS = tuple(
    field.name
    for field in fields(Decisions)
    if field.name not in ("draw", "p", "features", "context", "unreadable")
)


def concatenate(parts: Sequence[Decisions]) -> Decisions:
    """Return the rows of the parts of a log, in order; there must be at least one part."""
    first = parts[0]
    code = {key: i for i, key in enumerate(dict.fromkeys(key for part in parts for key in part.draw.values))}
    codes = [
        np.array([code[key] for key in part.draw.values], dtype=np.int64)[part.draw.codes] for part in parts
    ]
    return Decisions(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in (*_COLUMNS, "p")},
        draw=Categorical(list(code), np.concatenate(codes)),
        features={name: np.concatenate([part.features[name] for part in parts]) for name in first.features},
        context=[context for part in parts for context in part.context],
        unreadable=sum(part.unreadable for part in parts),
    )


def encode(values: Integers) -> Integers:
    """Code values by the order in which they first come, shape (n,).

    >>> encode(np.array([7, -2, 7, 5])).tolist()
    [0, 1, 0, 2]
    """
    _, first, code = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int32)  # in a long log, codes take a good part of the memory
    rank[np.argsort(first)] = np.arange(len(first))
    return cast(Integers, rank[code])


def tabulate(
    examples: Iterable[Example], rule: RewardRule, selection: Selection = EVERYTHING, settled: float = inf
) -> Iterator[Decisions]:
    """Yield examples as columns, a few thousand at a time.

    Args:
        examples: The examples, in order.
        rule: The rule of their rewards.
        selection: Determines the columns `has_id` and `features`; all examples become rows.
        settled: Time before which decisions are settled, seconds since the epoch.
    """
    rest = (example for example in examples if example.seq > selection.after)
    while chunk := list(islice(rest, _CHUNK)):
        decisions = [example.decision for example in chunk]
        at = _column(d.decided_at for d in decisions)
        name = np.array([hash(d.id) for d in decisions])
        failed = np.array([x.failed for x in chunk], dtype=np.bool_)
        yield Decisions(
            seq=np.array([example.seq for example in chunk]),
            at=at,
            version=np.array([d.version for d in decisions]),
            draw=Categorical.from_column(
                [
                    DrawKey(
                        str(d.mode), d.policy, d.arms, d.drawn, Status.ARM_FAILED if x.failed else Status.OK
                    )
                    for x, d in zip(chunk, decisions, strict=True)
                ]
            ),
            id=name,
            question=np.array(
                [hash(d.id if d.erased else digest_question(d.context.question)) for d in decisions]
            ),
            episode=np.array([hash(d.id if d.episode_id is None else d.episode_id) for d in decisions]),
            user=np.array([hash(d.id if d.user_digest is None else d.user_digest) for d in decisions]),
            propensity=np.array([_propensity(d.arms, d.probabilities, d.drawn) for d in decisions]),
            p=np.fromiter(chain.from_iterable(d.probabilities for d in decisions), dtype=np.float64),
            n_p=np.array([len(d.probabilities) for d in decisions]),
            reward=rewards(
                rule,
                {name: _column(x.metrics.get(name, np.nan) for x in chunk) for name in rule.metrics},
                _costs(chunk, rule),
                failed,
            ),
            has_id=np.array([selection.has_id(d.id) for d in decisions], dtype=np.bool_),
            features={
                name: _column(find_value(d.context.features, name, 0.0) for d in decisions)
                for name in selection.features
            },
            settled=np.asarray(at < settled),
            usd=_column(x.cost.usd for x in chunk),
            seconds=_column(x.cost.retrieval_s + x.cost.llm_s for x in chunk),
            floor=_column(
                d.floor if d.floor and not d.share and d.policy not in ELSEWHERE else nan for d in decisions
            ),
            context=[d.context for d in decisions],
        )


def _costs(chunk: Sequence[Example], rule: RewardRule) -> dict[str, Floats]:
    """Return the priced parts of the raw cost of a turn, tokens at today's prices."""
    columns = {name: _column(getattr(x.cost, name) for x in chunk) for name in list_priced(rule.cost)}
    if rule.prices_tokens:
        columns["usd"] = _column(rule.usd_today(x.cost.usd, x.tokens_by_model) for x in chunk)
    turns = _column(x.turns for x in chunk)
    return {name: values / turns for name, values in columns.items()}


def _column(values: Iterable[float]) -> Floats:
    return np.fromiter(values, np.float64)


def _propensity(arms: tuple[str, ...], p: tuple[float, ...], drawn: str) -> float:
    """Return the probability of the drawn arm; NaN: unknown."""
    return dict(zip(arms, p, strict=False)).get(drawn, np.nan)


# -- rewards over columns --------------------------------------------------------------------------


PRICED: Mapping[str, tuple[str, ...]] = {
    "steps": ("steps",),
    "kilotokens": ("prompt_tokens", "completion_tokens"),
    "seconds": ("retrieval_s", "llm_s"),
    "usd": ("usd",),
}
"""The attributes of `Cost` that each price applies to."""


def list_priced(prices: Prices) -> tuple[str, ...]:
    """Return the attributes of `Cost` that have a price.

    >>> list_priced(Prices(steps=0.5, usd=1.0))
    ('steps', 'usd')
    """
    return tuple(name for price, names in PRICED.items() if getattr(prices, price) for name in names)


def rewards(
    rule: RewardRule,
    metrics: Mapping[str, Floats],
    cost: Mapping[str, Floats],
    failed: Flags,
) -> Floats:
    """Return `RewardRule.compute_reward` of each decision, shape (n,); NaN for None.

    Args:
        rule: The reward formula.
        metrics: Aggregated values of each metric that the rule declares, shape (n,); NaN: missing.
        cost: The priced parts of the raw cost, shape (n,), by attribute of `Cost`.
        failed: Whether the drawn arm failed, shape (n,).

    >>> rule = RewardRule.model_validate({"metrics": {"right": {}}, "cost_weight": 0.1, "failed": 0.0})
    >>> values, steps = np.array([1.0, 1.0, np.nan, np.nan]), np.array([2.0, 2.0, 1.0, 1.0])
    >>> failed = np.array([False, False, False, True])
    >>> rewards(rule, {"right": values}, {"steps": steps}, failed).tolist()
    [0.8, 0.8, nan, -0.1]
    """
    total = cast(Any, rule.cost).total(cast(Any, Cost)(**{name: cost.get(name, 0.0) for name in _COST}))
    priced_cost = np.broadcast_to(np.float64(total), failed.shape)
    has_value = {name: ~np.isnan(metrics[name]) for name in rule.metrics}
    column = np.full(failed.shape, np.nan)
    for rows in _alike([failed, *has_value.values()]):
        values = {name: metrics[name][rows] for name, some in has_value.items() if some[rows[0]]}
        lost = bool(failed[rows[0]])
        reward = rule.formula(values, priced_cost[rows], failed=lost, arithmetic=COLUMNS)
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

"""Read rows of a table as examples of a training log: the meaning of columns and of values.

    records --Layout.rows--> rows --RowReader--> examples

    question, arm, propensity, reward, time, id, episode, user     one column each
    costs, features                                                 a column for each name
    distribution                                                    a column of JSON, or a column an arm

All formats of other systems end here (`armwise.feedback.exchange.systems`,
`armwise.feedback.exchange.outcomes`), so values are read, and wrong ones reported, in the same way for all.
"""

import difflib
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from armwise.feedback.clock import require_date
from armwise.feedback.events import ESTIMATED, IMPORTED, Context, Cost, Decision, Example
from armwise.feedback.exchange.imported import (
    NO_DISTRIBUTION,
    NOT_A_PROBABILITY,
    NOT_DRAWN,
    BadValue,
    check_agreement,
    cut,
    distribution,
    possible,
    sound,
    worth,
)
from armwise.feedback.exchange.messages import last_text
from armwise.feedback.exchange.records import FileRecord, names_in, occurs, open_up, value_at
from armwise.feedback.jsonl import ExchangeError
from armwise.feedback.texts import compress

FIELDS = ("question", "arm", "propensity", "reward", "time", "id", "episode", "user", "distribution")
"""Fields that a column can hold, besides costs and features."""

COSTS: Mapping[str, tuple[str, float]] = {
    "usd": ("usd", 1.0),
    "seconds": ("llm_s", 1.0),
    "milliseconds": ("llm_s", 1e-3),
    "prompt_tokens": ("prompt_tokens", 1.0),
    "completion_tokens": ("completion_tokens", 1.0),
    "steps": ("steps", 1.0),
    "retrieval_seconds": ("retrieval_s", 1.0),
}
"""Names of costs: the attribute of `Cost` and the factor to its unit."""

WHOLE_NUMBERS = ("prompt_tokens", "completion_tokens", "steps")

TRUE, FALSE = frozenset(("true", "t", "yes", "pass")), frozenset(("false", "f", "no", "fail"))
"""Texts that are read as the rewards 1 and 0, in any case."""

MISSING = frozenset(("", "null", "none", "nan", "na", "n/a", "<na>"))
"""Texts that stand for a missing number, in any case."""

SAMPLE = 1000
"""First rows, in which every column must occur at least once."""

MOST_ARMS = 10_000
"""Largest number of arms of a log: with more, the column holds something else."""

Names = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Columns:
    """The name of the column of each field; None: the file lacks it.

    Attributes:
        question: Text of the question, or messages of a chat; without it, the id serves as question.
        arm: The drawn arm.
        propensity: Probability with which it was drawn, in (0, 1].
        reward: A number, or true/false, yes/no, pass/fail.
        time: Time of the decision: seconds, ms, us or ns since the epoch, or ISO 8601, UTC without a zone.
        id: Unique id; without it, the place in the file serves as id.
        episode: Groups the decisions of a conversation.
        user: The end user, of whom a digest is kept.
        distribution: Probabilities as JSON, by arm or in the order of the arms.
        prefix: Prefix of the columns that each hold the probability of an arm.
        costs: Columns by name of the cost, out of `COSTS`.
        features: Columns by name of the feature.
    """

    question: str | None = None
    arm: str | None = None
    propensity: str | None = None
    reward: str | None = None
    time: str | None = None
    id: str | None = None
    episode: str | None = None
    user: str | None = None
    distribution: str | None = None
    prefix: str | None = None
    costs: Mapping[str, str] = field(default_factory=dict)
    features: Mapping[str, str] = field(default_factory=dict)

    def list_columns(self) -> Iterator[tuple[str, str]]:
        """Yield each field with its column."""
        for name in FIELDS:
            if (column := getattr(self, name)) is not None:
                yield name, column
        if self.prefix is not None:
            yield "distribution", f"{self.prefix}<arm>"
        yield from ((f"cost {name}", column) for name, column in self.costs.items())
        yield from ((f"feature {name}", column) for name, column in self.features.items())

    @property
    def whole(self) -> bool:
        """Whether the file has complete distributions."""
        return self.distribution is not None or self.prefix is not None


def never(row: Mapping[str, Any]) -> bool:
    """Return False."""
    del row
    return False


def nothing(row: Mapping[str, Any]) -> None:
    """Return no reward."""
    del row


def as_it_is(record: FileRecord) -> Iterable[FileRecord]:
    """Return a record as the only row in it."""
    return (record,)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the files of a system are read.

    Attributes:
        name: Name of the format.
        fields: Columns that are tried for a field that no option names; the first that occurs counts.
        costs: Columns that are tried for a cost.
        rows: Yields the decisions in a record as rows; a record of another kind has none.
        joins: Columns whose value feedback refers to, the first with feedback counts; empty: the columns of
            the id and of the episode.
        failed: Returns whether the arm of a row failed.
        cached: Returns whether the answer of a row came from a cache.
        features: Prefix of the columns of features that no option names; empty: there are none.
    """

    name: str
    fields: Names
    costs: Names = field(default_factory=dict)
    rows: Callable[[FileRecord], Iterable[FileRecord]] = as_it_is
    joins: tuple[str, ...] = ()
    failed: Callable[[Mapping[str, Any]], bool] = never
    cached: Callable[[Mapping[str, Any]], bool] = never
    features: str = ""


ARMS = ("arm", "arm_id", "action", "route", "model", "variant", "treatment")
"""Columns of a table that are tried for the arm."""

ACT, KEEP, BOTH = "act", "keep", "act_prob and keep_prob"

TWO_ARMS = {ACT: ACT, "1": ACT, "1.0": ACT, "true": ACT, KEEP: KEEP, "0": KEEP, "0.0": KEEP, "false": KEEP}
"""How the arm of a policy that acts or keeps still is written, in lower case."""


def with_both_probabilities(record: FileRecord) -> Iterator[FileRecord]:
    """Yield a record with both probabilities of a policy that acts or keeps still, if it is of one."""
    values = dict(record.values)
    column = next((name for name in ARMS if name in values), "")
    arm = TWO_ARMS.get(str(values.get(column)).strip().lower())
    act, keep = (values.get(name) for name in ("act_prob", "keep_prob"))
    if arm is None or (is_missing(act) and is_missing(keep)):
        yield record
        return
    try:
        act = 1.0 - number(keep) if is_missing(act) else act
        keep = 1.0 - number(act) if is_missing(keep) else keep
    except (ValueError, TypeError):
        keep = act  # the row is reported with what it has
    values = {name: value for name, value in values.items() if name not in ("act_prob", "keep_prob")}
    yield replace(record, values={**values, column: arm, BOTH: {ACT: act, KEEP: keep}})


QUESTIONS = ("question", "prompt", "query", "input", "text", "context", "messages", "conversations")
"""Columns of a table that are tried for the question."""

TABLE = Layout(
    "table",
    fields={
        "question": QUESTIONS,
        "arm": ARMS,
        "propensity": (
            *("propensity", "pscore", "propensity_score", "probability", "prob", "chance", "p"),
            *("action_prob", "act_prob"),
        ),
        "reward": ("reward", "score", "rating", "feedback", "label", "outcome"),
        "time": ("time", "timestamp", "ts", "when", "decided_at", "predicted_at", "created_at", "date"),
        "id": ("id", "decision_id", "request_id", "event_id", "interaction_id"),
        "episode": ("episode", "episode_id", "session", "session_id", "conversation_id"),
        "user": ("user", "user_id"),
        "distribution": ("distribution", "probabilities", BOTH),
    },
    costs={
        "usd": ("usd", "cost_usd", "cost", "dollars"),
        "seconds": ("seconds", "latency_s", "duration_s"),
        "milliseconds": ("milliseconds", "latency_ms", "duration_ms"),
        "prompt_tokens": ("prompt_tokens", "input_tokens"),
        "completion_tokens": ("completion_tokens", "output_tokens"),
    },
    rows=with_both_probabilities,
    features="feature_",
)
"""The layout of a generic table, with the names of columns that are tried."""


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the end of a message about a column that is missing.

    >>> nearest("rout", ["route", "score"])
    "; did you mean 'route'? Available: route, score"
    """
    columns = sorted(names)
    close = difflib.get_close_matches(name, columns, n=1)
    return (f"; did you mean {close[0]!r}? Available: " if close else "; available: ") + (
        ", ".join(columns[:60]) or "none"
    )


def understand(layout: Layout, given: Columns, rows: Iterable[FileRecord], source: object) -> Columns:
    """Return the columns of a file: those that options name, otherwise those that the layout tries.

    Args:
        layout: The format.
        given: The columns that options name.
        rows: First rows, in which a column must occur.
        source: The file, for messages.

    Raises:
        ExchangeError: A named column is missing, or the column of the arm is.
    """
    names: dict[str, None] = {}
    inner: dict[str, None] = {}  # columns that were named, as far as they are within a value
    faults: list[str] = []
    for row in rows:
        names.update(dict.fromkeys(names_in(row.values)))
        inner.update(dict.fromkeys(name for _, name in given.list_columns() if occurs(row.values, name)))
        if row.fault and not faults:
            faults.append(f"; {row.where}: {row.fault}")
    if not names:
        raise ExchangeError(f"{source}: it has no rows in the format {layout.name}{''.join(faults)}")
    _confirm(given, names | inner, source)
    free = [name for name in names if name not in {column for _, column in given.list_columns()}]
    understood: dict[str, Any] = {}
    for what in FIELDS:
        taken = getattr(given, what) is not None or (what == "distribution" and given.prefix is not None)
        if not taken and (free_column := _first_free(layout.fields.get(what, ()), free, source)) is not None:
            understood[what] = free_column
    costs = dict(given.costs)
    for cost, tried in layout.costs.items():
        spent = {COSTS[name][0] for name in costs}
        if COSTS[cost][0] not in spent and (amount := _first_free(tried, free, source)) is not None:
            costs[cost] = amount
    features = dict(given.features)
    if layout.features:
        features |= {name: name for name in free if name.startswith(layout.features)}
    columns = replace(given, **understood, costs=costs, features=features)
    if columns.arm is None:
        raise ExchangeError(
            f"{source}: no column for the arm: name it with --arm (tried: "
            f"{', '.join(layout.fields.get('arm', ()))}); columns: {', '.join(list(names)[:60])}"
        )
    return columns


def _first_free(tried: Iterable[str], free: list[str], source: object) -> str | None:
    """Return and remove the first column that occurs, if any. Raises ExchangeError if two do."""
    for name in tried:
        if name in free:
            free.remove(name)
            return name
        if twice := [column for column in free if column.startswith(f"{name} (column ")]:
            raise ExchangeError(
                f"{source}: column {name!r} occurs twice in the first line; name the right one with its "
                f"option, such as {twice[0]!r}"
            )
    return None


def _confirm(given: Columns, names: Mapping[str, None], source: object) -> None:
    """Check that all named columns occur. Raises ExchangeError."""
    for what, column in given.list_columns():
        if what == "distribution" and given.prefix is not None:
            if not any(name.startswith(given.prefix) for name in names):
                hint = nearest(given.prefix, names)
                raise ExchangeError(f"{source}: no column begins with {given.prefix!r}{hint}")
        elif column not in names:
            raise ExchangeError(f"{source}: no column {column!r} for the {what}{nearest(column, names)}")


# -- values ----------------------------------------------------------------------------------------


def is_missing(value: Any) -> bool:
    """Return whether a value is missing.

    >>> is_missing(None), is_missing(" NaN "), is_missing(float("nan")), is_missing(0)
    (True, True, True, False)
    """
    if isinstance(value, str):
        return value.strip().lower() in MISSING
    return value is None or (isinstance(value, float) and math.isnan(value))


DECIMAL_COMMA = re.compile(r"\A(?:[+-]?(?!\d{1,3},\d{3}$)\d+,\d+|[+-]?0,\d+)")
"""A number whose comma must be a decimal comma rather than a separator of thousands."""


def number(value: Any) -> float:
    """Return a finite number; a comma may stand for the decimal point. Raises ValueError, TypeError.

    >>> number("0.5"), number("0,5"), number(3)
    (0.5, 0.5, 3.0)
    """
    if isinstance(value, bool):
        raise TypeError(f"{value} is not a number")
    try:
        if isinstance(value, str):
            text = value.strip()
            parsed = float(text.replace(",", ".") if DECIMAL_COMMA.fullmatch(text) else text)
        else:
            parsed = float(value)
    except OverflowError:
        parsed = math.inf
    if not math.isfinite(parsed):
        raise ValueError(f"{value!r:.80} is not finite")
    return parsed


def read_reward(value: Any) -> float:
    """Return a number, or 1 or 0 for a boolean or a text in `TRUE` or `FALSE`. Raises ValueError, TypeError.

    >>> read_reward(True), read_reward("No"), read_reward("0.5")
    (1.0, 0.0, 0.5)
    """
    text = str(value).strip().lower() if isinstance(value, bool | str) else ""
    return 1.0 if text in TRUE else 0.0 if text in FALSE else number(value)


ZONE = re.compile(r"(?<=\d) ?(?:utc|gmt|z)$|(?<=\d) (?=[+-]\d)", re.IGNORECASE)
"""UTC by name at the end of a time, which may be omitted, or the space before an offset."""


def seconds(value: Any) -> float:
    """Return seconds since the epoch: of s, ms, us or ns by their size, of ISO 8601, UTC without a zone.

    Databases write ISO 8601 with a space before the time, and UTC by its name or as `+00`.

    Raises:
        ValueError: The value is of another kind.

    >>> seconds(1767225600), seconds("1767225600250"), seconds("2026-01-01T00:00:00Z")
    (1767225600.0, 1767225600.25, 1767225600.0)
    >>> seconds("2026-01-01 00:00:00 UTC"), seconds("2026-01-01 05:45:00.5+05:45")
    (1767225600.0, 1767225600.5)
    """
    if isinstance(value, datetime | date):
        moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
        return _epoch(moment)
    text = value.strip() if isinstance(value, str) else ""
    try:
        at = number(text or value)
    except (ValueError, TypeError):
        if not text:
            raise ValueError("no time") from None
        return _epoch(_moment(text))
    if text and text.isdecimal() and len(text) == len("20260131"):
        return _epoch(_moment(text))
    for unit, most in ((1.0, 1e11), (1e-3, 1e14), (1e-6, 1e17)):
        if abs(at) < most:
            return require_date(at * unit)
    return require_date(at * 1e-9)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(ZONE.sub("", text))


def _epoch(moment: datetime) -> float:
    try:
        return require_date((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except OverflowError as error:
        raise ValueError(str(error)) from None


def name_feature(name: str, value: Any) -> tuple[str, float] | None:
    """Return a feature as a policy sees it: a text as `name=text`, a large number by its logarithm.

    >>> name_feature("tier", "free"), name_feature("beta", True)
    (('tier=free', 1.0), ('beta=true', 1.0))
    >>> name_feature("age", "10"), name_feature("age", "")
    (('age', 2.0), None)
    """
    if is_missing(value):
        return None
    if isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in ("true", "false")):
        return f"{name}={str(value).strip().lower()}", 1.0
    try:
        size = number(value)
    except (ValueError, TypeError):
        return f"{name}={value}", 1.0
    return name, compress(size)


def digest_of_user(user: str) -> str:
    """Return the digest that stands for a user; it hides only names that cannot be guessed."""
    return hashlib.blake2b(user.encode(), digest_size=16).hexdigest()


# -- rows as examples ------------------------------------------------------------------------------

Reward = Callable[[Mapping[str, Any]], Any]
"""Returns the reward of a row from separate feedback, if there is any."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row with its values parsed.

    Attributes:
        where: File, and the line or row.
        id: Id of the decision.
        question: Text of the question.
        arm: The drawn arm.
        features: Features as a policy sees them.
        propensity: Probability of the arm; None: unknown.
        distribution: Probabilities of all arms; empty if unknown.
        reward: The reward, if any.
        at: Time of the decision, seconds since the epoch.
        episode: The episode, if any.
        user: Digest of the user, if any.
        cost: The raw cost.
        failed: Whether the arm failed.
        cached: Whether the answer came from a cache.
    """

    where: str
    id: str
    question: str
    arm: str
    features: Mapping[str, float]
    propensity: float | None
    distribution: Mapping[str, float]
    reward: float | None
    at: float
    episode: str | None
    user: str | None
    cost: Cost
    failed: bool
    cached: bool


class RowReader:
    """Reads rows: every wrong value is a `BadValue`.

    Args:
        layout: The format.
        columns: The column of each field.
        scale: Smallest and largest reward.
        arms: Names of the arms, for distributions that are lists; other arms are refused. None: any arm.
        reward: Looks up rewards that the rows lack.
        root: Folder relative to which places serve as ids of rows without ids.
    """

    def __init__(
        self,
        layout: Layout,
        columns: Columns,
        scale: tuple[float, float],
        arms: Sequence[str] | None = None,
        reward: Reward = nothing,
        root: Path = Path(),
    ) -> None:
        self._layout, self._columns, self._scale = layout, columns, scale
        self._arms, self._reward = None if arms is None else tuple(arms), reward
        self._root = f"{root}/"

    def read(self, record: FileRecord) -> TableRow:
        """Return a row. Raises BadValue."""
        if record.fault:
            raise BadValue(record.reason, record.fault)
        values, columns = record.values, self._columns
        arm = self._arm(values)
        propensity, whole = self._probabilities(values, arm)
        failed = self._layout.failed(values)
        decision_id = self._text(values, columns.id) or record.where.removeprefix(self._root)
        user = self._text(values, columns.user)
        return TableRow(
            where=record.where,
            id=decision_id,
            question=self._question(values) or decision_id,
            arm=arm,
            features=self._features(values),
            propensity=propensity,
            distribution=whole,
            reward=None if failed else self._read_reward(values),
            at=self._time(values),
            episode=self._text(values, columns.episode) or None,
            user=digest_of_user(user) if user else None,
            cost=self._cost(values),
            failed=failed,
            cached=self._layout.cached(values),
        )

    def _text(self, values: Mapping[str, Any], column: str | None) -> str:
        value = None if column is None else value_at(values, column)
        if column is None or value is None or (isinstance(value, float) and math.isnan(value)):
            return ""
        return writable(column, str(value).strip())

    def _question(self, values: Mapping[str, Any]) -> str:
        column = self._columns.question
        return "" if column is None else writable(column, last_text(value_at(values, column)))

    def _arm(self, values: Mapping[str, Any]) -> str:
        column = str(self._columns.arm)
        arm = self._text(values, column)
        if not arm:
            raise BadValue("no arm", f"{column} is empty; expected the name of the drawn arm")
        if self._arms is not None and arm not in self._arms:
            raise BadValue(
                "arm not among --arms", f"{column} is {arm!r}; expected one of {', '.join(self._arms)}"
            )
        return arm

    def _probabilities(self, values: Mapping[str, Any], arm: str) -> tuple[float | None, dict[str, float]]:
        """Return the propensity and the probabilities by arm, as far as the row has them.

        Raises:
            BadValue: They are impossible, or contradict each other.
        """
        column = str(self._columns.propensity)
        propensity = self._propensity(values)
        shown, printed = self._read_distribution(values)
        if not printed:
            return propensity, {}
        if not printed.get(arm, 0.0) > 0.0:
            raise BadValue(
                NOT_DRAWN,
                f"{shown} gives {arm!r} the probability {printed.get(arm, 0.0):g}; it was drawn, so it "
                "must be above 0",
            )
        p = distribution(shown, tuple(printed.values()))
        if propensity is not None:
            check_agreement(column, propensity, printed[arm], tuple(printed.values()))
        whole = dict(zip(printed, p, strict=True))
        return whole[arm], whole

    def _propensity(self, values: Mapping[str, Any]) -> float | None:
        column = self._columns.propensity
        value = None if column is None else value_at(values, column)
        if column is None or is_missing(value):
            return None
        try:
            return possible(column, number(value))
        except (ValueError, TypeError):
            raise BadValue(
                NOT_A_PROBABILITY, f"{column} is {cut(value)}; expected a probability in (0, 1]"
            ) from None

    def _read_distribution(self, values: Mapping[str, Any]) -> tuple[str, dict[str, float]]:
        """Return the name of the distribution, and its probabilities by arm; empty if it is missing."""
        columns = self._columns
        if columns.prefix is not None:
            document: Any = {
                name.removeprefix(columns.prefix): p
                for name, p in values.items()
                if name.startswith(columns.prefix)
            }
            shown = f"the columns {columns.prefix}<arm>"
        elif columns.distribution is not None:
            document, shown = open_up(value_at(values, columns.distribution)), columns.distribution
        else:
            return "", {}
        if is_missing(document) or document in ({}, []):
            return shown, {}
        if isinstance(document, list):
            if self._arms is None or len(document) != len(self._arms):
                order = "--arms" if self._arms is None else f"the {len(self._arms)} of --arms"
                raise BadValue(
                    NO_DISTRIBUTION,
                    f"{shown} has {len(document)} numbers; expected one per arm, in the order of {order}",
                )
            document = dict(zip(self._arms, document, strict=True))
        try:
            return shown, {
                writable(shown, str(name)): number(p) for name, p in document.items() if not is_missing(p)
            }
        except (AttributeError, ValueError, TypeError):
            raise BadValue(
                NO_DISTRIBUTION,
                f"{shown} is {cut(document)}; expected probabilities of the arms that sum to 1",
            ) from None

    def _read_reward(self, values: Mapping[str, Any]) -> float | None:
        column = self._columns.reward
        value = None if column is None else value_at(values, column)
        if is_missing(value):
            value, column = self._reward(values), column or "the feedback"
        if is_missing(value):
            return None
        try:
            reward = read_reward(value)
        except (ValueError, TypeError):
            raise BadValue(
                "reward is not a number",
                f"{column} is {cut(value)}; expected a number, true/false, yes/no or pass/fail",
            ) from None
        return worth(str(column), reward, self._scale)

    def _time(self, values: Mapping[str, Any]) -> float:
        column = self._columns.time
        if column is None:
            return 0.0
        value = value_at(values, column)
        try:
            return seconds(value)
        except (ValueError, TypeError, OverflowError):
            raise BadValue(
                "no time",
                f"{column} is {cut(value)}; expected seconds or milliseconds since the epoch, or ISO 8601 "
                "such as 2026-01-31T12:00:00Z",
            ) from None

    def _cost(self, values: Mapping[str, Any]) -> Cost:
        spent: dict[str, float] = {}
        for name, column in self._columns.costs.items():
            value = value_at(values, column)
            if is_missing(value):
                continue
            attribute, factor = COSTS[name]
            right = f"{column} is {cut(value)}; a number of {name} that is not below 0 was expected"
            try:
                amount = number(value) * factor
            except (ValueError, TypeError):
                raise BadValue(f"no cost: {name}", right) from None
            if amount < 0.0:
                raise BadValue(f"no cost: {name}", right)
            spent[attribute] = int(amount) if attribute in WHOLE_NUMBERS else amount
        return Cost(**spent)  # type: ignore[arg-type]  # whole numbers where they are expected

    def _features(self, values: Mapping[str, Any]) -> dict[str, float]:
        features: dict[str, float] = {}
        for name, column in self._columns.features.items():
            if (feature := name_feature(name, value_at(values, column))) is not None:
                features[writable(column, feature[0])] = feature[1]
        return features


UNDECODED = re.compile("[\ud800-\udfff]")
"""Characters that stand for bytes that are not UTF-8."""

BROKEN = re.compile("[\0\ud800-\udfff]")
"""Characters that stand for bytes that are not UTF-8, and NUL."""


def writable(column: str, text: str, broken: re.Pattern[str] = BROKEN) -> str:
    """Return the text in a column. Raises BadValue if it has `broken` characters."""
    if match := broken.search(text):
        wrong = "a NUL" if match[0] == "\0" else "bytes that are not UTF-8"
        shown = cut(text).replace("\\udc", "\\x")
        raise BadValue("text cannot be read", f"{column} is {shown}, with {wrong}; expected text")
    return text


def make_example(
    seq: int, row: TableRow, arms: Sequence[str], metric: str, estimated: Mapping[str, float] | None
) -> Example:
    """Return the example of a row.

    Args:
        seq: Position in the log.
        row: The row.
        arms: All arms, which are eligible unless the row has a distribution.
        metric: Name of the metric that holds the reward.
        estimated: Estimated distribution, if the row lacks one and it could be estimated.

    Raises:
        BadValue: The example cannot be written and read back.
    """
    policy, p = IMPORTED, row.distribution
    if not p and row.propensity is None and estimated is not None:
        policy, p = ESTIMATED, dict(estimated)
    eligible: tuple[str, ...]
    if p:
        eligible, probabilities = tuple(p), tuple(p.values())
    else:
        eligible = (row.arm, *(arm for arm in arms if arm != row.arm))
        probabilities = () if row.propensity is None else (row.propensity,)
        if len(eligible) == 1 and row.propensity is not None and row.propensity != 1.0:
            raise BadValue(
                "only one arm",
                f"the only arm has the propensity {row.propensity:g}, so others could be drawn: name all of "
                "them with `armwise import --arms a,b`",
            )
    decision = Decision(
        id=row.id,
        context=Context(row.question, row.features),
        arms=eligible,
        probabilities=probabilities,
        drawn=row.arm,
        policy=policy,
        version=0,
        decided_at=row.at,
        deadline=row.at,
        episode_id=row.episode,
        user_digest=row.user,
    )
    metrics = {} if row.reward is None else {metric: row.reward}
    return sound(Example(seq, decision, row.cost, metrics, failed=row.failed, cached=row.cached))

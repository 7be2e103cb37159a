"""Model calls of decisions, identified by their ids; a call that is part of another counts once.

Two tracing libraries record a call twice, as a span inside another. Unless a tool or agent is between them,
both are one call: the outer span is the decision, and an amount counts at the outermost span that has it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from enum import Enum
from typing import Any

from armwise.feedback.exchange.identity import NewestById
from armwise.feedback.exchange.imported import BadValue
from armwise.feedback.exchange.table import is_missing, number

DEEPEST = 100
"""Levels of spans that are searched for the call around a span."""


class SpanKind(Enum):
    """Kind of a span."""

    MODEL = "a model call"
    STEP = "a step of the program"
    OTHER = "a tool, an agent or a call of another kind, whose model calls are calls of their own"


@dataclass(frozen=True, slots=True)
class Amounts:
    """The amounts of a call.

    Attributes:
        total_cost: Dollars.
        prompt_tokens: Tokens read.
        completion_tokens: Tokens written.
    """

    total_cost: float = 0.0
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0


AMOUNTS = tuple(field.name for field in fields(Amounts))


@dataclass(frozen=True, slots=True)
class TracedCall:
    """A call, or another span.

    Attributes:
        where: File, and the line or row.
        ident: Id of the call.
        parent: Id of the span around it; empty: it has none.
        group: Id of the decision that it is joined with; empty: it has none.
        kind: Kind of the span.
        model: Name of the model, if any.
        began: When it began, in any unit.
        amounts: Cost and tokens.
    """

    where: str
    ident: str
    parent: str = ""
    group: str = ""
    kind: SpanKind = SpanKind.MODEL
    model: str | None = None
    began: float = 0.0
    amounts: Amounts = Amounts()


class Calls:
    """The calls of all decisions, each once.

    Attributes:
        by_group: Whether calls are joined by their group; otherwise by the outermost call around them.
    """

    by_group = True

    def __init__(self) -> None:
        self._calls: NewestById[str, TracedCall] = NewestById()
        self._groups: defaultdict[str, list[TracedCall]] | None = None
        self._asked: set[str] = set()

    def add(self, call: TracedCall, at: float = 0.0) -> bool:
        """Record a version of a call; return whether its id occurred before."""
        return self._calls.add(call.ident, at, call)

    def around(self, ident: str) -> list[TracedCall]:
        """Return the model calls that a span is part of, the nearest first."""
        around: list[TracedCall] = []
        span = self._calls.get(ident)
        for _ in range(DEEPEST):
            span = None if span is None or not span.parent else self._calls.get(span.parent)
            if span is None or span.kind is SpanKind.OTHER:
                break
            if span.ident == ident:
                return []
            if span.kind is SpanKind.MODEL:
                around.append(span)
        return around

    def join_calls(self, group: str) -> list[TracedCall]:
        """Return the calls of a decision."""
        if self._groups is None:
            self._groups = defaultdict(list)
            for call in self._calls:
                self._groups[call.group if self.by_group else self._outermost(call)].append(call)
        self._asked.add(group)
        return self._groups.get(group, [])

    def _outermost(self, call: TracedCall) -> str:
        around = self.around(call.ident)
        return around[-1].ident if around else call.ident

    def fill(self, group: str, row: dict[str, Any]) -> None:
        """Write into a row what it lacks: the first model, and the sums of the amounts."""
        calls = self.join_calls(group)
        models = [call for call in calls if call.kind is SpanKind.MODEL and call.model]
        if is_missing(row.get("model")) and models:
            row["model"] = min(models, key=lambda call: call.began).model
        for name in AMOUNTS:
            total = sum(getattr(call.amounts, name) for call in calls if not self._is_counted(call, name))
            if total and is_nothing(row.get(name)):
                row[name] = total

    def _is_counted(self, call: TracedCall, name: str) -> bool:
        """Return whether a call around this one has an amount already."""
        return any(getattr(outer.amounts, name) for outer in self.around(call.ident))

    def alone(self) -> Iterator[TracedCall]:
        """Yield the calls of groups that match no decision."""
        for call in self._calls:
            if self.by_group and call.group not in self._asked and any(astuple(call.amounts)):
                yield call


def is_nothing(value: Any) -> bool:
    """Return whether an amount is missing, or 0.

    >>> is_nothing(None), is_nothing("0.000"), is_nothing("x")
    (True, True, False)
    """
    try:
        return is_missing(value) or number(value) == 0.0
    except (ValueError, TypeError):
        return False


def amount(values: Mapping[str, Any], *names: str) -> float:
    """Return the first amount that is given; 0: none is.

    Raises:
        BadValue: It is not a number, or below 0.

    >>> amount({"a": None, "b": "3"}, "a", "b")
    3.0
    """
    for name in names:
        if is_missing(value := values.get(name)):
            continue
        try:
            parsed = number(value)
        except (ValueError, TypeError):
            parsed = -1.0
        if parsed < 0.0:
            right = "expected a number of 0 or more"
            raise BadValue("no amount of a call", f"{name} is {value!r:.80}; {right}")
        return parsed
    return 0.0

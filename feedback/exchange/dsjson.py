"""A training log as decision service JSON: what `vw --dsjson --cb_explore_adf` reads.

One line is one decision, with its features, its distribution and what it cost. Features stand in the
namespaces that the policy `vowpal` uses: `s` and `e` are the named features and the embedding of
the question, `a` and `f` the name and the features of an arm. Arms are known by their `_tag`.

VW minimises costs: the cost of a line is minus its reward, under the rule of the writer. An imported line has
only that, so it becomes a single metric without costs.
"""

import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, StrictFloat, ValidationError

from armwise.feedback.events import IMPORTED, Context, Cost, Decision, Example
from armwise.feedback.exchange.identity import Ids
from armwise.feedback.exchange.imported import (
    BadValue,
    Faults,
    check_agreement,
    distribution,
    filter_rewarded,
    order_drawn_first,
    possible,
    sound,
    worth,
)
from armwise.feedback.exchange.table import seconds
from armwise.feedback.jsonl import explain, read_lines


def write_dsjson(
    examples: Iterable[Example], reward: Callable[[Example], float | None], left_out: Counter[str]
) -> Iterator[bytes]:
    """Yield a line for each example that was drawn and has a reward, with its end.

    Args:
        examples: The training log, in order.
        reward: Returns the reward of an example, if it has one.
        left_out: Counts the examples that are left out, by reason.
    """
    for example, earned in filter_rewarded(examples, reward, left_out):
        yield orjson.dumps(_event(example, earned), option=orjson.OPT_APPEND_NEWLINE)


def _event(example: Example, reward: float) -> dict[str, Any]:
    """Return the line of an example.

    Its `a` are the arms by number, from 1, the one that was drawn first; `p` are their probabilities.
    """
    d, context = example.decision, example.decision.context
    order = order_drawn_first(d)
    probability = d.propensity
    return {
        "_label_cost": 0.0 - reward,  # never -0.0
        "_label_probability": probability,
        "_label_Action": order[0] + 1,
        "_labelIndex": order[0],
        "_original_label_cost": 0.0 - reward,
        "Version": "1",
        "EventId": d.id,
        "Timestamp": _stamp(d.decided_at),
        "a": [at + 1 for at in order],
        "p": [d.probabilities[at] for at in order] if len(d.probabilities) == len(d.arms) else [],
        "c": {
            "_question": context.question,  # VW ignores a name with this prefix
            "s": dict(context.features),
            "e": context.embedding,
            "_multi": [
                {"_tag": arm, "a": {arm: 1.0}, "f": dict(context.arms.get(arm, {}))} for arm in d.arms
            ],
        },
        "VWState": {"m": f"{d.policy}/{d.version}"},
        "pdrop": 0.0,
    }


def _stamp(at: float) -> str:
    """Return a time in the format of dsjson.

    >>> _stamp(1577836800.25)
    '2020-01-01T00:00:00.250000Z'
    """
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


VERSION = re.compile(r"[0-9]{1,18}")
"""A number of a version, which fits into 64 bits."""


class _State(BaseModel):
    m: str = ""


class _DsjsonEvent(BaseModel):
    """The fields that are read of a line; others are ignored."""

    model_config = ConfigDict(frozen=True)

    ident: str | None = Field(default=None, alias="EventId")
    at: Annotated[float, BeforeValidator(seconds)] = Field(default=0.0, alias="Timestamp")
    context: dict[str, Any] | None = Field(default=None, alias="c")
    actions: tuple[int, ...] | None = Field(default=None, validation_alias=AliasChoices("a", "_a"))
    probabilities: tuple[StrictFloat, ...] | None = Field(
        default=None, validation_alias=AliasChoices("p", "_p")
    )
    cost: float | None = Field(default=None, alias="_label_cost")
    propensity: StrictFloat | None = Field(default=None, alias="_label_probability")
    drawn: int | None = Field(default=None, alias="_label_Action")
    place: int | None = Field(default=None, alias="_labelIndex")
    skipped: bool = Field(default=False, alias="_skipLearn")
    dropped: float = Field(default=0.0, alias="pdrop")
    state: _State = Field(default=_State(), alias="VWState")


def read_dsjson(path: Path, metric: str, scale: tuple[float, float], faults: Faults) -> Iterator[Example]:
    """Yield the decisions of a file in order, numbered from 1, one in memory at a time.

    The questions of decisions are distinct, unless the file has them. Lines are not weighted, so only those
    count that were kept with the same probability as the first. Of lines with the same id the first counts.

    Args:
        path: The file; it is unpacked when its name ends in .gz.
        metric: Name of the metric that holds the reward, minus the cost.
        scale: Smallest and largest reward.
        faults: Notes the lines that no evaluation can use.

    Raises:
        ExchangeError: The file cannot be read, or a line is wrong and that is strict.
    """
    seq, ids = 0, Ids()
    kept: float | None = None
    for number, line in read_lines(path):
        try:
            event = _event_in(line, kept)
            decision, earned = _decision(event), _read_reward(event, scale)
            example = sound(Example(seq + 1, decision, Cost(), {metric: earned}))
            ids.require_new(decision.id)
        except BadValue as bad:
            faults.add(f"{path}, line {number}", bad)
            continue
        seq, kept = seq + 1, event.dropped
        yield example


def _event_in(line: bytes, kept: float | None) -> _DsjsonEvent:
    """Return the parsed fields of a line. Raises BadValue.

    Args:
        line: The line.
        kept: Value of `pdrop` in the lines above; None: this is the first.
    """
    try:
        event = _DsjsonEvent.model_validate_json(line.removeprefix(BOM_UTF8))
    except ValidationError as error:
        raise BadValue("line cannot be read", explain(error)) from None
    if event.context is not None and kept not in (None, event.dropped):
        raise BadValue(
            "another pdrop",
            f"pdrop is {event.dropped} after {kept}: all lines of a log must have been kept with the same "
            "probability",
        )
    return event


def _read_reward(event: _DsjsonEvent, scale: tuple[float, float]) -> float:
    """Return the reward of a line. Raises BadValue."""
    if event.cost is None:
        raise BadValue("no label", "_label_cost is missing: join the decision with its reward first")
    return worth("minus _label_cost", 0.0 - event.cost, scale)


def _decision(event: _DsjsonEvent) -> Decision:
    """Return the decision of a line. Raises BadValue."""
    ident, context, shown = event.ident, event.context, _read_actions(event)
    if not ident or context is None:
        raise BadValue("no EventId", "EventId is missing; it must hold the decision's id")
    actions = _order(event, len(shown))
    drawn = _find_drawn(event, actions)
    printed = event.probabilities
    if printed is None or len(printed) != len(shown):
        raise BadValue(
            "no distribution",
            f"p has {len(printed or ())} numbers for {len(shown)} actions; it must have the probability "
            "of each, because evaluation weighs decisions by them",
        )
    chance = dict(zip(actions, printed, strict=True))
    drawn_with = possible("p of the drawn action", chance[drawn])
    chance = dict(zip(actions, distribution("p", printed), strict=True))
    if event.propensity is not None:
        check_agreement(
            "_label_probability", possible("_label_probability", event.propensity), drawn_with, printed
        )
    arms = _names(shown)
    policy, version = _policy(event.state.m)
    return Decision(
        id=ident,
        context=Context(
            question=str(context.get("_question", ident)),
            features=dict(_features(_without(context, "e"), "s")),
            embedding=_embedding(context.get("e")),
            arms={
                arm: dict(_features(_without(action, "a") if action.get("a") == {arm: 1.0} else action, "f"))
                for arm, action in zip(arms, shown, strict=True)
            },
        ),
        arms=arms,
        probabilities=tuple(chance[action] for action in range(1, len(shown) + 1)),
        drawn=arms[drawn - 1],
        policy=policy,
        version=version,
        decided_at=event.at,
        deadline=event.at,
    )


def _read_actions(event: _DsjsonEvent) -> list[dict[str, Any]]:
    """Return the actions of a line whose drawn action was shown. Raises BadValue."""
    if event.context is None:
        raise BadValue(
            "dangling observation",
            "c is missing: this reward's decision is not in the file; join the two first, or export both",
        )
    if event.skipped:
        raise BadValue(
            "not learned: _skipLearn",
            "_skipLearn is true: the decision was never activated, so nobody saw it",
        )
    shown = event.context.get("_multi")
    if "_slots" in event.context:
        raise BadValue("several slots", "c has _slots: write one line per slot, each with one drawn action")
    if not isinstance(shown, list) or not shown:
        raise BadValue("no actions", "c._multi is missing; it must list the actions")
    if not all(isinstance(action, dict) for action in shown):
        raise BadValue("no actions", "c._multi has an action that is not an object")
    return shown


def _order(event: _DsjsonEvent, n: int) -> Sequence[int]:
    """Return the numbers of the actions, from 1, in the order of their probabilities. Raises BadValue."""
    actions = event.actions or tuple(range(1, n + 1))
    if sorted(actions) != list(range(1, n + 1)):
        raise BadValue(
            "no order of the actions", f"a is {list(actions)}, which is not an order of {n} actions"
        )
    return actions


def _find_drawn(event: _DsjsonEvent, actions: Sequence[int]) -> int:
    """Return the number of the drawn action. Raises BadValue."""
    drawn, place = event.drawn, event.place
    if drawn is None:
        drawn = actions[0] if place is None else place + 1
    if place not in (None, drawn - 1):
        raise BadValue(
            "two drawn actions",
            f"_label_Action is {drawn} and _labelIndex is {place}; expected {drawn - 1}, counted from 0",
        )
    if drawn not in actions:
        raise BadValue("no drawn action", f"_label_Action is {drawn}; there are {len(actions)} actions")
    return drawn


def _names(shown: list[Any]) -> tuple[str, ...]:
    """Return the names of the actions: their tags if all have distinct ones, otherwise their numbers.

    >>> _names([{"_tag": "news"}, {"_tag": "sport"}]), _names([{"j": [1]}, {"_tag": "sport"}])
    (('news', 'sport'), ('action-1', 'action-2'))
    """
    tags = [action.get("_tag") for action in shown]
    if all(isinstance(tag, str) and tag for tag in tags) and len(set(tags)) == len(tags):
        return tuple(tags)
    return tuple(f"action-{number}" for number in range(1, len(shown) + 1))


def _policy(model: str) -> tuple[str, int]:
    """Return the kind of the policy that drew, and its version, if the name of the model has them.

    >>> _policy("vowpal/7"), _policy("8f2a01/v3")
    (('vowpal', 7), ('imported', 0))
    """
    kind, _, version = model.rpartition("/")
    return (kind, int(version)) if kind and VERSION.fullmatch(version) else (IMPORTED, 0)


def _embedding(document: object) -> tuple[float, ...]:
    numbers = document if isinstance(document, list) else []
    return (
        tuple(float(str(number)) for number in numbers)
        if all(type(number) in (int, float) for number in numbers)
        else ()
    )


def _without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


def _features(document: object, plain: str | None, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield the features of JSON as VW sees them, named by their path; the namespace `plain` adds no name.

    >>> dict(_features({"s": {"w=who": 1.0}, "user": {"s": 30, "likes": ["tea"], "new": False}}, "s"))
    {'w=who': 1.0, 'user.s': 30.0, 'user.likes=tea': 1.0}
    """
    match document:
        case dict():
            for key, value in document.items():
                if not key.startswith("_"):
                    inside = "" if key == plain else f"{name}.{key}" if name else key
                    yield from _features(value, None, inside)
        case list():
            for at, value in enumerate(document):
                yield from _features(value, None, f"{name}.{at}" if _is_number(value) else name)
        case str():
            yield f"{name}={document}", 1.0
        case bool():
            yield from [(name, 1.0)] if document else []
        case int() | float():
            yield name, float(str(document))  # a number that is too large becomes infinite, which is reported


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

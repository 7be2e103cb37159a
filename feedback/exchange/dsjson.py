"""A training log as decision service JSON: what `vw --dsjson --cb_explore_adf` reads.

One line is one decision, with its features, its distribution and what it cost. Features stand in the
namespaces that the policy `vowpal` uses: `s` and `e` are the named features and the embedding of
the question, `a` and `f` the name and the features of an arm. Arms are known by their `_tag`.

VW minimises costs: the cost of a line is minus its reward, under the rule that it was written by.
An imported line has nothing else, so it becomes one metric without a cost.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from armwise.feedback.arrays import TOLERANCE
from armwise.feedback.events import IMPORTED, Context, Cost, Decision, Example
from armwise.feedback.exchange.imported import LeftOut, drawn_first, possible, rewarded, sound, worth
from armwise.feedback.exchange.jsonl import ExchangeError, explain, read_lines


def write_dsjson(
    examples: Iterable[Example], reward: Callable[[Example], float | None], left_out: Counter[str]
) -> Iterator[bytes]:
    """Yield a line for each example that was drawn and has a reward, with its end.

    Args:
        examples: The training log, in order.
        reward: Returns the reward of an example; None where there is none.
        left_out: Counts the others by reason.
    """
    for example, earned in rewarded(examples, reward, left_out):
        yield orjson.dumps(_event(example, earned), option=orjson.OPT_APPEND_NEWLINE)


def _event(example: Example, reward: float) -> dict[str, Any]:
    """Return the line of an example.

    Its `a` are the arms by number, from 1, the one that was drawn first; `p` are their probabilities.
    """
    d, context = example.decision, example.decision.context
    order = drawn_first(d)
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
    """Return a time as dsjson has it.

    >>> _stamp(1577836800.25)
    '2020-01-01T00:00:00.250000Z'
    """
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _seconds(stamp: object) -> object:
    if not isinstance(stamp, str):
        return stamp
    moment = datetime.fromisoformat(stamp)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


VERSION = re.compile(r"[0-9]{1,18}")
"""A number of a version, which fits into 64 bits."""


class _State(BaseModel):
    m: str = ""


class _Event(BaseModel):
    """The fields that are read of a line; others are ignored."""

    model_config = ConfigDict(frozen=True)

    ident: str | None = Field(default=None, alias="EventId", min_length=1)
    at: Annotated[float, BeforeValidator(_seconds)] = Field(default=0.0, alias="Timestamp")
    context: dict[str, Any] | None = Field(default=None, alias="c")
    actions: tuple[int, ...] | None = Field(default=None, alias="a")
    probabilities: tuple[float, ...] | None = Field(default=None, alias="p")
    cost: float | None = Field(default=None, alias="_label_cost")
    propensity: float | None = Field(default=None, alias="_label_probability")
    drawn: int | None = Field(default=None, alias="_label_Action")
    skipped: bool = Field(default=False, alias="_skipLearn")
    dropped: float = Field(default=0.0, alias="pdrop")
    state: _State = Field(default=_State(), alias="VWState")


def read_dsjson(
    path: Path, metric: str, scale: tuple[float, float], left_out: Counter[str]
) -> Iterator[Example]:
    """Yield the decisions of a file in order, numbered from 1, one in memory at a time.

    A decision asks a question of its own, unless the file says which. Nothing is weighted, so all
    lines must have been kept with the same chance.

    Args:
        path: The file; it is unpacked when its name ends in .gz.
        metric: Name of the metric that holds the reward, minus the cost.
        scale: Smallest and largest reward.
        left_out: Counts by reason the lines that no evaluation can use.

    Raises:
        ExchangeError: The file cannot be read, a line has another format, or `pdrop` changes.
    """
    seq = 0
    dropped: float | None = None
    for number, line in read_lines(path):
        where = f"{path}, line {number}"
        try:
            event = _Event.model_validate_json(line)
        except ValidationError as error:
            raise ExchangeError(f"{where}: {explain(error)}") from None
        if event.context is not None:
            if dropped not in (None, event.dropped):
                raise ExchangeError(
                    f"{where}: pdrop is {event.dropped} after {dropped}: "
                    "lines that were kept with different chances cannot be one log"
                )
            dropped = event.dropped
        try:
            decision, earned = _decision(event, where), worth(_earned(event), scale)
        except LeftOut as reason:
            left_out[str(reason)] += 1
            continue
        seq += 1
        yield sound(Example(seq, decision, Cost(), {metric: earned}), where)


def _earned(event: _Event) -> float:
    if event.cost is None:
        raise LeftOut("no label")
    return 0.0 - event.cost


def _decision(event: _Event, where: str) -> Decision:
    """Return the decision of a line. Raises LeftOut, or ExchangeError where the line contradicts itself."""
    context = event.context
    if context is None:
        raise LeftOut("dangling observation")
    if event.skipped:
        raise LeftOut("not learned: _skipLearn")
    shown = context.get("_multi")
    if event.ident is None or not isinstance(shown, list) or not shown:
        missing = "EventId" if event.ident is None else "c._multi"
        raise ExchangeError(f"{where}: {missing} is missing")
    if not all(isinstance(action, dict) for action in shown):
        raise ExchangeError(f"{where}: c._multi has an action that is not an object")
    if "_slots" in context:
        raise LeftOut("several slots")
    if event.probabilities is None or len(event.probabilities) != len(shown):
        raise LeftOut("no distribution")
    actions = event.actions or tuple(range(1, len(shown) + 1))
    if sorted(actions) != list(range(1, len(shown) + 1)):
        raise ExchangeError(f"{where}: a is {list(actions)}, which is not an order of {len(shown)} actions")
    drawn = actions[0] if event.drawn is None else event.drawn
    if drawn not in actions:
        raise ExchangeError(f"{where}: _label_Action is {drawn}; there are {len(shown)} actions")
    chance = dict(zip(actions, event.probabilities, strict=True))
    _confirm(chance, drawn, event.propensity)
    arms = _names(shown)
    policy, version = _policy(event.state.m)
    return Decision(
        id=event.ident,
        context=Context(
            question=str(context.get("_question", event.ident)),
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
        floor=None,
    )


def _confirm(chance: Mapping[int, float], drawn: int, propensity: float | None) -> None:
    """Raise LeftOut where the probabilities of a line, by action, cannot have been drawn from."""
    drawn_with = possible(chance[drawn])
    total = math.fsum(chance.values())
    if not all(0.0 <= p <= 1.0 for p in chance.values()) or abs(total - 1.0) > TOLERANCE:
        raise LeftOut("no distribution")
    if propensity is not None and abs(possible(propensity) - drawn_with) > TOLERANCE:
        raise LeftOut("propensity not that of the distribution")


def _names(shown: list[Any]) -> tuple[str, ...]:
    """Return the names of the actions: their tags, where each has one of its own, else their numbers.

    >>> _names([{"_tag": "news"}, {"_tag": "sport"}]), _names([{"j": [1]}, {"_tag": "sport"}])
    (('news', 'sport'), ('action-1', 'action-2'))
    """
    tags = [action.get("_tag") for action in shown]
    if all(isinstance(tag, str) and tag for tag in tags) and len(set(tags)) == len(tags):
        return tuple(tags)
    return tuple(f"action-{number}" for number in range(1, len(shown) + 1))


def _policy(model: str) -> tuple[str, int]:
    """Return what kind of policy drew, and its version, where the name of the model says so.

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

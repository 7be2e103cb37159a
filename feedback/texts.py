"""The texts of a fact: what people wrote or read, beside the numbers that are learned from."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from feedback.events import COMMENT, DEMONSTRATION, Decision, Execution, Feedback, Observation

Fact = TypeVar("Fact")

WRITTEN = (COMMENT, DEMONSTRATION)
"""Keys of the content of feedback that hold what somebody wrote; the others are labels, ids and arms."""


def with_texts(fact: Fact, change: Callable[[str], str]) -> Fact:
    """Return a fact with its texts changed; the same object where nothing differs.

    >>> with_texts(Feedback("f", "d", content={"comment": "Ada left", "label": "bad"}), str.upper).content
    {'comment': 'ADA LEFT', 'label': 'bad'}
    """
    changed: Any = fact
    match fact:
        case Decision():
            context = replace(fact.context, question=change(fact.context.question))
            changed = replace(fact, context=context)
        case Execution():
            answer, error = fact.answer and change(fact.answer), change(fact.error)
            changed = replace(fact, answer=answer, error=error, stages=tuple(_inside(fact.stages, change)))
        case Observation():
            changed = replace(fact, answer=fact.answer and change(fact.answer), error=change(fact.error))
        case Feedback():
            content = {key: change(one) if key in WRITTEN else one for key, one in fact.content.items()}
            changed = replace(
                fact, content=content, tags={key: change(one) for key, one in fact.tags.items()}
            )
    return fact if changed == fact else changed


def without_texts(fact: Fact) -> Fact:
    """Return an execution, an observation or feedback as it is after its decision was erased.

    >>> without_texts(Feedback("f", "d", value=1.0, tags={"page": "/ada"})).tags
    {}
    """
    changed: Any = fact
    match fact:
        case Execution():
            answer = None if fact.answer is None else ""
            changed = replace(fact, answer=answer, error="", passages=(), stages=())
        case Observation():
            answer = None if fact.answer is None else ""
            changed = replace(fact, answer=answer, error="", passages=())
        case Feedback():
            content = {key: one for key, one in fact.content.items() if key not in WRITTEN}
            changed = replace(fact, content=content, tags={})
    return changed  # type: ignore[no-any-return]


def _inside(value: Any, change: Callable[[str], str]) -> Any:
    """Return a document with its texts changed, but not the names in it."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _inside(one, change) for key, one in value.items()}
    return [_inside(one, change) for one in value] if isinstance(value, list | tuple) else value

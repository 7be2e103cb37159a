"""Change the texts of a fact: redact them, or clear them after an erasure."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from armwise.feedback.events import (
    COMMENT,
    DEMONSTRATION,
    Context,
    Decision,
    Execution,
    Feedback,
    Observation,
)
from armwise.feedback.texts import by_pseudonym, pseudonym

F = TypeVar("F")

WRITTEN = (COMMENT, DEMONSTRATION)
"""Keys of the content of feedback that hold free text; the others hold labels, ids and arms."""


def with_texts(fact: F, change: Callable[[str], str]) -> F:
    """Return a fact with its texts changed; the same object if they stay the same.

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
            content = {key: change(text) if key in WRITTEN else text for key, text in fact.content.items()}
            changed = replace(
                fact, content=content, tags={key: change(text) for key, text in fact.tags.items()}
            )
    return fact if changed == fact else changed


def without_texts(fact: F) -> F:
    """Return a fact as an erasure of its decision leaves it.

    An id of feedback may be any text, so it becomes a pseudonym, which still matches a retry or a retraction.
    Ids of decisions and episodes stay: their characters are restricted, and draws and joins depend on them.

    >>> without_texts(Feedback("f", "d", value=1.0, tags={"page": "/ada"})).tags
    {}
    """
    changed: Any = fact
    match fact:
        case Decision():
            context = Context(
                "",
                by_pseudonym(fact.context.features),
                fact.context.embedding,
                {arm: by_pseudonym(features) for arm, features in fact.context.arms.items()},
            )
            changed = replace(fact, context=context, request_digest="", user_digest=None, erased=True)
        case Execution():
            answer = None if fact.answer is None else ""
            changed = replace(fact, answer=answer, error="", passages=(), stages=(), marks=())
        case Observation():
            answer = None if fact.answer is None else ""
            changed = replace(fact, answer=answer, error="", passages=())
        case Feedback():
            content = {key: label for key, label in fact.content.items() if key not in WRITTEN}
            changed = replace(fact, id=pseudonym(fact.id), content=content, tags={})
    return changed  # type: ignore[no-any-return]


def _inside(value: Any, change: Callable[[str], str]) -> Any:
    """Return a document with its values changed where they are texts; names stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _inside(part, change) for key, part in value.items()}
    return [_inside(part, change) for part in value] if isinstance(value, list | tuple) else value

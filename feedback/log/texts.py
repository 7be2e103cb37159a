"""The texts of a fact: which they are, how to redact them, and the fact without them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from armwise.feedback.events import (
    COMMENT,
    DEMONSTRATION,
    PASSAGE,
    Decision,
    Execution,
    Feedback,
    Observation,
)
from armwise.feedback.log.limits import limit_marks
from armwise.feedback.texts import by_pseudonym, pseudonym

F = TypeVar("F")

WRITTEN = (COMMENT, DEMONSTRATION, PASSAGE)
"""Keys of the content of feedback that an erasure removes; the others hold labels, ids and arms."""


def list_texts(fact: object) -> dict[str, Any]:
    """Return the texts of a fact as the document of its row in `texts`; empty parts are left out.

    >>> list_texts(Feedback("f", "d", content={"comment": "Ada left", "label": "bad"}))
    {'content': {'comment': 'Ada left'}}
    """
    found: dict[str, Any] = {}
    match fact:
        case Decision(context=context):
            names, hidden = [*context.features], [*by_pseudonym(context.features)]
            # of two with one pseudonym, the row has one value: it keeps the pseudonym
            hides = names != hidden and len(names) == len(hidden)
            found = {"question": context.question, "names": names if hides else ()}
        case Execution():
            found = {
                "answer": fact.answer,
                "error": fact.error,
                "passages": fact.passages,
                "stages": fact.stages,
                "marks": limit_marks(fact.marks),
            }
        case Observation():
            found = {"answer": fact.answer, "error": fact.error, "passages": fact.passages}
        case Feedback():
            content = {key: text for key, text in fact.content.items() if key in WRITTEN}
            found = {"content": content, "tags": dict(fact.tags)}
    return {name: part for name, part in found.items() if part}


def list_labels(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of feedback without its texts."""
    return {key: label for key, label in content.items() if key not in WRITTEN}


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
            context = replace(fact.context, question="", features=by_pseudonym(fact.context.features))
            changed = replace(fact, context=context, request_digest="", user_digest=None, erased=True)
        case Execution():
            answer = None if fact.answer is None else ""
            changed = replace(fact, answer=answer, error="", passages=(), stages=(), marks=())
        case Observation():
            answer = None if fact.answer is None else ""
            changed = replace(fact, answer=answer, error="", passages=())
        case Feedback():
            changed = replace(fact, id=pseudonym(fact.id), content=list_labels(fact.content), tags={})
    return changed  # type: ignore[no-any-return]


def _inside(value: Any, change: Callable[[str], str]) -> Any:
    """Return a document with its values changed where they are texts; names stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _inside(part, change) for key, part in value.items()}
    return [_inside(part, change) for part in value] if isinstance(value, list | tuple) else value

"""The texts of a fact: what people wrote or read, beside the numbers that are learned from.

Names of features are texts too: `w=lovelace`, `tier=free`, `id=<action>`. Policies learn by their pseudonyms
(`pseudonym`), so that a name can be overwritten and nothing that was learned from it changes.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

from feedback.events import (
    COMMENT,
    DEMONSTRATION,
    ROUTER,
    Context,
    Decision,
    Execution,
    Feedback,
    Observation,
)

Fact = TypeVar("Fact")

Otherwise = TypeVar("Otherwise", float, None)

WRITTEN = (COMMENT, DEMONSTRATION)
"""Keys of the content of feedback that hold what somebody wrote; the others are labels, ids and arms."""

QUESTION_WORDS = frozenset(("who", "whom", "whose", "what", "which", "when", "where", "why", "how"))

FORM = (
    *(f"shape={shape}" for shape in ("keyword", "question", "statement")),
    *(f"ask={word}" for word in sorted(QUESTION_WORDS)),
    *("has_mark", "has_digit", "has_quote", "length", "capitals"),
)
"""Names of all features of the form of a question."""

OURS = frozenset((*FORM, "cost_weight", "position", ROUTER))
"""Names of features that no text of a caller is in: an erasure keeps them."""

_PSEUDONYM = re.compile("#[0-9a-f]{16}")


@lru_cache(maxsize=100_000)
def pseudonym(text: str) -> str:
    """Return a digest of 64 bits that stands for a text; that of a pseudonym is the same.

    Who guesses the text can compare: it hides what cannot be guessed.

    >>> pseudonym("tier=free"), pseudonym(pseudonym("tier=free"))
    ('#6b7ba71074dfcea9', '#6b7ba71074dfcea9')
    """
    if _PSEUDONYM.fullmatch(text):
        return text
    return "#" + hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def by_pseudonym(features: Mapping[str, float]) -> dict[str, float]:
    """Return features by the pseudonyms of their names, but for names of our own.

    >>> by_pseudonym({"tier=free": 1.0, "length": 0.25})
    {'#6b7ba71074dfcea9': 1.0, 'length': 0.25}
    """
    return {name if name in OURS else pseudonym(name): value for name, value in features.items()}


def bare_features(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the features of a row of the log, with pseudonyms for names.

    >>> bare_features({"sparse": {"tier=free": 1.0}, "embedding": [0.5], "arms": {"a": {"router": 0.1}}})
    {'sparse': {'#6b7ba71074dfcea9': 1.0}, 'embedding': [0.5], 'arms': {'a': {'router': 0.1}}}
    """
    arms = {arm: by_pseudonym(features) for arm, features in stored["arms"].items()}
    return {**stored, "sparse": by_pseudonym(stored["sparse"]), "arms": arms}


def value_of(features: Mapping[str, float], name: str, otherwise: Otherwise) -> float | Otherwise:
    """Return a feature by its name, also where an erasure has left its pseudonym.

    >>> value_of({"#6b7ba71074dfcea9": 1.0}, "tier=free", 0.0)
    1.0
    """
    return features[name] if name in features else features.get(pseudonym(name), otherwise)


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
    """Return a fact as it is after its decision was erased.

    An id of feedback is any text, so it becomes a pseudonym, by which a retry and a retraction still find it.
    Those of decisions and episodes stay: they are made of few characters, and draws and joins depend on them.

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
            changed = replace(fact, answer=answer, error="", passages=(), stages=())
        case Observation():
            answer = None if fact.answer is None else ""
            changed = replace(fact, answer=answer, error="", passages=())
        case Feedback():
            content = {key: one for key, one in fact.content.items() if key not in WRITTEN}
            changed = replace(fact, id=pseudonym(fact.id), content=content, tags={})
    return changed  # type: ignore[no-any-return]


def _inside(value: Any, change: Callable[[str], str]) -> Any:
    """Return a document with its texts changed, but not the names in it."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _inside(one, change) for key, one in value.items()}
    return [_inside(one, change) for one in value] if isinstance(value, list | tuple) else value

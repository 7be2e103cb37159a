"""What is stored of a fact: the row of its table, and its texts, which an erasure removes."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from armwise.feedback.events import (
    COMMENT,
    DEMONSTRATION,
    PASSAGE,
    Cost,
    Decision,
    Execution,
    Feedback,
    Observation,
    Tick,
)
from armwise.feedback.log.backend import storable
from armwise.feedback.texts import by_pseudonym, digest_question, pseudonym

Fact = Decision | Execution | Feedback | Observation | Tick

F = TypeVar("F")

LONGEST_FINISH = 64
"""Most characters of the reason why a language model stopped."""

MOST_MARKS, LONGEST_MARK = 300, 256
"""Most marks of an execution, and most characters of one."""

WRITTEN = (COMMENT, DEMONSTRATION, PASSAGE)
"""Keys of the content of feedback that an erasure removes; the others hold labels, ids and arms."""


# -- rows, except for texts and seals ------------------------------------------------------------------


def decision_row(d: Decision, seq: int, logged_at: float, erased: int | None = None) -> dict[str, object]:
    """Return the row of a decision at a position and a time of the log; `erased` numbers an erasure of it."""
    return {
        "seq": seq,
        "id": d.id,
        "decided_at": d.decided_at,
        "deadline": d.deadline,
        "logged_at": logged_at,
        "mode": d.mode.value,
        "policy": d.policy,
        "version": d.version,
        "drawn": d.drawn,
        "propensity": d.propensity if d.probabilities else None,
        "deferred": d.deferred,
        "episode_id": d.episode_id,
        "request_digest": d.request_digest,
        "question_digest": None if d.erased else digest_question(d.context.question),
        "arms": d.arms,
        "probabilities": d.probabilities,
        "features": {
            "sparse": by_pseudonym(d.context.features),
            "embedding": d.context.embedding,
            "arms": d.context.arms,
            **({"masked": d.masked} if d.masked else {}),
            **({"trace": d.trace} if d.trace else {}),
        },
        "steps": d.steps,
        "user_digest": d.user_digest,
        "erased": erased,
        "draw_id": d.draw_id,
        "asked_by": d.asked_by,
        "seal": None,
    }


_COST = tuple(part.name for part in fields(Cost))


def execution_row(e: Execution, seq: int) -> dict[str, object]:
    """Return the row of an execution at a position of the log."""
    return {
        "seq": seq,
        "decision_id": e.decision_id,
        "served": e.served,
        "status": e.status.value,
        **{name: getattr(e.cost, name) for name in _COST},
        "n_passages": len(e.passages),
        "answered": e.answer is not None,
        "finished_at": e.finished_at,
        "index_version": storable(e.index_version) or None,
        "cached": e.cached,
        "tokens_by_model": dict(e.tokens_by_model) or None,
        "finish_reason": storable(e.finish_reason)[:LONGEST_FINISH],
        "seal": None,
    }


def mark_rows(e: Execution, decision_seq: int, asked_by: str) -> list[dict[str, object]]:
    """Return the rows by which the marks of an execution are found; its decision is asked by `asked_by`."""
    digests = dict.fromkeys(mark_digest(mark) for mark in _limit_marks(e.marks) if mark)
    return [{"asked_by": asked_by, "mark": digest, "decision_seq": decision_seq} for digest in digests]


def _limit_marks(marks: Sequence[str]) -> list[str]:
    return [mark if len(mark) <= LONGEST_MARK else "" for mark in marks[:MOST_MARKS]]


def mark_digest(mark: str) -> str:
    """Return the digest by which a mark is found: 32 hexadecimal digits.

    An index moves its rows about, and what it leaves in a file outlives an erasure.
    """
    return hashlib.blake2b(mark.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def observation_row(o: Observation, seq: int) -> dict[str, object]:
    """Return the row of an observation at a position of the log."""
    judged = o.judge_cost
    return {
        "seq": seq,
        "decision_id": o.decision_id,
        "source": o.source.value,
        "arm": o.arm,
        "share": o.share,
        "propensity": o.propensity,
        "value": o.value,
        **{name: getattr(o.cost, name) for name in _COST},
        "judge": storable(o.judge),
        "judge_tokens": judged.prompt_tokens + judged.completion_tokens,
        "judge_s": judged.llm_s,
        "judge_usd": judged.usd,
        "swapped": o.swapped,
        "answered": o.answer is not None,
        "observed_at": o.observed_at,
        "seal": None,
    }


def feedback_row(f: Feedback, seq: int, logged_at: float, early: bool) -> dict[str, object]:
    """Return the row of feedback at a position and a time of the log; `early` if it precedes its decision."""
    return {
        "seq": seq,
        "id": f.id,
        "kind": f.kind.value,
        "decision_id": f.decision_id,
        "episode_id": f.episode_id,
        "early": early,
        "more": False,
        "metric": f.metric,
        "value": f.value,
        "received_at": f.received_at,
        "logged_at": logged_at,
        "event_time": f.event_time,
        "source": f.source,
        "key": f.key,
        "rater": f.rater,
        "labels": _without_written(f.content) or None,
        "seal": None,
    }


# -- texts ---------------------------------------------------------------------------------------------


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
                "marks": _limit_marks(fact.marks),
            }
        case Observation():
            found = {"answer": fact.answer, "error": fact.error, "passages": fact.passages}
        case Feedback():
            content = {key: text for key, text in fact.content.items() if key in WRITTEN}
            found = {"content": content, "tags": dict(fact.tags)}
    return {name: part for name, part in found.items() if part}


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
            tags = {key: change(text) for key, text in fact.tags.items()}
            changed = replace(fact, content=content, tags=tags)
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
            changed = replace(fact, id=pseudonym(fact.id), content=_without_written(fact.content), tags={})
    return changed  # type: ignore[no-any-return]


def _without_written(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: label for key, label in content.items() if key not in WRITTEN}


def _inside(value: Any, change: Callable[[str], str]) -> Any:
    """Return a document with its values changed where they are texts; names stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _inside(part, change) for key, part in value.items()}
    return [_inside(part, change) for part in value] if isinstance(value, list | tuple) else value

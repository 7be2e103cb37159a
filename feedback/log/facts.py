"""Write facts as rows of the tables, except for their texts (`armwise.feedback.log.texts`) and seals."""

import hashlib
from dataclasses import fields

from armwise.feedback.events import Cost, Decision, Execution, Feedback, Observation, Tick
from armwise.feedback.log.backend import storable
from armwise.feedback.log.limits import LONGEST_FINISH, limit_marks
from armwise.feedback.log.texts import list_labels
from armwise.feedback.texts import by_pseudonym, digest_question

Fact = Decision | Execution | Feedback | Observation | Tick


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


_PARTS = tuple(part.name for part in fields(Cost))


def _spell_out(cost: Cost) -> dict[str, float]:
    return {name: getattr(cost, name) for name in _PARTS}  # `asdict` copies each part


def execution_row(e: Execution, seq: int) -> dict[str, object]:
    """Return the row of an execution at a position of the log."""
    return {
        "seq": seq,
        "decision_id": e.decision_id,
        "served": e.served,
        "status": e.status.value,
        **_spell_out(e.cost),
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
    digests = dict.fromkeys(mark_digest(mark) for mark in limit_marks(e.marks) if mark)
    return [{"asked_by": asked_by, "mark": digest, "decision_seq": decision_seq} for digest in digests]


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
        **_spell_out(o.cost),
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
        "labels": list_labels(f.content) or None,
        "seal": None,
    }

"""Write facts as rows of the tables."""

import hashlib
from dataclasses import asdict

from armwise.feedback.events import Decision, Execution, Feedback, Observation, Tick
from armwise.feedback.log.backend import storable
from armwise.feedback.log.limits import LONGEST_FINISH, LONGEST_MARK, MOST_MARKS

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
        "question": storable(d.context.question),
        "arms": d.arms,
        "probabilities": d.probabilities,
        "features": {
            "sparse": d.context.features,
            "embedding": d.context.embedding,
            "arms": d.context.arms,
            **({"masked": d.masked} if d.masked else {}),
            **({"trace": d.trace} if d.trace else {}),
        },
        "steps": d.steps,
        "cost_weight": d.cost_weight,
        "user_digest": d.user_digest,
        "erased": erased,
        "draw_id": d.draw_id,
        "asked_by": d.asked_by,
    }


def execution_row(e: Execution, seq: int) -> dict[str, object]:
    """Return the row of an execution at a position of the log."""
    return {
        "seq": seq,
        "decision_id": e.decision_id,
        "served": e.served,
        "status": e.status.value,
        **asdict(e.cost),
        "passages": e.passages,
        "answer": None if e.answer is None else storable(e.answer),
        "error": storable(e.error),
        "finished_at": e.finished_at,
        "stages": e.stages,
        "index_version": e.index_version or None,
        "cached": e.cached,
        "tokens_by_model": dict(e.tokens_by_model) or None,
        "finish_reason": storable(e.finish_reason)[:LONGEST_FINISH],
        "marks": _limit_marks(e) or None,
    }


def _limit_marks(e: Execution) -> list[str]:
    return [mark if len(mark) <= LONGEST_MARK else "" for mark in e.marks[:MOST_MARKS]]


def mark_rows(e: Execution, decision_seq: int, asked_by: str) -> list[dict[str, object]]:
    """Return the rows by which the marks of an execution are found; its decision is asked by `asked_by`."""
    digests = dict.fromkeys(mark_digest(mark) for mark in _limit_marks(e) if mark)
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
        **asdict(o.cost),
        "judge": storable(o.judge),
        "judge_tokens": judged.prompt_tokens + judged.completion_tokens,
        "judge_s": judged.llm_s,
        "judge_usd": judged.usd,
        "swapped": o.swapped,
        "passages": o.passages,
        "answer": None if o.answer is None else storable(o.answer),
        "error": storable(o.error),
        "observed_at": o.observed_at,
    }


def feedback_row(f: Feedback, seq: int, early: bool) -> dict[str, object]:
    """Return the row of feedback at a position of the log; `early` if it precedes its decision."""
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
        "event_time": f.event_time,
        "tags": dict(f.tags),
        "source": f.source,
        "key": f.key,
        "rater": f.rater,
        "content": dict(f.content) or None,
    }

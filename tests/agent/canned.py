"""Fields of replies that a test does not look at: a canned service sends whole replies, too."""

from typing import Any

COST: dict[str, Any] = {
    "total": 0.0,
    "tokens": 0,
    "retrieval_ms": 0.0,
    "llm_ms": 0.0,
    "steps": 0,
    "usd": 0.0,
}

AGENT: dict[str, Any] = {"episode_id": None, "mode": "explore", "arm_served": None, "reward_deadline": 0.0}

PASSAGE: dict[str, Any] = {"title": "", "text": "", "score": 1.0, "metadata": {}}

CHOICE: dict[str, Any] = {"index": 0, "finish_reason": "stop", "logprobs": None}

RECEIPT: dict[str, Any] = {
    "feedback_id": "f-1",
    "decision_id": None,
    "episode_id": None,
    "status": "stored",
}

POLICY: dict[str, Any] = {
    "kind": "uniform",
    "params": {},
    "floor": 0.1,
    "feedback": None,
    "version": 1,
    "parent": None,
    "digest": "d1",
    "examples_seq": 0,
    "created_at": 0.0,
    "applied_seq": 0,
    "log_seq": 0,
    "serving": {"version": 1, "pinned": False, "chosen": None, "since": None, "reason": None},
    **dict.fromkeys(("promotion", "canary", "newest", "judge", "drift", "router")),
    "reward": {},
}

"""The acknowledgements that clients received, kept by processes that are never killed: the log must match."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.simulation import history

DECISION = (
    "decision_id",
    "episode_id",
    "policy_version",
    "mode",
    "arm_drawn",
    "propensity",
    "pmf",
    "reward_deadline",
)
"""Fields of a decision in every answer; the log must have the same values."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A decision as a client received it.

    Attributes:
        id: The decision.
        fields: The fields named in `DECISION`; empty if the turn failed.
        served: The arm that answered; None if none did, or the answer broke off.
        text: The text of the model; None if there is none, or the answer broke off.
        status: Status of the execution; None if the client did not receive it.
        round: Number of kills before.
        at: When, by the monotonic clock.
    """

    id: str
    fields: Mapping[str, Any]
    served: str | None
    text: str | None
    status: str | None
    round: int
    at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Kept:
    """Feedback that was acknowledged.

    Attributes:
        id: Its key.
        content: Kind, decision, episode, metric and value.
        seq: Its position in the log, by the receipt.
        round: Number of kills before.
    """

    id: str
    content: tuple[str, str | None, str | None, str, float | None]
    seq: int
    round: int


@dataclass(slots=True)
class Ledger:
    """All acknowledgements.

    Attributes:
        answered: Of decisions.
        kept: Of feedback.
        odd: Answers that no client should ever get.
        refused: Requests that were refused with Retry-After.
        round: The kills so far.
    """

    answered: list[Answered] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    refused: int = 0
    round: int = 0

    def __len__(self) -> int:
        """Return the number of acknowledgements."""
        return len(self.answered) + len(self.kept)

    def history(self) -> tuple[history.History, dict[str, int]]:
        """Return what clients were told, and the round in which each id was first acknowledged."""
        answered = [
            history.Answered(
                one.id, one.fields, one.served, one.text, done=one.status is not None, status=one.status
            )
            for one in self.answered
        ]
        kept = [history.Kept(fact.id, *fact.content, fact.seq) for fact in self.kept]
        rounds = {fact.id: fact.round for fact in reversed((*self.answered, *self.kept))}
        return history.History(answered, kept), rounds

    def note_answer(self, ours: Mapping[str, Any], text: str | None, *, over: bool) -> None:
        """Record the decision in an answer, and its text if the answer is complete."""
        fields = {name: ours[name] for name in DECISION}
        served, text, status = (ours["arm_served"], text, "ok") if over else (None, None, None)
        self.answered.append(Answered(ours["decision_id"], fields, served, text, status, self.round))

    def note_failure(self, decision_id: str, status: str | None) -> None:
        """Record a decision whose turn failed."""
        self.answered.append(Answered(decision_id, {}, None, None, status, self.round))

    def note_receipt(self, item: Mapping[str, Any], row: Mapping[str, Any]) -> None:
        """Record the receipt of an item of feedback; an item without a metric is an activation."""
        metric, value = item.get("metric_name", ""), item.get("value")
        kind = "activation" if not metric else "retraction" if value is None else "value"
        number = None if value is None else float(value)
        content = (kind, item.get("decision_id"), item.get("episode_id"), metric, number)
        self.kept.append(Kept(item["feedback_id"], content, row["log_seq"], self.round))

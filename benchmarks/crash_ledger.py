"""What clients were told, and so what must be in the log: written down by those who are never killed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
"""What every answer says of its decision, and the log must say too."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What a client was told of a decision.

    Attributes:
        id: The decision.
        told: The fields named in `DECISION`; empty where the turn failed.
        served: The arm that answered; None where none did, or the answer broke off.
        text: What the model wrote; None where it was not asked, or the answer broke off.
        status: How the execution ended; None where it was not told.
        round: Kills that came before.
    """

    id: str
    told: Mapping[str, Any]
    served: str | None
    text: str | None
    status: str | None
    round: int


@dataclass(frozen=True, slots=True)
class Kept:
    """Feedback that was acknowledged.

    Attributes:
        id: Its key.
        said: Kind, decision, episode, metric and value.
        seq: Its position in the log, as it was told.
        round: Kills that came before.
    """

    id: str
    said: tuple[str, str | None, str | None, str, float | None]
    seq: int
    round: int


@dataclass(slots=True)
class Ledger:
    """What all clients were told.

    Attributes:
        answered: Of decisions.
        kept: Of feedback.
        odd: Answers that no client should ever get.
        refused: Requests that were told to come again later.
        round: The kills so far.
        proxied: Whether something stands in front of the service, and answers while that is gone.
    """

    answered: list[Answered] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    refused: int = 0
    round: int = 0
    proxied: bool = False

    def __len__(self) -> int:
        """Return the number of acknowledgements."""
        return len(self.answered) + len(self.kept)

    def note_answer(self, ours: Mapping[str, Any], text: str | None, *, over: bool) -> None:
        """Write down what an answer said of its decision, and its text if it came to its end."""
        told = {name: ours[name] for name in DECISION}
        served, text, status = (ours["arm_served"], text, "ok") if over else (None, None, None)
        self.answered.append(Answered(ours["decision_id"], told, served, text, status, self.round))

    def note_failure(self, decision_id: str, status: str | None) -> None:
        """Write down that a decision was made whose turn failed."""
        self.answered.append(Answered(decision_id, {}, None, None, status, self.round))

    def note_receipt(self, item: Mapping[str, Any], row: Mapping[str, Any]) -> None:
        """Write down what was said of an item of feedback; an item without a metric is an activation."""
        metric, value = item.get("metric_name", ""), item.get("value")
        kind = "activation" if not metric else "retraction" if value is None else "value"
        number = None if value is None else float(value)
        said = (kind, item.get("decision_id"), item.get("episode_id"), metric, number)
        self.kept.append(Kept(item["feedback_id"], said, row["log_seq"], self.round))


__all__ = ["DECISION", "Answered", "Kept", "Ledger"]

"""The acknowledgements that clients received, kept by processes that are never killed: the log must match."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.history import Answered, History, Kept

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


@dataclass(slots=True)
class Ledger:
    """All acknowledgements.

    Attributes:
        answered: Decisions as clients received them; the fields are those named in `DECISION`, or none if the
            turn failed.
        kept: Feedback.
        rounds: Number of kills before an id was first acknowledged.
        odd: Answers that no client should ever get.
        refused: Requests that were refused with Retry-After.
        round: The kills so far.
    """

    answered: list[Answered] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    rounds: dict[str, int] = field(default_factory=dict)
    odd: list[str] = field(default_factory=list)
    refused: int = 0
    round: int = 0

    def __len__(self) -> int:
        """Return the number of acknowledgements."""
        return len(self.answered) + len(self.kept)

    def history(self) -> History:
        """Return what clients received; a whole answer without a text has an empty one in the log."""
        answered = [
            replace(one, text=one.text or "") if one.done and one.fields else one for one in self.answered
        ]
        return History(answered, self.kept)

    def note_answer(self, ours: Mapping[str, Any], text: str | None, *, over: bool) -> None:
        """Record the decision in an answer, and its text if the answer is complete."""
        fields = {name: ours[name] for name in DECISION}
        served, text, status = (ours["arm_served"], text, "ok") if over else (None, None, None)
        self._note(Answered(ours["decision_id"], fields, served, text, over, status))

    def note_failure(self, decision_id: str, status: str | None) -> None:
        """Record a decision whose turn failed."""
        self._note(Answered(decision_id, {}, done=status is not None, status=status))

    def _note(self, answered: Answered) -> None:
        self.answered.append(answered)
        self.rounds.setdefault(answered.id, self.round)

    def note_receipt(self, item: Mapping[str, Any], row: Mapping[str, Any]) -> None:
        """Record the receipt of an item of feedback; an item without a metric is an activation."""
        metric, value = item.get("metric_name", ""), item.get("value")
        kind = "activation" if not metric else "retraction" if value is None else "value"
        number = None if value is None else float(value)
        about = item.get("decision_id"), item.get("episode_id")
        self.kept.append(Kept(item["feedback_id"], kind, *about, metric, number, row["log_seq"]))
        self.rounds.setdefault(item["feedback_id"], self.round)

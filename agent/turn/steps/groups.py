"""Permissions of passages: only arms that keep to a filter and to the caller's groups may be drawn."""

from collections.abc import Mapping
from typing import ClassVar

from armwise.agent.turn.eligibility import must_filter
from armwise.agent.turn.steps.base import Draft, StepRecord, TurnStep
from armwise.feedback.events import Mask


class GroupStep(TurnStep):
    """Leaves out arms that cannot filter, and logs whose passages the conversation may quote."""

    name: ClassVar[str] = "groups"
    is_for_any_turn: ClassVar[bool] = True

    def mask(self, draft: Draft) -> Mapping[str, str]:
        """Return the arms that cannot filter, if the request needs one that can."""
        if not must_filter(draft.ask, draft.restricted):
            return {}
        return {name: Mask.CANNOT_FILTER for name in draft.names if not draft.arms[name].filters}

    def plan(self, draft: Draft) -> StepRecord | None:
        """Return the groups for which earlier messages may quote passages."""
        quoted = draft.ask.quoted_groups
        return {"quoted": list(quoted)} if quoted else None

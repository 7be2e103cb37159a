"""Sticky conversations: a conversation keeps the arm that was drawn for it, for some turns."""

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Self

import numpy as np

from armwise.agent.turn.steps.base import Array, Draft, DrawInputs, StepRecord, TurnStep
from armwise.feedback.events import KeptDraw, Mode

TURNS = 20
"""Most turns of a conversation that keep an arm: the draw is learned after the last one."""

FindDraw = Callable[[str], Awaitable[KeptDraw | None]]
"""Episode -> its newest draw whose arm may be kept. Raises LogUnavailableError."""


class StickyStep(TurnStep):
    """Keeps the arm of a conversation.

    Args:
        turns: Most turns that keep a drawn arm, including the turn that drew it.
        idle_s: Seconds after the newest turn at which the next turn draws again.
        find_draw: Returns the newest draw of a conversation.
        clock: Seconds since the epoch.
        get_alarm: Returns when drift was last detected, seconds since the epoch, if it was: arms drawn before
            are not kept.
        needs_tools: Whether only requests with tools keep an arm, as those of agents have.
    """

    name: ClassVar[str] = "sticky"
    is_for_any_turn: ClassVar[bool] = True

    def __init__(
        self,
        turns: int,
        idle_s: float,
        find_draw: FindDraw,
        clock: Callable[[], float],
        get_alarm: Callable[[], float | None] = lambda: None,
        *,
        needs_tools: bool = False,
    ) -> None:
        self._needs_tools = needs_tools
        self._turns, self._idle_s = turns, idle_s
        self._find_draw, self._clock, self._get_alarm = find_draw, clock, get_alarm

    @classmethod
    def build(cls, service: Any) -> Self | None:
        """Return the step of a service; None: every turn draws."""
        config = service.config
        if config.sticky == "off":
            return None
        wait_s, clock = config.reward.wait_s, service.clock
        needs_tools = config.sticky == "tools"
        return cls(TURNS, wait_s, service.find_draw, clock, lambda: service.alarm_at, needs_tools=needs_tools)

    async def read(self, draft: Draft) -> KeptDraw | None:
        """Return the newest draw of the conversation, if this turn keeps its arm."""
        if not self._may_keep(draft):
            return None
        return self.keep(draft, await self._find_draw(draft.ask.episode_id or ""))

    def keep(self, draft: Draft, draw: KeptDraw | None) -> KeptDraw | None:
        """Return the newest draw of the conversation if its arm is kept for this turn, and note that."""
        if draw is None or draw.failed or draw.arm not in draft.names:
            return None
        if (alarm := self._get_alarm()) is not None and draw.decided_at <= alarm:
            return None
        if draw.turns >= self._turns or self._clock() - draw.last_at > self._idle_s:
            return None
        draft.kept_arm = draw.arm
        return draw

    def plan(self, draft: Draft) -> StepRecord | None:
        """Keep the arm that was drawn before, or keep the arm of this draw for the turns to come."""
        draw: KeptDraw | None = draft.found.get(self.name)
        if draw is not None and draw.arm in draft.names:
            draft.mode, draft.draw_id = Mode.CONTINUED, draw.id
            draft.policy, draft.version = draw.policy, draw.version
            return {}
        draft.kept_arm = None  # it became unavailable meanwhile
        if self._may_keep(draft):
            draft.draw_id = draft.ask.decision_id
        return None

    def _may_keep(self, draft: Draft) -> bool:
        """Return whether a turn may use the arm of its conversation, and keep a new draw for it."""
        ask = draft.ask
        named = ask.episode_id is not None and ask.episode_id != ask.decision_id
        named = named and (ask.document.has_tools or not self._needs_tools)
        return named and draft.mode is Mode.EXPLORE and not draft.is_decided_by_caller and not ask.external

    @classmethod
    def distribute(cls, record: StepRecord, draw: DrawInputs, p: Array) -> Array:
        """Return the kept arm with probability 1."""
        if draw.kept_arm is None:
            raise ValueError("the log lacks the draw of its episode whose arm it keeps")
        return np.array([float(arm == draw.kept_arm) for arm in draw.arms])

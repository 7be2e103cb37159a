"""Sticky conversations: a conversation keeps the arm that was drawn for it, for some turns."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, ClassVar, Self

from armwise.agent.turn.steps.base import Draft, DrawTerms, StepRecord, TurnStep
from armwise.feedback.events import INCUMBENT, KeptDraw, Mode
from armwise.feedback.reward import RewardRule

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
        asks_caller: Whether a request that names a choice of the caller's own decider keeps none.
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
        asks_caller: bool = False,
    ) -> None:
        self._needs_tools, self._asks_caller = needs_tools, asks_caller
        self._turns, self._idle_s = turns, idle_s
        self._find_draw, self._clock, self._get_alarm = find_draw, clock, get_alarm

    @classmethod
    def build(
        cls,
        *,
        sticky: str,
        reward: RewardRule,
        tap: Any,
        find_draw: FindDraw,
        clock: Callable[[], float],
        get_alarm: Callable[[], float | None],
    ) -> Self | None:
        """Return the step of a service; None: every turn draws."""
        if sticky == "off":
            return None
        return cls(
            *(TURNS, reward.wait_s, find_draw, clock, get_alarm),
            needs_tools=sticky == "tools",
            asks_caller=tap is not None and tap.asks_caller,
        )

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
        draft.terms = replace(draft.terms, certain=draw.arm)
        return draw

    def plan(self, draft: Draft) -> StepRecord | None:
        """Keep the arm that was drawn before, or keep the arm of this draw for the turns to come."""
        draw: KeptDraw | None = draft.found.get(self.name)
        if draw is not None and draw.arm in draft.names:
            draft.terms = DrawTerms(Mode.CONTINUED, draw.policy, draw.version, draw.arm, draw.id)
            return {}
        if draw is not None:  # its arm became unavailable meanwhile
            draft.terms = replace(draft.terms, certain=None)
        if self._may_keep(draft):
            draft.terms = replace(draft.terms, draw_id=draft.ask.decision_id)
        return None

    def _may_keep(self, draft: Draft) -> bool:
        """Return whether a turn may use the arm of its conversation, and keep a new draw for it."""
        ask = draft.ask
        named = ask.episode_id is not None and ask.episode_id != ask.decision_id
        named = named and (ask.document.has_tools or not self._needs_tools)
        asks_caller = self._asks_caller and INCUMBENT in ask.steps
        return named and draft.terms.mode is Mode.EXPLORE and not asks_caller and not ask.external

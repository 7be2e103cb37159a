"""What a step of a turn is: an optional part, such as a budget, that plugs into the draw of an arm."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies import Policy
from armwise.agent.turn.ask import Ask
from armwise.agent.turn.eligibility import ArmInfo
from armwise.agent.turn.health import NO_MODELS
from armwise.agent.turn.probes import UNPROBED, Probes
from armwise.agent.turn.serving import ArmScorer, Serving
from armwise.arms.base import Passage
from armwise.arms.llm import Chunk
from armwise.feedback.events import Context, Decision, Execution, Mode

if TYPE_CHECKING:
    from armwise.agent.turn.answer import AnswerInProgress

Array = NDArray[np.float64]

StepRecord = dict[str, Any]
"""What a step adds to a decision: a JSON object."""


@dataclass(frozen=True, slots=True)
class DrawTerms:
    """How an arm is drawn, and how the log will say so.

    Attributes:
        mode: As in `Decision`, as are the next two and the last one.
        policy: Kind of the policy that the draw is attributed to.
        version: Version of its state.
        certain: The arm that is certain before the draw, since the caller named it or its conversation keeps
            it; None: one is to be chosen.
        draw_id: The draw with which the turns of its conversation that keep the arm are learned.
    """

    mode: Mode
    policy: str
    version: int
    certain: str | None = None
    draw_id: str | None = None


@dataclass(slots=True)
class Draft:
    """A decision in the making, which steps may change until the arm is drawn.

    Attributes:
        ask: The request.
        arms: The live arms of the turn, by name.
        serving: Policy and router of the turn.
        context: The input of the policy.
        terms: How the arm is drawn.
        restricted: Whether passages of the corpus are restricted to groups.
        names: The arms that may be drawn.
        masked: The other live arms, each with the reason.
        probes: Searches of arms before the draw.
        scorers: Routers that score the arms besides the served one; a step adds its own in `read`.
        scores: Scores of the arms by each of these; None: it failed.
        found: What each step has read from the log.
        records: What each step adds to the decision.
        failures: Errors of steps that cannot take part in this draw.
    """

    ask: Ask
    arms: Mapping[str, ArmInfo]
    serving: Serving
    context: Context
    terms: DrawTerms
    restricted: bool = False
    names: list[str] = field(default_factory=list)
    masked: dict[str, str] = field(default_factory=dict)
    probes: Probes = UNPROBED
    scorers: list[ArmScorer] = field(default_factory=list)
    scores: dict[ArmScorer, Mapping[str, float] | None] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)
    records: dict[str, StepRecord] = field(default_factory=dict)
    failures: dict[str, "StepError"] = field(default_factory=dict)

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        """Leave out arms, each with the reason; other names are ignored."""
        self.masked |= {name: why for name, why in reasons.items() if name in self.names}
        self.names = [name for name in self.names if name not in reasons]

    @property
    def models(self) -> Mapping[str, str]:
        """Language model of each arm that is to answer; empty if the request is to retrieve only."""
        if not self.ask.messages:
            return NO_MODELS
        return {name: info.answering.llm for name, info in self.arms.items()}

    @property
    def is_open(self) -> bool:
        """Whether an arm is still to be chosen."""
        return self.terms.certain is None


@dataclass(frozen=True, slots=True)
class DrawInputs:
    """The inputs of a distribution, the same in a turn and when a decision is verified.

    Attributes:
        context: The input of the policy.
        arms: The arms that may be drawn.
        floor: Least probability of an arm by a policy.
        penalty: Reward that each arm loses, in the order of `arms`; empty if none loses any.
        find_policy: Version -> its policy. Raises LookupError.
    """

    context: Context
    arms: Sequence[str]
    floor: float
    penalty: Sequence[float]
    find_policy: Callable[[int], Policy]


Commit = Callable[..., Awaitable[Sequence[Any]]]
"""Facts -> their receipts, once they are durable. Raises StoreError."""


class StepError(ValueError):
    """A step cannot take part in a draw, which goes on without it.

    Attributes:
        step: Name of the step.
    """

    def __init__(self, step: str, message: str) -> None:
        super().__init__(message)
        self.step = step


class TurnStep:
    """An optional part of a turn. Override the methods that it needs.

    In each turn the methods are called in the order below, of all steps in the order of the service. Those
    before `follow` may be called more than once. Class methods compute with what is logged alone, so that any
    decision can be recomputed from the log.

    Attributes:
        name: Name of the step, under which `Decision.steps` has its record.
        is_for_any_turn: Whether `plan` is called even if the arm is certain before the draw: named by the
            caller, or kept by the conversation.
        binds_all: Whether it changes a draw whichever policy decides, so that a replay has it change the
            distributions of candidates as well.
        is_last: Whether a built-in step comes after a service's own steps: it looks at what they have left.
    """

    name: ClassVar[str]
    is_for_any_turn: ClassVar[bool] = False
    is_last: ClassVar[bool] = False
    binds_all: ClassVar[bool] = False

    @classmethod
    def build(cls, *_: Any, **parts: Any) -> Self | None:
        """Return the built-in step of a service; None: its configuration does without.

        A step names its parts as parameters, by keyword alone: see `armwise.agent.turn.steps.wire_steps`.
        """
        return cls()

    def mask(self, draft: Draft) -> Mapping[str, str]:
        """Return the arms among `draft.names` that may not be drawn, each with the reason.

        Called before arms search, again right before the draw, and where the price of a turn is asked.
        """
        return {}

    async def read(self, draft: Draft) -> Any:
        """Return what the step needs to know from the log; it is in `draft.found` afterwards."""
        return None

    def plan(self, draft: Draft) -> StepRecord | None:
        """Return what the step does in this draw, to be logged; None: it takes no part.

        It may replace `draft.terms`. If `distribute` raises StepError, the draw is planned anew, with the
        error in `draft.failures`; what the step does then does not count.
        """
        return None

    @classmethod
    def weigh(cls, record: Mapping[str, Any], arms: Sequence[str]) -> Sequence[float]:
        """Return the reward that each arm is known to lose, shape (n_arms,); empty: none loses any."""
        return ()

    @classmethod
    def distribute(cls, record: StepRecord, draw: DrawInputs, p: Array) -> Array:
        """Return the distribution to draw from, shape (n_arms,).

        Numbers that follow from the draw may be added to the record.

        Args:
            record: What `plan` has returned.
            draw: The inputs.
            p: The distribution so far, shape (n_arms,).

        Raises:
            StepError: The step cannot take part. In a turn, the draw is planned anew without it.
            ValueError: The log lacks what the distribution was computed from.
        """
        return p

    def follow(self, ask: Ask, decision: Decision) -> None:
        """Called once a decision is durable. Must return at once."""

    def write(self, writing: "AnswerInProgress") -> AsyncGenerator[Chunk, None] | None:
        """Return the answer that the step writes, chunk by chunk; None: it leaves that to others."""
        return None

    def finish(self, ask: Ask, decision: Decision, execution: Execution, passages: Sequence[Passage]) -> None:
        """Called once an answer of a language model is complete and durable. Must return at once."""

"""What goes into a turn and comes out of it: requests, events, the served policy, errors."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from agent.policies import Policy
from arms.base import Retrieval
from arms.llm import Chunk, Message
from feedback.events import Decision, Execution, Status


class NoEligibleArmError(ValueError):
    """Every arm is disabled or excluded; nothing was decided."""


class OverloadedError(Exception):
    """Every arm that could be drawn has as many searches under way as it may have; nothing was decided."""


class TurnError(Exception):
    """A turn failed after its decision: the row stays, marked.

    Attributes:
        decision_id: The decision that was committed.
        status: What failed.
    """

    def __init__(self, decision_id: str, status: Status, message: str) -> None:
        super().__init__(message)
        self.decision_id = decision_id
        self.status = status


class AnsweredElsewhereError(Exception):
    """Another process has carried out the same decision meanwhile; its answer is the one on record."""


Commit = asyncio.Future[Any]
"""Is done once facts are durable."""


class Log(Protocol):
    """Where facts go. A write goes on when its caller is cancelled."""

    def append(self, *facts: Decision | Execution) -> Commit:
        """Queue facts to be committed, in order; the future holds their receipts, once they are durable."""
        ...


@dataclass(frozen=True, slots=True)
class Canary:
    """A candidate that takes a share of the traffic.

    Attributes:
        policy: Its policy.
        version: Its number.
        share: How much of each distribution is its own, in (0, 1).
    """

    policy: Policy
    version: int
    share: float


@dataclass(frozen=True, slots=True)
class Serving:
    """The policy that decides now, frozen until the next version replaces it; and a candidate beside it."""

    policy: Policy
    version: int
    canary: Canary | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """One question with what its caller wishes.

    Attributes:
        decision_id: Names the turn; the draw is hashed from it and from the arms that could be drawn.
        question: What is looked up and what the policy sees.
        messages: The conversation that the model answers; empty to retrieve only.
        k: Passages to retrieve.
        forced: An arm that the caller named; it is recorded as forced.
        allowed: Arms to choose among; None for all.
        excluded: Arms not to choose.
        explore: False takes the most probable arm; it is recorded as greedy.
        context: The caller's own features.
        episode_id: Groups the turns of one conversation; kept and told again.
        request_digest: Tells a retry from another request under the same id.
        deferred: The decision counts only once its answer was shown.
        max_tokens: Longest answer.
        temperature: Of the model.
        top_p: The model draws from the likeliest tokens that hold this mass.
        seed: Of the model's draws.
        stop: Strings that end the answer.
    """

    decision_id: str
    question: str
    messages: tuple[Message, ...] = ()
    k: int = 4
    forced: str | None = None
    allowed: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()
    explore: bool = True
    context: Mapping[str, float | str | bool] = field(default_factory=dict)
    episode_id: str | None = None
    request_digest: str = ""
    deferred: bool = False
    max_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision is durable and its passages are here."""

    decision: Decision
    retrieval: Retrieval
    served: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The execution is durable: the turn is over."""

    execution: Execution
    finish_reason: str


Event = Decided | Chunk | Finished


@dataclass(frozen=True, slots=True)
class ArmInfo:
    """What the turn knows of an arm before it runs."""

    backbones: frozenset[str] = frozenset()
    features: Mapping[str, float] = field(default_factory=dict)
    enabled: bool = True

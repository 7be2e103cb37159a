"""Requests, events and errors of a turn, and the policy that it is decided by."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from agent.policies import Policy
from agent.serving.probe import Scorer
from arms.base import Retrieval
from arms.filters import Comparison, Compound
from arms.llm import UNPROMPTED, Bound, Chunk, Message, writing
from feedback.events import Decision, Execution, Status


class NoEligibleArmError(ValueError):
    """Every arm is disabled or excluded; nothing was decided."""


class OverloadedError(Exception):
    """Every arm that could be drawn is at its cap of searches; nothing was decided."""


class TurnError(Exception):
    """A turn failed after its decision, which stays in the log with the failure.

    Attributes:
        decision_id: The decision that was committed.
        status: What failed.
    """

    def __init__(self, decision_id: str, status: Status, message: str) -> None:
        super().__init__(message)
        self.decision_id = decision_id
        self.status = status


class AnsweredElsewhereError(Exception):
    """Another process has carried out the same decision meanwhile; its execution is the one in the log."""


Commit = asyncio.Future[Any]
"""Done once facts are durable."""


class Log(Protocol):
    """Commits facts. A write goes on when its caller is cancelled."""

    def append(self, *facts: Decision | Execution) -> Commit:
        """Queue facts to be committed, in order; the future holds their receipts once they are durable."""
        ...


@dataclass(frozen=True, slots=True)
class Canary:
    """A candidate that takes a share of the traffic.

    Attributes:
        policy: Policy.
        version: Number of the version.
        share: Weight in the mixture with the served policy, in (0, 1).
        scorer: Router whose scores replace those of the served one; None without a router.
    """

    policy: Policy
    version: int
    share: float
    scorer: Scorer | None = None


@dataclass(frozen=True, slots=True)
class Serving:
    """The policy that decides, with its router, frozen until the next version replaces it, and the canary."""

    policy: Policy
    version: int
    canary: Canary | None = None
    scorer: Scorer | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        decision_id: Names the turn; the draw is hashed from it, the arms that could be drawn, and a secret.
        question: The query, and what the policy sees.
        messages: The conversation that the model answers; empty to retrieve only.
        k: Passages to retrieve; None for as many as the arm is configured with.
        forced: An arm that the caller named; recorded as forced.
        allowed: Arms to choose among; None for all.
        excluded: Arms not to choose.
        explore: False takes the most probable arm; recorded as greedy.
        context: The caller's own features.
        cost_weight: Quality given up for a unit of priced cost; None for that of the reward rule.
        episode_id: Groups the turns of one conversation; kept and returned.
        request_digest: Distinguishes a retry from another request under the same id.
        deferred: The decision counts only once its answer was shown.
        max_tokens: Longest answer; None for that of the arm, as with the next two.
        temperature: Sampling temperature of the model.
        top_p: Nucleus sampling of the model.
        seed: Seed that the model samples by.
        stop: Strings that end the answer.
        options: Further parameters of the model, as `arms.llm.Prompt` has them.
        continues: The decision whose arm, the forced one, searches again for the same question, with the
            same seed: the model has called functions, and the conversation has their results.
        actions: Features of the actions that came with the request, by their names in the log; empty to
            choose among arms.
        ids: Their ids, by the same names.
        user_digest: What the log keeps of the end user; None for nobody.
        where: What the metadata of every passage fulfils; None for any.
        groups: The caller's, for passages that are for some groups alone.
        by_score: Whether passages are selected by their scores, which the log does not keep.
    """

    decision_id: str
    question: str
    messages: tuple[Message, ...] = ()
    k: int | None = None
    forced: str | None = None
    allowed: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()
    explore: bool = True
    context: Mapping[str, float | str | bool] = field(default_factory=dict)
    cost_weight: float | None = None
    episode_id: str | None = None
    request_digest: str = ""
    deferred: bool = False
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    continues: str | None = None
    actions: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    user_digest: str | None = None
    where: Comparison | Compound | None = None
    groups: frozenset[str] = frozenset()
    by_score: bool = False


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision is durable and its passages are found."""

    decision: Decision
    retrieval: Retrieval
    served: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The execution is durable: the turn is over, each choice of the answer for its reason."""

    execution: Execution
    finish_reasons: tuple[str, ...]


Event = Decided | Chunk | Finished


@dataclass(frozen=True, slots=True)
class ArmInfo:
    """What the turn knows of an arm before it runs.

    Attributes:
        backbones: The embeddings that a query must have.
        features: What a policy sees of it.
        enabled: Whether it is switched on.
        filters: Whether it finds only what a query permits.
        answering: How its answers are written.
        options: Names of the `Prompt.options` that its language model is given; None for any.
        cached: Whether what it finds is kept.
        searched: Hash of what it searches and how: arms that have it in common find the same; empty where
            that is not known.
        bound: Most that a search has the language model read and write.
    """

    backbones: frozenset[str] = frozenset()
    features: Mapping[str, float] = field(default_factory=dict)
    enabled: bool = True
    filters: bool = False
    answering: writing.Answering = field(default_factory=writing.Answering)
    options: frozenset[str] | None = None
    cached: bool = False
    searched: str = ""
    bound: Bound = UNPROMPTED

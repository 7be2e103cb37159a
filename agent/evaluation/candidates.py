"""Candidates that read contexts: their distributions, decision by decision.

    Learned    a policy: it learns from the log as that is replayed, or is a version and stays as it is
    Recorded   the shadow policy, as it was logged with each decision
    Routed     the best arm by the scores of a trained router, which are computed again

A learning candidate returns its distribution for a decision before it learns from it, so none is evaluated
on decisions that it has seen.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from agent.config import AppConfig
from agent.evaluation.candidate_names import CandidateError
from agent.learning import router_scores
from agent.policies import Policy, sampling, served_distribution
from agent.routers import RouterError, Stage, dataset
from arms.models import ModelNotFoundError, build_embedder
from feedback.budget import Pacer
from feedback.events import LABELS, ROUTER, Decision, Example, Source
from feedback.training_log import observed


class LeftOutError(Exception):
    """A candidate cannot be evaluated on a decision; the message is the reason that is counted."""


class Candidate(Protocol):
    """Returns its distribution for one decision after the other, in the order of the log.

    Attributes:
        about: What it is, in a sentence.
        after: It is evaluated on rows after this position of the training log.
        reason: Why it is not evaluated on rows before.
        arms: The arms that it can draw.
        brought: Those of them that become live with it; empty where it takes those that are live.
    """

    about: str
    after: int
    reason: str
    arms: frozenset[str]
    brought: frozenset[str]

    def seen(self, block: Sequence[Example]) -> Sequence[Example]:
        """Return rows with the contexts that it would have seen."""
        ...

    def prepare(self, decisions: Sequence[Decision]) -> None:
        """Prepare for the next decisions, in batch."""
        ...

    def probabilities(self, decision: Decision, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return its distribution, shape (n_arms,), floor mixed in.

        Args:
            decision: The logged decision.
            arms: The eligible arms that it knows, at least one.

        Raises:
            LeftOutError: It cannot be evaluated on this decision.
        """
        ...

    def learn(self, example: Example, reward: float | None) -> None:
        """Learn from a row of the training log, if it is one that learns.

        Args:
            example: Every row in turn, since observations may stand beside any.
            reward: Reward of the decision; None where it is not learned.
        """
        ...

    def notes(self) -> Sequence[str]:
        """Return remarks after the last row, a sentence each."""
        ...


def note_label(taught: dict[str, float], label: Decision) -> None:
    """Record when the last label of a question was inserted."""
    question = label.context.question
    taught[question] = max(label.decided_at, taught.get(question, -math.inf))


def _floor_of(decision: Decision, floor: float) -> float:
    """Return the floor of a candidate: at least the logged one, which an alarm may have raised."""
    return max(floor, decision.floor or 0.0)


@dataclass(eq=False)
class Learned:
    """A policy with the floor of the configuration, or the logged one where that is higher.

    Args:
        policy: In its state before the first row of the log.
        frozen: Whether it does not learn.
        taught: When the labels of a question were inserted that it has learned, seconds since the epoch:
            earlier decisions on the question may be the source of the labels, and are left out. Labels of
            the training log are added as it learns them.
        pacer: Finds the price of a budget; None where the price of each decision is the logged one.
        contexts: Returns rows with the scores of its own router.
        scored: Whether it has a router of its own, without whose scores it decides nothing.
        beside: Returns what is learned after an example beside its reward; None for nothing.
    """

    about: str
    arms: frozenset[str]
    policy: Policy
    floor: float
    after: int = 0
    reason: str = ""
    frozen: bool = False
    taught: dict[str, float] = field(default_factory=dict)
    pacer: Pacer | None = None
    contexts: Callable[[Sequence[Example]], Sequence[Example]] = lambda block: block
    scored: bool = False
    brought: frozenset[str] = frozenset()
    beside: Callable[[Example], Iterable[tuple[Decision, float]]] | None = None
    _last: tuple[str, dict[str, float]] = ("", {})
    _paid: list[float] = field(default_factory=list)
    _graded: set[str] = field(default_factory=set)

    def seen(self, block: Sequence[Example]) -> Sequence[Example]:
        """Return the rows with the scores of its own router, if it has one."""
        return self.contexts(block)

    def prepare(self, decisions: Sequence[Decision]) -> None:
        """Do nothing."""

    def probabilities(self, decision: Decision, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return the distribution of the policy."""
        if self.scored and not any(ROUTER in features for features in decision.context.arms.values()):
            raise LeftOutError("its router has no scores of the decision")
        if decision.id in self._graded:
            raise LeftOutError("a grade of it was learned before")
        if decision.decided_at <= self.taught.get(decision.context.question, -math.inf):
            raise LeftOutError("a label that it has learned may be made of it")
        if self.pacer is None:
            logged = dict(zip(decision.arms, decision.penalty, strict=False))
            penalty = [logged[arm] for arm in arms if arm in logged]
        else:
            penalty = [self.pacer.price * cost for cost in self.pacer.costs(arms)]
        floor = _floor_of(decision, self.floor)
        p = served_distribution(self.policy, decision.context, arms, floor, penalty)
        self._last = decision.id, dict(zip(arms, p.tolist(), strict=True))
        return p

    def learn(self, example: Example, reward: float | None) -> None:
        """Update the policy, unless it is frozen: then it has learned the rows up to its position already."""
        learned = (example.seq <= self.after) if self.frozen else (example.seq > self.after)
        if learned and reward is not None and example.decision.policy == LABELS:
            note_label(self.taught, example.decision)
        if learned and not self.frozen:
            if reward is not None:
                self.policy.learn(example.decision, reward)
            for label, value in self.beside(example) if self.beside else ():
                self.policy.learn(label, value)
                if observed.source_of(label) is Source.JUDGE:
                    self._graded.add(label.id.removesuffix(f"/{Source.JUDGE}/{label.drawn}"))
        if self.pacer is not None and example.decision.policy != LABELS:
            self._pay(self.pacer, example)

    def _pay(self, pacer: Pacer, example: Example) -> None:
        """Charge what the candidate would have paid: the mean cost of each arm, by its distribution."""
        name, p = self._last
        spent, paid = pacer.budget.spent(example.cost), None
        if name == example.decision.id:
            paid = math.fsum(share * cost for share, cost in zip(p.values(), pacer.costs([*p]), strict=True))
            self._paid.append(paid)
        pacer.note(example.decision.drawn, spent, paid)

    def notes(self) -> Sequence[str]:
        """Return what it would have spent under a budget."""
        if self.pacer is None or not self._paid:
            return ()
        budget, mean = self.pacer.budget, math.fsum(self._paid) / len(self._paid)
        return (
            f"Under a ceiling of {budget.ceiling:g} {budget.unit} a request it would have spent {mean:.4g}, "
            "by the mean cost of each arm.",
        )


@dataclass(eq=False)
class Recorded:
    """The shadow policy of the policy that decided."""

    arms: frozenset[str]
    about: str = "The shadow policy, as it was logged with each decision."
    after: int = 0
    reason: str = ""
    brought: frozenset[str] = frozenset()

    def seen(self, block: Sequence[Example]) -> Sequence[Example]:
        """Return the rows as they are."""
        return block

    def prepare(self, decisions: Sequence[Decision]) -> None:
        """Do nothing."""

    def probabilities(self, decision: Decision, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return the logged distribution, over all arms that were eligible."""
        if not decision.shadow:
            raise LeftOutError("no shadow on record")
        if len(arms) != len(decision.arms):
            raise LeftOutError("an arm of the shadow is not live any more")
        return np.array(decision.shadow)

    def learn(self, example: Example, reward: float | None) -> None:
        """Do nothing."""

    def notes(self) -> Sequence[str]:
        """Return none."""
        return ()


class Routed:
    """The arm with the best score of a router on questions; ties are split evenly.

    For a question that it was trained on, the out-of-fold scores are used; see `agent.routers.out_of_fold`.

    Args:
        folder: Folder of the trained router.
        config: Configuration of the service in which it would run.
        arms: The live arms.

    Raises:
        CandidateError: It cannot be read, does not fit, or reads retrieved passages.
    """

    after, reason, brought = 0, "", frozenset[str]()

    def __init__(self, folder: Path, config: AppConfig, arms: Sequence[str]) -> None:
        try:
            stored = router_scores.StoredTrained.read(folder)
            trained = stored.trained
            trained.check(config.backbones, arms)
            self._embedder = build_embedder(config.backbones[trained.about.backbone])
        except (RouterError, ModelNotFoundError) as error:
            raise CandidateError(f"candidate 'router:{folder}': {error}") from None
        if trained.router.stage is not Stage.QUESTION:
            raise CandidateError(
                f"candidate 'router:{folder}' looks at what every arm retrieves, and the log keeps what one "
                "has; where it advised the service, its scores are on record, and "
                "policy:{kind: routed, params: {epsilon: 0}} goes by them"
            )
        self._stored, self._known = stored, trained.about.arms
        self._floor = config.floor
        self._scores: dict[str, dataset.Floats] = {}
        self.arms = frozenset(arms) & frozenset(self._known)
        self.about = f"The best arm by the scores of the {trained.about.kind} router in {folder}."

    def seen(self, block: Sequence[Example]) -> Sequence[Example]:
        """Return the rows as they are."""
        return block

    def prepare(self, decisions: Sequence[Decision]) -> None:
        """Score the questions, all at once."""
        texts = tuple(dict.fromkeys(decision.context.question for decision in decisions))
        self._scores = dict(zip(texts, self._stored.scores(texts, self._embedder), strict=True))

    def probabilities(self, decision: Decision, arms: Sequence[str]) -> NDArray[np.float64]:
        """Put all but the floor on the best arms."""
        scores = self._scores[decision.context.question][[self._known.index(arm) for arm in arms]]
        if np.isnan(scores).any():
            raise LeftOutError("the router was trained on the question")
        return sampling.mix_floor(
            sampling.greedy(scores), sampling.lowered(_floor_of(decision, self._floor), len(arms))
        )

    def learn(self, example: Example, reward: float | None) -> None:
        """Do nothing."""

    def notes(self) -> Sequence[str]:
        """Return none."""
        return ()

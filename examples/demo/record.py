"""What is on record of a demo: its chapters, each turn of the traffic, and what could have been earned."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from armwise.agent.lab.simulation.summary import SimulatedTurn

COMPARED = 30
"""Questions of a kind that shares are a mean of at most; else a quarter of them."""

NAMED = 0.02
"""Smallest share that is put into words."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, as a user would send it, and what came back.

    Attributes:
        sent: A command line.
        answer: The part of the answer that the story rests on, as JSON.
    """

    sent: str
    answer: str


@dataclass(frozen=True, slots=True)
class Value:
    """What the log says that a policy would have earned.

    Attributes:
        name: The candidate.
        estimator: What the figures are by.
        value: Mean reward of a decision.
        low: Lower end of its 95 % interval.
        high: Upper end.
        gain: Beyond what was served; None for that itself.
        effective_n: Effective sample size.
    """

    name: str
    estimator: str
    value: float
    low: float
    high: float
    gain: float | None
    effective_n: float


@dataclass(frozen=True, slots=True)
class Moved:
    """How often arms are drawn for a kind of question, at the two ends of a chapter.

    Attributes:
        kind: The kind.
        first: Mean probability of each arm at first.
        last: At last.
    """

    kind: str
    first: dict[str, float]
    last: dict[str, float]

    def __str__(self) -> str:
        arms = (
            f"{arm} {self.first[arm]:.0%} to {self.last[arm]:.0%}"
            for arm in self.last
            if max(self.first[arm], self.last[arm]) >= NAMED
        )
        return f"{self.kind}: {', '.join(arms)}"


@dataclass(slots=True)
class Chapter:
    """A part of the story.

    Attributes:
        title: What happens.
        paragraphs: The results.
        exchanges: What was sent for it.
        facts: Figures, by what they are.
        values: What candidates would have earned, where that was asked for.
        moved: Shares of the arms by kind of question.
        first: Turns of the traffic before it.
        last: Turns of the traffic at its end.
        took_s: How long it took.
        succeeded: Whether its subject happened.
    """

    title: str
    paragraphs: list[str] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)
    moved: list[Moved] = field(default_factory=list)
    first: int = 0
    last: int = 0
    took_s: float = 0.0
    succeeded: bool = True


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at a moment of the traffic.

    Attributes:
        position: Turns before it.
        label: Text of the policy in the plot.
    """

    position: int
    label: str


@dataclass(frozen=True, slots=True)
class Trail:
    """How the evidence for a candidate grew, as the gate reported it.

    Attributes:
        candidate: Version of the candidate.
        promote: The final verdict of the gate.
        margin: What the bound has to be above.
        level: Chance that the bound is right.
        points: Decisions, gain and lower bound.
    """

    candidate: int
    promote: bool
    margin: float
    level: float
    points: tuple[tuple[int, float, float], ...]


@dataclass(slots=True)
class Story:
    """All of it.

    Attributes:
        arms: In the order of their colours.
        truth: What every arm earns on each question, by when that was asked and by kind of question; an arm
            that failed is absent.
        turns: The traffic.
        chapters: In the order of time.
        marks: What happened between turns.
        trails: The last one of each candidate that was judged.
        runs: The warm starts, as the service reports them.
        report: Page of an evaluation, as the service hands it out; empty where there is none.
        config: The configuration of the service.
        command: What the demo was started by.
        took_s: Seconds from the start of the service to the end of the story.
    """

    arms: tuple[str, ...] = ()
    truth: dict[str, dict[str, Mapping[str, Mapping[str, float]]]] = field(default_factory=dict)
    turns: list[SimulatedTurn] = field(default_factory=list)
    chapters: list[Chapter] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    trails: dict[int, Trail] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    report: str = ""
    config: str = ""
    command: str = ""
    took_s: float = 0.0

    @property
    def succeeded(self) -> int:
        """Chapters in which what they are about has happened."""
        return sum(chapter.succeeded for chapter in self.chapters)

    def earned(self, first: int, last: int) -> float:
        """Return the mean reward of turns; NaN for none."""
        rewards = [turn.reward for turn in self.turns[first:last] if turn.reward is not None]
        return fmean(rewards) if rewards else float("nan")

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of questions, in the order in which they were first asked."""
        return tuple(dict.fromkeys(turn.group for turn in self.turns))

    def shares(self, first: int, last: int) -> list[Moved]:
        """Return the shares of the arms at both ends of some turns, by kind of question."""
        moved = []
        for kind in self.kinds:
            pmfs = [turn.pmf for turn in self.turns[first:last] if turn.group == kind]
            if pmfs:
                n = min(COMPARED, -(-len(pmfs) // 4))
                moved.append(Moved(kind, self._mean(pmfs[:n]), self._mean(pmfs[-n:])))
        return moved

    def _mean(self, pmfs: Sequence[Mapping[str, float]]) -> dict[str, float]:
        return {arm: fmean(pmf.get(arm, 0.0) for pmf in pmfs) for arm in self.arms}

    def worth(self, when: str, *kinds: str) -> dict[str, float]:
        """Return what each arm earned on average on questions of some kinds, the best arm first."""
        of_kinds = [earned for kind in kinds for earned in self.truth[when][kind].values()]
        rewards_by_arm = {arm: [earned[arm] for earned in of_kinds if arm in earned] for arm in self.arms}
        means = {arm: fmean(values) for arm, values in rewards_by_arm.items() if values}
        return dict(sorted(means.items(), key=lambda item: -item[1]))

    def oracle(self, when: str, kind: str) -> float:
        """Return what the best arm of each question earned."""
        return fmean(max(earned.values()) for earned in self.truth[when][kind].values() if earned)

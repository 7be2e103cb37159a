"""The story of the demo: what is asked in which order, and whether each chapter came about.

    even draws -> the gate promotes a policy that learns -> it chooses -> the search API becomes stale

Nothing is staged. A chapter that does not come about says so, and the story goes on.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from armwise.agent.client import AnswerFailedError, AsyncClient, ClientError
from armwise.agent.config import AppConfig
from armwise.agent.demo.world import ALONE, BEST, RIGHT_ARMS, RULE, World
from armwise.agent.evaluation import EvaluationRequest, evaluate_here, run_evaluation, verdict_on
from armwise.agent.jobs import this_process
from armwise.agent.learning import Recipe, publish_candidate
from armwise.agent.policies import PolicySpec
from armwise.arms.base import Progress
from armwise.feedback.log import Store

EVEN, MORE, LEARNED, STALE = 350, 100, 300, 350
"""Questions before the gate is asked, between two verdicts, after the promotion, and with a stale source."""

VERDICTS = 3
"""Times that the gate is asked at most."""

PER_S, AT_ONCE = 20.0, 4
"""Questions per second at most, so that one can watch, and questions in flight."""

WINDOW = 75
"""The last questions of a chapter, by which it is judged."""

POLL_S, PATIENCE_S = 0.1, 60.0
"""Pause between two looks at what the service has learned, and how long that may take."""

CANDIDATE = PolicySpec(
    kind="vowpal",
    params={"args": "--cb_explore_adf --squarecb --gamma_scale 20 --clip_p 1 --learning_rate 0.3 -q sa"},
)
"""The policy that learns: SquareCB of Vowpal Wabbit."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A question that was answered and rated; the service does not see its kind, nor whether it is right.

    Dollars are sums up to here: what was spent, and what the large model would have charged for the prompts.
    """

    question: str
    kind: str
    right: bool
    arm: str
    pmf: dict[str, float]
    usd: float
    large_usd: float


@dataclass(slots=True)
class Chapter:
    """A part of the story: its title, what came of it, and whether it came about; None is for not yet."""

    title: str
    said: str = ""
    came_about: bool | None = None


@dataclass(slots=True)
class Story:
    """What has happened so far: what is asked now, the answers, and changes after so many questions."""

    service: str
    turns: list[Turn] = field(default_factory=list)
    marks: list[tuple[int, str]] = field(default_factory=list)
    now: str = "starting the service"
    took_s: float = 0.0
    stale_at: int | None = None
    promotion: Chapter = field(default_factory=lambda: Chapter("The gate promotes a policy that learns"))
    choice: Chapter = field(
        default_factory=lambda: Chapter("Each kind of question goes to an arm that answers it right")
    )
    stale: Chapter = field(default_factory=lambda: Chapter("The policy leaves a stale source"))
    money: Chapter = field(default_factory=lambda: Chapter("It costs less than the large model"))

    @property
    def chapters(self) -> list[Chapter]:
        """The parts of the story, in their order."""
        return [self.promotion, self.choice, self.stale, self.money]


def share(turns: Sequence[Turn], kind: str, arm: str) -> float:
    """Return the mean probability of an arm for a kind of question; 0 without such a question."""
    logged = [turn.pmf.get(arm, 0.0) for turn in turns if turn.kind == kind]
    return sum(logged) / len(logged) if logged else 0.0


def count_right(turns: Sequence[Turn]) -> float:
    """Return the share of right answers; 0 without any."""
    return sum(turn.right for turn in turns) / len(turns) if turns else 0.0


def make_candidate(config: AppConfig) -> tuple[int, Mapping[str, Any]]:
    """Publish a candidate that has learned the log, as a warm start does, and ask the gate about it.

    The evaluation has the usual priority, since somebody watches. A promotion within a minute uses it.

    Returns:
        The version, and the verdict.
    """
    with closing(Store(config.database_url, config.reward.join)) as store:
        version = publish_candidate(store, Recipe(CANDIDATE, config.reward), list(config.actions)).version
        name = f"recipe:{version}"
        request = EvaluationRequest(candidates=(name,), gate=True).model_dump(mode="json")
        done = run_evaluation(store, config, request, this_process(), lambda *_: None, evaluate=evaluate_here)
        return version, verdict_on(done.report, name)


class Narrator:
    """Lives through a story: asks a service with this configuration, and rates its answers."""

    def __init__(
        self, client: AsyncClient, config: AppConfig, world: World, story: Story, on_progress: Progress
    ) -> None:
        self._client, self._config, self._world = client, config, world
        self._story, self._on_progress = story, on_progress
        self._usd, self._log_seq, self._started = 0.0, 0, time.monotonic()

    async def live(self) -> None:
        """Live through all of it. Raises ClientError if the service fails."""
        story = self._story
        await self._promote()
        await self._ask("the policy chooses", LEARNED)
        before = story.turns[-WINDOW:]
        shares = {kind: sum(share(before, kind, arm) for arm in arms) for kind, arms in RIGHT_ARMS.items()}
        parts = ", ".join(
            f"{shares[kind]:.0%} of the {kind} to {' or '.join(arms)}" for kind, arms in RIGHT_ARMS.items()
        )
        story.choice.said = (
            f"In the last {WINDOW} questions before the change, the policy sent {parts}. "
            f"{count_right(before):.0%} of the answers were right, up from "
            f"{count_right(story.turns[:EVEN]):.0%} with even draws."
        )
        story.choice.came_about = min(shares.values()) > 0.5

        story.stale_at, self._world.stale = len(story.turns), True
        story.marks.append((story.stale_at, "stale"))
        await self._ask("the language search is stale", STALE)
        after = story.turns[-WINDOW:]
        left, alone = share(after, RULE, BEST[RULE]), share(after, RULE, ALONE)
        story.stale.said = (
            f"{shares[RULE]:.0%} of the {RULE} went to {BEST[RULE]} before its search became stale, and "
            f"{left:.0%} at the end. {alone:.0%} go to {ALONE} now."
        )
        story.stale.came_about = shares[RULE] > 0.5 and left < 0.25

        spent, large = story.turns[-1].usd, story.turns[-1].large_usd
        story.money.said = (
            f"{len(story.turns):,} answers cost ${spent:.2f}. The large model would have charged "
            f"${large:.2f} for the same prompts. That is {1 - spent / large:.0%} less, exploration included. "
            f"{count_right(story.turns):.0%} of the answers were right; all by the large model, "
            f"{self._world.large_right / len(story.turns):.0%} would have been."
        )
        story.money.came_about = spent < 0.8 * large

    async def _promote(self) -> None:
        """Ask questions until the gate lets the candidate through."""
        story, chapter, judging = self._story, self._story.promotion, "the gate judges a candidate"
        for n in (EVEN, *(MORE,) * (VERDICTS - 1)):
            await self._ask("every arm is equally likely", n)
            story.now = judging
            self._on_progress(judging, 0, 1)
            version, verdict = await asyncio.to_thread(make_candidate, self._config)
            self._on_progress(judging, 1, 1)
            n_asked, chapter.came_about = len(story.turns), bool(verdict["promote"])
            if chapter.came_about:
                await self._client.promote(version, "the gate lets it through")
                story.marks.append((n_asked, "promoted"))
                figures = verdict["figures"]
                chapter.said = (
                    f"After {n_asked} questions the gate promoted version {version}. On the log, it earns "
                    f"{figures['gain']:.2f} more reward per question than even draws, and at least "
                    f"{figures['low']:.2f} with {figures['level']:.0%} confidence."
                )
                return
            reasons = " ".join(verdict["reasons"])
            chapter.said = f"After {n_asked} questions the gate held version {version}: {reasons}"

    async def _ask(self, what: str, n: int) -> None:
        """Ask questions and rate the answers, until the service has learned all ratings."""
        self._story.now, begun = what, time.monotonic()
        numbers, done = iter(range(n)), iter(range(1, n + 1))

        async def user() -> None:
            for number in numbers:
                await asyncio.sleep(max(0.0, begun + number / PER_S - time.monotonic()))
                await self._turn()
                self._on_progress(what, next(done), n)

        await asyncio.gather(*(user() for _ in range(AT_ONCE)))
        give_up = time.monotonic() + PATIENCE_S
        while (await self._client.policy()).applied_seq < self._log_seq:
            if time.monotonic() > give_up:
                raise ClientError(f"the service has not learned for {PATIENCE_S:.0f} s: see service.log")
            await asyncio.sleep(POLL_S)

    async def _turn(self) -> None:
        question, story = self._world.draw(), self._story
        try:
            answer = await self._client.ask(question.text)
        except AnswerFailedError:
            return
        kept = await self._client.feedback(answer, right=self._world.rate(question, answer.text))
        self._log_seq, self._usd = max(self._log_seq, kept.log_seq), self._usd + answer.cost.usd
        right, agent = question.is_answered(answer.text), answer.agent
        spent = self._usd, self._world.large_usd
        story.turns.append(Turn(question.text, question.kind, right, agent.arm_drawn, agent.pmf, *spent))
        story.took_s = time.monotonic() - self._started

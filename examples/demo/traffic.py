"""Traffic of the demo: questions are drawn, asked, judged by their passages, and fed back.

A world is what is asked at a time: the questions that are drawn from, as often as one another. What every
arm earns on each of them is asked beforehand, with the arm forced, which is not learned from: so what is
earned can be seen beside what could have been.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from armwise.agent.client import Answer, AnswerFailedError, AsyncClient, ClientError
from armwise.agent.lab.simulation.questions import SimulatedQuestion
from armwise.agent.lab.simulation.simulation import in_parallel
from armwise.agent.lab.simulation.summary import SimulatedTurn
from armwise.arms.base import Progress
from armwise.feedback.answer_metrics import recall_at_k
from armwise.feedback.reward import RewardRule
from examples.demo.service import PATIENCE_S, Patience

METRIC = "recall"
"""What the feedback of the demo says: the share of the supporting passages that was found."""


POLL_S = 0.1
"""Pause between two looks whether all is learned."""


@dataclass(frozen=True, slots=True)
class World:
    """What is asked at a time.

    Attributes:
        name: When that is.
        questions: Each with the passages that support it.
    """

    name: str
    questions: tuple[SimulatedQuestion, ...]


@dataclass(slots=True)
class Traffic:
    """All that is asked of a service, and what came of it.

    Args:
        client: Speaks to the service.
        rule: By which the service makes rewards.
        k: Passages to ask for.
        concurrency: Questions in flight.
        rng: Draws the questions.

    Attributes:
        turns: What was answered and judged, in the order of the answers; `position` is the place in it.
        failed: Questions that were not answered.
        log_seq: Position in the log of the last feedback.
    """

    client: AsyncClient
    rule: RewardRule
    k: int
    concurrency: int
    rng: np.random.Generator
    turns: list[SimulatedTurn] = field(default_factory=list)
    failed: int = 0
    log_seq: int = 0

    async def ask(self, world: World, n: int, on_progress: Progress, every: int = 50) -> float:
        """Ask questions, each drawn anew, and send feedback on each answer.

        Args:
            world: What to draw from.
            n: How many.
            on_progress: Called with the progress.
            every: How many questions lie between two times that it is called.

        Returns:
            How long that took, in seconds.
        """
        started = time.perf_counter()
        for first in range(0, n, every):
            drawn = self.rng.integers(len(world.questions), size=min(every, n - first))
            questions = (world.questions[i] for i in drawn.tolist())
            await in_parallel(questions, self.concurrency, self._turn)
            on_progress(f"questions {world.name}", first + len(drawn), n)
        return time.perf_counter() - started

    async def truth(
        self, world: World, arms: Sequence[str], on_progress: Progress
    ) -> dict[str, dict[str, float]]:
        """Force each arm on each question of a world; return what it earns, where it does not fail."""
        earned: dict[str, dict[str, float]] = {question.id: {} for question in world.questions}
        cells = [(question, arm) for question in world.questions for arm in arms]

        async def force(cell: tuple[SimulatedQuestion, str]) -> None:
            question, arm = cell
            try:
                answer = await self.client.retrieve(question.question, self.k, arm=arm)
            except AnswerFailedError:
                self.failed += 1
                return
            earned[question.id][arm] = self._reward(self._recall(question, answer), answer)
            on_progress(f"what every arm earns, {world.name}", sum(map(len, earned.values())), len(cells))

        await in_parallel(cells, self.concurrency, force)
        return earned

    async def learned(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until all feedback is learned. Raises ClientError if none is learned for a long time."""
        patience = Patience(patience_s)
        while (seq := (await self.client.policy()).applied_seq) < self.log_seq:
            if not patience.lasts(seq):
                raise ClientError(
                    f"position {seq:,} of {self.log_seq:,} is learned, and nothing more for "
                    f"{patience_s:g} s: the log of the service says why"
                )
            await asyncio.sleep(POLL_S)

    async def _turn(self, question: SimulatedQuestion) -> None:
        try:
            answer = await self.client.retrieve(question.question, self.k)
        except AnswerFailedError:
            self.failed += 1
            return
        agent, recall = answer.agent, self._recall(question, answer)
        kept = await self.client.feedback(answer, {METRIC: recall})
        self.log_seq = max(self.log_seq, kept.log_seq)
        self.turns.append(
            SimulatedTurn(
                position=len(self.turns),
                id=question.id,
                group=question.group,
                decision_id=agent.decision_id,
                drawn=agent.arm_drawn,
                arm=agent.arm_served or agent.arm_drawn,
                propensity=agent.propensity,
                pmf=agent.pmf,
                metrics={METRIC: recall},
                cost=answer.cost.model_dump(),
                reward=self._reward(recall, answer),
                version=agent.policy_version,
                latency_s=answer.latency_s,
            )
        )

    def _recall(self, question: SimulatedQuestion, answer: Answer) -> float:
        return recall_at_k(answer.passage_ids, question.gold_ids, self.k)

    def _reward(self, recall: float, answer: Answer) -> float:
        quality = self.rule.quality({METRIC: recall})
        assert quality is not None  # the metric has a value
        return self.rule.net(quality, answer.cost.total)

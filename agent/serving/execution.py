"""The recorder of a turn: what it has done so far becomes its execution, however it ends."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.serving.messages import ArmInfo
from agent.serving.probe import UNPROBED, Probes
from arms.base import Retrieval
from arms.llm import Chunk, base
from feedback.errors import described
from feedback.events import Cost, Decision, Execution, Status


@dataclass(slots=True)
class TurnRecorder:
    """What a turn has done so far.

    Attributes:
        decision: What is carried out.
        arms: What is known of the arms, the same for the whole turn.
        probes: Searches before the draw, whose costs are added to the four below.
        served: The arm whose passages are used; None before one has answered.
        retrieval: What it found.
        answer: Generated so far; None without a language model.
        usage: The last chunk, with the token counts and the price.
        finish_reason: Why generation ended.
        steps: Rounds of retrieval.
        tokens: Read to find passages.
        retrieval_s: Seconds in arms.
        llm_s: Seconds in the language model.
        error: Why the drawn arm failed, where another one served.
    """

    decision: Decision
    arms: Mapping[str, ArmInfo]
    probes: Probes = UNPROBED
    served: str | None = None
    retrieval: Retrieval = field(default_factory=lambda: Retrieval(steps=0))
    answer: str | None = None
    usage: Chunk = field(default_factory=Chunk)
    finish_reason: str = "stop"
    steps: int = 0
    tokens: int = 0
    retrieval_s: float = 0.0
    llm_s: float = 0.0
    error: str = ""

    def note(self, chunk: Chunk) -> None:
        """Add a chunk of the answer."""
        self.answer = (self.answer or "") + chunk.text
        if chunk.finish_reason is not None:
            self.usage, self.finish_reason = chunk, chunk.finish_reason

    def status(self, error: Exception | None, cancelled: bool) -> Status:
        """Return the status that the turn ends with."""
        if cancelled:
            return Status.CANCELLED
        if error is None:
            return Status.OK if self.served == self.decision.drawn else Status.FELL_BACK
        if self.served is None:
            return Status.ARM_FAILED
        timed_out = isinstance(error, TimeoutError | base.GeneratorTimeoutError)
        return Status.LLM_TIMEOUT if timed_out else Status.LLM_FAILED

    def execution(self, now: float, error: Exception | None = None, *, cancelled: bool = False) -> Execution:
        """Return the execution to be committed."""
        return Execution(
            decision_id=self.decision.id,
            served=self.served,
            status=self.status(error, cancelled),
            cost=Cost(
                steps=self.probes.steps + self.steps,
                prompt_tokens=self.usage.prompt_tokens + self.probes.tokens + self.tokens,
                completion_tokens=self.usage.completion_tokens,
                retrieval_s=self.probes.seconds + self.retrieval_s,
                llm_s=self.llm_s,
                usd=self.usage.usd,
            ),
            passages=tuple(passage.id for passage in self.retrieval.passages),
            answer=self.answer,
            error=described(error) if error else self.error,
            finished_at=now,
        )

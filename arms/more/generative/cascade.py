"""A cascade: arms answer in stages, cheap ones first, until a trained decider expects no gain from going on.

It returns the passages of the best answer. The turn writes its own answer from them, with one more call of
the language model.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from armwise.arms.base import Arm, Progress, Query, Retrieval, StageRun
from armwise.arms.llm import Bound, Write, prompts
from armwise.arms.more.generative.ensemble import MemberAnswer, all_failed, answers_bound, run_members
from armwise.arms.relative_paths import LocalName
from armwise.arms.retrievers.kind import (
    BoundOf,
    CascadeDecider,
    DeciderSpec,
    Kind,
    Members,
    Resources,
    Stages,
)


class CascadeParams(BaseModel):
    """Parameters of a cascade."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stages: Stages = Field(
        description=(
            "Names of the arms in each stage, cheapest stage first, as in training. The arms in a stage run "
            "in parallel."
        )
    )
    decider: LocalName = Field(
        min_length=1,
        description="Folder of a decider that `armwise lab train --model cascade` trained on these stages.",
    )
    form: prompts.Form = Field(
        prompts.Form.SHORT, description="Form of each arm's answer, the same as in training."
    )
    word_budget: int = Field(400, ge=1, description="Maximum passage words per answer.")
    max_tokens: int = Field(32, ge=1, description="Maximum tokens in each arm's answer.")

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms of all stages, in order."""
        return tuple(arm for stage in self.stages for arm in stage)

    @property
    def wanted(self) -> DeciderSpec:
        """Spec of the decider that these stages need."""
        writing = prompts.Writing(self.form, self.word_budget, self.max_tokens)
        return DeciderSpec(Path(self.decider), self.stages, writing)


class CascadeArm(Kind[CascadeParams]):
    """Runs arms in stages until a [trained decider](#a-cascade-that-stops) expects no more gain.

    It answers from the arms of each stage, and returns the passages of the best answer. A failed member is
    left out; while all have failed, the next stage runs. Steps and tokens are summed over the members that
    answered.

    Source: FrugalGPT, 2023, arXiv:2305.05176: a cascade with a learned scorer of answers.
    """

    kind = "cascade"
    params = CascadeParams
    example: ClassVar = {"stages": [["none", "bm25"], ["rrf"]], "decider": "/path/of/decider"}
    filters = draws = True

    def __init__(
        self,
        name: str,
        stages: Sequence[Sequence[Arm]],
        decider: CascadeDecider,
        writing: prompts.Writing,
        write: Write,
    ) -> None:
        self.name = name
        self.backbones = frozenset[str]().union(*(arm.backbones for stage in stages for arm in stage))
        self._stages = tuple(map(tuple, stages))
        self._decider = decider
        self._writing = writing
        self._write = write

    @classmethod
    @override
    def steps(cls, params: CascadeParams) -> float:
        return float(len(params.stages[0]))  # of the first stage: the decider determines how many run

    @classmethod
    @override
    def searches(cls, params: CascadeParams, member: str) -> float:
        return float(member in params.stages[0])

    @classmethod
    @override
    def bound(cls, params: CascadeParams, member: BoundOf) -> Bound:
        return answers_bound(params.arms, params.wanted.writing, member)

    @classmethod
    @override
    def prepare(cls, params: CascadeParams, have: Resources, progress: Progress | None) -> None:
        """Check the decider. Raises ArmBuildError."""
        have.open_selector(params.wanted)

    @classmethod
    @override
    def build(cls, name: str, params: CascadeParams, have: Resources, member: Members) -> Self:
        stages = [[member(arm) for arm in stage] for stage in params.stages]
        return cls(name, stages, have.open_selector(params.wanted), params.wanted.writing, have.write)

    @override
    def search(self, query: Query, k: int) -> Retrieval:
        """Return the passages of the best answer. Raises ArmError when every member fails."""
        members: list[Arm] = []
        outcomes: list[MemberAnswer | Exception] = []
        best, runs = None, list[StageRun]()
        for stage in self._stages:
            depth = max(k, self._decider.k)
            ran = run_members(stage, query, depth, self._decider.k, self._writing, self._write)
            members, outcomes = [*members, *stage], [*outcomes, *ran]
            answered = [outcome if isinstance(outcome, MemberAnswer) else None for outcome in outcomes]
            run = StageRun(
                tuple(member.name for member in stage),
                tuple(
                    member.name
                    for member, outcome in zip(stage, ran, strict=True)
                    if not isinstance(outcome, MemberAnswer)
                ),
                sum(outcome.found.steps for outcome in ran if isinstance(outcome, MemberAnswer)),
                sum(outcome.tokens for outcome in ran if isinstance(outcome, MemberAnswer)),
            )
            if not any(answered):
                runs.append(run)
                continue
            verdict = self._decider.decide(
                query.text,
                [None if outcome is None else outcome.answer for outcome in answered],
                [() if outcome is None else outcome.read for outcome in answered],
            )
            best = answered[verdict.pick]
            runs.append(
                replace(
                    run, picked=members[verdict.pick].name, probability=verdict.probability, gain=verdict.gain
                )
            )
            if not verdict.goes_on:
                break
        if best is None:
            raise all_failed(self.name, members, outcomes)
        steps, tokens = sum(run.steps for run in runs), sum(run.tokens for run in runs)
        return Retrieval(best.found.passages[:k], steps, tokens, tuple(runs))

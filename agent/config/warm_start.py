"""Settings of the warm start: when it is done, where its labels come from, what is made of them."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

from cronsim import CronSim, CronSimError
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from agent.routers import RouterSpec, Stage, build_router
from agent.routers import utility as router_utility
from agent.simulation import SHAPE
from arms.base import NAME
from arms.llm import prompts
from feedback.reward import RewardRule
from feedback.training_log import logged_labels


def next_of(cron: str, after: float) -> float:
    """Return the first time of a cron line after another time, seconds since the epoch, UTC.

    Raises:
        CronSimError: It is no cron line.
        StopIteration: No such time comes within fifty years.

    >>> next_of("0 3 * * *", 0.0), next_of("0 3 * * *", 10800.0)
    (10800.0, 97200.0)
    """
    return next(CronSim(cron, datetime.fromtimestamp(after, UTC))).timestamp()


LEAST_S = 60.0
"""Shortest interval."""

_DURATION = TypeAdapter(timedelta)


def seconds_of(duration: str) -> float:
    """Return the seconds of an ISO 8601 duration.

    Raises:
        ValueError: It is none, or it is not above 0.

    >>> seconds_of("PT6H"), seconds_of("P7D")
    (21600.0, 604800.0)
    """
    try:
        found = _DURATION.validate_python(duration).total_seconds()
    except ValidationError:
        raise ValueError(f"{duration!r} is no ISO 8601 duration, such as PT6H") from None
    if found <= 0.0:
        raise ValueError(f"{duration!r} is no time at all: a duration above 0 was expected, such as PT6H")
    return found


class Schedule(BaseModel):
    """When warm starts are done by themselves."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    every: str | None = Field(
        default=None,
        description="ISO 8601 duration from the start of a run to that of the next: PT1M or more.",
    )
    cron: str | None = Field(
        default=None, description="Times of the runs instead, as cron has it, in UTC: `0 3 * * *` is 3:00."
    )
    on_alarm: bool = Field(
        default=True, description="Whether an alarm of drift starts a run, once for each alarm."
    )

    @field_validator("every")
    @classmethod
    def _long_enough(cls, every: str | None) -> str | None:
        if every is not None and seconds_of(every) < LEAST_S:
            raise ValueError(f"every {every} is too often: PT1M or more was expected")
        return every

    @field_validator("cron")
    @classmethod
    def _sound(cls, cron: str | None) -> str | None:
        if cron is not None:
            try:
                next_of(cron, 0.0)
            except (CronSimError, StopIteration) as error:
                why = str(error) or "no such day ever comes"
                raise ValueError(f"{cron!r} is no cron line, such as `0 3 * * *`: {why}") from None
        return cron

    @model_validator(mode="after")
    def _one_of_two(self) -> "Schedule":
        if self.every is not None and self.cron is not None:
            raise ValueError(f"every {self.every} and cron {self.cron!r} are two schedules: give one of them")
        return self


Metrics = Annotated[
    dict[str, str], Field(min_length=1, description="Declared metric to the score that it gets.")
]


class OutcomesSource(BaseModel):
    """What arms did, as somebody else has labelled them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["outcomes"] = Field(description="Says which source it is.")
    path: Path = Field(description="Folder of `armwise label` or `armwise score`, or a file of outcomes.")
    metrics: Metrics


class QuestionsSource(BaseModel):
    """Questions with known answers, which every live arm is asked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["questions"] = Field(description="Says which source it is.")
    path: Path = Field(description=f"JSON lines, plain or .gz, each {SHAPE}.")
    metrics: Metrics
    measure: str | None = Field(
        default=None,
        description="Score what is retrieved, as `armwise score --measure`; null has answers written and "
        "scores these, as `armwise label`.",
    )
    form: prompts.Form = Field(default=prompts.Form.SHORT, description="What an answer shall look like.")
    limit: int | None = Field(default=None, ge=1, description="Ask so many of the shuffled questions.")


class JudgeSource(BaseModel):
    """Questions of the traffic, which every live arm is asked, and a language model grades the passages."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["judge"] = Field(description="Says which source it is.")
    metrics: Metrics
    questions: int = Field(
        default=50, ge=1, le=10_000, description="How many a run takes at most that none has taken before."
    )
    within: str = Field(default="P7D", description="ISO 8601 duration: how old a question may be.")

    @field_validator("within")
    @classmethod
    def _sound(cls, within: str) -> str:
        seconds_of(within)
        return within


class FeedbackSource(BaseModel):
    """What feedback says of the traffic. The policy learns that anyway: it is for portfolio and router."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["feedback"] = Field(description="Says which source it is.")
    measure: str = Field(default=logged_labels.REWARD, description="A metric, or reward.")


Source = Annotated[
    OutcomesSource | QuestionsSource | JudgeSource | FeedbackSource, Field(discriminator="kind")
]


class PortfolioPlan(BaseModel):
    """Which arms are proposed, of those that were labelled."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    measure: str = Field(description="Score of the labels by which arms are chosen.")
    k: int = Field(default=5, ge=1, description="Arms to choose.")
    budget: float | None = Field(
        default=None, gt=0, description="What the arms may cost together; replaces k."
    )
    cost: str | None = Field(default=None, description="Cost that a budget is in; null is seconds, if known.")


class RouterPlan(RouterSpec):
    """Which router is trained and proposed."""

    utility: router_utility.Utility = Field(
        default=router_utility.Utility(), description="What an answer is worth."
    )
    folds: int = Field(default=5, ge=2, description="Parts that are held out in turn, to see its worth.")
    backbone: str | None = Field(default=None, description="Of the configuration; null is its first.")


class WarmStartSpec(Schedule):
    """Runs from labels to a verdict: when, of what, and whether they may change what is served."""

    sources: dict[str, Source] = Field(
        min_length=1, description="Where labels come from, by a name that runs tell of."
    )
    portfolio: PortfolioPlan | None = Field(
        default=None, description="Choose arms by the labels, too, and propose them; null does not."
    )
    router: RouterPlan | None = Field(
        default=None, description="Train a router of the labels, too, and propose it; null does not."
    )
    promote: Literal["gate", "never"] = Field(
        default="gate", description="Who promotes a candidate: the gate, or never a run by itself."
    )
    workers: int = Field(default=1, ge=1, description="Processes in which arms are asked.")

    @property
    def scores(self) -> frozenset[str]:
        """Scores that are wanted of questions: for metrics, the portfolio and the router."""
        found = {score for source in self.sources.values() for score in _metrics(source).values()}
        if self.portfolio is not None:
            found.add(self.portfolio.measure)
        if self.router is not None:
            found |= self.router.utility.measures.keys()
            if self.router.utility.prior > 0.0:
                found.add(router_utility.PRIOR_MEASURE)
        return frozenset(found)

    @field_validator("sources")
    @classmethod
    def _named(cls, sources: dict[str, Source]) -> dict[str, Source]:
        for name in sources:
            if not NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name: 1 to 100 of A-Z a-z 0-9 . _ - are")
        return sources

    @model_validator(mode="after")
    def _useful(self) -> "WarmStartSpec":
        feedback_alone = all(isinstance(source, FeedbackSource) for source in self.sources.values())
        if feedback_alone and self.portfolio is None and self.router is None:
            raise ValueError(
                "feedback alone is what the policy learns from anyway: add a source of labels, "
                "or a portfolio or a router to be made of it"
            )
        return self

    def check(self, rule: RewardRule, backbones: Iterable[str]) -> None:
        """Refuse what does not fit the rest of the configuration.

        Raises:
            ValueError: A metric or a backbone is not declared, or the router is none that can be asked
                before an arm is drawn.
        """
        for name, source in self.sources.items():
            where = f"warm_start.sources.{name}"
            for metric in _metrics(source):
                _declared(metric, rule, where)
            if isinstance(source, FeedbackSource) and source.measure != logged_labels.REWARD:
                _declared(source.measure, rule, where)
        if self.router is None:
            return
        known = list(backbones)
        if self.router.backbone not in (None, *known):
            raise ValueError(
                f"warm_start.router.backbone {self.router.backbone!r} is not declared: {', '.join(known)}"
            )
        if build_router(self.router).stage is Stage.ANSWERED:
            raise ValueError(
                f"warm_start.router: {self.router.kind!r} compares answers, which no arm has given before "
                "one is drawn: take one of stage question or retrieved"
            )

    def settled(self) -> "WarmStartSpec":
        """Return the same with the paths as they are on this machine."""
        sources = {
            name: source
            if isinstance(source, JudgeSource | FeedbackSource)
            else source.model_copy(update={"path": source.path.expanduser().absolute()})
            for name, source in self.sources.items()
        }
        return self.model_copy(update={"sources": sources})


def _metrics(source: Source) -> dict[str, str]:
    """Return which declared metric gets which score; nothing where no labels are entered."""
    return {} if isinstance(source, FeedbackSource) else source.metrics


def _declared(metric: str, rule: RewardRule, where: str) -> None:
    try:
        rule.metric(metric)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None

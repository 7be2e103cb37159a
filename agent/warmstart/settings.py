"""Settings of the warm start: when it is done, where its labels come from, what is made of them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from agent.labels import Stage
from agent.questions import SHAPE
from agent.routers.catalog import RouterSpec, build_router
from agent.utility import PRIOR_MEASURE, Utility
from agent.warmstart.schedule import Schedule, seconds_of
from arms.kinds import NAME
from arms.prompts import Form
from feedback.labels import REWARD
from feedback.reward import RewardRule

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
    form: Form = Field(default=Form.SHORT, description="What an answer shall look like.")
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
    measure: str = Field(default=REWARD, description="A metric, or reward.")


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

    utility: Utility = Field(default=Utility(), description="What an answer is worth.")
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
                found.add(PRIOR_MEASURE)
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
            if isinstance(source, FeedbackSource) and source.measure != REWARD:
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


__all__ = [
    "FeedbackSource",
    "JudgeSource",
    "OutcomesSource",
    "PortfolioPlan",
    "QuestionsSource",
    "RouterPlan",
    "Source",
    "WarmStartSpec",
]

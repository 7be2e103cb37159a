"""Settings of the warm start: schedule, label sources, portfolio, router, promotion."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from armwise.agent.policies import PolicySpec
from armwise.agent.routers import PRIOR_MEASURE, RouterSpec, Stage, Utility, build_router
from armwise.arms.base import check_name
from armwise.arms.relative_paths import LocalPath
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import logged_labels
from armwise.number import Number


def compute_next(cron: str, after: float) -> float:
    """Return the first time of a cron line after another time, seconds since the epoch, UTC.

    Raises:
        ValueError: The line is invalid, or there is no such time within fifty years.

    >>> compute_next("0 3 * * *", 0.0), compute_next("0 3 * * *", 10800.0)
    (10800.0, 97200.0)
    """
    return _step(cron, after, back=False)


def compute_previous(cron: str, before: float) -> float:
    """Return the last time of a cron line before another time, seconds since the epoch, UTC.

    Raises:
        ValueError: The line is invalid, or there was no such time within fifty years.

    >>> compute_previous("0 9 * * 1", 388800.0), compute_previous("0 9 * * 1", 378000.0)
    (378000.0, -226800.0)
    """
    return _step(cron, before, back=True)


def _step(cron: str, start: float, *, back: bool) -> float:
    from cronsim import CronSim, CronSimError  # imported here, as evaluations do without

    try:
        return next(CronSim(cron, datetime.fromtimestamp(start, UTC), reverse=back)).timestamp()
    except (CronSimError, StopIteration) as error:
        why = str(error) or "no such day ever comes"
        raise ValueError(f"{cron!r} is not a cron line, such as `0 3 * * *`: {why}") from None


QUESTION_LINE = '{"id": "q1", "question": "...", "answers": ["..."], "gold_ids": ["..."], "dataset": "..."}'
"""A line of a file of questions."""


class Schedule(BaseModel):
    """When warm starts run without a request."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cron: str | None = Field(
        default=None,
        description=(
            "Times of the runs as a cron line in UTC. For example, `0 3 * * *` means daily at 3:00, and "
            "`0 */6 * * *` every six hours."
        ),
    )
    after_rated: int | None = Field(
        default=None,
        ge=1,
        description="Number of newly rated decisions that starts a run.",
    )

    @field_validator("cron")
    @classmethod
    def _sound(cls, cron: str | None) -> str | None:
        if cron is not None:
            compute_next(cron, 0.0)
        return cron


Metrics = Annotated[
    dict[str, str],
    Field(
        min_length=1,
        description="Score that gives the value of each declared metric.",
    ),
]


class OutcomesSource(BaseModel):
    """Labels that already exist, as outcomes of arms."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["outcomes"] = Field(description="Kind of the source.")
    path: LocalPath = Field(
        description="Folder written by `armwise lab label` or `armwise lab score`, or a file of outcomes."
    )
    metrics: Metrics


class QuestionsSource(BaseModel):
    """Questions with known answers. Every live arm runs on them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["questions"] = Field(description="Kind of the source.")
    path: LocalPath = Field(
        description=f"File of JSON lines, plain or .gz. Each line has the form {QUESTION_LINE}."
    )
    metrics: Metrics
    measure: str | None = Field(
        default=None,
        description=(
            "Measure of the retrieved passages, as in `armwise lab score --measure`. If null, arms "
            "generate answers, and Armwise scores them as `armwise lab label` does."
        ),
    )
    limit: int | None = Field(
        default=None, ge=1, description="Number of questions to take, after shuffling. Null takes all."
    )


class SyntheticSource(BaseModel):
    """Questions that rules make from the corpus, without traffic. Every live arm runs on them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["synthetic"] = Field(description="Kind of the source.")
    questions: int = Field(default=600, ge=20, le=100_000, description="Number of questions to make.")
    measure: str = Field(default="R@4", description="Measure of the retrieved passages.")
    balanced: bool = Field(
        default=True,
        description=(
            "Whether to select questions for which `bm25` and `dense` arms score the same on average. If "
            "false, `bm25` has an advantage, because these questions share words with their passages."
        ),
    )
    metrics: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "Score that gives the value of each declared metric. If you set this, Armwise also inserts the "
            "labels as decisions. If empty, only a router learns from the labels."
        ),
    )


class JudgeSource(BaseModel):
    """Questions from your traffic. Every live arm runs on them, and a language model grades the passages."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["judge"] = Field(description="Kind of the source.")
    metrics: Metrics
    questions: int = Field(
        default=50, ge=1, le=10_000, description="Maximum questions per run. No question is taken twice."
    )


class HindsightSource(BaseModel):
    """Answers from your traffic that feedback confirmed. Arms that find passages with the answer score 1.

    For portfolio and router alone: an answer is confirmed more often where the arm that was drawn finds it,
    so that as rewards of the others these labels would be biased.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["hindsight"] = Field(description="Kind of the source.")
    metric: str = Field(
        description="Declared metric that confirms an answer, by a value in the better half of its range."
    )
    measure: str = Field(
        default="contains",
        description=(
            "Name of the score. The score is 1 if the passages contain the answer, and 0 otherwise. If "
            "another source uses the same name, a portfolio and a router learn from both."
        ),
    )


class FeedbackSource(BaseModel):
    """Feedback on your traffic, for the portfolio and the router. The policy learns from it anyway."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["feedback"] = Field(description="Kind of the source.")
    measure: str = Field(
        default=logged_labels.REWARD, description="Score that a label holds: a declared metric, or `reward`."
    )


Source = Annotated[
    OutcomesSource | QuestionsSource | SyntheticSource | JudgeSource | HindsightSource | FeedbackSource,
    Field(discriminator="kind"),
]


class PortfolioPlan(BaseModel):
    """How the labels choose arms."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pool: tuple[str, ...] = Field(
        default=(),
        description=(
            "Patterns of further arms to choose from. These arms may have `action: false`. If empty, only "
            "the live arms can be chosen."
        ),
    )
    measure: str = Field(description="Score in the labels that ranks the arms.")
    k: int = Field(default=5, ge=1, description="Number of arms to choose.")
    budget: Number | None = Field(
        default=None,
        gt=0,
        description="Maximum total cost of the chosen arms, instead of `k`. Null chooses `k` arms.",
    )
    cost: str | None = Field(
        default=None, description="Cost that the budget limits. Null means seconds, if the labels have them."
    )
    live: bool = Field(
        default=False,
        description="Whether promoting the candidate makes these arms live. If false, they are only "
        "proposed.",
    )


class RouterPlan(RouterSpec):
    """The router to train on the labels."""

    utility: Utility = Field(default=Utility(), description="Utility of an answer.")
    quality: str | None = Field(
        default=None,
        description=(
            "Score of the retrieved passages, such as `judge`. Only routers that learn this score "
            "(`capability`) use it."
        ),
    )
    backbone: str | None = Field(
        default=None,
        description="Backbone that embeds the questions. Null means the first one in the configuration.",
    )
    live: bool = Field(
        default=True,
        description="Whether promoting the candidate makes this router live. If false, it is only proposed.",
    )


class WarmStartSpec(Schedule):
    """Warm starts: when they run, which labels they use, and whether they may promote."""

    sources: dict[str, Source] = Field(min_length=1, description="Sources of labels by name.")
    portfolio: PortfolioPlan | None = Field(
        default=None, description="How the labels choose arms. Null keeps all arms."
    )
    router: RouterPlan | None = Field(
        default=None, description=("Router to train on the labels. Null trains none.")
    )
    policy: PolicySpec | None = Field(
        default=None,
        description="Policy of the candidates, such as one with `prior_feature: router`. Null means the "
        "active one.",
    )
    promote: Literal["gate", "never"] = Field(
        default="gate",
        description="Who promotes a candidate. `gate`: the gate. `never`: only an operator.",
    )
    canary: Literal["auto", "off"] = Field(
        default="off",
        description=(
            "With `auto`, a candidate gets some of the exploration traffic if the gate lacks evidence "
            "about it. This ends when the gate promotes or rejects the candidate. The gate then judges the "
            "candidate twice, and each judgement uses half of the gate's error probability."
        ),
    )
    first: Literal["hold", "promote"] = Field(
        default="hold",
        description=(
            "What happens to a candidate before there is any traffic to judge it on. `promote`: it serves "
            "from the first request. `hold`: it waits for traffic."
        ),
    )

    @property
    def scores(self) -> frozenset[str]:
        """Scores that labels must have: for metrics, the portfolio and the router."""
        scores = {score for source in self.sources.values() for score in _metrics(source).values()}
        named = SyntheticSource | HindsightSource
        scores |= {source.measure for source in self.sources.values() if isinstance(source, named)}
        if self.portfolio is not None:
            scores.add(self.portfolio.measure)
        if self.router is not None:
            scores |= self.router.utility.measures.keys()
            if self.router.utility.prior > 0.0:
                scores.add(PRIOR_MEASURE)
            if self.router.quality is not None:
                scores.add(self.router.quality)
        return frozenset(scores)

    @field_validator("sources")
    @classmethod
    def _check_names(cls, sources: dict[str, Source]) -> dict[str, Source]:
        for name in sources:
            check_name(name)
        return sources

    @model_validator(mode="after")
    def _check_useful(self) -> "WarmStartSpec":
        if self.first == "promote" and self.promote == "never":
            raise ValueError("first: promote contradicts promote: never: give one of them")
        no_labels = all(not _metrics(source) for source in self.sources.values())
        if no_labels and self.portfolio is None and self.router is None:
            raise ValueError(
                "feedback alone is what the policy learns from anyway, and hindsight is for proposals: add a "
                "source of labels, or a portfolio or a router to be made of it"
            )
        return self

    def check(self, rule: RewardRule, backbones: Iterable[str], *, has_fit: bool) -> None:
        """Refuse what does not fit the rest of the configuration.

        Args:
            rule: The reward.
            backbones: The declared backbones.
            has_fit: Whether the features say how well a question fits the sources.

        Raises:
            ValueError: A metric or a backbone is not declared, the router has no backbone, it needs a feature
                that is missing, or answers, which do not exist before an arm is drawn.
        """
        for name, source in self.sources.items():
            where = f"warm_start.sources.{name}"
            for metric in _metrics(source):
                _require_metric(metric, rule, where)
            if isinstance(source, HindsightSource):
                _require_metric(source.metric, rule, where)
            if isinstance(source, FeedbackSource) and source.measure != logged_labels.REWARD:
                _require_metric(source.measure, rule, where)
        if self.router is None:
            return
        declared = list(backbones)
        if not declared:
            raise ValueError(
                "warm_start.router reads questions with a sentence encoder: declare one in backbones"
            )
        if self.router.backbone not in (None, *declared):
            raise ValueError(
                f"warm_start.router.backbone {self.router.backbone!r} is not declared: {', '.join(declared)}"
            )
        router = build_router(self.router)
        if router.reads_fit and not has_fit:
            raise ValueError(
                "warm_start.router: `source_fit` reads how well a question fits each source: add "
                "`features: {similarity: {}}`"
            )
        if router.stage is Stage.ANSWERED:
            raise ValueError(
                f"warm_start.router: {self.router.kind!r} compares answers, which no arm has given before "
                "one is drawn: take one of stage question or retrieved"
            )


def _metrics(source: Source) -> dict[str, str]:
    """Return the score of each declared metric; empty for sources whose labels are not inserted."""
    return {} if isinstance(source, FeedbackSource | HindsightSource) else source.metrics


def _require_metric(metric: str, rule: RewardRule, where: str) -> None:
    try:
        rule.metric(metric)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None

"""The request of an evaluation: candidates by name, selection, prices, estimators."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from armwise.agent.config import AppConfig
from armwise.agent.evaluation.candidate_names import (
    BASELINE,
    CandidateError,
    CandidateKind,
    CandidateName,
    parse_name,
)
from armwise.agent.policies import FeatureSpec, PolicyError, check_untrusted, describe
from armwise.arms.suggestions import did_you_mean
from armwise.feedback.budget import Budget
from armwise.feedback.clock import require_date
from armwise.feedback.log import LARGEST, Store
from armwise.feedback.ope import DEFAULT_ESTIMATORS, ESTIMATORS, INTERVALS, Model
from armwise.feedback.registry import arm_sets, keys, versions
from armwise.feedback.reward import Prices, RewardRule

Name = Annotated[StrictStr, Field(max_length=2000)]
"""Name of a candidate."""

LONGEST = 20_000
"""Most characters of all names together, since parsing policies blocks the event loop."""


def read_moment(value: object) -> datetime:
    """Parse a date, or a date and a time; UTC without a time zone.

    Raises:
        ValueError: It is neither, or its year in UTC is out of range.

    >>> read_moment("20260105").isoformat(), read_moment("2026-01-05T12:00+02:00").isoformat()
    ('2026-01-05T00:00:00+00:00', '2026-01-05T12:00:00+02:00')
    """
    try:
        text = value if isinstance(value, str) else ""
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{value!r} is not a date such as 2026-05-01 or 2026-05-01T12:00+02:00") from None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    require_date(moment.timestamp())
    return moment


Moment = Annotated[datetime, BeforeValidator(read_moment)]
"""A date, or a date and a time; numbers of seconds are refused."""

Amount = Annotated[StrictFloat, Field(ge=0, allow_inf_nan=False)]


LARGEST_VERSION = 2**53
"""Largest number of a version, which every database can represent."""

SHOWN = 1000
"""Most characters of an invalid name that a message quotes."""

MOST_VERSIONS = 10_000
"""Most versions in a range; a time window can select more."""


class EvaluationRequest(BaseModel):
    """What to evaluate, on which part of the log, and how. It survives a round trip through JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    candidates: tuple[Name, ...] = Field(
        default=(),
        max_length=100,
        description="Candidates: served, uniform, fixed:<arm>, configured, shadow, version:<n>, "
        "canary:<n>, recipe:<n>, policy:<YAML> and router:<folder>. Default: uniform, configured, and every "
        "arm that was logged.",
    )
    baseline: Name = Field(default=BASELINE, description="The candidate that the others are compared with.")
    name: str = Field(default="", max_length=600, description="What the evaluation is for, in your words.")
    since: Moment | None = Field(default=None, description="Only decisions made at this time or later.")
    until: Moment | None = Field(default=None, description="Only decisions made before this time.")
    versions: tuple[StrictInt, StrictInt] | None = Field(
        default=None, description="Only decisions of these versions, including both ends."
    )
    features: dict[Name, StrictFloat | Name | StrictBool] = Field(
        default_factory=dict,
        max_length=64,
        description="Only decisions whose context has these features.",
    )
    project: Annotated[StrictStr, Field(pattern=f"^{keys.PROJECT.pattern}$")] | None = Field(
        default=None,
        description="Only decisions of keys of this project. A key without the scope `admin` can "
        "name only its own project over HTTP, and its requests with `features` always use that one.",
    )
    cost_weight: Amount | None = Field(
        default=None,
        description="Cost weight instead of the configured one.",
    )
    cost: dict[Literal["steps", "kilotokens", "seconds", "usd"], Amount] = Field(
        default_factory=dict, description="Prices instead of the configured ones. Others stay as they are."
    )
    budget: dict[Literal["usd_per_request", "steps_per_request", "window"], Amount] = Field(
        default_factory=dict,
        description="Ceiling for candidates that decide by a policy, instead of the logged prices. "
        "Replay finds its price.",
    )
    estimators: tuple[StrictStr, ...] = Field(
        default=DEFAULT_ESTIMATORS, min_length=1, description=f"Estimators, of {', '.join(ESTIMATORS)}."
    )
    interval: StrictStr = Field(
        default=INTERVALS[0], description=f"Kind of the intervals: {', '.join(INTERVALS)}."
    )
    cluster: Literal["question", "episode", "user", "none"] = Field(
        default="question",
        description="What decisions share that count as one observation for the intervals normal and "
        "bootstrap. With none, each decision counts.",
    )
    reward_model: Model = Field(
        default="ridge", description="What predicts rewards, for the estimators that need predictions."
    )
    gate: StrictBool = Field(default=False, description="Whether the gate judges each candidate.")
    seed: StrictInt = Field(
        default=0, ge=0, le=LARGEST, description="Seed of folds, resamples and recomputed draws."
    )

    @model_validator(mode="after")
    def _require_distinct(self) -> Self:
        for what, among in (("a candidate", self.candidates), ("an estimator", self.estimators)):
            if len(set(among)) != len(among):
                raise ValueError(f"{what} is named twice: {', '.join(among)[:SHOWN]}")
        return self

    @model_validator(mode="after")
    def _sound(self) -> Self:
        names = (*self.candidates, self.baseline)
        if (length := sum(map(len, names))) > LONGEST:
            raise ValueError(
                f"the names have {length:,} characters together; at most {LONGEST:,} are allowed"
            )
        for name in names:
            parse_name(name)
        _ = self.selected_features, self.ceiling  # refuses invalid ones
        for what, requested_names, choices in (
            ("estimator", self.estimators, tuple(ESTIMATORS)),
            ("interval", (self.interval,), INTERVALS),
        ):
            for name in requested_names:
                if name not in choices:
                    raise ValueError(f"unknown {what} {name[:SHOWN]!r}; available: {', '.join(choices)}")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ValueError(f"since {self.since} must be before until {self.until}")
        if self.versions is not None and not 1 <= self.versions[0] <= self.versions[1]:
            first, last = self.versions
            raise ValueError(
                f"versions {first} to {last}: the first must be at least 1 and not above the last"
            )
        if self.versions is not None and self.versions[1] - self.versions[0] >= MOST_VERSIONS:
            first, last = self.versions
            raise ValueError(
                f"versions {first} to {last}: at most {MOST_VERSIONS:,}; select a window instead"
            )
        return self

    @property
    def selects(self) -> bool:
        """Whether the request selects a part of the log."""
        return any((self.since, self.until, self.versions, self.features, self.project))

    @property
    def selected_features(self) -> dict[str, float]:
        """The required features of a context, by the names that a policy sees."""
        return dict(describe("", FeatureSpec(words=0, shape=False), extra=self.features).features)

    @property
    def ceiling(self) -> Budget | None:
        """The budget of the candidates; None: the logged prices apply."""
        return Budget.model_validate(self.budget) if self.budget else None

    def apply_prices(self, rule: RewardRule) -> RewardRule:
        """Return a reward rule with the prices of this request.

        >>> EvaluationRequest(cost={"steps": 0.5}, cost_weight=0.2).apply_prices(RewardRule()).cost.steps
        0.5
        """
        weight = rule.cost_weight if self.cost_weight is None else self.cost_weight
        prices = Prices.model_validate({**rule.cost.model_dump(), **self.cost})
        return rule.model_copy(update={"cost_weight": weight, "cost": prices})


def refuse_untrusted(request: EvaluationRequest, config: AppConfig, store: Store) -> None:
    """Check a client's request before a job reads it.

    Args:
        request: Request of a client.
        config: The configuration with defaults resolved and the live arms.
        store: The log.

    Raises:
        CandidateError: It names a file, a model that is not allowed, or an unknown version, arm or kind of
            policy.
        LogUnavailableError: Try again later.
    """
    arms = {*arm_sets.list_defined(store), *config.actions}
    for name in dict.fromkeys((*request.candidates, request.baseline)):
        candidate = parse_name(name)
        match candidate.kind:
            case CandidateKind.FIXED if candidate.argument not in arms:
                raise CandidateError(
                    f"candidate {name!r} names an unknown arm{did_you_mean(candidate.argument, arms)}"
                )
            case CandidateKind.VERSION | CandidateKind.RECIPE if (
                candidate.number > LARGEST_VERSION or versions.find(store, candidate.number) is None
            ):
                raise CandidateError(f"candidate {name!r}: there is no version {candidate.number}")
            case CandidateKind.POLICY:
                assert candidate.policy is not None
                try:
                    check_untrusted(candidate.policy, config.policy)
                except PolicyError as error:
                    raise CandidateError(f"candidate {name!r}: {error}") from None
            case CandidateKind.ROUTER:
                _refuse_router(candidate, config)


def _refuse_router(candidate: CandidateName, config: AppConfig) -> None:
    try:
        folder = Path(candidate.argument).resolve()
    except (OSError, ValueError) as error:  # a NUL character
        raise CandidateError(f"candidate {candidate.name!r} names no folder: {error}") from None
    is_configured = config.router is not None and folder == config.router.path.resolve()
    if not is_configured and config.home_path.resolve() not in folder.parents:
        raise CandidateError(
            f"candidate {candidate.name!r}: a request can name only the configured router, and routers in "
            "the "
            "folder of the service"
        )

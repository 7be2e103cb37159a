"""The shapes of requests, checked field by field: bodies, and the types of path and query parameters."""

import re
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Header, Path, Query
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    Tag,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from armwise.agent.access import Instant
from armwise.agent.config import Group
from armwise.arms.filters import Filter
from armwise.feedback.events import LEAST_PROPENSITY
from armwise.feedback.registry import promotions


def storable(text: str) -> str:
    """Refuse text that is valid JSON and cannot be stored in a log."""
    if "\0" in text:
        raise ValueError("a text without NUL characters was expected")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("a text without halves of surrogate pairs was expected") from None
    return text


Text = Annotated[StrictStr, AfterValidator(storable)]

Name = Annotated[StrictStr, Field(max_length=256), AfterValidator(storable)]
"""Name of something that may not exist: short, as the error repeats it."""

TagText = Annotated[StrictStr, Field(max_length=1000), AfterValidator(storable)]

Identifier = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9._:-]{1,128}$")]

Item = TypeVar("Item")

Many = Annotated[list[Item], Field(fail_fast=True)]
"""A list that is refused at its first wrong item, as the reply names only that one."""

OneOrMany = Discriminator(lambda value: "<many>" if isinstance(value, list) else "<one>")

Finite = Annotated[StrictFloat, Field(allow_inf_nan=False)]

LARGEST = 2**53
"""Largest integer that every JSON parser reads exactly."""

Count = Annotated[StrictInt, Field(ge=1, le=LARGEST)]

LoggedId = Annotated[
    StrictStr, Field(pattern=r"^([a-z][a-z0-9-]{0,31}:)?([a-z0-9][a-z0-9-]{0,31}~)?[A-Za-z0-9._:-]{1,128}$")
]
"""An id; a key of scope `admin` also names the project."""

IdempotencyKey = Annotated[
    Identifier | None,
    Header(alias="Idempotency-Key", description="A request that is sent again under it is the same one."),
]


def _require_pattern(pattern: re.Pattern[str], what: str) -> BeforeValidator:
    """Refuse a number in a header, a path or a query that Python reads and JSON does not, such as `1_0`."""

    def check(text: Any) -> Any:
        if isinstance(text, str) and not pattern.fullmatch(text):
            raise ValueError(f"{what} was expected")
        return text

    return BeforeValidator(check)


Decimal = Annotated[
    float, _require_pattern(re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?"), "a number such as 2.5")
]

Digits = Annotated[int, _require_pattern(re.compile("-?[0-9]+"), "an integer")]

Timeout = Annotated[
    Decimal | None,
    Header(
        alias="X-Request-Timeout-Seconds",
        gt=0,
        allow_inf_nan=False,
        description="Time limit; when it has passed, the response is 408 `deadline_exceeded`.",
    ),
]

DecisionId = Annotated[LoggedId, Path(description="Id of the decision.", examples=["q-1"])]

PublicId = Annotated[
    StrictStr, Field(pattern=r"^[A-Za-z0-9_]{1,128}$"), Path(description="Public id of the key.")
]

PathNumber = Annotated[Digits, Path(ge=1, le=LARGEST, description="Number.", examples=[1])]

PageLimit = Annotated[Digits, Query(ge=1, le=1000, description="How many.")]

PageBefore = Annotated[
    Digits | None, Query(ge=1, le=LARGEST, description="Only those with a smaller number: the next page.")
]

ArmName = Annotated[Name, Path(description="Name of the arm.", examples=["bm25"])]


def _value(value: Any) -> bool | float:
    if isinstance(value, bool | int | float) and -LARGEST <= value <= LARGEST:  # refuses NaN, too
        return value
    raise ValueError(f"a number of at most {LARGEST}, true or false was expected")


def _context_value(value: Any) -> bool | float | str:
    return storable(value) if isinstance(value, str) else _value(value)


_NUMBER_OR_BOOLEAN = [{"type": "boolean"}, {"type": "number", "minimum": -LARGEST, "maximum": LARGEST}]

# Checked as one type each, so that an error names the field and not a branch of it.
Value = Annotated[bool | float, PlainValidator(_value), WithJsonSchema({"anyOf": _NUMBER_OR_BOOLEAN})]

ContextValue = Annotated[
    bool | float | str,
    PlainValidator(_context_value),
    WithJsonSchema({"anyOf": [*_NUMBER_OR_BOOLEAN, {"type": "string"}]}),
]


class Request(BaseModel):
    """Base of the bodies: an unknown field is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Filters = Annotated[Filter | None, BeforeValidator(lambda condition: condition or None)]
"""A condition on the metadata of passages; an empty object sets no condition."""


Probability = Annotated[Finite, Field(ge=0, le=1)]


class Incumbent(Request):
    """What the caller's own decider chose, or would draw from."""

    arm: Name | None = Field(default=None, description="The arm that it chose.")
    distribution: Annotated[dict[Name, Probability], Field(min_length=1, max_length=1000)] | None = Field(
        default=None, description="Instead of `arm`: arm to probability, summing to 1, to draw from."
    )


class AgentOptions(Request):
    """The fields that OpenAI's API does not have, in one object, so that its clients work unchanged."""

    episode_id: Identifier | None = None
    user: Text | None = Field(
        default=None, description="The end user, by whom texts can be erased; the log has a keyed hash of it."
    )
    context: dict[Text, ContextValue] = Field(default_factory=dict, max_length=64)
    allowed_arms: Annotated[list[Name], Field(max_length=1000)] | None = None
    excluded_arms: list[Name] = Field(default_factory=list, max_length=1000)
    explore: StrictBool = True
    filters: Filters = Field(
        default=None,
        description="What the metadata of every passage fulfils, as OpenAI's vector stores have it.",
    )
    groups: Annotated[list[Group], Field(max_length=256)] | None = Field(
        default=None,
        description="Fewer of the groups of the key, such as the groups of the user; null for all.",
    )
    incumbent: Incumbent | None = Field(
        default=None,
        description="The caller's own choice: the policy decides in its place in `tap.share` of the turns.",
    )
    same_arm: StrictBool = Field(
        default=True, description="Answer from the results of functions with the arm that was drawn before."
    )
    defer_activation: StrictBool = False
    returns: list[Literal["passages", "decision"]] = Field(default_factory=list, alias="return")


class RetrieveRequest(Request):
    """`POST /v1/retrieve`."""

    query: Text
    k: Count | None = None
    model: Name = "auto"
    agent: AgentOptions = Field(default_factory=AgentOptions)


class DecisionRequest(Request):
    """`POST /v1/decisions`: choose among arms that the caller carries out."""

    question: Text
    context: dict[Text, ContextValue] = Field(default_factory=dict, max_length=64)
    incumbent: Incumbent | None = Field(
        default=None,
        description="The caller's own choice: the policy decides in its place in `tap.share` of the turns.",
    )
    allowed_arms: Annotated[list[Name], Field(max_length=1000)] | None = None
    excluded_arms: list[Name] = Field(default_factory=list, max_length=1000)
    episode_id: Identifier | None = None
    user: Text | None = Field(default=None, description="As in `agent.user` of a chat.")
    explore: StrictBool = True
    defer_activation: StrictBool = False


Tokens = Annotated[StrictInt, Field(ge=0, le=2**31 - 1)]

Amount = Annotated[Finite, Field(ge=0, le=1e9)]


class ObservedCost(Request):
    """What carrying out a decision has cost."""

    usd: Amount = 0.0
    seconds: Amount = 0.0
    prompt_tokens: Tokens = 0
    completion_tokens: Tokens = 0
    steps: Tokens = 0


class ObservationItem(Request):
    """A decision that another system made, with what came of it as far as that is known."""

    id: LoggedId | None = Field(
        default=None,
        description="Idempotency key, and the `decision_id` of feedback. The id of a decision that was made "
        "here for the caller to carry out says how that ended.",
    )
    question: Text = ""
    arm: Name = Field(description="What was chosen.")
    arms: Annotated[list[Name], Field(min_length=1, max_length=1000)] | None = Field(
        default=None,
        description="What could have been chosen; null for the keys of `distribution`, or all live arms.",
    )
    propensity: Annotated[Finite, Field(ge=LEAST_PROPENSITY, le=1)] | None = Field(
        default=None, description="Probability with which `arm` was drawn; null if unknown."
    )
    distribution: Annotated[dict[Name, Probability], Field(min_length=1, max_length=1000)] | None = Field(
        default=None, description="Instead of `propensity`: arm to probability, summing to 1."
    )
    cost: ObservedCost = ObservedCost()
    features: dict[Text, ContextValue] = Field(
        default_factory=dict, description="As `agent.context` of a chat."
    )
    episode_id: LoggedId | None = None
    user: Text | None = Field(default=None, description="As in `agent.user` of a chat.")
    at: Instant | None = Field(default=None, description="When it was decided; null for now.")
    reward: Value | None = Field(default=None, description="Value of the metric, where only one is declared.")
    metrics: dict[Name, ContextValue] = Field(
        default_factory=dict, max_length=64, description="Metric to value, where they are known already."
    )
    status: Literal["ok", "failed"] = "ok"


class ObservationBatch(Request):
    """`POST /v1/observations`: each item is checked and kept, and has a status, by itself."""

    items: list[Any] = Field(min_length=1, max_length=1000, description="Each as `ObservationItem` has it.")


DecisionStatus = Literal["running", "ok", "fell_back", "arm_failed", "llm_failed", "llm_timeout", "cancelled"]
"""Status of an execution; `running` before there is one."""


class DecisionQuery(BaseModel):
    """The query of `GET /v1/decisions`: what is left out is not looked at."""

    model_config = ConfigDict(frozen=True)

    since: Instant | None = Field(default=None, description="Decided then or later.")
    until: Instant | None = Field(default=None, description="Decided before then.")
    arm: Name | None = Field(default=None, description="The arm that was drawn.")
    version: Annotated[int, Field(ge=0, le=LARGEST)] | None = Field(
        default=None, description="The version that decided, or was a canary."
    )
    status: DecisionStatus | None = Field(default=None, description="How it ended.")
    metric: Name | None = Field(default=None, description="Feedback on it has a value of this metric.")
    episode: LoggedId | None = Field(default=None, description="Episode id.")
    key: Name | None = Field(default=None, description="Public id of a key that sent feedback on it.")
    limit: Annotated[int, Field(ge=1, le=1000, description="How many.")] = 50
    before: Annotated[int, Field(ge=1, le=LARGEST)] | None = Field(
        default=None, description="Position in the log: `next` of the page before."
    )


class Preference(Request):
    """Which is better: the decision that the feedback is on, or one of two arms for it."""

    over: LoggedId | None = Field(default=None, description="The other decision.")
    better: Name | None = Field(default=None, description="An arm.")
    worse: Name | None = Field(default=None, description="Another arm.")

    @model_validator(mode="after")
    def _is_a_pair(self) -> "Preference":
        arms = self.better is not None and self.worse is not None and self.better != self.worse
        if arms == (self.over is not None) or (self.better is None) != (self.worse is None):
            raise ValueError("either `over`, or `better` and `worse` with two arms was expected")
        return self


LONGEST_TEXT = 10_000
"""Characters of a comment or a demonstration."""


def _feedback_value(value: Any) -> bool | float | str | Preference:
    if isinstance(value, dict):
        try:
            return Preference.model_validate(value)
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
    if not isinstance(value, str):
        return _value(value)
    if len(value) > LONGEST_TEXT:
        raise ValueError(f"a text of at most {LONGEST_TEXT} characters was expected")
    return storable(value)


FeedbackValue = Annotated[
    bool | float | str | Preference,
    PlainValidator(_feedback_value),
    WithJsonSchema(
        {
            "anyOf": [
                *_NUMBER_OR_BOOLEAN,
                {"type": "string", "maxLength": LONGEST_TEXT},
                {"type": "object", "additionalProperties": {"type": "string"}},
            ]
        }
    ),
]

FeedbackId = Annotated[StrictStr, Field(min_length=1, max_length=256), AfterValidator(storable)]

PassageId = Annotated[StrictStr, Field(min_length=1, max_length=1000), AfterValidator(storable)]

Comment = Annotated[StrictStr, Field(max_length=LONGEST_TEXT), AfterValidator(storable)]


class FeedbackItem(Request):
    """One value of one metric, for one decision or for all decisions of an episode; null retracts it."""

    decision_id: LoggedId | None = None
    episode_id: LoggedId | None = None
    metric_name: Name
    value: FeedbackValue | None
    passage: PassageId | None = Field(
        default=None,
        description="Id of a passage that the decision found. The value is about this passage only.",
    )
    comment: Comment | None = None
    feedback_id: FeedbackId | None = None
    event_time: Instant | None = None
    tags: dict[Name, TagText] = Field(default_factory=dict, max_length=32)

    @model_validator(mode="after")
    def _has_one_target(self) -> "FeedbackItem":
        if (self.decision_id is None) == (self.episode_id is None):
            raise ValueError("either decision_id or episode_id was expected")
        if self.passage is not None and self.decision_id is None:
            raise ValueError("a passage is one of a decision: decision_id was expected")
        return self


class FeedbackBatch(Request):
    """Many items; each is checked and kept, and has a status, by itself."""

    items: list[Any] = Field(min_length=1, max_length=1000)


FeedbackRequest = Annotated[
    Annotated[FeedbackItem, Tag("<item>")] | Annotated[FeedbackBatch, Tag("<batch>")],
    Discriminator(lambda body: "<batch>" if isinstance(body, dict) and "items" in body else "<item>"),
]


class ArmSwitch(Request):
    """`PATCH /v1/arms/{name}`."""

    enabled: StrictBool


class VersionChoice(Request):
    """`POST /v1/policies/{version}/rollback`."""

    reason: Annotated[StrictStr, Field(min_length=1, max_length=1000), AfterValidator(storable)]


class PromotionChoice(VersionChoice):
    """`POST /v1/policies/{version}/promote`."""

    force: StrictBool = Field(default=False, description="Promote it whatever the verdict; this is recorded.")


class CanaryChoice(VersionChoice):
    """`POST /v1/policies/{version}/canary`."""

    share: Annotated[Finite, Field(ge=0, le=promotions.LARGEST_SHARE)] = Field(
        description="Share of the candidate in each distribution; 0 ends the canary."
    )


class ArmsReplacement(Request):
    """`PUT /v1/arms`."""

    arms: list[Name] = Field(
        min_length=1, max_length=1000, description="Names of arms that the configuration declares."
    )

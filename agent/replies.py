"""Replies of the service: each is one model, by which it is sent, documented and read by a client.

A reply that no client of ours reads is defined beside the route that sends it.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, ParamSpec, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from armwise.feedback.reward import RewardRule

Fields = ParamSpec("Fields")

R = TypeVar("R", bound="Reply")


class Reply(BaseModel):
    """Base of the replies: fields may be added in later versions, so that clients have to pass over them."""

    model_config = ConfigDict(frozen=True)

    if not TYPE_CHECKING:  # a type checker would allow every name

        def __getattr__(self, name: str) -> Any:
            """Return what pydantic keeps beside the fields, which `construct` leaves out."""
            if name == "__pydantic_fields_set__":
                return {*vars(self)}
            if name in ("__pydantic_extra__", "__pydantic_private__"):
                return None
            return super().__getattr__(name)


_set_fields = BaseModel.__dict__["__dict__"].__set__


def construct(model: Callable[Fields, R], /, *_: Fields.args, **fields: Fields.kwargs) -> R:
    """Return a reply to send, without validation: it would cost more than making the reply.

    Fields with a default that are not given are not sent. Types are checked where a reply is constructed, by
    mypy, and tests compare what is sent with the OpenAPI document.

    >>> vars(construct(FeedbackReceipts, items=[]))
    {'items': []}
    """
    reply = object.__new__(cast("type[R]", model))
    _set_fields(reply, fields)
    return reply


def among(*values: str) -> Any:
    """Document the values of a text; a client reads also those that a newer service adds."""
    return Field(json_schema_extra={"enum": [*values]})


Time = float
"""Seconds since the epoch, UTC."""

DrawMode = Annotated[str, among("explore", "greedy", "forced", "continued")]


class Failure(Reply):
    """What went wrong, for programs and for people."""

    type: str = Field(
        description="Kind of the error, as OpenAI's clients know it, or as the provider of a language model "
        "named it.",
        examples=["invalid_request_error", "server_error", "requests", "tokens", "insufficient_quota"],
    )
    code: str | None = Field(
        description="Stable name, from the provider of the language model if it refused the request."
    )
    message: str = Field(description="Names the offending value and what would be right.")
    param: str | None = Field(description="The field at fault.")
    request_id: str | None
    retryable: bool = Field(description="Whether the same request may succeed later.")
    decision_id: str | None = Field(description="The decision that the log keeps despite the error.")
    reasons: list[str] | None = Field(
        description="Why the gate holds a candidate, or each item of a batch was refused."
    )


class Envelope(Reply):
    """The body of every response that is not a success."""

    error: Failure


class Passage(Reply):
    """A passage that an arm found."""

    id: str
    title: str
    text: str
    score: float
    metadata: dict[str, str | int | float | bool | Sequence[str]]


class AnswerCost(Reply):
    """What a turn took."""

    total: float = Field(description="The priced sum.")
    tokens: int
    retrieval_ms: float
    llm_ms: float
    steps: int = Field(description="Rounds of retrieval.")
    usd: float


class Chosen(Reply):
    """How the arm was chosen and what it cost."""

    decision_id: str = Field(description="Names the decision in feedback.")
    episode_id: str | None
    policy_version: int = Field(description="The version that decided.")
    mode: DrawMode
    arm_drawn: str
    arm_served: str | None = Field(description="Differs from the drawn arm after a fallback.")
    propensity: float | None = Field(
        description="Probability with which the arm was drawn; null if another system decided and did not "
        "report it."
    )
    pmf: dict[str, float] = Field(description="Arm to probability, as far as known.")
    cost: AnswerCost | None
    reward_deadline: Time = Field(description="Until when feedback counts.")
    log: Annotated[str, among("away")] | None = Field(
        default=None,
        description="`away`: the log was unreachable, so it lacks this answer or its end. Left out "
        "otherwise.",
    )


class Agent(Chosen):
    """The fields that OpenAI's API does not have."""

    propensity: float = Field(description="Probability with which the arm was drawn.")
    passages: list[Passage] = Field(default=[], description="With `return: [passages]`.")
    features: dict[str, float] = Field(default={}, description="With `return: [decision]`.")


class Passed(Reply):
    """Base of what a provider may have written: it is passed on as it came, with further fields."""

    model_config = ConfigDict(frozen=True, extra="allow")


class MadeFunction(Passed):
    """What is called."""

    name: str
    arguments: str = Field(description="JSON, as the language model wrote it.")


class MadeCall(Passed):
    """A call of a function of the request."""

    id: str = Field(description="The result of the call comes under it.")
    type: Annotated[str, among("function", "custom")] = "function"
    function: MadeFunction | None = Field(default=None, description="Left out if another tool is called.")


class UrlCitation(Reply):
    """A passage, and where the text cites it."""

    start_index: int
    end_index: int
    title: str
    url: str


class Annotation(Passed):
    """A citation."""

    type: str = Field(description="`url_citation`, or another of the provider's.")
    url_citation: UrlCitation | None = None


class AnswerMessage(Passed):
    """What the language model wrote."""

    role: str = "assistant"
    content: str | list[dict[str, Any]] | None = Field(
        default=None, description="Null if it only calls functions. Some providers send parts."
    )
    tool_calls: list[MadeCall] | None = Field(default=None, description="Left out if there is none.")
    annotations: list[Annotation] | None = Field(default=None, description="Left out if there is none.")


class AnswerChoice(Passed):
    """An answer; there are `n`."""

    index: int = 0
    message: AnswerMessage
    finish_reason: str | None = Field(
        default=None, description="`stop`, `length`, `tool_calls`, `content_filter`, or the provider's own."
    )
    logprobs: dict[str, Any] | None = Field(
        default=None, description="`content` has the values of each token."
    )


class PromptTokens(Passed):
    """Tokens that the language model read."""

    cached_tokens: int | None = Field(default=None, description="Tokens that its endpoint had in its cache.")


class Usage(Passed):
    """Tokens of the language model."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: PromptTokens | None = Field(
        default=None, description="Left out if none came from a cache."
    )


class Completion(Passed):
    """A chat completion, as OpenAI's clients read it."""

    id: str
    object: str = "chat.completion"
    created: int | None = None
    model: str = Field(description="`arm/<name>`: the arm that answered.")
    choices: list[AnswerChoice]
    usage: Usage | None = Field(default=None, description="Left out if the provider reports none.")
    agent: Agent


class Retrieval(Reply):
    """Passages without an answer."""

    object: Literal["retrieval"]
    model: str = Field(description="`arm/<name>`: the arm that answered.")
    passages: list[Passage]
    agent: Agent


class ArmChoice(Reply):
    """The chosen arm, for a caller who runs it."""

    object: Literal["decision"]
    decision_id: str = Field(description="Names the decision in feedback.")
    episode_id: str | None
    policy_version: int = Field(description="The version that decided.")
    mode: DrawMode
    chosen: str = Field(description="Name of the arm.")
    propensity: float = Field(description="Probability with which it was drawn.")
    pmf: dict[str, float] = Field(description="Probability of each eligible arm.")
    reward_deadline: Time = Field(description="Until when feedback counts.")


class Recomputed(Reply):
    """A distribution as logged and as recomputed, by arm."""

    max_difference: float
    logged: dict[str, float]
    recomputed: dict[str, float]


class Draw(Reply):
    """The recomputed draw."""

    u: float | None
    arm: str | None
    agrees: bool


class DecisionVerification(Recomputed):
    """The result of recomputing a decision."""

    decision_id: str
    policy_version: int
    candidate: int | None
    share: float
    mode: DrawMode
    verified: bool
    elsewhere: bool = Field(
        default=False,
        description="Whether another system made the decision: its distribution and its draw cannot be "
        "computed here, and only `shadow`, what would have been drawn from, is compared.",
    )
    erased: bool = Field(description="Whether its texts were erased; it is recomputed from its features.")
    tolerance: float
    draw: Draw
    shadow: Recomputed | None
    why: list[str] = Field(description="What differs.")


class FeedbackReceipt(Reply):
    """An item of feedback is durable."""

    feedback_id: str
    decision_id: str | None
    episode_id: str | None
    status: Annotated[str, among("stored", "duplicate")]
    log_seq: int = Field(description="Position in the log.")


Receipt = TypeVar("Receipt", "FeedbackReceipt", "ObservationReceipt")


class Receipts(Reply, Generic[Receipt]):
    """The results of a batch."""

    items: list[Receipt | Envelope]

    @property
    def kept(self) -> list[Receipt]:
        """The items that are durable."""
        return [item for item in self.items if not isinstance(item, Envelope)]

    @property
    def log_seq(self) -> int:
        """The last position in the log: all is learned when `applied_seq` has reached it."""
        return max((item.log_seq for item in self.kept), default=0)


class FeedbackReceipts(Receipts[FeedbackReceipt]):
    """The results of a batch, in the order of its items."""


class FeedbackToken(Reply):
    """What stands for a key in a page that rates one answer."""

    token: str
    expires_at: Time = Field(description="Until when it is taken.")


class ButtonReceipt(Reply):
    """What a button says of an answer is durable."""

    decision_id: str
    value: Annotated[str, among("up", "down")] | None
    status: Annotated[str, among("stored", "duplicate")]


class ObservationReceipt(Reply):
    """A decision of another system is durable."""

    decision_id: str = Field(description="Names the decision in feedback.")
    arm: str = Field(description="The arm that its name stands for here.")
    status: Annotated[str, among("accepted", "duplicate", "completed")] = Field(
        description="`completed`: it says how a decision that was made here has ended."
    )
    evaluable: bool = Field(description="Whether a propensity is on record.")
    log_seq: int = Field(description="Position in the log.")


class ObservationReceipts(Receipts[ObservationReceipt]):
    """The results of a batch, in the order of its items."""


class Summary(Reply):
    """A version of a policy; without one, all but `examples_seq` are null."""

    version: int | None
    parent: int | None
    digest: str | None
    examples_seq: int
    created_at: Time | None


class ServingState(Reply):
    """Which version decides, and whether it is pinned."""

    version: int | None
    pinned: bool
    chosen: int | None
    since: Time | None
    reason: str | None


class PromotionState(Reply):
    """The promotion that holds."""

    version: int
    since: Time
    reason: str
    forced: bool
    evaluation: int | None
    deciding: bool


class CanaryState(Reply):
    """A canary that holds."""

    version: int
    share: float
    since: Time
    reason: str
    automatic: bool = Field(
        description="Whether the service began it and grows, ends or promotes it as the evidence allows."
    )
    deciding: bool


class FeedbackState(Reply):
    """How long feedback takes, and what still waits for it."""

    complete: Annotated[str, among("any", "all", "deadline")]
    wait_time: str
    correction_time: str = Field(description="How long a rating can be changed before it is learned.")
    waiting: int = Field(
        description="Explored decisions whose wait time is not over, learned or not: no estimate has them."
    )
    settled_before: Time | None = Field(
        description="Decisions since then are not in the estimates yet; null if none waits."
    )
    values: int = Field(
        description="Number of values on the newest settled decisions, which the next fields describe."
    )
    median_s: float | None
    p99_s: float | None
    late: float = Field(description="Share of the values that came after the wait time and do not count.")
    suggested_wait_time: str | None = Field(
        description="The shortest usual wait time that covers 99 % of the values; null if there are too few."
    )


class AlarmState(Reply):
    """A detected change."""

    subject: str
    detector: str
    before: float
    after: float
    example_seq: int
    at: Time
    rater: str | None = None


class DriftState(Reply):
    """Alarms of drift, and the floor that they raise."""

    alarms: int
    last: AlarmState | None
    floor: float
    until: Time | None
    warm_start_open: bool


class GuardState(Reply):
    """The guard, and how many classes of requests went back to its reference."""

    reference: str
    by: str
    least: float
    classes_back: int
    since: Time | None = Field(description="When the newest of them went back; null for none.")


class RouterState(Reply):
    """The configured router."""

    kind: str
    params: dict[str, Any]
    stage: str
    digest: str
    arms: Sequence[str]


def _drop_unknown_fields(reward: Any) -> Any:
    """Drop fields of a reward that a newer service adds: unlike a reply, a configuration refuses them."""
    if not isinstance(reward, dict):
        return reward
    return {name: value for name, value in reward.items() if name in RewardRule.model_fields}


class Policy(Summary):
    """The policy that decides now, and what affects it."""

    kind: str
    params: dict[str, Any]
    floor: float
    applied_seq: int = Field(description="Facts of the log up to this position are learned.")
    log_seq: int = Field(description="Position of the newest fact.")
    serving: ServingState
    promotion: PromotionState | None
    canaries: list[CanaryState] = Field(
        description="Candidates that take part in decisions, each when it is its turn."
    )
    newest: Summary | None
    feedback: FeedbackState | None
    drift: DriftState | None
    guard: GuardState | None = None
    reward: Annotated[RewardRule, BeforeValidator(_drop_unknown_fields)]
    router: RouterState | None

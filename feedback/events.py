"""The facts of the log (decision, execution, feedback, observation, tick), and the example joined from them.

Facts are frozen and append-only. A decision is committed before its answer is sent; its execution is a second
fact.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import StrEnum
from math import nan
from typing import Annotated, Any, TypeVar, get_type_hints

LABELS = "labels"
"""Policy of a label, which a warm start inserts as a decision."""

IMPORTED = "imported"
"""Policy of a decision in the converted log of another system."""

ESTIMATED = "imported-estimated"
"""Policy of an imported decision whose probabilities were estimated from the frequencies of draws."""

OBSERVED = "observed"
"""Policy of a decision that another system made, carried out and sent to the tap."""

FOREIGN = (IMPORTED, ESTIMATED, OBSERVED)
"""Policies of decisions that another system drew."""

INCUMBENT = "incumbent"
"""Policy of a decision that was drawn here from a mixture of the policy and the caller's own decider."""

ELSEWHERE = (OBSERVED, INCUMBENT)
"""Policies of decisions of the tap, which another system made or took part in."""

NOT_SERVED = (LABELS, *ELSEWHERE)
"""Policies of decisions that comparisons of what was served here leave out."""


ROUTER = "router"
"""The feature of an arm that holds its score by a trained router."""

SIMILARITY = "similarity"
"""The feature of an arm that holds how well the question fits its sources."""

LEAST_PROPENSITY = 1e-9
"""Smallest propensity that a weight divides by: rarer draws do not occur in practice."""

SIGNAL = "signal:"
"""What the id of a signal begins with, which no caller may use."""

QUOTES_PASSAGES = "may quote passages"
"""Marks fields whose text was written after reading the passages: by a language model, its server, an arm, a
judge or a rater. The question and the context come from the user."""


class Mode(StrEnum):
    """How the arm was chosen; only `EXPLORE` is learned from or evaluated."""

    EXPLORE = "explore"
    """Drawn from a distribution: by this service, by another system, or as a label; `policy` says which."""
    GREEDY = "greedy"
    """The caller asked for the most probable arm."""
    FORCED = "forced"
    """The caller named the arm."""
    CONTINUED = "continued"
    """The arm that an earlier turn of the conversation drew; what it earns counts for that draw."""


class Mask(StrEnum):
    """Why a live arm could not be drawn."""

    DISABLED = "disabled"
    """It was switched off."""
    EXCLUDED = "excluded"
    """The request excluded it."""
    NOT_ALLOWED = "not_allowed"
    """The request listed the arms to choose among, and left this one out."""
    CANNOT_FILTER = "cannot_filter"
    """It cannot apply the filter of the request, or the permissions of passages."""
    LOADING = "loading"
    """The encoder of the arm was still loading."""
    SOURCE_AWAY = "source_away"
    """The source that it searches could not be read, and nothing of it was read before."""
    BREAKER_OPEN = "breaker_open"
    """The circuit breaker was open after repeated failures."""
    AT_CAP = "at_cap"
    """It had as many searches under way as its cap allows."""
    SEARCH_FAILED = "search_failed"
    """The search for this question failed before the draw."""
    LLM_UNAVAILABLE = "llm_unavailable"
    """The language model of the arm had failed repeatedly, or had used up its places or its rate."""
    UNSUPPORTED = "unsupported"
    """The language model of the arm lacks a capability that the request needs."""


class Status(StrEnum):
    """How an execution ended."""

    OK = "ok"
    FELL_BACK = "fell_back"
    """The drawn arm failed, and the declared fallback answered."""
    ARM_FAILED = "arm_failed"
    LLM_FAILED = "llm_failed"
    LLM_TIMEOUT = "llm_timeout"
    CANCELLED = "cancelled"
    """The client left before the answer was complete."""


ARM_FAILURES = (Status.ARM_FAILED, Status.FELL_BACK)
"""Statuses of a decision whose drawn arm failed: it is learned from only where the rule has `failed`."""

REFUSALS = ("content_filter", "refusal")
"""Reasons to stop of a language model that refused to answer, or whose provider withheld the answer."""

UNRECOVERED = (Status.ARM_FAILED, Status.LLM_FAILED, Status.LLM_TIMEOUT)
"""Statuses of a decision where the last arm, or its language model, failed: the caller got an error."""

FAILURES = (Status.FELL_BACK, *UNRECOVERED)
"""Statuses of a decision where any arm, or its language model, failed. That a client left is no failure."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a policy saw of a question, exactly as it was when the policy decided.

    Attributes:
        question: The text of the question.
        features: Named features of the question; finite values.
        embedding: Embedding of the question, shape (dim,); empty if unused.
        arms: Features of each arm: family, backbone, expected cost.
    """

    question: str
    features: Mapping[str, float] = field(default_factory=dict)
    embedding: tuple[float, ...] = ()
    arms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def with_scores(self, scores: Mapping[str, float]) -> "Context":
        """Return the context with these router scores in place of earlier ones.

        >>> Context("?", arms={"a": {"steps": 1.0}, "b": {"router": 0.9}}).with_scores({"a": 0.5}).arms
        {'a': {'steps': 1.0, 'router': 0.5}, 'b': {}}
        """
        arms = {}
        for arm, features in self.arms.items():
            others = {name: value for name, value in features.items() if name != ROUTER}
            arms[arm] = {**others, ROUTER: scores[arm]} if arm in scores else others
        return replace(self, arms=arms)

    @property
    def expected(self) -> Mapping[str, float]:
        """Expected fit by arm: router scores if any arm has one, otherwise similarities of the sources.

        All values are of the same kind. Arms without one are left out.

        >>> Context("?", arms={"a": {"router": 0.9, "similarity": 0.1}, "b": {"similarity": 0.2}}).expected
        {'a': 0.9}
        """
        return self._find(ROUTER) or self.similarities

    @property
    def similarities(self) -> Mapping[str, float]:
        """How well the question fits the sources of each arm; arms for which that is unknown are left out."""
        return self._find(SIMILARITY)

    def _find(self, name: str) -> Mapping[str, float]:
        return {arm: features[name] for arm, features in self.arms.items() if name in features}


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision: the context, the eligible arms with their probabilities, and the arm that was drawn.

    Attributes:
        id: Unique id, from which the draw is derived.
        context: The input of the policy.
        arms: The eligible arms, in the order of `probabilities`.
        probabilities: The distribution that was drawn from, summing to 1. If another system decided, it may
            be only the propensity of the drawn arm, then the first of `arms`, or empty: unknown.
        drawn: The drawn arm.
        policy: Kind of the policy; `LABELS` for a label, a member of `ELSEWHERE` for a decision of the tap.
        version: Version of the policy's state that gave the distribution; 0 for a label. If another system
            decided, the version that gave `shadow`.
        mode: How the arm was chosen.
        decided_at: Seconds since the epoch, UTC.
        deadline: Until when feedback counts for the caller, seconds since the epoch, UTC; what is
            learned depends on the reward rule.
        episode_id: Groups the decisions of one conversation.
        draw_id: The draw whose arm the conversation keeps: this decision, or the earlier one that it
            continues.
        request_digest: Distinguishes a retry from another request under the same id; empty when unused.
        deferred: Whether it counts only once its answer was shown, as `ACTIVATION` feedback reports.
        masked: Why each live arm that was not eligible was left out; empty for a forced arm or a label.
        steps: What each optional step of the turn did, by its name: a JSON object that the same step reads
            again to recompute the distribution.
        trace: The trace span, as in the header `traceparent`; empty without a trace.
        asked_by: Who asked: the id of a key, after `<project>~` in other projects than the default, or
            `address-` and a keyed digest of an address without a key; None: unknown.
        user_digest: Keyed hash of the end user, used to erase texts; written, never read back.
        erased: Whether its texts were erased; the numbers computed from them remain.
    """

    id: str
    context: Context
    arms: tuple[str, ...]
    probabilities: tuple[float, ...]
    drawn: str
    policy: str
    version: int
    mode: Mode = Mode.EXPLORE
    decided_at: float = 0.0
    deadline: float = 0.0
    episode_id: str | None = None
    request_digest: str = ""
    deferred: bool = False
    masked: Mapping[str, str] = field(default_factory=dict)
    steps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trace: str = ""
    draw_id: str | None = None
    user_digest: str | None = field(default=None, compare=False, repr=False)
    erased: bool = False
    asked_by: str | None = None

    @property
    def floor(self) -> float | None:
        """Least probability of an arm by the policy; None: unknown, or none was set."""
        return self.steps.get("floor", {}).get("least")

    @property
    def shadow(self) -> tuple[float, ...]:
        """What the policy alone would have drawn from, in the order of `arms`.

        Empty unless another system decided or took part.
        """
        shadow = self.steps.get(INCUMBENT, {}).get("shadow", {})
        return tuple(shadow.get(arm, 0.0) for arm in self.arms) if shadow else ()

    @property
    def candidate(self) -> int:
        """The candidate version that took a share of the draw; 0: none did."""
        return int(self.steps.get("canary", {}).get("version", 0))

    @property
    def share(self) -> float:
        """Share of the candidate, in [0, 1)."""
        return float(self.steps.get("canary", {}).get("share", 0.0))

    @property
    def candidate_context(self) -> Context:
        """The input of the candidate's policy."""
        scores = self.steps.get("canary", {}).get("scores")
        return self.context if scores is None else self.context.with_scores(scores)

    @property
    def miss_usd(self) -> float:
        """Extra dollars that the drawn arm is expected to cost because of cache misses."""
        cache = self.steps.get("cache")
        return float(cache.get("usd", {}).get(self.drawn, 0.0)) if cache else 0.0

    @property
    def propensity(self) -> float:
        """Probability with which `drawn` was drawn, in (0, 1]; NaN: unknown."""
        return self.probabilities[self.arms.index(self.drawn)] if self.probabilities else nan


@dataclass(frozen=True, slots=True)
class KeptDraw:
    """The newest draw of a conversation, and the state of its turns.

    Attributes:
        id: Id of the decision that drew.
        arm: The drawn arm.
        policy: Kind of the policy that drew it.
        version: Version of the policy.
        decided_at: When it was drawn, seconds since the epoch.
        last_at: When its newest turn was decided.
        turns: Number of turns so far, including the draw.
        failed: Whether the arm or its language model failed in a turn, or the draw was never carried out.
    """

    id: str
    arm: str
    policy: str
    version: int
    decided_at: float
    last_at: float
    turns: int = 1
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Cost:
    """What an answer cost, in raw amounts; prices are applied only when rewards are computed.

    Attributes:
        steps: Rounds of retrieval.
        prompt_tokens: Tokens read by the language model.
        completion_tokens: Tokens written by the language model.
        retrieval_s: Seconds spent in the arm.
        llm_s: Seconds spent in the language model.
        usd: Money charged by a paid engine.
    """

    steps: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    retrieval_s: float = 0.0
    llm_s: float = 0.0
    usd: float = 0.0


ModelTokens = tuple[int, int, int] | tuple[int, int, int, float] | tuple[int, int, int, float, int]
"""Tokens read, tokens written, and tokens of those read that the engine had cached.

A fourth number is dollars of priced searches, which are recorded with the model that the arms prompt; a fifth
is the tokens of those read that the engine has cached now.
"""


def count_cache_written(tokens: ModelTokens) -> int:
    """Return the tokens read that the engine has cached now.

    >>> count_cache_written((100, 10, 20, 0.0, 70)), count_cache_written((100, 10, 20))
    (70, 0)
    """
    return tokens[4] if len(tokens) > 4 else 0


@dataclass(frozen=True, slots=True)
class AnsweredTurn:
    """What language models read in a turn of a conversation.

    Attributes:
        tokens_by_model: Tokens by name of the language model.
        decided_at: When it was decided, seconds since the epoch.
        quotes_passages: Whether passages were in the prompt.
    """

    tokens_by_model: Mapping[str, ModelTokens]
    decided_at: float
    quotes_passages: bool = False


@dataclass(frozen=True, slots=True)
class Execution:
    """What happened when a decision was carried out.

    Attributes:
        decision_id: The decision that was carried out.
        served: The arm whose passages were used, if any.
        status: How it ended.
        cost: Raw cost of the turn.
        passages: Ids of the passages that were returned, best first.
        answer: The text that the language model wrote; None: it was not called.
        error: Why it failed; empty on success.
        finished_at: Seconds since the epoch, UTC.
        stages: The stages of the arm, such as those of a cascade, each a JSON object; empty for other arms.
        index_version: Version of the index of the passages; empty if unknown.
        cached: Whether the passages came from the retrieval cache; the cost covers only the lookup.
        tokens_by_model: Tokens and dollars of searches by name of the language model.
        finish_reason: Why the language model stopped: `stop`, `length`, `tool_calls`, `content_filter`,
            `refusal`, `pause_turn`, or another word of its provider; empty if it did not say, or was not
            called. The log keeps 64 characters of it.
        marks: Names that show that a later request continues this answer: the id that the provider
            gave it first (empty if it gave none), then ids of calls and of items, and digests of reasoning.
            The log keeps the first 300; one of more than 256 characters is kept as an empty one.
    """

    decision_id: str
    served: str | None
    status: Status
    cost: Cost
    passages: tuple[str, ...] = ()
    answer: Annotated[str | None, QUOTES_PASSAGES] = None
    error: Annotated[str, QUOTES_PASSAGES] = ""
    finished_at: float = 0.0
    stages: Annotated[tuple[Mapping[str, object], ...], QUOTES_PASSAGES] = ()
    index_version: str = ""
    cached: bool = False
    tokens_by_model: Mapping[str, ModelTokens] = field(default_factory=dict)
    finish_reason: str = ""
    marks: tuple[str, ...] = ()


class FeedbackKind(StrEnum):
    """The kinds of feedback."""

    VALUE = "value"
    """One value of one metric."""
    RETRACTION = "retraction"
    """It cancels the value of the same id, whichever of the two comes first."""
    ACTIVATION = "activation"
    """The answer was shown: a deferred decision counts from here on."""
    PASSAGE = "passage"
    """One value of one metric for a passage that was found; it says nothing of the answer."""


PASSAGE = "passage"
"""Content of feedback on a passage: its id."""

COMMENT, DEMONSTRATION, PREFERENCE = "comment", "demonstration", "preference"

NOTES = (COMMENT, DEMONSTRATION, PREFERENCE)
"""Metrics without numbers: a text, the right answer, and which of two is better. They are stored and shown;
only a metric that the configuration declares under the name counts in a reward."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """Feedback on one decision, or on all decisions of an episode.

    Attributes:
        id: Idempotency key: feedback with the same id and kind counts once.
        decision_id: The decision, which may be committed later; None: feedback on an episode.
        metric: A metric that the configuration declares, or one of `NOTES`; empty for an activation.
        value: The value, within the range of the metric; a boolean is 0 or 1, a label its number. Only a
            value of a declared metric has one.
        received_at: Seconds since the epoch, UTC, by the server's clock.
        event_time: When it happened by the client's clock.
        tags: Free text pairs, stored as they are.
        episode_id: The episode; None: feedback on a decision.
        kind: The kind.
        source: Whom the sender's key is for: user, judge or operator; None: sent without a key. A
            signal that requests cause has the source user; the result of a check has operator.
        key: The public id of that key.
        content: Texts: the `label` of a categorical value and the `comment` on a value; the `comment` or
            `demonstration` of a note; for a preference the less preferred decision, `over`, or the arms
            `better` and `worse`; the `passage` that a value is about.
        rater: The user whose limited share of the training log it uses: the one who sent it, as in
            `Decision.asked_by`, or whose request caused the signal. Empty for keys of judges or operators and
            for checks, which are unlimited; None: unknown.
    """

    id: str
    decision_id: str | None
    metric: str = ""
    value: float | None = None
    received_at: float = 0.0
    event_time: float | None = None
    tags: Annotated[Mapping[str, str], QUOTES_PASSAGES] = field(default_factory=dict)
    episode_id: str | None = None
    kind: FeedbackKind = FeedbackKind.VALUE
    source: str | None = None
    key: str | None = None
    content: Annotated[Mapping[str, str], QUOTES_PASSAGES] = field(default_factory=dict)
    rater: str | None = None


class ObservationSource(StrEnum):
    """Source of an observation."""

    SHADOW = "shadow"
    """Another arm answered too, and a judge compared both answers."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Another arm's answer, compared by a judge.

    It is made after the answer was sent, for a sample of the decisions, and leaves rewards as they are.

    Attributes:
        decision_id: The decision.
        source: Source of the observation.
        arm: The observed arm.
        share: Probability with which the decision was sampled, in (0, 1].
        propensity: Probability with which the arm was drawn among the other eligible arms.
        value: The preference for the second answer, in [-1, 1]; None: the arm or the judge failed.
        cost: Cost of the arm and its answer.
        judge: The judge's model; empty without a judge.
        judge_cost: Tokens and money of the judge.
        swapped: Whether the judge read the second answer first.
        passages: Ids of the arm's passages, best first.
        answer: The second answer.
        error: Why the value is missing; empty on success.
        observed_at: Seconds since the epoch, UTC.
    """

    decision_id: str
    source: ObservationSource
    arm: str
    share: float
    propensity: float = 1.0
    value: float | None = None
    cost: Cost = Cost()
    judge: str = ""
    judge_cost: Cost = Cost()
    swapped: bool = False
    passages: tuple[str, ...] = ()
    answer: Annotated[str | None, QUOTES_PASSAGES] = None
    error: Annotated[str, QUOTES_PASSAGES] = ""
    observed_at: float = 0.0


Quoting = TypeVar("Quoting", Execution, Observation, Feedback)


def without_quotations(fact: Quoting) -> Quoting:
    """Return a fact with the fields marked `QUOTES_PASSAGES` cleared; of an error, the type is kept.

    >>> run = Execution("d", None, Status.LLM_FAILED, Cost(), ("a", "b"), "text of b", "HTTPError: text of b")
    >>> without_quotations(run).answer, without_quotations(run).error
    (None, 'HTTPError')
    """
    hints = get_type_hints(type(fact), include_extras=True)
    cleared: dict[str, Any] = {}
    for part in fields(fact):
        if QUOTES_PASSAGES in getattr(hints[part.name], "__metadata__", ()):
            made = part.default_factory
            cleared[part.name] = part.default if made is MISSING else made()
    if not isinstance(fact, Feedback):
        cleared["error"] = type_of_error(fact.error)
    return replace(fact, **cleared)


def type_of_error(error: str) -> str:
    """Return the type that an error begins with, or an empty text if it begins with another word.

    >>> type_of_error("TimeoutError: no answer within 3 s"), type_of_error("no answer: none")
    ('TimeoutError', '')
    """
    name = error.partition(":")[0]
    return name if name.isidentifier() else ""


@dataclass(frozen=True, slots=True)
class Tick:
    """The passage of time, recorded while the log is quiet.

    Attributes:
        at: Seconds since the epoch, UTC.
    """

    at: float


@dataclass(frozen=True, slots=True)
class Example:
    """A decision joined with its cost and metrics: one row of the ordered training log.

    Attributes:
        seq: Position in the training log, from 1.
        decision: The decision.
        cost: The raw cost vector of its execution.
        metrics: Aggregated value of each metric that had feedback; empty if the wait time passed without
            any, or the drawn arm failed.
        failed: Whether the drawn arm failed; such examples exist if the rule declares a reward for failure.
        by: Position of the fact that made it ready; 0 outside of the training log. Left out of comparisons.
        index_version: Version of the index of its execution. Like `cached`, it is recorded, not learned.
        cached: Whether its passages came from the cache of an earlier search.
        tokens_by_model: Tokens and dollars of searches by name of the language model.
        turns: Turns of the conversation that the draw stands for, at least 1. `cost` and `tokens_by_model`
            are sums over them, `metrics` means; the reward is that of a single turn.
        finish_reason: Why the language model stopped, as in its execution; recorded, not learned.
    """

    seq: int
    decision: Decision
    cost: Cost
    metrics: Mapping[str, float]
    failed: bool = False
    by: int = field(default=0, compare=False)
    index_version: str = ""
    cached: bool = False
    tokens_by_model: Mapping[str, ModelTokens] = field(default_factory=dict)
    turns: int = 1
    finish_reason: str = ""

"""The facts of the log: context, decision, cost, execution, feedback.

Facts are frozen and append-only. A decision is written before its answer
leaves and never edited; its execution is a second fact.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import StrEnum
from math import nan
from typing import Annotated, Any, TypeVar, get_type_hints

LABELS = "labels"
"""Policy of a decision that no policy made: a label, inserted for a warm start."""

IMPORTED = "imported"
"""Policy of a decision in the converted log of another system."""

ESTIMATED = "imported-estimated"
"""Policy of a decision of another system whose probabilities were estimated from frequencies of its draws."""

OBSERVED = "observed"
"""Policy of a decision that another system made and carried out, and that was sent here: the tap."""

FOREIGN = (IMPORTED, ESTIMATED, OBSERVED)
"""Policies of decisions that nothing here drew."""

INCUMBENT = "incumbent"
"""Policy of a decision that was drawn here from a mixture with what the caller's own decider draws from."""

ELSEWHERE = (OBSERVED, INCUMBENT)
"""Policies of decisions that another system made or took part in: not what was served here."""


ROUTER = "router"
"""The feature of an arm that holds its score by a trained router."""

SIMILARITY = "similarity"
"""The feature of an arm that says how near the question is to passages of its source."""

LEAST_PROPENSITY = 1e-9
"""Smallest propensity that a draw is weighted by: what is drawn less often is never seen."""

QUOTES_PASSAGES = "may quote passages"
"""Marks the fields of facts whose text was written by what, or who, had read the passages of a decision: a
language model, its server, an arm, a judge, who rates. Its question and context are of who asked."""


class Mode(StrEnum):
    """How the arm was chosen; only `EXPLORE` is learned from or evaluated."""

    EXPLORE = "explore"
    """Drawn from the policy's distribution, floor mixed in."""
    GREEDY = "greedy"
    """The caller asked for the most probable arm."""
    FORCED = "forced"
    """The caller named the arm."""
    CONTINUED = "continued"
    """The arm that an earlier turn of the conversation drew; what it earns counts for that draw."""


class Mask(StrEnum):
    """Why an arm that was live could not be drawn."""

    DISABLED = "disabled"
    """It was switched off."""
    EXCLUDED = "excluded"
    """The request excluded it."""
    NOT_ALLOWED = "not_allowed"
    """The request named arms to choose among, and not this one."""
    CANNOT_FILTER = "cannot_filter"
    """It cannot keep to the filter of the request, or to the permissions of passages."""
    LOADING = "loading"
    """The encoder of the arm was not loaded yet."""
    BREAKER_OPEN = "breaker_open"
    """It had failed several times in a row."""
    AT_CAP = "at_cap"
    """As many searches of it were under way as may be at a time."""
    SEARCH_FAILED = "search_failed"
    """It failed for this question already, before the draw."""
    LLM_UNAVAILABLE = "llm_unavailable"
    """The language model of the arm had failed several times in a row, or had no room or rate left."""
    UNSUPPORTED = "unsupported"
    """The language model of the arm does not support what the request asked for."""


class Status(StrEnum):
    """How an execution ended."""

    OK = "ok"
    FELL_BACK = "fell_back"
    """The drawn arm failed and another one, declared as fallback, answered."""
    ARM_FAILED = "arm_failed"
    LLM_FAILED = "llm_failed"
    LLM_TIMEOUT = "llm_timeout"
    CANCELLED = "cancelled"
    """The client left before the answer was complete."""


ARM_FAILURES = (Status.ARM_FAILED, Status.FELL_BACK)
"""Statuses of a decision whose drawn arm failed: it is learned from only where the rule has `failed`."""

UNRECOVERED = (Status.ARM_FAILED, Status.LLM_FAILED, Status.LLM_TIMEOUT)
"""Statuses of a decision where the last arm, or its language model, failed: the caller got an error."""

FAILURES = (Status.FELL_BACK, *UNRECOVERED)
"""Statuses of a decision where any arm, or its language model, failed. That a client left is no failure."""


@dataclass(frozen=True, slots=True)
class Context:
    """The input of a policy, exactly as the policy received it.

    Attributes:
        question: The text of the question.
        features: Sparse named features of the question; finite values.
        embedding: Dense features of the question, shape (dim,); empty when unused.
        arms: Features of each arm: family, backbone, expected cost.
    """

    question: str
    features: Mapping[str, float] = field(default_factory=dict)
    embedding: tuple[float, ...] = ()
    arms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def with_scores(self, scores: Mapping[str, float]) -> "Context":
        """Return the context with these scores of a router in the place of any others.

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
        """How well each arm is expected to fit: its score by the router, else the similarity of its source.

        Of one kind for all arms that have it; empty where neither is known.

        >>> Context("?", arms={"a": {"router": 0.9, "similarity": 0.1}, "b": {"similarity": 0.2}}).expected
        {'a': 0.9}
        """
        for name in (ROUTER, SIMILARITY):
            if scores := {arm: features[name] for arm, features in self.arms.items() if name in features}:
                return scores
        return {}


@dataclass(frozen=True, slots=True)
class Decision:
    """One draw from one distribution.

    Attributes:
        id: Unique; the draw is hashed from it.
        context: The input of the policy.
        arms: The eligible arms, in the order of `probabilities`.
        probabilities: The distribution that was drawn from, summing to 1. Of a decision that another system
            made, a single one where only that of the drawn arm is known, which is the first of `arms` then;
            empty where not even that is known.
        drawn: The arm that the draw fell on.
        policy: Kind of the policy; `LABELS` where it is a label, one of `ELSEWHERE` where another system
            decided or took part.
        version: Version of the policy's state that gave the distribution; 0 for a label. Where another system
            decided, the version that gave `shadow`.
        mode: How the arm was chosen.
        decided_at: Seconds since the epoch, UTC.
        deadline: Until when feedback counts, seconds since the epoch, UTC.
        episode_id: Groups the decisions of one conversation.
        request_digest: Distinguishes a retry from another request under the same id; empty when unused.
        floor: Exploration floor, so that the distribution can be computed again; None where it was
            not recorded, as in imported logs.
        deferred: Whether it counts only once its answer was shown, which feedback of the kind
            `ACTIVATION` records.
        shadow: The distribution of the shadow policy, in the order of `arms`; empty where there is none.
            Where another system decided, or took part, that of the policy of `version`.
        candidate: The version that took part beside `version`, as a canary; 0 for none.
        share: How much of `probabilities` is the candidate's, in [0, 1): they are
            (1 - share) times the distribution of `version` plus share times that of `candidate`,
            the floor mixed into both.
        price: Reward that a unit of cost had to be worth under the budget; 0 without one.
        costs: Expected cost of each arm, in the unit of the budget and in the order of `arms`; empty where
            the price is 0.
        cost_weight: Quality that the request gives up for a unit of priced cost; None for that of the rule.
        candidate_scores: Scores of the arms by the router of `candidate`, which it saw in the place of
            those in `context`; None where both saw the same.
        masked: The live arms that are not among `arms`, each with why, a `Mask`; empty where the arm was
            forced or a label, and in rows from before this was recorded.
        trace: The span that it was made in, as the header `traceparent` has it; empty without a trace.
        draw_id: The draw whose arm the conversation keeps: the id of this decision where it is that draw,
            and of an earlier one where it continues it; None where no arm is kept.
        user_digest: Keyed hash of the caller's end user, by which texts are erased; not read back.
        erased: Whether its texts were erased; what a policy saw of them as numbers was not.
        incumbent: The distribution of the caller's own decider, in the order of `arms`; empty where it took
            no part.
        incumbent_share: How much of `probabilities` is the incumbent's, in [0, 1]: they are that share times
            `incumbent`, plus the rest times the distribution of `version` with the floor mixed in.
        quoted_groups: The groups of who asked, where the request had earlier messages, which may quote
            passages for these groups; empty where it had none.
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
    floor: float | None = 0.0
    deferred: bool = False
    shadow: tuple[float, ...] = ()
    candidate: int = 0
    share: float = 0.0
    price: float = 0.0
    costs: tuple[float, ...] = ()
    cost_weight: float | None = None
    candidate_scores: Mapping[str, float] | None = None
    masked: Mapping[str, str] = field(default_factory=dict)
    trace: str = ""
    draw_id: str | None = None
    user_digest: str | None = field(default=None, compare=False, repr=False)
    erased: bool = False
    incumbent: tuple[float, ...] = ()
    incumbent_share: float = 0.0
    quoted_groups: tuple[str, ...] = ()

    @property
    def candidate_context(self) -> Context:
        """The input of the candidate's policy."""
        return (
            self.context if self.candidate_scores is None else self.context.with_scores(self.candidate_scores)
        )

    @property
    def penalty(self) -> tuple[float, ...]:
        """Reduction of the score of each arm under a budget; empty without one."""
        return tuple(self.price * cost for cost in self.costs)

    @property
    def propensity(self) -> float:
        """Probability with which `drawn` was drawn, in (0, 1]; NaN where none is known."""
        return self.probabilities[self.arms.index(self.drawn)] if self.probabilities else nan


@dataclass(frozen=True, slots=True)
class KeptDraw:
    """The newest draw of a conversation, and what became of it.

    Attributes:
        id: The draw.
        arm: The drawn arm.
        policy: Kind of the policy that drew it.
        version: Version of the policy.
        decided_at: When it was drawn, seconds since the epoch.
        last_at: When its newest turn was decided.
        turns: Number of turns so far, that of the draw included.
        failed: Whether the arm or its language model failed in one of them, or the draw was not carried out.
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
    """The raw cost vector of an answer; prices are applied only when scoring.

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


ModelTokens = tuple[int, int, int] | tuple[int, int, int, float]
"""Tokens read, tokens written, and of those read the ones that the engine had cached.

Where searches had a price, the last number is their dollars: they stand beside the model that arms prompt.
"""


@dataclass(frozen=True, slots=True)
class Execution:
    """What happened after a decision.

    Attributes:
        decision_id: The decision that was carried out.
        served: The arm whose passages were used; None when none was.
        status: How it ended.
        cost: Raw cost of the turn.
        passages: Ids of the passages that were returned, best first.
        answer: The text that the language model wrote; None when it was not called.
        error: Why it failed; empty when it did not.
        finished_at: Seconds since the epoch, UTC.
        stages: What the arm did in stages, each as named facts that can be written as JSON; empty for an
            arm without.
        index_version: Version of the passages' index; empty where there is none or it is unknown.
        cached: Whether the passages were kept from an earlier search; the cost is that of finding them there.
        tokens_by_model: Tokens and dollars of searches by name of the language model; empty where none was
            asked and no search had a price.
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


class FeedbackKind(StrEnum):
    """The kinds of feedback."""

    VALUE = "value"
    """One value of one metric."""
    RETRACTION = "retraction"
    """The value of the same id does not count, whichever of the two comes first."""
    ACTIVATION = "activation"
    """The answer was shown: a deferred decision counts from here on."""


COMMENT, DEMONSTRATION, PREFERENCE = "comment", "demonstration", "preference"

NOTES = (COMMENT, DEMONSTRATION, PREFERENCE)
"""Metrics without numbers, where the configuration declares none of the name: a text, the right answer, and
which of two is better. They are kept and shown, and count in no reward."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """Feedback on one decision, or on all decisions of an episode.

    Attributes:
        id: Idempotency key; the same id and kind twice are one fact.
        decision_id: The decision; may not be visible yet. None for feedback on an episode.
        metric: A metric that the configuration declares, or one of `NOTES`; empty for an activation.
        value: Booleans as 0 or 1, a label as its number; within the metric's range. None for all but values,
            and for `NOTES`.
        received_at: Seconds since the epoch, UTC, by the server's clock.
        event_time: When it happened by the client's clock; None when not given.
        tags: Free text pairs, kept and not interpreted.
        episode_id: The episode; None for feedback on a decision.
        kind: The kind.
        source: Who judges with the key that sent it: user, judge or operator; None without a key.
        key: The public id of that key.
        content: What is not a number: the `label` of a categorical value, the `comment` on a value; of a note
            its `comment` or `demonstration`; of a preference the decision `over` which this one is preferred,
            or the arms `better` and `worse`.
        rater: Who may teach its share alone: the public id of a key of a user, or `address-` and a keyed
            digest of the address of somebody without a key. Empty for keys of judges and operators, which
            are not limited; None where it is not known, as in a log of before.
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
    JUDGE = "judge"
    """A judge graded the answer."""


@dataclass(frozen=True, slots=True)
class Observation:
    """An observation of an arm on the question of a decision, besides the reward of the drawn arm.

    It is made after the answer was sent, for a sample of the decisions, and never changes a reward.

    Attributes:
        decision_id: The decision.
        source: Source of the observation.
        arm: The observed arm; the drawn one for a judge.
        share: Probability with which the decision was sampled, in (0, 1].
        propensity: Probability with which the arm was taken of the eligible ones besides the drawn one; 1
            for a judge.
        value: For `SHADOW` the preference for the second answer, in [-1, 1]; for `JUDGE` the grade, in
            [0, 1]. None where the arm or the judge failed.
        cost: Cost of the arm and its answer.
        judge: The judge's model; empty without one.
        judge_cost: Tokens and money of the judge.
        swapped: Whether the judge read the second answer first.
        passages: Ids of the arm's passages, best first; empty for a judge.
        answer: The second answer; None without one.
        error: Why there is no value; empty where there is one.
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
    """Return a fact without what is marked with `QUOTES_PASSAGES`; of an error, its type is left.

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
    """Return the type of an error without its message, or an empty text where it names none.

    >>> type_of_error("TimeoutError: no answer within 3 s"), type_of_error("no answer: none")
    ('TimeoutError', '')
    """
    name = error.partition(":")[0]
    return name if name.isidentifier() else ""


@dataclass(frozen=True, slots=True)
class Tick:
    """The passage of time, recorded when nothing else is written.

    Attributes:
        at: Seconds since the epoch, UTC.
    """

    at: float


@dataclass(frozen=True, slots=True)
class Example:
    """A decision joined with its cost and metrics: one row of the ordered training log.

    Attributes:
        seq: Position in the training log, from 1.
        decision: The fact that is learned from.
        cost: The raw cost vector of its execution.
        metrics: Aggregated value of each metric that had feedback; empty when the
            wait time passed without any, and where the drawn arm failed.
        failed: Whether the drawn arm failed, which is learned only where the rule declares a reward
            for it.
        by: Position of the fact that made it ready; 0 outside of the training log. Not compared.
        index_version: Version of the index of its execution, as the next two; nothing is learned from them.
        cached: Whether its passages were kept from an earlier search.
        tokens_by_model: Tokens and dollars of searches by name of the language model.
        turns: Turns of the conversation that the draw stands for, at least 1. `cost` and `tokens_by_model`
            are sums over them, `metrics` means; a reward is that of a turn.
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

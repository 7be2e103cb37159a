"""Replies to operators: arms, policies, evaluations, warm starts, keys."""

from typing import Any, Literal

from pydantic import Field

from agent.api.replies.base import Reply, Time
from agent.config import Scope
from arms.llm import WritingSpec
from arms.retrievers import ArmSpec
from feedback.reward import RewardRule


class Arm(Reply):
    """A live arm."""

    name: str
    kind: str
    params: dict[str, Any]
    host: str
    answering: WritingSpec
    cache: bool
    backbones: list[str]
    features: dict[str, float]
    enabled: bool


class ArmList(Reply):
    """The live arms, and those that are only parts of others."""

    arms: list[Arm]
    parts: dict[str, ArmSpec]
    arm_set: int = Field(description="Number of the set.")


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
    """The canary that holds."""

    version: int
    share: float
    since: Time
    reason: str
    deciding: bool


class Apprentice(Reply):
    """How far a shadow policy agrees with the served one."""

    decisions: int
    agreement: float | None
    same_best: float | None


class JudgeState(Reply):
    """How well a judge's grades agree with feedback."""

    graded: int
    audits: int
    agreement: float
    bias: float
    curve: list[dict[str, Any]]
    arms: dict[str, dict[str, Any]]
    objection: str | None


class AlarmState(Reply):
    """A detected change."""

    subject: str
    detector: str
    before: float
    after: float
    example_seq: int
    at: Time


class DriftState(Reply):
    """Alarms of drift, and the floor that they raise."""

    alarms: int
    last: AlarmState | None
    floor: float
    until: Time | None
    warm_start_open: bool


class RouterState(Reply):
    """The configured router."""

    kind: str
    params: dict[str, Any]
    stage: str
    digest: str
    arms: list[str]


class Policy(Summary):
    """The policy that decides now, and what affects it."""

    kind: str
    params: dict[str, Any]
    floor: float
    applied_seq: int = Field(description="Facts of the log up to this position are learned.")
    log_seq: int = Field(description="Position of the newest fact.")
    serving: ServingState
    promotion: PromotionState | None
    canary: CanaryState | None
    newest: Summary | None
    apprentice: Apprentice | None
    judge: JudgeState | None
    drift: DriftState | None
    reward: RewardRule
    router: RouterState | None


class PolicyVersion(Reply):
    """A version of a policy."""

    version: int
    parent: int | None
    recipe: str
    kind: str
    params: dict[str, Any]
    start: dict[str, Any] | None
    router: str | None
    arms: list[str] | None
    examples_seq: int
    applied_seq: int
    digest: str
    created_at: Time
    kept: bool
    serving: bool


class PromotionRecord(Reply):
    """A promotion, a rollback or a canary."""

    seq: int
    version: int
    action: Literal["promote", "rollback", "canary"]
    reason: str
    at: Time
    forced: bool
    share: float
    evaluation: int | None


class PolicyVersions(Reply):
    """Versions and promotions, newest first."""

    versions: list[PolicyVersion]
    promotions: list[PromotionRecord]


class EvaluationState(Reply):
    """An evaluation without its result."""

    id: int
    status: Literal["queued", "running", "done", "failed"]
    done: float = Field(description="Share of the work that is done.")
    submitted_at: Time
    started_at: Time | None
    finished_at: Time | None
    error: str | None
    request: dict[str, Any]


class EvaluationResult(EvaluationState):
    """An evaluation, with its result once it is done."""

    result: dict[str, Any] | None


class EvaluationList(Reply):
    """Evaluations, newest first."""

    evaluations: list[EvaluationState]


class WarmStart(Reply):
    """A warm start."""

    id: int
    trigger: Literal["schedule", "alarm", "request", "command", "resumed"]
    status: Literal["asked", "running", "promoted", "held", "nothing_new", "failed", "abandoned"]
    started_at: Time
    finished_at: Time | None
    candidate: int | None = Field(description="The version that it published.")
    evaluation: int | None
    error: str | None


class WarmStartSteps(WarmStart):
    """A warm start with its inputs and steps."""

    inputs: dict[str, Any]
    steps: list[dict[str, Any]]


class Due(Reply):
    """When the next warm start is due."""

    at: Time
    trigger: str


class WarmStartList(Reply):
    """Warm starts, newest first, and the next one."""

    warm_starts: list[WarmStart]
    next: Due | None


class Spent(Reply):
    """What a key has used in a period."""

    requests: int
    tokens: int
    usd: float


class Spend(Reply):
    """What a key has used."""

    day: Spent
    month: Spent
    total: Spent


class KeyBase(Reply):
    """What every key has."""

    public_id: str
    name: str
    scopes: list[Scope]
    project: str
    source: str | None
    groups: list[str] = Field(description="Whose passages its callers may see, beside those for everybody.")


class KeyState(KeyBase):
    """A key of the log, without its secret."""

    expires: Time | None
    tags: dict[str, str]
    rpm_limit: int | None
    tpm_limit: int | None
    max_budget: float | None
    token_budget: int | None
    budget_duration: Literal["1d", "1mo"] | None
    created_at: Time
    disabled_at: Time | None
    configured: Literal[False]


class NewKeyState(KeyState):
    """A key that was made, with its secret: only this reply has it."""

    key: str


class UsedKey(KeyState):
    """A key of the log and what it has used."""

    spend: Spend


class ConfiguredKey(KeyBase):
    """A key of the configuration and what it has used."""

    configured: Literal[True]
    spend: Spend


class ErasureState(Reply):
    """A record of texts that were erased; it names neither the user nor an id."""

    point: str
    number: int
    at: Time
    scope: Literal["user", "episode", "decision", "age"]
    by: str = Field(
        description="Public id of the key, `cli`, `retention`, or `anybody` where there are no keys."
    )
    upto: int | None = Field(description="By age: position of the log up to which all texts are gone.")
    decisions: int
    executions: int
    feedback: int
    observations: int


class ErasureList(Reply):
    """Records of what was erased."""

    erasures: list[ErasureState]


class KeyList(Reply):
    """The keys."""

    keys: list[UsedKey | ConfiguredKey]

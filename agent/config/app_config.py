"""Every setting of the service, typed and described: `args` in `serve_config.yaml`.

An unknown key is an error that names it and the closest valid one.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from armwise.agent.config.digest import DigestSpec
from armwise.agent.config.privacy import Privacy
from armwise.agent.config.sections import (
    ChatPage,
    CorpusSpec,
    Http,
    Key,
    Limits,
    Observations,
    RetrievalCacheSpec,
    SourceSpec,
    StepSpec,
    Sticky,
    Tap,
)
from armwise.agent.config.warm_start import SyntheticSource, WarmStartSpec
from armwise.agent.configuration_file import ConfigError
from armwise.agent.policies import Exploration, FeatureSpec, PolicySpec, build_policy
from armwise.agent.routers import saved
from armwise.agent.spec import lines
from armwise.agent.telemetry import TelemetrySpec
from armwise.agent.turn import TurnStep
from armwise.arms.base import check_name
from armwise.arms.corpus import CorpusSource
from armwise.arms.llm import LlmSpec, writing
from armwise.arms.llm import catalog as llm_catalog
from armwise.arms.llm import prompts as llm_prompts
from armwise.arms.models import Backbone
from armwise.arms.relative_paths import FOLDER, InFolder, LocalName
from armwise.arms.retrievers import ArmGraph, ArmSpec, ExternalArm, catalog
from armwise.arms.suggestions import did_you_mean
from armwise.feedback.budget import Budget
from armwise.feedback.drift import DriftSpec
from armwise.feedback.gate_spec import GateSpec
from armwise.feedback.guard import GuardSpec
from armwise.feedback.log import locate_url, without_password
from armwise.feedback.reward import RewardRule, Signal
from armwise.number import Number

TEMPLATES = {
    **{form.value: llm_prompts.find_template(form) for form in llm_prompts.Form},
    writing.AS_SENT: llm_prompts.AGENT,
}
"""Prompts that an arm can name beside those of the configuration."""

TAKEN_NAMES = frozenset((writing.DEFAULT, *TEMPLATES))
"""Names of models and prompts that have a meaning in every configuration."""

PRICE_REMEDY = (
    "set usd_per_kilotoken_in and usd_per_kilotoken_out, set `usd: 0` if the model costs nothing, or use a "
    "model name from the list of known prices"
)
"""What gives a model a price."""

Arms = Annotated[dict[str, ArmSpec], Field(min_length=1), InFolder(catalog.locate_arms)]
"""Arms by name."""

DIALS: Mapping[str, float] = {"auto:cheap": 10.0, "auto:best": 0.0}
"""Names with which a client asks for cheaper or better answers, and by what they multiply the cost weight."""

ModelName = Annotated[str, Field(min_length=1, max_length=256)]
"""A name that a client sends as `model`."""

RESERVED_HOSTS = ("Learner", "Generator")
"""Names of deployments, which a host of arms cannot have."""


class AppConfig(BaseModel):
    """Configuration of the service."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arms: Arms = Field(
        description="Arms by name: those that the policy chooses among, and those that only other "
        "arms search.",
    )
    fallback: str | None = Field(
        default=None,
        description="Arm that answers if the chosen arm fails. If null, the request gets status 502.",
    )
    baseline: str | None = Field(
        default=None,
        description=(
            "Arm that you would use without Armwise. The console and `armwise prove` compare your results "
            "with this arm. If null, they use the most expensive arm instead. The policy `adaptive` starts "
            "from it."
        ),
    )
    answering: writing.Answering = writing.Answering()
    policy: PolicySpec = PolicySpec(kind="adaptive")
    features: FeatureSpec = FeatureSpec()
    router: saved.RouterConfig | None = Field(
        default=None,
        description=(
            "A trained router. It scores each arm for a question, and the score is a feature of the arm."
        ),
    )
    exploration: Number = Field(
        default=0.02,
        gt=0,
        lt=1,
        description="Share of the traffic that is spread evenly over all eligible arms, so that you "
        "can evaluate other policies later.",
    )
    floor: Number | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Minimum probability of each eligible arm, instead of `exploration`. Null means "
        "`exploration` divided by the number of eligible arms.",
    )
    reward: RewardRule
    budget: Budget | None = Field(
        default=None,
        description="Ceiling on the mean cost of the requests that a policy decides.",
    )
    guard: GuardSpec | None = Field(
        default=None,
        description="What sends a class of requests back to one arm, if other arms give it worse answers.",
    )
    observations: Observations = Observations()
    sticky: Sticky = Field(
        default="tools",
        description=(
            "Which requests form a conversation. Later turns of a conversation use the arm of its first "
            "turn. `off`: Armwise draws an arm for every request. `tools`: requests with tools form a "
            "conversation if they have the same `agent.episode_id`, or if the agent names the same session. "
            "`episode`: all requests with the same `agent.episode_id` do. `session`: all requests do that "
            "have the same `agent.episode_id`, or name the same session or `prompt_cache_key`."
        ),
    )
    steps: tuple[StepSpec, ...] = Field(
        default=(),
        max_length=20,
        description=(
            "Your own steps of a turn, such as a rule about which arms may be drawn. Armwise runs them in "
            "this order, after the built-in steps except `health`."
        ),
    )
    drift: DriftSpec | None = Field(
        default=DriftSpec(),
        description="What Armwise does when it detects drift.",
    )
    gate: GateSpec = GateSpec()
    warm_start: WarmStartSpec | None = Field(
        default=None,
        description=(
            "How labels train a candidate policy, and what promotes it. A label says how well an arm "
            "answers a question."
        ),
    )
    tap: Tap | None = Field(
        default=None,
        description=(
            "How the policy watches or shares the decisions that another system sends to `POST "
            "/v1/observations`."
        ),
    )

    digest: DigestSpec | None = Field(
        default=None, description="A report that Armwise sends by itself, for example each week to Slack."
    )

    home: LocalName = Field(
        default="~/.armwise",
        validate_default=True,
        description=(
            "Folder for corpora, indexes and the SQLite log. The environment variable ARMWISE_HOME "
            "overrides it."
        ),
    )
    log_url: Annotated[str, InFolder(locate_url)] | None = Field(
        default=None,
        description=(
            "Address of the log: `sqlite:////path/log.db`, or `postgresql://user@host/name` for PostgreSQL "
            "15 or later. Put PostgreSQL's password in the file that PGPASSFILE names. Null means an SQLite "
            "file in `home`."
        ),
    )
    log_away: Literal["refuse", "answer"] = Field(
        default="refuse",
        description=(
            "What happens to questions while the log cannot be written. `refuse`: the service answers 503 "
            "and reports that it is not ready. `answer`: the `fallback` arm answers. Armwise then logs and "
            "learns nothing, and the reply says so."
        ),
    )
    keys: tuple[Key, ...] = Field(
        default=(),
        description=(
            "API keys from environment variables, in addition to keys made with `armwise key create`. "
            "Without any key, anyone who can reach the service can use it."
        ),
    )
    open: bool = Field(
        default=False,
        description=(
            "Whether a service without API keys may listen on an address that other machines can reach."
        ),
    )
    privacy: Privacy = Privacy()
    hosts: tuple[str, ...] = Field(
        default=(),
        description=(
            "Names that clients use to reach the service, such as `api.example.com` or `*.example.com`. "
            "`*` accepts any name. `localhost` and IP addresses are always accepted. Pages from these "
            "hosts and from this machine may also send requests from a browser."
        ),
    )
    corpus: CorpusSpec = Field(
        default=CorpusSpec(), description="The corpus to search. If you have several, use `corpora` instead."
    )
    corpora: dict[str, SourceSpec] = Field(
        default_factory=dict,
        description=(
            "Several corpora by name, instead of `corpus`. Each arm names the corpus that it searches. The "
            "id of a passage is then `corpus/id`."
        ),
    )
    backbones: dict[str, Backbone] = Field(
        default_factory=dict,
        description=("Sentence encoders by name. They turn questions and passages into vectors."),
    )
    pipelines: tuple[writing.PipelineGrid, ...] = Field(
        default=(),
        description=(
            "Generates arms in bulk: one copy of each listed arm for every combination of model, prompt, "
            "number of passages and reasoning effort."
        ),
    )
    portfolio: str | None = Field(
        default=None,
        description=(
            "File written by `armwise lab portfolio`. The service adds its arms and backbones to yours."
        ),
    )
    llm: LlmSpec = Field(description="Language model that writes answers. `engine` says how it runs.")
    llms: dict[str, LlmSpec] = Field(
        default_factory=dict,
        description=("Further language models by name. An arm selects one with `answering.llm`."),
    )
    prompts: dict[str, writing.PromptSpec] = Field(
        default_factory=dict,
        description="Your own instructions by name, for `answering.prompt`.",
    )
    aliases: dict[ModelName, str] = Field(
        default={"claude-*": "auto", "anthropic/claude-*": "auto"},
        max_length=1000,
        description=(
            "What the `model` names that clients send mean, such as `gpt-4o: auto`. Map a name to `auto`, "
            "`auto:cheap`, `auto:best` or `arm/<name>`, or to a language model. With a language model, the "
            "policy chooses only among the arms that use it. A name may end in `*`. If several names match, "
            "an exact name wins, and then the longest one. Your aliases replace the default ones."
        ),
    )
    limits: Limits = Limits()
    chat: ChatPage = ChatPage()
    retrieval_cache: RetrievalCacheSpec = RetrievalCacheSpec()
    http: Http = Http()
    telemetry: TelemetrySpec = TelemetrySpec()

    _file_home: str | None = PrivateAttr(default=None)  # where the file names one
    _first: dict[str, str] = PrivateAttr(default_factory=dict)  # who answers first, by checked arm

    @classmethod
    def from_document(cls, document: object, folder: Path | None = None) -> "AppConfig":
        """Validate a document that names no portfolio.

        Args:
            document: The settings.
            folder: The folder that relative paths are relative to; None: the paths are absolute already.

        Raises:
            ConfigError: They are invalid.
        """
        try:
            return cls.model_validate(document, context={FOLDER: folder})
        except ValidationError as error:
            raise ConfigError("\n".join(lines(error, cls))) from None

    @model_validator(mode="after")
    def _limit_answers(self) -> "AppConfig":
        """Keep to the limit of requests where no length of answers is named."""
        most, answering = self.limits.completion_tokens, self.answering
        if "max_tokens" not in answering.model_fields_set and answering.max_tokens > most:
            object.__setattr__(self, "answering", answering.model_copy(update={"max_tokens": most}))
        return self

    @model_validator(mode="after")
    def _expand_pipelines(self) -> "AppConfig":
        """Add the arms of the grids to the others, once: what is stored and sent on has arms alone."""
        empty = {name for name, spec in self.arms.items() if spec.kind == "none"}
        arms = dict(self.arms)
        for grid in self.pipelines:
            for name, retrieval, answering in grid.members(empty):
                if retrieval not in self.arms:
                    hint = did_you_mean(retrieval, self.arms)
                    raise ValueError(f"pipelines: unknown arm {retrieval!r}{hint}")
                if name in arms:
                    raise ValueError(f"pipelines: {name!r} is an arm already")
                update = {"action": True, "answering": answering}
                arms[name] = self.arms[retrieval].model_copy(update=update)
        object.__setattr__(self, "arms", arms)
        object.__setattr__(self, "pipelines", ())
        return self

    @model_validator(mode="after")
    def _check_arms(self) -> "AppConfig":
        for name in (*self.arms, *self.backbones):
            check_name(name)
        self._check_corpora()
        graph = ArmGraph(self.arms)
        graph.validate(self.backbones, (*self.corpora,))
        self._check_cache(graph)
        self._check_checked(graph)
        self._check_writing()
        names = list(self.actions)
        if not names:
            raise ValueError("no arm is an action: nothing could be chosen")
        build_policy(self.policy, names)
        if self.warm_start is not None and self.warm_start.policy is not None:
            build_policy(self.warm_start.policy, names)
        for name, spec in (("embedding", self.features.embedding), ("similarity", self.features.similarity)):
            backbone = None if spec is None else spec.backbone
            if backbone is not None and backbone not in self.backbones:
                hint = did_you_mean(backbone, self.backbones)
                raise ValueError(f"features.{name}.backbone {backbone!r} is not declared{hint}")
        kinds = {spec.kind == ExternalArm.kind for spec in self.actions.values()}
        if len(kinds) > 1:
            some = next(name for name, spec in self.actions.items() if spec.kind == ExternalArm.kind)
            raise ValueError(
                f"arm {some!r} is external, so its caller carries it out: it can only be combined with "
                "external arms"
            )
        if self.tap is not None:
            self.tap.check(names)
        if self.floor is not None and len(names) > 1 and self.floor * len(names) >= 1:
            raise ValueError(
                f"floor {self.floor} is too large for {len(names)} arms and leaves the policy nothing: below "
                f"{1 / len(names):.4g}, or `exploration`, a share that all arms have together"
            )
        return self

    @model_validator(mode="after")
    def _check_named_arms(self) -> "AppConfig":
        named = [("fallback", self.fallback), ("baseline", self.baseline)]
        named += [("guard.reference", self.guard.reference)] if self.guard is not None else []
        named += [("limits.arm_caps:", arm) for arm in self.limits.arm_caps]
        for setting, arm in named:
            if arm is not None and arm not in self.actions:
                raise ValueError(f"{setting} {arm!r} is not an arm{did_you_mean(arm, self.actions)}")
        return self

    @model_validator(mode="after")
    def _pass_baseline(self) -> "AppConfig":
        """Give the baseline to the policies that keep to one."""
        if self.baseline is not None:
            object.__setattr__(self, "policy", self.policy.with_default("baseline", self.baseline))
            if (plan := self.warm_start) is not None and plan.policy is not None:
                policy = plan.policy.with_default("baseline", self.baseline)
                object.__setattr__(self, "warm_start", plan.model_copy(update={"policy": policy}))
        return self

    @model_validator(mode="after")
    def _check_log_away(self) -> "AppConfig":
        if self.log_away == "answer" and self.fallback is None:
            raise ValueError(
                "log_away: answer needs `fallback`, the arm that answers while the log is away: one of "
                f"{', '.join(self.actions)}"
            )
        return self

    def _check_corpora(self) -> None:
        """Check that `corpus` and `corpora` exclude each other, and folders differ. Raises ValueError."""
        if self.corpora and self.corpus != CorpusSpec():
            raise ValueError(
                f"corpus {self.corpus.name!r} cannot be combined with `corpora`: make it one of them"
            )
        folders: dict[str, str] = {}
        for name in self.corpora:
            try:
                check_name(name)
            except ValueError as error:
                raise ValueError(f"corpora: {error}") from None
            if (other := folders.setdefault(name.lower(), name)) != name:
                raise ValueError(f"corpora: {other!r} and {name!r} would be one folder on some machines")

    def _check_cache(self, graph: ArmGraph) -> None:
        """Check that cached arms are deterministic, and that their changes are visible. Raises ValueError."""
        for name in (name for name, spec in self.arms.items() if spec.cache):
            if part := graph.random_part(name):
                member = "" if part == name else f": its member {part!r} does"
                raise ValueError(f"arm {name!r} cannot have a cache, as it may find others each time{member}")
            if self.retrieval_cache.ttl_s is None and not graph.is_versioned(name):
                raise ValueError(
                    f"arm {name!r} can have a cache only with `retrieval_cache.ttl_s`: what it searches "
                    "has no version"
                )

    def _check_checked(self, graph: ArmGraph) -> None:
        """Find out who answers first where answers are checked. Raises ValueError."""
        for name, spec in self.arms.items():
            if (checked := graph.find_checks(name)) is None:
                continue
            if spec.answering != writing.WritingSpec():
                raise ValueError(
                    f"arm {name!r}: remove its answering: its answers are written by the settings of "
                    f"{checked.first!r} and {checked.then!r}"
                )
            if (llm := checked.check.llm) is not None and llm not in self.models:
                raise ValueError(
                    f"arm {name!r}: the judge {llm!r} is not declared{did_you_mean(llm, self.models)}"
                )
            self._first[name] = checked.first

    def _check_writing(self) -> None:
        """Check the language models and prompts that `answering` names, and its limits. Raises ValueError."""
        for kind, names in (("llms", self.llms), ("prompts", self.prompts)):
            for name in names:
                if name in TAKEN_NAMES:
                    raise ValueError(f"{kind}: {name!r} has a meaning already; choose another name")
                try:
                    check_name(name)
                except ValueError as error:
                    raise ValueError(f"{kind}: {error}") from None
        for arm in ("", *self.arms):
            place = f"arm {arm!r}: answering" if arm else "answering"
            answering = self.find_answering(arm) if arm else self.answering
            for key, declared in (("llm", self.models), ("prompt", self.templates)):
                if (value := getattr(answering, key)) not in declared:
                    raise ValueError(
                        f"{place}.{key} {value!r} is not declared{did_you_mean(value, declared)}"
                    )
            if answering.max_tokens > (limit := self.limits.completion_tokens):
                raise ValueError(
                    f"{place}.max_tokens {answering.max_tokens} is above limits.completion_tokens {limit}"
                )

    @model_validator(mode="after")
    def _check_aliases(self) -> "AppConfig":
        meanings = {"auto", *DIALS, *(f"arm/{name}" for name in self.arms), *self.models}
        for name, meaning in self.aliases.items():
            if name in ("auto", *DIALS) or name.startswith("arm/"):
                raise ValueError(f"aliases: {name!r} has a meaning already: choose another name")
            if "*" in name[:-1]:
                raise ValueError(f"aliases: {name!r} has a '*' before its last character")
            if meaning not in meanings:
                raise ValueError(
                    f"aliases.{name}: {meaning!r} is neither an arm nor a language model"
                    f"{did_you_mean(meaning, meanings)}"
                )
        return self

    @model_validator(mode="after")
    def _check_router(self) -> "AppConfig":
        if self.router is not None:
            self.router.check(self.backbones, self.actions, has_fit=self.features.similarity is not None)
        return self

    @model_validator(mode="after")
    def _price_tokens(self) -> "AppConfig":
        """Add the token prices of the language models to the reward, if it prices dollars."""
        if self.reward.cost.usd and self.reward.cost_weight:
            update = {"token_prices": self.token_prices | self.reward.token_prices}
            object.__setattr__(self, "reward", self.reward.model_copy(update=update))
        return self

    @model_validator(mode="after")
    def _check_prices(self) -> "AppConfig":
        """Check that the price of each model is known where the configuration counts dollars."""
        reason = ""
        if self.reward.usd_weight > 0.0:
            reason = "the reward weighs dollars (`reward.cost.usd`)"
        elif self.budget is not None and self.budget.unit == "usd":
            reason = "the budget is in dollars (`budget.usd_per_request`)"
        elif Signal.ESCALATION in self.reward.signals:
            reason = f"the metric {self.reward.signals[Signal.ESCALATION]!r} compares the prices of arms"
        if reason and (problem := self.describe_unpriced(reason)):
            raise ValueError(problem)
        return self

    @property
    def unpriced(self) -> str:
        """The models whose price is unknown, with their addresses; empty if there are none.

        With arms of another system there are none: callers report what those cost.
        """
        if self.external:
            return ""
        return " and ".join(
            f"model {spec.model!r} at {without_password(spec.address or spec.engine)} "
            f"(`{'llm' if name == writing.DEFAULT else f'llms.{name}'}`)"
            for name, spec in self.distinct_models.items()
            if isinstance(spec, llm_catalog.EndpointSpec) and not llm_catalog.is_priced(spec)
        )

    def describe_unpriced(self, reason: str) -> str:
        """Return that models have an unknown price, and what to do; empty if there are none.

        Args:
            reason: Why the price has to be known.
        """
        unpriced = self.unpriced
        return unpriced and f"no price is known for {unpriced}, and {reason}: {PRICE_REMEDY}"

    @model_validator(mode="after")
    def _check_warm_start(self) -> "AppConfig":
        if self.warm_start is not None:
            fits = self.features.similarity is not None
            self.warm_start.check(self.reward, self.backbones, has_fit=fits)
        return self

    @model_validator(mode="after")
    def _check_hosts(self) -> "AppConfig":
        for name, spec in self.arms.items():
            if spec.host in RESERVED_HOSTS or spec.host.startswith(("Embedder-", "Generator-")):
                raise ValueError(f"arm {name!r}: host {spec.host!r} is another deployment of the service")
        return self

    @model_validator(mode="after")
    def _check_reward(self) -> "AppConfig":
        if (least := self.limits.answer_s) >= self.reward.wait_s:
            raise ValueError(
                f"reward.wait_time {self.reward.wait_time} is shorter than a turn: up to {least:g} s"
            )
        if (metric := self.reward.signals.get(Signal.CHECK)) is not None:
            graph = ArmGraph(self.arms)
            checks = {
                repr(checked.check) for arm in self.actions if (checked := graph.find_checks(arm)) is not None
            }
            if len(checks) != 1:
                raise ValueError(
                    f"reward.metrics.{metric}: signal check is what one check says of all answers: arms of "
                    f"kind 'checked' with the same check were expected, and there are {len(checks)} checks"
                )
        if bool(self.observations.judge) != (Signal.GRADE in self.reward.signals):
            raise ValueError(
                f"observations.judge {self.observations.judge:g}: set it above 0 and declare a metric of the "
                "grades in reward.metrics, such as graded: {signal: grade, weight: 0.3}; or neither"
            )
        if not self.reward.metrics:
            raise ValueError("reward.metrics declares no metric: nothing could be learned")
        return self

    @property
    def automatic_canaries(self) -> bool:
        """Whether warm starts may begin canaries without an operator."""
        return self.warm_start is not None and self.warm_start.canary == "auto"

    @property
    def explores(self) -> Exploration:
        """What every eligible arm gets of the draws."""
        return Exploration(self.exploration, self.floor)

    @property
    def judging_gate(self) -> GateSpec:
        """Conditions of a judgement; with automatic canaries there are two, each with half the error."""
        if not self.automatic_canaries:
            return self.gate
        return self.gate.model_copy(update={"level": 1.0 - (1.0 - self.gate.level) / 2.0})

    @property
    def actions(self) -> dict[str, ArmSpec]:
        """The arms that a policy chooses among; the other arms are parts of these."""
        return {name: spec for name, spec in self.arms.items() if spec.action}

    def build_steps(self) -> list[TurnStep]:
        """Return the service's own steps. Raises ValueError if one cannot be built, or two have one name."""
        built = [spec.build() for spec in self.steps]
        names = [step.name for step in built]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"steps: two have the name {', '.join(sorted(twice))}; each needs its own")
        return built

    @property
    def external(self) -> bool:
        """Whether the arms belong to another system, and callers carry decisions out."""
        return all(spec.kind == ExternalArm.kind for spec in self.actions.values())

    @property
    def models(self) -> dict[str, LlmSpec]:
        """Every language model by name, `llm` first."""
        return {writing.DEFAULT: self.llm, **self.llms}

    @property
    def distinct_models(self) -> dict[str, LlmSpec]:
        """The language models, each once: `llm` is left out if it has a name in `llms` as well."""
        return dict(self.llms) if self.llm in self.llms.values() else self.models

    @property
    def counts_cost(self) -> bool:
        """Whether cost counts in the reward, so that a request may ask for cheaper or better answers."""
        return self.reward.cost_weight > 0.0 and any(price for _, price in self.reward.cost)

    @property
    def prices_caches(self) -> bool:
        """Whether draws count what engines lack in their caches."""
        return self.reward.usd_weight > 0.0 and any(
            llm_catalog.find_prices(spec).usd_per_kilotoken_cached is not None
            for spec in self.models.values()
        )

    @property
    def token_prices(self) -> dict[str, tuple[float, ...]]:
        """Configured token prices of the language models, as for `usd_today`; empty if all are 0.

        A model with a price of the list is left out: its answers count with what they cost, which depends on
        more than these numbers.
        """
        own = {
            name: spec.own_prices
            if isinstance(spec, llm_catalog.EndpointSpec)
            else llm_catalog.find_prices(spec)
            for name, spec in self.models.items()
        }
        prices = {name: given.per_kilotoken for name, given in own.items() if given is not None}
        return prices if any(map(any, prices.values())) else {}

    def find_alias(self, name: str) -> str | None:
        """Return what the name of a model means by `aliases`; None if it is no alias.

        `auto`, `auto:cheap`, `auto:best` and `arm/<name>` always mean themselves.
        """
        if name in ("", "auto", *DIALS) or name.startswith("arm/"):
            return None
        if name in self.aliases:
            return self.aliases[name]
        beginnings = [alias for alias in self.aliases if alias[-1] == "*" and name.startswith(alias[:-1])]
        return self.aliases[max(beginnings, key=len)] if beginnings else None

    def find_answering(self, arm: str) -> writing.Answering:
        """Return how the answers of an arm are written, at first where they are checked.

        For an arm that was removed these are the defaults.
        """
        arm = self._first.get(arm, arm)
        if arm not in self.arms:
            return self.answering
        spec = self.arms[arm]
        return self.answering.over(spec.answering).adapt(searches=spec.kind != "none")

    @property
    def templates(self) -> dict[str, llm_prompts.Template]:
        """Every prompt by name."""
        return {**TEMPLATES, **{name: prompt.template for name, prompt in self.prompts.items()}}

    @property
    def chats(self) -> int:
        """Most concurrent answers of language models in a replica."""
        models = self.models.values()
        if self.limits.chats is None and all(isinstance(m, llm_catalog.EmbeddedSpec) for m in models):
            return llm_catalog.SLOTS * len(models)
        return self.limits.chats or self.limits.in_flight

    @property
    def home_path(self) -> Path:
        """The folder of all data, absolute."""
        return Path(os.environ.get("ARMWISE_HOME") or self.home).expanduser().absolute()

    @property
    def overridden_home(self) -> Path | None:
        """The home of the configuration file, if ARMWISE_HOME overrides it."""
        named = self._file_home and Path(self._file_home)
        return named if named and named != self.home_path else None

    @property
    def database_url(self) -> str:
        """The URL of the log."""
        return self.log_url or f"sqlite:///{self.home_path / 'log.db'}"

    @property
    def corpus_sources(self) -> tuple[CorpusSource, ...]:
        """The source of the passages of each corpus, and its folder; none where nothing reads documents."""
        folder = self.home_path / "corpora"
        if not self.reads_documents:
            return ()
        if not self.corpora:
            only = self.corpus
            return (CorpusSource(only.source, folder / only.name, chunking=only.chunking),)
        return tuple(
            CorpusSource(spec.source, folder / name, name, spec.chunking)
            for name, spec in self.corpora.items()
        )

    @property
    def reads_documents(self) -> bool:
        """Whether a corpus is named, an arm may search one, or a warm start makes questions from one."""
        graph = ArmGraph(self.arms)
        searched = any(graph.may_search_corpus(name) for name in self.arms)
        sources = () if self.warm_start is None else self.warm_start.sources.values()
        made = any(isinstance(source, SyntheticSource) for source in sources)
        return searched or made or bool(self.corpora) or self.corpus != CorpusSpec()

    @property
    def corpus_names(self) -> tuple[str, ...]:
        """The names of the corpora, at least one."""
        return (*self.corpora,) or (self.corpus.name,)

    def searching(self, corpus: str) -> frozenset[str] | None:
        """Return the arms that search only this corpus; None: all arms, since there is a single corpus."""
        if len(self.corpus_names) == 1:
            return None
        graph = ArmGraph(self.arms)
        return frozenset(name for name in self.actions if graph.corpora(name) == frozenset({corpus}))

    def locate_passage(self, passage_id: str) -> tuple[str, str]:
        """Return the corpus of a passage, `""` for a source outside `corpora`, and its id there."""
        if not self.corpora:
            return self.corpus.name, passage_id
        name, slash, local_id = passage_id.partition("/")
        return (name, local_id) if slash and name in self.corpora else ("", passage_id)

    @property
    def indexes_path(self) -> Path:
        """The folder of all indexes."""
        return self.home_path / "indexes"

    @property
    def log_path(self) -> Path | None:
        """The file of an SQLite log; None: the log is on a server."""
        scheme, _, path = self.database_url.partition(":///")
        return Path(path) if scheme.partition("+")[0] == "sqlite" else None

    @property
    def arm_documents(self) -> dict[str, dict[str, Any]]:
        """The arms as JSON, without defaults."""
        return {name: arm.model_dump(mode="json", exclude_defaults=True) for name, arm in self.arms.items()}

    def with_arms(self, names: Collection[str]) -> "AppConfig":
        """Return the configuration in which a policy chooses among these of its arms, with their caps.

        Raises:
            ConfigError: One is not declared, or they do not fit the rest.
        """
        for name in names:
            if name not in self.arms:
                raise ConfigError(
                    f"arm {name!r} is not in the configuration: declare it under `arms`, then restart the "
                    f"service{did_you_mean(name, self.arms)}"
                )
        if {*names} == self.actions.keys():
            return self
        document = self.model_dump(mode="json")
        arms = {name: {**arm, "action": name in names} for name, arm in document["arms"].items()}
        caps = {name: cap for name, cap in self.limits.arm_caps.items() if name in names}
        return self.from_document(
            {**document, "arms": arms, "limits": {**document["limits"], "arm_caps": caps}}
        )

    def resolve_places(self) -> "AppConfig":
        """Return the configuration with the home and the log of this machine and environment filled in."""
        return self.model_copy(update={"home": str(self.home_path), "log_url": self.database_url})

"""Sections of the configuration: keys, corpus, limits, answers, observations."""

from collections.abc import Collection
from importlib import import_module
from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from armwise.agent.turn import BUILT_IN, TurnStep
from armwise.arms.base import NAME, check_name
from armwise.arms.corpus import Chunking
from armwise.arms.places import name_corpus
from armwise.arms.relative_paths import LocalSource
from armwise.arms.retrievers import WAITING
from armwise.arms.suggestions import did_you_mean
from armwise.number import Number

Scope = Literal["chat", "decide", "feedback", "read", "operate", "admin"]

Source = Literal["user", "judge", "operator"]

Group = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,128}$")]

Project = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")]


class KeyBase(BaseModel):
    """What every key has, whether it is configured or a row of the log."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scopes: tuple[Scope, ...] = Field(
        default=("decide", "feedback"),
        min_length=1,
        description=(
            "What the key may do. `chat`: ask questions on the chat page and rate the answers. `decide`: "
            "send requests, and read their decisions, the arms and the policy. `feedback`: send feedback. "
            "`read`: read decisions, arms, versions, evaluations and warm starts. `operate`: do all that "
            "`read` allows, and switch arms, promote versions, evaluate and warm-start. `admin`: do "
            "everything in all projects, make keys and export."
        ),
    )
    project: Project = Field(
        default="default",
        description="Project that owns the decisions, episodes and feedback of this key.",
    )
    source: Source = Field(
        default="user",
        description=("Who gives the feedback sent with this key. Each feedback item stores this value."),
    )
    groups: tuple[Group, ...] = Field(
        default=(),
        max_length=256,
        description=(
            "Groups that the callers belong to. Callers see a passage if its `allowed_groups` names one of "
            "these groups, or if the passage lacks that field."
        ),
    )

    @model_validator(mode="after")
    def _check_project(self) -> "KeyBase":
        if "admin" in self.scopes and self.project != "default":
            raise ValueError(f"scope 'admin' is for all projects: it cannot be limited to {self.project!r}")
        return self

    @model_validator(mode="after")
    def _check_public(self) -> "KeyBase":
        if "chat" in self.scopes and self.scopes != ("chat",):
            raise ValueError("everybody can read a key of scope 'chat' in a page: give it no other scope")
        return self


class Key(KeyBase):
    """An API key in an environment variable; `armwise key create` makes keys that the log stores instead."""

    env: str = Field(min_length=1, description="Environment variable of the service that holds the key.")

    @model_validator(mode="after")
    def _check_budget(self) -> "Key":
        if "chat" in self.scopes:
            raise ValueError(
                "a key of scope 'chat' needs a budget, which keys of the configuration do not have: run "
                "`armwise key create --name site --scope chat --token-budget 200000 --budget-duration 1d`"
            )
        return self


class CorpusSpec(BaseModel):
    """Where the passages come from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, AfterValidator(check_name)] = Field(
        default="stdlib",
        pattern=f"^{NAME.pattern}$",
        description="Name of the corpus folder in `home`.",
    )
    source: LocalSource = Field(
        default="stdlib",
        description=(
            "What to read: a JSONL file, a BEIR folder, a document or a folder of documents. `stdlib` "
            "means the standard library of the running Python, and `language` means its language "
            "reference."
        ),
    )
    chunking: Chunking = Field(
        default=Chunking(),
        description=(
            "How documents are cut into passages. Each line of a JSONL file stays one passage. If you change "
            "this setting, Armwise reads the corpus again and rebuilds its indexes."
        ),
    )

    @classmethod
    def from_source(cls, source: str, name: str | None = None) -> "CorpusSpec":
        """Return the corpus of a source, named after it where no name is given."""
        return cls(name=name or name_corpus(source), source=source)


class SourceSpec(BaseModel):
    """One of several corpora."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: LocalSource = Field(description="Documents to read, as in `corpus.source`.")
    chunking: Chunking = Field(
        default=Chunking(), description=("How documents are cut, as in `corpus.chunking`.")
    )


class Limits(BaseModel):
    """Limits on requests, arms and the language model. A full replica answers 503 and draws no arm."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    in_flight: int = Field(
        default=64,
        ge=1,
        description="Maximum concurrent requests per replica.",
    )
    chats: int | None = Field(
        default=None,
        ge=1,
        description=(
            "Maximum answers that the language model generates at once for a replica. Up to 8 more requests "
            "wait for 10 seconds, and others get 503. Null means 4 for each embedded model, and `in_flight` "
            "for others."
        ),
    )
    question_chars: int = Field(default=8000, ge=1, description="Maximum characters in a question.")
    body_bytes: int = Field(
        default=16 << 20, ge=1024, description="Maximum bytes in a request body, unpacked."
    )
    arm_timeout_s: Number = Field(
        default=10.0,
        gt=0,
        description=(
            "Maximum seconds that an arm may take. If it searches another service, Armwise waits for four "
            "fifths of this time, retries included."
        ),
    )
    arm_caps: dict[str, PositiveInt] = Field(
        default_factory=dict,
        description="Maximum concurrent searches per replica, by arm. An arm at its cap is not drawn.",
    )
    llm_timeout_s: Number = Field(
        default=120.0, gt=0, description="Maximum seconds that the language model may take."
    )
    completion_tokens: int = Field(
        default=128_000, ge=1, description="Maximum `max_tokens` that a request may ask for."
    )

    @property
    def search_s(self) -> float:
        """Most seconds that a search waits for another service, a part of the time of an arm."""
        return WAITING * self.arm_timeout_s

    @property
    def answer_s(self) -> float:
        """Most seconds from the draw of an arm to its answer: the arm, its fallback, the language model.

        Embeddings and searches before the draw, and commits, are not included.
        """
        return 2 * self.arm_timeout_s + self.llm_timeout_s


class RetrievalCacheSpec(BaseModel):
    """Cache of the passages that arms with `cache: true` found. All replicas on a machine share one file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ttl_s: Number | None = Field(
        default=None,
        gt=0,
        description=(
            "Seconds after which an entry expires. Null keeps an entry until the index changes. Arms without "
            "an index version, such as `remote` and `mcp`, need a value here."
        ),
    )


class Http(BaseModel):
    """Limits on the connections of HTTP clients. Ray Serve's own proxy has others."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    connections: int = Field(default=4096, ge=64, description="Maximum open connections, over all clients.")
    connections_per_address: int = Field(
        default=1024,
        ge=1,
        description=(
            "Maximum open connections from one client address or one IPv6 /64 network. To make room for a "
            "new connection, the service closes the one that has waited longest without a request."
        ),
    )
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = Field(
        default=(),
        description=(
            "Addresses or networks of the proxies in front of the service, such as `10.0.0.7` or "
            "`10.0.0.0/24`. The service reads the client's address from their X-Forwarded-For header."
        ),
    )
    request_s: Number = Field(
        default=10.0,
        gt=0,
        description=("Seconds in which a request's header must arrive. A slower client gets status 408."),
    )
    idle_s: Number = Field(
        default=20.0,
        gt=0,
        description="Seconds that a connection stays open between two requests.",
    )

    @field_validator("trusted_proxies")
    @classmethod
    def _some_networks(
        cls, networks: tuple[IPv4Network | IPv6Network, ...]
    ) -> tuple[IPv4Network | IPv6Network, ...]:
        for network in networks:
            if network.prefixlen == 0:
                raise ValueError(f"{network} holds every client: name the addresses of the proxies")
        return networks


class ChatPage(BaseModel):
    """The chat page, `/chat`: which sites may show it, and how many questions it accepts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    origins: tuple[Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.*:\[\]-]{1,255}$")], ...] = Field(
        default=(),
        max_length=100,
        description=(
            "Sites that may show the chat page in a frame, such as `https://www.example.com`. If the list "
            "is empty, any site may. If the service has no keys either, only pages from this machine may."
        ),
    )
    questions_per_minute: int = Field(
        default=10,
        ge=1,
        description=(
            "Maximum questions per minute from the same address or IPv6 /64 network. It applies to `chat` "
            "keys, and each replica counts separately."
        ),
    )
    dial: bool = Field(
        default=False,
        description="Whether visitors may ask for cheaper or better answers (`auto:cheap`, `auto:best`).",
    )


Sticky = Annotated[
    Literal["off", "tools", "episode", "session"],
    BeforeValidator(lambda given: "off" if given in (None, False) else given),
    WithJsonSchema({"enum": ["off", "tools", "episode", "session", False]}),
]
"""What a conversation is, whose turns keep the arm of the first one; YAML reads `off` as false."""


class StepSpec(BaseModel):
    """A step of your own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str = Field(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="Class that extends `TurnStep`, written as `module:Class`.",
    )
    params: dict[str, Any] = Field(default={}, description="Arguments of its `__init__`.")

    def build(self) -> TurnStep:
        """Import the class, and build the step.

        Raises:
            ValueError: The class cannot be imported, is not a step, or refuses its parameters.
        """
        module, _, name = self.kind.partition(":")
        try:
            kind = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"steps: {self.kind!r} cannot be imported: {error}") from None
        if not (isinstance(kind, type) and issubclass(kind, TurnStep)):
            raise ValueError(f"steps: {self.kind!r} is not a subclass of TurnStep")  # noqa: TRY004 - of a file
        if getattr(kind, "name", None) is None or kind.name in BUILT_IN:
            expected = f"a name of its own, other than {', '.join(BUILT_IN)}"
            raise ValueError(f"steps: {self.kind!r} needs the attribute `name`: {expected}")
        try:
            return kind(**self.params)
        except (TypeError, ValueError) as error:
            raise ValueError(f"steps: {self.kind!r} cannot be built: {error}") from None


class Observations(BaseModel):
    """Evidence in addition to feedback: other arms' answers and a model's grades. You pay for the tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shadow: Number = Field(
        default=0.0,
        ge=0,
        le=1,
        description=(
            "Share of the answered questions that another arm, drawn uniformly, answers too. The language "
            "model then compares both answers."
        ),
    )
    judge: Number = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the answers that the language model grades, for the signal `grade`.",
    )
    tokens_per_hour: int | None = Field(
        default=200_000,
        ge=1,
        description=(
            "Tokens that a replica may spend on observations per hour. It then pauses them until the hour "
            "ends."
        ),
    )
    usd_per_hour: Number | None = Field(
        default=1.0,
        gt=0,
        description=(
            "Dollars that a replica may spend on observations per hour. It then pauses them until the hour "
            "ends."
        ),
    )


class Tap(BaseModel):
    """Decisions that another system makes: first observed, then shared, then made by Armwise."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    share: Number = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description=(
            "Share of these decisions that the policy makes. At 0, Armwise only observes and returns the "
            "caller's choice. A small share such as 0.05 is a canary."
        ),
    )
    incumbent: str | None = Field(
        default=None,
        description=(
            "Arm that counts as the caller's choice if a request names none. If null, each request must name "
            "its choice while `share` is below 1."
        ),
    )
    names: dict[Annotated[str, Field(min_length=1, max_length=256)], str] = Field(
        default_factory=dict,
        max_length=1000,
        description=(
            "Other names for arms that observations may use, such as `openai/gpt-4o: large`. The name `*` "
            "stands for every other unknown name. Without it, Armwise refuses unknown names."
        ),
    )

    @property
    def asks_caller(self) -> bool:
        """Whether the caller's choice counts in a part of the decisions."""
        return self.share < 1.0

    def map_arm(self, name: str) -> str:
        """Return the arm that a name is mapped to, by default the name itself.

        >>> Tap(names={"openai/gpt-4o": "large"}).map_arm("openai/gpt-4o"), Tap().map_arm("small")
        ('large', 'small')
        """
        return self.names.get(name, name)

    def check(self, arms: Collection[str]) -> None:
        """Check that the named arms are live. Raises ValueError."""
        named = {} if self.incumbent is None else {"incumbent": self.incumbent}
        for key, arm in {**named, **{f"names.{name}": arm for name, arm in self.names.items()}}.items():
            if arm not in arms:
                raise ValueError(f"tap.{key}: {arm!r} is not an arm{did_you_mean(arm, arms)}")

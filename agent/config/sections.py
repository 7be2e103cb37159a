"""Sections of the configuration: keys, corpus, limits, answers, observations."""

from collections.abc import Collection
from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Literal, Self

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

from armwise.arms.base import NAME, checked_name
from armwise.arms.corpus import Chunking
from armwise.arms.places import name_corpus
from armwise.arms.relative_paths import LocalSource
from armwise.arms.suggestions import did_you_mean
from armwise.feedback.training_log import observed
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
        description="`chat` asks on the chat page and rates the answer, and nothing else; "
        "`decide` sends requests, and reads their decisions, the arms and the policy; `feedback` "
        "sends feedback; `read` reads decisions, arms, versions, evaluations and warm starts; `operate` "
        "reads these, too, switches arms and chooses the live ones, promotes versions, evaluates and "
        "warm-starts; `admin` does all of it, in all projects, makes keys and exports.",
    )
    project: Project = Field(
        default="default",
        description="Owner of the decisions, episodes and feedback that the key makes and reads.",
    )
    source: Source = Field(
        default="user", description="Who judges in the feedback of this key; stored with each item."
    )
    groups: tuple[Group, ...] = Field(
        default=(),
        max_length=256,
        description="Groups of the callers: they see passages with one of these in `allowed_groups`, and "
        "passages without that field.",
    )

    @model_validator(mode="after")
    def _check_project(self) -> "KeyBase":
        if "admin" in self.scopes and self.project != "default":
            raise ValueError(f"scope 'admin' is for all projects: it cannot be of {self.project!r} alone")
        return self

    @model_validator(mode="after")
    def _check_public(self) -> "KeyBase":
        if "chat" in self.scopes and self.scopes != ("chat",):
            raise ValueError("everybody can read a key of scope 'chat' in a page: give it no other scope")
        return self


class Key(KeyBase):
    """A key of callers that the environment holds; others are made with `armwise key create`."""

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

    name: Annotated[str, AfterValidator(checked_name)] = Field(
        default="stdlib",
        pattern=f"^{NAME.pattern}$",
        description="Name of the folder of the corpus under `home`.",
    )
    source: LocalSource = Field(
        default="stdlib",
        description="A JSONL file, a BEIR folder, a folder of documents, one of them, or what this "
        "interpreter has of its own: `stdlib`, its standard library, or `language`, its language reference.",
    )
    chunking: Chunking = Field(
        default=Chunking(),
        description="How texts are cut into passages; a line of JSONL stays as it is. If it changes, "
        "the corpus is read again, and its indexes are rebuilt.",
    )

    @classmethod
    def of(cls, source: str, name: str | None = None) -> "CorpusSpec":
        """Return the corpus of a source, named after it where no name is given."""
        return cls(name=name or name_corpus(source), source=source)


class SourceSpec(BaseModel):
    """One of several corpora."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: LocalSource = Field(description="As that of `corpus`.")
    chunking: Chunking = Field(default=Chunking(), description="As that of `corpus`.")


class Limits(BaseModel):
    """Limits of requests, arms and the language model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    in_flight: int = Field(
        default=64, ge=1, description="Most concurrent requests of a replica; more get 503 before the draw."
    )
    chats: int | None = Field(
        default=None,
        ge=1,
        description="Most answers that the language model writes at once in a replica; null is the slots "
        "of an embedded model, and `in_flight` for other engines.",
    )
    chat_queue: int = Field(
        default=8,
        ge=0,
        description="Most requests that wait for one of the `chats`; more get 503 before the draw.",
    )
    chat_queue_s: Number = Field(
        default=10.0, gt=0, description="Most seconds that a request waits for one of the `chats`; then 503."
    )
    question_chars: int = Field(default=8000, ge=1, description="Most characters of a question.")
    body_bytes: int = Field(default=16 << 20, ge=1024, description="Most bytes of a request body.")
    passages: int = Field(default=50, ge=1, description="Largest k that a request may ask for.")
    arm_timeout_s: Number = Field(default=10.0, gt=0, description="Most seconds that an arm may take.")
    arm_caps: dict[str, PositiveInt] = Field(
        default_factory=dict,
        description="Most concurrent searches by arm, in one replica. An arm at its cap is not drawn; "
        "where all arms are at their caps the response is 503.",
    )
    llm_timeout_s: Number = Field(
        default=120.0, gt=0, description="Most seconds that the language model may take."
    )
    completion_tokens: int = Field(
        default=128_000, ge=1, description="Largest max_tokens that a request may ask for."
    )

    @property
    def answer_s(self) -> float:
        """Most seconds from the draw of an arm to its answer: the arm, its fallback, the language model.

        Embeddings and searches before the draw, and commits, are not included.
        """
        return 2 * self.arm_timeout_s + self.llm_timeout_s


class RetrievalCacheSpec(BaseModel):
    """Cache of the passages that arms with `cache` found: on each machine, one file for its replicas."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size_mib: int = Field(
        default=256,
        ge=1,
        le=1 << 20,
        description="Mebibytes of the file; the entries that were used longest ago are removed first.",
    )
    ttl_s: Number | None = Field(
        default=None,
        gt=0,
        description="Seconds after which an entry expires; null keeps it while the version of the index is "
        "the same. Required for arms whose index has no version, such as `remote` and `mcp`.",
    )


class Http(BaseModel):
    """Limits of the HTTP proxy that `armwise serve` runs in front of the replicas."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    connections: int = Field(default=4096, ge=64, description="Most open connections of all clients.")
    connections_per_address: int = Field(
        default=1024,
        ge=1,
        description="Most open connections of one client address, or of one /64 of IPv6; more are closed. "
        "An address never holds more connections than are free. Half of all connections are for addresses "
        "from which a key was accepted within an hour; one of the others holds at most a quarter of what is "
        "free of the rest.",
    )
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = Field(
        default=(),
        description="Networks of the proxies in front of the service, such as `10.0.0.7` or `10.0.0.0/24`. "
        "The address of a client, to which limits apply, is read from the X-Forwarded-For that these "
        "proxies send.",
    )
    proxy_protocol: bool = Field(
        default=False,
        description="Whether every connection of `trusted_proxies` begins with the header of the PROXY "
        "protocol, version 1 or 2, as proxies send that forward TCP.",
    )
    request_s: Number = Field(
        default=10.0,
        gt=0,
        description="Seconds in which the header, and then up to 64 KiB of the body, must have arrived; a "
        "slower client gets 408.",
    )
    idle_s: Number = Field(
        default=20.0,
        gt=0,
        description="Seconds that a connection stays open between two requests. Only connections on which "
        "a key was accepted are kept open; others are closed after their first response.",
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

    @model_validator(mode="after")
    def _sent_by_proxies(self) -> Self:
        if self.proxy_protocol and not self.trusted_proxies:
            raise ValueError("proxy_protocol needs trusted_proxies: the addresses that send its header")
        return self


class ChatPage(BaseModel):
    """The chat page, `/chat`, and who may show it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    origins: tuple[Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.*:\[\]-]{1,255}$")], ...] = Field(
        default=(),
        max_length=100,
        description="Sites whose pages may show the chat page in a frame, such as `https://www.example.com`; "
        "browsers refuse all others. Empty for any site or, in a service without keys, for this machine "
        "alone.",
    )
    questions_per_minute: int = Field(
        default=10,
        ge=1,
        description="Most questions that one address may ask with a key of scope `chat` in a minute, in one "
        "replica. A network of IPv6 (/64) counts as one address.",
    )


Sticky = Annotated[
    Literal["off", "episode", "session"],
    BeforeValidator(lambda given: "off" if given in (None, False) else given),
    WithJsonSchema({"enum": ["off", "episode", "session", False]}),
]
"""What a conversation is, whose turns keep the arm of the first one; YAML reads `off` as false."""


class Observations(BaseModel):
    """Second answers and grades of answers already sent, as evidence besides feedback: the operator pays."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shadow: Number = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the answered questions that other arms answer too; the language model compares "
        "each answer with that of the user.",
    )
    arms: int = Field(
        default=1, ge=1, description="Number of other arms that answer such a question, drawn uniformly."
    )
    judge: Number = Field(
        default=0.0, ge=0, le=1, description="Share of the answers that the language model grades."
    )
    tokens_per_hour: int | None = Field(
        default=200_000,
        ge=1,
        description="Tokens after which nothing is observed for the rest of an hour, in one replica; null "
        "for no ceiling.",
    )
    usd_per_hour: Number | None = Field(
        default=1.0,
        gt=0,
        description="Dollars after which nothing is observed for the rest of an hour, in one replica; null "
        "for no ceiling.",
    )
    also: observed.Also | None = Field(
        default=None,
        description="What of these the policy learns besides feedback; null for feedback alone.",
    )


class Tap(BaseModel):
    """Decisions that another system makes: looked at, then shared, then made here."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    share: Number = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="Share of the policy in the decisions that a caller asks for beside its own choice: 0 "
        "only looks, and always returns that choice; 0.05 is a canary; at 1 the policy decides.",
    )
    incumbent: str | None = Field(
        default=None,
        description="Arm that counts as the caller's own choice where a request names none; null for none: "
        "then a request has to name it while `share` is below 1.",
    )
    names: dict[Annotated[str, Field(min_length=1, max_length=256)], str] = Field(
        default_factory=dict,
        max_length=1000,
        description="Arms by other names that observations have for them, such as `openai/gpt-4o: large`; "
        "`*` is every name that is neither here nor that of an arm. Without it such a name is refused.",
    )

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

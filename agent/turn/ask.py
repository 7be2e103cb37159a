"""The input of a turn: a request to decide, or the decision that another system has made."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from armwise.arms.filters import Comparison, Compound
from armwise.arms.llm import Message, Needs, Request


@dataclass(frozen=True, slots=True)
class RequestDocument:
    """What a request asks of the language model that answers it.

    Attributes:
        max_tokens: Longest answer in tokens; None: the arm's setting, as for the next two.
        temperature: Sampling temperature of the model.
        top_p: Nucleus sampling of the model.
        seed: Seed that the model samples with.
        stop: Strings that end the answer.
        options: Further parameters of the model, as in `armwise.arms.llm.Prompt`.
        request: The request of the client, which models at an address are sent.
        most_read: Most tokens of the request: its bytes, and those of the earlier answer that it continues;
            0 if its key has no limit.
        needs: What it needs of a model that not every model has.
        streams: Whether the client reads the answer as it is written.
        limited: Whether the caller's key has a limit of tokens or dollars, so that an answer needs one.
        writers: Language model that wrote the answer with each mark in the conversation, as far as known.
        headers: Headers of the client that a model at an address of the same protocol is sent.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    request: Request | None = None
    most_read: int = 0
    needs: Needs = field(default_factory=Needs)
    streams: bool = True
    limited: bool = False
    writers: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_tools(self) -> bool:
        """Whether the answer may call functions, as those to agents do."""
        return bool(self.options.get("tools"))

    @property
    def size(self) -> int:
        """Bytes that the request came in; 0 if the service wrote it itself."""
        return 0 if self.request is None else self.request.size


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        decision_id: Id of the turn; the draw is a hash of it, of the eligible arms, and of a secret.
        question: The text that arms search for, and that the policy's context describes.
        messages: The conversation that the model answers; empty to retrieve only.
        document: What it asks of the language model.
        k: Passages to retrieve; None: as many as the arm is configured with.
        forced: Arm that the caller named; recorded as forced.
        allowed: Arms to choose among; None: all.
        excluded: Arms to leave out.
        explore: False takes the most probable arm; recorded as greedy.
        context: The caller's features of the question, by name.
        dial: The same in the draw alone, and not in the reward; None: as there.
        episode_id: Id of the conversation that the turn belongs to; stored and returned.
        request_digest: Distinguishes a retry from another request under the same id.
        deferred: Whether the decision counts only once its answer is reported as shown.
        continues: Earlier decision that this turn continues after function calls: `forced`, its arm, repeats
            its search with the same seed, and `messages` has the results of the calls.
        called: Earlier decision whose answer called the functions with whose results `messages` end, also
            where its arm is not repeated.
        user_digest: Digest of the end user, for the log.
        where: Filter on the metadata of passages.
        groups: Groups of the caller, which may see passages that are restricted to them.
        steps: What the request asks of steps, by their names.
        external: Whether the caller carries the decision out.
        asked_by: Who asks, as in `Decision.asked_by`.
    """

    decision_id: str
    question: str
    messages: tuple[Message, ...] = ()
    document: RequestDocument = field(default_factory=RequestDocument)
    k: int | None = None
    forced: str | None = None
    allowed: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()
    explore: bool = True
    context: Mapping[str, float | str | bool] = field(default_factory=dict)
    dial: float | None = None
    episode_id: str | None = None
    request_digest: str = ""
    deferred: bool = False
    continues: str | None = None
    called: str | None = None
    user_digest: str | None = None
    where: Comparison | Compound | None = None
    groups: frozenset[str] = frozenset()
    steps: Mapping[str, Any] = field(default_factory=dict)
    external: bool = False
    asked_by: str | None = None

    @property
    def most_read(self) -> int:
        """Most tokens of the request: a token is at least one byte."""
        texts = (message["content"] for message in self.messages)
        return self.document.most_read or sum(len(text.encode(errors="replace")) for text in texts)

    @property
    def quoted_groups(self) -> tuple[str, ...]:
        """The groups for which passages may be quoted in the conversation before its question.

        >>> from dataclasses import replace
        >>> ask = Ask("d", "How?", (Message(role="user", content="How?"),), groups=frozenset({"b", "a"}))
        >>> later = replace(ask, messages=(*ask.messages, Message(role="assistant", content="[1] So.")))
        >>> ask.quoted_groups, later.quoted_groups
        ((), ('a', 'b'))
        """
        said = [message for message in self.messages if message["role"] != "system"]
        return tuple(sorted(self.groups)) if len(said) > 1 else ()


@dataclass(frozen=True, slots=True)
class ObservedDecision:
    """A decision that another system has made.

    Attributes:
        arms: The arms that could have been chosen.
        probabilities: Probability of each arm; a single one if only that of the drawn arm, then the first of
            `arms`, was reported; empty if none was.
        drawn: The arm that was chosen.
        at: When it was made, seconds since the epoch.
    """

    arms: tuple[str, ...]
    probabilities: tuple[float, ...]
    drawn: str
    at: float

"""The requests of a client as values: the body to send, and how to read the response."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Self, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx
from pydantic import BaseModel, ValidationError, model_validator
from typing_extensions import TypedDict

from armwise.agent.client.errors import ClientError, envelope, read_failure
from armwise.agent.replies import (
    Agent,
    AnswerChoice,
    AnswerCost,
    ArmChoice,
    DecisionVerification,
    Envelope,
    FeedbackReceipts,
    FeedbackToken,
    ObservationReceipts,
    Passage,
    Policy,
)

BUSY = (429, 503)
"""HTTP statuses after which the same request may succeed later."""

NOT_OURS = "Is another program listening there? --url or ARMWISE_URL names the service"
"""Advice about a reply that Armwise would not give."""

Context = Mapping[str, float | str | bool]

Metrics = Mapping[str, float | str | bool]

T = TypeVar("T")

Model = TypeVar("Model", bound=BaseModel)


class Answer(BaseModel):
    """The passages found for a question, and the written answer if you asked for one.

    Attributes:
        agent: How the arm was chosen, and what it cost.
        passages: The passages, best first.
        choices: The answers, in OpenAI's shape.
        latency_s: Seconds from the request to the complete answer, retries included.
    """

    agent: Agent
    passages: list[Passage] = []
    choices: list[AnswerChoice] = []
    latency_s: float = 0.0

    @model_validator(mode="after")
    def _passages_of_either_route(self) -> Self:
        self.passages = self.passages or self.agent.passages
        return self

    @property
    def decision_id(self) -> str:
        """The decision's id, with which you send feedback."""
        return self.agent.decision_id

    @property
    def arm(self) -> str:
        """The arm that found the passages."""
        return self.agent.arm_served or self.agent.arm_drawn

    @property
    def propensity(self) -> float:
        """Probability with which the arm was drawn."""
        return self.agent.propensity

    @property
    def cost(self) -> AnswerCost:
        """The cost of the answer."""
        assert self.agent.cost is not None
        return self.agent.cost

    @property
    def passage_ids(self) -> list[str]:
        """Ids of the passages, best first."""
        return [passage.id for passage in self.passages]

    @property
    def text(self) -> str:
        """The text of the first choice; empty without a language model."""
        content = self.choices[0].message.content if self.choices else None
        parts = content if isinstance(content, list) else [{"text": content or ""}]
        return "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))


Decided = str | Answer | ArmChoice
"""The subject of feedback: a decision, or its id."""


class Options(TypedDict, total=False):
    """Options of a question.

    Attributes:
        arm: Forces an arm instead of letting the policy choose.
        context: Named features of the question.
        episode_id: Groups the decisions of one conversation.
        allowed_arms: The arms that may be drawn; by default all.
        excluded_arms: Arms to leave out.
        explore: False takes the most probable arm.
        defer_activation: Whether the decision counts only once its answer is reported as shown.
        filters: Filter on the metadata of passages, in the form of OpenAI's vector stores.
        groups: A subset of the key's groups, such as those of the user.
        key: Idempotency key; by default a new one.
    """

    arm: str | None
    context: Context
    episode_id: str
    allowed_arms: Sequence[str]
    excluded_arms: Sequence[str]
    explore: bool
    defer_activation: bool
    filters: Mapping[str, Any]
    groups: Sequence[str]
    key: str


class Taking(TypedDict, total=False):
    """Options of a decision over arms that the caller carries out: as in `Options`.

    Attributes:
        incumbent: The arm that the caller would take, or its distribution, arm to probability.
    """

    incumbent: str | Mapping[str, float] | None
    context: Context
    allowed_arms: Sequence[str]
    excluded_arms: Sequence[str]
    episode_id: str
    explore: bool
    defer_activation: bool
    key: str


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request.

    Attributes:
        method: HTTP method.
        path: Path below the address of the service.
        read: Parses a successful response into the reply. Raises ClientError.
        body: Body, sent as JSON.
        key: Idempotency key.
        again: Whether it may be sent again after the connection was lost.
    """

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    body: Mapping[str, Any] | None = None
    key: str | None = None
    again: bool = True

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the request, with the idempotency key."""
        return {} if self.key is None else {"idempotency-key": self.key}

    def reply(self, response: httpx.Response) -> T:
        """Parse a response. Raises ClientError."""
        if not response.is_success:
            raise read_failure(response)
        return self.read(response)


def retrieve(question: str, k: int | None, options: Options) -> Call[Answer]:
    """Ask for passages."""
    body = {"query": question, "model": _model(options), "agent": _agent(options)}
    return _answering("/v1/retrieve", body if k is None else {**body, "k": k}, options)


def ask(
    question: str | Sequence[Mapping[str, Any]], options: Options, *, stream: bool = False
) -> Call[Answer]:
    """Ask for an answer to a question, or to a conversation of messages."""
    messages = [{"role": "user", "content": question}] if isinstance(question, str) else list(question)
    agent = {**_agent(options), "return": ["passages"]}
    body = {"model": _model(options), "messages": messages, "agent": agent}
    return _answering("/v1/chat/completions", {**body, "stream": True} if stream else body, options)


def choose(question: str, options: Taking) -> Call[ArmChoice]:
    """Ask which arm of another system to take."""
    more: dict[str, Any] = {
        name: value for name, value in options.items() if name not in ("key", "incumbent")
    }
    if (incumbent := options.get("incumbent")) is not None:
        more["incumbent"] = {"arm" if isinstance(incumbent, str) else "distribution": incumbent}
    body = {name: value for name, value in {"question": question, **more}.items() if value is not None}
    key = options.get("key") or uuid4().hex
    return Call("POST", "/v1/decisions", partial(_parse, ArmChoice), body, key)


def observe(items: Sequence[Mapping[str, Any]], key: str | None) -> Call[ObservationReceipts]:
    """Send decisions that were made elsewhere; repeating a batch with its key has no further effect."""
    if not items:
        raise ValueError("no decision: observe({'question': ..., 'arm': ...}) was expected")
    body = {"items": [dict(item) for item in items]}
    return Call("POST", "/v1/observations", partial(_parse, ObservationReceipts), body, key or uuid4().hex)


def feedback(decision: Decided, metrics: Metrics) -> Call[FeedbackReceipts]:
    """Send a value for each metric of a decision, at once."""
    if not metrics:
        raise ValueError("no metric: feedback(answer, thumb=1) was expected")
    decision_id = decision if isinstance(decision, str) else decision.decision_id
    items = [
        {"decision_id": decision_id, "metric_name": metric, "value": value}
        for metric, value in metrics.items()
    ]
    return Call("POST", "/v1/feedback", partial(_read_receipts, items), {"items": items}, uuid4().hex)


def feedback_token(decision: Decided) -> Call[FeedbackToken]:
    """Ask for a token with which a page may rate one answer."""
    decision_id = decision if isinstance(decision, str) else decision.decision_id
    path = f"/v1/decisions/{quote(decision_id, safe='')}/feedback-token"
    return Call("POST", path, partial(_parse, FeedbackToken))


def arms() -> Call[list[str]]:
    """Ask for the names of the enabled arms."""

    def list_enabled(response: httpx.Response) -> list[str]:
        reply = _json(response)
        try:
            return [arm["name"] for arm in reply["arms"] if arm["enabled"]]
        except (KeyError, TypeError) as error:
            raise ClientError(
                f"GET {response.request.url.path} gave no list of arms: {error!r}. {NOT_OURS}"
            ) from error

    return Call("GET", "/v1/arms", list_enabled)


def policy() -> Call[Policy]:
    """Ask for the state of the policy."""
    return Call("GET", "/v1/policy", partial(_parse, Policy))


def promotion(action: str, version: int, reason: str) -> Call[Policy]:
    """Promote a version, or roll back to it."""
    path = f"/v1/policies/{version}/{action}"
    return Call("POST", path, partial(_parse, Policy), {"reason": reason})


def verify(decision_id: str) -> Call[DecisionVerification]:
    """Ask to recompute a decision from the log."""
    path = f"/v1/decisions/{quote(decision_id, safe='')}/verify"
    return Call("GET", path, partial(_parse, DecisionVerification))


def document(method: str, path: str, body: Mapping[str, Any] | None) -> Call[dict[str, Any]]:
    """Send any request; only one that changes nothing is sent again after the connection was lost."""
    return Call(method, path, _json, body, again=method == "GET")


def is_busy(response: httpx.Response) -> bool:
    """Return whether the same request may succeed later; the body of an error must be read already."""
    return response.status_code in BUSY and envelope(response.content).get("retryable", True) is not False


def _model(options: Options) -> str:
    arm = options.get("arm")
    return "auto" if arm is None else f"arm/{arm}"


def _agent(options: Options) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in ("arm", "key")}


def _answering(path: str, body: Mapping[str, Any], options: Options) -> Call[Answer]:
    started = time.perf_counter()

    def read(response: httpx.Response) -> Answer:
        answer = _parse(Answer, response)
        return answer.model_copy(update={"latency_s": time.perf_counter() - started})

    return Call("POST", path, read, body, options.get("key") or uuid4().hex)


def _read_receipts(items: Sequence[Mapping[str, Any]], response: httpx.Response) -> FeedbackReceipts:
    """Return the receipts of feedback. Raises ClientError if an item was refused."""
    receipts = _parse(FeedbackReceipts, response)
    for item, receipt in zip(items, receipts.items, strict=False):
        if isinstance(receipt, Envelope):
            error, code = receipt.error, receipt.error.code or ""
            name = f"{item['metric_name']} of {item['decision_id']}"
            raise ClientError(f"feedback {name} was refused, {code}: {error.message}", code=code)
    return receipts


def _json(response: httpx.Response) -> dict[str, Any]:
    """Return the object of a response. Raises ClientError."""
    try:
        content = response.json()
    except ValueError:
        content = None
    if not isinstance(content, dict):
        place = response.request.url.copy_with(userinfo=b"")
        raise ClientError(f"{place} gave {response.status_code} and no JSON object. {NOT_OURS}")
    return content


def _parse(model: type[Model], response: httpx.Response) -> Model:
    try:
        return model.model_validate_json(response.content)
    except ValidationError as error:
        first = error.errors()[0]
        what = ": ".join([".".join(map(str, first["loc"])), first["msg"]])
        place = f"{response.request.method} {response.request.url.copy_with(userinfo=b'')}"
        raise ClientError(
            f"{place} gave a reply that does not fit {model.__name__}: {what}. {NOT_OURS}"
        ) from error

"""A client of a running service: ask, send feedback, read and promote policies.

Requests to a service that is busy (429, 503) or drops the connection are sent
again after Retry-After. Feedback carries ids, so sending it twice is one fact;
a lost answer leaves a decision without feedback.

    ClientError               the service is out of reach, or refused the request
    `-- AnswerFailedError     it failed on this request alone; the next may do better
"""

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from feedback.reward import RewardRule

BUSY = (429, 503)

ATTEMPTS = 8

LONGEST_PAUSE_S = 60.0

Model = TypeVar("Model", bound=BaseModel)


class ClientError(Exception):
    """The service is out of reach or refused a request; the message says which and why."""


class AnswerFailedError(ClientError):
    """The service failed on this request alone."""


class Cost(BaseModel):
    """The raw cost vector, and `total`: its priced sum."""

    model_config = ConfigDict(extra="allow")
    total: float


class PassageId(BaseModel):
    """A passage of an answer."""

    id: str


class Message(BaseModel):
    """What the language model wrote."""

    content: str | None = None


class Choice(BaseModel):
    """One answer; the service gives one."""

    message: Message


class AgentFields(BaseModel):
    """The `agent` object of a reply: how the arm was chosen and what it cost."""

    decision_id: str
    policy_version: int | str
    arm_drawn: str
    arm_served: str | None = None
    propensity: float
    pmf: dict[str, float]
    cost: Cost
    passages: list[PassageId] = []


class Answer(BaseModel):
    """A reply of either endpoint: `retrieve` has passages beside `agent`, `chat` has them inside."""

    agent: AgentFields
    passages: list[PassageId] = []
    choices: list[Choice] = []
    latency_s: float = Field(
        default=0.0, description="From the request to the whole answer, retries included."
    )

    @property
    def passage_ids(self) -> list[str]:
        """Ids of the passages, best first."""
        return [passage.id for passage in self.passages or self.agent.passages]

    @property
    def text(self) -> str:
        """The text of the language model; empty without one."""
        return (self.choices[0].message.content or "") if self.choices else ""


class ArmState(BaseModel):
    """An arm, as far as a client needs to know it."""

    name: str
    enabled: bool = True


class Arms(BaseModel):
    """Reply of `GET /v1/arms`."""

    arms: list[ArmState]


class Serving(BaseModel):
    """Which version decides, and whether it is pinned."""

    version: int | None
    pinned: bool
    chosen: int | None = None
    reason: str | None = None


class PolicyState(BaseModel):
    """How far the policy has learned, the reward that it learns from, and which version decides."""

    applied_seq: int
    reward: RewardRule
    serving: Serving | None = None

    @field_validator("reward", mode="before")
    @classmethod
    def _known(cls, reward: Any) -> Any:
        """Drop fields of the reward that this client does not know, of a newer service."""
        if not isinstance(reward, dict):
            return reward
        return {name: value for name, value in reward.items() if name in RewardRule.model_fields}


class Verification(BaseModel):
    """The result of recomputing a decision."""

    verified: bool
    max_difference: float
    why: list[str] = []


class Receipt(BaseModel):
    """The result of one item of feedback."""

    log_seq: int | None = None
    error: Any = None


class Receipts(BaseModel):
    """Reply to a batch of feedback, in the order of the items."""

    items: list[Receipt]


class Client:
    """Speak the service's HTTP contract over an httpx client whose base URL is the service's.

    Attributes:
        retries: Requests that were sent again.
    """

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.retries = 0
        self._http = http
        self._reached = False

    async def arms(self) -> list[str]:
        """Return the names of the enabled arms."""
        reply = _parse(Arms, await self._send("GET", "/v1/arms"))
        return [arm.name for arm in reply.arms if arm.enabled]

    async def policy(self) -> PolicyState:
        """Return the state of the policy."""
        return _parse(PolicyState, await self._send("GET", "/v1/policy"))

    async def retrieve(self, question: str, k: int, model: str = "auto") -> Answer:
        """Return passages without a written answer. Raises AnswerFailedError."""
        body = {"query": question, "k": k, "model": model, "agent": {}}
        return await self._answer("/v1/retrieve", body)

    async def chat(self, question: str, model: str = "auto") -> Answer:
        """Return a written answer and its passages. Raises AnswerFailedError."""
        messages = [{"role": "user", "content": question}]
        body = {"model": model, "messages": messages, "agent": {"return": ["passages"]}}
        return await self._answer("/v1/chat/completions", body)

    async def feedback(self, decision_id: str, metrics: Mapping[str, float]) -> int:
        """Send a value for each metric of one decision, at once.

        Returns:
            The last log position: all is learned when `applied_seq` has reached it.

        Raises:
            ClientError: An item was refused; the message names it.
        """
        items = [
            {
                "feedback_id": f"{decision_id}:{metric}",
                "decision_id": decision_id,
                "metric_name": metric,
                "value": value,
            }
            for metric, value in metrics.items()
        ]
        receipts = _parse(Receipts, await self._send("POST", "/v1/feedback", {"items": items})).items
        for item, receipt in zip(items, receipts, strict=False):
            if receipt.error is not None:
                raise ClientError(f"feedback {item['feedback_id']} was refused: {receipt.error}")
        return max((receipt.log_seq or 0 for receipt in receipts), default=0)

    async def rollback(self, version: int, reason: str) -> PolicyState:
        """Let exactly this version decide until another promotion; return the new state."""
        return await self._promote("rollback", version, reason)

    async def promote(self, version: int, reason: str) -> PolicyState:
        """Let the newest versions decide, from this one on; return the new state."""
        return await self._promote("promote", version, reason)

    async def _promote(self, action: str, version: int, reason: str) -> PolicyState:
        path = f"/v1/policies/{version}/{action}"
        return _parse(PolicyState, await self._send("POST", path, {"reason": reason}))

    async def verify(self, decision_id: str) -> Verification:
        """Recompute a decision from the log."""
        return _parse(Verification, await self._send("GET", f"/v1/decisions/{decision_id}/verify"))

    async def _answer(self, path: str, body: Mapping[str, Any]) -> Answer:
        started = time.perf_counter()
        response = await self._send("POST", path, body)
        latency_s = time.perf_counter() - started
        return _parse(Answer, response).model_copy(update={"latency_s": latency_s})

    async def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        trouble = ""
        for attempt in range(ATTEMPTS):
            pause_s = min(LONGEST_PAUSE_S, 0.1 * 2**attempt)
            try:
                response = await self._http.request(method, path, json=body)
            except httpx.TransportError as error:
                trouble = f"{type(error).__name__} {error}".strip()
                if not self._reached:
                    raise ClientError(
                        f"no service answers at {self._http.base_url} ({trouble}); is it running there? "
                        "Start it with `armwise serve`, or name another address"
                    ) from error
            else:
                self._reached = True
                if response.status_code not in BUSY:
                    return _accepted(response)
                trouble = _describe(response)
                pause_s = retry_after_s(response.headers.get("retry-after"), default=pause_s)
            if attempt < ATTEMPTS - 1:
                self.retries += 1
                await asyncio.sleep(pause_s)
        where = f"{method} {path} at {self._http.base_url}"
        raise ClientError(f"{where} failed {ATTEMPTS} times, the last time with: {trouble}")


def retry_after_s(header: str | None, default: float) -> float:
    """Return how many seconds a Retry-After header asks for, at most a minute.

    Args:
        header: Seconds or an HTTP date; None when it was not sent.
        default: Taken when there is no header, or one that cannot be read.

    >>> retry_after_s("1.5", default=0.1), retry_after_s("soon", default=0.1)
    (1.5, 0.1)
    """
    if header is None:
        return default
    try:
        pause_s = float(header)
    except ValueError:
        try:
            pause_s = (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError):
            return default
    return min(LONGEST_PAUSE_S, max(0.0, pause_s))


def _accepted(response: httpx.Response) -> httpx.Response:
    if response.is_success:
        return response
    if response.status_code == httpx.codes.REQUEST_TIMEOUT or response.is_server_error:
        raise AnswerFailedError(_describe(response))
    raise ClientError(_describe(response))


def _describe(response: httpx.Response) -> str:
    """Name the request, the status and the message of the error envelope."""
    try:
        error = response.json()["error"]
        message = f"{error['code']}: {error['message']}"
    except (ValueError, KeyError, TypeError):
        message = response.text[:200] or response.reason_phrase
    return f"{_name(response)} gave {response.status_code}, {message}"


def _parse(model: type[Model], response: httpx.Response) -> Model:
    try:
        return model.model_validate_json(response.content)
    except ValidationError as error:
        first = error.errors()[0]
        what = ": ".join([".".join(map(str, first["loc"])), first["msg"]])
        raise ClientError(f"{_name(response)} gave a reply that is no {model.__name__}: {what}") from error


def _name(response: httpx.Response) -> str:
    return f"{response.request.method} {response.request.url.path}"

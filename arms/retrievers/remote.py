"""Ask a search API over HTTP: any service that takes a question and answers with a list in JSON."""

import asyncio
import os
import re
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Annotated, Any, Literal, Self

import httpx
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    field_validator,
    model_validator,
)
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    RetryError,
    retry_if_exception_type,
    stop_after_attempt,
    stop_before_delay,
    wait_random_exponential,
)

from arms.async_bridge import Blocking
from arms.base import ArmError, Query, Retrieval
from arms.retrievers.kind import Kind, Members, Resources
from arms.retrievers.remote_response import Fields, UnreadableError, read

PAUSE = wait_random_exponential(multiplier=0.1, max=2.0)
"""Between two attempts where the service asks for none: random, up to 0.1 s, then 0.2, 0.4 and so on."""

LIMITS = httpx.Limits(max_connections=64, max_keepalive_connections=16)
"""Of the connections of all remote arms of a process together."""

SHOWN = 200
"""Characters of an answer that an error shows."""

HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+$")]


class RemoteParams(BaseModel):
    """Parameters of a remote arm."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(description="Address of the search, http or https.")
    method: Literal["GET", "POST"] = Field("GET", description="GET asks in the URL, POST in a JSON body.")
    request: dict[str, JsonValue] = Field(
        description="Parameters of the URL, or the body. `{question}` and `{k}` in its texts are filled in; "
        "a text that is `{k}` and nothing else becomes a number."
    )
    header_env: dict[HeaderName, str] = Field(
        default_factory=dict,
        description="Headers, each with the environment variable that holds its whole value.",
    )
    results: str = Field("results", description="Path of the list of results; empty where the answer is it.")
    fields: Fields = Field(Fields(), description="Paths of the parts of a passage within a result.")
    timeout_s: float = Field(3.0, gt=0.0, description="Seconds that one attempt may take.")
    retries: int = Field(
        2, ge=0, le=10, description="Further attempts after a failed connection, a time-out, 429 or 5xx."
    )
    total_s: float = Field(
        8.0, gt=0.0, description="Seconds that all attempts may take: fewer than the service gives an arm."
    )

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise ValueError(f"no address: {error}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError("no http or https address")
        return url

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        if fill(self.request, "a", 1) == fill(self.request, "b", 1):
            raise ValueError("request asks for nothing: one of its texts must hold {question}")
        if self.method == "GET" and any(isinstance(value, dict | list) for value in self.request.values()):
            raise ValueError("request holds an object or a list, which no URL can carry: set method to POST")
        if self.timeout_s > self.total_s:
            raise ValueError(f"timeout_s {self.timeout_s:g} is above total_s {self.total_s:g}")
        return self


class _TryAgainError(Exception):
    """An attempt failed in a way that may pass.

    Attributes:
        retry_after: The header of that name; None where there was none.
    """

    def __init__(self, trouble: str, retry_after: str | None = None) -> None:
        super().__init__(trouble)
        self.retry_after = retry_after


class Connections:
    """Connections that remote arms share, and the thread that waits on them.

    In that thread any wait can be called off, be it for a name, for a handshake or for
    an answer that comes byte by byte: that is what makes a limit hold.
    """

    def __init__(self) -> None:
        self.waiting = Blocking()
        self.client = httpx.AsyncClient(limits=LIMITS, timeout=None)  # an arm limits itself


@cache
def connections() -> Connections:
    """Return those of this process."""
    return Connections()


class RemoteSearch:
    """Return what a search API finds, highest score first.

    Args:
        name: The arm, as errors call it.
        params: How to ask, and how to read the answer.

    Raises:
        ArmError: A variable that a header comes from is not set.
    """

    backbones: frozenset[str] = frozenset()

    def __init__(self, name: str, params: RemoteParams) -> None:
        self.name = name
        self._params = params
        self._url = httpx.URL(params.url)
        self._headers = {header: _secret(name, header, v) for header, v in params.header_env.items()}
        # Without the query and the password, which may be secret.
        self._called = f"arm {name!r}: {self._url.copy_with(userinfo=b'', query=None)}"
        self._connections = connections()

    def search(self, query: Query, k: int) -> Retrieval:
        """Ask, once more where that may help, and read the answer. Raises ArmError, within `total_s`."""
        response = self._connections.waiting.run(self._fetch(query.text, k))
        try:
            passages = read(response.content, self._params.results, self._params.fields)
        except UnreadableError as error:
            said = response.text[:SHOWN]
            raise ArmError(f"{self._called} gave an answer that cannot be read: {error}: {said}") from error
        return Retrieval(tuple(sorted(passages, key=lambda passage: (-passage.score, passage.id))[:k]))

    async def _fetch(self, question: str, k: int) -> httpx.Response:
        """Return the first answer that is worth reading. Raises ArmError."""
        params, deadline = self._params, time.monotonic() + self._params.total_s
        asked: Any = fill(params.request, question, k)
        build = self._connections.client.build_request
        if params.method == "POST":
            request = build("POST", self._url, headers=self._headers, json=asked)
        else:
            request = build("GET", self._url.copy_merge_params(asked), headers=self._headers)
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(_TryAgainError),
            wait=_pause_s,
            stop=stop_after_attempt(params.retries + 1) | stop_before_delay(params.total_s),
        )
        try:
            response: httpx.Response = await attempts(self._attempt, request, deadline)
        except RetryError as error:
            number, trouble = error.last_attempt.attempt_number, error.last_attempt.exception()
            raise ArmError(
                f"{self._called}: attempt {number} of {params.retries + 1} in {params.total_s:g} s "
                f"failed: {trouble}"
            ) from trouble
        return response

    async def _attempt(self, request: httpx.Request, deadline: float) -> httpx.Response:
        """Ask once. Raises ArmError, or _TryAgainError where another attempt may succeed."""
        limit_s = min(self._params.timeout_s, deadline - time.monotonic())
        try:
            async with asyncio.timeout(limit_s):
                response = await self._connections.client.send(request)
        except TimeoutError as error:
            raise _TryAgainError(f"no answer within {limit_s:.3g} s") from error
        except httpx.TransportError as error:
            raise _TryAgainError(f"{type(error).__name__} {error}".strip()) from error
        except httpx.RequestError as error:
            raise ArmError(f"{self._called}: {type(error).__name__} {error}") from error
        if response.is_success:
            return response
        said = f"{response.status_code} {response.reason_phrase}: {response.text[:SHOWN]}"
        if response.status_code == httpx.codes.TOO_MANY_REQUESTS or response.is_server_error:
            raise _TryAgainError(said, response.headers.get("retry-after"))
        raise ArmError(f"{self._called} answered {said}")


def fill(template: JsonValue, question: str, k: int) -> JsonValue:
    """Return a template with the question and k put in.

    >>> fill({"match": "{question}", "size": "{k}", "note": ["top {k}", 1]}, "Why {k}?", 4)
    {'match': 'Why {k}?', 'size': 4, 'note': ['top 4', 1]}
    """
    if isinstance(template, dict):
        return {name: fill(value, question, k) for name, value in template.items()}
    if isinstance(template, list):
        return [fill(value, question, k) for value in template]
    if not isinstance(template, str):
        return template
    if template == "{k}":
        return k
    # In one go: a question may itself hold a {k}
    return re.sub(r"\{question\}|\{k\}", lambda mark: str(k) if mark[0] == "{k}" else question, template)


def _pause_s(state: RetryCallState) -> float:
    """Return how long to wait before the next attempt: what the service asks for, or PAUSE."""
    failed = state.outcome.exception() if state.outcome else None
    header = failed.retry_after if isinstance(failed, _TryAgainError) else None
    return retry_after_s(header, default=PAUSE(state))


def retry_after_s(header: str | None, default: float) -> float:
    """Return how many seconds a Retry-After header asks for.

    Args:
        header: Seconds or an HTTP date; None when it was not sent.
        default: Taken when there is no header, or one that cannot be read.

    >>> retry_after_s("3", 0.1), retry_after_s("Fri, 02 Jan 1970 00:00:00 GMT", 0.1), retry_after_s("?", 0.1)
    (3.0, 0.0, 0.1)
    """
    if header is None:
        return default
    if header.strip().isdecimal():
        return float(header)
    try:
        return max(0.0, (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return default


def _secret(arm: str, header: str, variable: str) -> str:
    """Return the value of a header, without the line's end of the file it came from. Raises ArmError."""
    value = os.environ.get(variable, "").strip()
    if not value:
        raise ArmError(f"arm {arm!r}: header {header} needs a value: set the variable {variable}")
    if not (value.isascii() and value.isprintable()):
        raise ArmError(f"arm {arm!r}: no header {header} can hold what the variable {variable} does")
    return value


def _build(name: str, params: RemoteParams, _: Resources, __: Members) -> RemoteSearch:
    return RemoteSearch(name, params)


KIND = Kind(RemoteParams, _build)

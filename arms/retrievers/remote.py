"""A search API over HTTP: any service that takes a question and returns a list in JSON."""

import asyncio
import logging
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import httpx
import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    field_validator,
    model_validator,
)
from typing_extensions import override

from armwise.arms import proxies, upstream
from armwise.arms.async_bridge import Blocking
from armwise.arms.base import ArmError, Passage, Query, QuestionRefusedError, Retrieval
from armwise.arms.retrievers.kind import Kind, Members, Resources
from armwise.arms.secrets import read_secret
from armwise.arms.upstream import UpstreamError, quote_start

if TYPE_CHECKING:
    from tenacity import RetryCallState

LIMITS = httpx.Limits(max_connections=64, max_keepalive_connections=16)
"""Limits on the connections of all remote arms of a process."""

REFUSED = frozenset((400, 413, 414, 422))
"""Statuses that blame the question rather than the service."""

ATTEMPTS = 3
"""Most attempts of a search, the first one included."""

MAX_BYTES = 8 << 20
"""Largest size of a response in bytes, decompressed."""

logger = logging.getLogger(__name__)

HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+$")]


class UnreadableResponseError(Exception):
    """A response lacks a part; the message shows what is there instead."""


class Fields(BaseModel):
    """Paths to the parts of a passage in a result, with dots, as in `_source.title`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(default="id", description="Path to the id, a string.")
    title: str = Field(default="title", description="Path to the title, which a result may lack.")
    text: str = Field(default="text", description="Path to the text.")
    score: str | None = Field(
        default=None,
        description="Path to the score. Larger scores are better. If null, the n-th result scores 1/n.",
    )


def read(content: bytes, path: str, fields: Fields) -> list[Passage]:
    """Return the passages of a response, in its order; of equal ids the first.

    Args:
        content: The response.
        path: Path of the list of results.
        fields: Paths to the parts of a passage in a result.

    Raises:
        UnreadableResponseError: It is not JSON, lacks a list, or a result lacks a part.

    >>> read(b'{"found": [{"id": "a", "text": "one"}]}', "found", Fields())
    [Passage(id='a', title='', text='one', score=1.0, metadata={})]
    """
    return read_passages(results_at(load_json(content), path), fields)


def load_json(content: bytes | str) -> JsonValue:
    """Return a JSON document. Raises UnreadableResponseError."""
    try:
        document: JsonValue = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise UnreadableResponseError(f"it is not JSON ({error})") from error
    return document


def results_at(document: JsonValue, path: str) -> list[JsonValue]:
    """Return the list of results at a path. Raises UnreadableResponseError."""
    results = at(document, path)
    if not isinstance(results, list):
        raise UnreadableResponseError(f"at {path!r} is {shortened(results)}, not a list")
    return results


def read_passages(results: Sequence[JsonValue], fields: Fields) -> list[Passage]:
    """Return results as passages, of equal ids the first. Raises UnreadableResponseError."""
    passages: dict[str, Passage] = {}
    for number, result in enumerate(results, start=1):
        try:
            passage = Passage(
                string_at(result, fields.id),
                _title(result, fields.title),
                string_at(result, fields.text),
                1 / number if fields.score is None else _number(result, fields.score),
            )
        except UnreadableResponseError as error:
            raise UnreadableResponseError(f"result {number}: {error}") from error
        passages.setdefault(passage.id, passage)
    return list(passages.values())


def at(value: JsonValue, path: str) -> JsonValue:
    """Return the value at a path: names of fields and numbers of items, with dots between.

    A field whose name contains dots is found, too.

    >>> at({"hits": {"hits": [{"a": 1}, {"a": 2}]}}, "hits.hits.1.a")
    2
    >>> at({"@search.score": 1.5}, "@search.score")
    1.5

    Raises:
        UnreadableResponseError: The value is missing.
    """
    if not path:
        return value
    if isinstance(value, dict) and path in value:
        return value[path]
    head, _, rest = path.partition(".")
    if isinstance(value, dict) and rest and head in value:
        return at(value[head], rest)
    if isinstance(value, list) and head.isdecimal() and int(head) < len(value):
        return at(value[int(head)], rest)
    raise UnreadableResponseError(f"there is no {path!r} in {shortened(value)}")


def string_at(result: JsonValue, path: str) -> str:
    """Return the text at a path. Raises UnreadableResponseError."""
    text = at(result, path)
    if not isinstance(text, str):
        raise UnreadableResponseError(f"at {path!r} is {shortened(text)}, not a string")
    return text


def _title(result: JsonValue, path: str) -> str:
    """Return the title, empty if it is missing or null."""
    try:
        if at(result, path) is None:
            return ""
    except UnreadableResponseError:
        return ""
    return string_at(result, path)


def _number(result: JsonValue, path: str) -> float:
    number = at(result, path)
    if isinstance(number, bool) or not isinstance(number, int | float) or not isfinite(number):
        raise UnreadableResponseError(f"at {path!r} is {shortened(number)}, not a finite number")
    return float(number)


class HttpParams(BaseModel):
    """Parameters of an arm that sends questions over HTTP."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(description="Address of the search, http or https.")
    header_env: dict[HeaderName, str] = Field(
        default_factory=dict,
        description="Headers to send. For each, name the environment variable that holds its whole value.",
    )
    fields: Fields = Field(Fields(), description="Paths to the parts of a passage in a result.")

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise ValueError(f"not a valid address: {error}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError("not an http or https address")
        return url


class RemoteParams(HttpParams):
    """Parameters of a remote arm."""

    method: Literal["GET", "POST"] = Field(
        "GET", description="`GET` sends the question in the URL, `POST` in a JSON body."
    )
    request: dict[str, JsonValue] = Field(
        description=(
            "Parameters of the URL, or the JSON body. In texts, Armwise replaces `{question}` by the "
            "question and `{k}` by the number of passages. A text that is only `{k}` becomes a number."
        )
    )
    results: str = Field(
        "results",
        description=("Path to the list of results. Leave it empty if the response itself is the list."),
    )

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        if fill(self.request, "a", 1) == fill(self.request, "b", 1):
            raise ValueError("request does not send the question: put {question} into one of its texts")
        if self.method == "GET" and any(isinstance(value, dict | list) for value in self.request.values()):
            raise ValueError("request has an object or a list, which a URL cannot carry: set method to POST")
        return self


class _TryAgainError(Exception):
    """An attempt failed, and another may succeed.

    Attributes:
        retry_after_s: Seconds that the service requests to wait, if it does.
    """

    def __init__(self, trouble: str, retry_after_s: float | None = None) -> None:
        super().__init__(trouble)
        self.retry_after_s = retry_after_s


class Connections:
    """Shared connections of remote arms, and the event loop that waits on them.

    Every wait in the loop can be cancelled (name resolution, handshake, slow response), so
    time limits hold.
    """

    def __init__(self) -> None:
        self.waiting = Blocking()
        self.client = proxies.async_client(  # each arm has its own time limit
            headers={"accept-encoding": "gzip, deflate"},
            limits=LIMITS,
            timeout=None,
            follow_redirects=False,
            cookies=upstream.no_cookies(),
        )


@cache
def connections() -> Connections:
    """Return the connections of this process."""
    return Connections()


@dataclass(frozen=True, slots=True)
class RemoteResponse:
    """A complete response.

    Attributes:
        status: HTTP status.
        headers: Headers.
        content: Body, decompressed.
    """

    status: int
    headers: httpx.Headers
    content: bytes

    def __str__(self) -> str:
        return f"{self.status} {httpx.codes.get_reason_phrase(self.status)}".strip()


class HttpArm:
    """Sends requests within the limits of an arm: of time and of size.

    Args:
        name: The arm.
        params: Parameters.

    Raises:
        ArmError: The environment variable of a header is missing.
    """

    backbones: frozenset[str] = frozenset()

    def __init__(self, name: str, params: HttpParams, wait_s: float) -> None:
        self.name = name
        self.url = httpx.URL(params.url)
        self.headers = {header: _secret(name, header, v) for header, v in params.header_env.items()}
        # without the query and the password, which may be secret
        self.label = f"arm {name!r}: {self.url.copy_with(userinfo=b'', query=None)}"
        try:
            proxies.find_proxy(self.url)
        except proxies.ProxySettingError as error:
            raise ArmError(f"arm {name!r}: {error}") from error
        self.connections = connections()
        self.wait_s = wait_s

    async def send(self, request: httpx.Request) -> RemoteResponse:
        """Return the first response that a retry cannot improve. Raises ArmError."""
        # here: a configuration that is only read has no need of it
        from tenacity import (
            AsyncRetrying,
            RetryError,
            retry_if_exception_type,
            stop_after_attempt,
            stop_before_delay,
        )

        deadline = time.monotonic() + self.wait_s
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(_TryAgainError),
            wait=_pause_s,
            stop=stop_after_attempt(ATTEMPTS) | stop_before_delay(self.wait_s),
        )
        try:
            reply: RemoteResponse = await attempts(self._attempt, request, deadline)
        except RetryError as error:
            number, trouble = error.last_attempt.attempt_number, error.last_attempt.exception()
            raise ArmError(
                f"{self.label}: attempt {number} of {ATTEMPTS} in {self.wait_s:g} s failed: {trouble}"
            ) from trouble
        return reply

    async def _attempt(self, request: httpx.Request, deadline: float) -> RemoteResponse:
        """Send a request. Raises ArmError, or _TryAgainError if another attempt may succeed."""
        limit_s = max(0.0, deadline - time.monotonic())
        try:
            async with asyncio.timeout(limit_s):
                response = await self.connections.client.send(request, stream=True)
                content = await self._body(response)
        except TimeoutError as error:
            raise _TryAgainError(f"no response within {limit_s:.3g} s") from error
        except httpx.TransportError as error:
            way = proxies.describe_way(self.url)
            raise _TryAgainError(f"{type(error).__name__} {error}".strip() + way) from error
        except httpx.RequestError as error:
            raise ArmError(f"{self.label}: {type(error).__name__} {error}") from error
        reply = RemoteResponse(response.status_code, response.headers, content)
        if not response.is_success:  # for operators: callers are not shown what a service says
            logger.warning("%s answered %s: %s", self.label, reply, quote_start(content))
        if response.status_code == httpx.codes.TOO_MANY_REQUESTS or response.is_server_error:
            raise _TryAgainError(str(reply), upstream.retry_after_s(response.headers))
        return reply

    async def _body(self, response: httpx.Response) -> bytes:
        """Read a response. Raises ArmError if it is too long, or cannot be decoded."""
        try:
            encoding = response.headers.get("content-encoding")
            return await upstream.read_body(response.aiter_raw(), encoding, MAX_BYTES)
        except UpstreamError as error:
            raise ArmError(f"{self.label} returned {error}") from error
        finally:
            await response.aclose()


class RemoteArm(HttpArm, Kind[RemoteParams]):
    """Calls a search API over HTTP."""

    kind = "remote"
    params = RemoteParams
    example: ClassVar = {"url": "https://search.example/v1", "request": {"q": "{question}"}}

    def __init__(self, name: str, params: RemoteParams, wait_s: float) -> None:
        super().__init__(name, params, wait_s)
        self._params = params

    @classmethod
    @override
    def build(cls, name: str, params: RemoteParams, have: Resources, member: Members) -> Self:
        return cls(name, params, have.wait_s)

    @override
    def search(self, query: Query, k: int) -> Retrieval:
        """Request with retries, and read the response. Raises ArmError, within `wait_s`."""
        content = self.connections.waiting.run(self._fetch(query.text, k))
        try:
            passages = read(content, self._params.results, self._params.fields)
        except UnreadableResponseError as error:
            logger.warning("%s returned %s", self.label, quote_start(content))
            raise ArmError(f"{self.label} returned a response that cannot be read: {error}") from error
        return Retrieval(best(passages, k))

    async def _fetch(self, question: str, k: int) -> bytes:
        """Return the body of a successful response. Raises ArmError."""
        content: Any = fill(self._params.request, question, k)
        build = self.connections.client.build_request
        if self._params.method == "POST":
            request = build("POST", self.url, headers=self.headers, json=content)
        else:
            request = build("GET", self.url.copy_merge_params(content), headers=self.headers)
        reply = await self.send(request)
        if not httpx.codes.is_success(reply.status):
            kind = QuestionRefusedError if reply.status in REFUSED else ArmError
            raise kind(f"{self.label} returned {reply}")
        return reply.content


def best(passages: Iterable[Passage], k: int) -> tuple[Passage, ...]:
    """Return the passages of the highest scores, ties broken by id."""
    return tuple(sorted(passages, key=lambda passage: (-passage.score, passage.id))[:k])


def fill(template: JsonValue, question: str, k: int) -> JsonValue:
    """Return a template with the question and k filled in.

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
    # in one pass: a question may itself hold {k}
    return re.sub(r"\{question\}|\{k\}", lambda mark: str(k) if mark[0] == "{k}" else question, template)


def _pause_s(state: "RetryCallState") -> float:
    """Return the wait before the next attempt: Retry-After, or a random one."""
    failed = state.outcome.exception() if state.outcome else None
    asked_s = failed.retry_after_s if isinstance(failed, _TryAgainError) else None
    return random_pause_s(state) if asked_s is None else asked_s


def random_pause_s(state: "RetryCallState") -> float:
    """Return a wait between attempts: random, up to 0.1 s, then 0.2, 0.4 and so on, at most 2 s."""
    from tenacity import wait_random_exponential

    return wait_random_exponential(multiplier=0.1, max=2.0)(state)


def _secret(arm: str, header: str, variable: str) -> str:
    """Return the value of a header from the environment. Raises ArmError."""
    value = read_secret(variable)
    if not value:
        raise ArmError(f"arm {arm!r}: header {header} needs a value: set the environment variable {variable}")
    if not (value.isascii() and value.isprintable()):
        raise ArmError(
            f"arm {arm!r}: the variable {variable} has characters that the header {header} cannot hold"
        )
    return value

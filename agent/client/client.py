"""An asynchronous client and its blocking face; `armwise.agent.client.calls` has their requests."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from itertools import count
from typing import Any, Self, TypeVar

import httpx
import orjson
from typing_extensions import Unpack

from armwise.agent.client import calls
from armwise.agent.client.calls import Answer, Call, Decided, Metrics, Options, Taking
from armwise.agent.client.errors import AnswerFailedError, ClientError, read_failure
from armwise.agent.replies import (
    Agent,
    ArmChoice,
    DecisionVerification,
    FeedbackReceipts,
    ObservationReceipts,
    Policy,
)
from armwise.arms import proxies
from armwise.arms.async_bridge import Blocking
from armwise.arms.upstream import UNCOMPRESSED, limit_size

URL = "http://127.0.0.1:8000"

REPLY_BYTES = 1 << 28
"""Largest reply that is read, or all events of a streamed one."""

ATTEMPTS = 8

LONGEST_PAUSE_S = 60.0

Question = str | Sequence[Mapping[str, Any]]
"""A question, or the messages of a conversation in OpenAI's shape."""

T = TypeVar("T")


class _Lines:
    r"""Splits the parts of a stream at line feeds only; `str.splitlines` also splits at U+2028 and others.

    >>> lines = _Lines()
    >>> [*lines.add("a\u2028b\r\n\nc".encode()), *lines.add(b"d\n")]
    ['a\u2028b', '', 'cd']
    """

    def __init__(self) -> None:
        self._left = bytearray()

    def add(self, part: bytes) -> list[str]:
        """Return the lines completed by a part; the rest is kept for the next part."""
        self._left += part
        if b"\n" not in part:
            return []
        *whole, left = self._left.split(b"\n")
        self._left = bytearray(left)
        return [line.decode(errors="replace").removesuffix("\r") for line in whole]

    def end(self) -> list[str]:
        """Return the last line, if it has no line feed."""
        return self.add(b"\n") if self._left else []


def retry_after_s(header: str | None, default: float) -> float:
    """Return how many seconds a Retry-After header asks for, at most a minute.

    Args:
        header: Seconds or an HTTP date; None if it was not sent.
        default: Result for a missing or unreadable header.

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


def _address(url: str) -> str:
    """Return the address of a service without a slash at its end. Raises ClientError.

    >>> _address("http://127.0.0.1:8000/")
    'http://127.0.0.1:8000'
    """
    try:
        parsed = httpx.URL(url)
        sound = parsed.scheme in ("http", "https") and bool(parsed.host)
    except httpx.InvalidURL:
        sound = False
    if not sound:
        raise ClientError(f"{url!r} is not an address of a service: http://127.0.0.1:8000 would be one")
    return url.rstrip("/")


class AsyncStream:
    """Iterates over the parts of an answer as they arrive; afterwards `answer` has the whole answer.

    Attributes:
        fields: The `agent` object, as far as it was sent.
        text: The text, as far as it was written.
    """

    def __init__(self, lines: AsyncGenerator[str, None]) -> None:
        self._lines = lines
        self.fields: dict[str, Any] = {}
        self.text = ""
        self._finish_reason: str | None = None
        self._started, self._ended = time.perf_counter(), False

    async def __aiter__(self) -> AsyncGenerator[str, None]:
        async with aclosing(self._lines) as lines:
            async for line in lines:
                if text := self._read(line):
                    yield text

    @property
    def decision_id(self) -> str:
        """Names the answer in feedback; known with the first event. Raises ClientError before."""
        if "decision_id" not in self.fields:
            raise ClientError("the stream has not begun: read it first")
        return str(self.fields["decision_id"])

    @property
    def answer(self) -> Answer:
        """The complete answer. Raises ClientError before the end of the stream."""
        if not self._ended:
            other = "" if self.fields else f". If you did, no answer was in it. {calls.NOT_OURS}"
            raise ClientError(f"the stream has not ended: read it to its end first{other}")
        message = {"role": "assistant", "content": self.text}
        choice = {"index": 0, "message": message, "finish_reason": self._finish_reason, "logprobs": None}
        latency_s = time.perf_counter() - self._started
        fields = Agent.model_validate(self.fields)
        return Answer.model_validate({"agent": fields, "choices": [choice], "latency_s": latency_s})

    def _read(self, line: str) -> str:
        """Return the text in a line of the stream, if any. Raises AnswerFailedError."""
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:"):
            return ""
        if data == "[DONE]":
            self._ended = True
            return ""
        event = orjson.loads(data)
        if error := event.get("error"):
            error = error if isinstance(error, dict) else {"message": error}  # the provider's, as it came
            code = str(error.get("code") or "llm_failed")
            raise AnswerFailedError(
                f"the answer broke off, {code}: {error.get('message')}",
                code=code,
                decision_id=self.fields.get("decision_id"),
            )
        self.fields |= event.get("agent") or {}
        choices = event.get("choices") or ()
        deltas = (choice.get("delta") or {} for choice in choices)
        text = "".join(content for delta in deltas if isinstance(content := delta.get("content"), str))
        self.text += text
        for choice in choices:
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
        return text


class Stream:
    """Iterates over the parts of an answer as they arrive; afterwards `answer` has the whole answer."""

    def __init__(self, stream: AsyncStream) -> None:
        self._stream = stream

    @property
    def decision_id(self) -> str:
        """Names the answer in feedback; known with the first event. Raises ClientError before."""
        return self._stream.decision_id

    @property
    def text(self) -> str:
        """The text, as far as it was written."""
        return self._stream.text

    @property
    def answer(self) -> Answer:
        """The complete answer. Raises ClientError before the end of the stream."""
        return self._stream.answer

    def __iter__(self) -> Iterator[str]:
        parts, loop = aiter(self._stream), _event_loop(os.getpid())
        while text := loop.run(anext(parts, "")):  # the loop closes parts that are left
            yield text


class AsyncClient:
    """An asynchronous client, which event loops do not share.

    Args:
        url: Address of the service; by default `ARMWISE_URL`, or else port 8000 on this machine.
        key: Key, if the service requires one; by default `ARMWISE_API_KEY`.
        timeout_s: Seconds that a response, or a part of a stream, may take.
        attempts: How often to send a request at most, if the service is busy.
        http: The HTTP client that sends the requests; by default a new one.

    Attributes:
        url: Address of the service.
        retries: Requests that were sent again.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        timeout_s: float = 120.0,
        attempts: int = ATTEMPTS,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self.url = _address(url or os.environ.get("ARMWISE_URL") or URL)
        self.retries = 0
        self._shown = str(httpx.URL(self.url).copy_with(userinfo=b""))  # messages have no password
        self._key = key or os.environ.get("ARMWISE_API_KEY")
        # to connect takes no long time, whatever an answer takes
        self._timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, 10.0))
        self._attempts = attempts
        self._reached = False
        self._http = proxies.async_client() if http is None else http

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def ask(self, question: Question, **options: Unpack[Options]) -> Answer:
        """Return a written answer and its passages. Raises AnswerFailedError, ClientError."""
        return await self._run(calls.ask(question, options))

    def stream(self, question: Question, **options: Unpack[Options]) -> AsyncStream:
        """Return a stream over the parts of an answer as they are written. Raises ClientError."""
        return AsyncStream(self._lines(calls.ask(question, options, stream=True)))

    async def retrieve(self, question: str, k: int | None = None, **options: Unpack[Options]) -> Answer:
        """Return passages without a written answer. Raises AnswerFailedError, ClientError."""
        return await self._run(calls.retrieve(question, k, options))

    async def choose(self, question: str, **options: Unpack[Taking]) -> ArmChoice:
        """Choose which arm your own system should run; the service does not run it.

        Args:
            question: The question.
            **options: Further fields of the request, such as `incumbent="large"`, the arm that you would
                take. The policy decides instead for a share of `tap.share` of the requests.
        """
        return await self._run(calls.choose(question, options))

    async def observe(self, *decisions: Mapping[str, Any], key: str | None = None) -> ObservationReceipts:
        """Send decisions that your own system made, at most 1000 at once.

        Args:
            *decisions: The fields of `POST /v1/observations` of each: `arm`, and `id`, `question`, `arms`,
                `propensity` or `distribution`, `cost`, `features`, `metrics` as far as they are known.
            key: Idempotency key, which names decisions without an id; by default a new one.

        Returns:
            The result of each, in order: it was kept, or refused with an error.

        Raises:
            ClientError: None of them was kept.
        """
        return await self._run(calls.observe(decisions, key))

    async def feedback(
        self, decision: Decided, metrics: Metrics | None = None, **more: float | str | bool
    ) -> FeedbackReceipts:
        """Send feedback on a decision, such as `feedback(answer, thumb=1)`. Raises ClientError."""
        return await self._run(calls.feedback(decision, {**(metrics or {}), **more}))

    async def feedback_token(self, decision: Decided) -> str:
        """Return a token with which a page may rate this answer, without a key. Raises ClientError."""
        return (await self._run(calls.feedback_token(decision))).token

    async def arms(self) -> list[str]:
        """Return the names of the enabled arms."""
        return await self._run(calls.arms())

    async def policy(self) -> Policy:
        """Return the state of the policy."""
        return await self._run(calls.policy())

    async def rollback(self, version: int, reason: str) -> Policy:
        """Serve exactly this version until the next promotion; return the new state."""
        return await self._run(calls.promotion("rollback", version, reason))

    async def promote(self, version: int, reason: str) -> Policy:
        """Serve this version, and newer ones as they are learned; return the new state."""
        return await self._run(calls.promotion("promote", version, reason))

    async def verify(self, decision_id: str) -> DecisionVerification:
        """Recompute a decision from the log."""
        return await self._run(calls.verify(decision_id))

    async def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Call any route and return its reply. Raises ClientError."""
        return await self._run(calls.document(method, path, body), timeout_s)

    async def _run(self, call: Call[T], timeout_s: float | None = None) -> T:
        return call.reply(await self.send(call, timeout_s))

    async def send(
        self, call: Call[Any], timeout_s: float | None = None, *, stream: bool = False
    ) -> httpx.Response:
        """Send a request, again while the service is busy; return the response, also one that is an error.

        Args:
            call: The request.
            timeout_s: Seconds that the response may take; None for those of the client.
            stream: Whether the body of a success is left to be read.

        Raises:
            ClientError: There was no response, or the service stays busy.
        """
        key = {"authorization": f"Bearer {self._key}"} if self._key else {}
        request = self._http.build_request(
            call.method,
            self.url + call.path,
            json=call.body,
            headers={**UNCOMPRESSED, **key, **call.headers},
            timeout=self._timeout if timeout_s is None else timeout_s,
        )
        for attempt in count(1):
            try:
                response = await self._exchange(request, stream=stream)
            except httpx.HTTPError as error:
                trouble, retry_after = self._explain_loss(call, error), None
            else:
                self._reached = True
                if not calls.is_busy(response):
                    return response
                trouble, retry_after = str(read_failure(response)), response.headers.get("retry-after")
            if attempt >= self._attempts:
                often = f"{self._name(call)} failed {attempt} times, the last time with: "
                raise ClientError(trouble if attempt == 1 else f"{often}{trouble}")
            self.retries += 1
            default = min(LONGEST_PAUSE_S, 0.1 * 2 ** (attempt - 1))
            await asyncio.sleep(retry_after_s(retry_after, default))
        raise AssertionError  # it counts without end

    async def _exchange(self, request: httpx.Request, *, stream: bool) -> httpx.Response:
        response = await self._http.send(request, stream=True)
        try:
            if not (limit_size(response, REPLY_BYTES).is_success and stream):
                await response.aread()
        except BaseException:
            await response.aclose()
            raise
        return response

    async def _lines(self, call: Call[Any]) -> AsyncGenerator[str, None]:
        response, lines = await self.send(call, stream=True), _Lines()
        if not response.is_success:
            raise read_failure(response)
        async with aclosing(response):
            try:
                async for part in response.aiter_bytes():
                    for line in lines.add(part):
                        yield line
            except httpx.HTTPError as error:
                raise AnswerFailedError(f"{self._name(call)}: the stream was lost: {error!r}") from error
            for line in lines.end():
                yield line

    def _explain_loss(self, call: Call[Any], error: httpx.HTTPError) -> str:
        """Return what happened to a request without a response that may be sent again. Raises ClientError."""
        trouble = f"{type(error).__name__} {error}".strip()
        if isinstance(error, httpx.DecodingError):
            raise ClientError(f"{self._name(call)} gave {error}") from error
        if isinstance(error, proxies.ProxySettingError):
            raise ClientError(str(error)) from error
        if not self._reached:
            raise ClientError(
                f"no service answers at {self._shown}{proxies.describe_way(self.url)} ({trouble}); "
                "is it running there? Start it with `armwise serve`, or name another address (--url, "
                "ARMWISE_URL)"
            ) from error
        if call.again or isinstance(error, httpx.ConnectError):
            return trouble
        raise ClientError(f"{self._name(call)} was lost, and may have been carried out: {trouble}") from error

    def _name(self, call: Call[Any]) -> str:
        return f"{call.method} {self._shown}{call.path}"


@cache
def _event_loop(process: int) -> Blocking:
    """Return the event loop of the blocking clients of a process; a fork needs one of its own."""
    del process
    return Blocking()


class Client:
    """A client that blocks, which threads may share; it takes the arguments of `AsyncClient`.

    Attributes:
        url: Address of the service.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        timeout_s: float = 120.0,
        attempts: int = ATTEMPTS,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self._client = AsyncClient(url, key, timeout_s=timeout_s, attempts=attempts, http=http)
        self.url = self._client.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._wait(self._client.close())

    def ask(self, question: Question, **options: Unpack[Options]) -> Answer:
        """Return a written answer and its passages; see `AsyncClient.ask`."""
        return self._wait(self._client.ask(question, **options))

    def stream(self, question: Question, **options: Unpack[Options]) -> Stream:
        """Return a stream over the parts of an answer as they are written; see `AsyncClient.stream`."""
        return Stream(self._client.stream(question, **options))

    def retrieve(self, question: str, k: int | None = None, **options: Unpack[Options]) -> Answer:
        """Return passages without a written answer; see `AsyncClient.retrieve`."""
        return self._wait(self._client.retrieve(question, k, **options))

    def choose(self, question: str, **options: Unpack[Taking]) -> ArmChoice:
        """Choose which arm your own system should run; see `AsyncClient.choose`."""
        return self._wait(self._client.choose(question, **options))

    def observe(self, *decisions: Mapping[str, Any], key: str | None = None) -> ObservationReceipts:
        """Send decisions that your own system made; see `AsyncClient.observe`."""
        return self._wait(self._client.observe(*decisions, key=key))

    def feedback(
        self, decision: Decided, metrics: Metrics | None = None, **more: float | str | bool
    ) -> FeedbackReceipts:
        """Send feedback on a decision; see `AsyncClient.feedback`."""
        return self._wait(self._client.feedback(decision, metrics, **more))

    def feedback_token(self, decision: Decided) -> str:
        """Return a token with which a page may rate this answer; see `AsyncClient.feedback_token`."""
        return self._wait(self._client.feedback_token(decision))

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Call any route and return its reply; see `AsyncClient.request`."""
        return self._wait(self._client.request(method, path, body, timeout_s))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return _event_loop(os.getpid()).run(work)

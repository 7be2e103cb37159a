"""Any endpoint with the OpenAI chat-completions protocol.

What fails for a moment is tried again within the patience of the prompt. Where an endpoint says that its
rate is used up, no request is sent until it may be, and a parameter that it says its model does not take is
not sent again. Nothing that it sends is trusted: `completion_stream` reads its answers, within the bounds of
`armwise.arms.upstream`; redirects are not followed.
"""

import asyncio
import json
import logging
import re
import time
import weakref
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    stop_before_delay,
    wait_random_exponential,
)
from typing_extensions import override
from yarl import URL

from armwise.arms import upstream
from armwise.arms.llm.base import (
    HINTS,
    Chunk,
    Generator,
    GeneratorBusyError,
    GeneratorError,
    GeneratorRefusedError,
    GeneratorTimeoutError,
    InputRefusedError,
    Message,
    Prompt,
    PromptTooLongError,
    list_inputs,
)
from armwise.arms.llm.completion_stream import (
    DONE,
    UNLIMITED_TOKENS,
    AnswerLimits,
    AnswerStream,
    CompletionStream,
    Refusal,
    refusal_in,
)
from armwise.arms.secrets import read_secret
from armwise.arms.upstream import UpstreamError

logger = logging.getLogger(__name__)

PAUSE = wait_random_exponential(multiplier=0.5, max=8.0)
"""Wait between attempts without Retry-After: random, up to 0.5 s, then 1, 2 and so on."""

LONGEST_PAUSE_S = 60.0
"""Longest Retry-After that is waited for."""

PASSING = frozenset((408, 409, 429))
"""Statuses below 500 after which another attempt may succeed."""

LASTING = frozenset((401, 402, 403, 404))
"""Statuses of a key, an account or a model that is wrong: a retry changes nothing."""

ANSWER_BYTES, BYTES_OF_A_TOKEN = 16 << 20, 4096
"""Bytes of an answer that are read, and for each of its tokens beside these: an event, with probabilities."""

DRAIN_S = 0.1
"""Seconds that the end of a response is waited for, once its answer is there."""

CONNECTIONS = 1000
"""Connections to an endpoint at once."""

IDLE_S = 30.0
"""Seconds that a connection without a request is kept."""

OTHER_LIMIT = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
"""The two names of the limit of an answer: a model takes one of them, or both."""

OMISSIBLE = (HINTS - OTHER_LIMIT.keys()) | {
    *("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "stream_options"),
}
"""Parameters without which an answer is still the answer to its prompt."""

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)")

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_INPUT = re.compile(r"image|vision|media|modal|file|document|pdf|content[ _](type|part)", re.IGNORECASE)

_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class StatusError(Exception):
    """An endpoint has answered with an error.

    Attributes:
        status: HTTP status.
        headers: Headers.
        refusal: What the body says.
    """

    def __init__(self, status: int, headers: Mapping[str, str], refusal: Refusal) -> None:
        super().__init__(status)
        self.status, self.headers, self.refusal = status, headers, refusal

    @override
    def __str__(self) -> str:
        """The status and the code, which callers may see; not the message."""
        code = self.refusal.code
        return f"HTTP {self.status}, {code}" if _CODE.fullmatch(code) else f"HTTP {self.status}"


class OpenAIGenerator(Generator):
    """Writes answers with the model of an endpoint.

    Usage that is not reported, or cannot be true, is estimated from the length of the texts.

    Args:
        base_url: Base URL of the protocol, mostly ending in `/v1`.
        model: Name of the model at the endpoint.
        api_key_env: Environment variable that holds the key; None for no key.
        timeout_s: Longest silence of the endpoint.
        max_retries: Further attempts after a refused or failed connection, 429 or 5xx.
        request: Fields merged into each request body; None removes a field.

    Raises:
        GeneratorError: The environment variable is not set, or has what no header can hold.
    """

    path = "/chat/completions"
    """Path of the protocol below the base URL."""

    omissible = OMISSIBLE
    """Parameters that are left out once the endpoint has refused them."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key_env: str | None = None,
        timeout_s: float = 60.0,
        max_retries: int = 2,
        request: Mapping[str, Any] | None = None,
    ) -> None:
        url = URL(base_url, encoded=True)
        self.model = model
        self._name = f"{model} at {url.with_user(None).with_query(None)}"
        authorization = self._authorization(api_key_env)
        path = f"{url.raw_path.rstrip('/')}{self.path}"
        self._url = (url.with_user(None) if authorization else url).with_path(
            path, encoded=True, keep_query=True
        )
        self._proxy = _find_proxy(url)
        self._attempts = 1 + max_retries
        self._rests_until = 0.0
        self._request = dict(request or {})
        self._timeout_s = timeout_s
        self._unsupported = set[str]()
        self._headers = {
            "accept": "text/event-stream",
            "accept-encoding": "identity",
            "content-type": "application/json",
            **self._add_headers(),
            **authorization,
        }
        self._certificates = httpx.create_ssl_context()
        self._session: aiohttp.ClientSession | None = None

    def _authorization(self, variable: str | None) -> dict[str, str]:
        if variable is None:
            return {}
        if not (key := read_secret(variable)):
            raise GeneratorError(f"{self._name} needs a key: set the variable {variable}")
        if not (key.isascii() and key.isprintable()):
            raise GeneratorError(f"{self._name}: no header can hold what the variable {variable} does")
        return self._present(key)

    def _present(self, key: str) -> dict[str, str]:
        """Return the header that holds the key."""
        return {"authorization": f"Bearer {key}"}

    def _add_headers(self) -> dict[str, str]:
        """Return the headers of the protocol beside those of every request."""
        return {}

    @override
    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        with self._named_errors(attached=bool(list_inputs(prompt.messages))):
            reply, answer, most = await self._begun(prompt)
            try:
                encoding = reply.headers.get("content-encoding")
                body = upstream.decoded(reply.content.iter_any(), encoding, most)
                async with aclosing(body), aclosing(upstream.events_or_object(body)) as events:
                    async for piece in _pieces(events, answer):
                        yield piece
                yield answer.last()
            finally:
                reply.close()
            if answer.doubted:
                logger.warning("%s reports usage that cannot be true: it is estimated", self._name)

    @override
    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    @contextmanager
    def _named_errors(self, *, attached: bool) -> Iterator[None]:
        """Have whatever fails be an error that names the endpoint, and shows nothing of what it sent.

        Args:
            attached: Whether the conversation has an image or a file, which the model may not read.
        """
        try:
            yield
        except TimeoutError as error:
            raise GeneratorTimeoutError(f"{self._name} was silent for {self._timeout_s} s") from error
        except aiohttp.ClientError as error:
            logger.warning("%s: %s %r", self._name, type(error).__name__, str(error)[: upstream.SHOWN_CHARS])
            raise GeneratorError(f"{self._name}: the connection failed ({type(error).__name__})") from error
        except UpstreamError as error:
            raise GeneratorError(f"{self._name} sent {error}") from error
        except StatusError as error:
            refused = error.status in (400, 413, 415, 422) and _INPUT.search(error.refusal.message)
            if attached and refused and not error.refusal.is_too_long:
                message = f"{self._name}: {error}: the model does not read an image or a file of the request"
                raise InputRefusedError(message) from error
            raise self._refused(error) from error

    def _refused(self, error: StatusError) -> GeneratorError:
        """Return the error of an answer with a status that is none of success."""
        message = f"{self._name}: {error}"
        if error.status == 429:
            rest_s = upstream.retry_after_s(error.headers)
            self._rest(1.0 if rest_s is None else rest_s)
            return self._busy(str(error))
        if error.status in (400, 413, 422) and error.refusal.is_too_long:
            return PromptTooLongError(f"{message}: the conversation is longer than the context of the model")
        if error.status in LASTING:
            return GeneratorRefusedError(message)
        if 300 <= error.status < 400:
            return GeneratorError(f"{message}: redirects are not followed")
        return GeneratorError(message)

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        limit = "max_completion_tokens" if "max_completion_tokens" in prompt.options else "max_tokens"
        body: dict[str, Any] = {
            **prompt.options,
            "model": self.model,
            "messages": [_written(message) for message in prompt.messages],
            **({"tools": [*map(_unmarked, tools)]} if (tools := prompt.options.get("tools")) else {}),
            OTHER_LIMIT[limit] if limit in self._unsupported else limit: prompt.max_tokens,
            "temperature": prompt.temperature,
            "top_p": None if prompt.top_p == 1.0 else prompt.top_p,
            "stop": prompt.stop or None,
            "seed": prompt.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        kept = {name: value for name, value in body.items() if name not in self._unsupported}
        return {name: value for name, value in (kept | self._request).items() if value is not None}

    def _read_answer(self, limits: AnswerLimits, read: Sequence[str]) -> AnswerStream:
        """Return what reads the events of an answer."""
        return CompletionStream(limits, read)

    async def _begun(self, prompt: Prompt) -> tuple[aiohttp.ClientResponse, AnswerStream, int]:
        """Send a request, and again while it fails for a moment and there is time.

        Returns:
            The response, what reads it, and how many bytes it may have.
        """
        if self._rests_until > time.monotonic():
            raise self._busy("its rate is used up")
        stop, left = stop_after_attempt(self._attempts), prompt.patience_s
        attempts = AsyncRetrying(
            stop=stop if left is None else stop | stop_before_delay(left),
            wait=choose_pause,
            retry=retry_if_exception(_passes),
            reraise=True,
        )
        async for attempt in attempts:
            with attempt:
                reply, body, size = await self._learning(prompt)
        self._rest(used_up_s(reply.headers))
        limits = AnswerLimits(_positive(body.get("n"), 1), _positive(_limit_in(body), UNLIMITED_TOKENS), size)
        answer = self._read_answer(limits, [message["content"] for message in prompt.messages])
        return reply, answer, ANSWER_BYTES + BYTES_OF_A_TOKEN * limits.choices * limits.tokens

    async def _learning(self, prompt: Prompt) -> tuple[aiohttp.ClientResponse, dict[str, Any], int]:
        """Send a request, and again without a parameter that the model does not take."""
        while True:
            body = self._body(prompt)
            try:
                return await self._sent(body)
            except StatusError as error:
                param = self._find_unsupported(error.refusal)
                if error.status not in (400, 422) or not self._can_go_without(param, body):
                    raise
                self._unsupported.add(param)
                logger.warning("%s does not take %r: it is not sent any more", self._name, param)

    def _find_unsupported(self, refusal: Refusal) -> str:
        """Return the parameter that a model does not take; empty for none."""
        return refusal.unsupported

    def _can_go_without(self, param: str, body: Mapping[str, Any]) -> bool:
        """Return whether a request can be sent without a parameter that nobody has configured for it."""
        if param not in body or param in self._request:
            return False
        return param in self.omissible or OTHER_LIMIT.get(param, param) not in {param, *self._unsupported}

    async def _sent(self, body: dict[str, Any]) -> tuple[aiohttp.ClientResponse, dict[str, Any], int]:
        """Send a request; return a response of success, the body and its size. Raises StatusError."""
        content = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        reply = await self._opened().post(self._url, data=content, allow_redirects=False, proxy=self._proxy)
        if 200 <= reply.status < 300:
            return reply, body, len(content)
        try:
            encoding = reply.headers.get("content-encoding")
            beginning = await upstream.read_beginning(reply.content.iter_any(), encoding)
        finally:
            reply.close()
        logger.warning("%s answered %d: %s", self._name, reply.status, upstream.shown(beginning))
        raise StatusError(reply.status, reply.headers, refusal_in(beginning))

    def _opened(self) -> aiohttp.ClientSession:
        """Return the connections, which belong to the event loop that asks first."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=CONNECTIONS, keepalive_timeout=IDLE_S, ssl=self._certificates
                ),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(sock_connect=self._timeout_s, sock_read=self._timeout_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
            weakref.finalize(self, _close_there, asyncio.get_running_loop(), self._session)
        return self._session

    def _rest(self, seconds: float) -> None:
        if seconds:
            self._rests_until = max(self._rests_until, time.monotonic() + seconds)

    def _busy(self, why: str) -> GeneratorBusyError:
        left = max(0.1, self._rests_until - time.monotonic())
        return GeneratorBusyError(f"{self._name}: {why}", round(left, 3))


async def _pieces(events: AsyncGenerator[bytes, None], answer: AnswerStream) -> AsyncGenerator[Chunk, None]:
    """Yield the pieces of an answer; what fails once it is complete does not matter."""
    try:
        async for data in events:
            if data == DONE:
                break
            for piece in answer.pieces(data):
                yield piece
            if answer.closed:
                break
        async with asyncio.timeout(DRAIN_S):
            async for _ in events:  # what is read to its end leaves its connection open
                pass
    except (aiohttp.ClientError, UpstreamError, TimeoutError):
        if answer.unfinished is not None:
            raise


def _close_there(loop: asyncio.AbstractEventLoop, session: aiohttp.ClientSession) -> None:
    """Close the connections of a model that nobody has closed, in their event loop if it still runs."""
    if loop.is_running() and not session.closed:
        asyncio.run_coroutine_threadsafe(session.close(), loop)


def _find_proxy(url: URL) -> str | None:
    """Return the proxy of this machine's environment for an address, if there is one."""
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    return None if proxy is None or proxy_bypass(url.host or "") else proxy


def _limit_in(body: Mapping[str, Any]) -> Any:
    return body.get("max_completion_tokens", body.get("max_tokens"))


def _positive(value: Any, default: int) -> int:
    """Return a number of a request body, which may be anything that was configured."""
    return value if isinstance(value, int) and value > 0 else default


def _passes(error: BaseException) -> bool:
    if isinstance(error, StatusError):
        return error.status in PASSING or error.status >= 500
    return isinstance(error, aiohttp.ClientConnectionError)  # a time-out is one


def choose_pause(state: RetryCallState) -> float:
    """Return the seconds until the next attempt: as the endpoint asks, up to a limit, or a random pause."""
    error = state.outcome.exception() if state.outcome else None
    requested_s = upstream.retry_after_s(error.headers) if isinstance(error, StatusError) else None
    return min(requested_s or 0.0, LONGEST_PAUSE_S) or PAUSE(state)


def used_up_s(headers: Mapping[str, str]) -> float:
    """Return the seconds until a rate that is used up is there again, an hour at most; 0 where some is left.

    >>> used_up_s({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m30s"})
    90.0
    >>> used_up_s({"x-ratelimit-remaining-tokens": "100", "x-ratelimit-reset-tokens": "6ms"})
    0.0
    """
    rests = [
        sum(float(n) * _SECONDS[unit] for n, unit in _DURATION.findall(headers[f"x-ratelimit-reset-{of}"]))
        for of in ("requests", "tokens")
        if headers.get(f"x-ratelimit-remaining-{of}") == "0" and f"x-ratelimit-reset-{of}" in headers
    ]
    return min(max(rests, default=0.0), upstream.LONGEST_REST_S)


def _written(message: Message) -> dict[str, Any]:
    """Return a message as the protocol has it: parts in the place of text, no text where it calls functions.

    Marks of what may be cached are left out: endpoints of the protocol cache by themselves, and refuse them.
    """
    written: dict[str, Any] = {name: value for name, value in message.items() if name != "is_error"}
    if parts := written.pop("parts", None):
        attached = any(part["type"] != "text" for part in parts)
        written["content"] = [*map(_unmarked, parts)] if attached else message["content"]
    if calls := message.get("tool_calls"):
        written["tool_calls"] = [*map(_unmarked, calls)]
        written["content"] = message["content"] or None
    return written


def _unmarked(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != "cache_control"}

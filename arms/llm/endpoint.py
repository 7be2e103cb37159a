"""A language model at an address, which speaks one of the protocols of `armwise.arms.llm.protocols`.

A request of a client in that protocol is passed on as it came, with a patch; one in another is translated.
What fails for a moment is tried again within the patience of the prompt. Where an endpoint says that its
rate is used up, no request is sent until it may be, and a parameter that it says its model does not take is
not sent again. Nothing that it sends is trusted: its answers are read within the bounds of
`armwise.arms.upstream`; redirects are not followed.
"""

import asyncio
import hashlib
import logging
import re
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any

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

from armwise.arms import proxies, upstream
from armwise.arms.large import call_beside
from armwise.arms.llm.base import (
    HINTS,
    SILENCE_S,
    Chunk,
    Generator,
    GeneratorBusyError,
    GeneratorError,
    GeneratorRefusedError,
    GeneratorTimeoutError,
    Prompt,
    PromptRefusedError,
    PromptTooLongError,
    Refusal,
)
from armwise.arms.llm.protocols import PROTOCOLS, AnswerReader, Document, Patch, ProtocolName, Request, chat
from armwise.arms.llm.protocols.answer import (
    UNLIMITED_TOKENS,
    AnswerLimits,
    FailedAnswerError,
    find_request_status,
    find_unsupported,
    is_status_of_request,
    is_too_long,
    refusal_in,
)
from armwise.arms.llm.translate.documents import write_document
from armwise.arms.secrets import read_secret
from armwise.arms.upstream import SentEvent, UpstreamError

logger = logging.getLogger(__name__)

PAUSE = wait_random_exponential(multiplier=0.5, max=8.0)
"""Wait between attempts without Retry-After: random, up to 0.5 s, then 1, 2 and so on."""

LONGEST_PAUSE_S = 60.0
"""Longest Retry-After of a failure that is waited for."""

LONGEST_BUSY_S = 2.0
"""Longest Retry-After of a used-up rate that is waited for: after a longer one another arm may answer."""

PASSING = frozenset((408, 409, 429))
"""Statuses below 500 after which another attempt may succeed."""

BUSY = frozenset((429, 529))
"""Statuses of an endpoint that takes no more requests for a while."""

LASTING = frozenset((401, 402, 403, 404))
"""Statuses of a key, an account or a model that is wrong: a retry changes nothing."""

ANSWER_BYTES, BYTES_OF_A_TOKEN, MOST_BYTES = 16 << 20, 4096, 256 << 20
"""Bytes of an answer that are read, for each of its tokens beside these (an event, with probabilities), and
most of all."""

MOST_AFTER = 100
"""Events after the end of an answer that are read, for its usage."""

EVENTS_AT_ONCE = 16
"""Events of an answer that are read before other tasks have a turn, however fast they arrive."""

MOST_LEARNED = 1000
"""Forms of requests of which it is known what the model does not take."""

DRAIN_S = 0.1
"""Seconds that the end of a response is waited for, once its answer is there."""

CONNECTIONS = 1000
"""Connections to an endpoint at once."""

IDLE_S = 30.0
"""Seconds that a connection without a request is kept."""

OTHER_LIMIT = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
"""The two names of the limit of an answer: a model takes one of them, or both."""

DONE = b"[DONE]"
"""Data of the last event of chat completions."""

ANTHROPIC_VERSION = "2023-06-01"
"""Version of Anthropic's protocol, which a request names."""

LEFT_OUT_TOGETHER = ("top_p", "temperature")
"""Parameters that some of Anthropic's models do not take, or not both: the first is left out first."""

_REFUSED_SAMPLING = re.compile(
    r"[`']?(temperature|top_p)\b.*(deprecated|not permitted|not support|unsupported|cannot both)",
    re.IGNORECASE,
)
"""Messages of Anthropic's models, which give no `param`: they begin with the field, and quote its number."""

OMISSIBLE = (HINTS - OTHER_LIMIT.keys()) | {
    *("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "stream_options"),
}
"""Parameters without which an answer is still the answer to its prompt."""

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)")

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

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


class EndpointGenerator(Generator):
    """Writes answers with the model of an endpoint.

    Usage that is not reported, or cannot be true, is estimated from the length of the texts.

    Args:
        protocol: The protocol that the endpoint speaks.
        base_url: Base URL of the protocol, mostly ending in `/v1`.
        model: Name of the model at the endpoint.
        api_key_env: Environment variable that holds the key; None for no key.
        timeout_s: Longest silence of the endpoint.
        max_retries: Further attempts after a refused or failed connection, 429 or 5xx.
        request: Fields merged into each request body; None removes a field.

    Raises:
        GeneratorError: The environment variable is not set, or has what no header can hold.
    """

    def __init__(
        self,
        protocol: ProtocolName,
        base_url: str,
        model: str,
        *,
        api_key_env: str | None = None,
        timeout_s: float = SILENCE_S,
        max_retries: int = 2,
        request: Mapping[str, Any] | None = None,
    ) -> None:
        url = URL(base_url, encoded=True)
        self.model = model
        self._protocol_name, self._protocol = protocol, PROTOCOLS[protocol]
        self._name = f"{model} at {url.with_user(None).with_query(None)}"
        authorization = self._authorization(api_key_env)
        path = f"{url.raw_path.rstrip('/')}{self._protocol.PATH}"
        self._url = (url.with_user(None) if authorization else url).with_path(
            path, encoded=True, keep_query=True
        )
        self._shortens_ids = protocol == "chat" and "mistral" in f"{url.host} {model}".lower()
        try:
            self._proxy = proxies.find_proxy(base_url, ("socksio", "aiohttp_socks"))
        except proxies.ProxySettingError as error:
            raise GeneratorError(f"{self._name}: {error}") from error
        self._attempts = 1 + max_retries
        self._rests_until = 0.0
        self._request = dict(request or {})
        self._timeout_s = timeout_s
        self._unsupported = dict[bytes, frozenset[str]]()  # by the form of a request
        self._headers = {
            "accept-encoding": "identity",
            "content-type": "application/json",
            **({"anthropic-version": ANTHROPIC_VERSION} if protocol == "messages" else {}),
            **authorization,
        }
        self._certificates = httpx.create_ssl_context()
        self._session: aiohttp.ClientSession | None = None

    def _authorization(self, variable: str | None) -> dict[str, str]:
        if variable is None:
            return {}
        if not (key := read_secret(variable)):
            raise GeneratorError(f"{self._name} needs a key: set the environment variable {variable}")
        if not (key.isascii() and key.isprintable()):
            raise GeneratorError(
                f"{self._name}: the variable {variable} has characters that a header cannot hold"
            )
        if self._protocol_name == "messages":
            return {"x-api-key": key}
        return {"authorization": f"Bearer {key}"}

    @override
    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        with self._name_errors(prompt):
            reply, answer, most = await self._begin(prompt)
            try:
                encoding = reply.headers.get("content-encoding")
                body = upstream.decompress(reply.content.iter_any(), encoding, most)
                async with aclosing(body), aclosing(upstream.events_or_object(body)) as events:
                    async for piece in _pieces(events, answer):
                        yield piece
                yield answer.last()
            finally:
                reply.close()
            if answer.doubted:
                logger.warning("%s reports impossible usage, so it is estimated instead", self._name)

    @override
    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    @contextmanager
    def _name_errors(self, prompt: Prompt) -> Iterator[None]:
        """Have whatever fails be an error that names the endpoint, and shows nothing of what it sent."""
        try:
            yield
        except TimeoutError as error:
            silent_s = self._silence_s(prompt)
            late = GeneratorTimeoutError(f"{self._name} sent nothing for {silent_s:g} s")
            late.shown = f"it sent nothing for {silent_s:g} s"
            raise late from error
        except aiohttp.ClientError as error:
            logger.warning("%s: %s %r", self._name, type(error).__name__, str(error)[: upstream.SHOWN_CHARS])
            way = "" if self._proxy is None else f" through {self._proxy}"
            failure = GeneratorError(f"{self._name}: the connection failed{way} ({type(error).__name__})")
            failure.shown = "the connection failed"
            raise failure from error
        except UpstreamError as error:
            raise error_of_answer(self._name, error) from error
        except StatusError as error:
            if error.status in BUSY:
                self._rest(upstream.retry_after_s(error.headers) or 0.0)
            raise error_of_status(self._name, error, self._rest_s) from error

    def _body(self, prompt: Prompt) -> Document:
        """Return the document that is sent for a prompt, unless the model does not take all of it."""
        request, patch = read_prompt(prompt, self.model)
        body = self._protocol.write(request.to(self._protocol_name), patch)
        if self._shortens_ids:
            body = chat.shorten_ids(body)
        if self._request:
            merged = body | self._request
            body = {
                name: value
                for name, value in merged.items()
                if value is not None or name not in self._request
            }
        return body

    async def _begin(self, prompt: Prompt) -> tuple[aiohttp.ClientResponse, AnswerReader, int]:
        """Send a request, and again while it fails for a moment and there is time.

        Returns:
            The response, what reads it, and how many bytes it may have.
        """
        if self._rests_until > time.monotonic():
            raise GeneratorBusyError(f"{self._name}: its rate limit is used up", self._rest_s)
        async for attempt in list_attempts(self._attempts, prompt.patience_s):
            with attempt:
                reply, body, size = await self._learning(prompt)
        self._rest(read_reset_s(reply.headers))
        tokens = self._protocol.read_limit(body) or UNLIMITED_TOKENS
        n = body.get("n") if self._protocol_name == "chat" else 1
        choices = n if isinstance(n, int) and n > 0 else 1  # it may be configured
        limits = AnswerLimits(choices, tokens, size)
        answer = self._protocol.Reader(limits, [message["content"] for message in prompt.messages])
        most = ANSWER_BYTES + BYTES_OF_A_TOKEN * limits.choices * limits.tokens
        return reply, answer, min(most, MOST_BYTES)

    async def _learning(self, prompt: Prompt) -> tuple[aiohttp.ClientResponse, dict[str, Any], int]:
        """Send a request, and again without a parameter that the model does not take.

        That is remembered for requests of the same form alone: a caller can have a model refuse a parameter
        that it takes otherwise, such as an effort with tools.
        """
        size = 0 if prompt.request is None else prompt.request.size
        body = await call_beside(size, partial(self._body, prompt))
        form = _digest_form(body)
        while True:
            without = self._unsupported.get(form, frozenset())
            sent = _without(body, without)
            try:
                content = await call_beside(size, partial(write_document, sent))
                return await self._send(content, prompt), sent, len(content)
            except StatusError as error:
                param = self._find_unsupported(error.refusal, sent)
                if error.status not in (400, 422) or param not in sent or param in self._request:
                    raise
                if param not in OMISSIBLE and OTHER_LIMIT.get(param, param) in {param, *without}:
                    raise
                if len(self._unsupported) >= MOST_LEARNED:
                    del self._unsupported[next(iter(self._unsupported))]
                self._unsupported[form] = without | {param}
                logger.warning("%s does not accept %r: such requests are sent without it", self._name, param)

    def _find_unsupported(self, refusal: Refusal, sent: Document) -> str:
        """Return the parameter that a model does not take; empty for none."""
        if self._protocol_name != "messages":
            return find_unsupported(refusal)
        named = (name for name in LEFT_OUT_TOGETHER if name in refusal.message and name in sent)
        return next(named, "") if _REFUSED_SAMPLING.match(refusal.message) else ""

    async def _send(self, content: bytes, prompt: Prompt) -> aiohttp.ClientResponse:
        """Send a request; return a response of success. Raises StatusError."""
        silent_s = self._silence_s(prompt)
        reply = await self._open_session().post(
            self._url,
            data=content,
            headers={
                "accept": "text/event-stream" if prompt.streams else "application/json",
                **prompt.headers,
            },
            allow_redirects=False,
            proxy=self._proxy.url if self._proxy is not None and not self._proxy.is_socks else None,
            timeout=aiohttp.ClientTimeout(sock_connect=self._timeout_s, sock_read=silent_s),
        )
        if 200 <= reply.status < 300:
            return reply
        try:
            encoding = reply.headers.get("content-encoding")
            beginning = await upstream.read_beginning(reply.content.iter_any(), encoding)
        finally:
            reply.close()
        logger.warning("%s answered %d: %s", self._name, reply.status, upstream.quote_start(beginning))
        raise StatusError(reply.status, reply.headers, refusal_in(beginning))

    def _silence_s(self, prompt: Prompt) -> float:
        """Return the longest silence of the endpoint: a whole answer may take as long as the turn."""
        return self._timeout_s if prompt.streams else max(self._timeout_s, prompt.patience_s or 0.0)

    def _open_session(self) -> aiohttp.ClientSession:
        """Return the connections, which belong to the event loop that asks first."""
        if self._session is None:
            connect: Callable[..., aiohttp.BaseConnector] = aiohttp.TCPConnector
            if self._proxy is not None and self._proxy.is_socks:
                connect = partial(proxies.connect_by_socks, self._proxy)
            self._session = aiohttp.ClientSession(
                connector=connect(limit=CONNECTIONS, keepalive_timeout=IDLE_S, ssl=self._certificates),
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
            weakref.finalize(self, _close_there, asyncio.get_running_loop(), self._session)
        return self._session

    def _rest(self, seconds: float) -> None:
        if seconds:
            self._rests_until = max(self._rests_until, time.monotonic() + seconds)

    @property
    def _rest_s(self) -> float:
        """Seconds until the endpoint takes requests again, as it has named them; 0 for none."""
        return round(max(0.0, self._rests_until - time.monotonic()), 3)


def error_of_answer(name: str, error: UpstreamError) -> GeneratorError:
    """Return the error of an answer that breaks off, or has an error in its place.

    Args:
        name: Names the model.
        error: What is wrong with the answer.
    """
    failure = GeneratorError(f"{name} sent {error}")
    if isinstance(error, FailedAnswerError):
        if (status := find_request_status(error.refusal)) is not None:
            failure = PromptRefusedError(f"{name} sent {error}")
            failure.status = status
        failure.refusal, failure.native = error.refusal, error.native
    failure.shown = f"it sent {error}"
    return failure


def error_of_status(name: str, error: StatusError, rest_s: float) -> GeneratorError:
    """Return the error of an answer with a status that is none of success.

    Args:
        name: Names the model.
        error: The status, and what the endpoint says.
        rest_s: Seconds until the endpoint takes requests again.
    """
    status, refusal, message, shown = error.status, error.refusal, f"{name}: {error}", str(error)
    failure: GeneratorError
    if status in BUSY:
        failure = GeneratorBusyError(message, rest_s)
    elif status in LASTING:
        failure = GeneratorRefusedError(message)
        failure.may_be_asked_for = status in (403, 404) and refusal.code != "model_not_found"
        failure.status = status if status == 404 else None
        refusal = refusal if status == 404 else Refusal()
    elif is_status_of_request(status) and is_too_long(refusal):
        shown = "the conversation is longer than the model's context"
        failure = PromptTooLongError(f"{message}: {shown}")
        failure.status = status
    elif is_status_of_request(status):
        failure = PromptRefusedError(message)
        failure.status = status
    elif 300 <= status < 400:
        failure, refusal = GeneratorError(f"{message}: redirects are not followed"), Refusal()
    else:
        failure, refusal = GeneratorError(message), Refusal()
    failure.refusal, failure.shown = refusal, shown
    return failure


def read_prompt(prompt: Prompt, model: str) -> tuple[Request, Patch]:
    """Return the request that a prompt is for, and what it is changed by for a model at an address."""
    request = prompt.request or Request("chat", chat.from_prompt(prompt))
    patch = Patch(
        model,
        streams=prompt.streams,
        instructions="" if prompt.request is None else prompt.instructions,
        max_tokens=prompt.max_tokens if prompt.sets_limit else None,
        temperature=prompt.temperature,
        effort=prompt.options.get("reasoning_effort"),
    )
    return request, patch


async def _pieces(
    events: AsyncGenerator[SentEvent, None], answer: AnswerReader
) -> AsyncGenerator[Chunk, None]:
    """Yield the pieces of an answer; what fails once it is complete does not matter."""
    after, read = 0, 0
    try:
        async for event in events:
            read += 1
            if read % EVENTS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if event.data == DONE:
                break
            for piece in answer.pieces(event.data, event.name):
                yield piece
            after = after + 1 if answer.unfinished is None else 0
            if answer.closed or after > MOST_AFTER:
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


def _digest_form(body: Document) -> bytes:
    """Return a hash of the names of the fields of a request, and of the texts of those it can do without."""
    texts = {name: body[name][:64] for name in OMISSIBLE & body.keys() if isinstance(body[name], str)}
    return hashlib.sha256(write_document({"names": sorted(body), **dict(sorted(texts.items()))})).digest()


def _without(body: Document, names: Collection[str]) -> Document:
    """Return a request without fields; a limit of the answer gets its other name instead."""
    renamed = {name: OTHER_LIMIT[name] for name in OTHER_LIMIT if name in names}
    return {
        renamed.get(name, name): value
        for name, value in body.items()
        if name not in names or (name in renamed and renamed[name] not in body)
    }


def _passes(error: BaseException) -> bool:
    if isinstance(error, StatusError):
        if error.status in BUSY and (upstream.retry_after_s(error.headers) or 0.0) > LONGEST_BUSY_S:
            return False
        return error.status in PASSING or error.status >= 500
    return isinstance(error, aiohttp.ClientConnectionError)  # a time-out is one


def list_attempts(most: int, patience_s: float | None) -> AsyncRetrying:
    """Return the attempts at a request, of which a next one follows a failure that may pass.

    Args:
        most: Most attempts, at least 1.
        patience_s: Longest time for all of them, pauses included; None: unlimited.
    """
    stop = stop_after_attempt(most)
    return AsyncRetrying(
        stop=stop if patience_s is None else stop | stop_before_delay(patience_s),
        wait=choose_pause,
        retry=retry_if_exception(_passes),
        reraise=True,
    )


def choose_pause(state: RetryCallState) -> float:
    """Return the seconds until the next attempt: as the endpoint asks, up to a limit, or a random pause."""
    error = state.outcome.exception() if state.outcome else None
    requested_s = upstream.retry_after_s(error.headers) if isinstance(error, StatusError) else None
    return min(requested_s or 0.0, LONGEST_PAUSE_S) or PAUSE(state)


def read_reset_s(headers: Mapping[str, str]) -> float:
    """Return the seconds until a rate that is used up is there again, an hour at most; 0 where some is left.

    >>> read_reset_s({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m30s"})
    90.0
    >>> read_reset_s({"x-ratelimit-remaining-tokens": "100", "x-ratelimit-reset-tokens": "6ms"})
    0.0
    """
    rests = [
        sum(float(n) * _SECONDS[unit] for n, unit in _DURATION.findall(headers[f"x-ratelimit-reset-{of}"]))
        for of in ("requests", "tokens")
        if headers.get(f"x-ratelimit-remaining-{of}") == "0" and f"x-ratelimit-reset-{of}" in headers
    ]
    return min(max(rests, default=0.0), upstream.LONGEST_REST_S)

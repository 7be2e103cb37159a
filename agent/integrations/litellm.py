"""The tap of LiteLLM: each call of a model is sent as an observed decision.

    import litellm
    from armwise.agent.integrations.litellm import ArmwiseLogger

    litellm.callbacks = [ArmwiseLogger()]

In a proxy, a module of yours creates the logger, and `litellm_settings.callbacks` names it. Calls are never
delayed: they enter a bounded queue, from which a thread sends batches. If the queue is full, or the service
unavailable for long, observations are dropped, counted and logged, and the calls succeed.
"""

import atexit
import hashlib
import logging
import queue
import re
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from litellm.integrations.custom_logger import CustomLogger
from typing_extensions import override

from armwise.agent.client import Client, ClientError

logger = logging.getLogger(__name__)

KEY = "armwise"
"""Key of the metadata of a call under which further fields of its decision are read: a `Draw`."""

FEATURES = "features"
"""The one field that is read of a plain object, too, which clients of a proxy may send."""

TAKEN = ("id", "arm", "arms", "propensity", "distribution", FEATURES, "episode_id", "user", "metrics")
"""Fields of a `Draw`, as `POST /v1/observations` has them."""

LONGEST = 8000
"""Most characters of a question that are sent, as many as a service reads by default."""

BATCH = 100
"""Most calls in one request."""

TOO_LARGE = 413
"""Status of a batch that has more bytes than `limits.body_bytes`."""

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Draw(dict[str, Any]):
    """What your own code knows of a call: `metadata={"armwise": Draw(propensity=0.9)}`.

    It is a class because the clients of a proxy send metadata, too. What they send is a plain object, of
    which only `features` are read: a client states neither what was drawn, nor its probability or reward.

    Args:
        fields: Those of `TAKEN`.

    Raises:
        ValueError: A field is not one of them.
    """

    def __init__(self, **fields: Any) -> None:
        if unknown := sorted(fields.keys() - set(TAKEN)):
            raise ValueError(f"a Draw has no field {unknown[0]!r}; available: {', '.join(TAKEN)}")
        super().__init__(fields)


class ArmwiseLogger(CustomLogger):
    """Sends each call of a model as an observation, in the background.

    The arm is the model, as `tap.names` maps it. `metadata={"armwise": Draw(propensity=0.9)}` of a call
    states the probability of the draw; by default it is unknown. The id is that of the response, under which
    feedback is sent later; the episode is the session. Answers from LiteLLM's cache are left out.

    Args:
        url: Address of the service; by default `ARMWISE_URL`, or port 8000 of this machine.
        api_key: Key, if the service requires one; by default `ARMWISE_API_KEY`.
        content: Whether the newest message of the user is sent as the question, cut to `LONGEST` characters.
        most: Most calls in the queue; further ones are dropped.
        interval_s: Most seconds until a batch is sent.
        client: Sends the batches; by default a new one.

    Attributes:
        sent: Number of calls that are durable.
        dropped: Number of calls dropped: the queue was full, the service unavailable, or the call refused.
        ignored: Number of calls with fields in their metadata that only a `Draw` may have.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        content: bool = True,
        most: int = 10_000,
        interval_s: float = 1.0,
        client: Client | None = None,
    ) -> None:
        super().__init__()
        self.sent = self.dropped = self.ignored = 0
        self._client = Client(url, api_key, timeout_s=30.0) if client is None else client
        self._content, self._interval_s = content, interval_s
        self._waiting = queue.Queue[Mapping[str, Any] | None](most)
        self._thread = threading.Thread(target=self._run, name="armwise-tap", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def close(self, timeout_s: float = 10.0) -> None:
        """Send the queue, within `timeout_s` seconds, and stop."""
        atexit.unregister(self.close)
        try:
            self._waiting.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    @override
    def log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        self._take(kwargs, response_obj, start_time, end_time, "ok")

    @override
    def log_failure_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        self._take(kwargs, response_obj, start_time, end_time, "failed")

    @override
    async def async_log_success_event(
        self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        self._take(kwargs, response_obj, start_time, end_time, "ok")

    @override
    async def async_log_failure_event(
        self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        self._take(kwargs, response_obj, start_time, end_time, "failed")

    def _take(self, kwargs: Any, response: Any, start: Any, end: Any, status: str) -> None:
        """Queue a call; exceptions are logged and never reach the call."""
        try:
            if kwargs.get("cache_hit") is not True and (
                item := self._observe(kwargs, response, start, end, status)
            ):
                self._waiting.put_nowait(item)
        except queue.Full:
            self._drop(1, "too many wait already")
        except Exception as error:  # noqa: BLE001 - a call of a model must not fail for its observation
            self._drop(1, f"it could not be read: {error!r}")

    def _observe(
        self, call: Mapping[str, Any], response: Any, start: Any, end: Any, status: str
    ) -> Mapping[str, Any] | None:
        """Return the item to send for a call; None for none."""
        if unread := _read_fields(call)[1]:
            self.ignored += 1
            if self.ignored == 1:  # a client could fill the log
                logger.warning(
                    "a call's metadata has %s in a plain object %r, which any client of a proxy could send: "
                    "it is ignored, now and in later calls. In your own code, import Draw from "
                    "armwise.agent.integrations.litellm and pass Draw(...)",
                    ", ".join(unread),
                    KEY,
                )
        return make_observation(call, response, start, end, status, content=self._content)

    def _drop(self, calls: int, why: str) -> None:
        self.dropped += calls
        logger.warning("%d calls were not observed, %d in all: %s", calls, self.dropped, why)

    def _run(self) -> None:
        going = True
        while going:
            batch = [self._waiting.get()]
            going = batch[0] is not None
            while going and len(batch) < BATCH:
                try:
                    batch.append(self._waiting.get(timeout=self._interval_s))
                except queue.Empty:
                    break
                going = batch[-1] is not None
            self._send([item for item in batch if item is not None])

    def _send(self, items: list[Mapping[str, Any]]) -> None:
        if not items:
            return
        try:
            kept = self._deliver(items)
        except Exception as error:  # noqa: BLE001 - the thread has to go on
            unsent = not isinstance(error, ClientError) or error.status == TOO_LARGE
            if unsent and len(items) > 1:  # one that is no JSON, or too large, takes no other with it
                middle = len(items) // 2
                self._send(items[:middle])
                self._send(items[middle:])
            else:
                self._drop(len(items), str(error) or repr(error))
            return
        self.sent += kept
        if refused := len(items) - kept:
            self._drop(refused, "the service refused them; `tap.names` may lack a model")

    def _deliver(self, items: Sequence[Mapping[str, Any]]) -> int:
        """Send items; return how many were kept. Raises ClientError."""
        return len(self._client.observe(*items).kept)


def make_observation(
    call: Mapping[str, Any], response: Any, start: Any, end: Any, status: str, *, content: bool = True
) -> dict[str, Any]:
    """Return the item of `POST /v1/observations` of a call.

    Args:
        call: Arguments of LiteLLM's callback: `model`, `messages`, `litellm_params`, `response_cost`,
            `standard_logging_object`.
        response: The response of the model; any value without an id and usage stands for no response.
        start: When the call began.
        end: When the call ended.
        status: `ok` or `failed`.
        content: Whether to send the question.
    """
    logged = call.get("standard_logging_object") or {}
    params = call.get("litellm_params") or {}
    metadata = params.get("metadata") or {}
    cost = call.get("response_cost")
    item: dict[str, Any] = {
        "id": _name(_field(response, "id") or logged.get("id") or call.get("litellm_call_id")),
        "arm": call.get("model") or logged.get("model"),
        "episode_id": read_session(params, metadata),
        "question": read_question(call.get("messages"))[:LONGEST] if content else "",
        "at": start.astimezone(UTC).isoformat() if isinstance(start, datetime) else None,
        "status": status,
        "cost": {
            "usd": float(cost or 0.0),
            "seconds": max(0.0, (end - start).total_seconds()) if isinstance(end, datetime) else 0.0,
            "prompt_tokens": _tokens(response, logged, "prompt_tokens"),
            "completion_tokens": _tokens(response, logged, "completion_tokens"),
        },
    }
    fields = {**item, **_read_fields(call)[0]}
    return {name: value for name, value in fields.items() if value is not None}


def _read_fields(call: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Return what the metadata of a call state of its decision, and which fields are not read there."""
    metadata = (call.get("litellm_params") or {}).get("metadata") or {}
    given = metadata.get(KEY) or (metadata.get("requester_metadata") or {}).get(KEY)
    if isinstance(given, Draw):
        return given, []
    sent = given if isinstance(given, Mapping) else {}
    features = {FEATURES: sent[FEATURES]} if FEATURES in sent else {}
    return features, sorted(sent.keys() & set(TAKEN) - {FEATURES})


def _field(response: Any, name: str) -> Any:
    return response.get(name) if isinstance(response, Mapping) else getattr(response, name, None)


def _tokens(response: Any, logged: Mapping[str, Any], name: str) -> int:
    return int(_field(_field(response, "usage"), name) or logged.get(name) or 0)


def _name(value: Any) -> str | None:
    """Return an id in the form of the log: the same id, or a hash of it; None for None.

    >>> _name("chatcmpl-1"), _name(None), _name("a b") == _name("a b")
    ('chatcmpl-1', None, True)
    """
    if value is None or value == "":
        return None
    text = str(value)
    return text if _ID.fullmatch(text) else hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def read_session(call: Mapping[str, Any], metadata: Mapping[str, Any]) -> str | None:
    """Return the session of a call as an id of the log; None without one.

    >>> read_session({}, {"session_id": "s-1"}), read_session({"litellm_session_id": "s-2"}, {})
    ('s-1', 's-2')
    """
    return _name(call.get("litellm_session_id") or metadata.get("session_id"))


def read_question(messages: Any) -> str:
    """Return the text of the newest message of the user.

    >>> parts = [{"type": "text", "text": "who?"}, {"type": "image_url"}]
    >>> read_question([{"role": "user", "content": parts}, {"role": "assistant"}])
    'who?'
    """
    for message in reversed(messages if isinstance(messages, list) else []):
        if message.get("role") == "user":
            parts = message.get("content") or ""
            if isinstance(parts, str):
                return parts
            return " ".join(part.get("text") or "" for part in parts if part.get("type") == "text")
    return ""

"""`/v1/chat/completions` and `/v1/retrieve`: check a question, run its turn and answer."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Header, Response
from fastapi.responses import StreamingResponse

from agent.api import idempotency, responses
from agent.api.admission import admitted
from agent.api.arms import require_arm
from agent.api.errors import RESPONSES, ApiError
from agent.api.idempotency import IdempotencyKey, new_id
from agent.api.middleware import AppReplica, require
from agent.api.schemas import ChatRequest, RetrieveRequest
from agent.serving import Ask, Decided, Finished, Replica, messages
from arms.llm import Chunk, Message

router = APIRouter(responses=RESPONSES)

Timeout = Annotated[float | None, Header(alias="X-Request-Timeout-Seconds", gt=0, allow_inf_nan=False)]


class ChatRoutes:
    """The routes that answer. Each docstring is what the OpenAPI document says."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._telemetry = replica.telemetry

    @property
    def _config(self) -> AppConfig:
        """The configuration, with the arms that are live now."""
        return self._replica.config

    async def chat(
        self, body: ChatRequest, key: IdempotencyKey = None, timeout_s: Timeout = None
    ) -> Response:
        """Answer: decide, retrieve, generate; server-sent events when `stream`."""
        question = next((m.text for m in reversed(body.messages) if m.role == "user"), None)
        if question is None:
            raise ApiError(400, "invalid_value", "messages: none has the role 'user'", "messages")
        answering, limits = self._config.answering, self._config.limits
        max_tokens = body.max_completion_tokens or body.max_tokens or answering.max_tokens
        if max_tokens > limits.completion_tokens:
            message = f"{max_tokens} tokens are asked for; at most {limits.completion_tokens} can be written"
            param = "max_completion_tokens" if body.max_completion_tokens else "max_tokens"
            raise ApiError(400, "invalid_value", message, param)
        ask = self._ask(
            question,
            body.model,
            body.agent,
            key,
            body,
            messages=tuple(_message(m.role, m.text) for m in body.messages),
            k=answering.passages,
            max_tokens=max_tokens,
            temperature=answering.temperature if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            seed=body.seed,
            stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        )
        events = await self._events(ask, key, timeout_s)
        if body.stream:
            first = await anext(events)
            assert isinstance(first, Decided)
            usage = body.stream_options is not None and body.stream_options.include_usage
            stream = replies.sse(first, events, self._config, returns=body.agent.returns, include_usage=usage)
            ours = replies.headers(first.decision, first.served)
            return StreamingResponse(stream, media_type="text/event-stream", headers=ours)
        decided, text, finished = await _whole(events)
        return replies.completion(decided, text, finished, self._config, body.agent.returns)

    async def retrieve(
        self, body: RetrieveRequest, key: IdempotencyKey = None, timeout_s: Timeout = None
    ) -> Response:
        """Decide and retrieve, without the language model."""
        k = body.k or self._config.answering.passages
        if k > self._config.limits.passages:
            message = f"k is {k}; at most {self._config.limits.passages} passages can be asked for"
            raise ApiError(400, "invalid_value", message, "k")
        ask = self._ask(body.query, body.model, body.agent, key, body, k=k, param="query")
        decided, _, finished = await _whole(await self._events(ask, key, timeout_s))
        return replies.retrieval(decided, finished, self._config, body.agent.returns)

    def _ask(
        self,
        question: str,
        model: str,
        options: AgentOptions,
        key: str | None,
        body: ChatRequest | RetrieveRequest,
        param: str = "messages",
        **rest: Any,
    ) -> Ask:
        """Check what a request wishes and say it in the loop's words."""
        limit = self._config.limits.question_chars
        if not question.strip():
            raise ApiError(400, "invalid_value", "the question is empty", param)
        if len(question) > limit:
            message = f"the question has {len(question)} characters; at most {limit} are read"
            raise ApiError(400, "invalid_value", message, param)
        forced = None
        if model != "auto":
            prefix, _, forced = model.partition("/")
            if prefix != "arm" or not forced:
                raise ApiError(
                    400, "unknown_arm", f"model {model!r}: 'auto' or 'arm/<name>' was expected", "model"
                )
        # Without what was not said: a field that is added some day changes no digest.
        said = body.model_dump_json(exclude_defaults=True, warnings=False)  # numbers are what they are
        digest = hashlib.sha256(said.encode()).hexdigest() if key else ""
        return Ask(
            decision_id=key or new_id(),
            question=question,
            forced=forced,
            allowed=None if options.allowed_arms is None else frozenset(options.allowed_arms),
            excluded=frozenset(options.excluded_arms),
            explore=options.explore,
            context=options.context,
            episode_id=options.episode_id,
            deferred=options.defer_activation,
            request_digest=digest,
            **rest,
        )

    async def _events(
        self, ask: Ask, key: str | None, timeout_s: float | None
    ) -> AsyncGenerator[messages.Event, None]:
        """Return the events of a turn: of the one that went before under the same key, or of a new one."""
        loop, commits = self._replica.turns, list[messages.Commit]()
        record = None if key is None else await asyncio.to_thread(self._replica.store.record, key)
        if record is None:
            self._check_arms(ask)
            return self._admitted(ask, key, timeout_s, loop.turn(ask, commits.append), commits)
        if self._was_cut_off(ask, record):
            self._check_known(ask, record.decision.drawn, "decided on")
            resumed = loop.resume(ask, record.decision, commits.append)
            return self._admitted(ask, key, timeout_s, resumed, commits)
        return self._repeated(ask, record)  # whatever became of the arms since

    def _was_cut_off(self, ask: Ask, record: Record) -> bool:
        """Whether the same request was decided, and nobody can be answering it any more."""
        same = record.decision.request_digest == ask.request_digest
        return same and record.execution is None and self._left_s(record) <= 0

    def _left_s(self, record: Record) -> float:
        """Return for how many seconds somebody may still be answering what was decided."""
        return record.decision.decided_at + self._config.limits.answer_s - self._replica.decider.clock()

    def _check_arms(self, ask: Ask) -> None:
        """Refuse names of arms that are not live. Raises ApiError."""
        for field, names in (("allowed_arms", ask.allowed or ()), ("excluded_arms", ask.excluded)):
            for name in sorted(names):
                require_arm(self._replica, name, f"agent.{field}")
        if ask.forced is not None:
            require_arm(self._replica, ask.forced, "model")
            allowed = ask.allowed is None or ask.forced in ask.allowed
            left_out = ask.forced in ask.excluded or not allowed
            if left_out or not self._replica.turns.arms[ask.forced].enabled:
                why = "excluded, or not allowed" if left_out else "switched off"
                raise ApiError(400, "no_eligible_arm", f"arm {ask.forced!r} is {why}", "model")

    async def _admitted(
        self,
        ask: Ask,
        key: str | None,
        timeout_s: float | None,
        events: AsyncGenerator[messages.Event, None],
        commits: Sequence[messages.Commit],
    ) -> AsyncGenerator[messages.Event, None]:
        """Run a turn if there is room for it; load is shed before anything is drawn.

        Args:
            ask: What is asked.
            key: Under which it can be asked again.
            timeout_s: How long it may take.
            events: Of the turn.
            commits: Has the commit of its decision, once that has begun.
        """
        replica = self._replica
        if not replica.ready:
            raise ApiError(503, "not_ready", "the arms, the model or the policy are not loaded yet")
        if len(replica.under_way) >= self._config.limits.in_flight:
            self._telemetry.shed()
            raise ApiError(503, "overloaded", f"{len(replica.under_way)} requests are being answered already")
        if ask.decision_id in replica.under_way:
            raise _in_progress(ask)
        started = time.perf_counter()
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        replica.under_way.add(ask.decision_id)
        try:
            async with aclosing(events) as turn:
                async for event in paced(turn, deadline) if deadline else turn:
                    if isinstance(event, Finished):
                        self._telemetry.took(event.execution.served, time.perf_counter() - started)
                    yield event
        except Exception as error:
            failure = errors.translate(error)
            if isinstance(error, TimeoutError):
                failure = ApiError(408, "deadline_exceeded", f"{timeout_s:g} s have passed")
            elif isinstance(error, ConflictError):  # somebody else was faster, and knows what was asked
                failure = _in_progress(ask)
            self._telemetry.failed(failure.code)
            if failure.status == errors.BUG:
                raise
            # Where an end is on record, or will be, the key stands for it.
            final = key is not None and bool(commits) and isinstance(error, TimeoutError | TurnError)
            kept = ask.decision_id if any(map(_durable, commits)) else None
            raise replace(failure, decision_id=kept, final=final) from error
        finally:
            replica.under_way.discard(ask.decision_id)

    async def _repeated(self, ask: Ask, record: Record) -> AsyncGenerator[messages.Event, None]:
        """Say again how the same request was answered."""
        execution = self._answered(ask, record)
        yield await self._replica.turns.again(ask, record.decision, execution)
        if execution.answer:
            yield Chunk(execution.answer)
        # The log keeps no finish reason: an answer as long as it may be was cut.
        cut = bool(ask.messages) and execution.cost.completion_tokens >= ask.max_tokens
        yield Finished(execution, "length" if cut else "stop")

    def _answered(self, ask: Ask, record: Record) -> Execution:
        """Return what answered the same request before. Raises ApiError where nothing did."""
        execution = record.execution
        if record.decision.request_digest != ask.request_digest:
            raise _conflict(f"id {ask.decision_id!r} was used for another request")
        if execution is None:
            here = ask.decision_id in self._replica.under_way
            raise _in_progress(ask, 1 if here else max(1, math.ceil(self._left_s(record))))
        if execution.status not in (Status.OK, Status.FELL_BACK):
            raise _conflict(f"{ask.decision_id!r} was decided but not answered; ask again under another id")
        self._check_known(ask, execution.served, "answered by")
        return execution

    def _check_known(self, ask: Ask, arm: str | None, what: str) -> None:
        """Refuse to go on with an arm that is not known any more. Raises ApiError."""
        if arm not in self._replica.turns.known:
            raise _conflict(f"{ask.decision_id!r} was {what} arm {arm!r}, which is gone")


@router.post("/v1/retrieve", dependencies=[require("decide")])
async def retrieve(
    replica: AppReplica, body: RetrieveRequest, key: IdempotencyKey = None, timeout_s: Timeout = None
) -> Response:
    """Decide and retrieve, without the language model."""
    k = body.k or replica.config.answering.passages
    if k > replica.config.limits.passages:
        message = f"k is {k}; at most {replica.config.limits.passages} passages can be requested"
        raise ApiError("invalid_value", message, "k")
    ask = _ask(replica, body.query, body, key, k=k, param="query")
    decided, _, finished = await _whole(await _events(replica, ask, key, timeout_s))
    return responses.retrieval(decided, finished, replica.config, body.agent.returns)


def _ask(
    replica: Replica,
    question: str,
    body: ChatRequest | RetrieveRequest,
    key: str | None,
    param: str = "messages",
    **rest: Any,
) -> Ask:
    """Check what both routes have in common, and return the question for the turn. Raises ApiError."""
    limit, options = replica.config.limits.question_chars, body.agent
    if not question.strip():
        raise ApiError("invalid_value", "the question is empty", param)
    if len(question) > limit:
        message = f"the question has {len(question)} characters; at most {limit} are read"
        raise ApiError("invalid_value", message, param)
    # Fields at their defaults are left out: a field that is added later changes no digest.
    explicit = body.model_dump_json(exclude_defaults=True, warnings=False)  # of numbers in the context
    return Ask(
        decision_id=key or new_id(),
        question=question,
        forced=_forced_arm(body.model),
        allowed=None if options.allowed_arms is None else frozenset(options.allowed_arms),
        excluded=frozenset(options.excluded_arms),
        explore=options.explore,
        context=options.context,
        episode_id=options.episode_id,
        deferred=options.defer_activation,
        request_digest=hashlib.sha256(explicit.encode()).hexdigest() if key else "",
        **rest,
    )


def _forced_arm(model: str) -> str | None:
    """Return the arm that a model names; None for `auto`. Raises ApiError."""
    if model == "auto":
        return None
    prefix, _, arm = model.partition("/")
    if prefix != "arm" or not arm:
        raise ApiError("unknown_arm", f"model {model!r}: 'auto' or 'arm/<name>' was expected", "model")
    return arm


def require_arm(replica: Replica, arm: str, param: str) -> None:
    """Refuse the name of an arm that is not live. Raises ApiError."""
    if arm not in replica.turns.arms:
        known = ", ".join(replica.turns.arms)
        raise ApiError(400, "unknown_arm", f"arm {arm!r} is not configured; there are: {known}", param)


def _require_eligible(replica: Replica, ask: Ask) -> None:
    """Refuse names of arms that are not live, and a forced arm that cannot be drawn. Raises ApiError."""
    for option, names in (("allowed_arms", ask.allowed or ()), ("excluded_arms", ask.excluded)):
        for name in sorted(names):
            require_arm(replica, name, f"agent.{option}")
    if ask.forced is not None:
        require_arm(replica, ask.forced, "model")
        allowed = ask.allowed is None or ask.forced in ask.allowed
        left_out = ask.forced in ask.excluded or not allowed
        if left_out or not replica.loop.arms[ask.forced].enabled:
            why = "excluded, or not allowed" if left_out else "switched off"
            raise ApiError("no_eligible_arm", f"arm {ask.forced!r} is {why}", "model")


def _message(role: str, text: str) -> Message:
    return Message(role="system" if role in ("system", "developer") else role, content=text)  # type: ignore[typeddict-item]


async def _whole(events: AsyncGenerator[messages.Event, None]) -> tuple[Decided, str, Finished]:
    """Read a turn to its end."""
    decided: Decided | None = None
    finished: Finished | None = None
    text = ""
    async with aclosing(events):
        async for event in events:
            match event:
                case Decided():
                    decided = event
                case Chunk():
                    text += event.text
                case Finished():
                    finished = event
    assert decided is not None
    assert finished is not None
    return decided, text, finished

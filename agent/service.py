"""The HTTP surface: an OpenAI-compatible chat endpoint, feedback, and a view of what was learned.

More than 300 lines: one short route after another, all over the same replica.
"""

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from pydantic import TypeAdapter, ValidationError

from agent import errors, replies
from agent.access import Access
from agent.admission import BodyLimit
from agent.config import AppConfig, ConfigError
from agent.errors import ApiError
from agent.loop import Ask, Decided, Event, Finished, paced
from agent.replica import Replica
from agent.schemas import (
    AgentOptions,
    ArmsReplacement,
    ArmSwitch,
    ChatRequest,
    FeedbackItem,
    FeedbackRequest,
    Identifier,
    RetrieveRequest,
)
from agent.telemetry import CountedLog, Telemetry
from arms.base import ArmBuildError, ArmError
from arms.generator import Chunk, Message
from feedback.events import Execution, Feedback, Status
from feedback.reward import RewardError
from feedback.store import ConflictError, Receipt, Record

IdempotencyKey = Annotated[Identifier | None, Header(alias="Idempotency-Key")]
Timeout = Annotated[float | None, Header(alias="X-Request-Timeout-Seconds", gt=0, allow_inf_nan=False)]


def create_app(replica: Replica, telemetry: Telemetry) -> FastAPI:
    """Return the application of one replica; it starts and stops the replica with its own lifespan."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await replica.start()
        yield
        await replica.stop()

    failures: dict[int | str, dict[str, Any]] = {
        "default": {"model": errors.Envelope, "description": "What went wrong."}
    }
    app = FastAPI(title="Armwise", version="0.1.0", lifespan=lifespan, responses=failures)
    errors.install(app)
    app.add_middleware(BodyLimit, limit=replica.config.limits.body_bytes)
    replica.loop.log = CountedLog(replica.log, telemetry)
    surface = Surface(replica, telemetry)
    access = Access(replica.config.keys)
    decide, tell, switch = ([Depends(access.require(scope))] for scope in ("decide", "feedback", "admin"))
    streamed: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
    app.post("/v1/chat/completions", responses=streamed, dependencies=decide)(surface.chat)
    app.post("/v1/retrieve", dependencies=decide)(surface.retrieve)
    app.get("/v1/decisions/{decision_id}", dependencies=decide)(surface.decision)
    app.post("/v1/feedback", status_code=202, dependencies=tell)(surface.feedback)
    app.get("/v1/arms", dependencies=decide)(surface.arms)
    app.put("/v1/arms", dependencies=switch)(surface.replace_arms)
    app.patch("/v1/arms/{name}", dependencies=switch)(surface.switch)
    app.get("/v1/policy", dependencies=decide)(surface.policy)
    app.get("/v1/models", dependencies=decide)(surface.models)
    app.get("/health")(surface.health)
    app.get("/ready")(surface.ready)
    app.get("/metrics", response_class=PlainTextResponse)(surface.metrics)
    return app


class Surface:
    """The routes. Each docstring is what the OpenAPI document says."""

    def __init__(self, replica: Replica, telemetry: Telemetry) -> None:
        self._replica = replica
        self._telemetry = telemetry

    @property
    def _config(self) -> AppConfig:
        """The configuration, with the arms that are live now."""
        return self._replica.config

    # -- asking ----------------------------------------------------------------------------------

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
        digest = hashlib.sha256(body.model_dump_json().encode()).hexdigest() if key else ""
        return Ask(
            decision_id=key or new_id(),
            question=question,
            forced=forced,
            allowed=None if options.allowed_arms is None else frozenset(options.allowed_arms),
            excluded=frozenset(options.excluded_arms),
            explore=options.explore,
            context=options.context,
            episode_id=options.episode_id,
            request_digest=digest,
            **rest,
        )

    def _known(self, arm: str, param: str) -> None:
        if arm not in self._replica.loop.arms:
            known = ", ".join(self._replica.loop.arms)
            raise ApiError(400, "unknown_arm", f"arm {arm!r} is not configured; there are: {known}", param)

    async def _events(
        self, ask: Ask, key: str | None, timeout_s: float | None
    ) -> AsyncGenerator[Event, None]:
        """Return the events of a turn: of the one that went before under the same key, or of a new one."""
        record = None if key is None else await asyncio.to_thread(self._replica.store.record, key)
        if record is not None:
            return self._repeated(ask, record)  # whatever became of the arms since
        self._check_arms(ask)
        return self._admitted(ask, timeout_s)

    def _check_arms(self, ask: Ask) -> None:
        """Refuse names of arms that are not live. Raises ApiError."""
        for field, names in (("allowed_arms", ask.allowed or ()), ("excluded_arms", ask.excluded)):
            for name in sorted(names):
                self._known(name, f"agent.{field}")
        if ask.forced is not None:
            self._known(ask.forced, "model")
            if not self._replica.loop.arms[ask.forced].enabled:
                raise ApiError(400, "no_eligible_arm", f"arm {ask.forced!r} is switched off", "model")

    async def _admitted(self, ask: Ask, timeout_s: float | None) -> AsyncGenerator[Event, None]:
        """Run a turn if there is room for it; load is shed before anything is drawn."""
        replica = self._replica
        if not replica.ready:
            raise ApiError(503, "not_ready", "the arms, the model or the policy are not loaded yet")
        if replica.in_flight >= self._config.limits.in_flight:
            self._telemetry.shed()
            raise ApiError(503, "overloaded", f"{replica.in_flight} requests are being answered already")
        started = time.perf_counter()
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        replica.in_flight += 1
        try:
            async with aclosing(replica.loop.turn(ask)) as turn:
                async for event in paced(turn, deadline) if deadline else turn:
                    if isinstance(event, Finished):
                        self._telemetry.took(event.execution.served, time.perf_counter() - started)
                    yield event
        except TimeoutError:
            self._telemetry.failed("deadline_exceeded")
            message = f"{timeout_s:g} s have passed"
            raise ApiError(408, "deadline_exceeded", message, decision_id=ask.decision_id) from None
        except Exception as error:
            self._telemetry.failed(errors.translate(error).code)
            raise
        finally:
            replica.in_flight -= 1

    async def _repeated(self, ask: Ask, record: Record) -> AsyncGenerator[Event, None]:
        """Say again how the same request was answered."""
        execution = self._answered(ask, record)
        yield await self._replica.loop.again(ask, record.decision, execution)
        if execution.answer:
            yield Chunk(execution.answer)
        # The log keeps no finish reason: an answer as long as it may be was cut.
        cut = bool(ask.messages) and execution.cost.completion_tokens >= ask.max_tokens
        yield Finished(execution, "length" if cut else "stop")

    def _answered(self, ask: Ask, record: Record) -> Execution:
        """Return what answered the same request before. Raises ApiError where nothing did."""
        execution = record.execution
        if record.decision.request_digest != ask.request_digest:
            why = f"id {ask.decision_id!r} was used for another request"
        elif execution is None:
            why = f"{ask.decision_id!r} is still being answered, or was cut off; ask again under another id"
        elif execution.status not in (Status.OK, Status.FELL_BACK):
            why = f"{ask.decision_id!r} was decided but not answered; ask again under another id"
        elif execution.served not in {**self._replica.loop.former, **self._replica.loop.arms}:
            why = f"{ask.decision_id!r} was answered by arm {execution.served!r}, which is gone"
        else:
            return execution
        raise ApiError(409, "idempotency_conflict", why, "Idempotency-Key")

    # -- telling ---------------------------------------------------------------------------------

    async def feedback(self, body: FeedbackRequest, key: IdempotencyKey = None) -> JSONResponse:
        """Keep what came of a decision: one item, or {"items": [...]} with a status each."""
        if isinstance(body, FeedbackItem):
            fact = self._fact(body, key)
            (outcome,) = await self._replica.accept([fact])
            if isinstance(outcome, Exception):
                raise outcome
            self._telemetry.fed_back(fact, outcome)
            return JSONResponse(replies.receipt(fact, outcome), 202)
        checked = [self._fact_or_error(item) for item in body.items]
        facts = [fact for fact in checked if isinstance(fact, Feedback)]
        outcomes = iter(zip(facts, await self._replica.accept(facts), strict=True))
        rows = []
        for one in checked:
            if isinstance(one, Feedback):
                fact, outcome = next(outcomes)
                if isinstance(outcome, Receipt):
                    self._telemetry.fed_back(fact, outcome)
                    rows.append(replies.receipt(fact, outcome))
                    continue
                one = outcome
            rows.append(errors.translate(one).body(None))
        return JSONResponse({"items": rows}, 202)

    def _fact(self, item: FeedbackItem, key: str | None = None) -> Feedback:
        """Return checked feedback. Raises RewardError, naming the metric and the value."""
        rule = self._config.reward
        return Feedback(
            id=item.feedback_id or key or new_id(),
            decision_id=item.decision_id,
            metric=item.metric_name,
            value=rule.metric(item.metric_name).parse(item.value, item.metric_name),
            received_at=time.time(),
            event_time=None if item.event_time is None else item.event_time.timestamp(),
            tags=item.tags,
        )

    def _fact_or_error(self, item: object) -> Feedback | Exception:
        try:
            return self._fact(_ITEM.validate_python(item))
        except ValidationError as error:
            return RequestValidationError(error.errors())
        except RewardError as error:
            return error

    # -- looking ---------------------------------------------------------------------------------

    async def decision(self, decision_id: str) -> JSONResponse:
        """Everything known about a decision."""
        record = await asyncio.to_thread(self._replica.store.record, decision_id)
        if record is None:
            raise ApiError(404, "decision_not_found", f"there is no decision {decision_id!r}", "decision_id")
        return JSONResponse(replies.record(record, self._config, time.time()))

    async def arms(self) -> JSONResponse:
        """The live arms, as described and as switched, and the arms that are only parts of these."""
        live, specs = self._replica.loop.arms, self._config.arms
        arms = [replies.arm(name, specs[name], info) for name, info in live.items()]
        parts = {name: spec.model_dump(mode="json") for name, spec in specs.items() if not spec.action}
        return JSONResponse({"arms": arms, "parts": parts, "arm_set": self._replica.arm_set})

    async def replace_arms(self, body: ArmsReplacement) -> JSONResponse:
        """Replace the live arms; returns once they are built, and every replica follows within a second."""
        arms = {name: spec.model_dump() for name, spec in body.arms.items()}
        for name, backbone in body.backbones.items():
            here = self._config.backbones.get(name)
            if backbone != here:
                what = "is not configured" if here is None else f"is {here.model_dump()} here"
                raise ApiError(400, "invalid_value", f"backbone {name!r} {what}", "backbones")
        try:
            await self._replica.replace_arms(arms)
        except ConfigError as error:
            raise ApiError(400, "invalid_value", str(error), "arms") from None
        except ArmBuildError as error:
            raise ApiError(400, "invalid_value", str(error), "arms") from None
        except ArmError as error:
            raise ApiError(502, "arm_failed", str(error)) from None
        except ConflictError as error:
            raise ApiError(409, "arm_conflict", str(error), "arms") from None
        return await self.arms()

    async def switch(self, name: str, body: ArmSwitch) -> JSONResponse:
        """Switch an arm on or off; a disabled arm is not drawn."""
        self._known(name, "name")
        await self._replica.switch(name, body.enabled)
        self._known(name, "name")  # the arms may have been replaced meanwhile
        return JSONResponse(replies.arm(name, self._config.arms[name], self._replica.loop.arms[name]))

    async def policy(self) -> JSONResponse:
        """The policy that decides now, how much of the log it has learned, and the router that it hears."""
        log_seq = await asyncio.to_thread(self._replica.store.log_seq)
        advisor = self._replica.advisor
        router = None if advisor is None else advisor.about
        return JSONResponse(replies.policy(self._replica.version, log_seq, self._config, router))

    async def models(self) -> JSONResponse:
        """The models that a client can name: `auto`, or an arm."""
        names = ["auto", *(f"arm/{name}" for name in self._replica.loop.arms)]
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "armwise"} for name in names]
        return JSONResponse({"object": "list", "data": models})

    async def health(self) -> JSONResponse:
        """Whether the process answers."""
        return JSONResponse({"status": "ok"})

    async def ready(self) -> JSONResponse:
        """Whether questions can be answered and kept: a version is loaded and the log can be read."""
        if not self._replica.ready:
            raise ApiError(503, "not_ready", "the arms, the model or the policy are not loaded yet")
        await asyncio.to_thread(self._replica.store.log_seq)
        return JSONResponse({"status": "ready", "version": self._replica.loop.serving.version})

    async def metrics(self) -> Response:
        """Counters and latencies for Prometheus, of all replicas on this machine."""
        log_seq = await asyncio.to_thread(self._replica.store.log_seq)
        version = self._replica.version
        return Response(self._telemetry.exposition(log_seq, version), media_type=self._telemetry.media_type)


_ITEM = TypeAdapter(FeedbackItem)


def new_id() -> str:
    """Return an id that sorts by time: 12 hexadecimal digits of milliseconds, 20 of chance."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def _message(role: str, text: str) -> Message:
    return Message(role="system" if role in ("system", "developer") else role, content=text)  # type: ignore[typeddict-item]


async def _whole(events: AsyncGenerator[Event, None]) -> tuple[Decided, str, Finished]:
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

"""The HTTP surface: every route, the scope it requires, and the file of this room that answers it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.responses import PlainTextResponse, Response

from agent.api import errors
from agent.api.chat import ChatRoutes
from agent.api.decisions import DecisionRoutes
from agent.api.evaluations import EvaluationRoutes
from agent.api.export import MEDIA_TYPES, ExportRoutes
from agent.api.feedback import FeedbackRoutes
from agent.api.middleware import Access, BodyLimit
from agent.api.policies import PolicyRoutes
from agent.api.warm_starts import WarmStartRoutes
from agent.serving import Replica


def create_app(replica: Replica) -> FastAPI:
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
    asking, telling = ChatRoutes(replica), FeedbackRoutes(replica)
    steering, promoting, evaluating = (
        DecisionRoutes(replica),
        PolicyRoutes(replica),
        EvaluationRoutes(replica),
    )
    warm_starting = WarmStartRoutes(replica)
    access = Access(replica.config.keys)
    decide, tell, switch = ([Depends(access.require(scope))] for scope in ("decide", "feedback", "admin"))
    streamed: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
    paged: dict[int | str, dict[str, Any]] = {200: {"content": {"text/html": {}}}}
    app.post("/v1/chat/completions", responses=streamed, dependencies=decide)(asking.chat)
    app.post("/v1/retrieve", dependencies=decide)(asking.retrieve)
    app.get("/v1/decisions/{decision_id}", dependencies=decide)(steering.decision)
    app.get("/v1/decisions/{decision_id}/verify", dependencies=switch)(steering.verify)
    app.post("/v1/feedback", status_code=202, dependencies=tell)(telling.feedback)
    app.post("/v1/decisions/{decision_id}/activate", status_code=202, dependencies=tell)(telling.activate)
    app.get("/v1/arms", dependencies=decide)(steering.arms)
    app.put("/v1/arms", dependencies=switch)(steering.replace_arms)
    app.patch("/v1/arms/{name}", dependencies=switch)(steering.switch)
    app.get("/v1/policy", dependencies=decide)(promoting.policy)
    app.get("/v1/policies", dependencies=decide)(promoting.policies)
    app.post("/v1/policies/{version}/promote", dependencies=switch)(promoting.promote)
    app.post("/v1/policies/{version}/rollback", dependencies=switch)(promoting.rollback)
    app.post("/v1/policies/{version}/canary", dependencies=switch)(promoting.canary)
    app.post("/v1/evaluations", status_code=202, dependencies=switch)(evaluating.submit)
    app.get("/v1/evaluations", dependencies=decide)(evaluating.evaluations)
    app.get("/v1/evaluations/{number}", dependencies=decide)(evaluating.evaluation)
    app.post("/v1/warm-starts", status_code=202, dependencies=switch)(warm_starting.ask)
    app.get("/v1/warm-starts", dependencies=decide)(warm_starting.runs)
    app.get("/v1/warm-starts/{number}", dependencies=decide)(warm_starting.run)
    app.get("/v1/evaluations/{number}/report", responses=paged, dependencies=decide)(evaluating.report)
    given: dict[str, Any] = {media_type: {} for media_type in MEDIA_TYPES.values()}
    exported: dict[int | str, dict[str, Any]] = {200: {"content": given}}
    export = app.get("/v1/export", response_class=Response, responses=exported, dependencies=switch)
    export(ExportRoutes(replica).export)
    app.get("/v1/models", dependencies=decide)(steering.models)
    app.get("/health")(steering.health)
    app.get("/ready")(steering.ready)
    app.get("/metrics", response_class=PlainTextResponse)(steering.metrics)
    return app

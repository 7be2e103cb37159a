"""The HTTP surface: every route, and the scope that it asks for.

Who answers them: `agent.asking` (questions), `agent.telling` (feedback) and
`agent.steering` (a view of what was learned, and what an operator changes).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.responses import PlainTextResponse

from agent import errors
from agent.access import Access
from agent.admission import BodyLimit
from agent.asking import Asking
from agent.replica import Replica
from agent.steering import Steering
from agent.telemetry import CountedLog, Telemetry
from agent.telling import Telling


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
    asking, telling = Asking(replica, telemetry), Telling(replica, telemetry)
    steering = Steering(replica, telemetry)
    access = Access(replica.config.keys)
    decide, tell, switch = ([Depends(access.require(scope))] for scope in ("decide", "feedback", "admin"))
    streamed: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
    app.post("/v1/chat/completions", responses=streamed, dependencies=decide)(asking.chat)
    app.post("/v1/retrieve", dependencies=decide)(asking.retrieve)
    app.get("/v1/decisions/{decision_id}", dependencies=decide)(steering.decision)
    app.get("/v1/decisions/{decision_id}/verify", dependencies=switch)(steering.verify)
    app.post("/v1/feedback", status_code=202, dependencies=tell)(telling.feedback)
    app.post("/v1/decisions/{decision_id}/activate", status_code=202, dependencies=tell)(telling.activate)
    app.get("/v1/arms", dependencies=decide)(steering.arms)
    app.put("/v1/arms", dependencies=switch)(steering.replace_arms)
    app.patch("/v1/arms/{name}", dependencies=switch)(steering.switch)
    app.get("/v1/policy", dependencies=decide)(steering.policy)
    app.get("/v1/policies", dependencies=decide)(steering.policies)
    app.post("/v1/policies/{version}/promote", dependencies=switch)(steering.promote)
    app.post("/v1/policies/{version}/rollback", dependencies=switch)(steering.rollback)
    app.get("/v1/models", dependencies=decide)(steering.models)
    app.get("/health")(steering.health)
    app.get("/ready")(steering.ready)
    app.get("/metrics", response_class=PlainTextResponse)(steering.metrics)
    return app

"""Offline evaluations by Personalizer's names: learning settings, what served, the first action, chance."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import AwareDatetime, Field, StrictStr

from armwise.agent.access import Caller
from armwise.agent.api.errors import ApiError
from armwise.agent.api.operations import evaluations
from armwise.agent.api.personalizer import service
from armwise.agent.api.personalizer.protocol import (
    VERSIONS,
    Body,
    PointCaller,
    ProtocolPoint,
    route,
    unsupported,
)
from armwise.agent.api.responses import StdlibJson
from armwise.agent.config import ACTION_PREFIX
from armwise.agent.evaluation import EvaluationRequest, parse_name
from armwise.agent.serving import DecisionPoint
from armwise.feedback.registry import Evaluation
from armwise.feedback.registry import evaluations as registry_evaluations

router = APIRouter()

Id = Annotated[StrictStr, Path(pattern=r"^[A-Za-z0-9._-]{1,256}$")]

BASELINE = f"fixed:{ACTION_PREFIX}1"
SOURCES = {"served": "Online", BASELINE: "Baseline", "uniform": "Random"}
"""Personalizer's name of the source of each candidate; that of learning settings is Custom."""

STATES = {"queued": "NotSubmitted", "running": "Running", "done": "Succeeded", "failed": "Failed"}

ID_ENDS = ": "
"""Between the id that a client gave an evaluation, or nothing, and its name, in its `name` in the log."""

NAMED = " # "
"""Before the name of learning settings in the YAML of their policy, where it is a comment."""

MOST = 1000
"""Newest evaluations among which one is found by its id."""


class Contract(Body):
    """What is to be evaluated."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    start_time: AwareDatetime
    end_time: AwareDatetime
    policies: list[service.LearningSettings] = Field(default_factory=list, max_length=20)


class Reference(Body):
    """`POST /configurations/applyFromEvaluation`."""

    evaluation_id: str
    policy_name: str


class State(Body):
    """An evaluation without its result."""

    id: str
    name: str
    start_time: str | None
    end_time: str | None
    creation_time: str
    evaluation_type: str = "Manual"
    status: str
    description: str


class States(Body):
    """Evaluations, newest first."""

    value: Sequence[State]


class Summary(Body):
    """What a policy would have earned a decision."""

    expected_reward: float
    confidence_interval: tuple[float, float]


class PolicyResult(Body):
    """A policy that was evaluated; without a summary where it cannot be estimated."""

    name: str
    arguments: str
    policy_source: str
    summary: Summary | None


class Results(Body):
    """The policies that were evaluated, in the order of the request."""

    value: Sequence[PolicyResult]


class Evaluated(State):
    """An evaluation with its result."""

    content: Results


class Importances(Body):
    """Importances of features: none."""

    value: Sequence[Any] = ()


@route(router, "POST", "/evaluations", 201, "operate")
async def create(point: ProtocolPoint, caller: PointCaller, body: Contract, request: Request) -> Response:
    """Request an evaluation; its id is a number."""
    submitted = await _submit(point, caller, body, "")
    place = {"location": f"{request.url.path}/{submitted.seq}"}
    return StdlibJson(_state(submitted), 201, place)


@route(router, "PUT", "/evaluations/{evaluation_id}", 200, "operate")
async def put(point: ProtocolPoint, caller: PointCaller, evaluation_id: Id, body: Contract) -> Response:
    """Request an evaluation under an id of the client's."""
    if await asyncio.to_thread(_by_id, point, evaluation_id) is not None:
        raise ApiError(
            "idempotency_conflict", f"there is an evaluation {evaluation_id!r} already", "evaluationId"
        )
    return StdlibJson(_state(await _submit(point, caller, body, evaluation_id)))


@route(router, "GET", "/evaluations", 200, "read")
async def listed(
    point: ProtocolPoint,
    request: Request,
    top: Annotated[int, Field(ge=1, le=MOST)] = 100,
    skip: Annotated[int, Field(ge=0, le=MOST)] = 0,
) -> Response:
    """The newest evaluations, newest first, without results."""
    newest = await asyncio.to_thread(registry_evaluations.page, point.store, skip + top)
    states = [_state(evaluation) for evaluation in newest[skip:]]
    return StdlibJson(states if request.url.path.startswith(VERSIONS[0]) else States(value=states))


@route(router, "GET", "/evaluations/{evaluation_id}", 200, "read")
async def one(point: ProtocolPoint, evaluation_id: Id) -> Response:
    """One evaluation, with the expected reward of each policy once it is done; there are no time series."""
    evaluation = await _found(point, evaluation_id)
    result = await asyncio.to_thread(registry_evaluations.result_of, point.store, evaluation.seq)
    state = _state(evaluation)
    return StdlibJson(state if result is None else Evaluated(**state.model_dump(), content=_results(result)))


@route(router, "DELETE", "/evaluations/{evaluation_id}", 204, "operate")
async def delete(point: ProtocolPoint, evaluation_id: Id) -> Response:
    """Refused: what a promotion was judged by stays."""
    await _found(point, evaluation_id)
    raise unsupported("evaluations are kept: they are what promotions were judged by", "evaluationId")


@route(router, "POST", "/configurations/applyFromEvaluation", 204, "operate")
async def apply(point: ProtocolPoint, body: Reference) -> Response:
    """Promote learning settings of an evaluation."""
    evaluation = await _found(point, body.evaluation_id)
    for name in evaluation.request["candidates"]:
        if _name_of(name) == body.policy_name and (policy := parse_name(name).policy):
            settings = service.LearningSettings(name=body.policy_name, arguments=policy.params["args"])
            await service.settle(point, settings)
            return Response(status_code=204)
    message = f"evaluation {body.evaluation_id!r} has no learning settings {body.policy_name!r}"
    raise ApiError("invalid_value", message, "policyName")


@route(router, "GET", "/featureImportances", 200, "read")
async def importances(_point: ProtocolPoint) -> Response:
    """None: this service does not compute them."""
    return StdlibJson(Importances())


async def importance(_point: ProtocolPoint, importance_id: Id) -> Response:
    """Refused: this service does not compute the importance of features."""
    message = "the importance of features is not computed: compare policies in an evaluation"
    raise unsupported(message, importance_id)


for method in ("GET", "PUT", "DELETE"):
    route(router, method, "/featureImportances/{importance_id}", 200, "operate")(importance)


async def _submit(point: DecisionPoint, caller: Caller, body: Contract, name: str) -> Evaluation:
    policies = [
        "policy:" + json.dumps({"kind": "vowpal", "params": {"args": policy.arguments}}) + NAMED + policy.name
        for policy in body.policies
    ]
    try:
        request = EvaluationRequest(
            name=f"{name}{ID_ENDS}{body.name}",
            candidates=(BASELINE, "uniform", *policies),
            since=body.start_time,
            until=body.end_time,
            estimators=("snips",),
        )
    except ValueError as error:
        raise ApiError("invalid_value", str(error), "policies") from None
    return await asyncio.to_thread(evaluations.submit_now, point, caller, request)


def _by_id(point: DecisionPoint, name: str) -> Evaluation | None:
    if name.isdecimal():
        evaluation = registry_evaluations.find(point.store, int(name)) if len(name) < 16 else None
        if evaluation is not None:
            return evaluation
    newest = registry_evaluations.page(point.store, MOST)
    return next((evaluation for evaluation in newest if _names_of(evaluation)[0] == name), None)


def _names_of(evaluation: Evaluation) -> tuple[str, str]:
    """Return the id that a client gave an evaluation, or else its number; and its name."""
    given, separator, name = str(evaluation.request.get("name", "")).partition(ID_ENDS)
    return (given or str(evaluation.seq), name) if separator else (str(evaluation.seq), given)


async def _found(point: DecisionPoint, name: str) -> Evaluation:
    evaluation = await asyncio.to_thread(_by_id, point, name)
    if evaluation is None:
        raise ApiError("evaluation_not_found", f"there is no evaluation {name!r}", "evaluationId")
    return evaluation


def _state(evaluation: Evaluation) -> State:
    own_id, name = _names_of(evaluation)
    return State(
        id=own_id,
        name=name,
        start_time=evaluation.request.get("since"),
        end_time=evaluation.request.get("until"),
        creation_time=datetime.fromtimestamp(evaluation.submitted_at, UTC).isoformat(),
        status=STATES[evaluation.status.value],
        description=evaluation.error or "",
    )


def _name_of(candidate: str) -> str:
    """Return the name of a candidate as the client knows it.

    >>> _name_of('policy:{"kind": "vowpal"} # mine'), _name_of("uniform")
    ('mine', 'Random')
    """
    return SOURCES.get(candidate) or candidate.rpartition(NAMED)[2]


def _results(result: Mapping[str, Any]) -> Results:
    return Results(value=list(map(_result, result["candidates"])))


def _result(candidate: Mapping[str, Any]) -> PolicyResult:
    value = candidate["estimates"][0]["value"] if candidate["estimates"] else None
    policy = parse_name(candidate["name"]).policy
    return PolicyResult(
        name=_name_of(candidate["name"]),
        arguments=policy.params["args"] if policy else "",
        policy_source=SOURCES.get(candidate["name"], "Custom"),
        summary=value
        and Summary(expected_reward=value["value"], confidence_interval=(value["low"], value["high"])),
    )

"""Configuration, learning settings, model and logs: what Personalizer keeps, over what this service has.

What changes how decisions are learned is a promotion of another recipe, like any other: it is a row of the
log, and every decision before and after it can be verified. What a running service cannot change is refused.
"""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import Field, TypeAdapter

from armwise.agent.api.decisions import with_policies
from armwise.agent.api.errors import ApiError
from armwise.agent.api.operations import policies
from armwise.agent.api.operations.policies import ShadowAgreement
from armwise.agent.api.personalizer.protocol import Body, ProtocolPoint, route, unsupported
from armwise.agent.api.responses import StdlibJson
from armwise.agent.api.schemas import PromotionChoice
from armwise.agent.config import ACTION_PREFIX
from armwise.agent.learning import Recipe, publish_candidate
from armwise.agent.policies import (
    PolicyError,
    PolicySpec,
    ShadowPolicy,
    VowpalWabbit,
    check_untrusted,
    require_action_features,
    vowpal,
)
from armwise.agent.serving import DecisionPoint
from armwise.feedback.log import listing
from armwise.feedback.registry import Version
from armwise.feedback.training_log import StartingPoint, position_of

router = APIRouter()

SETTINGS = "learning settings: "
"""What the reason of a promotion begins with that a client asked for; the name of the settings follows."""

AGGREGATIONS = {"first": "earliest", "sum": "sum"}
"""Personalizer's names of aggregations, where it has one."""

EPSILON = "--epsilon"


class Settings(Body):
    """The learning settings that are in use."""

    name: str
    arguments: str


class LearningSettings(Settings):
    """`PUT /configurations/policy`."""

    name: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,200}$")]
    arguments: Annotated[str, Field(min_length=1, max_length=4096)]


class ServiceConfiguration(Body):
    """`PUT /configurations/service`: what is left out stays as it is."""

    reward_wait_time: timedelta | None = None
    default_reward: float | None = None
    reward_aggregation: str | None = None
    exploration_percentage: float | None = None
    model_export_frequency: timedelta | None = None
    log_retention_days: int | None = None
    model_retrain_days: int | None = None
    log_mirror_enabled: bool | None = None
    is_auto_optimization_enabled: bool | None = None
    learning_mode: str | None = None


class FixedSettings(Body):
    """Settings that have one value here: the log is kept, and a policy learns all of it."""

    log_retention_days: int = -1
    model_retrain_days: int = 0
    log_mirror_enabled: bool = False
    is_auto_optimization_enabled: bool = False


class ServiceSettings(FixedSettings):
    """The settings of the point, by Personalizer's names."""

    reward_wait_time: str
    default_reward: float
    reward_aggregation: str
    exploration_percentage: float
    model_export_frequency: str
    learning_mode: str
    last_configuration_edit_date: str | None


class ModelProperties(Body):
    """When the served version was learned."""

    creation_time: str
    last_modified_time: str


class DateRange(Body):
    """The times of the first and the last event."""

    since: str | None = Field(serialization_alias="from")
    to: str | None


class LogProperties(Body):
    """What the log spans."""

    date_range: DateRange


class Status(Body):
    """Whether the point decides."""

    service: str = "personalizer"
    api_status: str
    api_status_message: str


@route(router, "GET", "/configurations/service", 200, "read")
async def configuration(point: ProtocolPoint) -> Response:
    """The settings of the point, by Personalizer's names."""
    return StdlibJson(_configuration(point))


@route(router, "PUT", "/configurations/service", 200, "operate")
async def configure(point: ProtocolPoint, body: ServiceConfiguration) -> Response:
    """Change the learning mode and the exploration; another value of anything else is refused."""
    now = _configuration(point).model_dump()
    fields = body.model_dump(exclude_none=True)
    changed = {
        name: value for name, value in fields.items() if value != _DURATIONS.get(name, same)(now[name])
    }
    spec = point.versions.recipe.policy
    for name in changed:
        if name not in ("learningMode", "explorationPercentage"):
            raise unsupported(
                f"{name} is {now[name]!r} here, and a request cannot change it: {_WHERE[name]}", name
            )
    if "explorationPercentage" in changed:
        spec = _exploring(spec, changed["explorationPercentage"])
    if "learningMode" in changed:
        spec = _in_mode(spec, changed["learningMode"])
    if changed:
        reason = ", ".join(f"{name} {value}" for name, value in changed.items())
        await _adopt(point, replace(point.versions.recipe, policy=spec), reason)
    return StdlibJson(_configuration(point))


@route(router, "GET", "/configurations/policy", 200, "read")
async def policy(point: ProtocolPoint) -> Response:
    """The learning settings: the arguments of Vowpal Wabbit, or another policy as JSON."""
    return StdlibJson(_settings(point))


@route(router, "PUT", "/configurations/policy", 200, "operate")
async def settle(point: ProtocolPoint, body: LearningSettings) -> Response:
    """Learn the log by other settings, and promote what was learned; returns when that decides."""
    spec = PolicySpec(kind=VowpalWabbit.kind, params={"args": body.arguments})
    if _mode(point.versions.recipe.policy) == "Apprentice":
        spec = _in_mode(spec, "Apprentice")
    await _adopt(point, replace(point.versions.recipe, policy=spec), SETTINGS + body.name)
    return StdlibJson(_settings(point))


@route(router, "DELETE", "/configurations/policy", 200, "operate")
async def unsettle(point: ProtocolPoint) -> Response:
    """Return to the policy of the configuration file."""
    await _adopt(point, point.versions.configured, "the configured policy")
    return StdlibJson(_settings(point))


@route(router, "GET", "/model", 200, "read")
async def model(point: ProtocolPoint, signed: bool = False) -> Response:
    """The state of the served version, as the log keeps it."""
    if signed:
        raise unsupported("there are no signed models: take it without `signed`", "signed")
    state = await with_policies(point, [_version(point)], lambda restored: restored.save(), "model")
    return Response(state, media_type="application/octet-stream")


@route(router, "PUT", "/model", 204, "operate")
async def import_model() -> Response:
    """Refused: a model that was not learned from the log could not be verified by it."""
    raise unsupported("a model is learned from the log: import its events, and evaluate on them")


@route(router, "DELETE", "/model", 204, "operate")
async def reset_model(point: ProtocolPoint) -> Response:
    """Begin to learn anew: what was logged so far stays, and is not learned any more."""
    recipe = point.versions.recipe
    joined = await asyncio.to_thread(_joined, point)
    start = StartingPoint(after=joined, also=recipe.start.also if recipe.start else None)
    await _adopt(point, replace(recipe, start=start), "the model was reset")
    return Response(status_code=204)


@route(router, "GET", "/model/properties", 200, "read")
async def model_properties(point: ProtocolPoint) -> Response:
    """When the served version was learned."""
    at = _time(_version(point).created_at)
    return StdlibJson(ModelProperties(creation_time=at, last_modified_time=at))


@route(router, "GET", "/logs/properties", 200, "read")
async def log_properties(point: ProtocolPoint) -> Response:
    """The times of the first and the last event."""
    span = await asyncio.to_thread(listing.span, point.store)
    first, last = (None, None) if span is None else map(_time, span)
    return StdlibJson(LogProperties(date_range=DateRange(since=first, to=last)))


@route(router, "DELETE", "/logs", 204, "admin")
async def delete_logs() -> Response:
    """Refused: facts are append-only."""
    raise unsupported("the log is append-only: what was decided can be verified as long as the service lives")


@route(router, "GET", "/status", 200, "read")
async def status(point: ProtocolPoint) -> Response:
    """Whether the point decides."""
    state = "Valid" if point.decides else "NotReady"
    return StdlibJson(Status(api_status=state, api_status_message=point.name))


def _configuration(point: DecisionPoint) -> ServiceSettings:
    config, promotion = point.config, point.versions.active.promotion
    rule, spec = config.reward, point.versions.recipe.policy
    metric = next(iter(rule.metrics.values()))
    return ServiceSettings(
        reward_wait_time=rule.wait_time,
        default_reward=0.0 if rule.default is None else metric.value_at(rule.default),
        reward_aggregation=AGGREGATIONS.get(metric.aggregation.value, metric.aggregation.value),
        exploration_percentage=_exploration(spec, config.floor),
        model_export_frequency=f"PT{config.learning.poll_s:g}S",
        learning_mode=_mode(spec),
        last_configuration_edit_date=None if promotion is None else _time(promotion.at),
    )


_DURATIONS = dict.fromkeys(("rewardWaitTime", "modelExportFrequency"), TypeAdapter(timedelta).validate_python)
"""How settings are read that may be written in several ways."""


def same(value: Any) -> Any:
    """Return a setting that is compared as it is written."""
    return value


_WHERE = {
    **dict.fromkeys(FixedSettings().model_dump(), "it is part of how this service works"),
    **dict.fromkeys(
        ("rewardWaitTime", "defaultReward", "rewardAggregation"),
        "set `reward` of the point in the configuration file, as all of the log is then scored again",
    ),
    "modelExportFrequency": "new versions serve at once; set `learning.poll_s` in the configuration file",
}


def _mode(spec: PolicySpec) -> str:
    return "Apprentice" if spec.kind == ShadowPolicy.kind else "Online"


def _learner(spec: PolicySpec) -> PolicySpec:
    """Return the policy that learns, which an apprentice has inside."""
    return spec if spec.kind != ShadowPolicy.kind else PolicySpec.model_validate(spec.params["policy"])


def _in_mode(spec: PolicySpec, mode: str) -> PolicySpec:
    """Return a policy in a mode; the baseline of an apprentice is the first action. Raises ApiError."""
    learner = _learner(spec)
    if mode == "Online":
        return learner
    if mode != "Apprentice":
        raise unsupported(f"learningMode {mode!r}: Online or Apprentice was expected", "learningMode")
    baseline = {"kind": "fixed", "params": {"arm": f"{ACTION_PREFIX}1"}}
    return PolicySpec(
        kind=ShadowPolicy.kind, params={"baseline": baseline, "policy": learner.model_dump(mode="json")}
    )


def _exploration(spec: PolicySpec, floor: float) -> float:
    """Return epsilon where Vowpal Wabbit has it, or else the least probability of an action."""
    options = vowpal.check_args(_arguments(spec)) if _learner(spec).kind == VowpalWabbit.kind else {}
    return float(options.get(EPSILON, floor))


def _exploring(spec: PolicySpec, share: float) -> PolicySpec:
    """Return a policy with another epsilon. Raises ApiError where it has none."""
    learner, before = _learner(spec), _exploration(spec, -1.0)
    if before < 0 or not 0 <= share <= 1:
        message = (
            "explorationPercentage is --epsilon of the learning settings, in [0, 1], which these do not have"
        )
        raise unsupported(message, "explorationPercentage")
    tokens = _arguments(spec).replace("=", " ").split()
    tokens[tokens.index(EPSILON) + 1] = f"{share:g}"
    changed = learner.model_copy(update={"params": {**learner.params, "args": " ".join(tokens)}})
    return _in_mode(changed, _mode(spec))


def _arguments(spec: PolicySpec) -> str:
    learner = _learner(spec)
    if learner.kind == VowpalWabbit.kind:
        return str(learner.params.get("args", vowpal.DEFAULT))
    return json.dumps(learner.model_dump(mode="json"))


def _settings(point: DecisionPoint) -> Settings:
    promotion, recipe = point.versions.active.promotion, point.versions.recipe
    reason = "" if promotion is None else promotion.reason
    name = reason.removeprefix(SETTINGS) if reason.startswith(SETTINGS) else recipe.policy.kind
    return Settings(name=name, arguments=_arguments(recipe.policy))


async def _adopt(point: DecisionPoint, recipe: Recipe, reason: str) -> None:
    """Learn a recipe, and promote it whatever the gate says, as Personalizer does. Raises ApiError."""
    try:
        check_untrusted(recipe.policy, point.config.policy)
        require_action_features(recipe.policy)
        arms = list(point.config.actions)
        version = await asyncio.to_thread(publish_candidate, point.store, recipe, arms)
    except PolicyError as error:
        raise ApiError("invalid_value", str(error), "arguments") from None
    choice = PromotionChoice(reason=reason, force=True)
    await policies.promote(point, version.version, choice, ShadowAgreement())


def _joined(point: DecisionPoint) -> int:
    """Return the last position of the training log."""
    with point.store.reading() as connection:
        return position_of(connection, point.config.reward.join).examples_seq


def _version(point: DecisionPoint) -> Version:
    if point.versions.version is None:
        raise ApiError("not_ready", "no version is served yet")
    return point.versions.version


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()

"""`/v1/arms`: the live arms, their replacement, and the switch of one arm."""

from typing import Any
from urllib.parse import urlsplit, urlunsplit

from fastapi import APIRouter
from pydantic import Field

from armwise.agent.api.documented import documented
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import RequestPoint
from armwise.agent.api.responses import StdlibJson
from armwise.agent.api.schemas import ArmDescription, ArmName, ArmsReplacement, ArmSwitch
from armwise.agent.config import ConfigError
from armwise.agent.replies import Reply, construct
from armwise.agent.serving import DecisionPoint
from armwise.agent.serving import ask as asking
from armwise.agent.turn import ArmInfo
from armwise.arms.base import ArmBuildError, ArmError
from armwise.arms.llm import WritingSpec
from armwise.arms.retrievers import ArmSpec
from armwise.feedback.errors import ConflictError

router = APIRouter(tags=["arms"])

MASK = "***"
"""Stands for what may be secret in an address of an arm."""


class Arm(Reply):
    """A live arm."""

    name: str
    kind: str
    corpus: str | None = Field(description="Which of several corpora the arm names.")
    params: dict[str, Any]
    host: str
    answering: WritingSpec
    cache: bool
    usd: float = Field(description="Dollars of one search by the arm, without its members.")
    backbones: list[str]
    features: dict[str, float]
    enabled: bool


class ArmList(Reply):
    """The live arms, and those that are only parts of others."""

    arms: list[Arm]
    parts: dict[str, ArmSpec]
    specs: dict[str, ArmSpec] = Field(
        description="Each of them as the configuration describes it: `arms` of `PUT /v1/arms`."
    )
    arm_set: int = Field(description="Number of the set.")


@router.get("/v1/arms", **documented("listArms", ArmList, scopes=("decide", "read")))
async def arms(point: RequestPoint) -> StdlibJson[ArmList]:
    """The live arms, as configured and as switched, and the arms that are only parts of other arms."""
    live, specs = point.turns.arms, point.config.arms
    described = [_described(name, specs[name], info) for name, info in live.items()]
    shown = {name: _masked(spec.model_dump(mode="json")) for name, spec in specs.items()}
    parts = {name: spec for name, spec in shown.items() if not spec["action"]}
    return StdlibJson(construct(ArmList, arms=described, parts=parts, specs=shown, arm_set=point.arms.seq))


@router.put(
    "/v1/arms",
    **documented(
        "replaceArms",
        ArmList,
        *("arm_conflict", "arm_failed"),
        scopes=("operate",),
        example={"arms": {"none": {"kind": "none"}, "bm25": {"kind": "bm25"}}},
    ),
)
async def replace_arms(point: RequestPoint, body: ArmsReplacement) -> StdlibJson[ArmList]:
    """Replace the live arms; returns once they are built, and every replica follows within a second.

    An arm that is given as `GET /v1/arms` shows it stays as it is, with what is masked there.
    """
    specs = {name: _unmasked(spec, point.config.arms.get(name)) for name, spec in body.arms.items()}
    for name, backbone in body.backbones.items():
        here = point.config.backbones.get(name)
        if backbone != here:
            what = "is not configured" if here is None else f"is {here.model_dump()} here"
            raise ApiError("invalid_value", f"backbone {name!r} {what}", "backbones")
    try:
        await point.replace_arms(specs)
    except (ConfigError, ArmBuildError) as error:
        raise ApiError("invalid_value", str(error), "arms") from None
    except ArmError as error:
        raise ApiError("arm_failed", str(error)) from None
    except ConflictError as error:
        raise ApiError("arm_conflict", str(error), "arms") from None
    return await arms(point)


@router.patch(
    "/v1/arms/{name}",
    **documented("switchArm", Arm, "arm_not_found", scopes=("operate",), example={"enabled": False}),
)
async def switch(point: RequestPoint, name: ArmName, body: ArmSwitch) -> StdlibJson[Arm]:
    """Switch an arm on or off; a disabled arm is not drawn."""
    _require_live(point, name)
    await point.switch(name, body.enabled)
    _require_live(point, name)  # the arms may have been replaced meanwhile
    return StdlibJson(_described(name, point.config.arms[name], point.turns.arms[name]))


def _require_live(point: DecisionPoint, name: str) -> None:
    if name not in point.turns.arms:
        raise ApiError("arm_not_found", asking.not_live(point, name), "name")


def _described(name: str, spec: ArmSpec, info: ArmInfo) -> Arm:
    answering: Any = spec.answering.model_dump(exclude_none=True)
    return construct(
        Arm,
        name=name,
        kind=spec.kind,
        corpus=spec.corpus,
        params=_masked(spec.params),
        host=spec.host,
        answering=answering,
        cache=spec.cache,
        usd=spec.usd,
        backbones=sorted(info.backbones),
        features=dict(info.features),
        enabled=info.enabled,
    )


def _unmasked(spec: ArmDescription, live: ArmSpec | None) -> dict[str, Any]:
    """Return the description of an arm, with the parameters of the live one where it is shown so."""
    document = spec.model_dump()
    if live is not None and live.kind == spec.kind and _masked(live.params) == spec.params:
        document["params"] = live.params
    return document


def _masked(shown: Any) -> Any:
    """Return parameters without what may be secret in their addresses: the user, the query, the fragment.

    >>> _masked({"url": "https://me:pw@search.example/find?key=s3cret&page=1", "rows": [1]})
    {'url': 'https://***@search.example/find?key=***&page=***', 'rows': [1]}
    """
    match shown:
        case dict():
            return {name: _masked(value) for name, value in shown.items()}
        case list() | tuple():
            return [_masked(value) for value in shown]
        case str() if "://" in shown:
            try:
                parts = urlsplit(shown)
            except ValueError:
                return MASK
            _, user, place = parts.netloc.rpartition("@")
            query = "&".join(f"{pair.partition('=')[0]}={MASK}" for pair in parts.query.split("&") if pair)
            netloc, fragment = f"{MASK}@{place}" if user else place, parts.fragment and MASK
            return urlunsplit((parts.scheme, netloc, parts.path, query, fragment))
        case _:
            return shown

"""`/v1/arms`: the live arms, their replacement, and the switch of one arm."""

from typing import Any
from urllib.parse import urlsplit, urlunsplit

from fastapi import APIRouter
from pydantic import Field

from armwise.agent.api.documented import document_route
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppReplica
from armwise.agent.api.responses import StdlibJson
from armwise.agent.api.schemas import ArmName, ArmsReplacement, ArmSwitch
from armwise.agent.config import ConfigError
from armwise.agent.replies import Reply, construct
from armwise.agent.serving import Replica, admission
from armwise.agent.turn import ArmInfo
from armwise.arms.base import ArmBuildError, ArmError
from armwise.arms.llm import WritingSpec
from armwise.arms.retrievers import ArmSpec

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
    out: str | None = Field(
        description="Why the arm is out: a corpus cannot be read, or a proxy cannot be used. Null: it is not."
    )


class ArmList(Reply):
    """The live arms, and the other arms of the configuration."""

    arms: list[Arm]
    parts: dict[str, ArmSpec]
    arm_set: int = Field(description="Number of the set.")


@router.get("/v1/arms", **document_route("listArms", ArmList, scopes=("decide", "read")))
async def arms(replica: AppReplica) -> StdlibJson[ArmList]:
    """List the live arms, as configured and as switched, and the other arms of the configuration."""
    live, specs = replica.turns.arms, replica.config.arms
    described = [_describe(replica, name, info) for name, info in live.items()]
    parts = {
        name: _mask_secrets(spec.model_dump(mode="json")) for name, spec in specs.items() if not spec.action
    }
    return StdlibJson(construct(ArmList, arms=described, parts=parts, arm_set=replica.arms.seq))


@router.put(
    "/v1/arms",
    **document_route(
        "replaceArms",
        ArmList,
        "arm_failed",
        scopes=("operate",),
        example={"arms": ["none", "bm25"]},
    ),
)
async def replace_arms(replica: AppReplica, body: ArmsReplacement) -> StdlibJson[ArmList]:
    """Choose which declared arms are live; returns once they are built. Replicas follow within a second."""
    try:
        await replica.replace_arms(body.arms)
    except (ConfigError, ArmBuildError) as error:
        raise ApiError("invalid_value", str(error), "arms") from None
    except ArmError as error:
        raise ApiError("arm_failed", str(error)) from None
    return await arms(replica)


@router.patch(
    "/v1/arms/{name}",
    **document_route("switchArm", Arm, "arm_not_found", scopes=("operate",), example={"enabled": False}),
)
async def switch(replica: AppReplica, name: ArmName, body: ArmSwitch) -> StdlibJson[Arm]:
    """Switch an arm on or off; a disabled arm is not drawn."""
    _require_live(replica, name)
    await replica.switch(name, body.enabled)
    _require_live(replica, name)  # the arms may have been replaced meanwhile
    return StdlibJson(_describe(replica, name, replica.turns.arms[name]))


def _require_live(replica: Replica, name: str) -> None:
    if name not in replica.turns.arms:
        raise ApiError("arm_not_found", admission.not_live(replica, name), "name")


def _describe(replica: Replica, name: str, info: ArmInfo) -> Arm:
    spec = replica.config.arms[name]
    answering: Any = spec.answering.model_dump(exclude_none=True)
    return construct(
        Arm,
        name=name,
        kind=spec.kind,
        corpus=spec.corpus,
        params=_mask_secrets(spec.params),
        host=spec.host,
        answering=answering,
        cache=spec.cache,
        usd=spec.usd,
        backbones=sorted(info.backbones),
        features=dict(info.features),
        enabled=info.enabled,
        out=replica.health.away.get(name),
    )


def _mask_secrets(shown: Any) -> Any:
    """Return parameters without what may be secret in their addresses: the user, the query, the fragment.

    >>> _mask_secrets({"url": "https://me:pw@search.example/find?key=s3cret&page=1", "rows": [1]})
    {'url': 'https://***@search.example/find?key=***&page=***', 'rows': [1]}
    """
    match shown:
        case dict():
            return {name: _mask_secrets(value) for name, value in shown.items()}
        case list() | tuple():
            return [_mask_secrets(value) for value in shown]
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

"""`/v1/users`, `/v1/episodes` and `/v1/erasures`: erase texts, and what was erased."""

import asyncio
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import Field

from armwise.agent.api import answer_ids
from armwise.agent.api.documented import document_route
from armwise.agent.api.middleware import AppReplica, RequestCaller
from armwise.agent.api.responses import StdlibJson
from armwise.agent.api.schemas import DecisionId, LoggedId
from armwise.agent.config import Project
from armwise.agent.replies import Reply, Time, among, construct
from armwise.feedback.log import erasures

router = APIRouter(tags=["log"])

EpisodeId = Annotated[LoggedId, Path(description="Id of the episode.", examples=["talk-17"])]

User = Annotated[str, Path(min_length=1, max_length=1000, description="As `user` of the requests.")]


class ErasureState(Reply):
    """A record of texts that were erased; it names neither the user nor an id."""

    number: int
    at: Time
    scope: Annotated[str, among("user", "episode", "decision", "age")]
    by: str = Field(
        description="Public id of the key, `cli`, `retention`, or `anybody` if the service has no keys."
    )
    upto: int | None = Field(
        description="For an erasure by age: all texts up to this position of the log are gone."
    )
    decisions: int
    executions: int
    feedback: int
    observations: int


class ErasureList(Reply):
    """Records of what was erased."""

    erasures: list[ErasureState]


@router.delete("/v1/users/{user:path}", **document_route("eraseUser", ErasureState, scopes=("admin",)))
async def erase_user(
    replica: AppReplica,
    caller: RequestCaller,
    user: User,
    project: Annotated[Project, Query(description="Whose keys sent the requests.")] = "default",
) -> Response:
    """Erase the texts of all decisions of an end user, and of their episodes.

    Questions, answers, passages shown, comments, corrections and tags are overwritten, names of features
    and ids of feedback become pseudonyms, and the user is forgotten. Arms, probabilities, values of features,
    costs and values stay. It is recorded without the user. A turn that is under way loses its texts, too.
    """
    erasure = await asyncio.to_thread(
        erasures.erase_user, replica.store, project, user, _by(caller.key), replica.clock()
    )
    return StdlibJson(_state(erasure))


@router.delete("/v1/episodes/{episode_id}", **document_route("eraseEpisode", ErasureState, scopes=("admin",)))
async def erase_episode(replica: AppReplica, caller: RequestCaller, episode_id: EpisodeId) -> Response:
    """Erase the texts of all decisions of an episode, as `DELETE /v1/users/{user}` does.

    Feedback that names the episode is erased even if the log has no decision of it.
    """
    name = await answer_ids.find_episode(replica, caller, episode_id)
    erasure = await asyncio.to_thread(
        erasures.erase_episode, replica.store, name, _by(caller.key), replica.clock()
    )
    return StdlibJson(_state(erasure))


@router.delete(
    "/v1/decisions/{decision_id}", **document_route("eraseDecision", ErasureState, scopes=("admin",))
)
async def erase_decision(replica: AppReplica, caller: RequestCaller, decision_id: DecisionId) -> Response:
    """Erase the texts of a decision, and of feedback that names it, even if there is no such decision."""
    name = await answer_ids.find_decision(replica, caller, decision_id)
    erasure = await asyncio.to_thread(
        erasures.erase_decision, replica.store, name, _by(caller.key), replica.clock()
    )
    return StdlibJson(_state(erasure))


@router.get("/v1/erasures", **document_route("listErasures", ErasureList, scopes=("admin",)))
async def list_erasures(replica: AppReplica) -> Response:
    """List erasures, newest first."""
    erased = await asyncio.to_thread(erasures.erasures, replica.store)
    return StdlibJson(construct(ErasureList, erasures=[_state(erasure) for erasure in erased]))


def _by(key: str | None) -> str:
    return key or "anybody"


def _state(erasure: erasures.Erasure) -> ErasureState:
    return construct(ErasureState, **asdict(erasure))

"""`/v1/vector_stores`: each corpus as a store that OpenAI's clients search; a search is a decision."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Response
from pydantic import ConfigDict, Field

from armwise.agent.api import responses, retrieve
from armwise.agent.api.documented import TURN, documented
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import RequestCaller, RequestPoint, at_model
from armwise.agent.api.openai.chat import name_source
from armwise.agent.api.openai.schemas import VectorStoreSearch
from armwise.agent.api.schemas import IdempotencyKey, Name, Timeout
from armwise.agent.replies import Chosen, Reply, construct
from armwise.agent.serving import DecisionPoint
from armwise.agent.serving import ask as asking
from armwise.agent.turn import Ask, Decided
from armwise.arms.base import Passage

router = APIRouter(tags=["answers"])


MAX_ATTRIBUTES = 16
"""Attributes of a result, as OpenAI's clients expect."""


class VectorStore(Reply):
    """A corpus as a store."""

    model_config = ConfigDict(frozen=True, extra="allow")

    id: str = Field(description="Name of the corpus.")
    object: Literal["vector_store"]
    created_at: int
    name: str
    status: Literal["completed"]


class VectorStores(Reply):
    """The stores: one for each corpus."""

    object: Literal["list"]
    data: list[VectorStore]
    first_id: str
    last_id: str
    has_more: bool


class PassageText(Reply):
    """The text of a passage."""

    type: Literal["text"]
    text: str


class StoreHit(Reply):
    """A passage that was found."""

    file_id: str = Field(description="Id of the passage.")
    filename: str
    score: float
    attributes: dict[str, str | int | float | bool] = Field(
        description="`decision_id`, `arm`, `title` and `url`, and of its metadata."
    )
    content: list[PassageText]


class StoreSearch(Reply):
    """What a search of a store found, best first."""

    object: Literal["vector_store.search_results.page"]
    search_query: list[str]
    data: list[StoreHit]
    has_more: bool
    next_page: None
    agent: Chosen


StoreName = Annotated[Name, Path(description="Name of the corpus.", examples=["stdlib"])]


@router.get(
    "/v1/vector_stores",
    **documented("listVectorStores", VectorStores, scopes=("decide", "read")),
)
async def vector_stores(point: RequestPoint) -> Response:
    """The stores, one for each corpus."""
    stores = [_store(name) for name in point.config.corpus_names]
    page = construct(
        VectorStores,
        object="list",
        data=stores,
        first_id=stores[0].id,
        last_id=stores[-1].id,
        has_more=False,
    )
    return responses.Json(page)


@router.get(
    "/v1/vector_stores/{store}",
    **documented("getVectorStore", VectorStore, "vector_store_not_found", scopes=("decide", "read")),
)
async def vector_store(point: RequestPoint, store: StoreName) -> Response:
    """One store, by the name of its corpus."""
    require(point, store)
    return responses.Json(_store(store))


@router.post(
    "/v1/vector_stores/{store}/search",
    **documented(
        "searchVectorStore",
        StoreSearch,
        *TURN,
        *("vector_store_not_found", "unsupported_parameter"),
        scopes=("decide",),
        success=retrieve.SUCCESS,
        example={"query": "Which function merges sorted inputs lazily?", "max_num_results": 4},
    ),
)
async def search(
    point: RequestPoint,
    caller: RequestCaller,
    store: StoreName,
    body: VectorStoreSearch,
    key: IdempotencyKey = None,
    timeout_s: Timeout = None,
) -> Response:
    """Decide and retrieve, as `/v1/retrieve` does; `attributes` of each result have the decision.

    Where there are several stores, the arms that search this one alone are eligible.
    """
    point, caller = at_model(point, caller, body.model)
    require(point, store)
    query = _query(body)
    k = min(body.max_num_results, point.config.limits.passages)
    if body.filters is not None and body.agent.filters is not None:
        raise ApiError(
            "invalid_value", "'filters' and 'agent.filters' are the same: one was expected", "filters"
        )
    least = None if body.ranking_options is None else body.ranking_options.score_threshold
    scored = {"k": k, "by_score": least is not None}
    ask = asking.check_ask(point, caller, query, body, key, "query", body.filters, **scored)
    ask = within(point, ask, store)
    decided, _, finished = await asking.whole(asking.stream_turn(point, caller, ask, key, timeout_s))
    kept = [p for p in decided.retrieval.passages if least is None or p.score >= least]
    prices = point.config.reward.cost
    reply = construct(
        StoreSearch,
        object="vector_store.search_results.page",
        search_query=[query],
        data=[_hit(point, decided, passage) for passage in kept],
        has_more=False,
        next_page=None,
        agent=construct(Chosen, **responses.chosen(decided.decision, decided.served, finished, prices)),
    )
    return responses.Json(reply, headers=responses.headers(decided.decision, decided.served, finished))


_OF_ANY_STORE: Mapping[str, Any] = {
    "usage_bytes": 0,
    "file_counts": {"in_progress": 0, "completed": 1, "failed": 0, "cancelled": 0, "total": 1},
    "last_active_at": None,
    "metadata": {},
}
"""Fields of a store that OpenAI's clients read and that say nothing of a corpus."""


def _store(name: str) -> VectorStore:
    return construct(
        VectorStore,
        id=name,
        object="vector_store",
        created_at=0,
        name=name,
        status="completed",
        **_OF_ANY_STORE,
    )


def require(point: DecisionPoint, store: str) -> None:
    """Refuse a store that is no corpus. Raises ApiError."""
    names = point.config.corpus_names
    if store not in names:
        there = f"there {'is' if len(names) == 1 else 'are'}: {', '.join(names)}"
        raise ApiError("vector_store_not_found", f"there is no store {store!r}; {there}", "store")


def within(point: DecisionPoint, ask: Ask, store: str) -> Ask:
    """Return a question of which one of several corpora is searched. Raises ApiError."""
    arms = point.config.searching(store)
    if arms is None:
        return ask
    if not (kept := arms if ask.allowed is None else arms & ask.allowed):
        which = "no arm" if ask.allowed is None else "none of the allowed arms"
        message = f"{which} searches corpus {store!r} alone; an arm of kind bm25 with `corpus: {store}` would"
        raise ApiError("no_eligible_arm", message, "store")
    digest = ask.request_digest and hashlib.sha256(f"{ask.request_digest} {store}".encode()).hexdigest()
    return replace(ask, allowed=kept, request_digest=digest)


def _query(body: VectorStoreSearch) -> str:
    """Return the query of a search, several joined. Raises ApiError."""
    if body.rewrite_query:
        message = "'rewrite_query' is not supported: an arm may change the query"
        raise ApiError("unsupported_parameter", message, "rewrite_query")
    return body.query if isinstance(body.query, str) else "\n".join(body.query)


def _hit(point: DecisionPoint, decided: Decided, passage: Passage) -> StoreHit:
    attributes: dict[str, str | int | float | bool] = {
        "decision_id": decided.decision.id,
        "arm": decided.served,
        "title": passage.title[:512],
        "url": name_source(passage.id, point.config)[:512],
    }
    for name, value in passage.metadata.items():  # lists do not fit: tags, and the groups of others
        if isinstance(value, str | int | float) and len(attributes) < MAX_ATTRIBUTES:
            attributes.setdefault(name, value)
    return construct(
        StoreHit,
        file_id=passage.id,
        filename=passage.title or passage.id,
        score=passage.score,
        attributes=attributes,
        content=[construct(PassageText, type="text", text=passage.text)],
    )

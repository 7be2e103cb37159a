"""`/mcp`: search, fetch, ask and feedback as tools of the Model Context Protocol, over streamable HTTP.

Requests are stateless, so that any replica answers. A search and an answer are turns with a logged decision,
like those of `/v1/retrieve` and `/v1/chat/completions`.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import metadata
from typing import Annotated, Any

from fastapi.exceptions import RequestValidationError
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from armwise.agent.access import Caller, require_scope
from armwise.agent.api import errors
from armwise.agent.api.decisions import read_permitted
from armwise.agent.api.errors import ApiError
from armwise.agent.api.feedback import FeedbackSender
from armwise.agent.api.middleware import identify_caller
from armwise.agent.api.protocols import chat
from armwise.agent.api.protocols.schemas import ChatRequest
from armwise.agent.api.request_fields import check_ask
from armwise.agent.api.schemas import Comment, FeedbackItem, LoggedId, Name, RetrieveRequest, Text
from armwise.agent.config import Scope as KeyScope
from armwise.agent.serving import Replica, admission
from armwise.agent.turn import Ask
from armwise.arms.base import Passage
from armwise.arms.filters import hide_groups

INSTRUCTIONS = (
    "Search the passages of this service, or have it answer from them. Each search and each answer names its "
    "decision; call feedback with it to say how good it was, so that the service learns how to search."
)


class FoundPassage(BaseModel):
    """A passage that was found."""

    id: str
    title: str
    url: str


class SearchResults(BaseModel):
    """What a search found, best first."""

    results: list[FoundPassage]
    decision_id: str = Field(description="Names this search in feedback.")


class FetchedPassage(BaseModel):
    """A passage with its text."""

    id: str
    title: str
    text: str
    url: str
    metadata: dict[str, str]


class WrittenAnswer(BaseModel):
    """An answer, and the passages that it was written from."""

    answer: str
    passages: list[FoundPassage]
    decision_id: str = Field(description="Names this answer in feedback.")


class Kept(BaseModel):
    """Feedback that is stored."""

    feedback_id: str
    status: str = Field(description="stored or duplicate.")


logger = logging.getLogger(__name__)


@contextmanager
def _handlers_of_root_kept() -> Iterator[None]:
    """Keep `MCPServer` from configuring the root logger, as it does with one that has no handler."""
    guard = logging.NullHandler()
    logging.root.addHandler(guard)
    try:
        yield
    finally:
        logging.root.removeHandler(guard)


with _handlers_of_root_kept():
    SERVER = MCPServer(
        "armwise",
        title="Armwise",
        version=metadata.version("armwise"),
        instructions=INSTRUCTIONS,
        subscriptions=False,
    )

logging.getLogger("mcp.server.streamable_http_manager").setLevel(logging.WARNING)  # starts once a request

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)

Question = Annotated[Text, Field(description="A question in natural language.")]


@contextmanager
def _calling(ctx: Context[Any, Any], *scopes: KeyScope) -> Iterator[tuple[Replica, Caller]]:
    """Yield the replica and the caller; a failure becomes an error that the model reads.

    Raises:
        ToolError: The key lacks all of the scopes, or the service refuses the call.
    """
    request = ctx.request_context.request
    assert isinstance(request, Request)
    replica: Replica = request.app.state.replica
    caller = identify_caller(request)
    try:
        require_scope(caller, scopes)
        yield replica, caller
    except ToolError:
        raise
    except Exception as error:
        cause = RequestValidationError(error.errors()) if isinstance(error, ValidationError) else error
        failure = errors.translate(cause).show_to(caller)
        if failure.code == "internal_error":
            logger.exception("a tool failed")
        raise ToolError(f"{failure.code}: {failure.message}") from error


@SERVER.tool(annotations=READS)
async def search(
    query: Question,
    ctx: Context[Any, Any],
    corpus: Annotated[
        Name | None, Field(description="Name of the corpus to search; without it, the policy chooses.")
    ] = None,
) -> SearchResults:
    """Search for passages that answer a question, in one corpus or where the policy finds it best."""
    with _calling(ctx, "decide") as (replica, caller):
        body = RetrieveRequest(query=query)
        ask = check_ask(replica, caller, query, body.model, body.agent, None, "query", sent=body)
        if corpus is not None:
            ask = _within(replica, ask, corpus)
        decided, _, _ = await admission.read_to_end(admission.stream_turn(replica, caller, ask, None, None))
        return SearchResults(
            results=_describe_passages(replica, decided.retrieval.passages), decision_id=decided.decision.id
        )


@SERVER.tool(annotations=READS)
async def fetch(
    id: Annotated[Name, Field(description="Id of a passage.")],  # noqa: A002  # as connectors call it
    ctx: Context[Any, Any],
) -> FetchedPassage:
    """Return the text of a passage that a search has found."""
    with _calling(ctx, "decide", "read") as (replica, caller):
        passage = (await read_permitted(replica, caller, [id])).get(id)
        if passage is None:
            raise ToolError(f"there is no passage {id!r}; give an id that a search returned")
        corpus, _ = replica.config.locate_passage(id)
        attributes = {name: str(value) for name, value in hide_groups(passage.metadata).items()}
        about = {**attributes, "corpus": corpus}
        return FetchedPassage(
            id=id,
            title=passage.title,
            text=passage.text,
            url=chat.name_source(id, replica.config),
            metadata=about,
        )


@SERVER.tool(annotations=READS)
async def ask(question: Question, ctx: Context[Any, Any]) -> WrittenAnswer:
    """Answer a question from the passages of this service."""
    with _calling(ctx, "decide") as (replica, caller):
        document = {"messages": [{"role": "user", "content": question}]}
        chat_ask = await chat.read_ask(replica, caller, document, ChatRequest.model_validate(document))
        decided, written, _ = await admission.read_to_end(
            admission.stream_turn(replica, caller, chat_ask, None, None)
        )
        return WrittenAnswer(
            answer=written.text,
            passages=_describe_passages(replica, decided.retrieval.passages),
            decision_id=decided.decision.id,
        )


@SERVER.tool(name="feedback", annotations=ToolAnnotations(destructive_hint=False, open_world_hint=False))
async def rate(
    decision_id: Annotated[LoggedId, Field(description="Decision id of a search or an answer.")],
    metric_name: Annotated[Name, Field(description="A metric that the service declares, such as thumb.")],
    value: Annotated[bool | float | str, Field(description="A number, true or false, a label, or a text.")],
    ctx: Context[Any, Any],
    comment: Annotated[Comment | None, Field(description="Why.")] = None,
) -> Kept:
    """Say how good a search or an answer was.

    The metric `comment` takes a text, and `demonstration` the right answer.
    """
    with _calling(ctx, "feedback") as (replica, caller):
        metric = replica.config.reward.metrics.get(metric_name)
        if isinstance(value, str) and metric is not None and metric.values is None:
            with suppress(ValueError):  # some clients send every argument as a text
                value = float(value)
        item = FeedbackItem(decision_id=decision_id, metric_name=metric_name, value=value, comment=comment)
        (kept,) = await FeedbackSender(replica, caller).keep_all(item)
        return Kept(feedback_id=kept.feedback_id, status=kept.status)


def _within(replica: Replica, ask: Ask, corpus: str) -> Ask:
    """Return a question for which only one corpus is searched. Raises ApiError."""
    names = replica.config.corpus_names
    if corpus not in names:
        there = f"available: {', '.join(names)}"
        raise ApiError("invalid_value", f"there is no corpus {corpus!r}; {there}", "corpus")
    arms = replica.config.searching(corpus)
    if arms is None:
        return ask
    if not arms:
        message = f"no arm searches only corpus {corpus!r}: add one, such as bm25 with `corpus: {corpus}`"
        raise ApiError("no_eligible_arm", message, "corpus")
    return replace(ask, allowed=arms)


def _describe_passages(replica: Replica, passages: Sequence[Passage]) -> list[FoundPassage]:
    return [
        FoundPassage(id=p.id, title=p.title, url=chat.name_source(p.id, replica.config)) for p in passages
    ]


async def serve(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one request of the protocol over streamable HTTP; each tool checks the scope that it needs."""
    replica: Replica = scope["app"].state.replica
    manager = StreamableHTTPSessionManager(
        SERVER._lowlevel_server,  # noqa: SLF001  # it has no public name
        json_response=True,
        stateless=True,
        max_request_body_size=replica.config.limits.body_bytes,
    )
    # a manager per request: requests are stateless
    async with manager.run():
        await manager.handle_request(scope, receive, send)

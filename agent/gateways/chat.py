"""`/chat`: a page on which people ask and rate, and `/chat.js`, which shows it in a page of another site.

    page of a site --chat.js--> frame of /chat#key=... --POST /chat/ask--> answer, passages, token to rate it

The key of such a page is public, so its scope `chat` allows this one route: no arm, model or earlier decision
can be named, and the reply has the answer and its passages only. The frame keeps the conversation from the
scripts of the site, and the service needs to accept no request from other sites. Ratings go through the token
of the answer, as those of `/feedback.js` do.
"""

import ipaddress
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal
from weakref import WeakKeyDictionary

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest
from pydantic import AfterValidator, Field, StrictStr

from armwise.agent.access import is_unlogged
from armwise.agent.api import errors, pages
from armwise.agent.api.documented import ANSWER, document_route
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppReplica, RequestCaller, read_address
from armwise.agent.api.protocols import chat, write
from armwise.agent.api.protocols.schemas import ChatRequest
from armwise.agent.api.protocols.write import OpenTurn, write_event
from armwise.agent.api.responses import EventStream
from armwise.agent.api.schemas import Request, storable
from armwise.agent.config import AppConfig
from armwise.agent.gateways.buttons import METRIC, make_token
from armwise.agent.serving import Replica, admission
from armwise.agent.turn import Decided, Finished
from armwise.arms.llm import Chunk, prompts

router = APIRouter(tags=["answers"], include_in_schema=False)

MOST_MESSAGES, MOST_CHARS = 11, 8000
"""Most messages of a conversation that are sent with a question, and most characters of each."""

STATIC = Path(__file__).parent / "static"

PAGE, SCRIPT = ((STATIC / name).read_bytes() for name in ("chat.html", "chat.js"))

DIAL = b'id="dial" hidden'
"""What hides the choice between cheaper and better answers."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""Content security policy of the page; `_limit_frames` adds who may show it."""

THIS_MACHINE = ("http://localhost:*", "http://127.0.0.1:*")

CACHED = {"cache-control": "max-age=3600"}


class ChatMessage(Request):
    """A question, or an answer that the page has shown."""

    role: Literal["user", "assistant"]
    content: Annotated[StrictStr, Field(min_length=1, max_length=MOST_CHARS), AfterValidator(storable)]


class ChatQuestion(Request):
    """`POST /chat/ask`."""

    conversation: Annotated[StrictStr, Field(pattern=r"^[0-9a-f]{32}$")]
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES)]
    model: Literal["auto", "auto:cheap", "auto:best"] = "auto"


@router.get(pages.CHAT)
async def page(replica: AppReplica) -> Response:
    """The page; its key is behind the # of its address, which browsers do not send."""
    policy = f"{POLICY}{_limit_frames(replica)}"
    headers = {
        "content-security-policy": policy,
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    page = PAGE.replace(DIAL, DIAL.removesuffix(b" hidden")) if _has_dial(replica) else PAGE
    return Response(page, media_type="text/html", headers=headers)


@router.get(pages.CHAT_SCRIPT)
async def script() -> Response:
    """The script with which a page of any site shows the chat page."""
    return Response(SCRIPT, media_type="text/javascript", headers=CACHED)


def _serve(name: str, media: str) -> None:
    content = (STATIC / name).read_bytes()

    @router.get(f"{pages.CHAT}/{name}", name=name)
    async def file() -> Response:
        return Response(content, media_type=media, headers=CACHED)


for _name in pages.CHAT_FILES:
    _serve(_name, "text/css" if _name.endswith(".css") else "text/javascript")


@router.post(f"{pages.CHAT}/ask", **document_route("askChat", None, *ANSWER, scopes=("chat",)))
async def ask(http: HttpRequest, replica: AppReplica, caller: RequestCaller, body: ChatQuestion) -> Response:
    """Answer a question of the page: its passages and a token to rate it, then the text as it is written."""
    visitor = replace(caller, address=read_address(http))
    if caller.key is not None:
        _admit(replica, visitor.address or "")
    if body.model != "auto" and not _has_dial(replica):
        raise ApiError(
            "invalid_value", f"{body.model!r}: only 'auto' is allowed, as `chat.dial` is off", "model"
        )
    document: dict[str, Any] = {
        "model": body.model,
        "messages": [message.model_dump() for message in body.messages],
        "stream": True,
        "agent": {"episode_id": f"chat-{body.conversation}"},
    }
    try:
        asked = await chat.read_ask(replica, visitor, document, ChatRequest.model_validate(document))
        turn = await OpenTurn.begin(admission.stream_turn(replica, visitor, asked, None, None))
    except Exception as error:
        if errors.choose_code(error) == "internal_error":
            raise
        message = "the question was not answered; the log of the service says why"
        raise errors.translate(error).without_details(message) from error
    decided = turn.decided
    token = _make_token(replica, caller.key, decided.decision.id)
    begin = {"passages": _list_passages(decided, replica.config), "token": token}
    return EventStream(_write(turn, begin), turn, {"cache-control": "no-store"}, chat.ChatWriter.ping)


async def _write(turn: OpenTurn, begin: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    """Yield the events of an answer: what it begins with, its pieces, and how it ended."""
    yield write_event(begin)
    try:
        async for event in turn:
            if isinstance(event, Chunk) and event.text:
                yield write_event({"text": event.text})
            elif isinstance(event, Finished):
                yield write_event({"end": "cut" if "length" in event.finish_reasons else "whole"})
    except Exception as error:  # noqa: BLE001 - the status was sent already: it is sent as an event
        yield write_event({"error": {"code": write.report_failure(error).code}})


def _has_dial(replica: Replica) -> bool:
    return replica.config.chat.dial and replica.config.counts_cost


def _list_passages(decided: Decided, config: AppConfig) -> list[dict[str, str | None]]:
    """Return the passages that the language model was shown, in the order of their numbers in the answer."""
    passages = decided.retrieval.passages
    shown = sum(
        1 for _ in prompts.number_passages(passages, config.find_answering(decided.served).word_budget)
    )
    listed = []
    for passage in passages[:shown]:
        source = chat.name_source(passage.id, config)
        url = None if source.startswith("urn:") else source
        listed.append({"title": passage.cited or passage.id, "text": passage.text, "url": url})
    return listed


def _make_token(replica: Replica, key: str | None, decision_id: str) -> str | None:
    """Return the token with which the page rates an answer; None: it cannot be rated."""
    reward = replica.config.reward
    if METRIC not in reward.metrics or is_unlogged(decision_id):
        return None
    return make_token(replica, key, decision_id, int(replica.clock() + reward.wait_s))


def _limit_frames(replica: Replica) -> str:
    """Return the directive that says who may show the page in a frame; empty: everybody."""
    origins = replica.config.chat.origins
    if not origins and replica.keyring.is_open:
        origins = THIS_MACHINE
    return f"; frame-ancestors 'self' {' '.join(origins)}" if origins else ""


_ASKED: WeakKeyDictionary[Replica, tuple[int, Counter[str]]] = WeakKeyDictionary()
"""The minute in which each replica was asked last, and how often each address has asked in it."""


def _admit(replica: Replica, address: str) -> None:
    """Count a question of an address. Raises ApiError."""
    now = replica.clock()
    minute, most, name = int(now // 60), replica.config.chat.questions_per_minute, name_network(address)
    last, counts = _ASKED.get(replica, (minute, Counter[str]()))
    if last != minute:
        counts = Counter()
    _ASKED[replica] = minute, counts
    if counts[name] >= most:
        message = f"an address may ask {most} questions in a minute"
        wait = max(1, round(60 - now % 60))
        raise ApiError("rate_limit_exceeded", message, retry_after_s=wait, meter="requests")
    counts[name] += 1


def name_network(address: str) -> str:
    """Return the network that counts as one visitor: a /64 of IPv6, or the address itself.

    >>> name_network("2001:db8::1:2"), name_network("203.0.113.7"), name_network("::ffff:203.0.113.7")
    ('2001:db8::/64', '203.0.113.7', '203.0.113.7')
    """
    try:
        read = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(read, ipaddress.IPv4Address):
        return address
    return str(read.ipv4_mapped or ipaddress.ip_network((read, 64), strict=False))

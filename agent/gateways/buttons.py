"""`/feedback.js` and its two buttons: feedback on one answer, from a web page without an API key.

A backend with a key requests a token for one decision and writes it into its page. The token names key and
decision; it is signed with a key derived from the secret of the log, which only the replicas have. It is
valid as long as the key is, and as feedback on the decision would count. It permits values of the metric
`thumb` on this decision, changed at most a few times, and they are attributed to the key. Pages of any site
may send requests with a token: only the token authorises them, never a cookie.
"""

import asyncio
import base64
import hashlib
import hmac
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import orjson
from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest
from pydantic import AfterValidator, Field, StrictInt, StrictStr

from armwise.agent.access import Caller, UnauthorizedError
from armwise.agent.api import pages
from armwise.agent.api.answer_ids import find_decision
from armwise.agent.api.documented import document_route
from armwise.agent.api.errors import ApiError, translate
from armwise.agent.api.feedback import FeedbackSender
from armwise.agent.api.middleware import AppReplica, RequestCaller, read_address
from armwise.agent.api.responses import StdlibJson
from armwise.agent.api.schemas import DecisionId, FeedbackItem, Request, storable
from armwise.agent.replies import ButtonReceipt, FeedbackToken, construct
from armwise.agent.serving import Replica
from armwise.feedback.errors import ConflictError, StoreError
from armwise.feedback.reward import Metric

router = APIRouter(tags=["feedback"])

METRIC = "thumb"
"""Metric that the buttons set."""

MOST_CHANGES = 10
"""Most presses of the buttons of one answer."""

SCRIPT = (Path(__file__).parent / "static" / "feedback.js").read_bytes()

LONGEST_TOKEN = 1024

MAC_BYTES = 16

Value = float | bool | str


class ButtonRequest(Request):
    """`POST /v1/feedback/button`."""

    token: Annotated[StrictStr, Field(min_length=1, max_length=LONGEST_TOKEN), AfterValidator(storable)] = (
        Field(description="From `POST /v1/decisions/{decision_id}/feedback-token`.")
    )
    value: Literal["up", "down"] | None = Field(description="Which button is pressed now; null for neither.")
    passage: StrictInt | None = Field(
        default=None, ge=1, description="Number of the passage that is rated; null for the answer."
    )
    change: StrictInt = Field(
        default=0,
        ge=0,
        lt=MOST_CHANGES,
        description="How often a button was pressed before; what was sent then is taken back.",
    )


@router.get(pages.FEEDBACK_SCRIPT, include_in_schema=False)
async def script() -> Response:
    """The script that puts the buttons into a page."""
    return Response(SCRIPT, media_type="text/javascript", headers={"cache-control": "max-age=3600"})


@router.post(
    "/v1/decisions/{decision_id}/feedback-token",
    **document_route("createFeedbackToken", FeedbackToken, "unknown_metric", scopes=("feedback",)),
)
async def create_token(replica: AppReplica, caller: RequestCaller, decision_id: DecisionId) -> Response:
    """Return a token with which a page may rate this answer, and nothing else; the page needs no key."""
    replica.config.reward.metric(METRIC)
    presser = _presser(caller)  # who is refused what its token could not be used for
    decision_id = presser.strip_prefix(await find_decision(replica, presser, decision_id))
    expires = int(replica.clock() + replica.config.reward.wait_s)
    token = make_token(replica, caller.key, decision_id, expires)
    return StdlibJson(construct(FeedbackToken, token=token, expires_at=float(expires)))


@router.options(pages.FEEDBACK_BUTTON, include_in_schema=False)
async def preflight() -> Response:
    """Let a browser send what the buttons send, from a page of any site."""
    allowed = {
        "access-control-allow-methods": "POST",
        "access-control-allow-headers": "content-type",
        "access-control-max-age": "86400",
    }
    return Response(status_code=204, headers=allowed)


@router.post(pages.FEEDBACK_BUTTON, include_in_schema=False)  # of the script: the token is no key of a client
async def press(replica: AppReplica, request: HttpRequest, body: ButtonRequest) -> Response:
    """Keep what a button of `/feedback.js` says of one answer; the token of that answer stands for a key."""
    key, decision_id = _read_token(replica, body.token)
    try:
        caller = replace(_presser(replica.keyring.holder(key)), address=read_address(request))
    except UnauthorizedError as error:
        message = f"the token belongs to a key that is no longer valid: {error}"
        raise ApiError("forbidden", message, "token") from None
    value = None if body.value is None else read_thumb(replica.config.reward.metric(METRIC), body.value)
    about, passage = decision_id, None
    if body.passage is not None:
        about = f"{decision_id} {body.passage}"
        passage = await _find_passage(replica, caller, decision_id, body.passage)
    items = [
        FeedbackItem(
            decision_id=decision_id, metric_name=METRIC, value=number, passage=passage, feedback_id=name
        )
        for number, name in _changes(about, value, body.change)
    ]
    try:
        receipts = await FeedbackSender(replica, caller).keep_all(*items) if items else []
    except ConflictError:  # it names ids that the page does not know
        message = f"press {body.change} of this answer was kept with another value: count the next one up"
        raise ApiError("idempotency_conflict", message, "change") from None
    except StoreError as error:
        raise translate(error).show_to(caller) from None
    status = receipts[-1].status if receipts else "stored"
    reply = construct(ButtonReceipt, decision_id=decision_id, value=body.value, status=status)
    return StdlibJson(reply, 202)


async def _find_passage(replica: Replica, caller: Caller, decision_id: str, number: int) -> str:
    """Return the id of the passage that a button is about, which the page does not know. Raises ApiError."""
    logged = await asyncio.to_thread(replica.store.record, caller.to_stored_id(decision_id))
    passages = logged.execution.passages if logged is not None and logged.execution is not None else ()
    if number > len(passages):
        raise ApiError("invalid_value", f"the answer has {len(passages)} passages", "passage")
    return passages[number - 1]


def _presser(caller: Caller) -> Caller:
    """Return the caller for a button press: a user, under the key of the page's owner."""
    return Caller(caller.key, frozenset({"feedback"}), caller.project, source="user")


def _changes(decision_id: str, value: Value | None, change: int) -> list[tuple[Value | None, str]]:
    """Return values with feedback ids: the retraction of the previous press, then the new value.

    The ids have a fixed length, whatever the length of the decision's id.

    >>> [(value, name.partition(":")[0]) for value, name in _changes("d", 1.0, 2)]
    [(None, 'button-1'), (1.0, 'button-2')]
    """
    digest = hashlib.blake2b(decision_id.encode(), digest_size=16).hexdigest()
    before: list[tuple[Value | None, str]] = [(None, f"button-{change - 1}:{digest}")] if change else []
    return [*before, *([] if value is None else [(value, f"button-{change}:{digest}")])]


def read_thumb(metric: Metric, pressed: Literal["up", "down"]) -> Value:
    """Return the best value of a metric for `up`, the worst for `down`."""
    number = metric.value_at(1.0 if pressed == "up" else 0.0)
    if metric.values is not None:
        return next(label for label, each in metric.values.items() if each == number)
    return bool(number) if metric.type == "boolean" else number


def make_token(replica: Replica, key: str | None, decision_id: str, expires: int) -> str:
    """Return a token for a decision.

    Args:
        replica: Has the secret of the log.
        key: Public id of the caller's key; None: a service without keys.
        decision_id: Id of the decision, as the caller names it.
        expires: End of validity, in seconds since the epoch.
    """
    claims = orjson.dumps([key, decision_id, expires])
    return f"{_encode(claims)}.{_encode(_signature(replica, claims))}"


def _read_token(replica: Replica, token: str) -> tuple[str | None, str]:
    """Return key and decision of a token. Raises ApiError."""
    claims, _, signature = token.partition(".")
    try:
        content = _decode(claims)
        key, decision_id, expires = orjson.loads(content)
        sound = hmac.compare_digest(_signature(replica, content), _decode(signature))
    except (ValueError, TypeError):
        sound = False
    if not sound:
        raise ApiError("forbidden", "this service did not issue this token", "token")
    if replica.clock() >= expires:
        raise ApiError("forbidden", "the token has expired: feedback would no longer count", "token")
    return key, decision_id


def _signature(replica: Replica, claims: bytes) -> bytes:
    key = hashlib.blake2b(replica.store.draw_secret.secret.encode(), person=b"feedback-token").digest()
    return hmac.new(key, claims, hashlib.sha256).digest()[:MAC_BYTES]


def _encode(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)

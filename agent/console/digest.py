"""The digest: a report of the time since the last one, sent as a webhook by itself or by hand.

read_period --> describe --> document, which the form `json` sends --> write_message, for Slack
send_claimed    reads, records that it sends, posts, and records what came of it
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from html import escape
from math import isfinite
from typing import Any, NamedTuple

import httpx

from armwise.agent.cli.console import errors, progress
from armwise.agent.config import AppConfig, DigestSpec, parse
from armwise.agent.console.period import Events, NothingServedError, Period, read_events, read_period
from armwise.agent.console.period_report import cut, list_statements
from armwise.agent.jobs import RETRIES_S
from armwise.agent.low_priority import read_task
from armwise.agent.proof import Statement
from armwise.agent.reporting import log_plainly, one_line, write_span
from armwise.arms import proxies
from armwise.feedback.decisions import format_time
from armwise.feedback.log import Store
from armwise.feedback.registry import Digest, DigestState, digests

TIMEOUT_S = 10.0
"""Longest wait for the receiver, from the connection, which has half of it, to the end of the answer."""

REFUSING = (429, 500, 503)
"""Statuses of a receiver that did not take it, and may later. A gateway's 502 and 504 do not say so."""

REASON_BYTES = 200
"""Bytes of a refusal that are read and shown."""

HEADER_CHARS, SECTION_CHARS = 150, 3000
"""Longest texts that Slack takes in a header and in a section."""

LINE_CHARS = 1000
"""Longest line of a message."""

LEFT_CHARS = 30
"""Room for the number of lines that are left out."""

MOST_LINES = 8
"""Most lines of a section; data has all of them."""

FAILING, LEAST_FAILED = 0.05, 5
"""Share and number of failed requests from which on an arm is to be mended."""

BY_CLASS = "Each range holds by itself with 95 % confidence. Among many classes, one may be wrong."

Post = Callable[[str, Any], "Delivery"]


class Delivery(NamedTuple):
    """What came of sending.

    Attributes:
        state: `SENT`, `REFUSED` if it may be tried again, or `FAILED`.
        why: Why it failed.
    """

    state: DigestState
    why: str = ""


# -- what is sent ----------------------------------------------------------------------------------


def read_body(
    store: Store, config: AppConfig, since: float, until: float, form: str, by: str
) -> dict[str, Any]:
    """Return what is sent of a period.

    Args:
        store: The log.
        config: The configuration.
        since: Begin, seconds since the epoch.
        until: End, exclusive.
        form: `slack` or `json`.
        by: Field of the context whose texts are the classes.

    Raises:
        LogUnavailableError: Try again later.
    """
    with progress(errors) as on_progress:
        try:
            document = describe(read_period(store, config, since, until, on_progress, by))
        except NothingServedError as error:
            changes, held = read_events(store, config, since, until)
            why = str(error)
            silent = {"headline": "Nothing was served", "detail": f"{why[:1].upper()}{why[1:]}."}
            document = _describe_time(since, until, changes, held) | {"saved": [silent]}
    return document if form == "json" else write_message(document)


def describe(period: Period) -> dict[str, Any]:
    """Return a period as data: what was saved, quality by class, what changed, and what to decide."""
    return _describe_time(period.since, period.until, period.changes, period.held) | {
        "decisions": period.decisions,
        "rated": period.rated,
        "arms": [
            {"name": arm.name, "share": arm.share, "decisions": arm.decisions, "failed": arm.failed}
            for arm in period.arms
        ],
        "saved": [_say(one) for one in list_statements(period)],
        "classes": [{"class": name, "decisions": n, **_say(one)} for name, n, one in period.classes],
        "decide": list(_list_to_decide(period)),
    }


def _describe_time(since: float, until: float, changes: Events, held: Events) -> dict[str, Any]:
    """Return a time in which nothing was served as data, without saying so yet."""
    return {
        "title": f"Armwise, {write_span(since, until)}",
        "since": format_time(since),
        "until": format_time(until),
        "decisions": 0,
        "rated": 0,
        "arms": [],
        "saved": [],
        "classes": [],
        "changed": [{"at": format_time(at), "text": text} for at, text in sorted((*changes, *held))],
        "decide": list(_list_held(held)),
    }


def _list_held(held: Events) -> Iterator[str]:
    return (f"{text} Promote it all the same, or wait." for _, text in held)


def _say(one: Statement) -> dict[str, Any]:
    """Return a statement as data, what it assumes in its detail."""
    document: dict[str, Any] = {
        name: None if isinstance(value, float) and not isfinite(value) else value  # JSON has no other numbers
        for name, value in asdict(one).items()
    }
    document["detail"] = " ".join([one.detail, *document.pop("assumptions")])
    return document


def _list_to_decide(period: Period) -> Iterator[str]:
    """Yield what is for people to decide."""
    whole = [("", one, None) for one in list_statements(period)]
    classes = ((f"{name}: ", one, period.returned.find(name)) for name, _, one in period.classes)
    for name, one, fall in (*whole, *classes):
        if one.tone == "warn" and not one.silence and one.low is not None:
            choice = f"Go back to {one.reference} there, or accept it."
            if fall is not None:
                choice = f"The guard sent it back to {fall.reference} on {format_time(fall.at)[:10]}."
            yield f"{name}{one.headline}. {choice}"
    yield from _list_held(period.held)
    for arm in period.arms:
        if arm.failed >= max(LEAST_FAILED, FAILING * arm.decisions):
            yield (
                f"{arm.name} failed in {arm.failed:,} of {arm.decisions:,} requests: mend it, or switch it "
                "off in the console."
            )


def write_message(document: dict[str, Any]) -> dict[str, Any]:
    """Return a message of Slack; texts of others can neither mention anyone nor forge a link.

    Slack reads `<!channel>`, `<@user>` and `<address|text>`, so `&`, `<` and `>` are escaped. What begins
    with `@`, `#` or `http` stays a text, since all texts are sent verbatim.
    """
    parts = [
        ("Saved and quality", [_join(one) for one in document["saved"]]),
        ("Quality by class", [_join(one, one["class"]) for one in document["classes"]]),
        ("What changed", [f"{one['at'][:10]}: {one['text']}" for one in reversed(document["changed"])]),
        ("To decide", document["decide"] or ["Nothing."]),
    ]
    drawn = ", ".join(f"{arm['name']} {arm['share']:.0%}" for arm in document["arms"])
    said = f"{document['decisions']:,} requests, {document['rated']:,} with a reward."
    said += f" Drawn: {drawn}." if drawn else ""
    title = _plain(document["title"], HEADER_CHARS)
    blocks: list[dict[str, Any]] = [{"type": "header", "text": {"type": "plain_text", "text": title}}]
    blocks += [_section(name, lines) for name, lines in parts if lines]
    notes = [said, *([BY_CLASS] if document["classes"] else [])]
    blocks.append({"type": "context", "elements": [_mrkdwn(_plain(note, LINE_CHARS)) for note in notes]})
    headlines = " ".join(_plain(f"{one['headline']}.", LINE_CHARS) for one in document["saved"])
    return {"text": f"{title}: {headlines}", "blocks": blocks}


def _join(one: dict[str, Any], name: str = "") -> str:
    return f"{f'{name}: ' if name else ''}{one['headline']}. {one['detail']}"


def _plain(text: str, most: int) -> str:
    """Return a text that means nothing to Slack, of a length that counts what is escaped."""
    shown = one_line(text)
    escaped = escape(cut(shown, most), quote=False)
    return escaped if len(escaped) <= most else escape(cut(shown, most // len("&amp;")), quote=False)


def _section(name: str, lines: Sequence[str]) -> dict[str, Any]:
    text, left = f"*{name}*", len(lines)
    for line in lines[:MOST_LINES]:
        more = f"{text}\n\u2022 {_plain(line, LINE_CHARS)}"
        if len(more) > SECTION_CHARS - LEFT_CHARS:
            break
        text, left = more, left - 1
    return {"type": "section", "text": _mrkdwn(f"{text}\n\u2026 and {left:,} more" if left else text)}


def _mrkdwn(text: str) -> dict[str, Any]:
    return {"type": "mrkdwn", "text": text, "verbatim": True}


# -- sending ---------------------------------------------------------------------------------------


def post(url: str, body: Any, timeout_s: float = TIMEOUT_S) -> Delivery:
    """Send a document. The address, which may be a secret, is in no message.

    Args:
        url: The address; redirects are not followed.
        body: The document.
        timeout_s: Longest wait for all of it.
    """
    try:
        return asyncio.run(_post(url, body, timeout_s))
    except TimeoutError:
        why = f"the receiver did not answer within {timeout_s:g} s: it may have arrived"
        return Delivery(DigestState.FAILED, why)
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError) as error:
        why = f"the receiver cannot be reached: {str(error) or type(error).__name__}"
        return Delivery(DigestState.REFUSED, why)
    except httpx.TransportError as error:
        name = type(error).__name__
        return Delivery(DigestState.FAILED, f"the receiver did not answer ({name}): it may have arrived")
    except (httpx.InvalidURL, UnicodeError):
        return Delivery(DigestState.FAILED, "the address is not one")


async def _post(url: str, body: Any, timeout_s: float) -> Delivery:
    async with (
        asyncio.timeout(timeout_s),  # httpx limits each read, and an answer may come byte by byte
        proxies.async_client(timeout=httpx.Timeout(None, connect=timeout_s / 2)) as client,
        client.stream("POST", url, json=body, headers={"Accept-Encoding": "identity"}) as response,
    ):
        if response.is_success:
            return Delivery(DigestState.SENT)
        said = (await anext(response.aiter_raw(REASON_BYTES), b"")).decode(errors="replace").strip()
    why = f"the receiver answered {response.status_code}{f': {one_line(said)}' if said else ''}"
    state = DigestState.REFUSED if response.status_code in REFUSING else DigestState.FAILED
    if response.has_redirect_location:
        why = f"{why}, a redirect: set the address that it leads to"
    return Delivery(state, why)


def send_claimed(
    store: Store, config: AppConfig, spec: DigestSpec, mine: Digest, send: Post = post
) -> Delivery:
    """Do an attempt that was claimed, and record what comes of it.

    Args:
        store: The log.
        config: The configuration.
        spec: The settings of the digest.
        mine: The attempt.
        send: Sends a document to an address.

    Raises:
        SupersededError: Another worker has begun a later attempt; nothing was sent.
        LogUnavailableError: Nothing was sent, or it is not known what came of it.
    """
    try:
        url = spec.read_url()
    except ValueError as error:
        outcome = Delivery(DigestState.FAILED, str(error))
    else:
        body = read_body(store, config, mine.since, mine.until, spec.form, spec.by)
        digests.advance(store, mine, DigestState.SENDING, time.time())
        outcome = send(url, body)
    if outcome.state is DigestState.REFUSED and mine.attempt > len(RETRIES_S):
        outcome = outcome._replace(state=DigestState.FAILED)
    digests.advance(store, mine, outcome.state, time.time(), outcome.why)
    return outcome


def send_now(store: Store, config: AppConfig, spec: DigestSpec, since: float, until: float) -> Delivery:
    """Send a period by hand, whatever was sent by itself; if it arrives, an earlier failure is mended.

    Args:
        store: The log.
        config: The configuration.
        spec: The settings of the digest.
        since: Begin, seconds since the epoch.
        until: End, exclusive.

    Raises:
        ValueError: The address is not set.
        LogUnavailableError: Try again later.
    """
    url = spec.read_url()
    outcome = post(url, read_body(store, config, since, until, spec.form, spec.by))
    last, now = digests.newest(store), time.time()
    if outcome.state is DigestState.SENT and last is not None and digests.has_failed(last, now):
        digests.advance(store, last, DigestState.SENT, now)
    return outcome


def run_child() -> None:
    """Do the attempt that the task names."""
    task = read_task()
    config = parse(task["config"])
    logging.basicConfig()  # warnings alone: httpx reports addresses, and this one is a secret
    log_plainly()
    with closing(Store(config.database_url, config.reward.join, create=False)) as store:
        mine = digests.newest(store)
        if mine is not None and mine.seq == task["digest"] and config.digest is not None:
            send_claimed(store, config, config.digest, mine)

"""Find out which conversation a request belongs to, as clients and coding agents name it.

An agent sends the whole conversation again with each request, and its provider has most of it cached. So
the requests of a session should reach the same model. Agents name their session without being configured.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from armwise.agent.access import Caller
from armwise.agent.serving import Replica
from armwise.arms.llm import Request, object_at, text_at
from armwise.feedback.log import erasures

HEADERS = (
    "x-claude-code-session-id",  # Claude Code, which also names it in `metadata.user_id`
    *("thread-id", "session-id", "session_id", "conversation_id"),  # Codex, and older versions of it
    *("x-opencode-session", "x-session-affinity", "x-session-id"),  # OpenCode, and pi
    "x-amp-thread-id",  # Amp
)
"""Headers in which coding agents name a session, the narrower ones first."""

SUBAGENT = "x-claude-code-agent-id"
"""Header in which Claude Code names a subagent, whose conversation is another one of the same session."""

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Form of the names that serve as episode ids unchanged; other names are hashed."""

UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True, slots=True)
class NamedSession:
    """The session that a request names.

    Attributes:
        name: What the client calls it.
        is_ours: Whether it is `metadata.session_id`, which every key of a project may name.
        is_shared: Whether it may be the name of many conversations, which begin with the same prompt.
    """

    name: str
    is_ours: bool = False
    is_shared: bool = False


def read_session(request: Request, headers: Mapping[str, str]) -> NamedSession | None:
    """Return the session that a request names in its metadata, its headers or its other fields, if any."""
    session_id = object_at(request.chat, "metadata").get("session_id")
    named = session_id if isinstance(session_id, str) else ""
    if named and request.protocol != "messages":
        return NamedSession(named, is_ours=True)
    # a messages request names it in `metadata.user_id`
    if named := next(filter(None, map(headers.get, HEADERS)), named):
        subagent = headers.get(SUBAGENT)
        return NamedSession(f"{named} {subagent}" if subagent else named)
    body = request.body
    conversation = body.get("conversation")
    kept = conversation if isinstance(conversation, str) else text_at(object_at(body, "conversation"), "id")
    if named := kept or text_at(body, "session_id"):
        return NamedSession(named)
    key = text_at(request.chat, "prompt_cache_key")
    return NamedSession(key, is_shared=UUID.fullmatch(key) is None) if key else None


def choose_episode(
    replica: Replica,
    caller: Caller,
    name: str | None,
    session: NamedSession | None,
    dial: float | None = None,
    *,
    has_tools: bool,
) -> str | None:
    """Return the stored episode id of a request: its own, or that of its session where this counts.

    A session counts if it keeps its arm, or if what engines have cached of it has a price. With
    `sticky: episode` none does: only episodes that requests name keep an arm.

    Args:
        replica: Has the configuration.
        caller: Who asks.
        name: `agent.episode_id` of the request.
        session: The session that it names otherwise.
        dial: The cost weight that it sets: a person who turns the dial wants another arm.
        has_tools: Whether its answer may call functions, as those of agents do.

    Raises:
        ForeignIdError: The id names another project, or is too long.
    """
    if name is None and session is not None:
        sticky = replica.config.sticky
        counts = (sticky == "tools" and has_tools) or (sticky != "episode" and replica.config.prices_caches)
        if sticky == "session" or (counts and not session.is_shared):
            name = _name_episode(replica, caller, session, dial)
    return name and caller.to_stored_id(name, "episode")


def _name_episode(replica: Replica, caller: Caller, session: NamedSession, dial: float | None) -> str:
    """Return the name of the episode of a session.

    Names of agents are those of one caller, so that nobody joins a session of another one by its name. All
    hashes are keyed, as a name may be of a person: an erasure leaves ids of episodes.
    """
    if session.is_ours and dial is None and NAME.fullmatch(session.name):
        return session.name
    who = "" if session.is_ours else caller.identify(replica.store.draw_secret)
    turned = "" if dial is None else f" {dial:g}"
    digest = erasures.user_digest(replica.store, caller.project, f"session {who} {session.name}{turned}")
    return f"session-{digest[:40]}"

"""Ids of answers, `chatcmpl-...`, `msg_...` and `resp_...`, where a caller names a decision or an episode.

SDKs hand on no other id. It is the id of the decision after a prefix. An idempotency key, which becomes the
id of its decision, may begin with such a prefix, too. So the log is asked: an id that a decision or an
episode has is taken as it is, and only one that none has is read as the id of an answer.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from armwise.agent.access import Caller
from armwise.agent.serving import Replica
from armwise.feedback.log import conversations


@dataclass(frozen=True, slots=True)
class Named:
    """What ids of answers stand for; all ids are those of the log.

    Attributes:
        decisions: The decision of an answer, by the id of the answer, unless a decision has that id itself.
        episodes: The episode of that decision, if it is of one, unless an episode has that id itself.
    """

    decisions: Mapping[str, str] = field(default_factory=dict)
    episodes: Mapping[str, str] = field(default_factory=dict)

    def decision(self, name: str) -> str:
        """Return the decision that an id stands for."""
        return self.decisions.get(name, name)

    def episode(self, name: str) -> str:
        """Return the episode that an id stands for."""
        return self.episodes.get(name, name)


async def look_up(replica: Replica, caller: Caller, names: Iterable[str]) -> Named:
    """Look up which ids are those of answers; the log is not read if none has their form.

    Args:
        replica: Reads the log.
        caller: Only its own decisions are found.
        names: Ids in the log, as `Caller.to_stored_id` returns them.

    Raises:
        LogUnavailableError: The log cannot be read.
    """
    answers = {name: found for name in names if (found := caller.find_answered(name)) is not None}
    if not answers:
        return Named()
    ids = [*answers, *answers.values()]
    of_decisions, taken = await asyncio.to_thread(conversations.find_episodes, replica.store, ids)
    return Named(
        {name: one for name, one in answers.items() if one in of_decisions and name not in of_decisions},
        {
            name: episode
            for name, one in answers.items()
            if (episode := of_decisions.get(one)) is not None and name not in taken
        },
    )


async def find_decision(replica: Replica, caller: Caller, name: str) -> str:
    """Return the id in the log of a decision that a caller names by its id, or by the id of its answer.

    Raises:
        ForeignIdError: It is an id of another project, or too long.
        LogUnavailableError: The log cannot be read.
    """
    stored = caller.to_stored_id(name)
    return (await look_up(replica, caller, [stored])).decision(stored)


async def find_episode(replica: Replica, caller: Caller, name: str) -> str:
    """Return the id in the log of an episode that a caller names by its id, or by the id of an answer in it.

    Raises:
        ForeignIdError: It is an id of another project, or too long.
        LogUnavailableError: The log cannot be read.
    """
    stored = caller.to_stored_id(name, "episode")
    return (await look_up(replica, caller, [stored])).episode(stored)

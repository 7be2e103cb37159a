"""Continue a conversation: what the log knows of the earlier answers that a request shows."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from armwise.agent.access import Caller, ForeignIdError
from armwise.agent.serving import Replica
from armwise.agent.turn import Ask
from armwise.arms.llm import Message
from armwise.feedback.errors import LOG_UNUSABLE
from armwise.feedback.log import conversations


async def continue_conversation(
    replica: Replica,
    caller: Caller,
    ask: Ask,
    since: Sequence[Message],
    marks: Sequence[str],
    *,
    same_arm: bool,
) -> Ask:
    """Return a question with what the log knows of the answers in its conversation.

    A question whose answer may call functions begins an episode, named after its decision unless it has
    another name. A request with their results is of the same episode, and its arm is the one that answered
    before: it is forced, and not learned, as nothing was drawn. The ids of the calls lead to the decision:
    since a client writes them, it counts only if the same caller asked the same, in the same episode.

    Args:
        replica: Reads the log.
        caller: Who asks.
        ask: The question.
        since: The messages after the question.
        marks: Marks of earlier answers that the request shows.
        same_arm: Whether it is answered with the arm that answered before.
    """
    found: Mapping[str, conversations.MarkedAnswer] = {}
    if marks:
        tolerated = LOG_UNUSABLE if replica.outage.answers else ()
        with suppress(ForeignIdError, *tolerated):
            asked_by = caller.identify(replica.store.draw_secret)
            look_up = partial(asyncio.to_thread, conversations.find_marked, replica.store, marks, asked_by)
            found = await replica.outage.ask(look_up)
    known = replica.turns.known
    served = {mark: known.get(answer.served or "") for mark, answer in found.items()}
    writers = {mark: info.answering.llm for mark, info in served.items() if info is not None}
    ask = replace(ask, document=replace(ask.document, writers=writers))
    results = [message["tool_call_id"] for message in since if message["role"] == "tool"]
    answers = [found[name] for name in results if name in found]
    answer = answers[-1] if answers else None
    if (
        answer is None
        or answer.served is None
        or answer.question != ask.question
        or ask.episode_id not in (None, answer.episode_id)
    ):
        begins = ask.document.has_tools and ask.episode_id is None
        return replace(ask, episode_id=ask.decision_id) if begins else ask
    ask = replace(ask, episode_id=ask.episode_id or answer.episode_id, called=answer.decision_id)
    arm = answer.served
    info = replica.turns.arms.get(arm)
    allowed = ask.allowed is None or arm in ask.allowed
    same = same_arm and not ask.forced
    able = info is not None and info.enabled and not info.missing(ask.document.needs)
    if not (same and able and allowed) or arm in ask.excluded:
        return ask
    said = answer.question, answer.episode_id
    first = next(one for one in answers if (one.question, one.episode_id) == said)
    return replace(ask, forced=arm, continues=first.decision_id)  # each round repeats the first search

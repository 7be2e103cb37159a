"""The details: each arm compared with what was served, raters, and the state of the service."""

import asyncio
from typing import Any

from fastapi import Request, Response

from armwise.agent.api.middleware import AppReplica, RequestCaller, require
from armwise.agent.api.operations import policies
from armwise.agent.console.changes import number_colours
from armwise.agent.console.page import page, pages
from armwise.agent.console.savings import write_duration
from armwise.agent.console.summary import ServiceSummary, read_summary
from armwise.agent.proof import read_kept, write_sentence
from armwise.agent.serving import Replica
from armwise.feedback.training_log import raters

router = pages()


@router.get("/details", dependencies=[require("decide", "read")])
async def details(request: Request, replica: AppReplica, caller: RequestCaller) -> Response:
    """Comparisons with each arm, who rated, and what the service and its learner do."""
    shows_raters = "read" in caller.scopes and caller.sees_all
    values = await asyncio.to_thread(_read, replica, shows_raters=shows_raters)
    return page(
        request,
        "details.html",
        **values,
        policy=(await policies.policy(replica)).reply,
        shed=sum(replica.telemetry.counts("armwise_shed").values()),
        refused={code: n for code, n in replica.telemetry.counts("armwise_failures").items() if n},
    )


def _read(replica: Replica, *, shows_raters: bool) -> dict[str, Any]:
    store, config = replica.store, replica.config
    found = read_summary(store) or ServiceSummary()
    receipt = None if found.statements.doubt else read_kept(config)
    counts = raters.newest_counts(store, config.reward.join) if shows_raters else ()
    return {
        "summary": found,
        "receipt": receipt,
        "statement": "" if receipt is None else write_sentence(receipt),
        "observes": config.tap is not None,
        "wait": write_duration(config.reward.wait_s),
        "raters": counts,
        "left_out": sum(count.left_out for count in counts),
        "rater_share": config.reward.rater_share,
        "colours": number_colours(store),
    }

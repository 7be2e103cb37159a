"""The gate's evidence over time, with actions on candidates; evaluations side by side."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import Field, ValidationError

from armwise.agent.access import Caller
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppReplica, RequestCaller, require
from armwise.agent.api.operations import evaluations as api
from armwise.agent.api.operations.evaluations import EvaluationResult, EvaluationState
from armwise.agent.api.schemas import LARGEST, PathNumber
from armwise.agent.console.charts import draw_chart
from armwise.agent.console.page import ACTION, page, pages, read_form, redirect, valid
from armwise.agent.evaluation import (
    CandidateKind,
    EvaluationRequest,
    Report,
    colour_candidates,
    name_candidate,
)
from armwise.agent.reporting import COLOURS
from armwise.agent.serving import Replica
from armwise.feedback.registry import active_policy, evaluations, versions

router = pages()

READ, OPERATE = require("read"), require("operate")

NEWEST = 20
"""Newest evaluations that are searched for verdicts."""

CARDS = 3
"""Most candidates whose evidence is shown."""

TOGETHER = 6
"""Most evaluations in a comparison."""


@dataclass(frozen=True)
class Judged:
    """The newest verdict of the gate on a candidate.

    Attributes:
        name: Name of the candidate, as in the request.
        version: Number of the version that the name refers to, if it refers to one.
        evaluation: The evaluation with the verdict.
        verdict: The verdict, as `armwise.feedback.ope.gate.Verdict.document` returns it.
        chart: The gain, its lower bound and the margin over time; None: there are no decisions.
    """

    name: str
    version: int | None
    evaluation: EvaluationState
    verdict: Mapping[str, Any]
    chart: str | None


async def read_verdicts(replica: Replica, caller: Caller) -> dict[str, Any]:
    """Return the newest verdicts, and the evaluations of the gate that are still pending."""
    cards: dict[str, Judged] = {}
    newest = (await api.evaluations(replica, caller, NEWEST)).reply.evaluations
    listed = [evaluation for evaluation in newest if evaluation.request.get("gate")]
    for evaluation in listed:
        report = None
        if len(cards) < CARDS:
            report = _report(await api.read_result(replica, caller, evaluation.id))
        for candidate in report.candidates if report else ():
            if candidate.verdict is not None and candidate.name not in cards and len(cards) < CARDS:
                version, verdict = _version(candidate.name), candidate.verdict
                cards[candidate.name] = Judged(candidate.name, version, evaluation, verdict, trail(verdict))
    pending = [
        evaluation for evaluation in listed if not evaluations.EvaluationStatus(evaluation.status).ended
    ]
    return {"judged": list(cards.values()), "pending": pending}


def _version(name: str) -> int | None:
    kind, _, number = name.partition(":")
    of_version = kind in (CandidateKind.VERSION, CandidateKind.CANARY, CandidateKind.RECIPE)
    return int(number) if of_version and number.isdigit() else None


def _report(evaluation: EvaluationResult) -> Report | None:
    """Return the report of an evaluation; None: it has none, or that of an incompatible release."""
    try:
        return None if evaluation.result is None else Report.read(evaluation.result)
    except ValidationError:
        return None


def trail(verdict: Mapping[str, Any]) -> str | None:
    """Return the chart of a verdict's evidence, as JSON for `console.js`; None: there are no decisions."""
    points, figures = verdict.get("trail", ()), verdict["figures"]
    if not points or figures is None:
        return None
    margin = figures["margin"]
    low, gain = ([entry[name] for entry in points] for name in ("low", "gain"))
    # the first bounds are far below the rest, and would flatten the chart
    settled = [*low[len(low) // 5 :], gain[-1], margin]
    series: list[dict[str, Any]] = [
        {"label": "estimated gain", "colour": "--grey", "values": gain},
        {"label": "at least", "colour": "--ink", "values": low},
        {"label": "margin", "colour": "--grey", "values": [margin] * len(points), "dashed": True},
    ]
    height = max(settled) - min(settled) or 1.0
    bounds = [min(settled) - height / 10, max(settled) + height / 3]
    return draw_chart([entry["at"] for entry in points], series, unit="reward", bounds=bounds)


@router.get("/policies/gate", dependencies=[READ])
async def gate(request: Request, replica: AppReplica, caller: RequestCaller) -> Response:
    """The evidence of the gate; the page reloads it while an evaluation runs."""
    return page(request, "gate.html", **deciding(replica), **await read_verdicts(replica, caller))


def deciding(replica: Replica) -> dict[str, Any]:
    """Return the number of the served version, if any, and the canaries by their versions."""
    served, active = replica.versions.version, replica.versions.active
    return {
        "served": None if served is None else served.version,
        "canaries": {canary.version: canary for canary in active.canaries},
    }


@router.post("/policies/gate", dependencies=[OPERATE, ACTION])
async def judge(request: Request, replica: AppReplica, caller: RequestCaller) -> Response:
    """Have the gate judge a version, by the same evaluation as for a promotion."""
    number = valid(PathNumber, (await read_form(request)).get("version", ""))
    if await asyncio.to_thread(versions.find, replica.store, number) is None:
        raise ApiError("version_not_found", f"there is no version {number}", "version")
    active = await asyncio.to_thread(active_policy, replica.store, replica.versions.configured.digest)
    evaluation_request = EvaluationRequest(candidates=(name_candidate(number, active),), gate=True)
    await api.submit(replica, caller, evaluation_request)
    return redirect(request, "/policies")


Numbers = Annotated[list[Annotated[int, Field(ge=1, le=LARGEST)]], Query(alias="of", max_length=TOGETHER)]


@router.get("/evaluations/compare", dependencies=[READ])
async def compare(
    request: Request,
    replica: AppReplica,
    caller: RequestCaller,
    of: Numbers = [],  # noqa: B006
) -> Response:
    """The headline figures of the same candidates in two or more evaluations."""
    if len(set(of)) < 2:
        raise ApiError("invalid_value", "choose two evaluations or more, each by its box", "of")
    reports = await _reports(replica, caller, sorted(set(of)))
    names = list(dict.fromkeys(candidate.name for _, report in reports for candidate in report.candidates))
    colours = {
        name: COLOURS[colour]
        for _, report in reversed(reports)
        for name, colour in colour_candidates(report).items()
    }
    headlines = {
        (number, candidate.name): candidate.headline
        for number, report in reports
        for candidate in report.candidates
    }
    ends = [
        end
        for headline in headlines.values()
        if headline is not None and headline.value is not None
        for end in (headline.value.low, headline.value.high)
    ]
    ends += [report.earned for _, report in reports if report.earned is not None]
    span = min(ends, default=0.0), max(ends, default=1.0)
    shown: dict[str, Any] = {"names": names, "headlines": headlines, "span": span, "colours": colours}
    return page(request, "compare.html", found=reports, **shown)


async def _reports(replica: Replica, caller: Caller, numbers: Sequence[int]) -> list[tuple[int, Report]]:
    """Return the reports of evaluations. Raises ApiError if an evaluation has none."""
    reports = []
    for number in numbers:
        evaluation = await api.read_result(replica, caller, number)
        if (report := _report(evaluation)) is None:
            raise ApiError(
                "not_done", f"evaluation {number} is {evaluation.status}, and has no report to read", "of"
            )
        reports.append((number, report))
    return reports

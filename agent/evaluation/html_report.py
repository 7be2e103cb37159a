"""The HTML report of an evaluation: one self-contained file."""

import json
import shlex

from agent.config import CONFIG
from agent.evaluation.plots import evidence, over_time, shares, trail_of, values, weights
from agent.evaluation.report import BIASED, NO_ROW, Report
from agent.evaluation.request import EvaluationRequest
from agent.evaluation.results import CandidateResult
from agent.reporting import draw_svg, filled, moment


def page(report: Report) -> str:
    """Return a report as HTML."""
    return filled(
        "evaluation.html",
        _pictures(report),
        report=report,
        window=window(report),
        summary=summary(report),
        command=command(report.request, "" if "://" in report.source else report.source, report.config),
        request=_indented(report.request.model_dump(mode="json")),
        reward=_indented(report.reward),
        judged=[one for one in report.candidates if one.verdict is not None],
        no_row=NO_ROW,
        biased=BIASED,
    )


def summary(report: Report) -> str:
    """Return the result in two sentences."""
    baseline, others = report.request.baseline, report.candidates[1:]
    begin = f"On {report.rows:,} decisions that earned {report.earned:+.3f} each"
    known = [
        (one.name, headline, headline.value, headline.difference)
        for one in others
        if (headline := one.headline) is not None
        and headline.value is not None
        and headline.difference is not None
    ]
    if not known:
        return f"{begin}, no candidate but {baseline} has an estimate."
    name, headline, value, gain = max(
        known, key=lambda one: (one[1].covers and one[3].low > 0.0, one[1].covers, one[3].value)
    )
    if headline.covers and gain.low > 0.0:
        best = f"{name} would have earned {value.value:+.3f}, {gain.value:.3f} more than {baseline}"
    else:
        best = (
            f"no candidate is shown to earn more than {baseline}: the best, {name}, is at {gain.value:+.3f}"
        )
    kind = "" if gain.kind == report.request.interval else f"{gain.kind} "
    by = headline.estimator if headline.covers else f"{headline.estimator}, which is biased"
    return f"{begin}, {best} ({kind}95 % interval {gain.ends}, by {by}).{_verdicts(others)}"


def _verdicts(candidates: tuple[CandidateResult, ...]) -> str:
    gated = [one for one in candidates if one.verdict is not None]
    if not gated:
        return ""
    promoted = [one.name for one in gated if one.verdict is not None and one.verdict["promote"]]
    return (
        f" The gate lets {', '.join(promoted)} go live."
        if promoted
        else " The gate lets none of them go live."
    )


def window(report: Report) -> str:
    """Return the first and the last time of the decisions."""
    return f"{moment(report.first_at)} to {moment(report.last_at)}"


def command(request: EvaluationRequest, export: str = "", config: str = "") -> str:
    """Return the command of the same evaluation.

    Args:
        request: The request.
        export: The export that was read in place of a log; empty for none.
        config: File of the configuration; empty where it is not known.

    >>> command(EvaluationRequest(candidates=("fixed:bm25",), cost={"steps": 0.02}, gate=True))
    'armwise replay --policy fixed:bm25 --price steps=0.02 --gate'
    """
    usual = EvaluationRequest()
    words = ["armwise", "replay", *(["-c", config] if config not in ("", str(CONFIG)) else [])]
    words += [word for name in request.candidates for word in ("--policy", name)]
    if request.baseline != usual.baseline:
        words += ["--baseline", request.baseline]
    for option, at in (("--since", request.since), ("--until", request.until)):
        words += [option, at.isoformat()] if at is not None else []
    if request.versions is not None:
        words += ["--version", f"{request.versions[0]}-{request.versions[1]}"]
    for name, value in request.features.items():
        words += ["--feature", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    if request.cost_weight is not None:
        words += ["--cost-weight", repr(request.cost_weight)]
    for name, price in request.cost.items():
        words += ["--price", f"{name}={price!r}"]
    if request.estimators != usual.estimators:
        words += [word for name in request.estimators for word in ("--estimator", name)]
    for option, value, same in (
        ("--interval", request.interval, usual.interval),
        ("--reward-model", request.reward_model, usual.reward_model),
        ("--seed", request.seed, usual.seed),
    ):
        words += [option, str(value)] if value != same else []
    words += ["--gate"] if request.gate else []
    return shlex.join([*words, *(["--from", export] if export else [])])


def _pictures(report: Report) -> dict[str, str]:
    """Return the plots that have data."""
    drawn = {"shares": (shares, "Arm shares")}
    if any(one.headline for one in report.candidates):
        drawn["estimates"] = (values, "Value of each candidate with intervals")
    if any(len(one.over_time) > 1 for one in report.candidates):
        drawn["over_time"] = (over_time, "Value of each candidate over time")
    if any(one.weights for one in report.candidates[1:]):
        drawn["weights"] = (weights, "Histogram of the weights of each candidate")
    if any(map(trail_of, report.candidates)):
        drawn["evidence"] = (evidence, "What the gate knew along the log")
    return {name: draw_svg(report, draw, title) for name, (draw, title) in drawn.items()}


def _indented(document: object) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False)

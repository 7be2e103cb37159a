"""The document of a replay, and what is made of it: a table for the terminal, and a page with plots.

The document is plain JSON: `armwise replay -o replay.json` writes it, and
`GET /v1/evaluations/{number}` returns it as `result`. Unknown numbers are null.
"""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any, TypedDict

from rich import box
from rich.table import Table
from rich.text import Text

from armwise.agent.configuration_file import CONFIG
from armwise.agent.evaluation.evaluation_request import EvaluationRequest
from armwise.agent.reporting import (
    COLOURS,
    PALETTE,
    fill_template,
    format_counts,
    write_further,
    write_span,
)
from armwise.feedback.ope import ESTIMATORS, intervals


class Interval(TypedDict):
    """An estimate with its 95 % interval, and the kind of the interval."""

    value: float
    low: float
    high: float
    kind: str


class Estimated(TypedDict):
    """The result of one estimator for one candidate.

    Attributes:
        estimator: Name of the estimator.
        value: Mean reward of a decision; None: it cannot be estimated.
        difference: Difference to the baseline on the same rows; None for the baseline itself.
        effective_n: Kish's effective sample size.
        note: Why the estimate is missing, or its interval is of another kind.
        covers: Whether its intervals hold the truth as often as they state; False if they omit a bias.
    """

    estimator: str
    value: Interval | None
    difference: Interval | None
    effective_n: float
    note: str
    covers: bool


class ArmWeights(TypedDict):
    """The weights of the rows that drew one arm.

    Attributes:
        arm: Name of the arm.
        drawn: Share of rows that drew it, in [0, 1].
        wanted: Share of rows for which the candidate would draw it, in [0, 1].
        overlap: Part of `wanted` that the log covers with weights of at most 1, in [0, 1].
        effective_n: Kish's effective sample size of these rows.
        largest: Largest weight of a row that drew it.
    """

    arm: str
    drawn: float
    wanted: float
    overlap: float
    effective_n: float
    largest: float


class Weights(TypedDict):
    """The importance weights of a candidate.

    Attributes:
        effective_n: Kish's effective sample size.
        largest: Largest weight of a row.
        mean: Mean weight; about 1 if all propensities are right.
        mean_error: Standard error of the mean; None for a single question.
        arms: The weights of each arm that was eligible.
        warnings: Reasons against trusting the estimates; a sentence each.
    """

    effective_n: float
    largest: float
    mean: float
    mean_error: float | None
    arms: list[ArmWeights]
    warnings: list[str]


class CandidateResult(TypedDict):
    """The results of one candidate.

    Attributes:
        name: Name in the request.
        about: Description.
        rows: Number of decisions that it is evaluated on.
        excluded: Number of decisions that are left out, by reason.
        notes: Remarks; a sentence each.
        estimates: The result of each estimator.
        weights: The importance weights; None if all are 0.
        shares: How often it draws each arm, summing to 1; empty if no row is left.
        verdict: Verdict of the gate, if it was requested.
    """

    name: str
    about: str
    rows: int
    excluded: dict[str, int]
    notes: list[str]
    estimates: list[Estimated]
    weights: Weights | None
    shares: dict[str, float]
    verdict: dict[str, Any] | None


class ReplayDocument(TypedDict):
    """The results of candidates, compared with the baseline.

    Attributes:
        request: The request.
        source: The log or the export that was read.
        made_at: When the document was made, seconds since the epoch.
        config: File of the configuration; empty if unknown.
        armwise: Version of the program.
        reward: The reward rule.
        floor: Exploration floor of the candidates that a service would serve.
        rows: Number of selected, usable and settled decisions.
        observations: Number of groups of decisions that count as one observation: those with the same
            question, or what the `cluster` of the request names.
        first_at: Time of the first of these decisions, seconds since the epoch.
        last_at: Time of the last one.
        positions: Positions of the first and last row in the training log.
        digest: Digest of the rows' positions, draws, propensities and rewards.
        excluded: Number of decisions that were left out, by reason, most frequent first.
        earned: Mean reward of the decisions.
        drawn: How often each arm was drawn, summing to 1.
        arm_colours: Number of each arm's colour, as on the pages of the console.
        candidates: The results in the order of the request, the baseline first.
        assumptions: Assumptions of the estimates; a sentence each.
    """

    request: dict[str, Any]
    source: str
    made_at: float
    config: str
    armwise: str
    reward: dict[str, Any]
    floor: float
    rows: int
    observations: int
    first_at: float
    last_at: float
    positions: list[int]
    digest: str
    excluded: dict[str, int]
    earned: float
    drawn: dict[str, float]
    arm_colours: dict[str, int]
    candidates: list[CandidateResult]
    assumptions: list[str]


def covers(estimator: str) -> bool:
    """Return whether the intervals of an estimator hold the truth as often as they state.

    >>> covers("dr"), covers("dm")
    (True, False)
    """
    return estimator in ESTIMATORS and ESTIMATORS[estimator].covers


NO_ROW = "no decision to be judged by"
"""Shown for a candidate without rows."""

BIASED = (
    "biased, and the interval does not hold the bias: a difference to what was served may be none, although "
    "the interval leaves out zero. Compare with ips, snips or dr before you act on it."
)
"""What an interval marked as biased means."""

DIRECT_ALONE = "by the direct model only, because the log has no propensities"
"""Note on every figure of a log without propensities."""

BIASED_ALONE = (
    "biased, and the interval does not hold the bias: a difference may be none, although the interval leaves "
    "out zero. Log propensities, or draw some decisions at random, before you act on it."
)
"""The same where the log permits no other estimator."""


def find_headline(candidate: CandidateResult) -> Estimated | None:
    """Return the estimate that represents a candidate, if one has a value.

    Estimates whose intervals cover are preferred, then those with intervals of the requested kind, then
    estimators of the lowest rank.
    """
    rank = {name: estimator.rank for name, estimator in ESTIMATORS.items()}
    return min(
        (estimate for estimate in candidate["estimates"] if estimate["value"] is not None),
        key=lambda estimate: (
            not estimate["covers"],
            estimate["note"] != "",
            rank.get(estimate["estimator"], len(rank)),
        ),
        default=None,
    )


def list_remarks(candidate: CandidateResult) -> list[str]:
    """Return remarks on a candidate; a sentence each."""
    excluded = [f"Not judged by: {format_counts(candidate['excluded'])}."] if candidate["excluded"] else []
    noted: dict[str, list[str]] = {}
    for estimate in candidate["estimates"]:
        if estimate["note"] and estimate["value"] is not None:
            noted.setdefault(estimate["note"], []).append(estimate["estimator"])
    notes = [f"{', '.join(names)}: {note}." for note, names in noted.items()]
    warnings = candidate["weights"]["warnings"] if candidate["weights"] is not None else []
    verdict = candidate["verdict"]
    says = (
        [] if verdict is None else [" ".join([f"The gate says {verdict['verdict']}.", *verdict["reasons"]])]
    )
    return [candidate["about"], *candidate["notes"], *excluded, *notes, *warnings, *says]


def list_uncovered(document: ReplayDocument) -> list[str]:
    """Return the estimators whose intervals do not cover."""
    every = [estimate for candidate in document["candidates"] for estimate in candidate["estimates"]]
    return list(dict.fromkeys(estimate["estimator"] for estimate in every if not estimate["covers"]))


def explain_bias(document: ReplayDocument) -> str:
    """Return what an interval marked as biased means for this log."""
    every = [estimate for candidate in document["candidates"] for estimate in candidate["estimates"]]
    return BIASED_ALONE if any(DIRECT_ALONE in estimate["note"] for estimate in every) else BIASED


def list_footnotes(document: ReplayDocument) -> list[str]:
    """Return a line for each candidate, the excluded decisions, and the assumptions."""
    uncovered = ", ".join(list_uncovered(document))
    return [
        *(f"{each['name']}: {' '.join(list_remarks(each))}" for each in document["candidates"]),
        f"Left out: {format_counts(document['excluded']) or 'none'}.",
        *document["assumptions"],
        *([f"{uncovered}: {explain_bias(document)}"] if uncovered else []),
    ]


def make_table(document: ReplayDocument) -> Table:
    """Return the estimates as a table: a row for each estimator of each candidate.

    In a narrow terminal the widest cells are folded first, so that names stay complete.
    """
    title = f"value of a policy on {document['rows']:,} logged decisions (earned: {document['earned']:+.4f})"
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("candidate", overflow="fold")
    table.add_column("estimator", overflow="fold")
    for column in ("value, 95 % interval", f"over {document['request']['baseline']}"):
        table.add_column(Text(column), justify="right", overflow="fold")
    table.add_column("eff. n", justify="right", no_wrap=True)
    for candidate in document["candidates"]:
        for row in zip_longest(*_cells(candidate), fillvalue=""):
            table.add_row(*map(Text, row))
        table.add_section()
    return table


def _cells(candidate: CandidateResult) -> Iterator[list[str]]:
    """Yield the cells of a candidate's columns, from the top."""
    weights, verdict, estimates = candidate["weights"], candidate["verdict"], candidate["estimates"]
    doubted = ["doubtful weights"] if weights is not None and weights["warnings"] else []
    yield [candidate["name"], *([] if verdict is None else [verdict["verdict"]]), *doubted]
    yield [estimate["estimator"] for estimate in estimates]
    yield [
        estimate["note"] if estimate["value"] is None else _write_interval(estimate["value"], estimate)
        for estimate in estimates
    ] or [NO_ROW]
    yield [_write_interval(estimate["difference"], estimate) for estimate in estimates]
    yield [f"{estimate['effective_n']:,.0f}" for estimate in estimates]


def _write_interval(interval: Interval | None, estimate: Estimated) -> str:
    """Return an interval as text, marked if it omits a bias; empty for None."""
    if interval is None:
        return ""
    return f"{interval['value']:+.3f} {write_ends(interval)}{'' if estimate['covers'] else ' biased'}"


def write_ends(interval: Interval) -> str:
    """Return both ends of an interval.

    >>> write_ends({"value": 0.25, "low": -0.5, "high": 1.0, "kind": "normal"})
    '[-0.500, +1.000]'
    """
    return f"[{interval['low']:+.3f}, {interval['high']:+.3f}]"


# -- the page ----------------------------------------------------------------------------------------


def colour_arms(document: ReplayDocument) -> dict[str, str]:
    """Return the colour of each arm as a page writes it: that of the console."""
    usual = {arm: number for number, arm in enumerate(document["drawn"])}
    numbers = usual | document["arm_colours"]
    return {arm: COLOURS[PALETTE[number % len(PALETTE)]] for arm, number in numbers.items()}


def find_axis(found: Iterable[Interval | None], mark: float) -> tuple[float, float]:
    """Return the ends of an axis that shows intervals and a mark.

    >>> find_axis([{"value": 0.25, "low": -0.5, "high": 1.0, "kind": "normal"}, None], 1.5)
    (-0.5, 1.5)
    """
    ends = [end for each in found if each is not None for end in (each["low"], each["high"])]
    low, high = min(*ends, mark, mark), max(*ends, mark, mark)
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def draw_trail(verdict: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what the gate knew along the log as points of a drawing of 600 by 120; None: it knew nothing."""
    trail, margin = verdict.get("trail", []), (verdict["figures"] or {}).get("margin", 0.0)
    if not trail:
        return None
    # the first bounds are so low that they would flatten all others
    settled = [point["low"] for point in trail[len(trail) // 5 :]]
    low, high = min(*settled, margin, margin) - 0.05, max(trail[-1]["gain"], margin) + 0.15

    def place(value: float) -> float:
        return float(120.0 * (high - min(high, max(low, value))) / (high - low))

    def line(name: str) -> str:
        last = trail[-1]["n"]
        return " ".join(f"{600 * point['n'] / last:.1f},{place(point[name]):.1f}" for point in trail)

    return {"gain": line("gain"), "low": line("low"), "margin": place(margin), "n": trail[-1]["n"]}


def make_page(document: ReplayDocument) -> str:
    """Return a document as a self-contained HTML page."""
    shown = EvaluationRequest.model_validate(document["request"])
    every = [estimate for candidate in document["candidates"] for estimate in candidate["estimates"]]
    judged = [candidate for candidate in document["candidates"] if candidate["verdict"] is not None]
    return fill_template(
        "evaluation.html",
        {},
        axes={
            "value": find_axis((estimate["value"] for estimate in every), document["earned"]),
            "difference": find_axis((estimate["difference"] for estimate in every), 0.0),
        },
        trails={one["name"]: draw_trail(one["verdict"]) for one in judged if one["verdict"] is not None},
        report=document,
        window=write_span(document["first_at"], document["last_at"]),
        summary=summary(document),
        command=command(shown, "" if "://" in document["source"] else document["source"], document["config"]),
        request=_format_json(document["request"]),
        reward=_format_json(document["reward"]),
        arm_colours=colour_arms(document),
        judged=judged,
        no_row=NO_ROW,
        uncovered=list_uncovered(document),
        biased=explain_bias(document),
        write_ends=write_ends,
    )


LEAST_GAIN = 0.0005
"""Smallest gain that is displayed as more than +0.000, and for which a forecast is given."""


def _forecast(gain: Interval, n: int) -> str:
    """Return how many more decisions raise the lower end of a gain above 0, in words."""
    errors = 1.96 if gain["kind"] in ("normal", "bootstrap") else 3.5
    more = intervals.forecast_more(gain["value"], gain["value"] - gain["low"], n, errors=errors)
    return write_further(more) if more else f"only more than {intervals.MOST_MORE * n:,} further decisions"


def summary(report: ReplayDocument) -> str:
    """Return the result in two sentences."""
    baseline, others = report["request"]["baseline"], report["candidates"][1:]
    begin = f"On {report['rows']:,} decisions that earned {report['earned']:+.3f} each"
    estimates = [
        (candidate["name"], headline, headline["value"], headline["difference"], candidate["rows"])
        for candidate in others
        if (headline := find_headline(candidate)) is not None
        and headline["value"] is not None
        and headline["difference"] is not None
    ]
    if not estimates:
        return f"{begin}, no candidate but {baseline} has an estimate."
    name, headline, value, gain, rows = max(
        estimates,
        key=lambda estimate: (
            estimate[1]["covers"] and estimate[3]["low"] > 0.0,
            estimate[1]["covers"],
            estimate[3]["value"],
        ),
    )
    if headline["covers"] and gain["low"] > 0.0:
        best = f"{name} would have earned {value['value']:+.3f}, {gain['value']:.3f} more than {baseline}"
    elif headline["covers"] and gain["value"] >= LEAST_GAIN:
        best = (
            f"it is too early to say that a candidate earns more than {baseline}: the largest estimate, "
            f"of {name}, is {gain['value']:+.3f}, which {_forecast(gain, rows)} would show"
        )
    else:
        best = (
            f"no candidate is shown to earn more than {baseline}: the largest estimate, of {name}, "
            f"is {gain['value']:+.3f}"
        )
    kind = "" if gain["kind"] == report["request"]["interval"] else f"{gain['kind']} "
    by = headline["estimator"] if headline["covers"] else f"{headline['estimator']}, which is biased"
    return f"{begin}, {best} ({kind}95 % interval {write_ends(gain)}, by {by}).{_verdicts(others)}"


def _verdicts(candidates: list[CandidateResult]) -> str:
    gated = [candidate for candidate in candidates if candidate["verdict"] is not None]
    if not gated:
        return ""
    promoted = [
        candidate["name"]
        for candidate in gated
        if candidate["verdict"] is not None and candidate["verdict"]["promote"]
    ]
    return (
        f" The gate lets {', '.join(promoted)} go live."
        if promoted
        else " The gate lets none of them go live."
    )


def command(request: EvaluationRequest, export: str = "", config: str = "") -> str:
    """Return the command of the same evaluation.

    Args:
        request: The request.
        export: The export that was read in place of a log; empty: the log.
        config: File of the configuration; empty if unknown.

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
    if request.project is not None:
        words += ["--project", request.project]
    if request.cost_weight is not None:
        words += ["--cost-weight", repr(request.cost_weight)]
    for option, amounts in (("--price", request.cost), ("--budget", request.budget)):
        words += [word for name, amount in amounts.items() for word in (option, f"{name}={amount!r}")]
    if request.estimators != usual.estimators:
        words += [word for name in request.estimators for word in ("--estimator", name)]
    for option, value, same in (
        ("--interval", request.interval, usual.interval),
        ("--reward-model", request.reward_model, usual.reward_model),
        ("--cluster", request.cluster, usual.cluster),
        ("--seed", request.seed, usual.seed),
    ):
        words += [option, str(value)] if value != same else []
    words += ["--gate"] if request.gate else []
    return shlex.join([*words, *(["--from", export] if export else [])])


def _format_json(document: object) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False)

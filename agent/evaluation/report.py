"""The document of a replay, and what is made of it: a table for the terminal, and a page with plots.

The document is plain JSON: `armwise replay -o replay.json` writes it, and
`GET /v1/evaluations/{number}` returns it as `result`. Unknown numbers are null.
"""

import json
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import accumulate, cycle, zip_longest
from typing import TYPE_CHECKING, Any, TypedDict
from zlib import crc32

from rich import box
from rich.table import Table
from rich.text import Text

from armwise.agent.configuration_file import CONFIG
from armwise.agent.evaluation.candidates import BASELINE, CandidateKind
from armwise.agent.evaluation.request import EvaluationRequest
from armwise.agent.reporting import (
    COLOURS,
    GREY,
    GRID,
    INK,
    PALETTE,
    draw_svg,
    fill_template,
    format_counts,
    moment,
    write_further,
)
from armwise.feedback.ope import ESTIMATORS, intervals

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


class Stretch(TypedDict):
    """The self-normalised value on consecutive rows, from a time to another; None: all weights are 0."""

    since: float
    until: float
    rows: int
    value: float | None


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
        over_time: Values along the log, in order.
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
    over_time: list[Stretch]
    verdict: dict[str, Any] | None


class Document(TypedDict):
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
        questions: Number of different questions among them.
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
    questions: int
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


def list_uncovered(document: Document) -> list[str]:
    """Return the estimators whose intervals do not cover."""
    every = [estimate for candidate in document["candidates"] for estimate in candidate["estimates"]]
    return list(dict.fromkeys(estimate["estimator"] for estimate in every if not estimate["covers"]))


def explain_bias(document: Document) -> str:
    """Return what an interval marked as biased means for this log."""
    every = [estimate for candidate in document["candidates"] for estimate in candidate["estimates"]]
    return BIASED_ALONE if any(DIRECT_ALONE in estimate["note"] for estimate in every) else BIASED


def list_footnotes(document: Document) -> list[str]:
    """Return a line for each candidate, the excluded decisions, and the assumptions."""
    uncovered = ", ".join(list_uncovered(document))
    return [
        *(f"{each['name']}: {' '.join(list_remarks(each))}" for each in document["candidates"]),
        f"Left out: {format_counts(document['excluded']) or 'none'}.",
        *document["assumptions"],
        *([f"{uncovered}: {explain_bias(document)}"] if uncovered else []),
    ]


def make_table(document: Document) -> Table:
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


MOST_LINES = 8
"""Most candidates in one plot."""

OTHERS = "others"


def short(name: str, most: int = 30) -> str:
    """Truncate a name that is too long for a plot.

    >>> short("policy:{kind: linucb}", 12)
    'policy:{kin…'
    """
    return name if len(name) <= most else f"{name[: most - 1]}…"


def colour_arms(report: Document) -> dict[str, str]:
    """Return the colour of each arm: that of the console."""
    usual = {arm: number for number, arm in enumerate(report["drawn"])}
    return {arm: PALETTE[number % len(PALETTE)] for arm, number in (usual | report["arm_colours"]).items()}


def colour_candidates(report: Document) -> dict[str, str]:
    """Return the colour of each candidate: that of its arm, of what was served, or one that no arm has.

    The name decides which of the colours that no arm has, so that another report has the same one, unless
    another candidate has it already.
    """
    arms = colour_arms(report)
    found = {BASELINE: INK, "uniform": GREY} | {f"{CandidateKind.FIXED}:{arm}": arms[arm] for arm in arms}
    for candidate in report["candidates"]:
        if candidate["name"] not in found:
            coloured = PALETTE[:-1]  # its last is nearly grey
            begin = crc32(candidate["name"].encode()) % len(coloured)
            order = (*coloured[begin:], *coloured[:begin])
            free = [colour for colour in order if colour not in found.values()]
            found[candidate["name"]] = (free or order)[0]
    return {candidate["name"]: found[candidate["name"]] for candidate in report["candidates"]}


MARKERS = "osD^vP*X"
"""Shapes of points: of estimators, and of candidates in plots along the log, beside their colours."""


def values(report: Document) -> "Figure":
    """Draw the value of each candidate by each estimator, and the difference to the baseline."""
    shown = [candidate for candidate in report["candidates"] if find_headline(candidate) is not None]
    names = list(
        dict.fromkeys(estimate["estimator"] for candidate in shown for estimate in candidate["estimates"])
    )
    figure = _figure(0.7 + sum(0.24 + 0.13 * len(candidate["estimates"]) for candidate in shown))
    value, difference = figure.subplots(1, 2, sharey=True)
    markers, colours = dict(zip(names, cycle(MARKERS))), colour_candidates(report)
    step = 0.7 / max(1, len(names))
    for place, candidate in enumerate(shown):
        for number, estimate in enumerate(candidate["estimates"]):
            at = place + (number - (len(candidate["estimates"]) - 1) / 2) * step
            style = "-" if estimate["covers"] else ":"
            look = colours[candidate["name"]], style, markers[estimate["estimator"]]
            _interval(value, at, estimate["value"], *look, estimate["estimator"])
            _interval(difference, at, estimate["difference"], *look)
    value.axvline(report["earned"], color=GREY, linestyle=":", linewidth=1.2, zorder=0)
    difference.axvline(0.0, color=GREY, linestyle=":", linewidth=1.2, zorder=0)
    value.set_title("Mean reward of a decision", loc="left", fontsize=10, color=INK)
    difference.set_title(
        f"Gain over {short(report['request']['baseline'])}", loc="left", fontsize=10, color=INK
    )
    value.set_yticks(range(len(shown)), [short(candidate["name"]) for candidate in shown])
    value.set_ylim(len(shown) - 0.5, -0.5)
    for axes in (value, difference):
        _plain(axes, "x")
    from matplotlib.lines import Line2D

    handles, labels = value.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(
        [Line2D([], [], color=INK, marker=handle.get_marker(), linestyle="") for handle in unique.values()],
        unique,
        loc="outside lower center",
        ncols=6,
        fontsize=9,
        frameon=False,
        labelcolor=INK,
    )
    return figure


def over_time(report: Document) -> "Figure":
    """Draw the value of the candidates along the log."""
    figure = _figure(3.6)
    axes: Any = figure.subplots()
    dated = report["last_at"] > report["first_at"]
    colours = colour_candidates(report)
    for number, candidate in enumerate(_foremost(report, MOST_LINES)):
        ends = accumulate(stretch["rows"] for stretch in candidate["over_time"])
        points = [
            (
                datetime.fromtimestamp((stretch["since"] + stretch["until"]) / 2, UTC) if dated else end,
                stretch["value"],
            )
            for end, stretch in zip(ends, candidate["over_time"], strict=True)
            if stretch["value"] is not None
        ]
        along, mean_rewards = zip(*points, strict=True) if points else ((), ())
        axes.plot(
            along,
            mean_rewards,
            marker=MARKERS[number],
            markersize=4,
            linewidth=1.4 if number else 2.4,
            color=colours[candidate["name"]],
            label=short(candidate["name"]),
        )
    axes.set_xlabel("When it was decided, UTC" if dated else "Decisions", color=INK, fontsize=9)
    axes.set_ylabel("Mean reward, self-normalised", color=INK, fontsize=9)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9, frameon=False, labelcolor=INK)
    _plain(axes, "y")
    return figure


def evidence(report: Document) -> "Figure":
    """Draw the estimated gain and its lower bound along the log."""
    figure = _figure(3.2)
    axes: Any = figure.subplots()
    colours = colour_candidates(report)
    trails = [
        (candidate["name"], trail) for candidate in report["candidates"] if (trail := draw_trail(candidate))
    ]
    for number, (name, trail) in enumerate(trails[:MOST_LINES]):
        rows, colour = [point["n"] for point in trail], colours[name]
        marked = {"marker": MARKERS[number], "markevery": (len(trail) - 1, 1), "markersize": 4}
        axes.plot(
            rows, [point["low"] for point in trail], color=colour, linewidth=1.8, label=short(name), **marked
        )
        axes.plot(rows, [point["gain"] for point in trail], color=colour, linewidth=0.9, linestyle="--")
    margin = next(
        candidate["verdict"]["figures"]["margin"]
        for candidate in report["candidates"]
        if draw_trail(candidate) and candidate["verdict"]
    )
    axes.axhline(margin, color=GREY, linestyle=":", linewidth=1.2)
    # The first bounds are so low that they would flatten all others.
    settled = [point["low"] for _, trail in trails for point in trail[len(trail) // 5 :]]
    ends = [point["gain"] for _, trail in trails for point in trail[-1:]]
    axes.set_ylim(min(*settled, *ends, margin) - 0.05, max(*ends, margin) + 0.15)
    axes.set_xlabel("Decisions", color=INK, fontsize=9)
    axes.set_ylabel(f"Gain over {short(BASELINE)}: estimated (dashed), proved", color=INK, fontsize=9)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9, frameon=False, labelcolor=INK)
    _plain(axes, "y")
    return figure


def draw_trail(one: CandidateResult) -> list[dict[str, float]]:
    """Return the trail of the gate; empty without a verdict or without decisions."""
    return [] if one["verdict"] is None else list(one["verdict"].get("trail", []))


def shares(report: Document) -> "Figure":
    """Draw how often each arm was drawn, and how often each candidate would draw it."""
    rows = {
        "drawn": report["drawn"],
        **{
            candidate["name"]: candidate["shares"]
            for candidate in report["candidates"]
            if candidate["shares"]
        },
    }
    arms = sorted(report["drawn"], key=lambda arm: -max(row.get(arm, 0.0) for row in rows.values()))
    first = arms if len(arms) <= len(PALETTE) else arms[: len(PALETTE) - 1]
    colours = {arm: colour for arm, colour in colour_arms(report).items() if arm in first}
    figure = _figure(0.9 + 0.34 * len(rows))
    axes = figure.subplots()
    for place, row in enumerate(rows.values()):
        left = 0.0
        for arm, colour in colours.items():
            axes.barh(place, row.get(arm, 0.0), 0.7, left=left, color=colour)
            left += row.get(arm, 0.0)
        if left < 1.0 - 1e-9 and len(first) < len(arms):
            axes.barh(place, 1.0 - left, 0.7, left=left, color=GREY)
    axes.set_yticks(range(len(rows)), [short(name) for name in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0.0, 1.0)
    axes.xaxis.set_major_formatter("{x:.0%}")
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=short(arm, 20)) for arm, colour in colours.items()]
    if len(first) < len(arms):
        handles.append(Patch(color=GREY, label=OTHERS))
    axes.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        fontsize=9,
        frameon=False,
        labelcolor=INK,
    )
    _plain(axes, "x")
    return figure


def _foremost(report: Document, most: int) -> list[CandidateResult]:
    """Return the baseline and the candidates with the best estimates, in their order."""
    baseline, *others = report["candidates"]
    best = sorted(others, key=lambda candidate: -_headline_value(candidate))[: most - 1]
    return [baseline, *(candidate for candidate in others if candidate in best)]


def _headline_value(candidate: CandidateResult) -> float:
    headline = find_headline(candidate)
    return (
        headline["value"]["value"]
        if headline is not None and headline["value"] is not None
        else float("-inf")
    )


def _interval(
    axes: Any,
    at: float,
    interval: Interval | None,
    colour: str,
    style: str,
    marker: str,
    label: str | None = None,
) -> None:
    if interval is not None:
        axes.hlines(at, interval["low"], interval["high"], color=colour, linewidth=1.6, linestyle=style)
        axes.plot(interval["value"], at, marker, color=colour, markersize=4, label=label)


def _figure(height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(9.0, max(1.6, height)), layout="constrained")


def _plain(axes: Any, grid: str) -> None:
    """Remove frame lines and add a grid."""
    axes.spines[["top", "right"]].set_visible(False)
    for spine in axes.spines.values():
        spine.set_color(GREY)
    axes.tick_params(colors=INK, labelsize=8, color=GREY)
    axes.grid(axis=grid, color=GRID)
    axes.set_axisbelow(True)


def make_page(document: Document) -> str:
    """Return a document as a self-contained HTML page."""
    shown = EvaluationRequest.model_validate(document["request"])
    return fill_template(
        "evaluation.html",
        _pictures(document),
        report=document,
        window=f"{moment(document['first_at'])} to {moment(document['last_at'])}",
        summary=summary(document),
        command=command(shown, "" if "://" in document["source"] else document["source"], document["config"]),
        request=_format_json(document["request"]),
        reward=_format_json(document["reward"]),
        colours={name: COLOURS[colour] for name, colour in colour_candidates(document).items()},
        arm_colours={arm: COLOURS[colour] for arm, colour in colour_arms(document).items()},
        judged=[candidate for candidate in document["candidates"] if candidate["verdict"] is not None],
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


def summary(report: Document) -> str:
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
    for name, price in request.cost.items():
        words += ["--price", f"{name}={price!r}"]
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


def _pictures(report: Document) -> dict[str, str]:
    """Return the plots that have data."""
    drawn = {"shares": (shares, "Arm shares")}
    if any(find_headline(candidate) for candidate in report["candidates"]):
        drawn["estimates"] = (values, "Value of each candidate with intervals")
    if any(len(candidate["over_time"]) > 1 for candidate in report["candidates"]):
        drawn["over_time"] = (over_time, "Value of each candidate over time")
    if any(map(draw_trail, report["candidates"])):
        drawn["evidence"] = (evidence, "What the gate knew along the log")
    return {name: draw_svg(report, draw, title) for name, (draw, title) in drawn.items()}


def _format_json(document: object) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False)

"""The report of an evaluation: results as JSON, a table for the terminal, and a page with plots."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import accumulate, cycle, zip_longest
from typing import TYPE_CHECKING, Any, Self
from zlib import crc32

from pydantic import BaseModel, ConfigDict, Field
from rich import box
from rich.table import Table
from rich.text import Text

from armwise.agent.evaluation.candidates import BASELINE, CandidateKind
from armwise.agent.evaluation.request import EvaluationRequest
from armwise.agent.reporting import COLOURS, GREY, GRID, INK, PALETTE, format_counts, write_further
from armwise.feedback.ope import ESTIMATORS, intervals

if TYPE_CHECKING:
    from matplotlib.figure import Figure
import json
import shlex

from armwise.agent.configuration_file import CONFIG
from armwise.agent.reporting import draw_svg, fill_template, moment


class ReportSection(BaseModel):
    """A part of a report; unknown numbers are None rather than NaN, so that it is valid JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Interval(ReportSection):
    """An estimate with its 95 % interval.

    Attributes:
        value: The estimate.
        low: Lower end.
        high: Upper end.
        kind: Kind of the interval.
    """

    value: float
    low: float
    high: float
    kind: str

    @property
    def ends(self) -> str:
        """Both ends."""
        return f"[{self.low:+.3f}, {self.high:+.3f}]"

    def __str__(self) -> str:
        """Return it in short form.

        >>> str(Interval(value=0.25, low=-0.5, high=1.0, kind="normal"))
        '+0.250 [-0.500, +1.000]'
        """
        return f"{self.value:+.3f} {self.ends}"


class Estimated(ReportSection):
    """The result of one estimator for one candidate.

    Attributes:
        estimator: Name of the estimator.
        value: Mean reward of a decision, if it can be estimated.
        difference: Difference to the baseline on the same rows; None for the baseline itself.
        effective_n: Kish's effective sample size.
        note: Why the estimate is missing, or its interval is of another kind.
        covers: Whether its intervals hold the truth as often as they state; False if they omit a bias.
    """

    estimator: str
    value: Interval | None = None
    difference: Interval | None = None
    effective_n: float = 0.0
    note: str = ""
    covers: bool = Field(default_factory=lambda given: covers(given["estimator"]))

    def format_interval(self, interval: Interval | None) -> str:
        """Return one of its intervals as text, marked if it omits a bias.

        >>> Estimated(estimator="dm").format_interval(Interval(value=0.25, low=0.2, high=0.3, kind="normal"))
        '+0.250 [+0.200, +0.300] biased'
        """
        return "" if interval is None else f"{interval}{'' if self.covers else ' biased'}"


def covers(estimator: str) -> bool:
    """Return whether the intervals of an estimator hold the truth as often as they state.

    >>> covers("dr"), covers("dm")
    (True, False)
    """
    return estimator in ESTIMATORS and ESTIMATORS[estimator].covers


class ArmWeights(ReportSection):
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


class Weights(ReportSection):
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
    arms: tuple[ArmWeights, ...]
    warnings: tuple[str, ...] = ()


class Stretch(ReportSection):
    """The value on consecutive rows.

    Attributes:
        since: Time of the first decision, seconds since the epoch.
        until: Time of the last decision.
        rows: Number of rows.
        value: Self-normalised value of the candidate; None if all weights are 0.
    """

    since: float
    until: float
    rows: int
    value: float | None


class CandidateResult(ReportSection):
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
    excluded: dict[str, int] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    estimates: tuple[Estimated, ...] = ()
    weights: Weights | None = None
    shares: dict[str, float] = Field(default_factory=dict)
    over_time: tuple[Stretch, ...] = ()
    verdict: dict[str, Any] | None = None

    @property
    def remarks(self) -> list[str]:
        """Remarks on the candidate; a sentence each."""
        excluded = [f"Not judged by: {format_counts(self.excluded)}."] if self.excluded else []
        noted: dict[str, list[str]] = {}
        for estimate in self.estimates:
            if estimate.note and estimate.value is not None:
                noted.setdefault(estimate.note, []).append(estimate.estimator)
        noted_lines = [f"{', '.join(names)}: {note}." for note, names in noted.items()]
        warnings = self.weights.warnings if self.weights is not None else ()
        verdict = [f"The gate says {write_verdict(self.verdict)}"] if self.verdict is not None else []
        return [self.about, *self.notes, *excluded, *noted_lines, *warnings, *verdict]

    @property
    def headline(self) -> Estimated | None:
        """The estimate that represents the candidate, if one has a value.

        Estimates whose intervals cover are preferred, then those with intervals of the requested kind, then
        estimators of the lowest rank.
        """
        estimates = [estimate for estimate in self.estimates if estimate.value is not None]
        rank = {name: estimator.rank for name, estimator in ESTIMATORS.items()}
        return min(
            estimates,
            key=lambda estimate: (
                not estimate.covers,
                estimate.note != "",
                rank.get(estimate.estimator, len(rank)),
            ),
            default=None,
        )


def write_verdict(verdict: Mapping[str, Any]) -> str:
    """Return a verdict as a line.

    >>> write_verdict({"verdict": "hold", "reasons": ["Too few rows.", "An arm was never drawn."]})
    'hold. Too few rows. An arm was never drawn.'
    """
    return " ".join([f"{verdict['verdict']}.", *map(str, verdict["reasons"])])


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


class Report(ReportSection):
    """The results of candidates, compared with the baseline.

    Attributes:
        request: The request.
        source: The log or the export that was read.
        made_at: When the report was made, seconds since the epoch.
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
        earned: Mean reward of the decisions, if any is settled.
        drawn: How often each arm was drawn, summing to 1.
        arm_colours: Number of each arm's colour, as on the pages of the console.
        candidates: The results in the order of the request, the baseline first.
        assumptions: Assumptions of the estimates; a sentence each.
    """

    request: EvaluationRequest
    source: str
    made_at: float
    armwise: str
    config: str = ""
    reward: dict[str, Any]
    floor: float
    rows: int
    questions: int
    first_at: float
    last_at: float
    positions: tuple[int, int]
    digest: str
    excluded: dict[str, int]
    earned: float | None
    drawn: dict[str, float]
    arm_colours: dict[str, int] = Field(default_factory=dict)
    candidates: tuple[CandidateResult, ...]
    assumptions: tuple[str, ...]

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Parse a document that `as_json` returned. Raises ValidationError."""
        return cls.model_validate(document)

    def as_json(self) -> dict[str, Any]:
        """Return the report as a document; `read` restores an equal report from it."""
        return self.model_dump(mode="json")

    def html(self) -> str:
        """Return the report as a self-contained page."""
        return page(self)

    def table(self) -> Table:
        """Return the estimates as a table: a row for each estimator of each candidate.

        In a narrow terminal the widest cells are folded first, so that names stay complete.
        """
        earned = "" if self.earned is None else f" (earned: {self.earned:+.4f})"
        title = f"value of a policy on {self.rows:,} logged decisions{earned}"
        table = Table(
            title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=0
        )
        table.add_column("candidate", overflow="fold")
        table.add_column("estimator", overflow="fold")
        for column in ("value, 95 % interval", f"over {self.request.baseline}"):
            table.add_column(Text(column), justify="right", overflow="fold")
        table.add_column("eff. n", justify="right", no_wrap=True)
        for candidate in self.candidates:
            for row in zip_longest(*_cells(candidate), fillvalue=""):
                table.add_row(*map(Text, row))
            table.add_section()
        return table

    def footnotes(self) -> list[str]:
        """Return a line for each candidate, the excluded decisions, and the assumptions."""
        return [
            *(f"{candidate.name}: {' '.join(candidate.remarks)}" for candidate in self.candidates),
            f"Left out: {format_counts(self.excluded) or 'none'}.",
            *self.assumptions,
            *([f"{', '.join(self.uncovered)}: {self.bias}"] if self.uncovered else []),
        ]

    @property
    def bias(self) -> str:
        """What an interval marked as biased means for this log."""
        alone = any(
            DIRECT_ALONE in estimate.note for candidate in self.candidates for estimate in candidate.estimates
        )
        return BIASED_ALONE if alone else BIASED

    @property
    def uncovered(self) -> list[str]:
        """The estimators whose intervals do not cover."""
        every = [estimate for candidate in self.candidates for estimate in candidate.estimates]
        return list(dict.fromkeys(estimate.estimator for estimate in every if not estimate.covers))


def _cells(candidate: CandidateResult) -> Iterator[list[str]]:
    """Yield the cells of a candidate's columns, from the top."""
    doubted = candidate.weights is not None and bool(candidate.weights.warnings)
    verdict = [] if candidate.verdict is None else [str(candidate.verdict["verdict"])]
    yield [candidate.name, *verdict, *(["doubtful weights"] if doubted else [])]
    yield [estimate.estimator for estimate in candidate.estimates]
    yield [
        estimate.note if estimate.value is None else estimate.format_interval(estimate.value)
        for estimate in candidate.estimates
    ] or [NO_ROW]
    yield [estimate.format_interval(estimate.difference) for estimate in candidate.estimates]
    yield [f"{estimate.effective_n:,.0f}" for estimate in candidate.estimates]


MOST_LINES = 8
"""Most candidates in one plot."""

OTHERS = "others"


def short(name: str, most: int = 30) -> str:
    """Truncate a name that is too long for a plot.

    >>> short("policy:{kind: linucb}", 12)
    'policy:{kin…'
    """
    return name if len(name) <= most else f"{name[: most - 1]}…"


def colour_arms(report: Report) -> dict[str, str]:
    """Return the colour of each arm: that of the console."""
    usual = {arm: number for number, arm in enumerate(report.drawn)}
    return {arm: PALETTE[number % len(PALETTE)] for arm, number in (usual | report.arm_colours).items()}


def colour_candidates(report: Report) -> dict[str, str]:
    """Return the colour of each candidate: that of its arm, of what was served, or one that no arm has.

    The name decides which of the colours that no arm has, so that another report has the same one, unless
    another candidate has it already.
    """
    arms = colour_arms(report)
    found = {BASELINE: INK, "uniform": GREY} | {f"{CandidateKind.FIXED}:{arm}": arms[arm] for arm in arms}
    for candidate in report.candidates:
        if candidate.name not in found:
            coloured = PALETTE[:-1]  # its last is nearly grey
            begin = crc32(candidate.name.encode()) % len(coloured)
            order = (*coloured[begin:], *coloured[:begin])
            free = [colour for colour in order if colour not in found.values()]
            found[candidate.name] = (free or order)[0]
    return {candidate.name: found[candidate.name] for candidate in report.candidates}


MARKERS = "osD^vP*X"
"""Shapes of points: of estimators, and of candidates in plots along the log, beside their colours."""


def values(report: Report) -> "Figure":
    """Draw the value of each candidate by each estimator, and the difference to the baseline."""
    shown = [candidate for candidate in report.candidates if candidate.headline is not None]
    names = list(dict.fromkeys(estimate.estimator for candidate in shown for estimate in candidate.estimates))
    figure = _figure(0.7 + sum(0.24 + 0.13 * len(candidate.estimates) for candidate in shown))
    value, difference = figure.subplots(1, 2, sharey=True)
    markers, colours = dict(zip(names, cycle(MARKERS))), colour_candidates(report)
    step = 0.7 / max(1, len(names))
    for place, candidate in enumerate(shown):
        for number, estimate in enumerate(candidate.estimates):
            at = place + (number - (len(candidate.estimates) - 1) / 2) * step
            style = "-" if estimate.covers else ":"
            look = colours[candidate.name], style, markers[estimate.estimator]
            _interval(value, at, estimate.value, *look, estimate.estimator)
            _interval(difference, at, estimate.difference, *look)
    if report.earned is not None:
        value.axvline(report.earned, color=GREY, linestyle=":", linewidth=1.2, zorder=0)
    difference.axvline(0.0, color=GREY, linestyle=":", linewidth=1.2, zorder=0)
    value.set_title("Mean reward of a decision", loc="left", fontsize=10, color=INK)
    difference.set_title(f"Gain over {short(report.request.baseline)}", loc="left", fontsize=10, color=INK)
    value.set_yticks(range(len(shown)), [short(candidate.name) for candidate in shown])
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


def over_time(report: Report) -> "Figure":
    """Draw the value of the candidates along the log."""
    figure = _figure(3.6)
    axes: Any = figure.subplots()
    dated = report.last_at > report.first_at
    colours = colour_candidates(report)
    for number, candidate in enumerate(_foremost(report, MOST_LINES)):
        ends = accumulate(stretch.rows for stretch in candidate.over_time)
        points = [
            (
                datetime.fromtimestamp((stretch.since + stretch.until) / 2, UTC) if dated else end,
                stretch.value,
            )
            for end, stretch in zip(ends, candidate.over_time, strict=True)
            if stretch.value is not None
        ]
        along, mean_rewards = zip(*points, strict=True) if points else ((), ())
        axes.plot(
            along,
            mean_rewards,
            marker=MARKERS[number],
            markersize=4,
            linewidth=1.4 if number else 2.4,
            color=colours[candidate.name],
            label=short(candidate.name),
        )
    axes.set_xlabel("When it was decided, UTC" if dated else "Decisions", color=INK, fontsize=9)
    axes.set_ylabel("Mean reward, self-normalised", color=INK, fontsize=9)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9, frameon=False, labelcolor=INK)
    _plain(axes, "y")
    return figure


def evidence(report: Report) -> "Figure":
    """Draw the estimated gain and its lower bound along the log."""
    figure = _figure(3.2)
    axes: Any = figure.subplots()
    colours = colour_candidates(report)
    trails = [(candidate.name, trail) for candidate in report.candidates if (trail := draw_trail(candidate))]
    for number, (name, trail) in enumerate(trails[:MOST_LINES]):
        rows, colour = [point["n"] for point in trail], colours[name]
        marked = {"marker": MARKERS[number], "markevery": (len(trail) - 1, 1), "markersize": 4}
        axes.plot(
            rows, [point["low"] for point in trail], color=colour, linewidth=1.8, label=short(name), **marked
        )
        axes.plot(rows, [point["gain"] for point in trail], color=colour, linewidth=0.9, linestyle="--")
    margin = next(
        candidate.verdict["figures"]["margin"]
        for candidate in report.candidates
        if draw_trail(candidate) and candidate.verdict
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
    return [] if one.verdict is None else list(one.verdict.get("trail", []))


def shares(report: Report) -> "Figure":
    """Draw how often each arm was drawn, and how often each candidate would draw it."""
    rows = {
        "drawn": report.drawn,
        **{candidate.name: candidate.shares for candidate in report.candidates if candidate.shares},
    }
    arms = sorted(report.drawn, key=lambda arm: -max(row.get(arm, 0.0) for row in rows.values()))
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


def _foremost(report: Report, most: int) -> list[CandidateResult]:
    """Return the baseline and the candidates with the best estimates, in their order."""
    baseline, *others = report.candidates
    best = sorted(others, key=lambda candidate: -_headline_value(candidate))[: most - 1]
    return [baseline, *(candidate for candidate in others if candidate in best)]


def _headline_value(candidate: CandidateResult) -> float:
    headline = candidate.headline
    return headline.value.value if headline is not None and headline.value is not None else float("-inf")


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
        axes.hlines(at, interval.low, interval.high, color=colour, linewidth=1.6, linestyle=style)
        axes.plot(interval.value, at, marker, color=colour, markersize=4, label=label)


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


def page(report: Report) -> str:
    """Return a report as HTML."""
    return fill_template(
        "evaluation.html",
        _pictures(report),
        report=report,
        window=window(report),
        summary=summary(report),
        command=command(report.request, "" if "://" in report.source else report.source, report.config),
        request=_format_json(report.request.model_dump(mode="json")),
        reward=_format_json(report.reward),
        colours={name: COLOURS[colour] for name, colour in colour_candidates(report).items()},
        arm_colours={arm: COLOURS[colour] for arm, colour in colour_arms(report).items()},
        judged=[candidate for candidate in report.candidates if candidate.verdict is not None],
        no_row=NO_ROW,
        biased=report.bias,
    )


LEAST_GAIN = 0.0005
"""Smallest gain that is displayed as more than +0.000, and for which a forecast is given."""


def _forecast(gain: Interval, n: int) -> str:
    """Return how many more decisions raise the lower end of a gain above 0, in words."""
    errors = 1.96 if gain.kind in ("normal", "bootstrap") else 3.5
    more = intervals.forecast_more(gain.value, gain.value - gain.low, n, errors=errors)
    return write_further(more) if more else f"only more than {intervals.MOST_MORE * n:,} further decisions"


def summary(report: Report) -> str:
    """Return the result in two sentences."""
    baseline, others = report.request.baseline, report.candidates[1:]
    if report.earned is None:
        return "No decision is settled yet: each may still get feedback, so nothing is estimated."
    begin = f"On {report.rows:,} decisions that earned {report.earned:+.3f} each"
    estimates = [
        (candidate.name, headline, headline.value, headline.difference, candidate.rows)
        for candidate in others
        if (headline := candidate.headline) is not None
        and headline.value is not None
        and headline.difference is not None
    ]
    if not estimates:
        return f"{begin}, no candidate but {baseline} has an estimate."
    name, headline, value, gain, rows = max(
        estimates,
        key=lambda estimate: (
            estimate[1].covers and estimate[3].low > 0.0,
            estimate[1].covers,
            estimate[3].value,
        ),
    )
    if headline.covers and gain.low > 0.0:
        best = f"{name} would have earned {value.value:+.3f}, {gain.value:.3f} more than {baseline}"
    elif headline.covers and gain.value >= LEAST_GAIN:
        best = (
            f"it is too early to say that a candidate earns more than {baseline}: the largest estimate, "
            f"of {name}, is {gain.value:+.3f}, which {_forecast(gain, rows)} would show"
        )
    else:
        best = (
            f"no candidate is shown to earn more than {baseline}: the largest estimate, of {name}, "
            f"is {gain.value:+.3f}"
        )
    kind = "" if gain.kind == report.request.interval else f"{gain.kind} "
    by = headline.estimator if headline.covers else f"{headline.estimator}, which is biased"
    return f"{begin}, {best} ({kind}95 % interval {gain.ends}, by {by}).{_verdicts(others)}"


def _verdicts(candidates: tuple[CandidateResult, ...]) -> str:
    gated = [candidate for candidate in candidates if candidate.verdict is not None]
    if not gated:
        return ""
    promoted = [
        candidate.name
        for candidate in gated
        if candidate.verdict is not None and candidate.verdict["promote"]
    ]
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


def _pictures(report: Report) -> dict[str, str]:
    """Return the plots that have data."""
    drawn = {"shares": (shares, "Arm shares")}
    if any(candidate.headline for candidate in report.candidates):
        drawn["estimates"] = (values, "Value of each candidate with intervals")
    if any(len(candidate.over_time) > 1 for candidate in report.candidates):
        drawn["over_time"] = (over_time, "Value of each candidate over time")
    if any(map(draw_trail, report.candidates)):
        drawn["evidence"] = (evidence, "What the gate knew along the log")
    return {name: draw_svg(report, draw, title) for name, (draw, title) in drawn.items()}


def _format_json(document: object) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False)

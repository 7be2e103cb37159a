"""The report of a period as an HTML page and as a short text.

Both are for people who do not know the product: the page explains its terms, and gives every estimate with
its interval.
"""

from collections.abc import Callable
from html import escape
from importlib import metadata
from math import inf
from typing import TYPE_CHECKING, Any

from armwise.agent.console.period import AtEqualQuality, KindGain, Period
from armwise.agent.console.served_comparison import (
    Alternative,
    format_decisions,
    lead_in_words,
    name_alternative,
    summarise_served,
)
from armwise.agent.reporting import (
    GREY,
    GRID,
    INK,
    LEGEND,
    PALETTE,
    draw_svg,
    fill_template,
    moment,
    visible,
    write_dollars,
    write_further,
    write_number,
)
from armwise.feedback.ope.intervals import Further

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CHARS = 1200
"""Most characters of the short text."""

NAME_CHARS = 40
"""Most characters of a name in the short text."""

SHOWN = 4
"""Most arms that the short text names."""

MOST_UNKNOWN = 5
"""Most open questions that are listed, the nearest to an answer first."""

HOUR, MINUTE = 3600.0, 60.0

MARGIN = 0.02
"""Reward above and below a band."""

SUBJECT = "What was served"

DOUBTFUL = "The logged propensities fail the audit, so the estimates below are wrong."
"""Start of the summary if the audit fails."""


def write_text(period: Period) -> str:
    """Return a text of at most `MOST_CHARS` characters, for a chat.

    `&`, `<` and `>` are escaped, so that names cannot mention a channel or forge a link in Slack.
    """
    whole = period.whole
    lines = [f"*Armwise, {_from_to(period)}*"]
    shares = ", ".join(f"{_short(arm.name)} {arm.share:.0%}" for arm in period.arms[:SHOWN])
    others = f" and {len(period.arms) - SHOWN} more" if len(period.arms) > SHOWN else ""
    lines.append(
        f"{format_decisions(whole.decisions)}, {period.rewarded:,} with feedback. Drawn: {shares}{others}."
    )
    lines.append(_cut(summary_in_words(period), 330))
    if money := money_in_words(period):
        lines.append(_cut(money, 600))
    if equal := equal_in_words(period):
        lines.append(_cut(equal, 230))
    if period.changes or period.held:
        _, last = max((*period.changes, *period.held))
        n = len(period.changes) + len(period.held)
        lines.append(f"{n:,} change{'' if n == 1 else 's'} and verdicts. The last: {_cut(last, 120)}")
    if unknown := unknowns(period):
        lines.append(_cut(f"Not known yet: {unknown[0]}", 150))
    escaped = [escape(visible(line), quote=False).replace("\n", " ") for line in lines]
    while len("\n".join(escaped)) > MOST_CHARS:
        escaped.pop()
    return "\n".join(escaped)


def write_page(period: Period, command: str) -> str:
    """Return the page of a period as self-contained HTML.

    Args:
        period: The period.
        command: The command that reproduces the page.
    """
    pictures = {}
    if sum(stretch.lead is not None for stretch in period.stretches) > 1:
        pictures["lead"] = draw_svg(period, _draw_lead, "Reward per decision so far, compared with one arm")
    if len(period.curve) > 1:
        pictures["curve"] = draw_svg(
            period, _draw_curve, "Reward and cost of what was served and of each arm"
        )
    if any(stretch.shares for stretch in period.stretches):
        pictures["shares"] = draw_svg(period, _draw_shares, "Share of each arm over the period")
    return fill_template(
        "period.html",
        pictures,
        period=period,
        whole=period.whole,
        title=f"What was served and saved, {_from_to(period)}",
        summary=summary_in_words(period),
        equal_summary=equal_in_words(period),
        costs=_writer(period)[0],
        cost_unit=_writer(period)[1],
        money=money_in_words(period),
        unknown=unknowns(period),
        gain=gain_in_words,
        kind_arms=sorted({arm for kind in period.kinds for arm in kind.shares}),
        alternatives=[
            alternative
            for alternative in (period.whole.uniform, *period.whole.arms)
            if alternative is not None
        ],
        changes=sorted((*period.changes, *period.held)),
        command=command,
        armwise=metadata.version("armwise"),
    )


def summary_in_words(period: Period) -> str:
    """Return a summary of the served policy's rewards, in one or two sentences."""
    doubt = f"{DOUBTFUL} " if period.doubt else f"{period.ratings} " if period.ratings else ""
    if not period.without:
        return doubt + summarise_served(period.whole, SUBJECT)
    if period.without < period.whole.explored:
        count = format_decisions(period.without)
        missing = f"{count} have no logged propensity and are excluded from comparisons."
        return f"{doubt}{summarise_served(period.whole, SUBJECT)} {missing}"
    n = sum(raw_mean.n for raw_mean in period.raw)
    earned = "no decision has a reward"
    if n:
        mean = sum(raw_mean.n * raw_mean.reward for raw_mean in period.raw) / n
        earned = f"{n:,} decisions with a reward earned {mean:.3f} each (a raw mean)"
    return (
        f"No decision has a logged propensity: {earned}. It is unknown what another choice would have "
        "earned, cost or saved, because each arm may have got different questions."
    )


def equal_in_words(period: Period) -> str:
    """Return what an alternative would save at equal quality as a sentence; empty: none is shown to."""
    better = [comparison for comparison in period.equal if comparison.alternative_saves]
    if not better:
        return ""
    most = min(better, key=lambda comparison: comparison.saved)
    write, unit = _writer(period)
    each = write(-most.saved, max(abs(most.saved_low), abs(most.saved_high)))
    earns = lead_in_words(-most.lead, -most.high, -most.low)
    return f"At equal quality, {most.name} would save {each} {unit}: it would earn {earns} per decision."


def money_in_words(period: Period) -> str:
    """Return what was spent, and what was saved and earned beside the best estimate and what was before.

    Returns:
        Two sentences; without dollars only the second. Empty: there are neither costs nor anything that was
        served before.
    """
    parts = []
    if (best := period.beside_best) is not None:
        which = f"{best.name} ({period.whole.best_in_words})"
        parts.append(f"compared with {which}, it {_describe_savings(period, best)}")
    if (before := period.before) is not None:
        parts.append(f"compared with {before.name}, it {_describe_savings(period, before)}")
    elif parts:
        parts.append("there is nothing with feedback from before to compare with")
    if not parts:
        return ""
    beside = "; ".join(parts)
    return f"{_describe_spending(period)}{beside[0].upper()}{beside[1:]}."


def _describe_spending(period: Period) -> str:
    """Return what was spent, and what the dearest and the cheapest arm would have cost and earned.

    Returns:
        A sentence and a space; empty: no dollars were charged, or fewer than two arms are known.
    """
    few = {arm.name for arm in period.whole.arms if arm.few}
    served, *arms = period.curve or (None,)
    arms = [point for point in arms if point.name not in few]
    if served is None or period.spent_usd <= 0.0 or len(arms) < 2:
        return ""
    arms.sort(key=lambda point: (-point.cost, str(point.name)))
    most, (write, _) = arms[0].cost, _writer(period)
    dear, cheap = (
        (
            f"always {_short(str(one.name))}",
            f"about {write(one.cost, most)}",
            "between {:.2f} and {:.2f}".format(*one.reward_interval),
        )
        for one in (arms[0], arms[-1])
    )
    return (
        f"It cost {write(served.cost, most)} per 1,000 answers and earned {served.reward:.2f} per decision; "
        f"{dear[0]} would have cost {dear[1]} and earned {dear[2]}, {' '.join(cheap[:2])} and {cheap[2]}. "
    )


def _describe_savings(period: Period, one: AtEqualQuality) -> str:
    """Return what was saved and earned beside an alternative, each with its interval."""
    earned = f"earned {lead_in_words(one.lead, one.low, one.high)} per decision"
    write, unit = _writer(period)
    most = max(abs(one.saved_low), abs(one.saved_high))
    if most == 0.0:
        return earned
    if one.saved_low <= 0.0 <= one.saved_high:
        cost = (
            f"cost between {write(-one.saved_low, most)} more and {write(one.saved_high, most)} less {unit}"
        )
    else:
        ends = sorted((abs(one.saved_low), abs(one.saved_high)))
        size = f"{write(abs(one.saved), most)} ({write(ends[0], most)} to {write(ends[1], most)})"
        cost = f"cost {size} {'less' if one.saved > 0.0 else 'more'} {unit}"
    return f"{cost} and {earned}"


def _writer(period: Period) -> tuple[Callable[..., str], str]:
    """Return how a cost of an answer is written, and the unit that follows it."""
    if period.spent_usd > 0.0:
        return lambda usd, beside=0.0: write_dollars(1000.0 * usd, 1000.0 * beside), "per 1,000 answers"
    return duration, "per answer"


def gain_in_words(one: KindGain) -> str:
    """Return whether a kind of question gains from the served policy, as text.

    >>> alternative = Alternative("small", 100, 0.5, (0.4, 0.6), 0.1, 0.05, 0.15, None)
    >>> gain_in_words(KindGain("pro", alternative))
    'gains'
    """
    if one.beside.worse:  # the alternative
        return "gains"
    if one.beside.better:
        return "loses"
    if one.beside.more is None:
        return "not known yet"
    return f"not known yet: {write_further(one.beside.more, 'of this kind')}"


def unknowns(period: Period) -> list[str]:
    """Return the open questions as sentences, each with the number of further decisions it takes."""
    whole = period.whole
    if period.without and period.without == whole.explored:
        return ["what other choices would have earned: log the probability of each draw."]
    if whole.earned is None:
        return ["what decisions earn: none of those that were drawn has feedback."]
    open_ones = [
        alternative
        for alternative in (whole.uniform, *whole.arms)
        if alternative is not None and not (alternative.better or alternative.worse)
    ]
    questions = [
        _open(alternative)
        for alternative in sorted(
            open_ones, key=lambda alternative: alternative.more[0] if alternative.more else inf
        )
    ]
    compared = [*([period.before] if period.before else []), *period.equal]
    questions += [_not_shown(comparison) for comparison in compared if comparison.verdict == "not known"]
    questions += [
        f"whether {period.feature} {one.name} gains{_when(one.beside.more)}."
        for one in period.gains
        if not (one.beside.worse or one.beside.better)
    ]
    return questions[:MOST_UNKNOWN]


def _not_shown(comparison: AtEqualQuality) -> str:
    return f"whether the cheaper of what was served and {comparison.name} is as good{_when(comparison.more)}."


def _open(alternative: Alternative) -> str:
    name = "a uniform choice" if alternative.name is None else f"always using {alternative.name}"
    return f"whether it earns more or less than {name}{_when(alternative.more)}."


def _when(more: Further | None) -> str:
    return f": that takes {write_further(more)}" if more else ""


def duration(seconds: float, beside: float = 0.0) -> str:
    """Return a duration in the largest unit that it, or `beside`, reaches.

    >>> duration(0.25), duration(75.0), duration(9000.0), duration(-90.0)
    ('0.25 s', '1.2 min', '2.5 h', '-1.5 min')
    """
    size = max(abs(seconds), abs(beside))
    if size >= HOUR:
        return f"{seconds / HOUR:,.1f} h"
    if size >= MINUTE:
        return f"{seconds / MINUTE:.1f} min"
    return f"{write_number(seconds, 2)} s"


def _from_to(period: Period) -> str:
    return f"{moment(period.since)} to {moment(period.until)}"


def _short(name: str) -> str:
    return _cut(name, NAME_CHARS)


def _cut(text: str, most: int) -> str:
    """Return a text, cut to a length.

    >>> _cut("a long text", 8), _cut("short", 8)
    ('a long …', 'short')
    """
    return text if len(text) <= most else text[: most - 1] + "\u2026"


# -- pictures ----------------------------------------------------------------------------------------


def _colours(period: Period) -> dict[str, str]:
    names = sorted({arm.name for arm in period.arms} | {arm.name or "" for arm in period.whole.arms})
    ranked = sorted(names, key=lambda name: period.colours.get(name, len(PALETTE)))
    return {name: PALETTE[period.colours.get(name, len(PALETTE) - 1)] for name in ranked}


def _draw_lead(period: Period) -> "Figure":
    """Draw what a decision has earned so far beyond the arm with the best estimate, with its band."""
    figure, axes = _figure()
    beside = period.whole.compared
    assert beside is not None
    points = [(stretch.end, stretch.lead) for stretch in period.stretches if stretch.lead is not None]
    x, leads = [end for end, _ in points], [lead for _, (lead, _) in points]
    low, high = ([interval[side] for _, (_, interval) in points] for side in (0, 1))
    axes.plot(x, leads, color=INK, marker="o", markersize=3, label="what was served")
    axes.fill_between(x, low, high, color=INK, alpha=0.12, linewidth=0)
    colour = GREY if beside.name is None else _colours(period)[beside.name]
    axes.axhline(0.0, color=colour, linestyle="--", label=_short(name_alternative(beside)))
    later = len(x) // 3
    axes.set_ylim(min(0.0, *low[later:]) - MARGIN, max(0.0, *high[later:]) + MARGIN)
    axes.set_xlim(0, max(1, period.whole.decisions))
    axes.set_xlabel("decision of the period", fontsize=8, color=INK)
    axes.set_ylabel("reward per decision", fontsize=8, color=INK)
    axes.legend(**LEGEND, fontsize=8, labelcolor=INK)
    return figure


def _draw_shares(period: Period) -> "Figure":
    """Draw the stacked shares of the arms."""
    figure, axes = _figure()
    rows = [stretch for stretch in period.stretches if stretch.shares]
    colours = _colours(period)
    names = [name for name in colours if any(stretch.shares.get(name) for stretch in rows)]
    below = [0.0] * len(rows)
    widths = [stretch.end - stretch.begin for stretch in rows]
    for name in names:
        shares = [stretch.shares.get(name, 0.0) for stretch in rows]
        axes.bar(
            [stretch.begin for stretch in rows],
            shares,
            widths,
            bottom=below,
            align="edge",
            color=colours[name],
            label=_short(name),
            linewidth=0,
        )
        below = [low + share for low, share in zip(below, shares, strict=True)]
    axes.set_xlim(0, max(1, period.whole.decisions))
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set_xlabel("decision of the period", fontsize=8, color=INK)
    axes.legend(**LEGEND, fontsize=8, labelcolor=INK)
    return figure


def _draw_curve(period: Period) -> "Figure":
    """Draw reward over cost, each with its interval, and the lines that mixes of two arms can reach."""
    figure, axes = _figure()
    colours = _colours(period)
    arms = period.curve[1:]
    for number, arm in enumerate(arms):
        for other in arms[number + 1 :]:
            axes.plot([arm.cost, other.cost], [arm.reward, other.reward], color=GRID, linewidth=1.0, zorder=1)
    for point in (*arms, period.curve[0]):
        colour = INK if point.name is None else colours.get(point.name, GREY)
        label = "what was served" if point.name is None else f"always {_short(point.name)}"
        across = [[point.cost - point.cost_interval[0]], [point.cost_interval[1] - point.cost]]
        up = [[point.reward - point.reward_interval[0]], [point.reward_interval[1] - point.reward]]
        axes.errorbar(
            [point.cost],
            [point.reward],
            xerr=across,
            yerr=up,
            color=colour,
            fmt="D" if point.name is None else "o",
            markersize=6,
            linewidth=1.2,
            label=label,
        )
    axes.set_xlabel(
        "dollars per answer" if period.spent_usd > 0.0 else "seconds per answer", fontsize=8, color=INK
    )
    axes.set_ylabel("reward per decision", fontsize=8, color=INK)
    axes.legend(**LEGEND, fontsize=8, labelcolor=INK)
    return figure


def _figure() -> tuple["Figure", Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 2.8), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    for spine in axes.spines.values():
        spine.set_color(GREY)
    axes.tick_params(colors=INK, labelsize=8, color=GREY)
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    return figure, axes

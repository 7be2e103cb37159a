"""The report of a period as an HTML page and as a short text, for people who do not know Armwise."""

from html import escape
from importlib import metadata

from armwise.agent.console.period import Period
from armwise.agent.console.savings import state_quality, write_duration
from armwise.agent.proof import SURE, About, Statement
from armwise.agent.reporting import fill_template, visible, write_span

MOST_CHARS = 2000
"""Most characters of the short text."""

NAME_CHARS = 40
"""Most characters of a name in the short text."""

SHOWN = 4
"""Most arms that the short text names."""

MOST_UNKNOWN = 5
"""Most open questions that are listed."""


def write_text(period: Period) -> str:
    """Return a text of at most `MOST_CHARS` characters, for a chat.

    `&`, `<` and `>` are escaped, so that names cannot mention a channel or forge a link in Slack.
    """
    shares = ", ".join(f"{cut(arm.name, NAME_CHARS)} {arm.share:.0%}" for arm in period.arms[:SHOWN])
    others = f" and {len(period.arms) - SHOWN} more" if len(period.arms) > SHOWN else ""
    plural, statements = "" if period.decisions == 1 else "s", list_statements(period)
    lines = [
        f"*Armwise, {_from_to(period)}*",
        f"{period.decisions:,} decision{plural}, {period.rated:,} with a reward. Drawn: {shares}{others}.",
        *(cut(_write_briefly(one), 500) for one in statements),
    ]
    caveats = dict.fromkeys(note for one in statements for note in one.assumptions)
    lines += [" ".join([*caveats, SURE])] if any(not one.silence for one in statements) else []
    if period.changes or period.held:
        _, last = max((*period.changes, *period.held))
        n = len(period.changes) + len(period.held)
        lines.append(f"{n:,} change{'' if n == 1 else 's'} and verdicts. The last: {cut(last, 120)}")
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
    return fill_template(
        "period.html",
        period=period,
        found=period.statements,
        tables=[
            (arm, *(period.statements.find(about, arm) for about in (About.QUALITY, About.DOLLARS)))
            for arm in period.statements.compared
        ],
        title=f"What was served and saved, {_from_to(period)}",
        statements=list_statements(period),
        unknown=list_unknown(period),
        changes=sorted((*period.changes, *period.held)),
        command=command,
        armwise=metadata.version("armwise"),
    )


def _write_briefly(one: Statement) -> str:
    if one.about is About.DOLLARS and one.tone == "good":  # the headline says the same
        return one.detail
    return f"{one.headline}{':' if one.silence else '.'} {one.detail}"


def list_statements(period: Period) -> list[Statement]:
    """Return what the report states about savings and quality; nothing that cannot be trusted."""
    found = period.statements
    dollars, best = found.find(About.DOLLARS), found.find(About.BEST_ARM)
    window = write_duration(period.wait_s)
    quality = state_quality(found, len(period.arms), period.n_open, window, any_rating=period.rated > 0)
    shown = (dollars, quality, period.audited, None if best is None or best.silence else best)
    return [one for one in shown if one is not None]


def list_unknown(period: Period) -> list[Statement]:
    """Return the statements on quality that leave open which answers are better."""
    quality = (one for one in period.statements.all if one.about is About.QUALITY)
    return [
        one for one in quality if one.low is not None and one.high is not None and one.low <= 0.0 <= one.high
    ][:MOST_UNKNOWN]


def _from_to(period: Period) -> str:
    return write_span(period.since, period.until)


def cut(text: str, most: int) -> str:
    """Return a text, cut to a length.

    >>> cut("a long text", 8), cut("short", 8)
    ('a long …', 'short')
    """
    return text if len(text) <= most else text[: most - 1] + "\u2026"

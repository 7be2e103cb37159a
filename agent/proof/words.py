"""A receipt in words: one sentence, Markdown for a pull request, and a badge."""

import html
import math
import re

from armwise.agent.proof.receipt import SavingsReceipt
from armwise.agent.reporting import one_line, write_dollars, write_span
from armwise.feedback.ope.noninferiority import LARGEST_RATER, ArmComparison, Ends, Unsaid

NAME_CHARS = 60
"""Longest name of an arm that is shown."""

_MARKDOWN = re.compile(r"([\\`*_\[\]<>|~#&!$@])")

GREEN, AMBER, GREY = "#2e7d32", "#b26a00", "#555555"

EQUAL = 0.02
"""Loss of quality up to which the badge is green where dollars are saved."""

CHAR_WIDTH, PADDING = 6.6, 10
"""Width of a character of the badge, and space beside a text, in pixels."""


def write_sentence(receipt: SavingsReceipt) -> str:
    """Return what a receipt states, in one or a few sentences."""
    figures = receipt.figures
    found = [part for part in (_savings(figures), _quality(figures)) if part]
    stated = (
        f"Compared with always using {shorten(figures.reference)}, what was served "
        f"{' and '.join(found) or 'cannot be compared'}. This covers {_extent(figures)}, "
        f"{write_span(figures.first_at, figures.last_at)}."
    )
    together = f"All ranges hold together with {1.0 - receipt.error:.0%} confidence, however often you check."
    return " ".join([stated, together, *_warnings(figures)])


def _savings(figures: ArmComparison) -> str:
    """Return the savings of 1,000 decisions; empty without dollars."""
    if figures.saved is None:
        return ""
    estimate, low, high = (1000.0 * end for end in figures.saved)
    most = max(abs(low), abs(high))
    if low <= 0.0 <= high:
        less, more = write_dollars(high, most), write_dollars(-low, most)
        return f"cost between {less} less and {more} more per 1,000 decisions"
    verb, more, least = ("saved", "", low) if low > 0.0 else ("cost", " more", -high)
    size, at_least = write_dollars(abs(estimate), most), write_dollars(least, most)
    return f"{verb} {size}{more} per 1,000 decisions (at least {at_least}{more})"


def _quality(figures: ArmComparison) -> str:
    """Return the bound of quality; empty without feedback."""
    if figures.quality is None:
        return ""
    estimate, low, high = (100.0 * end for end in figures.quality)
    low, high = round_down(low), -round_down(-high)
    size = f"{abs(estimate):.1f} points of 100 {'higher' if estimate >= 0.0 else 'lower'}"
    ends = " to ".join(f"{abs(end):.1f} {'higher' if end >= 0.0 else 'lower'}" for end in (low, high))
    return f"had a quality {size} (range: {ends})"


def round_down(points: float) -> float:
    """Return a number rounded down to a tenth: rounded ends are not narrower than they are.

    >>> round_down(-3.34), round_down(1.29), round_down(-2.0000000001)
    (-3.4, 1.2, -2.0)
    """
    return math.floor(round(10.0 * points, 6)) / 10.0


def _extent(figures: ArmComparison) -> str:
    """Return how many decisions and sessions the figures cover."""
    n = figures.decisions if figures.quality is not None else figures.priced
    among = "" if figures.sessions == n else f" in {figures.sessions:,} sessions"
    return f"{n:,} decisions ({figures.drawn:,} drew it){among}"


def _warnings(figures: ArmComparison) -> list[str]:
    """Return what limits the statement, a sentence each."""
    warnings = []
    most = write_dollars(figures.largest_cost or 0.0)
    excess = write_dollars(figures.beyond_largest)
    beyond = f"{figures.cut:,} answers cost more than {most}, {excess} more in all"
    match figures.dollars_unsaid:
        case Unsaid.FEW_DECIDE:
            warnings.append(f"Dollars are not compared, because few answers decide: {beyond}.")
        case Unsaid.CACHE:
            warnings.append(
                "Dollars are not compared: arms take conversations over from each other, and then pay for "
                "what their caches lack. An arm that answers alone does not. Keep each conversation on one "
                "arm."
            )
        case None if figures.saved is None:
            warnings.append("What was saved is not known: the log has no dollars, or too few draws have any.")
        case None if figures.cut:
            warnings.append(f"{beyond}, as was paid. An answer of the reference counts up to {most}.")
    if figures.unpriced and figures.saved is not None:
        warnings.append(
            f"{figures.unpriced:,} decisions lack a cost. They count as the worse case, so less is known."
        )
    match figures.quality_unsaid:
        case Unsaid.RATED_APART:
            more = "more" if figures.rated and figures.rated[0] > 0.0 else "less"
            warnings.append(f"Quality is not compared: what was served got feedback {more} often.")
        case Unsaid.ONE_USER:
            warnings.append(
                f"Quality is not compared: one user gave more than {LARGEST_RATER:.0%} of the feedback."
            )
        case None if figures.quality is None:
            warnings.append("The quality is not known: the log has no feedback.")
    if figures.beyond:
        warnings.append(
            f"The first {figures.session_limit} decisions of each session count in quality; "
            f"{figures.beyond:,} are left out."
        )
    return warnings


def shorten(name: str) -> str:
    """Return the name of an arm, cut to a length, with codes in place of control characters."""
    name = one_line(name)
    return name if len(name) <= NAME_CHARS else name[: NAME_CHARS - 1] + "\u2026"


# -- Markdown --------------------------------------------------------------------------------------


def write_markdown(receipt: SavingsReceipt) -> str:
    """Return a receipt as Markdown for the description of a pull request."""
    figures = receipt.figures
    rows = []
    if figures.saved is not None:
        rows.append(("dollars saved per 1,000 decisions", figures.saved, 1000.0, 4))
    if figures.quality is not None:
        rows.append(("points of quality gained, of 100", figures.quality, 100.0, 2))
    lines = [
        "### Savings and quality",
        "",
        escape(write_sentence(receipt)),
        "",
        f"| compared with always {escape(shorten(figures.reference))} | estimate | at least | at most |",
        "| --- | ---: | ---: | ---: |",
        *(_row(name, ends, scale, digits) for name, ends, scale, digits in rows),
        "",
        f"`armwise verify receipt.json LOG` recomputes it; rows `{receipt.digest[:16]}`, "
        f"Armwise {escape(receipt.armwise)}.",
    ]
    return "\n".join(lines) + "\n"


def _row(name: str, ends: Ends, scale: float, digits: int) -> str:
    cells = " | ".join(f"{scale * end:+.{digits}f}" for end in ends)
    return f"| {name} | {cells} |"


def escape(text: str) -> str:
    r"""Return a text that Markdown shows as it is, on one line.

    >>> escape("a|b <i>")
    'a\\|b \\<i\\>'
    """
    return _MARKDOWN.sub(r"\\\1", one_line(text))


# -- badge -----------------------------------------------------------------------------------------


def write_badge(receipt: SavingsReceipt) -> str:
    """Return a receipt as a small picture in SVG."""
    figures = receipt.figures
    parts, colour = [], GREY
    if figures.saved is not None:
        _, low, high = figures.saved
        parts.append(f"saves at least {write_dollars(1000.0 * low, 1000.0 * high)} per 1,000")
    if figures.quality is not None:
        parts.append(f"quality {round_down(100.0 * figures.quality[1]):+.1f} points at worst")
        saves = figures.saved is not None and figures.saved[1] > 0.0
        colour = GREEN if saves and figures.quality[1] >= -EQUAL else AMBER
    label, text = f"versus {shorten(figures.reference)}", ", ".join(parts)
    left, right = (round(len(part) * CHAR_WIDTH) + 2 * PADDING for part in (label, text))
    title, label, text = (html.escape(part) for part in (f"{label}: {text}", label, text))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{title}"><title>{title}</title>'
        f'<rect width="{left}" height="20" fill="#333"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{colour}"/>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{left / 2:g}" y="14">{label}</text>'
        f'<text x="{left + right / 2:g}" y="14">{text}</text></g></svg>\n'
    )

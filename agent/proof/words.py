"""A receipt in words: one sentence, Markdown for a pull request, and a badge."""

import html
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from armwise.agent.proof.receipt import AUDITED, SavingsReceipt, read_kept
from armwise.agent.proof.statements import (
    SURE,
    Statement,
    shorten,
    state_audited,
    state_dollars,
    state_quality,
)
from armwise.agent.reporting import moment, one_line, visible, write_span

if TYPE_CHECKING:
    from armwise.agent.config import AppConfig

_MARKDOWN = re.compile(r"([\\`*_\[\]<>|~#&!$@])")

GREEN, AMBER, RED, GREY = "#2e7d32", "#b26a00", "#b3261e", "#555555"
"""Colours of a badge: saved at no loss, not known, worse, not compared."""

CHAR_WIDTH, PADDING = 6.6, 10
"""Width of a character of the badge, and space beside a text, in pixels."""


def list_statements(receipt: SavingsReceipt) -> tuple[Statement, Statement]:
    """Return what a receipt says of dollars and of quality."""
    figures = receipt.figures
    if receipt.audit is not None:
        return state_dollars(figures), state_audited(receipt.audit, figures.reference)
    return state_dollars(figures), state_quality(figures, receipt.reward)


def state_kept_audit(config: "AppConfig") -> Statement | None:
    """Return what the newest audit of the log states, with its date; None: there was none."""
    receipt = read_kept(config, AUDITED)
    if receipt is None or receipt.audit is None:
        return None
    said = state_audited(receipt.audit, receipt.figures.reference)
    dated = (
        f"The audit was made on {moment(receipt.made_at)}, of {receipt.rows:,} decisions until "
        f"{moment(receipt.before)}."
    )
    return replace(said, assumptions=(dated, *said.assumptions))


def write_sentence(receipt: SavingsReceipt) -> str:
    """Return what a receipt states, in a few sentences."""
    figures = receipt.figures
    extent = f"All this is from {write_span(figures.first_at, figures.last_at)}."
    if receipt.audit is not None:  # the times above are those of rated and priced answers
        extent = f"This covers {receipt.rows:,} decisions."
    return " ".join([*(one.text for one in list_statements(receipt)), extent, SURE])


# -- Markdown --------------------------------------------------------------------------------------


def write_markdown(receipt: SavingsReceipt, command: str = "") -> str:
    """Return a receipt as Markdown for the description of a pull request.

    Args:
        receipt: The receipt.
        command: The command that recomputes it; empty: it was not written to a file.
    """
    figures, again = receipt.figures, f"`{visible(command)}` recomputes it; r" if command else "R"
    names = (
        "dollars saved per 1,000 requests",
        f"points of 100 gained by a{' rated' * (receipt.audit is None) or 'n'} answer",
    )
    rows = [
        (name, one, digits)
        for name, one, digits in zip(names, list_statements(receipt), (4, 2), strict=True)
        if not one.silence
    ]
    lines = [
        "### Savings and quality",
        "",
        escape(write_sentence(receipt)),
        "",
        f"| compared with {escape(shorten(figures.reference))} | estimate | at least | at most |",
        "| --- | ---: | ---: | ---: |",
        *(_row(*row) for row in rows),
        "",
        f"{again}ows `{receipt.digest[:16]}`, Armwise {escape(receipt.armwise)}.",
    ]
    return "\n".join(lines) + "\n"


def _row(name: str, one: Statement, digits: int) -> str:
    ends = (one.estimate, one.low, one.high)
    cells = " | ".join("not known" if end is None else f"{end:+.{digits}f}" for end in ends)
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
    figures, (dollars, quality) = receipt.figures, list_statements(receipt)
    parts, colour = [one.short for one in (dollars, quality) if one.short], GREY
    if quality.high is not None and quality.high < 0.0:
        colour = RED
    elif quality.low is not None:
        colour = GREEN if dollars.tone == quality.tone == "good" else AMBER
    label, text = f"versus {shorten(figures.reference)}", ", ".join(parts) or "not compared"
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

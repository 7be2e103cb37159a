"""A verdict in words: lines of text, and Markdown for a pull request."""

from collections.abc import Iterator, Sequence

from armwise.agent.proof.judged_pairs import MOST_MORE, GroupComparison, Word
from armwise.agent.proof.noninferiority import Ends
from armwise.agent.proof.statements import round_down, shorten
from armwise.agent.proof.verdict import PairsVerdict
from armwise.agent.proof.words import escape
from armwise.agent.reporting import visible, write_dollars

COLUMNS = ("requests", "pairs", "better or equal of 100", "points of 100", "better", "equal", "worse")


def write_verdict_text(verdict: PairsVerdict) -> str:
    """Return a verdict as lines of text."""
    rows = list(_rows(verdict))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(map(_pad, row, widths, range(len(row)))).rstrip() for row in rows]
    return "\n".join([_word(verdict), "", *table, "", *_notes(verdict)])


def _pad(text: str, width: int, column: int) -> str:
    return text.rjust(width) if column else text.ljust(width)


def write_verdict_markdown(verdict: PairsVerdict, command: str = "") -> str:
    """Return a verdict as Markdown, with the command that recomputes it; empty: it was not written."""
    again = f"`{visible(command)}` recomputes it from its pairs; r" if command else "R"
    header, *rows = _rows(verdict)
    word, _, reason = _word(verdict).partition(": ")
    lines = [
        f"**{word}.** {escape(reason[0].upper() + reason[1:])}",
        "",
        f"| {' | '.join(header)} |",
        "| --- |" + " ---: |" * (len(header) - 1),
        *(f"| {' | '.join(map(escape, row))} |" for row in rows),
        "",
        *(f"- {escape(note)}" for note in _notes(verdict)),
        "",
        f"{again}equests `{verdict.digest[:16]}`, Armwise {escape(verdict.armwise)}.",
    ]
    return "\n".join(lines) + "\n"


def _word(verdict: PairsVerdict) -> str:
    """Return the verdict with its reason."""
    challenger, reference = shorten(verdict.challenger), shorten(verdict.reference)
    than = f"than {100.0 * verdict.margin:g} points of 100 compared with {reference}"
    match verdict.figures.word:
        case Word.SWITCH:
            return f"Switch: {_about(verdict)}, {challenger} loses less {than}."
        case Word.KEEP:
            return f"Keep: {_about(verdict)}, {challenger} loses more {than}."
    start = f"Not yet: {_about(verdict)}, it is not known whether {challenger} loses less {than}."
    return f"{start} {_missing(verdict)}"


def _about(verdict: PairsVerdict) -> str:
    """Return what a verdict is about, as a part of a sentence."""
    n = sum(one.requests for one in verdict.classes)
    if verdict.seed is None:
        return f"on {n:,} requests that both arms answered"
    return f"{'in' if verdict.each else 'on'} the {n:,} {_unit(verdict)} of {shorten(verdict.source)}"


def _unit(verdict: PairsVerdict) -> str:
    return "conversations" if verdict.each else "requests"


def _missing(verdict: PairsVerdict) -> str:
    """Return what a verdict takes."""
    figures = verdict.figures
    if figures.judge.follows_place:
        return "The judge prefers a place to an answer: use another one."
    if figures.by_judge is not None:
        return "Label more pairs, or judge more."
    if verdict.seed is not None and verdict.drawn == sum(one.requests for one in verdict.classes):
        return f"All of its {_unit(verdict)} have been judged: take a longer file, or a larger --margin."
    if figures.more is None or figures.more_usd is None:
        return f"It would take more than {MOST_MORE:,} further pairs: choose a larger --margin."
    (low, high), (least, most) = figures.more, figures.more_usd
    pairs = f"{low:,} to {high:,}" if low < high else f"{low:,}"
    usd = f", for {write_dollars(least, most)} to {write_dollars(most)}" if most else ""
    return f"About {pairs} more pairs would decide{usd}, if they are like these."


def _rows(verdict: PairsVerdict) -> Iterator[tuple[str, ...]]:
    """Yield the header of the table, and a row for all requests and for each class."""
    yield "", *COLUMNS
    total = sum(one.requests for one in verdict.classes)
    figures = verdict.figures
    yield _row("all", total, figures.whole)
    for one, group in zip(verdict.classes, figures.groups, strict=False):
        yield _row(shorten(one.name), one.requests, group)


def _row(name: str, requests: int, figures: GroupComparison | None) -> tuple[str, ...]:
    if figures is None:
        return name, f"{requests:,}", "0", *([""] * (len(COLUMNS) - 2))
    share, points = (
        _write_ends(ends, signed) for ends, signed in ((figures.no_worse, ""), (figures.difference, "+"))
    )
    counts = (f"{n:,}" for n in (figures.better, figures.equal, figures.worse))
    return name, f"{requests:,}", f"{figures.pairs:,}", share, points, *counts


def _write_ends(ends: Ends, sign: str) -> str:
    """Return an estimate with its ends in points of 100, the ends rounded away from it."""
    return f"{100.0 * ends[0]:{sign}.1f} ({_write_range(ends, sign)})"


def _write_range(ends: Ends, sign: str) -> str:
    """Return the ends alone."""
    _, low, high = (100.0 * end for end in ends)
    return f"{round_down(low):{sign}.1f} to {-round_down(-high):{sign}.1f}"


def _notes(verdict: PairsVerdict) -> list[str]:
    """Return what else is known, a sentence or two each."""
    figures, judge = verdict.figures, verdict.figures.judge
    arms = shorten(verdict.challenger), shorten(verdict.reference)
    paid = [
        f"{arm} costs {write_dollars(1000.0 * usd)} per 1,000 requests and takes {seconds:.2f} s for each"
        for arm, usd, seconds in zip(arms, figures.usd, figures.seconds, strict=True)
    ]
    spent = write_dollars(figures.spent)
    notes = [
        f"{paid[0]}; {paid[1]}.",
        f"{verdict.drawn:,} requests were asked. Their answers and verdicts cost {spent}.",
        *_judge(verdict),
        *_classes(verdict),
    ]
    if unknown := figures.whole.unknown:
        notes.append(
            f"{unknown:,} pairs have no verdict. They count against {arms[0]} in the lower end of each "
            "interval, and for it in the upper end."
        )
    if figures.by_judge is not None:
        notes.append(
            f"Your labels: the judge agrees in {judge.agreed:,} of {judge.labels:,}. Without them, the "
            f"difference is {_write_ends(figures.by_judge, '+')} points."
        )
    judged = f"as {shorten(verdict.judge)} judges the answers"
    about = f"the requests of the log that both arms answered, {judged}"
    if verdict.seed is not None:
        one_of_each = ", by one random request of each" if verdict.each else ""
        about = (
            f"the {_unit(verdict)} of {shorten(verdict.source)}{one_of_each}, {judged}. They hold for "
            f"other {_unit(verdict)} only if the file is a random sample of them"
        )
    sure = f"{1.0 - verdict.error:.0%} confidence, however often you check"
    return [*notes, f"All intervals hold together with {sure}. They are about {about}."]


def _classes(verdict: PairsVerdict) -> Iterator[str]:
    """Yield a sentence for each class in which one arm is surely better."""
    arms = shorten(verdict.challenger), shorten(verdict.reference)
    for one, group in zip(verdict.classes, verdict.figures.groups, strict=False):
        if group is None or group.difference[1] <= 0.0 <= group.difference[2]:
            continue
        how = "better" if group.difference[0] > 0.0 else "worse"
        yield (
            f"On {shorten(one.name)}, {arms[0]} is {how} than {arms[1]}, by "
            f"{_write_ends(group.difference, '+')} points of 100."
        )


def _judge(verdict: PairsVerdict) -> Sequence[str]:
    """Return how far the judge can be trusted; empty if it was not asked."""
    judge = verdict.figures.judge
    if not judge.asked or judge.first is None:
        return ()
    text = f"The judge ({shorten(verdict.judge)}) compared {judge.asked:,} pairs"
    text += f", and prefers the first answer by {100.0 * judge.first:+.1f} points of 100"
    if judge.both:
        text += f"; in {judge.same_place:,} of {judge.both:,} pairs it named the same place in both orders"
    return (f"{text}.",)

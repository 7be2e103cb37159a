"""What is made of the document of a replay: a table for the terminal, and a page with plots."""

import math
from collections.abc import Iterable, Iterator
from itertools import zip_longest

from rich import box
from rich.table import Table
from rich.text import Text

from armwise.agent.evaluation.replay_document import (
    DIRECT_ALONE,
    CandidateResult,
    Estimated,
    Interval,
    ReplayDocument,
)
from armwise.agent.reporting import PALETTE, fill_template, format_counts, write_span
from armwise.feedback.ope import ESTIMATORS

NO_ROW = "no decision to be judged by"
"""Shown for a candidate without rows."""

BIASED = (
    "biased, and the interval does not hold the bias: a difference to what was served may be none, although "
    "the interval leaves out zero. Compare with ips, snips or dr before you act on it."
)
"""What an interval marked as biased means."""

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
    excluded = [f"Left out for it: {format_counts(candidate['excluded'])}."] if candidate["excluded"] else []
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
    """Return the colour of each arm, which is the same as in the console, as a page writes it."""
    usual = {arm: number for number, arm in enumerate(document["drawn"])}
    numbers = usual | document["arm_colours"]
    return {arm: f"var(--c{number % len(PALETTE)})" for arm, number in numbers.items()}


def find_axis(found: Iterable[Interval | None], mark: float) -> tuple[float, float]:
    """Return the ends of an axis that shows intervals and a mark.

    >>> find_axis([{"value": 0.25, "low": -0.5, "high": 1.0, "kind": "normal"}, None], 1.5)
    (-0.5, 1.5)
    """
    ends = [end for each in found if each is not None for end in (each["low"], each["high"])]
    low, high = min(*ends, mark, mark), max(*ends, mark, mark)
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def make_page(document: ReplayDocument) -> str:
    """Return a document as a self-contained HTML page."""
    every = [estimate for candidate in document["candidates"] for estimate in candidate["estimates"]]
    judged = [candidate for candidate in document["candidates"] if candidate["verdict"] is not None]
    return fill_template(
        "evaluation.html",
        axes={
            "value": find_axis((estimate["value"] for estimate in every), document["earned"]),
            "difference": find_axis((estimate["difference"] for estimate in every), 0.0),
        },
        report=document,
        window=write_span(document["first_at"], document["last_at"]),
        summary=summary(document),
        arm_colours=colour_arms(document),
        judged=judged,
        no_row=NO_ROW,
        uncovered=list_uncovered(document),
        biased=explain_bias(document),
        write_ends=write_ends,
    )


def summary(report: ReplayDocument) -> str:
    """Return the result in two sentences, at a level that holds for all candidates together."""
    baseline, others = report["request"]["baseline"], report["candidates"][1:]
    begin = f"On {report['rows']:,} decisions that earned {report['earned']:+.3f} each"
    estimates = [
        (candidate["name"], headline, headline["value"], headline["difference"])
        for candidate in others
        if (headline := find_headline(candidate)) is not None
        and headline["value"] is not None
        and headline["difference"] is not None
    ]
    if not estimates:
        return f"{begin}, no candidate but {baseline} has an estimate."
    n = len(estimates)
    name, headline, value, gain = max(
        ((name, headline, value, widen(gain, n)) for name, headline, value, gain in estimates),
        key=lambda estimate: (
            estimate[1]["covers"] and estimate[3]["low"] > 0.0,
            estimate[1]["covers"],
            estimate[3]["value"],
        ),
    )
    if headline["covers"] and gain["low"] > 0.0:
        best = f"{name} would have earned {value['value']:+.3f}, {gain['value']:.3f} more than {baseline}"
    else:
        best = (
            f"no candidate is shown to earn more than {baseline}: the largest estimate, of {name}, "
            f"is {gain['value']:+.3f}"
        )
    kind = "" if gain["kind"] == report["request"]["interval"] else f"{gain['kind']} "
    level = "95 %" if n == 1 else f"{100.0 - 5.0 / n:.4g} %"
    allowance = "" if n == 1 else f", which allows for the choice among {n:,} candidates"
    by = headline["estimator"] if headline["covers"] else f"{headline['estimator']}, which is biased"
    return (
        f"{begin}, {best} ({kind}{level} interval {write_ends(gain)}, by {by}{allowance}).{_verdicts(others)}"
    )


def widen(interval: Interval, n: int) -> Interval:
    """Return an interval of 95 % as one of n that hold together: each of 1 - 0.05 / n, by Bonferroni.

    It grows with the logarithm of the tail: the width of every kind grows no faster, and the normal
    approximation alone would be too short for rewards that are skewed, as those near 0 or 1 are.

    >>> write_ends(widen({"value": 0.25, "low": -0.5, "high": 1.0, "kind": "normal"}, 10))
    '[-0.968, +1.468]'
    """
    tail = 0.05 / 2.0
    growth = math.log(n / tail) / math.log(1.0 / tail)
    value, low, high = interval["value"], interval["low"], interval["high"]
    low, high = value - growth * (value - low), value + growth * (high - value)
    return Interval(value=value, low=low, high=high, kind=interval["kind"])


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

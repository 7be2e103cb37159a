"""Statements: who prints them, and why they are silent."""

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from armwise.agent.proof import About, LoggedTraffic, state
from armwise.agent.proof.noninferiority import Unsaid
from armwise.feedback.decisions import Decisions
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.training_log.lateness import RatingTimes
from benchmarks.receipt_worlds import WORLDS

ROOT = Path(__file__).parents[3]

AGENT = ROOT / "agent"

STATED = {
    "proof/statements.py",  # the one function
    "reporting/templates/statement.html",  # its figures, for all pages
}

RECORDED = {
    ("cli/interview.py", "$"): "a price of the list",
    ("cli/log.py", "$"): "usage on record",
    ("cli/wrap.py", "$"): "what a session cost by its log, and what the same tokens cost by the list",
    ("config/service.yaml.jinja", "$"): "a price of the list",
    ("console/templates/decisions.html", "$"): "what a decision cost",
    ("console/templates/details.html", "$"): "what was spent",
    ("console/templates/details.html", "points"): "the setting of the guard; heads of tables",
    ("console/templates/overview.html", "$"): "what was spent",
    ("console/templates/overview.html", "points"): "the label of the chart, whose values are statements",
    ("console/templates/parts.html", "$"): "what a decision cost, or all on average",
    ("console/templates/system.html", "$"): "budgets of keys, and what was spent of them",
    ("demo/page.py", "$"): "a simulated world, whose prices are known",
    ("demo/story.py", "$"): "a simulated world, whose prices are known",
    ("demo/templates/demo.html", "$"): "a simulated world, whose prices are known",
    ("proof/judged.py", "$"): "budgets",
    ("proof/pairs.py", "$"): "budgets",
    ("proof/verdict_verbs.py", "$"): "budgets",
    ("proof/verdict_words.py", "$"): "what a pair cost",
    ("proof/verdict_words.py", "points"): "a verdict of judged pairs, which is about its file",
    ("proof/words.py", "points"): "the head of a table",
    ("reporting/html.py", "$"): "the formatters",
    ("reporting/templates/period.html", "$"): "what was spent",
    ("reporting/templates/period.html", "points"): "heads of tables",
}
"""Other places that print dollars or points: none is an estimate of what another arm would have done."""

DOLLARS = re.compile(r"\$\{?\{|\|\s*(?:dollars|price)\b|own_cost\(|mean_cost\(|\bwrite_(?:dollars|price)\(")

POINTS = re.compile(r"\bpoints?\b(?! *=)", re.IGNORECASE)


def list_places() -> Iterator[tuple[str, str]]:
    """Yield each file that prints dollars or points, and which of these."""
    for path in sorted([*AGENT.rglob("*.html"), *AGENT.rglob("*.jinja")]):
        name, text = str(path.relative_to(AGENT)), re.sub(r"\{#.*?#\}|<polyline[^>]*>", "", path.read_text())
        if DOLLARS.search(text):
            yield name, "$"
        if POINTS.search(text):
            yield name, "points"
    for path in sorted(AGENT.rglob("*.py")):
        name = str(path.relative_to(AGENT))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and DOLLARS.search(f"{ast.unparse(node.func)}("):
                yield name, "$"
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "{" for part in node.values)
                text = "".join(map(str, parts))
                if "${" in text:
                    yield name, "$"
                if re.search(r"\bpoints\b", text):
                    yield name, "points"


def test_dollars_and_points_come_from_the_one_function_or_are_on_record() -> None:
    """What compares with another arm is a statement; a new place that prints an amount is listed here."""
    found = {place for place in list_places() if place[0] not in STATED}
    assert found - RECORDED.keys() == set(), (
        "print a statement of `armwise.agent.proof.state`, or say why not"
    )
    assert RECORDED.keys() - found == set(), "it prints no amount any more"


@pytest.mark.parametrize(
    ("name", "caller"), [("compare", "proof/traffic.py"), ("trace_quality", "proof/statements.py")]
)
def test_nobody_else_estimates_what_an_arm_would_have_cost_or_earned(name: str, caller: str) -> None:
    """Pages get statements; what judges versions of the policy is another question."""
    call = re.compile(rf"noninferiority\.{name}\(")
    assert [
        str(path.relative_to(AGENT)) for path in AGENT.rglob("*.py") if call.search(path.read_text())
    ] == [caller]


# -- why they are silent ---------------------------------------------------------------------------

RULE = RewardRule(metrics={"right": Metric()}, cost_weight=0.0)


def tell(decisions: Decisions, *, late_is_good: float | None = None, doubt: str = "") -> LoggedTraffic:
    """Return a log; a fifth of its ratings came late, if `late_is_good` says how many of these are good."""
    times, n = None, len(decisions)
    if late_is_good is not None:
        late, good = np.arange(n) % 5 == 0, np.arange(n) % 4 != 0
        value = np.where(late, np.arange(n) % 100 < 100.0 * late_is_good, good).astype(np.float64)
        times = RatingTimes(decisions.at, decisions.at, late, value)
    return LoggedTraffic("log", decisions, RULE, inf, complete=True, doubt=doubt, rating_times=times)


def plain(**columns: np.ndarray) -> Decisions:
    return replace(WORLDS["plain"](6000, 1).decisions, **columns)


def rate_less(share: float) -> np.ndarray:
    """Return the rewards of plain traffic, a share of those of the large arm left out."""
    made = plain()
    left_out = made.draw.each(lambda key: key.drawn == "large") & (
        np.random.default_rng(2).random(6000) < share
    )
    return np.where(left_out, np.nan, made.reward)


@pytest.mark.parametrize(
    ("traffic", "dollars", "quality"),
    [
        (tell(plain()), "", ""),
        (tell(WORLDS["cached conversations"](6000, 1).decisions), Unsaid.CACHE, ""),
        (tell(WORLDS["long answers are read again"](6000, 1).decisions), Unsaid.HISTORY, ""),
        (tell(WORLDS["runaway answers"](6000, 1).decisions), Unsaid.FEW_DECIDE, ""),
        (tell(WORLDS["one user rates most"](6000, 1).decisions), "", Unsaid.ONE_USER),
        (tell(plain(reward=rate_less(0.6))), "", Unsaid.RATED_APART),
        (tell(plain(), late_is_good=0.2), "", Unsaid.LATE),
        (tell(plain(), late_is_good=0.75), "", ""),
        (tell(plain(usd=np.full(6000, np.nan))), "no_dollars", ""),
        (tell(plain(reward=np.full(6000, np.nan))), "", "no_feedback"),
    ],
    ids=lambda one: one if isinstance(one, str) else "of",
)
def test_each_reason_for_silence_is_given_where_it_is_the_cause(
    traffic: LoggedTraffic, dollars: str, quality: str
) -> None:
    found = state(traffic, "large")
    said = {about: found.find(about) for about in (About.DOLLARS, About.QUALITY)}
    assert {about: one and one.silence for about, one in said.items()} == {
        "dollars": dollars,
        "quality": quality,
    }
    for one in said.values():
        assert one is not None
        assert bool(one.silence) is (one.low is None) is not bool(one.short)
        assert one.population or one.silence
        assert one.silence or one.assumptions
    assert said[About.DOLLARS].high is None, "nothing bounds what an answer may cost"
    assert not (quality and found.course), "the chart has no quality that is not stated"


def test_of_a_log_in_doubt_or_of_a_few_decisions_nothing_is_stated() -> None:
    assert state(tell(plain(), doubt="it fails the audit")).all == ()
    few = plain().where(np.arange(6000) < 50)
    assert state(tell(few)).all == ()

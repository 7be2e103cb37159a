"""`armwise prove` and `armwise verify`: what is stated, what cannot be known, what differs, what is kept."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
import yaml
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.agent.config import load
from armwise.agent.proof import (
    About,
    LoggedTraffic,
    SavingsReceipt,
    make_receipt,
    read_kept,
    read_receipt,
    state,
    write_badge,
    write_markdown,
    write_sentence,
)
from armwise.agent.proof import traffic as receipt_traffic
from armwise.agent.proof.noninferiority import ArmComparison, Settlement, Unsaid
from armwise.agent.proof.receipt import LARGEST_FILE
from armwise.feedback.events import Context, Cost, Decision, Example, Execution, Feedback, Mode, Status
from armwise.feedback.exchange import make_rule
from armwise.feedback.jsonl import Header, appearing, write_export
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.reward import Metric, Prices, RewardRule
from benchmarks.receipt_worlds import WORLDS
from tests.agent.cli.test_cli import said
from tests.agent.evaluation.logged import FLOOR, World, add_up, fill
from tests.agent.proof.imported import BEGIN, USD, row

P = (0.6, 0.2, 0.2)

RIGHT = (0.7, 0.5, 0.72)


def served(n: int = 1500, p: tuple[float, ...] = P, seed: int = 0, every: int = 0) -> list[Example]:
    """Draws of a policy that sees no question, all with feedback; a session every so many, 0: without any."""
    rng = np.random.default_rng(seed)
    made = []
    for seq in range(1, n + 1):
        drawn = int(rng.choice(3, p=p))
        one = row(seq, drawn, p, float(rng.random() < RIGHT[drawn]))
        name = f"s{(seq - 1) // every}" if every else None
        made.append(replace(one, decision=replace(one.decision, episode_id=name)))
    return made


def write(path: Path, rows: list[Example], settled: float | None = None, reward: Any = None) -> Path:
    rule = reward or make_rule("reward", (0.0, 1.0))
    with appearing(path) as file:
        write_export(rows, file, Header(written_at=0.0, reward=rule, settled=settled))
    return path


def changed(rows: list[Example], **fields: Any) -> list[Example]:
    """Return the rows with other fields of their decisions."""
    return [replace(one, decision=replace(one.decision, **fields)) for one in rows]


def run(*words: object, code: int = 0, verb: str = "prove") -> str:
    return said(CliRunner().invoke(app, [verb, *(str(word) for word in words)]), code)


def proven(*words: object) -> dict[str, Any]:
    """Return the receipt that is printed."""
    result = CliRunner().invoke(app, ["prove", *(str(word) for word in words), "--json"])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


# -- what is stated ----------------------------------------------------------------------------------


def test_savings_and_quality_hold_the_truth_beside_the_dearest_arm(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl.gz", served())
    figures = proven(log)["figures"]
    assert figures["reference"] == "dear"
    assert figures["n_arms"] == 3
    assert figures["decisions"] == figures["sessions"] == 1400, "the first 100 set the scale"
    saved = USD[2] - sum(p * usd for p, usd in zip(P, USD, strict=True))
    lost = sum(p * right for p, right in zip(P, RIGHT, strict=True)) - RIGHT[2]
    for ends, truth in ((figures["saved"], saved), (figures["quality"], lost)):
        estimate, low, *high = ends
        assert low < truth < min([*high, inf])
        assert low < estimate < min([*high, inf])
    printed = run(log)
    assert "less per 1,000 than if dear had answered each of them (estimate: $" in printed
    assert "Of 1,400 answers rated in time after the first 100 requests, which set the scale" in printed
    assert f"same {1500 - figures['priced_scale']:,} requests (after the first " in printed
    for drawn, gave in ((figures["drawn"], "gave"), (figures["priced_drawn"], "answered")):
        assert f"dear {gave} {drawn:,} of " in printed
    assert figures["priced_drawn"] > figures["drawn"]
    assert "95% confidence, however often you check" in printed


@pytest.mark.parametrize(("beside", "sign"), [("dear", 1.0), ("cheap", -1.0)])
def test_the_reference_can_be_named(tmp_path: Path, beside: str, sign: float) -> None:
    figures = proven(write(tmp_path / "log.jsonl", served()), "--beside", beside)["figures"]
    assert figures["reference"] == beside
    assert sign * figures["saved"][0] > 0.0


def test_without_dollars_the_best_arm_is_the_reference(tmp_path: Path) -> None:
    rows = [replace(one, cost=replace(one.cost, usd=0.0)) for one in served(seed=3)]
    log = write(tmp_path / "log.jsonl", rows)
    document = proven(log)
    means = {
        arm: np.mean([one.metrics["reward"] for one in rows if one.decision.drawn == arm])
        for arm in ("cheap", "mid", "dear")
    }
    assert document["figures"]["reference"] == max(means, key=lambda arm: means[arm])
    assert document["figures"]["saved"] is None
    printed = run(log)
    assert "The log has no dollars" in printed
    assert "What was saved is not known" in printed


def test_a_conversation_is_one_observation(tmp_path: Path) -> None:
    """The same rows in sessions of three give wider quality than alone, and say how many sessions."""
    alone = proven(write(tmp_path / "alone.jsonl", served()))
    log = write(tmp_path / "sessions.jsonl", served(every=3))
    together = proven(log)
    assert together["figures"]["sessions"] == 400
    assert together["figures"]["decisions"] == 1200
    assert together["figures"]["session_limit"] == 4
    assert alone["figures"]["sessions"] == alone["figures"]["decisions"]
    printed = run(log)
    assert "1,200 answers rated in time in 400 sessions after the first 100, which set" in printed
    assert "The decisions of a session, by their `episode_id`, count as one observation." in printed


def test_dollars_are_not_compared_where_taking_a_conversation_over_costs_more(tmp_path: Path) -> None:
    """The log has no tokens of caches: that it costs more is found in the dollars."""
    rows, before = served(every=3), [None, *served(every=3)]
    dearer = [
        replace(one, cost=replace(one.cost, usd=3.0 * one.cost.usd))
        if last is not None
        and (last.decision.episode_id, last.decision.drawn != one.decision.drawn)
        == (one.decision.episode_id, True)
        else one
        for one, last in zip(rows, before, strict=False)
    ]
    said_so = "Savings are not compared: answers cost more if another arm answered before them"
    assert said_so in run(write(tmp_path / "dearer.jsonl", dearer))
    assert said_so not in run(write(tmp_path / "alike.jsonl", rows))
    assert said_so not in run(write(tmp_path / "alone.jsonl", served()))


def test_the_reference_of_a_receipt_stays_that_of_the_next_one(tmp_path: Path) -> None:
    """The first look sees no draw of the dearest arm yet."""
    path, receipt = tmp_path / "log.jsonl", tmp_path / "receipt.json"
    write(path, served(600))
    first = json.loads(run_json(path, receipt))["figures"]["reference"]
    dear = [
        replace(one, cost=replace(one.cost, usd=1.0)) if one.decision.drawn != first else one
        for one in served()
    ]
    write(path, dear)
    assert json.loads(run_json(path, receipt))["figures"]["reference"] == first
    assert proven(path)["figures"]["reference"] != first, "without an earlier receipt it is the dearest"


def run_json(log: Path, receipt: Path) -> str:
    run(log, "-o", receipt)
    return receipt.read_text()


def test_decisions_beyond_the_limit_of_a_session_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = served(every=2)
    longer = [*rows[:1400], *changed(rows[1400:1410], episode_id="long")]
    log = write(tmp_path / "log.jsonl", longer)
    assert proven(log)["figures"]["beyond"] == 8
    assert "irst 2 decisions of each session count in quality; 8 are left out" in run(log)


def test_cost_has_no_weight_in_quality(tmp_path: Path) -> None:
    """Whatever the rule of rewards."""
    dear = RewardRule(metrics={"reward": Metric()}, cost_weight=0.5, cost=Prices(usd=10.0))
    free = proven(write(tmp_path / "free.jsonl", served(400)))
    found = proven(write(tmp_path / "dear.jsonl", served(400), reward=dear))
    assert found["figures"] == free["figures"]
    assert found["digest"] == free["digest"]
    assert (found["reward"], free["reward"]) == (
        "the mean reward before costs (reward)",
        "the mean reward (reward)",
    )


def test_what_is_not_settled_is_left_for_later(tmp_path: Path) -> None:
    """Also the sessions that began within an hour before it."""
    settled = BEGIN + 60.0 * 1201
    alone = write(tmp_path / "alone.jsonl", served(), settled)
    assert proven(alone)["rows"] == 1200
    assert "300 are left for later" in run(alone)
    sessions = proven(write(tmp_path / "sessions.jsonl", served(every=2), settled))
    assert sessions["rows"] == 1140
    assert sessions["begun_before"] == settled - 3600.0


def test_a_statement_of_the_past_is_the_same_when_the_log_goes_on(tmp_path: Path) -> None:
    rows = served(every=3)
    before = write(tmp_path / "before.jsonl", rows[:1200], BEGIN + 60.0 * 1100)
    receipt = tmp_path / "receipt.json"
    run(before, "-o", receipt)
    after = write(tmp_path / "after.jsonl", rows)
    assert "match: " in run(receipt, after, verb="verify")
    assert proven(after)["rows"] > json.loads(receipt.read_text())["rows"]


# -- what cannot be known ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (changed(served(300), probabilities=()), "It has no propensities."),
        (served(300, (1.0, 0.0, 0.0)), "it fails the audit (deterministic draws)"),
        (
            changed(served(300), arms=("cheap",), probabilities=(1.0,), drawn="cheap"),
            "Only one arm could be drawn.",
        ),
        (
            changed(served(300), mode=Mode.FORCED),
            "None of 300 decisions was drawn from a distr",
        ),
        (
            changed(served(600), probabilities=(1 / 3, 1 / 3, 1 / 3)),
            "it fails the audit (mean weight of each arm)",
        ),
        (served(90), "could be in 90 decisions, which is too few: it takes more than 100"),
        (served(3), "which is too few"),
        (
            [replace(one, metrics={}, cost=replace(one.cost, usd=0.0)) for one in served(300)],
            "no arm was drawn with dollars on record, or 20 times with feedback",
        ),
    ],
)
def test_without_a_statement_it_exits_with_1(tmp_path: Path, rows: list[Example], why: str) -> None:
    printed = run(write(tmp_path / "log.jsonl", rows), "-o", tmp_path / "receipt.json", code=1)
    assert why in printed
    assert printed.count("Nothing can be") == 1, "an audit says itself that nothing can be estimated"
    assert not (tmp_path / "receipt.json").exists()


def test_each_arm_at_probability_1_is_no_randomisation(tmp_path: Path) -> None:
    rows = served(300)
    sure = [
        replace(
            one,
            decision=replace(
                one.decision, probabilities=tuple(float(a == one.decision.drawn) for a in one.decision.arms)
            ),
        )
        for one in rows
    ]
    assert "Every propensity is 1, so the other arms had 0" in run(
        write(tmp_path / "log.jsonl", sure), code=1
    )


def test_without_feedback_the_savings_alone_are_stated(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", [replace(one, metrics={}) for one in served()])
    figures = proven(log)["figures"]
    assert figures["quality"] is None
    assert figures["saved"][1] > 0.0
    printed = run(log)
    assert "No decision has feedback for reward: quality cannot be known." in printed
    assert "The quality is not known: the log has no feedback" in printed


def test_an_arm_that_was_hardly_drawn_is_named_and_is_no_reference_by_default(tmp_path: Path) -> None:
    rows = changed(served(2000, (0.5, 0.495, 0.005), seed=5), policy="imported-estimated")
    printed = CliRunner().invoke(app, ["prove", str(write(tmp_path / "log.jsonl", rows))]).output
    assert "Drawn fewer than 20 times: dear (" in printed
    assert "Whether the propensities are true: they were estimated" in printed


def test_the_propensity_of_the_drawn_arm_alone_is_enough(tmp_path: Path) -> None:
    def alone(one: Example) -> Example:
        d = one.decision
        others = tuple(arm for arm in d.arms if arm != d.drawn)
        return replace(one, decision=replace(d, arms=(d.drawn, *others), probabilities=(d.propensity,)))

    whole = proven(write(tmp_path / "whole.jsonl", served()))["figures"]
    log = write(tmp_path / "alone.jsonl", [*map(alone, served())])
    figures = proven(log)["figures"]
    assert figures["quality"][1] < whole["quality"][1], "without the others, no control variate"
    assert "log only the probability of the drawn arm" in run(log)


def test_a_decision_that_could_not_have_drawn_the_reference_is_left_out(tmp_path: Path) -> None:
    """Where its probability is 0, where it was not eligible, and where another arm was certain."""
    rows = served()
    d = rows[500].decision
    rows[500] = replace(rows[500], decision=replace(d, probabilities=(0.5, 0.5, 0.0), drawn="mid"))
    rows[501] = replace(
        rows[501],
        decision=replace(rows[501].decision, arms=("cheap", "mid"), probabilities=(0.5, 0.5), drawn="mid"),
    )
    rows[502] = replace(
        rows[502], decision=replace(d, id="sure", decided_at=rows[502].decision.decided_at,
                                    arms=("mid", "cheap", "dear"), probabilities=(1.0,), drawn="mid")
    )  # fmt: skip
    assert proven(write(tmp_path / "log.jsonl", rows))["figures"]["decisions"] == 1397


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{log}", "-o", "x.html"], "--output x.html: a name that ends with .json was expected"),
        (["{log}", "--badge", "x.png"], "--badge x.png: a name that ends with .svg was expected"),
        (["{log}", "--badge", "no/where/x.svg"], "there is no folder no/where"),
        (["{log}", "--json", "--markdown"], "--markdown and --json: name one of them"),
        (["{log}", "--beside", "none"], "`--beside none`: one of cheap, dear, mid was expected"),
        (["there/is/none.jsonl"], "there/is/none.jsonl cannot be read"),
        (["http://user:secret@host"], "http://...: a file was expected. Save the export of a service"),
        (["postgresql://secret@host/db"], "postgresql://...: a file was expected"),
        (["-c", "none.yaml"], "none.yaml"),
    ],
)
def test_a_wrong_request_exits_with_2_and_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    log = write(tmp_path / "log.jsonl", served(300))
    printed = run(*(word.format(log=log) for word in words), code=2)
    assert message in printed
    assert "secret" not in printed


def test_parts_with_different_rewards_are_refused(tmp_path: Path) -> None:
    one = write(tmp_path / "one.jsonl", served(10))
    other = write(tmp_path / "other.jsonl", served(10), reward=make_rule("reward", (0.0, 2.0)))
    both = tmp_path / "both.jsonl"
    both.write_bytes(one.read_bytes() + other.read_bytes())
    assert "its parts declare 2 different rewards" in run(both, code=2)


# -- a receipt ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("log") / "log.jsonl", served(every=3))


@pytest.fixture(scope="module")
def receipt(log: Path) -> Path:
    path = log.parent / "receipt.json"
    run(log, "-o", path)
    return path


def test_a_receipt_is_computed_again(log: Path, receipt: Path) -> None:
    printed = run(receipt, log, verb="verify")
    assert "match: 1,500 decisions give what" in printed
    assert "than if dear had answered each of them" in printed


@pytest.fixture
def of_service(receipt: Path, tmp_path: Path) -> Path:
    """The receipt of a service's log, of another rule than its export."""
    document = json.loads(receipt.read_text()) | {"source": "sqlite:///home/log.db", "rows": 7}
    (path := tmp_path / "service.json").write_text(json.dumps(document))
    return path


def test_a_receipt_and_its_source_are_told_apart_with_the_command_to_run(
    log: Path, receipt: Path, of_service: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"Name the file: armwise verify {receipt} {log.name}"
    assert name in run(receipt, code=2, verb="verify"), "and asks for no configuration"
    printed = run(of_service, log, code=2, verb="verify")
    assert "is the receipt of the log sqlite:///home/log.db" in printed
    assert f"run: armwise verify {of_service}" in printed
    assert "digest: " not in printed
    assert f"Run: armwise verify {receipt}" in run(receipt, code=2)
    assert f"leave out {receipt}" in run(receipt, "--log", code=2, verb="verify")
    assert "name a decision or a receipt, or --log" in run(code=2, verb="verify")


@pytest.mark.parametrize(
    ("field", "value", "difference"),
    [
        ("figures.quality.1", 0.5, "quality: ("),
        ("figures.saved.1", 0.5, "saved: ("),
        ("figures.reference", "mid", "saved: ("),
        ("figures.decisions", 7, "decisions: 7 on the receipt, 1200 from the log"),
        ("figures.largest_cost", None, "largest_cost: nothing on the receipt"),
        ("figures.reference", "none", "figures: `--beside none`"),
        ("digest", "0" * 64, "digest: 0000000000000000... on the receipt"),
        ("rule", "0" * 64, "rule: quality is made of feedback by another rule"),
        ("rows", 1499, "rows: 1,499 on the receipt, 1,500 in the log"),
        ("error", 0.5, "error: 0.5 on the receipt, 0.05 here"),
        ("method_version", 1, "method: it was made by version 1"),
        ("before", BEGIN + 60.0 * 900, "rows: 1,500 on the receipt, 899 in the log"),
        ("begun_before", BEGIN + 60.0 * 900, "rows: 1,500 on the receipt, 900 in the log"),
    ],
)
def test_what_differs_is_said_and_exits_with_1(
    log: Path, receipt: Path, tmp_path: Path, field: str, value: Any, difference: str
) -> None:
    document = json.loads(receipt.read_text())
    *path, last = field.split(".")
    place = document
    for name in path:
        place = place[name]
    place[int(last) if last.isdigit() else last] = value
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document))
    printed = run(other, log, code=1, verb="verify")
    assert difference in printed
    assert "differs from what log.jsonl gives" in printed


@pytest.mark.parametrize(
    "change",
    [
        lambda one: replace(one, metrics={"reward": 1.0 - one.metrics["reward"]}),
        lambda one: replace(one, cost=replace(one.cost, usd=0.5)),
        lambda one: replace(one, decision=replace(one.decision, decided_at=one.decision.decided_at + 1.0)),
        lambda one: replace(one, decision=replace(one.decision, episode_id="other")),
        lambda one: replace(one, decision=replace(one.decision, probabilities=(0.5, 0.3, 0.2))),
        lambda one: replace(one, decision=replace(one.decision, drawn="cheap")),
    ],
)
def test_a_changed_row_has_another_digest(receipt: Path, tmp_path: Path, change: Any) -> None:
    """Even one among the first, whose figures do not count."""
    rows = served(every=3)
    at = next(i for i, one in enumerate(rows) if one.decision.drawn == "mid")
    assert at < 100
    rows[at] = change(rows[at])
    assert "digest: " in run(receipt, write(tmp_path / "log.jsonl", rows), code=1, verb="verify")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}", "is no receipt of `armwise prove`: armwise is missing"),
        (b"not json", "is no receipt of `armwise prove`: not JSON"),
        (b'{"schema": 2}', "schema is 2"),
        (b" " * (LARGEST_FILE + 1), f"has more than {LARGEST_FILE:,} bytes"),
    ],
)
def test_a_file_that_is_no_receipt_is_refused(
    log: Path, tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "receipt.json"
    path.write_bytes(content)
    assert message in run(path, log, code=2, verb="verify")


@pytest.mark.parametrize(
    ("written", "instead", "message"),
    [
        ('"error": 0.05', '"error": NaN', "error is nan"),
        ('"n_arms": 3', '"n_arms": -3', "figures.n_arms is -3"),
        ('"n_arms": 3', '"n_arms": 3, "more": 1', "figures.more is 1"),
    ],
)
def test_figures_that_a_receipt_cannot_have_are_refused(
    log: Path, receipt: Path, tmp_path: Path, written: str, instead: str, message: str
) -> None:
    path = tmp_path / "receipt.json"
    path.write_text(receipt.read_text().replace(written, instead))
    assert message in run(path, log, code=2, verb="verify")


def figures(**fields: Any) -> ArmComparison:
    known: dict[str, Any] = {
        "reference": "dear", "n_arms": 2, "decisions": 1000, "sessions": 400, "drawn": 50, "served": 0.7,
        "quality": (0.01, -0.02, 0.03), "priced": 1000, "priced_drawn": 60, "priced_scale": 20,
        "spent": 0.002, "saved": (0.01, 0.008),
        "largest_cost": 0.5, "cut": 0, "beyond_largest": 0.0, "unpriced": 0, "dollars_unsaid": None,
        "quality_unsaid": None, "rated": None, "session_limit": 4, "beyond": 0, "scale": 100,
        "first_at": BEGIN, "last_at": BEGIN + 1.0,
    }  # fmt: skip
    return ArmComparison(**known | fields)


def stated(**fields: Any) -> SavingsReceipt:
    return SavingsReceipt(
        armwise="1", made_at=0.0, source="log", before=1.0, begun_before=None, rows=1, digest="0" * 64,
        rule="0" * 64, reward="the mean reward (right, where silence counts as 1)", figures=figures(**fields),
    )  # fmt: skip


NO_DOLLARS: dict[str, Any] = {"saved": None}

UNRATED: dict[str, Any] = {"quality": None, "quality_unsaid": Unsaid.RATED_APART}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "1,000 requests (after the first 20, which set the scale) cost at least $8.00 less per 1,000"),
        ({}, "$10.00 less). They cost $2.00 per 1,000, and dear answered 60 of them. Not counted: what a"),
        ({}, "dear gave 50 of these answers."),
        ({"saved": (0.0, -0.001)}, "cost at most $1.00 more per 1,000 than if"),
        ({"saved": (-0.01, -0.012)}, "cost at most $12.00 more per 1,000 than if"),
        ({"saved": (-0.01, -0.012)}, "(estimate: $10.00 more)"),
        ({"quality": (0.03, 0.01, 0.05)}, "is 3.0 points of 100 higher than answers of dear have"),
        ({"quality": (-0.03, -0.05, -0.01)}, "is 70.0 of 100. That is 3.0 points of 100 lower than"),
        ({"quality": (-0.03, -0.05, -0.01)}, "(range: 5.0 lower to 1.0 lower)."),
        ({"quality": (0.01, 0.0, 0.024)}, "(range: equal to 2.4 higher)."),
        ({"quality": (0.0, -0.0221, 0.0321)}, "0.0 points of 100 higher than"),
        ({"quality": (0.0, -0.0221, 0.0321)}, "(range: 2.3 lower to 3.3 higher)"),
        (
            {},
            "rated or not, in 400 sessions after the first 100, which set the scale, the mean "
            "reward (right, where silence counts as 1) is 70.0 of 100",
        ),
        ({"quality": (-0.7, 0.3, -0.6)}, "not compared: no difference fits all ratings."),
        ({"saved": None}, "What was saved is not known: the log has no dollars"),
        ({"cut": 3, "beyond_largest": 7.0}, "3 answers cost more than $0.50 ($7.00 more in all). What was"),
        ({"cut": 1, "beyond_largest": 7.0}, " 1 answer cost more than $0.50 ($7.00 more in all). What was"),
        ({"unpriced": 3}, "3 requests lack a cost"),
        (UNRATED | {"quality_unsaid": Unsaid.TOO_WIDE}, "It takes more answers of dear"),
        (NO_DOLLARS | {"dollars_unsaid": Unsaid.FEW_DECIDE}, "few very expensive answers are most of the"),
        (NO_DOLLARS | {"dollars_unsaid": Unsaid.CACHE}, "as where its cache is cold"),
        (NO_DOLLARS | {"dollars_unsaid": Unsaid.CACHE_UNKNOWN}, "take conversations over from each other"),
        (UNRATED, "as served and answers of dear are not rated equally often."),
        (UNRATED | {"quality_unsaid": Unsaid.ONE_USER}, "one user gave more than 33% of the ratings"),
    ],
)
def test_the_sentence_says_what_the_ends_allow(fields: dict[str, Any], text: str) -> None:
    assert text in write_sentence(stated(**fields))


def test_markdown_names_the_command_that_recomputes_a_receipt_that_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = write(tmp_path / "a log.jsonl", served())
    assert "`armwise verify w.json 'a log.jsonl'` recomputes it; rows `" in run(
        log, "--markdown", "-o", tmp_path / "w.json"
    )
    assert "match: " in run("w.json", "a log.jsonl", verb="verify")
    assert "armwise verify" not in run(log, "--markdown")


def test_ratings_outside_their_range_are_counted_and_no_quality_is_stated(tmp_path: Path) -> None:
    """By a receipt and an audit; the sum of some values may be outside."""
    rows = [replace(one, metrics={"stars": 1.0 + 4.0 * one.metrics["reward"]}) for one in served()]
    n = sum(one.metrics["stars"] > 1.0 for one in rows)
    for metric, wrong in (
        (Metric(), True),
        (Metric(range=(1, 5)), False),
        (Metric(aggregation="sum"), False),
    ):
        rule = RewardRule(metrics={"stars": metric}, cost_weight=0.0)
        log = write(tmp_path / "log.jsonl", rows, reward=rule)
        counted = (
            f"{n:,} of 1,500 ratings are outside the range of their metric, such as 5 for stars, in [0, 1]"
        )
        told = run(log)
        for printed in (told, run(log, verb="audit")):
            assert (counted in " ".join(printed.split())) is wrong
        figures = proven(log)["figures"]
        assert (figures["quality"] is None, figures["saved"] is None) == (wrong, False)
        assert ("ratings are outside the range of their metric. Declare" in told) is wrong


def test_names_of_arms_can_do_no_harm() -> None:
    """In a terminal, in Markdown, in a picture."""
    name = '<script>|`*"\x1b[2J\n'
    receipt = stated(reference=name)
    picture = write_badge(receipt)
    ET.fromstring(picture)
    assert "<script" not in picture
    for text in (write_sentence(receipt), write_markdown(receipt), picture):
        assert "\x1b" not in text
    assert "\\<script\\>\\|" in write_markdown(receipt)
    assert "x" * 61 not in write_sentence(stated(reference="x" * 200))


@pytest.mark.parametrize(
    ("fields", "colour"),
    [
        ({}, "#2e7d32"),
        ({"quality": (0.0, -0.021, 0.1)}, "#b26a00"),
        ({"quality": (-0.01, -0.012, -0.008)}, "#b3261e"),
        ({"saved": (0.01, -0.001)}, "#b26a00"),
        ({"quality": None}, "#555555"),
    ],
)
def test_a_badge_is_green_for_savings_at_equal_quality(fields: dict[str, Any], colour: str) -> None:
    """What is proven worse is red, however little it is; what is not known is not."""
    assert colour in write_badge(stated(**fields))


@pytest.mark.parametrize(
    ("ends", "word"),
    [
        ((0.05, 0.012, 0.09), "better, +1.2 points at worst"),
        ((0.0, -0.02, 0.05), "as good, -2.0 points at worst"),
        ((-0.01, -0.012, -0.008), "worse, -1.2 points at worst"),
        ((0.0, -0.064, 0.05), "not known to be better or worse, -6.4 points at worst"),
    ],
)
def test_a_badge_says_in_words_what_its_colour_says_and_of_whom(ends: Any, word: str) -> None:
    receipt = stated(quality=ends)
    assert f"mean reward counting silence {word}" in write_badge(receipt), "where silence counts"
    rated = receipt.model_copy(update={"reward": "the mean reward (right)"})
    assert f"answers rated in time {word}" in write_badge(rated)


# -- of a service ------------------------------------------------------------------------------------

WORLD = World(
    {"none": 0.6, "bm25": 0.8, "dense": 0.5},
    usd={"none": 0.001, "bm25": 0.01, "dense": 0.002},
    rated=0.7,
    forced=0.05,
)


def test_the_receipt_of_the_own_log_is_kept(config: Path, store: Store, tmp_path: Path) -> None:
    made = fill(store, WORLD, 900, seed=3)
    settings = load(config, ["router"])
    assert read_kept(settings) is None
    path = tmp_path / "receipt.json"
    printed = run("-c", config, "-o", path)
    explored = sum(one.mode == "explore" for one in made)
    assert f"{explored:,} of 900 decisions were drawn from a distribution and are final." in printed
    receipt = read_receipt(path)
    assert receipt.figures.reference == "bm25"
    assert receipt.figures.rated is not None
    assert receipt.figures.rated[1] < 0.0 < receipt.figures.rated[2]
    assert receipt.figures.priced > receipt.figures.decisions
    assert read_kept(settings) == receipt
    elsewhere = settings.model_copy(update={"log_url": "sqlite:///other.db"})
    assert read_kept(elsewhere) is None, "another log"
    printed = run(path, "-c", config, verb="verify")
    assert "match: " in printed
    assert receipt.head is not None
    assert f"The log is unchanged: {receipt.head.seq:,} facts, head {receipt.head.chain}." in printed


def test_a_receipt_finds_what_was_changed_even_if_the_log_says_nothing(
    config: Path, store: Store, tmp_path: Path
) -> None:
    fill(store, WORLD, 700, seed=6)
    path = tmp_path / "receipt.json"
    run("-c", config, "-o", path)
    fill(store, WORLD, 1, seed=1, first=60_000, prefix="later")
    with store.writing() as connection:  # nothing that a receipt is computed from
        connection.execute(sa.update(t.decisions).where(t.decisions.c.id == "d400").values(asked_by="k2"))
        connection.execute(sa.delete(t.progress))
    run("--log", "-c", config, verb="verify")
    printed = run(path, "-c", config, code=1, verb="verify")
    head = read_receipt(path).head
    assert head is not None
    assert f"between positions 1 and {head.seq:,} was changed, removed or added: {path} has" in printed


def test_the_own_log_is_compared_with_the_baseline_of_the_configuration(config: Path, store: Store) -> None:
    fill(store, WORLD, 900, seed=3)
    assert proven("-c", config)["figures"]["reference"] == "bm25", "the most expensive"
    document = yaml.safe_load(config.read_text())
    document["applications"][0]["args"]["baseline"] = "dense"
    config.write_text(yaml.safe_dump(document))
    assert proven("-c", config)["figures"]["reference"] == "dense"
    assert proven("-c", config, "--beside", "none")["figures"]["reference"] == "none"


def test_what_waits_for_feedback_in_the_own_log_does_not_count_yet(config: Path, store: Store) -> None:
    world = World(dict(WORLD.right), WORLD.usd, rated=0.5)
    fill(store, world, 400, seed=9, settled=False)
    assert "are left for later" in run("-c", config, code=1)
    fill(store, world, 1, seed=1, first=60_000, prefix="later", settled=True)
    assert "left for later" not in run("-c", config)


@pytest.mark.parametrize(("good_if_late", "said"), [(0.0, True), (0.75, False)])
def test_quality_is_not_compared_where_late_ratings_differ(
    config: Path, store: Store, tmp_path: Path, good_if_late: float, said: bool
) -> None:
    """The receipt of the log is computed again with the late ratings of then."""
    made, rng = fill(store, replace(WORLD, rated=0.4, forced=0.0), 900, seed=3), np.random.default_rng(1)
    silent = [one for one in made if store.record(one.id).metrics is None or not store.record(one.id).metrics]
    late = [
        Feedback(f"l{one.id}", one.id, "right", float(rng.random() < good_if_late), one.deadline + 1.0)
        for one in silent[:200]
    ]
    store.append(late)
    later = World(dict(WORLD.right), WORLD.usd)
    fill(store, later, 1, seed=1, first=60_000, prefix="later", settled=True)
    path = tmp_path / "receipt.json"
    printed = run("-c", config, "-o", path)
    assert ("Quality is not compared: ratings that came too late" in printed) is said
    assert "match: " in run(path, "-c", config, verb="verify")


def test_a_kept_receipt_that_cannot_be_read_is_none(config: Path, tmp_path: Path) -> None:
    (tmp_path / "home" / "receipt.json").write_text("{")
    assert read_kept(load(config, ["router"])) is None


DRAWN = {"floor": {"least": FLOOR}}


def talk(number: int, turn: int, arm: str, mode: Mode, status: Status = Status.OK) -> list[Any]:
    """Return a turn of a conversation."""
    at, name = BEGIN + 10_000.0 + 10.0 * number + turn, f"c{number}-{turn}"

    decision = Decision(
        name, Context(f"question {turn}"), ("none", "bm25"), (0.5, 0.5), arm, "linucb", 1, mode, at,
        deadline=at + 60.0, steps=DRAWN, episode_id=f"e{number}", draw_id=f"c{number}-0",
    )  # fmt: skip
    return [decision, Execution(name, arm, status, Cost(usd=0.25), ("p",), "yes", "", at + 0.1)]


def test_results_of_tools_are_no_repeated_question(config: Path, store: Store) -> None:
    fill(store, WORLD, 600, seed=4)
    for number in range(2):  # in the second, the person asks again after the tools
        facts = [
            fact if isinstance(fact, Execution)
            else replace(fact, context=Context("why?"), episode_id=f"c{number}-0")
            for turn in range(4 + number)
            for fact in talk(number, turn, "none", Mode.FORCED if turn % 4 else Mode.EXPLORE)
        ]  # fmt: skip
        store.append(facts)
    fill(store, World(dict(WORLD.right), WORLD.usd), 1, seed=1, first=60_000, prefix="later", settled=True)
    add_up(store)
    traffic = receipt_traffic.read_store(store, load(config, ["router"]), lambda *_: None)
    assert traffic.sessions(Settlement()).again.sum() == 1


def test_the_dollars_of_kept_turns_are_those_of_their_draw(config: Path, store: Store) -> None:
    fill(store, WORLD, 600, seed=4)
    facts = [
        *talk(0, 0, "none", Mode.EXPLORE), *talk(0, 1, "bm25", Mode.FORCED),
        *talk(1, 0, "bm25", Mode.EXPLORE), *talk(1, 1, "bm25", Mode.FORCED),
        *talk(2, 0, "none", Mode.EXPLORE), *talk(2, 1, "none", Mode.CONTINUED, Status.CANCELLED),
        *talk(3, 0, "none", Mode.EXPLORE, Status.CANCELLED), *talk(3, 1, "none", Mode.CONTINUED),
        *talk(4, 0, "bm25", Mode.FORCED),
        *talk(5, 0, "none", Mode.EXPLORE), *talk(5, 1, "none", Mode.CONTINUED),
        *talk(5, 2, "none", Mode.CONTINUED, Status.CANCELLED),
        *talk(6, 0, "none", Mode.EXPLORE, Status.CANCELLED),
    ]  # fmt: skip
    store.append(facts)
    later = World(dict(WORLD.right), WORLD.usd)
    fill(store, later, 1, seed=1, first=60_000, prefix="later", settled=True)
    add_up(store)
    settings = load(config, ["router"])
    traffic = receipt_traffic.read_store(store, settings, lambda *_: None)
    sessions = traffic.sessions(traffic.settlement)
    dear = sessions.usd[sessions.usd >= 0.25]
    assert sorted(dear.tolist()) == [0.25, 0.25, 0.25, 0.5, 0.5, 0.75]


@pytest.mark.slow
def test_a_file_is_proven_without_what_only_a_service_needs(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", served())
    code = (
        "import sys\n"
        f"sys.argv = ['armwise', 'prove', {str(log)!r}]\n"
        "from armwise.agent.cli.main import app\n"
        "app(standalone_mode=False)\n"
        "heavy = ('ray', 'fastapi', 'torch', 'vowpalwabbit', 'faiss', 'matplotlib', 'psycopg')\n"
        "print('loaded:', [name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("loaded: []\n")


def test_a_decision_that_a_log_lost_is_a_difference(config: Path, store: Store, tmp_path: Path) -> None:
    fill(store, WORLD, 700, seed=6)
    path = tmp_path / "receipt.json"
    run("-c", config, "-o", path)
    with store.writing() as connection:
        connection.execute(sa.delete(t.executions).where(t.executions.c.decision_id == "d400"))
    printed = run(path, "-c", config, code=1, verb="verify")
    assert "digest: " in printed
    assert "there is no fact at position " in printed


# -- the same words elsewhere ------------------------------------------------------------------------


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("failed", [None, -0.5])
def test_a_receipt_states_what_a_report_states_and_nothing_else(world: str, failed: float | None) -> None:
    """Each is silent where the other is, and has the same figures elsewhere, in every world."""
    rule = RewardRule.model_validate({"metrics": {"right": {}}, "failed": failed, "cost_weight": 0.0})
    traffic = LoggedTraffic("log", WORLDS[world](3000, 1).decisions, rule, inf, complete=True)
    receipt = make_receipt(traffic, traffic.sessions(traffic.settlement), traffic.settlement)
    found, sentence = state(traffic), write_sentence(receipt)
    assert found.reference == receipt.figures.reference
    for about in (About.DOLLARS, About.QUALITY):
        one = found.find(about)
        assert one is not None
        assert one.text in sentence
        assert bool(one.silence) is (one.low is None)
        assert one.silence or re.search(r"\$\d|points of", one.text)

"""One verdict on a log: what `audit` refuses, nothing estimates from, and all say so in the same words."""

import html
import json
import re
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from armwise.agent.cli.main import LAB, VERBS, app
from armwise.agent.config import load
from armwise.agent.console.period import read_period
from armwise.agent.console.period_report import write_page, write_text
from armwise.agent.console.savings import read_statements, state_quality
from armwise.agent.evaluation import (
    EvaluationFailedError,
    EvaluationRequest,
    evaluate_here,
    run_evaluation,
    verdict_on,
)
from armwise.agent.proof import About, make_receipt, read_file, verify
from armwise.agent.proof.audit import LogAudit, audit_log, find_doubt
from armwise.feedback import log_columns
from armwise.feedback.decisions import EVERYTHING, Selection, tabulate
from armwise.feedback.events import Context, Cost, Decision, Example
from armwise.feedback.exchange import make_rule
from armwise.feedback.jsonl import Header, appearing, write_export
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule
from armwise.feedback.sources import ExportSource, LogSource
from tests.agent.cli.test_cli import said
from tests.agent.evaluation.logged import World as ServedWorld
from tests.agent.evaluation.logged import configured, fill, quietly
from tests.agent.proof.honest import World, audit_service

RULE = RewardRule.model_validate({"metrics": {"reward": {"range": (0, 1)}}})

ESTIMATE = ("audit", "prove", "replay", "report")
"""Verbs that say what can be estimated from a log."""

OF_FILES = ("audit", "prove", "replay")
"""Those that read files, too."""

SILENT = {
    *("demo", "init", "models", "ingest", "serve", "ask", "feedback", "wrap", "lab", "import"),
    *("doctor", "status", "policy", "verify", "key", "log"),
}
"""Verbs that estimate nothing from logged draws; `policy` asks the gate, and `verify` computes again."""

FIGURES = re.compile(r"points? of 100|points \(|fixed:|\$\d|lower to|higher to|No fault was found")
"""What stands beside an estimate, or says that there can be one."""


def draw_rows(n: int, p: Callable[[bool], float], logged: Callable[[float], float]) -> list[Example]:
    """Return decisions between two arms with the propensity of the drawn arm alone.

    Args:
        n: Number of decisions.
        p: Probability of the small arm by whether the question is of a free tier.
        logged: The propensity on record of an arm that was drawn with a probability.
    """
    rng, rows = np.random.default_rng(7), []
    for seq in range(1, n + 1):
        free = bool(rng.random() < 0.5)
        small = bool(rng.random() < p(free))
        drawn, other = ("small", "large") if small else ("large", "small")
        chance = logged(p(free) if small else 1.0 - p(free))
        context = Context(f"question {seq % 40}", {"tier=free": 1.0} if free else {"tier=paid": 1.0})
        decision = Decision(
            *(f"r{seq}", context, (drawn, other), (chance,), drawn, "imported", 0), decided_at=float(seq)
        )
        right = rng.random() < (0.85 if free else 0.55) - 0.14 * small
        rows.append(Example(seq, decision, Cost(usd=0.001 if small else 0.01), {"reward": float(right)}))
    return rows


LOGS = {
    "honest": draw_rows(3000, lambda free: 0.8 if free else 0.2, lambda p: p),
    "1 / n by a router": draw_rows(3000, lambda free: 0.8 if free else 0.2, lambda _: 0.5),
    "deterministic": draw_rows(3000, float, lambda _: 1.0),
    "drawn and logged as certain": draw_rows(3000, lambda _: 0.5, lambda _: 1.0),
}


def write(path: Path, rows: list[Example]) -> Path:
    with appearing(path) as file:
        rule = make_rule("reward", (0.0, 1.0))
        write_export(rows, file, Header(written_at=0.0, reward=rule, arms=("large", "small")))
    return path


def doubt_of(path: Path) -> str:
    return find_doubt(ExportSource(path), RULE, EVERYTHING, quietly)


def test_every_verb_is_known_to_estimate_or_not() -> None:
    assert {*VERBS} == {*ESTIMATE, *SILENT}
    # `threshold` goes by the coins of a check, and `evaluate-router` by questions that every arm answered
    labels = {"synthesize", "score", "portfolio", "label", "train", "enter-labels", "warm-start", "simulate"}
    assert {*LAB} == labels | {"threshold", "evaluate-router"}


def test_a_receipt_is_not_confirmed_by_a_log_that_nothing_can_be_estimated_from(tmp_path: Path) -> None:
    traffic = read_file(write(tmp_path / "log.jsonl", LOGS["honest"]), quietly)
    receipt = make_receipt(traffic, traffic.sessions(traffic.settlement), traffic.settlement)
    assert verify(receipt, traffic) == []
    assert verify(receipt, replace(traffic, doubt="it fails")) == ["it fails"]


@pytest.mark.parametrize("verb", OF_FILES)
@pytest.mark.parametrize("log", LOGS)
def test_each_verb_estimates_from_honest_logs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, log: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "log.jsonl", LOGS[log])
    doubt = re.sub(r"\s+", " ", doubt_of(path))
    found = CliRunner().invoke(app, [verb, str(path)])
    printed = said(found, found.exit_code)
    assert (log == "honest") is not bool(doubt)
    if not doubt:
        assert (found.exit_code, bool(FIGURES.search(printed))) == (0, True)
        return
    assert doubt in printed
    assert not FIGURES.search(printed), FIGURES.findall(printed)
    assert found.exit_code == 1


@pytest.mark.parametrize("rewards", [{}, {"reward": 1.0}], ids=["no reward", "one question"])
def test_a_replay_without_any_figure_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rewards: dict[str, float]
) -> None:
    """Nobody has rated, or one question was asked and no probability is on record."""
    monkeypatch.chdir(tmp_path)
    rows = [
        replace(
            one,
            metrics=rewards,
            decision=replace(one.decision, probabilities=(), context=Context("always the same")),
        )
        for one in draw_rows(60, lambda _: 0.5, lambda p: p)
    ]
    said(CliRunner().invoke(app, ["replay", str(write(tmp_path / "log.jsonl", rows))]), 1)


WRONG = {
    "a log of another system": (
        "log.csv",
        "id,arm,propensity,reward\nr0,small,0.5,1\n",
        "armwise import FILE -o log.jsonl.gz",
    ),
    "a file that was cut off": (
        "log.jsonl",
        Header(written_at=0.0, reward=RULE).model_dump_json(by_alias=True) + "\n",
        "the file was cut off",
    ),
    "no file": ("log.jsonl", None, "No such file"),
}


@pytest.mark.parametrize(
    ("verb", "name", "content", "message"),
    [
        pytest.param(verb, *wrong, id=f"{verb}: {what}")
        for verb in OF_FILES
        for what, wrong in WRONG.items()
        if (verb, what) != ("audit", "a log of another system")  # which it reads
    ],
)
def test_a_wrong_request_exits_with_2_from_each_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, name: str, content: str | None, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_text(content)
    assert message in said(CliRunner().invoke(app, [verb, name]), 2)


@pytest.mark.parametrize("default", [None, 0.0])
def test_a_replay_says_that_it_is_about_decisions_with_feedback_unless_silence_has_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default: float | None
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [one if one.seq % 3 == 0 else replace(one, metrics={}) for one in LOGS["honest"]]
    rule = RewardRule(metrics=RULE.metrics, default=default, cost_weight=0.0)
    with appearing(Path("log.jsonl")) as file:
        write_export(rows, file, Header(written_at=0.0, reward=rule, arms=("large", "small")))
    page, report = Path("replay.html"), Path("replay.json")
    said(CliRunner().invoke(app, ["replay", "log.jsonl", "-o", str(page)]), 0)
    said(CliRunner().invoke(app, ["replay", "log.jsonl", "-o", str(report)]), 0)
    some = f"{2 * len(rows) // 3:,} of {len(rows):,} have none and are left out"
    assumed = json.loads(report.read_text())["assumptions"]
    assert any(some in line for line in assumed) is (some in page.read_text()) is (default is None)
    assert ("What is assumed" in page.read_text()) is bool(assumed)


def test_the_gate_judges_no_file_and_says_so_before_it_reads_one(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", LOGS["honest"])
    asked = ["replay", str(path), "--policy", "fixed:small", "--gate"]
    assert "the versions of a log, which a file lacks" in said(CliRunner().invoke(app, asked), 2)


def test_a_refusal_is_a_document_as_well(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", LOGS["1 / n by a router"])
    found = CliRunner().invoke(app, ["prove", str(path), "--json"])
    assert found.exit_code == 1
    assert json.loads(found.stdout) == {
        "format": "armwise-refusal",
        "source": "log.jsonl",
        "reason": doubt_of(path),
    }


def test_an_arm_of_probability_1_says_that_the_others_had_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the log is certain: an arm is judged where it was drawn, or could have been."""
    monkeypatch.chdir(tmp_path)
    coin = draw_rows(1200, lambda _: 0.5, lambda p: p)
    sure = draw_rows(1200, lambda _: 1.0, lambda _: 1.0)
    rows = [
        replace(one, seq=seq, decision=replace(one.decision, id=f"r{seq}"))
        for seq, one in enumerate([*coin, *sure], start=1)
    ]
    path, report = write(tmp_path / "log.jsonl", rows), tmp_path / "report.json"
    found = CliRunner().invoke(app, ["replay", str(path), "-o", str(report)])
    assert "1,200 the arm could not have been drawn" in said(found, 0)
    told = json.loads(report.read_text())["candidates"]
    mean = {one["name"]: one["weights"]["mean"] for one in told if one["weights"] is not None}
    assert {*mean} == {"served", "uniform", "fixed:small", "fixed:large", "configured"}
    assert [one["rows"] for one in told if one["name"] == "served"] == [1200]
    assert all(0.9 < weight < 1.1 for weight in mean.values()), "what learns draws no other arm there either"


def audited(rows: Iterable[Example], *, partial: bool) -> LogAudit:
    audit = LogAudit(RULE, partial=partial)
    for part in tabulate(rows, RULE):
        audit.add(part)
    return audit


def test_an_export_may_have_more_of_an_arm_that_is_rated_more_often() -> None:
    """A fault that a feature shows is found beside that."""
    rows = [*World(3, "epsilon_greedy", "plain", 0.4, exported=True).examples(3000)]
    assert audited(rows, partial=False).doubt
    assert not audited(rows, partial=True).doubt
    rng = np.random.default_rng(3)
    kept = [
        one
        for one in rows
        if one.decision.drawn != "both"
        or not one.decision.context.features["tier=free"]
        or rng.random() < 0.3
    ]
    assert "tier=free" in audited(kept, partial=True).doubt


def relabel(rows: Iterable[Example]) -> list[Example]:
    """Return rows with new positions and ids, and times in their order."""
    return [
        replace(one, seq=seq, decision=replace(one.decision, id=f"r{seq}", decided_at=float(seq)))
        for seq, one in enumerate(rows, start=1)
    ]


def test_a_window_or_features_are_audited_by_what_they_select(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the log around it."""
    monkeypatch.setattr(log_columns, "CHECKED", 512)
    honest = draw_rows(3000, lambda _: 0.5, lambda p: p)
    wrong = draw_rows(300, lambda _: 0.95, lambda _: 0.5)
    path = write(tmp_path / "log.jsonl", relabel([*honest, *wrong, *honest]))
    source = ExportSource(path)
    log = audit_log(source, RULE, Selection(since=3001.0, until=3301.0), quietly)
    assert (log.n, bool(log.doubt)) == (300, True)
    assert not find_doubt(source, RULE, Selection(until=3001.0), quietly)
    lying = [
        replace(one, decision=replace(one.decision, context=Context("?", {"shop": 1.0}))) for one in wrong
    ]
    mixed = write(tmp_path / "mixed.jsonl", relabel([*honest, *lying, *honest]))
    log = audit_log(ExportSource(mixed), RULE, Selection(features={"shop": 1.0}), quietly)
    assert (log.n, bool(log.doubt)) == (300, True)


def test_a_wrong_stretch_of_a_long_log_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 200 stretches the eighth is wrong: a twelfth of the rows that are read are, too."""
    monkeypatch.setattr(log_columns, "CHECKED", 1280)
    monkeypatch.setattr(log_columns, "STRETCH", 16)
    honest = draw_rows(12_000, lambda _: 0.5, lambda p: p)
    wrong = draw_rows(1_000, lambda _: 1.0, lambda _: 0.5)
    path = write(tmp_path / "log.jsonl", relabel([*honest[:2100], *wrong, *honest[2100:]]))
    log = audit_log(ExportSource(path), RULE, EVERYTHING, quietly)
    at = log.draws.at
    assert at is not None
    assert log.n == 1280
    assert 80 <= ((at > 2100) & (at <= 3100)).sum() <= 120
    assert log.doubt


def test_a_replay_audits_its_selection_and_a_model_of_rewards_needs_no_propensities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = LOGS["honest"]
    leak = [
        replace(
            one,
            decision=replace(
                one.decision, probabilities=(), context=Context("?", {"score": one.metrics["reward"]})
            ),
        )
        for one in rows
    ]
    bare = [replace(one, decision=replace(one.decision, probabilities=())) for one in rows]
    for name, made, words in (("leak", leak, "leaks"), ("bare", bare, "")):
        path = write(tmp_path / f"{name}.jsonl", made)
        doubt = find_doubt(ExportSource(path), RULE, EVERYTHING, quietly, missing=False)
        assert (words in doubt, bool(doubt)) == (True, bool(words))
    shop = [replace(one, decision=replace(one.decision, id=f"shop~{one.decision.id}")) for one in rows]
    both = [
        replace(one, seq=seq, decision=replace(one.decision, decided_at=float(seq)))
        for seq, one in enumerate([*LOGS["1 / n by a router"], *shop], start=1)
    ]
    words = ["replay", str(write(tmp_path / "both.jsonl", both)), "--policy", "fixed:small"]
    printed = said(found := CliRunner().invoke(app, [*words, "--project", "shop"]), found.exit_code)
    assert (found.exit_code, bool(FIGURES.search(printed))) == (0, True)
    assert "Nothing can be estimated" in said(CliRunner().invoke(app, words), 1)


def test_a_long_file_is_audited_in_parts_that_are_evenly_spread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_columns, "CHECKED", 300)
    monkeypatch.setattr(log_columns, "STRETCH", 50)
    path = write(tmp_path / "log.jsonl", LOGS["honest"])
    audit = audit_log(ExportSource(path), RULE, EVERYTHING, quietly)
    assert 300 <= audit.n <= 400
    at = audit.draws.at
    assert at is not None
    assert np.diff(at).max() < 500.0, "no long part is left out"
    assert (at[0], at[-1] > 2500.0) == (1.0, True)
    assert not audit.doubt
    assert audit_log(ExportSource(write(path, LOGS["1 / n by a router"])), RULE, EVERYTHING, quietly).doubt


# -- the log of a service ----------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir(mode=0o700)
    world = ServedWorld({"none": 0.3, "bm25": 0.8, "dense": 0.5}, {"none": 0.0, "bm25": 0.01, "dense": 0.02})
    path = configured(tmp_path, world)
    settings = load(path, ["router"])
    with closing(Store(settings.database_url, settings.reward.join)) as store:
        fill(store, world, 900, seed=3)
    return path


@pytest.mark.parametrize("wrong", [False, True])
def test_the_gate_and_the_console_say_what_the_verbs_say(config: Path, wrong: bool) -> None:
    settings = load(config, ["router"])
    with closing(Store(settings.database_url, settings.reward.join)) as store:
        if wrong:
            with store.writing() as connection:
                third = {"probabilities": [1 / 3] * 3, "propensity": 1 / 3}
                connection.execute(sa.update(t.decisions).values(**third))
        doubt = find_doubt(LogSource(store, settings.reward), settings.reward, EVERYTHING, quietly)
        assert bool(doubt) is wrong
        found, _ = read_statements(store, settings)
        said_quality = state_quality(found, 3, 0, "1 hour", any_rating=True)
        assert (found.doubt, bool(found.all), bool(found.find(About.DOLLARS))) == (
            doubt,
            not wrong,
            not wrong,
        )
        assert (doubt == said_quality.detail) is wrong
        period = read_period(store, settings, 0.0, time.time(), quietly)
        page, text = write_page(period, "armwise report"), write_text(period)
        for report in (page, text):
            assert (wrong and doubt in html.unescape(report)) is wrong
            assert not wrong or "saved" not in report.replace("served and saved", "").replace("is saved", "")
        assert ('class="doubt"' in page) is wrong
        request = EvaluationRequest(candidates=("uniform",), gate=True).model_dump(mode="json")
        words = store, settings, request, "worker", quietly
        if wrong:
            with pytest.raises(EvaluationFailedError, match=re.escape(doubt)):
                run_evaluation(*words, evaluate=evaluate_here)
        else:
            report = run_evaluation(*words, evaluate=evaluate_here).report
            assert all(one["estimates"] for one in report["candidates"])
            assert not verdict_on(report, "uniform")["promote"]


def test_the_console_audits_a_log_again_once_it_has_grown_by_a_tenth(config: Path) -> None:
    settings = load(config, ["router"])
    with closing(Store(settings.database_url, settings.reward.join)) as store:
        position = store.log_seq()
        assert read_statements(store, settings, "as it was", position)[0].doubt == "as it was"
        found, audited_to = read_statements(store, settings, "as it was", position // 2)
        assert (found.doubt, audited_to) == ("", position)


# -- false alarms ------------------------------------------------------------------------------------


def find_alarms(seeds: range, n: int) -> list[str]:
    """Return what is said of honest logs of a service, where anything is."""
    return [doubt for seed in seeds if (doubt := audit_service(World.of(seed), n).doubt)]


def test_honest_logs_of_every_kind_of_service_raise_no_doubt() -> None:
    assert find_alarms(range(42), 250) == []


@pytest.mark.slow
def test_at_most_one_honest_log_in_a_hundred_raises_a_doubt() -> None:
    assert len(find_alarms(range(100, 300), 1000)) <= 4  # more have a probability of .05 at a rate of .01


def test_embeddings_are_audited_as_far_as_the_shortest_of_the_first_decisions_goes(tmp_path: Path) -> None:
    """The first number of each embedding is the draw, which a later decision may lack."""
    rows = draw_rows(3000, lambda _: 0.5, lambda p: p)
    for at, one in enumerate(rows):
        length = (2, 9)[at % 2] if at < 1500 else (0, 1, 9)[at % 3]
        numbers = (float(one.decision.drawn == "small"), *range(8))[:length]
        context = replace(one.decision.context, embedding=numbers)
        rows[at] = replace(one, decision=replace(one.decision, context=context))
    done = CliRunner().invoke(app, ["audit", str(write(tmp_path / "log.jsonl", rows))])
    assert "The dimension 0 of the embedding predicts the draw" in said(done, 1)

"""`armwise import` of production logs, and what `armwise replay` says of one without propensities."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from armwise.feedback.jsonl import read_export, read_headers
from tests.agent.cli.test_cli import ran as run
from tests.feedback.exchange.exports import EXPORTS, STEPS
from tests.feedback.exchange.test_outcomes import routerbench_rows
from tests.feedback.exchange.test_systems import rewards
from tests.feedback.exchange.traffic import (
    ARMS,
    TRUTH,
    as_csv,
    as_lines,
    litellm_rows,
    near_the_truth,
    table_rows,
    traffic,
)

TURNS = traffic()

COLUMNS = (
    *("--question", "asked", "--arm", "route", "--reward", "score", "--cost", "usd=dollars"),
    *("--cost", "seconds=latency", "--time", "when", "--id", "request", "--episode", "chat"),
    *("--user", "who", "--feature", "tier=plan", "--range", 0, 1),
)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration with the arms of the traffic."""
    folder = tmp_path_factory.mktemp("config")
    args = {
        "home": str(folder),
        "arms": {arm: {"kind": "none"} for arm in ARMS},
        "llm": {"engine": "scripted"},
        "reward": {"metrics": {"reward": {"range": [0, 1]}}, "cost_weight": 0.0},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"args": args}]}))
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The traffic as CSV, with two wrong rows."""
    rows: list[dict[str, Any]] = table_rows(TURNS)
    rows += [{**rows[0], "request": "x", "score": "bad"}, {**rows[1], "request": "y", "score": 7}]
    return as_csv(tmp_path_factory.mktemp("table") / "log.csv", rows)


@pytest.fixture(scope="module")
def unknown(table: Path) -> Path:
    """The imported traffic without propensities."""
    rows = [
        {key: value for key, value in row.items() if key not in ("chance", "dist")}
        for row in table_rows(TURNS)
    ]
    source = as_csv(table.parent / "unknown.csv", rows)
    run("import", source, *COLUMNS, "-o", table.parent / "unknown.jsonl")
    return table.parent / "unknown.jsonl"


def replayed(config: Path, log: Path, *words: object) -> tuple[str, dict[str, Any]]:
    """Replay a log; return what is printed, and the report."""
    report = log.parent / "report.json"
    printed = run("replay", "-c", config, log, "-o", report, *words)
    return printed, json.loads(report.read_text())


def figures(report: dict[str, Any]) -> dict[tuple[str, str], float]:
    """Return the values by candidate and estimator."""
    return {
        (one["name"], each["estimator"]): each["value"]["value"]
        for one in report["candidates"]
        for each in one["estimates"]
        if each["value"] is not None
    }


@pytest.mark.slow
def test_a_table_is_imported_and_replayed_near_the_truth(table: Path, config: Path) -> None:
    log = table.parent / "known.jsonl"
    output = run("import", table, *COLUMNS, "--propensity", "chance", "-o", log)
    assert "question <- asked" in output
    assert "feature tier <- plan" in output
    assert f"3,000 decisions written to {log}" in output
    assert "left out 1: reward is not a number" in output
    assert f"{table}, line 3002: score is 'bad'" in output
    assert "left out 1: reward not in [0, 1]" in output
    assert "set --range" in output
    near_the_truth(read_export(log))
    assert [header.arms for header in read_headers(log)] == [tuple(sorted(ARMS))]
    _, report = replayed(config, log, *(word for arm in ARMS for word in ("--policy", f"fixed:{arm}")))
    for arm, truth in TRUTH.items():
        assert abs(figures(report)[f"fixed:{arm}", "ips"] - truth) < 0.05
    assert any("only the probability of the drawn arm" in line for line in report["assumptions"])


@pytest.mark.slow
def test_a_dry_run_prints_what_is_understood_and_writes_nothing(table: Path, tmp_path: Path) -> None:
    output = run(
        "import", table, *COLUMNS, "--propensity", "chance", "--dry-run", "-o", tmp_path / "log.jsonl"
    )
    for part in ("rows: 3,000", "3,000 on record", "episodes: 750", "left out 1: reward is not a number"):
        assert part in output
    assert not list(tmp_path.iterdir())


def test_a_wrong_row_is_an_error_where_that_is_strict(table: Path, tmp_path: Path) -> None:
    output = run(
        "import", table, *COLUMNS, "--propensity", "chance", "--strict", "-o", tmp_path / "log.jsonl", code=2
    )
    assert f"{table}, line 3002: score is 'bad'" in output
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_where_no_row_can_be_used(tmp_path: Path) -> None:
    source = as_csv(tmp_path / "x.csv", [{"arm": "a", "propensity": 2}])
    output = run("import", source, "-o", tmp_path / "log.jsonl", code=2)
    assert "no row can be used; left out: 1 propensity not in (0, 1] (such as " in output
    assert "propensity is 2; expected a probability in (0, 1]" in output
    assert not (tmp_path / "log.jsonl").exists()


@pytest.mark.slow
def test_the_exports_of_a_proxy_are_imported_with_feedback_beside_them(tmp_path: Path) -> None:
    source = as_lines(tmp_path / "spend.jsonl", litellm_rows(TURNS))
    thumbs = as_csv(tmp_path / "thumbs.csv", rewards(TURNS))
    propensity = "metadata.requester_metadata.propensity"
    words = ("--format", "litellm", "--feedback", thumbs, "--reward", "thumb", "--propensity", propensity)
    output = run("import", source, *words, "-o", tmp_path / "log.jsonl.gz")
    assert "reward <- the newest score of the feedback" in output
    near_the_truth(read_export(tmp_path / "log.jsonl.gz"))


@pytest.mark.parametrize("name", ["litellm", "tensorzero"])
def test_an_export_is_imported_audited_and_replayed_by_its_own_rewards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)  # where no configuration is
    export, log, report = EXPORTS[name], tmp_path / "log.jsonl", tmp_path / "report.json"
    words: list[object] = [word for what, value in export.options.items() for word in (f"--{what}", value)]
    judged = export.rewards
    if name == "litellm":
        rows = [{"request_id": f"req-{at:03}", "thumb": reward} for at, reward in enumerate(STEPS)]
        words += ["--feedback", as_csv(tmp_path / "thumbs.csv", rows), "--reward", "thumb"]
        judged = STEPS
    source = export.write(tmp_path / "export")
    printed = run("import", source, "--format", export.form, *words, "--range", 0, 1, "-o", log)
    assert f"{len(judged)} decisions written to {log}" in printed
    assert printed.count("left out ") == len(export.left_out)
    for reason, n in export.left_out.items():
        assert f"left out {n}: {reason}" in printed
    run("audit", log)
    run("replay", log, "--policy", "fixed:small", "--policy", "fixed:large", "-o", report)
    values = figures(json.loads(report.read_text()))
    for arm, first in (("small", 0), ("large", 1)):
        earned = [reward for reward in judged[first::2] if reward is not None]
        assert values[f"fixed:{arm}", "snips"] == pytest.approx(sum(earned) / len(earned))


def test_an_export_without_a_reward_says_how_to_give_one(tmp_path: Path) -> None:
    export = EXPORTS["litellm"]
    words = [word for what, value in export.options.items() for word in (f"--{what}", value)]
    source = export.write(tmp_path / "export")
    printed = run("import", source, "--format", "litellm", *words, "-o", tmp_path / "log.jsonl")
    assert "reward <- nothing" in printed
    assert "--feedback FILE" in printed
    assert "an evaluation needs some" in printed


def test_a_published_table_becomes_a_log_and_outcomes(tmp_path: Path) -> None:
    source = as_csv(tmp_path / "routerbench.csv", routerbench_rows(600))
    output = run("import", source, "--format", "routerbench", "-o", tmp_path / "log.jsonl", "--draw",
                 "small=0.5,medium=0.25,large=0.25")  # fmt: skip
    assert "600 on record" in output
    output = run("import", source, "--format", "routerbench", "--outcomes", "-o", tmp_path / "outcomes.jsonl")
    assert f"1,800 outcomes written to {tmp_path / 'outcomes.jsonl'}" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give --output FILE, or --dry-run"),
        (("-o", "x", "--cost", "dollars=usd"), "--cost dollars: unknown cost"),
        (("-o", "x", "--distribution", "a", "--distribution-of", "b"), "give either --distribution"),
        (("-o", "x", "--draw", "a=0.5"), "sum to 0.5; they must sum to 1"),
        (("-o", "x", "--draw", "a"), "ARM=PROBABILITY"),
        (("-o", "x", "--only", "a"), "COLUMN=VALUE was expected"),
        (("-o", "x", "--arms", "a,a"), "an arm occurs twice"),
        (("--format", "obp", "--dry-run"), "--dry-run does not work with obp"),
        (("-o", "x", "--outcomes"), "for outcomes of all arms, use one of"),
        (("-o", "x", "--feature", "a=plan", "--feature", "a=chat"), "--feature a is given twice"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    table: Path, tmp_path: Path, words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in run("import", table, *words, code=2)
    assert not list(tmp_path.iterdir())


# -- replay ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_without_propensities_only_the_direct_model_is_used(unknown: Path, config: Path) -> None:
    _, report = replayed(
        config,
        unknown,
        *("--policy", "uniform", "--policy", "fixed:large"),
        "--policy",
        "policy:{kind: linucb}",
    )
    values = figures(report)
    assert {estimator for _, estimator in values} == {"dm"}
    assert len(values) == 3
    assert abs(values["fixed:large", "dm"] - TRUTH["large"]) < 0.05
    assert abs(values["uniform", "dm"] - sum(TRUTH.values()) / 3) < 0.05
    served, *others = report["candidates"]
    assert served["excluded"] == {"no propensity is on record": report["rows"]}
    for one in others:
        assert [each["note"] for each in one["estimates"]] == [
            "by the direct model only, because the log has no propensities"
        ]
        assert one["weights"] is None
        (each,) = one["estimates"]
        assert each["value"]["low"] < each["value"]["value"] < each["value"]["high"]
        assert 0.0 <= each["value"]["low"] < each["value"]["high"] <= 1.0
        assert abs(each["difference"]["value"] - (each["value"]["value"] - report["earned"])) < 1e-9
        assert each["difference"]["low"] < each["difference"]["value"] < each["difference"]["high"]
    assert "nothing unobserved chose the arm" in " ".join(report["assumptions"])


@pytest.mark.parametrize(
    ("words", "needing"),
    [
        (("--estimator", "ips"), "which ips needs"),
        (("--estimator", "dm", "--estimator", "snips", "--estimator", "dr"), "which snips and dr needs"),
    ],
)
@pytest.mark.slow
def test_what_needs_propensities_is_refused_with_what_would_make_it_possible(
    unknown: Path, config: Path, words: tuple[str, ...], needing: str
) -> None:
    output = run("replay", "-c", config, unknown, "--policy", "uniform", *words, code=2)
    assert f"The log has no propensities, {needing}" in output
    assert "--estimate-propensities" in output


def test_a_target_can_be_compared_with_another_one_without_propensities(unknown: Path, config: Path) -> None:
    _, report = replayed(config, unknown, "--policy", "fixed:large", "--baseline", "fixed:small")
    values = figures(report)
    (each,) = report["candidates"][1]["estimates"]
    gain = values["fixed:large", "dm"] - values["fixed:small", "dm"]
    assert abs(each["difference"]["value"] - gain) < 1e-9
    assert each["difference"]["low"] < gain < each["difference"]["high"]


@pytest.mark.slow
def test_estimated_propensities_weigh_rewards_and_every_figure_says_so(unknown: Path, config: Path) -> None:
    log = unknown.parent / "estimated.jsonl"
    output = run("import", unknown.parent / "unknown.csv", *COLUMNS, "--estimate-propensities", "-o", log)
    assert "propensities were estimated in 2 of 2 contexts" in output
    _, report = replayed(config, log, "--policy", "fixed:large", "--policy", "uniform")
    assert abs(figures(report)["fixed:large", "ips"] - TRUTH["large"]) < 0.05
    notes = [each["note"] for one in report["candidates"] for each in one["estimates"]]
    assert len(notes) == 9
    assert set(notes) == {"propensities were estimated, not recorded"}
    assumptions = " ".join(report["assumptions"])
    assert f"Propensities of {report['rows']:,} of {report['rows']:,} decisions were estimated" in assumptions


def test_rows_without_a_propensity_are_left_out_of_the_others(tmp_path: Path, config: Path) -> None:
    rows = table_rows(TURNS[:400])
    for row in rows[:100]:
        row["chance"] = None
    source = as_csv(tmp_path / "log.csv", rows)
    output = run("import", source, *COLUMNS, "--propensity", "chance", "-o", tmp_path / "log.jsonl")
    assert "100 decisions without a propensity are left out of an evaluation of the others" in output
    _, report = replayed(config, tmp_path / "log.jsonl", "--policy", "uniform")
    assert report["excluded"]["no propensity on record"] == 98
    assert report["rows"] == 294
    assert not [line for line in report["assumptions"] if "direct model" in line]


def test_impossible_propensities_reach_neither_an_audit_nor_a_replay(tmp_path: Path) -> None:
    rows, log = table_rows(TURNS[:200]), tmp_path / "log.jsonl"
    spoiled = dict(enumerate(("Infinity", "1e400", "0", "-0.5", "1.5", "true")))
    for at, row in enumerate(rows):
        row.pop("dist")
        row["chance"] = spoiled.get(at, row["chance"])
    source = as_csv(tmp_path / "log.csv", rows)
    printed = run("import", source, *COLUMNS, "--propensity", "chance", "-o", log)
    assert "194 decisions written" in printed
    assert "left out 6: propensity not in (0, 1]" in printed
    run("audit", log)
    lines = log.read_text().splitlines(keepends=True)
    for value in spoiled.values():
        lines[1] = re.sub(r'"probabilities":\[[^]]*]', f'"probabilities":[{value}]', lines[1])
        log.write_text("".join(lines))
        for words in (["audit", log], ["replay", log]):
            assert "line 2: " in run(*words, code=2)

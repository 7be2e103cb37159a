"""`armwise audit`: files and the own log, exit statuses, reports; and what a replay says of a wrong log."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.feedback.events import Example
from armwise.feedback.exchange import make_rule
from armwise.feedback.jsonl import Header, appearing, write_export
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from tests.agent.cli.test_cli import said
from tests.agent.evaluation.logged import BEGIN, World, fill
from tests.agent.proof.imported import simulated

THIRD = (1 / 3, 1 / 3, 1 / 3)


def wrong(rows: list[Example]) -> list[Example]:
    """Return the rows with 1 / n in the place of their distributions."""
    return [replace(one, decision=replace(one.decision, probabilities=THIRD)) for one in rows]


def write(path: Path, rows: list[Example], settled: float | None = None, metric: str = "reward") -> Path:
    with appearing(path) as file:
        header = Header(written_at=0.0, reward=make_rule(metric, (0.0, 1.0)), settled=settled)
        write_export(rows, file, header)
    return path


def run(*words: object, code: int = 0, verb: str = "audit") -> str:
    return said(CliRunner().invoke(app, [verb, *(str(word) for word in words)]), code)


def test_a_true_log_passes_and_a_wrong_one_exits_with_1_and_says_why(tmp_path: Path) -> None:
    true = write(tmp_path / "true.jsonl.gz", simulated(600))
    assert "No fault was found in 600 draws" in run(true)
    false = write(tmp_path / "false.jsonl", wrong(simulated(600)))
    printed = run(false, code=1)
    assert "fail, mean weight of each arm: Every propensity on record is 1 / n" in printed
    assert "it fails the audit (mean weight of each arm)" in printed


def test_the_checks_are_written_to_a_file(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", wrong(simulated(600)))
    run(log, "-o", tmp_path / "audit.json", code=1)
    document = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    assert document["status"] == "fail"
    assert document["decisions"] == document["tested"] == 600
    status = {check["name"]: check["status"] for check in document["checks"]}
    assert status["mean weight of each arm"] == "fail"


def test_a_log_without_propensities_fails_plainly(tmp_path: Path) -> None:
    rows = [replace(one, decision=replace(one.decision, probabilities=())) for one in simulated(50)]
    printed = run(write(tmp_path / "log.jsonl", rows), code=1)
    assert "It has no propensities." in printed


def test_the_propensity_of_the_drawn_arm_alone_is_enough(tmp_path: Path) -> None:
    def alone(one: Example) -> Example:
        d = one.decision
        others = tuple(arm for arm in d.arms if arm != d.drawn)
        return replace(one, decision=replace(d, arms=(d.drawn, *others), probabilities=(d.propensity,)))

    assert "No fault" in run(write(tmp_path / "true.jsonl", [*map(alone, simulated(600))]))
    run(write(tmp_path / "false.jsonl", [*map(alone, wrong(simulated(600)))]), code=1)
    # one such row among whole distributions makes the audit read all of them so
    mixed = simulated(600)
    mixed[5] = alone(mixed[5])
    assert "of the drawn arm only" in run(write(tmp_path / "mixed.jsonl", mixed))


def test_what_was_not_drawn_and_other_times_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = simulated(40)
    rows[1] = replace(rows[1], decision=replace(rows[1].decision, policy="labels"))
    rows[2] = replace(rows[2], decision=replace(rows[2].decision, mode="forced"))
    log = write(tmp_path / "log.jsonl", rows)
    assert "38 decisions" in run(log)
    assert "Left out: 1 labels, 1 forced." in run(log)
    since = "2023-11-14T22:23:20"  # 600 s after the begin: the tenth row
    assert "31 decisions" in run(log, "--since", since)
    assert "7 decisions" in run(log, "--until", since)


def test_rows_after_the_first_that_waits_are_left_out_where_enough_remain(tmp_path: Path) -> None:
    rows = simulated(400)
    log = write(tmp_path / "log.jsonl", rows, settled=BEGIN + 60.0 * 300)
    assert "101 made after the first decision that waits for feedback" in run(log)
    few = write(tmp_path / "few.jsonl", rows, settled=BEGIN + 60.0 * 200)
    assert "400 decisions" in run(few)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{log}", "-o", "x.pdf"], "--output x.pdf: a name that ends with .json was expected"),
        (["{log}", "--since", "soon"], "--since 'soon' is not a date"),
        (["{log}", "--since", "2024-01-02", "--until", "2024-01-02"], "a time before --until 2024-01-02"),
        (
            ["{log}", "--since", "2024-01-02"],
            "it has no decision that a policy drew in that time; left out: 30 outside the window",
        ),
        (["there/is/none.jsonl"], "there/is/none.jsonl cannot be read"),
        (["-c", "none.yaml"], "none.yaml"),
    ],
)
def test_a_wrong_request_exits_with_2_and_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    log = write(tmp_path / "log.jsonl", simulated(30))
    assert message in run(*(word.format(log=log) for word in words), code=2)


# -- the log of a service ----------------------------------------------------------------------------

WORLD = World({"none": 0.3, "bm25": 0.8, "dense": 0.5}, rated=0.7, forced=0.1, masked=0.1)


def test_the_own_log_is_audited_decision_by_decision(config: Path, store: Store) -> None:
    """Also those without feedback; what callers named is left out."""
    made = fill(store, WORLD, 700, seed=3)
    forced = sum(one.mode == "forced" for one in made)
    printed = run("-c", config)
    assert f"{700 - forced:,} decisions" in printed
    assert f"Left out: {forced} forced." in printed
    assert "No fault was found" in printed


@pytest.mark.slow
def test_a_log_whose_turns_fail_by_arm_passes(config: Path, store: Store) -> None:
    """Failed turns teach nothing here, so the training log misses draws of one arm."""
    made = fill(store, WORLD, 900, seed=4)
    lost = [one.id for one in made if one.drawn == "bm25"][::2]
    with store.writing() as connection:
        connection.execute(
            sa.update(t.executions).where(t.executions.c.decision_id.in_(lost)).values(status="arm_failed")
        )
        connection.execute(sa.delete(t.examples).where(t.examples.c.decision_id.in_(lost)))
    printed = run("-c", config)
    assert "The log fails" not in printed
    assert "warn, missing rewards: " in printed
    assert "% of bm25 and " in printed, "failed turns lack a reward, more often of this arm"


@pytest.mark.slow
def test_a_wrong_policy_in_the_own_log_is_found(config: Path, store: Store) -> None:
    """Later decisions, in a page beyond the first, as well."""
    fill(store, World({"none": 0.5, "bm25": 0.5}, greedy=0.0, forced=0.0, every_s=1.0), 2600, seed=5)
    assert "No fault was found in 2,600 draws" in run("-c", config)
    with store.writing() as connection:
        d = t.decisions.c
        swapped = sa.update(t.decisions).where(d.seq > 0, d.decided_at > BEGIN + 2100, d.drawn == "none")
        connection.execute(swapped.values(drawn="bm25", propensity=0.5))
    printed = run("-c", config, code=1)
    assert "fail, mean weight" in printed

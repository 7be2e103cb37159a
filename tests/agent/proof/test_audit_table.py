"""`armwise audit` of what other routers log: right logs pass, and wrong probabilities are found."""

import csv
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from armwise.feedback.exchange import read_records
from tests.agent.proof.test_audit import run

ARMS = ("haiku", "sonnet", "opus")

N = 1200

Rows = list[dict[str, Any]]


def drawn_from(scores: Sequence[float], rng: np.random.Generator) -> tuple[int, float]:
    p = np.exp(scores) / np.exp(scores).sum()
    arm = int(rng.choice(len(p), p=p))
    return arm, float(p[arm])


def softmax_of_the_best(scores: Sequence[float], rng: np.random.Generator) -> tuple[int, float]:
    """LinUCB's choice, with a softmax of its scores that nothing was drawn from."""
    del rng
    p = np.exp(scores) / np.exp(scores).sum()
    return int(p.argmax()), float(p.max())


def certain(scores: Sequence[float], rng: np.random.Generator) -> tuple[int, float]:
    """LinUCB's choice, logged as certain."""
    return softmax_of_the_best(scores, rng)[0], 1.0


def bandit_db(choose: Any, n: int = N, seed: int = 5) -> Rows:
    """Rows as BanditDB exports them; each arm is the best for some features."""
    rng, rows = np.random.default_rng(seed), []
    for at in range(n):
        features = rng.normal(size=2)
        arm, p = choose((float(features[0]), float(features[1]), 0.2), rng)
        rows.append(
            {
                "interaction_id": f"i{at}",
                "arm_id": ARMS[arm],
                "reward": float(rng.random() < 0.5),
                "predicted_at": 1_767_225_600 + at,
                "rewarded_at": 1_767_225_700 + at,
                "propensity": p,
                "feature_0": float(features[0]),
                "feature_1": float(features[1]),
            }
        )
    return rows


def falling_back(n: int = N, seed: int = 6) -> Rows:
    """Rows of a router whose dearest model is away for a part of its draws, so that the cheapest answers."""
    rng, rows = np.random.default_rng(seed), []
    for at in range(n):
        arm, p = drawn_from((0.0, 0.3, 0.6), rng)
        served = 0 if arm == 2 and rng.random() < 0.4 else arm
        rows.append({"id": at, "arm": ARMS[arm], "served_arm": ARMS[served], "propensity": p, "reward": 1})
    return rows


def acting(n: int = N, seed: int = 7, *, power: float = 1.0) -> Rows:
    """Rows of a policy that acts or keeps still; with a power other than 1, not as it logs."""
    rng, rows = np.random.default_rng(seed), []
    for at in range(n):
        p = float(rng.uniform(0.1, 0.9))
        act = int(rng.random() < p**power)
        rows.append({"user_id": f"u{at}", "action": act, "act_prob": p, "keep_prob": 1.0 - p, "reward": act})
    return rows


def as_parquet(path: Path, rows: Rows) -> Path:
    parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


def as_csv(path: Path, rows: Rows) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    return path


def as_lines(path: Path, rows: Rows) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def checks_of(path: Path, *words: object, code: int) -> Mapping[str, str]:
    output = path.with_name("audit.json")
    run(path, *words, "-o", output, code=code)
    checks = json.loads(output.read_text(encoding="utf-8"))["checks"]
    return {check["name"]: check["status"] for check in checks}


@pytest.mark.slow
def test_a_right_log_of_another_router_passes_whatever_the_file(tmp_path: Path) -> None:
    rows = bandit_db(drawn_from)
    for path in (
        as_parquet(tmp_path / "campaign.parquet", rows),
        as_csv(tmp_path / "campaign.csv", rows),
        as_lines(tmp_path / "campaign.jsonl", rows),
    ):
        printed = run(path)
        assert f"No fault was found in {N:,} draws" in printed
        assert (
            "arm from arm_id, propensity from propensity, reward from reward, time from predicted_at"
            in printed
        )
        assert "feature feature_0 from feature_0" in printed
        assert "Every row has a reward." in printed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_right_logs_pass_with_other_seeds(tmp_path: Path, seed: int) -> None:
    run(as_parquet(tmp_path / "campaign.parquet", bandit_db(drawn_from, seed=seed)))
    run(as_lines(tmp_path / "acts.jsonl", acting(seed=seed)))


def test_the_choice_of_linucb_logged_as_certain_is_found(tmp_path: Path) -> None:
    checks = checks_of(as_parquet(tmp_path / "campaign.parquet", bandit_db(certain)), code=1)
    assert checks["deterministic draws"] == "fail"


def test_the_choice_of_linucb_logged_with_a_softmax_of_its_scores_is_found(tmp_path: Path) -> None:
    checks = checks_of(as_parquet(tmp_path / "campaign.parquet", bandit_db(softmax_of_the_best)), code=1)
    assert checks["draws and features"] == "fail"
    assert checks["arms that could not be drawn"] == "warn"


def test_the_drawn_arms_propensity_is_found_beside_the_served_arm_alone(
    tmp_path: Path,
) -> None:
    rows = [{**row, "arm": row["served_arm"]} for row in falling_back()]
    for row in rows:
        del row["served_arm"]
    checks = checks_of(as_csv(tmp_path / "log.csv", rows), code=1)
    assert checks["mean weight of each arm"] == "fail"


@pytest.mark.slow
def test_rows_that_another_arm_answered_are_counted_where_both_are_on_record(tmp_path: Path) -> None:
    rows = falling_back()
    n = sum(row["arm"] != row["served_arm"] for row in rows)
    log = as_csv(tmp_path / "log.csv", rows)
    printed = run(log, code=1)
    assert f"{n:,} of {N:,} differ" in printed
    assert "arm is 'opus', served_arm 'haiku'" in printed
    # whoever asks for the drawn arm has right propensities, of arms with their stand-ins
    assert checks_of(log, "--arm", "arm", code=0)["drawn arm served"] == "warn"
    assert checks_of(log, "--arm", "served_arm", code=1)["drawn arm served"] == "fail"
    same = as_csv(tmp_path / "same.csv", [{**row, "served_arm": row["arm"]} for row in rows])
    assert checks_of(same, code=0)["drawn arm served"] == "pass"


@pytest.mark.slow
def test_the_probabilities_to_act_and_to_keep_are_read_as_a_distribution(tmp_path: Path) -> None:
    rows = acting()
    for kept in (("act_prob", "keep_prob"), ("act_prob",), ("keep_prob",)):
        some = [{k: v for k, v in row.items() if k in (*kept, "action", "user_id")} for row in rows]
        printed = run(as_lines(tmp_path / "acts.jsonl", some))
        assert "whole distributions" in printed
        assert "Read: arm from action, " in printed
        assert "distribution from act_prob and keep_prob" in printed
    checks_of(as_lines(tmp_path / "acts.jsonl", acting(power=0.5)), code=1)
    # the propensity of the drawn arm instead, where an option says so
    taken = [{**row, "act_prob": row["act_prob"] if row["action"] else row["keep_prob"]} for row in rows]
    log = as_lines(
        tmp_path / "taken.jsonl", [{k: v for k, v in row.items() if k != "keep_prob"} for row in taken]
    )
    assert "of the drawn arm only" in run(log, "--propensity", "act_prob")
    run(log, code=1)


def test_act_prob_beside_other_arms_is_the_propensity(tmp_path: Path) -> None:
    rows = [{"action": row["arm_id"], "act_prob": row["propensity"]} for row in bandit_db(drawn_from)]
    assert "propensity from act_prob" in run(as_lines(tmp_path / "log.jsonl", rows))


def test_columns_are_named_by_options(tmp_path: Path) -> None:
    rows = [
        {"who": row["arm_id"], "chance_of_it": row["propensity"], "stars": 5.0 * row["reward"]}
        for row in bandit_db(drawn_from)
    ]
    log = as_csv(tmp_path / "log.csv", rows)
    assert "no column for the arm: name it with --arm" in run(log, code=2)
    words = ("--arm", "who", "--propensity", "chance_of_it", "--reward", "stars")
    assert "Read: arm from who, propensity from chance_of_it, reward from stars." in run(log, *words)
    assert "no column 'whom' for the arm; did you mean 'who'?" in run(log, "--arm", "whom", code=2)
    assert "name its file" in run("--arm", "who", code=2)


def test_probabilities_that_cannot_be_and_ids_that_repeat_fail_and_are_shown(tmp_path: Path) -> None:
    rows = bandit_db(drawn_from)
    for at, p in ((3, 1.3), (4, 0.0), (5, -0.1)):
        rows[at]["propensity"] = p
    log = as_parquet(tmp_path / "log.parquet", rows)
    printed = run(log, code=1)
    assert f"3 of {N:,} are not" in printed
    assert "row 4: propensity is 1.3" in printed
    everywhere = as_parquet(tmp_path / "all.parquet", [{**row, "propensity": 2.0} for row in rows])
    assert checks_of(everywhere, code=1) == {"propensities possible": "fail"}
    again = as_csv(tmp_path / "again.csv", bandit_db(drawn_from) + bandit_db(drawn_from)[:7])
    assert f"7 of {N + 7:,}" in run(again, code=1)


def test_a_log_without_propensities_says_what_is_missing(tmp_path: Path) -> None:
    rows = [{"route": row["arm_id"], "score": row["reward"]} for row in bandit_db(drawn_from, 300)]
    assert "It has no propensities." in run(as_csv(tmp_path / "log.csv", rows), code=1)


def test_a_cut_or_odd_file_exits_with_2_and_a_message(tmp_path: Path) -> None:
    whole = as_parquet(tmp_path / "whole.parquet", bandit_db(drawn_from, 300)).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[:-100])
    packed = gzip.compress(as_lines(tmp_path / "a.jsonl", bandit_db(drawn_from, 300)).read_bytes())
    (tmp_path / "cut.jsonl.gz").write_bytes(packed[:-200])
    (tmp_path / "empty.csv").write_bytes(b"")
    (tmp_path / "heads.csv").write_bytes(b"arm,propensity\n")
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "list.json").write_bytes(b"[1, 2, 3]")
    (tmp_path / "folder").mkdir()
    for name, message in (
        ("cut.parquet", "cut.parquet cannot be read"),
        ("cut.jsonl.gz", "cut.jsonl.gz cannot be read"),
        ("empty.csv", "empty.csv"),
        ("heads.csv", "it has no rows in the format table"),
        ("photo.png", "expected a file .csv"),
        ("list.json", "a JSON object was expected"),
        ("folder", "expected a folder with files"),
    ):
        assert message in run(tmp_path / name, code=2), name


def test_questions_are_not_unpacked_and_a_small_file_of_more_than_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armwise.feedback.exchange.records.LARGEST_BATCH", 1 << 20)
    rows, long = bandit_db(drawn_from, 300), "x" * 50_000
    asked = as_parquet(tmp_path / "asked.parquet", [{**row, "question": long} for row in rows])
    assert asked.stat().st_size < 100_000
    assert "300 decisions" in run(asked)
    packed = as_parquet(tmp_path / "packed.parquet", [{**row, "answer": long} for row in rows])
    assert "the 300 rows after row 0 have more than 1,048,576 bytes, unpacked" in run(packed, code=2)
    table = pa.Table.from_pylist([{**row, "answer": long} for row in rows])
    encoded = table.set_column(table.num_columns - 1, "answer", table["answer"].dictionary_encode())
    parquet.write_table(encoded, tmp_path / "encoded.parquet")
    (first, *_, final) = read_records(tmp_path / "encoded.parquet")
    assert first.values["answer"] == long
    assert first.values["answer"] is final.values["answer"], "it is in memory once"
    named = as_parquet(tmp_path / "named.parquet", [{**row, "context": row["arm_id"]} for row in rows])
    assert "Read: arm from context" in run(named, "--arm", "context")
    within = as_parquet(tmp_path / "in.parquet", [{**row, "context": {"to": row["arm_id"]}} for row in rows])
    assert "Read: arm from context.to" in run(within, "--arm", "context.to")


def test_other_json_lines_that_begin_with_a_format_are_a_table(tmp_path: Path) -> None:
    rows = [{"format": "chat", **row} for row in bandit_db(drawn_from, 300)]
    assert "Read: arm from arm_id" in run(as_lines(tmp_path / "log.jsonl", rows))


def test_a_table_of_one_arm_that_was_not_certain_names_an_option_that_exists(tmp_path: Path) -> None:
    printed = run(as_csv(tmp_path / "log.csv", [{"arm": "a", "propensity": 0.4}] * 3), code=2)
    assert "name all of them with `armwise import --arms a,b`" in " ".join(printed.split())


def test_a_line_that_was_cut_is_left_out_and_counted(tmp_path: Path) -> None:
    log = as_lines(tmp_path / "log.jsonl", bandit_db(drawn_from))
    log.write_bytes(log.read_bytes()[:-30])
    printed = run(log)
    assert f"{N - 1:,} decisions" in printed
    assert "Left out: 1 row cannot be read." in printed


def test_between_two_arms_the_best_one_always_taken_is_found_without_features(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)

    def rows(choose: Any) -> Rows:
        made = [choose((float(rng.normal()), 0.0), rng) for _ in range(600)]
        return [{"route": ("weak", "strong")[arm], "propensity": p} for arm, p in made]

    checks = checks_of(as_csv(tmp_path / "best.csv", rows(softmax_of_the_best)), code=1)
    assert checks["calibration"] == "fail"
    checks_of(as_csv(tmp_path / "drawn.csv", rows(drawn_from)), code=0)


def test_among_more_arms_it_is_a_warning(tmp_path: Path) -> None:
    def rows(choose: Any) -> Rows:
        return [{"arm": row["arm_id"], "propensity": row["propensity"]} for row in bandit_db(choose)]

    checks = checks_of(as_csv(tmp_path / "best.csv", rows(softmax_of_the_best)), code=0)
    assert checks["arms that could not be drawn"] == "warn"
    checks = checks_of(as_csv(tmp_path / "drawn.csv", rows(drawn_from)), code=0)
    assert checks["arms that could not be drawn"] == "skipped"

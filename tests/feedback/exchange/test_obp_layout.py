"""Logs as the Open Bandit Pipeline reads them: tables and arrays."""

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from armwise.feedback.events import Example
from armwise.feedback.exchange.imported import Faults
from armwise.feedback.exchange.obp import read_obp
from armwise.feedback.jsonl import ExchangeError
from armwise.feedback.reward import Metric, RewardRule
from tests.feedback.examples import log_of_examples

FOREIGN = RewardRule(metrics={"click": Metric()}, cost_weight=0.0)

HEADER = (
    ",timestamp,item_id,position,click,propensity_score,user_feature_0,user_feature_1,"
    "user-item_affinity_0,user-item_affinity_1"
)
ROWS = [
    "0,2019-11-24 00:03:13.442536+00:00,1,3,0,0.25,cef3390e,2,0.0,1.5",
    "1,2019-11-24 00:03:36.705207+00:00,0,1,1,0.75,81ce123c,0,0.0,0.0",
]
ITEMS = ",item_id,item_feature_0,item_feature_1\n0,0,-0.677,ceca2003\n1,1,-0.72,270de572\n"


def read(path: Path) -> tuple[list[Example], Counter[str]]:
    faults = Faults()
    return list(read_obp(path, "click", (-1.0, 1.0), faults)), faults.counts


def table(folder: Path, *rows: str, header: str = HEADER, name: str = "men.csv") -> Path:
    """Write a campaign as the Open Bandit Dataset has it."""
    here = folder / "random" / "men"
    here.mkdir(parents=True, exist_ok=True)
    (here / "item_context.csv").write_text(ITEMS)
    content = "".join(f"{row}\n" for row in (header, *rows)).encode()
    (here / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return here


def refusal(path: Path) -> str:
    with pytest.raises(ExchangeError) as refused:
        list(read_obp(path, "click", (-1.0, 1.0), Faults(strict=True)))
    return str(refused.value).replace(str(path), "<path>")


# -- tables ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "at"), [("1970-01-01 09:30:00+09:00", 1800.0), ("1970-01-01 00:30:00", 1800.0)]
)
def test_a_time_has_its_own_zone_or_is_in_utc(tmp_path: Path, written: str, at: float) -> None:
    (found,), _ = read(table(tmp_path, ROWS[0].replace("2019-11-24 00:03:13.442536+00:00", written)))
    assert found.decision.decided_at == at


def test_one_distribution_is_that_of_every_position(tmp_path: Path) -> None:
    found, left_out = read(arrays(tmp_path, position=np.array([0, 1, 2])))
    assert [one.decision.probabilities for one in found] == [(0.25, 0.75)] * 3
    assert left_out == {}


def test_of_a_table_and_a_compressed_one_the_table_is_read(tmp_path: Path) -> None:
    table(tmp_path, *ROWS[:1], name="men.csv.gz")
    examples, _ = read(table(tmp_path, *ROWS))
    assert len(examples) == 2


@pytest.mark.parametrize("name", ["men.csv", "men.csv.gz"])
def test_the_dataset_is_read_as_it_lies(tmp_path: Path, name: str) -> None:
    (first, second), left_out = read(table(tmp_path, *ROWS, name=name))
    decision = first.decision
    assert (decision.id, decision.drawn, decision.arms) == ("random/men/0", "1", ("1", "0"))
    assert (decision.probabilities, decision.propensity) == ((0.25,), 0.25)
    assert decision.decided_at == 1574553793.442536
    assert decision.context.question == "random/men/0"
    assert decision.context.features == {
        "user_feature_0=cef3390e": 1.0,
        "user_feature_1": 2.0,
        "position": 3.0,
    }
    assert decision.context.arms == {"1": {"affinity": 1.5}}
    assert second.decision.context.features == {"user_feature_0=81ce123c": 1.0, "position": 1.0}
    assert [one.metrics["click"] for one in (first, second)] == [0.0, 1.0]
    assert left_out == {}


def test_a_log_of_propensities_alone_can_be_evaluated(tmp_path: Path) -> None:
    log = log_of_examples(read(table(tmp_path, *ROWS))[0], FOREIGN)
    assert not log.is_whole
    assert (log.propensity.tolist(), log.reward.tolist()) == ([0.25, 0.75], [0.0, 1.0])
    assert log.n_groups == 2


@pytest.mark.parametrize(
    ("old", "new", "reason", "words"),
    [
        (",0.25,", ",0.0,", "propensity not in (0, 1]", "propensity_score is 0"),
        (",0.25,", ",1.5,", "propensity not in (0, 1]", "propensity_score is 1.5"),
        (",0.25,", ",nan,", "propensity not in (0, 1]", "propensity_score is nan"),
        (",3,0,", ",3,7,", "reward not in [-1, 1]", "click is 7"),
        (",3,0,", ",3,nan,", "reward is not a number", "click is nan"),
        (",0.25,", ",high,", "propensity_score is not a number", "propensity_score is 'high'"),
        (",1,3,0,", ",9,3,0,", "no arm", "item_id '9'"),
        ("2019-11-24 00:03:13.442536", "0000-00-00 00:00:00", "no time", "timestamp is '0000"),
        (",2,0.0,1.5", "", "row cannot be read", "7 cells, and the first line has 10"),
        ("0,2019", '"0"x,2019', "row cannot be read", ""),
        ("0,2019", "1,2019", "duplicate", "random/men/1"),
    ],
)
def test_a_row_that_cannot_be_evaluated_is_counted_and_named(
    tmp_path: Path, old: str, new: str, reason: str, words: str
) -> None:
    path, faults = table(tmp_path, ROWS[0].replace(old, new), ROWS[1]), Faults()
    (found,) = read_obp(path, "click", (-1.0, 1.0), faults)
    assert (found.seq, found.decision.id, faults.counts) == (1, "random/men/1", {reason: 1})
    ((named,),) = faults.shown.values()
    assert named.startswith(f"{path / 'men.csv'}, line ")
    assert words in named


def test_tables_that_are_not_there_are_named(tmp_path: Path) -> None:
    assert "expected one folder with item_context.csv, or an .npz file; found: none" in refusal(tmp_path)
    here = table(tmp_path, *ROWS, header=HEADER.replace("click", "tap"))
    assert refusal(here) == "<path>/men.csv: there is no column click"
    (here / "men.csv").unlink()
    assert refusal(here) == "<path>: expected a file men.csv or men.csv.gz"
    table(tmp_path, *ROWS, name="men.csv.gz")
    (here / "men.csv.gz").write_bytes((here / "men.csv.gz").read_bytes()[:-12])
    assert "men.csv.gz cannot be read" in refusal(here)
    other = here.parent / "women"
    other.mkdir()
    (other / "item_context.csv").write_text(ITEMS)
    assert refusal(tmp_path).endswith("found: <path>/random/men, <path>/random/women")


# -- arrays ----------------------------------------------------------------------------

ARRAY: dict[str, Any] = {
    "n_rounds": 3,
    "n_actions": 2,
    "action": np.array([0, 1, 1]),
    "position": None,
    "reward": np.array([1.0, 0.0, 0.5]),
    "pscore": np.array([0.25, 0.75, 0.75]),
    "context": np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
    "pi_b": np.array([[0.25, 0.75]] * 3)[:, :, np.newaxis],
}


def arrays(folder: Path, **changes: Any) -> Path:
    told = {
        name: value
        for name, value in {**ARRAY, **changes}.items()
        if name not in changes or value is not None
    }
    np.savez(folder / "feedback.npz", **told)
    return folder / "feedback.npz"


def test_the_dictionary_of_obp_is_read(tmp_path: Path) -> None:
    found, left_out = read(arrays(tmp_path))
    assert [one.decision.drawn for one in found] == ["0", "1", "1"]
    assert [one.decision.probabilities for one in found] == [(0.25, 0.75)] * 3
    assert [one.decision.context.embedding for one in found] == [(1.0, 2.0), (3.0, 4.0), (5.0, 6.0)]
    assert (found[2].decision.id, left_out) == ("feedback/2", {})


@pytest.mark.parametrize(
    "pi_b",
    [
        np.array([[0.25, 0.75]] * 3),
        np.array([[0.25, 0.75]] * 3, dtype=np.float32)[:, :, np.newaxis],
        np.array([[0.25, 0.7499], [0.2501, 0.75], [0.25, 0.75]]),
    ],
)
def test_distributions_without_places_and_with_few_digits_are_read(tmp_path: Path, pi_b: Any) -> None:
    examples, left_out = read(arrays(tmp_path, pi_b=pi_b))
    assert left_out == {}
    for each in examples:
        assert each.decision.probabilities == pytest.approx((0.25, 0.75), abs=1e-4)
        assert sum(each.decision.probabilities) == pytest.approx(1.0, abs=1e-9)


def test_a_dictionary_in_a_pickle_is_refused_with_what_to_write(tmp_path: Path) -> None:
    np.save(tmp_path / "feedback.npy", ARRAY)
    assert "never read; instead, write numpy.savez('feedback.npz', **bandit_feedback)" in refusal(
        tmp_path / "feedback.npy"
    )


def test_rows_without_an_index_are_known_by_their_lines(tmp_path: Path) -> None:
    without_index = [row.partition(",")[2] for row in (HEADER, *ROWS)]
    examples, left_out = read(table(tmp_path, *without_index[1:], header=without_index[0]))
    assert [example.decision.id for example in examples] == ["random/men/2", "random/men/3"]
    assert left_out == {}


def test_without_distributions_the_propensities_are_read(tmp_path: Path) -> None:
    found, _ = read(arrays(tmp_path, pi_b=None, n_actions=None, context=None))
    assert [(one.decision.arms, one.decision.probabilities) for one in found] == [
        (("0", "1"), (0.25,)),
        (("1", "0"), (0.75,)),
        (("1", "0"), (0.75,)),
    ]


def test_each_position_has_a_distribution_of_its_own(tmp_path: Path) -> None:
    pi_b = np.stack([np.array([[0.25, 0.75]] * 3), np.array([[0.9, 0.1]] * 3)], axis=2)
    position, pscore = np.array([0, 1, 0]), np.array([0.25, 0.1, 0.75])
    found, left_out = read(arrays(tmp_path, pi_b=pi_b, position=position, pscore=pscore))
    assert [one.decision.probabilities for one in found] == [(0.25, 0.75), (0.9, 0.1), (0.25, 0.75)]
    assert left_out == {}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pscore": np.array([0.0, 0.75, 0.75])}, "propensity not in (0, 1]"),
        ({"pscore": np.array([0.3, 0.75, 0.75])}, "propensity differs from the distribution"),
        ({"pi_b": np.array([[0.25, 0.5], [0.25, 0.75], [0.25, 0.75]])[:, :, np.newaxis]}, "no distribution"),
        ({"pi_b": np.array([[-0.5, 1.5], [0.25, 0.75], [0.25, 0.75]])[:, :, np.newaxis]}, "no distribution"),
        ({"reward": np.array([-2.0, 0.0, 0.5])}, "reward not in [-1, 1]"),
        ({"reward": np.array([np.nan, 0.0, 0.5])}, "reward is not a number"),
        ({"action": np.array([-1, 1, 1])}, "no arm"),
    ],
)
def test_a_row_of_arrays_that_cannot_be_evaluated_is_counted(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    found, left_out = read(arrays(tmp_path, **changes))
    assert ([one.seq for one in found], left_out) == ([1, 2], {reason: 1})
    assert found[0].decision.id == "feedback/1"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pscore": None}, "pscore is missing; found: action, reward, n_actions, context, pi_b"),
        ({"reward": np.zeros(2)}, "reward has the shape (2,); expected (3)"),
        ({"pi_b": np.zeros((3, 3, 1))}, "pi_b has the shape (3, 3, 1); expected (3, 2, k)"),
        ({"action": np.array([0, 1, 2])}, "row 2: action is 2; there are 2 arms"),
        ({"pi_b": np.zeros((3, 3))}, "pi_b has the shape (3, 3, 1)"),
        ({"action": np.array([0.5, 1, 1])}, "action must be whole numbers"),
        ({"context": np.full((3, 1), np.inf)}, "row 0: decision.context.embedding must be finite"),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    assert words in refusal(arrays(tmp_path, **changes))

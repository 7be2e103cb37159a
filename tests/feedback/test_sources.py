"""A log of a database and its export are one and the same, features included."""

import re
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from armwise.feedback.decisions import Selection, concatenate, tabulate
from armwise.feedback.events import Example
from armwise.feedback.jsonl import ExchangeError, Header, write_export
from armwise.feedback.log import Store
from armwise.feedback.reward import Metric, Prices, RewardRule
from armwise.feedback.sources import ExportSource, LogSource, TrainingLog
from tests.feedback.examples import example, log_of, some_examples, write
from tests.feedback.test_read_learned import assert_same

RULE = RewardRule(metrics={"right": Metric(), "thumb": Metric()}, cost_weight=1e-4, failed=-1.0)


def test_a_log_and_its_export_are_the_same(store: Store, tmp_path: Path) -> None:
    examples = some_examples(np.random.default_rng(1), 60)
    write(store, RULE.join, examples)
    source = LogSource(store, RULE)
    with (tmp_path / "log.jsonl").open("wb") as file:
        write_export(examples_of(source), file, Header(written_at=0.0, reward=RULE))
    export = ExportSource(tmp_path / "log.jsonl")
    assert examples_of(export) == examples_of(source) == examples
    dearer = RULE.model_copy(update={"cost": Prices(seconds=7.0)})
    for rule, selection in ((RULE, Selection()), (dearer, Selection(versions=(1, 2)))):
        assert_same(log_of(source, rule, selection), log_of(export, rule, selection))


def examples_of(source: TrainingLog) -> list[Example]:
    return [example for _, block in source.blocks(RULE, contexts=True) for example in block]


def test_an_export_says_where_the_log_still_waited(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with path.open("wb") as file:
        write_export([example(1)], file, Header(written_at=0.0, reward=RULE))
    assert ExportSource(path).settled.before == inf
    with path.open("ab") as file:
        write_export([example(1)], file, Header(written_at=0.0, reward=RULE, settled=7.0))
    assert ExportSource(path).settled.before == 7.0


def test_an_export_whose_metrics_are_not_declared_is_refused(tmp_path: Path) -> None:
    path, rule = tmp_path / "log.jsonl", RewardRule(metrics={"click": Metric(range=(0.0, 10.0))})
    with path.open("wb") as file:
        write_export([example(1, metrics={"click": 5.0})], file, Header(written_at=0.0, reward=rule))
    source = ExportSource(path)
    with pytest.raises(ExchangeError, match=r'metrics click, .*"range": \[0.0, 10.0\]'):
        log_of(source, RULE)
    turned = RewardRule(metrics={"click": Metric(range=(0.0, 10.0), optimize="min"), "right": Metric()})
    assert len(log_of(source, turned)) == 1
    (remark,) = source.remarks(turned)
    assert "click" in remark
    assert "optimize min for max" in remark
    assert source.remarks(rule) == []


def test_every_metric_that_a_file_declares_otherwise_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    theirs = RewardRule(metrics={"click": Metric(), "right": Metric(weight=2.0), "thumb": Metric()})
    with path.open("wb") as file:
        write_export([example(1)], file, Header(written_at=0.0, reward=theirs))
    remarks = ExportSource(path).remarks(RewardRule(metrics={"right": Metric()}))
    for remark, words in zip(remarks, ("click .* not declared", "weight 1.0 for 2.0", "thumb"), strict=True):
        assert re.search(words, remark)


def test_a_log_ends_where_it_ended_when_it_was_first_read(store: Store) -> None:
    write(store, RULE.join, [example(seq) for seq in range(1, 4)])
    source = LogSource(store, RULE)
    assert len(log_of(source, RULE)) == 3
    write(store, RULE.join, [example(seq) for seq in range(1, 9)])
    assert len(log_of(source, RULE)) == len(examples_of(source)) == 3


def test_a_rule_that_joins_otherwise_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match=r"joins .* only prices, weights and ranges"):
        log_of(LogSource(store, RULE), RewardRule(metrics={"right": Metric()}))


def test_the_rule_of_a_file_applies_where_none_of_its_metrics_is_configured(tmp_path: Path) -> None:
    theirs = RewardRule(metrics={"click": Metric(range=(0.0, 10.0)), "stars": Metric()})
    path = tmp_path / "log.jsonl"
    with path.open("wb") as file:
        write_export([example(1)], file, Header(written_at=0.0, reward=theirs))
    others = RewardRule(metrics={"right": Metric()}, default=0.0)
    one_of_them = RewardRule(metrics={"stars": Metric()})
    assert ExportSource(path).applicable_rule(others) == theirs
    assert ExportSource(path).applicable_rule(one_of_them) is one_of_them
    with path.open("ab") as file:
        write_export([example(2)], file, Header(written_at=0.0, reward=RewardRule(metrics={"up": Metric()})))
    assert ExportSource(path).applicable_rule(others) is others, "a file with two rules has none of its own"


def test_of_a_long_export_pages_that_are_evenly_spread_are_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.jsonl"
    with path.open("wb") as file:
        write_export([example(seq) for seq in range(1, 1001)], file, Header(written_at=0.0, reward=RULE))

    def sampled() -> list[int]:
        parts = ExportSource(path).sample(RULE, Selection(), lambda *_: None)
        return [seq for part in parts for seq in part.seq.tolist()]

    assert sampled() == list(range(1, 1001)), "of a short one, all are"
    monkeypatch.setattr("armwise.feedback.log_columns.CHECKED", 100)
    monkeypatch.setattr("armwise.feedback.log_columns.STRETCH", 10)
    found = sampled()
    assert len(found) == 100
    assert np.diff(found).max() <= 110
    assert found[-1] > 890


@pytest.mark.parametrize(
    "selection",
    [
        Selection(),
        Selection(since=2.7, until=6.3),
        Selection(versions=(1, 2)),
        Selection(features={"w=why": 1.0}),
        Selection(prefix="d1"),
        Selection(since=4.5, until=4.7),
        Selection(excluded_id_part="7"),
    ],
    ids=str,
)
@pytest.mark.parametrize("checked", [100, 10_000])
def test_the_same_draws_of_a_log_and_its_export_are_sampled(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    selection: Selection,
    checked: int,
) -> None:
    """As many as are asked for, or all of the selection."""
    monkeypatch.setattr("armwise.feedback.log_columns.CHECKED", checked)
    monkeypatch.setattr("armwise.feedback.log_columns.STRETCH", 5)
    examples = [  # in the order of time, as those of a log
        replace(one, decision=replace(one.decision, decided_at=9.0 * seq / 1000))
        for seq, one in enumerate(some_examples(np.random.default_rng(2), 1000))
    ]
    write(store, RULE.join, examples)
    with (tmp_path / "log.jsonl").open("wb") as file:
        write_export(examples, file, Header(written_at=0.0, reward=RULE))

    def sampled(source: TrainingLog) -> list[int]:
        table = concatenate([*source.sample(RULE, selection, lambda *_: None)])
        return table.where(table.drawn).id.tolist()

    found = sampled(LogSource(store, RULE))
    assert found
    assert sampled(ExportSource(tmp_path / "log.jsonl")) == found
    whole = concatenate([*tabulate(examples, RULE, selection)])
    every = whole.where(whole.drawn & whole.match(selection)).id.tolist()
    assert set(found) <= set(every)
    assert len(found) == len(every) if len(every) <= checked else 95 <= len(found) <= 100


@pytest.mark.parametrize(
    "selection",
    [
        Selection(since=3.0),
        Selection(until=7.0),
        Selection(versions=(1, 2)),
        Selection(features={"w=why": 1.0}),
        Selection(excluded_id_part="7"),
    ],
    ids=str,
)
def test_a_selection_has_the_decisions_whose_rows_match(selection: Selection) -> None:
    examples = some_examples(np.random.default_rng(2), 300)
    (whole,) = tabulate(examples, RULE, selection)
    found = [selection.has(one.decision) for one in examples]
    assert found == whole.match(selection).tolist()
    assert 0 < sum(found) < 300

"""A log of a database and its export are one and the same, features included."""

import re
from math import inf
from pathlib import Path

import numpy as np
import pytest

from armwise.feedback.dataset.features import make_describer
from armwise.feedback.dataset.log import Log
from armwise.feedback.decisions import Selection
from armwise.feedback.events import Context
from armwise.feedback.jsonl import ExchangeError, Header, write_export
from armwise.feedback.log import Store
from armwise.feedback.reward import Metric, Prices, RewardRule
from armwise.feedback.sources import ExportSource, LogSource
from tests.feedback.dataset.test_read_log import assert_same
from tests.feedback.examples import example, some_examples, write

RULE = RewardRule(metrics={"right": Metric(), "thumb": Metric()}, cost_weight=1e-4, failed=-1.0)


def test_a_log_and_its_export_are_the_same(store: Store, tmp_path: Path) -> None:
    examples = some_examples(np.random.default_rng(1), 60)
    write(store, RULE.join, examples)
    source = LogSource(store, RULE)
    with (tmp_path / "log.jsonl").open("wb") as file:
        write_export(source.examples(), file, Header(written_at=0.0, reward=RULE))
    export = ExportSource(tmp_path / "log.jsonl")
    assert list(export.examples()) == list(source.examples()) == examples
    dearer = RULE.model_copy(update={"cost": Prices(seconds=7.0)})
    for rule, selection in ((RULE, Selection()), (dearer, Selection(versions=(1, 2)))):
        live, exported = source.log(rule, selection), export.log(rule, selection)
        assert_same(live, exported)
        assert (live.X != exported.X).nnz == 0


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
        source.log(RULE)
    turned = RewardRule(metrics={"click": Metric(range=(0.0, 10.0), optimize="min"), "right": Metric()})
    assert len(source.log(turned)) == 1
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
    assert len(source.log(RULE)) == 3
    write(store, RULE.join, [example(seq) for seq in range(1, 9)])
    assert len(source.log(RULE)) == len(list(source.examples())) == source.log(RULE).X.shape[0] == 3


def test_a_rule_that_joins_otherwise_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match=r"joins .* only prices, weights and ranges"):
        LogSource(store, RULE).log(RewardRule(metrics={"right": Metric()}))


def test_features_are_those_of_the_rows_and_take_embeddings_that_all_rows_have() -> None:
    plain = [example(seq, context=Context(word)) for seq, word in enumerate(("red", "blue", "red"), 1)]
    long = [example(seq, context=Context("red", {}, (0.1 * seq, 0.2))) for seq in (1, 2)]
    log = Log.from_examples(plain, RULE, describe=make_describer(lambda: iter(plain)))
    some = log.where(np.array([False, True, True])).X
    assert (log.X[0] != log.X[1]).nnz
    assert (some[0] != log.X[1]).nnz == (some[1] != log.X[0]).nnz == 0
    seen = make_describer(lambda: iter(long))(np.array([1, 2]))
    np.testing.assert_allclose(seen[:, -2:].toarray(), [[0.1, 0.2], [0.2, 0.2]])


def test_embeddings_that_only_some_chunks_have_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armwise.feedback.dataset.features._CHUNK", 2)
    contexts = [Context("red", {}, (0.1,))] * 2 + [Context("blue")] * 2 + [Context("red", {}, (0.2,))]
    mixed = [example(seq, context=one) for seq, one in enumerate(contexts, 1)]
    seen = make_describer(lambda: iter(mixed))(np.array([1, 2, 3, 5]))
    same = make_describer(lambda: iter([example(1, context=Context("red"))]))(np.array([1]))
    assert seen.shape == (4, 4096 + 256), "hashed words and named features"
    assert [(seen[row] != same[0]).nnz == 0 for row in range(4)] == [True, True, False, True]


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

"""A row that cannot be read is skipped, counted and named, and every reader goes on past it."""

import math
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from armwise.agent.config import AppConfig, load
from armwise.agent.console import period
from armwise.agent.evaluation import EvaluationRequest, replay
from armwise.agent.learning.learner import Learner
from armwise.agent.learning.recipe import Recipe
from armwise.agent.policies import PolicySpec
from armwise.agent.proof import audit
from armwise.feedback.decisions import EVERYTHING
from armwise.feedback.log import Store, listing
from armwise.feedback.log import tables as t
from armwise.feedback.sources import LogSource
from armwise.feedback.training_log import find_difference, read_examples, take_epoch
from tests.agent.evaluation.logged import BEGIN, RULE, World, add_up, configured, fill, quietly

WORLD = World({"none": 0.3, "bm25": 0.8, "dense": 0.5}, {"none": 0.1, "bm25": 0.2, "dense": 0.1}, rated=0.7)

N, NOW = 40, BEGIN + 7200.0


@pytest.fixture
def config(tmp_path: Path) -> AppConfig:
    (tmp_path / "home").mkdir(mode=0o700)
    return load(configured(tmp_path, WORLD), ["router"])


def damage_row(store: Store, damage: str, name: str) -> None:
    """Write what cannot be read into a row of a decision."""
    column, key, value = (DAMAGES | METRICS)[damage]
    with store.writing() as connection:
        statement = f"UPDATE {column.table.name} SET {column.name} = :value WHERE {key} = :id"
        connection.execute(sa.text(statement), {"value": value, "id": name})


DAMAGES = {
    "no JSON": (t.decisions.c.features, "id", '{"sparse": {'),
    "not a number": (t.decisions.c.probabilities, "id", "[NaN, 0.5, 0.5]"),
    "infinite": (t.executions.c.usd, "decision_id", math.inf),
    "a text": (t.executions.c.tokens_by_model, "decision_id", "tokens"),
}

METRICS = {
    "half of it": (t.examples.c.metrics, "decision_id", '{"right": 1.'),
    "another shape": (t.examples.c.metrics, "decision_id", '["others"]'),
}


@pytest.mark.parametrize(("candidate", "needed"), [("uniform", 5), ("policy:{kind: uniform}", 7)])
def test_rows_that_cannot_be_read_are_counted_by_a_replay_that_needs_them(
    tmp_path: Path, config: AppConfig, candidate: str, needed: int
) -> None:
    """Seven rows are damaged, one of them in two places; features and tokens are read with contexts alone."""
    with closing(Store(f"sqlite:///{tmp_path / 'log.db'}", RULE.join)) as store:
        fill(store, WORLD, N, seed=3, settled=True)
        whole = [example.decision.id for example in read_examples(store, RULE.join)]
        for damage, name in zip(DAMAGES | METRICS, whole, strict=False):
            damage_row(store, damage, name)
        damage_row(store, "not a number", whole[-1])
        damage_row(store, "half of it", whole[-1])
        source = LogSource(store, config.reward)
        request = EvaluationRequest(candidates=(candidate,), estimators=("ips",))
        found = replay(config, request, source, store, quietly)
    assert found["excluded"]["cannot be read"] == needed
    assert found["rows"] == len(whole) - needed


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.slow
def test_every_reader_goes_on_past_a_row_that_cannot_be_read(
    tmp_path: Path, config: AppConfig, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Store(f"sqlite:///{tmp_path / 'log.db'}", RULE.join)) as store:
        fill(store, WORLD, N, seed=3)
        add_up(store)
        whole = [example.decision.id for example in read_examples(store, RULE.join)]
        lost = whole[5]
        damage_row(store, damage, lost)
        assert [example.decision.id for example in read_examples(store, RULE.join)] == [
            name for name in whole if name != lost
        ]
        assert f"decision {lost!r}, which cannot be read (1 so far): " in caplog.text
        learner = Learner(
            store,
            Recipe(PolicySpec(kind="linucb"), RULE),
            list(config.actions),
            take_epoch(store, "test", NOW),
            lambda: NOW,
        )
        assert learner.step() is not None
        # the examples are the same up to the end, and the chain tells that a fact was changed
        assert find_difference(store, RULE)[1].startswith("its facts are not those that were joined")
        source = LogSource(store, config.reward)
        replay(config, EvaluationRequest(candidates=("uniform",)), source, store, quietly)
        audit.audit_log(source, config.reward, EVERYTHING, quietly)
        period.read_period(store, config, 0.0, NOW, quietly)
        listing.decisions(store, RULE, listing.DecisionFilter(), 100)
        store.newest(100, features=True)

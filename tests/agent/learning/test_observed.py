"""Recipes that learn observations: recomputed from the log to the bit, live, rebuilt and evaluated."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agent.config import AppConfig, parse
from agent.evaluation.candidate_factory import Setting, candidate_of
from agent.evaluation.candidate_names import parse_name
from agent.evaluation.candidates import Learned
from agent.learning import Learner, Recipe, publish_candidate
from agent.learning.rebuild import rebuild
from feedback.events import Observation, Source
from feedback.log import Store
from feedback.registry import versions
from feedback.training_log import read_examples, take_epoch
from tests.agent.fakes import CONFIG
from tests.feedback.conftest import decision, execution, value

TURNS = 90


@pytest.fixture
def config(tmp_path: Path) -> AppConfig:
    also = {"shadow": 0.5, "judge": True, "audits": 10, "agreement": 0.1}
    changes = {
        "log_url": f"sqlite:///{tmp_path / 'log.db'}",
        "arms": {"a": {"kind": "none"}, "b": {"kind": "bm25"}},
        "policy": {"kind": "linucb"},
        "learning": {"also": also},
    }
    return parse({**CONFIG, **changes})


@pytest.fixture
def store(config: AppConfig) -> Iterator[Store]:
    with closing(Store(config.database_url, config.reward.join)) as store:
        yield store


def live(config: AppConfig, store: Store) -> Learner:
    """Fill the log with turns that are observed early, late or not at all, learned a few at a time."""
    learner = Learner(store, Recipe.configured(config), list(config.actions), take_epoch(store, "test", 0.0))
    rng = np.random.default_rng(0)
    for n in range(TURNS):
        name, right = f"d{n}", float(rng.integers(2))
        of = f"d{rng.integers(n + 1)}"
        facts = [replace(decision(name), drawn=str(rng.choice(["a", "b"]))), execution(name)]
        other = "a" if facts[0].drawn == "b" else "b"  # type: ignore[union-attr]
        seen = Observation(
            name, Source.SHADOW, other, 0.3, value=float(rng.integers(-1, 2)), observed_at=103.0
        )
        grade = Observation(of, Source.JUDGE, "b", 0.3, value=float(rng.random()), observed_at=103.0)
        store.append([*facts, *([seen] if rng.random() < 0.5 else []), grade])
        if rng.random() < 0.7:
            store.append([value(name, number=right)])
        if n % 7 == 0:
            learner.step()
    while learner.step() is not None or learner.behind:
        pass
    return learner


def test_what_a_learner_published_step_by_step_is_what_a_rebuild_gives(
    config: AppConfig, store: Store
) -> None:
    learner = live(config, store)
    report = rebuild(store, config, lambda *_: None, every=True)
    assert report.sound, report.compared
    assert len(report.compared) > 3
    newest = versions.latest(store, learner.recipe.digest)
    plain = replace(learner.recipe, start=None)
    without = publish_candidate(store, plain, list(config.actions))
    assert newest is not None
    assert (without.recipe, without.digest) != (newest.recipe, newest.digest), "observations are learned"
    assert Recipe.of(newest, config.reward) == learner.recipe


def test_an_evaluation_learns_as_the_service_does(config: AppConfig, store: Store) -> None:
    learner = live(config, store)
    newest = versions.latest(store, learner.recipe.digest)
    assert newest is not None
    setting = Setting(config, config.reward, store, tuple(config.actions))
    for name in ("configured", f"recipe:{newest.version}"):
        candidate = candidate_of(parse_name(name), setting)
        assert isinstance(candidate, Learned)
        for example in read_examples(store, config.reward.join):
            reward = config.reward.reward_of(example)
            assert reward is not None
            candidate.learn(example, reward)
        assert versions.digest_of(candidate.policy.save()) == newest.digest


def test_a_recipe_without_observations_has_the_digest_that_it_always_had(config: AppConfig) -> None:
    silent = config.model_copy(update={"learning": type(config.learning)()})
    assert Recipe.configured(silent) == Recipe(config.policy, config.reward)
    assert Recipe.configured(config).digest != Recipe.configured(silent).digest

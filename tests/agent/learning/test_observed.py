"""Recipes that learn observations: recomputed from the log to the bit, live, rebuilt and evaluated."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from armwise.agent.config import AppConfig, parse
from armwise.agent.evaluation import candidates, evaluate
from armwise.agent.evaluation.candidates import CandidateService, parse_name
from armwise.agent.learning import Learner, Recipe, publish_candidate
from armwise.agent.learning.rebuild import rebuild, verify_states
from armwise.agent.learning.router_scores import keep_router
from armwise.agent.policies import Policy
from armwise.agent.routers import out_of_fold, saved
from armwise.feedback.events import LABELS, ROUTER, Observation, ObservationSource
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.registry import Version, versions
from armwise.feedback.sources import LogSource
from armwise.feedback.training_log import label_turns, observed, read_learned_examples, take_epoch
from armwise.feedback.training_log.examples import name_episode
from tests.agent.fakes import CONFIG
from tests.agent.trained_routers import kept
from tests.feedback.conftest import decision, execution, value

TURNS = 90


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppConfig:
    monkeypatch.setattr(observed, "AUDITS", 10)
    monkeypatch.setattr(observed, "AGREEMENT", 0.1)
    also = {"shadow": 0.5, "judge": True}
    changes = {
        "log_url": f"sqlite:///{tmp_path / 'log.db'}",
        "arms": {"a": {"kind": "none"}, "b": {"kind": "bm25"}, "c": {"kind": "bm25", "params": {"k1": 2.0}}},
        "policy": {"kind": "linucb"},
        "observations": {"also": also},
    }
    return parse({**CONFIG, **changes})


@pytest.fixture
def store(config: AppConfig) -> Iterator[Store]:
    with closing(Store(config.database_url, config.reward.join)) as store:
        yield store


def live(config: AppConfig, store: Store, recipe: Recipe | None = None) -> Version:
    """Fill the log with turns that are observed early, late or not at all, learned a few at a time.

    Each arm has a router score, as from a version with a router. Feedback comes at once, late or never. In
    between are labels of a run, which this recipe does not learn.
    """
    recipe = recipe or Recipe.from_config(config)
    epoch = take_epoch(store, "test", 0.0)
    learner = Learner(store, recipe, list(config.actions), epoch, clock=lambda: 110.0)
    rng = np.random.default_rng(0)
    answered: set[int] = set()
    right = rng.integers(2, size=TURNS).astype(float)
    arms = rng.choice(["a", "b"], size=TURNS).tolist()
    for n in range(TURNS):
        of = int(rng.integers(n + 1))
        drawn = replace(decision(f"d{n}"), drawn=arms[n])
        context = drawn.context.with_scores({"a": float(rng.random()), "b": float(rng.random())})
        facts = [replace(drawn, context=context), execution(drawn.id)]
        other, opinion = "a" if drawn.drawn == "b" else "b", float(rng.integers(-1, 2))
        seen = Observation(drawn.id, ObservationSource.SHADOW, other, 0.3, value=opinion, observed_at=103.0)
        grade = Observation(
            f"d{of}",
            ObservationSource.JUDGE,
            arms[of],
            0.3,
            value=(right[of] + rng.random()) / 2,
            observed_at=103.0,
        )
        store.append([*facts, *([seen] if rng.random() < 0.5 else []), grade])
        for about in {n, int(rng.integers(n + 1))} if rng.random() < 0.6 else ():
            if about not in answered:
                store.append([value(f"d{about}", number=right[about])])
                answered.add(about)
        if n % 5 == 0:
            label = replace(drawn, id=f"label-{n}", policy=LABELS, version=0, episode_id=name_episode(1))
            said = value(label.id, at=label.decided_at)
            label_turns.insert(store, [label_turns.LabelTurn(label, execution(label.id), (said,))])
        if n % 7 == 0:
            learner.step()
    while learner.step() is not None or learner.behind:
        pass
    newest = versions.latest(store, recipe.digest)
    assert newest is not None
    return newest


def replayed(
    config: AppConfig, store: Store, name: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[evaluate.CandidateTarget, Policy]:
    """Evaluate a candidate on the whole log; return the result, and what it has learned by the end."""
    built: list[candidates.Candidate] = []
    real = evaluate.build_candidate
    monkeypatch.setattr(evaluate, "build_candidate", lambda *of: built.append(real(*of)) or built[-1])
    source = LogSource(store, config.reward)
    setting = CandidateService(config, config.reward, store, tuple(config.actions))
    log = source.log(config.reward)
    (found,) = evaluate.targets(log, [parse_name(name)], setting, source, lambda *_: None)
    (candidate,) = built
    assert isinstance(candidate, candidates.LearnedTarget)
    return found, candidate.policy


@pytest.mark.slow
def test_a_rebuild_gives_what_a_learner_published(config: AppConfig, store: Store) -> None:
    newest = live(config, store)
    report = verify_states(store, config, lambda *_: None, every=True)
    assert report.sound, report.states
    assert len(report.states) > 3
    plain = replace(Recipe.from_config(config), start=None)
    without = publish_candidate(store, plain, list(config.actions))
    assert (without.recipe, without.digest) != (newest.recipe, newest.digest), "observations are learned"
    assert Recipe.from_version(newest, config.reward) == Recipe.from_config(config)


@pytest.mark.slow
def test_observations_have_the_scores_of_the_router_of_the_recipe_in_a_rebuild_and_an_evaluation(
    config: AppConfig, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = kept(tmp_path / "router", arms=("a", "b", "c"))
    out_of_fold.write_out_of_fold(folder, saved.read_about(folder), [], np.empty((0, 3)))
    router = keep_router(store, folder, 0.0)
    recipe = replace(Recipe.from_config(config), router=router)
    decides = publish_candidate(store, recipe, list(config.actions))
    assert decides.version == decision("d0").version, "so the scores on record are those of its router"
    newest = live(config, store, recipe)
    learned = read_learned_examples(store, config.reward, recipe.start, router=router)
    seen = [one.decision for one in learned if observed.find_source(one.decision)]
    assert {observed.find_source(one) for one in seen} == {ObservationSource.JUDGE, ObservationSource.SHADOW}
    assert all(ROUTER in one.context.arms["a"] for one in seen)
    report = verify_states(store, config, lambda *_: None, number=newest.version)
    assert report.sound, report.states
    _, policy = replayed(config, store, f"recipe:{newest.version}", monkeypatch)
    assert versions.digest_state(policy.save()) == newest.digest


@pytest.mark.parametrize("name", ["configured", "recipe:{}"])
@pytest.mark.slow
def test_an_evaluation_learns_as_the_service_does(
    config: AppConfig, store: Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    newest = live(config, store)
    _, policy = replayed(config, store, name.format(newest.version), monkeypatch)
    assert versions.digest_state(policy.save()) == newest.digest


@pytest.mark.slow
def test_an_evaluation_leaves_out_decisions_whose_grade_was_learned_before(
    config: AppConfig, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(config, store)
    recipe, graded, late = Recipe.from_config(config), set[str](), set[str]()
    for one in read_learned_examples(store, config.reward, recipe.start):
        if observed.find_source(one.decision) is ObservationSource.JUDGE:
            graded.add(one.decision.id.split("/")[0])
        elif one.metrics and one.decision.id in graded:
            late.add(one.decision.id)
    found, _ = replayed(config, store, "configured", monkeypatch)
    assert len(late) >= 3
    assert found.excluded == {"it has learned from a grade of the decision": len(late)}


@pytest.mark.parametrize("newest_is_right", [True, False])
@pytest.mark.slow
def test_a_rebuild_learns_observations_again(
    config: AppConfig, store: Store, *, newest_is_right: bool
) -> None:
    newest = live(config, store)
    x = t.examples
    with store.writing() as connection:
        if not newest_is_right:
            wrong = replace(newest, version=0, parent=newest.version, digest=versions.digest_state(b"x"))
            versions.add(connection, wrong, b"x")
        flipped = sa.update(x).where(x.c.seq.between(5, 60), sa.cast(x.c.metrics, sa.Text) != "{}")
        connection.execute(flipped.values(metrics={"thumb": -1.0}))
    found = verify_states(store, config, lambda *_: None)
    assert not found.sound
    rebuild(store, config, lambda *_: None)
    follower = versions.latest(store, newest.recipe)
    assert follower is not None
    assert follower.digest == newest.digest
    assert (follower == newest) == newest_is_right, "nothing is published where the newest is as it should be"
    again = verify_states(store, config, lambda *_: None, every=newest_is_right)
    assert again.sound, again


def test_a_recipe_without_observations_has_the_digest_that_it_always_had(config: AppConfig) -> None:
    silent = config.model_copy(update={"observations": type(config.observations)()})
    assert Recipe.from_config(silent) == Recipe(config.policy, config.reward)
    assert Recipe.from_config(config).digest != Recipe.from_config(silent).digest

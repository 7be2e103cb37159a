"""Candidates: what is published beside a learner is what a learner of that recipe would have published."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from armwise.agent.config import AppConfig
from armwise.agent.hosts.learner import Learning
from armwise.agent.learning.learner import Learner, publish_candidate
from armwise.agent.learning.rebuild import rebuild, verify_states
from armwise.agent.learning.recipe import Recipe
from armwise.agent.learning.restore import restore_policy
from armwise.agent.policies import PolicyError, PolicySpec
from armwise.feedback.clock import SteadyClock
from armwise.feedback.errors import RebuiltError
from armwise.feedback.events import LABELS, Decision, Execution, Feedback
from armwise.feedback.log import Store
from armwise.feedback.registry import Version, promotions, versions
from armwise.feedback.training_log import REBUILD, StartingPoint, examples, label_turns, take_epoch
from tests.agent.asking import look_up, refused
from tests.agent.fakes import Service
from tests.agent.learning.test_learner import ARMS, BAGGED, EXACT, NOW, RULE, facts, live
from tests.agent.learning.test_rebuild import configured, lose, told

LINEAR = PolicySpec(kind="linucb")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(f"sqlite:///{tmp_path / 'log.db'}", RULE.join)
    yield store
    store.close()


@pytest.fixture
def config(tmp_path: Path) -> AppConfig:
    return configured(log_url=f"sqlite:///{tmp_path / 'log.db'}")


def label(number: int, run: int) -> label_turns.LabelTurn:
    """A label that says of an arm what a turn of this number would."""
    decision, execution, feedback = facts(number)
    assert isinstance(decision, Decision)
    assert isinstance(execution, Execution)
    assert isinstance(feedback, Feedback)
    name = f"label-{number}.{run}"
    entered = {"policy": LABELS, "version": 0, "episode_id": examples.name_episode(run), "deadline": NOW}
    return label_turns.LabelTurn(
        replace(decision, id=name, **entered),
        replace(execution, decision_id=name),
        (replace(feedback, id=f"{name}:thumb", decision_id=name, received_at=NOW),),
    )


def a_learner(store: Store, recipe: Recipe) -> Learner:
    return Learner(store, recipe, ARMS, take_epoch(store, "test", NOW), clock=lambda: NOW + 1)


def labelled(store: Store, learner: Learner) -> None:
    """Let turns and labels of two runs come in and be joined, in the midst of one another."""
    live(store, range(10), learner)
    label_turns.insert(store, [label(number, run=1) for number in range(100, 112)])
    live(store, range(10, 20), learner)
    label_turns.insert(store, [label(number, run=2) for number in range(200, 206)])
    live(store, range(20, 30), learner)


STARTS = [
    StartingPoint(runs=(1,)),
    StartingPoint(runs=(1, 2)),
    StartingPoint(runs=(2,), after=25),
    StartingPoint(after=7),
]


@pytest.mark.parametrize("spec", [EXACT, BAGGED, LINEAR], ids=["resumes", "replays", "linear"])
@pytest.mark.parametrize("start", STARTS, ids=str)
@pytest.mark.slow
def test_a_learner_that_takes_up_a_candidate_equals_one_that_always_had_its_recipe(
    store: Store, tmp_path: Path, spec: PolicySpec, start: StartingPoint
) -> None:
    labelled(store, a_learner(store, Recipe(EXACT, RULE)))
    recipe = Recipe(spec, RULE, start)
    candidate = publish_candidate(store, recipe, ARMS, lambda: NOW)
    assert (candidate.recipe, candidate.parent, candidate.start) == (recipe.digest, None, start.document())
    took_up = live(store, range(30, 40), a_learner(store, recipe))
    assert (took_up.recipe, took_up.start) == (recipe.digest, start.document())

    other = Store(f"sqlite:///{tmp_path / 'other.db'}", RULE.join)
    labelled(other, a_learner(other, Recipe(EXACT, RULE)))
    always = a_learner(other, recipe)  # has it from the first lesson on
    expected = always.step()
    assert expected is not None
    assert (candidate.examples_seq, candidate.digest) == (expected.examples_seq, expected.digest)
    expected = live(other, range(30, 40), always)
    assert (took_up.examples_seq, took_up.digest) == (expected.examples_seq, expected.digest)
    other.close()


def test_the_labels_of_a_run_change_whoever_starts_from_them_and_nobody_else(store: Store) -> None:
    learner = a_learner(store, Recipe(EXACT, RULE))
    live(store, range(10), learner)
    before = versions.latest(store)
    label_turns.insert(store, [label(number, run=1) for number in range(100, 112)])
    after = learner.step()
    assert before is not None
    assert after is not None
    assert (after.examples_seq, after.digest) == (before.examples_seq + 12, before.digest)
    warmed = publish_candidate(store, Recipe(EXACT, RULE, StartingPoint(runs=(1,))), ARMS)
    assert warmed.digest != after.digest


async def test_no_client_can_name_the_episode_of_a_run(service: Service) -> None:
    wished = {"agent": {"episode_id": examples.name_episode(1)}}
    refused(await look_up(service, **wished), 400, "invalid_value", "agent.episode_id")
    item = {"episode_id": examples.name_episode(1), "metric_name": "thumb", "value": 1.0}
    refused(await service.client.post("/v1/feedback", json=item), 400, "invalid_value", "episode_id")


def test_the_live_learner_goes_on_beside_a_candidate(store: Store) -> None:
    learner = a_learner(store, Recipe(EXACT, RULE))
    ours = live(store, range(10), learner)
    candidate = publish_candidate(store, Recipe(LINEAR, RULE), ARMS)
    assert (candidate.version, candidate.epoch) == (ours.version + 1, ours.epoch)
    following = live(store, range(10, 15), learner)
    assert (following.version, following.parent) == (candidate.version + 1, ours.version)


def test_a_candidate_that_has_learned_all_there_is_is_not_published_again(store: Store) -> None:
    learner, recipe = a_learner(store, Recipe(EXACT, RULE)), Recipe(LINEAR, RULE)
    live(store, range(10), learner)
    first = publish_candidate(store, recipe, ARMS)
    assert publish_candidate(store, recipe, ARMS) == first == versions.latest(store)
    live(store, range(10, 12), learner)
    second = publish_candidate(store, recipe, ARMS)
    assert (second.parent, second.examples_seq) == (first.version, first.examples_seq + 2)


def test_a_candidate_may_be_there_before_any_learner(store: Store) -> None:
    label_turns.insert(store, [label(number, run=1) for number in range(100, 112)])
    recipe = Recipe(EXACT, RULE, StartingPoint(runs=(1,)))
    candidate = publish_candidate(store, recipe, ARMS)
    assert (candidate.version, candidate.examples_seq) == (1, 0)
    learner = a_learner(store, recipe)
    following = live(store, range(5), learner)
    assert (following.parent, following.examples_seq) == (1, 17)
    state = versions.checkpoint(store, 1)
    assert state is not None
    lose(store, 1)
    assert versions.digest_state(
        restore_policy(store, candidate, RULE, ARMS).save()
    ) == versions.digest_state(state)


def test_a_candidate_tells_how_far_it_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armwise.agent.learning.learner.REPORT_EVERY", 4)
    live(store, range(10), a_learner(store, Recipe(EXACT, RULE)))
    heard: list[tuple[str, int, int | None]] = []
    publish_candidate(store, Recipe(LINEAR, RULE), ARMS, on_progress=lambda *report: heard.append(report))
    assert heard == [("learning a candidate", done, 10) for done in (4, 8, 10)]


def test_a_candidate_that_cannot_be_is_refused_and_leaves_nothing(store: Store) -> None:
    live(store, range(10), a_learner(store, Recipe(EXACT, RULE)))
    newest = versions.latest(store)
    fixed = PolicySpec(kind="fixed", params={"arm": "colbert"})
    with pytest.raises(PolicyError, match="policy 'fixed' names the arm 'colbert'"):
        publish_candidate(store, Recipe(fixed, RULE), ARMS)
    with pytest.raises(ValueError, match="cannot start after example 11: the training log has 10"):
        publish_candidate(store, Recipe(LINEAR, RULE, StartingPoint(after=11)), ARMS)
    assert versions.latest(store) == newest


def test_a_rebuild_stops_a_candidate(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    live(store, range(10), a_learner(store, Recipe(EXACT, RULE)))
    real = versions.publish_beside

    def after_a_rebuild(store: Store, version: Version, state: bytes) -> int:
        take_epoch(store, REBUILD, NOW)
        return real(store, version, state)

    monkeypatch.setattr("armwise.feedback.registry.versions.publish_beside", after_a_rebuild)
    with pytest.raises(RebuiltError, match="rebuilt the training log"):
        publish_candidate(store, Recipe(LINEAR, RULE), ARMS)
    assert versions.latest(store, Recipe(LINEAR, RULE).digest) is None


# -- taken up by those who serve and repair ---------------------------------------------------------------


def promoted(store: Store, config: AppConfig, version: Version) -> None:
    promotions.record(
        store,
        Recipe.from_config(config).digest,
        promotions.Promotion(0, version.version, promotions.Action.PROMOTE, "better", NOW),
    )


@pytest.mark.parametrize("spec", [EXACT, BAGGED], ids=["resumes", "replays"])
@pytest.mark.slow
def test_a_rebuild_makes_a_candidate_again(store: Store, config: AppConfig, spec: PolicySpec) -> None:
    labelled(store, a_learner(store, Recipe.from_config(config)))
    ours = versions.latest(store)
    assert ours is not None
    recipe = Recipe(spec, RULE, StartingPoint(runs=(1,), after=7))
    candidate = publish_candidate(store, recipe, ARMS)
    report = verify_states(store, config, lambda *_: None, number=candidate.version)
    names = ["training log", f"version {ours.version}", f"version {candidate.version}"]
    assert told(report) == dict.fromkeys(names, "equal")
    promoted(store, config, candidate)
    newest = live(store, range(30, 40), a_learner(store, recipe))
    report = verify_states(store, config, lambda *_: None, every=True)
    assert report.sound
    assert f"version {newest.version}" in told(report)
    assert f"version {candidate.version}" in told(report)
    (note,) = report.notes
    assert note.endswith(f"of {ours.recipe[:12]}"), "the configured recipe is the other one now"


@pytest.mark.slow
def test_a_rebuild_follows_a_wrong_promoted_version(store: Store, config: AppConfig) -> None:
    labelled(store, a_learner(store, Recipe.from_config(config)))
    recipe = Recipe(EXACT, RULE, StartingPoint(runs=(1,)))
    candidate = publish_candidate(store, recipe, ARMS)
    with store.writing() as connection:
        changed = replace(candidate, version=0, parent=candidate.version, digest=versions.digest_state(b"x"))
        wrong = versions.add(connection, changed, b"x")
    promoted(store, config, candidate)
    rebuild(store, config, lambda *_: None)
    follower = versions.latest(store, recipe.digest)
    assert follower is not None
    assert (follower.parent, follower.digest, follower.start) == (wrong, candidate.digest, candidate.start)
    assert verify_states(store, config, lambda *_: None).sound


def test_a_learner_host_follows_a_promotion_and_the_way_back(store: Store, config: AppConfig) -> None:
    configured, other = Recipe.from_config(config), Recipe(LINEAR, RULE, StartingPoint(runs=(1,)))
    live(store, range(10), a_learner(store, configured))
    label_turns.insert(store, [label(number, run=1) for number in range(100, 112)])
    ours, candidate = versions.latest(store), publish_candidate(store, other, ARMS)
    assert ours is not None
    learning = Learning(store, config, SteadyClock())

    def learn(recipe: Recipe) -> Version:
        learning.run(threading.Event())
        newest = versions.latest(store, recipe.digest)
        assert newest is not None
        return newest

    first = learn(configured)
    assert (first.parent, first.examples_seq) == (ours.version, 22)
    assert learn(configured) == first
    promoted(store, config, candidate)
    following = learn(other)
    assert (following.parent, following.examples_seq) == (candidate.version, 22)
    assert versions.latest(store, configured.digest) == first
    label_turns.insert(store, [label(number, run=2) for number in range(200, 203)])
    promoted(store, config, ours)
    caught_up = learn(configured)
    assert (caught_up.parent, caught_up.examples_seq) == (first.version, 25)

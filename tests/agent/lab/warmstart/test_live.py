"""A run whose candidate brings its router and its arms: one promotion puts all three in service."""

from contextlib import closing
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from rich.console import Console

from armwise.agent.config import AppConfig, ConfigError, parse
from armwise.agent.lab.warmstart import warm_start
from armwise.agent.learning import Recipe, active_recipe, publish_candidate, verify_states
from armwise.agent.learning.router_scores import open_router
from armwise.agent.policies import PolicySpec
from armwise.agent.routers import RouterError
from armwise.arms.lab.portfolio import outcomes
from armwise.arms.models import build_embedder
from armwise.arms.questions import Question
from armwise.feedback.events import ROUTER
from armwise.feedback.gate_spec import GateSpec
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.registry import active_policy, arm_sets, promotions, routers, runs, versions
from armwise.feedback.training_log import read_learned_examples, router_contexts
from tests.agent.evaluation.test_evaluate import ARMS, evaluated, of, turn
from tests.agent.fakes import CONFIG
from tests.agent.lab.warmstart.test_run import (
    HOLD,
    PROMOTE,
    TRAFFIC,
    World,
    cold,
    configured,
    found_by,
    reasons_of,
    said_by,
    world,
)

__all__ = ["cold", "world"]  # fixtures

ROUTED: dict[str, Any] = {"kind": "ridge", "utility": {"measures": {"em": 1.0}}}

POLICY = {"kind": "linucb", "params": {"prior_feature": "router"}}


def live(folder: Path, **fields: Any) -> dict[str, Any]:
    """The section `warm_start` of a configuration whose candidates bring a router."""
    return {"warm_start": configured(folder, **{"router": ROUTED, **fields}).warm_start}


@pytest.mark.slow
def test_a_candidate_brings_the_router_and_learns_from_its_scores(world: World) -> None:
    world.gate = PROMOTE
    run = world.warmed(**live(world.folder))
    assert run.status is runs.RunState.PROMOTED
    assert world.asked == [[f"recipe:{run.candidate}"]], (
        "a router that the candidate brings is judged with it"
    )
    candidate = world.newest()
    assert candidate.router == run.inputs["router"] == found_by(run, "learn")["router"] is not None
    recipe = active_recipe(world.store, world.config)
    assert recipe.router == candidate.router
    assert recipe != Recipe.from_config(world.config)
    assert said_by(run, "router").startswith("trained ridge on 12 questions: of those that")
    assert said_by(run, "router").endswith("; the candidate brings it")
    assert said_by(run, "learn").endswith(f"; its router is {candidate.router[:12]}"), "it searches nothing"
    about = open_router(world.store, candidate.router).trained.about
    assert (about.kind, set(about.arms)) == ("ridge", set(ARMS))
    learned = list(read_learned_examples(world.store, recipe.reward, recipe.start, router=recipe.router))
    assert len(learned) == 96, "labels and traffic"
    for one in learned:
        scores = [one.decision.context.arms[arm][ROUTER] for arm in ARMS]
        assert np.isfinite(scores).all()
    plain = read_learned_examples(world.store, recipe.reward, recipe.start)
    assert all(ROUTER not in one.decision.context.arms[arm] for one in plain for arm in ARMS)
    traffic = learned[-1].decision.context
    stored = open_router(world.store, candidate.router)
    (row,) = stored.scores([traffic.question], build_embedder(world.config.backbones[about.backbone]))
    np.testing.assert_allclose([traffic.arms[arm][ROUTER] for arm in about.arms], row, rtol=1e-6)


@pytest.mark.slow
def test_labels_have_the_scores_of_routers_that_were_not_fitted_to_them(world: World) -> None:
    world.warmed(**live(world.folder))
    candidate = world.newest()
    assert candidate.router is not None
    stored = open_router(world.store, candidate.router)
    arms = stored.trained.about.arms
    start = Recipe.from_version(candidate, world.config.reward).start
    (first, *_) = read_learned_examples(
        world.store, world.config.reward, start, upto=0, router=candidate.router
    )
    fitted, unseen = stored.unseen.look_up([first.decision.context.question], len(arms))
    assert fitted.all()
    assert [first.decision.context.arms[arm][ROUTER] for arm in arms] == unseen[0].tolist()


@pytest.mark.slow
def test_a_rebuild_gives_the_scores_that_the_learner_gave(
    world: World,
) -> None:
    world.gate = PROMOTE
    world.warmed(**live(world.folder))
    promoted = world.newest()
    assert promoted.router is not None
    world.store.append([fact for number in range(60, 70) for fact in turn(number, ARMS[number % 3])])
    assert len(router_contexts.list_unscored(world.store, promoted.router, newest=1000)) == 10
    world.learn()
    newest = world.newest()
    assert (newest.recipe, newest.router) == (promoted.recipe, promoted.router)
    assert newest.examples_seq == promoted.examples_seq + 36 + 10, "labels have a place in the training log"
    assert router_contexts.list_unscored(world.store, promoted.router, newest=1000) == []
    report = verify_states(world.store, world.config, lambda *_: None, every=True)
    assert report.sound
    assert {one.version for one in report.states} >= {promoted.version, newest.version}


@pytest.mark.slow
def test_unscored_decisions_stay_without_scores(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armwise.agent.learning.learner.MOST", 10)
    monkeypatch.setattr(router_contexts, "CHUNK", 7)
    world.warmed(**live(world.folder))
    first = world.newest()
    assert first.router is not None
    recipe = Recipe.from_version(first, world.config.reward)
    other = replace(recipe, policy=PolicySpec(kind="epsilon_greedy"))
    publish_candidate(world.store, other, ARMS, backbones=world.config.backbones)
    learned = read_learned_examples(world.store, recipe.reward, recipe.start, router=first.router)
    assert sum(ROUTER in one.decision.context.arms["bm25"] for one in learned) == 10
    report = verify_states(world.store, world.config, lambda *_: None, number=first.version)
    assert report.sound, report.states


@pytest.mark.slow
def test_scores_once_stored_stay_as_they_are(world: World) -> None:
    world.warmed(**live(world.folder))
    router = world.newest().router
    assert router is not None
    router_contexts.store_scores(world.store, router, {"0": {"bm25": 9.0}, "new": None})
    decision = next(iter(read_learned_examples(world.store, world.config.reward, router=router))).decision
    assert decision.context.arms["bm25"][ROUTER] != 9.0
    router_contexts.store_scores(world.store, router, {"new": {"bm25": 9.0}})
    assert (
        not router_contexts.read_contexts(world.store, [replace(decision, id="new")], router)[0]
        .arms["bm25"]
        .get(ROUTER)
    )


def test_routers_that_were_never_promoted_are_removed_but_for_the_newest(world: World) -> None:
    found = [
        routers.add(world.store, routers.StoredRouter({"n": n}, b"model", b""), float(n)) for n in range(4)
    ]
    for digest in found:
        router_contexts.store_scores(world.store, digest, {"d-1": {"bm25": 1.0}})
    recipe = replace(Recipe.from_config(world.config), router=found[0])
    state = recipe.build(ARMS).save()
    number = versions.publish_beside(world.store, recipe.draft(state, 0, 0, None, 0, 0.0), state)
    version = versions.find(world.store, number)
    assert version is not None
    world.say(version, promotions.Action.PROMOTE)
    routers.prune(world.store, 2)
    assert [routers.find(world.store, one) is not None for one in found] == [True, False, True, True]
    with world.store.reading() as connection:
        left = connection.scalars(sa.select(t.router_scores.c.router)).all()
    assert set(left) == {found[0], *found[2:]}
    assert active_recipe(world.store, world.config).router is None, "it is not a router, and passed over"


@pytest.mark.slow
def test_without_new_labels_the_last_router_is_judged_again_on_more_traffic(world: World) -> None:
    first = world.warmed(**live(world.folder))
    assert reasons_of(first)
    world.ask(range(60, 70))
    second = world.warmed(**live(world.folder))
    assert second.inputs["router"] == first.inputs["router"]
    assert [step["name"] for step in second.steps] == ["gather", "enter", "learn", "evaluate", "decide"]
    assert world.newest().recipe == versions.find(world.store, first.candidate or 0).recipe  # type: ignore[union-attr]


def either_is_right(folder: Path, n: int = 24) -> None:
    """Write outcomes by which two arms complement each other, and the third adds nothing."""
    outcomes.write_outcomes(
        folder / "exam" / "outcomes.jsonl",
        [
            outcomes.Outcome(
                Question(f"q{row}", f"exam question {row}"),
                arm,
                (f"{arm}-1",),
                "yes",
                {"em": float(arm == ("dense" if row % 3 else "bm25"))},
                {"steps": ARMS.index(arm)},
            )
            for row in range(n)
            for arm in ARMS
        ],
    )


@pytest.mark.slow
def test_chosen_arms_follow_promotion_and_rollback(
    world: World,
) -> None:
    configured_version = world.newest()
    either_is_right(world.folder)
    world.gate = PROMOTE
    run = world.warmed(**live(world.folder, portfolio={"measure": "em", "k": 2, "live": True}))
    promoted = world.newest()
    assert run.status is runs.RunState.PROMOTED
    chosen = found_by(run, "portfolio")["arms"]
    assert len(chosen) == 2
    now = arm_sets.live(world.store)
    assert now is not None
    assert ([*now.arms], now.version) == ([*promoted.arms], promoted.version)
    assert set(now.arms) == set(chosen)
    active = active_policy(world.store, world.ours)
    assert active.arm_set == now.seq
    assert [*arm_sets.at_start(world.store, CONFIG["arms"])] == promoted.arms, "a restart keeps them"
    world.say(configured_version, promotions.Action.ROLLBACK)
    back = arm_sets.live(world.store)
    assert back is not None
    assert (back.arms, back.version) == (tuple(CONFIG["arms"]), None)
    assert active_policy(world.store, world.ours).arm_set == back.seq > now.seq
    world.say(promoted, promotions.Action.PROMOTE)
    again = arm_sets.live(world.store)
    assert again is not None
    assert (again.arms, again.version) == (tuple(promoted.arms or ()), promoted.version)


@pytest.mark.slow
def test_a_candidate_that_brings_arms_is_no_canary_by_itself(world: World) -> None:
    either_is_right(world.folder)
    world.gate = {**HOLD, "undecided": True}
    run = world.warmed(**live(world.folder, canary="auto", portfolio={"measure": "em", "k": 2, "live": True}))
    assert run.status is runs.RunState.HELD
    assert world.newest().arms is not None
    assert active_policy(world.store, world.ours).canaries == ()


@pytest.mark.slow
def test_a_candidate_of_labels_keeps_the_arms_that_a_version_brought(world: World) -> None:
    either_is_right(world.folder)
    arm_sets.start(world.store, CONFIG["arms"])
    world.gate = PROMOTE
    world.warmed(**live(world.folder, portfolio={"measure": "em", "k": 2, "live": True}))
    brought = world.newest().arms
    world.ask(range(60, 70))
    either_is_right(world.folder, n=30)
    world.warmed(**live(world.folder))
    assert world.newest().arms == brought


# -- how the gate judges it ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_recipe_is_evaluated_by_the_scores_of_its_router_on_a_log_without_them(world: World) -> None:
    world.warmed(**live(world.folder))
    candidate, quiet = world.newest(), GateSpec(least_checked=0)
    config = world.config.model_copy(update={"gate": quiet})
    report = evaluated(config, world.store, f"recipe:{candidate.version}", gate=True)
    judged = of(report, f"recipe:{candidate.version}")
    assert (judged["rows"], judged["excluded"]) == (TRAFFIC, {})
    with world.store.writing() as connection:
        connection.execute(sa.delete(t.router_scores).where(t.router_scores.c.decision_id == "d-7"))
    without = of(evaluated(config, world.store, judged["name"], gate=True), judged["name"])
    assert (without["rows"], without["excluded"]) == (
        TRAFFIC - 1,
        {"its router did not score the decision": 1},
    )


@pytest.mark.parametrize(
    ("brought", "held"), [({"none", "bm25"}, False), ({"bm25", "new"}, True), ({"new", "newer"}, True)]
)
@pytest.mark.slow
def test_arms_never_drawn_hold_a_candidate(world: World, brought: set[str], held: bool) -> None:
    arms = {
        name: CONFIG["arms"].get(name, {"kind": "bm25", "params": {"k1": 2.0}}) for name in sorted(brought)
    }
    recipe = replace(Recipe.from_config(world.config), arms=arms)
    version = publish_candidate(world.store, recipe, ARMS)
    judged = of(
        evaluated(world.config, world.store, f"recipe:{version.version}", gate=True),
        f"recipe:{version.version}",
    )
    verdict = judged["verdict"]
    assert verdict is not None
    assert not verdict["promote"]
    unknown = [reason for reason in verdict["reasons"] if "nothing is known" in reason]
    assert bool(unknown) == held
    if held:
        (reason,) = verdict["reasons"]
        assert reason.startswith(f"It brings {', '.join(sorted(brought - set(ARMS)))}, which no decision")


# -- the first start -------------------------------------------------------------------------------------


def first(folder: Path) -> AppConfig:
    """A configuration whose first candidate is promoted, with a policy that starts from the router."""
    config = configured(folder, router=ROUTED, first="promote")
    return parse({**config.model_dump(mode="json"), "policy": POLICY})


def exam_of_two_kinds(folder: Path, *, alike: bool) -> None:
    """Write outcomes: `dense` knows the rivers, and `none` the sums, or `dense` if they are alike."""
    rows = []
    for number in range(40):
        is_sum = number % 2 == 0
        text = f"add {number} and {number + 3}" if is_sum else f"which river passes town {number}"
        knows = "none" if is_sum and not alike else "dense"
        for arm in ARMS:
            em, cost = {"em": float(arm == knows)}, {"steps": ARMS.index(arm)}
            rows.append(outcomes.Outcome(Question(f"q{number}", text), arm, (f"{arm}-1",), "yes", em, cost))
    folder.mkdir()
    outcomes.write_outcomes(folder / "outcomes.jsonl", rows)


@pytest.mark.slow
@pytest.mark.parametrize("alike", [False, True])
def test_a_first_candidate_is_promoted_with_the_policy_of_the_warm_start_if_its_router_gains(
    tmp_path: Path, alike: bool
) -> None:
    exam_of_two_kinds(tmp_path / "exam", alike=alike)
    config = configured(tmp_path, router=ROUTED, first="promote", policy=POLICY)
    assert config.policy.model_dump() != POLICY
    run = warm_start(config, runs.Trigger.FIRST, Console(file=StringIO()), lambda *_: None)
    with closing(Store(config.database_url)) as store:
        recipe = active_recipe(store, config)
        candidate = versions.find(store, run.candidate or 0)
    if not alike:
        assert run.status is runs.RunState.PROMOTED
        assert (recipe.policy.model_dump(), recipe.router) == (POLICY, run.inputs["router"])
        return
    assert reasons_of(run)[0] == (
        "Its router gains nothing: on held-out questions it earns 1.0000, and dense for all of them 1.0000."
    )
    assert recipe == Recipe.from_config(config), "what served before still does"
    assert candidate is not None
    assert candidate.router == run.inputs["router"], "and the candidate is there to be promoted by hand"


@pytest.mark.slow
def test_with_traffic_in_the_log_the_first_candidate_is_held_as_any_other(world: World) -> None:
    assert reasons_of(world.warmed(**live(world.folder, first="promote"))) == [
        "It is worth 3.0; 100 are needed."
    ]


@pytest.mark.slow
def test_a_first_candidate_is_held_unless_told_otherwise(cold: World) -> None:
    assert reasons_of(cold.warmed(**live(cold.folder))) == [
        "The log holds no decision of the traffic to judge it by."
    ]


def test_promoting_first_and_never_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="first: promote contradicts promote: never"):
        configured(tmp_path, first="promote", promote="never")


def test_a_router_that_is_not_in_the_log_is_said_to_be_missing(cold: World) -> None:
    with pytest.raises(RouterError, match="router abc of the log is missing"):
        open_router(cold.store, "abc")

"""Canary: a candidate takes its share of every distribution, exactly, and stands in nobody's way."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from armwise.agent.learning import Recipe, publish_candidate
from armwise.agent.policies import (
    Fixed,
    Policy,
    PolicyError,
    PolicySpec,
    Uniform,
    choose,
    compute_served_distribution,
    sampling,
)
from armwise.agent.policies.linear import LinUCB
from armwise.agent.turn import Canary, TurnLoop
from armwise.agent.turn.steps.canary import CanaryStep
from armwise.feedback.events import Context, Decision, Mode
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.registry import Version, promotions
from tests.agent.asking import look_up, refused
from tests.agent.draws import judge
from tests.agent.fakes import CONFIG, MemoryLog, Preferring, Service
from tests.agent.learning.test_promotions import learned, listed, prune, say, shown
from tests.agent.turn.test_turn import ARMS, LOOK_UP, a_loop
from tests.agent.turns import draw, verify
from tests.steps import change

SALT = "salt"
NAMES = tuple(ARMS)
DISTRIBUTION = st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3).map(lambda p: np.array(p) / sum(p))


class Failing(Uniform):
    """A policy that gives no distribution, in one of many ways."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.asked = 0

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        del context
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        return np.full(len(arms), 0.9)


def taught(kind: type[LinUCB], best: str) -> Policy:
    """A policy that has learned from a few rewards."""
    policy, rng = kind(), np.random.default_rng(3)
    for number in range(60):
        drawn = NAMES[rng.integers(3)]
        seen = Context("?", {"w=river": float(number % 2)}, (), {arm: {"a": 1.0} for arm in NAMES})
        policy.learn(Decision("?", seen, NAMES, (1 / 3,) * 3, drawn, "uniform", 1), float(drawn == best))
    return policy


def beside(loop: TurnLoop, policy: Policy, share: float, version: int = 9) -> TurnLoop:
    """Give a candidate a share of what a loop decides."""
    loop.decider.serving = replace(loop.decider.serving, canaries=(Canary(policy, version, share),))
    return loop


def drawn(loop: TurnLoop, name: str = "d-1", names: Sequence[str] = NAMES, **wishes: Any) -> Decision:
    wished = replace(LOOK_UP, decision_id=name, **wishes)
    arms = {name: loop.arms[name] for name in names}
    return draw(loop.decider, wished, Context("which river?", {"w=river": 1.0}), arms)


def active(loop: TurnLoop) -> list[Canary]:
    """The candidates that take part."""
    (step,) = [step for step in loop.decider.steps if isinstance(step, CanaryStep)]
    return step.list_active(loop.decider.serving)


# -- the mixture --------------------------------------------------------------------------------------------


@given(DISTRIBUTION, DISTRIBUTION, st.floats(0.0, 0.5), st.floats(0.0, 1 / 3))
def test_a_mixture_is_a_distribution_that_keeps_the_floor_of_both(
    live: NDArray[np.float64], candidate: NDArray[np.float64], share: float, floor: float
) -> None:
    context, arms = Context("?"), list(NAMES)
    one = compute_served_distribution(Preferring(**dict(zip(NAMES, live, strict=True))), context, arms, floor)
    other = compute_served_distribution(
        Preferring(**dict(zip(NAMES, candidate, strict=True))), context, arms, floor
    )
    p = sampling.mix_canary(one, other, share)
    assert p.sum() == pytest.approx(1.0, abs=1e-12)
    assert p.min() >= floor * (1 - 1e-12)
    assert sampling.mix_canary(one, other, 0.0).tolist() == one.tolist()
    assert np.abs(p - one).max() <= share * np.abs(other - one).max() + 1e-15


@pytest.mark.slow
def test_draws_follow_the_mixture_and_every_row_verifies() -> None:
    live, candidate = taught(LinUCB, "bm25"), Preferring(none=0.5, bm25=0.1, dense=0.4)
    loop = beside(a_loop(MemoryLog(), policy=live, floor=0.02, salt=SALT), candidate, 0.3)
    made = [drawn(loop, f"d-{number}", NAMES[: 2 + number % 2]) for number in range(6000)]
    for names in (NAMES, NAMES[:2]):
        rows = [one for one in made if one.arms == names]
        p = np.array([one.probabilities for one in rows])
        floor = rows[0].floor
        assert floor is not None
        expected = 0.7 * compute_served_distribution(
            live, rows[0].context, names, floor
        ) + 0.3 * compute_served_distribution(candidate, rows[0].context, names, floor)
        assert p == pytest.approx(np.tile(expected, (len(rows), 1)), abs=1e-15)
        verdict = judge("", names, p, np.array([names.index(one.drawn) for one in rows]))
        assert verdict.p_value > 0.001
        assert len(rows) == 3000
    for one in made:
        assert (one.version, one.candidate, one.share, one.policy) == (7, 9, 0.3, live.kind)
        assert verify(one, live, SALT, one.propensity, candidate).verified
        assert not verify(change(one, share=0.2), live, SALT, None, candidate).verified
    alone = verify(made[0], live, SALT)
    assert alone.why[0] == "the policy has no distribution: version 9 took part, and is not available"


def test_the_draw_stays_one_hash_over_the_mixture() -> None:
    loop = beside(a_loop(MemoryLog(), salt=SALT), Fixed("dense"), 0.5)
    for name in map(str, range(200)):
        made = drawn(loop, name)
        index = choose(np.array(made.probabilities), sampling.uniform_from(name, SALT, NAMES))
        assert (made.drawn, drawn(loop, name)) == (NAMES[index], made)


def test_a_caller_who_wants_the_best_arm_gets_that_of_the_mixture() -> None:
    live, candidate = Preferring(none=0.0, bm25=0.55, dense=0.45), Fixed("dense")
    made = drawn(beside(a_loop(MemoryLog(), policy=live), candidate, 0.25), explore=False)
    assert (made.mode, made.drawn, made.share) == (Mode.GREEDY, "dense", 0.25)
    assert verify(made, live, SALT, None, candidate).verified
    assert drawn(a_loop(MemoryLog(), policy=live), explore=False).drawn == "bm25"


def test_a_caller_who_names_the_arm_asks_no_candidate() -> None:
    candidate = Failing()
    made = drawn(beside(a_loop(MemoryLog()), candidate, 0.25), names=["dense"], forced="dense")
    assert (made.probabilities, made.candidate, made.share, candidate.asked) == ((1.0,), 0, 0.0, 0)


# -- several candidates --------------------------------------------------------------------------------------


def among(loop: TurnLoop, *canaries: Canary) -> TurnLoop:
    """Give several candidates a share of what a loop decides."""
    loop.decider.serving = replace(loop.decider.serving, canaries=canaries)
    return loop


@pytest.mark.slow
def test_of_several_candidates_one_takes_part_in_each_decision_and_all_alike_often() -> None:
    live, first, second = Preferring(none=1.0, bm25=0.0, dense=0.0), Fixed("bm25"), Fixed("dense")
    loop = among(
        a_loop(MemoryLog(), policy=live, floor=0.02, salt=SALT), Canary(first, 8, 0.1), Canary(second, 9, 0.3)
    )
    made = [drawn(loop, f"d-{number}") for number in range(4000)]
    by_version = {8: (first, 0.1), 9: (second, 0.3)}
    assert {one.candidate for one in made} == {8, 9}
    assert np.mean([one.candidate == 8 for one in made]) == pytest.approx(0.5, abs=0.03)
    for one in made:
        candidate, share = by_version[one.candidate]
        assert one.share == share
        assert verify(one, live, SALT, one.propensity, candidate).verified
    # Which of them takes part has no part in the draw.
    of_one = np.array([one.drawn == "bm25" for one in made if one.candidate == 8])
    assert of_one.mean() == pytest.approx(
        made[0].probabilities[1] if made[0].candidate == 8 else 0.114, abs=0.02
    )
    assert drawn(loop, "d-7") == made[7]


def test_a_failing_candidate_leaves_the_others_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    works = Canary(Fixed("dense"), 8, 0.25)
    both = among(a_loop(MemoryLog()), works, Canary(Failing(), 9, 0.25))
    sound = among(a_loop(MemoryLog()), works, Canary(Fixed("none"), 9, 0.25))
    for number in range(60):
        one, other = drawn(both, str(number)), drawn(sound, str(number))
        assert (one == other) if other.candidate == 8 else (one.candidate, one.share) == (0, 0.0)
    assert [canary.version for canary in active(both)] == [8]
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


@pytest.mark.parametrize(("share", "floor"), [(0.03, 0.01), (0.045, 0.005), (0.06, 0.005), (0.5, 0.005)])
def test_the_share_of_a_candidate_counts_as_exploration_and_the_decision_records_it(
    share: float, floor: float
) -> None:
    live, candidate = Preferring(none=1.0, bm25=0.0, dense=0.0), Fixed("dense")
    canary = Canary(candidate, 9, share)
    made = drawn(among(a_loop(MemoryLog(), policy=live, floor=0.02, salt=SALT), canary))
    assert made.floor == pytest.approx(floor)
    best = 1.0 - 2.0 * floor
    assert made.probabilities == pytest.approx(
        ((1.0 - share) * best + share * floor, floor, share * best + (1.0 - share) * floor)
    )
    assert verify(made, live, SALT, made.propensity, candidate).verified
    failing = among(a_loop(MemoryLog(), policy=live, floor=0.02), replace(canary, policy=Failing()))
    assert drawn(failing).floor == 0.02, "without it, all of the floor is"


# -- a candidate that gives no distribution ------------------------------------------------------------------


@pytest.mark.parametrize(
    "failure", [None, PolicyError("no"), KeyError("dense"), RuntimeError("out of memory")], ids=repr
)
def test_a_candidate_without_a_distribution_is_dropped_before_the_draw(
    failure: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    candidate = Failing(failure)
    loop = beside(a_loop(MemoryLog()), candidate, 0.25)
    made = [drawn(loop, str(number)) for number in range(20)]
    assert made == [drawn(a_loop(MemoryLog()), str(number)) for number in range(20)]
    assert {(one.candidate, one.share) for one in made} == {(0, 0.0)}
    assert candidate.asked == 1
    (told,) = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert told.startswith("candidate version 9 fails and gets no more traffic: ")
    assert active(loop) == []
    assert active(beside(loop, Uniform(), 0.25, version=10)), "another one is asked"
    assert drawn(loop).candidate == 10


# -- the service ---------------------------------------------------------------------------------------------


def publish(service: Service, **spec: Any) -> Version:
    """Publish a candidate of another policy."""
    recipe = Recipe(PolicySpec(**(spec or {"kind": "linucb"})), service.config.reward)
    return publish_candidate(service.replica.store, recipe, list(service.config.actions))


async def canary(service: Service, version: int, share: Any, reason: str = "new labels") -> httpx.Response:
    body = {"share": share, "reason": reason}
    return await service.client.post(f"/v1/policies/{version}/canary", json=body)


async def verified(service: Service, decision_id: str) -> dict[str, Any]:
    response = await service.client.get(f"/v1/decisions/{decision_id}/verify")
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def made_by(service: Service, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """Make a decision and return its record."""
    decision_id = (await look_up(service, headers)).json()["agent"]["decision_id"]
    found: dict[str, Any] = (await service.client.get(f"/v1/decisions/{decision_id}")).json()
    return found


@pytest.mark.slow
async def test_a_canary_takes_its_share_until_it_is_ended(on_each: Service) -> None:
    (live,) = await learned(on_each)
    candidate = publish(on_each).version
    assert (await made_by(on_each))["steps"].get("canary") is None
    body = (await canary(on_each, candidate, 0.2)).json()
    assert body["canaries"] == [
        {
            "version": candidate,
            "share": 0.2,
            "since": body["canaries"][0]["since"],
            "reason": "new labels",
            "automatic": False,
            "deciding": True,
        }
    ]
    assert body["serving"]["version"] == live
    assert not body["serving"]["pinned"]
    record = await made_by(on_each)
    assert (record["policy_version"], record["steps"]["canary"]) == (
        live,
        {"version": candidate, "share": 0.2},
    )
    assert record["policy"] == "vowpal"
    found = await verified(on_each, record["decision_id"])
    assert (found["verified"], found["max_difference"]) == (True, 0.0)
    assert (found["candidate"], found["share"]) == (candidate, 0.2)
    (following,) = await learned(on_each)
    record = await made_by(on_each)
    assert (record["policy_version"], record["steps"]["canary"]["version"]) == (following, candidate)
    body = (await canary(on_each, candidate, 0, "seen enough")).json()
    assert body["canaries"] == []
    record = await made_by(on_each)
    assert record["steps"].get("canary") is None
    assert (await verified(on_each, record["decision_id"]))["verified"]
    said = (await listed(on_each))["promotions"]
    assert [(one["action"], one["version"], one["share"], one["reason"]) for one in said] == [
        ("canary", candidate, 0.0, "seen enough"),
        ("canary", candidate, 0.2, "new labels"),
    ]


@pytest.mark.parametrize("action", ["promote", "rollback"])
async def test_a_promotion_and_a_rollback_end_a_canary(service: Service, action: str) -> None:
    (live,) = await learned(service)
    candidate = publish(service).version
    await canary(service, candidate, 0.5)
    assert len((await shown(service))["canaries"]) == 1
    assert (await say(service, action, live)).json()["canaries"] == []
    assert (await made_by(service))["steps"].get("canary") is None


async def test_versions_whose_bytes_are_lost_are_learned_again_to_verify(service: Service) -> None:
    (live,) = await learned(service)
    candidate = publish(service).version
    await canary(service, candidate, 0.25)
    # the uniform number of this id is within the largest probability, whichever arm and share it is of
    record = await made_by(service, {"Idempotency-Key": "d-1"})
    prune(service, live)
    prune(service, candidate)
    assert (await verified(service, record["decision_id"]))["verified"]
    changed = sa.update(t.decisions).where(t.decisions.c.id == record["decision_id"])
    with service.replica.store.writing() as connection:
        steps = connection.scalar(
            sa.select(t.decisions.c.steps).where(t.decisions.c.id == record["decision_id"])
        )
        connection.execute(changed.values(steps={**steps, "canary": {**steps["canary"], "share": 0.125}}))
    (why,) = (await verified(service, record["decision_id"]))["why"]
    assert "what the steps recorded or the probabilities were changed" in why
    with service.replica.store.writing() as connection:
        connection.execute(changed.values(steps={**steps, "canary": {**steps["canary"], "version": 77}}))
    response = await service.client.get(f"/v1/decisions/{record['decision_id']}/verify")
    message = refused(response, 409, "version_unavailable", "decision_id")
    assert message == f"there is no version 77, which decision '{record['decision_id']}' names"


async def test_a_candidate_that_gives_no_distribution_is_told_to_take_no_part(service: Service) -> None:
    candidate = publish(service).version
    await canary(service, candidate, 0.25)
    (known,) = service.replica.decider.serving.canaries
    failing = replace(known, policy=Failing())
    service.replica.versions._canaries = {candidate: (1, failing)}  # noqa: SLF001 - as if its state gave none
    await service.refresh()
    assert (await made_by(service))["steps"].get("canary") is None
    await service.refresh()
    assert (await made_by(service))["steps"].get("canary") is None
    assert not (await shown(service))["canaries"][0]["deciding"]


async def test_a_share_that_rests_on_what_was_changed_meanwhile_is_refused(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = publish(service).version, publish(service, kind="linear_thompson").version
    record = promotions.record

    def late(store: Store, configured: str, promotion: promotions.Promotion, *rest: Any, **more: Any) -> None:
        monkeypatch.setattr(promotions, "record", record)
        record(store, configured, replace(promotion, version=second, share=0.1))  # of another operator
        record(store, configured, promotion, *rest, **more)

    monkeypatch.setattr(promotions, "record", late)
    refused(await canary(service, first, 0.2), 409, "changed_meanwhile", "version")
    await service.refresh()
    assert [one["version"] for one in (await shown(service))["canaries"]] == [second]


@pytest.mark.slow
async def test_no_more_candidates_than_there_may_be_get_a_share(service: Service) -> None:
    names = [publish(service, kind="fixed", params={"arm": arm}).version for arm in ("none", "bm25", "dense")]
    names += [publish(service).version, publish(service, kind="linear_thompson").version]
    for number in names[:4]:
        assert (await canary(service, number, 0.1)).status_code == 200
    assert [one["version"] for one in (await shown(service))["canaries"]] == names[:4]
    told = refused(await canary(service, names[4], 0.1), 409, "promotion_refused", "version")
    assert told.startswith(f"versions {', '.join(map(str, names[:4]))} are canaries already, and 4 may be")
    assert (await canary(service, names[3], 0.2)).status_code == 200, "it is one already"
    assert (await canary(service, names[0], 0.0)).status_code == 200
    assert (await canary(service, names[4], 0.1)).status_code == 200
    made = {(await made_by(service))["steps"]["canary"]["version"] for _ in range(40)}
    assert made == set(names[1:])


# -- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [-0.1, 0.51, 1.0, "half", None, True])
async def test_a_share_is_at_most_half_of_the_traffic(service: Service, share: Any) -> None:
    refused(await canary(service, 1, share), 400, "invalid_value", "share")


async def test_a_canary_must_name_a_version_that_can_serve(tmp_path: Path) -> None:
    reward = {**CONFIG["reward"], "cost_weight": 0.5}
    async with Service(tmp_path, reward=reward).running() as service:
        arms = ["none", "colbert"]
        fixed = Recipe(PolicySpec(kind="fixed", params={"arm": "colbert"}), Service(tmp_path).config.reward)
        gone = publish_candidate(service.replica.store, fixed, arms)
        priced = service.replica.versions.version
    assert priced is not None
    async with Service(tmp_path).running() as service:
        message = refused(await canary(service, gone.version, 0.1), 409, "promotion_refused", "version")
        assert message.startswith(f"version {gone.version} cannot serve here: policy 'fixed' names the arm")
        message = refused(await canary(service, priced.version, 0.1), 409, "promotion_refused", "version")
        assert "learned with another reward" in message
        refused(await canary(service, 99, 0.0), 404, "version_not_found", "version")
        assert (await listed(service))["promotions"] == []

"""Verification: a decision as it was made comes out again to the bit, and a changed one does not."""

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from armwise.agent.learning.restore import MAX_QUEUED, BusyError, PolicyHistory
from armwise.agent.policies import (
    Fixed,
    Policy,
    PolicyError,
    choose,
    compute_served_distribution,
    sampling,
)
from armwise.agent.policies.linear import LinUCB
from armwise.feedback.events import LABELS, Context, Decision, Mode
from armwise.feedback.log import tables as t
from armwise.feedback.registry import versions
from armwise.feedback.training_log import label_turns
from tests.agent.asking import QUESTION, ask, forced, look_up, refused, tell
from tests.agent.fakes import Preferring, Service
from tests.agent.turns import verify
from tests.feedback.conftest import decision, execution, value
from tests.steps import change

SALT = "salt"


def drawn_by(policy: Policy, name: str = "d-1", mode: Mode = Mode.EXPLORE, salt: str = SALT) -> Decision:
    """A decision as a turn makes it."""
    arms = ("a", "b", "c")
    p = compute_served_distribution(policy, Context(QUESTION, {"w=river": 1.0}), arms, 0.05)
    made = Decision(
        id=name,
        context=Context(QUESTION, {"w=river": 1.0}),
        arms=arms,
        probabilities=tuple(p.tolist()),
        drawn="",
        policy=policy.kind,
        version=7,
        mode=mode,
        steps={"floor": {"least": 0.05}},
    )
    index = choose(p, sampling.uniform_from(name, salt, arms)) if mode is Mode.EXPLORE else int(p.argmax())
    return replace(made, drawn=arms[index])


def by_name(logged: tuple[float, ...]) -> dict[str, float]:
    return dict(zip("abc", logged, strict=True))


# -- one decision ------------------------------------------------------------------------------------


@given(
    name=st.text("0123456789abcdef", min_size=1),
    weights=st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3).filter(any),
    mode=st.sampled_from([Mode.EXPLORE, Mode.GREEDY]),
)
def test_what_was_drawn_comes_out_again(name: str, weights: list[float], mode: Mode) -> None:
    policy = Preferring(**by_name(tuple(weights)))
    made = drawn_by(policy, name, mode)
    found = verify(made, policy, SALT)
    assert found.verified
    assert found.distribution.max_difference == 0.0
    assert (found.u is None) == (mode is Mode.GREEDY)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"probabilities": (0.05, 0.05, 0.9)}, "a probability differs by 0.68"),
        ({"probabilities": (1.0,)}, "a probability differs by"),
        ({"probabilities": (0.2, 0.2, 0.2, 0.2, 0.2)}, "a probability differs by"),
        ({"floor": 0.1}, "a probability differs by"),
        ({"floor": -0.1}, "the policy has no distribution"),
        ({"arms": ("a", "b", "z")}, "the policy has no distribution"),
        ({"arms": ()}, "the policy has no distribution"),
        ({"policy": "uniform"}, "version 7 is of policy 'preferring', not 'uniform'"),
        ({"shadow": (0.2, 0.2, 0.6)}, "a probability of the policy in the shadow differs by"),
        ({"mode": Mode.FORCED}, "a probability differs by"),
    ],
)
def test_a_changed_row_is_not_verified_and_told_why(changes: dict[str, Any], why: str) -> None:
    policy = Preferring(a=0.5, b=0.3, c=0.2)
    made = drawn_by(policy)
    assert verify(made, policy, SALT).verified
    found = verify(change(made, **changes), policy, SALT)
    assert not found.verified
    assert any(why in sentence for sentence in found.why), found.why
    json.dumps(found.reply("d-1").model_dump(), allow_nan=False)


@pytest.mark.parametrize(
    ("difference", "equal"), [(5e-13, True), (9e-10, True), (2e-9, False), (1e-6, False)]
)
def test_probabilities_are_compared_to_a_billionth(difference: float, equal: bool) -> None:
    policy = Preferring(a=0.5, b=0.3, c=0.2)
    made = drawn_by(policy)
    first, *others = made.probabilities
    assert verify(replace(made, probabilities=(first + difference, *others)), policy, SALT).verified is equal


def test_a_distribution_that_was_padded_with_zeros_is_not_verified() -> None:
    policy = Fixed("a")
    made = drawn_by(policy)
    assert verify(made, policy, SALT).verified
    padded = replace(made, probabilities=(*made.probabilities, 0.0))
    found = verify(padded, policy, SALT)
    assert not found.verified
    assert len(found.why) == 1


@pytest.mark.parametrize("mode", [Mode.EXPLORE, Mode.GREEDY])
def test_an_arm_that_was_not_drawn_is_not_verified_whatever_the_probabilities(mode: Mode) -> None:
    policy = Preferring(a=0.5, b=0.3, c=0.2)
    made = drawn_by(policy, mode=mode)
    for arm in {*made.arms, "elsewhere"} - {made.drawn}:
        found = verify(replace(made, drawn=arm), policy, SALT)
        assert (found.verified, found.distribution.same, found.arm) == (False, True, made.drawn)
        assert found.reply("d-1").draw.agrees is False
        assert found.reply("d-1").max_difference == 0.0
        assert f"arm {arm!r} is on record, {made.drawn!r} comes out" in found.why[0]


def test_with_another_salt_draws_disagree_as_often_as_they_fall_elsewhere_and_that_is_explained() -> None:
    policy = Preferring(a=1.0, b=1.0, c=1.0)
    made = [drawn_by(policy, f"d-{i}") for i in range(900)]
    found = [verify(one, policy, "another salt") for one in made]
    wrong = [one for one in found if not one.verified]
    # 2 of 3 fall on another arm: 600, with a standard deviation of 14.1
    assert abs(len(wrong) - 600) < 5 * 14.2
    assert all(one.distribution.same for one in found)
    assert all("or the log had another secret when it was drawn" in one.why[0] for one in wrong)


def test_changed_features_give_another_distribution() -> None:
    policy = LinUCB()
    for i in range(30):
        river = float(i % 2)
        seen = Context("?", {"river": river, "hill": 1.0 - river})
        arm = "a" if i % 3 else "b"
        taught = Decision(f"t-{i}", seen, ("a", "b"), (0.5, 0.5), arm, "linucb", 1)
        policy.learn(taught, 1.0 if (arm == "a") == bool(river) else -1.0)
    seen = Context("?", {"river": 1.0})
    p = compute_served_distribution(policy, seen, ("a", "b"), 0.05)
    made = Decision(
        "d-1",
        seen,
        ("a", "b"),
        tuple(p.tolist()),
        "a",
        "linucb",
        1,
        Mode.GREEDY,
        steps={"floor": {"least": 0.05}},
    )
    assert verify(made, policy, SALT).verified
    changed = replace(made, context=Context("?", {"hill": 1.0}))
    assert not verify(changed, policy, SALT).distribution.same


def test_a_named_arm_stands_alone_with_probability_1() -> None:
    policy = Preferring(a=1.0)
    named = Decision("d-1", Context("?"), ("b",), (1.0,), "b", "preferring", 7, Mode.FORCED)
    found = verify(named, policy, SALT)
    assert (found.verified, found.u, found.arm) == (True, None, "b")
    for changes in (
        {"probabilities": (0.5,)},
        {"drawn": "a"},
        {"arms": ("b", "c"), "probabilities": (0.5, 0.5)},
        {"arms": ("b", "c"), "probabilities": (1.0, 0.0)},
    ):
        assert not verify(replace(named, **changes), policy, SALT).verified


# -- over HTTP ---------------------------------------------------------------------------------------


async def verified(service: Service, decision_id: str) -> dict[str, Any]:
    response = await service.client.get(f"/v1/decisions/{decision_id}/verify")
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def taught(service: Service) -> str:
    """Let it learn what separates its arms, and return a decision that it took afterwards."""
    for i in range(12):
        arm = ("none", "bm25", "dense")[i % 3]
        question = "which river runs?" if i % 2 else "who climbed?"
        made = (await look_up(service, query=question)).json()["agent"]
        await tell(service, made["decision_id"], 1.0 if (made["arm_drawn"] == arm) == bool(i % 2) else -1.0)
    await service.learn()
    return str((await ask(service)).json()["agent"]["decision_id"])


async def decided(service: Service) -> str:
    return str((await look_up(service)).json()["agent"]["decision_id"])


def rewrite(service: Service, decision_id: str, **columns: Any) -> None:
    """Change a row behind the back of the service."""
    with service.replica.store.writing() as connection:
        found = sa.update(t.decisions).where(t.decisions.c.id == decision_id).values(**columns)
        assert connection.execute(found).rowcount == 1


@pytest.mark.parametrize(
    "policy",
    [
        {"kind": "vowpal", "params": {"args": "--cb_explore_adf --epsilon 0.05"}},
        {"kind": "linucb"},
        {"kind": "linear_thompson"},
    ],
    ids=lambda policy: policy["kind"],
)
@pytest.mark.slow
async def test_decisions_verify_after_more_learning(tmp_path: Path, policy: dict[str, Any]) -> None:
    async with Service(tmp_path, policy=policy).running() as service:
        decision_id = await taught(service)
        await tell(service, decision_id)
        await service.learn()
        greedy = (await ask(service, agent={"explore": False})).json()["agent"]["decision_id"]
        for one in (decision_id, greedy, await forced(service, "dense")):
            found = await verified(service, one)
            assert (found["verified"], found["max_difference"], found["why"]) == (True, 0.0, [])
            assert found["logged"] == found["recomputed"]
            told = (await service.client.get(f"/v1/decisions/{one}")).json()
            assert found["logged"] == told["pmf"]
            assert (found["policy_version"], found["mode"]) == (told["policy_version"], told["mode"])
            assert found["draw"]["arm"] == told["arm_drawn"]
            assert (found["shadow"], told["shadow"]) == (None, None)


async def test_a_propensity_that_was_changed_beside_its_distribution_is_noticed(on_each: Service) -> None:
    for decision_id in (await decided(on_each), await forced(on_each, "bm25")):
        assert (await verified(on_each, decision_id))["verified"]
        rewrite(on_each, decision_id, propensity=0.123)
        found = await verified(on_each, decision_id)
        assert not found["verified"]
        assert found["why"][0].startswith("the propensity on record is 0.123, and among the probabilities ")


async def test_an_arm_that_was_named_is_verified_without_its_policy(service: Service) -> None:
    decision_id = await forced(service, "bm25")
    rewrite(service, decision_id, version=99)
    found = await verified(service, decision_id)
    assert (found["verified"], found["logged"], found["mode"]) == (True, {"bm25": 1.0}, "forced")


async def test_labels_have_no_policy_and_unknown_ids_no_decision(service: Service) -> None:
    label = replace(decision("label-1"), policy=LABELS, version=0)
    label_turns.insert(
        service.replica.store,
        [label_turns.LabelTurn(label, execution("label-1"), (value("label-1", "thumb"),))],
    )
    path = "/v1/decisions/label-1/verify"
    message = refused(await service.client.get(path), 409, "not_drawn", "decision_id")
    assert message == "no policy drew 'label-1': it is a label"
    path = "/v1/decisions/nobody/verify"
    refused(await service.client.get(path), 404, "decision_not_found", "decision_id")


async def test_a_version_that_is_not_there_cannot_vouch_for_a_decision(service: Service) -> None:
    decision_id = await taught(service)
    rewrite(service, decision_id, version=99)
    path = f"/v1/decisions/{decision_id}/verify"
    assert "no version 99" in refused(
        await service.client.get(path), 409, "version_unavailable", "decision_id"
    )


# -- policies of the past ----------------------------------------------------------------------------


async def test_policies_of_the_past_are_asked_one_at_a_time_and_only_so_many_wait(service: Service) -> None:
    past, version = service.replica.versions.history, service.replica.versions.version
    assert version is not None
    gate, running, most = threading.Event(), 0, 0

    def question(_policy: Policy) -> str:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        assert gate.wait(10)
        running -= 1
        return "answered"

    asked = [past.submit([version], question) for _ in range(MAX_QUEUED)]
    with pytest.raises(BusyError, match=f"{MAX_QUEUED} calls"):
        past.submit([version], question)
    path = f"/v1/decisions/{await decided(service)}/verify"
    refused(await service.client.get(path), 503, "overloaded")
    gate.set()
    assert [await asyncio.wrap_future(one) for one in asked] == ["answered"] * MAX_QUEUED
    assert most == 1
    assert (await service.client.get(path)).json()["verified"], "there is room again"


async def test_a_question_that_fails_makes_room_too(service: Service) -> None:
    version = service.replica.versions.version
    assert version is not None

    def failing(_policy: Policy) -> None:
        raise PolicyError("no")

    for _ in range(2 * MAX_QUEUED):
        with pytest.raises(PolicyError, match="no"):
            await asyncio.wrap_future(service.replica.versions.history.submit([version], failing))


@pytest.mark.parametrize("policy", ["vowpal", "linear_thompson"])
@pytest.mark.slow
async def test_a_policy_with_lost_bytes_still_verifies(tmp_path: Path, policy: str) -> None:
    async with Service(tmp_path, policy={"kind": policy}).running() as service:
        made = [await taught(service) for _ in range(3)]
        with service.replica.store.writing() as connection:
            connection.execute(sa.update(t.versions).values(state=None))
        for one in made:
            found = await verified(service, one)
            assert (found["verified"], found["max_difference"]) == (True, 0.0)
        with service.replica.store.writing() as connection:
            connection.execute(sa.update(t.examples).values(metrics={"thumb": 1.0}))
        for one in made[1:]:
            assert (await verified(service, one))["verified"], "the last two are kept"
        response = await service.client.get(f"/v1/decisions/{made[0]}/verify")
        assert "gives another state" in refused(response, 409, "version_unavailable", "decision_id")


async def test_a_policy_names_arms_that_are_gone_since(tmp_path: Path) -> None:
    fixed = {"kind": "fixed", "params": {"arm": "dense"}}
    async with Service(tmp_path, policy=fixed).running() as service:
        made = (await look_up(service)).json()["agent"]["decision_id"]
        version = service.replica.versions.version
    arms = {"none": {"kind": "none"}, "bm25": {"kind": "bm25"}}
    async with Service(tmp_path, arms=arms).running() as service:
        assert (await verified(service, made))["verified"]
        assert version is not None
        past = PolicyHistory(service.replica.store, service.config.reward)
        found = await asyncio.wrap_future(past.submit([version], lambda policy: policy))
        assert isinstance(found, Fixed)
        past.close()


@pytest.mark.slow
async def test_of_earlier_policies_the_two_that_were_used_last_are_kept(service: Service) -> None:
    first, second, third = [await taught(service) for _ in range(3)]
    for one in (first, second, first, third):
        await verified(service, one)
    with service.replica.store.writing() as connection:
        connection.execute(sa.update(t.versions).values(state=None))
        connection.execute(sa.update(t.examples).values(metrics={"thumb": 1.0}))
    for one in (first, third):
        assert (await verified(service, one))["verified"]
    response = await service.client.get(f"/v1/decisions/{second}/verify")
    refused(response, 409, "version_unavailable", "decision_id")


async def test_a_policy_that_cannot_be_built_any_more_is_named(service: Service) -> None:
    decision_id = await taught(service)
    version = service.replica.versions.version
    assert version is not None
    with service.replica.store.writing() as connection:
        row = sa.update(t.versions).where(t.versions.c.version == version.version)
        connection.execute(row.values(policy={"kind": "oracle", "params": {}}))
    found = versions.find(service.replica.store, version.version)
    assert found is not None
    path = f"/v1/decisions/{decision_id}/verify"
    assert "oracle" in refused(await service.client.get(path), 409, "version_unavailable", "decision_id")

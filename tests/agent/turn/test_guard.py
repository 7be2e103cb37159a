"""A guard: its reference has a share of each class, or all of a class that went back, exactly as logged."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from armwise.agent.config import ConfigError, parse
from armwise.agent.console.course import read_marks
from armwise.agent.evaluation.candidates import PolicyCandidate
from armwise.agent.policies import Exploration, Fixed, sampling
from armwise.agent.turn import Ask, Canary, Serving
from armwise.agent.turn.steps.base import DrawInputs
from armwise.agent.turn.steps.canary import CanaryStep
from armwise.agent.turn.steps.guard import GuardStep
from armwise.agent.turn.steps.incumbent import IncumbentStep
from armwise.feedback import guard as watching
from armwise.feedback.clock import SteadyClock
from armwise.feedback.events import Context, Cost, Decision, Example
from armwise.feedback.guard import Fall, GuardSpec, Returned, make_key
from armwise.feedback.log import Operation, operations
from armwise.feedback.training_log.summary import LogSums
from tests.agent.asking import look_up, tell
from tests.agent.evaluation.test_evaluate import evaluated, of
from tests.agent.fakes import CONFIG, Preferring, Service
from tests.agent.turn.test_turn import ARMS, MemoryLog, a_loop
from tests.agent.turns import draw, make_decider, verify

NAMES = tuple(ARMS)
SPEC = GuardSpec(reference="dense", by="task", share=0.2)
BACK = Returned((Fall(make_key("tax"), "tax", "dense", 79.0, 94.0, 900, 900),))
PREFERS = Preferring(none=0.7, bm25=0.25, dense=0.05)


def decide(number: int, task: str, returned: Returned = BACK, **changes: Any) -> Decision:
    steps = changes.pop("steps", [])
    serving = Serving(PREFERS, 1, changes.pop("canaries", ()))
    decider = make_decider(
        serving, Exploration(0.06), steps=[*steps, GuardStep(SPEC, lambda: returned)], clock=lambda: 5.0
    )
    guard = next(step for step in decider.steps if isinstance(step, GuardStep))
    decider.steps = [CanaryStep("salt", guard) if step.name == "canary" else step for step in decider.steps]
    decider.steps.sort(key=lambda step: step.name == "guard")  # after the floor
    context = Context("q?", {"w=q": 1.0, f"task={task}": 1.0})
    asked = Ask(f"d-{number}", "q?", **changes)
    return draw(decider, asked, context, a_loop(MemoryLog()).arms)


@given(
    st.lists(st.floats(0.0, 1.0), min_size=2, max_size=5),
    st.floats(0.0, 0.1),
    st.floats(0.0, 1.0),
    st.integers(0, 4),
)
def test_the_reference_has_its_share_and_every_arm_the_floor(
    weights: list[float], floor: float, share: float, at: int
) -> None:
    n = len(weights)
    p = sampling.mix_floor(np.array(weights) / sum(weights) if sum(weights) else np.full(n, 1 / n), floor)
    arms = [str(i) for i in range(n)]
    draw_inputs = DrawInputs(Context("?"), arms, floor, (), {}.__getitem__)
    reference = at % n
    q = GuardStep.distribute({"reference": str(reference), "share": share}, draw_inputs, p)
    assert q.sum() == pytest.approx(1.0, abs=1e-12)
    assert q.min() >= floor * (1.0 - 1e-9)
    most = 1.0 - (n - 1) * floor
    assert q[reference] == pytest.approx(max(p[reference], min(share, most)), abs=1e-12)
    others = np.arange(n) != reference
    assert (q[others] <= p[others] + 1e-12).all()


@pytest.mark.parametrize(("task", "share"), [("tax", 1.0), ("code", 0.2)])
def test_draws_follow_what_is_logged_and_every_row_verifies(task: str, share: float) -> None:
    canaries = (Canary(Fixed("bm25"), 9, 0.3),)
    made = [decide(number, task, canaries=canaries) for number in range(1500)]
    p = np.array(made[0].probabilities)
    floor = made[0].floor
    assert floor is not None
    assert dict(zip(made[0].arms, p, strict=True))["dense"] == pytest.approx(min(share, 1.0 - 2 * floor))
    assert {one.probabilities for one in made} == {made[0].probabilities}
    counts = np.array([sum(one.drawn == arm for one in made) for arm in made[0].arms])
    assert chisquare(counts, len(made) * p).pvalue > 1e-3
    for one in made[:50]:
        found = verify(one, PREFERS, "salt", one.propensity, Fixed("bm25"))
        assert found.verified, found.why
    record = made[0].steps["guard"]
    assert record == {"reference": "dense", "share": 1.0 if task == "tax" else 0.2}
    changed = {**made[0].steps, "guard": {**record, "share": 0.4}}
    other = Decision(**{name: getattr(made[0], name) for name in Decision.__slots__} | {"steps": changed})
    assert not verify(other, PREFERS, "salt", other.propensity, Fixed("bm25")).verified


def test_a_class_that_went_back_has_no_candidate_and_its_floor_stays_whole() -> None:
    canaries = (Canary(Fixed("bm25"), 9, 0.3),)
    made = decide(1, "tax", canaries=canaries)
    assert "canary" not in made.steps
    assert made.floor == decide(1, "tax").floor == pytest.approx(0.02)
    assert dict(zip(made.arms, made.probabilities, strict=True)) == pytest.approx(
        {"none": 0.02, "bm25": 0.02, "dense": 0.96}
    )
    assert decide(1, "code", canaries=canaries).steps["canary"]["share"] == 0.3
    assert "canary" in decide(1, "tax", canaries=canaries, excluded=frozenset({"dense"})).steps


def test_a_guard_leaves_alone_what_is_not_its_to_decide() -> None:
    assert "guard" not in decide(1, "tax", forced="bm25").steps
    assert "guard" not in decide(1, "tax", excluded=frozenset({"dense"})).steps
    mixed = decide(1, "tax", steps=[IncumbentStep(0.5, {"none": 1.0})])
    assert "guard" not in mixed.steps
    assert decide(1, "tax", explore=False).drawn == "dense"
    assert decide(1, "code", explore=False).drawn == "none"


def test_a_replay_has_the_guard_bind_its_candidates() -> None:
    made = decide(1, "tax")
    one = PolicyCandidate("", "", frozenset(NAMES), Fixed("none"), Exploration(0.06))
    for arms, expected in (
        (made.arms, {"none": 0.02, "bm25": 0.02, "dense": 0.96}),
        (("none", "bm25"), {"none": 0.97, "bm25": 0.03}),
    ):
        (p,) = one.replay([Example(1, made, Cost(), {})], [arms], [None])
        assert not isinstance(p, str)
        assert dict(zip(arms, p, strict=True)) == pytest.approx(expected)


# -- of a service -------------------------------------------------------------------------------------


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard that is certain after a few answers."""
    monkeypatch.setattr(watching, "ERROR", 0.2)
    monkeypatch.setattr(watching, "EARLY", 5)


class Passing:
    """A clock that an hour can be added to."""

    def __init__(self) -> None:
        self.hours = 0

    def make(self) -> SteadyClock:
        def shifted(clock: Callable[[], float]) -> Callable[[], float]:
            return lambda: clock() + 3600.0 * self.hours

        return SteadyClock(shifted(time.time), shifted(time.monotonic))


def a_service(folder: Path, **changes: Any) -> Service:
    settings = {
        "policy": {"kind": "fixed", "params": {"arm": "none"}},
        "guard": {"reference": "dense", "by": "task", "share": 0.3},
        "exploration": 0.06,
    }
    return Service(folder, **{**settings, **changes})


async def converse(service: Service, n: int, begin: int = 0) -> list[dict[str, Any]]:
    """Ask of two classes in turn, and rate: on taxes the reference alone is right."""
    records = []
    for number in range(begin, begin + n):
        task = ("tax", "code")[number % 2]
        made = await look_up(service, {"Idempotency-Key": f"d-{number}"}, agent={"context": {"task": task}})
        arm = made.json()["agent"]["arm_drawn"]
        await tell(service, f"d-{number}", 1.0 if task == "code" or arm == "dense" else -1.0)
        records.append((await service.client.get(f"/v1/decisions/d-{number}")).json())
    await service.learn()
    return records


def recorded(service: Service, kind: Operation) -> list[dict[str, Any]]:
    with service.replica.store.reading() as connection:
        return [row.document for row in operations.read_all(connection, kind)]


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
async def test_a_class_that_became_worse_goes_back_and_stays_there_after_a_restart(tmp_path: Path) -> None:
    passing = Passing()
    async with a_service(tmp_path, clock=passing.make()).running() as service:
        await service.learn()
        first = await converse(service, 118)
        assert recorded(service, Operation.FALL) == [], "slow ratings may still come"
        passing.hours += 1
        first += await converse(service, 2, 118)
        assert {record["steps"]["guard"]["share"] for record in first} == {0.3}
        assert [record["pmf"]["dense"] for record in first] == pytest.approx([0.3] * 120)
        (event,) = recorded(service, Operation.FALL)
        assert (event["name"], event["reference"]) == ("tax", "dense")
        assert event["points"] < 10 < 90 < event["reference_points"]
        second = await converse(service, 4, 120)
        assert [record["steps"]["guard"]["share"] for record in second] == [1.0, 0.3, 1.0, 0.3]
        assert second[0]["pmf"]["dense"] == pytest.approx(0.96)
        for number in (3, 120, 121):
            verified = (await service.client.get(f"/v1/decisions/d-{number}/verify")).json()
            assert verified["verified"], verified["why"]
        shown = (await service.client.get("/v1/policy")).json()["guard"]
        assert (shown["reference"], shown["classes_back"], shown["since"] is None) == ("dense", 1, False)
        assert "armwise_guard_classes_back 1.0" in (await service.client.get("/metrics")).text
        assert "1 class back to dense" in (await service.client.get("/console/details")).text
        marks = (await service.client.get("/console")).text
        assert "Guard: Class &#39;tax&#39; went back to dense" in marks
        store, rule = service.replica.store, service.config.reward
        report = evaluated(service.config, store, "configured", estimators=["ips"], gate=True)
        verdict = of(report, "configured")["verdict"]
        assert verdict is not None
        assert (verdict["figures"]["checked"], verdict["figures"]["mismatched"]) == (118, 0)
        assert verdict["figures"]["gain"] == pytest.approx(0.0, abs=1e-12), "it is what served, guard and all"
        (mark,) = read_marks(store, rule, LogSums(), named=False)
        assert mark.what.startswith("Guard: A class of requests went back to dense")
        assert "task=tax" not in str(second[0]["steps"]["guard"])
    async with a_service(tmp_path, clock=passing.make()).running() as service:
        third = await converse(service, 2, 124)
        assert [record["steps"]["guard"]["share"] for record in third] == [1.0, 0.3]
        assert len(recorded(service, Operation.FALL)) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
async def test_a_guard_that_is_removed_frees_its_classes_for_good_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    passing = Passing()
    async with a_service(tmp_path, clock=passing.make()).running() as service:
        await service.learn()
        await converse(service, 118)
        passing.hours += 1
        await converse(service, 2, 118)
        assert len(service.replica.versions.state.returned.falls) == 1
    async with a_service(tmp_path, guard=None, clock=passing.make()).running() as service:
        (record, _) = await converse(service, 2, 120)
        assert "guard" not in record["steps"]
        assert (await service.client.get("/v1/policy")).json()["guard"] is None
        assert recorded(service, Operation.GUARD) == []
        assert "1 class(es) that had gone back are free again" in caplog.text
    async with a_service(tmp_path, clock=passing.make()).running() as service:
        (record, _) = await converse(service, 2, 122)
        assert record["steps"]["guard"]["share"] == 0.3
        assert len(recorded(service, Operation.FALL)) == 2, "the history stays"


def test_the_reference_is_an_arm() -> None:
    with pytest.raises(ConfigError, match=r"guard.reference 'dens' is not an arm.*dense"):
        parse({**CONFIG, "guard": {"reference": "dens"}})
    assert parse({**CONFIG, "guard": {"reference": "dense"}}).guard == GuardSpec(reference="dense")
    assert parse(CONFIG).guard is None

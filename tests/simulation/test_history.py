"""The checker of histories finds each thing that must not be, in logs written by hand."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from math import exp
from typing import Any

import pytest

from tests.simulation.history import (
    Admitted,
    Answered,
    Ceiling,
    Erased,
    History,
    Kept,
    Means,
    Rule,
    find_faults,
    find_lost_evaluations,
    find_other_alarms,
    find_other_draws,
    find_wrong_prices,
)
from tests.steps import record

RULE = Rule({"thumb": "last", "right": "mean"}, at_once=False, grace_s=2.0)


ARMS = ("none", "bm25")


def make_decision(
    seq: int, name: str, at: float, *, price: float = 0.0, costs: Sequence[float] = (), **changes: Any
) -> dict[str, Any]:
    return {
        "seq": seq,
        "id": name,
        "decided_at": at,
        "deadline": at + 10.0,
        "logged_at": at,
        "mode": "explore",
        "version": 1,
        "steps": record(ARMS, floor=0.1, price=price, costs=costs),
        "drawn": "bm25",
        "propensity": 0.75,
        "episode_id": None,
        "deferred": False,
        "arms": [*ARMS],
        "probabilities": [0.25, 0.75],
        "features": {},
        **changes,
    }


def make_log() -> dict[str, Any]:
    """Return a sound log: one decision with two values, learned when its time was over, and one without."""
    tables: dict[str, Any] = {
        "decisions": [make_decision(1, "a", 100.0), make_decision(5, "b", 113.0)],
        "executions": [
            {"seq": 2, "decision_id": "a", "finished_at": 101.0, "status": "ok", "served": "bm25"},
            {"seq": 6, "decision_id": "b", "finished_at": 114.0, "status": "arm_failed", "served": None},
        ],
        "feedback": [],
        "observations": [],
        "texts": [],
        "ticks": [{"seq": 7, "at": 130.0}],
        "log": [{"seq": 7}],
        "examples": [
            {"seq": 1, "decision_id": "a", "metrics": {"thumb": -1.0, "right": 0.5}, "joined_by": 5}
        ],
        "versions": [
            {"version": 1, "recipe": "r", "examples_seq": 0, "epoch": 1},
            {"version": 2, "recipe": "r", "examples_seq": 1, "epoch": 2},
        ],
    }
    for seq, name, metric, value in ((3, "f", "thumb", 1.0), (4, "g", "thumb", -1.0)):
        tables["feedback"].append(make_feedback(seq, name, metric, value))
    tables["decisions"][1]["seq"] = 7
    tables["executions"][1]["seq"] = 8
    for seq, text in {1: "which river?", 7: "which river?", 2: "the Danube", 8: "the Danube"}.items():
        tables["texts"].append({"seq": seq, "document": {"question" if seq in (1, 7) else "answer": text}})
    tables["ticks"][0]["seq"] = 9
    tables["feedback"] += [make_feedback(5, "h", "right", 1.0), make_feedback(6, "i", "right", 0.0)]
    tables["log"][0]["seq"] = 9
    tables["examples"][0]["joined_by"] = 7
    return tables


def make_feedback(seq: int, name: str, metric: str, value: float | None, **changes: Any) -> dict[str, Any]:
    return {
        "seq": seq,
        "id": name,
        "kind": "value",
        "decision_id": "a",
        "episode_id": None,
        "metric": metric,
        "value": value,
        "received_at": 101.0 + seq / 10,
        "labels": None,
        **changes,
    }


TOLD = {
    "policy_version": 1,
    "mode": "explore",
    "arm_drawn": "bm25",
    "propensity": 0.75,
    "pmf": {"none": 0.25, "bm25": 0.75},
    "reward_deadline": 110.0,
    "episode_id": None,
}


def make_history() -> History:
    return History(
        answered=[Answered("a", TOLD, "bm25", "the Danube")],
        kept=[Kept("f", "value", "a", None, "thumb", 1.0, 3)],
        erased=[Erased("b", ("secret",))],
        admitted=[
            Admitted("k", "a", 2, 60.0, 61.0),
            Admitted("k", "a", 2, 62.0, 63.0),
            Admitted("k", "a", 2, 119.0, 121.0),
        ],
    )


def kinds(history: History, tables: dict[str, Any], rule: Rule = RULE) -> set[str]:
    return {fault.kind for fault in find_faults(history, tables, rule, settled=True)}


def test_a_sound_log_has_no_fault() -> None:
    assert find_faults(make_history(), make_log(), RULE, settled=True) == []


Breakage = Callable[[History, dict[str, Any]], object]


def swap(table: str, index: int, **changes: Any) -> Breakage:
    return lambda _, tables: tables[table][index].update(changes)


def drop(table: str, index: int) -> Breakage:
    return lambda _, tables: tables[table].pop(index)


def again(table: str, index: int, **changes: Any) -> Breakage:
    return lambda _, tables: tables[table].append({**deepcopy(tables[table][index]), **changes})


def told(**changes: Any) -> Breakage:
    return lambda history, _: history.answered.append(
        Answered("a", {**TOLD, **changes}, "bm25", "the Danube")
    )


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        (drop("decisions", 0), "lost"),
        (drop("executions", 0), "lost"),
        (drop("feedback", 0), "lost"),
        (swap("texts", 2, document={"answer": "the Rhine"}), "changed"),
        (swap("executions", 0, served="none"), "changed"),
        (swap("feedback", 0, value=0.5), "changed"),
        (swap("feedback", 0, seq=10), "changed"),
        (swap("feedback", 0, decision_id="b"), "changed"),
        (told(arm_drawn="none"), "changed"),
        (told(propensity=0.25), "changed"),
        (told(pmf={"bm25": 1.0}), "changed"),
        (told(reward_deadline=111.0), "changed"),
        (told(policy_version=2), "changed"),
        (swap("log", 0, seq=10), "gap"),
        (swap("ticks", 0, seq=8), "gap"),
        (again("decisions", 0), "gap"),
        (again("executions", 0), "gap"),
        (again("feedback", 0), "gap"),
        (swap("executions", 1, decision_id="c"), "gap"),
        (again("examples", 0, seq=2), "twice"),
        (swap("examples", 0, seq=2), "learned"),
        (drop("examples", 0), "learned"),
        (swap("examples", 0, decision_id="b"), "learned"),
        (swap("examples", 0, joined_by=6), "learned"),
        (swap("examples", 0, joined_by=1), "learned"),
        (swap("examples", 0, metrics={"thumb": 1.0, "right": 0.5}), "learned"),
        (swap("examples", 0, metrics={"thumb": -1.0, "right": 0.0}), "learned"),
        (swap("examples", 0, metrics={"thumb": -1.0}), "learned"),
        (swap("feedback", 1, kind="retraction", id="f"), "learned"),
        (swap("feedback", 1, received_at=110.1), "learned"),
        (swap("decisions", 0, mode="forced"), "learned"),
        (swap("decisions", 0, deferred=True), "learned"),
        (swap("decisions", 0, episode_id="e"), "changed"),
        (swap("feedback", 1, decision_id=None, episode_id="e"), "learned"),
        (swap("executions", 0, status="fell_back"), "learned"),
        (swap("versions", 0, examples_seq=2), "version"),
        (swap("versions", 0, epoch=3), "version"),
        (swap("decisions", 1, version=3), "propensity"),
        (swap("decisions", 1, probabilities=[0.25, 0.5], propensity=0.5), "propensity"),
        (swap("decisions", 1, propensity=0.25), "propensity"),
        (swap("decisions", 1, drawn="dense"), "propensity"),
        (swap("decisions", 1, probabilities=[0.05, 0.95], propensity=0.95), "propensity"),
        (lambda history, _: history.admitted.append(Admitted("k", "a", 2, 64.0, 65.0)), "quota"),
        (swap("texts", 1, document={"question": "a secret river"}), "erased"),
        (swap("decisions", 1, features={"of secret": 1.0}), "erased"),
        (swap("texts", 3, document={"answer": "the Danube", "passages": ["secret-1"]}), "erased"),
        (swap("feedback", 3, labels={"label": "secret"}), "erased"),
    ],
)
def test_what_must_not_be_is_found(broken: Breakage, kind: str) -> None:
    history, tables = make_history(), make_log()
    broken(history, tables)
    assert kind in kinds(history, tables)


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, []),
        ({"seq": 4}, ["lost"]),
        ({"status": "failed", "error": "out of memory"}, ["lost"]),
        ({"status": "running"}, ["lost"]),
        ({"result": {"asked": {"candidates": ["fixed:bm25"]}}}, ["changed"]),
    ],
)
def test_an_evaluation_that_was_accepted_ends_with_its_own_result(
    changes: dict[str, Any], kinds: list[str]
) -> None:
    history = History(evaluations=[(3, ("uniform",))])
    row = {"seq": 3, "status": "done", "error": None, "result": {"asked": {"candidates": ["uniform"]}}}
    tables = {"jobs": [{**row, **changes}]}
    found = find_lost_evaluations(history, tables, settled=True)
    assert [fault.kind for fault in found] == kinds
    unsettled = find_lost_evaluations(history, tables, settled=False)
    assert [fault.kind for fault in unsettled] == (["lost"] if "seq" in changes else [])


CEILING = Ceiling(steps=0.5, window=20)


def make_paced_log() -> dict[str, Any]:
    """Return three decisions at the price of the moment, a forced one, and a price after each of the three.

    The ceiling is half a step in twenty requests, ten steps in all, so that an overspend of a ceiling raises
    the price by the exponential of .2. The first decision has a step: one ceiling over. The next two have two
    and none: 3 over, and -1, beside which a twentieth and a fifth of ten steps are owed.
    """
    first = 0.2 * exp(0.2)
    second = first * exp(0.2 * (3.0 + 0.05))
    third = second * exp(0.2 * (-1.0 + 0.2))
    costs = (1, "explore", 0.0), (9, "forced", 0.0), (2, "explore", first), (0, "explore", second)
    tables: dict[str, Any] = {"decisions": [], "executions": [], "prices": []}
    for number, (steps, mode, price) in enumerate(costs, 1):
        decision = make_decision(2 * number - 1, f"d{number}", 100.0, mode=mode, price=price)
        tables["decisions"].append(decision)
        tables["executions"].append({"seq": 2 * number, "decision_id": f"d{number}", "steps": steps})
    paced = (2, first, 0.5, 1.0), (6, second, 2.0, 1.5), (8, third, 1.5, 1.0)
    for number, (log_seq, price, debt, mean) in enumerate(paced, 1):
        row = {"seq": number, "log_seq": log_seq, "price": price, "debt": debt, "at": 100.0 + 10.0 * number}
        tables["prices"].append({**row, "arms": {"bm25": [number, mean]}})
    return tables


def test_prices_follow_from_the_costs_before_them() -> None:
    assert [*find_wrong_prices(make_paced_log(), CEILING)] == []
    later = make_paced_log()
    paced = {"price": 0.2 * exp(0.2 * -1.0), "debt": -0.5, "arms": {"bm25": [1, 0.0]}}
    later["prices"] = [{"seq": 1, "log_seq": 8, **paced}]
    assert [*find_wrong_prices(later, CEILING)] == [], "the learner began after the third"


@pytest.mark.parametrize(
    "broken",
    [
        swap("prices", 0, debt=1.0),
        swap("prices", 1, price=0.3),
        swap("prices", 1, log_seq=5),
        swap("prices", 2, log_seq=7),
        swap("executions", 2, steps=1),
        swap("decisions", 1, mode="explore"),
        swap("executions", 2, decision_id="d2"),
        swap("decisions", 2, drawn="none"),
        swap("prices", 1, arms={"bm25": [2, 1.0]}),
        swap("prices", 1, arms={"bm25": [3, 1.5]}),
        swap("prices", 1, arms={"none": [2, 1.5]}),
    ],
)
def test_a_price_that_does_not_follow_is_found(broken: Breakage) -> None:
    tables = make_paced_log()
    broken(History(), tables)
    assert {fault.kind for fault in find_wrong_prices(tables, CEILING)} == {"price"}


RANGES = {"thumb": (-1.0, 1.0), "right": (0.0, 1.0)}
MEANS = Means({"kind": "linucb"}, 0.5, 4.0, 1.0, RANGES, 0.1, (0.2, 0.4))


def make_taught_log() -> dict[str, Any]:
    """Return a decision that was learned, and one that was drawn from what it taught.

    Its reward is the mean of 0 and .5 less a tenth of two steps, .05. With the weight of four rewards on a
    prior of 1, the bound of its arm is 1 - .95 / 5 + .5 / sqrt(5) = 1.0336, that of the other 1 + .5 / 2.
    """
    tables = make_log()
    tables["decisions"][1] |= {"version": 2, "probabilities": [0.9, 0.1], "drawn": "none", "propensity": 0.9}
    for row in tables["decisions"]:
        row |= {"policy": "linucb"}
    tables["decisions"][0] |= {"probabilities": [0.5, 0.5], "propensity": 0.5}
    for row, steps in zip(tables["executions"], (2, 0), strict=True):
        row["steps"] = steps
    for row in tables["versions"]:
        row |= {"policy": {"kind": "linucb"}, "start": None}
    return tables


def test_distributions_are_those_that_a_version_gives_by_what_it_has_learned() -> None:
    tables = make_taught_log()
    assert [*find_other_draws(tables, MEANS)] == []
    tables["decisions"][1] |= {"steps": record(ARMS, floor=0.1, price=0.21, costs=(1.0, 0.0))}
    assert [*find_other_draws(tables, MEANS)] == [], "1.04 is still above 1.0336"
    priced = record(ARMS, floor=0.1, price=0.22, costs=(1.0, 0.0))
    tables["decisions"][1] |= {"steps": priced, "probabilities": [0.1, 0.9]}
    assert [*find_other_draws(tables, MEANS)] == [], "1.03 is not"
    tables["examples"][0]["metrics"] = {}
    tables["decisions"][1] |= {"steps": record(floor=0.1), "probabilities": [0.9, 0.1]}
    assert [*find_other_draws(tables, MEANS)] == [], "without a value the cost alone counts"


@pytest.mark.parametrize(
    "broken",
    [
        swap("decisions", 0, probabilities=[0.9, 0.1]),
        swap("decisions", 1, probabilities=[0.1, 0.9]),
        swap("decisions", 1, probabilities=[0.5, 0.5]),
        swap("decisions", 1, steps=record(floor=0.2)),
        swap("decisions", 1, steps=record(floor=0.05), probabilities=[0.95, 0.05]),
        swap("decisions", 1, version=0),
        swap("decisions", 1, steps=record(ARMS, floor=0.1, price=0.22, costs=(1.0, 0.0))),
        swap("versions", 0, examples_seq=1),
        swap("versions", 1, examples_seq=0),
        swap("decisions", 0, drawn="none"),
    ],
)
def test_another_distribution_is_found(broken: Breakage) -> None:
    tables = make_taught_log()
    broken(History(), tables)
    assert {fault.kind for fault in find_other_draws(tables, MEANS)} == {"propensity"}


@pytest.mark.parametrize(
    ("values", "steps", "reward"),
    [
        ({"thumb": 1.0}, 0, 1.0),
        ({"thumb": 0.0, "right": 1.0}, 1, 0.65),
        ({}, 1, -0.1),
        ({"right": 0.0}, 20, -1.0),
    ],
)
def test_a_reward_is_the_mean_of_its_values_less_its_cost(
    values: dict[str, float], steps: int, reward: float
) -> None:
    assert MEANS.reward(values, steps) == pytest.approx(reward, abs=1e-12)


def test_alarms_are_those_of_the_changes_each_once() -> None:
    alarms = [{"subject": "reward of bm25", "example_seq": seq} for seq in (4, 9)]
    tables = {"alarms": alarms}
    assert [*find_other_alarms(tables, [("reward of bm25", 4), ("reward of bm25", 9)])] == []
    for detected in (
        [("reward of bm25", 4)],
        [("reward of bm25", 4), ("reward of bm25", 9), ("reward of none", 9)],
        [("reward of bm25", 4), ("reward of none", 9)],
        [("reward of bm25", 4), ("reward of bm25", 8)],
    ):
        assert {fault.kind for fault in find_other_alarms(tables, detected)} == {"alarm"}
    alarms.append(alarms[0])
    assert [*find_other_alarms(tables, [("reward of bm25", 4), ("reward of bm25", 9)])]

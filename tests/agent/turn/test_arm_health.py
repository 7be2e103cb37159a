"""How an arm is doing: when it rests and when it has no room, by a clock that is told the time."""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.agent.config import ConfigError, parse
from armwise.agent.turn import ArmHealth
from tests.agent.fakes import CONFIG

ARMS = ("none", "bm25", "dense")


class Clock:
    """Seconds."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Replica:
    """The health of arms whose searches fail or work as asked for."""

    def __init__(self, failures: int = 3, rest_s: float = 5.0, **caps: int) -> None:
        self.clock = Clock()
        self.health = ArmHealth(failures, rest_s, caps, self.clock)

    def search(self, arm: str, *outcomes: str, caller: str | None = None) -> None:
        """Search once for each outcome, one after the other."""
        for outcome in outcomes:
            with self.health.track(arm, caller=caller) as report:
                report(**{outcome: (arm,)})

    def able(
        self, arms: Sequence[str] = ARMS, searched: Collection[str] = (), caller: str | None = None
    ) -> list[str]:
        return self.health.available(arms, searched, caller)

    def rest(self, arm: str) -> float:
        """Wait until an arm is up again; return how long that took, in quarters of a second."""
        began = self.clock.now
        while self.health.is_open(arm):
            self.clock.now += 0.25
        return self.clock.now - began


def test_questions_that_an_arm_refuses_put_it_down_only_if_it_never_worked() -> None:
    replica = Replica()
    replica.search("bm25", "refused", "refused", "refused")
    assert replica.able() == ["none", "dense"]
    replica.search("dense", "worked", *["refused"] * 9)
    assert replica.able() == ["none", "dense"]
    replica.search("dense", "failed", "failed", "refused", "failed")
    assert replica.able() == ["none"]


def test_what_fails_for_one_caller_is_open_for_this_caller_alone() -> None:
    replica = Replica()
    replica.search("bm25", *["failed"] * 9, caller="one")
    assert replica.able(caller="one") == ["none", "dense"]
    assert replica.able(caller="other") == replica.able() == list(ARMS)
    assert replica.health.state("bm25").is_open
    replica.search("bm25", "worked", caller="other")
    assert replica.able(caller="one") == ["none", "dense"], "another one's success says nothing of these"
    replica.search("bm25", "worked", caller="one")
    assert replica.able(caller="one") == list(ARMS)


def test_an_arm_that_fails_for_two_callers_is_open_for_all_and_again_only_by_two() -> None:
    replica = Replica()
    replica.search("bm25", "failed", "failed", caller="one")
    replica.search("bm25", "failed", caller="other")
    assert replica.able(caller="third") == ["none", "dense"]
    assert replica.rest("bm25") == 5.0
    replica.search("bm25", *["failed"] * 9, caller="one")
    assert replica.able(caller="third") == list(ARMS), "one caller alone does not keep it open"
    replica.search("bm25", "failed", caller="other")
    assert replica.able(caller="third") == ["none", "dense"]
    assert replica.rest("bm25") == 10.0
    replica.search("bm25", "worked", "failed", caller="third")
    replica.search("bm25", "failed", caller="other")
    assert replica.able(caller="fourth") == list(ARMS), "a success makes failures not in a row"


def test_after_its_rest_one_more_failure_puts_it_down_for_twice_as_long_up_to_a_bound() -> None:
    replica = Replica(failures=2)
    replica.search("bm25", "failed")
    rests = []
    for _ in range(9):
        replica.search("bm25", "failed")
        rests.append(replica.rest("bm25"))
    assert rests == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 320.0, 320.0]


@pytest.mark.parametrize(("wanted", "rest"), [(0.5, 0.5), (300.0, 300.0), (301.0, 300.0), (1e9, 300.0)])
def test_a_model_rests_five_minutes_at_most(wanted: float, rest: float) -> None:
    replica = Replica(failures=3)
    with replica.health.track("bm25") as report:
        report(resting=("bm25",), rest_s=wanted)
    assert replica.rest("bm25") == rest
    assert replica.health.state("bm25").failures == 0


def test_a_model_whose_provider_names_no_time_does_not_rest() -> None:
    replica = Replica(failures=1)
    with replica.health.track("bm25") as report:
        report(resting=("bm25",))
    assert replica.able() == list(ARMS)


def test_a_rest_that_is_asked_for_does_not_shorten_the_pause_of_its_failures() -> None:
    replica = Replica(failures=1, rest_s=5.0)
    with replica.health.track("bm25") as report:
        report(failed=("bm25",))
    with replica.health.track("bm25") as report:
        report(resting=("bm25",), rest_s=1.0)
    assert replica.rest("bm25") == 5.0


def test_searches_that_began_before_the_rest_was_over_make_it_no_longer() -> None:
    replica = Replica(failures=2)
    with replica.health.track("bm25") as late, replica.health.track("bm25") as later:
        replica.search("bm25", "failed", "failed")
        replica.clock.now += 1.0
        late(failed=["bm25"])
        assert replica.rest("bm25") == 4.0
        later(failed=["bm25"])
        assert replica.able() == list(ARMS), "it was asked before it went down"
    replica.search("bm25", "failed")
    assert replica.rest("bm25") == 10.0


def test_where_all_are_down_any_may_be_drawn() -> None:
    replica = Replica(failures=1)
    for arm in ARMS:
        replica.search(arm, "failed")
    assert replica.able() == list(ARMS)
    assert replica.able(["dense"]) == ["dense"], "all that are left count, not all there are"


def test_a_search_that_was_cancelled_says_nothing() -> None:
    replica = Replica(failures=1, bm25=1)
    with pytest.raises(KeyboardInterrupt), replica.health.track("bm25"):
        raise KeyboardInterrupt
    assert replica.able() == list(ARMS)


def test_an_arm_that_has_searched_already_needs_no_room() -> None:
    replica = Replica(bm25=1)
    with replica.health.track("bm25"):
        assert replica.able(searched={"bm25"}) == list(ARMS)


def test_what_has_no_room_does_not_send_a_question_to_what_is_down() -> None:
    replica = Replica(failures=1, bm25=1)
    replica.search("dense", "failed")
    with replica.health.track("bm25"):
        assert replica.able(["bm25", "dense"]) == []


EVENTS = ("begin", "end", "worked", "failed", "wait")


@given(st.lists(st.tuples(st.sampled_from(ARMS), st.sampled_from(EVENTS)), max_size=40))
def test_an_arm_is_left_out_for_a_reason_and_for_no_other(history: list[tuple[str, str]]) -> None:
    replica = Replica(failures=2, rest_s=3.0, bm25=1, dense=2)
    room = {"none": len(history) + 1, "bm25": 1, "dense": 2}
    failures, until = dict.fromkeys(ARMS, 0), dict.fromkeys(ARMS, 0.0)
    under_way: dict[str, list[AbstractContextManager[object]]] = {arm: [] for arm in ARMS}
    for arm, event in history:
        if event == "wait":
            replica.clock.now += 1.0
        elif event == "begin":
            under_way[arm].append(replica.health.track(arm))
            under_way[arm][-1].__enter__()
        elif event == "end":
            if under_way[arm]:
                under_way[arm].pop().__exit__(None, None, None)
        else:
            replica.search(arm, event)
            if event == "worked":
                failures[arm], until[arm] = 0, 0.0
            elif replica.clock.now >= until[arm]:  # a failure while it rests is not news
                failures[arm] += 1
                if failures[arm] >= 2:
                    until[arm] = replica.clock.now + 3.0 * 2 ** min(failures[arm] - 2, 6)
        up = [name for name in ARMS if replica.clock.now >= until[name]] or list(ARMS)
        assert replica.able() == [name for name in up if len(under_way[name]) < room[name]]


# -- settings ------------------------------------------------------------------------------------------


def with_limits(**limits: object) -> dict[str, object]:
    return {**CONFIG, "limits": {**CONFIG["limits"], **limits}}


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"arm_caps": {"bm52": 1}}, "limits.arm_caps: 'bm52' is not an arm; did you mean 'bm25'?"),
        ({"arm_caps": {"bm25": 0}}, "limits.arm_caps.bm25: Input should be greater than 0, got 0"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(limits: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(with_limits(**limits))
    assert str(raised.value) == message


def test_the_cap_of_an_arm_goes_with_it_when_the_arms_are_replaced() -> None:
    config = parse(with_limits(arm_caps={"bm25": 2, "none": 3}))
    assert config.with_arms(["none", "dense"]).limits.arm_caps == {"none": 3}

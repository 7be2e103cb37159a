"""Clocks that jump: time in the log neither falls nor leaps, and a process that cannot keep to it says so."""

import logging
import time

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from armwise.feedback.clock import SteadyClock, check_clock
from armwise.feedback.errors import BehindError, ClockError
from armwise.feedback.events import Tick
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from tests.feedback.conftest import decision, value

AHEAD_S, JUMP_S = 60.0, 1.0
"""How far clocks may differ, and what is a jump, in seconds."""

NOON = 1_700_000_000.0


class Hands:
    """Two clocks that stand still until they are moved."""

    def __init__(self) -> None:
        self.wall_at = NOON
        self.passed = 50.0

    def wall(self) -> float:
        return self.wall_at

    def steady(self) -> float:
        return self.passed

    def move(self, seconds: float, *, jump_s: float = 0.0) -> None:
        self.wall_at += seconds + jump_s
        self.passed += seconds


@pytest.fixture
def hands() -> Hands:
    return Hands()


def steady(hands: Hands) -> SteadyClock:
    return SteadyClock(hands.wall, hands.steady)


def test_it_goes_with_the_wall_clock() -> None:
    clock = SteadyClock()
    before = time.time()
    assert before - 0.1 <= clock() <= time.time() + 0.1


def test_what_a_clock_drifts_is_followed_however_far(hands: Hands) -> None:
    clock = steady(hands)
    for _ in range(100):
        hands.move(60.0, jump_s=0.5)
        assert clock() == hands.wall_at
    assert clock.jump_s == 0.0


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0, 1.5, -1.5])
def test_a_jump_is_not_followed_and_named_once(
    hands: Hands, jump_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    clock = steady(hands)
    hands.move(10.0, jump_s=jump_s)
    assert clock() == NOON + 10.0
    hands.move(5.0)
    assert clock() == NOON + 15.0
    assert clock.jump_s == pytest.approx(jump_s)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert f"jumped by {jump_s:+.1f} s" in caplog.text


def test_a_wall_clock_that_is_set_right_is_followed_again(
    hands: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    clock = steady(hands)
    hands.move(10.0, jump_s=-7200.0)
    clock()
    hands.move(10.0, jump_s=7200.25)
    assert clock() == hands.wall_at == NOON + 20.25
    assert clock.jump_s == 0.0
    assert "right again" in caplog.text


def test_another_jump_is_named_too(hands: Hands, caplog: pytest.LogCaptureFixture) -> None:
    clock = steady(hands)
    hands.move(1.0, jump_s=60.0)
    clock()
    hands.move(1.0, jump_s=60.0)
    clock()
    assert "+60.0 s" in caplog.text
    assert "+120.0 s" in caplog.text


@given(
    st.lists(
        st.tuples(st.floats(0, 1e4), st.floats(-1e5, 1e5) | st.floats(-2, 2) | st.just(0.0)), max_size=50
    )
)
def test_stamps_never_fall_and_never_leap(moves: list[tuple[float, float]]) -> None:
    hands = Hands()
    clock = steady(hands)
    before = clock()
    for seconds, jump_s in moves:
        hands.move(seconds, jump_s=jump_s)
        now = clock()
        assert before <= now <= before + seconds + JUMP_S + 1e-6
        assert now >= before + seconds - JUMP_S - 1e-6
        before = now


@pytest.mark.parametrize("jump_s", [AHEAD_S + 1.0, -AHEAD_S - 1.0])
def test_who_is_far_from_the_wall_clock_asks_to_be_replaced(hands: Hands, jump_s: float) -> None:
    clock = steady(hands)
    hands.move(1.0, jump_s=AHEAD_S / 2)
    clock.check()
    hands.move(1.0, jump_s=jump_s - AHEAD_S / 2)
    with pytest.raises(ClockError, match=rf"jumped by \{jump_s:+.1f} s"):
        clock.check()
    hands.move(1.0, jump_s=-jump_s)
    clock.check()
    assert clock() == hands.wall_at


def test_a_thread_that_was_put_aside_between_its_two_looks_sees_no_jump(hands: Hands) -> None:
    pauses = [0.0, 3600.0]  # at the start, and then

    def wall() -> float:
        found = hands.wall_at
        hands.move(pauses.pop(0) if pauses else 0.0)
        return found

    clock = SteadyClock(wall, hands.steady)
    assert clock() == NOON + 3600.0
    assert clock.jump_s == 0.0
    assert not pauses


# -- the log's time ------------------------------------------------------------------------------


def test_a_clock_that_is_behind_the_log_is_refused_with_both_times() -> None:
    check_clock(NOON, NOON + AHEAD_S, None)
    with pytest.raises(
        ClockError, match=r"entry is from 2023-11-14 23:13:20 UTC, .* 2023-11-14 22:13:20 UTC"
    ):
        check_clock(NOON, NOON + 3600, None)


@pytest.mark.parametrize("off_s", [-3600.0, 3600.0])
def test_a_clock_that_is_not_the_one_of_the_database_is_refused_with_both_times(off_s: float) -> None:
    check_clock(NOON, 0.0, NOON + AHEAD_S / 2)
    with pytest.raises(
        ClockError, match=r"database's clock says .*, and this machine's clock 2023-11-14 22:13"
    ):
        check_clock(NOON, 0.0, NOON + off_s)


def test_a_log_is_opened_by_those_whose_clock_agrees(url: str) -> None:
    for opened, clock in enumerate((time.time, lambda: time.time() + 30.0), start=1):
        store = Store(url, clock=clock)
        store.check_clock()
        store.append([Tick(clock())])
        assert store.log_seq() == opened
        store.close()


def test_a_log_is_not_opened_by_those_whose_clock_was_set_back(url: str) -> None:
    store = Store(url)
    store.append([Tick(time.time())])
    store.close()
    behind = Store(url, clock=lambda: time.time() - 3600.0)
    with pytest.raises(ClockError, match="a clock is or was wrong"):
        behind.check_clock()
    assert behind.log_seq() == 1, "who only reads needs no clock"
    behind.close()


def test_who_falls_behind_the_log_cannot_write_any_more_nor_says_that_it_could(url: str) -> None:
    store = Store(url, clock=lambda: NOON)
    store.append([Tick(NOON)])
    ahead = Store(url, clock=lambda: NOON + 3600.0)
    ahead.append([Tick(NOON + 3600.0)])
    ahead.close()
    with pytest.raises(BehindError, match="a clock is or was wrong"):
        store.append([decision("d1", at=NOON)])
    with pytest.raises(BehindError):
        store.probe()
    assert store.log_seq() == 2
    store.close()


def test_a_server_is_not_written_to_by_those_whose_clock_differs(postgres_url: str) -> None:
    store = Store(postgres_url, clock=lambda: time.time() + 3600.0)
    with pytest.raises(ClockError, match="the database's clock"):
        store.check_clock()
    store.close()


@pytest.mark.parametrize(
    "fact", [Tick(NOON + 61.0), decision("d2", at=NOON + 61.0), value("d1", at=NOON + 61.0)]
)
def test_a_stamp_of_the_future_is_refused(url: str, fact: Tick) -> None:
    store = Store(url, clock=lambda: NOON)
    store.append([decision("d1", at=NOON + 59.0)])
    with pytest.raises(ClockError, match=r"the time 2023-11-14 22:14:21 UTC, but it is .* 22:13:20 UTC"):
        store.append([Tick(NOON), fact])
    assert store.log_seq() == 1, "nothing of a refused batch is kept"
    store.close()


def test_old_stamps_and_far_deadlines_are_taken_and_the_time_of_the_log_only_rises(store: Store) -> None:
    at = []
    for stamp in (100.0, 50.0, 300.0, 200.0):
        store.append([decision(f"d{stamp}", at=stamp, wait_s=1e12)])
        with store.reading() as connection:
            at.append(connection.scalar(sa.select(t.log.c.at)))
    assert at == [100.0, 100.0, 300.0, 300.0]

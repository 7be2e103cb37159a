"""How long feedback takes, of decisions whose feedback is complete."""

import math

import numpy as np
import pytest

from armwise.feedback.events import LABELS, Tick
from armwise.feedback.log import Store
from armwise.feedback.training_log.delays import WAIT_TIMES, Delays, read
from tests.feedback.training_log.test_settled import RULE, asked, clicked, looked


def test_delays_are_those_of_settled_decisions_and_late_ones_are_counted(store: Store) -> None:
    """Decisions 0 to 3 are settled: their values took 1, 5 and 150 s; the quick value of 4 says nothing."""
    facts = [*asked(0, 0.0), *asked(1, 1.0), *asked(2, 2.0), *asked(3, 3.0, LABELS)]
    facts += [clicked(0, 1.0), clicked(1, 6.0), *asked(4, 140.0), *asked(5, 140.0), clicked(4, 141.0)]
    looked(store, [*facts, clicked(2, 152.0), clicked(3, 153.0), Tick(160.0)])
    assert read(store, RULE) == Delays(3, 5.0, 150.0, 1 / 3)
    assert read(store, RULE, newest=2).n == 2, "of the newest two"
    assert read(store, RULE.model_copy(update={"metrics": {}})).n == 0


def test_no_delay_is_known_of_a_log_without_feedback(store: Store) -> None:
    looked(store, [*asked(1, 0.0), Tick(200.0)])
    found = read(store, RULE)
    assert (found.n, found.late, found.suggest()) == (0, 0.0, None)
    assert math.isnan(found.median_s)
    assert math.isnan(found.p99_s)


@pytest.mark.parametrize(
    ("p99_s", "suggested"), [(1.0, "PT1M"), (60.0, "PT1M"), (60.5, "PT2M"), (86400.0, "P1D"), (1e9, "P30D")]
)
def test_the_shortest_usual_wait_time_that_suffices_is_suggested(p99_s: float, suggested: str) -> None:
    assert Delays(100, 1.0, p99_s, 0.0).suggest() == suggested
    assert Delays(99, 1.0, p99_s, 0.0).suggest() is None, "too few"


def test_a_wait_time_is_suggested_that_is_longer_than_a_turn() -> None:
    assert Delays(100, 1.0, 1.0, 0.0).suggest(beyond_s=60.0) == "PT2M"
    assert Delays(100, 1.0, 1.0, 0.0).suggest(beyond_s=140.0) == "PT5M"


def test_as_much_feedback_as_is_covered_comes_within_what_is_suggested() -> None:
    delays_s = np.random.default_rng(1).exponential(70.0, 1000)
    found = Delays.from_seconds(delays_s, wait_s=1800.0)
    within = {text: float((delays_s <= seconds).mean()) for seconds, text in WAIT_TIMES.items()}
    assert within[found.suggest() or ""] >= 0.99
    shorter = [text for text, share in within.items() if share < 0.99]
    assert [*WAIT_TIMES.values()].index(found.suggest() or "") == len(shorter)

"""Drift: what is noticed follows from the log, comes soon after a change, and hardly ever without one."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from river.drift import ADWIN

from armwise.feedback.drift import monitor
from armwise.feedback.drift.monitor import CLOCK, DELTA, GRACE, Change, Monitor
from armwise.feedback.events import LABELS, Context, Cost, Decision, Example
from armwise.feedback.reward import Metric, RewardRule

RULE = RewardRule(metrics={"right": Metric()})

Rewarded = tuple[Example, float]


def rewarded(rewards: Iterable[float], arms: Iterable[str]) -> list[Rewarded]:
    """Return a training log."""
    log = []
    for seq, (reward, arm) in enumerate(zip(rewards, arms, strict=True), start=1):
        decision = Decision(f"d-{seq}", Context("why?"), ("a", "b"), (0.5, 0.5), arm, "adaptive", 1)
        log.append((Example(seq, decision, Cost(), {}), reward))
    return log


def watch(log: Iterable[Rewarded], reader: Monitor | None = None) -> list[Change]:
    watching = reader or Monitor(RULE)
    return [change for example, reward in log if (change := watching.see(example, reward))]


def falls(rng: np.random.Generator, n: int, at: int, before: float, after: float) -> list[Rewarded]:
    """Return a log of two arms; that called b earns less from a position on."""
    arms = rng.choice(["a", "b"], n).tolist()
    p = [before if seq < at or arm == "a" else after for seq, arm in enumerate(arms)]
    return rewarded((rng.random(n) < p).astype(float).tolist(), arms)


@pytest.mark.parametrize("seed", range(10))
def test_a_sudden_fall_is_found_within_two_hundred_rewards_of_the_arm(seed: int) -> None:
    log = falls(np.random.default_rng(seed), 3000, 2000, 0.7, 0.4)
    change, *more = watch(log)
    assert {one.subject for one in (change, *more)} == {"reward of b"}
    since = sum(one.decision.drawn == "b" for one, _ in log[2000 : change.example_seq])
    assert 0 < since <= 200
    assert change.before == pytest.approx(0.7, abs=0.15)
    assert change.after < change.before


def test_each_arm_has_the_detector_of_river_on_its_rewards() -> None:
    log, expected = falls(np.random.default_rng(1), 3000, 1500, 0.8, 0.3), []
    theirs = {arm: ADWIN(delta=DELTA, clock=CLOCK, grace_period=GRACE) for arm in ("a", "b")}
    for one, reward in log:
        detector = theirs[one.decision.drawn]
        detector.update(reward)
        expected += [one.seq] if detector.drift_detected else []
    assert [change.example_seq for change in watch(log)] == expected
    assert expected


def test_a_reward_counts_by_its_share_of_the_range() -> None:
    """Rewards that are a tenth apart of a range of 100 are no less of a change than those of a range of 1."""
    narrow, wide = (RewardRule(clip=(0.0, top), cost_weight=1.0) for top in (1.0, 100.0))
    log = falls(np.random.default_rng(2), 2000, 1000, 0.9, 0.1)
    small = watch(log, Monitor(narrow))
    large = watch([(one, 100.0 * reward) for one, reward in log], Monitor(wide))
    assert [one.example_seq for one in small] == [one.example_seq for one in large]
    assert large[0].before == pytest.approx(100.0 * small[0].before)


def test_labels_are_no_traffic() -> None:
    log = falls(np.random.default_rng(0), 3000, 2000, 0.9, 0.1)
    as_labels = [(replace(one, decision=replace(one.decision, policy=LABELS)), reward) for one, reward in log]
    assert watch(as_labels) == []


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make blocks so short that a log has several."""
    with monkeypatch.context() as patch:
        patch.setattr(monitor, "BLOCK", 300)
        yield


@pytest.mark.usefixtures("_short")
def test_labels_that_are_no_part_of_the_training_log_begin_no_block() -> None:
    log = falls(np.random.default_rng(0), 600, 450, 0.95, 0.05)
    (one, reward), *_ = log
    label = replace(one, seq=0, decision=replace(one.decision, policy=LABELS))
    whole = watch(log)
    assert whole
    assert watch([*log[:440], (label, reward), *log[440:]]) == whole


@pytest.mark.usefixtures("_short")
def test_a_change_between_two_blocks_is_the_start_of_the_next() -> None:
    """What holds since the start of a block is what is usual in it."""
    rng = np.random.default_rng(0)
    assert watch(falls(rng, 600, 300, 0.95, 0.05)) == []
    assert watch(falls(rng, 600, 150, 0.95, 0.05)) != []

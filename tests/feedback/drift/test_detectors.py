"""Drift: what is noticed follows from the log, comes soon after a change, and hardly ever without one."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from river.drift import ADWIN

from armwise.feedback.drift import monitor
from armwise.feedback.drift.monitor import DELTA, Change, DriftSpec, Monitor, find_start
from armwise.feedback.events import LABELS, Context, Cost, Decision, Example
from armwise.feedback.log.texts import without_texts
from armwise.feedback.reward import Metric, RewardRule

RULE = RewardRule(metrics={"right": Metric()})
WORDS = [f"w={name}" for name in "abcdefghijklmnopqrst"]
PLAIN = Context("which river runs through Vienna?", {"w=river": 1.0, "shape=question": 1.0})


def example(seq: int, arm: str = "a", context: Context = PLAIN) -> Example:
    return Example(seq, Decision(f"d-{seq}", context, ("a", "b"), (0.5, 0.5), arm, "vowpal", 1), Cost(), {})


Rewarded = tuple[Example, float]


def rewarded(contexts: Iterable[Context], rewards: Iterable[float], arms: Iterable[str]) -> list[Rewarded]:
    """Return a training log."""
    rows = zip(contexts, rewards, arms, strict=True)
    return [(example(seq, arm, context), reward) for seq, (context, reward, arm) in enumerate(rows, start=1)]


def watch(log: Iterable[Rewarded]) -> list[Change]:
    watching = Monitor(RULE)
    return [change for example, reward in log for change in watching.see(example, reward)]


def falls(rng: np.random.Generator, n: int, at: int, before: float, after: float) -> list[Rewarded]:
    """Return a log of two arms; that called b earns less from a position on."""
    arms = rng.choice(["a", "b"], n).tolist()
    p = [before if seq < at or arm == "a" else after for seq, arm in enumerate(arms)]
    return rewarded([PLAIN] * n, (rng.random(n) < p).astype(float).tolist(), arms)


@pytest.mark.parametrize("seed", range(10))
def test_a_sudden_fall_is_found_within_two_hundred_rewards_of_the_arm(seed: int) -> None:
    log = falls(np.random.default_rng(seed), 3000, 2000, 0.7, 0.4)
    (change,) = watch(log)
    assert change.subject == "reward of b"
    since = sum(one.decision.drawn == "b" for one, _ in log[2000 : change.example_seq])
    assert 0 < since <= 200
    assert change.before == pytest.approx(0.7, abs=0.15)
    assert change.after == pytest.approx(0.4, abs=0.3)  # a mean of 32 coins
    assert change.after < change.before


def test_a_rise_is_a_change_too() -> None:
    (change,) = watch(falls(np.random.default_rng(0), 3000, 2000, 0.3, 0.8))
    assert change.subject == "reward of b"
    assert change.after > change.before


@pytest.mark.slow
def test_a_world_that_stays_as_it_is_raises_no_alarm() -> None:
    rng = np.random.default_rng(5)
    n = 30_000
    words = rng.choice(WORDS, (n, 3)).tolist()
    vectors = rng.normal(0.3, 1.0, (n, 4)).tolist()
    contexts = [
        Context("a " * length, dict.fromkeys(some, 1.0), tuple(vector))
        for length, some, vector in zip(rng.integers(3, 20, n).tolist(), words, vectors, strict=True)
    ]
    assert watch(rewarded(contexts, rng.random(n).tolist(), rng.choice(["a", "b"], n).tolist())) == []


def test_other_questions_for_an_arm_are_no_change_of_what_it_earns() -> None:
    """A policy that has learned shows an arm what it is good at: its rewards rise, the world stays."""
    rng = np.random.default_rng(2)
    hard, easy = Context("? ?", {"kind=hard": 1.0}), Context("? ?", {"kind=easy": 1.0})
    is_easy = rng.random(4000) < 0.5
    knows = np.arange(4000) >= 2000
    drawn = np.where(np.where(knows, rng.random(4000) < 0.95, rng.random(4000) < 0.5) == is_easy, "a", "b")
    rewards = (rng.random(4000) < np.where(is_easy, 0.9, 0.3)).astype(float)
    log = rewarded([easy if one else hard for one in is_easy], rewards.tolist(), drawn.tolist())
    assert watch(log) == []

    plain = ADWIN(delta=DELTA, clock=8, grace_period=32)
    alarms = 0
    for one, reward in log:
        if one.decision.drawn == "a":
            plain.update(reward)
            alarms += plain.drift_detected
    assert alarms > 0


def asked(
    rng: np.random.Generator, at: int, before: Callable[[], Context], after: Callable[[], Context]
) -> list[Rewarded]:
    """Return a log of questions that change at a position."""
    n = at + 500
    contexts = [before() if seq < at else after() for seq in range(n)]
    return rewarded(contexts, (rng.random(n) < 0.5).astype(float).tolist(), ["a"] * n)


def words(rng: np.random.Generator, names: list[str]) -> dict[str, float]:
    return dict.fromkeys(rng.choice(names, 4).tolist(), 1.0)


@pytest.mark.slow
def test_other_questions_are_found_by_length_by_words_and_by_embedding() -> None:
    rng = np.random.default_rng(3)
    at = 1500

    def ask(length: int = 9, names: list[str] = WORDS, mean: float = 0.5) -> Callable[[], Context]:
        def one() -> Context:
            vector = (rng.normal(mean), rng.normal(-mean), rng.normal(mean))
            return Context("a " * int(rng.poisson(length)), words(rng, names), vector)

        return one

    for after, subject in (
        (ask(length=14), "length of questions"),
        (ask(names=[*WORDS, *(name.upper() for name in WORDS)]), "unknown features"),
        (ask(mean=-0.2), "likeness of embeddings"),
    ):
        changes = watch(asked(rng, at, ask(), after))
        assert [one.subject for one in changes] == [subject]
        assert at < changes[0].example_seq <= at + 200


def test_after_an_alarm_the_new_questions_are_the_usual_ones() -> None:
    rng = np.random.default_rng(4)
    short, long = (
        (lambda: Context("a " * 5, words(rng, WORDS))),
        (lambda: Context("a " * 20, words(rng, WORDS))),
    )
    log = asked(rng, 1500, short, long)
    more = rewarded(
        [long() for _ in range(3000)], (rng.random(3000) < 0.5).astype(float).tolist(), ["a"] * 3000
    )
    log += [(replace(one, seq=one.seq + len(log)), reward) for one, reward in more]
    assert [one.subject for one in watch(log)] == ["length of questions"]


def test_lengths_are_watched_by_the_detector_of_river() -> None:
    rng = np.random.default_rng(6)
    lengths = np.concatenate([rng.poisson(9, 1500), rng.poisson(15, 500)]).tolist()
    log = rewarded([Context("a " * n) for n in lengths], [0.5] * 2000, ["a"] * 2000)
    adwin = ADWIN(delta=DELTA, clock=8, grace_period=32)
    seq = monitor.REFERENCE
    while not adwin.drift_detected:
        adwin.update(min(lengths[seq] + 1, monitor.LONGEST) / monitor.LONGEST)
        seq += 1
    (change,) = watch(log)
    assert (change.subject, change.example_seq) == ("length of questions", seq)
    assert change.before == pytest.approx(10, abs=0.5)
    assert change.after == pytest.approx(16, abs=2)


def test_labels_are_no_traffic() -> None:
    log = falls(np.random.default_rng(0), 3000, 2000, 0.9, 0.1)
    as_labels = [(replace(one, decision=replace(one.decision, policy=LABELS)), reward) for one, reward in log]
    assert watch(as_labels) == []


@pytest.mark.usefixtures("_short")
def test_labels_that_are_no_part_of_the_training_log_begin_no_block() -> None:
    log = falls(np.random.default_rng(0), 600, 450, 0.95, 0.05)
    (one, reward), *_ = log
    label = replace(one, seq=0, decision=replace(one.decision, policy=LABELS))
    whole = watch(log)
    assert whole
    assert watch([*log[:440], (label, reward), *log[440:]]) == whole


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make blocks so short that a log has several, and what goes before a watch, too."""
    with monkeypatch.context() as patch:
        for name, number in (("BLOCK", 300), ("WARM", 30), ("REFERENCE", 60)):
            patch.setattr(monitor, name, number)
        yield


@pytest.mark.usefixtures("_short")
@settings(max_examples=50)
@given(cut=st.integers(0, 900), at=st.integers(130, 170), block=st.integers(0, 2), seed=st.integers(0, 5))
@pytest.mark.slow
def test_the_same_log_gives_the_same_alarms(cut: int, at: int, block: int, seed: int) -> None:
    log = falls(np.random.default_rng(seed), 900, block * 300 + at, 0.95, 0.05)
    whole = watch(log)
    assert "reward of b" in {change.subject for change in whole}
    reader = Monitor(RULE)
    for one, reward in log[find_start(cut) : cut]:
        reader.see(one, reward)
    after = [change for one, reward in log[cut:] for change in reader.see(one, reward)]
    assert after == [change for change in whole if change.example_seq > cut]


@pytest.mark.usefixtures("_short")
def test_a_change_between_two_blocks_is_the_start_of_the_next() -> None:
    """What holds since the start of a block is what is usual in it."""
    rng = np.random.default_rng(0)
    assert watch(falls(rng, 600, 300, 0.95, 0.05)) == []
    assert len(watch(falls(rng, 600, 200, 0.95, 0.05))) == 1


def test_what_is_kept_of_an_arm_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "NAMES", 50)
    arm = monitor._Arm(1.0, (0.0, 1.0))  # noqa: SLF001
    for number in range(200):
        arm.see(Context("?", {f"w={number}": 1.0, "shape=question": 1.0}), "a", 0.5)
    assert len(arm._weights) <= 51  # noqa: SLF001


@pytest.mark.usefixtures("_short")
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=60, max_size=60))
@pytest.mark.slow
def test_a_feature_of_any_size_breaks_nothing(values: list[float]) -> None:
    contexts = [Context("? ?", {"size": value}) for value in values] * 2
    rewards = [0.0] * len(values) + [1.0] * len(values)
    (change,) = watch(rewarded(contexts, rewards, ["a"] * len(rewards)))
    assert change.subject == "reward of a"
    assert 0.0 <= change.before < change.after <= 1.0


def test_a_configuration_that_changed_its_features_is_followed() -> None:
    """One log may hold embeddings of several lengths, and arms that were described in several ways."""
    rng = np.random.default_rng(7)
    dims = [4] * 800 + [0] * 400 + [8] * 800
    contexts = [
        Context(
            "? ?", words(rng, WORDS), tuple(rng.normal(size=dim)), {"a": {"steps": 1.0, "dims": float(dim)}}
        )
        for dim in dims
    ]
    assert watch(rewarded(contexts, (rng.random(2000) < 0.5).astype(float).tolist(), ["a"] * 2000)) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"raised_for": "an hour"}, "raised_for 'an hour'"),
        ({"raised_for": "PT0S"}, "longer than zero"),
        ({"floor": 0.0}, "greater than 0"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        DriftSpec.model_validate(settings)


def test_statistics_restart_after_a_hundred_thousand_examples_and_are_of_some_hundred_values() -> None:
    assert (monitor.BLOCK, monitor.WARM, monitor.REFERENCE, monitor.RECENT) == (100_000, 200, 500, 32)
    assert (monitor.LONGEST, monitor.NAMES, monitor.LEVELLED) == (32, 10_000, 0.02)


def test_the_mean_before_a_change_is_a_possible_one() -> None:
    """An expectation of 0.9 for questions that were never alike would have been 1.4 on those that were."""
    for sign in (1.0, -1.0):
        stream, free = (monitor.MonitoredSeries(1.0, possible) for possible in ((0.0, 1.0), (-9.0, 9.0)))
        found = []
        for number in range(400):
            value, expected = (0.9, 0.4) if number < 200 else (0.2, 0.9)
            if sign < 0.0:
                value, expected = 1.0 - value, 1.0 - expected
            found.append((stream.see(value, expected), free.see(value, expected)))
        (cut, whole), *_ = (each for each in found if each[0] is not None)
        assert cut is not None
        assert whole is not None
        assert not 0.0 <= whole[0] <= 1.0
        assert cut == (1.0 if sign > 0.0 else 0.0, whole[1])


def erased(log: list[Rewarded], upto: int) -> list[Rewarded]:
    """Return a log after its first decisions were erased."""
    bare = [(replace(one, decision=without_texts(one.decision)), reward) for one, reward in log[:upto]]
    return [*bare, *log[upto:]]


def test_a_log_gives_the_same_changes_after_an_erasure() -> None:
    """Rewards follow a feature, which later earns nothing, and half of the questions have new ones."""
    rng = np.random.default_rng(11)
    contexts = [Context("a " * 9, words(rng, WORDS), arms={"a": {"near": rng.random()}}) for _ in range(2500)]
    for context in contexts[1800::2]:
        context.features["new"] = 1.0  # type: ignore[index]
    rewards = [
        float(WORDS[0] in context.features and number < 1500) + context.arms["a"]["near"] / 10
        for number, context in enumerate(contexts)
    ]
    log = rewarded(contexts, rewards, ["a"] * len(rewards))
    changes = watch(log)
    assert {change.subject for change in changes} == {"reward of a", "unknown features"}
    for upto in (1, 250, 501, 1000, 2000, len(log)):
        assert watch(erased(log, upto)) == changes


def test_an_erased_question_has_no_length() -> None:
    log = rewarded([Context("a " * 9, {"w": 1.0})] * 2000, [0.5] * 2000, ["a"] * 2000)
    for upto in (0, 700, 1500):
        assert watch(erased(log, upto)) == []

"""Rows that share a question, an episode or a user are one observation."""

from dataclasses import replace

import numpy as np
import pytest

from armwise.feedback.arrays import Floats
from armwise.feedback.dataset import Log
from armwise.feedback.ope import EstimateWithInterval, evaluate

ARMS = ("a", "b")


def log_of(seed: int, episodes: int = 60, turns: int = 5, spread: float = 0.3) -> tuple[Log, Floats]:
    """Conversations of which each likes its answers more or less than others: rewards are correlated."""
    rng = np.random.default_rng(seed)
    n = episodes * turns
    episode = np.repeat(np.arange(episodes), turns)
    drawn = rng.integers(2, size=n)
    mood = rng.normal(0.0, spread, episodes)[episode]
    reward = (0.5 + 0.2 * drawn + mood + rng.normal(0.0, 0.1, n)).clip(-1.0, 2.0)
    log = Log.from_arrays(
        *(ARMS, drawn, reward), p_log=np.full((n, 2), 0.5), episodes=episode, users=episode // 2
    )
    return log, np.tile([0.3, 0.7], (n, 1))


def value_of(
    log: Log, p_target: Floats, cluster: str | None, interval: str = "normal"
) -> EstimateWithInterval:
    found = evaluate(
        *(log, {"t": p_target}, np.random.default_rng(0)),
        estimators=("snips",),
        cluster=cluster,
        interval=interval,
        resamples=300,
    )
    one = found["t"].estimates[0].value
    assert one is not None
    return one


@pytest.mark.parametrize("interval", ["normal", "bootstrap"])
@pytest.mark.slow
def test_intervals_of_correlated_rows_need_their_episodes(interval: str) -> None:
    truth, held = 0.5 + 0.2 * 0.7, dict.fromkeys((None, "question", "episode"), 0)
    for seed in range(120):
        log, p_target = log_of(seed)
        for cluster in held:
            one = value_of(log, p_target, cluster, interval)
            held[cluster] += one.low <= truth <= one.high
    assert held["episode"] >= 0.90 * 120
    assert held["question"] <= 0.75 * 120, "each row has a question of its own"
    assert held[None] <= 0.75 * 120


def test_the_value_stays_and_each_row_by_itself_is_no_cluster() -> None:
    log, p_target = log_of(1)
    found = {cluster: value_of(log, p_target, cluster) for cluster in (None, "question", "episode", "user")}
    assert len({one.value for one in found.values()}) == 1
    assert len({one.low for one in found.values()}) == 3, "here each row asks something else"
    assert found[None] == found["question"]
    alone = replace(log, episodes=np.arange(len(log)), users=np.arange(len(log)))
    for cluster in ("episode", "user"):
        assert value_of(alone, p_target, cluster) == found[None]
    asked_again = replace(log, questions=log.episodes)
    assert value_of(asked_again, p_target, None) == found[None]
    assert value_of(asked_again, p_target, "question") == found["episode"]


def test_a_cluster_must_be_known_and_on_record() -> None:
    log, p_target = log_of(2)
    with pytest.raises(ValueError, match="unknown cluster 'session'; available: question, episode, user"):
        value_of(log, p_target, "session")
    for name in ("episode", "user"):
        with pytest.raises(ValueError, match=f"does not say which rows share a {name}"):
            value_of(replace(log, **{f"{name}s": None}), p_target, name)


def test_a_part_of_a_log_keeps_its_clusters() -> None:
    log, _ = log_of(3, episodes=4, turns=2)
    kept = np.array([True, False, True, True, False, False, True, True])
    some = log.where(kept)
    assert some.episodes is not None
    assert some.episodes.tolist() == [0, 1, 1, 2, 2]
    assert some.users is not None
    assert some.users.tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("name", ["episodes", "users"])
def test_codes_of_clusters_are_checked(name: str) -> None:
    log, _ = log_of(4, episodes=2, turns=2)
    what = name.removesuffix("s")
    for codes, message in (
        (np.array([0, 0, 1]), rf"{name} must have the shape \(4,\) of reward, got \(3,\)"),
        (np.array([0, 0, 1, 4]), f"{what} code must be below 4, got 4 at row 3"),
        (np.array([0, 0, 2, 2]), f"rows of a {what} code must be above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(log, **{name: codes})

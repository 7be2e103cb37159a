"""Rows that share a question, an episode or a user are one observation."""

from dataclasses import replace

import numpy as np
import pytest

from armwise.feedback.arrays import Floats
from armwise.feedback.logged_draws import LoggedDraws
from armwise.feedback.ope import EstimateWithInterval, evaluate

ARMS = ("a", "b")


def log_of(seed: int, episodes: int = 60, turns: int = 5, spread: float = 0.3) -> tuple[LoggedDraws, Floats]:
    """Conversations of which each likes its answers more or less than others: rewards are correlated."""
    rng = np.random.default_rng(seed)
    n = episodes * turns
    episode = np.repeat(np.arange(episodes), turns)
    drawn = rng.integers(2, size=n)
    mood = rng.normal(0.0, spread, episodes)[episode]
    reward = (0.5 + 0.2 * drawn + mood + rng.normal(0.0, 0.1, n)).clip(-1.0, 2.0)
    log = LoggedDraws.from_arrays(ARMS, drawn, reward, p_log=np.full((n, 2), 0.5), groups=episode)
    return log, np.tile([0.3, 0.7], (n, 1))


def value_of(log: LoggedDraws, p_target: Floats, interval: str = "normal") -> EstimateWithInterval:
    found = evaluate(
        *(log, {"t": p_target}, np.random.default_rng(0)),
        estimators=("snips",),
        interval=interval,
        resamples=300,
    )
    one = found["t"].estimates[0].value
    assert one is not None
    return one


@pytest.mark.parametrize("interval", ["normal", "bootstrap"])
@pytest.mark.slow
def test_intervals_of_correlated_rows_need_their_episodes(interval: str) -> None:
    truth, held = 0.5 + 0.2 * 0.7, {"row": 0, "episode": 0}
    for seed in range(120):
        log, p_target = log_of(seed)
        for group in held:
            rows = log if group == "episode" else replace(log, groups=np.arange(len(log)))
            one = value_of(rows, p_target, interval)
            held[group] += one.low <= truth <= one.high
    assert held["episode"] >= 0.90 * 120
    assert held["row"] <= 0.75 * 120


def test_the_value_stays_however_rows_are_grouped() -> None:
    log, p_target = log_of(1)
    rows = (np.arange(len(log)), log.groups, log.groups // 2)
    found = [value_of(replace(log, groups=groups), p_target) for groups in rows]
    assert len({one.value for one in found}) == 1
    assert len({one.low for one in found}) == 3


def test_a_part_of_a_log_keeps_its_groups() -> None:
    log, _ = log_of(3, episodes=4, turns=2)
    some = log.where(np.array([True, False, True, True, False, False, True, True]))
    assert some.groups.tolist() == [0, 1, 1, 2, 2]

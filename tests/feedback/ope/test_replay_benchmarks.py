"""The benchmarks that replay real data, on data that is made up, so that the right answer is known."""

import csv
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from armwise.feedback.logged_draws import LoggedDraws
from benchmarks.replay_obd import Shown, compare, load, normed, recovered
from benchmarks.replay_worlds import KINDS, LOGGERS, SIZES, TARGETS, Pool, invent, names_of, simulate

HALF_HOUR = 1800.0


def thompson(n: int, p: np.ndarray, rng: np.random.Generator) -> Shown:
    """Return n rows over a week that were drawn from `p`, shape (n, n_arms), at three positions."""
    drawn = (p.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    propensity = p[np.arange(n), drawn]
    log = LoggedDraws.from_arrays(tuple("abcd"), drawn, np.zeros(n), propensity=propensity)
    return Shown(replace(log, at=np.linspace(0.0, 7 * 86_400.0, n)), rng.integers(3, size=n))


def test_a_distribution_that_does_not_move_is_recovered_exactly() -> None:
    p = np.tile([0.1, 0.2, 0.3, 0.4], (300, 1))
    shown = thompson(300, p, np.random.default_rng(0))
    found = recovered(shown, shown.log.at, shown.position, HALF_HOUR, apart=True)
    np.testing.assert_allclose(found, p, rtol=1e-9)


@pytest.mark.slow
def test_a_distribution_that_moves_slowly_is_followed() -> None:
    n = 9_000
    share = 0.5 + 0.3 * np.sin(np.linspace(0.0, 12.0, n))
    p = np.column_stack([share, (1.0 - share) / 2, (1.0 - share) / 4, (1.0 - share) / 4])
    shown = thompson(n, p, np.random.default_rng(1))
    near, far = (
        normed(recovered(shown, shown.log.at, shown.position, width, apart=True))
        for width in (HALF_HOUR, np.inf)
    )
    assert np.abs(near - p).mean() < 0.01
    assert np.abs(far - p).mean() > 0.05


def write_campaign(folder: Path, arms: int, rng: np.random.Generator, n: int) -> None:
    """Write tables as the Open Bandit Dataset has them; item 0 is clicked most."""
    folder.mkdir(parents=True)
    with (folder / "item_context.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["", "item_id"], *([item, item] for item in range(arms))])
    with (folder / "men.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["", "timestamp", "item_id", "position", "click", "propensity_score"])
        for row in range(n):
            item = int(rng.integers(arms))
            at = datetime.fromtimestamp(1e9 + 60.0 * row, UTC).isoformat(" ")
            click = int(rng.random() < (0.5 if item == 0 else 0.1))
            table.writerow([row, at, item, rng.integers(1, 4), click, 1.0 / arms])


def test_a_log_that_drew_as_the_target_does_says_what_was_earned(tmp_path: Path) -> None:
    folder = tmp_path / "random" / "men"
    write_campaign(folder, 3, np.random.default_rng(2), 400)
    shown = load(folder)
    assert shown.log.arms == ("0", "1", "2")
    assert sorted(set(shown.position.tolist())) == [0, 1, 2]
    lines = list(compare(shown.log, "uniform", np.full((400, 3), 1.0 / 3.0), shown))
    ips = next(line for line in lines if line.startswith("| ips |")).split("|")
    assert ips[3].strip() == f"{shown.log.reward.mean():.4f}"
    assert ips[4].strip() == "+0.0000"


@pytest.fixture(scope="module")
def pool() -> Pool:
    rng = np.random.default_rng(3)
    reward = np.clip(rng.random((60, 4)) - np.array([0.3, 0.2, 0.1, 0.0]), -0.02, 1.0)
    return invent(tuple("abcd"), reward, rng.integers(2, size=60), rng.normal(size=(60, 5)))


@pytest.mark.parametrize("logger", LOGGERS)
@pytest.mark.slow
def test_ips_aims_at_the_truth_of_every_target(pool: Pool, logger: str) -> None:
    names = list(names_of(["means"]))
    said = np.stack(
        [simulate(pool, logger, "1,000", ["means"], rng) for rng in np.random.default_rng(4).spawn(12)]
    )
    assert said.shape == (12, len(TARGETS), len(names), 1 + 2 * len(KINDS))
    errors = said[:, :, names.index("ips"), 0]
    assert (np.abs(errors.mean(axis=0)) <= 5.0 * errors.std(axis=0, ddof=1) / np.sqrt(12)).all()


def test_the_longest_log_asks_each_question_again_and_its_intervals_know(pool: Pool) -> None:
    said = simulate(pool, "uniform", "16,000", ["means"], np.random.default_rng(5))
    rows, times = SIZES["16,000"]
    assert rows / times == 2_000
    ends = said[:, list(names_of(["means"])).index("snips"), 1:]
    grouped, ungrouped = ends[:, 1] - ends[:, 0], ends[:, 3] - ends[:, 2]
    assert (grouped > ungrouped).all()

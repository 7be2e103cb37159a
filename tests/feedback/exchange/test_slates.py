"""Estimates of slates against their expectation over all slates that a log could draw."""

from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armwise.feedback.arrays import Floats, Integers
from armwise.feedback.dataset import Log
from armwise.feedback.exchange import Slates, evaluate_slates, slates
from armwise.feedback.exchange.slates import cascade_dr, iips, pi, pseudoinverse_weight, rips, sips
from armwise.feedback.ope import Sample, SlateRows, dr, evaluate, ips
from armwise.feedback.ope import rips as rips_of_rows
from armwise.feedback.ope import sips as sips_of_rows
from armwise.feedback.ope.estimators import cascade_dr as cascade_dr_of_rows
from armwise.feedback.ope.evaluation import NO_EPISODES
from armwise.feedback.ope.intervals import by_group, hedged, normal
from armwise.feedback.ope.reward_model import predict_slates
from armwise.feedback.ope.sample import NeverDrawnError

law = settings(max_examples=25, deadline=None)
SPACE = np.array(list(permutations(range(4), 3)))
"""All rankings of three out of four items."""

SEEDS = st.integers(0, 2**32)


class World:
    """A log and a target that draw three of four items, one after the other, each given those before it."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        tables = {
            prefix: rng.dirichlet(np.full(4, 2.0), 2)
            for k in range(3)
            for prefix in permutations(range(4), k)
        }
        n = len(SPACE)
        self.dist = np.zeros((2, n, 3, 4))  # of the log and of the target, given the items before
        for row, slate in enumerate(SPACE):
            for k in range(3):
                p = tables[tuple(slate[:k].tolist())].copy()
                p[:, slate[:k]] = 0.0
                self.dist[:, row, k] = p / p.sum(axis=1, keepdims=True)
        taken = self.dist[:, np.arange(n)[:, np.newaxis], np.arange(3), SPACE]
        self.propensity, self.target = taken
        self.p_log, self.p_target = taken.prod(axis=2)
        at = [[SPACE[:, k] == SPACE[row, k] for k in range(3)] for row in range(n)]
        self.marginal_log = np.array([[self.p_log[same].sum() for same in row] for row in at])
        self.marginal_target = np.array([[self.p_target[same].sum() for same in row] for row in at])

    def slates(self, reward: Floats, q_hat: Floats | None = None) -> Slates:
        """Every possible slate once."""
        return Slates.from_arrays(
            *(reward, self.propensity, self.target),
            marginal_propensity=self.marginal_log,
            marginal_target=self.marginal_target,
            items=SPACE,
            p_target=self.dist[1],
            q_hat=q_hat,
        )

    def truth(self, reward: Floats) -> float:
        return float(self.p_target @ reward.reshape(len(SPACE), -1).sum(axis=1))

    def expected(self, rows: Floats) -> float:
        """The expectation over the log of an estimate that is a mean over slates."""
        return float(self.p_log @ rows)


def of_prefix(seed: int) -> Floats:
    """Rewards that depend on the items up to the position alone."""
    table: dict[tuple[int, ...], float] = {}
    rng = np.random.default_rng(seed)
    rows = [[tuple(slate[: k + 1].tolist()) for k in range(3)] for slate in SPACE]
    return np.array([[table.setdefault(key, float(rng.random())) for key in row] for row in rows])


def of_item(seed: int) -> Floats:
    """Rewards that depend on the item and the position alone."""
    return np.random.default_rng(seed).random((3, 4))[np.arange(3), SPACE]


def of_slate(seed: int) -> Floats:
    """Rewards that depend on the whole slate."""
    return np.random.default_rng(seed).random((len(SPACE), 3))


@law
@given(SEEDS)
def test_standard_ips_is_unbiased_whatever_rewards_depend_on(seed: int) -> None:
    world, reward = World(seed), of_slate(seed)
    assert world.expected(sips(world.slates(reward)).numerator) == pytest.approx(world.truth(reward))


@law
@given(SEEDS)
def test_rips_is_unbiased_if_rewards_depend_on_what_stands_above(seed: int) -> None:
    world, reward = World(seed), of_prefix(seed)
    assert world.expected(rips(world.slates(reward)).numerator) == pytest.approx(world.truth(reward))


@law
@given(SEEDS)
def test_iips_is_unbiased_if_rewards_depend_on_the_item_alone(seed: int) -> None:
    world, reward = World(seed), of_item(seed)
    assert world.expected(iips(world.slates(reward)).numerator) == pytest.approx(world.truth(reward))


@law
@given(SEEDS)
def test_cascade_dr_is_unbiased_whatever_the_model(seed: int) -> None:
    """A model may depend on the items before, as here, where it is drawn for each prefix."""
    world, reward = World(seed), of_prefix(seed)
    rng, table = np.random.default_rng(seed + 1), dict[tuple[int, ...], Floats]()
    q_hat = np.array(
        [
            [table.setdefault(tuple(slate[:k].tolist()), 3.0 * rng.random(4)) for k in range(3)]
            for slate in SPACE
        ]
    )
    found = cascade_dr(world.slates(reward, q_hat))
    assert world.expected(found.numerator) == pytest.approx(world.truth(reward))


@law
@given(SEEDS)
def test_the_pseudoinverse_is_unbiased_if_the_reward_of_a_slate_is_a_sum_of_parts(seed: int) -> None:
    world, parts = World(seed), of_item(seed)
    n = len(SPACE)
    weight = pseudoinverse_weight(
        SPACE, np.tile(world.p_log, (n, 1)), np.tile(world.p_target, (n, 1)), np.arange(n)
    )
    whole = parts.sum(axis=1)  # the parts are not seen
    found = pi(world.slates(whole), weight)
    assert world.expected(found.numerator) == pytest.approx(world.truth(whole))
    assert world.expected(weight) == pytest.approx(1.0)


def test_each_assumption_is_needed() -> None:
    for estimator, rewards in ((rips, of_slate), (iips, of_prefix)):
        errors = []
        for seed in range(10):
            world, reward = World(seed), rewards(seed)
            errors.append(world.expected(estimator(world.slates(reward)).numerator) - world.truth(reward))
        assert max(np.abs(errors)) > 0.03, estimator.__name__


def test_rips_varies_less_than_standard_ips_and_the_right_model_least() -> None:
    world, reward = World(3), of_prefix(3)
    spread = {}
    for estimator in (sips, rips):
        rows = estimator(world.slates(reward)).numerator
        spread[estimator.__name__] = world.expected(rows**2) - world.expected(rows) ** 2
    assert spread["rips"] < spread["sips"]


@law
@given(SEEDS)
def test_positions_that_are_drawn_independently_need_no_enumeration(seed: int) -> None:
    rng = np.random.default_rng(seed)
    log, target = rng.dirichlet(np.full(3, 2.0), (2, 2))  # (position, item)
    space = np.array([[a, b] for a in range(3) for b in range(3)])
    places = np.arange(2)
    propensity, wanted = log[places, space], target[places, space]
    weight = pseudoinverse_weight(
        space, np.tile(propensity.prod(axis=1), (9, 1)), np.tile(wanted.prod(axis=1), (9, 1)), np.arange(9)
    )
    one = Slates.from_arrays(
        *(np.ones(9), propensity, wanted), marginal_propensity=propensity, marginal_target=wanted
    )
    np.testing.assert_allclose(pi(one).numerator, weight, atol=1e-8)


@law
@given(SEEDS)
def test_slates_of_one_position_have_the_standard_estimates(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = 12
    p_log, p_target = rng.dirichlet(np.ones(3) * 3.0, (2, n))
    drawn, reward, q_hat = rng.integers(3, size=n), rng.random(n), rng.random((n, 3))
    rows = np.arange(n)
    propensity, target = p_log[rows, drawn][:, None], p_target[rows, drawn][:, None]
    one = Slates.from_arrays(
        *(reward[:, None], propensity, target),
        marginal_propensity=propensity,
        marginal_target=target,
        items=drawn[:, None],
        p_target=p_target[:, None],
        q_hat=q_hat[:, None],
    )
    sample = Sample(p_log[rows, drawn], drawn, reward, p_target, q_hat)
    for estimator in (sips, iips, rips, pi):
        np.testing.assert_allclose(estimator(one).numerator, ips(sample).numerator)
    np.testing.assert_allclose(cascade_dr(one).numerator, dr(sample).numerator)
    assert sips(one, normalized=True).value == pytest.approx(float(one.weight @ reward / one.weight.sum()))
    for plain in (sips_of_rows, rips_of_rows):
        np.testing.assert_allclose(plain(sample).numerator, ips(sample).numerator)
    np.testing.assert_allclose(cascade_dr_of_rows(sample).numerator, dr(sample).numerator)


@law
@given(SEEDS)
def test_rows_of_a_log_have_the_estimates_of_its_slates_per_position(seed: int) -> None:
    """The same slates, their rows shuffled, through `Sample`: a mean over positions instead of slates."""
    rng, world, reward = np.random.default_rng(seed), World(seed), of_prefix(seed)
    n = SPACE.size
    slate, position = np.repeat(np.arange(len(SPACE)), 3), np.tile(np.arange(3), len(SPACE))
    q_hat = rng.random((n, 4))
    order = rng.permutation(n)
    sample = Sample(
        *(world.propensity.ravel()[order], SPACE.ravel()[order], reward.ravel()[order]),
        world.dist[1].reshape(n, 4)[order],
        q_slate=q_hat[order],
        slates=SlateRows(slate[order], position[order]),
    )
    whole = world.slates(reward, q_hat.reshape(-1, 3, 4))
    for ours, theirs in ((sips_of_rows, sips), (rips_of_rows, rips), (cascade_dr_of_rows, cascade_dr)):
        assert ours(sample).value * 3.0 == pytest.approx(theirs(whole).value), theirs.__name__


def test_positions_follow_from_an_order_and_products_from_positions() -> None:
    rows = SlateRows.of(np.array([1, 0, 1, 0, 1]), np.array([3.0, 5.0, 1.0, 4.0, 2.0]))
    assert rows.position.tolist() == [2, 1, 0, 0, 1]
    weight = np.array([2.0, 3.0, 5.0, 7.0, 11.0])
    assert rows.before(weight).tolist() == [55.0, 7.0, 1.0, 1.0, 5.0]
    assert rows.upto(weight).tolist() == [110.0, 21.0, 5.0, 7.0, 55.0]
    assert rows.total(weight).tolist() == [110.0, 21.0, 110.0, 21.0, 110.0]
    assert rows.following.tolist() == [-1, -1, 4, 1, 0]
    assert rows.size.tolist() == [2, 3]
    ties = SlateRows.of(np.array([0, 0, 0]), np.zeros(3))
    assert ties.position.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("slate", "position", "message"),
    [
        ([0, 0], [0], r"share one shape \(n,\)"),
        ([0, 3], [0, 0], "slate must be a code from 0 to 1, got 3 at row 1"),
        ([1, 1], [0, 1], "rows of a slate must be above 0: codes are 0, 1, 2 and so on, got 0 at row 0"),
        ([0, 0], [0, 2], "position must be below the number of rows of its slate, got 2 at row 1"),
        ([0, 0], [1, 1], "two rows have the same slate and position"),
    ],
)
def test_slates_that_cannot_be_right_are_refused(slate: list[int], position: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SlateRows(np.array(slate), np.array(position))


HALF = np.full((3, 2), 0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": np.ones((2, 2))}, r"reward must be \(3, 2\) or \(3,\), got \(2, 2\)"),
        ({"propensity": np.ones(3)}, r"propensity must be \(slates, positions\), got \(3,\)"),
        ({"target": HALF[:2]}, r"target must be \(3, 2\), got \(2, 2\)"),
        ({"propensity": HALF - 0.5}, r"propensity must be in \(0, 1\], got 0 at row 0"),
        ({"target": HALF + 1.0}, r"target must be in \[0, 1\], got 1.5 at row 0"),
        ({"marginal_target": HALF}, "marginal_propensity and marginal_target go together"),
        ({"reward": HALF * np.nan}, "reward must be finite, got nan at row 0"),
        ({"q_hat": np.ones((3, 2, 4))}, "q_hat needs items and p_target"),
        (
            {"q_hat": np.ones((3, 2, 4)), "items": np.zeros((3, 2), int), "p_target": np.ones((3, 2, 5)) / 5},
            r"p_target must be \(3, 2, 4\), got \(3, 2, 5\)",
        ),
    ],
)
def test_arrays_of_slates_that_cannot_be_right_are_refused(changes: dict[str, Floats], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Slates.from_arrays(**{"reward": HALF, "propensity": HALF, "target": HALF, **changes})  # type: ignore[arg-type]


def test_what_an_estimator_needs_is_named() -> None:
    plain = Slates.from_arrays(HALF, HALF, HALF)
    with pytest.raises(ValueError, match="iips needs marginal_propensity"):
        iips(plain)
    with pytest.raises(ValueError, match="pi needs marginal_propensity"):
        pi(plain)
    with pytest.raises(ValueError, match="cascade_dr needs q_hat"):
        cascade_dr(plain)
    with pytest.raises(ValueError, match=r"no estimator of slates 'dr'; there are: sips"):
        evaluate_slates(plain, ("dr",))
    with pytest.raises(ValueError, match="no interval 'anytime' of slates"):
        evaluate_slates(plain, interval="anytime")
    with pytest.raises(ValueError, match=r"clusters must be \(3,\), one a slate, got \(2,\)"):
        evaluate_slates(plain, clusters=np.zeros(2, int))
    with pytest.raises(ValueError, match=r"weight must be \(3,\), one a slate"):
        pi(plain, np.ones(6))
    never = Slates.from_arrays(HALF, HALF, HALF * 0.0)
    for estimator in (sips, rips):
        with pytest.raises(NeverDrawnError):
            estimator(never)


def logged(
    m: int, seed: int, compute_reward: Callable[[Integers, np.random.Generator], Floats]
) -> tuple[Floats, Floats, Floats]:
    """Slates of two positions with two items, drawn alike; the target draws item 1 by 0.8."""
    rng = np.random.default_rng(seed)
    items = rng.integers(2, size=(m, 2))
    target = np.where(items == 1, 0.8, 0.2)
    return compute_reward(items, rng), np.full((m, 2), 0.5), target


def test_intervals_of_slates_hold_the_truth_as_often_as_they_say() -> None:
    def clicks(items: Integers, rng: np.random.Generator) -> Floats:
        first = rng.random(len(items)) < 0.2 + 0.5 * items[:, 0]
        second = rng.random(len(items)) < 0.3 * first + 0.3 * items[:, 1]
        return np.stack([first, second], axis=1).astype(np.float64)

    truth = 0.6 + 0.3 * 0.6 + 0.3 * 0.8
    for interval in ("normal", "bootstrap"):
        held = []
        for seed in range(150):
            found = evaluate_slates(
                Slates.from_arrays(*logged(400, seed, clicks)),
                ("rips", "sips"),
                interval=interval,
                reward_range=(0.0, 2.0),
                resamples=200,
            )
            held.append([one.low <= truth <= one.high for one in found.values()])
        assert (np.mean(held, axis=0) >= 0.90).all()
        assert (np.mean(held, axis=0) <= 1.0).all()


def test_slates_of_one_user_are_one_observation() -> None:
    reward, propensity, target = logged(200, 1, lambda items, rng: items * rng.random((len(items), 1)))
    users = np.arange(200) // 2
    alone = evaluate_slates(Slates.from_arrays(reward, propensity, target), clusters=np.arange(200))
    assert alone == evaluate_slates(Slates.from_arrays(reward, propensity, target))
    twice = [np.repeat(array, 2, axis=0) for array in (reward, propensity, target)]
    copied = evaluate_slates(Slates.from_arrays(*twice), clusters=np.arange(400) // 2)["rips"]
    blind = evaluate_slates(Slates.from_arrays(*twice))["rips"]
    one = alone["rips"]
    assert copied.value == pytest.approx(one.value)
    assert copied.high - copied.low == pytest.approx(one.high - one.low, rel=0.05)
    assert blind.high - blind.low < 0.75 * (one.high - one.low)
    paired = evaluate_slates(Slates.from_arrays(reward, propensity, target), clusters=users)["rips"]
    assert paired.value == one.value
    assert paired.high - paired.low != one.high - one.low


# -- slates of a log -------------------------------------------------------------------------------


def log_of(seed: int, m: int = 300, **options: object) -> tuple[Log, Floats]:
    """Episodes of two rows, in which the second reward depends on the first arm, and a target."""
    rng = np.random.default_rng(seed)
    episodes, n = np.repeat(np.arange(m), 2), 2 * m
    drawn = rng.integers(2, size=n)
    first = np.repeat(drawn[::2], 2)
    reward = (rng.random(n) < 0.2 + 0.3 * drawn + 0.4 * first * (np.arange(n) % 2)).astype(np.float64)
    log = Log.from_arrays(
        ("a", "b"),
        drawn,
        reward,
        p_log=np.full((n, 2), 0.5),
        episodes=episodes,
        **options,  # type: ignore[arg-type]
    )
    return log, np.tile([0.1, 0.9], (n, 1))


def test_an_episode_is_a_slate_to_the_estimators_of_slates() -> None:
    log, p_target = log_of(1, 4_000)
    names = ("ips", "sips", "rips", "cascade_dr")
    found = evaluate(log, {"t": p_target}, np.random.default_rng(0), estimators=names, reward_model="means")
    value = {one.estimator: one.value for one in found["t"].estimates}
    truth = 0.2 + 0.3 * 0.9 + 0.5 * 0.4 * 0.9
    for name in names[1:]:
        one = value[name]
        assert one is not None
        assert one.low < truth < one.high, name
        assert one.high - one.low < 0.15
    assert value["ips"] is not None
    assert value["ips"].high < truth, "which takes the arms above for those of the log"
    assert value["cascade_dr"] is not None
    assert value["rips"] is not None
    assert value["cascade_dr"].high - value["cascade_dr"].low < value["rips"].high - value["rips"].low


def test_the_slates_of_a_log_are_its_whole_episodes_in_the_order_of_decisions() -> None:
    log, p_target = log_of(2, 50)
    assert rips(Slates.from_log(log, p_target)).value == pytest.approx(
        2.0
        * rips_of_rows(
            Sample(log.propensity, log.drawn, log.reward, p_target, slates=SlateRows.of(log.episodes))  # type: ignore[arg-type]
        ).value
    )
    kept = np.ones(100, dtype=np.bool_)
    kept[[1, 6]] = False
    fewer = Slates.from_log(log.where(kept), p_target[kept])
    assert fewer.rows.n_slates == 48
    whole = np.repeat(~np.isin(np.arange(50), [0, 3]), 2)
    same = Slates.from_log(log.where(whole), p_target[whole])
    np.testing.assert_array_equal(fewer.reward, same.reward)
    np.testing.assert_array_equal(fewer.weight, same.weight)
    alone = Log.from_arrays(log.arms, log.drawn, log.reward, p_log=log.p_log)
    with pytest.raises(ValueError, match="does not say which rows share an episode"):
        Slates.from_log(alone, p_target)
    with pytest.raises(ValueError, match=r"p_target must be \(100, 2\), got \(99, 2\)"):
        Slates.from_log(log, p_target[1:])
    halves = np.arange(100) % 2 == 0
    with pytest.raises(ValueError, match="of every episode some decision is not among the rows"):
        Slates.from_log(log.where(halves), p_target[halves])


def test_an_episode_that_is_not_whole_has_no_part_in_the_estimates_of_slates() -> None:
    log, p_target = log_of(3, 60)
    kept = np.ones(120, dtype=np.bool_)
    lost = np.array([0, 9, 20, 31, 44, 57, 68, 81])  # the first row of an episode, or the second
    kept[lost] = False
    whole = np.repeat(~np.isin(np.arange(60), lost // 2), 2)
    assert (log.reward[kept & ~whole] > 0.0).any()
    names = ("sips", "rips")
    one = evaluate(log, {"t": p_target}, np.random.default_rng(0), kept={"t": kept}, estimators=names)["t"]
    other = evaluate(log, {"t": p_target}, np.random.default_rng(0), kept={"t": whole}, estimators=names)["t"]
    for ours, theirs in zip(one.estimates, other.estimates, strict=True):
        assert ours.value is not None
        assert ours.difference is not None
        assert theirs.value is not None
        assert theirs.difference is not None
        assert ours.value.value == pytest.approx(theirs.value.value)
        assert ours.difference.value == pytest.approx(theirs.difference.value)


def test_intervals_of_slates_are_hedged_by_the_largest_weight_after_the_rows_before() -> None:
    log, p_target = log_of(8, 100)
    found = evaluate(
        *(log, {"t": p_target}, np.random.default_rng(0)), estimators=("rips",), reward_range=(0.0, 1.0)
    )["t"].estimates[0]
    assert log.episodes is not None
    rows = SlateRows.of(log.episodes)
    terms = rips_of_rows(Sample(log.propensity, log.drawn, log.reward, p_target, slates=rows))
    # 0.9 / 0.5 at the first position, and then 0.9 / 0.5 again
    low, high = normal(hedged(by_group(terms, rows.slate), 1.8 * 1.8, 0.0, 1.0))
    assert found.value is not None
    assert (found.value.low, found.value.high) == pytest.approx((low, min(1.0, high)))


def test_rows_without_episodes_have_no_estimates_of_slates() -> None:
    log, p_target = log_of(4, 30)
    alone = Log.from_arrays(log.arms, log.drawn, log.reward, p_log=log.p_log)
    found = evaluate(alone, {"t": p_target}, np.random.default_rng(0), estimators=("rips",))["t"].estimates
    assert [(one.value, one.note) for one in found] == [(None, NO_EPISODES)]


def test_slates_are_one_observation_and_all_slates_of_a_user_are_if_asked() -> None:
    log, p_target = log_of(5, 200, users=np.repeat(np.arange(100), 4))

    def width(cluster: str | None, chosen: Log = log) -> float:
        found = evaluate(
            chosen, {"t": p_target}, np.random.default_rng(0), estimators=("rips",), cluster=cluster
        )
        one = found["t"].estimates[0].value
        assert one is not None
        return one.high - one.low

    assert width("question") == width(None) == width("episode")
    assert width("user") != width("episode")
    episodes_as_users = Log.from_arrays(
        *(log.arms, log.drawn, log.reward), p_log=log.p_log, episodes=log.episodes, users=log.episodes
    )
    assert width("user", episodes_as_users) == pytest.approx(width("episode"))


# -- the model of what is to come ------------------------------------------------------------------


def test_the_model_expects_what_the_target_earns_from_a_position_on() -> None:
    log, p_target = log_of(6, 5_000)
    assert log.episodes is not None
    rows = SlateRows.of(log.episodes)
    q = predict_slates(rows, log.drawn, log.reward, p_target, rows.slate, np.random.default_rng(0))
    second = 0.2 + 0.3 * 0.9
    # At the second position the first arm is as the log drew it, by half.
    np.testing.assert_allclose(q[1], [0.2 + 0.2, 0.5 + 0.2], atol=0.03)
    np.testing.assert_allclose(q[0], [0.2 + second + 0.2, 0.5 + second + 0.2], atol=0.05)


def test_the_model_has_not_seen_the_slates_that_it_predicts() -> None:
    log, p_target = log_of(7, 40)
    assert log.episodes is not None
    rows = SlateRows.of(log.episodes)
    groups = rows.slate // 2

    def predicted(reward: Floats) -> Floats:
        return predict_slates(rows, log.drawn, reward, p_target, groups, np.random.default_rng(1))

    changed = log.reward.copy()
    changed[[0, 1, 2, 3]] += 5.0  # the four rows of the first group
    before, after = predicted(log.reward), predicted(changed)
    np.testing.assert_array_equal(before[:4], after[:4])
    assert (before != after).any()
    with pytest.raises(ValueError, match="at least 2 folds and 2 groups, got 1 and 1"):
        predict_slates(*(rows, log.drawn, log.reward, p_target, groups * 0), np.random.default_rng(1))


def test_the_module_lists_each_estimator_of_slates() -> None:
    for name in slates.SLATE_ESTIMATORS:
        assert f"    {name} " in (slates.__doc__ or "")

"""The adaptive policy: its bounds against the formulas solved at once, and worlds that change."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from armwise.agent.policies import PolicyError, adaptive, served_distribution
from armwise.agent.policies.adaptive import Adaptive
from armwise.agent.policies.encoding import hashed
from armwise.agent.policies.sampling import best_probabilities
from armwise.feedback.events import Context, Decision

Array = NDArray[np.float64]

ARMS = ("bm25", "dense", "rrf")
FLOOR = 0.01


def context(rng: np.random.Generator, scores: dict[str, float]) -> Context:
    """Return a question of random length with scores of a router."""
    features = {"length": float(rng.random()), "digits": float(rng.integers(2))}
    return Context("?", features, (), {arm: {"router": score} for arm, score in scores.items()})


def decision(seen: Context, drawn: str, arms: tuple[str, ...] = ARMS) -> Decision:
    return Decision("d", seen, arms, (1.0 / len(arms),) * len(arms), drawn, "adaptive", 1)


@dataclass
class Played:
    """What happened in a world.

    Attributes:
        arms: Drawn arms, in order.
        policy: The policy after it.
    """

    arms: list[str]
    policy: Adaptive

    def share(self, arm: str, start: int, end: int) -> float:
        return self.arms[start:end].count(arm) / (end - start)


def play(
    policy: Adaptive,
    n: int,
    right: Callable[[int], dict[str, float]],
    scores: Callable[[int], dict[str, float]] = lambda _: {},
    seed: int = 1,
) -> Played:
    """Ask n questions; the reward is 1 with the chance that `right` gives the drawn arm."""
    rng, drawn = np.random.default_rng(seed), []
    for t in range(n):
        chances = right(t)
        arms = tuple(chances)
        seen = context(rng, scores(t))
        p = served_distribution(policy, seen, arms, FLOOR)
        arm = arms[rng.choice(len(arms), p=p)]
        drawn.append(arm)
        policy.learn(decision(seen, arm, arms), float(rng.random() < chances[arm]))
    return Played(drawn, policy)


class Reference:
    """The definition, without a restart: regressions of each arm and member, solved anew for each reward."""

    def __init__(self, alpha: float, half_life: float, dims: int) -> None:
        self.alpha, self.discount, self.dims = alpha, 0.5 ** (1.0 / half_life), dims
        self.x, self.drawn, self.targets, self.scored = (
            list[Array](),
            list[str](),
            list[Array](),
            list[bool](),
        )
        self.weights, self.noise, self.worth = np.array([0.7, 0.15, 0.15]), 0.2, 20.0
        self.errors = dict.fromkeys(ARMS, 0.0)

    def priors(self, seen: Context) -> Array:
        """Return the router's prior and the other one of each arm, shape (n_arms, 2)."""
        scores = {arm: features["router"] for arm, features in seen.arms.items()}
        rows = []
        for arm in ARMS:
            bonus = (30 * 0.2 * math.sqrt(self.noise) + self.errors[arm]) / (30 + self.drawn.count(arm))
            rows.append([scores.get(arm, max(scores.values()) + bonus), 0.0 if arm in scores else bonus])
        return np.array(rows)

    def predict(self, seen: Context) -> tuple[Array, Array, Array]:
        """Return means, their variances, and those that bounds have, shape (3, n_arms)."""
        scores = {arm: features["router"] for arm, features in seen.arms.items()}
        now, priors = self.columns(seen), self.priors(seen)
        weight = self.discount ** np.arange(len(self.x) - 1, -1, -1.0)
        x = np.array(self.x).reshape(-1, len(now))
        targets = np.array(self.targets).reshape(-1, 2)
        mean, variance, width = np.zeros((3, 3)), np.zeros((3, 3)), np.zeros((3, 3))
        for member, ridge in enumerate((1000.0, 100.0, 30.0)):
            prior = int(member == 2)
            if prior:
                level = (20 * np.mean([*scores.values()]) + weight @ targets[:, 1]) / (20 + weight.sum())
            else:
                level = (weight @ (targets[:, 0] * self.scored)) / (10 + weight @ self.scored)
            for i, arm in enumerate(ARMS):
                own = weight * [drawn == arm for drawn in self.drawn]
                gram, penalty = (x.T * own) @ x, (ridge if arm in scores else 30.0) * np.eye(len(now))
                calm = gram + min(self.noise / 0.1, 1.0) * penalty
                theta = np.linalg.solve(calm, (x.T * own) @ (targets[:, prior] - level))
                mean[member, i] = priors[i, prior] + level + now @ theta
                variance[member, i] = now @ np.linalg.solve(calm, now)
                width[member, i] = now @ np.linalg.solve(gram + penalty, now)
        return mean, variance, width

    def columns(self, seen: Context) -> Array:
        return np.array([1.0, *hashed(seen.features, self.dims)])

    def learn(self, seen: Context, drawn: str, reward: float) -> None:
        at = ARMS.index(drawn)
        mean, variance, _ = (found[:, at] for found in self.predict(seen))
        priors, error = self.priors(seen)[at], reward - float(self.weights @ mean)
        likely = stats.norm.pdf(reward, mean, np.sqrt(self.noise * (1 + variance))) * self.weights
        self.weights = 0.999 * likely / likely.sum() + 0.001 * np.array([0.7, 0.15, 0.15])
        self.worth = 0.999 * self.worth + 1
        self.noise += (error**2 - self.noise) / self.worth
        self.errors[drawn] += error
        self.x.append(self.columns(seen))
        self.drawn.append(drawn)
        self.targets.append(reward - priors)
        self.scored.append(drawn in seen.arms)

    def bounds(self, seen: Context) -> Array:
        mean, _, width = self.predict(seen)
        return np.asarray(self.weights @ (mean + self.alpha * np.sqrt(self.noise * width)))


def test_a_bound_is_the_weighted_mean_of_discounted_ridge_regressions() -> None:
    rng = np.random.default_rng(7)
    policy = Adaptive(alpha=0.7, half_life=40.0, dims=8, run_length=None, notice=None)
    reference = Reference(alpha=0.7, half_life=40.0, dims=8)
    for i in range(90):
        scores = {"bm25": float(rng.random()), "dense": float(rng.random())}
        seen = context(rng, scores if i % 3 else {"dense": scores["dense"]})
        np.testing.assert_allclose(policy.bounds(seen, ARMS), reference.bounds(seen), atol=1e-10)
        arm, reward = (
            ARMS[rng.integers(3)],
            float(rng.random()) if i < 10 else 0.3 + 0.4 * float(rng.random()),
        )
        policy.learn(decision(seen, arm), reward)
        reference.learn(seen, arm, reward)
    assert reference.noise < 0.08, "ridges are those of a calm world by now"


def test_before_the_first_reward_the_router_decides() -> None:
    seen = context(np.random.default_rng(0), {"bm25": 0.5, "dense": 0.9, "rrf": 0.2})
    assert Adaptive().probabilities(seen, ARMS).tolist() == pytest.approx([0.0, 1.0, 0.0], abs=1e-5)
    nothing = context(np.random.default_rng(0), {})
    assert Adaptive().probabilities(nothing, ARMS).tolist() == pytest.approx([1 / 3] * 3)


def test_where_no_arm_has_a_score_the_similarity_of_its_source_decides() -> None:
    near = {arm: {"similarity": value} for arm, value in {"bm25": 0.2, "dense": 0.3, "rrf": 0.7}.items()}
    shares = Adaptive().probabilities(Context("?", arms=near), ARMS)
    assert shares.tolist() == pytest.approx([0.0, 0.0, 1.0], abs=1e-5)
    scored = {**near, "bm25": {"similarity": 0.2, "router": 0.4}, "dense": {"router": 0.3}}
    bounds = dict(zip(ARMS, Adaptive(newcomer=0.0).bounds(Context("?", arms=scored), ARMS), strict=True))
    alone = {"bm25": {"router": 0.4}, "dense": {"router": 0.3}}
    assert bounds == dict(
        zip(ARMS, Adaptive(newcomer=0.0).bounds(Context("?", arms=alone), ARMS), strict=True)
    ), "of no arm where another one has a score"
    other = Adaptive(prior_feature="steps").probabilities(Context("?", arms=near), ARMS)
    assert other.tolist() == pytest.approx([1 / 3] * 3)


def swapped(t: int) -> dict[str, float]:
    best, worst = (0.8, 0.2) if t < 1500 else (0.2, 0.8)
    return {"bm25": best, "dense": 0.5, "rrf": worst}


def promised(_: int) -> dict[str, float]:
    return {"bm25": 0.8, "dense": 0.5, "rrf": 0.2}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.slow
def test_when_the_best_arm_becomes_the_worst_it_follows_within_150_questions(seed: int) -> None:
    played = play(Adaptive(dims=4), 2100, swapped, promised, seed=seed)
    assert played.share("bm25", 1000, 1500) > 0.9
    assert played.share("rrf", 1650, 2100) > 0.8
    first = played.policy.restarts[0]
    assert (first.arm, first.rise) == ("bm25", False)
    assert 1500 < first.reward < 1560
    assert 100 <= first.kept <= 150
    assert first.before == pytest.approx(0.8, abs=0.1)
    assert first.after < first.before - 0.1


@pytest.mark.slow
def test_it_follows_no_change_without_its_restarts() -> None:
    played = play(Adaptive(dims=4, run_length=None, half_life=1e9), 2100, swapped, promised)
    assert played.policy.restarts == ()
    assert played.share("rrf", 1650, 2100) < 0.5


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.slow
def test_a_calm_world_restarts_nothing(seed: int) -> None:
    played = play(Adaptive(dims=4), 3000, lambda _: promised(0), promised, seed=seed)
    assert played.policy.restarts == ()
    assert played.share("bm25", 0, 3000) > 0.9


@pytest.mark.slow
def test_arms_that_always_earn_the_same_restart_nothing() -> None:
    policy, rng = Adaptive(dims=4), np.random.default_rng(4)
    for _ in range(1500):
        arm = ARMS[rng.integers(3)]
        policy.learn(decision(context(rng, {}), arm), float(arm == "bm25"))
    assert policy.restarts == ()


@pytest.mark.slow
def test_promises_that_are_too_high_are_corrected_for_arms_that_nobody_draws() -> None:
    played = play(
        Adaptive(dims=4), 900, lambda _: {"bm25": 0.65, "dense": 0.5}, lambda _: {"bm25": 0.9, "dense": 0.85}
    )
    assert played.share("bm25", 0, 900) > 0.8
    bounds = played.policy.bounds(context(np.random.default_rng(3), {"bm25": 0.9, "dense": 0.85}), ARMS[:2])
    assert bounds.max() < 0.8


@pytest.mark.slow
def test_an_empty_newcomer_is_hardly_drawn() -> None:
    def right(_: int) -> dict[str, float]:
        return {"bm25": 0.6, "dense": 0.5, "rrf": 0.4, "new": 0.0}

    def scores(_: int) -> dict[str, float]:
        return {"bm25": 0.6, "dense": 0.5, "rrf": 0.4}

    played = play(Adaptive(dims=4), 3000, right, scores)
    assert played.arms.count("new") <= 45, "30 of them are the floor"
    assert played.policy.restarts == (), "that an unknown arm is bad is no change"


@pytest.mark.slow
def test_a_newcomer_that_is_better_has_half_of_the_traffic_within_150_questions() -> None:
    def right(t: int) -> dict[str, float]:
        return {"bm25": 0.6, "dense": 0.5} | ({"new": 0.7} if t >= 1000 else {})

    played = play(Adaptive(dims=4), 1400, right, lambda _: {"bm25": 0.6, "dense": 0.5})
    assert played.share("new", 1150, 1400) > 0.5


def risen(t: int) -> dict[str, float]:
    return {"bm25": 0.6, "dense": 0.5, "rrf": 0.1 if t < 1500 else 0.9}


def written_off(_: int) -> dict[str, float]:
    return {"bm25": 0.6, "dense": 0.5, "rrf": 0.1}


@pytest.mark.slow
def test_an_arm_that_hardly_anyone_draws_and_that_becomes_the_best_is_found() -> None:
    seeds = (1, 2, 4)
    found = [play(Adaptive(dims=4), 2500, risen, written_off, seed=seed) for seed in seeds]
    assert all(played.share("rrf", 2400, 2500) > 0.5 for played in found)
    assert max(played.share("rrf", 0, 1500) for played in found) < 0.03
    unseen = [play(Adaptive(dims=4, notice=None), 2500, risen, written_off, seed=seed) for seed in seeds]
    assert sum(played.share("rrf", 2400, 2500) > 0.5 for played in unseen) <= 1


def share_of_a_rise(mean: Array, width: Array, over: list[float]) -> Array:
    """The probability of being the best, and half of it for the best bound with what was noticed."""
    found = best_probabilities(mean, width)
    if any(over):
        found *= 0.5
        found[(mean + width + over).argmax()] += 0.5
    return found


@pytest.mark.slow
def test_half_of_the_draws_are_for_what_exceeds_the_noticed_evidence_of_a_rise() -> None:
    rng = np.random.default_rng(11)
    policy = Adaptive(dims=4, run_length=None, notice=1.0)
    bare = Adaptive(dims=4, run_length=None, notice=None, alpha=0.0)
    plain = Adaptive(dims=4, run_length=None, notice=None)
    evidence, drawn, noticed = dict.fromkeys(ARMS, 0.0), dict.fromkeys(ARMS, 0), 0
    fee = np.array([0.0, 0.05, 0.0])
    mean, variance, worth = 0.0, 0.2, 20.0
    for i in range(150):
        seen = context(rng, {"bm25": 0.3, "dense": 0.3, "rrf": 0.3})
        arm, reward = ARMS[rng.integers(3)], float(rng.random() < (0.3 if i % 50 < 25 else 0.8))
        over = [max(0.0, evidence[name] - 1.0) * math.sqrt(variance) for name in ARMS]
        bounds, means = plain.bounds(seen, ARMS), bare.bounds(seen, ARMS)
        np.testing.assert_array_equal(policy.bounds(seen, ARMS), bounds)
        if len({*bounds}) == 3:  # arms of one bound would share the draws
            width = bounds - means
            np.testing.assert_allclose(
                policy.probabilities(seen, ARMS), share_of_a_rise(means, width, over), atol=1e-9
            )
            np.testing.assert_allclose(
                policy.penalised(seen, ARMS, fee), share_of_a_rise(means - fee, width, over), atol=1e-9
            )
            noticed += any(over)
        error = reward - float(bare.bounds(seen, ARMS)[ARMS.index(arm)])
        evidence[arm] = max(0.0, evidence[arm] + error / math.sqrt(variance) - 0.25)
        drawn[arm] += 1
        if drawn[arm] == 30:
            evidence[arm] = min(evidence[arm], 1.0)
        worth = 0.999 * worth + 1.0
        apart = reward - mean
        mean += apart / worth
        variance += (apart * apart - variance) / worth
        for one in (policy, plain, bare):
            one.learn(decision(seen, arm), reward)
    assert 15 < noticed < 150
    assert min(drawn.values()) > 30


def test_rewards_that_are_late_cost_half_of_the_draws_at_most_where_a_rise_is_noticed() -> None:
    policy, rng = Adaptive(dims=4), np.random.default_rng(3)
    for arm, reward, n in (("bm25", 0.9, 100), ("rrf", 0.2, 40), ("rrf", 1.0, 6)):
        for _ in range(n):
            policy.learn(decision(context(rng, {}), arm), reward)
    assert policy.restarts == ()
    shares = policy.probabilities(context(rng, {}), ("bm25", "rrf"))
    assert shares.tolist() == pytest.approx([0.5, 0.5], abs=1e-5)


def test_that_an_unknown_arm_is_bad_is_no_change() -> None:
    policy, rng = Adaptive(dims=4, prior=0.9), np.random.default_rng(6)
    for _ in range(400):
        policy.learn(decision(context(rng, {}), "bm25"), float(rng.random() < 0.9))
    for _ in range(100):
        policy.learn(decision(context(rng, {}), "dense"), 0.0)
    assert policy.restarts == ()


@pytest.mark.parametrize("rate", [0.02, 0.98])
@pytest.mark.slow
def test_rare_and_nearly_certain_rewards_restart_nothing(rate: float) -> None:
    rng, policy = np.random.default_rng(int(100 * rate)), Adaptive(dims=0)
    seen = Context("?")
    for reward in (rng.random(8000) < rate).astype(float).tolist():
        policy.learn(decision(seen, "bm25"), reward)
    assert policy.restarts == ()


@pytest.mark.slow
def test_a_restart_is_a_function_of_the_rewards() -> None:
    played = play(Adaptive(dims=4), 1700, swapped, promised)
    again = play(Adaptive(dims=4), 1700, swapped, promised)
    assert played.policy.restarts == again.policy.restarts != ()
    assert played.policy.save() == again.policy.save()


@pytest.mark.slow
def test_a_policy_loaded_in_the_middle_restarts_at_the_same_reward() -> None:
    rng, rows = np.random.default_rng(5), []
    for t in range(1600):
        arm = ARMS[rng.integers(3)]
        rows.append((decision(context(rng, promised(t)), arm), float(rng.random() < swapped(t)[arm])))
    whole, resumed = Adaptive(dims=4), Adaptive(dims=4)
    for i, (one, reward) in enumerate(rows):
        whole.learn(one, reward)
        resumed.learn(one, reward)
        if i % 400 == 123:
            resumed = Adaptive(dims=4).load(resumed.save())
    assert whole.restarts == resumed.restarts != ()
    assert whole.save() == resumed.save()


def test_what_decisions_were_asked_for_between_two_rewards_changes_neither_state_nor_bounds() -> None:
    rng, asked, unasked = np.random.default_rng(4), Adaptive(half_life=20), Adaptive(half_life=20)
    for t in range(60):
        seen = context(rng, {"bm25": 0.6})
        for arms in (ARMS, ARMS[:2], ARMS[::-1])[: t % 4]:
            asked.probabilities(seen, arms)
        for policy in (asked, unasked):
            policy.learn(decision(seen, ARMS[int(t % 5 > 2)]), float(t % 3 == 0))
    assert asked.save() == unasked.save()
    loaded, last = Adaptive(half_life=20).load(asked.save()), context(rng, {})
    for arms in (ARMS, ("rrf", "new")):
        expected = unasked.bounds(last, arms)
        np.testing.assert_array_equal(asked.bounds(last, arms), expected)
        np.testing.assert_array_equal(loaded.bounds(last, arms), expected)


def test_a_state_with_other_arrays_is_refused_and_not_misread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive, "LAYOUT", 3)
    policy = Adaptive()
    policy.learn(decision(context(np.random.default_rng(1), {}), "rrf"), 1.0)
    state = policy.save()
    monkeypatch.undo()
    with pytest.raises(PolicyError, match=r'"layout": 3.* is damaged, or not of .*"layout": 4'):
        Adaptive().load(state)


@pytest.mark.slow
def test_after_a_restart_arms_without_kept_rewards_decide_as_in_a_policy_that_is_loaded() -> None:
    rng, policy = np.random.default_rng(8), Adaptive(dims=4)
    for t in range(700):
        seen = context(rng, {})
        arm = ARMS[2] if t < 50 else ARMS[t % 2]
        policy.probabilities(seen, ARMS)
        policy.learn(decision(seen, arm), float(rng.random() < (0.9 if t < 400 else 0.1)))
        if policy.restarts:
            break
    assert policy.restarts
    assert policy._model is not None  # noqa: SLF001
    assert not policy._model.gram[0].any(), "the third arm, whose rewards were the first, has none left"  # noqa: SLF001
    loaded, last = Adaptive(dims=4).load(policy.save()), context(rng, {})
    np.testing.assert_array_equal(policy.bounds(last, ARMS), loaded.bounds(last, ARMS))


def test_requests_for_many_sets_of_arms_are_not_all_kept_ready() -> None:
    policy, rng = Adaptive(), np.random.default_rng(5)
    arms = tuple(f"a{n}" for n in range(12))
    for arm in arms:
        policy.learn(decision(context(rng, {}), arm, arms), float(rng.random()))
    seen = context(rng, {})
    for n in range(2, 12):
        fresh = Adaptive().load(policy.save())
        np.testing.assert_array_equal(policy.bounds(seen, arms[:n]), fresh.bounds(seen, arms[:n]))
        assert policy._model is not None  # noqa: SLF001
        assert len(policy._model.together) <= 8  # noqa: SLF001


def test_a_restart_leaves_the_router_a_member_that_is_trusted_again_where_it_is_right() -> None:
    """Its scores tell kinds of questions apart, and are right but for an arm that falls."""
    rng, policy = np.random.default_rng(8), Adaptive(dims=0)

    def asked(arm: str, t: int) -> None:
        hard = bool(rng.integers(2))
        scores = {"bm25": 0.8, "dense": 0.1 if hard else 0.9}
        chance = scores[arm] if arm == "dense" else 0.8 if t < 600 else 0.05
        policy.learn(decision(context(rng, scores), arm), float(rng.random() < chance))

    t = 0
    while not policy.restarts:
        asked("bm25", t)
        t += 1
    assert 600 < t < 640
    model = policy._model  # noqa: SLF001
    assert model is not None
    assert model.weights.tolist() == [0.15, 0.15, 0.7], "most for the rewards alone"
    seen = context(rng, {})
    bounds = [
        policy.bounds(replace(seen, arms={"dense": {"router": score}, "bm25": {"router": 0.5}}), ARMS)[1]
        for score in (0.1, 0.9)
    ]
    assert bounds[1] - bounds[0] > 0.2, "its scores still count"
    for later in range(60):
        asked("dense", t + later)
    assert model.weights[:2].sum() > 0.9


@pytest.mark.slow
def test_it_remembers_500_rewards() -> None:
    policy = Adaptive(dims=2)
    rng = np.random.default_rng(2)
    sizes = []
    for i in range(620):
        policy.learn(decision(context(rng, {}), ARMS[i % 3]), float(i % 2))
        sizes.append(len(policy.save()))
    assert sizes[498] < sizes[499] - 20
    assert sizes[499] == pytest.approx(sizes[-1], abs=10)


@pytest.mark.slow
def test_within_100_rewards_of_a_restart_there_is_no_other() -> None:
    policy, rng = Adaptive(dims=2), np.random.default_rng(6)
    for i in range(2400):
        policy.learn(decision(context(rng, {}), "bm25"), float(i // 130 % 2))
    at = [restart.reward for restart in policy.restarts]
    assert len(at) > 3
    assert np.diff(at).min() > 100


def test_after_a_restart_it_knows_the_kept_rewards_and_those_before_the_change_count_a_quarter() -> None:
    policy, rng, rows = Adaptive(dims=4, alpha=1e9), np.random.default_rng(6), []
    for arm, reward, n in (("dense", 0.0, 60), ("bm25", 1.0, 200), ("bm25", 0.0, 60)):
        for _ in range(n):
            if not policy.restarts:
                rows.append(context(rng, {}))
                policy.learn(decision(rows[-1], arm), reward)
    (restart,) = policy.restarts
    assert restart.kept == 100
    assert restart.after == pytest.approx(1.0 - (len(rows) - 260) / 100)
    x = np.array([[1.0, *hashed(row.features, 4)] for row in rows[-100:]])
    weight = 0.5 ** (np.arange(99, -1, -1.0) / 350.0)
    seen = context(rng, {})
    now = np.array([1.0, *hashed(seen.features, 4)])
    bounds = policy.bounds(seen, ("bm25", "dense", "new"))
    ratios = []
    for since in range(1, 20):
        counted = weight * np.where(np.arange(100) < 100 - since, 0.25, 1.0)
        variance = now @ np.linalg.solve((x.T * counted) @ x + 30.0 * np.eye(5), now)
        ratios.append(math.sqrt(variance / (now @ now / 30.0)))
    nearest = min(ratios, key=lambda ratio: abs(ratio - bounds[0] / bounds[2]))
    assert bounds[0] / bounds[2] == pytest.approx(nearest, rel=1e-6)
    assert abs(ratios.index(nearest) + 1 - (len(rows) - 260)) <= 2, "it dates the change"
    assert bounds[1] == bounds[2]


def test_after_a_restart_a_bad_arm_of_before_is_a_new_one() -> None:
    policy, rng = Adaptive(dims=4), np.random.default_rng(6)
    for arm, reward, n in (("dense", 0.0, 60), ("bm25", 1.0, 200), ("bm25", 0.0, 60)):
        for _ in range(n):
            if not policy.restarts:
                policy.learn(decision(context(rng, {}), arm), reward)
    bounds = policy.bounds(context(rng, {}), ("dense", "new"))
    assert bounds[0] == bounds[1]


def test_a_price_that_is_subtracted_changes_the_arm_at_once() -> None:
    policy = play(Adaptive(dims=4), 300, lambda _: promised(0), promised).policy
    seen = context(np.random.default_rng(4), promised(0))
    free, priced = (policy.penalised(seen, ARMS, np.array([fee, 0.0, 0.0])) for fee in (0.0, 0.5))
    assert free.tolist() == pytest.approx([1.0, 0.0, 0.0], abs=1e-5)
    assert priced.tolist() == pytest.approx([0.0, 1.0, 0.0], abs=1e-5)


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_one_rating_moves_the_distribution_of_other_questions_by_less_than_two_fifths(reward: float) -> None:
    """In a new service without a score of any arm, and at each of the twenty ratings after the first."""
    policy, rng = Adaptive(notice=None), np.random.default_rng(2)
    others = [context(rng, {}) for _ in range(10)]
    before = np.array([policy.probabilities(seen, ARMS) for seen in others])
    for _ in range(21):
        policy.learn(decision(context(rng, {}), ARMS[int(rng.integers(3))]), reward)
        after = np.array([policy.probabilities(seen, ARMS) for seen in others])
        assert np.abs(after - before).sum(axis=1).max() / 2.0 < 0.4
        before, reward = after, float(rng.random() < 0.5)


def test_contributions_of_features_add_up_to_the_mean_reward() -> None:
    rng, policy = np.random.default_rng(5), Adaptive(dims=4, alpha=0.0, notice=None)
    for t in range(120):
        scores = {"bm25": float(rng.random()), "dense": float(rng.random())} if t % 3 else {}
        seen = replace(context(rng, scores), embedding=tuple(rng.normal(size=3).tolist()))
        found = policy.contributions(seen, ARMS)
        np.testing.assert_allclose(sum(found.values()), policy.bounds(seen, ARMS), atol=1e-9)
        assert {"prior", "intercept", "length", "digits", "embedding of the question"} < {*found}
        policy.learn(decision(seen, ARMS[t % 3]), 0.4 + 0.2 * float(rng.random()))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"alpha": -0.1}, "alpha -0.1 is not a finite number of at least 0"),
        ({"half_life": 0.0}, "half_life 0.0 is not a positive number"),
        ({"run_length": 1.0}, "run_length 1.0 is not a finite number above 1"),
        ({"notice": 0.0}, "notice 0.0 is neither a positive number nor None"),
        ({"prior": math.inf}, "prior inf is not finite"),
        ({"newcomer": math.nan}, "newcomer nan is not finite"),
        ({"dims": -1}, "dims -1 is not an integer of at least 0"),
    ],
)
def test_a_value_out_of_its_range_is_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        Adaptive(**params)


def test_before_the_first_reward_a_question_may_be_without_an_embedding() -> None:
    policy = Adaptive(dims=2)
    embedded = Context("?", {"length": 0.5}, (0.1, 0.2, 0.3))
    for _ in range(2):
        assert policy.probabilities(replace(embedded, embedding=()), ARMS) == pytest.approx([1 / 3] * 3)
        assert policy.probabilities(embedded, ARMS) == pytest.approx([1 / 3] * 3)


def test_an_embedding_of_another_length_is_refused() -> None:
    policy = Adaptive()
    policy.learn(decision(Context("?", {}, (0.1, 0.2)), "bm25"), 1.0)
    with pytest.raises(PolicyError, match="an embedding of 2 numbers was expected, as before; got 3"):
        policy.probabilities(Context("?", {}, (0.1, 0.2, 0.3)), ARMS)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.slow
def test_where_rewards_have_no_noise_a_dear_arm_is_left_to_the_questions_that_need_it(seed: int) -> None:
    """Both arms are right on one kind of questions, the dear one on the other, too; it costs 0.2."""
    rng, policy, shares = np.random.default_rng(seed), Adaptive(), []
    arms = ("cheap", "dear")
    for _ in range(800):
        hard = bool(rng.integers(2))
        seen = Context(
            "?", {"w=multiply" if hard else "w=add": 1.0, "shape=statement": 1.0, "has_digit": 1.0}
        )
        p = served_distribution(policy, seen, arms, 0.05)
        arm = arms[rng.choice(2, p=p)]
        policy.learn(decision(seen, arm, arms), 0.8 if arm == "dear" else float(not hard))
        shares.append((hard, p[1]))
    found = {kind: np.mean([dear for hard, dear in shares[-200:] if hard is kind]) for kind in (False, True)}
    assert found[False] < 0.1
    assert found[True] > 0.9


@pytest.mark.parametrize("same", [0.0, 0.7, 1.0])
@pytest.mark.slow
def test_rewards_that_are_all_equal_are_no_change_and_neither_is_one_that_differs(same: float) -> None:
    rng, policy = np.random.default_rng(3), Adaptive(dims=4)
    for _ in range(8000):
        policy.learn(decision(context(rng, {}), "bm25"), same)
    policy.learn(decision(context(rng, {}), "bm25"), 1.0 - same)
    for _ in range(60):
        policy.learn(decision(context(rng, {}), "bm25"), same)
    assert not policy.restarts
    for _ in range(100):
        policy.learn(decision(context(rng, {}), "bm25"), same - 0.7 if same else 0.7)
        if policy.restarts:
            break
    assert [(restart.rise, restart.arm) for restart in policy.restarts] == [(not same, "bm25")]


@pytest.mark.slow
def test_where_rewards_were_equal_a_small_difference_for_good_is_no_change() -> None:
    rng, policy = np.random.default_rng(3), Adaptive(dims=4)
    for t in range(9000):
        policy.learn(decision(context(rng, {}), "bm25"), 0.7 if t < 8000 else 0.703)
    assert not policy.restarts


@pytest.mark.slow
def test_rewards_that_are_always_as_expected_leave_noise_to_reckon_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adaptive, "NOISE_DECAY", 0.8)  # as after a million rewards
    rng, policy = np.random.default_rng(3), Adaptive(dims=2, prior=0.0)
    for t in range(4000):
        policy.learn(decision(context(rng, {}), ARMS[t % 3]), 0.0)
    policy.learn(decision(context(rng, {}), "dense"), 1.0)
    bounds = policy.bounds(context(rng, {}), ARMS)
    assert np.isfinite(bounds).all()
    assert bounds.argmax() == 1


@pytest.mark.slow
def test_where_rewards_are_always_as_expected_an_arm_without_rewards_is_still_unknown() -> None:
    rng = np.random.default_rng(3)
    policies = [Adaptive(dims=2, prior=0.0, newcomer=0.0, alpha=alpha) for alpha in (0.4, 0.0)]
    for _ in range(9000):
        seen = context(rng, {})
        for policy in policies:
            policy.learn(decision(seen, "bm25"), 0.0)
    width, nothing = (policy.bounds(Context("?"), ARMS)[1] for policy in policies)
    assert width - nothing == pytest.approx(0.4 * math.sqrt(0.0004 / 30.0), rel=1e-3)

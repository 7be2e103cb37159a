"""The adaptive policy: its posterior against the formulas solved at once, and worlds that change."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from armwise.agent.policies import PolicyError, adaptive, arm_regressions, compute_served_distribution
from armwise.agent.policies.adaptive import Adaptive
from armwise.agent.policies.change_detector import ChangeDetector
from armwise.agent.policies.encoding import hash_features
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
        p = compute_served_distribution(policy, seen, arms, FLOOR)
        arm = arms[rng.choice(len(arms), p=p)]
        drawn.append(arm)
        policy.learn(decision(seen, arm, arms), float(rng.random() < chances[arm]))
    return Played(drawn, policy)


PENALTIES = np.array([10.0, *[100.0] * 8, *[1000.0] * 3])
COMMON = np.array([0.8, 10.0, 20.0])


class Reference:
    """The definition, solved anew for each question: 8 columns of features, 3 numbers of an embedding."""

    def __init__(self, alpha: float = 0.2, newcomer: float = 0.2) -> None:
        self.alpha, self.newcomer = alpha, newcomer
        self.rows: list[tuple[str, Array, Array, float, float, float, int]] = []
        """Arm, x, v, reward less mean score, weight of the whole, error, parts."""
        self.noise, self.worth, self.factor = 0.2, 20.0, 1.0
        self.since, self.restarted = 0, False

    @property
    def weights(self) -> Array:
        """What each row counts as: a part of it came with each rating since."""
        ages = range(len(self.rows), 0, -1)
        return np.array([row[4] * min(age / row[6], 1.0) for age, row in zip(ages, self.rows, strict=True)])

    def count(self, arm: str) -> float:
        return float(self.weights @ [row[0] == arm for row in self.rows]) if self.rows else 0.0

    def prior(self, seen: Context, arms: tuple[str, ...]) -> tuple[float, Array, Array]:
        scores = {arm: seen.arms[arm]["router"] for arm in arms if "router" in seen.arms.get(arm, {})}
        bonus = np.array(
            [self.newcomer * math.sqrt(self.noise) * 10.0 / (10.0 + self.count(arm)) for arm in arms]
        )
        if not scores:
            return 0.0, np.array([[0.0, 0.0, 1.0]] * len(arms)), bonus
        mean = float(np.mean([*scores.values()]))
        v = np.array([[scores.get(arm, max(scores.values())) - mean, 1.0, 0.0] for arm in arms])
        return mean, v, np.where([arm in scores for arm in arms], 0.0, bonus)

    def posterior(self, seen: Context, arms: tuple[str, ...]) -> tuple[Array, Array]:
        means, variances, narrow, doubt = self.solve(seen, arms)
        return means, np.sqrt(narrow * variances + doubt)

    def solve(self, seen: Context, arms: tuple[str, ...]) -> tuple[Array, Array, Array, Array]:
        """The means, their variances, the factor on these, and what doubt of scores adds to them."""
        mean_score, vs, bonus = self.prior(seen, arms)
        v = np.array([row[2] for row in self.rows]).reshape(-1, 3)
        apart, weight = np.array([row[3] for row in self.rows]), self.weights
        prior = COMMON * [self.factor, 1.0, 1.0]
        common = np.linalg.solve(
            in_common := np.diag(prior) + (v.T * weight) @ v, prior * [1.0, 0.0, 0.5] + (v.T * weight) @ apart
        )
        apart_from_mean = vs[:, 0] - vs[:, 0].mean()
        doubt = 0.5 * self.noise * apart_from_mean**2 * np.linalg.inv(in_common)[0, 0]
        now, found = self.columns(seen), []
        for arm, mine, more in zip(arms, vs, bonus, strict=True):
            own = weight * [row[0] == arm for row in self.rows]
            x = np.array([row[1] for row in self.rows]).reshape(-1, len(now))
            penalties = PENALTIES.copy()
            penalties[0] = 100.0 if mine[1] else 10.0
            gram = self.factor * np.diag(penalties) + (x.T * own) @ x
            theta = np.linalg.solve(gram, (x.T * own) @ (apart - v @ common))
            variance = self.noise * float(now @ np.linalg.solve(gram, now))
            found.append((mean_score + mine @ common + more + now @ theta, variance))
        wide = 0.25 if vs[0, 1] and not self.restarted else 1.0
        early = [max(10.0 / (10.0 + self.since), 1.0 / (1.0 + self.count(arm))) for arm in arms]
        alpha = self.alpha ** (1.0 if vs[0, 1] else {2: 0.5, 3: 0.75}.get(len(arms), 1.0))
        means, variances = np.array(found).T
        return means, variances, alpha**2 + (wide - alpha**2) * np.array(early), doubt

    def columns(self, seen: Context) -> Array:
        return np.array([1.0, *hash_features(seen.features, 8), *seen.embedding])

    def learn(self, seen: Context, drawn: str, reward: float) -> None:
        at = ARMS.index(drawn)
        mean, variance, narrow = (one[at] for one in self.solve(seen, ARMS)[:3])
        error = reward - mean
        moved = abs(error) * variance / (self.noise + variance)
        mean_score, v, _ = self.prior(seen, ARMS)
        parts = min(max(math.ceil(moved / (0.07 * math.sqrt(narrow * variance))), 1), 100)
        self.rows.append((drawn, self.columns(seen), v[at], reward - mean_score, 1.0, error, parts))
        square = sum(row[5] ** 2 / row[6] for age, row in enumerate(reversed(self.rows)) if age < row[6])
        self.worth = 0.999 * self.worth + 1.0
        self.noise += (square - self.noise) / self.worth
        if abs(math.log(min(self.noise / 0.2, 1.0) / self.factor)) > 0.35:
            self.factor = min(self.noise / 0.2, 1.0)
        self.since += 1

    def restart(self, kept: int, since: int) -> None:
        of_before = len(self.rows) - since
        weights = [0.25 if place < of_before else 1.0 for place in range(len(self.rows))]
        whole = [(*row[:4], weight, 0.0, 1) for row, weight in zip(self.rows, weights, strict=True)]
        self.rows = whole[-kept:]
        self.since, self.restarted = 0, True


def embedded(rng: np.random.Generator, scores: dict[str, float]) -> Context:
    return replace(context(rng, scores), embedding=tuple(rng.normal(size=3).tolist()))


def test_means_and_deviations_are_those_of_regressions_that_are_solved_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adaptive, "NOTICE", math.inf)
    rng = np.random.default_rng(7)
    policy, reference = Adaptive(alpha=0.3, dims=8), Reference(alpha=0.3)
    for i in range(90):
        scores = {"bm25": float(rng.random()), "dense": float(rng.random())}
        seen = embedded(rng, scores if i % 3 else {"dense": scores["dense"]} if i % 2 else {})
        for arms in (ARMS, ("rrf", "bm25"), ("new", "dense"), (*ARMS, "new"), (*ARMS, "new", "newer")):
            for found, right in zip(
                policy.posterior(seen, arms), reference.posterior(seen, arms), strict=True
            ):
                np.testing.assert_allclose(found, right, atol=1e-10)
        arm = ARMS[rng.integers(3)]
        reward = float(rng.random()) if i < 10 else 0.4 + 0.2 * float(rng.random())
        policy.learn(decision(seen, arm), reward)
        reference.learn(seen, arm, reward)
    assert reference.factor < 0.7, "penalties have followed the noise more than once"


def test_before_the_first_reward_the_router_decides() -> None:
    seen = context(np.random.default_rng(0), {"bm25": 0.5, "dense": 0.9, "rrf": 0.2})
    assert Adaptive().probabilities(seen, ARMS).tolist() == pytest.approx([0.0, 1.0, 0.0], abs=5e-3)
    nothing = context(np.random.default_rng(0), {})
    assert Adaptive().probabilities(nothing, ARMS).tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("same", [dict.fromkeys(ARMS, 0.6), {ARMS[0]: 0.6, ARMS[1]: 0.6}, {ARMS[1]: 0.6}])
def test_an_equal_similarity_is_no_knowledge(same: dict[str, float]) -> None:
    near = {arm: {"similarity": value} for arm, value in same.items()}
    aware, unaware, rng = Adaptive(dims=4), Adaptive(dims=4), np.random.default_rng(11)
    for arm in (ARMS[0], ARMS[1], ARMS[0]):
        seen, reward = context(rng, {}), float(rng.random())
        aware.learn(decision(replace(seen, arms=near), arm), reward)
        unaware.learn(decision(seen, arm), reward)
    last = context(rng, {})
    found, expected = aware.posterior(replace(last, arms=near), ARMS), unaware.posterior(last, ARMS)
    np.testing.assert_array_equal(found, expected)


def test_where_no_arm_has_a_score_the_similarity_of_its_source_decides() -> None:
    near = {arm: {"similarity": value} for arm, value in {"bm25": 0.2, "dense": 0.3, "rrf": 0.7}.items()}
    shares = Adaptive().probabilities(Context("?", arms=near), ARMS)
    assert shares.tolist() == pytest.approx([0.0, 0.0, 1.0], abs=5e-3)
    scored = {**near, "bm25": {"similarity": 0.2, "router": 0.4}, "dense": {"router": 0.3}}
    alone = {"bm25": {"router": 0.4}, "dense": {"router": 0.3}}
    means, those = (Adaptive().posterior(Context("?", arms=arms), ARMS) for arms in (scored, alone))
    np.testing.assert_array_equal(means, those, "of no arm where another one has a score")
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
    played = play(Adaptive(dims=4, run_length=None), 2100, swapped, promised)
    assert played.policy.restarts == ()
    assert played.share("rrf", 1650, 2100) < 0.5


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.slow
def test_a_calm_world_restarts_nothing(seed: int) -> None:
    played = play(Adaptive(dims=4), 3000, lambda _: promised(0), promised, seed=seed)
    assert played.policy.restarts == ()
    assert played.share("bm25", 0, 3000) > 0.9


@pytest.mark.slow
def test_promises_that_are_too_high_are_corrected_for_arms_that_nobody_draws() -> None:
    played = play(
        Adaptive(dims=4), 900, lambda _: {"bm25": 0.65, "dense": 0.5}, lambda _: {"bm25": 0.9, "dense": 0.85}
    )
    assert played.share("bm25", 0, 900) > 0.8
    seen = context(np.random.default_rng(3), {"bm25": 0.9, "dense": 0.85})
    assert played.policy.posterior(seen, ARMS[:2])[0].max() < 0.8


@pytest.mark.slow
def test_an_empty_newcomer_is_hardly_drawn() -> None:
    def right(_: int) -> dict[str, float]:
        return {"bm25": 0.6, "dense": 0.5, "rrf": 0.4, "new": 0.0}

    def scores(_: int) -> dict[str, float]:
        return {"bm25": 0.6, "dense": 0.5, "rrf": 0.4}

    played = play(Adaptive(dims=4), 3000, right, scores)
    assert played.arms.count("new") <= 60, "30 of them are the floor, 10 are looks"
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
def test_an_arm_that_hardly_anyone_draws_and_that_becomes_the_best_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds = (1, 2, 4)
    found = [play(Adaptive(dims=4), 2500, risen, written_off, seed=seed) for seed in seeds]
    assert all(played.share("rrf", 2400, 2500) > 0.5 for played in found)
    assert max(played.share("rrf", 0, 1500) for played in found) < 0.03
    monkeypatch.setattr(adaptive, "NOTICE", math.inf)
    unseen = [play(Adaptive(dims=4), 2500, risen, written_off, seed=seed) for seed in seeds]
    assert sum(played.share("rrf", 2400, 2500) > 0.5 for played in unseen) <= 1


def share_of_a_rise(mean: Array, width: Array, risen: list[float], noise: float) -> Array:
    """The probability of being the best, and what rises get: less, by half, what a bound is behind."""
    bounds = mean + width
    shares = [
        0.05 * max(rise - (max(bounds) - bound) / math.sqrt(noise) / 2.0, 0.0)
        for rise, bound in zip(risen, bounds.tolist(), strict=True)
    ]
    total = min(sum(shares), 0.5)
    found = best_probabilities(mean, width) * (1.0 - total)
    return found + np.array(shares) * (total / sum(shares) if total else 0.0)


@pytest.mark.slow
def test_draws_are_for_what_exceeds_the_noticed_evidence_of_a_rise_in_proportion_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adaptive, "NOTICE", 1.0)
    monkeypatch.setattr(adaptive, "AT_ONCE", math.inf)
    rng, policy = np.random.default_rng(11), Adaptive(dims=4, run_length=None, looks=0.0)
    evidence, noticed, fee = dict.fromkeys(ARMS, 0.0), 0, np.array([0.0, 0.05, 0.0])
    noise, worth = 0.2, 20.0
    highest, outliers = 0.0, 0
    for i in range(400):
        seen = context(rng, {"bm25": 0.3, "dense": 0.3, "rrf": 0.3})
        arm, reward = ARMS[rng.integers(3)], float(rng.random() < (0.2 if i % 200 < 100 else 0.95))
        if i % 40 == 39 and evidence[arm] > 4.0:
            reward, outliers = -2.5, outliers + 1
        risen = [max(0.0, evidence[name] - 1.0) for name in ARMS]
        mean, width = policy.posterior(seen, ARMS)
        for found, less in (
            (policy.probabilities(seen, ARMS), 0.0 * fee),
            (policy.penalise(seen, ARMS, fee), fee),
        ):
            np.testing.assert_allclose(found, share_of_a_rise(mean - less, width, risen, noise), atol=1e-9)
        noticed += any(risen)
        error = (reward - float(mean[ARMS.index(arm)])) / math.sqrt(noise)
        evidence[arm] = min(max(0.0, evidence[arm] + max(-2.0, min(error, 2.0)) - 0.25), 11.0)
        highest = max(highest, evidence[arm])
        worth = 0.999 * worth + 1.0
        noise += ((error * math.sqrt(noise)) ** 2 - noise) / worth
        policy.learn(decision(seen, arm), reward)
    assert 15 < noticed < 400
    assert highest == 11.0, "the most that is remembered"
    assert outliers, "a reward that is lower by more than two deviations"


@pytest.mark.parametrize("looks", [0.0, 10.0, 1000.0])
def test_looks_are_shared_by_the_rewards_of_others_since_the_last_one_of_an_arm(looks: float) -> None:
    kept, none = Adaptive(dims=4, looks=looks), Adaptive(dims=4, looks=0.0)
    rng, last = np.random.default_rng(9), {"new": 0, **dict.fromkeys(ARMS, 0)}
    seen = context(rng, {})
    assert np.array_equal(kept.probabilities(seen, ARMS), none.probabilities(seen, ARMS)), "none is overdue"
    for number in range(1, 121):
        arm = "rrf" if number > 114 else "bm25" if number % 9 else ARMS[1 + number % 2]
        last[arm], reward = number, float(number > 114 or rng.random() < 0.5)
        fact = decision(context(rng, {}), arm)
        for policy in (kept, none):
            policy.learn(fact, reward)
    kept = Adaptive(dims=4, looks=looks).load(kept.save())
    assert none.probabilities(seen, ARMS)[2] > 0.05, "a rise is noticed"
    for arms in (ARMS, ("rrf", "bm25"), (*ARMS, "new")):
        since = np.array([120.0 - last[arm] for arm in arms])
        share = looks / 1000.0
        expected = (1.0 - share) * none.probabilities(seen, arms) + share * since / since.sum()
        np.testing.assert_allclose(kept.probabilities(seen, arms), expected, atol=1e-12)


def test_an_arm_that_never_earns_a_reward_as_it_fails_leaves_looks_to_the_others() -> None:
    policy, seen = Adaptive(dims=0, looks=1000.0, run_length=None), Context("?")
    for number in range(2000):
        policy.learn(decision(seen, "dense" if number < 1700 else "bm25"), 0.5)
    assert policy.probabilities(seen, ARMS).tolist() == pytest.approx([0.0, 300 / 800, 500 / 800])


def test_a_rise_that_is_noticed_moves_the_draws_by_degrees_however_far_behind_its_arm_is() -> None:
    policy, rng, jumps = Adaptive(dims=0), np.random.default_rng(0), []
    seen, before = Context("?"), np.array([1.0, 0.0, 0.0])
    for arm, mean, n in (("bm25", 0.6, 3000), ("dense", 0.4, 40), ("rrf", 0.4, 40), ("rrf", 0.65, 15)):
        for _ in range(n):
            policy.learn(decision(seen, arm), mean + 0.02 * float(rng.standard_normal()))
            if mean == 0.65:
                after = policy.probabilities(seen, ARMS)
                jumps.append(np.abs(after - before).sum() / 2.0)
                before = after
    assert before[2] > 0.2
    assert max(jumps) < 0.1


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


def test_what_decisions_were_asked_for_between_two_rewards_changes_no_state() -> None:
    rng, asked, unasked = np.random.default_rng(4), Adaptive(), Adaptive()
    for t in range(60):
        seen = context(rng, {"bm25": 0.6})
        for arms in (ARMS, ARMS[:2], ARMS[::-1])[: t % 4]:
            asked.probabilities(seen, arms)
        for policy in (asked, unasked):
            policy.learn(decision(seen, ARMS[int(t % 5 > 2)]), float(t % 3 == 0))
    assert asked.save() == unasked.save()
    loaded, last = Adaptive().load(asked.save()), context(rng, {})
    for arms in (ARMS, ("rrf", "new")):
        np.testing.assert_array_equal(asked.posterior(last, arms), unasked.posterior(last, arms))
        np.testing.assert_array_equal(loaded.posterior(last, arms), unasked.posterior(last, arms))


def test_a_state_with_other_arrays_is_refused_and_not_misread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive, "LAYOUT", 0)
    policy = Adaptive()
    policy.learn(decision(context(np.random.default_rng(1), {}), "rrf"), 1.0)
    state = policy.save()
    monkeypatch.undo()
    with pytest.raises(PolicyError, match=r'"layout": 0.* is damaged, or not of .*"layout": 7'):
        Adaptive().load(state)


def test_after_a_restart_rewards_say_how_right_scores_are() -> None:
    """They tell kinds of questions apart; an arm falls, and the other one earns what they say, or not."""

    def worth(right: bool) -> float:
        """Return by how much a score of .9 makes a mean higher than one of .1."""
        rng, policy = np.random.default_rng(8), Adaptive(dims=0)

        def ask(arm: str, chance: float | None) -> None:
            scores = {"bm25": 0.8, "dense": 0.1 if rng.integers(2) else 0.9}
            earned = scores if right else {"dense": 1.0 - scores["dense"]}
            chance = earned[arm] if chance is None else chance
            policy.learn(decision(context(rng, scores), arm), float(rng.random() < chance))

        for t in range(640):
            if not policy.restarts:
                ask("bm25", 0.8 if t < 600 else 0.05)
        assert len(policy.restarts) == 1
        for _ in range(200):
            ask("dense", None)
        scored = [{"dense": {"router": score}, "bm25": {"router": 0.5}} for score in (0.1, 0.9)]
        low, high = (policy.posterior(Context("?", arms=one), ARMS[:2])[0] for one in scored)
        return float((high[1] - high[0] - low[1] + low[0]) / 0.8)

    assert worth(right=True) > 0.6
    assert worth(right=False) < 0.2


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


def fallen(
    policy: Adaptive, rng: np.random.Generator, scores: dict[str, float]
) -> list[tuple[Context, str, float]]:
    """Let an arm that earned 1 earn 0 until that is detected, and return what was learned."""
    rows = []
    for arm, reward, n in (("dense", 0.0, 60), ("bm25", 1.0, 200), ("bm25", 0.0, 60)):
        for _ in range(n):
            if not policy.restarts:
                rows.append((embedded(rng, scores), arm, reward))
                policy.learn(decision(rows[-1][0], arm), reward)
    return rows


@pytest.mark.parametrize("scores", [{}, {"bm25": 0.8, "dense": 0.3}])
def test_after_a_restart_rewards_of_before_count_a_quarter(
    scores: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptive, "NOTICE", math.inf)
    monkeypatch.setattr(adaptive, "HALF_LIFE", 1e12)
    policy, rng = Adaptive(dims=8), np.random.default_rng(6)
    rows = fallen(policy, rng, scores)
    (restart,) = policy.restarts
    assert restart.kept == 100
    assert restart.after == pytest.approx(1.0 - (len(rows) - 260) / 100)
    seen, arms = embedded(rng, scores), ("bm25", "dense", "new")
    found = np.array(policy.posterior(seen, arms))
    reference, detector, change = Reference(), ChangeDetector(), None
    for one, arm, reward in rows:
        reference.learn(one, arm, reward)
        change = detector.see(arm, reward, reference.columns(one)[1:])
    assert change is not None
    assert abs(change.since - (len(rows) - 260)) <= 2, "it dates the change"
    reference.restart(restart.kept, change.since)
    np.testing.assert_allclose(found, reference.posterior(seen, arms), atol=1e-9)
    before = reference.factor
    for _ in range(150):
        one, reward = embedded(rng, scores), 0.5 + 0.02 * float(rng.random())
        policy.learn(decision(one, "dense"), reward)
        reference.learn(one, "dense", reward)
    assert policy.restarts == (restart,)
    assert reference.factor < before, "penalties follow the noise again"
    np.testing.assert_allclose(policy.posterior(seen, arms), reference.posterior(seen, arms), atol=1e-9)


@pytest.mark.parametrize("later", [0, 15])
def test_after_a_second_restart_only_rewards_since_then_narrow_the_draws(
    later: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptive, "NOTICE", math.inf)
    monkeypatch.setattr(adaptive, "HALF_LIFE", 1e12)
    policy, rng = Adaptive(dims=8), np.random.default_rng(7)
    reference, detector = Reference(), ChangeDetector()

    def learn(arm: str, reward: float) -> None:
        seen = embedded(rng, {})
        policy.learn(decision(seen, arm), reward)
        reference.learn(seen, arm, reward)
        change = detector.see(arm, reward, reference.columns(seen)[1:])
        if change is not None:
            reference.restart(policy.restarts[-1].kept, change.since)

    for arm, n in (("bm25", 200), ("dense", 300)):
        for reward, most in ((1.0, n), (0.0, 60)):
            restarts = len(policy.restarts)
            for _ in range(most):
                if len(policy.restarts) == restarts:
                    learn(arm, reward)
    first, second = policy.restarts
    assert second.reward - first.reward > 300
    for _ in range(later):
        learn("rrf", 1.0)
    seen = embedded(rng, {})
    np.testing.assert_allclose(policy.posterior(seen, ARMS), reference.posterior(seen, ARMS), atol=1e-9)


def test_after_a_restart_a_bad_arm_of_before_is_a_new_one() -> None:
    policy, rng = Adaptive(dims=8), np.random.default_rng(6)
    fallen(policy, rng, {})
    mean, deviation = policy.posterior(embedded(rng, {}), ("dense", "new"))
    assert (mean[0], deviation[0]) == (mean[1], deviation[1])


def test_half_of_what_is_known_of_an_arm_that_fell_is_forgotten_in_a_half_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adaptive, "NEWCOMER", 0.0)
    seen = Context("?")
    lives = (100.0, 1e12)
    policies = [Adaptive(alpha=1.0, dims=0) for _ in lives]
    for policy, half_life in zip(policies, lives, strict=True):
        monkeypatch.setattr(adaptive, "HALF_LIFE", half_life)
        rng, at = np.random.default_rng(6), 0
        while not policy.restarts:
            policy.learn(decision(seen, "bm25"), float(at < 200))
            at += 1
        for later in range(100):
            policy.learn(decision(seen, ("rrf", "dense")[later % 2]), float(rng.random()))
        assert len(policy.restarts) == 1

    def known(policy: Adaptive, arm: str) -> float:
        """Return how many rewards an arm counts as, from its variance beside that of a new arm."""
        deviation = policy.posterior(seen, (arm, "new"))[1]
        return float((deviation[1] / deviation[0]) ** 2 - 1.0)

    def learned(policy: Adaptive) -> float:
        """Return the sum of what its rewards are above the level, in units of the penalty."""
        mean = policy.posterior(seen, ("bm25", "new"))[0]
        return float((mean[0] - mean[1]) * (1.0 + known(policy, "bm25")))

    fading, lasting = policies
    assert known(fading, "bm25") == pytest.approx(known(lasting, "bm25") / 2.0, rel=1e-6)
    assert learned(fading) == pytest.approx(learned(lasting) / 2.0, rel=1e-6)
    assert known(fading, "rrf") == pytest.approx(known(lasting, "rrf"), rel=1e-9), "it did not fall"


def test_what_is_known_of_every_arm_that_fell_fades(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive, "HALF_LIFE", 20.0)
    policy, rng, seen = Adaptive(alpha=1.0, dims=0), np.random.default_rng(6), Context("?")
    for arm in ("bm25", "dense"):
        for at in range(400):
            policy.learn(decision(seen, arm), float(at < 200))
            if at > 200 and policy.restarts and policy.restarts[-1].arm == arm:
                break
    assert [(one.arm, one.rise) for one in policy.restarts] == [("bm25", False), ("dense", False)]
    for _ in range(500):
        policy.learn(decision(seen, "rrf"), float(rng.random()))
    deviation = policy.posterior(seen, ("bm25", "dense", "new"))[1]
    np.testing.assert_allclose(deviation[:2], deviation[2], rtol=1e-3)


@pytest.mark.slow
def test_an_arm_that_is_well_again_gets_its_traffic_back() -> None:
    def right(t: int) -> dict[str, float]:
        return {"bm25": 0.0 if 1000 <= t < 1500 else 0.8, "dense": 0.5, "rrf": 0.2}

    shares = [
        play(Adaptive(dims=4), 3500, right, promised, seed=seed).share("bm25", 2500, 3500)
        for seed in (1, 2, 3)
    ]
    assert min(shares) > 0.8


@pytest.mark.parametrize("seed", range(6))
def test_scores_that_mislead_are_left_within_thirty_ratings_and_not_by_one_of_them(seed: int) -> None:
    """Each question has another right arm, and the scores say the opposite."""
    policy, rng = Adaptive(dims=4), np.random.default_rng(seed)

    def ask() -> tuple[Context, Array]:
        right = rng.permutation([0.8, 0.4, 0.1])
        return context(rng, dict(zip(ARMS, (0.9 - right).tolist(), strict=True))), right

    others = [ask() for _ in range(40)]
    before = np.array([policy.probabilities(seen, ARMS) for seen, _ in others])
    favoured = [int(right.argmin()) for _, right in others]
    assert before[range(40), favoured].mean() > 0.8
    jumps = []
    for _ in range(30):
        seen, right = ask()
        arm = int(rng.choice(3, p=compute_served_distribution(policy, seen, ARMS, FLOOR)))
        policy.learn(decision(seen, ARMS[arm]), float(rng.random() < right[arm]))
        apart, before = moved(policy, [seen for seen, _ in others], before)
        jumps.append(apart)
    assert before[range(40), favoured].mean() < 0.5
    assert max(jumps) < 0.2


def moved(
    policy: Adaptive, others: list[Context], before: Array, arms: tuple[str, ...] = ARMS
) -> tuple[float, Array]:
    """Return by how much the distributions of other questions have moved in the mean, and what they are."""
    after = np.array([policy.probabilities(seen, arms) for seen in others])
    return float(np.abs(after - before).sum(axis=1).mean()) / 2.0, after


def even(rng: np.random.Generator, chance: float) -> float:
    return float(rng.random() < chance)


def rarely(rng: np.random.Generator, chance: float) -> float:
    return float(rng.random() < 0.03 * chance)


def hardly(rng: np.random.Generator, chance: float) -> float:
    return 0.45 + 0.1 * chance + 0.02 * float(rng.random())


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("reward", [even, rarely, hardly])
@pytest.mark.parametrize("n_arms", [3, 11])
def test_no_rating_moves_the_distributions_of_other_questions_by_more_than_a_tenth(
    n_arms: int, reward: Callable[[np.random.Generator, float], float], scored: bool
) -> None:
    """Whatever arm it is of, and however bad or good it is, after few ratings and after many."""
    policy, rng = Adaptive(dims=8), np.random.default_rng(n_arms)
    arms = tuple(f"arm{i}" for i in range(n_arms))
    right = dict(zip(arms, np.linspace(0.3, 0.7, n_arms).tolist(), strict=True))

    def ask() -> Context:
        return embedded(rng, right if scored else {})

    others = [ask() for _ in range(8)]
    for age in range(301):
        if age in (0, 1, 5, 20, 100, 300):
            state, seen = policy.save(), ask()
            before = np.array([policy.probabilities(one, arms) for one in others])
            for arm, extreme in product(arms, (0.0, 1.0)):
                rated = Adaptive(dims=8).load(state)
                rated.learn(decision(seen, arm, arms), extreme)
                assert moved(rated, others, before, arms)[0] <= 0.1, (age, arm, extreme)
        seen = ask()
        arm = arms[rng.choice(n_arms, p=compute_served_distribution(policy, seen, arms, FLOOR))]
        policy.learn(decision(seen, arm, arms), reward(rng, right[arm]))


@pytest.mark.parametrize("seed", range(4))
def test_in_a_new_service_eight_ratings_are_the_fewest_that_give_an_arm_nine_tenths(seed: int) -> None:
    policy, rng = Adaptive(), np.random.default_rng(seed)
    seen, ratings = context(rng, {}), 0
    while (p := policy.probabilities(seen, ARMS))[0] <= 0.9:
        arm = ARMS[rng.choice(3, p=p)]
        policy.learn(decision(context(rng, {}), arm), float(arm == "bm25"))
        ratings += 1
    assert 8 <= ratings < 40


def test_before_the_first_reward_a_question_may_be_without_an_embedding() -> None:
    policy = Adaptive(dims=2)
    embedded = Context("?", {"length": 0.5}, (0.1, 0.2, 0.3))
    for _ in range(2):
        assert policy.probabilities(replace(embedded, embedding=()), ARMS) == pytest.approx([1 / 3] * 3)
        assert policy.probabilities(embedded, ARMS) == pytest.approx([1 / 3] * 3)


@pytest.mark.slow
def test_rewards_as_expected_leave_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arm_regressions, "NOISE_DECAY", 0.8)  # as after a million rewards
    monkeypatch.setattr(adaptive, "PRIOR", 0.0)
    rng, policy = np.random.default_rng(3), Adaptive(dims=2)
    for t in range(4000):
        policy.learn(decision(context(rng, {}), ARMS[t % 3]), 0.0)
    policy.learn(decision(context(rng, {}), "dense"), 1.0)
    mean, deviation = policy.posterior(context(rng, {}), ARMS)
    assert np.isfinite(mean).all()
    assert (deviation > 0.0).all()
    assert mean.argmax() == 1


@pytest.mark.slow
def test_where_rewards_are_always_as_expected_an_arm_without_rewards_is_still_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adaptive, "PRIOR", 0.0)
    monkeypatch.setattr(adaptive, "NEWCOMER", 0.0)
    rng, policy = np.random.default_rng(3), Adaptive(dims=2)
    for _ in range(9000):
        policy.learn(decision(context(rng, {}), "bm25"), 0.0)
    deviation = policy.posterior(Context("?"), ARMS)[1]
    assert deviation[1] == pytest.approx(math.sqrt(0.2 / 10.0), rel=0.2), "the noise is low, not that"
    assert deviation[0] < deviation[1] / 100.0


def test_an_arm_is_drawn_by_its_whole_uncertainty_until_it_has_rewards_of_its_own() -> None:
    seen, policy = Context("?"), Adaptive(dims=0)
    whole = Adaptive(alpha=1.0, dims=0)
    shares = []
    for rewards in range(1, 301):
        for one in (policy, whole):
            one.learn(decision(seen, "bm25" if rewards <= 295 else "dense"), (0.4, 0.6)[rewards % 2])
        deviation = policy.posterior(seen, ARMS)[1] / whole.posterior(seen, ARMS)[1]
        shares.append(deviation**2)
    least = 0.2**1.5  # of three arms
    most = 1.0 - least
    assert shares[294] == pytest.approx([least + most * 10.0 / 305.0, 1.0, 1.0], rel=0.03)
    assert shares[295][0] == pytest.approx(least + most * 10.0 / 306.0, rel=0.03)
    assert least + most / 6.0 < shares[299][1] < shares[295][1] < 1.0, "its rewards count in parts"


# -- a baseline --------------------------------------------------------------------------------------


MODELS = ("small", "large")


def ask(policy: Adaptive, hard: float, scores: dict[str, float] | None = None) -> Array:
    """Return the distribution for an easy question, 0, or a hard one, 1."""
    described = {arm: {"router": score} for arm, score in (scores or {}).items()}
    return policy.probabilities(Context("?", {"hard": hard}, (), described), MODELS)


def rate(policy: Adaptive, arm: str, hard: float, rewards: list[float]) -> None:
    for reward in rewards:
        policy.learn(decision(Context("?", {"hard": hard}), arm, MODELS), reward)


def test_the_baseline_has_all_draws_before_the_first_reward() -> None:
    assert ask(Adaptive(baseline="large"), 0.0).tolist() == [0.0, 1.0]
    assert ask(Adaptive(baseline="small"), 1.0).tolist() == [1.0, 0.0]


def test_one_rating_does_not_leave_the_baseline() -> None:
    policy = Adaptive(baseline="large")
    rate(policy, "large", 0.0, [0.9, 0.8, 0.0, 0.9] * 5)
    rate(policy, "small", 0.0, [1.0])
    assert 0.0 < ask(policy, 0.0)[0] < 0.05


def test_an_arm_that_seems_better_than_the_baseline_gets_a_tenth_of_the_draws_until_it_surely_is() -> None:
    policy, shares = Adaptive(baseline="large"), []
    for _ in range(60):
        rate(policy, "large", 0.0, [0.2, 0.8])
        rate(policy, "small", 0.0, [0.3, 0.9])
        shares.append(ask(policy, 0.0)[0])
    tried = [share for share in shares if 0.01 < share < 0.1]
    assert len(tried) > 10
    assert shares[-1] > 0.5
    assert sum(share < 0.1 for share in shares) < 50


def test_the_baseline_is_left_for_the_questions_on_which_another_arm_is_better() -> None:
    policy = Adaptive(baseline="large")
    for _ in range(40):
        rate(policy, "large", 0.0, [0.6, 0.5])
        rate(policy, "small", 0.0, [0.9, 0.8])
        rate(policy, "large", 1.0, [0.8, 0.7])
        rate(policy, "small", 1.0, [0.1, 0.2])
    assert ask(policy, 0.0)[0] > 0.95
    assert ask(policy, 1.0)[0] == 0.0


@pytest.mark.parametrize("gap", [0.05, 0.3, 1.0])
def test_a_router_without_ratings_moves_less_than_half_of_the_draws(gap: float) -> None:
    policy = Adaptive(baseline="large")
    assert 0.0 <= ask(policy, 0.0, {"small": gap, "large": 0.0})[0] < 0.5


def test_a_penalty_on_the_baseline_counts_as_known() -> None:
    policy = Adaptive(baseline="large")
    rate(policy, "large", 0.0, [0.5] * 30)
    rate(policy, "small", 0.0, [0.5] * 30)
    seen = Context("?", {"hard": 0.0})
    assert policy.penalise(seen, MODELS, np.array([0.0, 0.0]))[1] == 1.0
    assert policy.penalise(seen, MODELS, np.array([0.0, 0.9]))[0] == 1.0


def test_a_decision_without_the_baseline_is_made_as_without_one() -> None:
    kept, free = Adaptive(baseline="large"), Adaptive()
    for policy in (kept, free):
        rate(policy, "small", 0.0, [1.0, 0.0, 1.0])
    seen = Context("?", {"hard": 0.0})
    assert np.array_equal(
        kept.probabilities(seen, ("small", "mid")), free.probabilities(seen, ("small", "mid"))
    )


def test_neither_a_rise_nor_looks_take_draws_from_the_baseline() -> None:
    kept, free = Adaptive(baseline="large", looks=1000.0), Adaptive(looks=0.0)
    for policy in (kept, free):
        rate(policy, "large", 0.0, [0.6] * 200)
        rate(policy, "small", 0.0, [0.2] * 5 + [1.0] * 6)
    assert ask(free, 0.0)[0] > 0.3
    assert ask(kept, 0.0)[0] < 0.1


@pytest.mark.parametrize("baseline", MODELS)
def test_few_and_wrong_ratings_cost_no_more_than_exploration(baseline: str) -> None:
    """One answer in ten is rated, a tenth of the ratings are wrong; ten services of 400 questions."""
    right = {"small": (0.9, 0.4), "large": (0.84, 0.79)}
    losses = []
    for seed in range(10):
        rng, policy, lead = np.random.default_rng(seed), Adaptive(baseline=baseline), []
        for _ in range(400):
            hard = int(rng.random() < 0.5)
            seen = Context("?", {"hard": float(hard)})
            p = compute_served_distribution(policy, seen, MODELS, FLOOR)
            drawn = MODELS[rng.choice(2, p=p)]
            lead.append(p @ [right[arm][hard] for arm in MODELS] - right[baseline][hard])
            reward = float(rng.random() < right[drawn][hard])
            if rng.random() < 0.1:
                policy.learn(decision(seen, drawn, MODELS), abs(reward - float(rng.random() < 0.1)))
        losses.append(np.mean(lead))
    worst = (
        FLOOR
        * 0.5
        * sum(max(0.0, right[baseline][hard] - min(right[arm][hard] for arm in MODELS)) for hard in (0, 1))
    )
    assert np.mean(losses) >= -worst - 0.002


BARE = Context("?", {}, (), {})


def pay(
    policy: Adaptive,
    arm: str,
    quality: float,
    cost: float,
    seen: Context = BARE,
    arms: tuple[str, ...] = ARMS,
) -> None:
    policy.learn(decision(seen, arm, arms), quality - cost, cost)


def test_a_cost_counts_in_full_from_the_first_reward() -> None:
    policy = Adaptive()
    for arm, cost in zip(ARMS, (0.1, 0.1, 0.4), strict=True):
        pay(policy, arm, 0.5, cost)
    mean, _ = policy.posterior(BARE, ARMS)
    assert mean - mean[0] == pytest.approx([0.0, 0.0, -0.3], abs=0.01)


def test_an_arm_of_unknown_cost_is_expected_to_cost_as_much_as_the_others() -> None:
    policy, free = Adaptive(), Adaptive()
    for arm, cost in zip(ARMS, (0.2, 0.4), strict=False):
        pay(policy, arm, 0.5, cost)
        pay(free, arm, 0.5, 0.0)
    mean, without = (one.posterior(BARE, ARMS)[0] for one in (policy, free))
    assert mean - without == pytest.approx([-0.2, -0.4, -0.3])


def test_costs_that_differ_by_question_are_learned_as_a_part_of_the_reward() -> None:
    policy, rng = Adaptive(), np.random.default_rng(0)
    kinds = [Context("?", {"length": length}, (), {}) for length in (-1.0, 1.0)]
    for _ in range(3000):
        kind, arm = int(rng.integers(2)), str(rng.choice(ARMS))
        pay(policy, arm, 0.5, 0.1 if kind == 0 or arm == "bm25" else 0.3, kinds[kind])
    for kind, costs in zip(kinds, ((0.1, 0.1, 0.1), (0.1, 0.3, 0.3)), strict=True):
        assert 0.5 - policy.posterior(kind, ARMS)[0] == pytest.approx(costs, abs=0.02)


def test_where_a_router_scores_the_arms_their_costs_are_in_the_scores() -> None:
    policy, without = Adaptive(), Adaptive()
    scored = context(np.random.default_rng(0), dict.fromkeys(ARMS, 0.5))
    for arm in ARMS * 20:
        pay(policy, arm, 0.5, 0.2, scored)
        without.learn(decision(scored, arm), 0.3)
    one, other = (learned.posterior(scored, ARMS) for learned in (policy, without))
    np.testing.assert_array_equal(one, other)


def test_costs_are_known_after_a_restart_and_in_a_policy_that_is_loaded() -> None:
    policy = Adaptive()
    for turn in range(600):
        for arm in ARMS:
            pay(policy, arm, 0.9 if turn < 400 else 0.1, 0.3 if arm == "rrf" else 0.1)
    assert policy.restarts
    pay(policy, "bm25", 0.1, 0.1)
    loaded = Adaptive().load(policy.save())
    mean, _ = policy.posterior(BARE, ARMS)
    np.testing.assert_array_equal(mean, loaded.posterior(BARE, ARMS)[0])
    assert mean[1] - mean[2] == pytest.approx(0.2, abs=0.01)


def test_a_dear_model_is_left_to_the_questions_that_need_it_where_it_costs_little_more() -> None:
    shares = []
    for seed in range(8):
        policy, rng, arms, easy = Adaptive(), np.random.default_rng(seed), ("small", "large"), []
        for turn in range(900):
            hard = float(rng.integers(2))
            seen = Context("?", {"length": 2.0 * hard - 1.0}, (), {})
            p = compute_served_distribution(policy, seen, arms, 0.01)
            large = int(rng.random() < p[1])
            right = rng.random() < (0.9 if not hard else 0.85 if large else 0.4)
            pay(policy, arms[large], float(right), 0.06 * large, seen, arms)
            if turn >= 600 and not hard:
                easy.append(1.0 - p[1])
        shares.append(np.mean(easy))
    assert np.median(shares) > 0.9

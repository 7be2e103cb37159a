"""Linear bandits: their numbers against Li et al.'s own matrices, one batch, and the integral itself."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import linalg

from armwise.agent.policies import linear
from armwise.agent.policies.linear import LinearThompson, LinUCB, RidgePolicy
from armwise.agent.policies.ridge import ArmRidge
from armwise.agent.policies.sampling import compute_served_distribution
from armwise.feedback.events import Context, Decision
from tests.contracts import ARMS, contexts, history, teach

Array = NDArray[np.float64]

RIDGE = 3.0
D, K, N = 7, 12, 4


def rows(n: int, seed: int) -> list[tuple[int, Array, Array, float]]:
    """Return rows of an arm, its own columns, the shared columns and a reward; the last arm has none."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        x = np.append(1.0, rng.normal(size=D - 1))
        found.append((int(rng.integers(N - 1)), x, np.append(x, rng.normal(size=K - D)), float(rng.random())))
    return found


def taught(seen: list[tuple[int, Array, Array, float]], n_shared: int = K) -> ArmRidge:
    model = ArmRidge.empty(RIDGE, D, n_shared)
    for _ in range(N - 1):
        model.add_arm()
    for arm, x, z, reward in seen:
        model.learn(arm, x, z[:n_shared], reward)
    return model


def decision(drawn: str, seen: Context, arms: tuple[str, ...] = ARMS) -> Decision:
    return Decision("d", seen, arms, (1.0 / len(arms),) * len(arms), drawn, "linucb", 1)


@pytest.mark.slow
def test_after_thousands_of_rows_it_is_the_ridge_regression_of_all_of_them() -> None:
    """One regression on the shared columns and a copy of the own columns an arm, solved at once."""
    model = taught(rows(6000, seed=1))
    gram, moment = RIDGE * np.eye(K + N * D), np.zeros(K + N * D)

    def joint(arm: int, x: Array, z: Array) -> Array:
        row = np.zeros(K + N * D)
        row[:K], row[K + arm * D : K + (arm + 1) * D] = z, x
        return row

    for arm, x, z, reward in rows(6000, seed=1):
        row = joint(arm, x, z)
        gram += np.outer(row, row)
        moment += reward * row
    factor = linalg.cho_factor(gram)

    _, x, _, _ = rows(1, seed=2)[0]
    z = np.hstack([np.tile(x, (N, 1)), np.random.default_rng(3).normal(size=(N, K - D))])
    mean, covariance = model.posterior(np.array([0, 1, 2, -1]), x, z)

    asked = np.array([joint(arm, x, z[arm]) for arm in range(N)])
    np.testing.assert_allclose(mean, asked @ linalg.cho_solve(factor, moment), atol=1e-8)
    np.testing.assert_allclose(covariance, asked @ linalg.cho_solve(factor, asked.T), atol=1e-8)
    inverse = model.own[:, :D]
    np.testing.assert_allclose(inverse, inverse.transpose(0, 2, 1), rtol=0, atol=1e-15)


def test_the_hybrid_bound_is_li_et_als_algorithm_2() -> None:
    """With the five matrices that they keep, inverted where they invert them; their penalty is 1."""
    model = ArmRidge.empty(1.0, D, K)
    a0, b0 = np.eye(K), np.zeros(K)
    matrices = [(np.eye(D), np.zeros(D), np.zeros((D, K))) for _ in range(N - 1)]
    for _ in range(N - 1):
        model.add_arm()
    for arm, x, z, reward in rows(80, seed=4):
        a_arm, b_arm, cross = matrices[arm]
        a0 += cross.T @ np.linalg.solve(a_arm, cross)
        b0 += cross.T @ np.linalg.solve(a_arm, b_arm)
        a_arm += np.outer(x, x)
        cross += np.outer(x, z)
        b_arm += reward * x
        a0 += np.outer(z, z) - cross.T @ np.linalg.solve(a_arm, cross)
        b0 += reward * z - cross.T @ np.linalg.solve(a_arm, b_arm)
        model.learn(arm, x, z, reward)

    for _, x, z, _ in rows(10, seed=5):
        mean, covariance = model.posterior(np.arange(N - 1), x, np.tile(z, (N - 1, 1)))
        for arm, (a_arm, b_arm, cross) in enumerate(matrices):
            beta, own = np.linalg.solve(a0, b0), np.linalg.inv(a_arm)
            theta = own @ (b_arm - cross @ beta)
            through = cross.T @ own @ x
            variance = (
                z @ np.linalg.solve(a0, z)
                - 2.0 * z @ np.linalg.solve(a0, through)
                + x @ own @ x
                + through @ np.linalg.solve(a0, through)
            )
            assert mean[arm] == pytest.approx(z @ beta + x @ theta, abs=1e-10)
            assert covariance[arm, arm] == pytest.approx(variance, abs=1e-10)


def test_without_shared_columns_each_arm_is_a_regression_of_its_own() -> None:
    model = taught(rows(300, seed=6), n_shared=0)
    _, x, _, _ = rows(1, seed=7)[0]
    mean, covariance = model.posterior(np.arange(N), x, np.zeros((N, 0)))
    for arm in range(N):
        seen = [(row, reward) for which, row, _, reward in rows(300, seed=6) if which == arm]
        design = np.array([row for row, _ in seen]).reshape(-1, D)
        gram = RIDGE * np.eye(D) + design.T @ design
        theta = np.linalg.solve(gram, design.T @ np.array([reward for _, reward in seen]))
        assert mean[arm] == pytest.approx(x @ theta, abs=1e-10)
        assert covariance[arm, arm] == pytest.approx(x @ np.linalg.solve(gram, x), abs=1e-10)
    assert np.count_nonzero(covariance - np.diag(covariance.diagonal())) == 0


def test_features_of_arms_that_come_late_change_nothing_of_what_was_learned() -> None:
    """A policy that knew every column from the start believes the same."""
    seen = contexts(1, seed=8)[0]
    late = {"bm25": {"steps": 1.0}, "dense": {"steps": 1.0, "size": 0.5}, "none": {"free": 1.0}}
    known, growing = LinUCB(), LinUCB()
    # A reward on an arm that is never asked about again, with zeros in all columns but its own.
    everything = {"steps": 0.0, "size": 0.0, "free": 0.0}
    known.learn(
        decision("zero", Context("?", arms={"zero": everything}, embedding=(0.0,) * 4), ("zero",)), 1.0
    )
    growing.learn(decision("zero", Context("?", embedding=(0.0,) * 4), ("zero",)), 1.0)
    for policy in (known, growing):
        for drawn in ("bm25", "dense", "bm25", "none", "dense"):
            policy.learn(decision(drawn, replace(seen, arms=late)), float(drawn == "dense"))
    after = replace(seen, arms={**late, "new": {"size": 2.0, "odd": 1.0}})
    for found, expected in zip(
        growing.posterior(after, (*ARMS, "new")), known.posterior(after, (*ARMS, "new")), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_a_feature_never_learned_from_adds_its_prior_doubt_to_the_arms_that_have_it() -> None:
    policy = LinUCB(ridge=4.0)
    policy.learn(decision("bm25", Context("?")), 1.0)
    plain, odd = Context("?"), Context("?", arms={"dense": {"odd": 3.0, "big": 4.0}, "none": {"odd": -1.0}})
    _, before = policy.posterior(plain, ARMS)
    _, after = policy.posterior(odd, ARMS)
    expected = np.array([[0.0, 0.0, 0.0], [0.0, 1.0, -0.6], [0.0, -0.6, 1.0]]) / 4.0
    np.testing.assert_allclose(after - before, expected, atol=1e-12)


def test_an_arm_with_many_features_or_large_ones_is_trusted_and_moved_as_much_as_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(linear, "PRIOR", 0.0)
    arms = {"bm25": {"k1": 90.0, "b": 40.0, "kind=bm25": 1.0}, "dense": {"kind=dense": 0.1}}
    seen, names = Context("?", arms=arms), ("bm25", "dense")
    policies = [LinUCB(), LinUCB()]
    for drawn, policy in zip(names, policies, strict=True):
        policy.learn(decision(drawn, seen, names), 1.0)
    (of_many, _), (of_one, _) = (policy.posterior(seen, names) for policy in policies)
    assert of_many.tolist() == pytest.approx(of_one[::-1].tolist())
    _, doubt = LinUCB().posterior(seen, names)
    assert doubt[0, 0] == pytest.approx(doubt[1, 1])


@pytest.mark.parametrize(
    "policy", [LinUCB(), LinearThompson(), LinUCB(shared=False)], ids=("ucb", "thompson", "disjoint")
)
def test_arms_of_which_nothing_is_known_share_the_mass(policy: LinUCB) -> None:
    assert policy.probabilities(Context("?"), ARMS).tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("build", [LinUCB, LinearThompson])
@pytest.mark.parametrize("shared", [True, False])
def test_a_router_ranks_the_arms_until_rewards_know_better(
    build: type[LinUCB] | type[LinearThompson], shared: bool
) -> None:
    policy = build(prior_feature="router", ridge=10.0, shared=shared)
    scores = {"bm25": 0.2, "dense": 0.7, "none": 0.4}
    seen = Context("?", {"long": 1.0}, arms={arm: {"router": score} for arm, score in scores.items()})
    assert policy.posterior(seen, ARMS)[0].tolist() == pytest.approx(list(scores.values()))
    assert ARMS[int(policy.probabilities(seen, ARMS).argmax())] == "dense"
    for _ in range(60):
        policy.learn(decision("bm25", seen), 0.9)
        policy.learn(decision("dense", seen), 0.3)
    mean, _ = policy.posterior(seen, ARMS)
    assert mean[:2].tolist() == pytest.approx([0.9, 0.3], abs=0.1)
    assert ARMS[int(policy.probabilities(seen, ARMS).argmax())] == "bm25"


@pytest.mark.parametrize("build", [LinUCB, LinearThompson])
@pytest.mark.slow
def test_a_right_router_is_kept_and_a_wrong_one_is_corrected(
    build: type[LinUCB] | type[LinearThompson],
) -> None:
    """Beside always following it; two arms are alike on average, and a reward is 0 or 1."""
    about = {"bm25": {"k1": 8.0, "b": 4.0}, "dense": {"kind=dense": 1.0}, "none": {}}
    lead: dict[str, list[float]] = {"right": [], "wrong": []}
    for seed in (21, 22, 23):
        rng = np.random.default_rng(seed)
        worth = np.array([0.3, 0.45, 0.44]) + 0.04 * rng.normal(size=(1500, 3))
        outcomes = (rng.random(worth.shape) < worth).astype(float)
        for router, scores in (("right", worth), ("wrong", worth[:, [1, 0, 2]])):
            policy = build(prior_feature="router")
            for truth, said, outcome in zip(worth, scores, outcomes, strict=True):
                told = {
                    arm: {**about[arm], "router": score}
                    for arm, score in zip(ARMS, said.tolist(), strict=True)
                }
                p = compute_served_distribution(policy, Context("?", arms=told), ARMS, 0.01)
                lead[router].append(float(p @ truth - truth[said.argmax()]))
                drawn = int(rng.choice(3, p=p))
                policy.learn(decision(ARMS[drawn], Context("?", arms=told)), outcome[drawn])
    assert np.mean(lead["right"]) > -0.004
    assert np.mean(lead["wrong"]) > 0.015


@pytest.mark.parametrize("shared", [True, False])
def test_the_score_of_a_router_is_learned_from_where_it_is_no_prior(shared: bool) -> None:
    policy = LinUCB(alpha=0.0, ridge=10.0, dims=0, shared=shared)
    rng = np.random.default_rng(19)

    def scored(scores: Array) -> Context:
        told = {arm: {"kind": 3.0, "router": score} for arm, score in zip(ARMS, scores.tolist(), strict=True)}
        return Context("?", arms=told)

    for _ in range(400):
        scores = rng.uniform(size=3)
        drawn = int(rng.integers(3))
        policy.learn(decision(ARMS[drawn], scored(scores)), float(scores[drawn]))
    best = [
        int(policy.probabilities(scored(scores), ARMS).argmax()) == scores.argmax()
        for scores in rng.uniform(size=(50, 3))
    ]
    assert np.mean(best) > 0.9 if shared else np.mean(best) < 0.6


def test_a_router_that_is_the_prior_is_no_column_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is learned is the residual of the reward: as without the score, from the difference alone."""
    monkeypatch.setattr(linear, "PRIOR", 0.0)
    on_prior, on_residuals = LinUCB(prior_feature="router", ridge=2.0), LinUCB(ridge=2.0)
    about: dict[str, dict[str, float]] = {"bm25": {"k1": 0.9}, "dense": {"kind": 1.0}, "none": {}}
    rng = np.random.default_rng(17)
    for _ in range(30):
        scores = dict(zip(ARMS, rng.uniform(size=3).tolist(), strict=True))
        bare = Context("?", {"long": 1.0}, arms=about)
        scored = replace(bare, arms={arm: {**about[arm], "router": scores[arm]} for arm in ARMS})
        drawn, reward = ARMS[rng.integers(3)], float(rng.uniform())
        mean, covariance = on_prior.posterior(scored, ARMS)
        residual, expected = on_residuals.posterior(bare, ARMS)
        np.testing.assert_allclose(mean - [scores[arm] for arm in ARMS], residual, atol=1e-12)
        np.testing.assert_allclose(covariance, expected, atol=1e-12)
        on_prior.learn(decision(drawn, scored), reward)
        on_residuals.learn(decision(drawn, bare), reward - scores[drawn])


def test_an_arm_without_the_routers_score_starts_at_the_prior() -> None:
    policy = LinUCB(prior_feature="router")
    mean, _ = policy.posterior(Context("?", arms={"bm25": {"router": 0.5}}), ARMS)
    assert mean.tolist() == [0.5, 1.0, 1.0]


def test_a_new_arm_starts_from_what_its_relatives_taught() -> None:
    kinds = {"bm25": {"kind=sparse": 1.0}, "dense": {"kind=dense": 1.0}, "none": {"kind=none": 1.0}}
    later = {**kinds, "e5": {"kind=dense": 1.0}, "okapi": {"kind=sparse": 1.0}}
    policy = LinUCB()
    for row, reward in history(policy, 150, seed=9, best="dense"):
        policy.learn(decision(row.drawn, Context("?", row.context.features, (), kinds)), reward)
    mean, _ = policy.posterior(Context("?", {"long": 1.0}, arms=later), ("dense", "e5", "okapi", "bm25"))
    assert mean[1] > mean[2] + 0.2
    assert mean[0] > mean[1]


def test_arms_that_learn_apart_do_not_look_at_what_they_have_in_common() -> None:
    seen = contexts(1, seed=10)[0]
    policy = LinUCB(shared=False)
    teach(policy, history(policy, 40, seed=11))
    bare = policy.posterior(replace(seen, arms={}), ARMS)
    for found, expected in zip(policy.posterior(seen, ARMS), bare, strict=True):
        assert found.tolist() == expected.tolist()


def test_thompson_gives_each_arm_the_share_of_draws_in_which_it_is_best() -> None:
    apart, together = LinearThompson(scale=0.5, shared=False), LinearThompson(scale=0.5)
    rng = np.random.default_rng(12)
    for policy, near in ((apart, 0.01), (together, 0.03)):
        teach(policy, history(policy, 25, seed=13))
        for seen in contexts(5, seed=14):
            mean, covariance = policy.posterior(seen, (*ARMS, "graph"))
            draws = mean + 0.5 * rng.standard_normal((40_000, 4)) @ np.linalg.cholesky(covariance).T
            shares = np.bincount(draws.argmax(axis=1), minlength=4) / len(draws)
            p = policy.probabilities(seen, (*ARMS, "graph"))
            assert np.abs(p - shares).max() < near


def test_less_is_explored_as_more_is_known() -> None:
    policy = LinearThompson(scale=0.3)
    seen = contexts(1, seed=15)[0]
    spread = []
    for n in (0, 30, 300):
        teach(policy, history(policy, n, seed=16, best="dense"))
        spread.append(float(policy.probabilities(seen, ARMS).max()))
    assert spread[0] < spread[1] < spread[2]
    assert spread[2] > 0.99


def test_the_smallest_values_of_the_range_are_taken() -> None:
    assert LinUCB(alpha=0.0, dims=0, ridge=1e-9).probabilities(Context("?"), ARMS).sum() == 1.0


@pytest.mark.parametrize(
    ("default", "explicit"),
    [
        (LinUCB(), LinUCB(alpha=0.2, ridge=100.0, dims=32, shared=True, prior_feature=None)),
        (LinUCB(prior_feature="router"), LinUCB(prior_feature="router", ridge=3000.0)),
        (
            LinearThompson(),
            LinearThompson(scale=0.1, ridge=10.0, dims=32, shared=True, prior_feature=None),
        ),
        (LinearThompson(prior_feature="router"), LinearThompson(prior_feature="router", ridge=3000.0)),
    ],
)
def test_a_state_of_the_defaults_is_as_documented(default: RidgePolicy, explicit: RidgePolicy) -> None:
    """A default that changes makes every state saved before unreadable."""
    assert default.save() == explicit.save()


@pytest.mark.parametrize("shared", [True, False])
def test_features_of_arms_are_not_taken_from_the_last_decision(shared: bool) -> None:
    """One policy keeps what it caches; the other is loaded before every reward, which drops it."""
    rng = np.random.default_rng(33)
    names = ("steps", "size", "free")
    lasting, loaded = LinUCB(shared=shared), LinUCB(shared=shared)
    first = contexts(1, seed=0)[0]
    for i in range(60):
        arms = {
            arm: {name: float(rng.integers(1, 3)) for name in names if rng.random() < 0.6}
            for arm in (*ARMS, "late")[: 3 + (i > 30)]
        }
        seen, drawn = replace(contexts(1, seed=i)[0], arms=arms), str(rng.choice([*arms]))
        loaded = loaded.load(loaded.save())
        for asked in (first, seen, first):
            found, expected = (
                lasting.posterior(asked, (*ARMS, "late")),
                loaded.posterior(asked, (*ARMS, "late")),
            )
            assert [one.tolist() for one in found] == [one.tolist() for one in expected]
        reward = float(rng.integers(2))
        for policy in (lasting, loaded):
            policy.learn(decision(drawn, seen, (*arms,)), reward)
        lasting.posterior(seen, (*arms,))
        arms["bm25"]["steps"] = 3.0  # in place
        found, expected = (
            policy.posterior(seen, (*arms,)) for policy in (lasting, lasting.load(lasting.save()))
        )
        assert [one.tolist() for one in found] == [one.tolist() for one in expected]
    assert lasting.save() == loaded.save()


def test_the_columns_of_an_arm_are_those_of_the_loaded_state_and_of_its_present_features() -> None:
    features = {"bm25": {"steps": 1.0, "size": 2.0}, "dense": {"size": 1.0}, "none": {}}
    seen = replace(contexts(1, seed=0)[0], arms=features)
    used, other = LinUCB(), LinUCB()
    used.learn(decision("bm25", seen), 1.0)  # its first column is that of the steps
    for drawn in ("dense", "bm25"):  # and here that of the size
        other.learn(decision(drawn, seen), 0.5)
    loaded, fresh = used.load(other.save()), LinUCB().load(other.save())
    for policy in (loaded, fresh):
        policy.learn(decision("bm25", seen), 1.0)
    assert loaded.save() == fresh.save()
    features["bm25"]["steps"] = 3.0  # in place
    reloaded = fresh.load(fresh.save())
    for policy in (fresh, reloaded):
        policy.learn(decision("bm25", seen), 0.0)
    assert fresh.save() == reloaded.save()

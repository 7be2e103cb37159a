"""The contract of every policy, as one list of small checks run on the whole catalogue.

A check takes a function that builds a policy without a history. Add a policy to
`tests/agent/policies/test_contracts.py`, and it inherits them all.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from armwise.agent.policies import Policy, PolicyError, ReplayStep, compute_served_distribution, sampling
from armwise.agent.policies.epsilon_greedy import EpsilonGreedy
from armwise.agent.policies.linear import LinUCB
from armwise.agent.policies.neural import NeuralGreedy
from armwise.feedback.events import Context, Decision
from armwise.feedback.log.facts import without_texts

ARMS = ("bm25", "dense", "none")
FEATURES = {name: {"steps": float(name != "none")} for name in (*ARMS, "graph")}

Build = Callable[[], Policy]


def context(rng: np.random.Generator) -> Context:
    """Return a context whose feature `long` determines the best arm, as does the question."""
    features = {"long": float(rng.integers(2)), "w=river": float(rng.integers(2))}
    question = ("long" if features["long"] else "short") + (" river?" if features["w=river"] else "?")
    return Context(question, features, tuple(rng.integers(-2, 3, size=4) / 2.0), FEATURES)


def history(policy: Policy, n: int, seed: int, best: str | None = None) -> list[tuple[Decision, float]]:
    """Return `n` rewarded decisions, drawn uniformly; `best` always earns 1 and the rest 0."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        seen = context(rng)
        drawn = ARMS[rng.integers(len(ARMS))]
        share = (1.0 / len(ARMS),) * len(ARMS)
        good = best or ("bm25" if seen.features["long"] else "dense")
        rows.append((Decision(f"d-{i}", seen, ARMS, share, drawn, policy.kind, 1), float(drawn == good)))
    return rows


def teach(policy: Policy, rows: Sequence[tuple[Decision, float]]) -> Policy:
    """Learn a history in order."""
    for decision, reward in rows:
        policy.learn(decision, reward)
    return policy


def contexts(n: int, seed: int) -> list[Context]:
    """Return `n` contexts."""
    rng = np.random.default_rng(seed)
    return [context(rng) for _ in range(n)]


def stays_a_distribution_after_any_history(build: Build) -> None:
    for n in (0, 1, 7, 60):
        policy = teach(build(), history(build(), n, seed=n))
        for seen in contexts(5, seed=n + 1):
            p = policy.probabilities(seen, ARMS)
            assert p.dtype == np.float64
            assert sampling.validate(p, len(ARMS)).shape == (3,)


def the_floor_is_kept_after_any_history(build: Build) -> None:
    for n in (0, 60):
        policy = teach(build(), history(build(), n, seed=20, best="bm25"))
        for seen in contexts(5, seed=21):
            for floor in (0.0, 0.05, 0.9):
                p = compute_served_distribution(policy, seen, ARMS, floor)
                assert p.min() >= min(floor, 1 / 3) - 1e-12
                assert p.sum() == pytest.approx(1.0, abs=1e-12)


def permuting_arms_permutes_probabilities(build: Build) -> None:
    for n in (0, 40):
        policy = teach(build(), history(build(), n, seed=3))
        for seen in contexts(5, seed=4):
            p = dict(zip(ARMS, policy.probabilities(seen, ARMS).tolist(), strict=True))
            for order in (("none", "dense", "bm25"), ("dense", "none", "bm25")):
                permuted = policy.probabilities(seen, order)
                np.testing.assert_allclose(permuted, [p[name] for name in order], rtol=1e-12)


def an_arm_never_seen_gets_a_probability(build: Build) -> None:
    policy = teach(build(), history(build(), 30, seed=5))
    for seen in contexts(5, seed=6):
        assert sampling.validate(policy.probabilities(seen, (*ARMS, "graph")), 4).shape == (4,)
        assert policy.probabilities(seen, ("graph",)).tolist() == [1.0]


def an_unknown_propensity_is_learned_as_one_of_1(build: Build) -> None:
    """A decision of another system may have none: it is learned without a weight, and resumes."""
    rows = history(build(), 40, seed=31)
    certain = [
        (replace(d, probabilities=tuple(float(arm == d.drawn) for arm in ARMS)), reward) for d, reward in rows
    ]
    unknown = [(replace(d, probabilities=()), reward) for d, reward in rows]
    expected, found = teach(build(), certain), teach(build(), unknown)
    resumed = build().load(found.save())
    for seen in contexts(5, seed=32):
        p = expected.probabilities(seen, ARMS).tolist()
        assert found.probabilities(seen, ARMS).tolist() == p
        np.testing.assert_allclose(resumed.probabilities(seen, ARMS), p, rtol=1e-6)


def asking_changes_nothing(build: Build) -> None:
    policy = teach(build(), history(build(), 20, seed=7))
    before = policy.save()
    seen = contexts(3, seed=8)
    first = [policy.probabilities(c, ARMS).tolist() for c in seen]
    assert [policy.probabilities(c, ARMS).tolist() for c in seen] == first
    assert policy.save() == before


def the_same_history_gives_the_same_bytes(build: Build) -> None:
    rows = history(build(), 30, seed=9)
    silent, asked = teach(build(), rows), build()
    for decision, reward in rows:
        asked.probabilities(decision.context, decision.arms)
        asked.learn(decision, reward)
    assert silent.save() == asked.save()


def a_loaded_state_is_read_as_by_a_policy_that_has_seen_nothing(build: Build) -> None:
    used = teach(build(), history(build(), 9, seed=25))
    seen = contexts(3, seed=26)
    for asked in seen:
        used.probabilities(asked, ARMS)
    state = teach(build(), history(build(), 12, seed=28)).save()
    loaded, fresh = used.load(state), build().load(state)
    for asked in seen:
        np.testing.assert_array_equal(loaded.probabilities(asked, ARMS), fresh.probabilities(asked, ARMS))
    rows = history(build(), 3, seed=29)
    assert teach(loaded, rows).save() == teach(fresh, rows).save()


def an_erasure_changes_nothing_that_is_learned(build: Build) -> None:
    rows = history(build(), 30, seed=24)
    if getattr(build(), "reads_question", False):
        rows = [(replace(one, context=replace(one.context, question="")), reward) for one, reward in rows]
    erased = [(without_texts(one) if i % 3 else one, reward) for i, (one, reward) in enumerate(rows)]
    before, after = teach(build(), rows), teach(build(), erased)
    assert before.save() == after.save()
    for name in (b"w=river", b'"long"'):
        assert name not in before.save().partition(b"\n")[2], "names of features would outlive an erasure"
    for one, _ in rows[:5]:
        bare = without_texts(one).context
        assert before.probabilities(one.context, ARMS).tolist() == before.probabilities(bare, ARMS).tolist()


def a_loaded_policy_is_the_saved_one(build: Build) -> None:
    saved = teach(build(), history(build(), 25, seed=10))
    loaded = build().load(saved.save())
    seen = contexts(5, seed=11)
    assert loaded.kind == saved.kind
    for c in seen:
        assert loaded.probabilities(c, ARMS).tolist() == saved.probabilities(c, ARMS).tolist()


def a_loaded_policy_learns_on_and_leaves_the_saved_one_alone(build: Build) -> None:
    saved = teach(build(), history(build(), 25, seed=10))
    before = saved.save()
    loaded = build().load(before)
    teach(loaded, history(build(), 1, seed=22))
    for seen in contexts(5, seed=23):
        assert sampling.validate(loaded.probabilities(seen, ARMS), len(ARMS)).shape == (3,)
    assert saved.save() == before


def loading_leaves_the_loader_alone(build: Build) -> None:
    policy = build()
    untaught = policy.save()
    policy.load(teach(build(), history(policy, 10, seed=12)).save())
    assert policy.save() == untaught


def an_exact_policy_resumes_where_it_was_saved(build: Build) -> None:
    rows = history(build(), 40, seed=13)
    kept = teach(build(), rows[:25])
    resumed = build().load(kept.save())
    assert resumed.save() == kept.save()
    assert teach(resumed, rows[25:]).save() == teach(kept, rows[25:]).save()


def following_a_log_is_deciding_and_learning_one_step_after_the_other(build: Build) -> None:
    """Arms and columns appear on the way; some steps only decide, or only learn, or decide under a budget."""
    rng, rows = np.random.default_rng(33), history(build(), 150, seed=33)
    rows += rows[:60]
    steps = []
    for i, (one, reward) in enumerate(rows):
        arms = (*ARMS, "graph") if 40 <= i < 55 or i % 50 == 49 else ARMS
        described = {arm: {**values, f"kind={i // 70}": 0.5} for arm, values in FEATURES.items()}
        scored = {arm: {**values, "router": rng.random()} for arm, values in FEATURES.items()}
        seen = replace(one.context, arms=(FEATURES, described, scored)[i // 70 % 3])
        drawn = "graph" if i % 50 == 49 else one.drawn
        share = (1.0 / len(arms),) * len(arms)
        decision = replace(one, context=seen, arms=arms, probabilities=share, drawn=drawn)
        able = 0.5 if 90 <= i < 120 else 1.0
        asked = tuple(arm for arm in arms if rng.random() < able)
        penalty = tuple(rng.random(len(asked)).tolist()) if 110 <= i < 140 else ()
        learned = None if i % 7 == 5 else reward
        if i == 75:  # neither asked nor learned, so that nothing reads its context
            other = replace(decision, context=replace(seen, embedding=(0.5,)))
            steps.append(ReplayStep(other, (), 0.01, (), None, 0.1))
        steps.append(ReplayStep(decision, asked, 0.01, penalty, learned, 0.1))
    in_turn, in_block = build(), build()
    found = [*sampling.replay(in_block, steps[:100]), *sampling.replay(in_block, steps[100:])]
    for step, p in zip(steps, found, strict=True):
        decision, cost = step.decision, (step.cost,) if getattr(in_turn, "learns_costs", False) else ()
        assert (p is None) is (not step.arms)
        if p is not None:
            asked = decision.context, step.arms, step.floor, step.penalty
            expected = compute_served_distribution(in_turn, *asked)
            np.testing.assert_allclose(p, expected, rtol=0.0, atol=1e-12)
        if step.reward is not None:
            in_turn.learn(decision, step.reward, *cost)


def threads_see_what_one_thread_sees(build: Build) -> None:
    policy = teach(build(), history(build(), 20, seed=14))
    seen = contexts(40, seed=15)
    alone = [policy.probabilities(c, ARMS).tolist() for c in seen]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda c: policy.probabilities(c, ARMS).tolist(), seen)) == alone


CHECKS = (
    stays_a_distribution_after_any_history,
    the_floor_is_kept_after_any_history,
    permuting_arms_permutes_probabilities,
    a_loaded_state_is_read_as_by_a_policy_that_has_seen_nothing,
    an_arm_never_seen_gets_a_probability,
    an_unknown_propensity_is_learned_as_one_of_1,
    asking_changes_nothing,
    the_same_history_gives_the_same_bytes,
    an_erasure_changes_nothing_that_is_learned,
    a_loaded_policy_is_the_saved_one,
    a_loaded_policy_learns_on_and_leaves_the_saved_one_alone,
    loading_leaves_the_loader_alone,
    following_a_log_is_deciding_and_learning_one_step_after_the_other,
    threads_see_what_one_thread_sees,
)
"""For every policy."""


EXACT_CHECKS = (an_exact_policy_resumes_where_it_was_saved,)
"""For a policy whose `resumes_exactly` is true."""


def learning_moves_probability_to_the_rewarded_arm(build: Build) -> None:
    for best in ARMS:
        policy = build()
        other = next(arm for arm in ARMS if arm != best)
        teach(policy, history(policy, 45, seed=16, best=other))
        before = mean_probability(policy, best)
        teach(policy, history(policy, 135, seed=16, best=best))
        assert mean_probability(policy, best) > max(before, 0.5)


def learning_tells_contexts_apart(build: Build) -> None:
    policy = build()
    teach(policy, history(policy, 240, seed=17))
    for seen in contexts(20, seed=18):
        p = policy.probabilities(seen, ARMS)
        assert ARMS[int(p.argmax())] == ("bm25" if seen.features["long"] else "dense")


def what_is_not_finite_is_refused_and_nothing_is_learned(build: Build) -> None:
    policy = teach(build(), history(build(), 10, seed=24))
    before = policy.save()
    good, _ = history(policy, 1, seed=25)[0]
    for bad in (float("nan"), float("inf")):
        with pytest.raises(PolicyError, match=f"reward {bad} of decision 'd-0' is not finite"):
            policy.learn(good, bad)
        for broken, message in (
            (replace(good.context, features={"long": 1.0, "odd": bad}), "feature 'odd' is"),
            (replace(good.context, embedding=(0.5, bad, 0.5, 0.5)), "number 1 of the embedding is"),
            (replace(good.context, arms={**FEATURES, "bm25": {"cost": bad}}), "feature 'cost' of arm 'bm25'"),
        ):
            with pytest.raises(PolicyError, match=message):
                policy.probabilities(broken, ARMS)
            with pytest.raises(PolicyError, match=message):
                policy.learn(replace(good, context=broken), 1.0)
    assert policy.save() == before


def an_arm_that_was_not_eligible_teaches_nothing(build: Build) -> None:
    policy = teach(build(), history(build(), 10, seed=26))
    before = policy.save()
    good, _ = history(policy, 1, seed=27)[0]
    with pytest.raises(PolicyError, match="drew 'graph', which is not among: bm25, dense, none"):
        policy.learn(replace(good, drawn="graph"), 1.0)
    assert policy.save() == before


def a_state_that_is_damaged_or_of_another_kind_is_refused(build: Build) -> None:
    policy = teach(build(), history(build(), 10, seed=28))
    state = policy.save()
    middle = len(state) // 2
    changed = state[:middle] + bytes([state[middle] ^ 1]) + state[middle + 1 :]
    others = [other.save() for other in (LinUCB(), NeuralGreedy()) if other.kind != policy.kind]
    for wrong in (b"", b"\n", state[:-1], state + b"?", changed, *others):
        with pytest.raises(PolicyError, match="is damaged, or not of"):
            build().load(wrong)


LEARNING_CHECKS = (
    learning_moves_probability_to_the_rewarded_arm,
    an_arm_that_was_not_eligible_teaches_nothing,
    a_state_that_is_damaged_or_of_another_kind_is_refused,
)
"""For a policy that learns."""

CONTEXT_CHECKS = (
    learning_tells_contexts_apart,
    what_is_not_finite_is_refused_and_nothing_is_learned,
)
"""For a policy that learns from contexts: all but those with `reads_context = False`."""


def epsilon_of(policy: EpsilonGreedy | NeuralGreedy) -> float:
    """Return the probability of exploring at the next decision."""
    return policy._exploration.at(policy._rewards)  # noqa: SLF001 - where scores tie, no probability shows it


def mean_probability(policy: Policy, arm: str) -> float:
    """Average the probability of an arm over some contexts."""
    return float(np.mean([policy.probabilities(c, ARMS)[ARMS.index(arm)] for c in contexts(20, seed=19)]))

"""What policies refuse, each by the value at fault."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from armwise.agent.policies import compute_served_distribution, sampling
from armwise.agent.policies.adaptive import Adaptive
from armwise.agent.policies.base import Policy, PolicyError, Uniform
from armwise.agent.policies.catalog import POLICIES, PolicySpec, build_policy, check_untrusted
from armwise.agent.policies.change_detector import ChangeDetector
from armwise.agent.policies.epsilon_greedy import EpsilonGreedy
from armwise.agent.policies.linear import LinearThompson, LinUCB
from armwise.agent.policies.neural import NeuralGreedy
from armwise.agent.policies.router import Routed
from armwise.agent.policies.vowpal import VowpalWabbit
from armwise.feedback.events import Context, Decision
from tests.contracts import ARMS

NEURAL, PLAIN = PolicySpec(kind="neural", params={"encoder": "/etc"}), PolicySpec(kind="uniform")


class Short(Uniform):
    """A policy that forgets an arm."""

    def probabilities(self, context: Context, arms: Sequence[str]) -> np.ndarray:
        return super().probabilities(context, arms[1:])


def build(kind: str, **params: Any) -> Policy:
    return build_policy(PolicySpec.model_validate({"kind": kind, "params": params}), ["none", "bm25"])


def ask(policy: Policy, *embedding: float) -> object:
    """Ask a policy that has learned from an embedding of three numbers."""
    learn(policy, 1.0, Context("?", embedding=(0.1, 0.2, 0.3)))
    return policy.probabilities(Context("?", embedding=embedding), ARMS)


def learn(policy: Policy, reward: float, context: Context | None = None) -> None:
    policy.learn(
        Decision("d", context or Context("?"), ARMS, (1 / len(ARMS),) * len(ARMS), "bm25", "p", 1), reward
    )


def route(score: float) -> object:
    return Routed().probabilities(Context("?", arms={arm: {"router": score} for arm in ARMS}), ARMS)


EPSILON, VOWPAL = EpsilonGreedy().save(), VowpalWabbit().save()
OTHERS = "is damaged, or not of"

REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: Adaptive(alpha=-0.1), "alpha -0.1"),
    (lambda: Adaptive(run_length=1.0), "run_length 1.0"),
    (lambda: Adaptive(dims=-1), "dims -1"),
    *((lambda n=n: Adaptive(looks=n), f"looks {n} is not") for n in (-1.0, 1001.0, math.nan)),
    *(
        (lambda n=n: ChangeDetector(n), f"run_length {n} is not")
        for n in (1.0, 0.0, -5.0, math.inf, math.nan)
    ),
    *((lambda a=a: LinUCB(alpha=a), f"alpha {a} is not") for a in (-0.1, math.nan, math.inf)),
    *((lambda n=n: LinUCB(dims=n), f"dims {n} is not") for n in (-1, 2.5)),
    (lambda: LinUCB(ridge=0.0), "ridge 0.0 is not"),
    *((lambda s=s: LinearThompson(scale=s), f"scale {s} is not") for s in (0.0, math.inf)),
    (lambda: LinearThompson(ridge=math.inf), "ridge inf is not"),
    (lambda: EpsilonGreedy(epsilon=1.5), "epsilon 1.5"),
    (lambda: EpsilonGreedy(epsilon=-0.1), "epsilon -0.1"),
    (lambda: EpsilonGreedy(decay=0.0), "decay 0.0"),
    (lambda: EpsilonGreedy(decay="exp"), "decay 'exp'"),  # type: ignore[arg-type]
    (lambda: NeuralGreedy(learning_rate=0.0), "learning_rate 0.0"),
    (lambda: NeuralGreedy(epsilon=1.5), "epsilon 1.5"),
    (lambda: NeuralGreedy(decay=-1.0), "decay -1.0"),
    (lambda: NeuralGreedy(encoder="/nowhere/model"), "'/nowhere/model': there is no file or folder"),
    (lambda: build("routed", epsilon=1.5), "epsilon 1.5"),
    (lambda: build("vopal"), "kind 'vopal'; did you mean 'vowpal'"),
    (lambda: build("zzz"), f"kind 'zzz'; available: {', '.join(sorted(POLICIES))}"),
    (lambda: build("epsilon_greedy", epsilom=0.1), "'epsilom'; did you mean 'epsilon'"),
    (lambda: build("uniform", x=1), "no parameter 'x'; available: none"),
    (lambda: build("fixed"), "'fixed' cannot be built"),
    (lambda: build("fixed", arm="bm52"), "'bm52'; did you mean 'bm25'"),
    (lambda: build("vowpal", _model=b""), "no parameter '_model'"),
    (lambda: check_untrusted(NEURAL, PLAIN), "^encoder '/etc' may name a file"),
    (lambda: check_untrusted(PolicySpec(kind="linucp"), PLAIN), "'linucp'; did you mean 'linucb'"),
    *((lambda f=f: sampling.mix_floor(np.full(3, 1 / 3), f), f"floor {f} is too large") for f in (0.4, -0.1)),
    *(
        (lambda p=p: sampling.validate(np.array(p), 2), "not a distribution")
        for p in (
            [0.5, 0.4],
            [1.5, -0.5],
            [np.nan, 1.0],
            [np.inf, 0.0],
            [np.inf, -np.inf],
            [1.0, 1.0],
            [0, 0],
        )
    ),
    (lambda: compute_served_distribution(Short(), Context("?"), ["a", "b"], 0.1), r"2 arms .*shape \(1,\)"),
    *(
        (lambda p=p: ask(p, 1.0, 2.0), "of 3 numbers .*; got 2")
        for p in (Adaptive(), LinUCB(), NeuralGreedy())
    ),
    (lambda: ask(NeuralGreedy()), "of 3 numbers .*; got 0"),
    *(
        (lambda s=s: route(s), f"'router' of arm '.*' is {s}; a finite")
        for s in (math.nan, math.inf, -math.inf)
    ),
    *((lambda s=s: EpsilonGreedy().load(s), OTHERS) for s in (b"", EPSILON[:-1], EPSILON + b"?", VOWPAL)),
    *(
        (lambda s=s: VowpalWabbit().load(s), OTHERS)
        for s in (b"", b"\n", VOWPAL[:-1], VOWPAL + b"?", EPSILON)
    ),
    (lambda: VowpalWabbit("--cb_explore_adf --epsilon 0.3").load(VOWPAL), OTHERS),
    *(
        (lambda p=p: p.load(LinUCB().save()), OTHERS)
        for p in (LinUCB(ridge=1.0), LinUCB(shared=False), LinUCB(alpha=0.3), LinearThompson())
    ),
    (lambda: learn(EpsilonGreedy(), math.nan), "reward nan of decision 'd' is not finite"),
]


@pytest.mark.parametrize(("attempt", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_is_refused_is_named(attempt: Callable[[], object], words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        attempt()

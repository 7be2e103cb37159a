"""Vowpal Wabbit's contextual bandits: any `--cb_explore_adf` algorithm, with examples built in memory.

A decision is one shared example and one example an arm, in four namespaces
that the arguments may cross and ignore by their letters:

    s  the named features of the question       e  its embedding
    a  the name of the arm                      f  the features of the arm

Features are named by pseudonyms (`armwise.feedback.texts`), so that learned weights survive an erasure.
`-q sa` learns weights of the question for each arm, and `-q sf` for each feature of arms. Namespaces that are
not crossed have linear weights: a router's score, as a feature of its arm, gets a weight in `f` within a few
hundred rewards or labels. (VW cannot start from the score itself; `prior_feature` of
`armwise.agent.policies.linear` can.)

Some algorithms keep state outside their model file, and learn differently after they are saved and loaded.
For these `resumes_exactly` is False, and the log is replayed.

    epsilon-greedy    --epsilon 0.05                                 resumes exactly
    SquareCB          --squarecb --gamma_scale 100 --clip_p 1         resumes exactly
    RegCB             --regcb --cb_min_cost 0 --cb_max_cost 1        resumes exactly
    optimistic RegCB  --regcbopt --cb_min_cost 0 --cb_max_cost 1     resumes exactly
    softmax           --softmax --lambda 10                          resumes exactly
    synthetic cover   --synthcover                                   resumes exactly
    online cover      --cover 3                                      is replayed
    bagging           --bag 5                                        is replayed
    doubly robust     --epsilon 0.05 --cb_type dr                    is replayed

Arms are passed to VW sorted by name, so that ties which it breaks by position (in `--squarecb` or
`--first_only`) are independent of the caller's order.
"""

import math
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies.base import PolicyError
from armwise.agent.policies.encoding import check_context, check_reward
from armwise.agent.policies.serialization import seal, unseal
from armwise.arms import extras
from armwise.arms.suggestions import did_you_mean
from armwise.feedback.events import Context, Decision
from armwise.feedback.texts import by_pseudonym

DEFAULT = "--cb_explore_adf --squarecb --gamma_scale 100 --clip_p 1 --learning_rate 0.2 -q sa -q ea"

VW_VERSION = extras.find_version("vowpalwabbit")
"""Part of every state: another version may read the same model differently."""

NAMES = "pseudonyms"
"""Part of every state: how features are named for VW. A state with plain names is learned again."""

ALWAYS = ("--quiet", "--preserve_performance_counters")
"""Always added: without the second, a loaded model counts its examples from 0 again."""

REFUSED_ARGUMENTS = {
    "-i": "state enters by load()",
    "--initial_regressor": "state enters by load()",
    "-f": "state leaves by save()",
    "--final_regressor": "state leaves by save()",
    "-d": "examples enter by learn()",
    "--data": "examples enter by learn()",
    "--passes": "the log is read once, in order",
    "-t": "a policy learns",
    "--testonly": "a policy learns",
    "--elim": "its probabilities can be negative",
    "--graph_feedback": "decisions have no feedback graph",
}
"""Arguments that only make sense on a command line, or need data that decisions lack."""

EXACT_FLAGS = """
    --cb_explore_adf --cb_type --cb_min_cost --cb_max_cost --first_only --epsilon --squarecb --gamma_scale
    --gamma_exponent --regcb --regcbopt --mellowness --softmax --lambda --synthcover --psi --first
    --coin --sgd --adaptive --normalized --invariant --clip_p --large_action_space --max_actions --random_seed
    -q --quadratic --cubic --interactions --ignore --ignore_linear --noconstant --hash
    -b --bit_precision -l --learning_rate --power_t --initial_t
"""
"""Arguments with which, as tests show, a saved and loaded model continues exactly."""

OTHER_FLAGS = """
    --affix --bag --boosting --cb_dro --cb_dro_alpha --cb_dro_tau --cb_dro_wmax --cover --elim --ftrl
    --ftrl_alpha --ftrl_beta --graph_feedback --greedify --hash_seed --initial_weight --inpass
    --interact --keep --l1 --l1_state --l2 --l2_state --leave_duplicate_interactions --loss_function --lrq
    --lrqdropout --ngram --nn --no_bias_regularization --nounif --pistol --quantile_tau --random_weights
    --rnd --rnd_alpha --rnd_invlambda --skips --spanner_c --sparse_weights --synthcoverpsi --synthcoversize
    --two_pass_svd
"""
"""Arguments that are allowed, but without a test of exact continuation."""

ALLOWED = frozenset((EXACT_FLAGS + OTHER_FLAGS).split())
"""The permitted arguments; those that name a file, a host or a port are left out."""

MAX_BITS = 28
"""Largest number of bits of the table of weights, which then takes 4 GB."""

TOKEN = re.compile(r"[^\s'\"\\]+")
"""A token that survives in a model, where VW writes arguments without quotes."""

INEXACT_TYPES = frozenset({"dr"})
"""Values of `--cb_type` with a second regressor that VW saves incompletely."""


@dataclass(frozen=True, slots=True)
class _Actions:
    """The examples of the arms of one decision, hashed once and reused."""

    arms: tuple[str, ...]
    features: dict[str, dict[str, float]]
    examples: list[Any]  # sorted by arm name
    position: NDArray[np.intp]  # of each of `arms` in `examples`

    def match(self, arms: Sequence[str], features: Mapping[str, Mapping[str, float]]) -> bool:
        return self.arms == tuple(arms) and self.features == features


BASELINE = 1.0
"""Reward that is a cost of 0 for VW, and therefore the expected reward of an arm without rewards."""


class VowpalWabbit:
    """Draws with any of Vowpal Wabbit's `--cb_explore_adf` learners.

    The default is SquareCB (Foster and Rakhlin 2020, arXiv:2002.04926). `--clip_p 1`
    gives it the unweighted regression of its theory: with inverse propensity weights, the
    rare draws of a bad arm dominate. The adaptive step follows the latest rewards, which is of use
    to a policy that starts from nothing; one that starts from labels keeps them with
    `--learning_rate 0.5 --power_t 1 --gamma_scale 100`.

    Args:
        args: Command-line arguments of `vw`, with `--cb_explore_adf`. Arguments that name a file or
            a host are refused.

    Raises:
        PolicyError: The arguments are not of a `--cb_explore_adf` learner, or VW refuses them.
    """

    kind = "vowpal"

    def __init__(self, args: str = DEFAULT, *, _model: bytes = b"") -> None:
        flags, tokens = check_args(args), shlex.split(args)
        self.args = shlex.join(tokens)
        self.resumes_exactly = _resumes_exactly(flags)
        # A model contains its own arguments, and some algorithms refuse them twice.
        self._vw = _restore(_model, self.args) if _model else _workspace(tokens)
        self._label_type = int(self._vw.get_label_type())
        self._actions = _Actions((), {}, [], np.zeros(0, dtype=np.intp))
        self._dimensions: list[int] = []
        self._lock = Lock()

    @staticmethod
    def check_untrusted(params: Mapping[str, Any], configured: bool) -> None:
        """Check that all arguments are permitted. Raises PolicyError."""
        del configured
        check_args(params.get("args", DEFAULT))

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return VW's distribution; `--regcbopt` may give several arms 1, which then share the mass.

        Raises:
            PolicyError: A feature is not finite, or VW returned no distribution.
        """
        check_context(context)
        with self._lock:
            actions = self._find_actions(context, arms)
            shared = self._build_shared(context)
            self._vw.predict_multi([shared, *actions.examples])
            scores = shared.get_action_scores()
        total: float = sum(scores)
        if not 0.0 < total < math.inf or min(scores) < 0.0:
            raise PolicyError(f"not a distribution: vw {self.args!r} gave {scores}")
        return np.array(scores)[actions.position] / total

    def learn(self, decision: Decision, reward: float) -> None:
        """Update from the cost and the propensity of the drawn arm.

        An unknown propensity counts as 1, so that the cost is regressed without a weight. Arguments that
        weight by it, such as `--cb_type ips`, are then biased towards arms that the other system prefers.
        """
        check_reward(decision, reward)
        cost = BASELINE - reward
        context, weighed_by = decision.context, decision.propensity if decision.probabilities else 1.0
        with self._lock:
            actions = self._find_actions(context, decision.arms)
            drawn = actions.position[decision.arms.index(decision.drawn)]
            examples = [self._build_shared(context), *actions.examples]
            examples[1 + drawn] = self._action(
                decision.drawn, context.arms.get(decision.drawn, {}), f"0:{cost}:{weighed_by}"
            )
            self._vw.learn_multi(examples)
            # Counts the example: the learning rate of a non-adaptive update decays with the count.
            self._vw._finish_example_multi_ex(examples)  # noqa: SLF001

    def save(self) -> bytes:
        """Return VW's version, the arguments and a digest on one line, then VW's model."""
        with self._lock, tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model")
            self._vw.save(path)
            return seal(self._made_by, path.read_bytes())

    def load(self, state: bytes) -> Self:
        """Return a policy with the given state.

        Raises:
            PolicyError: The state is damaged, has other arguments or another version of VW, or VW refuses it.
        """
        # the digest is checked first: VW loads a truncated model
        model = unseal(state, self._made_by)
        return type(self)(self.args, _model=model)

    @property
    def _made_by(self) -> dict[str, Any]:
        return {"vw": VW_VERSION, "args": self.args, "names": NAMES}

    def _example(self) -> Any:
        from vowpalwabbit.pyvw import pylibvw

        return pylibvw.example(self._vw, self._label_type)

    def _build_shared(self, context: Context) -> Any:
        example = self._example()
        if context.features:
            example.push_feature_dict(self._vw, {"s": by_pseudonym(context.features)})
        if context.embedding:
            numbered = list(zip(self._hashes(len(context.embedding)), context.embedding, strict=True))
            example.push_namespace(ord("e"))
            example.push_feature_list(self._vw, ord("e"), 0, numbered)
        example.set_label_string(self._vw, "shared", self._label_type)
        self._vw.setup_example(example)
        return example

    def _hashes(self, dims: int) -> Sequence[int]:
        if len(self._dimensions) != dims:
            space = self._vw.hash_space("e")
            self._dimensions = [self._vw.hash_feature(str(i), space) for i in range(dims)]
        return self._dimensions

    def _action(self, name: str, features: Mapping[str, float], label: str = "") -> Any:
        example = self._example()
        example.push_feature_dict(self._vw, {"a": {name: 1.0}})
        if features:
            example.push_feature_dict(self._vw, {"f": by_pseudonym(features)})
        if label:
            example.set_label_string(self._vw, label, self._label_type)
        self._vw.setup_example(example)
        return example

    def _find_actions(self, context: Context, arms: Sequence[str]) -> _Actions:
        if not self._actions.match(arms, context.arms):
            ordered = sorted(arms)
            self._actions = _Actions(
                arms=tuple(arms),
                features={name: dict(features) for name, features in context.arms.items()},
                examples=[self._action(name, context.arms.get(name, {})) for name in ordered],
                position=np.array([ordered.index(name) for name in arms], dtype=np.intp),
            )
        return self._actions


def _flags(tokens: Sequence[str]) -> dict[str, str]:
    """Return the options of a command line, each with its last value.

    >>> _flags(["--cb_explore_adf", "--cb_min_cost", "-1", "-qsa", "--power_t=0"])
    {'--cb_explore_adf': '', '--cb_min_cost': '-1', '-q': 'sa', '--power_t': '0'}
    """
    flags: dict[str, str] = {}
    name = ""
    for token in tokens:
        if token.startswith("--"):
            name, _, value = token.partition("=")
            flags[name] = value
        elif token.startswith("-") and token[1:2].isalpha():
            name = token[:2]
            flags[name] = token[2:]
        elif name:
            flags[name] = token
    return flags


def _resumes_exactly(flags: Mapping[str, str]) -> bool:
    return flags.keys() <= set(EXACT_FLAGS.split()) and flags.get("--cb_type") not in INEXACT_TYPES


def check_args(args: object) -> Mapping[str, str]:
    """Check arguments without loading VW; those that cannot work, or name a file or a host, are refused.

    Args:
        args: Argument of `VowpalWabbit`, unchecked.

    Returns:
        The options, each with its last value.

    Raises:
        PolicyError: The arguments are not a text, lack `--cb_explore_adf`, have one outside `ALLOWED`, or
            have `--regcb` without bounds.
    """
    if not isinstance(args, str):
        raise PolicyError(f"vw arguments are a text, as on the command line; got {args!r}")
    try:
        tokens = shlex.split(args)
    except ValueError as error:
        raise PolicyError(f"vw arguments {args!r} cannot be read: {error}") from None
    flags = _flags(tokens)
    if "--cb_explore_adf" not in flags:
        raise PolicyError(f"vw needs --cb_explore_adf among its arguments, got: {' '.join(flags) or 'none'}")
    for token in tokens:
        _check_token(token)
    for flag in ("-b", "--bit_precision"):
        if not (bits := flags.get(flag, "0")).isdecimal() or int(bits) > MAX_BITS:
            raise PolicyError(f"vw argument {flag} {bits} is not a whole number up to {MAX_BITS}")
    for flag in ("--regcb", "--regcbopt"):
        missing = {"--cb_min_cost", "--cb_max_cost"} - flags.keys()
        if flag in flags and missing:
            raise PolicyError(
                f"vw argument {flag} needs {' and '.join(sorted(missing))}, the bounds of baseline - reward"
            )
    return flags


def _check_token(token: str) -> None:
    """Check that an argument is in `ALLOWED` and survives in a model. Raises PolicyError."""
    option = token.partition("=")[0] if token.startswith("--") else token[:2]
    if option in REFUSED_ARGUMENTS:
        raise PolicyError(f"vw argument {option} has no place here: {REFUSED_ARGUMENTS[option]}")
    if option.startswith("-") and option not in ALLOWED and not re.match(r"-[\d.]", token):
        raise PolicyError(f"vw argument {option!r} is not allowed{did_you_mean(option, sorted(ALLOWED))}")
    if not TOKEN.fullmatch(token):
        raise PolicyError(f"vw argument {token!r} is empty, or has a space, a quote or a backslash")


@extras.explain_missing()
def _workspace(tokens: Sequence[str]) -> Any:
    from vowpalwabbit import Workspace  # loaded when a policy needs it: most configurations have none

    try:
        return Workspace(arg_list=[*tokens, *ALWAYS])
    except RuntimeError as error:
        raise PolicyError(f"vw refuses {shlex.join(tokens)!r}: {error}") from error


def _restore(model: bytes, args: str) -> Any:
    """Load a model after checking the command line in it, since VW would write files that it names.

    Raises:
        PolicyError: The command line differs from these arguments, or VW refuses the model.
    """
    if _header(model) != _read_header(args):
        raise PolicyError(f"the model has other arguments than vw {args!r}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model")
        path.write_bytes(model)
        return _workspace(["-i", str(path)])


@lru_cache(maxsize=64)
def _read_header(args: str) -> tuple[bytes, bytes]:
    """Return the header of a model with these arguments."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model")
        _workspace(shlex.split(args)).save(path)
        return _header(path.read_bytes())


def _header(model: bytes) -> tuple[bytes, bytes]:
    """Return the header of a model and its command line, without the parts that learning changes.

    The header has a version, an id, a letter, the least and the greatest label, four numbers, and the command
    line; the length precedes each text. Learning changes the labels and the seed.
    """

    def after_text(start: int) -> int:
        return start + 4 + int.from_bytes(model[start : start + 4], "little")

    labels = after_text(after_text(0)) + 1
    line = labels + 24
    preamble = model[:labels] + model[labels + 8 : line]
    return preamble, re.sub(rb" --random_seed \d+(?=[ \0])", b"", model[line + 4 : after_text(line)])

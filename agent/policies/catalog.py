"""The catalogue of policies: build one from its specification."""

import inspect
from collections.abc import Callable, Mapping, Sequence

from pydantic import Field, ValidationError

from agent.policies import vowpal
from agent.policies.base import Fixed, Policy, PolicyError, Uniform
from agent.policies.epsilon_greedy import EpsilonGreedy
from agent.policies.linear import LinearThompson, LinUCB
from agent.policies.neural import NeuralGreedy
from agent.policies.router import Routed
from agent.policies.shadow import ShadowPolicy
from agent.policies.vowpal import VowpalPolicy
from agent.spec import Spec, build, lines
from arms.suggestions import did_you_mean

POLICIES: Mapping[str, Callable[..., Policy]] = {
    policy.kind: policy
    for policy in (
        Uniform,
        Fixed,
        EpsilonGreedy,
        VowpalPolicy,
        LinUCB,
        LinearThompson,
        NeuralGreedy,
        Routed,
        ShadowPolicy,
    )
}
"""Every policy by its kind. A new one is a class, imported and listed here.

No library of a policy is loaded here: each loads its own when it is built.
"""

NESTED_PARAMS = tuple(inspect.signature(ShadowPolicy).parameters)
"""Parameters of a shadow policy that are specifications of policies."""


class PolicySpec(Spec):
    """The specification of a policy: a kind of the catalogue, and the arguments of its class."""

    kind: str = Field(description=f"One of {', '.join(POLICIES)}")


def build_policy(spec: PolicySpec, arms: Sequence[str]) -> Policy:
    """Build a policy that has learned nothing.

    Args:
        spec: What to build; a parameter that is a policy is given by its `kind` and `params`.
        arms: Names of the arms to choose among.

    Raises:
        PolicyError: An unknown kind, parameter or arm, or a value that the policy refuses.

    >>> build_policy(PolicySpec(kind="fixed", params={"arm": "bm25"}), ["bm25", "none"]).kind
    'fixed'
    """
    if spec.kind == ShadowPolicy.kind:
        nested = {
            name: _nested(name, spec.params[name], arms) for name in NESTED_PARAMS if name in spec.params
        }
        spec = spec.model_copy(update={"params": {**spec.params, **nested}})
    policy = build(spec, "policy", POLICIES, PolicyError)
    if isinstance(policy, Fixed) and policy.arm not in arms:
        raise PolicyError(f"policy 'fixed' names the arm {policy.arm!r}{did_you_mean(policy.arm, arms)}")
    return policy


NEW_ACTIONS = (Uniform.kind, Fixed.kind, Routed.kind, VowpalPolicy.kind)
"""Policies that can decide among actions that they have never seen, by features or by position."""


def require_action_features(spec: PolicySpec) -> None:
    """Refuse a policy that learns by the names of arms, where each request brings actions of its own.

    Raises:
        PolicyError: It cannot carry over what it learned from one request to the actions of the next.
    """
    if spec.kind == ShadowPolicy.kind:
        for name in NESTED_PARAMS:
            require_action_features(PolicySpec.model_validate(spec.params[name]))
    elif spec.kind not in NEW_ACTIONS:
        raise PolicyError(
            f"policy {spec.kind!r} learns the effect of a context for each name of an arm, and not for "
            f"features of actions that come with a request: take one of {', '.join(NEW_ACTIONS)}"
        )
    elif spec.kind == VowpalPolicy.kind and not vowpal.crosses(
        str(spec.params.get("args", vowpal.DEFAULT)), "f"
    ):
        raise PolicyError(
            "the vw arguments cross the context with no features of actions, which are in the namespace f: "
            "add -q sf"
        )


def _nested(name: str, value: object, arms: Sequence[str]) -> Policy:
    """Build a policy that is a parameter of another one. Raises PolicyError, naming the parameter."""
    if not isinstance(value, Mapping):
        raise PolicyError(
            f"policy.params.{name}: `kind` and `params` of a policy were expected, got {value!r}"
        )
    try:
        return build_policy(PolicySpec.model_validate(value), arms)
    except ValidationError as error:
        raise PolicyError(
            "\n".join(f"policy.params.{name}: {line}" for line in lines(error, PolicySpec))
        ) from None
    except PolicyError as error:
        raise PolicyError(f"policy.params.{name}: {error}") from error

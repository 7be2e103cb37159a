"""The catalogue of policies: every kind that can be named, and how a specification becomes a policy.

A kind is a class with an attribute `kind` in a module of this package, or one that an installed package
registers under the entry point group `armwise.policies`, by the name of its kind:

    [project.entry-points."armwise.policies"]
    mean_softmax = "their_package:MeanSoftmax"

`armwise.agent.policies.base.Policy` describes the further members of a class that the catalogue reads.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field, ValidationError

from armwise.agent.policies.base import Policy, PolicyError
from armwise.agent.spec import ClassCatalogue, Spec, build, lines
from armwise.arms.suggestions import did_you_mean

GROUP = "armwise.policies"
"""Entry point group of policies of other packages."""


POLICIES: ClassCatalogue[Policy] = ClassCatalogue(["armwise.agent.policies"], GROUP, "policy", PolicyError)
"""Every policy by its kind; libraries are loaded when a policy is built."""


class PolicySpec(Spec):
    """A policy: a kind of the catalogue and its parameters."""

    kind: str = Field(description="Name in the catalogue of policies.")

    catalogue = POLICIES


def _parts(kind: str) -> Sequence[str]:
    """Return the names of the parameters of a kind that are specifications of policies."""
    parts: Sequence[str] = getattr(POLICIES[kind], "parts", ()) if kind in POLICIES else ()
    return parts


def decides_as_its_parts(kind: str) -> bool:
    """Return whether a kind can decide among actions of a request if the policies in its parameters can."""
    return bool(_parts(kind)) and not getattr(POLICIES[kind], "learns_names", False)


def build_policy(spec: PolicySpec, arms: Sequence[str]) -> Policy:
    """Build a policy before any learning.

    Args:
        spec: Kind and parameters; a parameter that is a policy is given by its `kind` and `params`.
        arms: Names of the arms to choose among.

    Raises:
        PolicyError: An unknown kind, parameter or arm, or a value that the policy refuses.

    >>> build_policy(PolicySpec(kind="fixed", params={"arm": "bm25"}), ["bm25", "none"]).kind
    'fixed'
    """
    nested = {name: _part(name, spec.params[name], arms) for name in _parts(spec.kind) if name in spec.params}
    if nested:
        spec = spec.model_copy(update={"params": {**spec.params, **nested}})
    policy = build(spec, "policy", POLICIES, PolicyError)
    if check_arms := getattr(policy, "check_arms", None):
        check_arms(arms)
    return policy


def _part(name: str, value: object, arms: Sequence[str]) -> Policy:
    """Build a policy that is a parameter of another one. Raises PolicyError, which names the parameter."""
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


def require_action_features(spec: PolicySpec) -> None:
    """Check that a policy can decide among the actions of each request.

    Raises:
        PolicyError: It learns by the names of arms, so that it cannot generalize to new actions.
    """
    if decides_as_its_parts(spec.kind):
        for name in _parts(spec.kind):
            require_action_features(PolicySpec.model_validate(spec.params[name]))
        return
    check: Any = getattr(POLICIES[spec.kind], "check_new_actions", None) if spec.kind in POLICIES else None
    if check is None:
        able = ", ".join(kind for kind, policy in POLICIES.items() if hasattr(policy, "check_new_actions"))
        raise PolicyError(
            f"policy {spec.kind!r} learns the effect of a context for each name of an arm, and not for "
            f"features of actions that come with a request: take one of {able}"
        )
    check(spec.params)


def check_untrusted(spec: PolicySpec, configured: PolicySpec) -> None:
    """Check that a specification from a request cannot import code or open a file of this machine.

    Only the configuration may name files. Other errors surface when the policy is built.

    Args:
        spec: Specification from the request; nested policies are checked, too.
        configured: The policy of the configuration, whose parts are trusted.

    Raises:
        PolicyError: An unknown kind, a model that is not allowed, or a parameter that may name a file.
    """
    trusted = list(_with_parts(configured))
    for part in _with_parts(spec):
        if part.kind not in POLICIES:
            raise PolicyError(f"no policy of kind {part.kind!r}{did_you_mean(part.kind, POLICIES)}")
        check: Any = getattr(POLICIES[part.kind], "check_untrusted", None)
        if check is not None:
            check(part.params, part in trusted)
        elif part not in trusted:
            raise PolicyError(f"policy {part.kind!r} can be named by the configuration alone")


def _with_parts(spec: PolicySpec) -> Iterator[PolicySpec]:
    """Yield a policy specification and those nested in it."""
    yield spec
    for name in _parts(spec.kind):
        try:
            part = PolicySpec.model_validate(spec.params.get(name))
        except ValidationError:  # not a specification: building it raises the error
            continue
        yield from _with_parts(part)

"""Check a policy specification from an HTTP request: it may name neither code nor a file of this machine.

The configuration may name files. A request may not: its policy is built from plain parameters alone.
"""

from collections.abc import Iterator

from pydantic import ValidationError

from agent.policies.base import PolicyError
from agent.policies.catalog import NESTED_PARAMS, POLICIES, PolicySpec
from agent.policies.epsilon_greedy import LINEAR, EpsilonGreedy, check_model
from agent.policies.neural import NeuralGreedy
from agent.policies.shadow import ShadowPolicy
from agent.policies.vowpal import DEFAULT, VowpalPolicy, check_args
from arms.suggestions import did_you_mean


def check_untrusted(spec: PolicySpec, configured: PolicySpec) -> None:
    """Refuse a specification that could import code or open a file. Other errors surface when it is built.

    Args:
        spec: From the request; policies nested in it are checked too.
        configured: The policy of the configuration, whose parts are trusted.

    Raises:
        PolicyError: An unknown kind, a model that is not allowed, or a parameter that may name a file.
    """
    trusted = list(_parts(configured))
    for part in _parts(spec):
        if part.kind not in POLICIES:
            raise PolicyError(f"no policy of kind {part.kind!r}{did_you_mean(part.kind, POLICIES)}")
        if part.kind == EpsilonGreedy.kind:
            check_model(part.params.get("model", LINEAR), part.params.get("params"))
        if part.kind == VowpalPolicy.kind:
            check_args(part.params.get("args", DEFAULT))
        encoder = part.params.get("encoder") if part.kind == NeuralGreedy.kind else None
        if encoder is not None and part not in trusted:
            raise PolicyError(
                f"encoder {encoder!r} may name a file of the service's machine; only the configuration may "
                "name one"
            )


def _parts(spec: PolicySpec) -> Iterator[PolicySpec]:
    """Yield a policy specification and those nested in it."""
    yield spec
    for name in NESTED_PARAMS if spec.kind == ShadowPolicy.kind else ():
        try:
            inner = PolicySpec.model_validate(spec.params.get(name))
        except ValidationError:  # not a specification: building it raises the error
            continue
        yield from _parts(inner)

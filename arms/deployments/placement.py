"""Which deployment runs an arm.

An arm that names a host runs in the deployment of that name. Without one, a light arm runs in the process
that asks, and any other in the deployment `Arms`, where there is one.
"""

from collections.abc import Collection, Mapping

from arms.retrievers import DEFAULT_HOST, ArmSpec, catalog


def place(name: str, specs: Mapping[str, ArmSpec], deployments: Collection[str]) -> str | None:
    """Return the deployment that runs an arm; None for the process that asks.

    Args:
        name: The arm.
        specs: All arms by name.
        deployments: Those that there are. The one that an arm names is returned even if it is missing.

    >>> specs = {"b": ArmSpec(kind="bm25"), "m": ArmSpec(kind="multistep", params={"arm": "b"})}
    >>> place("b", specs, ["Arms"]), place("m", specs, ["Arms"]), place("m", specs, [])
    (None, 'Arms', None)

    Raises:
        ArmSpecError: An arm is described wrongly.
    """
    host = specs[name].host
    if host == DEFAULT_HOST and (DEFAULT_HOST not in deployments or catalog.is_light(name, specs)):
        return None
    return host


def needed(specs: Mapping[str, ArmSpec]) -> tuple[str, ...]:
    """Return the deployments that arms need. Raises ArmSpecError.

    >>> needed({"b": ArmSpec(kind="bm25"), "far": ArmSpec(kind="bm25", host="Far")})
    ('Far',)
    """
    named = [spec.host for spec in specs.values() if spec.host != DEFAULT_HOST]
    actions = [name for name, spec in specs.items() if spec.action]
    default = [DEFAULT_HOST for name in actions if place(name, specs, [DEFAULT_HOST]) == DEFAULT_HOST]
    return tuple(dict.fromkeys([*default, *named]))

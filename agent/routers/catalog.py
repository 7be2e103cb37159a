"""The catalogue of routers: build one from its specification, load one from its bytes.

A kind is a class with an attribute `kind` in a module of `PACKAGES`, or one that an installed package
registers under the entry point group `armwise.routers`, by the name of its kind:

    [project.entry-points."armwise.routers"]
    mean_utility = "their_package:MeanUtility"
"""

from pydantic import Field

from armwise.agent.routers.base import Router, read_header
from armwise.agent.routers.dataset import RouterError
from armwise.agent.spec import ClassCatalogue, Spec, build

GROUP = "armwise.routers"
"""Entry point group of routers of other packages."""

PACKAGES = ("armwise.agent.routers", "armwise.agent.lab.routers")

ROUTERS: ClassCatalogue[Router] = ClassCatalogue(PACKAGES, GROUP, "router", RouterError)
"""Every router by its kind; libraries are imported when a router is fitted or loaded."""


class RouterSpec(Spec):
    """The specification of a router: a kind of the catalogue, and the arguments of its class."""

    kind: str = Field(description="Kind of the router.")

    catalogue = ROUTERS


def build_router(spec: Spec) -> Router:
    """Build an unfitted router.

    Raises:
        RouterError: An unknown kind or parameter, or a value that the router refuses.

    >>> build_router(RouterSpec(kind="max_sim")).stage.name
    'RETRIEVED'
    """
    return build(spec, "router", ROUTERS, RouterError)


def load_router(saved: bytes) -> Router:
    """Load a fitted router of any kind. Raises RouterError."""
    header, _ = read_header(saved)
    return build_router(RouterSpec(kind=header.kind, params=header.params)).load(saved)

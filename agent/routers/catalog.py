"""Kind -> router: what can be fitted offline, and how a saved one comes back."""

from collections.abc import Callable, Mapping

from pydantic import Field

from agent.labels import RouterError
from agent.router import Router, read_header
from agent.routers.blend import Blend
from agent.routers.calibrated import Calibrated
from agent.routers.capability import Capability
from agent.routers.contrastive import Contrastive
from agent.routers.heuristic import HEURISTICS
from agent.routers.linear import RidgeRouter
from agent.routers.neural import ListNet, PairwiseFFN, PointwiseFFN
from agent.routers.svm import PairwiseSVM, PointwiseSVM
from agent.routers.transformer import Transformer
from agent.routers.trees import LambdaMART, PairwiseXGBoost, PointwiseXGBoost
from agent.specs import Spec, build

ROUTERS: Mapping[str, Callable[..., Router]] = {
    router.kind: router
    for router in (
        *HEURISTICS,
        RidgeRouter,
        PointwiseSVM,
        PairwiseSVM,
        PointwiseXGBoost,
        PairwiseXGBoost,
        LambdaMART,
        PointwiseFFN,
        PairwiseFFN,
        ListNet,
        Transformer,
        Contrastive,
        Capability,
        Blend,
        Calibrated,
    )
}
"""Every router by its kind. A new one is a class and its name here."""


class RouterSpec(Spec):
    """A router as data: a kind of the catalogue, and the arguments of its class."""

    kind: str = Field(description="Name in the catalogue of routers")


def build_router(spec: RouterSpec) -> Router:
    """Build a router that is not fitted.

    Raises:
        RouterError: An unknown kind or parameter, or a value that the router refuses.

    >>> build_router(RouterSpec(kind="max_sim")).stage.name
    'RETRIEVED'
    """
    return build(spec, "router", ROUTERS, RouterError)


def load_router(saved: bytes) -> Router:
    """Return the fitted router that was saved, whatever its kind. Raises RouterError."""
    header, _ = read_header(saved)
    return build_router(RouterSpec(kind=header.kind, params=header.params)).load(saved)


__all__ = ["ROUTERS", "RouterSpec", "build_router", "load_router"]

"""The catalogue of routers: build one from its specification, load one from its bytes."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from pydantic import Field

from agent.routers.base import Router, read_header
from agent.routers.dataset import RouterError
from agent.routers.ensembles import Blend, Calibrated
from agent.routers.heuristic import HEURISTICS
from agent.routers.neural.contrastive import Contrastive
from agent.routers.neural.ltrr import ListNet, PairwiseFFN, PointwiseFFN
from agent.routers.neural.r3ag import Capability
from agent.routers.neural.transformer import Transformer
from agent.routers.tabular.ridge import RidgeRouter
from agent.routers.tabular.svm import PairwiseSVM, PointwiseSVM
from agent.routers.tabular.trees import LambdaMART, LogisticXGBoost, PairwiseXGBoost, PointwiseXGBoost
from agent.spec import Spec, build

ROUTERS: Mapping[str, Callable[..., Router]] = {
    router.kind: router
    for router in (
        *HEURISTICS,
        RidgeRouter,
        PointwiseSVM,
        PairwiseSVM,
        PointwiseXGBoost,
        LogisticXGBoost,
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
"""Every router by its kind. A new one is a class, imported and listed here."""


class RouterSpec(Spec):
    """The specification of a router: a kind of the catalogue, and the arguments of its class."""

    kind: str = Field(description="Name in the catalogue of routers")


def build_router(spec: Spec) -> Router:
    """Build a router that is not fitted.

    Raises:
        RouterError: An unknown kind or parameter, or a value that the router refuses.

    >>> build_router(RouterSpec(kind="max_sim")).stage.name
    'RETRIEVED'
    """
    return build(spec, "router", {**ROUTERS, **_ENSEMBLES}, RouterError)


def _with_builder(ensemble: Callable[..., Router]) -> Callable[..., Router]:
    """Return the constructor of an ensemble, which builds its members from this catalogue."""

    @wraps(ensemble, updated=())
    def make(**params: Any) -> Router:
        return ensemble(build_router, **params)

    return make


_ENSEMBLES = {ensemble.kind: _with_builder(ensemble) for ensemble in (Blend, Calibrated)}


def load_router(saved: bytes) -> Router:
    """Return the fitted router that was saved, of any kind. Raises RouterError."""
    header, _ = read_header(saved)
    return build_router(RouterSpec(kind=header.kind, params=header.params)).load(saved)

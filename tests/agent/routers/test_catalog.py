"""The catalogue finds the routers of this package, and those that installed packages register."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from armwise.agent.routers import Router, RouterError, RouterSpec, build_router, catalog, load_router
from armwise.agent.spec import ClassCatalogue
from tests.packages import install_package
from tests.router_contracts import asked, world

ROUTER = """
import numpy as np

from armwise.agent.routers import Parameters, Parametrised, positions

class Chosen(Parameters):
    least: float = 0.5

class {name}(Parametrised[Chosen]):
    "Scores an arm with its mean utility."
    kind = "{kind}"
    Params = Chosen

    def _fit(self, labels):
        self.means = np.maximum(np.nanmean(labels.utility, axis=0), self.chosen.least)

    def _scores(self, features):
        at = positions(self.schema.arms, features.arms)
        return np.tile(self.means[at], (len(features), 1))

    def _state(self):
        return {{"means": self.means}}

    def _restore(self, schema, state):
        self.means = state["means"]
"""

Install = Callable[..., ClassCatalogue[Router]]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that puts packages with entry points on the path, and returns a new catalogue."""

    def installed(source: str, *points: str) -> ClassCatalogue[Router]:
        install_package(tmp_path, monkeypatch, "their_routers", source, "armwise.routers", points)
        catalogue: ClassCatalogue[Router] = ClassCatalogue(
            ["armwise.agent.lab.routers"], "armwise.routers", "router", RouterError
        )
        monkeypatch.setattr(catalog, "ROUTERS", catalogue)
        return catalogue

    return installed


def test_a_router_of_another_package_is_built_fitted_and_loaded_by_its_kind(install: Install) -> None:
    kinds = install(ROUTER.format(name="Theirs", kind="theirs"), "theirs = their_routers:Theirs")
    assert "theirs" in kinds
    assert {*kinds} >= {"ridge", "calibrated", "theirs"}
    assert len(kinds) == len([*kinds]) == len({*kinds})
    assert "their_routers" not in sys.modules  # until it is needed
    fitted = build_router(RouterSpec(kind="theirs", params={"least": 0.25})).fit(world(20, seed=1))
    again = load_router(fitted.save())
    assert again.params == {"least": 0.25}
    assert again.scores(asked()).tolist() == fitted.scores(asked()).tolist()
    with pytest.raises(RouterError, match="router 'theirs' has no parameter 'last'; did you mean 'least'"):
        build_router(RouterSpec(kind="theirs", params={"last": 1}))


def test_it_can_be_calibrated(install: Install) -> None:
    install(ROUTER.format(name="Theirs", kind="theirs"), "theirs = their_routers:Theirs")
    built = build_router(RouterSpec(kind="calibrated", params={"router": {"kind": "theirs"}}))
    assert built.kind == "calibrated"

"""The train-free routers ask the arm that is best by one number."""

from dataclasses import replace

import numpy as np
import pytest

from armwise.agent.lab.routers.calibrated import Calibrated
from armwise.agent.lab.routers.cascade.fitted import stack_features
from armwise.agent.lab.routers.heuristic import (
    UNKNOWN_SCORE,
    AvgSim,
    MaxSim,
    Moran,
    OverallSim,
    SourceFit,
    VarSim,
)
from armwise.agent.routers.dataset import ArmTable, RouterError, RoutingDataset
from armwise.agent.routers.features import compute_features
from tests.router_contracts import ARMS, SEEN, world

LABELS = world(40, seed=1)


@pytest.mark.parametrize("kind", [OverallSim, AvgSim, MaxSim, VarSim, Moran], ids=lambda kind: kind.kind)
def test_the_best_number_is_asked(kind: type[MaxSim]) -> None:
    assert LABELS.features.retrieved is not None
    numbers = LABELS.features.retrieved.values[:, 1:, SEEN.index(kind.kind)]
    best = numbers.argmin(axis=1) if kind is VarSim else numbers.argmax(axis=1)
    asked = kind().fit(LABELS).scores(LABELS.features).argmax(axis=1)
    np.testing.assert_array_equal(asked, best + 1)


@pytest.mark.parametrize("kind", [MaxSim, VarSim])
def test_an_arm_without_the_number_comes_last_however_bad_the_others_can_be(kind: type[MaxSim]) -> None:
    values = np.full((1, 4, 1), -1.0 if kind is MaxSim else 1.0)
    values[0, 0] = np.nan
    seen = replace(LABELS.features.rows([0]), retrieved=ArmTable((kind.kind,), values))
    all_of_it = replace(LABELS.features, retrieved=ArmTable((kind.kind,), np.repeat(values, 40, axis=0)))
    scores = kind().fit(RoutingDataset(all_of_it, LABELS.utility)).scores(seen)[0]
    assert scores[0] == UNKNOWN_SCORE
    assert (scores[1:] > scores[0]).all()


def test_what_was_learned_is_nothing() -> None:
    one, other = MaxSim().fit(LABELS), MaxSim().fit(world(10, seed=9))
    assert one.save() == other.save()
    seen = LABELS.features
    assert seen.retrieved is not None
    expected = seen.retrieved.values[:, 1:, SEEN.index("max_sim")]
    np.testing.assert_array_equal(other.scores(seen.select_arms(ARMS[1:])), expected)


def test_labels_without_the_number_are_refused() -> None:
    bare = replace(LABELS.features, retrieved=ArmTable(("moran",), np.ones((40, 4, 1))))
    with pytest.raises(RouterError, match="needs the feature 'max_sim' of each arm"):
        MaxSim().fit(RoutingDataset(bare, LABELS.utility))


def test_the_fit_of_sources_is_weighed_by_one_number_and_an_offset_for_each_arm() -> None:
    fit = LABELS.features.fit
    assert fit is not None
    np.testing.assert_array_equal(SourceFit().fit(LABELS).scores(LABELS.features), fit)
    worth = RoutingDataset(LABELS.features, 0.5 * fit + np.array([0.1, 0.2, 0.3, 0.4]))
    scores = Calibrated(router={"kind": "source_fit"}).fit(worth).scores(LABELS.features)
    np.testing.assert_allclose(scores, worth.utility, atol=1e-9)


def test_without_the_fit_of_sources_nothing_can_be_weighed() -> None:
    bare = replace(LABELS.features, fit=None)
    with pytest.raises(RouterError, match=r"needs `features\.similarity`"):
        SourceFit().fit(RoutingDataset(bare, LABELS.utility))
    with pytest.raises(RouterError, match="needs to know how well"):
        SourceFit().fit(LABELS).scores(bare)
    assert compute_features("what?", LABELS.features.embedding[0], ARMS).fit is None, "not 0 for every arm"


def test_some_of_the_questions_and_of_the_arms_keep_their_fit() -> None:
    features = LABELS.features
    assert features.fit is not None
    some = features.rows([3, 0]).select_arms([ARMS[2], ARMS[0]])
    assert some.fit is not None
    np.testing.assert_array_equal(some.fit, features.fit[[3, 0]][:, [2, 0]])
    both = stack_features([features.rows([3]), features.rows([0])]).fit
    assert both is not None
    np.testing.assert_array_equal(both, features.fit[[3, 0]])

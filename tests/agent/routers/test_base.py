"""What `Router` does for every router: names are matched, files are checked, scores are finite."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from armwise.agent.routers.base import FORMAT, Router, Schema, State, read_header
from armwise.agent.routers.catalog import RouterSpec, build_router, load_router
from armwise.agent.routers.dataset import ArmTable, Features, Floats, RouterError, RoutingDataset, Stage
from armwise.agent.routers.features import build_answered_table
from tests.router_contracts import ARMS, SEEN, world


class MeanUtility(Router):
    """Scores an arm with its mean known utility, whatever is asked; keeps what it was shown."""

    kind = "mean_utility"

    def __init__(self, sides: tuple[int, ...] = (1, 2), stage: Stage = Stage.QUESTION) -> None:
        self.sides, self.stage = sides, stage
        self.shown: list[Features] = []

    @property
    def params(self) -> Mapping[str, Any]:
        return {"sides": self.sides}

    def _fit(self, labels: RoutingDataset) -> None:
        self.shown.append(labels.features)
        self.quality = labels.quality
        self.mean = np.nanmean(labels.utility, axis=0)

    def _scores(self, features: Features) -> Floats:
        self.shown.append(features)
        assert self.schema is not None
        at = [self.schema.arms.index(name) for name in features.arms]
        return np.tile(self.mean[at], (len(features), 1))

    def _state(self) -> State:
        return {"mean": self.mean}

    def _restore(self, schema: Schema, state: State) -> None:
        if state["mean"].shape != (len(schema.arms),):
            raise ValueError(f"{state['mean'].shape} is not a mean of each arm")
        self.mean = state["mean"]


@pytest.mark.parametrize(
    ("stage", "retrieved", "answered"),
    [
        (Stage.QUESTION, (), ()),
        (Stage.RETRIEVED, SEEN, ()),
        (Stage.ANSWERED, SEEN, ("agreement", "logprob")),
    ],
)
def test_a_router_is_shown_what_its_stage_allows(
    stage: Stage, retrieved: tuple[str, ...], answered: tuple[str, ...]
) -> None:
    labels = world(20, seed=1)
    router = MeanUtility(stage=stage).fit(labels)
    router.scores(labels.features)
    assert router.schema == Schema(ARMS, ("words", "wh"), 8, retrieved, answered)
    for shown in router.shown:
        assert shown.stage is stage
        assert (shown.retrieved.names if shown.retrieved else ()) == retrieved
        assert (shown.answered.names if shown.answered else ()) == answered


def test_the_quality_of_what_was_retrieved_reaches_the_router() -> None:
    labels = world(20, seed=1)
    assert MeanUtility().fit(labels).quality is None
    quality = 1.0 - labels.utility
    assert MeanUtility().fit(replace(labels, quality=quality)).quality is quality


def test_columns_are_matched_by_name_and_others_dropped() -> None:
    labels = world(20, seed=1)
    router = MeanUtility(stage=Stage.RETRIEVED).fit(labels)
    seen = labels.features
    assert seen.retrieved is not None
    turned = replace(
        seen,
        names=("more", "wh", "words"),
        question=np.column_stack([np.zeros(20), seen.question[:, ::-1]]),
        retrieved=ArmTable(
            (*SEEN[::-1], "more"), np.pad(seen.retrieved.values[:, :, ::-1], ((0, 0), (0, 0), (0, 1)))
        ),
    )
    router.scores(turned)
    shown = router.shown[-1]
    assert shown.names == seen.names
    assert shown.retrieved is not None
    assert shown.retrieved.names == SEEN
    np.testing.assert_array_equal(shown.question, seen.question)
    np.testing.assert_array_equal(shown.retrieved.values, seen.retrieved.values)


def test_a_router_is_shown_the_columns_that_it_names() -> None:
    labels = world(20, seed=1)
    router = MeanUtility(stage=Stage.ANSWERED)
    router.columns = ["wh", "*_sim", "logprob"]
    router.fit(labels).scores(labels.features)
    assert labels.features.retrieved is not None
    sims = ("overall_sim", "avg_sim", "max_sim", "var_sim", "cross_sim")
    for shown in router.shown:
        assert shown.names == ("wh",)
        np.testing.assert_array_equal(shown.question, labels.features.question[:, 1:])
        assert shown.retrieved is not None
        assert shown.retrieved.names == sims
        kept = [SEEN.index(name) for name in sims]
        np.testing.assert_array_equal(shown.retrieved.values, labels.features.retrieved.values[:, :, kept])
        assert shown.answered is not None
        assert shown.answered.names == ("logprob",)


def test_columns_of_no_table_leave_the_question_alone() -> None:
    """A router of a later stage may look at nothing but the form of the question."""
    labels = world(20, seed=1)
    router = build_router(RouterSpec(kind="pointwise_xgboost", params={"columns": ["words"], "rounds": 5}))
    before = router.fit(labels).scores(labels.features)
    assert router.schema is not None
    assert (router.schema.names, router.schema.retrieved) == (("words",), ())
    other = replace(labels.features, retrieved=ArmTable(SEEN, np.zeros((20, 4, len(SEEN)))))
    np.testing.assert_array_equal(router.scores(other), before)


def test_a_column_that_is_not_there_is_named() -> None:
    router = build_router(RouterSpec(kind="listnet", params={"columns": ["moran", "max_sin"]}))
    with pytest.raises(RouterError, match="no feature is called 'max_sin'; did you mean 'max_sim'"):
        router.fit(world(20, seed=1))
    early = build_router(RouterSpec(kind="listnet", params={"columns": ["moran"], "stage": "question"}))
    with pytest.raises(RouterError, match="no feature is called 'moran'"):
        early.fit(world(20, seed=1))


def test_a_missing_column_of_an_arm_is_refused_by_name() -> None:
    labels = world(20, seed=1)
    router = MeanUtility(stage=Stage.RETRIEVED).fit(labels)
    few = ArmTable(("moran",), np.ones((20, 4, 1)))
    with pytest.raises(RouterError, match="'overall_sim' is unknown here; available: moran"):
        router.scores(replace(labels.features, retrieved=few))


def test_an_arm_whose_answer_is_not_there_to_compare_is_named() -> None:
    labels = world(20, seed=1)
    found = [[()] * 4] * 20
    answered = build_answered_table(labels.features.texts, ARMS, [ARMS] * 20, found)
    router = MeanUtility(stage=Stage.ANSWERED)
    router.fit(RoutingDataset(replace(labels.features, answered=answered), labels.utility))
    few = ("none", "bm25", "dense")
    fewer = build_answered_table(labels.features.texts, few, [few] * 20, [[()] * 3] * 20)
    with pytest.raises(
        RouterError,
        match="compares answers with the answer of arm 'graph', which is missing: give it the answers",
    ):
        router.scores(replace(labels.features.select_arms(few), answered=fewer))


def test_labels_that_stop_before_the_stage_are_refused() -> None:
    labels = world(20, seed=1)
    early = RoutingDataset(replace(labels.features, answered=None), labels.utility)
    with pytest.raises(RouterError, match="needs features of stage answered, but they stop at retrieved"):
        MeanUtility(stage=Stage.ANSWERED).fit(early)


def test_a_score_that_is_not_finite_is_refused() -> None:
    labels = world(20, seed=1)
    router = MeanUtility().fit(labels)
    router.mean[1] = np.nan
    with pytest.raises(RouterError, match="router 'mean_utility' gave a score that is not finite"):
        router.scores(labels.features)


def test_the_header_says_what_was_saved() -> None:
    labels = world(20, seed=1)
    router = MeanUtility(sides=(3, 4)).fit(labels)
    header, arrays = read_header(router.save())
    assert (header.format, header.kind, header.params) == (FORMAT, "mean_utility", {"sides": [3, 4]})
    assert header.schema == router.schema
    assert router.save().endswith(arrays)
    loaded = MeanUtility(sides=(3, 4)).load(router.save())
    np.testing.assert_array_equal(loaded.scores(labels.features), router.scores(labels.features))


def test_other_parameters_are_refused_at_loading() -> None:
    saved = MeanUtility(sides=(3, 4)).fit(world(20, seed=1)).save()
    with pytest.raises(RouterError, match=r"params is \{'sides': \[3, 4\]\}, not \{'sides': \[1, 2\]\}"):
        MeanUtility().load(saved)


def test_a_router_whose_arrays_could_not_be_taken_is_not_fitted() -> None:
    labels = world(20, seed=1)
    router, other = MeanUtility().fit(labels), MeanUtility().fit(labels)
    other.mean = other.mean[:2]
    with pytest.raises(RouterError, match=r"'mean_utility' cannot be read: \(2,\)"):
        router.load(other.save())
    with pytest.raises(RouterError, match="was not fitted"):
        router.save()


def test_a_router_that_could_not_load_is_as_it_was() -> None:
    router = MeanUtility().fit(world(20, seed=1))
    before = router.save()
    with pytest.raises(RouterError, match="blake2b"):
        router.load(before[:-1])
    assert router.save() == before


@pytest.mark.parametrize(
    ("kind", "params", "words"),
    [
        ("maxsim", {}, "kind 'maxsim'; did you mean 'max_sim'"),
        ("max_sim", {"k": 1}, "no parameter 'k'; available: none"),
        ("lambdamart", {"round": 1}, "'round'; did you mean 'rounds'"),
        ("pointwise_xgboost", {"rounds": 0}, "pointwise_xgboost: rounds: .* got 0"),
    ],
)
def test_a_spec_that_cannot_be_built_is_refused(kind: str, params: dict[str, int], words: str) -> None:
    with pytest.raises(RouterError, match=words):
        build_router(RouterSpec(kind=kind, params=params))


def test_a_saved_router_of_no_known_kind_is_refused() -> None:
    with pytest.raises(RouterError, match="no router of kind 'mean_utility'"):
        load_router(MeanUtility().fit(world(20, seed=1)).save())

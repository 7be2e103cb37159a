"""A fitted cascade: it goes on where that pays, and decides in service as it did in training."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray import cloudpickle
from scipy import stats
from sklearn.isotonic import IsotonicRegression

from armwise.agent.lab.routers import TrainedDecider, cascade, cross_validation, open_selector
from armwise.agent.lab.routers.cascade import fitted, validation
from armwise.agent.lab.routers.cascade.saved import ABOUT
from armwise.agent.routers import RouterError, features
from armwise.arms import manifest
from armwise.arms.base import ArmBuildError, Passage
from armwise.arms.lab.portfolio import Outcomes
from armwise.arms.llm import prompts
from armwise.arms.questions import Question
from armwise.arms.retrievers import DeciderSpec
from tests.router_contracts import grow_few_trees

STAGES = (("none", "bm25"), ("dense",))
SHORT = prompts.Writing(prompts.Form.SHORT, 400, 32)
N = 210


def spec(**changes: Any) -> cascade.CascadeSpec:
    return cascade.CascadeSpec.model_validate({"stages": STAGES} | changes)


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        grow_few_trees(patch)
        yield


class World:
    """Questions of three words, which tell in nine of ten whether none, bm25 or dense is right.

    An arm that is right says a number of two digits, and one that is wrong says a word.
    """

    words = ("who", "when", "where")

    def __init__(self, seed: int = 0, n: int = N, stages: tuple[tuple[str, ...], ...] = STAGES) -> None:
        rng = np.random.default_rng(seed)
        arms = [arm for stage in stages for arm in stage]
        self.texts = [f"{self.words[i % 3]} saw it at {seed}, {i}?" for i in range(n)]
        best = np.where(rng.uniform(size=n) < 0.9, np.arange(n) % 3, rng.integers(3, size=n))
        self.right = np.zeros((n, len(arms)))
        self.right[np.arange(n), np.minimum(best, len(arms) - 1)] = 1.0
        self.answers = [
            ["42" if right else f"by {arm}" for arm, right in zip(arms, row, strict=True)]
            for row in self.right
        ]
        self.found = [
            [[] if arm == "none" else [Passage(f"{arm}{i % 7}", "", f"it is {arm}")] for arm in arms]
            for i in range(n)
        ]
        counts = np.cumsum([len(stage) for stage in stages]).tolist()
        self.features = tuple(
            cascade.stage_features(
                self.texts, arms[:m], [row[:m] for row in self.found], [row[:m] for row in self.answers]
            )
            for m in counts
        )

    def labels(self, price: float = 0.1) -> cascade.CascadeDataset:
        return cascade.CascadeDataset(self.features, self.right, self.right, np.full(self.right.shape, price))


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def made(world: World) -> cascade.Cascade:
    return cascade.fit_cascade(spec(), world.labels(), lambda *_: None)[0]


@pytest.mark.slow
def test_a_cascade_goes_on_where_the_answers_so_far_are_wrong(made: cascade.Cascade) -> None:
    other = World(seed=1)
    walk = made.walk(other.features)
    enough = other.right[:, :2].any(axis=1)
    assert ((walk.stage == 0) == enough).mean() > 0.95
    picked = other.right[np.arange(N), walk.pick]
    assert picked.mean() > 0.95
    assert abs(walk.probability.mean() - picked.mean()) < 0.05


@pytest.mark.slow
def test_what_going_on_costs_is_weighed_against_what_it_gains(world: World) -> None:
    for price, shares in ((1.5, (0.0, 0.02)), (0.0, (0.3, 1.0))):
        made, _ = cascade.fit_cascade(spec(), world.labels(price), lambda *_: None)
        asked = (made.walk(World(seed=1).features).stage == 1).mean()
        assert shares[0] <= asked <= shares[1], price


@pytest.mark.slow
def test_a_stage_may_have_one_arm_and_there_may_be_several() -> None:
    stages = (("none",), ("bm25",), ("dense",))
    several, told = World(stages=stages), list[tuple[int, int | None]]()
    made, _ = cascade.fit_cascade(spec(stages=stages), several.labels(), lambda _, *step: told.append(step))
    assert told == [(1, 3), (2, 3), (3, 3), (1, 2), (2, 2)], "answers of each stage, then gains of two"
    other = World(seed=1, stages=stages)
    first = other.right.argmax(axis=1)
    assert (made.walk(other.features).stage == first).mean() > 0.9
    always = made.walk(other.features, np.full(2, -np.inf))
    assert (always.stage == 2).all()


def test_the_lead_of_the_best_answer_is_over_the_second() -> None:
    features = World(n=2).features[0]
    going_on = fitted._flat(features, np.array([[0.25, 0.75], [0.5, 0.5]]))  # noqa: SLF001
    assert going_on.retrieved is not None
    assert going_on.retrieved.names[-2:] == ("best score", "lead")
    assert going_on.retrieved.values[:, 0, -2:].tolist() == [[0.75, 0.5], [0.5, 0.0]]
    alone = fitted._flat(features.select_arms(("none",)), np.array([[0.25], [0.5]]))  # noqa: SLF001
    assert alone.retrieved is not None
    assert alone.retrieved.values[:, 0, -2:].tolist() == [[0.25, 0.25], [0.5, 0.5]]


def test_equal_questions_are_held_out_together() -> None:
    texts = ["who?", "when?"] * 20 + ["where?", "why?"]
    held_out = cross_validation.draw_part(texts, 0.5, seed=0)
    assert len({text for text, held in zip(texts, held_out, strict=True) if held}) == 2
    assert not set(np.array(texts)[held_out]) & set(np.array(texts)[~held_out])
    assert any((cross_validation.draw_part(texts, 0.5, seed=seed) != held_out).any() for seed in range(1, 9))


def test_a_cascade_without_settings_is_fitted_as_documented() -> None:
    plain = cascade.CascadeSpec(stages=STAGES)
    assert (plain.right, plain.relevance) == ("em", False)


def test_an_unknown_outcome_is_refused_by_name(world: World) -> None:
    labels = world.labels()
    labels.right[4, 1], before = np.nan, labels.right[4, 1]
    with pytest.raises(RouterError, match=r"the score of 'bm25' on 'when saw it at 0, 4\?' is nan"):
        replace(labels)
    labels.right[4, 1] = before


def test_the_calibration_is_isotonic_regression() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=500).round(2)
    right = (rng.uniform(size=500) < 1.0 / (1.0 + np.exp(-2.0 * scores))).astype(float)
    model = fitted.StageModel(Any, *fitted._fit_knots(scores, right))  # type: ignore[arg-type]  # noqa: SLF001
    reference = IsotonicRegression(out_of_bounds="clip").fit(scores, right)
    at = np.linspace(-4.0, 4.0, 200)
    np.testing.assert_allclose(model.probability(at), reference.predict(at), atol=1e-12)


# -- saved, and in service -----------------------------------------------------------------------------


def write(folder: Path, made: cascade.Cascade, writing: prompts.Writing | None = SHORT) -> None:
    cascade.write_cascade(
        folder, made, k=1, corpus=None, writing=writing, utility={}, inputs={}, questions=N, held_out=None
    )


def wanted(folder: Path, **changes: Any) -> DeciderSpec:
    return DeciderSpec(**({"folder": folder, "stages": STAGES, "writing": SHORT} | changes))


def test_a_cascade_decides_in_service_as_in_training(made: cascade.Cascade, tmp_path: Path) -> None:
    write(tmp_path, made)
    decider = open_selector(wanted(tmp_path))
    assert isinstance(decider, TrainedDecider)
    assert decider.k == 1
    other = World(seed=2, n=60)
    walk = made.walk(other.features)
    assert set(walk.stage.tolist()) == {0, 1}
    for row, text in enumerate(other.texts):
        first = decider.decide(text, other.answers[row][:2], other.found[row][:2])
        last = decider.decide(text, other.answers[row], other.found[row])
        assert first.goes_on == (walk.stage[row] == 1)
        assert first.gain is not None
        assert (first.gain > 0.0) == first.goes_on
        assert (last.gain, last.goes_on) == (None, False)
        shown = last if first.goes_on else first
        assert (shown.pick, shown.probability) == (walk.pick[row], walk.probability[row])


def expecting(made: cascade.Cascade, gain: float) -> cascade.Cascade:
    """Return a cascade whose first stage always predicts this gain of going on."""
    first, last = made.models
    fixed: Any = SimpleNamespace(scores=lambda features: np.full((len(features), 1), gain))
    return replace(made, models=(replace(first, gain=fixed), last))


@pytest.mark.parametrize(("gain", "stage"), [(0.0, 0), (1e-9, 1)])
def test_it_goes_on_where_any_gain_is_expected(made: cascade.Cascade, gain: float, stage: int) -> None:
    other, expects = World(seed=2, n=1), expecting(made, gain)
    assert expects.walk(other.features).stage.tolist() == [stage]
    trained: Any = SimpleNamespace(cascade=expects, about=SimpleNamespace(k=1))
    step = TrainedDecider(trained).decide(other.texts[0], other.answers[0][:2], other.found[0][:2])
    assert (step.gain, step.goes_on) == (gain, stage == 1)


def test_a_failed_arm_is_never_picked(made: cascade.Cascade, world: World, tmp_path: Path) -> None:
    write(tmp_path, made)
    decider = open_selector(wanted(tmp_path))
    for row in range(30):
        best = int(world.right[row].argmax())
        answers: list[str | None] = [*world.answers[row]]
        answers[best] = None
        found = [() if at == best else passages for at, passages in enumerate(world.found[row])]
        assert decider.decide(world.texts[row], answers, found).pick != best


def test_a_saved_cascade_goes_to_other_processes(made: cascade.Cascade, world: World, tmp_path: Path) -> None:
    write(tmp_path, made)
    walk = made.walk(world.features)
    again = cloudpickle.loads(cloudpickle.dumps(cascade.read_cascade(tmp_path).cascade)).walk(world.features)
    np.testing.assert_array_equal(again.stage, walk.stage)
    np.testing.assert_array_equal(again.pick, walk.pick)
    np.testing.assert_array_equal(again.probability, walk.probability)


def test_what_does_not_fit_is_refused_with_what_would(made: cascade.Cascade, tmp_path: Path) -> None:
    def refused(**changes: Any) -> str:
        with pytest.raises(ArmBuildError) as error:
            open_selector(wanted(tmp_path, **changes))
        return str(error.value)

    assert "holds no trained cascade" in refused()
    assert "`armwise lab train --model cascade` writes one" in refused()
    write(tmp_path, made)
    assert "trained on stages none, bm25 | dense, and these are none | dense" in refused(
        stages=(("none",), ("dense",))
    )
    longer = prompts.Writing(prompts.Form.SHORT, 400, 64)
    assert "it learned from answers of max tokens 32, and these have 64" in refused(writing=longer)
    (tmp_path / "stage-1.gain").write_bytes(b"{}")
    assert "stage-1.gain is damaged: 2 bytes instead of " in refused()
    write(tmp_path, made)
    (tmp_path / "stage-1.gain").write_bytes((tmp_path / "stage-2.answers").read_bytes())
    manifest.write(tmp_path)
    assert "stage-1.gain is damaged: its digest is " in refused()
    (tmp_path / ABOUT).write_text("{}")
    manifest.write(tmp_path)
    assert "is damaged, or of another version" in refused()


def test_answers_written_in_an_unknown_way_are_accepted(made: cascade.Cascade, tmp_path: Path) -> None:
    write(tmp_path, made, None)
    assert open_selector(wanted(tmp_path)).k == 1


# -- validation ----------------------------------------------------------------------------------------


def test_a_validation_charges_what_was_asked_and_nothing_else(made: cascade.Cascade) -> None:
    other = World(seed=3)
    steps = np.tile([0.0, 1.0, 1.0], (N, 1))
    costs = {
        "steps": steps,
        "usd": np.full((N, 3), 0.5),
        "prompt_tokens": np.full((N, 3), 100.0),
        "completion_tokens": np.full((N, 3), 10.0),
        "seconds": np.ones((N, 3)),
    }
    f1 = 0.3 + 0.5 * other.right
    outcomes = replace(answered(other), scores={"em": other.right, "f1": f1}, costs=costs)
    arms = outcomes.arms
    found = cascade.validate_cascade(made, other.labels(0.1), outcomes)
    rows = found.rows
    on = found.stops[1]
    assert sum(found.stops) == pytest.approx(1.0)
    assert rows["none"].costs == {"steps": 0.0, "usd": 0.5, "tokens": 110.0}
    assert rows["none"].reward == pytest.approx(other.right[:, 0].mean() - 0.1)
    assert rows["stage 1, always"].costs == {"steps": 1.0, "usd": 1.0, "tokens": 220.0}
    assert rows["stage 2, always"].reward == pytest.approx(rows["stage 2, always"].right - 0.3)
    assert rows["cascade"].costs["steps"] == pytest.approx(1.0 + on)
    assert rows["cascade"].reward == pytest.approx(rows["cascade"].right - 0.2 - 0.1 * on)
    assert rows["oracle"].right == 1.0
    assert found.gap == pytest.approx(
        (rows["cascade"].right - (best := max(rows[arm].right for arm in arms))) / (1.0 - best)
    )
    assert found.lost == pytest.approx(rows["stage 2, always"].right - rows["cascade"].right)
    assert found.single in arms
    assert rows["cascade"].scores["em"] == pytest.approx(rows["cascade"].right)
    assert rows["cascade"].scores["f1"] == pytest.approx(0.3 + 0.5 * rows["cascade"].right)
    assert found.gap_of_all is None


def answered(other: World) -> Outcomes:
    """Return the outcomes of three arms whose calls cost nothing."""
    questions = tuple(Question(str(at), text) for at, text in enumerate(other.texts))
    nothing = ((None,) * 3,) * N
    return Outcomes(questions, ("none", "bm25", "dense"), {"em": other.right}, {}, nothing, nothing)


@pytest.mark.slow
def test_the_intervals_of_a_validation_are_those_of_the_questions(made: cascade.Cascade) -> None:
    other, rng = World(seed=3), np.random.default_rng(5)
    other.right = np.where(rng.uniform(size=(N, 3)) < 0.3, 1.0 - other.right, other.right)
    made = expecting(made, -1.0)  # which never goes on, and so loses something
    labels = other.labels(0.1)
    found = cascade.validate_cascade(made, labels, answered(other), resamples=4000, seed=1)
    walk, row = made.walk(made.features(labels)), np.arange(N)
    picked = other.right[row, walk.pick]
    single = other.right[:, ("none", "bm25", "dense").index(found.single)] - 0.1
    everything = made.walk(made.features(labels), np.array([-np.inf]))
    for interval, value, values in (
        (found.gain, None, picked - 0.2 - 0.1 * walk.stage - single),
        (found.lost_interval, found.lost, other.right[row, everything.pick] - picked),
        (found.bias_interval, found.bias, walk.probability - picked),
    ):
        assert value is None or value == pytest.approx(values.mean())
        known = stats.bootstrap((values,), np.mean, n_resamples=4000, method="percentile", rng=rng)
        error = values.std(ddof=1) / np.sqrt(N)
        assert interval == pytest.approx(tuple(known.confidence_interval), abs=0.25 * error)
    assert found.gap is not None
    assert found.gap_interval is not None
    low, high = found.gap_interval
    assert low < found.gap < high
    assert found.lost != 0.0
    again = cascade.validate_cascade(made, labels, answered(other), resamples=4000, seed=1)
    assert again == found
    assert cascade.validate_cascade(made, labels, answered(other), seed=2).gain != found.gain


def test_the_gap_to_the_oracle_of_all_arms_counts_those_that_are_not_asked(made: cascade.Cascade) -> None:
    other, rng = World(seed=3), np.random.default_rng(4)
    labels = other.labels(0.1)
    more = np.column_stack([other.right * (rng.uniform(size=(N, 3)) < 0.7), rng.uniform(size=N) < 0.9])
    more[5, 3] = np.nan
    found = cascade.validate_cascade(made, labels, answered(other), right=more)
    picked = other.right[np.arange(N), made.walk(made.features(labels)).pick]
    known = np.arange(N) != 5
    best, most = more[known].mean(axis=0).max(), more[known].max(axis=1).mean()
    assert found.gap_of_all == pytest.approx((picked[known].mean() - best) / (most - best))
    assert f"({found.gap_of_all:.1%} of the gap to " in found.conclusion()
    never = cascade.validate_cascade(made, labels, answered(other), right=np.full((N, 2), np.nan))
    assert never.gap_of_all is None


def test_the_error_of_a_calibration_is_that_of_its_bins() -> None:
    probability = np.repeat([0.2, 0.8], 50)
    right = np.concatenate([np.repeat([1.0, 0.0], [10, 40]), np.repeat([1.0, 0.0], [40, 10])])
    shuffled = np.random.default_rng(0).permutation(50)
    right = np.concatenate([right[:50][shuffled], right[50:][shuffled]])
    assert validation.calibration_error(probability, probability) == 0.0
    assert validation.calibration_error(probability, 1.0 - right) > 0.5
    assert validation.calibration_error(probability, right) < 0.2


# -- relevance -----------------------------------------------------------------------------------------


class Supported(World):
    """Both searching arms find three passages of which those that are gold name the city of the question."""

    def __init__(self, seed: int = 0, n: int = 90) -> None:
        super().__init__(seed, n)
        self.texts = [f"who saw the bridge of City{i % 9} in {seed}, {i}?" for i in range(n)]
        self.found, gold = [], []
        for i in range(n):
            lists: list[list[Passage]] = [[]]
            for arm in range(2):
                cities = [(i + arm * (i % 2) + step) % 9 for step in range(3)]
                lists.append(
                    [Passage(f"p{city}", f"City{city}", f"The bridge of City{city}.") for city in cities]
                )
            self.found.append(lists)
            gold.append(frozenset({f"p{i % 9}"}))
        self.right = np.array([[0.0, 1.0, float(i % 2)] for i in range(n)])
        self.answers = [["no", f"city{i % 9}", f"city{(i + 1) % 9}"] for i in range(n)]
        self.seen = cascade.StageObservations(tuple(self.found), tuple(self.answers), tuple(gold))
        arms = ("none", "bm25", "dense")
        self.features = tuple(
            cascade.stage_features(
                self.texts, arms[:m], [row[:m] for row in self.found], [row[:m] for row in self.answers]
            )
            for m in (2, 3)
        )

    def labels(self, price: float = 0.1) -> cascade.CascadeDataset:
        return replace(super().labels(price), seen=self.seen)


@pytest.mark.slow
def test_relevance_is_a_feature_in_training_and_in_service(tmp_path: Path) -> None:
    world, other = Supported(), Supported(seed=1, n=18)
    steps: list[tuple[str, int, int | None]] = []
    made, _ = cascade.fit_cascade(spec(relevance=True), world.labels(), lambda *step: steps.append(step))
    assert steps == [
        *(("fitting relevance", done, 6) for done in range(1, 7)),
        *(("fitting to the answers of each stage", done, 2) for done in (1, 2)),
        ("fitting to the gains of going on", 1, 1),
    ]
    first, second = made.features(other.labels())
    assert first.retrieved is not None
    assert second.answered is not None
    assert first.retrieved.names[-5:] == features.RELEVANCE
    assert second.answered.names[-3:] == features.SUPPORT
    relevance = first.retrieved.values[:, :, first.retrieved.names.index("relevance.first")]
    assert np.isnan(relevance[:, 0]).all(), "an arm without passages"
    assert relevance[:, 1].min() > 0.5, "of the first passage of bm25, which is the gold one"
    support = second.answered.values[:, :, -2]
    assert support[:, 1].min() > 0.5 > support[:, 0].max()
    write(tmp_path, made)
    decider = open_selector(wanted(tmp_path))
    walk = made.walk((first, second))
    for row, text in enumerate(other.texts):
        verdict = decider.decide(text, other.answers[row][:2], other.found[row][:2])
        assert verdict.goes_on == (walk.stage[row] == 1)
        if verdict.goes_on:
            verdict = decider.decide(text, other.answers[row], other.found[row])
        assert (verdict.pick, verdict.probability) == (walk.pick[row], walk.probability[row])


@pytest.mark.slow
def test_the_relevance_of_training_questions_is_predicted_by_a_model_that_has_not_seen_them() -> None:
    world = Supported()
    shuffled = replace(world.seen, gold=tuple(np.random.default_rng(0).permutation(world.seen.gold)))
    labels = replace(world.labels(), seen=shuffled)
    parts = fitted.folds(world.texts, 3, 0)
    _, enriched = fitted._with_relevance(labels, parts, lambda *_: None)  # noqa: SLF001
    for training, held_out in parts:
        examples, owners = fitted.make_examples(labels.features, shuffled)
        model = examples.fit(np.flatnonzero(np.isin(owners, training)))
        for stage, one in enumerate(labels.features):
            expected = fitted.with_relevance(one.rows(held_out), shuffled.rows(held_out), model)
            found = enriched.features[stage].rows(held_out)
            assert found.texts == expected.texts
            assert found.retrieved is not None
            assert expected.retrieved is not None
            np.testing.assert_array_equal(found.retrieved.values, expected.retrieved.values)


def test_relevance_without_gold_passages_is_refused() -> None:
    world = Supported()
    labels = replace(world.labels(), seen=replace(world.seen, gold=(frozenset(),) * 90))
    with pytest.raises(RouterError, match="relevance is learned from gold_ids, and no question has any"):
        cascade.fit_cascade(spec(relevance=True), labels, lambda *_: None)

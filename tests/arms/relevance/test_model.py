"""The model of relevance: what it learns, what it keeps, and which files it refuses."""

from pathlib import Path

import numpy as np
import pytest

from armwise.arms import manifest
from armwise.arms.base import Passage
from armwise.arms.lab.relevance import Case, Examples, Fitting, fit
from armwise.arms.relevance import RelevanceError, RelevanceModel, read_model, write_model
from armwise.arms.relevance.model import FILE

QUICK = Fitting(rounds=20, learning_rate=0.3, depth=3)
TOPICS = ("river", "opera", "comet", "castle", "glacier", "violin", "harbour", "orchid", "volcano", "lantern")


def cases(n: int, seed: int = 0) -> list[Case]:
    """Return questions on a topic; `good` ranks the passage on it first, and `bad` last."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(n):
        topics = rng.permutation(TOPICS)[:5].tolist()
        passages = [Passage(f"{number}-{topic}", topic, f"All about the {topic}.") for topic in topics]
        good = [passages[0], *(passages[at] for at in rng.permutation([1, 2, 3]))]
        bad = [*(passages[at] for at in rng.permutation([3, 4])), passages[0]]
        found.append(Case(f"What is a {topics[0]}?", {"good": good, "bad": bad}, frozenset({passages[0].id})))
    return found


MODEL = fit(cases(40), QUICK)


def best(model: RelevanceModel, case: Case) -> str:
    relevance = model.relevance(case.question, case.found)
    return max(relevance, key=relevance.__getitem__)


def test_the_gold_passage_is_the_most_relevant() -> None:
    assert [best(MODEL, case) for case in cases(20, seed=1)] == [
        next(iter(case.gold)) for case in cases(20, seed=1)
    ]


def test_a_relevance_is_a_probability_of_each_passage() -> None:
    case = cases(1, seed=2)[0]
    relevance = MODEL.relevance(case.question, case.found)
    assert set(relevance) == {passage.id for ranking in case.found.values() for passage in ranking}
    assert all(0.0 < value < 1.0 for value in relevance.values())
    assert MODEL.relevance("?", {"good": []}) == {}


def test_arms_that_it_was_not_fitted_to_are_served_too() -> None:
    for case in cases(20, seed=3):
        renamed = Case(case.question, {f"new {arm}": found for arm, found in case.found.items()}, case.gold)
        assert best(MODEL, renamed) in case.gold


def test_the_arm_that_is_more_often_right_counts_more() -> None:
    one, other = Passage("a", "", "nothing"), Passage("b", "", "nothing")
    found = {"right": [one], "wrong": [other]}
    model = fit([Case("What is it?", found, frozenset("a"))] * 20, QUICK)
    told = model.relevance("What is it?", found)
    assert told["a"] > told["b"]
    assert model.relevance("What is it?", {"right": [other], "wrong": [one]})["b"] == told["a"]


def test_a_fit_is_deterministic() -> None:
    assert fit(cases(40), QUICK).save() == MODEL.save()


@pytest.mark.parametrize(
    "change",
    [
        {"draws": 3},
        {"by_name": False},
        {"rounds": 19},
        {"depth": 1},
        {"learning_rate": 0.2},
        {"min_child_weight": 20.0},
        {"subsample": 0.5},
        {"colsample": 0.2},
        {"seed": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_setting_shapes_the_fit(change: dict[str, object]) -> None:
    assert told(**change) != told()


def told(**settings: object) -> list[dict[str, float]]:
    """Return the relevance of passages by a model that is fitted to them with these settings."""
    rng = np.random.default_rng(6)
    noisy = [
        Case(case.question, {**case.found, "third": case.found["bad"][::-1]}, frozenset([rng.choice(ids)]))
        for case in cases(30)
        for ids in [[passage.id for passage in case.found["good"]]]
    ]
    model = fit(noisy, QUICK.model_copy(update=settings))
    return [model.relevance(case.question, case.found) for case in noisy]


def test_another_seed_draws_other_arms() -> None:
    more = [Case(one.question, {**one.found, "third": one.found["bad"][:1]}, one.gold) for one in cases(8)]
    first, same, other = (
        Examples.from_cases(more, Fitting(draws=4, by_name=False, seed=seed)).rows for seed in (0, 0, 1)
    )
    assert all(map(np.array_equal, first, same))
    assert not all(map(np.array_equal, first, other))


def test_a_question_is_seen_with_all_arms_first() -> None:
    found = {arm: [Passage("1", "", "a river"), Passage(arm, "", "a lake")] for arm in "abcd"}
    case = Case("Which river?", found, frozenset({"1"}))
    views = [
        Examples.from_cases([case], QUICK.model_copy(update={"seed": seed})).seen[0] for seed in range(9)
    ]
    assert all(set(view.reciprocal) == set("abcd") for view in views)


def test_names_of_arms_are_seen_in_turn() -> None:
    (case,) = cases(1)
    examples = Examples.from_cases([case], Fitting(draws=2))
    (rows,) = examples.rows
    assert rows.shape == (15, 51 + 2)  # five passages, three times
    named = np.isfinite(rows[:, 51:]).all(axis=1)
    assert named.tolist() == [True] * 5 + [False] * 5 + [True] * 5
    assert examples.seen[0].reciprocal["bad"].max() == 1.0
    assert examples.labels[0].tolist() == [*examples.labels[0][:5].tolist()] * 3


def test_a_question_is_seen_with_two_arms_at_least() -> None:
    ranking = [Passage("1", "", "a river"), Passage("2", "", "a lake")]
    case = Case("Which river?", dict.fromkeys("abcd", ranking), frozenset({"1"}))
    drawn = set[int]()
    for seed in range(20):
        (rows,) = Examples.from_cases([case], Fitting(draws=2, seed=seed)).rows
        drawn |= set(np.isfinite(rows[4:, 51:]).sum(axis=1).tolist())
    assert drawn == {2, 3}


def test_a_worse_rank_makes_no_passage_more_relevant() -> None:
    ranking = [Passage(name, "", "nothing") for name in "abcd"]
    found = {"x": ranking, "y": ranking}
    model = fit([Case("What is it?", found, frozenset("d"))] * 20, QUICK)
    relevance = [model.relevance("What is it?", found)[name] for name in "abcd"]
    assert relevance == sorted(relevance, reverse=True)


def test_an_out_of_fold_prediction_is_of_other_questions() -> None:
    examples = Examples.from_cases(cases(12), QUICK)
    known, held_out = np.arange(6), np.array([9, 7, 11])
    found = examples.out_of_fold([(known, held_out)])
    model = fit(cases(12)[:6], QUICK)
    assert model.header.questions == examples.fit(known).header.questions == 6
    for question, case in enumerate(cases(12)):
        expected = model.relevance(case.question, case.found) if question in held_out else None
        assert found[question] == expected


def test_a_model_survives_its_folder(tmp_path: Path) -> None:
    write_model(tmp_path / "deep" / "folder", MODEL)
    read = read_model(tmp_path / "deep" / "folder")
    case = cases(1, seed=4)[0]
    assert read.header.arms == ("good", "bad")
    assert read.header.k == 4
    assert read.relevance(case.question, case.found) == MODEL.relevance(case.question, case.found)
    assert read_model(tmp_path / "deep" / "folder") is read


def test_the_manifest_of_its_folder_has_the_digest_of_a_model(tmp_path: Path) -> None:
    write_model(tmp_path, MODEL)
    assert not list(manifest.problems(tmp_path, contents=True))
    saved = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(saved[:-1] + bytes([saved[-1] ^ 1]))
    assert [problem for problem in manifest.problems(tmp_path, contents=True) if FILE in problem]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda saved: b"pickle" + saved, "is not the first line of a relevance model"),
        (lambda saved: saved[:-1], "the model is damaged: its digest is"),
        (lambda saved: saved.replace(b'"questions":40', b'"questions":41'), "the model is damaged"),
        (lambda saved: saved.replace(b'"format":1', b'"format":2'), "is not the first line"),
        (lambda saved: saved.replace(b'"format":1', b'"format":1,"more":1'), "is not the first line"),
    ],
)
def test_a_damaged_model_is_refused(tmp_path: Path, damage: object, message: str) -> None:
    (tmp_path / FILE).write_bytes(damage(MODEL.save()))  # type: ignore[operator]
    with pytest.raises(RelevanceError, match=message):
        read_model(tmp_path)


def resealed(**changes: object) -> bytes:
    """Return the model with another header, and the digest of that."""
    changed = RelevanceModel(MODEL.header.model_copy(update=changes), MODEL._booster)  # noqa: SLF001
    return changed.save()


FIRST, SECOND, *REST = MODEL.header.columns


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"columns": ("luck", SECOND, *REST)}, r"features .*best_rank, luck"),
        ({"columns": (SECOND, FIRST, *REST)}, "their order"),
        ({"arms": ("good", "bad", "third")}, "53 columns, not 54"),
        ({"arms": ("good",)}, "53 columns, not 52"),
    ],
)
def test_a_model_with_other_columns_is_refused(changes: dict[str, object], named: str) -> None:
    with pytest.raises(RelevanceError, match=named):
        RelevanceModel.load(resealed(**changes))


def test_labels_that_distinguish_nothing_are_refused() -> None:
    blank = [Case(case.question, case.found, frozenset({"elsewhere"})) for case in cases(3)]
    with pytest.raises(RelevanceError, match=r"0 of .* passages found for 3 questions are gold"):
        fit(blank, QUICK)


def test_one_arm_is_no_fusion() -> None:
    alone = [Case(case.question, {"good": case.found["good"], "none": []}, case.gold) for case in cases(3)]
    with pytest.raises(RelevanceError, match=r"passages of 1 arm \(good\)"):
        fit(alone, QUICK)

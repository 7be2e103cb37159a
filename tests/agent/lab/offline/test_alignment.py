"""How alike made and real questions are: the classifier, the weights, and what is printed."""

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from rich.console import Console

from armwise.agent.lab.offline import alignment
from armwise.agent.lab.offline.alignment import (
    Alignment,
    Comparing,
    align,
    balance,
    compare_questions,
    effective_size,
    on_par,
    sample,
)
from armwise.agent.lab.offline.labelled_data import read_questions
from armwise.arms.lab.portfolio import MatrixArms, ScoreMatrix, write_matrix
from armwise.arms.questions import Question
from armwise.arms.retrievers import ArmSpec
from armwise.feedback.events import LABELS, Mode
from armwise.feedback.log import Store
from armwise.feedback.training_log import examples, read_examples
from tests.agent.asking import join
from tests.agent.lab.offline.test_score import turn
from tests.agent.lab.offline.test_synthesize import config

NAMES = ("Ada", "Karl", "Emmy", "Max", "Lise", "Otto", "Ida", "Kurt", "Alan", "Grace")
VERBS = ("write", "find", "build", "sell", "paint", "lose")


def asked(n: int, seed: int) -> list[str]:
    """Return questions as people ask them."""
    rng = np.random.default_rng(seed)
    return [
        f"what did {rng.choice(NAMES)} {rng.choice(VERBS)} in {rng.integers(1700, 2000)} "
        f"{' '.join(rng.choice(VERBS, rng.integers(0, 4)))}"
        for _ in range(n)
    ]


def keyed(n: int, seed: int) -> list[str]:
    """Return searches by keywords."""
    rng = np.random.default_rng(seed)
    return [f"{rng.choice(NAMES)} {rng.choice(VERBS)}er catalogue {rng.integers(100)}" for _ in range(n)]


def test_two_halves_of_one_set_are_alike() -> None:
    found = align(asked(300, 0), asked(300, 1))
    assert found.auc == pytest.approx(0.5, abs=0.07)
    assert found.unlike < 0.12
    assert effective_size(found.weights) > 250
    assert found.verdict == "the labels may be used as they are"


def test_disjoint_kinds_are_distinguished() -> None:
    found = align(keyed(200, 0), asked(200, 1))
    assert found.auc > 0.99
    assert found.unlike > 0.95
    assert "catalogue" in found.words[0]
    assert "what" in found.words[1]


@pytest.mark.parametrize("n_real", [300, 60])
def test_made_questions_that_are_like_real_ones_weigh_more_however_many_real_ones_there_are(
    n_real: int,
) -> None:
    found = align([*keyed(200, 0), *asked(100, 2)], asked(n_real, 1))
    assert found.weights[200:].mean() > 5 * found.weights[:200].mean()
    assert found.unlike == pytest.approx(2 / 3, abs=0.1)  # the share of searches among the made ones
    assert found.verdict.startswith("use the labels only with their weights")


@pytest.mark.parametrize(
    ("unlike", "alike", "verdict"),
    [
        (0.3, 1, "the labels may be used as they are"),
        (0.31, 29, "do not use the labels: hardly a made question is like a real one"),
        (0.31, 30, "use the labels with their weights"),
        (0.5, 30, "use the labels with their weights"),
        (0.51, 30, "use the labels only with their weights, and as a start that feedback corrects"),
    ],
)
def test_the_verdict_follows_the_share_of_questions_that_mislead(
    unlike: float, alike: int, verdict: str
) -> None:
    weights = np.repeat([1.0, 0.0], [alike, 10])
    assert Alignment(0.5, unlike, weights, ((), ())).verdict == verdict


def test_weights_have_mean_one_and_are_clipped() -> None:
    weights = align([*keyed(200, 0), *asked(5, 2)], asked(300, 1)).weights
    assert weights.mean() == pytest.approx(1.0)
    assert (weights >= 0).all()
    assert weights[200:].tolist() == [weights.max()] * 5, "of odds above ten, ten counts"


def test_another_seed_cuts_other_folds() -> None:
    made, real = [*keyed(20, 0), *asked(10, 2)], asked(30, 1)
    assert align(made, real, 0).weights.tolist() != align(made, real, 1).weights.tolist()


def test_another_seed_draws_another_sample() -> None:
    weights = np.ones(1000)
    assert sample(weights, 9, 0).tolist() != sample(weights, 9, 1).tolist()


def test_the_seed_of_the_settings_shuffles_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, real = write(tmp_path / "made.jsonl", keyed(30, 0)), write(tmp_path / "real.jsonl", asked(30, 0))
    seeds: list[int] = []

    def aligned(_made: object, _real: object, seed: int) -> Alignment:
        seeds.append(seed)
        return Alignment(0.5, 0.0, np.ones(30), ((), ()))

    def drawn(weights: np.ndarray[Any, Any], n: int, seed: int) -> np.ndarray[Any, Any]:
        seeds.append(seed)
        return sample(weights, n, seed)

    monkeypatch.setattr(alignment, "align", aligned)
    monkeypatch.setattr(alignment, "sample", drawn)
    printed(tmp_path, made=made, traffic=real, output=tmp_path / "kept.jsonl", seed=7)
    on_par(scored({"words": "bm25", "vectors": "dense"}, np.eye(2)), 9)
    assert seeds == [7, 7, 9]


weighted = st.lists(
    st.tuples(st.floats(0.01, 10.0), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0])),
    min_size=1,
    max_size=30,
)


@given(weighted)
def test_balanced_families_score_the_same(rows: list[tuple[float, float, float]]) -> None:
    weights, lexical, dense = np.array(rows).T
    found = balance(weights, lexical, dense)
    difference = lexical - dense
    if (difference > 0).any() and (difference < 0).any():
        assert (found * difference).sum() == pytest.approx(0.0, abs=1e-6 * found.sum())
        assert found.mean() == pytest.approx(1.0)
        ratio = found / weights  # depends on the difference alone
        for value in set(difference.tolist()):
            of = ratio[difference == value]
            assert of == pytest.approx(of[0])
    else:
        assert found is weights


def test_questions_of_weight_zero_do_not_count_among_those_on_which_a_family_is_better() -> None:
    weights = np.array([1.0, 1.0, 0.0])
    assert balance(weights, np.array([1.0, 0.5, 0.0]), np.array([0.0, 0.0, 1.0])) is weights


@given(
    st.lists(st.floats(0.0, 10.0), min_size=1, max_size=50).filter(lambda w: sum(w) > 1e-3), st.integers(0, 9)
)
def test_a_sample_holds_no_row_twice_and_none_of_weight_zero(given_weights: list[float], seed: int) -> None:
    weights = np.array(given_weights)
    size = effective_size(weights)
    assert 1 - 1e-9 <= size <= len(weights) + 1e-9
    kept = sample(weights, round(size), seed)
    assert len(set(kept.tolist())) == len(kept) <= round(size)
    assert (weights[kept] > 0).all()


def write(path: Path, texts: list[str]) -> Path:
    rows = [
        {"id": f"m{i}", "question": text, "gold_ids": ["p"], "type": "asked" if "what" in text else "keyed"}
        for i, text in enumerate(texts)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def printed(tmp_path: Path, **fields: Any) -> str:
    output = StringIO()
    settings = Comparing(config=config(tmp_path), **fields)
    compare_questions(settings, Console(file=output, width=150), lambda *_: None)
    return output.getvalue()


def test_few_real_questions_say_nothing(tmp_path: Path) -> None:
    made, real = write(tmp_path / "made.jsonl", keyed(50, 0)), write(tmp_path / "real.jsonl", asked(29, 0))
    report = printed(tmp_path, made=made, traffic=real)
    assert "30 of each are needed" in report
    assert "AUC" not in report


def test_the_output_holds_questions_like_the_traffic(tmp_path: Path) -> None:
    made = write(tmp_path / "made.jsonl", [*keyed(100, 0), *asked(100, 2)])
    real, output = write(tmp_path / "real.jsonl", asked(200, 1)), tmp_path / "kept.jsonl"
    report = printed(tmp_path, made=made, traffic=real, output=output)
    kept = read_questions(output)
    assert "use the labels" in report
    rows = [[cell.strip() for cell in line.split("│")[1:4]] for line in report.splitlines() if "│" in line]
    assert [name for name, _, _ in rows[:5]] == [
        *("words", "in small letters", "shape=keyword", "shape=question", "ask=what")
    ]
    assert rows[2][1:] == ["0.50", "0.00"]
    (kinds,) = re.findall(r"mean weight by kind: asked (\d\.\d\d), keyed (\d\.\d\d)", report)
    assert float(kinds[0]) > 1.5 > 0.5 > float(kinds[1])
    assert len(kept) > 60
    assert np.mean([question.text.startswith("what") for question in kept]) > 0.9
    assert all(question.gold_ids == ("p",) for question in kept)


def test_an_empty_log_says_nothing(tmp_path: Path) -> None:
    made = write(tmp_path / "made.jsonl", keyed(50, 0))
    Store(config(tmp_path).database_url).close()
    assert "0 real questions: 30 of each" in printed(tmp_path, made=made, from_log=True)


def test_the_log_has_the_questions_that_were_asked(tmp_path: Path) -> None:
    made = write(tmp_path / "made.jsonl", keyed(40, 0))
    settings = config(tmp_path)
    settings.home_path.mkdir()
    store = Store(settings.database_url, settings.reward.join)
    try:
        for number, text in enumerate(asked(35, 1)):
            store.append(turn(number, text, "bm25", 1.0))
        store.append(turn(90, keyed(1, 0)[0], "bm25", 1.0, Mode.FORCED))
        label, *facts = turn(91, "what a label asks", "bm25", 1.0)
        store.append([replace(label, policy=LABELS, episode_id=examples.name_episode(3)), *facts])
        label, *facts = turn(92, "what a label asks that no run inserted", "bm25", 1.0)
        store.append([replace(label, policy=LABELS), *facts])
        join(store, settings)
        assert {"d-91", "d-92"} <= {one.decision.id for one in read_examples(store, settings.reward.join)}
    finally:
        store.close()
    report = printed(tmp_path, made=made, from_log=True)
    assert "40 made and 35 real questions" in report
    assert "AUC 1.000" in report


def matrix(path: Path, n: int, kinds: tuple[str, ...]) -> Path:
    specs = {
        f"a{i}": ArmSpec(kind=kind, params={"backbone": "b"} if kind == "dense" else {})
        for i, kind in enumerate(kinds)
    }
    questions = [Question(f"m{i}", f"text {i}") for i in range(n)]
    scores = np.zeros((n, len(kinds)), dtype=np.float32)
    scores[:, 0] = 1.0
    scores[: n // 4, 0], scores[: n // 4, 1:] = 0.0, 1.0
    write_matrix(path, MatrixArms(specs, {}, {}, "R@4", {}), [(questions, scores)])
    return path


def test_a_score_matrix_brings_lexical_and_dense_arms_on_a_par(tmp_path: Path) -> None:
    made, scores = (
        write(tmp_path / "made.jsonl", keyed(100, 0)),
        matrix(tmp_path / "m", 100, ("bm25", "dense")),
    )
    report = printed(tmp_path, made=made, scores=scores, output=tmp_path / "kept.jsonl")
    assert "+0.500 above dense ones on the made questions; weighted +0.000" in report
    kept = [question.id for question in read_questions(tmp_path / "kept.jsonl")]
    assert np.mean([int(name[1:]) < 25 for name in kept]) > 0.3


def test_scores_without_both_families_are_refused(tmp_path: Path) -> None:
    made, scores = write(tmp_path / "made.jsonl", keyed(40, 0)), matrix(tmp_path / "m", 40, ("bm25", "none"))
    with pytest.raises(ValueError, match="no arm of kind dense"):
        printed(tmp_path, made=made, scores=scores)


def test_scores_of_other_questions_are_refused(tmp_path: Path) -> None:
    made, scores = write(tmp_path / "made.jsonl", keyed(40, 0)), matrix(tmp_path / "m", 8, ("bm25", "dense"))
    with pytest.raises(ValueError, match="no score of question 'm8'"):
        printed(tmp_path, made=made, scores=scores)


@pytest.mark.parametrize(
    ("fields", "message"),
    [({}, "nothing to compare with"), ({"traffic": "t.jsonl", "from_log": True}, "not both")],
)
def test_one_source_of_real_questions_is_needed(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Comparing(config=config(tmp_path), made=tmp_path / "made.jsonl", **fields)


def scored(kinds: dict[str, str], scores: np.ndarray[Any, Any], *corpora: str) -> ScoreMatrix:
    """Return scores of arms of these kinds over these corpora, shape (n_arms, n_questions)."""
    questions = tuple(Question(f"q{n}", f"question {n}") for n in range(scores.shape[1]))
    each = zip(kinds.items(), corpora or [None] * len(kinds), strict=True)
    specs = {arm: ArmSpec(kind=kind, corpus=corpus) for (arm, kind), corpus in each}
    table = MatrixArms(specs, {}, {}, "R@4", {})
    return ScoreMatrix(questions, table, np.ascontiguousarray(scores, dtype=np.float32))


def test_questions_that_are_kept_favour_neither_words_nor_vectors() -> None:
    rng = np.random.default_rng(0)
    scores = (rng.random((2, 2000)) < np.array([[0.9], [0.6]])).astype(np.float32)
    found = scored({"words": "bm25", "vectors": "dense"}, scores)
    lexical, dense = scores[:, on_par(found)].mean(axis=1)
    assert scores.mean(axis=1)[0] - scores.mean(axis=1)[1] > 0.25
    assert abs(lexical - dense) < 0.05
    alone = scored({"words": "bm25", "more": "bm25"}, scores)
    assert on_par(alone).tolist() == list(range(2000)), "nothing to compare with"


OF_TWO = {"library": "bm25", "guides": "bm25", "guides_near": "dense"}
"""Arms over two corpora, of which one has no dense arm."""


def of_two_corpora() -> np.ndarray[Any, Any]:
    """Return scores of those arms on 1,000 questions of each corpus, of which the others find nothing."""
    rng = np.random.default_rng(0)
    found = rng.random((3, 2000)) < np.array([[0.9], [0.9], [0.6]])
    found[0, 1000:] = found[1:, :1000] = False
    return found.astype(np.float32)


def test_words_and_vectors_are_compared_in_the_same_corpus() -> None:
    scores = of_two_corpora()
    kept = on_par(scored(OF_TWO, scores, "library", "guides", "guides"))
    assert (kept < 1000).sum() > 300, "questions of the corpus without a dense arm are not thinned out for it"
    _, words, vectors = scores[:, kept[kept >= 1000]].mean(axis=1)
    assert abs(words - vectors) < 0.05
    apart = on_par(scored(OF_TWO, scores, "library", "library", "guides"))
    assert apart.tolist() == list(range(2000)), "no corpus has both"


def test_the_report_compares_words_and_vectors_corpus_by_corpus(tmp_path: Path) -> None:
    scores = of_two_corpora()
    matrix = scored(OF_TWO, scores, "library", "guides", "guides")
    lines = [{"id": one.id, "question": one.text, "gold_ids": ["x"]} for one in matrix.questions]
    made = tmp_path / "made.jsonl"
    made.write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_matrix(
        tmp_path / "scores", matrix.table, [(list(matrix.questions), np.ascontiguousarray(scores.T))]
    )
    report = printed(tmp_path, made=made, scores=tmp_path / "scores")
    assert re.search(r"in corpus guides, lexical arms are \+0\.1\d\d above .* weighted \+0\.000", report)
    assert "corpus library" not in report

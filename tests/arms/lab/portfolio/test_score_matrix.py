"""A score matrix comes back as it was written, or is refused with a reason."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from armwise.arms import manifest
from armwise.arms.lab.portfolio.score_matrix import (
    MatrixArms,
    MatrixError,
    ScoreMatrix,
    read_arms,
    read_matrix,
    write_matrix,
)
from armwise.arms.models import Backbone
from armwise.arms.questions import Question
from armwise.arms.retrievers import ArmSpec

NAN = float("nan")


def table_of(*arms: str, **fields: object) -> MatrixArms:
    given: dict[str, object] = {
        "backbones": {"hash": Backbone(model="hashing:8")},
        "costs": {"steps": dict.fromkeys(arms, 1.0)},
        "measure": "R@4",
        "manifest": {"corpus": "c0ffee"},
        **fields,
    }
    specs = {arm: ArmSpec(kind="dense", params={"backbone": "hash"}) for arm in arms}
    return MatrixArms(specs, **given)  # type: ignore[arg-type]


def questions(n: int, first: int = 0) -> list[Question]:
    return [Question(f"q{i}", f"what is {i}?", ("p1",), ("yes",), "nq") for i in range(first, first + n)]


def scores(*rows: Sequence[float]) -> NDArray[np.float32]:
    return np.array(rows, dtype=np.float32)


def test_a_matrix_comes_back_as_it_was_written(tmp_path: Path) -> None:
    blocks = [
        (questions(2), scores([0, 0.5, NAN], [1, 0.25, 0])),
        (questions(1, first=2), scores([NAN, 1, 1])),
    ]
    table = table_of("b", "a", "c")
    write_matrix(tmp_path / "m", table, blocks)
    found = read_matrix(tmp_path / "m")
    assert found.table == table
    assert found.arms == ("b", "a", "c")
    assert found.questions == tuple(Question(f"q{i}", f"what is {i}?", dataset="nq") for i in range(3))
    np.testing.assert_array_equal(found.scores, scores([0, 1, NAN], [0.5, 0.25, 1], [NAN, 0, 1]))
    assert found.scores.dtype == np.float32
    assert found.scores.flags.c_contiguous


def test_only_the_arms_that_are_asked_for_are_read(tmp_path: Path) -> None:
    write_matrix(tmp_path / "m", table_of("a", "b", "c"), [(questions(1), scores([0.1, 0.2, 0.3]))])
    found = read_matrix(tmp_path / "m", ["c", "a"])
    assert found.arms == ("a", "c")
    assert found.costs("steps").tolist() == [1.0, 1.0]
    np.testing.assert_array_equal(found.scores, scores([0.1], [0.3]))
    assert read_arms(tmp_path / "m").specs.keys() == {"a", "b", "c"}
    with pytest.raises(MatrixError, match="has no arm 'd'"):
        read_matrix(tmp_path / "m", ["d"])


def test_costs_belong_to_their_arms_by_name(tmp_path: Path) -> None:
    costs = {"seconds": {"c": 3.0, "a": 1.0, "d": 4.0, "b": 2.0}}
    table = table_of("a", "b", "c", "d", costs=costs)
    write_matrix(tmp_path / "m", table, [(questions(1), scores([0.1, NAN, 0.3, 0.4]))])
    assert read_matrix(tmp_path / "m").costs("seconds").tolist() == [1.0, 2.0, 3.0, 4.0]
    without_b = read_matrix(tmp_path / "m", ["d", "c", "a"])
    assert without_b.arms == ("a", "c", "d")
    assert without_b.costs("seconds").tolist() == [1.0, 3.0, 4.0]


def test_blocks_of_any_size_are_read_as_one_matrix(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    blocks, first = [], 0
    for size in [1, 4094, 2, 8197, 0, 3]:
        blocks.append((questions(size, first), rng.random((size, 2), dtype=np.float32)))
        first += size
    write_matrix(tmp_path / "m", table_of("a", "b"), blocks)
    found = read_matrix(tmp_path / "m")
    expected = np.concatenate([block for _, block in blocks])
    np.testing.assert_array_equal(found.scores, expected.T)
    assert [question.id for question in found.questions] == [f"q{i}" for i in range(first)]
    np.testing.assert_array_equal(np.load(tmp_path / "m" / "scores.npy"), expected)


def test_chances_come_back_with_the_arms_that_are_read(tmp_path: Path) -> None:
    chances = np.array([[0.25, 0.5], [0.75, 1.0], [0.125, 0.0]], dtype=np.float32)
    write_matrix(
        tmp_path / "m", table_of("a", "b"), [(questions(3), scores([0, 1], [1, 0], [1, 1]))], chances
    )
    whole, part = read_matrix(tmp_path / "m"), read_matrix(tmp_path / "m", ["b"])
    assert whole.chances is not None
    assert part.chances is not None
    np.testing.assert_array_equal(whole.chances, chances.T)
    np.testing.assert_array_equal(part.chances, chances.T[1:])
    (tmp_path / "m" / "chances.npy").unlink()
    with pytest.raises(MatrixError, match=r"chances\.npy is missing"):
        read_matrix(tmp_path / "m")
    with pytest.raises(MatrixError, match=r"chances of shape \(1, 1\) were expected, got \(2, 1\)"):
        ScoreMatrix(tuple(questions(1)), table_of("a"), scores([1]), np.ones((2, 1), np.float32))


MEASURE = """
import sys, tracemalloc
from pathlib import Path
from armwise.arms.lab.portfolio.score_matrix import read_matrix

folder = Path(sys.argv[1])
read_matrix(folder, ["a0"])  # whatever is loaded or kept at first use
tracemalloc.start()
matrix = read_matrix(folder)
kept, peak = tracemalloc.get_traced_memory()
print(matrix.scores.nbytes, peak - matrix.scores.nbytes)
"""


@pytest.mark.slow
def test_reading_holds_the_matrix_once_and_little_more(tmp_path: Path) -> None:
    """Beside the 16 MB of scores: the questions and their ids."""
    rng = np.random.default_rng(0)
    blocks = ((questions(500, at), rng.random((500, 200), dtype=np.float32)) for at in range(0, 20_000, 500))
    write_matrix(tmp_path / "m", table_of(*(f"a{i}" for i in range(200))), blocks)
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "m")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    scores_bytes, rest = map(int, done.stdout.split())
    assert scores_bytes == 4 * 200 * 20_000
    assert rest < scores_bytes / 2


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (
            (questions(1), scores([0.5, 1.5])),
            r"arm 'b' scores 1.5 on question 'q0'; a score must be in \[0, 1\]",
        ),
        ((questions(1), scores([-0.5, 0.5])), "arm 'a' scores -0.5 on question 'q0'"),
        ((questions(2), scores([0.5, NAN], [NAN, 1.5])), "arm 'b' scores 1.5 on question 'q1'"),
        ((questions(2), scores([NAN, 0.5], [-0.5, NAN])), "arm 'a' scores -0.5 on question 'q1'"),
        ((questions(1), scores([0.5, float("inf")])), "arm 'b' scores inf on question 'q0'"),
        ((questions(1), scores([0.5, 0.5, 0.5])), r"1 questions and 2 arms has scores of shape \(1, 3\)"),
        ((questions(2), scores([0.5, 0.5])), r"2 questions and 2 arms has scores of shape \(1, 2\)"),
        ((questions(1) * 2, scores([0, 0], [1, 1])), "question id 'q0' occurs twice"),
        (([], np.zeros((0, 2), np.float32)), "at least one question"),
    ],
)
def test_scores_that_do_not_fit_leave_nothing(
    tmp_path: Path, block: tuple[list[Question], NDArray[np.float32]], message: str
) -> None:
    good = [(questions(3, first=7), scores([0, 0], [1, 1], [0, 1]))] if block[0] else []
    with pytest.raises(MatrixError, match=message):
        write_matrix(tmp_path / "m", table_of("a", "b"), [*good, block])
    assert list(tmp_path.iterdir()) == []


def test_a_block_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    def blocks() -> object:
        yield questions(1), scores([0, 0])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_matrix(tmp_path / "m", table_of("a", "b"), blocks())  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_scores_are_never_overwritten(tmp_path: Path) -> None:
    write_matrix(tmp_path / "m", table_of("a"), [(questions(1), scores([0.5]))])
    with pytest.raises(MatrixError, match="exists already"):
        write_matrix(tmp_path / "m", table_of("a"), [(questions(1), scores([0.75]))])
    assert read_matrix(tmp_path / "m").scores.tolist() == [[0.5]]


@pytest.mark.parametrize(
    ("arms", "fields", "message"),
    [
        ((), {}, "at least one arm"),
        (("a", "b"), {"costs": {"steps": {"a": 1.0}}}, "cost 'steps': 'b' is an arm without one"),
        (("a",), {"costs": {"steps": {"a": 1.0, "z": 1.0}}}, "cost 'steps': 'z' is not an arm"),
        (("a",), {"costs": {"steps": {"a": -1.0}}}, "cost 'steps' of arm 'a' is -1.0"),
        (("a", "b"), {"costs": {"steps": {"a": 1.0, "b": -1.0}}}, "cost 'steps' of arm 'b' is -1.0"),
        (("a",), {"costs": {"steps": {"a": NAN}}}, "cost 'steps' of arm 'a' is nan"),
    ],
)
def test_arms_that_do_not_fit_are_refused(
    arms: tuple[str, ...], fields: dict[str, object], message: str
) -> None:
    with pytest.raises(MatrixError, match=message):
        table_of(*arms, **fields)


def test_a_matrix_in_memory_is_checked_too() -> None:
    asked = tuple(questions(2))
    with pytest.raises(MatrixError, match=r"shape \(1, 2\) in C order were expected, got \(2, 1\)"):
        ScoreMatrix(asked, table_of("a"), scores([0], [1]))
    with pytest.raises(MatrixError, match="in C order"):
        ScoreMatrix(asked, table_of("a", "b"), np.asfortranarray(scores([0, 1], [1, 0])))
    with pytest.raises(MatrixError, match="arm 'a' scores 2 on question 'q1'"):
        ScoreMatrix(asked, table_of("a"), scores([0, 2]))


def test_a_cost_that_was_not_measured_is_named() -> None:
    matrix = ScoreMatrix(tuple(questions(1)), table_of("a"), scores([1]))
    with pytest.raises(MatrixError, match="no cost 'step' was measured; did you mean 'steps'"):
        matrix.costs("step")


def test_a_missing_or_damaged_file_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    with pytest.raises(MatrixError, match=r"has no score matrix: .*arms.json is missing"):
        read_matrix(folder)
    write_matrix(folder, table_of("a", "b"), [(questions(2), scores([0, 1], [1, 0]))])
    whole, arms = (folder / "scores.npy").read_bytes(), (folder / "arms.json").read_bytes()
    (folder / "scores.npy").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(MatrixError, match=r"m: scores.npy is damaged: .* make the scores again"):
        read_matrix(folder)
    (folder / "scores.npy").unlink()
    with pytest.raises(MatrixError, match=r"m: scores.npy is missing; delete it"):
        read_matrix(folder)
    (folder / "scores.npy").write_bytes(whole)
    for damaged in (b"{", b"[]", b"{}", arms.replace(b"kind", b"sort")):
        (folder / "arms.json").write_bytes(damaged)
        with pytest.raises(MatrixError, match=r"m: arms.json is damaged: .* make the scores again"):
            read_matrix(folder)
        manifest.add(folder, ["arms.json"])
        with pytest.raises(MatrixError, match="cannot read the arms in"):
            read_matrix(folder)


def test_arrays_of_another_shape_are_refused(tmp_path: Path) -> None:
    for name, array, message in [
        (
            "scores.npy",
            np.zeros((1, 3), np.float32),
            r"scores\.npy has shape \(1, 3\), and arms\.json 2 arms",
        ),
        ("scores.npy", np.zeros((2, 2), np.float32), r"scores of shape \(2, 1\) .* got \(2, 2\)"),
        ("scores.npy", np.zeros(2, np.float32), r"scores\.npy has shape \(2,\)"),
        ("scores.npy", np.array([["a", "b"]], object), "cannot read the scores"),
        ("chances.npy", np.zeros((1, 1), np.float32), r"chances\.npy has shape \(1, 1\)"),
    ]:
        folder = tmp_path / f"{name}-{array.shape}-{array.dtype}"
        write_matrix(folder, table_of("a", "b"), [(questions(1), scores([0, 1]))])
        np.save(folder / name, array)
        manifest.add(folder, [name])
        with pytest.raises(MatrixError, match=message):
            read_matrix(folder)

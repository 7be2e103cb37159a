"""Arrays that grow, and matrices that are never in memory whole."""

import resource

import numpy as np
import pytest

from armwise.feedback.arrays import Growing, Matrix, Spool, select_rows, take_drawn


@pytest.mark.parametrize("sizes", [[0], [1], [3, 0, 5], [1] * 40, [100, 1, 200]])
def test_rows_are_kept_in_the_order_in_which_they_are_appended(sizes: list[int]) -> None:
    grown, rows = Growing(), np.arange(sum(sizes))
    for part in np.split(rows, np.cumsum(sizes)[:-1]):
        grown.append(part)
    assert grown.take().tolist() == rows.tolist()


@pytest.mark.parametrize("in_memory", [0, 1 << 20], ids=["on disk", "in memory"])
@pytest.mark.parametrize("widths", [[3, 3, 3], [1, 1, 3], [2, 3]])
def test_a_spool_gives_the_rows_that_were_appended_by_slices_and_by_positions(
    widths: list[int], in_memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armwise.feedback.arrays.IN_MEMORY", in_memory)
    monkeypatch.setattr("armwise.feedback.arrays.BLOCK", 4)
    rng, spool, whole = np.random.default_rng(1), Spool(), np.zeros((0, 3))
    for width in widths:
        rows = rng.random((int(rng.integers(1, 9)), width))
        spool.append(rows)
        spool.append(rows[:0])
        whole = np.concatenate([whole, np.pad(rows, ((0, 0), (0, 3 - width)))])
    read, n = spool.read(3), len(whole)
    assert read.shape == whole.shape
    np.testing.assert_array_equal(np.asarray(read), whole)
    for begin in range(n + 1):
        for end in range(n + 2):
            np.testing.assert_array_equal(read[begin:end], whole[begin:end])
    for share in (0.0, 0.1, 0.5, 1.0):
        kept = rng.random(n) < share
        np.testing.assert_array_equal(np.asarray(select_rows(read, kept)), whole[kept])
        np.testing.assert_array_equal(select_rows(select_rows(read, kept), kept[kept])[1:3], whole[kept][1:3])


def test_the_drawn_entries_of_a_matrix_that_is_made_by_blocks_are_those_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("armwise.feedback.arrays.BLOCK", 7)
    rng = np.random.default_rng(0)
    p, drawn = rng.random((40, 3)), rng.integers(3, size=40)
    asked = []

    def make(rows: slice | np.ndarray) -> np.ndarray:
        found = p[rows]
        asked.append(len(found))
        return found

    np.testing.assert_array_equal(take_drawn(Matrix(make, p.shape), drawn), p[np.arange(40), drawn])
    assert max(asked) == 7


def test_a_full_disk_is_named_with_the_folder_that_can_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armwise.feedback.arrays.IN_MEMORY", 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        spool = Spool()
        with pytest.raises(OSError, match="set TMPDIR"):
            spool.append(np.ones((100_000, 3)))
        del spool
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

"""Arrays that grow."""

import numpy as np
import pytest

from armwise.feedback.arrays import Growing


@pytest.mark.parametrize("sizes", [[0], [1], [3, 0, 5], [1] * 40, [100, 1, 200]])
def test_rows_are_kept_in_the_order_in_which_they_are_appended(sizes: list[int]) -> None:
    grown, rows = Growing(), np.arange(sum(sizes))
    for part in np.split(rows, np.cumsum(sizes)[:-1]):
        grown.append(part)
    assert grown.take().tolist() == rows.tolist()


def test_rows_that_were_narrower_get_zeros() -> None:
    grown = Growing()
    for width in (1, 1, 3, 3, 4):
        grown.append(np.full((2, width), float(width)))
    found = grown.take()
    assert found.shape == (10, 4)
    assert found.sum(axis=1).tolist() == [1.0] * 4 + [9.0] * 4 + [16.0] * 2
    assert (found[:4, 1:] == 0.0).all()

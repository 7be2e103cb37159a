"""Descent keeps the best epoch on what it holds out, and moves nothing that it should not."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from armwise.agent.lab.routers.optimizer import Descent, Rows, choice_losses, seed_torch


@pytest.mark.parametrize(
    ("logits", "right", "known", "loss"),
    [
        ([0.0, np.log(2.0), 0.0], [1, 0, 0], [1, 1, 1], np.log(4.0)),
        ([0.0, np.log(2.0), 0.0], [0, 1, 0], [1, 1, 1], np.log(2.0)),
        ([0.0, np.log(2.0), 0.0], [1, 1, 0], [1, 1, 1], np.log(4.0) + np.log(2.0)),
        ([0.0, 0.0, 99.0], [1, 0, 0], [1, 1, 0], np.log(2.0)),
    ],
    ids=["one of a quarter", "one of a half", "the sum of two", "among the known alone"],
)
def test_the_loss_sums_minus_log_probabilities_of_positives(
    logits: list[float], right: list[int], known: list[int], loss: float
) -> None:
    found = choice_losses(
        torch.tensor([logits]), np.array([right], dtype=bool), np.array([known], dtype=bool)
    )
    assert found.tolist() == [pytest.approx(loss, rel=1e-6)]


@given(
    logits=st.lists(st.floats(-5, 5, width=32), min_size=4, max_size=4),
    positives=st.sets(st.integers(0, 3), min_size=1, max_size=3),
    temperature=st.floats(0.25, 2.0),
)
def test_the_loss_is_infonce_summed_over_the_positives(
    logits: list[float], positives: set[int], temperature: float
) -> None:
    right = np.isin(np.arange(4), list(positives))
    partition = sum(np.exp(logit / temperature) for logit in logits)
    summed = sum(-logits[arm] / temperature + np.log(partition) for arm in positives)
    tensor = torch.tensor([logits], dtype=torch.float64) / temperature
    found = choice_losses(tensor, right[None], np.ones((1, 4), dtype=bool)).item()
    assert found == pytest.approx(summed, abs=1e-9)


def test_an_arm_of_unknown_worth_gets_no_gradient() -> None:
    logits = torch.zeros(1, 3, requires_grad=True)
    known = np.array([[True, True, False]])
    choice_losses(logits, np.array([[True, False, False]]), known).sum().backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == [[-0.5, 0.5, 0.0]]


class Point(nn.Module):
    """A number that is fitted, and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.at = nn.Parameter(torch.zeros(1))
        self.still = nn.Parameter(torch.ones(1), requires_grad=False)


def descent(rate: float = 0.1, batch: int = 8, **more: Any) -> Descent:
    return Descent(rate, batch, **{"weight_decay": 0.0, "held_out": 0.0, **more})


def test_what_is_fitted_moves_and_the_rest_stays() -> None:
    point, goals = Point(), torch.full((8,), 0.5)
    descent(epochs=100).run(point, lambda rows: (point.at - goals[rows]) ** 2, np.arange(8))
    assert point.at.item() == pytest.approx(0.5, abs=0.01)
    assert point.still.item() == 1.0
    assert not point.training


def test_the_best_epoch_on_what_is_held_out_is_kept() -> None:
    # What is held out wants 0.3, the rest 1.0: the descent passes the former on its way.
    held_out, seen = np.split(np.random.default_rng(0).permutation(10), [2])
    goals = torch.ones(10)
    goals[held_out] = 0.3
    asked: list[list[int]] = []

    def losses(rows: Rows) -> Tensor:
        if torch.is_grad_enabled():
            asked.append(sorted(rows.tolist()))
        return (point.at - goals[rows]) ** 2

    point = Point()
    descent(epochs=40, held_out=0.2, rate=0.02).run(point, losses, np.arange(10))
    assert point.at.item() == pytest.approx(0.3, abs=0.02)
    assert asked == [sorted(seen.tolist())] * 40


def test_a_batch_that_is_read_in_parts_gives_the_same_steps() -> None:
    goals, found = torch.linspace(0.0, 3.0, 12), []
    for at_once in (5, 12):
        point = Point()
        descent(epochs=20, batch=12, at_once=at_once).run(
            point, lambda rows, point=point: (point.at - goals[rows]) ** 2, np.arange(12)
        )
        found.append(point.at.item())
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_a_seed_draws_the_same_and_leaves_other_draws_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(2).tolist()
    torch.manual_seed(1)
    with seed_torch(5):
        first = torch.rand(2).tolist()
    with seed_torch(5):
        assert torch.rand(2).tolist() == first
    assert torch.rand(2).tolist() == expected


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": 6},
        {"weight_decay": 0.5},
        {"held_out": 0.25},
        {"rate": 0.05},
        {"batch": 5},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_setting_shapes_the_descent(change: dict[str, float]) -> None:
    goals = torch.linspace(-1.0, 3.0, 20)

    def ended(**settings: Any) -> float:
        point = Point()
        run = descent(**{"epochs": 5, "batch": 4, **settings})
        run.run(point, lambda rows: (point.at - goals[rows]) ** 2 + 0.1 * point.at**2, np.arange(20))
        return point.at.item()

    assert ended() == ended()
    assert abs(ended(**change) - ended()) > 1e-5

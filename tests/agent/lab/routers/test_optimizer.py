"""Descent keeps the best epoch on what it holds out, and moves nothing that it should not."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from armwise.agent.lab.routers.contrastive import Contrastive
from armwise.agent.lab.routers.neural.r3ag_training import HeadTower, fit_encoder
from armwise.agent.lab.routers.optimizer import Descent, Over, Rows, choice_losses, seed_torch
from armwise.agent.routers.dataset import Features, Floats, RoutingDataset

WINNERS = np.array([[1, 0, 0, 0], [1, 0, 1, 0], [0, 1, 1, 1], [1, 0, 1, 0]], dtype=bool)
KNOWN = np.array([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0]], dtype=bool)


class Seen(Descent):
    """It fits nothing, and keeps the losses of the questions that it is given."""

    losses: Floats

    def run(self, network: nn.Module, losses: Callable[[Rows], Tensor], questions: Rows) -> None:
        network.eval()
        object.__setattr__(self, "losses", losses(questions).detach().numpy())


def expected_losses(cosines: Floats, over: str) -> list[float]:
    """Return the losses of the questions above, as the papers write them."""
    found = []
    for logits, right, known in zip(cosines, WINNERS, KNOWN, strict=True):
        logs = (logits - np.log(np.exp(logits[known]).sum()))[right]
        found.append(-{"any": np.log(np.exp(logs).sum()), "mean": logs.mean(), "sum": logs.sum()}[over])
    return found


@pytest.mark.parametrize("loss", ["any", "mean"])
def test_the_portfolio_router_averages_over_winners_or_takes_any(
    loss: Literal["any", "mean"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Contrastive, "descent", seen := Seen(learning_rate=1.0))
    labels = RoutingDataset(tied_features(), np.where(KNOWN, WINNERS, np.nan))
    cosines = Contrastive(loss=loss).fit(labels).scores(labels.features)
    assert seen.losses == pytest.approx(expected_losses(cosines, loss), rel=1e-4)


def test_r3ag_sums_over_the_best_arms() -> None:
    features, seen = tied_features(), Seen(learning_rate=1.0)
    with seed_torch():
        encoder, arms = fit_encoder(HeadTower(6, 4, 8), features, WINNERS, KNOWN, seen, 0.25)
    cosines = encoder.encode(features) @ arms.T
    assert seen.losses == pytest.approx(expected_losses(cosines / 0.25, "sum"), rel=1e-4)


def tied_features() -> Features:
    embedding = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    return Features(tuple("abcd"), tuple("1234"), (), np.zeros((4, 0)), embedding)


@pytest.mark.parametrize("over", ["any", "mean", "sum"])
def test_an_arm_of_unknown_worth_gets_no_gradient(over: Over) -> None:
    logits = torch.zeros(1, 3, requires_grad=True)
    known = np.array([[True, True, False]])
    choice_losses(logits, np.array([[True, False, False]]), known, over).sum().backward()
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
        {"seed": 1},
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

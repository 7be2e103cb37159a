"""Fit a network to questions: AdamW on batches, and early stopping on held-out questions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from armwise.arms import extras

if TYPE_CHECKING:  # it takes seconds to load, and a fitted router does not need it
    from torch import Tensor, nn

Rows = NDArray[np.intp]

Mask = NDArray[np.bool_]

Over = Literal["any", "mean", "sum"]
"""How `choice_losses` counts the positive arms of a question."""

SEED = 0
"""Seed of initial weights, dropout, held-out questions and batches."""

CLIP = 1.0
"""Largest norm of the gradient of a step."""


@dataclass(frozen=True, slots=True)
class Descent:
    """The settings of gradient descent. The epoch with the smallest held-out loss is kept.

    Attributes:
        learning_rate: Learning rate of AdamW.
        batch_size: Questions in a step.
        epochs: Passes over the questions.
        weight_decay: Weight decay of AdamW.
        held_out: Share of the questions that are held out to choose the best epoch. If it is less than a
            question, the last epoch is kept.
        at_once: Questions whose gradient is computed together: batches are split to save memory, with the
            same result.
        seed: Draws held-out questions and batches.
    """

    learning_rate: float
    batch_size: int = 64
    epochs: int = 10
    weight_decay: float = 0.01
    held_out: float = 0.1
    at_once: int = 64
    seed: int = SEED

    def run(self, network: "nn.Module", losses: "Callable[[Rows], Tensor]", questions: Rows) -> None:
        """Fit the parameters of a network that require a gradient.

        Args:
            network: The network, which is left in evaluation mode.
            losses: Maps indices of questions to the loss of each, shape (n,).
            questions: Indices of the questions to fit to; at least one.
        """
        import torch
        from torch import Tensor

        rng = np.random.default_rng(self.seed)
        held_out, training = np.split(rng.permutation(questions), [int(len(questions) * self.held_out)])
        free = [parameter for parameter in network.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(free, lr=self.learning_rate, weight_decay=self.weight_decay)
        best, kept = np.inf, list[Tensor](free)
        for _ in range(self.epochs):
            network.train()
            for batch in _parts(rng.permutation(training), self.batch_size):
                optimizer.zero_grad()
                for part in _parts(batch, self.at_once):
                    (losses(part).sum() / len(batch)).backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(free, CLIP)
                optimizer.step()
            network.eval()
            if len(held_out) and (loss := self._mean(losses, held_out)) < best:
                best, kept = loss, [parameter.detach().clone() for parameter in free]
        with torch.no_grad():
            for parameter, value in zip(free, kept, strict=True):
                parameter.copy_(value)

    def _mean(self, losses: "Callable[[Rows], Tensor]", rows: Rows) -> float:
        import torch

        with torch.inference_mode():
            return sum(float(losses(part).sum()) for part in _parts(rows, self.at_once)) / len(rows)


def choice_losses(logits: "Tensor", right: Mask, known: Mask, over: Over) -> "Tensor":
    """Return how far each question's choice among arms is from its positive arms, shape (n,).

    Each loss is minus a log-probability in the softmax of the known arms. With one positive, all are equal.

    Args:
        logits: Logits of the arms, shape (n, n_arms).
        right: Positive arms, at least one per question, all known, shape (n, n_arms).
        known: Arms in the softmax, shape (n, n_arms).
        over: How several positives count: the `sum` of their log-probabilities, so that a question
            weighs more the more it has; their `mean`, so that all questions weigh the same; or `any`, the
            log of their total probability.

    Source: van den Oord et al. 2018, Representation learning with contrastive predictive coding,
    arXiv:1807.03748. The sum is that of Zhao et al. 2026, R3AG, arXiv:2604.22849, section 4.2.1; the mean is
    that of Chen et al. 2024, RouterDC, arXiv:2409.19886, as Retriever Portfolios, arXiv:2605.31176, uses it.
    """
    import torch

    among, chosen = (torch.as_tensor(mask, device=logits.device) for mask in (known, right))
    shares = logits.masked_fill(~among, -torch.inf).log_softmax(dim=1)
    if over == "any":
        return -shares.masked_fill(~chosen, -torch.inf).logsumexp(dim=1)
    losses = -shares.masked_fill(~chosen, 0.0).sum(dim=1)
    return losses / chosen.sum(dim=1) if over == "mean" else losses


@contextmanager
def seed_torch(seed: int = SEED) -> Iterator[None]:
    """Seed torch, and restore its random state afterwards."""
    with extras.explain_missing():
        import torch

    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Set torch's number of threads, and restore it afterwards.

    Threads spin while they wait: on busy cores, two threads fit a small network twenty times slower than one.
    The number also changes how sums are rounded.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _parts(rows: Rows, size: int) -> list[Rows]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]

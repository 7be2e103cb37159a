"""Published routers of language models, fitted on the same questions and the same embedding as ours.

    kNN, MLP           RouterBench (Hu et al. 2024, arXiv:2403.12031): the mean quality of the k nearest
                       training questions by cosine, or weighted by nearness; a network of 100 hidden units
                       for each model, after some passes over the training questions
    similarity         RouteLLM (Ong et al. 2024, arXiv:2406.18665): Bradley-Terry of two models, each
                       comparison weighted by 10 * 10 ** (similarity / largest similarity)
    factorization      RouteLLM: a bilinear model of the question's embedding and a vector of each model,
                       128 units, fitted to which of the two is better

RouteLLM's other two, of BERT and of an 8 B language model, need their weights.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Vectors = NDArray[np.float32]

Peer = Callable[[Vectors, Floats, Vectors], Floats]
"""From vectors (n, dim) and quality (n, n_models) of training questions, and vectors (m, dim), to scores."""


def nearest(k: int, weights: Literal["uniform", "distance"] = "uniform") -> Peer:
    """Return RouterBench's router by nearest neighbours.

    Args:
        k: Number of neighbours, at least 1; of more than there are, all are taken.
        weights: Of a neighbour: equal, or the inverse of its cosine distance.
    """

    def predict(known: Vectors, quality: Floats, asked: Vectors) -> Floats:
        from sklearn.neighbors import KNeighborsRegressor

        model = KNeighborsRegressor(min(k, len(known)), weights=weights, metric="cosine", algorithm="brute")
        return np.asarray(model.fit(known, quality).predict(asked), dtype=np.float64)

    return predict


def perceptron(passes: int) -> Peer:
    """Return RouterBench's networks, one for each model, after some passes over the training questions."""

    def predict(known: Vectors, quality: Floats, asked: Vectors) -> Floats:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPRegressor

        scores = np.empty((len(asked), quality.shape[1]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # theirs ends after 200 passes, too
            for model, column in enumerate(quality.T):
                network = MLPRegressor(
                    hidden_layer_sizes=(100,), learning_rate_init=0.001, max_iter=passes, random_state=1234
                )
                scores[:, model] = network.fit(known, column).predict(asked)
        return scores

    return predict


def similarity(known: Vectors, quality: Floats, asked: Vectors) -> Floats:
    """Predict with RouteLLM's ranking by similarity; of two models it has a closed form."""
    won = 0.5 + 0.5 * np.sign(quality[:, 1] - quality[:, 0])
    alike = asked @ known.T
    weights = 10.0 ** (alike / alike.max(axis=1, keepdims=True))
    strong = weights @ won / weights.sum(axis=1)
    return np.column_stack([1.0 - strong, strong])


def factorization(known: Vectors, quality: Floats, asked: Vectors) -> Floats:
    """Predict with RouteLLM's matrix factorization, with the rates of its published training."""
    import torch
    from torch import nn

    apart = np.flatnonzero(quality[:, 0] != quality[:, 1])
    right = torch.tensor(quality[apart, 1] > quality[apart, 0], dtype=torch.float32)
    vectors = torch.tensor(known[apart])
    torch.manual_seed(42)
    models, project = nn.Parameter(torch.randn(2, 128)), nn.Linear(known.shape[1], 128, bias=False)
    classify = nn.Linear(128, 1, bias=False)

    def logit(text: torch.Tensor) -> torch.Tensor:
        weak, strong = nn.functional.normalize(models)
        return torch.as_tensor(classify((strong - weak) * project(text)).squeeze(-1))

    free = [models, *project.parameters(), *classify.parameters()]
    optimizer = torch.optim.Adam(free, lr=3e-4, weight_decay=1e-5)
    for _ in range(100):
        for rows in torch.randperm(len(apart)).split(64):
            noisy = vectors[rows] + 0.1 * torch.randn(len(rows), vectors.shape[1])
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(logit(noisy), right[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        strong = torch.sigmoid(logit(torch.tensor(asked))).numpy().astype(np.float64)
    return np.column_stack([1.0 - strong, strong])


NEIGHBORS = (10, 15, 20, 30, 40, 60, 80, 100, 150, 200, 300)
"""Numbers of neighbours that are tried."""

KNNS: Mapping[str, Peer] = {f"kNN, k = {k} (RouterBench)": nearest(k) for k in NEIGHBORS} | {
    f"kNN, k = {k}, by distance": nearest(k, "distance") for k in NEIGHBORS
}

MLPS: Mapping[str, Peer] = {f"MLP, {passes} passes": perceptron(passes) for passes in (2, 5, 10, 20)}

PEERS: Mapping[str, Peer] = {**KNNS, **MLPS}

PAIRWISE: Mapping[str, Peer] = {
    "similarity ranking (RouteLLM)": similarity,
    "matrix factorization (RouteLLM)": factorization,
}
"""Of two models, the weak one first."""

"""The contrastive router: what it is fitted to, what it computes, and what it reads of a question."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load
from torch.nn.functional import cosine_similarity, layer_norm, linear, relu

from armwise.agent.lab.routers import contrastive
from armwise.agent.lab.routers.contrastive import WIDTH, Contrastive, winners
from armwise.agent.lab.routers.optimizer import Descent
from armwise.agent.routers.catalog import load_router
from armwise.agent.routers.dataset import Features, Floats, RouterError, RoutingDataset
from armwise.arms.models import ModelNotFoundError
from tests.agent.tiny import make_encoder
from tests.router_contracts import best_single, world, worth

ARMS = ("none", "bm25", "dense", "graph", "multi")


def directions(n: int, seed: int, dim: int = 16) -> RoutingDataset:
    """Return questions on which an arm is worth 1 where their vector points its way, and 0 elsewhere."""
    rng = np.random.default_rng(seed)
    embedding = rng.normal(size=(n, dim)).astype(np.float32)
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    along = embedding @ np.random.default_rng(99).normal(size=(dim, len(ARMS)))
    utility = (along >= np.sort(along, axis=1)[:, [-2]]).astype(np.float64)  # two arms win
    texts = tuple(f"question {row}" for row in range(n))
    return RoutingDataset(Features(ARMS, texts, (), np.zeros((n, 0)), embedding), utility)


def with_more(labels: RoutingDataset, utility: Floats) -> RoutingDataset:
    """Add questions, with the first vectors once more."""
    n = len(utility)
    known, more = labels.features, labels.features.rows(np.arange(n))
    features = replace(
        known,
        texts=known.texts + more.texts,
        question=np.vstack([known.question, more.question]),
        embedding=np.vstack([known.embedding, more.embedding]),
    )
    return RoutingDataset(features, np.vstack([labels.utility, utility]))


@pytest.mark.slow
def test_it_learns_which_way_an_arm_lies() -> None:
    router, held_out = Contrastive().fit(directions(800, seed=1)), directions(400, seed=2)
    assert best_single(held_out) < 0.5
    assert worth(router, held_out) > 0.85


def test_scores_are_the_cosines_of_the_network_it_fitted() -> None:
    labels = directions(200, seed=1)
    router = Contrastive().fit(labels)
    weights = {
        name: torch.from_numpy(value) for name, value in load(router.save().partition(b"\n")[2]).items()
    }

    def block(name: str, rows: torch.Tensor) -> torch.Tensor:
        hidden = relu(linear(rows, weights[f"{name}.0.weight"], weights[f"{name}.0.bias"]))
        return layer_norm(hidden, (WIDTH,), weights[f"{name}.3.weight"], weights[f"{name}.3.bias"])

    rows = torch.from_numpy(labels.features.embedding)
    for name in ("input0", "fusion0", "fusion1"):
        rows = block(name, rows)
    expected = cosine_similarity(rows[:, None], weights["arms.weight"], dim=2).numpy()
    assert np.ptp(expected) > 0.5
    np.testing.assert_allclose(router.scores(labels.features), expected, atol=1e-5)


def test_the_seed_of_the_descent_draws_the_initial_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    labels, found = directions(20, seed=1), []
    for seed in (0, 0, 1):
        monkeypatch.setattr(Contrastive, "descent", Descent(learning_rate=0.0, epochs=1, seed=seed))
        found.append(Contrastive().fit(labels).scores(labels.features).tolist())
    assert found[0] == found[1] != found[2]


def test_questions_that_tell_nothing_are_left_out() -> None:
    labels, nan = directions(150, seed=1), np.nan
    silent = np.array(
        [
            [0.0, 0.0, 0.0, 0.0, 0.0],
            [0.7, 0.7, 0.7, 0.7, 0.7],
            [nan, 0.4, nan, nan, nan],
        ]
    )
    router = Contrastive()
    fitted = router.fit(labels).save()
    assert router.fit(with_more(labels, silent)).save() == fitted
    four = np.array([[1.0, 1.0, 1.0, 1.0, 0.0]])
    assert router.fit(with_more(labels, four)).save() != fitted


def test_the_published_loss_leaves_out_what_nobody_answers() -> None:
    labels = directions(150, seed=1)
    router = Contrastive(loss="mean")
    fitted = router.fit(labels).save()
    silent = np.array([[0.0, 0.0, 0.0, 0.0, 0.0], [-1.0, -0.5, 0.0, -0.5, -1.0], [1.0, 1.0, 1.0, 1.0, 0.0]])
    assert router.fit(with_more(labels, silent)).save() == fitted
    with pytest.raises(RouterError, match="every question with a score above 0 has more than 3 best arms"):
        Contrastive(loss="mean").fit(RoutingDataset(labels.features.rows([0, 1, 2]), silent))


@pytest.mark.slow
def test_what_is_right_with_many_others_is_preferred_to_what_is_seldom_right_alone() -> None:
    labels = directions(300, seed=1)
    labels.utility[:] = np.where(np.arange(300)[:, None] % 10 == 0, [1, 0, 0, 0, 0], [0, 1, 1, 1, 1])
    assert worth(Contrastive().fit(labels), labels) == pytest.approx(0.9)
    assert worth(Contrastive(loss="mean").fit(labels), labels) == pytest.approx(0.1)


@pytest.mark.slow
def test_a_difference_of_scores_is_the_log_odds(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 100
    features = Features(
        ("bm25", "dense"), tuple(map(str, range(n))), (), np.zeros((n, 0)), np.ones((n, 1), dtype=np.float32)
    )
    labels = RoutingDataset(features, np.repeat([[1.0, 0.0], [0.0, 1.0]], [60, 40], axis=0))
    monkeypatch.setattr(contrastive, "WIDTH", 8)
    monkeypatch.setattr(contrastive, "DROPOUT", 0.0)
    descent = Descent(learning_rate=0.03, batch_size=n, epochs=100, weight_decay=0.0, held_out=0.0)
    monkeypatch.setattr(Contrastive, "descent", descent)
    router = Contrastive().fit(labels)
    (first, second), *_ = router.scores(features)
    assert first - second == pytest.approx(0.405465, abs=0.01)  # log(0.6 / 0.4)


def test_the_best_known_arms_win() -> None:
    utility = np.array([[0.1, np.nan, 0.9, 0.9], [-1.0, np.nan, -2.0, np.nan]])
    assert winners(utility).tolist() == [[False, False, True, True], [True, False, False, False]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("tiny") / "model", world(300, seed=1).features.texts)


def texts_alone(labels: RoutingDataset) -> RoutingDataset:
    """Take the embeddings away."""
    n = len(labels)
    return replace(labels, features=replace(labels.features, embedding=np.zeros((n, 0), dtype=np.float32)))


@pytest.mark.slow
def test_a_named_encoder_reads_the_question(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Contrastive, "descent", Descent(learning_rate=2e-3, weight_decay=0.0))
    labels, held_out = texts_alone(world(200, seed=1)), texts_alone(world(100, seed=3))
    for encoder in (str(model), "hashing:64"):
        router = Contrastive(encoder=encoder).fit(labels)
        assert worth(router, held_out) > best_single(held_out) + 0.5
        np.testing.assert_array_equal(
            load_router(router.save()).scores(held_out.features), router.scores(held_out.features)
        )


def test_an_encoder_is_read_beside_the_embedding(model: Path) -> None:
    labels = world(40, seed=1)
    router = Contrastive(encoder=str(model)).fit(labels)
    seen = labels.features
    for changed in (
        replace(seen, texts=("why", *seen.texts[1:])),
        replace(seen, embedding=np.vstack([-seen.embedding[:1], seen.embedding[1:]])),
    ):
        moved = np.abs(router.scores(changed) - router.scores(seen)).max(axis=1)
        assert moved[0] > 1e-4
        assert moved[1:].max() < 1e-5


def test_further_backbones_read_the_question_with_their_prefix(model: Path) -> None:
    labels = world(40, seed=1)
    plain = {"model": str(model), "query_prefix": ""}
    routers = [
        Contrastive(backbones=backbones).fit(labels)
        for backbones in ([plain], [{**plain, "query_prefix": "query: "}], [plain, {"model": "hashing:16"}])
    ]
    for router in routers:
        scores = router.scores(labels.features)
        one_by_one = np.vstack([router.scores(labels.features.rows([row])) for row in range(5)])
        np.testing.assert_allclose(one_by_one, scores[:5], atol=1e-5)
        np.testing.assert_array_equal(load_router(router.save()).scores(labels.features), scores)
    different = [router.scores(labels.features) for router in routers]
    assert not np.allclose(different[0], different[1], atol=1e-3), "the prefix counts"
    assert not np.allclose(different[0], different[2], atol=1e-3), "so does the second backbone"


@pytest.mark.slow
def test_an_encoder_that_is_not_there_or_another_is_refused(tmp_path: Path) -> None:
    labels = world(40, seed=1)
    with pytest.raises(ModelNotFoundError, match="there is no file or folder /nowhere/model"):
        Contrastive(encoder="/nowhere/model").fit(labels)
    place = make_encoder(tmp_path / "model", labels.features.texts, seed=8)
    saved = Contrastive(encoder=str(place)).fit(labels).save()
    other = make_encoder(tmp_path / "other", labels.features.texts, seed=9)
    (other / "model.safetensors").replace(place / "model.safetensors")
    with pytest.raises(RouterError, match="is not the one that the router was fitted with"):
        load_router(saved)
    both = Contrastive(encoder="hashing:16", backbones=[{"model": str(place)}]).fit(labels).save()
    make_encoder(tmp_path / "third", labels.features.texts, seed=10)
    (tmp_path / "third" / "model.safetensors").replace(place / "model.safetensors")
    with pytest.raises(RouterError, match=f"encoder '{place}' is not the one"):
        load_router(both)


def test_a_question_without_an_embedding_needs_an_encoder() -> None:
    with pytest.raises(RouterError, match="needs the questions' embeddings, or an encoder"):
        Contrastive().fit(texts_alone(world(40, seed=1)))

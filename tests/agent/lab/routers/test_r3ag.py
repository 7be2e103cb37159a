"""R3AG's router: its labels, its losses, its folded attention, and its full form over a text model."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cosine_similarity, normalize

from armwise.agent.lab.routers.networks import Fusion, Head
from armwise.agent.lab.routers.neural import r3ag_training
from armwise.agent.lab.routers.neural.r3ag_training import (
    HeadTower,
    fit_encoder,
    fit_fusion,
    fold,
    fuse,
    fusion_losses,
)
from armwise.agent.lab.routers.neural.text_encoder import TextTower
from armwise.agent.lab.routers.optimizer import Descent, on_threads
from armwise.agent.lab.routers.r3ag import Capability, positives
from armwise.agent.lab.routers.utilities import routing_labels
from armwise.agent.routers.catalog import load_router
from armwise.agent.routers.dataset import Features, Floats, RouterError, RoutingDataset
from armwise.agent.routers.utility import R3AG
from armwise.arms.lab.portfolio import Outcomes
from armwise.arms.models import ModelNotFoundError
from armwise.arms.questions import Question
from tests import router_contracts
from tests.agent.lab.routers.test_contrastive import texts_alone
from tests.agent.tiny import make_encoder
from tests.router_contracts import DIM, best_single, world, worth

ARMS = ("none", "bm25", "dense", "graph", "multi", "vendi")


def directions(n: int, seed: int, dim: int = 16) -> RoutingDataset:
    """Return questions on which an arm is worth more, the more their vector points its way."""
    rng = np.random.default_rng(seed)
    embedding = rng.normal(size=(n, dim)).astype(np.float32)
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    utility = embedding @ np.random.default_rng(99).normal(size=(dim, len(ARMS)))
    return RoutingDataset(
        Features(ARMS, ("why",) * n, (), np.zeros((n, 0)), embedding), utility.astype(np.float64)
    )


@pytest.mark.slow
def test_it_learns_which_way_an_arm_lies() -> None:
    held_out = directions(400, seed=2)
    router = Capability().fit(directions(800, seed=1))
    most = float(held_out.utility.max(axis=1).mean())
    assert best_single(held_out) < 0.2 * most
    assert worth(router, held_out) > 0.85 * most


@given(
    label=st.lists(st.floats(-1, 1), min_size=4, max_size=6, unique=True),
    best=st.integers(1, 3),
)
def test_without_ties_the_positives_are_the_top_k(label: list[float], best: int) -> None:
    top = np.argsort(label)[::-1][:best]
    assert set(np.flatnonzero(positives(np.array([label]), best)[0])) == set(top.tolist())


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ([1.0, 0.0, 0.0, 0.0], [0]),
        ([1.0, 1.0, 1.0, 0.0], [0, 1, 2]),
        ([0.9, 0.5, 0.5, 0.1], [0, 1, 2]),
        ([0.4, np.nan, 0.2, np.nan], [0]),
        ([0.4, np.nan, 0.3, 0.2], [0, 2]),
        ([0.3, 0.3, 0.3, np.nan], []),
        ([np.nan, 0.3, np.nan, np.nan], []),
    ],
)
def test_tied_arms_are_positives_together_or_not_at_all(label: list[float], expected: list[int]) -> None:
    assert np.flatnonzero(positives(np.array([label]), 2)[0]).tolist() == expected


TIED = np.array([[1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 0.0, 0.0]])
PRIOR = np.array([0.01, 0.04, 0.02, 0.03])


def test_the_prior_breaks_ties_and_makes_no_positive() -> None:
    published, ours = positives(TIED + PRIOR, 2), positives(TIED + PRIOR, 2, TIED)
    assert [np.flatnonzero(row).tolist() for row in published] == [[1, 2], [1, 3], [1, 3], [1, 3]]
    assert [np.flatnonzero(row).tolist() for row in ours] == [[1, 2], [], [], [1]]


@given(
    outcome=st.lists(st.sampled_from([0.0, 0.3, 1.2, np.nan]), min_size=4, max_size=4),
    prior=st.lists(st.integers(0, 20), min_size=4, max_size=4, unique=True),
    best=st.integers(1, 3),
)
def test_positives_are_published_and_above_worst(outcome: list[float], prior: list[int], best: int) -> None:
    label = np.array([outcome]) + np.array(prior) / 100.0
    top = [arm for arm in np.argsort(-label[0])[:best] if not np.isnan(outcome[arm])]
    worst = np.nanmin(outcome) if not np.isnan(outcome).all() else np.nan
    expected = {arm for arm in top if outcome[arm] > worst}
    assert set(np.flatnonzero(positives(label, best, np.array([outcome]))[0])) == expected


def test_a_router_learns_the_positives_that_the_prior_leaves() -> None:
    features = directions(100, seed=1).features
    outcome = (directions(100, seed=1).utility > 0.0).astype(np.float64)
    utility = outcome + np.array([0.01, 0.04, 0.02, 0.06, 0.05, 0.03])
    top = positives(utility, 2, outcome)
    assert (top != positives(outcome, 2)).any(), "more than two arms tie on some questions"
    router = Capability()
    told = router.fit(RoutingDataset(features, utility, without_prior=outcome)).save()
    assert told == router.fit(RoutingDataset(features, top.astype(np.float64))).save()
    published = Capability(positives="published")
    fitted = published.fit(RoutingDataset(features, utility, without_prior=outcome)).save()
    two_best = positives(utility, 2).astype(np.float64)
    assert (two_best.sum(axis=1) == 2.0).all(), "the prior breaks all ties"
    assert fitted == published.fit(RoutingDataset(features, two_best)).save()


def ties_against_no_retrieval(n: int, seed: int) -> tuple[Features, Outcomes]:
    """Return questions of two kinds: on one, no retrieval is the only right arm where any answer differs.

    On three questions of four all answers are alike, and no retrieval is wrong on all of the other kind.
    """
    rng = np.random.default_rng(seed)
    kind, is_alike, is_right = rng.integers(3, size=n) > 0, rng.random(n) < 0.75, rng.random(n) < 0.5
    em = np.where(kind[:, None], [0.0, 1.0, 1.0], [1.0, 0.0, 0.0])
    em[rng.random(n) < 0.1, 2] = (
        0.0  # so that bm25 has the highest prior, dense the next, and none the lowest
    )
    em = np.where(is_alike[:, None], np.where(kind & is_right, 1.0, 0.0)[:, None], em)
    embedding = (np.eye(2, 8)[kind.astype(int)] + 0.1 * rng.normal(size=(n, 8))).astype(np.float32)
    texts = tuple(f"question {row}" for row in range(n))
    features = Features(("none", "bm25", "dense"), texts, (), np.zeros((n, 0)), embedding)
    nothing = ((None,) * 3,) * n
    questions = tuple(Question(text, text) for text in texts)
    return features, Outcomes(questions, features.arms, {"em": em, "f1": em}, {}, nothing, nothing)


def test_no_retrieval_is_picked_though_ties_favour_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Capability, "of_heads", replace(Capability.of_heads, epochs=20))
    features, outcomes = ties_against_no_retrieval(600, seed=1)
    labels = routing_labels(features, outcomes, R3AG)
    held_out, truth = ties_against_no_retrieval(400, seed=2)
    router = Capability()
    picked = router.fit(labels).scores(held_out).argmax(axis=1) == 0
    alone = (truth.scores["em"] == [1.0, 0.0, 0.0]).all(axis=1)
    assert alone.sum() > 20
    assert picked[alone].mean() > 0.9
    published = Capability(positives="published").fit(labels).scores(held_out).argmax(axis=1) == 0
    assert published[alone].mean() < 0.1, "ties teach that the arms with the highest prior are best"


def test_the_loss_of_the_attention_is_the_papers() -> None:
    needs = torch.tensor([[1.0, 0.0]])
    fused = torch.tensor([[[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]]])
    utilities = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    right, known = np.array([[True, False, False]]), np.array([[True, True, False]])
    # cosines 1, 0 and an arm that has no part: softplus(-1) + softplus(0), distances 1 and 4
    expected = np.log1p(np.exp(-1.0)) + np.log(2.0) + 0.5 * (1.0 + 4.0)
    found = fusion_losses(fused, needs, utilities, right, known, 0.5)
    assert found.tolist() == [pytest.approx(expected, rel=1e-6)]


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_the_folded_attention_gives_the_cosines_of_the_attention(heads: int) -> None:
    torch.manual_seed(heads)
    attention = torch.nn.MultiheadAttention(16, heads, batch_first=True)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter)
    pairs = normalize(torch.randn(5, 2, 16), dim=2)
    asks, needs = normalize(torch.randn(7, 16), dim=1), normalize(torch.randn(7, 16), dim=1)
    with torch.no_grad():
        expected = cosine_similarity(fuse(attention, asks, pairs), needs[:, None], dim=2).numpy()
        one, _ = attention(asks[2:3], pairs[4], pairs[4])  # question 2, arm 4, as the paper writes it
        assert cosine_similarity(one[0], needs[2], dim=0).item() == pytest.approx(expected[2, 4], abs=1e-5)
    found = fold(attention, pairs).scores(asks.double().numpy(), needs.double().numpy())
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_head_in_numpy_is_the_head_in_torch() -> None:
    labels = directions(20, seed=1)
    tower = HeadTower(16, len(ARMS), 8)
    with torch.no_grad():
        expected = tower(tower.inputs(labels.features)).numpy()
    np.testing.assert_allclose(tower.to_encoder().encode(labels.features), expected, atol=1e-6)


def test_an_encoder_brings_a_question_near_to_its_positives() -> None:
    labels = directions(500, seed=1)
    right, known = positives(labels.utility, 2), np.ones_like(labels.utility, dtype=bool)
    torch.manual_seed(0)
    tower, descent = HeadTower(16, len(ARMS), 16), Descent(learning_rate=3e-3, batch_size=32)
    with on_threads(1):
        encoder, arms = fit_encoder(tower, labels.features, right, known, descent, 0.2)
    near = encoder.encode(labels.features) @ arms.T
    assert np.abs(near).max() <= 1.0 + 1e-6
    assert near[right].mean() > near[~right].mean() + 0.3


def with_quality(labels: RoutingDataset, quality: Floats) -> RoutingDataset:
    return replace(labels, quality=quality)


def test_the_quality_fits_its_encoder_and_the_utility_stands_in_for_it() -> None:
    labels = directions(200, seed=1)
    router = Capability()
    alone = router.fit(labels).save()
    assert router.fit(with_quality(labels, labels.utility)).save() == alone
    other = load_router(router.fit(with_quality(labels, -labels.utility)).save())
    seen = labels.features
    assert np.abs(other.scores(seen) - load_router(alone).scores(seen)).max() > 1e-3


def arrays(router: Capability) -> dict[str, np.ndarray]:
    """Return the arrays that a router saves."""
    return safetensors.numpy.load(router.save().partition(b"\n")[2])


def cosines(router: Capability, features: Features, without: str) -> Floats:
    """Return the scores of an ablation by its definition, from the vectors that were fitted."""
    state, part = arrays(router), "quality" if without == "utility" else "utility"
    needs = Head({name: state[f"{part}.{name}"] for name in ("0.weight", "0.bias", "2.weight", "2.bias")})
    arms = torch.from_numpy(state["give"][:, :, 0].mean(axis=1)).double()
    return cosine_similarity(torch.from_numpy(needs.encode(features))[:, None], arms, dim=2).numpy()


@pytest.mark.parametrize(("without", "n_encoders"), [("attention", 2), ("quality", 1), ("utility", 1)])
def test_an_ablation_scores_by_the_cosine_of_what_is_left(without: str, n_encoders: int) -> None:
    labels = directions(100, seed=1)
    labels = with_quality(labels, -labels.utility)
    router = Capability(without=without).fit(labels)
    vectors = arrays(router)["give"]
    assert vectors.shape == (len(ARMS), n_encoders, 1, 128)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=3), 1.0, atol=1e-5)
    np.testing.assert_allclose(
        router.scores(labels.features), cosines(router, labels.features, without), atol=1e-5
    )
    assert load_router(router.save()).save() == router.save()


def test_what_an_ablation_leaves_out_teaches_it_nothing() -> None:
    labels = directions(200, seed=1)
    quality = with_quality(labels, -labels.utility)
    alone = Capability(without="quality")
    assert alone.fit(quality).save() == alone.fit(labels).save()
    other = replace(quality, utility=np.roll(quality.utility, 1, axis=1))
    of_quality, averaged = (Capability(without=part) for part in ("utility", "attention"))
    assert of_quality.fit(quality).save() == of_quality.fit(other).save()
    assert averaged.fit(quality).save() != averaged.fit(other).save()
    unknown = quality.utility * np.where(np.arange(len(ARMS)) == 0, np.nan, 1.0)
    for lacking in (labels, with_quality(labels, unknown)):
        with pytest.raises(RouterError, match="without utility needs the quality of every arm"):
            of_quality.fit(lacking)


@pytest.mark.slow
def test_an_arm_whose_quality_nobody_knows_is_an_arm_still() -> None:
    labels = directions(800, seed=1)
    quality = labels.utility.copy()
    quality[:, 0] = np.nan  # it retrieves nothing
    held_out = directions(400, seed=2)
    router = Capability().fit(with_quality(labels, quality))
    asked = router.scores(held_out.features).argmax(axis=1) == 0
    best = held_out.utility.argmax(axis=1) == 0
    assert 0.7 * best.sum() < asked.sum() < 1.4 * best.sum()
    assert worth(router, held_out) > 0.8 * held_out.utility.max(axis=1).mean()


def test_a_quality_that_does_not_fit_is_refused() -> None:
    labels = directions(5, seed=1)
    with pytest.raises(RouterError, match=r"5 questions and 6 arms have a quality of shape \(5, 2\)"):
        with_quality(labels, labels.utility[:, :2])
    infinite = labels.utility.copy()
    infinite[3, 1] = np.inf
    with pytest.raises(RouterError, match="the quality of 'bm25' on 'why' is infinite"):
        with_quality(labels, infinite)
    with pytest.raises(RouterError, match="there is no question on which two arms differ in quality"):
        Capability().fit(with_quality(labels, np.ones((5, 6))))
    kept = with_quality(labels, labels.utility).rows([0, 2]).quality
    assert kept is not None
    np.testing.assert_array_equal(kept, labels.utility[[0, 2]])


def test_heads_have_to_divide_the_width() -> None:
    with pytest.raises(RouterError, match="7 heads do not divide a width of 128"):
        Capability(heads=7).fit(directions(20, seed=1))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("tiny") / "model", world(200, seed=1).features.texts)


@pytest.fixture(scope="module")
def full(model: Path) -> Capability:
    """The full form, fitted in large steps: the model is small, and knows nothing to begin with."""
    with pytest.MonkeyPatch.context() as patch:
        descent = replace(Capability.of_models, learning_rate=3e-3, batch_size=32, at_once=16)
        patch.setattr(Capability, "of_models", descent)
        return Capability(encoder=str(model), best=1).fit(texts_alone(world(200, seed=1)))


@pytest.mark.slow
def test_the_full_form_learns_from_the_texts(full: Capability) -> None:
    held_out = texts_alone(world(200, seed=3))
    assert worth(full, held_out) > best_single(held_out) + 0.5


@pytest.mark.slow
def test_the_full_form_comes_back_as_it_was_saved(full: Capability) -> None:
    seen = texts_alone(world(70, seed=3)).features
    back = load_router(full.save())
    np.testing.assert_array_equal(back.scores(seen), full.scores(seen))
    assert back.save() == full.save()


@pytest.mark.slow
def test_the_full_form_scores_each_question_alone_and_each_arm_as_any_other(full: Capability) -> None:
    seen = texts_alone(world(20, seed=3)).features
    alone = np.vstack([full.scores(seen.rows([row])) for row in range(len(seen))])
    np.testing.assert_allclose(full.scores(seen), alone, atol=1e-5)
    few = ("graph", "none")
    np.testing.assert_array_equal(
        full.scores(seen.select_arms(few)), full.scores(seen)[:, [seen.arms.index(arm) for arm in few]]
    )


def test_the_batches_of_the_encoders_are_not_those_of_the_attention(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Descent] = []

    def spy(*args: Any) -> Fusion:
        steps.append(args[5])
        return fit_fusion(*args)

    monkeypatch.setattr(r3ag_training, "fit_fusion", spy)
    monkeypatch.setattr(Capability, "of_models", replace(Capability.of_models, epochs=1))
    for encoder in (str(model), None):
        Capability(encoder=encoder, learning_rate=0.1).fit(world(20, seed=1))
    assert steps == [Capability.of_heads] * 2


def test_texts_of_any_length_are_read_together_as_each_alone(model: Path) -> None:
    tower = TextTower(str(model), 1)
    texts = [" ".join(["what of the topic"] * (1 + 7 * at % 5)) + f" {at}" for at in range(40)]
    alone = np.concatenate([tower.read([text]) for text in texts])
    np.testing.assert_allclose(tower.read(texts), alone, atol=1e-5)
    assert np.abs(np.roll(alone, 1, axis=0) - alone).max(axis=1).min() > 1e-3


@pytest.mark.slow
def test_only_the_word_embeddings_and_the_last_two_layers_are_fitted(model: Path) -> None:
    labels = world(60, seed=1)
    right, known = positives(labels.utility, 2), np.ones_like(labels.utility, dtype=bool)
    tower = TextTower(str(model), len(labels.features.arms))
    before = {name: value.detach().clone() for name, value in tower.named_parameters()}
    assert tower(tower.tokens).shape == (4, 32)
    descent = Descent(learning_rate=1e-3, batch_size=32, epochs=2, at_once=16)
    with on_threads(1):
        fit_encoder(tower, labels.features, right, known, descent, 0.2)

    moved = {name for name, value in tower.named_parameters() if not torch.equal(value, before[name])}
    expected = {
        name
        for name in before
        if name.endswith("word_embeddings.weight") or ".layer.1." in name or ".layer.2." in name
    }
    assert len(expected) == 1 + 2 * 16
    # A bias of keys has no part in attention: it may stay where it is.
    assert {name for name in expected - moved if not name.endswith("key.bias")} == set()
    assert moved <= expected
    assert set(tower.state()) == expected


def test_each_arm_gets_a_word_of_its_own(model: Path) -> None:
    tower = TextTower(str(model), 3)
    words = tower.model.tokenizer.convert_tokens_to_ids(tower.tokens)
    plain = TextTower(str(model), 1)
    size = len(plain.model.tokenizer) - 1
    assert words == [size, size + 1, size + 2]
    with torch.no_grad():
        near = tower(tower.tokens) @ tower(tower.tokens).T
    assert near.fill_diagonal_(0.0).max().item() < 0.999


@pytest.mark.slow
def test_the_full_form_keeps_what_every_router_promises(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Capability, "of_models", replace(Capability.of_models, epochs=1))
    build = partial(Capability, encoder=str(model))
    router_contracts.threads_see_what_one_thread_sees(build)
    router_contracts.unknown_utilities_are_left_out(build)
    router_contracts.the_same_labels_give_the_same_bytes(build)


def test_a_model_that_is_not_there_or_another_is_refused(tmp_path: Path) -> None:
    labels = world(20, seed=1)
    with pytest.raises(ModelNotFoundError, match="there is no file or folder /nowhere/model"):
        Capability(encoder="/nowhere/model").fit(labels)
    with pytest.raises(ModelNotFoundError, match="cannot be loaded"):
        Capability(encoder=str(tmp_path)).fit(labels)
    place = make_encoder(tmp_path / "model", labels.features.texts, seed=8)
    saved = Capability(encoder=str(place)).fit(texts_alone(labels)).save()
    other = make_encoder(tmp_path / "other", labels.features.texts, seed=9)
    (other / "model.safetensors").replace(place / "model.safetensors")
    with pytest.raises(RouterError, match="is not the one that the router was fitted with"):
        load_router(saved)
    with pytest.raises(RouterError, match="needs the questions' embeddings, or an encoder"):
        Capability().fit(texts_alone(labels))


def test_a_zero_vector_has_finite_scores() -> None:
    labels = world(40, seed=1)
    router = Capability().fit(labels)
    nothing = replace(labels.features, embedding=np.zeros((len(labels), DIM), dtype=np.float32))
    assert np.isfinite(router.scores(nothing)).all()
    empty = Head(
        {
            name: np.zeros(shape)
            for name, shape in (("0.weight", (2, DIM)), ("0.bias", 2), ("2.weight", (2, 2)), ("2.bias", 2))
        }
    )
    assert empty.encode(nothing).tolist() == np.zeros((len(labels), 2)).tolist()

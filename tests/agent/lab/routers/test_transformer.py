"""The transformer router keeps the promises of a router, and reads the text."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from armwise.agent.lab.routers.neural.text_encoder import ScaledReader
from armwise.agent.lab.routers.optimizer import Descent
from armwise.agent.lab.routers.transformer import Transformer
from armwise.agent.routers.catalog import load_router
from armwise.agent.routers.dataset import RouterError
from armwise.arms.models import ModelNotFoundError
from tests.router_contracts import (
    APART_CHECKS,
    ARMS,
    CHECKS,
    LEARNING_CHECKS,
    RETRIEVED_CHECKS,
    TOPICS,
    Build,
    asked,
    best_single,
    world,
    worth,
)


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transformer, "hidden", (16,))
        patch.setattr(Transformer, "descent", Descent(learning_rate=0.01, batch_size=16, epochs=12))
        patch.setattr(Transformer, "tuning", Descent(learning_rate=1e-3, batch_size=16, epochs=2))
        yield


def make_model(folder: Path, *, seed: int = 7) -> Path:
    """Make a text model of two small layers, with random weights."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "what", "of", "the", *TOPICS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        initializer_range=0.5,  # this wide, or all texts would look next to alike
    )
    BertModel(config).save_pretrained(folder)
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=32).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_model(tmp_path_factory.mktemp("tiny") / "model"))


@pytest.fixture(scope="module")
def lists(model: str) -> Build:
    return partial(Transformer, model=model)


@pytest.fixture(scope="module")
def points(model: str) -> Build:
    return partial(Transformer, model=model, loss="pointwise")


@pytest.fixture(scope="module")
def pairs(model: str) -> Build:
    return partial(Transformer, model=model, loss="pairwise")


@pytest.fixture(scope="module")
def tuned(model: str) -> Build:
    return partial(Transformer, model=model, train_layers=1)


OF_ANY = CHECKS + LEARNING_CHECKS + RETRIEVED_CHECKS


@pytest.mark.parametrize(
    ("which", "check"),
    [
        *(("lists", check) for check in OF_ANY + APART_CHECKS),
        *(("points", check) for check in OF_ANY + APART_CHECKS),
        *(("tuned", check) for check in OF_ANY + APART_CHECKS),
        *(("pairs", check) for check in OF_ANY),  # the score of an arm depends on those beside it
    ],
)
@pytest.mark.slow
def test_a_transformer_keeps_its_promise(
    which: str, check: Callable[[Build], None], request: pytest.FixtureRequest
) -> None:
    check(request.getfixturevalue(which))


def test_a_pairwise_transformer_ranks_by_wins_over_the_others(model: str) -> None:
    """Alone, an arm ties with itself; its score among four is the mean over each, itself included."""
    router, seen = Transformer(model=model, loss="pairwise").fit(world(30, seed=1)), asked(5)
    assert router.scores(seen.select_arms(["dense"])).tolist() == [[0.5]] * 5
    two = {
        arm: router.scores(seen.select_arms(["dense", arm]))[:, 0] * 2.0 - 0.5
        for arm in ARMS
        if arm != "dense"
    }
    expected = (0.5 + sum(two.values())) / 4.0
    np.testing.assert_allclose(router.scores(seen)[:, ARMS.index("dense")], expected, atol=1e-6)


@pytest.mark.parametrize("loss", ["listwise", "pointwise", "pairwise"])
def test_the_last_layers_and_the_word_embeddings_are_fitted_if_asked(model: str, loss: str) -> None:
    labels, seen = world(30, seed=1), asked(5)
    assert text_parameters(Transformer(model=model, loss=loss).fit(labels)) == {}
    router = Transformer(model=model, loss=loss, train_layers=1).fit(labels)
    before = ScaledReader(model).state_dict()
    moved = {
        name: not np.array_equal(value, before[name].numpy())
        for name, value in text_parameters(router).items()
    }
    fitted = {name for name in before if ".layer.1." in name or "word_embeddings" in name}
    assert moved.keys() == fitted
    # A bias of keys has no part in attention: it may stay where it is.
    assert all(is_moved for name, is_moved in moved.items() if not name.endswith("key.bias"))
    np.testing.assert_array_equal(load_router(router.save()).scores(seen), router.scores(seen))
    with pytest.raises(RouterError, match=r"3 layers of model '.*' are to be fitted, but it has 2"):
        Transformer(model=model, loss=loss, train_layers=3).fit(labels)


def text_parameters(router: Transformer) -> dict[str, np.ndarray]:
    """Return what a router saves of its text model."""
    saved = load(router.save().partition(b"\n")[2])
    return {
        name.removeprefix("reader."): value for name, value in saved.items() if name.startswith("reader.")
    }


@pytest.mark.slow
def test_the_text_is_what_it_reads(model: str) -> None:
    """The words are all that tells the topics apart, once the numbers and the embedding say nothing."""
    labels = world(300, seed=1)
    router = Transformer(model=model, stage="question")
    held_out = world(200, seed=3)
    for of in (labels, held_out):
        of.features.question[:] = 0.0
        of.features.embedding[:] = 0.0
    assert worth(router.fit(labels), held_out) > best_single(held_out) + 0.3


def test_a_router_of_another_model_is_refused(model: str, tmp_path: Path) -> None:
    labels = world(30, seed=1)
    place = make_model(tmp_path / "model", seed=8)
    saved = Transformer(model=str(place)).fit(labels).save()
    (place / "model.safetensors").write_bytes((Path(model) / "model.safetensors").read_bytes())
    with pytest.raises(RouterError, match=r"model '.*' is not the one that the router was fitted with"):
        Transformer(model=str(place)).load(saved)


def test_a_model_that_is_not_there_is_missed(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="there is no file or folder /nowhere/model"):
        Transformer(model="/nowhere/model").fit(world(20, seed=1))
    with pytest.raises(ModelNotFoundError, match="cannot be loaded"):
        Transformer(model=str(tmp_path)).fit(world(20, seed=1))

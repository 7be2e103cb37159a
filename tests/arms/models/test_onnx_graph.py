"""Graphs of models: they give what the models give, without torch, and are exported once."""

import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from armwise.arms import extras
from armwise.arms.models import ModelNotFoundError, embedding, onnx_graph
from armwise.arms.models.embedding import Backbone, build_embedder
from armwise.arms.models.files import digest_file
from armwise.arms.models.onnx_graph import NotExportableError, OnnxExport, open_graph
from tests.arms.models.conftest import TEXTS


@pytest.fixture(scope="module")
def tiny_int8(tiny_model: Path) -> embedding.Embedder:
    return build_embedder(Backbone(model=str(tiny_model), precision="int8"))


@pytest.fixture(scope="session")
def static_model(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Make a model that averages the vectors of words, by no tokenizer of transformers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    words = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    folder = tmp_path_factory.mktemp("static") / "model"
    weights = np.random.default_rng(3).normal(size=(words.get_vocab_size(), 8)).astype(np.float32)
    SentenceTransformer(modules=[StaticEmbedding(words, embedding_weights=weights)]).save(str(folder))
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "armwise" / "onnx"


def export_of(model: Path) -> OnnxExport:
    return OnnxExport(str(model), "", digest_file(model), "sentences", "float32")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(
    texts=st.lists(st.lists(st.sampled_from(" ".join(TEXTS).split()), max_size=40).map(" ".join), min_size=1)
)
@pytest.mark.slow
def test_a_graph_gives_what_the_model_gives(texts: list[str], tiny_model: Path) -> None:
    graph, model = (_opened(str(tiny_model), runtime) for runtime in ("onnx", "torch"))
    np.testing.assert_allclose(graph.encode_passages(texts), model.encode_passages(texts), atol=1e-4)


_kept: dict[tuple[str, str], embedding.Embedder] = {}


def _opened(model: str, runtime: str) -> embedding.Embedder:
    if (model, runtime) not in _kept:
        _kept[model, runtime] = build_embedder(Backbone.model_validate({"model": model, "runtime": runtime}))
    return _kept[model, runtime]


def test_a_text_beyond_the_limit_is_cut_where_the_model_cuts_it(tiny_model: Path) -> None:
    graph, model = (_opened(str(tiny_model), runtime) for runtime in ("onnx", "torch"))
    long = ["the fox " * 256 + "sings"]
    np.testing.assert_allclose(graph.encode_queries(long), model.encode_queries(long), atol=1e-4)
    np.testing.assert_array_equal(graph.encode_queries(long), graph.encode_queries([long[0] + " red bird"]))


@pytest.mark.slow
def test_a_quantised_text_has_exactly_the_same_vector_alone_and_in_company(
    tiny_int8: embedding.Embedder,
) -> None:
    alone = np.concatenate([tiny_int8.encode_queries([text]) for text in TEXTS])
    np.testing.assert_array_equal(tiny_int8.encode_passages(TEXTS), alone)


def test_quantised_vectors_are_near_to_those_of_float32(
    tiny_int8: embedding.Embedder, tiny_model: Path
) -> None:
    wanted = _opened(str(tiny_model), "onnx").encode_queries(TEXTS)
    found = tiny_int8.encode_queries(TEXTS)
    cosines = (found * wanted).sum(axis=1)
    assert cosines.min() > 0.98
    assert not np.array_equal(found, wanted)


def test_rows_are_in_the_order_of_their_texts_on_any_number_of_threads(tiny_model: Path) -> None:
    graph = open_graph(export_of(tiny_model), batch_size=3)
    texts = [" ".join(TEXTS[at % 4].split()[: 1 + at % 7]) for at in range(40)]
    alone = np.concatenate([graph.read([text]) for text in texts])
    for threads in (1, 3):
        np.testing.assert_allclose(graph.read(texts, threads), alone, atol=1e-5)


@pytest.mark.slow
def test_a_model_is_exported_once_by_another_process_and_torch_stays_out_of_this_one(
    tiny_model: Path, cache: Path
) -> None:
    code = (
        "import sys; from armwise.arms.models import Backbone, build_embedder\n"
        f"build_embedder(Backbone(model={str(tiny_model)!r})).encode_passages(['a', 'b'])\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'sentence_transformers')))"
    )
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    assert sorted(path.name for path in folder.iterdir()) == ["model.onnx", "tokenizer.json"]
    written = (folder / "model.onnx").stat().st_mtime_ns
    open_graph(export_of(tiny_model), 4)
    assert (folder / "model.onnx").stat().st_mtime_ns == written
    assert cache.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in cache.parent.parent.iterdir()] == ["armwise"], (
        "no library keeps an id there"
    )


@pytest.mark.usefixtures("cache")
def test_without_a_library_of_graphs_a_model_says_what_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(extras, "is_installed", lambda module: module != "tokenizers")
    with pytest.raises(ModelNotFoundError, match=r"tokenizers is not installed: .*'armwise\[local\]'"):
        build_embedder(Backbone(model=str(tmp_path), precision="int8"))


def test_everything_that_shapes_a_graph_is_in_its_key() -> None:
    one = OnnxExport("/model", "", "digest", "sentences", "float32")
    other: list[OnnxExport] = [
        replace(one, digest="another"),
        replace(one, task="pairs"),
        replace(one, precision="int8"),
        replace(one, max_length=128),
    ]
    assert len({export.key for export in (one, *other)}) == 5
    assert replace(one, model="/moved").key == one.key


def test_versions_of_the_libraries_are_in_the_key_of_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    one = OnnxExport("/model", "", "digest", "sentences", "float32")
    before = one.key
    monkeypatch.setattr(extras.metadata, "version", lambda _: "0")
    assert one.key != before


@pytest.mark.usefixtures("cache")
@pytest.mark.slow
def test_a_model_that_cannot_be_exported_says_why_and_runs_on_torch(
    static_model: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = Backbone(model=str(static_model))
    with caplog.at_level(logging.WARNING):
        embedder = build_embedder(backbone)
    assert f"model {str(static_model)!r} runs on torch: " in caplog.text
    assert "its Tokenizer is no fast tokenizer" in caplog.text
    assert embedder.encode_passages(TEXTS).shape == (4, 8)

    def again(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(subprocess, "run", again)
    assert build_embedder(backbone).encode_queries(["red"]).shape == (1, 8), "the refusal is remembered"


@pytest.mark.slow
def test_a_model_that_cannot_be_exported_has_no_int8(static_model: Path) -> None:
    with pytest.raises(
        ModelNotFoundError, match=r"cannot be read in int8: its Tokenizer is no fast.*float32"
    ):
        build_embedder(Backbone(model=str(static_model), precision="int8"))


def test_an_export_that_was_killed_is_tried_again(
    tiny_model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    for _ in range(2):
        with pytest.raises(NotExportableError, match="the export failed: exit status 1"):
            open_graph(export_of(tiny_model), 4)
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def test_a_cache_that_cannot_be_written_leaves_a_model_on_torch(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        assert build_embedder(Backbone(model=str(tiny_model))).dim == 16
    assert "cannot be written" in caplog.text


@pytest.mark.parametrize("settings", [{"precision": "bfloat16"}, {"runtime": "torch"}])
def test_torch_reads_where_it_is_asked_for(
    settings: dict[str, str], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "open_graph", lambda *_: pytest.fail("a graph was opened"))
    told = Backbone.model_validate({"model": str(tiny_model), **settings})
    assert build_embedder(told).encode_queries(TEXTS).shape == (4, 16)


@pytest.mark.parametrize(
    ("visible", "there", "found"),
    [(None, True, True), ("0", True, True), ("", True, False), ("-1", True, False), ("0", False, False)],
)
def test_a_gpu_is_one_of_the_machine_that_this_process_may_see(
    visible: str | None, there: bool, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(Path, "exists", lambda path: there and str(path) == "/dev/nvidiactl")
    assert onnx_graph.has_gpu() is found


def test_a_model_on_a_gpu_runs_on_torch(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "has_gpu", lambda: True)
    monkeypatch.setattr(embedding, "open_graph", lambda *_: pytest.fail("a graph was opened"))
    assert build_embedder(Backbone(model=str(tiny_model))).dim == 16


def test_a_graph_that_gives_something_else_is_refused(tiny_model: Path) -> None:
    from armwise.arms.models import onnx_export

    graph = open_graph(export_of(tiny_model), 4)
    wanted = graph.read(TEXTS)
    onnx_export.compare(graph, TEXTS, wanted, "float32")
    wanted[2] = -wanted[2]
    with pytest.raises(NotExportableError, match=r"a cosine of -1\.0000 for 'red'"):
        onnx_export.compare(graph, TEXTS, wanted, "float32")
    wanted[2] = np.nan
    with pytest.raises(NotExportableError, match="cosine of nan"):
        onnx_export.compare(graph, TEXTS, wanted, "float32")


@pytest.mark.slow
def test_an_export_is_told_by_json(tiny_model: Path, tmp_path: Path) -> None:
    told = json.dumps({"model": str(tiny_model), "revision": "", "digest": "d", "task": "sentences"})
    ended = subprocess.run(
        [sys.executable, "-m", "armwise.arms.models.onnx_export", told, str(tmp_path)],
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 1, "no precision is said: neither a graph nor a refusal"
    assert not list(tmp_path.iterdir())

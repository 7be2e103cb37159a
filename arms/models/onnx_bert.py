"""Write BERT encoders and cross-encoders as ONNX graphs, from their weights and without torch.

Most small encoders of sentence-transformers are BERT: MiniLM, BGE, E5, GTE. `onnx_torch` traces the others.

Source: Devlin et al. 2019, BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding,
arXiv:1810.04805; pooling by Reimers and Gurevych 2019, Sentence-BERT, arXiv:1908.10084.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from armwise.arms.models.onnx_graph import INPUTS

OPSET, IR = 20, 10

WEIGHTS = "model.safetensors"

PREFIX = "bert."
"""Prefix of tensor names in a model that contains a BERT, such as a cross-encoder."""

MODULES = ("Transformer", "Pooling", "Normalize")

POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",  # nosec B105: no password
    "pooling_mode_max_tokens": "max",
}
"""Pooling by its key in the configuration; sentence-transformers 5 and later write the name itself."""


class NoBertError(Exception):
    """The model cannot be written as a BERT graph; the message says why."""


@dataclass(frozen=True, slots=True)
class BertLayout:
    """Architecture of a BERT model.

    Attributes:
        head: Pooling of the token vectors, or `score` for a cross-encoder's logit.
        layers: Number of encoder layers.
        heads: Attention heads of a layer.
        epsilon: Constant that layer normalisation adds to the variance.
        limit: Most tokens of a text; longer texts are truncated.
        pad: Padding token.
        unit: Whether output rows are normalised to length 1.
    """

    head: Literal["mean", "cls", "max", "score"]
    layers: int
    heads: int
    epsilon: float
    limit: int
    pad: str
    unit: bool


def read_layout(folder: Path, task: Literal["sentences", "pairs"]) -> BertLayout:
    """Read the configuration of a model.

    Args:
        folder: The files of the model, as sentence-transformers or transformers write them.
        task: `sentences` for a vector per text, `pairs` for a logit per pair of texts.

    Raises:
        NoBertError: It is another architecture, or has parts that this module cannot write.
    """
    config = {"position_embedding_type": "absolute"} | _read(folder / "config.json")
    for key, expected in (
        ("model_type", "bert"),
        ("hidden_act", "gelu"),
        ("position_embedding_type", "absolute"),
    ):
        if (value := config.get(key)) != expected:
            raise NoBertError(f"{key} is {value!r}, not {expected!r}")
    if config.get("is_decoder") or not (folder / WEIGHTS).is_file():
        raise NoBertError(f"it is a decoder, or has no {WEIGHTS}")
    tokens = _read(folder / "tokenizer_config.json")
    limits = [config["max_position_embeddings"], tokens.get("model_max_length")]
    if task == "sentences":
        limits.append(_read(folder / "sentence_bert_config.json").get("max_seq_length"))
    return BertLayout(
        head=_pooling(folder) if task == "sentences" else _scores(config),
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        epsilon=config.get("layer_norm_eps", 1e-12),
        limit=min(int(limit) for limit in limits if limit is not None),
        pad=_text(tokens.get("pad_token", "[PAD]")),
        unit=task == "sentences" and len(_modules(folder)) == len(MODULES),
    )


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _text(token: Any) -> str:
    """Return the text of a token, which is stored as a string or as an object."""
    return str(token["content"] if isinstance(token, Mapping) else token)


def _modules(folder: Path) -> dict[str, str]:
    """Return the folder of each module, in their order. Raises NoBertError."""
    modules = {
        module["type"].rpartition(".")[2]: module["path"] for module in _read(folder / "modules.json") or ()
    }
    if tuple(modules) not in (MODULES, MODULES[:2]):
        raise NoBertError(f"its modules are {', '.join(modules) or 'not named'}, not {', '.join(MODULES)}")
    return modules


def _pooling(folder: Path) -> Literal["mean", "cls", "max"]:
    config = _read(folder / _modules(folder)["Pooling"] / "config.json")
    if config.get("include_prompt", True) is not True:
        raise NoBertError("its pooling leaves the prompt out")
    modes = [name for key, name in POOLINGS.items() if config.get(key)]
    others = [
        key
        for key, value in config.items()
        if key.startswith("pooling_mode_") and value and key not in POOLINGS
    ]
    named = config.get("pooling_mode")
    modes = modes if named is None else [named]
    if others or len(modes) != 1 or modes[0] not in POOLINGS.values():
        raise NoBertError(f"its pooling is {', '.join(map(str, [*modes, *others])) or 'not named'}")
    return modes[0]  # type: ignore[return-value]  # one of the values of POOLINGS


def _scores(config: Mapping[str, Any]) -> Literal["score"]:
    if (
        config.get("architectures") != ["BertForSequenceClassification"]
        or len(config.get("id2label", "01")) != 1
    ):
        raise NoBertError("it is no cross-encoder with a single score")
    return "score"


class BertGraph:
    """Nodes and weights of a graph while it is written; every method returns the name of a tensor."""

    def __init__(self, weights: Mapping[str, NDArray[Any]], epsilon: float) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[str, onnx.TensorProto] = {}
        self._weights, self._epsilon = weights, epsilon

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add an operator with one output."""
        name = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """Add a constant."""
        return self.tensor(f"constant_{len(self.tensors)}", np.asarray(value, dtype=dtype))

    def tensor(self, name: str, value: NDArray[Any]) -> str:
        """Add a weight."""
        self.tensors[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)
        return name

    def weight(self, name: str) -> str:
        """Add a weight of the model. Raises NoBertError."""
        return self.tensor(name, self._value(name))

    def linear(self, x: str, name: str) -> str:
        """Add a linear layer of the model: matrix and bias."""
        matrix = self.tensor(f"{name}.matrix", self._value(f"{name}.weight").T)
        return self.node("Add", self.node("MatMul", x, matrix), self.weight(f"{name}.bias"))

    def normalised(self, x: str, name: str) -> str:
        """Add a layer normalisation of the model."""
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=self._epsilon)

    def _value(self, name: str) -> NDArray[np.float32]:
        if name not in self._weights:
            raise NoBertError(f"it has no tensor {name!r}")
        return np.asarray(self._weights[name], dtype=np.float32)


def build_graph(weights: Mapping[str, NDArray[Any]], layout: BertLayout) -> onnx.ModelProto:
    """Return the graph: tokens of texts, shape (n_texts, n_tokens), to rows, shape (n_texts, size).

    Args:
        weights: Tensors by name; the prefix `bert.` is removed.
        layout: Architecture of the model.

    Raises:
        NoBertError: A tensor is missing.
    """
    graph = BertGraph(weights, layout.epsilon)
    ids, mask, types = INPUTS
    x = _embedded(graph, ids, types)
    # the lowest number is added to the scores of masked tokens: a factor of 0 would leave them a share
    unmasked = graph.node("Unsqueeze", graph.node("Cast", mask, to=TensorProto.FLOAT), graph.constant([1, 2]))
    hidden = graph.node("Sub", graph.constant(1, np.float32), unmasked)
    masked = graph.node("Mul", hidden, graph.constant(np.finfo(np.float32).min, np.float32))
    size = np.asarray(weights["embeddings.word_embeddings.weight"]).shape[1] // layout.heads
    for number in range(layout.layers):
        x = _layer(graph, x, masked, f"encoder.layer.{number}", layout.heads, size)
    rows = _headed(graph, x, mask, layout.head)
    if layout.unit:
        rows = graph.node("LpNormalization", rows, axis=-1, p=2)
    graph.nodes.append(helper.make_node("Identity", [rows], ["rows"]))
    named = helper.make_graph(
        graph.nodes,
        "bert",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["texts", "tokens"]) for name in INPUTS],
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["texts", "size"])],
        list(graph.tensors.values()),
    )
    return helper.make_model(named, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)


def _embedded(graph: BertGraph, ids: str, types: str) -> str:
    """Return the normalised sum of the embeddings of each token, its position and its token type."""
    words = graph.node("Gather", graph.weight("embeddings.word_embeddings.weight"), ids)
    n_tokens = graph.node("Shape", ids, start=1, end=2)
    positions = graph.weight("embeddings.position_embeddings.weight")
    places = graph.node("Slice", positions, graph.constant([0]), n_tokens, graph.constant([0]))
    texts = graph.node("Gather", graph.weight("embeddings.token_type_embeddings.weight"), types)
    summed = graph.node("Add", graph.node("Add", words, texts), places)
    return graph.normalised(summed, "embeddings.LayerNorm")


def _layer(graph: BertGraph, x: str, masked: str, name: str, heads: int, size: int) -> str:
    """Return the token vectors after a layer: attention, then two linear maps, with residual connections."""
    split = graph.constant([0, 0, heads, size])

    def part(of: str, order: list[int]) -> str:
        values = graph.linear(x, f"{name}.attention.self.{of}")
        return graph.node("Transpose", graph.node("Reshape", values, split), perm=order)

    scaled = graph.node("Mul", part("query", [0, 2, 1, 3]), graph.constant(size**-0.5, np.float32))
    scores = graph.node("Add", graph.node("MatMul", scaled, part("key", [0, 2, 3, 1])), masked)
    shares = graph.node("Softmax", scores, axis=-1)
    read = graph.node("MatMul", shares, part("value", [0, 2, 1, 3]))
    joined = graph.node(
        "Reshape", graph.node("Transpose", read, perm=[0, 2, 1, 3]), graph.constant([0, 0, -1])
    )
    attended = graph.linear(joined, f"{name}.attention.output.dense")
    x = graph.normalised(graph.node("Add", attended, x), f"{name}.attention.output.LayerNorm")
    wide = graph.node("Gelu", graph.linear(x, f"{name}.intermediate.dense"))
    return graph.normalised(
        graph.node("Add", graph.linear(wide, f"{name}.output.dense"), x), f"{name}.output.LayerNorm"
    )


def _headed(graph: BertGraph, x: str, mask: str, head: str) -> str:
    """Return one row per text."""
    first = graph.node("Gather", x, graph.constant(0), axis=1)
    if head == "cls":
        return first
    if head == "score":
        return graph.linear(graph.node("Tanh", graph.linear(first, "pooler.dense")), "classifier")
    unmasked = graph.node("Unsqueeze", graph.node("Cast", mask, to=TensorProto.FLOAT), graph.constant([2]))
    if head == "max":
        lowest = graph.constant(np.finfo(np.float32).min, np.float32)
        shown = graph.node("Where", graph.node("Cast", unmasked, to=TensorProto.BOOL), x, lowest)
        return graph.node("ReduceMax", shown, graph.constant([1]), keepdims=0)
    total = graph.node("ReduceSum", graph.node("Mul", x, unmasked), graph.constant([1]), keepdims=0)
    return graph.node("Div", total, graph.node("ReduceSum", unmasked, graph.constant([1]), keepdims=0))


def write(
    folder: Path, task: Literal["sentences", "pairs"], limit: int | None, model: Path, tokenizer: Path
) -> None:
    """Write graph and tokenizer of a model.

    Args:
        folder: The files of the model.
        task: `sentences` for a vector per text, `pairs` for a logit per pair of texts.
        limit: Most tokens of a text; None: the model's limit.
        model: Output file of the graph.
        tokenizer: Output file of the tokenizer.

    Raises:
        NoBertError: The model cannot be written as a BERT graph, or lacks a fast tokenizer.
    """
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    layout = read_layout(folder, task)
    if not (folder / "tokenizer.json").is_file():
        raise NoBertError("it has no tokenizer.json")
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if (pad := tokens.token_to_id(layout.pad)) is None:
        raise NoBertError(f"its tokenizer has no {layout.pad!r}")
    tokens.enable_truncation(limit or layout.limit)
    tokens.enable_padding(pad_id=pad, pad_token=layout.pad)
    tokens.save(str(tokenizer))
    weights = {name.removeprefix(PREFIX): value for name, value in load_file(folder / WEIGHTS).items()}
    onnx.save(build_graph(weights, layout), str(model))

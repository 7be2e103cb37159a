"""Small models of sentence-transformers, with random weights, and their graphs."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

TEXTS = ["a red fox", "a blue bird sings", "red", "the bird and the fox sing a song of the river " * 3]


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a BERT of two small layers and its tokenizer, with random weights."""
    pytest.importorskip("sentence_transformers", reason="the extra train is not installed")
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    every = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({w for t in TEXTS for w in t.split()})]
    (folder / "vocab.txt").write_text("\n".join(every))
    torch.manual_seed(11)
    size = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
    config = BertConfig(vocab_size=len(every), num_labels=1, max_position_embeddings=48, **size)
    config.layer_norm_eps = 1e-5
    BertForSequenceClassification(config).save_pretrained(folder / "model")
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=40).save_pretrained(folder / "model")
    return folder / "model"


def make_classifier(
    folder: Path, words: Iterable[str], *, length: int, labels: int, bias: float = 0.0
) -> list[str]:
    """Make a classifier of two small layers, with random weights; return its vocabulary."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(words)]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    torch.manual_seed(7)
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    # An initial range this wide: or all random logits would be next to equal.
    config = BertConfig(
        vocab_size=len(vocabulary),
        max_position_embeddings=length,
        num_labels=labels,
        initializer_range=0.5,
        **size,
    )
    model = BertForSequenceClassification(config)
    model.classifier.bias.data[:] = bias
    model.save_pretrained(folder)
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=length).save_pretrained(folder)
    return vocabulary


def add_graph(folder: Path, place: str = "model.onnx") -> None:
    """Write the ONNX graph of a BERT into its folder: vectors of tokens, or the logits of a classifier."""
    import torch
    import transformers

    kind: Any = getattr(transformers, transformers.AutoConfig.from_pretrained(folder).architectures[0])
    names = ["input_ids", "attention_mask", "token_type_ids"]

    class Traced(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.reader = kind.from_pretrained(folder, attn_implementation="eager").eval()

        def forward(self, *tensors: torch.Tensor) -> Any:
            return self.reader(**dict(zip(names, tensors, strict=True)))[0]

    tokens = torch.ones(2, 3, dtype=torch.int64)
    sizes = {name: {0: "texts", 1: "tokens"} for name in names}
    rows = {"rows": {0: "texts"}}
    (folder / place).parent.mkdir(exist_ok=True)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # of tracing
        torch.onnx.export(
            Traced(),
            (tokens,) * 3,
            str(folder / place),
            input_names=names,
            output_names=["rows"],
            dynamic_axes=sizes | rows,
            dynamo=False,
        )


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a sentence-transformers model of one small layer, with random weights."""
    pytest.importorskip("sentence_transformers", reason="the extra train is not installed")
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    every = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({w for t in TEXTS for w in t.split()})]
    (folder / "vocab.txt").write_text("\n".join([*every, "query", "passage", ":"]))
    torch.manual_seed(7)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(every) + 3, **size)).save_pretrained(folder / "bert")
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder / "bert")
    reader = modules.Transformer(str(folder / "bert"))
    SentenceTransformer(modules=[reader, modules.Pooling(16)]).save(str(folder / "model"))
    return folder / "model"

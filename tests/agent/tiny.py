"""A text model of three small layers with random weights, made in a folder."""

from collections.abc import Iterable
from pathlib import Path


def make_encoder(folder: Path, texts: Iterable[str], *, seed: int = 7) -> Path:
    """Make one that knows the words of some texts.

    Args:
        folder: Where; must not be there.
        texts: Their words, split at spaces, are its vocabulary.
        seed: Of its weights.
    """
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()
    words = sorted({word for text in texts for word in text.lower().split()})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    size = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertModel(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=32, **size))
    model.save_pretrained(folder)
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=32).save_pretrained(folder)
    return folder


__all__ = ["make_encoder"]

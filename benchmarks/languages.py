r"""Recall of BM25 in six languages, by the words and English stems of this project and by what `\w+` finds.

    python benchmarks/languages.py

Each language of `languages.json` has twenty short passages, with a question for each; all passages are one
corpus. Every question is also asked with its letters decomposed, as some systems store them.
"""

import json
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from armwise.arms.retrievers.bm25 import BM25Params, WordWeights
from armwise.arms.stems import index_words
from armwise.arms.tokenizer import ENGLISH
from armwise.arms.top_k import best

TEXTS = Path(__file__).with_suffix(".json")

DEPTHS = (1, 4)

Split = Callable[[str], list[str]]


def runs(text: str) -> list[str]:
    r"""Return what `\w+` finds in small letters, without English function words."""
    return [word for word in re.findall(r"\w+", text.lower()) if word not in ENGLISH]


def rules(text: str) -> list[str]:
    """Return the words as an index has them."""
    return index_words(text, "english", "english")


def recalls(split: Split, texts: dict[str, list[tuple[str, str]]], form: str) -> dict[str, list[float]]:
    """Return the share of the questions of each language whose passage is among the first, by depth.

    Args:
        split: Words of a text.
        texts: Passage and question, by language.
        form: Unicode normalisation form of the questions.
    """
    passages = [passage for pairs in texts.values() for passage, _ in pairs]
    columns = WordWeights.build(map(split, passages), np.arange(len(passages)), BM25Params())
    shares, right = dict[str, list[float]](), 0
    for language, pairs in texts.items():
        hits = np.zeros(len(DEPTHS))
        for _, question in pairs:
            scores, matched = columns.scores(split(unicodedata.normalize(form, question)))
            ranked = matched[best(scores[matched], max(DEPTHS))].tolist()
            hits += [right in ranked[:depth] for depth in DEPTHS]
            right += 1
        shares[language] = (hits / len(pairs)).tolist()
    return shares


def main() -> None:
    """Print the table."""
    texts = json.loads(TEXTS.read_text(encoding="utf-8"))
    asked = [
        (name, split, form) for form in ("NFC", "NFD") for name, split in (("\\w+", runs), ("here", rules))
    ]
    table = Table("language", *(f"{name}, {form}" for name, _, form in asked))
    columns = [recalls(split, texts, form) for _, split, form in asked]
    for language in texts:
        table.add_row(
            language, *(" / ".join(f"{share:.2f}" for share in column[language]) for column in columns)
        )
    Console().print(
        f"Recall at {' / '.join(map(str, DEPTHS))} among {sum(map(len, texts.values()))} passages"
    )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)

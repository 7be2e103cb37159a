"""The job that makes questions, a block of passages at a time, and resumes after an interruption.

passages in random order -> maker -> <output>.blocks -> selection
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from arms.base import Progress
from arms.corpus import Corpus
from arms.jobs import checkpoint
from arms.synthesis.made import Made, Maker, SynthesisError
from arms.synthesis.selection import Selection

PATIENCE = 4
"""Passages for each question that is asked for, after which the shares of the styles no longer bind."""


def synthesize(
    corpus: Corpus,
    maker: Maker,
    output: Path,
    n: int,
    shares: Mapping[str, float],
    seed: int,
    progress: Progress,
) -> Selection:
    """Make questions from passages in random order until there are enough, and write them to a file.

    Args:
        corpus: The passages.
        maker: Makes questions from passages.
        output: The file of JSON lines; `<output>.blocks` holds finished blocks until it is written.
        n: How many to make.
        shares: Weight of each style.
        seed: Seed that shuffles the passages.
        progress: Progress callback.

    Raises:
        SynthesisError: No passage gave a question.
        JobError: The blocks are of other settings, or another process is working on them.
        GeneratorError: The language model failed; finished blocks are kept.
    """
    order = np.random.default_rng(seed).permutation(len(corpus))
    selection = Selection(n, shares)
    identity = {
        "corpus": corpus.digest,
        "seed": str(seed),
        "styles": ", ".join(maker.styles),
        **maker.identity,
    }
    with checkpoint.open_blocks(output, identity) as blocks:
        finished = blocks.finished()
        for number in range(math.ceil(len(order) / maker.step)):
            if number in finished:
                made = [
                    [_made(one) for one in of_passage] for of_passage in orjson.loads(blocks.read(number))
                ]
            else:
                made = maker.make(order[number * maker.step : (number + 1) * maker.step].tolist())
                blocks.write(number, orjson.dumps([[one.document() for one in some] for some in made]))
            for candidates in made:
                selection.add(candidates)
            if (number + 1) * maker.step >= min(PATIENCE * n, len(order)):
                selection.fill()
            progress("making questions", len(selection.kept), n)
            if selection.complete:
                break
        if not selection.kept:
            raise SynthesisError(f"no passage of corpus {corpus.name!r} gave a question of these styles")
        written = output.with_name(f"{output.name}.part")
        written.write_bytes(b"".join(orjson.dumps(one.document()) + b"\n" for one in selection.kept))
        written.replace(output)
        blocks.delete()
    return selection


def _made(document: dict[str, Any]) -> Made:
    """Return a question of a block."""
    gold, answers = tuple(document["gold_ids"]), tuple(document["answers"])
    return Made(document["question"], gold, document["type"], answers)

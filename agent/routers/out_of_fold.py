"""What a router said of the questions that it was trained on before it saw them: beside it in its folder.

A router knows what arms were worth on the questions that it was fitted to: its scores of these are too
good to be true, and who learned from them would trust it too much. While its worth is found out, routers
like it are fitted to other questions than those held out: what they say of these is what it would have
said, and it is kept here. (Of a blend of ridge regression and trees, fitted to 1,000 questions, a
difference of scores was worth 1.07 times itself on these, 0.72 times on others, and 0.72 times by what is
kept here.)

    {"router": "<digest>", "arms": ["bm25", "dense"]}
    {"question": "<digest of its text>", "scores": [0.41, 0.38]}      null where it was never held out
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from agent.routers.dataset import Floats, RouterError
from agent.routers.saved import About

FILE = "unseen.jsonl"


@dataclass(frozen=True, slots=True)
class OutOfFoldScores:
    """Scores of the questions that a router was trained on, by routers that were not.

    Attributes:
        scores: By the digest of the question's text; None where it was never held out. Shape (n_arms,),
            in the order of the arms that the router knows.
        digest: Of all of them.
    """

    scores: Mapping[str, Sequence[float] | None]
    digest: str

    def of(self, texts: Sequence[str], n_arms: int) -> tuple[NDArray[np.bool_], Floats]:
        """Tell of some questions whether the router was trained on them, and what was said before.

        Args:
            texts: The questions.
            n_arms: How many arms the router knows.

        Returns:
            Shapes (n,) and (n, n_arms); NaN where nothing was said.
        """
        names = [_digest(text.encode()) for text in texts]
        trained_on = np.array([name in self.scores for name in names], dtype=np.bool_)
        nothing = [np.nan] * n_arms
        said = [self.scores.get(name) or nothing for name in names]
        return trained_on, np.array(said, dtype=np.float64).reshape(len(texts), n_arms)


def write_out_of_fold(folder: Path, about: About, texts: Sequence[str], scores: Floats) -> None:
    """Write what was said of the questions that a router was trained on.

    Args:
        folder: Of the router.
        about: Of the router.
        texts: The questions; of the same one, the last counts.
        scores: NaN in the rows of those that were never held out, shape (n_questions, n_arms).
    """
    lines: list[dict[str, Any]] = [{"router": about.digest, "arms": about.arms}]
    for text, row in zip(texts, scores, strict=True):
        told = None if np.isnan(row).any() else row.tolist()
        lines.append({"question": _digest(text.encode()), "scores": told})
    unfinished = folder / f".{FILE}.part"
    unfinished.write_bytes(b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines))
    unfinished.replace(folder / FILE)


def read_out_of_fold(folder: Path, about: About) -> OutOfFoldScores:
    """Read what was said of the questions that a router was trained on.

    Raises:
        RouterError: It is missing, damaged, or of another router.
    """
    file = folder.expanduser() / FILE
    try:
        content = file.read_bytes()
        first, *lines = map(orjson.loads, content.splitlines())
        router, scores = first["router"], {line["question"]: line["scores"] for line in lines}
    except OSError as error:
        raise RouterError(f"nobody knows what {folder} was trained on: {error}; train it again") from None
    except (orjson.JSONDecodeError, ValueError, KeyError, TypeError) as error:
        raise RouterError(f"{file} is damaged: {error!r}; train the router again") from None
    if router != about.digest:
        raise RouterError(f"{file} is of router {router!r}, not of {about.digest!r}: train the router again")
    return OutOfFoldScores(scores, _digest(content))


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()

"""Out-of-fold scores of the training questions of a router, in a file of its folder.

The scores of a router on its own training questions are overfitted, and a policy that learned from them would
trust the router too much. Cross-validation fits routers like it to the other folds; their scores of each
held-out fold are stored here. (For the mean of a ridge regression and trees on 1,000 questions, the slope of
utility over score was 1.07 on the training questions, 0.72 on others, and 0.72 out of fold.)

    {"router": "<digest>", "arms": ["bm25", "dense"]}
    {"question": "<digest of its text>", "scores": [0.41, 0.38]}      null if it was never held out
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from armwise.agent.routers.dataset import Floats, RouterError
from armwise.agent.routers.saved import AGAIN, RouterFacts, read_file, write_files

FILE = "unseen.jsonl"


@dataclass(frozen=True, slots=True)
class OutOfFoldScores:
    """Scores of the training questions of a router, by routers that were fitted without them.

    Attributes:
        scores: Scores by the digest of the question's text, shape (n_arms,), in the order of the router's
            arms; None: the question was never held out.
        digest: Digest of the file.
    """

    scores: Mapping[str, Sequence[float] | None]
    digest: str

    def look_up(self, texts: Sequence[str], n_arms: int) -> tuple[NDArray[np.bool_], Floats]:
        """Return whether the router was trained on each question, and its out-of-fold scores.

        Args:
            texts: The questions.
            n_arms: Number of the router's arms.

        Returns:
            Shapes (n,) and (n, n_arms); NaN for a missing score.
        """
        names = [_digest(text.encode()) for text in texts]
        trained_on = np.array([name in self.scores for name in names], dtype=np.bool_)
        unknown = [np.nan] * n_arms
        scores = [self.scores.get(name) or unknown for name in names]
        return trained_on, np.array(scores, dtype=np.float64).reshape(len(texts), n_arms)


def write_out_of_fold(folder: Path, about: RouterFacts, texts: Sequence[str], scores: Floats) -> None:
    """Write the out-of-fold scores of a router.

    Args:
        folder: Folder of the router.
        about: Description of the router.
        texts: The training questions; of equal ones, the last counts.
        scores: Out-of-fold scores, NaN for questions that were never held out, shape (n_questions, n_arms).
    """
    lines: list[dict[str, Any]] = [{"router": about.digest, "arms": about.arms}]
    for text, row in zip(texts, scores, strict=True):
        values = None if np.isnan(row).any() else row.tolist()
        lines.append({"question": _digest(text.encode()), "scores": values})
    write_files(
        folder, {FILE: b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines)}
    )


def read_out_of_fold(folder: Path, about: RouterFacts) -> OutOfFoldScores:
    """Read the out-of-fold scores of a router.

    Raises:
        RouterError: The file is missing, damaged, or belongs to another router.
    """
    file = folder.expanduser() / FILE
    try:
        content = read_file(folder, FILE)
    except OSError as error:
        raise RouterError(f"it is unknown what {folder} was trained on: {error}; {AGAIN}") from None
    return parse_out_of_fold(content, about, str(file))


def parse_out_of_fold(content: bytes, about: RouterFacts, where: str) -> OutOfFoldScores:
    """Parse the out-of-fold scores of a router; `where` is their name in messages. Raises RouterError."""
    try:
        first, *lines = map(orjson.loads, content.splitlines())
        router, scores = first["router"], {line["question"]: line["scores"] for line in lines}
    except (orjson.JSONDecodeError, ValueError, KeyError, TypeError) as error:
        raise RouterError(f"{where} is damaged: {error!r}; {AGAIN}") from None
    if router != about.digest:
        raise RouterError(f"{where} is of router {router!r}, not of {about.digest!r}; {AGAIN}")
    return OutOfFoldScores(scores, _digest(content))


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()

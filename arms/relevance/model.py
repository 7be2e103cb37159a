"""A model of the relevance of passages: boosted trees over their features, fitted to gold passages.

The columns of a row are those of `features.NAMES`, then the reciprocal rank by each arm that the model was
fitted to: NaN if that arm was not asked, or under another name. Half of what it is fitted to hides the names,
so it serves other arms too, if not as well.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from armwise.arms import extras, manifest
from armwise.arms.base import Passage
from armwise.arms.manifest import DamagedFileError
from armwise.arms.relevance.features import NAMES, CandidatePassages, Floats, candidates

THREADS = 1
"""One, so that a fit is deterministic, and a prediction of some rows starts no thread."""


class RelevanceError(ValueError):
    """A model of relevance cannot be fitted or read; the message names the value."""


class RelevanceHeader(BaseModel):
    """The first line of a saved model.

    Attributes:
        format: Version of the file.
        kind: What the file holds.
        columns: `features.NAMES` of the version that fitted it.
        arms: That it was fitted to, and knows by name.
        k: The most passages that one of them found.
        questions: That it was fitted to.
        blake2b: Digest of the rest of this line and of the trees that follow.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    kind: Literal["relevance"] = "relevance"
    columns: tuple[str, ...]
    arms: tuple[str, ...]
    k: int = Field(ge=1)
    questions: int = Field(ge=1)
    blake2b: str = ""


class RelevanceModel:
    """Predicts whether passages support the answer to a question; thread-safe.

    Attributes:
        header: Facts of its training.

    Source: Chen and Guestrin 2016, XGBoost: a scalable tree boosting system, arXiv:1603.02754.
    """

    def __init__(self, header: RelevanceHeader, booster: Any) -> None:
        self.header = header
        self._booster = booster

    def relevance(self, question: str, rankings: Mapping[str, Sequence[Passage]]) -> dict[str, float]:
        """Return the predicted probability that each passage is gold, by its id.

        Args:
            question: The question.
            rankings: Passages of each arm, best first. Those of the model's own arms count under their names.
        """
        pool = candidates(question, rankings)
        return dict(
            zip((passage.id for passage in pool.passages), self.predict([pool]).tolist(), strict=True)
        )

    def predict(self, seen: Sequence[CandidatePassages]) -> Floats:
        """Return the probabilities of all passages of some questions, one after the other."""
        rows = np.concatenate([make_rows(pool, self.header.arms) for pool in seen])
        if not len(rows):
            return np.empty(0)
        return np.asarray(self._booster.inplace_predict(rows), dtype=np.float64)

    def save(self) -> bytes:
        """Return the model: its header on one line, then the trees as xgboost writes them."""
        trees = bytes(self._booster.save_raw("ubj"))
        header = self.header.model_copy(update={"blake2b": _digest(self.header, trees)})
        return header.model_dump_json().encode() + b"\n" + trees

    @classmethod
    @extras.explain_missing()
    def load(cls, saved: bytes) -> "RelevanceModel":
        """Read a saved model.

        Raises:
            RelevanceError: The bytes are damaged, or of another version.
        """
        import xgboost

        line, _, trees = saved.partition(b"\n")
        try:
            header = RelevanceHeader.model_validate_json(line)
        except ValidationError:
            raise RelevanceError(f"{line[:80]!r} is not the first line of a relevance model") from None
        if (digest := _digest(header, trees)) != header.blake2b:
            raise RelevanceError(f"the model is damaged: its digest is {digest}, not {header.blake2b}")
        if header.columns != NAMES:
            changed = sorted({*header.columns} ^ {*NAMES}) or ["their order"]
            raise RelevanceError(
                f"the model was trained with other features than this version has ({', '.join(changed)})"
            )
        try:
            booster = xgboost.Booster({"nthread": THREADS}, model_file=bytearray(trees))
        except xgboost.core.XGBoostError as error:
            raise RelevanceError(f"the trees cannot be read: {str(error).splitlines()[0]}") from None
        if (n := booster.num_features()) != (expected := len(NAMES) + len(header.arms)):
            raise RelevanceError(f"the trees read {n} columns, not {expected}")
        return cls(header, booster)


def _digest(header: RelevanceHeader, trees: bytes) -> str:
    facts = header.model_copy(update={"blake2b": ""}).model_dump_json().encode()
    return hashlib.blake2b(facts + b"\n" + trees, digest_size=16).hexdigest()


def make_rows(seen: CandidatePassages, arms: Sequence[str]) -> NDArray[np.float32]:
    """Return the rows of a question's passages, shape (n_passages, len(NAMES) + n_arms)."""
    unknown = np.full(len(seen.passages), np.nan)
    by_arm = [seen.reciprocal.get(arm, unknown) for arm in arms]
    return np.column_stack([seen.table, *by_arm]).astype(np.float32)


FILE = "relevance.model"
"""Name of the model in its folder."""

AGAIN = "train it again (`armwise lab train --model relevance`)"

_LOADED: WeakValueDictionary[str, RelevanceModel] = WeakValueDictionary()
"""Models in use, by digest: several arms and a router may share one."""


def write_model(folder: Path, model: RelevanceModel) -> None:
    """Write a model into a folder, replacing another one."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{FILE}.part"
    unfinished.write_bytes(model.save())
    unfinished.replace(folder / FILE)
    manifest.add(folder, [FILE])


def read_model(folder: Path) -> RelevanceModel:
    """Read the model of a folder.

    Raises:
        RelevanceError: It is missing, damaged, or of another version.
    """
    path = folder.expanduser() / FILE
    try:
        saved = manifest.read(path.parent, FILE)
    except DamagedFileError as error:
        raise RelevanceError(f"{folder}: {error}; {AGAIN}") from None
    except OSError as error:
        raise RelevanceError(
            f"{folder} has no relevance model: {error}; run `armwise lab train --model relevance`"
        ) from None
    digest = hashlib.blake2b(saved, digest_size=16).hexdigest()
    try:
        model = _LOADED.get(digest) or RelevanceModel.load(saved)
    except RelevanceError as error:
        raise RelevanceError(f"{path}: {error}; {AGAIN}") from None
    _LOADED[digest] = model
    return model

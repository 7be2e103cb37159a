"""Answer equivalence by a classifier that was trained on human judgements (BEM).

Exact match and F1 count words; a BERT classifies whether an answer is equivalent to the
right one, given the question.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from arms.base import ArmError
from arms.models import ModelNotFoundError, compute_cores, locate

MAX_TOKENS = 512
"""Most tokens of a case."""

EQUIVALENT = 1
"""Class of equivalent answers; 0 is the other."""


@dataclass(frozen=True, slots=True)
class Case:
    """An answer, a right answer and their question."""

    answer: str
    reference: str
    question: str


class Equivalence:
    """A transformers classifier with two classes; thread-safe.

    It reads answer, reference and question in this order, with separators. If they are too
    long, the longer of the answer and of the other two is truncated.

    Args:
        model: A hub name, a folder, or `package:NAME/PATH`.
        batch_size: Cases that the model reads at once.

    Raises:
        ModelNotFoundError: The model cannot be found, or does not have two classes.

    Source: Bulian et al. 2022, Tomayto, Tomahto. Beyond Token-level Answer Equivalence for
    Question Answering Evaluation, arXiv:2202.07654.
    """

    def __init__(self, model: str, *, batch_size: int = 32) -> None:
        import torch  # here: loading takes seconds
        from transformers import AutoModelForSequenceClassification, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading: noise in a log
        place = locate(model)
        local = isinstance(place, Path)
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(
                place, local_files_only=local, trust_remote_code=False
            )
            classifier, loaded = AutoModelForSequenceClassification.from_pretrained(
                place, local_files_only=local, trust_remote_code=False, output_loading_info=True
            )
        except (OSError, ValueError) as error:
            raise ModelNotFoundError(f"model {model!r} cannot be loaded: {error}") from error
        if missing := sorted(loaded["missing_keys"]):  # transformers initialises them at random
            raise ModelNotFoundError(f"model {model!r} is not a classifier: it lacks {', '.join(missing)}")
        if (labels := classifier.config.num_labels) != 2:
            raise ModelNotFoundError(f"model {model!r} has {labels} classes; 2 are needed")
        if (separator := self._tokenizer.sep_token) is None:
            raise ModelNotFoundError(f"model {model!r} has no separator token")
        self._name, self._separator, self._batch_size = model, separator, batch_size
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = classifier.eval().to(self._device)
        self._lock = threading.Lock()

    def __call__(self, question: str, answer: str, references: Sequence[str]) -> float:
        """Return the highest probability that an answer is equivalent to a right one.

        Raises:
            ArmError: A probability is not finite.
            ValueError: There is no reference.
        """
        if not references:
            raise ValueError(f"answer {answer!r} needs one or more references to be compared with")
        return float(self.probabilities([Case(answer, each, question) for each in references]).max())

    def probabilities(self, cases: Sequence[Case]) -> NDArray[np.float32]:
        """Return the probability that each answer is equivalent, shape (n_cases,).

        Raises:
            ArmError: A probability is not finite.
        """
        import torch

        pairs = [self._pair(case) for case in cases]
        # by length, because a batch is padded to its longest pair
        order = sorted(range(len(pairs)), key=lambda at: len(pairs[at][0]) + len(pairs[at][1]))
        found = np.empty(len(pairs), dtype=np.float32)
        with self._lock, torch.inference_mode():  # fast tokenizers are not thread-safe
            torch.set_num_threads(len(compute_cores()))
            for start in range(0, len(order), self._batch_size):
                batch = order[start : start + self._batch_size]
                found[batch] = self._read([pairs[at] for at in batch])
        if not np.isfinite(found).all():
            bad = int(np.flatnonzero(~np.isfinite(found))[0])
            raise ArmError(f"model {self._name!r} gives {cases[bad].answer!r} a probability of {found[bad]}")
        return found

    def _pair(self, case: Case) -> tuple[str, str]:
        """Return the answer, and reference and question with a separator between them."""
        answer, reference, question = (
            text.replace(self._separator, " ") for text in (case.answer, case.reference, case.question)
        )
        return answer, f"{reference} {self._separator} {question}"

    def _read(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Return the probability of each pair, shape (n_pairs,)."""
        answers, others = zip(*pairs, strict=True)
        inputs = self._tokenizer(
            list(answers),
            list(others),
            truncation="longest_first",
            max_length=min(MAX_TOKENS, self._tokenizer.model_max_length),
            padding=True,
            return_tensors="pt",
        ).to(self._device)
        probabilities: NDArray[np.float32] = (
            self._model(**inputs).logits.float().softmax(dim=-1)[:, EQUIVALENT].cpu().numpy()
        )
        return probabilities

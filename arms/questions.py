"""Questions with known answers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Question:
    """A question with known answers.

    Attributes:
        id: Unique in its set.
        text: The text.
        gold_ids: Ids of the passages that support the answer; not stored in a matrix.
        answers: Alternative right answers; not stored in a matrix.
        dataset: Name of its data set; may be empty.
    """

    id: str
    text: str
    gold_ids: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    dataset: str = ""

"""Questions with known answers, and the digest that identifies a set of them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Question:
    """A question to score arms on, and what is known to be right.

    Attributes:
        id: Unique in its matrix.
        text: The words to ask.
        gold_ids: Ids of the passages that support the answer; not kept in a matrix.
        answers: Right answers, any one will do; not kept in a matrix.
        dataset: Where it comes from; may be empty.
    """

    id: str
    text: str
    gold_ids: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    dataset: str = ""

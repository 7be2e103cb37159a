"""The examples that a recipe learns, in order.

    the labels of its runs --> the examples of the training log, from its starting point on

A warm start inserts its labels as decisions of the policy `labels` in the episode `warm-start/<run>`. Recipes
whose starting point names the run learn them first; other readers of the training log skip them. Labels
outside of a run are learned by every recipe, at their position in the training log. So what is learned is a
function of the log and the starting point.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from armwise.feedback.events import LABELS, Decision, Example
from armwise.feedback.log import Store
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log.joiner import read_examples
from armwise.feedback.training_log.label_turns import read_turns
from armwise.feedback.training_log.router_contexts import with_router

RUN_EPISODE = "warm-start/"
"""Prefix of the episodes of labels; the API refuses it in requests."""


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """Where a recipe begins to learn.

    Attributes:
        runs: Warm starts whose labels it learns first, in increasing order. All of them must be in the log
            before a version with this starting point is published.
        after: Position of the training log after which examples are learned; 0: all are.

    Raises:
        ValueError: The runs are not positive and increasing, or the position is negative.
    """

    runs: tuple[int, ...] = ()
    after: int = 0

    def __post_init__(self) -> None:
        """Check the runs and the position."""
        if any(low >= high for low, high in zip((0, *self.runs), self.runs, strict=False)):
            raise ValueError(f"runs {list(self.runs)}: expected positive numbers in rising order")
        if self.after < 0:
            raise ValueError(f"a start after example {self.after}: expected 0 or more")

    @classmethod
    def from_document(cls, document: dict[str, Any] | None) -> Self | None:
        """Return the starting point in a version's row; None: the beginning of the log."""
        if document is None:
            return None
        return cls(tuple(document["runs"]), document["after"])

    def document(self) -> dict[str, Any]:
        """Return it as a document for a version's row.

        >>> StartingPoint.from_document(StartingPoint((3, 5), 100).document())
        StartingPoint(runs=(3, 5), after=100)
        """
        return {"runs": list(self.runs), "after": self.after}


def name_episode(run: int) -> str:
    """Return the episode of the labels of a run.

    >>> name_episode(7)
    'warm-start/7'
    """
    return f"{RUN_EPISODE}{run}"


def find_run(decision: Decision) -> int | None:
    """Return the run that inserted a decision as a label, if one did."""
    episode = decision.episode_id
    if decision.policy != LABELS or episode is None or not episode.startswith(RUN_EPISODE):
        return None
    return int(episode.removeprefix(RUN_EPISODE))


def read_learned_examples(
    store: Store,
    rule: RewardRule,
    start: StartingPoint | None = None,
    after: int | None = None,
    upto: int | None = None,
    router: str | None = None,
) -> Iterator[Example]:
    """Yield the examples that a recipe learns, in order, with one chunk in memory at a time.

    Args:
        store: The log.
        rule: How the log is joined, and how the feedback of labels is aggregated.
        start: Where the recipe begins; None: at the beginning of the log.
        after: Position of the training log up to which the recipe has learned, labels included; None: it has
            learned nothing.
        upto: Position of the training log of the last example; None: its end.
        router: Digest of the recipe's router, whose scores the contexts get.

    Yields:
        Labels of runs at position 0, outside of the training log; then its examples.

    Raises:
        LogGapError: Rows of the training log or of its facts are missing.
    """
    start = start or StartingPoint()
    if after is None:
        yield from read_labels(store, rule, start, router)
    first = max(start.after, after or 0)
    if upto is not None and upto <= first:
        return
    following = with_router(store, read_examples(store, rule.join, first, upto), router)
    for example in following:
        if find_run(example.decision) is None:
            yield example


def read_labels(
    store: Store, rule: RewardRule, start: StartingPoint, router: str | None = None
) -> Iterator[Example]:
    """Yield the labels of the runs of a starting point in the order of the log, joined by the rule."""
    turns = read_turns(store, [name_episode(run) for run in start.runs])
    labels = (Example(0, turn.decision, turn.execution.cost, rule.aggregate(turn.feedback)) for turn in turns)
    yield from with_router(store, labels, router)

"""The columns of a log as tables: arms, features and embeddings.

The Open Bandit Pipeline knows dense contexts only, so of the named features those that most decisions
have become columns, and the embedding follows them.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from feedback.events import Context, Decision, Example
from feedback.exchange.jsonl import ExchangeError

POSITION = "position"
"""The feature with the position of an arm in a list, from 1."""

MOST_FEATURES = 256
"""Named features that become columns at most."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a log.

    Attributes:
        rows: How many decisions there are.
        arms: An item is an arm, by its place here.
        features: Named features of the question, those that most decisions have first.
        dims: Numbers of the embedding, after the features.
        arm_features: Names of the features of arms.
        items: The features of each arm, as the first decision has them, in the order of `arms`.
        positions: Whether every decision has a position.
        whole: Whether every decision has its whole distribution.
        lost: Number of named features without a column.
    """

    rows: int
    arms: tuple[str, ...]
    features: tuple[str, ...]
    dims: int
    arm_features: tuple[str, ...]
    items: tuple[tuple[float, ...], ...]
    positions: bool
    whole: bool
    lost: int = 0
    item: dict[str, int] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "item", {arm: at for at, arm in enumerate(self.arms)})

    def context(self, seen: Context) -> list[float]:
        """Return a row of the context, shape (n_features + dims,)."""
        row = [float(seen.features.get(name, 0.0)) for name in self.features]
        return [*row, *seen.embedding, *([0.0] * (self.dims - len(seen.embedding)))]

    def position(self, seen: Context) -> int:
        """Return the position of a row, from 1."""
        return int(seen.features[POSITION]) if self.positions else 1

    def distribution(self, decision: Decision) -> list[float]:
        """Return the whole distribution of a row, shape (n_arms,); 0 where an arm was not eligible."""
        row = [0.0] * len(self.arms)
        for arm, p in zip(decision.arms, decision.probabilities, strict=True):
            row[self.item[arm]] = p
        return row


def survey(examples: Iterable[Example], most: int = MOST_FEATURES) -> Columns:
    """Return the columns that a log needs.

    Args:
        examples: What will be written, in order.
        most: Named features that become columns.

    Raises:
        ExchangeError: There is no example.
    """
    rows, dims, positions, whole = 0, 0, True, True
    arms: dict[str, dict[str, float]] = {}
    features: Counter[str] = Counter()
    for example in examples:
        decision, seen = example.decision, example.decision.context
        rows += 1
        dims = max(dims, len(seen.embedding))
        features.update(seen.features)
        place = seen.features.get(POSITION, 0.0)
        positions = positions and place >= 1 and place == int(place)
        whole = whole and len(decision.probabilities) == len(decision.arms)
        for arm in decision.arms:
            if arm not in arms:
                arms[arm] = dict(seen.arms.get(arm, {}))
    if not rows:
        raise ExchangeError("no decision has a reward and was drawn by a policy: there is nothing to write")
    if positions:
        del features[POSITION]
    arm_features = tuple(dict.fromkeys(name for values in arms.values() for name in values))
    # The most frequent first; a name decides between equals, so that the order of the log does not.
    ordered = sorted(features, key=lambda name: (-features[name], name))
    return Columns(
        rows=rows,
        arms=tuple(arms),
        features=tuple(ordered[:most]),
        dims=dims,
        arm_features=arm_features,
        items=tuple(tuple(values.get(name, 0.0) for name in arm_features) for values in arms.values()),
        positions=positions,
        whole=whole,
        lost=len(ordered[most:]),
    )

"""Shares of the arms by kind of question: by what a caller sent with a question, else by its form."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from armwise.agent.policies import FORM, kinds_of

MOST = 8
"""Kinds that are shown by name."""

OTHERS = "all others"


@dataclass(frozen=True)
class KindShares:
    """What was drawn for one kind of question.

    Attributes:
        name: The value of the feature.
        n: Explored decisions of the kind.
        shares: Share of each arm that was drawn for them, in [0, 1].
    """

    name: str
    n: int
    shares: Mapping[str, float]


def shares_by_kind(draws: Sequence[tuple[str, Mapping[str, float]]]) -> tuple[str, list[KindShares]]:
    """Return the feature that separates most questions, and the shares of the arms by its values.

    That is one of several values before one of a single value, what a caller sent before the form of the
    question, and the most frequent of these.

    Args:
        draws: Drawn arm and named features of the question of some explored decisions.

    >>> who, how = {"ask=who": 1.0}, {"ask=how": 1.0, "w=x": 1.0}
    >>> shares_by_kind([("a", who), ("b", who), ("b", how)])[1]
    [KindShares(name='who', n=2, shares={'a': 0.5, 'b': 0.5}), KindShares(name='how', n=1, shares={'b': 1.0})]
    """
    feature, rows = rows_by_kind([features for _, features in draws])
    counts = {value: Counter(draws[row][0] for row in held) for value, held in rows.items()}
    return feature, [
        KindShares(value, drawn.total(), {arm: n / drawn.total() for arm, n in sorted(drawn.items())})
        for value, drawn in counts.items()
    ]


def rows_by_kind(questions: Sequence[Mapping[str, float]]) -> tuple[str, dict[str, list[int]]]:
    """Return the feature that separates most questions (`shares_by_kind`), and the questions by its values.

    Args:
        questions: Named features of some questions.

    Returns:
        The feature, and the places of the questions of each value, the most frequent value first and
        `OTHERS` last; an empty name and no value where no feature names a kind.

    >>> rows_by_kind([{"tier=pro": 1.0}, {"tier=free": 1.0}, {"tier=pro": 1.0}, {}])
    ('tier', {'pro': [0, 2], 'free': [1], 'all others': [3]})
    """
    named = [kinds_of(features) for features in questions]
    heads = Counter(head for kinds in named for head in {head for head, _ in kinds})
    if not heads:
        return "", {}
    values_of = Counter(head for head, _ in {kind for kinds in named for kind in kinds})
    forms = {name.partition("=")[0] for name in FORM}
    feature = max(heads, key=lambda head: (values_of[head] > 1, head not in forms, heads[head], head))
    counts = Counter(value for kinds in named for head, value in kinds if head == feature)
    shown = [value for value, _ in counts.most_common(MOST)]
    rows = defaultdict[str, list[int]](list)
    for row, kinds in enumerate(named):
        values = [value for head, value in kinds if head == feature] or [OTHERS]
        for value in {value if value in shown else OTHERS for value in values}:
            rows[value].append(row)
    return feature, {value: rows[value] for value in (*shown, OTHERS) if value in rows}

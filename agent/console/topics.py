"""What goes where: the newest questions by topic or by a field, and the share of each arm in each group.

    draws --find_topics--> topics --shares--> Routing

Topics are clusters of the embeddings that the policy logged; without these, of the words of the questions.
Questions whose texts were erased are in no topic.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import numpy as np

from armwise.agent.access import Caller
from armwise.agent.api import decisions
from armwise.agent.api.schemas import DecisionQuery
from armwise.agent.console.topic_clusters import find_topics, list_words
from armwise.agent.policies import FORM, select_kinds
from armwise.agent.serving import Replica
from armwise.feedback.training_log import read_ratings
from armwise.feedback.training_log.draws import NewestDraw, newest_draws

NEWEST = 2000
"""Newest explored decisions that are grouped."""

OLDEST = 200
"""Oldest explored decisions, for the shares at the start."""

LEAST_COUNTED = 20
"""Fewest questions of a group whose share is compared with another one."""

DIFFERENT = 0.1
"""Least difference of two shares that is said."""

MOST_GROUPS = 8

OTHERS = "all others"

EXAMPLE_CHARS = 90


@dataclass(frozen=True, slots=True)
class Group:
    """Questions of one topic, or with one value of a field.

    Attributes:
        name: The most distinctive words, or the value.
        examples: Two questions.
        n: Recent questions.
        shares: Share of each arm in these, the largest first, in [0, 1].
        before: Share of each arm at the start, where that differs.
        rated: Newest questions with a rating.
        score: Their mean rating, if there is one.
    """

    name: str
    examples: tuple[str, ...]
    n: int
    shares: tuple[tuple[str, float], ...]
    before: Mapping[str, float]
    rated: int
    score: float | None


@dataclass(frozen=True, eq=False)
class VisibleDraws:
    """Decisions that a viewer may see, read at one time.

    Attributes:
        newest: The newest ones, the newest first.
        oldest: The oldest ones, the oldest first.
        ratings: Rating of decisions by position.
    """

    newest: Sequence[NewestDraw]
    oldest: Sequence[NewestDraw]
    ratings: Mapping[int, float]

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The fields by whose values they can be grouped, the most frequent first."""
        return find_fields(self.newest)


@dataclass(frozen=True, slots=True)
class Routing:
    """What goes where.

    Attributes:
        by: The field whose values are the groups; empty: they are topics.
        fields: All fields that can be chosen.
        groups: The groups, the largest first.
        recent: Number of decisions that are counted.
        differs: Whether a group is served unlike the others.
    """

    by: str
    fields: tuple[str, ...]
    groups: tuple[Group, ...]
    recent: int
    differs: bool


def read_draws(replica: Replica, caller: Caller) -> VisibleDraws:
    """Return the newest and the oldest decisions that a caller may see."""
    criteria = decisions.build_filter(caller, DecisionQuery())
    store, rule = replica.store, replica.config.reward
    newest = newest_draws(store, NEWEST, criteria)
    oldest = newest_draws(store, OLDEST, criteria, oldest=True)
    seq_by_id = {draw.id: draw.seq for draw in (*newest, *oldest)}
    ratings = read_ratings(store, rule, [*seq_by_id])
    return VisibleDraws(newest, oldest, {seq_by_id[name]: rating for name, rating in ratings.items()})


def group(draws: VisibleDraws, by: str | None) -> Routing:
    """Group decisions.

    Args:
        draws: The decisions.
        by: A field, or empty for topics; None: the most frequent field if there is one, else topics.
    """
    newest, oldest, ratings, fields = draws.newest, draws.oldest, draws.ratings, draws.fields
    by = (fields[0] if fields else "") if by is None else by
    # a young log has changed within its newest decisions: its last quarter is what happens now
    recent = newest if len(newest) == NEWEST and oldest[-1].seq < newest[-1].seq else _last_quarter(newest)
    first = {draw.seq for draw in recent}
    early = [draw for draw in oldest if draw.seq not in first][: max(OLDEST // 4, len(newest) // 10)]
    every = list({draw.seq: draw for draw in (*newest, *early)}.values())
    if by:
        names = _by_value(every, by)
    else:
        found = find_topics([draw.question for draw in every], [draw.embedding for draw in every])
        names = {draw.seq: name for draw, name in zip(every, found, strict=True) if name is not None}
    rows = defaultdict[str, list[NewestDraw]](list)
    for draw in every:
        if draw.seq in names:
            rows[names[draw.seq]].append(draw)
    early_seqs = {draw.seq for draw in early}
    examples = _examples(every, names)
    groups = [
        _group(name, some, first, early_seqs, ratings, examples.get(name, ())) for name, some in rows.items()
    ]
    groups = sorted((one for one in groups if one.n), key=lambda one: (one.name == OTHERS, -one.n, one.name))
    return Routing(by, fields, tuple(groups), len(recent), _differ(groups))


def _last_quarter(draws: Sequence[NewestDraw]) -> Sequence[NewestDraw]:
    return draws[: max(100, len(draws) // 4)]


def _group(
    name: str,
    draws: Sequence[NewestDraw],
    recent: set[int],
    early: set[int],
    ratings: Mapping[int, float],
    examples: tuple[str, ...],
) -> Group:
    now, then = (_shares([draw for draw in draws if draw.seq in some]) for some in (recent, early))
    n_early = sum(draw.seq in early for draw in draws)
    found = [ratings[draw.seq] for draw in draws if draw.seq in ratings and draw.seq not in early - recent]
    changed = n_early >= LEAST_COUNTED and any(abs(now[arm] - then.get(arm, 0.0)) >= DIFFERENT for arm in now)
    return Group(
        name,
        examples,
        sum(draw.seq in recent for draw in draws),
        tuple(sorted(now.items(), key=lambda share: (-share[1], share[0]))),
        {arm: then.get(arm, 0.0) for arm in now} if changed else {},
        len(found),
        float(np.mean(found)) if found else None,
    )


def _shares(draws: Sequence[NewestDraw]) -> dict[str, float]:
    counts = Counter(draw.arm for draw in draws)
    return {arm: n / len(draws) for arm, n in counts.items()}


def _differ(groups: Sequence[Group]) -> bool:
    """Return whether the share of an arm in a group differs from that in all by more than chance."""
    n = sum(one.n for one in groups)
    totals = Counter[str]()
    for one in groups:
        totals.update({arm: share * one.n / n for arm, share in one.shares})
    return any(
        abs(dict(one.shares).get(arm, 0.0) - p) > max(DIFFERENT, 3.0 * sqrt(max(0.0, p * (1.0 - p)) / one.n))
        for one in groups
        if one.n >= LEAST_COUNTED
        for arm, p in totals.items()
    )


def find_fields(draws: Sequence[NewestDraw]) -> tuple[str, ...]:
    """Return the fields that callers send with several values, the most frequent first.

    >>> find_fields([NewestDraw(i, "a", {f"tier={i}": 1.0, "ask=who": 1.0}) for i in range(2)])
    ('tier',)
    """
    kinds = [kind for draw in draws for kind in select_kinds(draw.features)]
    frequency, forms = Counter(head for head, _ in kinds), {name.partition("=")[0] for name in FORM}
    values = Counter(head for head, _ in set(kinds))
    return tuple(head for head, _ in frequency.most_common() if values[head] > 1 and head not in forms)


def _by_value(draws: Sequence[NewestDraw], field: str) -> dict[int, str]:
    """Return the value of a field by position; rare ones are summed up."""
    values = {draw.seq: dict(select_kinds(draw.features)).get(field, OTHERS) for draw in draws}
    counts = Counter(value for value in values.values() if value != OTHERS)
    frequent = dict(counts.most_common(MOST_GROUPS))
    return {seq: value if value in frequent else OTHERS for seq, value in values.items()}


def _examples(draws: Sequence[NewestDraw], names: Mapping[int, str]) -> dict[str, tuple[str, ...]]:
    """Return two questions of each group: a usual one, and one of the usual ones that is least like it."""
    texts = defaultdict[str, dict[str, frozenset[str]]](dict)
    for draw in draws:
        text = " ".join(draw.question.split())
        if draw.seq in names and text:
            texts[names[draw.seq]].setdefault(text, list_words(text))
    examples = {}
    for name, some in texts.items():
        counts = Counter(word for words in some.values() for word in words)
        usual = {text: sum(counts[word] for word in words) / (1 + len(words)) for text, words in some.items()}
        first, *others = sorted(some, key=lambda text: (-usual[text], text))[: max(2, len(some) // 4)]
        shared = {text: len(some[first] & some[text]) for text in others}
        examples[name] = tuple(_cut(text) for text in (first, *sorted(others, key=shared.__getitem__)[:1]))
    return examples


def _cut(text: str) -> str:
    return text if len(text) <= EXAMPLE_CHARS else text[: EXAMPLE_CHARS - 1] + "\u2026"

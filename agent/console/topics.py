"""What goes where: the newest questions by topic or by a field, and the share of each arm in each group.

    draws --vectors--> unit vectors --spherical k-means--> topics --shares--> Routing

Topics are clusters of the embeddings that the policy logged; without these, of the words of the questions.
Questions whose texts were erased are in no topic.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log, sqrt

import numpy as np

from armwise.agent.access import Caller
from armwise.agent.api import decisions
from armwise.agent.api.schemas import DecisionQuery
from armwise.agent.policies import FORM, select_kinds
from armwise.agent.serving import Replica
from armwise.arms.tokenizer import ENGLISH, split_words
from armwise.feedback.arrays import Floats, Integers
from armwise.feedback.training_log import rollups

NEWEST = 2000
"""Newest explored decisions that are grouped."""

OLDEST = 200
"""Oldest explored decisions, for the shares at the start."""

LEAST = 30
"""Fewest questions that are grouped by topic."""

LEAST_COUNTED = 20
"""Fewest questions of a group whose share is compared with another one."""

DIFFERENT = 0.1
"""Least difference of two shares that is said."""

FEWEST_TOPICS, MOST_GROUPS = 3, 8

OTHERS = "all others"

WORDS = 800
"""Most different words that questions are compared by."""

FACTORS = 40
"""Dimensions that words are reduced to."""

ROUNDS, STARTS = 25, 3
"""Most rounds of k-means, and its starts."""

NAME_WORDS, EXAMPLE_CHARS = 3, 90


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

    newest: Sequence[rollups.NewestDraw]
    oldest: Sequence[rollups.NewestDraw]
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
    store, rule = replica.store, replica.config.reward.model_copy(update={"cost_weight": 0.0})
    newest = rollups.newest_draws(store, NEWEST, criteria)
    oldest = rollups.newest_draws(store, OLDEST, criteria, oldest=True)
    rated = rollups.newest_rewards(store, rule, NEWEST, criteria)
    return VisibleDraws(newest, oldest, {one.seq: one.sums["reward"] for one in rated})


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
    names = _by_value(every, by) if by else _by_topic(every)
    rows = defaultdict[str, list[rollups.NewestDraw]](list)
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


def _last_quarter(draws: Sequence[rollups.NewestDraw]) -> Sequence[rollups.NewestDraw]:
    return draws[: max(100, len(draws) // 4)]


def _group(
    name: str,
    draws: Sequence[rollups.NewestDraw],
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


def _shares(draws: Sequence[rollups.NewestDraw]) -> dict[str, float]:
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


def find_fields(draws: Sequence[rollups.NewestDraw]) -> tuple[str, ...]:
    """Return the fields that callers send with several values, the most frequent first.

    >>> find_fields([rollups.NewestDraw(i, "a", {f"tier={i}": 1.0, "ask=who": 1.0}) for i in range(2)])
    ('tier',)
    """
    kinds = [kind for draw in draws for kind in select_kinds(draw.features)]
    frequency, forms = Counter(head for head, _ in kinds), {name.partition("=")[0] for name in FORM}
    values = Counter(head for head, _ in set(kinds))
    return tuple(head for head, _ in frequency.most_common() if values[head] > 1 and head not in forms)


def _by_value(draws: Sequence[rollups.NewestDraw], field: str) -> dict[int, str]:
    """Return the value of a field by position; rare ones are summed up."""
    values = {draw.seq: dict(select_kinds(draw.features)).get(field, OTHERS) for draw in draws}
    counts = Counter(value for value in values.values() if value != OTHERS)
    frequent = dict(counts.most_common(MOST_GROUPS))
    return {seq: value if value in frequent else OTHERS for seq, value in values.items()}


# -- topics ---------------------------------------------------------------------------------------


def _by_topic(draws: Sequence[rollups.NewestDraw]) -> dict[int, str]:
    """Return the name of the topic by position; empty if there are too few texts."""
    words = {draw.seq: _words(draw.question) for draw in draws}
    draws = [draw for draw in draws if words[draw.seq]]
    if len(draws) < LEAST:
        return {}
    dense = {len(draw.embedding) for draw in draws}
    if dense != {0} and len(dense) == 1:
        vectors = np.array([draw.embedding for draw in draws])
        vectors = vectors - vectors.mean(axis=0)
    else:
        vectors = weigh_words([words[draw.seq] for draw in draws])
    found = cluster(_normalise(vectors), min(MOST_GROUPS, len(draws) // 10))
    names = name_clusters([words[draw.seq] for draw in draws], found)
    return {draw.seq: names[number] for draw, number in zip(draws, found.tolist(), strict=True)}


def _words(text: str) -> frozenset[str]:
    lower = (word.lower() for word in split_words(text, contractions=True, pairs=True))
    return frozenset(word for word in lower if word not in ENGLISH and not word.isdigit())


def weigh_words(texts: Sequence[frozenset[str]]) -> Floats:
    """Return the TF-IDF vectors of texts, reduced to their main directions, shape (n, d)."""
    counts = Counter(word for text in texts for word in text)
    frequent = [(word, n) for word, n in counts.most_common(WORDS) if n > 1] or counts.most_common(WORDS)
    column = {word: i for i, (word, _) in enumerate(frequent)}
    matrix = np.zeros((len(texts), len(column)))
    for row, text in enumerate(texts):
        matrix[row, [column[word] for word in text if word in column]] = 1.0
    matrix = _normalise(matrix * [1.0 + log(len(texts) / n) for _, n in frequent])
    _, directions = np.linalg.eigh(matrix.T @ matrix)
    reduced: Floats = matrix @ directions[:, -FACTORS:]
    return reduced


def _normalise(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Floats = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 1e-9)
    return unit


def cluster(vectors: Floats, most: int) -> Integers:
    """Return the cluster of each vector, shape (n,), by spherical k-means with a fixed seed.

    The number of clusters is the one for which vectors are nearest to their own centre, compared with the
    next one.

    Args:
        vectors: Unit vectors, shape (n, d).
        most: Most clusters.
    """
    rng, best, found = np.random.default_rng(0), -np.inf, np.zeros(len(vectors), dtype=np.int64)
    for k in range(FEWEST_TOPICS, most + 1):
        for _ in range(STARTS):
            numbers, similarity = _k_means(vectors, k, rng)
            nearest = np.sort(similarity, axis=1)
            apart = float(np.mean(nearest[:, -1] - nearest[:, -2]))
            if apart > best:
                best, found = apart, numbers
    return found


def _k_means(vectors: Floats, k: int, rng: np.random.Generator) -> tuple[Integers, Floats]:
    """Return the cluster of each vector, shape (n,), and its similarity to each centre, shape (n, k)."""
    centres = vectors[[rng.integers(len(vectors))]]
    while len(centres) < k:  # k-means++: far ones are likely to be the next
        distance = np.maximum(0.0, 1.0 - (vectors @ centres.T).max(axis=1)) + 1e-12
        centres = np.vstack([centres, vectors[rng.choice(len(vectors), p=distance / distance.sum())]])
    numbers = np.full(len(vectors), -1)
    for _ in range(ROUNDS):
        similarity = vectors @ centres.T
        now = similarity.argmax(axis=1)
        if (now == numbers).all():
            break
        numbers = now
        sums = np.zeros_like(centres)
        np.add.at(sums, numbers, vectors)
        centres = np.where(np.abs(sums).sum(axis=1, keepdims=True) > 0.0, _normalise(sums), centres)
    return numbers, vectors @ centres.T


def name_clusters(texts: Sequence[frozenset[str]], found: Integers) -> dict[int, str]:
    """Return the most distinctive words of each cluster: frequent in it, and rarer in all texts."""
    of_all, names = Counter(word for text in texts for word in text), dict[int, str]()
    for number in np.unique(found).tolist():
        inside = np.flatnonzero(found == number).tolist()
        counts = Counter(word for row in inside for word in texts[row])
        lift = {
            word: n / len(inside) * log(n / len(inside) / (of_all[word] / len(texts)) + 1e-12)
            for word, n in counts.items()
        }
        ranked = sorted(counts, key=lambda word: (-lift[word], word))[:NAME_WORDS]
        name = ", ".join(ranked)
        names[number] = name if name not in names.values() else f"{name} ({number})"
    return names


def _examples(draws: Sequence[rollups.NewestDraw], names: Mapping[int, str]) -> dict[str, tuple[str, ...]]:
    """Return two questions of each group: a usual one, and one of the usual ones that is least like it."""
    texts = defaultdict[str, dict[str, frozenset[str]]](dict)
    for draw in draws:
        text = " ".join(draw.question.split())
        if draw.seq in names and text:
            texts[names[draw.seq]].setdefault(text, _words(text))
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

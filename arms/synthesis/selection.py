"""Which of the made questions are kept: no two alike, and of each style its share."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from arms.synthesis.made import Made
from arms.tokenizer import words

ALIKE = 0.8
"""Jaccard similarity of the content words from which two questions count as one."""


class Selection:
    """The questions that are kept, at first one a passage.

    Args:
        n: How many to keep.
        shares: Weight of each style, positive.

    Attributes:
        kept: In the order in which they were added.
        duplicates: Questions that were left out as alike to another.
    """

    def __init__(self, n: int, shares: Mapping[str, float]) -> None:
        self.kept: list[Made] = []
        self.duplicates = 0
        self._n = n
        total = sum(shares.values())
        self._due = {style: n * share / total for style, share in shares.items()}
        self._counts: Counter[str] = Counter()
        self._by_word: defaultdict[str, list[int]] = defaultdict(list)
        self._content: list[frozenset[str]] = []
        self._spare: list[Made] = []

    @property
    def complete(self) -> bool:
        """Whether as many are kept as were asked for."""
        return len(self.kept) >= self._n

    def add(self, candidates: Sequence[Made]) -> None:
        """Keep the question of a passage whose style lacks most of its share; save the others."""
        left = sorted(candidates, key=self._missing, reverse=True)
        while left and not self.complete:
            if self._missing(left[0]) <= 0.0 or self._keep(left.pop(0)):
                break
        self._spare += left

    def fill(self) -> None:
        """Keep saved questions until there are enough, of the style that lacks most first."""
        waiting: defaultdict[str, list[Made]] = defaultdict(list)
        for made in reversed(self._spare):
            waiting[made.style].append(made)
        self._spare = []
        while waiting and not self.complete:
            style = max(waiting, key=lambda name: self._due[name] - self._counts[name])
            self._keep(waiting[style].pop())
            if not waiting[style]:
                del waiting[style]

    def _missing(self, made: Made) -> float:
        """Return the part of the share of a style that is still missing."""
        due = self._due[made.style]
        return (due - self._counts[made.style]) / due

    def _keep(self, made: Made) -> bool:
        """Keep a question unless one like it is kept."""
        content = frozenset(words(made.question, "english"))
        if not content or self._alike(content):
            self.duplicates += 1
            return False
        for word in content:
            self._by_word[word].append(len(self.kept))
        self._content.append(content)
        self._counts[made.style] += 1
        self.kept.append(made)
        return True

    def _alike(self, content: Iterable[str]) -> bool:
        content = frozenset(content)
        common = Counter(at for word in content for at in self._by_word.get(word, ()))
        return any(
            shared >= ALIKE * (len(content) + len(self._content[at]) - shared)
            for at, shared in common.items()
        )

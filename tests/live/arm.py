"""An arm of a user's own, found by its import path."""

from armwise.arms.base import Passage, Query, Retrieval


class Oracle:
    """Always returns the same few passages, and says how often it looked."""

    backbones: frozenset[str] = frozenset()

    def __init__(self, name: str, steps: int = 1) -> None:
        self.name = name
        self._steps = steps

    def search(self, query: Query, k: int) -> Retrieval:
        passages = [
            Passage(f"oracle-{i}", "Oracle", f"On {query.text!r}: yes.", 1.0 - i / 10) for i in range(3)
        ]
        return Retrieval(tuple(passages[:k]), steps=self._steps)


class Lost(Oracle):
    """An arm whose file is damaged."""

    def __init__(self, name: str, path: str) -> None:
        super().__init__(name)
        raise ValueError(f"{path} is damaged: build it again")

"""An arm of a user's own, found by its import path."""

import time
from pathlib import Path

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


class Gate:
    """Answers once a file is there, so that a test says how long a request is under way."""

    backbones: frozenset[str] = frozenset()

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self._path = Path(path)

    def search(self, query: Query, k: int) -> Retrieval:
        while not self._path.exists():
            time.sleep(0.02)
        found = [Passage("gate-0", "Gate", f"On {query.text!r}: at last.", 1.0)]
        return Retrieval(tuple(found[:k]), steps=1)


class Lost(Gate):
    """An arm whose file is damaged."""

    def __init__(self, name: str, path: str) -> None:
        super().__init__(name, path)
        raise ValueError(f"{path} is damaged: build it again")

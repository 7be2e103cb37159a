"""Arms that tests run on a host, and a host of them."""

import threading
from collections.abc import Mapping
from pathlib import Path

from armwise.arms.base import Passage, Query, Retrieval
from armwise.arms.corpus import CorpusSource
from armwise.arms.deployments import ArmHost, ArmSettings, Embedders
from armwise.arms.llm.base import Generator, ScriptedGenerator
from armwise.arms.llm.pricing import TokenPrices
from armwise.arms.models import Backbone
from armwise.arms.retrievers import ArmGraph, ArmSpec
from tests.neighbours import write_corpus

BACKBONES = {"tiny": Backbone(model="hashing:64")}

SPECS = {
    "none": ArmSpec(kind="none"),
    "bm25": ArmSpec(kind="bm25"),
    "dense": ArmSpec(kind="dense", params={"backbone": "tiny"}),
    "rrf": ArmSpec(kind="rrf", params={"arms": ["bm25", "dense"]}),
    "steps": ArmSpec(kind="multistep", params={"arm": "dense"}),
}


class Waiting:
    """An arm of a user's own that waits until it is let through, and says in which thread it searched."""

    backbones: frozenset[str] = frozenset()
    began, gate = threading.Semaphore(0), threading.Semaphore(0)  # a class is all that a test can reach

    def __init__(self, name: str) -> None:
        self.name = name

    def search(self, query: Query, k: int) -> Retrieval:
        del query, k
        self.began.release()
        assert self.gate.acquire(timeout=30)
        return Retrieval((Passage(threading.current_thread().name, "", ""),))


class Broken:
    """An arm of a user's own with a mistake."""

    backbones: frozenset[str] = frozenset()

    def __init__(self, name: str) -> None:
        self.name = name

    def search(self, query: Query, k: int) -> Retrieval:
        del query, k
        raise ZeroDivisionError("a mistake")


class Light(Waiting):
    """An arm that may search beside HTTP."""

    light = True


def own(kind: type, host: str = "Arms") -> ArmSpec:
    """Return the description of an arm of these classes."""
    return ArmSpec(kind=f"{kind.__module__}:{kind.__name__}", host=host)


def open_host(
    folder: Path,
    *live: str,
    specs: Mapping[str, ArmSpec] = SPECS,
    configured: Mapping[str, Mapping[str, ArmSpec]] | None = None,
    looked_at: frozenset[str] = frozenset(),
    embedders: Embedders | None = None,
    generator: Generator | None = None,
    limit_s: float = 30.0,
    prices: TokenPrices | None = None,
) -> ArmHost:
    """Return a host that has built the live arms, over the corpus of `tests.neighbours`.

    Args:
        folder: Where it keeps corpus and indexes.
        live: Their names.
        specs: What these names mean.
        configured: Arms of the configuration; None for the live ones.
        looked_at: Backbones whose vectors are served.
        embedders: Encoders of what arms write.
        generator: Language model that arms prompt; None for one that asks where the moon is.
        limit_s: Seconds that an arm waits for the model.
        prices: Prices of its tokens; None for none.
    """
    source = write_corpus(folder / "corpus.jsonl")
    arms = {name: ArmGraph(specs).closure(name) for name in live}
    return ArmHost(
        ArmSettings(
            (CorpusSource(str(source), folder / "corpus"),),
            folder / "indexes",
            BACKBONES,
            limit_s,
            prices=prices or TokenPrices(),
        ),
        arms if configured is None else configured,
        lambda: arms,
        embedders or Embedders(BACKBONES),
        generator or ScriptedGenerator({}, default="Where is the moon?"),
        looked_at,
    )

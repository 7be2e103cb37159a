"""Trained routers in a replica: they map a question, and passages of arms, to one score per arm."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from armwise.agent.config import AppConfig
from armwise.agent.learning import open_router
from armwise.agent.routers import RouterError, Stage, Trained, features, read_trained
from armwise.agent.turn import Embed
from armwise.arms.base import ArmError, Passage, Query, Retrieval
from armwise.feedback.log import Store

logger = logging.getLogger(__name__)

THREADS = 4
"""Questions that a replica scores concurrently; others wait."""

KEPT = 2
"""Routers of versions that stay loaded: for the served version and a canary."""

Vectors = Mapping[str, NDArray[np.float32]]

LoadVectors = Callable[[str, Sequence[str]], Awaitable[Vectors]]
"""A backbone and ids of passages -> unit vectors of the passages that are in the corpus."""


class RouterScorer:
    """Implements `armwise.agent.turn.ArmScorer`.

    A passage outside the corpus, such as one from a search API, has no vector and is disregarded.

    Args:
        trained: The router.
        vectors: Loads the vectors of passages.
        limit_s: Seconds that loading vectors, and scoring, may each take.

    Attributes:
        about: Metadata of the router.
    """

    def __init__(self, trained: Trained, vectors: LoadVectors, limit_s: float) -> None:
        self.about = trained.about
        self.backbone = trained.about.backbone
        self.arms = frozenset(trained.about.arms)
        self.k = 0 if trained.router.stage is Stage.QUESTION else trained.about.k
        self._router = trained.router
        self._relevance = trained.relevance
        self._vectors = vectors
        self._limit_s = limit_s
        # A separate pool, so that a slow router delays only itself.
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="router")

    async def warm_up(self, embed: Embed) -> None:
        """Score a question without passages: loads lazy parts, and fails if dimensions differ."""
        if self.k:
            await self._vectors(self.backbone, ["no passage"])  # opened, or made, without a time limit
        question = "Warm-up question?"
        query = Query(question, await embed(question, frozenset({self.backbone})))
        nothing = [()] * len(self.about.arms) if self.k else None
        await self._score(
            query, self.about.arms, nothing, {}, None
        )  # without a time limit: loading may take long

    async def scores(
        self, query: Query, arms: Sequence[str], found: Mapping[str, Retrieval]
    ) -> dict[str, float]:
        """Score in a thread: some routers take milliseconds. Raises ArmError."""
        if not self.k:
            return await self._score(query, arms, None, {}, self._limit_s)
        every = [found[arm].passages[: self.k] for arm in arms]
        vectors: Vectors = {}
        if ids := sorted({passage.id for passages in every for passage in passages}):
            try:
                async with asyncio.timeout(self._limit_s):
                    vectors = await self._vectors(self.backbone, ids)
            except TimeoutError:
                why = f"the vectors of {len(ids)} passages did not arrive within {self._limit_s:g} s"
                raise ArmError(why) from None
        return await self._score(query, arms, every, vectors, self._limit_s)

    async def _score(
        self,
        query: Query,
        arms: Sequence[str],
        passages: Sequence[Sequence[Passage]] | None,
        vectors: Vectors,
        limit_s: float | None,
    ) -> dict[str, float]:
        scores = partial(self._scores, query, arms, passages, vectors)
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, scores)
        except TimeoutError:
            raise ArmError(f"the router returned no scores within {limit_s:g} s") from None
        except RouterError as error:
            raise ArmError(f"the router cannot score the arms: {error}") from error

    def _scores(
        self,
        query: Query,
        arms: Sequence[str],
        passages: Sequence[Sequence[Passage]] | None,
        vectors: Vectors,
    ) -> dict[str, float]:
        inputs = features.compute_features(
            query.text,
            query.embeddings[self.backbone],
            arms,
            passages,
            vectors,
            relevance=self._relevance,
            fit=query.expected,
        )
        return dict(zip(arms, self._router.scores(inputs)[0].tolist(), strict=True))


class Scorers:
    """The routers of a replica: the configured one, and those of versions, loaded from the log.

    Args:
        store: The log.
        config: Names the configured router.
        vectors: Loads the vectors of passages.
        embed: Embeds a question.

    Attributes:
        configured: The configured router.

    Raises:
        RouterError: The configured router cannot be read.
    """

    def __init__(self, store: Store, config: AppConfig, vectors: LoadVectors, embed: Embed) -> None:
        self._store, self._vectors, self._embed = store, vectors, embed
        self._limit_s = config.limits.arm_timeout_s
        self._warm = WeakSet[RouterScorer]()
        self._cold = WeakSet[RouterScorer]()  # routers whose failure was logged
        self._kept: dict[str, RouterScorer] = {}  # by digest, the most recently used last
        self.configured: RouterScorer | None = None
        if config.router is not None:
            trained = read_trained(config.router.path)
            self.configured = RouterScorer(trained, vectors, self._limit_s)

    def find(self, digest: str | None) -> RouterScorer | None:
        """Return the router with a digest; None: the configured one. Raises RouterError."""
        if digest is None:
            return self.configured
        scorer = self._kept.pop(digest, None)
        if scorer is None:
            trained = open_router(self._store, digest).trained
            scorer = RouterScorer(trained, self._vectors, self._limit_s)
        self._kept[digest] = scorer
        for older in list(self._kept)[:-KEPT]:
            del self._kept[older]
        return scorer

    async def warm_up(self) -> None:
        """Score a question with the configured router. Raises ArmError."""
        if self.configured is not None:
            await self.configured.warm_up(self._embed)
            self._warm.add(self.configured)

    async def warm_up_all(self, scorers: Iterable[RouterScorer]) -> bool:
        """Return whether all these routers can score; a failure is logged once."""
        for scorer in scorers:
            if scorer not in (*self._warm, self.configured):
                try:
                    await scorer.warm_up(self._embed)
                except ArmError as error:
                    if scorer not in self._cold:
                        logger.warning("a router cannot score yet, so the served version stays: %s", error)
                        self._cold.add(scorer)
                    return False
                self._warm.add(scorer)
        return True

"""The search of a turn: the drawn arm finds passages, within its time and with what it may spend.

An arm that several requests ask the same thing is run once: its cached retrieval is recalled. Passages are
checked against the filter and the groups of the request, whatever the arm has done.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from armwise.agent.turn.answer import failing_as
from armwise.agent.turn.ask import Ask
from armwise.agent.turn.eligibility import UNFILTERED, ArmInfo, must_filter
from armwise.agent.turn.health import ArmHealth
from armwise.agent.turn.price import LanguageModel, bound_search
from armwise.agent.turn.probes import Embed, Embeddings, Probes, Recall, Search, probe, recall_nothing
from armwise.agent.turn.record import Spending, TurnRecorder
from armwise.arms.base import ArmError, Passage, Query, QuestionRefusedError, Retrieval
from armwise.arms.filters import permits
from armwise.arms.llm import writing

FindPassages = Callable[[Sequence[str]], Awaitable[Sequence[Passage]]]
"""Ids -> the passages with these ids that are in the corpus. Raises ArmError."""


async def no_passages(_: Sequence[str]) -> Sequence[Passage]:
    """Return no passage: a service without a corpus."""
    return ()


def choose_k(ask: Ask, info: ArmInfo) -> int:
    """Return the number of passages that a request gets from an arm."""
    return info.answering.passages if ask.k is None else ask.k


@dataclass(slots=True)
class Searcher:
    """What runs the arms of a replica.

    Attributes:
        run: Runs an arm by name.
        embed: Embeds a question with each of the named backbones.
        health: Circuit breakers and places of the arms.
        models: Language models by name, whose prices apply to the prompts of arms.
        recall: Returns the cached retrieval of an arm for the same search.
        find_passages: Returns the passages of the corpus with given ids. Raises ArmError.
        restricted: Whether any passage of the corpus is restricted to groups: only arms that filter are
            eligible then.
        timeout_s: Seconds that a search, or the embedding of a question, may take.
    """

    run: Search
    embed: Embed
    health: ArmHealth
    models: Mapping[str, LanguageModel] = field(default_factory=dict)
    recall: Recall = recall_nothing
    find_passages: FindPassages = no_passages
    restricted: bool = False
    timeout_s: float = 10.0

    async def embed_within(self, question: str, backbones: frozenset[str]) -> Embeddings:
        """Return the embeddings of a question. Raises ArmError."""
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self.embed(question, backbones)
        except TimeoutError:
            names = " and ".join(map(repr, sorted(backbones)))
            message = f"no embedding of the question by {names} within {self.timeout_s:g} s"
            raise ArmError(message) from None

    async def search_first(
        self,
        ask: Ask,
        query: Query,
        arms: Mapping[str, ArmInfo],
        depth: int,
        spending: Spending,
        names: Sequence[str],
    ) -> Probes:
        """Search with several arms before one is drawn."""
        needs = {name: arms[name].backbones for name in names}
        k = max(depth, *(choose_k(ask, arms[name]) for name in names))
        same = {name: arms[name].searched for name in names}
        search = partial(self._run_metered, arms, spending)
        return await probe(query, k, needs, self.embed, search, self.timeout_s, self.recall, same)

    async def _run_metered(
        self, arms: Mapping[str, ArmInfo], spending: Spending, arm: str, query: Query, k: int
    ) -> Retrieval:
        """Run an arm and add its usage to `spending`; a cancelled search counts as the most it may spend."""
        try:
            with failing_as(ArmError):
                retrieval = await self.run(arm, query, k)
        except ArmError as error:
            spending.add(writing.DEFAULT, error.usage)
            raise
        except asyncio.CancelledError:  # the caller has left, or the arm has timed out
            spending.add(writing.DEFAULT, bound_search(arms[arm], query.text, self.models))
            raise
        spending.search(retrieval)
        return retrieval

    async def search(self, arm: str, query: Query, ask: Ask, recorder: TurnRecorder) -> Retrieval:
        """Search with an arm, unless it has searched before the draw, and record that it serves.

        Raises:
            ArmError, TimeoutError: The search failed, or found what the request does not permit.
        """
        filtered = must_filter(query, self.restricted)
        if filtered and not recorder.arms[arm].filters:  # configured otherwise since, for a repeated turn
            raise ArmError(f"arm {arm!r} {UNFILTERED}")
        k, retrieval = choose_k(ask, recorder.arms[arm]), recorder.probes.get(arm)
        with failing_as(ArmError):
            if retrieval is None:
                retrieval = await self._run_arm(arm, query, k, ask, recorder)
            if filtered:
                await self._require_permitted(arm, query, retrieval.passages)
        recorder.served, recorder.retrieval = arm, replace(retrieval, passages=retrieval.passages[:k])
        return recorder.retrieval

    async def _require_permitted(self, arm: str, query: Query, passages: Sequence[Passage]) -> None:
        """Check the metadata of an arm's passages against the query, as the arm returned and as stored.

        Both are checked because an arm may lose or change metadata, while a passage outside the corpus, such
        as one from a search engine, has only what the arm returned.

        Raises:
            ArmError: A passage is not permitted, or the corpus is unavailable.
        """
        stored = await self.find_passages([passage.id for passage in passages])
        for passage in (*stored, *passages):
            if not permits(query.where, query.groups, passage.metadata):
                raise ArmError(f"arm {arm!r} found a passage that the request does not permit")

    async def _run_arm(self, arm: str, query: Query, k: int, ask: Ask, recorder: TurnRecorder) -> Retrieval:
        missing = recorder.arms[arm].backbones - query.embeddings.keys()
        started = time.perf_counter()
        if (recalled := await self.recall(arm, query, max(k, recorder.depth))) is not None:
            recorder.retrieval_s += time.perf_counter() - started
            return recalled
        with self.health.track(arm, caller=ask.asked_by) as report:
            try:
                async with asyncio.timeout(self.timeout_s):
                    if missing:
                        embeddings = await self.embed(query.text, frozenset(missing))
                        query = replace(query, embeddings={**query.embeddings, **embeddings})
                    k = max(k, recorder.depth)
                    retrieval = await self._run_metered(recorder.arms, recorder.spending, arm, query, k)
            except QuestionRefusedError:
                report(refused=(arm,))
                raise
            except (ArmError, TimeoutError):
                report(failed=(arm,))
                raise
            finally:
                recorder.retrieval_s += time.perf_counter() - started
            report(worked=(arm,))
        recorder.steps += retrieval.steps
        return retrieval

"""Arms that cannot keep to a filter or to permissions are masked before the draw, and never asked later."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from armwise.agent.config import parse
from armwise.agent.policies import sampling
from armwise.agent.serving.arms import arm_infos
from armwise.agent.turn import Finished, NoEligibleArmError, TurnError, TurnLoop
from armwise.arms.base import Passage, Query, Retrieval
from armwise.arms.filters import Comparison
from armwise.feedback.events import Mask, Mode, Status
from tests.agent.fakes import CONFIG, FakeArms, MemoryLog, Preferring, failing
from tests.agent.turn.test_turn import ARMS, CHAT, LOOK_UP, a_loop, run, say_again

FILTERING = {name: replace(info, filters=name != "bm25") for name, info in ARMS.items()}
NEW = Comparison(type="gte", key="year", value=2024)


def found(year: int, *groups: str) -> Retrieval:
    metadata: dict[str, Any] = {"year": year} | ({"allowed_groups": groups} if groups else {})
    return Retrieval((Passage(f"p-{year}", "", "a text", metadata=metadata),))


async def finds(query: Query, k: int) -> Retrieval:
    del query, k
    return found(2025)


def loop_of(log: MemoryLog, arms: FakeArms | None = None, **options: Any) -> TurnLoop:
    arms = arms or FakeArms({"dense": finds, "none": finds})
    policy = options.pop("policy", Preferring(none=0, bm25=1, dense=0))
    loop = a_loop(log, arms, policy, **options)
    loop.arms = FILTERING
    return loop


@pytest.mark.parametrize(
    ("restricted", "where", "masked"),
    [
        (False, None, {}),
        (False, NEW, {"bm25": Mask.CANNOT_FILTER}),
        (True, None, {"bm25": Mask.CANNOT_FILTER}),
        (True, NEW, {"bm25": Mask.CANNOT_FILTER}),
    ],
)
async def test_arms_that_cannot_filter_are_masked_and_the_propensity_is_that_of_the_draw(
    restricted: bool, where: Comparison | None, masked: dict[str, Mask]
) -> None:
    for name in ("d-1", "d-2", "d-3"):
        log = MemoryLog()
        loop = loop_of(log, policy=Preferring(none=0.5, bm25=0.2, dense=0.3), restricted=restricted)
        await run(loop, replace(CHAT, decision_id=name, where=where))
        decision = log.decision
        assert decision.masked == masked
        assert decision.arms == tuple(name for name in FILTERING if name not in masked)
        draw = sampling.uniform_from(name, "salt", decision.arms)
        assert decision.drawn == decision.arms[int(np.searchsorted(np.cumsum(decision.probabilities), draw))]
        assert (decision.mode, sum(decision.probabilities)) == (Mode.EXPLORE, pytest.approx(1.0))


async def test_what_a_request_permits_reaches_the_arm() -> None:
    arms = FakeArms({"dense": finds, "none": finds})
    await run(loop_of(MemoryLog(), arms), replace(CHAT, where=NEW, groups=frozenset({"staff"})))
    ((_, query, _),) = arms.calls
    assert (query.where, query.groups) == (NEW, {"staff"})


@pytest.mark.parametrize("wish", [{"forced": "bm25"}, {"allowed": frozenset({"bm25"})}])
async def test_a_request_without_a_filtering_arm_is_refused(
    wish: dict[str, Any],
) -> None:
    log = MemoryLog()
    with pytest.raises(NoEligibleArmError, match="cannot"):
        await run(loop_of(log), replace(CHAT, where=NEW, **wish))
    assert log.committed == []


async def test_an_arm_that_finds_what_is_not_permitted_has_failed() -> None:
    async def leaks(query: Query, k: int) -> Retrieval:
        del query, k
        return found(2025, "board")

    log, arms = MemoryLog(), FakeArms({"dense": leaks, "none": leaks})
    with pytest.raises(TurnError, match="found a passage that the request does not permit"):
        await run(loop_of(log, arms, restricted=True), replace(CHAT, groups=frozenset({"staff"})))
    assert (log.execution.status, log.execution.passages, log.execution.answer) == (
        Status.ARM_FAILED,
        (),
        None,
    )


@pytest.mark.parametrize(
    ("stored", "returned", "permitted"),
    [
        (found(2025, "staff"), found(2025, "staff"), True),
        (Retrieval(), found(2025, "staff"), True),
        (found(2025, "board"), found(2025), False),
        (found(2025), found(2025, "board"), False),
        (found(2020), found(2025), False),
        (Retrieval(), found(2020), False),
    ],
    ids=["both", "not in the corpus", "group lost", "group added", "year changed", "year"],
)
async def test_a_passage_is_permitted_by_the_corpus_and_by_what_the_arm_returned(
    stored: Retrieval, returned: Retrieval, permitted: bool
) -> None:
    asked = list[Sequence[str]]()

    async def finds(query: Query, k: int) -> Retrieval:
        del query, k
        return returned

    async def passages(ids: Sequence[str]) -> Sequence[Passage]:
        asked.append(ids)
        return stored.passages

    log = MemoryLog()
    loop = loop_of(log, FakeArms({"dense": finds}), policy=Preferring(none=0, bm25=0, dense=1))
    loop.searcher.find_passages = passages
    request = replace(LOOK_UP, where=NEW, groups=frozenset({"staff"}))
    if permitted:
        await run(loop, request)
    else:
        with pytest.raises(TurnError, match="found a passage that the request does not permit"):
            await run(loop, request)
    assert asked == [[one.id for one in returned.passages]]
    assert log.execution.status is (Status.OK if permitted else Status.ARM_FAILED)


async def test_the_fallback_answers_only_where_it_filters() -> None:
    for fallback, ends in (("bm25", Status.ARM_FAILED), ("none", Status.FELL_BACK)):
        log = MemoryLog()
        loop = loop_of(
            log,
            FakeArms({"dense": failing, "none": finds}),
            policy=Preferring(none=0, bm25=0, dense=1),
            fallback=fallback,
        )
        try:
            *_, last = await run(loop, replace(LOOK_UP, where=NEW))
            assert isinstance(last, Finished)
        except TurnError:
            pass
        assert log.execution.status is ends


async def test_an_earlier_turn_is_not_repeated_with_an_arm_that_cannot_filter_now() -> None:
    log, arms = MemoryLog(), FakeArms()
    loop = loop_of(log, arms)
    await run(loop, LOOK_UP)
    loop.searcher.restricted = True
    before = len(arms.calls)
    with pytest.raises(TurnError, match="'bm25' cannot keep to a filter"):
        await say_again(loop, LOOK_UP, log.decision, log.execution.served)
    with pytest.raises(TurnError, match="'bm25' cannot keep to a filter"):
        async for _ in loop.repeat(LOOK_UP, replace(log.decision, id="d-2"), on_commit=lambda _: None):
            pass
    with pytest.raises(TurnError) as raised:
        await anext(loop.repeat(CHAT, log.decision, "bm25"))
    assert raised.value.execution.status is Status.ARM_FAILED
    assert len(arms.calls) == before


def test_what_a_turn_knows_of_an_arm_follows_from_its_members() -> None:
    arms = {
        "words": {"kind": "bm25"},
        "server": {"kind": "mcp", "params": {"url": "https://a.example", "tool": "find"}},
        "both": {"kind": "rrf", "params": {"arms": ["words", "server"]}},
        "none": {"kind": "none"},
    }
    filtering = {name: info.filters for name, info in arm_infos(parse({**CONFIG, "arms": arms})).items()}
    assert filtering == {"words": True, "server": False, "both": False, "none": True}

"""What a turn may cost at most is known before its arm is drawn, and what it has cost is charged once."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from armwise.agent.turn import (
    FREE,
    AnsweredElsewhereError,
    ArmInfo,
    Ask,
    CostBound,
    Embeddings,
    LanguageModel,
    NoEligibleArmError,
    RequestDocument,
    Spending,
    TurnError,
    TurnLoop,
    bound_search,
    bound_turn,
)
from armwise.arms.base import ArmError, Passage, Query, Retrieval, Usage
from armwise.arms.llm import GeneratorError, Message, base
from armwise.arms.llm.price_list import find_listed
from armwise.arms.llm.pricing import UNPROMPTED, Bound, TokenPrices
from armwise.arms.llm.prompts import Template
from armwise.arms.llm.protocols import ProtocolName
from armwise.arms.llm.writing import DEFAULT, Answering
from armwise.feedback.errors import LogUnavailableError
from armwise.feedback.events import Cost, Decision, Status
from tests.agent.fakes import FakeArms, MemoryLog, Preferring, hanging
from tests.agent.turn.test_turn import (
    CHAT,
    LOOK_UP,
    PRICES,
    Advice,
    _cancelled,
    _until,
    a_loop,
    finish,
    run,
    say_again,
)

MODELS = {
    DEFAULT: LanguageModel(base.ScriptedGenerator({}), PRICES),
    "large": LanguageModel(base.ScriptedGenerator({}), TokenPrices(usd_per_kilotoken_out=500.0)),
}

BARE = {"direct": Template("", ""), "reasoning": Template("", "")}

AROUND = 256
"""Tokens that are reserved around each template."""


def searching(read: int, written: int, **fields: Any) -> ArmInfo:
    how = Answering(max_tokens=20, **fields)
    return ArmInfo(bound=Bound(0, read, written), answering=how, searches=False)


ARMS = {
    "free": searching(0, 0),
    "cheap": searching(100, 10),
    "dear": searching(200, 20),
    "large": searching(0, 0, llm="large"),
    "reasons": searching(0, 0, prompt="reasoning"),
}


def bound(ask: Ask, *names: str, probed: tuple[str, ...] = (), fallback: str | None = None) -> CostBound:
    return bound_turn(ask, ARMS, MODELS, BARE, names, probed, fallback)


@pytest.mark.parametrize(
    ("names", "probed", "fallback", "tokens"),
    [
        ((), (), None, 0),
        (("free",), (), None, 0),
        (("free", "cheap"), (), None, 110),
        (("free", "cheap", "dear"), (), None, 220),
        (("free", "cheap", "dear"), ("cheap", "dear"), None, 330),  # all search before the draw
        (("free", "cheap", "dear"), ("cheap",), None, 330),  # one before it, and the other after it
        (("free",), ("cheap", "dear"), None, 0),  # what cannot be drawn does not search before it
        (("free", "cheap", "dear"), (), "cheap", 330),
        (("cheap",), (), "cheap", 110),
        (("free", "cheap", "dear"), ("cheap", "dear"), "cheap", 330),  # it has searched already
    ],
)
def test_searches_of_the_dearest_arm_and_of_the_fallback_are_reserved(
    names: tuple[str, ...], probed: tuple[str, ...], fallback: str | None, tokens: int
) -> None:
    most = bound(LOOK_UP, *names, probed=probed, fallback=fallback)
    assert most == CostBound(tokens, pytest.approx(2 * tokens / 1100))  # type: ignore[arg-type]


def test_all_that_is_read_may_be_written_to_a_cache() -> None:
    dear = PRICES.model_copy(update={"usd_per_kilotoken_cache_write": 2.0})
    most = bound_search(ARMS["cheap"], "?", {DEFAULT: LanguageModel(base.ScriptedGenerator({}), dear)})
    assert most == Usage(100, 10, 0, pytest.approx(0.3))  # type: ignore[arg-type]


def test_a_question_counts_by_its_bytes_in_each_prompt_of_a_search() -> None:
    arm = replace(ARMS["free"], bound=Bound(2, 100, 10))
    most = bound_search(arm, "\u4e2d\u6587?", MODELS)
    assert (most.prompt_tokens, most.completion_tokens) == (100 + 2 * 7, 10)


def asking(text: str, **document: Any) -> Ask:
    messages = (Message(role="user", content=text),)
    return Ask("d-1", "?", messages=messages, document=RequestDocument(**document))


@pytest.mark.parametrize(
    ("ask", "names", "fallback", "read", "written"),
    [
        (asking("q" * 30), ("free",), None, 30 + AROUND, 20),
        (asking("\u4e2d" * 30), ("free",), None, 90 + AROUND, 20),
        (asking("q", most_read=5000), ("free",), None, 5000 + AROUND, 20),  # the document, whatever is in it
        (asking("q", max_tokens=7), ("free",), None, 1 + AROUND, 7),
        (asking("q", max_tokens=7, options={"n": 3}), ("free",), None, 1 + AROUND, 21),
        (asking("q"), ("free", "cheap"), None, 1 + AROUND + 100, 20 + 10),
        (asking("q"), ("reasons",), None, 2 * (1 + AROUND) + 20, 40),  # it reads its reasons again
        (asking("q"), ("free",), "dear", 1 + AROUND + 200, 20 + 20),  # one model is not asked twice
        (asking("q"), ("free",), "large", 2 * (1 + AROUND), 40),
    ],
)
def test_an_answer_is_reserved_with_all_that_it_reads_and_writes(
    ask: Ask, names: tuple[str, ...], fallback: str | None, read: int, written: int
) -> None:
    most = bound(ask, *names, fallback=fallback)
    assert most.tokens == read + written
    dearest = 500.0 * written if fallback == "large" else read + 10.0 * written
    assert most.usd == pytest.approx(dearest / 1000)


@pytest.mark.parametrize(("protocol", "window"), [("chat", 128_000), ("messages", 1_000_000)])
def test_a_listed_model_reads_no_more_than_its_context_window(protocol: ProtocolName, window: int) -> None:
    listed = find_listed("https://api.openai.com/v1", "gpt-4o")
    assert listed is not None
    models = {DEFAULT: LanguageModel(base.ScriptedGenerator({}), listed, protocol=protocol)}
    image = asking("What is it?", most_read=8_000_000)
    assert bound_turn(image, ARMS, models, BARE, ["free"]).tokens == window + 20


def test_without_a_language_model_only_searches_cost() -> None:
    paid = {"a": replace(ARMS["cheap"], bound=Bound(0, 100, 10, 0.5))}
    assert bound_turn(CHAT, paid, {}, BARE, ["a"]) == CostBound(0, 0.5)
    assert bound_search(paid["a"], "?", {}) == Usage(usd=0.5, search_usd=0.5)


def test_spending_adds_up_by_model_and_with_what_a_host_did_not_count() -> None:
    spending = Spending()
    spending.search(Retrieval(tokens=40, usage=Usage(20, 4, 2, 0.5)))
    spending.search(Retrieval(tokens=7))
    spending.add("large", Usage(5, 1, 0, 0.25))
    spending.add("large", Usage())
    assert spending.by_model == {DEFAULT: Usage(20, 4, 2, 0.5), "large": Usage(5, 1, 0, 0.25)}
    assert spending.cost == Cost(prompt_tokens=20 + 5 + 16 + 7, completion_tokens=5, usd=0.75)


# -- of a loop ---------------------------------------------------------------------------------------

INFOS = {
    "none": ArmInfo(),
    "bm25": ArmInfo(bound=Bound(0, 1000, 100), filters=True),
    "dense": ArmInfo(frozenset({"tiny"}), bound=Bound(0, 3000, 0)),
}
BM25, DENSE, BOTH = CostBound(1100, 2.0), CostBound(3000, 3.0), CostBound(4100, 5.0)
DEAREST = CostBound(3100, 4.0)
"""Of each number the larger one."""

SPENT = Usage(30, 4, 0, 0.25)
"""What a search of bm25 spends, where it ends."""


def loop_of(
    charged: list[tuple[str, Cost]],
    log: MemoryLog | None = None,
    arms: FakeArms | None = None,
    **options: Any,
) -> TurnLoop:
    arms = arms or FakeArms()
    arms.behaviour.setdefault("bm25", paid)
    options.setdefault("arms_known", INFOS)

    def charge(decision_id: str, cost: Cost) -> None:
        charged.append((decision_id, cost))

    return a_loop(log or MemoryLog(), arms, prices=PRICES, charge=charge, **options)


async def paid(_query: Query, k: int) -> Retrieval:
    found = tuple(Passage(f"bm25-{i}", "", "", 1.0 / i) for i in range(1, k + 1))
    return Retrieval(found, tokens=34, usage=SPENT)


def spent(charged: list[tuple[str, Cost]]) -> tuple[int, int, float]:
    """Return tokens read and written and the price of the one charge."""
    ((name, cost),) = charged
    assert name == "d-1"
    return cost.prompt_tokens, cost.completion_tokens, cost.usd


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({}, DEAREST),
        ({"excluded": frozenset({"dense"})}, BM25),
        ({"allowed": frozenset({"none", "bm25"})}, BM25),
        ({"forced": "none"}, FREE),
        ({"forced": "bm25"}, BM25),
        ({"external": True}, FREE),
    ],
)
def test_only_arms_that_may_be_drawn_count(changes: dict[str, Any], most: CostBound) -> None:
    assert loop_of([]).bound_cost(replace(LOOK_UP, **changes)) == most


def test_an_arm_that_is_switched_off_or_cannot_filter_does_not_count() -> None:
    off = {**INFOS, "dense": replace(INFOS["dense"], enabled=False)}
    assert loop_of([], arms_known=off).bound_cost(LOOK_UP) == BM25
    assert loop_of([], restricted=True).bound_cost(LOOK_UP) == BM25
    with pytest.raises(NoEligibleArmError):
        loop_of([]).bound_cost(replace(LOOK_UP, excluded=frozenset(INFOS)))


def test_where_a_router_reads_passages_every_arm_that_it_knows_is_reserved() -> None:
    reading = Advice(3, none=0.1, bm25=0.2, dense=0.9)
    assert loop_of([], scorer=reading).bound_cost(LOOK_UP) == BOTH
    assert loop_of([], scorer=reading).bound_cost(replace(LOOK_UP, forced="bm25")) == BM25
    assert loop_of([], scorer=Advice(0, none=0.1, bm25=0.2, dense=0.9)).bound_cost(LOOK_UP) == DEAREST
    assert loop_of([], scorer=Advice(3, none=0.1, bm25=0.2)).bound_cost(LOOK_UP) == BOTH


async def test_a_turn_that_is_resumed_reserves_its_arm_and_the_fallback_that_it_may_use() -> None:
    log = MemoryLog()
    await run(loop_of([], log), LOOK_UP)
    assert loop_of([]).bound_cost(LOOK_UP, log.decision) == BM25
    assert loop_of([], fallback="dense").bound_cost(LOOK_UP, log.decision) == BOTH
    forced = replace(log.decision, arms=("bm25",), probabilities=(1.0,))
    assert loop_of([], fallback="dense").bound_cost(LOOK_UP, forced) == BM25
    gone = {name: info for name, info in INFOS.items() if name != "dense"}
    assert loop_of([], fallback="dense", arms_known=gone).bound_cost(LOOK_UP, log.decision) == BM25
    assert loop_of([], former=INFOS, arms_known={}).bound_cost(LOOK_UP, log.decision, "dense") == DENSE


async def test_a_turn_is_charged_once_with_its_search_and_its_answer() -> None:
    charged: list[tuple[str, Cost]] = []
    log = MemoryLog()
    await run(loop_of(charged, log), CHAT)
    assert charged == [("d-1", log.execution.cost)]
    assert log.execution.cost.usd == 0.25
    charged.clear()
    await run(loop_of(charged), LOOK_UP)
    assert spent(charged) == (30, 4, 0.25)


async def test_a_search_that_fails_is_charged_with_that_of_the_fallback() -> None:
    async def broken(_query: Query, _k: int) -> Retrieval:
        error = ArmError("gone")
        error.usage = Usage(70, 6, 0, 0.5)
        raise error

    charged: list[tuple[str, Cost]] = []
    await run(loop_of(charged, arms=FakeArms({"dense": paid, "bm25": broken}), fallback="dense"), LOOK_UP)
    assert spent(charged) == (100, 10, 0.75)
    charged.clear()
    with pytest.raises(TurnError):
        await run(loop_of(charged, arms=FakeArms({"bm25": broken})), LOOK_UP)
    assert spent(charged) == (70, 6, 0.5)


async def test_a_search_out_of_time_is_charged_with_the_most_that_it_may_take_and_its_fallback() -> None:
    charged: list[tuple[str, Cost]] = []
    log, arms = MemoryLog(), FakeArms({"bm25": hanging, "dense": paid})
    await run(loop_of(charged, log, arms, arm_timeout_s=0.01, fallback="dense"), LOOK_UP)
    assert log.execution.status is Status.FELL_BACK
    assert spent(charged) == (1030, 104, 2.25)
    assert log.execution.cost.usd == 2.25, "the log has the same"


async def test_a_caller_who_leaves_in_the_middle_of_a_search_is_charged_for_it() -> None:
    charged: list[tuple[str, Cost]] = []
    log, arms = MemoryLog(), FakeArms({"bm25": hanging})
    task = asyncio.create_task(run(loop_of(charged, log, arms), CHAT))
    await _cancelled(task, _until(lambda: arms.calls))
    assert spent(charged) == (1000, 100, 2.0)
    await _until(lambda: len(log.committed) == 2)
    assert (log.execution.served, log.execution.status) == (None, Status.CANCELLED)
    assert log.execution.cost.usd == 2.0


async def test_a_caller_who_leaves_after_the_search_is_charged_what_it_has_cost() -> None:
    charged: list[tuple[str, Cost]] = []
    log = MemoryLog()
    log.held = True
    loop = loop_of(charged, log)
    task = asyncio.create_task(run(loop, replace(LOOK_UP, forced="bm25")))
    await _cancelled(task, _until(lambda: log.waiting))
    assert spent(charged) == (30, 4, 0.25)
    log.release()


@pytest.mark.parametrize("ask", [CHAT, LOOK_UP])
async def test_a_search_whose_decision_the_log_refuses_is_charged(ask: Ask) -> None:
    charged: list[tuple[str, Cost]] = []
    log = MemoryLog()
    log.refuse = Decision
    with pytest.raises(LogUnavailableError):
        await run(loop_of(charged, log), ask)
    assert spent(charged) == (30, 4, 0.25)


async def test_searches_before_a_draw_that_never_comes_are_charged() -> None:
    charged: list[tuple[str, Cost]] = []
    advice = Advice(3, none=0.1, bm25=0.2)
    advice.error = ArmError("the router is gone")
    with pytest.raises(ArmError, match="the router is gone"):
        await run(loop_of(charged, scorer=advice), LOOK_UP)
    assert spent(charged) == (30, 4, 0.25)


async def test_searches_before_the_draw_are_charged_where_the_caller_leaves_or_they_run_out_of_time() -> None:
    charged: list[tuple[str, Cost]] = []
    arms, advice = FakeArms({"bm25": hanging}), Advice(3, none=0.1, bm25=0.2)
    task = asyncio.create_task(run(loop_of(charged, arms=arms, scorer=advice), LOOK_UP))
    await _cancelled(task, _until(lambda: len(arms.calls) == 2))
    assert spent(charged) == (1000, 100, 2.0)
    charged.clear()
    log, policy = MemoryLog(), Preferring(none=1, bm25=0, dense=0)
    await run(loop_of(charged, log, arms, policy=policy, scorer=advice, arm_timeout_s=0.01), LOOK_UP)
    assert spent(charged) == (1000, 100, 2.0)
    assert log.execution.cost.usd == 2.0


async def test_searches_before_the_draw_and_after_it_are_charged_together_once() -> None:
    charged: list[tuple[str, Cost]] = []
    log, arms = MemoryLog(), FakeArms({"none": paid, "bm25": paid, "dense": paid})
    policy = Preferring(none=0, bm25=0, dense=1)
    advice = Advice(3, none=0.1, bm25=0.2)
    await run(loop_of(charged, log, arms, policy=policy, scorer=advice), LOOK_UP)
    assert log.decision.drawn == "dense"
    assert spent(charged) == (90, 12, 0.75)


async def test_an_encoder_that_fails_before_any_search_costs_nothing() -> None:
    async def broken(_question: str, _backbones: frozenset[str]) -> Embeddings:
        raise ArmError("no encoder")

    charged: list[tuple[str, Cost]] = []
    advice = Advice(0, none=0.1)
    with pytest.raises(ArmError, match="no encoder"):
        await run(loop_of(charged, scorer=advice, embed=broken), LOOK_UP)
    assert spent(charged) == (0, 0, 0.0)


async def test_a_search_that_is_repeated_is_charged_however_it_ends() -> None:
    log, charged = MemoryLog(), list[tuple[str, Cost]]()
    arms = FakeArms()
    loop = loop_of(charged, log, arms, arm_timeout_s=0.01)
    await run(loop, LOOK_UP)
    charged.clear()
    await say_again(loop, LOOK_UP, log.decision, log.execution.served)
    assert spent(charged) == (30, 4, 0.25)
    charged.clear()
    arms.behaviour["bm25"] = hanging
    with pytest.raises(TurnError):
        await say_again(loop, LOOK_UP, log.decision, log.execution.served)
    assert spent(charged) == (1000, 100, 2.0)
    charged.clear()
    loop.searcher.timeout_s = 10.0
    calls = len(arms.calls)
    task = asyncio.create_task(say_again(loop, LOOK_UP, log.decision, log.execution.served))
    await _cancelled(task, _until(lambda: len(arms.calls) > calls))
    assert spent(charged) == (1000, 100, 2.0)


async def test_a_turn_that_is_resumed_is_charged_also_where_another_process_was_faster() -> None:
    log = MemoryLog()
    await run(loop_of([], log), LOOK_UP)
    charged: list[tuple[str, Cost]] = []
    with pytest.raises(AnsweredElsewhereError, match="answered by another process"):
        await finish(loop_of(charged, log), LOOK_UP, log.decision)
    assert spent(charged) == (30, 4, 0.25)


async def test_an_answer_that_fails_is_charged_with_the_search_before_it() -> None:
    charged: list[tuple[str, Cost]] = []
    generator = base.ScriptedGenerator(
        {}, default="one two three", error=GeneratorError("away"), fail_after=2
    )
    with pytest.raises(TurnError):
        await run(loop_of(charged, generator=generator), CHAT)
    _, written, usd = spent(charged)
    assert written == 4 + 2
    assert usd > 0.25 + 0.02


def test_an_arm_without_a_bound_prompts_no_model() -> None:
    assert ArmInfo().bound == UNPROMPTED

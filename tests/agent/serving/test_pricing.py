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
    PriceList,
    RequestDocument,
    Spending,
    TurnError,
    TurnLoop,
    dearest,
)
from armwise.arms.base import ArmError, Passage, Query, Retrieval, Usage
from armwise.arms.llm import GeneratorError, base
from armwise.arms.llm.pricing import UNPROMPTED, Bound, TokenPrices
from armwise.arms.llm.prompts import Template
from armwise.arms.llm.writing import DEFAULT, Answering
from armwise.feedback.errors import LogUnavailableError
from armwise.feedback.events import Cost, Decision, Status
from tests.agent.fakes import FakeArms, MemoryLog, Preferring, hanging
from tests.agent.serving.test_turn import (
    CHAT,
    LOOK_UP,
    Advice,
    _cancelled,
    _until,
    a_loop,
    finish,
    run,
    say_again,
)

PRICES = TokenPrices(usd_per_kilotoken_in=1.0, usd_per_kilotoken_out=10.0)

TEMPLATES = {"direct": Template("", "")}

CITE = 30
"""Tokens of the instruction to cite, which a prompt may have."""


def searching(read: int, written: int, **fields: Any) -> ArmInfo:
    how = Answering(llm=fields.pop("llm", DEFAULT), word_budget=50, max_tokens=20)
    return ArmInfo(bound=Bound(0, read, written), answering=how, **fields)


def price_list(**arms: ArmInfo) -> PriceList:
    models = {
        DEFAULT: LanguageModel(base.ScriptedGenerator({}), PRICES.compute_usd),
        "large": LanguageModel(
            base.ScriptedGenerator({}), TokenPrices(usd_per_kilotoken_out=500.0).compute_usd
        ),
    }
    return PriceList(arms, models, TEMPLATES)


NAMES = ("free", "cheap", "dear")
FEW = price_list(free=searching(0, 0), cheap=searching(100, 10), dear=searching(200, 20))


def test_the_search_of_the_dearest_arm_that_may_be_drawn_is_reserved() -> None:
    assert FEW.turn(LOOK_UP, NAMES, (), None) == CostBound(220, 0.4)
    assert FEW.turn(LOOK_UP, NAMES[:2], (), None) == CostBound(110, 0.2)
    assert FEW.turn(LOOK_UP, ["free"], (), None) == FREE
    assert FEW.turn(LOOK_UP, [], (), None) == FREE


def test_tokens_and_money_are_each_those_of_the_dearest() -> None:
    several = price_list(long=searching(1000, 0), written=searching(0, 500))
    assert several.turn(LOOK_UP, ["long", "written"], (), None) == CostBound(1000, 5.0)
    assert dearest([]) == FREE


def test_searches_before_the_draw_are_all_reserved_and_those_that_are_the_same_once() -> None:
    same = price_list(
        a=searching(100, 0, searched="x"), b=searching(100, 0, searched="x"), c=searching(30, 0)
    )
    every = ["a", "b", "c"]
    assert same.turn(LOOK_UP, every, every, None) == CostBound(130, 0.13)
    assert same.turn(LOOK_UP, every, ["c"], None) == CostBound(130, 0.13), "c before, then a or b"
    assert same.turn(LOOK_UP, ["c"], every, None) == CostBound(30, 0.03), (
        "what cannot be drawn searches neither"
    )


def test_all_that_is_read_may_be_written_to_a_cache() -> None:
    dear = PRICES.model_copy(update={"usd_per_kilotoken_cache_write": 2.0})
    model = LanguageModel(base.ScriptedGenerator({}), dear.compute_usd, prices=dear)
    several = PriceList({"a": searching(100, 10)}, {DEFAULT: model}, TEMPLATES)
    assert several.search("a", "?") == CostBound(110, pytest.approx(0.3))  # type: ignore[arg-type]


def test_the_fallback_is_reserved_beside_the_arm_in_whose_place_it_answers() -> None:
    both = FEW.search("dear", "?") + FEW.search("cheap", "?")
    assert both.tokens == 330
    assert FEW.turn(LOOK_UP, NAMES, (), "cheap") == both
    assert FEW.turn(LOOK_UP, ["cheap"], (), "cheap") == CostBound(110, 0.2)
    assert FEW.turn(LOOK_UP, NAMES, NAMES, "cheap").tokens == 330, "each has searched before, once"


def test_an_answer_is_reserved_with_all_that_it_reads_and_writes() -> None:
    question = Ask("d-1", "q" * 30, messages=({"role": "user", "content": "q" * 30},))
    arms = price_list(plain=searching(0, 0), cheap=searching(100, 10))
    read = 10 + len("[{},[null]]") // 3 + 1 + CITE + 2 * 8 + 2 * 50
    assert arms.answer("plain", question) == CostBound(read + 20, PRICES.compute_usd(read, 20))
    assert arms.answer("plain", replace(question, messages=())) == FREE
    assert arms.answer("plain", replace(question, document=RequestDocument(max_tokens=7))).tokens == read + 7
    three = RequestDocument(max_tokens=7, options={"n": 3})
    longer = arms.answer("plain", replace(question, document=three))
    assert longer.tokens == read + len('"n":3') // 3 + 1 + 3 * 7
    assert arms.turn(question, ["plain", "cheap"], (), None).tokens == read + 20 + 110


def test_a_fallback_with_another_model_may_write_an_answer_as_well() -> None:
    arms = price_list(small=searching(0, 0), large=searching(0, 0, llm="large"), twin=searching(0, 0))
    one = arms.answer("small", CHAT)
    other = arms.answer("large", CHAT)
    assert (one.tokens, other.usd) == (other.tokens, 10.0)
    assert arms.turn(CHAT, ["small"], (), "large") == one + other
    assert arms.turn(CHAT, ["small"], (), "twin") == one, "the same model is not asked twice"


def test_without_a_language_model_nothing_is_reserved() -> None:
    nothing = PriceList({"a": searching(100, 10)}, {})
    assert nothing.turn(CHAT, ["a"], (), None) == FREE
    assert nothing.search_usage("a", "?") == Usage()


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
BM25, DENSE = CostBound(1100, 2.0), CostBound(3000, 3.0)

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

    return a_loop(log or MemoryLog(), arms, compute_usd=PRICES.compute_usd, charge=charge, **options)


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
        ({}, CostBound(3000, 3.0)),
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
    assert loop_of([], scorer=reading).bound_cost(LOOK_UP) == BM25 + DENSE
    assert loop_of([], scorer=reading).bound_cost(replace(LOOK_UP, forced="bm25")) == BM25
    assert loop_of([], scorer=Advice(0, none=0.1, bm25=0.2, dense=0.9)).bound_cost(LOOK_UP) == DENSE
    assert loop_of([], scorer=Advice(3, none=0.1, bm25=0.2)).bound_cost(LOOK_UP) == BM25 + DENSE


async def test_a_turn_that_is_resumed_reserves_its_arm_and_the_fallback_that_it_may_use() -> None:
    log = MemoryLog()
    await run(loop_of([], log), LOOK_UP)
    assert loop_of([]).bound_cost(LOOK_UP, log.decision) == BM25
    assert loop_of([], fallback="dense").bound_cost(LOOK_UP, log.decision) == BM25 + DENSE
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

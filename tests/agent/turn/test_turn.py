"""Whole turns without a cluster: what is recorded, in which order, however the turn ends."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.agent.policies import (
    Exploration,
    FeatureError,
    FeatureSpec,
    Policy,
    compute_served_distribution,
    sampling,
)
from armwise.agent.policies import features as policy_features
from armwise.agent.policies.linear import LinUCB
from armwise.agent.turn import (
    ArmHealth,
    ArmInfo,
    Ask,
    Decided,
    Event,
    FactLog,
    Finished,
    LanguageModel,
    NoEligibleArmError,
    OverloadedError,
    RequestDocument,
    Serving,
    TurnError,
    TurnLoop,
    read_until,
)
from armwise.agent.turn.eligibility import list_allowed
from armwise.arms.base import ArmError, Passage, Query, Retrieval, Usage
from armwise.arms.llm import Chunk, Generator, GeneratorError, Prompt, TokenPrices, base, quote
from armwise.arms.llm.writing import DEFAULT, Answering
from armwise.feedback.errors import LogUnavailableError
from armwise.feedback.events import Context, Decision, Execution, Mask, Mode, Status
from tests.agent.fakes import DIM, FakeArms, FakeEmbedders, MemoryLog, Preferring, failing, hanging
from tests.agent.turns import draw, make_decider, make_turns

QUESTION = "which river runs through Vienna?"
CHAT = Ask("d-1", QUESTION, messages=({"role": "user", "content": QUESTION},))
LOOK_UP = replace(CHAT, messages=())
ANSWER = "The Danube does."
FREE = TokenPrices()
PRICES = TokenPrices(usd_per_kilotoken_in=1.0, usd_per_kilotoken_out=10.0)
ARMS = {
    "none": ArmInfo(features={"steps": 0.0}),
    "bm25": ArmInfo(features={"steps": 1.0}),
    "dense": ArmInfo(frozenset({"tiny"}), {"steps": 1.0}),
}


def a_loop(
    log: FactLog,
    arms: FakeArms | None = None,
    policy: Policy | None = None,
    generator: Generator | None = None,
    prices: TokenPrices = FREE,
    **options: Any,
) -> TurnLoop:
    """A loop whose policy draws bm25 unless it is told otherwise."""
    model = LanguageModel(generator or base.ScriptedGenerator({}, default=ANSWER), prices)
    models = options.pop("models", {DEFAULT: model})
    explores = Exploration(0.03, options.pop("floor", 0.01))
    policy = policy or Preferring(none=0, bm25=1, dense=0)
    decider = make_decider(
        Serving(policy, 7, scorer=options.pop("scorer", None)),
        explores,
        options.pop("salt", "salt"),
        steps=options.pop("steps", ()),
        clock=lambda: 1000.0,
        health=options.pop("health", None),
    )
    known, search = options.pop("arms_known", ARMS), options.pop("search", (arms or FakeArms()).search)
    return make_turns(
        known, decider, options.pop("embed", FakeEmbedders().embed), search, log, models, **options
    )


async def run(loop: TurnLoop, ask: Ask, seen: list[Event] | None = None) -> list[Event]:
    """Run a turn to its end; `seen` keeps what came before a failure."""
    seen = [] if seen is None else seen
    async for event in loop.turn(ask):
        seen.append(event)
    return seen


def text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Chunk))


async def test_a_turn_decides_retrieves_writes_and_records_both_facts() -> None:
    log, arms = MemoryLog(), FakeArms()
    first, *chunks, last = await run(a_loop(log, arms), CHAT)
    assert isinstance(first, Decided)
    assert isinstance(last, Finished)
    assert text(chunks) == ANSWER
    assert log.committed == [first.decision, last.execution]
    assert first.decision.drawn == first.served == "bm25"
    assert [passage.id for passage in first.retrieval.passages] == ["bm25-1", "bm25-2", "bm25-3", "bm25-4"]
    assert (first.decision.decided_at, first.decision.deadline) == (1000.0, 1060.0)
    assert (first.decision.policy, first.decision.version) == ("preferring", 7)
    done = last.execution
    assert (done.status, done.served, done.answer) == (Status.OK, "bm25", ANSWER)
    assert done.passages == ("bm25-1", "bm25-2", "bm25-3", "bm25-4")
    assert (done.cost.steps, done.cost.completion_tokens) == (1, 3)
    assert done.cost.prompt_tokens > 10


async def test_retrieving_alone_asks_no_language_model() -> None:
    log = MemoryLog()
    generator = base.ScriptedGenerator({})
    first, last = await run(a_loop(log, generator=generator), replace(LOOK_UP, k=2))
    assert isinstance(first, Decided)
    assert len(first.retrieval.passages) == 2
    assert isinstance(last, Finished)
    assert last.execution.answer is None
    assert generator.last_prompt is None


NEAR = "Which text has this title?"
"""A question that the passages of `FakeArms` are near to."""

QUOTING = {"arms_known": {name: replace(arm, answering=Answering(quote=True)) for name, arm in ARMS.items()}}


async def test_the_best_passage_is_quoted_in_place_of_an_answer_of_the_model() -> None:
    log, generator = MemoryLog(), base.ScriptedGenerator({}, default=ANSWER)
    events = await run(a_loop(log, generator=generator, **QUOTING), replace(CHAT, question=NEAR))
    assert generator.last_prompt is None
    assert isinstance(events[0], Decided)
    passages = events[0].retrieval.passages
    passage = passages[0]
    assert text(events) == quote(NEAR, passages)
    assert text(events).startswith(passage.text)
    (_, done) = log.committed
    assert isinstance(done, Execution)
    assert (done.status, done.answer, done.cost.completion_tokens) == (Status.OK, text(events), 0)
    assert done.cost.usd == 0.0


@pytest.mark.parametrize(
    "asked",
    [
        RequestDocument(options={"response_format": {"type": "json_object"}}),
        RequestDocument(stop=("x",)),
        RequestDocument(max_tokens=199),
    ],
)
async def test_a_request_for_a_form_or_a_short_answer_is_answered_by_the_model(
    asked: RequestDocument,
) -> None:
    events = await run(a_loop(MemoryLog(), **QUOTING), replace(CHAT, document=asked))
    assert text(events) == ANSWER


async def test_a_longer_limit_of_tokens_leaves_a_quotation_as_it_is() -> None:
    events = await run(
        a_loop(MemoryLog(), **QUOTING), replace(CHAT, question=NEAR, document=RequestDocument(max_tokens=200))
    )
    assert "(Quoted from [1]" in text(events)


async def find_answered(arm: str, query: Query, k: int) -> Retrieval:
    """Find a passage, with an answer that the arm has had written for 9 and 2 tokens."""
    del query, k
    return Retrieval((Passage(f"{arm}-1", "", "Text."),), answer="The Inn.", usage=Usage(9, 2, usd=0.5))


async def test_an_answer_that_the_arm_selected_is_sent_as_written() -> None:
    log, generator = MemoryLog(), base.ScriptedGenerator({}, default=ANSWER)
    events = await run(
        a_loop(log, generator=generator, search=find_answered),
        replace(CHAT, document=RequestDocument(max_tokens=2)),
    )
    assert text(events) == "The Inn."
    assert generator.last_prompt is None, "it is not written once more"
    (decision, done) = log.committed
    assert isinstance(decision, Decision)
    assert isinstance(done, Execution)
    assert (done.status, done.answer, done.passages) == (Status.OK, "The Inn.", ("bm25-1",))
    cost = done.cost
    assert (cost.prompt_tokens, cost.completion_tokens, cost.usd, cost.steps) == (9, 2, 0.5, 1)
    assert decision.probabilities[decision.arms.index("bm25")] == pytest.approx(1 - 2 * 0.01)


@pytest.mark.parametrize(
    "asked",
    [
        {"document": RequestDocument(options={"response_format": {"type": "json_object"}})},
        {"document": RequestDocument(stop=("x",))},
        {"document": RequestDocument(max_tokens=1)},
        {"messages": ({"role": "system", "content": "Answer in German."}, *CHAT.messages)},
        {"messages": ({**CHAT.messages[0], "parts": [{"type": "image_url", "image_url": {"url": "x"}}]},)},
    ],
)
async def test_what_members_did_not_know_of_is_written_anew(asked: dict[str, Any]) -> None:
    events = await run(a_loop(MemoryLog(), search=find_answered), replace(CHAT, **asked))
    assert text(events) == (
        ANSWER.split()[0] if asked.get("document") == RequestDocument(max_tokens=1) else ANSWER
    )


@pytest.mark.parametrize("how", [{"cite": True}, {"llm": "large"}])
async def test_an_arm_with_a_way_of_writing_writes_anew(how: dict[str, Any]) -> None:
    arms = {name: replace(arm, answering=Answering(**how)) for name, arm in ARMS.items()}
    written = LanguageModel(base.ScriptedGenerator({}, default=ANSWER))
    models = {DEFAULT: written, "large": written}
    loop = a_loop(MemoryLog(), search=find_answered, arms_known=arms, models=models)
    assert text(await run(loop, CHAT)) == ANSWER


async def test_an_empty_answer_of_an_arm_is_written_anew() -> None:
    async def find_unanswered(arm: str, query: Query, k: int) -> Retrieval:
        return replace(await find_answered(arm, query, k), answer="")

    assert text(await run(a_loop(MemoryLog(), search=find_unanswered), CHAT)) == ANSWER


async def find_nothing(query: Query, k: int) -> Retrieval:
    del query, k
    return Retrieval(())


@pytest.mark.parametrize("question", [QUESTION, NEAR])
async def test_where_nothing_near_is_found_the_answer_says_so(question: str) -> None:
    found = {} if question == QUESTION else {"bm25": find_nothing}
    known = {name: replace(arm, sources=("manuals",)) for name, arm in QUOTING["arms_known"].items()}
    generator = base.ScriptedGenerator({}, default=ANSWER)
    loop = a_loop(MemoryLog(), FakeArms(found), generator=generator, arms_known=known)
    assert text(await run(loop, replace(CHAT, question=question))) == "Nothing found in manuals about this."
    assert generator.last_prompt is None


async def test_an_arm_that_searches_nothing_has_the_model_answer() -> None:
    known = {name: replace(arm, searches=False) for name, arm in QUOTING["arms_known"].items()}
    assert text(await run(a_loop(MemoryLog(), arms_known=known), CHAT)) == ANSWER


async def test_what_the_caller_wishes_reaches_the_language_model() -> None:
    generator = base.ScriptedGenerator({}, default="one two three. four")
    ask = replace(
        CHAT, document=RequestDocument(max_tokens=2, temperature=0.5, top_p=0.9, seed=3, stop=(".",))
    )
    events = await run(a_loop(MemoryLog(), generator=generator), ask)
    assert text(events) == "one two"
    assert isinstance(events[-1], Finished)
    assert events[-1].finish_reasons == ("length",)
    prompt = generator.last_prompt
    assert prompt is not None
    assert (prompt.max_tokens, prompt.temperature, prompt.top_p, prompt.seed, prompt.stop) == (
        2,
        0.5,
        0.9,
        3,
        (".",),
    )
    assert "text 1" in prompt.messages[0]["content"]
    assert prompt.messages[-1] == {"role": "user", "content": QUESTION}


# -- before anything leaves ------------------------------------------------------------------------


async def test_nothing_is_yielded_before_the_decision_is_durable() -> None:
    log, arms = MemoryLog(), FakeArms()
    log.held = True
    turn = a_loop(log, arms).turn(CHAT)
    first = asyncio.ensure_future(anext(turn))
    while not arms.calls:
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not first.done(), "the arm has answered; the log has not"
    assert log.committed == []
    log.release()
    decided = await first
    assert isinstance(decided, Decided)
    assert log.committed == [decided.decision]
    await turn.aclose()


async def test_without_a_log_there_is_no_answer() -> None:
    log = MemoryLog()
    log.refuse = Decision
    seen: list[Event] = []
    with pytest.raises(LogUnavailableError, match="the disk is full"):
        await run(a_loop(log), CHAT, seen)
    assert seen == []
    assert log.committed == []


async def test_a_log_that_fails_is_told_even_when_the_arm_fails_too() -> None:
    log = MemoryLog()
    log.refuse = Decision
    with pytest.raises(LogUnavailableError):
        await run(a_loop(log, FakeArms({"bm25": failing})), CHAT)
    assert log.committed == []


async def test_a_turn_whose_end_cannot_be_recorded_is_not_finished() -> None:
    log = MemoryLog()
    log.refuse = Execution
    seen: list[Event] = []
    with pytest.raises(LogUnavailableError):
        await run(a_loop(log), CHAT, seen)
    assert not any(isinstance(event, Finished) for event in seen)
    assert log.decision.id == "d-1"


# -- failures ---------------------------------------------------------------------------------------


async def test_a_failed_arm_is_recorded_and_not_replaced() -> None:
    log, arms = MemoryLog(), FakeArms({"bm25": failing})
    with pytest.raises(TurnError, match="ArmError: the index is gone") as raised:
        await run(a_loop(log, arms), CHAT)
    assert (raised.value.execution.decision_id, raised.value.execution.status) == ("d-1", Status.ARM_FAILED)
    assert arms.asked == ["bm25"]
    assert log.decision.drawn == "bm25"
    assert (log.execution.served, log.execution.status) == (None, Status.ARM_FAILED)
    assert log.execution.error == "ArmError: the index is gone"


async def test_with_a_fallback_the_drawn_and_the_served_arm_are_both_recorded() -> None:
    log, arms = MemoryLog(), FakeArms({"bm25": failing})
    first, *_, last = await run(a_loop(log, arms, fallback="none"), CHAT)
    assert isinstance(first, Decided)
    assert isinstance(last, Finished)
    assert arms.asked == ["bm25", "none"]
    assert (log.decision.drawn, first.served) == ("bm25", "none")
    assert log.decision.propensity == pytest.approx(0.98), "the propensity is of what was drawn"
    assert (log.execution.served, log.execution.status) == ("none", Status.FELL_BACK)
    assert log.execution.error == "ArmError: the index is gone"
    assert log.execution.cost.steps == 0, "the steps of what answered"


async def test_a_fallback_that_fails_too_ends_the_turn() -> None:
    log, arms = MemoryLog(), FakeArms({"bm25": failing, "none": failing})
    with pytest.raises(TurnError):
        await run(a_loop(log, arms, fallback="none"), CHAT)
    assert arms.asked == ["bm25", "none"]
    assert (log.execution.served, log.execution.status) == (None, Status.ARM_FAILED)


async def test_the_fallback_itself_is_not_run_twice() -> None:
    arms = FakeArms({"bm25": failing})
    with pytest.raises(TurnError):
        await run(a_loop(MemoryLog(), arms, fallback="bm25"), CHAT)
    assert arms.asked == ["bm25"]


async def test_an_arm_that_hangs_is_given_up() -> None:
    log = MemoryLog()
    with pytest.raises(TurnError) as raised:
        await run(a_loop(log, FakeArms({"bm25": hanging}), arm_timeout_s=0.01), CHAT)
    assert raised.value.execution.status is Status.ARM_FAILED
    assert log.execution.error == "TimeoutError"
    assert log.execution.cost.retrieval_s >= 0.01


async def test_an_encoder_that_hangs_is_given_up_before_anything_is_decided() -> None:
    async def embed(_question: str, _backbones: frozenset[str]) -> Any:
        await asyncio.Event().wait()

    log = MemoryLog()
    features = FeatureSpec(embedding=policy_features.EmbeddingSpec(backbone="tiny", dims=2))
    loop = a_loop(log, embed=embed, features=features, arm_timeout_s=0.01)
    with pytest.raises(ArmError, match=r"no embedding of the question by 'tiny' within 0\.01 s"):
        await run(loop, CHAT)
    assert log.committed == []


async def test_an_encoder_that_fails_for_the_drawn_arm_is_a_failure_of_the_arm() -> None:
    log, embedders = MemoryLog(), FakeEmbedders()
    embedders.error = ArmError("no encoder")
    loop = a_loop(log, policy=Preferring(none=0, bm25=0, dense=1), embed=embedders.embed)
    with pytest.raises(TurnError, match="no encoder"):
        await run(loop, CHAT)
    assert log.execution.status is Status.ARM_FAILED


@pytest.mark.parametrize("tokens", [0, 2])
async def test_a_language_model_that_fails_leaves_what_it_wrote(tokens: int) -> None:
    log = MemoryLog()
    generator = base.ScriptedGenerator(
        {}, default=ANSWER, error=GeneratorError("out of memory"), fail_after=tokens
    )
    seen: list[Event] = []
    with pytest.raises(TurnError, match="out of memory") as raised:
        await run(a_loop(log, generator=generator), CHAT, seen)
    assert raised.value.execution.status is Status.LLM_FAILED
    assert isinstance(seen[0], Decided)
    assert len(seen) == 1 + tokens
    assert (log.execution.served, log.execution.status) == ("bm25", Status.LLM_FAILED)
    assert log.execution.answer == text(seen)


class Stuck(Generator):
    """Writes one word and then nothing."""

    model = "stuck"

    def __init__(self) -> None:
        self.closed = False

    async def stream(self, prompt: Prompt) -> Any:
        del prompt
        try:
            yield Chunk("The")
            await asyncio.Event().wait()
        finally:
            self.closed = True

    async def close(self) -> None: ...


async def test_a_language_model_that_hangs_is_given_up_and_stopped() -> None:
    log, generator = MemoryLog(), Stuck()
    with pytest.raises(TurnError) as raised:
        await run(a_loop(log, generator=generator, llm_timeout_s=0.01), CHAT)
    assert raised.value.execution.status is Status.LLM_TIMEOUT
    assert (log.execution.answer, log.execution.served) == ("The", "bm25")
    assert log.execution.cost.llm_s >= 0.01
    assert generator.closed


# -- clients that go away ----------------------------------------------------------------------------


async def test_a_client_that_goes_away_mid_stream_leaves_a_cancelled_execution() -> None:
    log, generator = MemoryLog(), Stuck()
    async with aclosing(a_loop(log, generator=generator).turn(CHAT)) as turn:
        assert isinstance(await anext(turn), Decided)
        assert await anext(turn) == Chunk("The")
    assert generator.closed
    await _until(lambda: len(log.committed) == 2)
    assert (log.execution.status, log.execution.answer) == (Status.CANCELLED, "The")
    assert log.execution.cost.completion_tokens == 1
    assert log.execution.cost.prompt_tokens > 10, "about the words that it was given"


async def _until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0)


async def _cancelled(task: "asyncio.Task[Any]", when: Awaitable[None]) -> None:
    await when
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_request_cancelled_while_the_log_works_keeps_both_facts_in_order() -> None:
    log, arms = MemoryLog(), FakeArms()
    log.held = True
    task = asyncio.create_task(run(a_loop(log, arms), CHAT))
    await _cancelled(task, _until(lambda: arms.calls))
    log.release()
    await _until(lambda: len(log.committed) == 2)
    assert [type(fact) for fact in log.committed] == [Decision, Execution]
    assert log.execution.status is Status.CANCELLED


async def test_an_arm_s_failure_is_recorded_where_its_request_is_cancelled_before_the_commit() -> None:
    log, arms = MemoryLog(), FakeArms({"bm25": failing})
    log.held = True
    task = asyncio.create_task(run(a_loop(log, arms), CHAT))
    await _until(lambda: arms.calls)
    for _ in range(10):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    log.release()
    await _until(lambda: len(log.committed) == 2)
    assert (log.execution.status, log.execution.error) == (Status.ARM_FAILED, "ArmError: the index is gone")


async def test_a_cancelled_request_whose_decision_was_refused_records_nothing() -> None:
    log, arms = MemoryLog(), FakeArms()
    log.held, log.refuse = True, Decision
    task = asyncio.create_task(run(a_loop(log, arms), CHAT))
    await _cancelled(task, _until(lambda: arms.calls))
    log.release()
    for _ in range(10):
        await asyncio.sleep(0)
    assert log.committed == [], "the id may belong to another turn, whose execution this would be"


async def test_a_request_cancelled_at_its_very_end_is_finished_all_the_same() -> None:
    log = MemoryLog()
    log.held = True
    task = asyncio.create_task(run(a_loop(log), LOOK_UP))
    await _cancelled(task, _until(lambda: log.waiting))
    log.release()
    assert [type(fact) for fact in log.committed] == [Decision, Execution]
    assert log.execution.status is Status.OK


async def test_a_quick_search_is_committed_together_with_its_decision() -> None:
    log = MemoryLog()
    log.held = True
    task = asyncio.create_task(run(a_loop(log), LOOK_UP))
    await _until(lambda: log.waiting)
    ((facts, _),) = log.waiting
    assert [type(fact) for fact in facts] == [Decision, Execution]
    assert not task.done(), "nothing leaves before it is durable"
    log.release()
    first, last = await task
    assert isinstance(first, Decided)
    assert isinstance(last, Finished)


async def test_the_decision_of_a_slow_search_is_committed_before_the_search_ends() -> None:
    found = asyncio.Event()

    async def slow(query: Query, k: int) -> Retrieval:
        del query, k
        await found.wait()
        return Retrieval()

    log = MemoryLog()
    task = asyncio.create_task(run(a_loop(log, FakeArms({"bm25": slow})), LOOK_UP))
    await _until(lambda: log.committed)
    assert [type(fact) for fact in log.committed] == [Decision]
    found.set()
    await task
    assert [type(fact) for fact in log.committed] == [Decision, Execution]


async def test_a_full_log_is_tried_again_at_the_end_of_a_slow_search(monkeypatch: pytest.MonkeyPatch) -> None:
    found, refused, errors = asyncio.Event(), list[object](), list[object]()

    async def slow(query: Query, k: int) -> Retrieval:
        del query, k
        await found.wait()
        return Retrieval()

    def refuse(*facts: object) -> None:
        refused.append(facts)
        raise LogUnavailableError("the log has 10,000 facts to commit")

    asyncio.get_running_loop().set_exception_handler(lambda _, what: errors.append(what))
    log = MemoryLog()
    append = log.append
    monkeypatch.setattr(log, "append", refuse)
    task = asyncio.create_task(run(a_loop(log, FakeArms({"bm25": slow})), LOOK_UP))
    await _until(lambda: refused)
    monkeypatch.setattr(log, "append", append)
    found.set()
    await task
    assert [type(fact) for fact in log.committed] == [Decision, Execution]
    assert errors == [], "of the timer"


async def test_who_leaves_while_the_log_refuses_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_facts: object) -> None:
        raise LogUnavailableError("the log is closed")

    log, arms = MemoryLog(), FakeArms({"bm25": hanging})
    monkeypatch.setattr(log, "append", refuse)
    task = asyncio.create_task(run(a_loop(log, arms), LOOK_UP))
    await _cancelled(task, _until(lambda: arms.calls))


async def test_a_quick_search_that_fails_is_committed_together_with_its_decision() -> None:
    log = MemoryLog()
    log.held = True
    task = asyncio.create_task(run(a_loop(log, FakeArms({"bm25": failing})), LOOK_UP))
    await _until(lambda: log.waiting)
    log.release()
    with pytest.raises(TurnError, match="the index is gone"):
        await task
    assert [type(fact) for fact in log.committed] == [Decision, Execution]
    assert log.execution.status is Status.ARM_FAILED


@pytest.mark.parametrize("words", [0, 1])
async def test_who_leaves_before_the_last_chunk_pays_for_what_was_read(words: int) -> None:
    asked = asyncio.Event()

    class Reading(Stuck):
        async def stream(self, prompt: Prompt) -> Any:
            del prompt
            if words:
                yield Chunk("The")
            asked.set()
            await asyncio.Event().wait()

    log, long = MemoryLog(), replace(CHAT, messages=({"role": "user", "content": "x" * 4000},))
    prices = TokenPrices(usd_per_kilotoken_in=1.0, usd_per_kilotoken_out=1000.0)
    loop = a_loop(log, generator=Reading(), prices=prices)
    await _cancelled(asyncio.create_task(run(loop, long)), _until(asked.is_set))
    await _until(lambda: len(log.committed) == 2)
    cost = log.execution.cost
    assert (log.execution.status, cost.completion_tokens) == (Status.CANCELLED, words)
    assert 1000 <= cost.prompt_tokens < 1200
    assert cost.usd == cost.prompt_tokens / 1000 + words


async def test_a_replaced_model_uses_up_time_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    passed, clock = [0.0], loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + passed[0])

    class Gone(Generator):
        """Fails after 50 s."""

        model = "large"

        async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
            assert 119.0 < (prompt.patience_s or 0.0) <= 120.0
            passed[0] += 50.0
            raise GeneratorError("large is gone")
            yield Chunk()

    other = base.ScriptedGenerator({}, default=ANSWER)
    models = {DEFAULT: LanguageModel(other), "large": LanguageModel(Gone())}
    infos = {**ARMS, "bm25": replace(ARMS["bm25"], answering=Answering(llm="large"))}
    log = MemoryLog()
    turn = a_loop(log, models=models, arms_known=infos, fallback="none", llm_timeout_s=120.0)
    assert text(await run(turn, CHAT)) == ANSWER
    assert (log.decision.drawn, log.execution.served) == ("bm25", "none")
    assert other.last_prompt is not None
    assert 69.0 < (other.last_prompt.patience_s or 0.0) <= 70.0


async def test_a_time_out_reaches_the_reader_and_never_cancels_it() -> None:
    async def numbers() -> Any:
        yield 1
        await asyncio.Event().wait()

    loop = asyncio.get_running_loop()
    deadline = loop.time() + 0.01
    items = read_until(numbers(), deadline)
    assert await anext(items) == 1
    while loop.time() < deadline:  # the reader is slow, not the writer
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await anext(items)


# -- which arm ----------------------------------------------------------------------------------------


def drawn(loop: TurnLoop, **wishes: Any) -> Decision:
    _, draft = asyncio.run(loop.describe(replace(CHAT, **wishes), loop.arms, loop.decider.serving))
    loop.decider.narrow(draft)
    return loop.decider.decide(draft)


def test_a_forced_arm_is_recorded_with_probability_one() -> None:
    decision = drawn(a_loop(MemoryLog()), forced="dense")
    assert (decision.drawn, decision.arms, decision.probabilities) == ("dense", ("dense",), (1.0,))
    assert decision.mode is Mode.FORCED


def test_a_decision_keeps_what_the_request_says_of_itself() -> None:
    decision = drawn(a_loop(MemoryLog()), decision_id="d-9", episode_id="e-1", request_digest="abc")
    assert (decision.id, decision.episode_id, decision.request_digest) == ("d-9", "e-1", "abc")
    plain = drawn(a_loop(MemoryLog()))
    assert (plain.episode_id, plain.request_digest, plain.deferred) == (None, "", False)
    assert (plain.candidate, plain.share, plain.shadow) == (0, 0.0, ())


def test_a_forced_arm_that_is_not_live_is_refused_with_those_that_are() -> None:
    with pytest.raises(NoEligibleArmError, match=r"'gone' .*available: none, bm25, dense"):
        list_allowed(replace(CHAT, forced="gone"), ARMS)


def test_without_exploring_the_most_probable_arm_is_taken_and_recorded_as_greedy() -> None:
    loop = a_loop(MemoryLog(), policy=Preferring(none=0.2, bm25=0.3, dense=0.5))
    decisions = [drawn(loop, decision_id=f"d-{i}", explore=False) for i in range(30)]
    assert {decision.drawn for decision in decisions} == {"dense"}
    assert {decision.mode for decision in decisions} == {Mode.GREEDY}
    assert decisions[0].propensity == pytest.approx(0.97 * 0.5 + 0.01)


def test_excluded_disabled_and_not_allowed_arms_are_neither_drawn_nor_listed() -> None:
    loop = a_loop(MemoryLog(), policy=Preferring(none=1, bm25=1, dense=1))
    assert drawn(loop, excluded=frozenset({"bm25"})).arms == ("none", "dense")
    assert drawn(loop, allowed=frozenset({"bm25", "none"})).arms == ("none", "bm25")
    assert drawn(loop, allowed=frozenset({"bm25"}), excluded=frozenset({"none"})).propensity == 1.0
    loop.arms = {**ARMS, "none": replace(ARMS["none"], enabled=False)}
    assert drawn(loop).arms == ("bm25", "dense")


async def test_without_an_eligible_arm_nothing_is_decided() -> None:
    log = MemoryLog()
    with pytest.raises(NoEligibleArmError, match="no arm can answer: 'none' is excluded"):
        await run(a_loop(log), replace(CHAT, excluded=frozenset(ARMS)))
    assert log.committed == []


async def test_a_feature_that_is_no_number_is_refused_before_anything_is_decided() -> None:
    log = MemoryLog()
    with pytest.raises(FeatureError, match="'load' is nan"):
        await run(a_loop(log), replace(CHAT, context={"load": float("nan")}))
    assert log.committed == []


def test_the_same_id_draws_the_same_arm() -> None:
    loop = a_loop(MemoryLog(), policy=Preferring(none=1, bm25=1, dense=1))
    ids = [f"d-{i}" for i in range(60)]
    first = [drawn(loop, decision_id=name).drawn for name in ids]
    again = [drawn(loop, decision_id=name).drawn for name in reversed(ids)]
    assert first == again[::-1]
    assert set(first) == set(ARMS)
    loop.decider.salt = "another"
    assert [drawn(loop, decision_id=name).drawn for name in ids] != first


@given(
    st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3).filter(lambda w: sum(w) > 0.01),
    st.floats(0.001, 1 / 3),
)
def test_the_propensity_is_that_of_the_mixed_distribution(weights: list[float], floor: float) -> None:
    policy = Preferring(**dict(zip(ARMS, weights, strict=True)))
    decision = drawn(a_loop(MemoryLog(), policy=policy, floor=floor))
    expected = sampling.mix_floor(np.array(weights) / sum(weights), floor)
    assert np.array(decision.probabilities) == pytest.approx(expected)
    assert decision.propensity == decision.probabilities[decision.arms.index(decision.drawn)]
    assert min(decision.probabilities) >= floor * (1 - 1e-9)


def test_a_floor_too_large_for_the_arms_that_are_left_is_uniform() -> None:
    decision = drawn(a_loop(MemoryLog(), floor=1 / 3), allowed=frozenset({"none", "bm25"}))
    assert decision.probabilities == pytest.approx((1 / 3, 2 / 3))
    assert drawn(a_loop(MemoryLog(), floor=1 / 3), allowed=frozenset({"none"})).probabilities == (1.0,)


def test_a_decision_says_what_was_mixed_in_and_whether_it_waits_to_be_shown() -> None:
    loop = a_loop(MemoryLog(), floor=0.4)
    assert drawn(loop).floor == pytest.approx(1 / 3), "as much as three arms can have"
    assert drawn(loop, allowed=frozenset({"none", "bm25"})).floor == 0.4
    assert drawn(loop, explore=False).floor == pytest.approx(1 / 3)
    assert drawn(loop, forced="none").floor is None
    assert not drawn(loop).deferred
    assert drawn(loop, deferred=True).deferred


@pytest.mark.parametrize("wishes", [{}, {"explore": False}, {"forced": "dense"}, {"excluded": {"none"}}])
def test_a_distribution_can_be_computed_again_from_its_row(wishes: dict[str, Any]) -> None:
    policy = LinUCB()
    decision = drawn(a_loop(MemoryLog(), policy=policy, floor=0.123), **wishes)
    again = compute_served_distribution(policy, decision.context, decision.arms, decision.floor or 0.0)
    assert decision.probabilities == tuple(again.tolist())


# -- how the arms are doing ------------------------------------------------------------------------------


class Gate:
    """An arm that answers once it is opened, and then at once."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def __call__(self, _query: Query, _k: int) -> Retrieval:
        await self.opened.wait()
        return Retrieval()


def health(failures: int = 3, **caps: int) -> ArmHealth:
    """A standing whose clock stands still: who is down stays down."""
    return ArmHealth(failures, 5.0, caps, clock=lambda: 0.0)


@pytest.mark.parametrize("outcome", ["fails", "hangs"])
async def test_an_arm_that_fails_again_and_again_is_masked_and_the_rest_renormalised(outcome: str) -> None:
    log, arms = MemoryLog(), FakeArms({"bm25": failing if outcome == "fails" else hanging})
    policy = Preferring(none=1, bm25=8, dense=1)
    loop = a_loop(log, arms, policy, health=health(2), arm_timeout_s=0.01)
    for i in range(2):
        with pytest.raises(TurnError):
            await run(loop, replace(LOOK_UP, decision_id=f"d-{i}", forced="bm25"))
    log.committed.clear()
    await run(loop, LOOK_UP)
    assert log.decision.arms == ("none", "dense")
    assert log.decision.probabilities == pytest.approx((0.5, 0.5))


async def test_a_language_model_that_fails_puts_no_arm_down() -> None:
    generator = base.ScriptedGenerator({}, error=GeneratorError("out of memory"))
    loop = a_loop(MemoryLog(), generator=generator, health=health(1))
    with pytest.raises(TurnError):
        await run(loop, CHAT)
    assert drawn_now(loop).drawn == "bm25"


def drawn_now(loop: TurnLoop) -> Decision:
    return draw(loop.decider, LOOK_UP, Context("?"), loop.arms)


async def test_a_client_that_leaves_puts_no_arm_down_and_frees_its_place() -> None:
    arms = FakeArms({"bm25": hanging})
    loop = a_loop(MemoryLog(), arms, health=health(1, bm25=1))
    task = asyncio.create_task(run(loop, CHAT))
    await _until(lambda: arms.calls)
    assert drawn_now(loop).arms == ("none", "dense")
    await _cancelled(task, _until(lambda: True))
    assert drawn_now(loop).arms == ("none", "bm25", "dense")


async def test_an_arm_at_its_cap_is_masked_before_the_draw() -> None:
    log, gate = MemoryLog(), Gate()
    loop = a_loop(log, FakeArms({"bm25": gate}), health=health(bm25=3))
    turns = [
        asyncio.create_task(run(loop, replace(LOOK_UP, decision_id=f"d-{i}", forced=forced)))
        for i, forced in enumerate(["bm25", None, "bm25", None, None])
    ]
    await _until(lambda: len(log.committed) == 3 + 2 * 2)
    decisions = {one.id: one.arms for one in log.committed if isinstance(one, Decision)}
    assert [decisions[f"d-{i}"] for i in range(5)] == [
        ("bm25",),
        ("none", "bm25", "dense"),
        ("bm25",),
        ("none", "dense"),
        ("none", "dense"),
    ]
    gate.opened.set()
    await asyncio.gather(*turns)
    assert drawn_now(loop).arms == ("none", "bm25", "dense"), "the places are free again"


@pytest.mark.parametrize("wishes", [{"forced": "bm25"}, {"allowed": frozenset({"bm25"})}])
async def test_without_room_nothing_is_drawn(wishes: dict[str, Any]) -> None:
    log, arms = MemoryLog(), FakeArms({"bm25": hanging})
    loop = a_loop(log, arms, health=health(bm25=1))
    task = asyncio.create_task(run(loop, LOOK_UP))
    await _until(lambda: arms.calls)
    log.committed.clear()
    with pytest.raises(OverloadedError, match="all eligible arms are busy: bm25"):
        await run(loop, replace(LOOK_UP, decision_id="d-2", **wishes))
    assert log.committed == []
    await _cancelled(task, _until(lambda: True))


async def test_the_place_of_an_arm_is_free_while_the_model_writes() -> None:
    generator = Stuck()
    loop = a_loop(MemoryLog(), generator=generator, health=health(bm25=1))
    async with aclosing(loop.turn(CHAT)) as turn:
        assert isinstance(await anext(turn), Decided)
        assert await anext(turn) == Chunk("The")
        assert "bm25" in drawn_now(loop).arms


async def test_an_arm_keeps_its_place_while_its_question_is_embedded() -> None:
    gate, asked = asyncio.Event(), []

    async def embed(_question: str, _backbones: frozenset[str]) -> dict[str, Any]:
        asked.append(1)
        await gate.wait()
        return {"tiny": np.ones(DIM, dtype=np.float32)}

    loop = a_loop(MemoryLog(), embed=embed, health=health(dense=1))
    task = asyncio.create_task(run(loop, replace(LOOK_UP, forced="dense")))
    await _until(lambda: asked)
    assert "dense" not in drawn_now(loop).arms
    gate.set()
    await task
    assert "dense" in drawn_now(loop).arms


async def test_a_fallback_without_room_is_not_asked() -> None:
    log, arms = MemoryLog(), FakeArms({"bm25": failing, "none": hanging})
    loop = a_loop(log, arms, fallback="none", health=health(none=1))
    gate = Gate()
    arms.behaviour["bm25"] = lambda _query, _k: fail_after(gate)
    turn = asyncio.create_task(run(loop, LOOK_UP))
    await _until(lambda: arms.calls)
    other = asyncio.create_task(run(loop, replace(LOOK_UP, decision_id="d-2", forced="none")))
    await _until(lambda: len(arms.calls) == 2)
    gate.opened.set()
    with pytest.raises(TurnError, match="the index is gone"):
        await turn
    assert arms.asked == ["bm25", "none"], "by the other turn"
    assert log.execution.status is Status.ARM_FAILED
    await _cancelled(other, _until(lambda: True))


async def fail_after(gate: Gate) -> Retrieval:
    await gate.opened.wait()
    raise ArmError("the index is gone")


async def test_a_fallback_that_is_down_is_not_asked() -> None:
    log, arms = MemoryLog(), FakeArms({"bm25": failing, "none": failing})
    loop = a_loop(log, arms, fallback="none", health=health(1))
    with pytest.raises(TurnError):
        await run(loop, replace(LOOK_UP, decision_id="d-0", forced="none"))
    with pytest.raises(TurnError):
        await run(loop, LOOK_UP)
    assert arms.asked == ["none", "bm25"]


# -- a turn that was cut off -----------------------------------------------------------------------------


async def finish(loop: TurnLoop, ask: Ask, decision: Decision) -> list[Event]:
    return [event async for event in loop.repeat(ask, decision, on_commit=lambda _: None)]


async def say_again(loop: TurnLoop, ask: Ask, decision: Decision, arm: str | None) -> Event:
    """Return the passages of a turn, found again."""
    first, last = [event async for event in loop.repeat(replace(ask, messages=()), decision, arm)]
    assert isinstance(last, Finished)
    return first


@pytest.mark.parametrize("ask", [CHAT, LOOK_UP, replace(CHAT, forced="dense"), replace(CHAT, explore=False)])
async def test_a_turn_that_was_cut_off_is_finished_as_it_would_have_been(ask: Ask) -> None:
    whole, cut = MemoryLog(), MemoryLog()
    arms, again = FakeArms(), FakeArms()
    policy = Preferring(none=1, bm25=1, dense=1)
    events = await run(a_loop(whole, arms, policy), ask)
    resumed = await finish(
        a_loop(cut, again, policy=Preferring(none=1, bm25=0, dense=0)), ask, whole.decision
    )
    assert [type(event) for event in resumed] == [type(event) for event in events]
    assert resumed[0] == events[0]
    assert text(resumed) == text(events)
    assert isinstance(resumed[-1], Finished)
    assert cut.committed == [resumed[-1].execution], "and no second decision"
    assert replace(cut.execution, cost=whole.execution.cost) == whole.execution
    assert (cut.execution.cost.steps, cut.execution.cost.prompt_tokens) == (
        whole.execution.cost.steps,
        whole.execution.cost.prompt_tokens,
    )
    ((arm, query, k),), ((same, as_before, depth),) = arms.calls, again.calls
    assert (arm, query.seed, k) == (same, as_before.seed, depth)


async def test_a_resumed_turn_that_fails_is_recorded_or_falls_back() -> None:
    log, arms = MemoryLog(), FakeArms({"bm25": failing})
    decision = drawn_now(a_loop(MemoryLog()))
    with pytest.raises(TurnError) as raised:
        await finish(a_loop(log, arms), LOOK_UP, decision)
    assert raised.value.execution.decision_id == decision.id == log.execution.decision_id
    assert log.execution.status is Status.ARM_FAILED
    log.committed.clear()
    first, last = await finish(a_loop(log, arms, fallback="none"), LOOK_UP, decision)
    assert isinstance(first, Decided)
    assert isinstance(last, Finished)
    assert (first.served, last.execution.status) == ("none", Status.FELL_BACK)


async def test_a_resumed_turn_that_is_cut_off_again_is_recorded() -> None:
    log, arms = MemoryLog(), FakeArms({"bm25": hanging})
    task = asyncio.create_task(finish(a_loop(log, arms), LOOK_UP, drawn_now(a_loop(MemoryLog()))))
    await _cancelled(task, _until(lambda: arms.calls))
    await _until(lambda: log.committed)
    assert log.execution.status is Status.CANCELLED


async def test_a_turn_is_finished_with_an_arm_that_was_live_before() -> None:
    log = MemoryLog()
    decision = drawn_now(a_loop(log))
    live = {"none": ARMS["none"]}
    loop = a_loop(log, former=ARMS)
    loop.arms = live
    first, _ = await finish(loop, LOOK_UP, decision)
    assert isinstance(first, Decided)
    assert first.served == "bm25"


async def test_without_room_a_turn_is_neither_finished_nor_said_again() -> None:
    log, arms = MemoryLog(), FakeArms({"bm25": hanging})
    loop = a_loop(log, arms, health=health(bm25=1))
    task = asyncio.create_task(run(loop, LOOK_UP))
    await _until(lambda: log.committed)
    before = list(log.committed)
    with pytest.raises(OverloadedError):
        await finish(loop, LOOK_UP, log.decision)
    with pytest.raises(OverloadedError):
        await say_again(loop, LOOK_UP, log.decision, "bm25")
    assert log.committed == before
    await _cancelled(task, _until(lambda: True))


# -- embedding ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arm", "seen", "calls"),
    [
        ("bm25", None, []),
        ("dense", None, [frozenset({"tiny"})]),
        ("bm25", "tiny", [frozenset({"tiny"})]),
        ("dense", "tiny", [frozenset({"tiny"})]),
        ("dense", "other", [frozenset({"other"}), frozenset({"tiny"})]),
    ],
)
async def test_a_question_is_embedded_once_a_backbone_and_only_when_somebody_looks(
    arm: str, seen: str | None, calls: list[frozenset[str]]
) -> None:
    embedders, arms = FakeEmbedders(), FakeArms()
    features = FeatureSpec(embedding=policy_features.EmbeddingSpec(backbone=seen, dims=4) if seen else None)
    policy = Preferring(**{name: float(name == arm) for name in ARMS})
    log = MemoryLog()
    await run(a_loop(log, arms, policy, embed=embedders.embed, features=features), CHAT)
    assert log.decision.drawn == arm
    assert embedders.calls == calls
    assert len(log.decision.context.embedding) == (4 if seen else 0)
    (_, query, _) = arms.calls[0]
    assert query.embeddings.keys() == frozenset().union(*calls)
    assert all(vector.shape == (DIM,) for vector in query.embeddings.values())


async def test_a_repeated_answer_is_found_again_with_the_same_seed_and_no_new_fact() -> None:
    log, arms = MemoryLog(), FakeArms()
    loop = a_loop(log, arms)
    first, *_ = await run(loop, CHAT)
    before = list(log.committed)
    again = await say_again(loop, CHAT, log.decision, log.execution.served)
    assert again == first
    assert arms.calls[0] == arms.calls[1]
    assert log.committed == before


async def test_a_repeated_answer_needs_no_encoder_that_its_arm_does_not() -> None:
    log, embedders = MemoryLog(), FakeEmbedders()
    loop = a_loop(log, embed=embedders.embed, scorer=Advice(**ALL))
    first, *_ = await run(loop, CHAT)
    assert log.decision.drawn == "bm25"
    assert embedders.calls == [frozenset({"tiny"})], "for the router"
    assert await say_again(loop, CHAT, log.decision, log.execution.served) == first
    assert len(embedders.calls) == 1


async def test_a_repeated_answer_whose_arm_hangs_is_given_up() -> None:
    log, arms = MemoryLog(), FakeArms()
    loop = a_loop(log, arms, arm_timeout_s=0.01)
    await run(loop, CHAT)
    arms.behaviour["bm25"] = hanging
    with pytest.raises(TurnError, match="TimeoutError"):
        await say_again(loop, CHAT, log.decision, log.execution.served)


async def test_the_seed_of_an_arm_is_a_hash_of_the_decision_that_a_later_release_computes_again() -> None:
    arms = FakeArms()
    await run(a_loop(MemoryLog(), arms, salt="salt"), CHAT)
    ((_, query, _),) = arms.calls
    assert query.seed == int(sampling.uniform_from("d-1", "salt/arm") * 2**53)


async def test_the_model_reads_as_many_words_of_the_passages_as_are_configured() -> None:
    long = Passage("p", "title", " ".join(f"w{i}" for i in range(1000)), 1.0)

    async def find(_query: Query, _k: int) -> Retrieval:
        return Retrieval((long,))

    for answering, words in ((Answering(word_budget=20), 20), (Answering(), 400)):
        generator = base.ScriptedGenerator({}, default=ANSWER)
        infos = {**ARMS, "bm25": replace(ARMS["bm25"], answering=answering)}
        await run(a_loop(MemoryLog(), FakeArms({"bm25": find}), generator=generator, arms_known=infos), CHAT)
        assert generator.last_prompt is not None
        read = generator.last_prompt.messages[0]["content"]
        last = words - 2  # after the title
        assert f"w{last}" in read
        assert f"w{last + 1}" not in read


async def test_the_seconds_of_the_arm_and_of_the_model_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0

    async def search(_query: Query, _k: int) -> Retrieval:
        nonlocal now
        now += 0.5
        return Retrieval(steps=1)

    class Slow(base.ScriptedGenerator):
        async def stream(self, prompt: Prompt) -> AsyncIterator[Chunk]:
            nonlocal now
            now += 2.0
            async for chunk in super().stream(prompt):
                yield chunk

    for module in ("search", "answer"):
        clock = SimpleNamespace(perf_counter=lambda: now)
        monkeypatch.setattr(f"armwise.agent.turn.{module}.time", clock)
    log = MemoryLog()
    await run(a_loop(log, FakeArms({"bm25": search}), generator=Slow({}, default=ANSWER)), CHAT)
    assert (log.execution.cost.retrieval_s, log.execution.cost.llm_s) == (0.5, 2.0)


# -- a router ------------------------------------------------------------------------------------------


class Advice:
    """A router that scores as it is told.

    Attributes:
        shown: The arms that it was asked about each time, and what these had found.
        error: Raised by each call when set.
    """

    backbone = "tiny"

    def __init__(self, k: int = 0, **scores: float) -> None:
        self.k, self.arms, self._scores = k, frozenset(scores), scores
        self.shown: list[tuple[list[str], dict[str, Retrieval]]] = []
        self.error: Exception | None = None

    async def scores(
        self, query: Query, arms: Sequence[str], found: Mapping[str, Retrieval]
    ) -> dict[str, float]:
        assert "tiny" in query.embeddings
        if self.error is not None:
            raise self.error
        self.shown.append((list(arms), dict(found)))
        return {arm: self._scores[arm] for arm in arms}


ALL = {"none": 0.1, "bm25": 0.2, "dense": 0.9}


async def test_the_scores_of_a_router_are_features_in_the_logged_context() -> None:
    log, arms, advice = MemoryLog(), FakeArms(), Advice(**ALL)
    await run(a_loop(log, arms, scorer=advice), CHAT)
    assert log.decision.context.arms == {
        "none": {"steps": 0.0, "router": 0.1},
        "bm25": {"steps": 1.0, "router": 0.2},
        "dense": {"steps": 1.0, "router": 0.9},
    }
    assert ARMS["dense"].features == {"steps": 1.0}, "what is known of an arm is not written to"
    assert advice.shown == [(["none", "bm25", "dense"], {})]
    assert arms.asked == ["bm25"]
    assert log.execution.cost.steps == 1


async def test_an_arm_that_the_router_does_not_know_has_no_score_and_can_be_drawn() -> None:
    log, arms, advice = MemoryLog(), FakeArms(), Advice(k=4, none=0.1, dense=0.9)
    await run(a_loop(log, arms, scorer=advice), CHAT)
    assert log.decision.context.arms["bm25"] == {"steps": 1.0}
    assert log.decision.drawn == "bm25"
    assert arms.asked == ["none", "dense", "bm25"], "it searches when it was drawn, as without a router"
    assert log.execution.cost.steps == 2


async def test_a_router_of_what_was_retrieved_has_every_eligible_arm_search_once() -> None:
    log, arms, advice = MemoryLog(), FakeArms({"dense": spending}), Advice(k=4, **ALL)
    first, *_ = await run(a_loop(log, arms, scorer=advice), replace(LOOK_UP, excluded=frozenset({"none"})))
    assert sorted(arms.asked) == ["bm25", "dense"], "an arm that cannot be drawn is not asked"
    assert isinstance(first, Decided)
    ((names, found),) = advice.shown
    assert names == ["bm25", "dense"]
    assert first.retrieval == found["bm25"]
    assert log.execution.passages == ("bm25-1", "bm25-2", "bm25-3", "bm25-4")


@pytest.mark.parametrize(("before", "after"), [(0, 9), (9, 0), (9, 6)])
async def test_a_turn_searches_as_deep_as_its_own_router_reads(before: int, after: int) -> None:
    arms = FakeArms()
    loop = a_loop(MemoryLog(), arms, scorer=Advice(before, **ALL))

    async def replaced_meanwhile(*asked: Any) -> Any:
        loop.decider.serving = replace(loop.decider.serving, scorer=Advice(after, **ALL))
        return await FakeEmbedders().embed(*asked)

    loop.searcher.embed = replaced_meanwhile
    await run(loop, LOOK_UP)
    assert {k for _, _, k in arms.calls} == {max(before, Answering().passages)}


async def test_before_the_draw_every_arm_finds_as_many_passages_as_the_one_that_answers_from_most() -> None:
    log, arms = MemoryLog(), FakeArms()
    wanted = {"none": 1, "bm25": 7, "dense": 2}
    infos = {name: replace(ARMS[name], answering=Answering(passages=n)) for name, n in wanted.items()}
    await run(a_loop(log, arms, scorer=Advice(k=3, **ALL), arms_known=infos), LOOK_UP)
    assert {arm: k for arm, _, k in arms.calls} == dict.fromkeys(ARMS, 7)
    assert log.decision.drawn == "bm25"
    assert len(log.execution.passages) == 7


async def spending(_query: Query, _k: int) -> Retrieval:
    """An arm that takes three steps, asks a language model, and finds nothing."""
    return Retrieval(steps=3, tokens=50)


@pytest.mark.parametrize("drawn", ["bm25", "none"])
async def test_what_every_arm_took_to_be_looked_at_is_paid_for_whichever_answers(drawn: str) -> None:
    log, weights = MemoryLog(), {name: float(name == drawn) for name in ARMS}
    arms = FakeArms({"dense": spending})
    loop = a_loop(log, arms, Preferring(**weights), scorer=Advice(k=4, **ALL))
    await run(loop, LOOK_UP)
    cost = log.execution.cost
    assert (log.execution.served, cost.steps, cost.prompt_tokens) == (drawn, 0 + 1 + 3, 50)
    assert cost.retrieval_s > 0.0


async def test_an_arm_that_fails_before_the_draw_is_not_eligible() -> None:
    log, arms, advice = MemoryLog(), FakeArms({"bm25": failing}), Advice(k=4, **ALL)
    policy = Preferring(none=0.25, bm25=0.5, dense=0.25)
    first, *_ = await run(a_loop(log, arms, policy, scorer=advice, fallback="bm25"), CHAT)
    assert isinstance(first, Decided)
    assert log.decision.arms == ("none", "dense")
    assert log.decision.probabilities == pytest.approx((0.5, 0.5))
    assert "router" not in log.decision.context.arms["bm25"]
    assert advice.shown[0][0] == ["none", "dense"]
    assert log.execution.status is Status.OK
    assert arms.asked.count("bm25") == 1


async def test_an_arm_that_hangs_before_the_draw_is_given_up_and_paid_for() -> None:
    log, arms = MemoryLog(), FakeArms({"dense": hanging})
    await run(a_loop(log, arms, scorer=Advice(k=4, **ALL), arm_timeout_s=0.01), CHAT)
    assert log.decision.arms == ("none", "bm25")
    assert log.execution.cost.retrieval_s >= 0.01


async def test_where_every_arm_fails_before_the_draw_the_failure_is_on_record() -> None:
    log, arms = MemoryLog(), FakeArms(dict.fromkeys(ARMS, failing))
    with pytest.raises(TurnError, match="ArmError: the index is gone"):
        await run(a_loop(log, arms, scorer=Advice(k=4, **ALL), fallback="none"), CHAT)
    assert log.decision.arms == ("none", "bm25", "dense")
    assert (log.execution.served, log.execution.status) == (None, Status.ARM_FAILED)
    assert sorted(arms.asked) == ["bm25", "dense", "none"], "none of them is asked again"


async def test_a_fallback_that_has_searched_is_not_searched_again() -> None:
    log = MemoryLog()
    arms = FakeArms({"bm25": failing})
    advice = Advice(k=4, none=0.1, dense=0.9)
    first, *_ = await run(a_loop(log, arms, scorer=advice, fallback="dense"), CHAT)
    assert isinstance(first, Decided)
    assert (log.decision.drawn, first.served) == ("bm25", "dense")
    assert arms.asked == ["none", "dense", "bm25"]
    assert (log.execution.status, log.execution.cost.steps) == (Status.FELL_BACK, 1)


async def test_a_forced_arm_is_neither_scored_nor_compared() -> None:
    log, arms, advice, embedders = MemoryLog(), FakeArms(), Advice(k=4, **ALL), FakeEmbedders()
    await run(a_loop(log, arms, scorer=advice, embed=embedders.embed), replace(CHAT, forced="bm25"))
    assert arms.asked == ["bm25"]
    assert advice.shown == []
    assert embedders.calls == []
    assert log.decision.context.arms["bm25"] == {"steps": 1.0}


async def test_a_router_may_look_at_more_passages_than_are_asked_for() -> None:
    log, arms, advice = MemoryLog(), FakeArms(), Advice(k=6, **ALL)
    ask = replace(LOOK_UP, k=2)
    loop = a_loop(log, arms, scorer=advice)
    first, *_ = await run(loop, ask)
    assert isinstance(first, Decided)
    assert {k for _, _, k in arms.calls} == {6}
    assert len(advice.shown[0][1]["bm25"].passages) == 6
    assert [passage.id for passage in first.retrieval.passages] == ["bm25-1", "bm25-2"]
    assert log.execution.passages == ("bm25-1", "bm25-2")
    before = len(arms.calls)
    assert await say_again(loop, ask, log.decision, log.execution.served) == first
    assert [(arm, k) for arm, _, k in arms.calls[before:]] == [("bm25", 6)], "the same search, and no other"


async def test_what_the_policy_and_the_router_look_at_is_embedded_in_one_call() -> None:
    embedders = FakeEmbedders()
    features = FeatureSpec(embedding=policy_features.EmbeddingSpec(backbone="other", dims=4))
    loop = a_loop(MemoryLog(), embed=embedders.embed, features=features, scorer=Advice(k=4, **ALL))
    await run(loop, CHAT)
    assert embedders.calls == [frozenset({"other", "tiny"})]


async def test_a_probe_takes_a_place_of_every_arm_and_tells_how_it_is_doing() -> None:
    log, gate = MemoryLog(), Gate()
    arms = FakeArms({"bm25": failing, "dense": gate})
    loop = a_loop(log, arms, scorer=Advice(k=4, **ALL), health=health(1, none=1, dense=2))
    turns = [asyncio.create_task(run(loop, replace(LOOK_UP, decision_id=f"d-{i}"))) for i in range(2)]
    await _until(lambda: len(arms.calls) == 5)
    assert sorted(arms.asked) == ["bm25", "bm25", "dense", "dense", "none"], "the second has no room for none"
    assert drawn_now(loop).arms == ("bm25",)
    gate.opened.set()
    await asyncio.gather(*turns)
    first, second = (fact for fact in log.committed if isinstance(fact, Decision))
    assert (first.arms, second.arms) == (("none", "dense"), ("dense",))
    assert drawn_now(loop).arms == ("none", "dense"), "bm25 is down"


async def test_an_arm_that_fills_up_during_a_probe_is_masked_where_it_was_not_looked_at() -> None:
    log, gate = MemoryLog(), Gate()
    arms = FakeArms({"dense": gate, "bm25": hanging})
    loop = a_loop(log, arms, scorer=Advice(k=4, none=0.1, dense=0.9), health=health(bm25=1))
    turn = asyncio.create_task(run(loop, LOOK_UP))
    await _until(lambda: len(arms.calls) == 2)
    other = asyncio.create_task(run(loop, replace(LOOK_UP, decision_id="d-2", forced="bm25")))
    await _until(lambda: len(arms.calls) == 3)
    gate.opened.set()
    await turn
    eligible = {fact.id: fact.arms for fact in log.committed if isinstance(fact, Decision)}
    assert eligible[LOOK_UP.decision_id] == ("none", "dense")
    await _cancelled(other, _until(lambda: True))


async def test_a_client_that_leaves_before_the_draw_leaves_nothing_on_record() -> None:
    log, arms = MemoryLog(), FakeArms({"dense": hanging})
    task = asyncio.create_task(run(a_loop(log, arms, scorer=Advice(k=4, **ALL)), CHAT))
    await _cancelled(task, _until(lambda: len(arms.calls) == 3))
    assert log.waiting == []
    assert log.committed == []


async def test_a_router_that_cannot_be_asked_leaves_nothing_decided() -> None:
    log, advice = MemoryLog(), Advice(**ALL)
    advice.error = ArmError("no vectors")
    with pytest.raises(ArmError, match="no vectors"):
        await run(a_loop(log, scorer=advice), CHAT)
    assert log.committed == []


@pytest.mark.parametrize(("fallback", "seconds"), [(None, 2.0), ("none", 2.5)])
async def test_a_search_that_fails_is_charged_its_seconds(
    monkeypatch: pytest.MonkeyPatch, fallback: str | None, seconds: float
) -> None:
    now = 0.0

    async def slow_failure(_query: Query, _k: int) -> Retrieval:
        nonlocal now
        now += 2.0
        raise ArmError("the index is gone")

    async def search(_query: Query, _k: int) -> Retrieval:
        nonlocal now
        now += 0.5
        return Retrieval()

    for module in ("search", "answer"):
        clock = SimpleNamespace(perf_counter=lambda: now)
        monkeypatch.setattr(f"armwise.agent.turn.{module}.time", clock)
    log = MemoryLog()
    turns = a_loop(log, FakeArms({"bm25": slow_failure, "none": search}), fallback=fallback)
    with nullcontext() if fallback else pytest.raises(TurnError):
        await run(turns, LOOK_UP)
    assert log.execution.status is (Status.FELL_BACK if fallback else Status.ARM_FAILED)
    assert log.execution.cost.retrieval_s == seconds


# -- why an arm could not be drawn --------------------------------------------------------------------


async def masked_by(loop: TurnLoop, **wishes: Any) -> dict[str, str]:
    """Carry out a turn, and return what its decision says of the arms that could not be drawn."""
    log = MemoryLog()
    loop.log = log
    async for _ in loop.turn(replace(LOOK_UP, **wishes)):
        pass
    decision = log.decision
    assert decision.arms == tuple(name for name in loop.arms if name not in decision.masked)
    return dict(decision.masked)


async def test_a_decision_says_why_each_other_arm_could_not_be_drawn() -> None:
    health = ArmHealth(failures=1, caps={"bm25": 1})
    loop = a_loop(MemoryLog(), health=health)
    assert await masked_by(loop) == {}
    assert await masked_by(loop, excluded=frozenset({"none"}), allowed=frozenset({"none", "dense"})) == {
        "none": Mask.EXCLUDED,
        "bm25": Mask.NOT_ALLOWED,
    }
    with health.track("bm25"):
        assert await masked_by(loop) == {"bm25": Mask.AT_CAP}
    health.loading = frozenset({"dense"})
    with health.track("none") as report:
        report(failed=("none",))
    assert await masked_by(loop) == {"none": Mask.BREAKER_OPEN, "dense": Mask.LOADING}
    loop.arms = {**loop.arms, "none": replace(loop.arms["none"], enabled=False)}
    assert await masked_by(loop) == {"none": Mask.DISABLED, "dense": Mask.LOADING}
    health.loading, health.away = frozenset(), {"dense": "its corpus cannot be read"}
    assert await masked_by(loop) == {"none": Mask.DISABLED, "dense": Mask.SOURCE_AWAY}
    forced = MemoryLog()
    loop.log = forced
    async for _ in loop.turn(replace(LOOK_UP, forced="bm25")):
        pass
    assert forced.decision.masked == {}


async def test_where_every_breaker_is_open_none_of_them_masks() -> None:
    health = ArmHealth(failures=1, caps={"bm25": 1})
    loop = a_loop(MemoryLog(), health=health)
    with health.track(*loop.arms) as report:
        report(failed=tuple(loop.arms))
    with health.track("bm25"):
        assert await masked_by(loop) == {"bm25": Mask.AT_CAP}

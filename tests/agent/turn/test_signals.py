"""Signals that the service observes by itself: from the next turn, results of functions, and a check."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from armwise.agent.config import ConfigError, parse
from armwise.agent.turn import Ask
from armwise.agent.turn.steps import signals
from armwise.arms.llm.base import ScriptedGenerator
from armwise.feedback.events import Cost, Execution, Feedback, Status
from armwise.feedback.reward import Metric, RewardRule, Signal
from tests.agent.fakes import CONFIG, Service, pass_time

LARGE = {"engine": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "large"}

ARMS: dict[str, Any] = {
    "small": {"kind": "none"},
    "large": {"kind": "none", "answering": {"llm": "large"}},
}

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}

ALL: dict[str, Any] = {
    "thumb": {"range": [-1, 1]},
    "again": {"signal": "retry"},
    "dearer": {"signal": "escalation"},
    "broken": {"signal": "tool_error"},
}


def make(folder: Path, metrics: dict[str, Any] | None = None, **changes: Any) -> Service:
    changes = {"arms": ARMS} | changes
    return Service(
        folder,
        generators=changes.pop("generators", None),
        llms={"large": {**LARGE, "usd_per_kilotoken_in": 0.01}},
        reward={
            "metrics": ALL if metrics is None else metrics,
            "cost_weight": 0.0,
            "complete": "any",
            "correction_time": "PT0S",
        },
        **changes,
    )


async def ask(
    service: Service, text: str, model: str = "auto", episode: str | None = "talk", **agent: Any
) -> str:
    """Ask a question, and return the id of its decision once its signals are written."""
    options = {**agent, **({} if episode is None else {"episode_id": episode})}
    body = {"model": model, "messages": [{"role": "user", "content": text}], "agent": options}
    answer = await service.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    await service.replica.workers.join("signals", "answers")
    return str(answer.json()["agent"]["decision_id"])


def told(service: Service, decision: str) -> dict[str, float | None]:
    """Return the feedback on a decision by metric."""
    return {item.metric: item.value for item in items(service, decision)}


def items(service: Service, decision: str) -> tuple[Feedback, ...]:
    record = service.replica.store.record(decision)
    assert record is not None
    return record.feedback


@pytest.mark.parametrize(
    ("again", "retry"),
    [
        ("Which river runs through Vienna?", 1.0),
        ("which river runs through vienna, please", 1.0),
        ("Which river runs through Graz?", 0.0),
        ("Thanks!", 0.0),
    ],
)
async def test_the_same_question_again_is_a_retry(tmp_path: Path, again: str, retry: float) -> None:
    async with make(tmp_path).running() as service:
        first = await ask(service, "Which river runs through Vienna?")
        assert told(service, first) == {}
        second = await ask(service, again)
        assert told(service, first) == {"again": retry, "dearer": 0.0}
        assert told(service, second) == {}
        (fact, *_) = items(service, first)
        assert fact.id == f"signal:retry:{first}"
        assert fact.tags == {"signal": "retry", "next": second}
        rater = service.replica.store.draw_secret.rater_at("127.0.0.1")
        assert (fact.source, fact.key, fact.rater) == ("user", None, rater)


async def test_the_turn_after_the_next_one_says_nothing_of_the_first(tmp_path: Path) -> None:
    async with make(tmp_path).running() as service:
        first = await ask(service, "Which river runs through Vienna?")
        second = await ask(service, "And through Graz, by the way?")
        await ask(service, "Which river runs through Vienna?")
        assert told(service, first) == {"again": 0.0, "dearer": 0.0}
        assert told(service, second)["again"] == 0.0


async def test_questions_of_other_conversations_and_of_none_are_no_retry(tmp_path: Path) -> None:
    async with make(tmp_path).running() as service:
        decisions = [
            await ask(service, "Which river?", episode=episode) for episode in ("one", "other", None, None)
        ]
        assert [told(service, decision) for decision in decisions] == [{}] * 4


@pytest.mark.parametrize(
    ("before", "model", "agent", "escalation"),
    [
        ("arm/small", "arm/large", {}, 1.0),
        ("arm/small", "auto", {"excluded_arms": ["small"]}, 1.0),
        ("arm/small", "auto", {"allowed_arms": ["large"]}, 1.0),
        ("arm/small", "auto", {"allowed_arms": ["small", "large"]}, 0.0),
        ("arm/small", "auto", {"allowed_arms": ["small", "large"], "excluded_arms": ["small"]}, 1.0),
        ("arm/small", "arm/small", {}, 0.0),
        ("arm/small", "auto", {}, 0.0),
        ("arm/large", "arm/small", {}, 0.0),
        ("arm/large", "arm/large", {}, 0.0),
    ],
)
async def test_an_escalation_allows_only_dearer_arms_than_the_one_that_answered(
    tmp_path: Path, before: str, model: str, agent: dict[str, Any], escalation: float
) -> None:
    async with make(tmp_path).running() as service:
        first = await ask(service, "Which river?", before)
        await ask(service, "Which mountain, then?", model, **agent)
        assert told(service, first) == {"again": 0.0, "dearer": escalation}


async def test_a_signal_that_the_reward_does_not_name_is_not_written(tmp_path: Path) -> None:
    async with make(
        tmp_path, {"thumb": {"range": [-1, 1]}, "again": {"signal": "retry"}}
    ).running() as service:
        first = await ask(service, "Which river?", "arm/small")
        await ask(service, "Which river?", "arm/large")
        assert told(service, first) == {"again": 1.0}
    (other := tmp_path / "other").mkdir()
    async with make(other, {"thumb": {"range": [-1, 1]}}).running() as service:
        first = await ask(service, "Which river?")
        await ask(service, "Which river?")
        assert told(service, first) == {}


async def test_a_signal_is_learned_as_feedback_is(tmp_path: Path) -> None:
    async with make(tmp_path, {"again": {"signal": "retry"}}).running() as service:
        first = await ask(service, "Which river?")
        await ask(service, "Which river?")
        await service.learn()
        record = service.replica.store.record(first)
        assert record is not None
        assert record.metrics == {"again": 1.0}
        rule = service.config.reward
        assert rule.quality({"again": 1.0}) == 0.0
        assert rule.quality({"again": 0.0}) == 1.0


async def test_the_same_request_again_under_its_key_is_no_retry(tmp_path: Path) -> None:
    async with make(tmp_path).running() as service:
        first = await ask(service, "Which river?")
        body = {
            "model": "auto",
            "messages": [{"role": "user", "content": "Which river?"}],
            "agent": {"episode_id": "talk"},
        }
        for _ in range(3):
            await service.client.post("/v1/chat/completions", json=body, headers={"Idempotency-Key": "k"})
        await service.replica.workers.join("signals", "answers")
        assert len(items(service, first)) == 2
        assert told(service, "k") == {}


async def calling(folder: Path) -> Service:
    model = ScriptedGenerator(
        lambda prompt: [("look_up", "{}")] if prompt.messages[-1]["role"] == "user" else "So."
    )
    return make(folder, generators={"default": model, "large": model})


async def send(service: Service, messages: list[dict[str, Any]], **agent: Any) -> Any:
    body = {"model": "auto", "messages": messages, "tools": [TOOL], "agent": agent}
    answer = await service.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    await service.replica.workers.join("signals", "answers")
    return answer.json()


@pytest.mark.parametrize("same_arm", [True, False])
@pytest.mark.parametrize(
    ("result", "error"),
    [
        ("Error: no such table", 1.0),
        ('{"error": {"code": 404}}', 1.0),
        ('{"isError": true, "content": []}', 1.0),
        ("Traceback (most recent call last):\n  File", 1.0),
        ('{"error": null, "rows": 3}', 0.0),
        ("errors: none were found", 0.0),
        ("", 0.0),
    ],
)
async def test_a_result_that_reports_an_error_is_a_signal_on_the_decision_that_made_the_call(
    tmp_path: Path, result: str, error: float, same_arm: bool
) -> None:
    async with (await calling(tmp_path)).running() as service:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "How many rows?"}]
        first = await send(service, messages)
        called = first["choices"][0]["message"]
        (call,) = called["tool_calls"]
        messages += [called, {"role": "tool", "tool_call_id": call["id"], "content": result}]
        second = await send(service, messages, same_arm=same_arm)
        decision = first["agent"]["decision_id"]
        assert told(service, decision) == {"broken": error}, "and it is no retry of the question"
        messages += [second["choices"][0]["message"], {"role": "user", "content": "How many rows?"}]
        await send(service, messages, episode_id=first["agent"]["episode_id"])
        drawn = decision if same_arm else second["agent"]["decision_id"]
        assert told(service, drawn)["again"] == 1.0, "on the decision that drew the arm"


async def test_a_result_that_its_sender_calls_an_error_is_one_whatever_it_says(tmp_path: Path) -> None:
    async with (await calling(tmp_path)).running() as service:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "How many rows?"}]
        first = await send(service, messages)
        called = first["choices"][0]["message"]
        (call,) = called["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "3 rows", "is_error": True}
        await send(service, [*messages, called, result])
        assert told(service, first["agent"]["decision_id"]) == {"broken": 1.0}


@pytest.mark.parametrize(
    ("messages", "results"),
    [
        ([("user", "a"), ("assistant", "b"), ("tool", "c"), ("tool", "d")], ["d", "c"]),
        ([("user", "a"), ("tool", "c"), ("user", "d")], []),
        ([], []),
    ],
)
def test_the_results_are_those_with_which_a_conversation_ends(
    messages: list[tuple[str, str]], results: list[str]
) -> None:
    conversation: Any = [{"role": role, "content": content} for role, content in messages]
    assert [message["content"] for message in signals.last_results(conversation)] == results


def test_a_result_that_is_deep_or_long_is_no_error_of_ours() -> None:
    assert not signals.reports_error("[" * 3000)
    assert not signals.reports_error("x" * 5000 + "error")
    assert signals.reports_error("  ERROR " + "x" * 10_000)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("a b c d e", "a b c d e f", True),
        ("b c d e", "b c d e f", True),
        ("a b c d", "a b c d e f", False),
        ("?!", "?! ", True),
        ("?!", "!?", False),
        ("?!", "which", False),
        ("b c d e f g h i j", "b c d e f g h i j\nk\nyes", False),
        ("b c d e f g h i j\nk\nyes", "b c d e f g h i j\nk\ngo on", False),
        ("b c d e f g h i j\nk\nyes", "b c d e f g h i j\nk\nYes!", True),
        ("b c?", "b c?\nk l m n o p q\nb c?", True),
        ("l m n o p q r\nyes", "b c d e f g h\nyes", False),
        ("b c d e f g h i j\n继续", "b c d e f g h i j\n是的", False),
        ("为什么构建这么慢", "为什么构建这么慢呢", True),
        ("b c d e\n为什么构建这么慢", "b c d e\n为什么构建这么慢呢", True),
    ],
)
def test_questions_are_the_same_by_four_fifths_of_their_words(first: str, second: str, same: bool) -> None:
    assert signals.is_same_question(first.replace("a ", "alpha "), second.replace("a ", "alpha ")) == same


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_conversation_is_abandoned_after_half_the_wait(
    tmp_path: Path,
) -> None:
    async with make(tmp_path, {"left": {"signal": "abandoned"}}).running() as service:
        first = await ask(service, "Which river?")
        second = await ask(service, "Which mountain?")
        alone = await ask(service, "Which lake?", episode="other")
        assert [told(service, one) for one in (first, second, alone)] == [{}] * 3
        pass_time(service.config.reward.wait_s / 2)
        await until(lambda: told(service, alone))
        assert [told(service, one) for one in (first, second, alone)] == [
            {"left": 0.0},
            {"left": 1.0},
            {"left": 1.0},
        ]


async def test_what_waits_is_bounded_and_what_exceeds_it_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "WAITING", 2)
    shed = list[str]()
    async with make(tmp_path, {"left": {"signal": "abandoned"}}).running() as service:
        monkeypatch.setattr(service.replica.find_step("signals").telemetry, "count_observation", shed.append)
        decisions = [await ask(service, "Which river?", episode=f"talk-{n}") for n in range(3)]
        pass_time(service.config.reward.wait_s / 2)
        await until(lambda: told(service, decisions[1]))
        assert shed == ["shed"]
        assert told(service, decisions[2]) == {}


JSON = {"by": "schema", "satisfies": {"type": "object", "required": ["river"]}}

CHECKED = {
    **ARMS,
    "checked": {"kind": "checked", "params": {"first": "small", "then": "large", "check": JSON}},
}

CHECK_METRIC: dict[str, Any] = {"sound": {"signal": "check"}}


@pytest.mark.parametrize(
    ("model", "small", "large", "value"),
    [
        ("arm/checked", '{"river": "Danube"}', "no", 1.0),
        ("arm/checked", "no", '{"river": "Danube"}', 1.0),
        ("arm/checked", "no", "no", 0.0),
        ("arm/small", '{"river": "Danube"}', "no", 1.0),
        ("arm/large", '{"river": "Danube"}', "no", 0.0),
    ],
)
async def test_what_the_check_says_of_the_answer_that_was_sent_is_a_metric_of_every_arm(
    tmp_path: Path, model: str, small: str, large: str, value: float
) -> None:
    models = {"default": ScriptedGenerator({}, default=small), "large": ScriptedGenerator({}, default=large)}
    policy = {"kind": "fixed", "params": {"arm": model.removeprefix("arm/")}}
    made = make(tmp_path, CHECK_METRIC, arms=CHECKED, generators=models, policy=policy)
    async with made.running() as service:
        arm, only = model.removeprefix("arm/"), []
        while arm not in only:
            decision = await ask(service, "Which river?", episode=None, allowed_arms=[arm])
            record = service.replica.store.record(decision)
            assert record is not None
            only = [record.decision.drawn]
        await service.replica.workers.join("second_answers")
        await service.replica.workers.join("signals", "answers")
        assert told(service, decision) == {"sound": value}
        (fact,) = items(service, decision)
        assert (fact.id, fact.source, fact.rater) == (f"signal:check:{decision}", "operator", "")


async def test_an_answer_that_cannot_be_judged_has_no_value(tmp_path: Path) -> None:
    judged = {"first": "small", "then": "large", "check": {"by": "judge", "judge": "default"}}
    arms = {**ARMS, "checked": {"kind": "checked", "params": judged}}
    models = {"default": ScriptedGenerator({}, default="well"), "large": ScriptedGenerator({}, default="7")}
    made = make(tmp_path, CHECK_METRIC, arms=arms, generators=models)
    async with made.running() as service:
        decision = await ask(service, "Which river?", episode=None, allowed_arms=["large"])
        await service.replica.workers.join("second_answers")
        await service.replica.workers.join("signals", "answers")
        assert told(service, decision) == {}


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        (ARMS, "there are 0 checks"),
        (
            {
                **CHECKED,
                "other": {
                    "kind": "checked",
                    "params": {"first": "small", "then": "large", "check": {"by": "judge"}},
                },
            },
            "there are 2 checks",
        ),
    ],
)
def test_the_metric_of_a_check_needs_one_check(arms: dict[str, Any], message: str) -> None:
    document = {**CONFIG, "arms": arms, "llms": {"large": LARGE}, "reward": {"metrics": CHECK_METRIC}}
    with pytest.raises(ConfigError, match=message):
        parse(document)
    twice = {**CHECKED, "again": CHECKED["checked"]}
    assert parse({**document, "arms": twice}).reward.signals == {Signal.CHECK: "sound"}


def test_a_metric_of_a_signal_has_the_form_of_the_signal() -> None:
    retry = Metric.model_validate({"signal": "retry", "weight": 0.5})
    assert (retry.type, retry.optimize, retry.range) == ("boolean", "min", (0.0, 1.0))
    check = Metric.model_validate({"signal": "check"})
    assert (check.type, check.optimize, check.range) == ("float", "max", (0.0, 1.0))
    assert Metric.model_validate(retry.model_dump()) == retry
    for wrong in ({"optimize": "max"}, {"type": "float"}):
        with pytest.raises(ValidationError, match="signal retry is a boolean"):
            Metric.model_validate({"signal": "retry", **wrong})
    with pytest.raises(ValidationError, match="signal check is a float"):
        Metric.model_validate({"signal": "check", "range": (0, 10)})
    with pytest.raises(ValidationError, match=r"signal retry .* two metrics"):
        RewardRule.model_validate({"metrics": {"a": {"signal": "retry"}, "b": {"signal": "retry"}}})


@pytest.mark.parametrize(
    ("said", "value"), [('{"river": "Danube"}', 0.0), ('{"rivers": []}', 1.0), ("The Danube.", 1.0)]
)
async def test_a_misshapen_answer_is_a_signal(tmp_path: Path, said: str, value: float) -> None:
    model = ScriptedGenerator({}, default=said)
    made = make(
        tmp_path, {"misshapen": {"signal": "schema_error"}}, generators={"default": model, "large": model}
    )
    async with made.running() as service:
        decision = await formed(service, JSON["satisfies"])
        assert told(service, decision) == {"misshapen": value}
        assert told(service, await ask(service, "Which river?")) == {}, "no schema, no signal"


@pytest.mark.parametrize(
    ("reason", "written"),
    [
        ("content_filter", {"declined": 1.0}),
        ("refusal", {"declined": 1.0}),
        ("stop", {"declined": 0.0}),
        ("length", {"declined": 0.0}),
        ("a word of its own", {"declined": 0.0}),
        ("", {}),
    ],
)
async def test_an_answer_that_was_refused_is_a_signal(
    tmp_path: Path, reason: str, written: dict[str, float]
) -> None:
    async with make(tmp_path, {"declined": {"signal": "refused"}}).running() as service:
        decision = await ended(service, reason)
        assert told(service, decision) == written
        for item in items(service, decision):
            assert (item.id, item.source) == (f"signal:refused:{decision}", "user")
            assert item.rater, "a caller can cause it, so it counts in the share of the caller"


async def test_a_refusal_that_no_metric_names_is_not_written(tmp_path: Path) -> None:
    async with make(tmp_path).running() as service:
        assert told(service, await ended(service, "refusal")) == {}


async def ended(service: Service, reason: str) -> str:
    """Log a turn whose language model stopped for a reason, and return its decision."""
    store = service.replica.store
    asked = store.record(await ask(service, "Which river?", episode=None))
    assert asked is not None
    decision = replace(asked.decision, id="d-1", asked_by="app")
    execution = Execution("d-1", decision.drawn, Status.OK, Cost(), answer="", finish_reason=reason)
    store.append([decision, execution])
    service.replica.find_step("signals").finish(Ask("d-1", "Which river?"), decision, execution, ())
    await service.replica.workers.join("signals", "answers")
    return decision.id


async def formed(service: Service, schema: dict[str, Any]) -> str:
    form = {"type": "json_schema", "json_schema": {"name": "river", "schema": schema}}
    messages = [{"role": "user", "content": "Which river?"}]
    body = {"model": "auto", "messages": messages, "response_format": form}
    answer = await service.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    await service.replica.workers.join("signals", "answers")
    return str(answer.json()["agent"]["decision_id"])


async def test_a_schema_that_cannot_be_validated_says_nothing(tmp_path: Path) -> None:
    model = ScriptedGenerator({}, default="1")
    made = make(
        tmp_path, {"misshapen": {"signal": "schema_error"}}, generators={"default": model, "large": model}
    )
    async with made.running() as service:
        for schema in ({"type": "nothing"}, {"$ref": "https://schemas.example/river"}):
            assert told(service, await formed(service, schema)) == {}


@pytest.mark.parametrize(("check", "values"), [(JSON, 2), ({"by": "judge", "judge": "default"}, 1)])
async def test_checks_that_prompt_a_model_keep_to_the_ceiling_of_an_hour(
    tmp_path: Path, check: dict[str, Any], values: int
) -> None:
    arms = {
        **ARMS,
        "checked": {"kind": "checked", "params": {"first": "small", "then": "large", "check": check}},
    }
    model = ScriptedGenerator({}, default='{"score": 7}')
    ceiling = {"tokens_per_hour": 1, "judge": 1.0}
    made = make(
        tmp_path,
        {**CHECK_METRIC, "graded": {"signal": "grade"}},
        arms=arms,
        generators={"default": model, "large": model},
        observations=ceiling,
        policy={"kind": "fixed", "params": {"arm": "small"}},
    )
    async with made.running() as service:
        written = 0
        for _ in range(2):
            decision = await ask(service, "Which river?", episode=None, allowed_arms=["small"])
            await service.replica.workers.join("second_answers")
            await service.replica.workers.join("signals", "answers")
            written += "sound" in told(service, decision)
        assert written == values

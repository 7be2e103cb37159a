"""Arms as pipelines: which language model answers, with which prompt, and what happens when it fails."""

from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from armwise.agent.config import ConfigError, parse
from armwise.arms.base import Query, Retrieval
from armwise.arms.llm import Chunk, GeneratorError, Prompt
from armwise.arms.llm.base import GeneratorBusyError, GeneratorTimeoutError, ScriptedGenerator
from armwise.feedback.events import Mask, Status
from tests.agent.asking import tell
from tests.agent.fakes import CONFIG, Service

LARGE = {"engine": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "large"}

PRICED_IN = 1.0

PRICED = {**LARGE, "usd_per_kilotoken_in": PRICED_IN, "usd_per_kilotoken_out": 2.0}

SETTINGS: dict[str, Any] = {
    "llms": {"large": PRICED},
    "prompts": {"brief": {"with_passages": "Read {passages} {and} answer.", "without_passages": "Be brief."}},
    "pipelines": [{"retrieval": ["none", "bm25"], "llm": ["default", "large"], "prompt": ["brief"]}],
}


class Paid(ScriptedGenerator):
    """Writes one word, for money."""

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().stream(prompt):
            yield (
                Chunk(finish_reason="stop", prompt_tokens=10, completion_tokens=5, usd=0.02)
                if (chunk.finish_reason)
                else chunk
            )


@pytest.fixture
def large() -> Paid:
    return Paid({}, default="Large.", model="large")


@pytest.fixture
async def service(tmp_path: Path, large: Paid) -> AsyncIterator[Service]:
    own = {**SETTINGS, "fallback": "bm25-default-brief"}
    async with Service(tmp_path, generators={"large": large}, **own).running() as running:
        yield running


async def ask(service: Service, model: str = "auto", **body: Any) -> Any:
    message = {"role": "user", "content": "Which river?"}
    return await service.client.post(
        "/v1/chat/completions", json={"model": model, "messages": [message], **body}
    )


def record(service: Service, answer: Any) -> Any:
    return service.replica.store.record(answer.json()["agent"]["decision_id"])


async def find_nothing(query: Query, k: int) -> Retrieval:
    del query, k
    return Retrieval(steps=0)


def test_a_grid_makes_an_arm_of_every_combination_that_makes_a_difference() -> None:
    grid = {"retrieval": ["none", "bm25"], "llm": ["default", "large"], "passages": [2, 4]}
    config = parse({**CONFIG, **SETTINGS, "pipelines": [grid]})
    made = [name for name in config.actions if name not in CONFIG["arms"]]
    assert made == [
        *("default", "large", "bm25-default-p2", "bm25-default-p4"),
        *("bm25-large-p2", "bm25-large-p4"),
    ]
    assert parse(config.model_dump(mode="json")) == config
    assert config.find_answering("bm25-large-p2").passages == 2
    assert config.arm_documents["bm25"] == {"kind": "bm25"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pipelines": [{"retrieval": ["bn25"]}]}, "unknown arm 'bn25'; did you mean 'bm25'"),
        ({"pipelines": [{"retrieval": ["bm25"], "llm": ["larg"]}]}, "'larg' is not declared; did you mean"),
        ({"pipelines": [{"retrieval": ["bm25"], "prompt": ["breif"]}]}, "did you mean 'brief'"),
        ({"pipelines": [{"retrieval": ["bm25"]}, {"retrieval": ["bm25"]}]}, "is an arm already"),
        ({"pipelines": [{"retrieval": ["bm25"], "passages": [51]}]}, r"passages"),
        ({"llms": {"default": LARGE}}, "llms: 'default' has a meaning already"),
        (
            {"prompts": {"x": {"with_passages": "none", "without_passages": "y"}}},
            r"prompts\.x: with_passages: \{passages\} .* 0 times",
        ),
    ],
)
def test_a_pipeline_that_names_what_is_not_there_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse({**CONFIG, **SETTINGS, **change})


async def test_an_arm_answers_with_its_own_model_and_prompt(service: Service, large: Paid) -> None:
    answer = await ask(service, "arm/bm25-large-brief")
    assert answer.json()["choices"][0]["message"]["content"] == "Large."
    assert large.last_prompt is not None
    system = large.last_prompt.messages[0]["content"]
    assert system.startswith("Read <passages>")
    assert system.endswith("{and} answer.")
    assert service.generator.last_prompt is None  # type: ignore[attr-defined]
    cost = record(service, answer).execution.cost
    assert (cost.prompt_tokens, cost.completion_tokens, cost.usd) == (10, 5, 0.02)
    service.arms.behaviour["large-brief"] = find_nothing
    await ask(service, "arm/large-brief")
    assert large.last_prompt.messages[0]["content"] == "Be brief."


async def test_what_a_request_names_comes_before_what_the_arm_says(tmp_path: Path, large: Paid) -> None:
    writing = {"llm": "large", "temperature": 0.7, "max_tokens": 9, "passages": 2}
    arms = {**CONFIG["arms"], "warm": {"kind": "bm25", "answering": {**writing, "reasoning": "low"}}}
    own = {"llms": {"large": PRICED}, "arms": arms}
    async with Service(tmp_path, generators={"large": large}, **own).running() as service:
        await ask(service, "arm/warm")
        prompt = large.last_prompt
        assert prompt is not None
        assert (prompt.temperature, prompt.max_tokens) == (0.7, 9)
        assert prompt.options == {"reasoning_effort": "low"}
        assert service.arms.calls[-1][2] == 2
        await ask(service, "arm/warm", temperature=0.0, max_tokens=3, reasoning_effort="high")
        prompt = large.last_prompt
        assert (prompt.temperature, prompt.max_tokens) == (0.0, 3)
        assert prompt.options == {"reasoning_effort": "high"}


async def test_the_features_of_an_arm_name_its_parts(service: Service) -> None:
    arms = {arm["name"]: arm for arm in (await service.client.get("/v1/arms")).json()["arms"]}
    features = arms["bm25-large-brief"]["features"]
    assert {"kind=bm25", "llm=large", "prompt=brief"} <= features.keys()
    assert arms["bm25-large-brief"]["answering"] == {"llm": "large", "prompt": "brief"}


async def test_a_model_that_fails_at_once_is_replaced(service: Service, large: Paid) -> None:
    large.error = GeneratorError("large is gone")
    only = {"agent": {"allowed_arms": ["large-brief", "bm25-default-brief"]}}
    answers = [await ask(service, **only) for _ in range(12)]
    fell_back = [a for a in answers if record(service, a).execution.status is Status.FELL_BACK]
    assert fell_back
    execution = record(service, fell_back[0]).execution
    assert (execution.served, execution.error) == ("bm25-default-brief", "GeneratorError: large is gone")
    assert fell_back[0].headers["x-arm"] == "bm25-default-brief"
    assert fell_back[0].json()["choices"][0]["message"]["content"] == "The Danube does."


async def test_tokens_of_two_models_are_recorded_by_model(service: Service, large: Paid) -> None:
    large.error = GeneratorTimeoutError("large is slow")
    only = {"agent": {"allowed_arms": ["large-brief", "bm25-default-brief"]}}
    answers = [await ask(service, **only) for _ in range(12)]
    fell_back = [a for a in answers if record(service, a).execution.status is Status.FELL_BACK]
    assert fell_back
    agent = fell_back[0].json()["agent"]
    found = (await service.client.get(f"/v1/decisions/{agent['decision_id']}")).json()
    models = found["tokens_by_model"]
    assert models["large"]["completion"] == 0
    assert models["large"]["prompt"] > 0
    assert models["default"]["completion"] == 3  # "The Danube does."
    assert agent["cost"]["tokens"] == sum(one["prompt"] + one["completion"] for one in models.values())
    assert agent["cost"]["usd"] == pytest.approx(models["large"]["prompt"] / 1000 * PRICED_IN)
    own = await ask(service, "arm/bm25-default-brief")
    told = (await service.client.get(f"/v1/decisions/{own.json()['agent']['decision_id']}")).json()
    assert told["tokens_by_model"].keys() == {"default"}
    assert (told["cached"], told["index_version"]) == (False, None)
    found = await service.client.post("/v1/retrieve", json={"query": "Where does the Danube rise?"})
    searched = (await service.client.get(f"/v1/decisions/{found.headers['x-decision-id']}")).json()
    assert searched["tokens_by_model"] is None, "no language model was asked"


async def test_a_model_that_rests_is_not_drawn_for_a_while(service: Service, large: Paid) -> None:
    large.error = GeneratorBusyError("large", 60.0)
    first = await ask(service, "arm/large-brief")
    assert (first.status_code, first.headers["retry-after"]) == (429, "60")
    assert first.json()["error"]["code"] == "model_busy"
    later = record(service, await ask(service))
    assert later.decision.masked["bm25-large-brief"] == Mask.LLM_UNAVAILABLE
    assert not {"large-brief", "bm25-large-brief"} & set(later.decision.arms)
    found = (await service.client.post("/v1/retrieve", json={"query": "Which river?"})).json()
    decision = service.replica.store.record(found["agent"]["decision_id"]).decision
    assert "bm25-large-brief" in decision.arms  # nothing is to be written there


async def test_an_arm_whose_model_lacks_an_option_is_not_drawn(service: Service) -> None:
    answer = await ask(service, presence_penalty=0.5)
    assert answer.status_code == 200, answer.text
    decision = record(service, answer).decision
    assert set(decision.arms) == {"large-brief", "bm25-large-brief"}
    assert decision.masked["none"] == Mask.UNSUPPORTED
    refused = await ask(service, "arm/bm25", presence_penalty=0.5)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "presence_penalty")


@pytest.mark.parametrize("kind", ["linucb", "epsilon_greedy", "vowpal", "adaptive"])
@pytest.mark.slow
async def test_a_cheaper_model_is_chosen_next(
    tmp_path: Path, kind: str, large: Paid, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("linear.PRIOR", "epsilon_greedy.PRIOR", "adaptive.NEWCOMER"):
        monkeypatch.setattr(f"armwise.agent.policies.{name}", 0.0)
    greedy = {
        "linucb": {"alpha": 0.0, "ridge": 0.1},
        "epsilon_greedy": {"epsilon": 0.0},
        "vowpal": {"args": "--cb_explore_adf --epsilon 0.0 -q sa"},
        "adaptive": {},
    }
    own = {
        **SETTINGS,
        "policy": {"kind": kind, "params": greedy[kind]},
        "reward": {**CONFIG["reward"], "cost_weight": 20.0, "cost": {"steps": 0, "usd": 1}},
    }
    arms = "default-brief", "large-brief"
    chosen, rewards, told, tenth = (
        [],
        [],
        "",
        {**PRICED, "usd_per_kilotoken_in": 0.1, "usd_per_kilotoken_out": 0.2},
    )
    for price in (PRICED, tenth):
        settings = {**own, "llms": {"large": price}}
        async with Service(tmp_path, generators={"large": large}, **settings).running() as service:
            for arm, worth in zip(arms, (0.5, 0.7), strict=True) if not chosen else ():
                for _ in range(20):
                    answer = await ask(service, agent={"allowed_arms": [arm]})
                    told = answer.json()["agent"]["decision_id"]
                    await tell(service, told, worth)
            await service.learn()
            answer = await ask(service, agent={"allowed_arms": [*arms], "explore": False})
            chosen.append(answer.headers["x-arm"])
            assert record(service, answer).decision.version > 1
            last = (await service.client.get(f"/v1/decisions/{told}")).json()
            rewards.append(last["reward"])
    assert chosen == [*arms], "at .02 an answer large earns .45, at .002 .81"
    assert rewards == pytest.approx([0.45, 0.81])

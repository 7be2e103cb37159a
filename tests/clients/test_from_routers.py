"""The example of docs/tutorials/from-routers.md, in LlamaIndex, Haystack and here, as the page shows it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from armwise.agent.config import parse
from armwise.arms.base import Query, Retrieval
from armwise.arms.corpus import CorpusSource, ingest_all
from armwise.arms.more.external.frameworks import FRAMEWORKS, RetrieverArm, RetrieverParams
from armwise.arms.retrievers import Resources, build_arm, prepare
from tests.agent.fakes import FakeArms
from tests.clients.conftest import listening

pytest.importorskip("llama_index.core", reason="make test-clients installs it")
pytest.importorskip("haystack", reason="make test-clients installs it")

from haystack import component  # after the look whether it is installed
from haystack.dataclasses import ChatMessage
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "from-routers.md"
TICKET = "Ticket 7: the printer jams on thick paper. Feeding it from the rear tray helped."


def block(text: str, language: str = "python") -> str:
    """Return the block of the page that contains a text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (found,) = [one for one in blocks if text in one]
    return str(found)


class Answers(CustomLLM):
    """A model of LlamaIndex that answers with a constant."""

    answer: str

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        del prompt, formatted, kwargs
        return CompletionResponse(text=self.answer)

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        raise NotImplementedError


@component
class Says:
    """A chat generator of Haystack that says a constant."""

    def __init__(self, answer: str) -> None:
        self.answer = answer

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage]) -> dict[str, list[ChatMessage]]:
        del messages
        return {"replies": [ChatMessage.from_assistant(self.answer)]}


@pytest.fixture
def given() -> dict[str, Any]:
    """What the first block of the page defines."""
    names: dict[str, Any] = {}
    exec(block("descriptions ="), names)
    return names


def test_llamaindex_asks_the_source_that_the_model_picks(given: dict[str, Any]) -> None:
    given["llm"] = Answers(answer='[{"choice": 2, "reason": "a jam is what went wrong"}]')
    exec(block("RouterRetriever"), given)
    assert given["found"] == [TICKET]


def test_llamaindex_raises_where_the_answer_names_no_source(given: dict[str, Any]) -> None:
    given["llm"] = Answers(answer="The printer jams because of the paper.")
    with pytest.raises(Exception, match="convert output to JSON"):
        exec(block("RouterRetriever"), given)


def routed() -> Any:
    names: dict[str, Any] = {"llm": Answers(answer='[{"choice": 2, "reason": ""}]')}
    exec(block("descriptions ="), names)
    exec(block("RouterRetriever"), names)
    return names["router"]


def test_a_router_retriever_is_an_arm(given: dict[str, Any]) -> None:
    params = RetrieverParams(retriever="tests.clients.test_from_routers:routed")
    arm = RetrieverArm("routed", params, FRAMEWORKS["llamaindex"])
    assert [passage.text for passage in arm.search(Query(given["question"]), 4).passages] == [TICKET]


@pytest.mark.parametrize(("answer", "found"), [("tickets", [TICKET]), ("the paper", [])])
def test_haystack_asks_the_source_that_the_model_picks(
    given: dict[str, Any], answer: str, found: list[str]
) -> None:
    given["generator"] = Says(answer)
    exec(block("LLMMessagesRouter"), given)
    assert given["found"] == found
    assert ("unmatched" in given["reply"]["router"]) == (not found)


@pytest.fixture
def url(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, FakeArms]]:
    """A service with the arms of the page over its files."""
    monkeypatch.chdir(tmp_path)
    exec(block("write_text"), given)
    document = yaml.safe_load(block("corpora:", "yaml"))
    specs = parse({"home": str(tmp_path), **document}).arms
    sources = [
        CorpusSource(part["source"], tmp_path / "corpora" / name, name)
        for name, part in document["corpora"].items()
    ]
    have = Resources(ingest_all(sources), tmp_path / "indexes", {}, dict(specs))
    prepare(have)
    arms = FakeArms()
    for name in specs:
        arm = build_arm(name, have)

        async def search(query: Query, k: int, arm: Any = arm) -> Retrieval:
            return arm.search(query, k)

        arms.behaviour[name] = search
    with listening(tmp_path, searched=arms, arms=document["arms"], corpora=document["corpora"]) as server:
        yield server.url, arms


def test_the_policy_draws_a_source_here(given: dict[str, Any], url: tuple[str, FakeArms]) -> None:
    given["url"], arms = url
    for _ in range(20):
        exec(block("client.retrieve"), given)
        if given["answer"].arm == "tickets":
            break
    assert given["found"] == [TICKET]
    assert [arm for arm, *_ in arms.calls][-1] == "tickets"
    assert 0.0 < given["answer"].agent.propensity < 1.0

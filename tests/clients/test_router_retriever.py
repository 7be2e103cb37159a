"""A `RouterRetriever` of LlamaIndex as an arm."""

from typing import Any

import pytest

from armwise.arms.base import Query
from armwise.arms.more.external.frameworks import LlamaIndexArm, RetrieverParams

pytest.importorskip("llama_index.core", reason="make test-clients installs it")

from llama_index.core import Document, SimpleKeywordTableIndex  # after the look whether it is installed
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
from llama_index.core.retrievers import RouterRetriever
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.tools import RetrieverTool

TICKET = "Ticket 7: the printer jams on thick paper. Feeding it from the rear tray helped."

TEXTS = {"manual": "The rear tray holds thick paper.", "tickets": TICKET}


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


def routed() -> Any:
    """Return a router over both texts, whose model picks the tickets."""
    llm = Answers(answer='[{"choice": 2, "reason": ""}]')
    tools = []
    for name, text in TEXTS.items():
        index = SimpleKeywordTableIndex.from_documents([Document(text=text)], llm=llm)
        retriever = index.as_retriever(retriever_mode="simple")
        tools.append(RetrieverTool.from_defaults(retriever, name=name, description=name))
    return RouterRetriever.from_defaults(tools, llm=llm, selector=LLMSingleSelector.from_defaults(llm))


def test_a_router_retriever_is_an_arm() -> None:
    params = RetrieverParams(retriever="tests.clients.test_router_retriever:routed")
    arm = LlamaIndexArm("routed", params)
    found = arm.search(Query("Why does the printer jam on thick paper?"), 4).passages
    assert [passage.text for passage in found] == [TICKET]

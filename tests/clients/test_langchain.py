"""LangChain: its own suites for retrievers and chat models, and its retrievers as arms."""

from typing import Any

import pytest

from tests.agent.asking import QUESTION
from tests.clients.conftest import Listening

pytest.importorskip("langchain_tests", reason="make test-clients installs it")

from langchain_core.documents import Document  # after the look whether it is installed
from langchain_core.language_models import BaseChatModel
from langchain_core.retrievers import BaseRetriever
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests, RetrieversIntegrationTests

from armwise.agent.client import Client
from armwise.agent.integrations.langchain import ArmwiseRetriever
from armwise.arms.base import Query
from armwise.arms.more.external.frameworks import LangChainArm, RetrieverParams


class TestRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _at(self, server: Listening) -> None:
        self.url = server.url

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return ArmwiseRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"url": self.url, "options": {"arm": "bm25"}}

    @property
    def retriever_query_example(self) -> str:
        return QUESTION


async def test_documents_name_their_decision(server: Listening) -> None:
    retriever = ArmwiseRetriever(url=server.url, k=2)
    for documents in (
        retriever.invoke(QUESTION, arm="dense"),
        await retriever.ainvoke(QUESTION, arm="dense"),
    ):
        assert [document.id for document in documents] == ["dense-1", "dense-2"]
        assert documents[0].metadata["arm"] == "dense"
        with Client(server.url) as client:
            kept = client.feedback(documents[0].metadata["decision_id"], thumb=1)
        assert kept.items[0].status == "stored"


async def test_options_of_a_retriever_count_where_a_call_names_none(server: Listening) -> None:
    retriever = ArmwiseRetriever(url=server.url, k=2, options={"arm": "dense"})
    for found, named in (
        (retriever.invoke(QUESTION), retriever.invoke(QUESTION, arm="bm25")),
        (await retriever.ainvoke(QUESTION), await retriever.ainvoke(QUESTION, arm="bm25")),
    ):
        assert [document.id for document in found] == ["dense-1", "dense-2"]
        assert {document.metadata["arm"] for document in named} == {"bm25"}
        assert {document.metadata["propensity"] for document in (*found, *named)} == {1.0}, "none was drawn"


class TestChatModel(ChatModelIntegrationTests):
    @pytest.fixture(autouse=True)
    def _at(self, server: Listening) -> None:
        self.url = server.url

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"base_url": f"{self.url}/v1", "api_key": "none", "model": "auto", "stream_usage": True}

    @property
    def has_tool_calling(self) -> bool:
        return False

    @property
    def has_structured_output(self) -> bool:
        return False

    @property
    def supports_json_mode(self) -> bool:
        return False


class Words(BaseRetriever):
    """Finds the documents that have the question's last word."""

    texts: list[str]

    def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        word = query.split()[-1]
        return [Document(id=text[:3], page_content=text) for text in self.texts if word in text]


def test_a_retriever_of_langchain_is_an_arm() -> None:
    params = RetrieverParams(
        retriever="tests.clients.test_langchain:Words", arguments={"texts": ["one two", "six two", "ten"]}
    )
    arm = LangChainArm("words", params)
    assert [p.id for p in arm.search(Query("which two"), 5).passages] == ["one", "six"]

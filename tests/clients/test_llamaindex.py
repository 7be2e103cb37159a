"""LlamaIndex: its engine over our retriever, and its retrievers as arms."""

from typing import Any

import pytest

from tests.agent.asking import QUESTION
from tests.clients.conftest import Listening

pytest.importorskip("llama_index.core", reason="make test-clients installs it")

from llama_index.core.llms import MockLLM  # after the look whether it is installed
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from armwise.agent.client import Client
from armwise.agent.integrations.llamaindex import ArmwiseRetriever
from armwise.arms.base import Query
from armwise.arms.more.external.frameworks import LlamaIndexArm, RetrieverParams


async def test_nodes_name_their_decision(server: Listening) -> None:
    retriever = ArmwiseRetriever(server.url, similarity_top_k=2, options={"arm": "dense"})
    for nodes in (retriever.retrieve(QUESTION), await retriever.aretrieve(QUESTION)):
        assert [(node.node_id, node.text) for node in nodes] == [("dense-1", "text 1"), ("dense-2", "text 2")]
        with Client(server.url) as client:
            kept = client.feedback(nodes[0].metadata["decision_id"], thumb=1)
        assert kept.items[0].status == "stored"


def test_a_query_engine_prompts_with_the_texts_and_not_with_the_decision(server: Listening) -> None:
    retriever = ArmwiseRetriever(server.url, options={"arm": "bm25"})
    answer = RetrieverQueryEngine.from_args(retriever, llm=MockLLM()).query(QUESTION)
    assert "text 1" in str(answer)  # the mock says its prompt
    assert answer.source_nodes[0].metadata["decision_id"] not in str(answer)


class Words(BaseRetriever):
    """Finds the texts that have the question's last word."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__()
        self._texts = texts

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        word = query_bundle.query_str.split()[-1]
        found: list[Any] = [TextNode(id_=text[:3], text=text) for text in self._texts if word in text]
        return [NodeWithScore(node=node, score=float(len(node.text))) for node in found]


def test_a_retriever_of_llamaindex_is_an_arm() -> None:
    params = RetrieverParams(
        retriever="tests.clients.test_llamaindex:Words", arguments={"texts": ["one two", "seven two", "ten"]}
    )
    arm = LlamaIndexArm("words", params)
    found = arm.search(Query("which two"), 5).passages
    assert [(p.id, p.score) for p in found] == [("sev", 9.0), ("one", 7.0)]

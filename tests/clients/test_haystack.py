"""Haystack: our component in a pipeline, and its retrievers as arms."""

import pytest

from tests.agent.asking import QUESTION
from tests.clients.conftest import Listening

pytest.importorskip("haystack", reason="make test-clients installs it")

from haystack import Document, Pipeline  # after the look whether it is installed
from haystack.components.retrievers.in_memory import InMemoryBM25Retriever
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.utils import Secret

from armwise.agent.client import Client
from armwise.agent.integrations.haystack import ArmwiseRetriever
from armwise.arms.base import Query
from armwise.arms.more.external.frameworks import HaystackArm, RetrieverParams


async def test_documents_name_their_decision(server: Listening) -> None:
    retriever = ArmwiseRetriever(server.url, top_k=2, options={"arm": "dense"})
    for reply in (retriever.run(QUESTION), await retriever.run_async(QUESTION)):
        documents = reply["documents"]
        assert [(d.id, d.content) for d in documents] == [("dense-1", "text 1"), ("dense-2", "text 2")]
        with Client(server.url) as client:
            kept = client.feedback(documents[0].meta["decision_id"], thumb=1)
        assert kept.items[0].status == "stored"


def test_a_pipeline_can_be_written_and_read(server: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_KEY", "secret")
    pipeline = Pipeline()
    pipeline.add_component("search", ArmwiseRetriever(server.url, Secret.from_env_var("SEARCH_KEY"), top_k=3))
    written = pipeline.dumps()
    assert "secret" not in written
    read = Pipeline.loads(written, allowed_modules=["armwise.agent.integrations.*"])
    assert read.to_dict() == pipeline.to_dict()
    assert len(read.run({"search": {"query": QUESTION}})["search"]["documents"]) == 3
    assert len(read.run({"search": {"query": QUESTION, "top_k": 1}})["search"]["documents"]) == 1


def words(texts: list[str]) -> InMemoryBM25Retriever:
    store = InMemoryDocumentStore()
    store.write_documents([Document(id=text[:3], content=text) for text in texts])
    return InMemoryBM25Retriever(store)


def test_a_retriever_of_haystack_is_an_arm() -> None:
    params = RetrieverParams(
        retriever="tests.clients.test_haystack:words", arguments={"texts": ["one two", "six two", "ten"]}
    )
    arm = HaystackArm("words", params)
    found = arm.search(Query("two"), 2).passages
    assert {p.id for p in found} == {"one", "six"}
    assert len(arm.search(Query("two"), 1).passages) == 1

"""A retriever for LlamaIndex."""

from collections.abc import Mapping
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from typing_extensions import override

from armwise.agent.client import Answer, AsyncClient, Client


class ArmwiseRetriever(BaseRetriever):
    """Search with the arm that the policy chooses.

    `metadata` of each node has `decision_id`, for feedback, and `arm`, `propensity`, `title`; prompts and
    embeddings see the title alone.

    Args:
        url: Address of the service; `ARMWISE_URL`, or port 8000 of this machine, without it.
        api_key: Key, where the service requires one; `ARMWISE_API_KEY` without it.
        similarity_top_k: How many nodes.
        options: What else each question says, such as `{"arm": "bm25"}`; see `armwise.agent.client`.
        more: Arguments of `BaseRetriever`.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        similarity_top_k: int = 4,
        options: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(**more)
        self._address, self._options = (url, api_key), dict(options or {})
        self._k = similarity_top_k
        self._client = Client(*self._address)

    @override
    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _nodes(self._client.retrieve(query_bundle.query_str, self._k, **self._options))

    @override
    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        async with AsyncClient(*self._address) as client:  # of this event loop
            return _nodes(await client.retrieve(query_bundle.query_str, self._k, **self._options))


def _nodes(answer: Answer) -> list[NodeWithScore]:
    about = {"decision_id": answer.decision_id, "arm": answer.arm, "propensity": answer.propensity}
    return [
        NodeWithScore(
            node=TextNode(
                id_=p.id,
                text=p.text,
                metadata={**p.metadata, **about, "title": p.title},
                excluded_llm_metadata_keys=list(about),
                excluded_embed_metadata_keys=list(about),
            ),
            score=p.score,
        )
        for p in answer.passages
    ]

"""A retriever for LangChain. Its chat models speak to the service by `ChatOpenAI(base_url=...)`."""

from collections.abc import Mapping
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import Field, PrivateAttr, SecretStr
from typing_extensions import override

from armwise.agent.client import Answer, AsyncClient, Client


class ArmwiseRetriever(BaseRetriever):
    """Search with the arm that the policy chooses.

    `metadata` of each document has `decision_id`, for feedback, and `arm`, `propensity`, `title`, `score`.

    Attributes:
        url: Address of the service; `ARMWISE_URL`, or port 8000 of this machine, without it.
        api_key: Key, where the service requires one; `ARMWISE_API_KEY` without it.
        k: How many documents.
        options: What else each question says, such as `{"arm": "bm25"}`; see `armwise.agent.client`.
    """

    url: str | None = None
    api_key: SecretStr | None = None
    k: int = 4
    options: Mapping[str, Any] = Field(default_factory=dict)
    _client: Client = PrivateAttr()

    @override
    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        self._client = Client(self.url, self._key)

    @property
    def _key(self) -> str | None:
        return None if self.api_key is None else self.api_key.get_secret_value()

    @override
    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None, **options: Any
    ) -> list[Document]:
        return _documents(self._client.retrieve(query, k or self.k, **{**self.options, **options}))

    @override
    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        **options: Any,
    ) -> list[Document]:
        async with AsyncClient(self.url, self._key) as client:  # of this event loop
            return _documents(await client.retrieve(query, k or self.k, **{**self.options, **options}))


def _documents(answer: Answer) -> list[Document]:
    about = {"decision_id": answer.decision_id, "arm": answer.arm, "propensity": answer.propensity}
    return [
        Document(
            id=p.id, page_content=p.text, metadata={**p.metadata, **about, "title": p.title, "score": p.score}
        )
        for p in answer.passages
    ]

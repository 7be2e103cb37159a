"""A component for Haystack."""

from typing import Any, Self

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.utils import Secret

from armwise.agent.client import Answer, AsyncClient, Client


@component
class ArmwiseRetriever:
    """Search with the arm that the policy chooses.

    `meta` of each document has `decision_id`, for feedback, and `arm`, `propensity`, `title`.

    Args:
        url: Address of the service; `ARMWISE_URL`, or port 8000 of this machine, without it.
        api_key: Key, where the service requires one.
        top_k: How many documents.
        options: What else each question says, such as `{"arm": "bm25"}`; see `armwise.agent.client`.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: Secret | None = None,
        top_k: int = 4,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.url, self.api_key, self.top_k, self.options = url, api_key, top_k, dict(options or {})
        self._client: Client | None = None

    @property
    def _key(self) -> str | None:
        return None if self.api_key is None else self.api_key.resolve_value()

    def to_dict(self) -> dict[str, Any]:
        """Return what a pipeline keeps of it; the key by the name of its variable."""
        key = None if self.api_key is None else self.api_key.to_dict()
        settings: dict[str, Any] = default_to_dict(
            self, url=self.url, api_key=key, top_k=self.top_k, options=self.options
        )
        return settings

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return the component that `to_dict` describes."""
        parameters = dict(data["init_parameters"])
        if parameters.get("api_key") is not None:
            parameters["api_key"] = Secret.from_dict(parameters["api_key"])
        restored: Self = default_from_dict(cls, {**data, "init_parameters": parameters})
        return restored

    @component.output_types(documents=list[Document])
    def run(self, query: str, top_k: int | None = None) -> dict[str, list[Document]]:
        """Return the documents that answer a question. Raises ClientError."""
        if self._client is None:
            self._client = Client(self.url, self._key)
        return _documents(self._client.retrieve(query, top_k or self.top_k, **self.options))

    @component.output_types(documents=list[Document])
    async def run_async(self, query: str, top_k: int | None = None) -> dict[str, list[Document]]:
        """Return the documents that answer a question. Raises ClientError."""
        async with AsyncClient(self.url, self._key) as client:  # of this event loop
            return _documents(await client.retrieve(query, top_k or self.top_k, **self.options))


def _documents(answer: Answer) -> dict[str, list[Document]]:
    about = {"decision_id": answer.decision_id, "arm": answer.arm, "propensity": answer.propensity}
    documents = [
        Document(id=p.id, content=p.text, meta={**p.metadata, **about, "title": p.title}, score=p.score)
        for p in answer.passages
    ]
    return {"documents": documents}

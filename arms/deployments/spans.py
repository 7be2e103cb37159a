"""Spans of searches, embeddings and answers, with the names that OpenTelemetry gives to generative AI."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import orjson

from armwise.arms import tracing
from armwise.arms.base import Passage
from armwise.arms.llm import Chunk, Prompt
from armwise.arms.tracing import Attribute, Span


@contextmanager
def embeddings(model: str, text: str) -> Iterator[None]:
    """Trace the embedding of a text."""
    if not tracing.is_on():
        yield
        return
    attributes = {"gen_ai.operation.name": "embeddings", "gen_ai.request.model": model}
    with tracing.span(f"embeddings {model}", attributes, client=True) as made:
        if made is not None:
            made.openinference("EMBEDDING", {"embedding.model_name": model})
            if made.shows_content:
                made.content({"gen_ai.input.messages": text})
        yield


@contextmanager
def retrieval(source: str, arm: str, question: str, k: int) -> Iterator[Span | None]:
    """Trace the search of an arm.

    Args:
        source: The corpus.
        arm: Name of the arm.
        question: Text of the query.
        k: Number of passages to find.
    """
    if not tracing.is_on():
        yield None
        return
    attributes: dict[str, Attribute] = {
        "gen_ai.operation.name": "retrieval",
        "gen_ai.data_source.id": source,
        "gen_ai.request.model": f"arm/{arm}",
        "gen_ai.request.top_k": k,
    }
    with tracing.span(f"retrieval {source}", attributes, client=True) as made:
        if made is not None:
            made.openinference("RETRIEVER", {})
            if made.shows_content:
                made.content({"gen_ai.retrieval.query.text": question})
        yield made


def record_passages(made: Span | None, passages: Sequence[Passage], *, cached: bool = False) -> None:
    """Record the passages of a search; their texts only if the settings say so."""
    if made is None or not made.recording:
        return
    if cached:
        made.set({"armwise.cached": True})
    texts = made.shows_content
    if texts:
        documents = [
            {"id": passage.id, "score": passage.score, "content": passage.text} for passage in passages
        ]
        made.content({"gen_ai.retrieval.documents": orjson.dumps(documents).decode()})
    shown: dict[str, Attribute] = {}
    for i, passage in enumerate(passages):
        prefix = f"retrieval.documents.{i}.document"
        shown |= {f"{prefix}.id": passage.id, f"{prefix}.score": passage.score}
        if texts:
            shown[f"{prefix}.content"] = passage.text
    made.openinference("RETRIEVER", shown)


@dataclass(slots=True)
class Chat:
    """The span of an answer.

    Attributes:
        span: The span.
        texts: The pieces of each choice so far, if texts are recorded.
    """

    span: Span
    texts: dict[int, list[str]] = field(default_factory=dict)

    @classmethod
    def begin(cls, provider: str, model: str, prompt: Prompt) -> "Chat | None":
        """Begin the span of an answer; None: this process does not trace."""
        if not tracing.is_on():
            return None
        turn = tracing.TURN.get()
        attributes: dict[str, Attribute | None] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": model,
            "gen_ai.request.max_tokens": prompt.max_tokens,
            "gen_ai.request.temperature": prompt.temperature,
            "gen_ai.request.top_p": prompt.top_p,
            "gen_ai.request.stop_sequences": prompt.stop or None,
            "gen_ai.request.seed": prompt.seed,
            "gen_ai.response.id": turn.decision_id or None,
            "gen_ai.conversation.id": turn.episode_id or None,
        }
        span = tracing.start(f"chat {model}", attributes, client=True)
        if span is None:
            return None
        span.openinference("LLM", {"llm.model_name": model, "llm.provider": provider})
        if span.shows_content:
            messages = [_parts(message["role"], message["content"]) for message in prompt.messages]
            span.content({"gen_ai.input.messages": orjson.dumps(messages).decode()})
        return cls(span)

    def note(self, chunk: Chunk) -> None:
        """Add a piece of the answer."""
        if self.span.shows_content and chunk.text:
            self.texts.setdefault(chunk.index, []).append(chunk.text)
        if chunk.finish_reason is None or not self.span.recording:
            return
        self.span.set(
            {
                "gen_ai.response.finish_reasons": (chunk.finish_reason, *chunk.finish_reasons),
                "gen_ai.usage.input_tokens": chunk.prompt_tokens,
                "gen_ai.usage.output_tokens": chunk.completion_tokens,
            }
        )
        total = chunk.prompt_tokens + chunk.completion_tokens
        self.span.openinference("LLM", {"llm.token_count.total": total})
        if self.span.shows_content:
            messages = [_parts("assistant", "".join(text)) for _, text in sorted(self.texts.items())]
            self.span.content({"gen_ai.output.messages": orjson.dumps(messages).decode()})


def _parts(role: str, content: str) -> dict[str, object]:
    return {"role": role, "parts": [{"type": "text", "content": content}]}

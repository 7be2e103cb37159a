"""A body with many wrong items is refused at the first: to describe each would take seconds."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from armwise.agent.api.openai.schemas import (
    ChatRequest,
    ResponsesRequest,
)
from armwise.agent.gateways.anthropic.requests import Conversation

WRONG: list[Any] = [{"type": 1, "role": 1, "id": 1}] * 60


def said(role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": "a", **fields}]}


@pytest.mark.parametrize(
    ("model", "body", "at"),
    [
        (ChatRequest, {"messages": WRONG}, ("messages", 0, "role")),
        (ChatRequest, said(content=WRONG), ("messages", 0, "content", "<many>", 0, "type")),
        (ChatRequest, said("assistant", tool_calls=WRONG), ("messages", 0, "tool_calls", 0, "id")),
        (ChatRequest, said() | {"tools": WRONG}, ("tools", 0, "type")),
        (ChatRequest, said() | {"modalities": [1] * 60}, ("modalities", 0)),
        (Conversation, {"messages": WRONG}, ("messages", 0, "role")),
        (Conversation, said(content=WRONG), ("messages", 0, "content", "<many>", 0, "type")),
        (Conversation, said() | {"system": WRONG}, ("system", "<many>", 0, "type")),
        (Conversation, said() | {"tools": WRONG}, ("tools", 0, "name")),
        (ResponsesRequest, {"input": WRONG}, ("input", "<many>", 0, "type")),
        (ResponsesRequest, {"input": "a", "tools": WRONG}, ("tools", 0, "type")),
    ],
)
def test_only_the_first_wrong_item_is_described(
    model: type[BaseModel], body: dict[str, Any], at: tuple[object, ...]
) -> None:
    with pytest.raises(ValidationError) as refusal:
        model.model_validate(body)
    errors = refusal.value.errors()
    assert errors[0]["loc"] == at
    assert len(errors) <= 3, "those of one item"

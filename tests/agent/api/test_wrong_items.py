"""A body with many wrong items is refused at the first: to describe each would take seconds."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from armwise.agent.api.protocols.schemas import ChatRequest, Conversation, MessagesRequest, ResponsesRequest

WRONG: list[Any] = [1] * 60

SAID: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}


@pytest.mark.parametrize(
    ("model", "body", "at"),
    [
        (ChatRequest, {"messages": WRONG}, ("messages", 0)),
        (ChatRequest, SAID | {"tools": WRONG}, ("tools", 0)),
        (Conversation, {"messages": WRONG}, ("messages", 0)),
        (Conversation, SAID | {"tools": WRONG}, ("tools", 0)),
        (MessagesRequest, SAID | {"max_tokens": 1, "stop_sequences": WRONG}, ("stop_sequences", 0)),
        (ResponsesRequest, {"input": WRONG}, ("input", "<many>", 0)),
        (ResponsesRequest, {"input": "a", "tools": WRONG}, ("tools", 0)),
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


@pytest.mark.parametrize("model", [ChatRequest, ResponsesRequest])
def test_items_of_any_form_are_passed_on(model: type[BaseModel]) -> None:
    items = [{"type": 1, "role": None, "content": [3, {}]}, {}]
    name = "messages" if model is ChatRequest else "input"
    body = {name: items, "tools": items, "tool_choice": 5, "of_next_year": items}
    assert model.model_validate(body).model_dump(exclude_unset=True) == body

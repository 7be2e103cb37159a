"""Requests: the documents that models of each protocol are sent."""

import json
from typing import Any

import pytest

from armwise.arms.llm.protocols import ProtocolName, Request

BODIES: dict[ProtocolName, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "Why?"}], "odd": 1},
    "messages": {"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 5, "odd": 1},
    "responses": {"input": "Why?", "odd": 1},
}


@pytest.mark.parametrize("protocol", [*BODIES])
@pytest.mark.parametrize("other", [*BODIES])
def test_a_request_is_translated_for_other_protocols_alone(
    protocol: ProtocolName, other: ProtocolName
) -> None:
    body = BODIES[protocol]
    request = Request(protocol, body)
    assert "Why?" in json.dumps(request.to(other))
    assert (request.to(other) is body) == (protocol == other)
    assert (request.chat is body) == (protocol == "chat")
    assert body == BODIES[protocol], "it is not changed in place"

"""Chat completions, out of translations."""

from armwise.arms.llm.translate.chat import from_chat

NOW = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
NOON = {"role": "tool", "tool_call_id": "call_1", "content": "noon"}


def test_a_translation_is_left_with_what_a_chat_can_have() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    image = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}
    custom = {"type": "custom", "custom": {"name": "patch"}}
    search = {"type": "web_search_20250305"}
    function = {"type": "function", "function": {"name": "now"}}
    body = {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "a", **mark}, {"type": "text", "text": "b"}],
            },
            {"role": "assistant", "content": [], "tool_calls": [NOW | mark]},
            NOON | {"content": [{"type": "text", "text": "noon"}, image | mark], "is_error": True},
            NOON | {"content": [image]},
            {"role": "user", "content": "And now?"},
        ],
        "tools": [function | mark, custom, search],
        "tool_choice": "auto",
        "metadata": {"user_id": "u"},
    }
    assert from_chat(body) == {
        "messages": [
            {"role": "user", "content": "a\nb"},
            {"role": "assistant", "content": None, "tool_calls": [NOW]},
            NOON,
            NOON | {"content": ""},
            {"role": "user", "content": [image, image]},
            {"role": "user", "content": "And now?"},
        ],
        "tools": [function, custom],
        "tool_choice": "auto",
    }
    assert from_chat({"tools": [search], "tool_choice": "auto", "parallel_tool_calls": True}) == {
        "messages": []
    }
    last = from_chat({"messages": [NOON | {"content": [image]}]})
    assert last["messages"][1:] == [{"role": "user", "content": [image]}]

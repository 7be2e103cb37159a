"""What a request asks of the language model beyond text, checked against what the engine can do.

It is checked before an arm is drawn: a request that is refused leaves no row in the log.
"""

from collections.abc import Mapping
from typing import Any

from agent.api.errors import ApiError
from agent.api.openai.schemas import ChatRequest, Sampling
from agent.config import AppConfig
from arms.llm import base, catalog

SAMPLING = ("n", "presence_penalty", "frequency_penalty", "logit_bias")

_NOTHING: Mapping[str, Any] = {"n": 1, "parallel_tool_calls": True}
"""Values that ask for what happens anyway; of other options null, 0, false and empty ones."""

_ELSEWHERE = {
    "audio": "answers are text",
    "functions": "name the functions in `tools`",
    "web_search_options": "passages come from the arm",
}


def asked_of(config: AppConfig, given: Mapping[str, Any], forced: str | None) -> dict[str, Any]:
    """Return the options that ask for something and that an engine is given. Raises ApiError.

    Args:
        config: Has the language models.
        given: The options of the request.
        forced: The only arm that may answer; None for any.
    """
    arms = config.actions if forced not in config.actions else [forced]
    engines = {name: config.models[name] for name in (config.answering_of(arm).llm for arm in arms)}
    known = frozenset[str]().union(*map(catalog.options_of, engines.values()))
    asked = {
        name: value
        for name, value in given.items()
        if (value not in (None, _NOTHING[name]) if name in _NOTHING else value)
    }
    for name in asked.keys() - known - base.HINTS:
        names = " and ".join(repr(engine) for engine in sorted({one.engine for one in engines.values()}))
        message = f"the engine {names} of the language model does not support {name!r}"
        raise ApiError("unsupported_parameter", message, name)
    return {name: value for name, value in asked.items() if name in known}


def of_sampling(body: Sampling) -> dict[str, Any]:
    """Return the options of a request that every route has, as it gives them."""
    return {name: getattr(body, name) for name in SAMPLING}


def of_chat(body: ChatRequest) -> dict[str, Any]:
    """Return the options of a chat as it gives them; a choice among no tools is none. Raises ApiError."""
    for name, why in _ELSEWHERE.items():
        if getattr(body, name):
            raise ApiError("unsupported_parameter", f"{name!r} is not supported: {why}", name)
    if set(body.modalities or ()) - {"text"}:
        raise ApiError("unsupported_parameter", "'modalities' has more than 'text'", "modalities")
    given = body.model_dump(
        include={
            *("tools", "tool_choice", "parallel_tool_calls", "response_format"),
            *("logprobs", "top_logprobs", "reasoning_effort", "verbosity"),
        },
        by_alias=True,
        exclude_none=True,
    )
    _check_tools(given)
    wanted = given.get("response_format", {"type": "text"})
    if wanted["type"] == "text":
        given.pop("response_format", None)
    elif wanted["type"] == "json_schema" and "json_schema" not in wanted:
        raise ApiError("invalid_value", "a JSON schema was expected", "response_format.json_schema")
    if given.get("top_logprobs") and not given.get("logprobs"):
        raise ApiError("invalid_value", "'top_logprobs' is only for 'logprobs': true", "top_logprobs")
    return of_sampling(body) | given


def _check_tools(given: dict[str, Any]) -> None:
    """Refuse a choice of a tool that is not there; leave out what does not matter. Raises ApiError."""
    names = [tool["function"]["name"] for tool in given.get("tools", ())]
    choice = given.get("tool_choice", "auto")
    if isinstance(choice, dict) and (name := choice["function"]["name"]) not in names:
        raise ApiError(
            "invalid_value", f"{name!r} is not a function of 'tools': {', '.join(names)}", "tool_choice"
        )
    if choice == "required" and not names:
        raise ApiError("invalid_value", "'required' needs 'tools'", "tool_choice")
    for name in {*names}:
        if names.count(name) > 1:
            raise ApiError("invalid_value", f"two functions have the name {name!r}", "tools")
    if not names:
        for field in ("tools", "tool_choice", "parallel_tool_calls"):
            given.pop(field, None)

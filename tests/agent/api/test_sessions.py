"""Coding agents name their session without being configured: it keeps its arm, and is of one caller.

`recorded_agents.json` has the first requests of real agents, with long texts and most tools left out.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from armwise.agent.api.sessions import read_session
from armwise.arms.llm import Request
from armwise.arms.llm.base import ScriptedGenerator
from tests.agent.fakes import CONFIG, Service

RECORDED: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "recorded_agents.json").read_text(encoding="utf-8")
)

AGENTS = [each for each in RECORDED if "title" not in each["agent"]]

TITLE, OPENCODE = (each for each in RECORDED if each["agent"].startswith("OpenCode"))

ENDPOINT = {
    "engine": "openai",
    "base_url": "http://127.0.0.1:9/v1",
    "model": "m",
    "inputs": ["image", "file"],
}

TALK: dict[str, Any] = {"policy": {"kind": "uniform"}, "llm": ENDPOINT}


def serve(folder: Path, **changes: Any) -> Service:
    """Return a service with the default `sticky`, which draws each of three arms as often."""
    limits = CONFIG["limits"] | {"body_bytes": 1 << 20}
    return Service(folder, ScriptedGenerator({}, default="Done."), limits=limits, **TALK | changes)


def go_on(recorded: dict[str, Any], turns: int) -> dict[str, Any]:
    """Return the body of a later request of an agent, whole and not as events, to a model that we choose."""
    body = recorded["body"] | {"model": "auto", "stream": False}
    body.pop("stream_options", None)
    field, kind = ("input", {"type": "message"}) if "input" in body else ("messages", {})
    later = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "and once more"}]
    return body | {field: [*body[field], *([{**kind, **said} for said in later] * turns)]}


async def turn(
    service: Service,
    recorded: dict[str, Any],
    turns: int = 0,
    body: dict[str, Any] | None = None,
    **headers: str,
) -> dict[str, Any]:
    """Send a request of an agent, and return how its arm was chosen."""
    sent = go_on(recorded, turns) | (body or {})
    headers = {name: value for name, value in (recorded["headers"] | headers).items() if value}
    answer = await service.client.post(recorded["path"], json=sent, headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["agent"]
    return found


@pytest.mark.parametrize("recorded", AGENTS, ids=lambda each: each["agent"])
async def test_a_session_of_an_agent_keeps_the_arm_of_its_first_turn(
    tmp_path: Path, recorded: dict[str, Any]
) -> None:
    async with serve(tmp_path).running() as service:
        first, *later = [await turn(service, recorded, turns) for turns in range(5)]
        assert (first["mode"], first["propensity"]) == ("explore", pytest.approx(1 / 3))
        assert [(one["mode"], one["propensity"]) for one in later] == [("continued", 1.0)] * 4
        assert len({(one["episode_id"], one["arm_served"]) for one in (first, *later)}) == 1
        for one in (first, later[-1]):
            verified = await service.client.get(f"/v1/decisions/{one['decision_id']}/verify")
            assert verified.json()["verified"], verified.json()


async def test_what_an_agent_asks_without_tools_is_no_turn_of_its_session(tmp_path: Path) -> None:
    async with serve(tmp_path).running() as service:
        titles = [await turn(service, TITLE) for _ in range(3)]
        assert {(one["mode"], one["episode_id"]) for one in titles} == {("explore", None)}
        assert (await turn(service, OPENCODE))["mode"] == "explore", "nothing was kept"


async def test_a_subagent_has_a_conversation_of_its_own(tmp_path: Path) -> None:
    async with serve(tmp_path).running() as service:
        claude, codex = AGENTS[0], AGENTS[2]
        for recorded, header in ((claude, "x-claude-code-agent-id"), (codex, "thread-id")):
            turns = [await turn(service, recorded, **{header: name}) for name in ("", "agent-1")]
            assert len({one["episode_id"] for one in turns}) == 2


async def _key(service: Service, name: str, admin: dict[str, str]) -> dict[str, str]:
    body = {"name": name, "scopes": ["decide", "admin"]}
    made = await service.client.post("/v1/keys", json=body, headers=admin)
    await service.refresh()
    return {"authorization": f"Bearer {made.json()['key']}"}


@pytest.mark.parametrize("recorded", AGENTS, ids=lambda each: each["agent"])
async def test_two_keys_with_the_same_session_do_not_share_it(
    tmp_path: Path, recorded: dict[str, Any]
) -> None:
    async with serve(tmp_path).running() as service:
        one = await _key(service, "one", {})
        other = await _key(service, "other", one)
        turns = [await turn(service, recorded, n, **key) for n in range(2) for key in (one, other)]
        assert [each["mode"] for each in turns] == ["explore", "explore", "continued", "continued"]
        assert len({each["episode_id"] for each in turns}) == 2


async def test_an_episode_or_a_session_in_the_metadata_comes_before_what_the_agent_calls_it(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path).running() as service:
        ours = await turn(service, OPENCODE, body={"metadata": {"session_id": "s-1"}})
        named = await turn(service, OPENCODE, body={"agent": {"episode_id": "e-1"}})
    assert (ours["episode_id"], named["episode_id"]) == ("s-1", "e-1")


PRICED = {
    "llm": ENDPOINT | {f"usd_per_kilotoken_{which}": 0.001 for which in ("in", "out", "cached")},
    "reward": CONFIG["reward"] | {"worth": 0.01},
}
"""A service that counts what models lack in their caches."""


@pytest.mark.parametrize("off", [{"sticky": "off"}, {"sticky": "episode"}, {"sticky": "episode", **PRICED}])
async def test_sessions_do_not_count_where_the_configuration_says_so(
    tmp_path: Path, off: dict[str, Any]
) -> None:
    async with serve(tmp_path, **off).running() as service:
        turns = [await turn(service, OPENCODE, number) for number in range(3)]
    assert [one["mode"] for one in turns] == ["explore"] * 3
    assert len({one["episode_id"] for one in turns}) == 3, (
        "each question with tools has an episode of its own"
    )


@pytest.mark.parametrize("named", [{}, {"metadata": {"session_id": "s-1"}}])
async def test_a_person_who_turns_the_dial_in_a_session_gets_another_draw(
    tmp_path: Path, named: dict[str, Any]
) -> None:
    async with serve(tmp_path).running() as service:
        models = ["auto", "auto:best", "auto", "auto:best"]
        turns = [
            await turn(service, OPENCODE, n, {"model": model, **named}) for n, model in enumerate(models)
        ]
    assert [one["mode"] for one in turns] == ["explore", "explore", "continued", "continued"]


UUID = "01a22d07-7ccb-7b60-86c1-28b2a577cc56"


@pytest.mark.parametrize(
    ("protocol", "body", "headers", "name", "is_shared"),
    [
        ("chat", {}, {}, None, False),
        ("chat", {"prompt_cache_key": "support-v3"}, {}, "support-v3", True),
        ("chat", {"prompt_cache_key": UUID}, {}, UUID, False),
        ("chat", {"session_id": "s"}, {}, "s", False),
        ("chat", {"session_id": ["s"], "metadata": {"session_id": 7}}, {"session-id": ""}, None, False),
        ("responses", {"conversation": "conv_1"}, {}, "conv_1", False),
        ("responses", {"conversation": {"id": "conv_2"}}, {}, "conv_2", False),
        ("responses", {"prompt_cache_key": UUID}, {"session_id": "s"}, "s", False),
        ("responses", {}, {"session-id": "s", "thread-id": "t"}, "t", False),
        ("messages", {"metadata": {"user_id": "ada"}}, {}, None, False),
        ("messages", {"metadata": {"user_id": '{"session_id": "s"}'}}, {}, "s", False),
        ("messages", {}, {"x-session-id": "s", "x-claude-code-agent-id": "a"}, "s a", False),
    ],
)
def test_a_session_is_read_where_agents_name_it(
    protocol: Any, body: dict[str, Any], headers: dict[str, str], name: str | None, is_shared: bool
) -> None:
    session = read_session(Request(protocol, body), headers)
    assert (session and session.name) == name
    assert session is None or (session.is_shared, session.is_ours) == (is_shared, False)


async def test_a_key_of_a_prompt_that_many_share_is_no_session_by_default(tmp_path: Path) -> None:
    async with serve(tmp_path).running() as service:
        bare = OPENCODE | {"headers": {}}
        turns = [await turn(service, bare, body={"prompt_cache_key": "support-v3"}) for _ in range(4)]
        assert {one["mode"] for one in turns} == {"explore"}
        turns = [await turn(service, bare, body={"prompt_cache_key": UUID}) for _ in range(2)]
        assert [one["mode"] for one in turns] == ["explore", "continued"]

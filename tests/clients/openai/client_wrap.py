"""`armwise wrap` with the command lines of three coding agents, unmodified, before two stand-in models.

A model has the agent write a file with its shell, and then says that it is done. Each model has a cache of
its own: what a request begins with in common with an earlier one to the same model was cached.
"""

import itertools
import json
import os
import re
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from tests.clients.openai.conftest import BIN, ROOT, free_port

PROGRAMS = Path(__file__).parent / "node" / "node_modules" / ".bin"

ASKED, COMMAND = "Write the word written into out.txt", "echo written > out.txt"

AGENTS = {
    "claude": (
        ["--print", "--allowedTools", "Bash", "--", ASKED],
        ["--print", "--continue", "--allowedTools", "Bash", "--", ASKED],
    ),
    "codex": (
        ["exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", ASKED],
        ["exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "resume", "--last", ASKED],
    ),
    "opencode": (["run", ASKED], ["run", "--continue", ASKED]),
}
"""Words of a first session and of one that continues it, by agent."""

SHELLS = {
    "Bash": {"command": COMMAND, "description": "Write a file"},
    "bash": {"command": COMMAND, "description": "Write a file"},
    "exec_command": {"cmd": COMMAND},
}
"""Arguments of the tool of each agent that runs a command."""


class Model(BaseHTTPRequestHandler):
    """A model that uses the shell once a question, and counts what it has cached."""

    known: ClassVar[dict[str, list[str]]] = {}
    asked: ClassVar[list[tuple[str, float]]] = []
    calls = itertools.count()

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""

    def do_GET(self) -> None:
        self._send(json.dumps({"data": [{"id": "small"}, {"id": "large"}]}), "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text, known = json.dumps(body["messages"]), self.known.setdefault(body["model"], [])
        cached = max((len(os.path.commonprefix([text, one])) for one in known), default=0)  # noqa: RUF071
        known.append(text)
        if body.get("tools"):
            self.asked.append((body["model"], cached / len(text)))
        tools = {tool.get("function", {}).get("name") for tool in body.get("tools", ())}
        shell = next((name for name in SHELLS if name in tools), None)
        delta: dict[str, Any] = {"role": "assistant", "content": "The file is written."}
        if shell and body["messages"][-1]["role"] != "tool":
            called = {"name": shell, "arguments": json.dumps(SHELLS[shell])}
            call = {"index": 0, "id": f"call_{next(self.calls)}", "type": "function", "function": called}
            delta = {"role": "assistant", "tool_calls": [call]}
        usage = {
            "prompt_tokens": len(text) // 4,
            "completion_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": cached // 4},
        }
        reason = "tool_calls" if "tool_calls" in delta else "stop"
        events = (
            {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
            {"choices": [], "usage": usage},
        )
        lines = [json.dumps({"object": "chat.completion.chunk", **event}) for event in events]
        self._send("".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]), "text/event-stream")

    def _send(self, text: str, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def models() -> Iterator[str]:
    """Serve the models; yield their address."""
    Model.known, Model.asked = {}, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def armwise(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {
        "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
    }
    return subprocess.run(
        [str(BIN / "armwise"), *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.mark.parametrize("agent", AGENTS)
def test_two_sessions_of_an_agent_keep_their_model_and_its_cache(
    agent: str, models: str, tmp_path: Path
) -> None:
    """The second session continues the first one: its conversation is where its cache is."""
    config, port = tmp_path / "armwise.yaml", free_port()
    named = ("--model", "small=small,1,2", "--model", "large=large,10,20")
    made = armwise(tmp_path, "init", "--no-documents", "--yes", "--llm-url", models, *named)
    assert made.returncode == 0, made.stderr
    config.write_text(config.read_text().replace("port: 8000", f"port: {port}"))
    for words in AGENTS[agent]:
        ran = armwise(tmp_path, "wrap", agent, *words)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert (tmp_path / "out.txt").read_text() == "written\n"
        (tmp_path / "out.txt").unlink()
        assert re.search(
            rf"While {agent} ran, the service answered \d+ requests. They cost \$0\.\d+", ran.stderr
        )
    used, cached = zip(*Model.asked, strict=True)
    assert len(used) == 4, "a question and the result of its tool, twice"
    assert len(set(used)) == 1, "the conversation went to another model"
    assert min(cached[1:]) > 0.9, "the model had to read the conversation again"

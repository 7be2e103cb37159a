"""The command line of a coding agent, unmodified, before a stand-in model in Anthropic's protocol.

The model has the agent write a file with its shell, and then says that it is done. It counts what it has
cached, so that a draw knows what a switch costs.
"""

import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from tests.clients.openai.conftest import armwise

NODE = Path(__file__).parent / "node"

AGENT = NODE / "node_modules" / ".bin" / "claude"

COMMAND = "echo written > out.txt"

DONE = "The file is written."

PRICES = {
    "usd_per_kilotoken_in": 0.001,
    "usd_per_kilotoken_out": 0.005,
    "usd_per_kilotoken_cached": 0.0001,
    "usd_per_kilotoken_cache_write": 0.00125,
}


class StandIn(BaseHTTPRequestHandler):
    """A model that uses the shell once a question."""

    cached = 0
    calls = itertools.count()

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        content = body["messages"][-1]["content"]
        blocks = content if isinstance(content, list) else []
        works = not any(block["type"] == "tool_result" for block in blocks)
        frames = list(self._write(self._count(body), works=works and "Bash" in map(_name, body["tools"])))
        data = "".join(f"event: {frame['type']}\ndata: {json.dumps(frame)}\n\n" for frame in frames).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _count(self, body: dict[str, Any]) -> dict[str, int]:
        """Return the usage of a prompt of which everything is cached, some of it before."""
        read = len(json.dumps(body)) // 4
        cached = min(read, type(self).cached)
        type(self).cached = read
        counts = {"cache_creation_input_tokens": read - cached, "cache_read_input_tokens": cached}
        return {"input_tokens": 1, "output_tokens": 1, **counts}

    def _write(self, usage: dict[str, int], *, works: bool) -> Iterator[dict[str, Any]]:
        use = {"type": "tool_use", "id": f"toolu_{next(self.calls)}", "name": "Bash", "input": {}}
        asked = json.dumps({"command": COMMAND, "description": "Write a file"})
        delta = {"type": "text_delta", "text": DONE}
        yield {"type": "message_start", "message": {"content": [], "usage": usage}}
        block = use if works else {"type": "text", "text": ""}
        yield {"type": "content_block_start", "index": 0, "content_block": block}
        delta = {"type": "input_json_delta", "partial_json": asked} if works else delta
        yield {"type": "content_block_delta", "index": 0, "delta": delta}
        yield {"type": "content_block_stop", "index": 0}
        reason = {"stop_reason": "tool_use" if works else "end_turn"}
        yield {"type": "message_delta", "delta": reason, "usage": {"output_tokens": 9}}
        yield {"type": "message_stop"}


def _name(tool: dict[str, Any]) -> str:
    return str(tool["name"])


@contextmanager
def standing_in() -> Iterator[str]:
    """Serve the model; yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run(url: str, folder: Path, *options: str) -> dict[str, Any]:
    """Run the agent once in a folder; return what it prints."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    command = [str(AGENT), "--print", *options, "--allowedTools", "Bash", "--output-format", "json"]
    ran = subprocess.run(
        command,
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_a_coding_agent_does_its_work_and_its_sessions_are_conversations(tmp_path: Path) -> None:
    with standing_in() as model:
        llm = {"engine": "anthropic", "base_url": model, "model": "stand-in", **PRICES}
        limits = {"completion_tokens": 32_000, "body_bytes": 1 << 25, "question_chars": 100_000}
        changes = {"reward": {"metrics": {"thumb": {"range": [-1, 1]}}, "cost": {"usd": 1.0}}}
        with armwise(tmp_path, llm, "--single-process", args={"limits": limits, **changes}) as url:
            told = run(url, tmp_path, "Write the word written into out.txt")
            assert (told["result"], told["num_turns"], told["is_error"]) == (DONE, 2, False)
            assert (tmp_path / "work" / "out.txt").read_text() == "written\n"
            assert told["usage"]["cache_read_input_tokens"] > 0
            again = run(url, tmp_path, "--continue", "And once more, please")
            assert again["session_id"] == told["session_id"]
            listed = httpx.get(f"{url}/v1/decisions", params={"limit": 10}).json()["decisions"]
            newest = [httpx.get(f"{url}/v1/decisions/{one['decision_id']}").json() for one in listed]
            (episode,) = {one["episode_id"] for one in newest}
            assert episode is not None
            assert [one["mode"] for one in newest] == ["forced", "continued", "forced", "explore"]
            assert newest[0]["question"] == "And once more, please"
            tokens = newest[0]["tokens_by_model"]["default"]
            assert 0 < tokens["cache_written"] < tokens["cached"] < tokens["prompt"]
            assert newest[0]["cost"]["usd"] == pytest.approx(
                (tokens["cached"] * 0.0001 + tokens["cache_written"] * 0.00125 + 1 * 0.001 + 9 * 0.005) / 1000
            )

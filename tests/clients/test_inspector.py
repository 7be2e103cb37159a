"""The command line of the inspector of the Model Context Protocol, from npm."""

import json
import shutil
import subprocess
from typing import Any

import pytest

from tests.clients.conftest import Listening

INSPECTOR = "@modelcontextprotocol/inspector@0.15.0"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("npx") is None, reason="npm is not installed"),
]


def inspect(server: Listening, method: str, *options: str) -> Any:
    command = ["npx", "--yes", INSPECTOR, "--cli", f"{server.url}/mcp", "--transport", "http"]
    done = subprocess.run(
        [*command, "--method", method, *options], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_inspector_lists_the_tools_and_calls_them(server: Listening) -> None:
    assert {tool["name"] for tool in inspect(server, "tools/list")["tools"]} == {
        "search",
        "fetch",
        "ask",
        "feedback",
    }

    def call(tool: str, *arguments: str) -> Any:
        named = [part for argument in arguments for part in ("--tool-arg", argument)]
        return inspect(server, "tools/call", "--tool-name", tool, *named)["structuredContent"]

    found = call("search", "query=which river runs through Vienna?")
    assert call("fetch", f"id={found['results'][0]['id']}")["text"] == "text 1"
    assert call("ask", "question=which river runs through Vienna?")["answer"] == "The Danube does."
    rated = call("feedback", f"decision_id={found['decision_id']}", "metric_name=thumb", "value=1")
    assert rated["status"] == "stored"

"""The command lines of coding agents, unmodified, through a scripted session of ten calls and an edit.

Each agent works before the provider itself, behind a service whose model speaks the agent's protocol, and
behind one whose model speaks another protocol, where reasoning need not come back.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.openai.conftest import armwise
from tests.clients.openai.provider import DONE, ENGINES, PROTOCOLS, Call, Session, provider

BIN = Path(__file__).parent / "node" / "node_modules" / ".bin"

SESSION_S = 120

TASK = "The function add in sums.py is wrong: fix it, and write what you found into notes.txt."

WRONG, RIGHT = "return a - b", "return a + b"

FILES = {
    "README.md": "Sums of two numbers. Run `python3 test_sums.py`.\n",
    "sums.py": f"def add(a, b):\n    {WRONG}\n",
    "test_sums.py": "from sums import add\n\nassert add(2, 3) == 5\n",
}
"""The project that an agent works on."""

FOUND = "add subtracts: «a - b» in place of «a + b» ✓\n"
"""The notes; they leave ASCII, as code does."""

TESTED = f"{sys.executable} test_sums.py"

MODEL = "armwise"
"""What agents without a name of their own call the model."""


@dataclass(frozen=True)
class Agent:
    """A coding agent.

    Attributes:
        protocol: The protocol that it speaks.
        start: Given an address, its home and its task, write its settings; return command and environment.
        script: Given the folder of the project, return the calls to make.
    """

    protocol: str
    start: Callable[[str, Path, str], tuple[list[str], dict[str, str]]]
    script: Callable[[Path], list[Call]]


def codex(model: str, tools: str = "") -> Callable[[str, Path, str], tuple[list[str], dict[str, str]]]:
    def start(url: str, home: Path, task: str) -> tuple[list[str], dict[str, str]]:
        (home / ".codex").mkdir()
        (home / ".codex" / "config.toml").write_text(
            f'model = "{model}"\nmodel_provider = "here"\n{tools}\n'
            f'[model_providers.here]\nname = "here"\nbase_url = "{url}/v1"\n'
            'wire_api = "responses"\nenv_key = "MODEL_KEY"\n'
        )
        options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        return ["codex", "exec", *options, task], {"MODEL_KEY": "none"}

    return start


def claude(url: str, _: Path, task: str) -> tuple[list[str], dict[str, str]]:
    options = ["--print", "--output-format", "text", "--dangerously-skip-permissions"]
    return ["claude", *options, task], {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",  # it refuses to work for root without permissions elsewhere
    }


def opencode(url: str, home: Path, task: str) -> tuple[list[str], dict[str, str]]:
    model = {
        "name": MODEL,
        "reasoning": True,
        "tool_call": True,
        "interleaved": {"field": "reasoning_content"},
    }
    settings = {
        "autoupdate": False,
        "share": "disabled",
        "permission": "allow",
        "model": f"here/{MODEL}",
        "provider": {
            "here": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
                "models": {MODEL: model},
            }
        },
    }
    (home / "opencode.json").write_text(json.dumps(settings))
    return ["opencode", "run", task], {
        "OPENCODE_CONFIG": str(home / "opencode.json"),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }


def qwen(url: str, home: Path, task: str) -> tuple[list[str], dict[str, str]]:
    (home / ".qwen").mkdir()
    settings = {"memory": {"enableManagedAutoMemory": False}, "privacy": {"usageStatisticsEnabled": False}}
    (home / ".qwen" / "settings.json").write_text(json.dumps(settings))
    return ["qwen", "--yolo", "-p", task], {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": "none",
        "OPENAI_MODEL": MODEL,
    }


PATCH = f"""*** Begin Patch
*** Update File: sums.py
@@
 def add(a, b):
-    {WRONG}
+    {RIGHT}
*** End Patch"""

COMMANDS = [
    "ls -la",
    "cat README.md",
    "cat sums.py",
    "cat test_sums.py",
    "grep -n add *.py",
    TESTED,
    "wc -l *.py",
    f"printf '%s' '{FOUND}' > notes.txt",
    "cat notes.txt",
]


def of_codex(_: Path) -> list[Call]:
    return [*(Call("exec_command", {"cmd": command}) for command in COMMANDS), Call("apply_patch", PATCH)]


def of_codex_in_javascript(_: Path) -> list[Call]:
    commands = [
        f"const ran = await tools.exec_command({json.dumps({'cmd': command})});\ntext(ran);"
        for command in COMMANDS
    ]
    return [
        Call("exec", code) for code in (*commands, f"text(await tools.apply_patch({json.dumps(PATCH)}));")
    ]


def of_claude(work: Path) -> list[Call]:
    def read(name: str) -> Call:
        return Call("Read", {"file_path": str(work / name)})

    def bash(command: str) -> Call:
        return Call("Bash", {"command": command, "description": "Look at the project"})

    change = {"file_path": str(work / "sums.py"), "old_string": WRONG, "new_string": RIGHT}
    return [
        bash("ls -la"),
        read("README.md"),
        read("sums.py"),
        read("test_sums.py"),
        bash("grep -n add *.py"),
        bash(TESTED),
        bash("wc -l *.py"),
        Call("Write", {"file_path": str(work / "notes.txt"), "content": FOUND}),
        read("notes.txt"),
        Call("Edit", {"replace_all": False, **change}),  # the agent sends its default back
    ]


def of_opencode(work: Path) -> list[Call]:
    def read(name: str) -> Call:
        return Call("read", {"filePath": str(work / name)})

    def bash(command: str) -> Call:
        return Call("bash", {"command": command, "description": "Look at the project"})

    change = {"filePath": str(work / "sums.py"), "oldString": WRONG, "newString": RIGHT}
    return [
        bash("ls -la"),
        Call("glob", {"pattern": "*.py"}),
        read("README.md"),
        read("sums.py"),
        read("test_sums.py"),
        bash("grep -n add *.py"),
        bash(TESTED),
        Call("write", {"filePath": str(work / "notes.txt"), "content": FOUND}),
        read("notes.txt"),
        Call("edit", change),
    ]


def of_qwen(work: Path) -> list[Call]:
    def read(name: str) -> Call:
        return Call("read_file", {"file_path": str(work / name)})

    def shell(command: str) -> Call:
        return Call("run_shell_command", {"command": command, "is_background": False})

    change = {"file_path": str(work / "sums.py"), "old_string": WRONG, "new_string": RIGHT}
    return [
        shell("ls -la"),
        Call("glob", {"pattern": "*.py"}),
        read("README.md"),
        read("sums.py"),
        read("test_sums.py"),
        Call("grep_search", {"pattern": "add"}),
        shell(TESTED),
        Call("write_file", {"file_path": str(work / "notes.txt"), "content": FOUND}),
        read("notes.txt"),
        Call("edit", change),
    ]


AGENTS = {
    "codex": Agent("responses", codex("gpt-6.2-sol"), of_codex_in_javascript),
    "codex-of-functions": Agent("responses", codex("gpt-5.5"), of_codex),
    "claude": Agent("messages", claude, of_claude),
    "opencode": Agent("chat", opencode, of_opencode),
    "qwen": Agent("chat", qwen, of_qwen),
}


def work(name: str, url: str, session: Session, folder: Path) -> None:
    """Run an agent through its session before an address; judge it by its files and what was asked."""
    agent, work, home = AGENTS[name], folder / "work", folder / "home"
    for made in (work, home):
        made.mkdir(parents=True)
    for file, text in FILES.items():
        (work / file).write_text(text)
    session.begin(agent.script(work))
    assert len(session.script) == 10
    (program, *options), settings = agent.start(url, home, TASK)
    ran = subprocess.run(
        ["timeout", str(SESSION_S), str(BIN / program), *options],
        cwd=work,
        env={"PATH": os.environ["PATH"], "HOME": str(home), **settings},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    (folder / "requests.json").write_text(json.dumps([session.requests, session.asides], indent=1))
    printed = f"{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}"
    assert session.faults == [], printed
    assert len(session.said) == 10, printed
    assert ran.returncode == 0, printed
    assert DONE in ran.stdout, printed
    assert (work / "sums.py").read_text() == FILES["sums.py"].replace(WRONG, RIGHT), printed
    assert (work / "notes.txt").read_text() == FOUND
    assert len(session.requests) == 11


@pytest.mark.nightly
@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_finishes_its_session_before_the_provider(name: str, tmp_path: Path) -> None:
    session = Session([])
    with provider(session) as url:
        work(name, url, session, tmp_path)


LIMITS = {"completion_tokens": 128_000, "body_bytes": 1 << 25, "question_chars": 1_000_000}
"""What agents ask for."""

OTHERS = [
    pytest.param(name, protocol, marks=[pytest.mark.nightly] if number else [], id=f"{name}-{protocol}")
    for name, agent in AGENTS.items()
    for number, protocol in enumerate(each for each in PROTOCOLS if each != agent.protocol)
]
"""Agents before a model of another protocol, the second one of each at night."""


def serve(name: str, protocol: str, session: Session, folder: Path) -> None:
    """Run an agent before a service whose model speaks a protocol."""
    with provider(session) as model:
        llm = {"engine": ENGINES[protocol], "base_url": f"{model}/v1", "model": "stand-in"}
        args = {
            "arms": {"none": {"kind": "none"}},
            "aliases": {"gpt-*": "auto", "claude-*": "auto", MODEL: "auto"},
            "limits": LIMITS,
        }
        with armwise(folder / "service", llm, "--single-process", args=args) as url:
            work(name, url, session, folder)


@pytest.mark.parametrize("name", AGENTS)
def test_a_model_of_the_agents_protocol_is_sent_its_reasoning(name: str, tmp_path: Path) -> None:
    serve(name, AGENTS[name].protocol, Session([]), tmp_path)


@pytest.mark.parametrize(("name", "protocol"), OTHERS)
def test_an_agent_works_with_a_model_of_another_protocol(name: str, protocol: str, tmp_path: Path) -> None:
    serve(name, protocol, Session([], keeps_reasoning=False), tmp_path)

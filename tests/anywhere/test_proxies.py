"""Each verb and each kind of arm and model, in environments that name proxies.

This machine is asked directly. For other machines, one sentence names the variable and what to do.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpcore  # noqa: F401 - it looks for socksio when it is imported, which tests hide from it
import pytest
import yaml
from typer.testing import CliRunner, Result

from armwise.agent import doctor
from armwise.agent.cli.main import app
from armwise.agent.config import parse
from armwise.arms.base import ArmError, Query
from armwise.arms.corpus import ingest
from armwise.arms.extras import is_installed
from armwise.arms.llm import LlmSpec, build_generator
from armwise.arms.llm.base import GeneratorError
from armwise.arms.retrievers import ArmSpec, Resources
from armwise.arms.retrievers.build import build_arm
from tests.agent.canned_service import ANY, Canned
from tests.agent.fakes import CONFIG
from tests.arms.llm.test_endpoint import ask as ask_model
from tests.arms.proxy_variables import ALL_NAMES, forget_proxies

SOCKS, DEAD = "socks5://me:secret@127.0.0.1:9", "http://me:secret@127.0.0.1:9"

ENVIRONMENTS = {
    "SOCKS for all": {"ALL_PROXY": SOCKS},
    "SOCKS for all, in small letters": {"all_proxy": SOCKS.replace("socks5", "socks")},
    "SOCKS for http": {"http_proxy": SOCKS, "HTTP_PROXY": SOCKS},
    "SOCKS beside exceptions that httpx cannot read": {
        "HTTP_PROXY": SOCKS,
        "NO_PROXY": "[::1]:80,fd00::/8, *.x",
    },
    "no address": {"HTTP_PROXY": "http://me:secret@["},
    "a dead one": {"HTTP_PROXY": DEAD, "HTTPS_PROXY": DEAD, "ALL_PROXY": SOCKS},
    "a dead one without a scheme": {"http_proxy": DEAD.removeprefix("http://"), "NO_PROXY": " , "},
}
"""Variables of an environment, the one for http://service.example first."""

AWAY = "http://service.example:8000"

VERBS = {
    "ask": ["ask", "?", "--url", "URL"],
    "feedback": ["feedback", "d-1", "thumb=1", "--url", "URL"],
    "status": ["status", "--url", "URL"],
    "apply": ["policy", "apply", "FOLDER/portfolio.json", "--url", "URL"],
    "promote": ["policy", "promote", "1", "--reason", "better", "--url", "URL"],
    "rollback": ["policy", "rollback", "1", "--reason", "better", "--url", "URL"],
    "canary": ["policy", "canary", "1", "--share", "0.1", "--reason", "better", "--url", "URL"],
    "verify": ["verify", "d-1", "--url", "URL"],
    "simulate": ["lab", "simulate", "FOLDER/q.jsonl", "--metric", "a=em", "-o", "FOLDER/out", "--url", "URL"],
    "doctor": ["doctor", "-c", "FOLDER/model.yaml"],
    "serve": ["serve", "FOLDER/q.jsonl", "--prepare-only", "--llm", "m"],
}
"""Verbs that ask a service or a model, by name."""

ARMS: dict[str, dict[str, Any]] = {
    "remote": {"url": "URL", "request": {"q": "{question}"}},
    "mcp": {"url": "URL"},
    "opensearch": {"url": "URL", "collection": "passages"},
    "elasticsearch": {"url": "URL", "collection": "passages"},
    "qdrant": {"url": "URL", "collection": "passages"},
}
"""Parameters by kind, of each kind that asks over HTTP."""

NEEDS = {"qdrant": "qdrant_client", "mcp": "mcp", "litellm": "litellm"}

MODELS: dict[str, dict[str, Any]] = {
    engine: {"engine": engine, "model": "m", "base_url": "URL", "max_retries": 0}
    for engine in ("openai", "responses", "anthropic")
} | {"litellm": {"engine": "litellm", "model": "openai/m", "base_url": "URL", "max_retries": 0}}


@pytest.fixture(params=ENVIRONMENTS)
def variable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set the variables of an environment, without the package for SOCKS; return the first one."""
    for name in (*ALL_NAMES, "PYTHONSAFEPATH", "PYTHONUTF8", "PYTHONWARNINGS"):  # which the verbs change
        monkeypatch.setenv(name, "")
    forget_proxies(monkeypatch)
    variables = ENVIRONMENTS[request.param]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for module in ("socksio", "aiohttp_socks"):
        monkeypatch.setitem(sys.modules, module, None)
    return next(iter(variables))


@pytest.fixture
def here() -> Iterator[Canned]:
    server = Canned()
    server.reply(
        ANY, {"error": {"message": "it was asked", "code": "not_found", "type": "x", "param": None}}, 404
    )
    yield server
    server.close()


def with_address(value: Any, url: str, folder: Path) -> Any:
    return json.loads(json.dumps(value).replace("URL", url).replace("FOLDER", str(folder)))


def run(verb: str, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    (folder / "q.jsonl").write_text(
        '{"id": "q1", "question": "?", "answers": ["a"], "gold_ids": [], "text": "a"}\n'
    )
    (folder / "portfolio.json").write_text('{"arms": {"none": {"kind": "none"}}}')
    config = CONFIG | {
        "home": str(folder),
        "llm": MODELS["openai"] | {"base_url": url},
        "corpus": {"source": "q.jsonl", "name": "q"},
    }
    application = {"name": "a", "import_path": "armwise.agent.app:build", "args": config}
    (folder / "model.yaml").write_text(yaml.safe_dump({"applications": [application]}))
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    monkeypatch.setenv("ARMWISE_HOME", str(folder / "home"))
    return CliRunner().invoke(app, with_address(VERBS[verb], url, folder))


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_asks_this_machine_directly(
    verb: str, variable: str, here: Canned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(verb, here.url, tmp_path, monkeypatch)
    assert here.paths, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    assert variable not in done.output


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_says_which_proxy_cannot_be_used(
    verb: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(verb, AWAY, tmp_path, monkeypatch)
    says_the_proxy(done.output, variable)
    assert isinstance(done.exception, SystemExit)
    assert done.exit_code in (1, 2)


def is_dead(variable: str) -> bool:
    """Return whether the proxy that a variable names could be used, if it answered."""
    return "9" in os.environ[variable] and "socks" not in os.environ[variable]


def says_the_proxy(text: str, variable: str) -> None:
    """Check that a sentence has the variable and its value, without the password, and what to install."""
    said = " ".join(text.split())
    assert f"{variable}=" in said, text
    assert "secret" not in text
    assert "socks" not in os.environ[variable] or "pip install 'httpx[socks]'" in said


@pytest.mark.parametrize("kind", ARMS)
def test_an_arm_asks_this_machine_directly(kind: str, variable: str, here: Canned, tmp_path: Path) -> None:
    require(kind)
    with pytest.raises(ArmError, match=r"404|Not Found"):
        search(kind, here.url, tmp_path)
    assert here.paths
    del variable


@pytest.mark.parametrize("kind", ARMS)
def test_an_arm_says_which_proxy_cannot_be_used(kind: str, variable: str, tmp_path: Path) -> None:
    require(kind)
    with pytest.raises(ArmError) as raised:
        search(kind, AWAY, tmp_path)
    says_the_proxy(str(raised.value), variable)


def search(kind: str, url: str, folder: Path) -> None:
    source = folder / "one.jsonl"
    source.write_text('{"id": "p", "text": "word"}\n')
    spec = ArmSpec(kind=kind, params=with_address(ARMS[kind], url, folder))
    have = Resources(ingest(source, folder / "corpus"), folder, {}, {"arm": spec}, wait_s=1.0)
    arm = build_arm("arm", have)
    arm.search(Query("word"), 3)


def test_the_checks_name_each_arm_whose_proxy_cannot_be_used(variable: str) -> None:
    """`doctor` prints them, and `serve` before it starts without them."""
    specs = {
        kind: {"kind": kind, "params": with_address(ARMS[kind], AWAY, Path())} for kind in ("remote", "mcp")
    }
    at_home = {"kind": "remote", "params": with_address(ARMS["remote"], "http://[::1]:8000", Path())}
    config = parse(CONFIG | {"arms": {"none": {"kind": "none"}, "here": at_home, **specs}})
    found = [one.what for one in doctor.check_proxies(config) if "_PROXY=" in one.what.upper()]
    assert [what.partition(" cannot ask")[0] for what in found] == (
        [] if is_dead(variable) else ["arm 'remote'", "arm 'mcp'"]
    )


@pytest.mark.parametrize("engine", MODELS)
async def test_a_model_on_this_machine_is_asked_directly(engine: str, variable: str, here: Canned) -> None:
    require(engine)
    if engine == "litellm":
        pytest.skip(f"the library reads every proxy itself, {variable} too, and keeps its clients")
    with pytest.raises(GeneratorError, match="404"):
        await ask_model(build_generator(spec_of(engine, here.url)))
    assert here.paths


@pytest.mark.parametrize("engine", MODELS)
async def test_a_model_says_which_proxy_cannot_be_used(engine: str, variable: str) -> None:
    require(engine)
    if engine == "litellm" and is_dead(variable):
        pytest.skip("the library keeps its clients, which have the proxies of an earlier test")
    with pytest.raises(GeneratorError) as raised:
        await ask_model(build_generator(spec_of(engine, AWAY)))
    says_the_proxy(str(raised.value), variable)


def spec_of(engine: str, url: str) -> LlmSpec:
    from pydantic import TypeAdapter

    return TypeAdapter(LlmSpec).validate_python(MODELS[engine] | {"base_url": url})


def require(what: str) -> None:
    if (module := NEEDS.get(what)) and not is_installed(module):
        pytest.skip(f"{module} is not installed")

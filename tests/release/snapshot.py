"""The contract of a version: how it is read from the code, stored with a release, and compared with that.

Each release has a folder beside this file, named by its version:

openapi.json    the OpenAPI document without descriptions, sorted
http.json       statuses of the error codes; routes that stand outside of the document
config.json     the JSON Schema of the configuration, with every default
log.json        tables of the log on SQLite and on PostgreSQL, and the hash of each migration
python.json     names that the packages export to users, and their arguments
log.sql         a log that a service of the release wrote, with the configuration service.json
*.yaml          configurations that the release ships
"""

import asyncio
import json
import tempfile
import tomllib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from armwise.agent.api.documented import document
from armwise.agent.api.errors import ERRORS
from armwise.agent.api.routes import VERSION, list_routes
from armwise.feedback.log.database import open_database
from armwise.feedback.log.schema import MIGRATIONS, prepare
from tests.documents.schema import config_schema
from tests.postgres import running
from tests.release import faces, history, log, openapi
from tests.release.schemas import Schema, Use, bare, compare

ROOT = Path(__file__).parents[2]
RELEASES = Path(__file__).parent
ACCEPTED = RELEASES / "accepted.toml"

CONFIGURATIONS = ("serve_config.yaml", "agent/config/template.yaml")

FACES = ("armwise", "armwise.agent.client")
"""Packages whose exported names users import."""

CONTRACT = ("openapi", "http", "config", "log", "python")
"""The files of a snapshot that are compared."""

WIDTH = 110
"""Longest line of a stored file, in characters, where it can be split."""

Contract = Mapping[str, Any]
"""By the name of its file, without the ending, what it holds."""


def present(sqlite_url: str, postgresql_url: str) -> Contract:
    """Return the contract of the code.

    Args:
        sqlite_url: URL of an empty database of SQLite.
        postgresql_url: URL of an empty database of PostgreSQL.
    """
    made = document(FastAPI(title="Armwise", version=VERSION, routes=list_routes()))
    contract = {
        "openapi": bare(made),
        "http": {"errors": _errors(), "routes": _routes(made)},
        "config": bare(config_schema()),
        "log": {
            "migrations": log.migrations_of(MIGRATIONS),
            "sqlite": _tables(sqlite_url),
            "postgresql": _tables(postgresql_url),
        },
        "python": {face: faces.face_of(face) for face in FACES},
    }
    stored: Contract = json.loads(json.dumps(contract))  # as a file holds it
    return stored


def _tables(url: str) -> log.Tables:
    engine = open_database(url).engine
    try:
        prepare(engine)
        return log.tables_of(engine)
    finally:
        engine.dispose()


def _errors() -> dict[str, Any]:
    return {code: {"status": one.status, "retryable": one.retryable} for code, one in sorted(ERRORS.items())}


def _routes(made: Mapping[str, Any]) -> list[str]:
    """Return the routes that the document leaves out; pages of the console are none of the contract."""
    documented = set(_operations(made))
    routes = {
        f"{method} {getattr(route, 'path_format', route.path)}"
        for route in list_routes()
        if not route.path.startswith(("/console", "/docs/"))
        for method in getattr(route, "methods", None) or ()
        if method != "HEAD"
    }
    return sorted(routes - documented)


def breaks(old: Contract, new: Contract) -> list[str]:
    """Return what breaks between the contract of a release and that of the present, a sentence each."""
    found = openapi.breaks(old["openapi"], new["openapi"])
    found += openapi.broken_codes(old["http"]["errors"], new["http"]["errors"])
    routes = set(new["http"]["routes"]) | set(_operations(new["openapi"]))
    found += [f"{route}: is gone" for route in old["http"]["routes"] if route not in routes]
    found += broken_settings(old["config"], new["config"])
    found += log.broken_migrations(old["log"]["migrations"], new["log"]["migrations"])
    for dialect in ("sqlite", "postgresql"):
        changed = log.broken_tables(old["log"][dialect], new["log"][dialect])
        found += [f"{dialect}: {one}" for one in changed]
    return found + faces.broken_faces(old["python"], new["python"])


def _operations(made: Mapping[str, Any]) -> list[str]:
    return [f"{method.upper()} {path}" for path, methods in made["paths"].items() for method in methods]


def broken_settings(old: Schema, new: Schema) -> list[str]:
    """Return what a configuration of the release can no longer say, or now means otherwise."""
    found: dict[tuple[Any, ...], str] = {}
    for one in compare(old, new, Use.ACCEPTED):
        place = one.place.removeprefix("applications[].args").removeprefix(".")
        found.setdefault((*(one.origin or (one.place,)), one.text), f"setting `{place}`: {one.text}")
    return [*dict.fromkeys(found.values())]


def versions() -> list[str]:
    """Return the versions that have a snapshot, oldest first."""
    folders = [path.name for path in RELEASES.iterdir() if (path / "openapi.json").exists()]
    return sorted(folders, key=lambda name: [int(part) for part in name.split(".")])


def stored(version: str, folder: Path = RELEASES) -> Contract:
    """Return the contract that is stored for a version. Raises FileNotFoundError where there is none."""
    return {name: json.loads((folder / version / f"{name}.json").read_text()) for name in CONTRACT}


def text(value: Any, indent: str = "") -> str:
    r"""Return JSON by sorted keys, in which what fits in a line stands in one.

    >>> text({"b": [1, 2], "a": None})
    '{"a": null, "b": [1, 2]}\n'
    """
    line = json.dumps(value, sort_keys=True)
    if len(indent) + len(line) <= WIDTH or not isinstance(value, dict | list):
        return f"{line}\n"
    deeper = f"{indent} "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {text(value[key], deeper).rstrip()}" for key in sorted(value)]
    else:
        parts = [text(one, deeper).rstrip() for one in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    lines = ",\n".join(f"{deeper}{part}" for part in parts)
    return f"{begin}\n{lines}\n{indent}{end}\n"


def accepted(file: Path = ACCEPTED) -> dict[tuple[str, str], str]:
    """Return the breaks that were decided, by version and sentence, each with its reason."""
    entries = tomllib.loads(file.read_text(encoding="utf-8")).get("break", ())
    return {
        (one["release"], what): one["why"]
        for one in entries
        for what in ([one["what"]] if isinstance(one["what"], str) else one["what"])
    }


def write(folder: Path = RELEASES) -> Path:
    """Store the contract of this version, with a log that it writes; return the folder."""
    version = metadata.version("armwise")
    target = folder / version
    with tempfile.TemporaryDirectory() as empty, running(in_memory=True) as server:
        contract = present(f"sqlite:///{empty}/shape.db", server.fresh())
        served = Path(empty) / "served"
        served.mkdir()
        script = asyncio.run(history.write(served))
    target.mkdir(exist_ok=True)
    for name in CONTRACT:
        (target / f"{name}.json").write_text(text(contract[name]), encoding="utf-8")
    (target / "log.sql").write_text(script, encoding="utf-8")
    (target / "service.json").write_text(text(history.CONFIGURATION), encoding="utf-8")
    for name in CONFIGURATIONS:
        copied = (ROOT / name).read_text(encoding="utf-8")
        (target / Path(name).name).write_text(copied, encoding="utf-8")
    return target

"""Checks of what the service reads and writes: its log, its corpus, its models."""

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import psutil

from agent.checks.finding import Finding
from agent.config import AppConfig, warm_start
from arms import manifest
from arms.base import ArmError
from arms.corpus import Corpus, CorpusError, open_source, problems
from arms.indexes import build_once
from arms.llm import LlmSpec, catalog, writing
from arms.models import Backbone, ModelNotFoundError, digest_of, locate, model_problems
from arms.retrievers import Resources
from arms.retrievers import catalog as arms_catalog
from arms.secrets import secret_of
from arms.suggestions import did_you_mean
from feedback.errors import ClockError, LogUnavailableError, SchemaError, StoreError
from feedback.log import Store, database, schema, tables

PATIENCE_S = 5.0
"""How long an endpoint has to name its models."""

REMOTE_FILES = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "glusterfs", "lustre")
"""File systems that other machines see, too: SQLite's WAL needs memory that its processes share."""


# -- the log -------------------------------------------------------------------------------------


def log_findings(config: AppConfig) -> Iterator[Finding]:
    """Yield whether the log can be read and written: schema, rights, durability, clock. Creates nothing."""
    for name, point in config.by_point.items():
        if name == "default" or point.log_path is not None:
            yield from _log(point)


def _log(config: AppConfig) -> Iterator[Finding]:
    url, path = config.database_url, config.log_path
    where = f"the log {database.shown(url)}"
    if path is not None:
        if (system := _file_system(path)) in REMOTE_FILES:
            yield Finding(
                f"{where} is on {system}, where it can be damaged", "use a local disk, or PostgreSQL"
            )
        there = next(each for each in (path, *path.absolute().parents) if each.exists())
        if not os.access(there, os.W_OK):
            yield Finding(f"{there} cannot be written", f"run as its owner, or chown {there}")
            return
        if there != path:
            yield Finding(f"{where} is made at the first start")
            return
    try:
        state = schema.state_of(url)
        yield from _state(state, where)
        if state.schema == tables.SCHEMA:
            with closing(Store(url)) as store:
                store.check_tables()
                store.check_clock()
                store.probe()
            yield Finding(f"{where} has schema {state.schema}, and can be written")
    except LogUnavailableError as error:
        yield Finding(f"{where}: {error}", "start the database, or correct log_url")
    except ClockError as error:
        yield Finding(f"{where}: {error}", "synchronise the clocks (chrony, systemd-timesyncd)")
    except SchemaError as error:
        yield Finding(
            f"{where}: {error}", "give its user all rights on its tables, or restore it from a backup"
        )
    except StoreError as error:
        yield Finding(f"{where}: {error}", "correct log_url")


def _state(state: schema.State, where: str) -> Iterator[Finding]:
    for setting in state.lossy:
        what = f"{where} may lose what was committed in a crash: {setting}"
        yield Finding(what, f"take {setting} back")
    if not state.schema and not state.may_create:
        yield Finding(f"{where} is empty, and its user may create no tables", "GRANT CREATE ON SCHEMA to it")
    elif not state.schema:
        yield Finding(f"{where} is empty: tables are made at the first start")
    elif state.schema < tables.SCHEMA:
        what = f"{where} has schema {state.schema}, and this version needs {tables.SCHEMA}"
        yield Finding(what, "stop the service, make a backup, and run `armwise migrate`")
    elif state.schema > tables.SCHEMA:
        what = f"{where} has schema {state.schema} of a newer version; this one has {tables.SCHEMA}"
        yield Finding(what, "install the newer version")


def _file_system(path: Path) -> str:
    """Return the kind of the file system that a path is, or would be, on."""
    mounts = {Path(one.mountpoint): str(one.fstype) for one in psutil.disk_partitions(all=True)}
    return next((mounts[each] for each in (path, *path.absolute().parents) if each in mounts), "")


# -- the corpus and the models -------------------------------------------------------------------


def corpus_findings(config: AppConfig) -> Iterator[Finding]:
    """Yield whether the corpus can be read, and has been."""
    name, source = config.corpus.name, config.corpus.source
    try:
        open_source(source if source == "stdlib" else Path(source).expanduser())
    except CorpusError as error:
        yield Finding(f"corpus {name!r}: {error}", "correct corpus.source")
        return
    if damage := problems(config.corpus_path, contents=True):
        what = f"corpus {name!r} in {config.corpus_path}: {', '.join(damage)}"
        yield Finding(what, "`armwise serve --prepare-only` reads it again")
        return
    try:
        corpus = Corpus.open(config.corpus_path)
    except CorpusError:
        yield Finding(f"corpus {name!r} is read from {source} at the first start")
    else:
        yield Finding(f"corpus {name!r} has {len(corpus):,} passages, digest {corpus.digest[:12]}")
        if corpus.restricted:
            yield _restricted(config, corpus)
        for point in config.by_point.values():
            yield from _engines(point, corpus)


def _restricted(config: AppConfig, corpus: Corpus) -> Finding:
    """Return whether every arm keeps to the permissions of passages."""
    what = f"{corpus.manifest.restricted:,} passages are for some groups alone"
    unable = [name for name in config.actions if not arms_catalog.filters(name, config.arms)]
    if not unable:
        return Finding(what)
    return Finding(
        f"{what}, and no request draws {', '.join(unable)}, which cannot keep to that",
        "replace these arms, or let a class of your own filter",
        serious=False,
    )


def _engines(config: AppConfig, corpus: Corpus) -> Iterator[Finding]:
    """Yield whether the collections of arms over search engines hold the corpus."""
    resources = Resources(corpus, config.indexes_path, config.backbones, config.arms)
    for name in config.arms:
        remedy = f"`armwise ingest --into {name}`, unless something else fills it"
        try:
            if damage := arms_catalog.damage(name, resources):
                again = f"`armwise serve --prepare-only` or `armwise ingest --into {name}` fills it again"
                yield Finding(f"the collection of arm {name!r}: {', '.join(damage)}", again)
                continue
            held = arms_catalog.ingested(name, resources)
        except (ArmError, ModelNotFoundError) as error:
            yield Finding(str(error), "start the engine, or correct the arm", serious=False)
            continue
        if held is None:
            continue
        version, current = held
        if not version:
            yield Finding(f"arm {name!r}: nothing was ingested into its collection", remedy, serious=False)
        elif not current:
            what = f"arm {name!r}: its collection holds version {version}, not the present corpus"
            yield Finding(what, remedy, serious=False)
        else:
            yield Finding(f"arm {name!r}: its collection holds version {version}")


def derived_findings(config: AppConfig) -> Iterator[Finding]:
    """Yield which files of indexes, trained models and labels have changed since they were written.

    Compares the contents of all of them with the digests in their manifests.
    """
    points = config.by_point.values()
    indexes = build_once.finished(config.indexes_path)
    yield from _compared("index", indexes, "`armwise serve --prepare-only` builds it again")
    trained = {point.router.path for point in points if point.router is not None}
    trained |= {
        Path(value) for point in points for spec in point.arms.values() for value in _texts(spec.params)
    }
    yield from _compared("trained model", _with_manifest(trained), "train it again (`armwise train`)")
    specs = [point.warm_start for point in points if point.warm_start is not None]
    sources = [source for spec in specs for source in spec.sources.values()]
    labels = {source.path for source in sources if isinstance(source, warm_start.OutcomesSource)}
    again = "delete it, and make it again (`armwise label` or `armwise score`)"
    yield from _compared("labels", _with_manifest(labels), again)


def _texts(params: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parameters that may name a folder."""
    yield from (value for value in params.values() if isinstance(value, str) and "\0" not in value)


def _with_manifest(paths: Iterable[Path]) -> list[Path]:
    """Return the folders of which a manifest describes the files, by name."""
    folders = {path.expanduser() for path in paths}
    return sorted(folder for folder in folders if (folder / manifest.MANIFEST).is_file())


def _compared(what: str, folders: Collection[Path], remedy: str) -> Iterator[Finding]:
    """Yield the damaged files of some folders, a finding a folder; one finding if there are none."""
    damaged = {folder: manifest.problems(folder, contents=True) for folder in folders}
    for folder, damage in damaged.items():
        if damage:
            yield Finding(f"{what} {folder}: {', '.join(damage)}", remedy)
    if damaged and not any(damaged.values()):
        yield Finding(f"{what}: the files of {len(damaged)} folders are as they were written")


def model_findings(config: AppConfig) -> Iterator[Finding]:
    """Yield whether the encoders and the language model are there."""
    points = config.by_point.values()
    for name, backbone in {name: one for point in points for name, one in point.backbones.items()}.items():
        yield from _backbone(name, backbone)
    for name, llm in config.models.items():
        yield from llm_findings(
            llm, "the language model" if name == writing.DEFAULT else f"language model {name!r}"
        )


def _backbone(name: str, backbone: Backbone) -> Iterator[Finding]:
    if not backbone.model.startswith("hashing:"):
        yield from _weights(f"encoder {name!r}", backbone.model)


def _weights(what: str, model: str) -> Iterator[Finding]:
    try:
        place = locate(model)
    except ModelNotFoundError as error:
        yield Finding(f"{what}: {error}", "correct its name, or put it there")
        return
    if damage := model_problems(model):
        yield Finding(f"{what} {model}: {', '.join(damage)}", "install it again: `make models`")
    elif isinstance(place, Path):
        yield Finding(f"{what} is {model}, sha256 {digest_of(place)[:12]}")
    else:
        remedy = "let the machine reach the hub, or name a folder"
        yield Finding(f"{what} {model} is fetched from a hub where it is not cached", remedy, serious=False)


def llm_findings(llm: LlmSpec, what: str = "the language model") -> Iterator[Finding]:
    """Yield whether a language model is there; an endpoint is asked for the names of its models.

    Args:
        llm: The model.
        what: What it is called.
    """
    match llm:
        case catalog.EmbeddedSpec():
            yield from _weights(what, llm.model)
        case catalog.VllmSpec():
            if find_spec("vllm") is None:
                yield Finding("vLLM is not installed", "`pip install 'armwise[gpu]'`")
            yield from _weights(what, llm.model)
        case catalog.OpenAISpec():
            yield from _endpoint(llm, what)
        case catalog.ScriptedSpec():
            yield Finding(f"{what} is scripted: fixed replies", "set llm for answers", serious=False)


def _endpoint(llm: catalog.OpenAISpec, what: str) -> Iterator[Finding]:
    key = "" if llm.api_key_env is None else secret_of(llm.api_key_env)
    if llm.api_key_env is not None and not key:
        yield Finding(f"no key of {what} in {llm.api_key_env}", f"set the variable {llm.api_key_env}")
        return
    address = str(llm.base_url).rstrip("/")
    base = database.shown(address)
    began = time.monotonic()
    try:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        reply = httpx.get(f"{address}/models", headers=headers, timeout=PATIENCE_S)
    except (httpx.HTTPError, UnicodeError) as error:
        what = f"no language model answers at {base} ({type(error).__name__})"
        yield Finding(what, "start it, or correct llm.base_url")
        return
    if reply.status_code in (401, 403):
        of = f"the key in {llm.api_key_env}" if key else "a request without a key"
        yield Finding(
            f"{base} refuses {of} ({reply.status_code})", "let llm.api_key_env name one that it takes"
        )
        return
    try:
        names = [str(one["id"]) for one in reply.json()["data"]]
    except (ValueError, KeyError, TypeError):
        what = f"{base} does not name its models (status {reply.status_code})"
        yield Finding(what, "check llm.base_url; it mostly ends in /v1", serious=False)
        return
    if llm.model not in names:
        what = f"{base} has no model {llm.model!r}{did_you_mean(llm.model, names)}"
        yield Finding(what, "correct llm.model")
    else:
        yield Finding(f"model {llm.model!r} is at {base}, which answered in {time.monotonic() - began:.2f} s")

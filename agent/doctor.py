"""Checks of a configuration and of this machine: what is open to others, and what would fail.

`armwise doctor` prints all findings; `armwise serve` prints the serious ones before it starts.
"""

import ipaddress
import itertools
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from platform import python_version
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import psutil
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from armwise.agent import wings
from armwise.agent.access import Keyring, is_loopback, local_url
from armwise.agent.config import (
    HOME_REMEDY,
    PRICE_REMEDY,
    AppConfig,
    ConfigError,
    find_home_problem,
    warm_start,
)
from armwise.agent.file_errors import describe_file_for_folder, find_existing
from armwise.agent.model_endpoints import (
    AROUND_A_PROXY,
    MODELS_TIMEOUT_S,
    EndpointError,
    get,
    list_models,
    list_nearest,
)
from armwise.agent.process_limits import OTHER_HANDLES, bind_problem, hard_limit_of_files, most_connections
from armwise.agent.routers import build_router
from armwise.arms import manifest
from armwise.arms.base import ArmError
from armwise.arms.corpus import Corpora, Corpus, CorpusError, CorpusSource, open_source, problems
from armwise.arms.extras import describe_missing, find_missing, find_version, install_command
from armwise.arms.indexes import build_once
from armwise.arms.llm import LlmSpec, catalog, writing
from armwise.arms.local_ray import cluster_problem
from armwise.arms.models import (
    AGAIN,
    Backbone,
    ModelNotFoundError,
    digest_backbone,
    digest_file,
    locate,
    locate_here,
    model_problems,
)
from armwise.arms.places import locate_source
from armwise.arms.retrievers import ArmGraph, Resources
from armwise.arms.secrets import read_secret
from armwise.feedback.errors import (
    ClockError,
    LogUnavailableError,
    NoLogError,
    SchemaError,
    StoreError,
)
from armwise.feedback.log import COPIED_IN_USE, Store, lacks_wal, schema, tables, without_password
from armwise.feedback.registry import keys

NAMED = ("ray", "vowpalwabbit", "onnxruntime", "faiss-cpu")
"""Packages whose versions are always listed."""

EXTRAS = ("", "serve", "plots")
"""Extras that the service needs in full; the empty name stands for the base requirements."""

OPTIONAL = {
    "local": "encoders and language models cannot run in this process",
    "trees": "routers of boosted trees and learned fusion are not available",
    "mcp": "/mcp and arms of kind mcp are not available",
    "parquet": "Parquet files cannot be read or written",
}
"""Extras that only some configurations need, and what is missing without each."""

REQUIRED = "`pip install --upgrade 'armwise[{extra}]'`"
"""Remedy for a package that an extra brings."""

SHORTEST_KEY = 16
"""Fewest characters of a key that cannot be guessed."""

ENCRYPTED = ("require", "verify-ca", "verify-full")
"""Values of sslmode that enforce encryption of connections to PostgreSQL."""

LEAST_FREE = 2**30
"""Free bytes that the disk of the log needs; with a full disk the service answers 503."""

PROGRAMS = ("raylet", "gcs_server", "haproxy")
"""Names of the programs of a service besides Python, whose processes Ray calls `ray::...`."""

LONGEST_NAME = 40
"""Characters of the name of another process, which may call itself as it likes."""

LEAST_MEMORY = 2**30
"""Bytes in which a service without models starts."""

USUAL_MEMORY = 5 * 2**29
"""Bytes in which the default service starts; docs/benchmarks/speed.md has what its processes take."""

SHARED_MEMORY = 256 * 2**20
"""Bytes of Ray's object store."""

ANSWER_TIMEOUT_S = 3.0
"""Seconds that a service, or a cluster, has to answer."""

START_WAIT_S = 2.0
"""Most seconds that a start waits for endpoints to list their models."""

REMOTE_FILES = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "glusterfs", "lustre")
"""File systems that machines share; SQLite's WAL needs memory that its processes share."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check: a problem with its remedy, or, without a remedy, a confirmation.

    Attributes:
        what: The finding, in one sentence.
        remedy: How to correct it; empty if nothing is wrong.
        serious: Whether others could read, change or stop something, or the service would fail to start or
            lose data; otherwise it is a remark.
    """

    what: str
    remedy: str = ""
    serious: bool = True

    @property
    def level(self) -> str:
        """`problem`, `note` or `fine`."""
        return "fine" if not self.remedy else "problem" if self.serious else "note"

    def __str__(self) -> str:
        """Return the finding as a line.

        >>> str(Finding("no keys", "declare `keys`")), str(Finding("Python 3.11.2"))
        ('problem: no keys; declare `keys`', 'fine: Python 3.11.2')
        """
        return f"{self.level}: {self.what}" + (f"; {self.remedy}" if self.remedy else "")


def examine(config: AppConfig, address: tuple[str, int]) -> Iterator[tuple[str, Finding]]:
    """Yield what is found of a configuration and of this machine, each with the name of its check.

    Args:
        config: The configuration.
        address: Host and port on which the service listens.
    """
    log = list(check_log(config))
    readable = not any(finding.level == "problem" for finding in log)
    is_open = False if config.keys else is_open_to_all(config, address[0]) if readable else None
    checks: dict[str, Iterable[Finding]] = {
        "libraries": check_libraries(config),
        "proxies": check_proxies(config),
        "log": log,
        "access": check_configuration(config, address[0], is_open=is_open),
        "files": itertools.chain(check_home(config), check_files(config)),
        "corpus": check_corpus(config),
        "derived files": check_derived(config),
        "models": check_models(config),
        "machine": check_resources(config),
        "address": check_address(*address),
        "sockets": check_sockets(address),
    }
    for name, findings in checks.items():
        yield from ((name, finding) for finding in findings)


# -- what is installed ------------------------------------------------------------------------------


def check_versions() -> Iterator[Finding]:
    """Yield the versions of Python and of the most important packages, and deviations from requirements."""
    about = metadata.metadata("armwise")
    specifier = SpecifierSet(about["Requires-Python"])
    if python_version() in specifier:
        yield Finding(f"Armwise {about['Version']} on Python {python_version()}")
    else:
        yield Finding(
            f"Armwise needs Python {specifier}, but this is {python_version()}", f"install Python {specifier}"
        )
    absent: set[str] = set()
    for requirement in map(Requirement, about.get_all("Requires-Dist") or ()):
        of = [
            extra
            for extra in (*EXTRAS, *OPTIONAL)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        ]
        if not of or requirement.name == about["Name"]:
            continue
        release, remedy = find_version(requirement.name), REQUIRED.format(extra=of[0] or "serve")
        if not release and of[0] in OPTIONAL:
            absent.add(of[0])
        elif not release:
            yield Finding(f"{requirement.name} is not installed", remedy)
        elif not requirement.specifier.contains(release.partition("+")[0], prereleases=True):
            what = f"{requirement.name} {release} is installed, but Armwise needs {requirement.specifier}"
            yield Finding(what, remedy)
    yield Finding(", ".join(f"{name} {find_version(name) or 'missing'}" for name in NAMED))
    for extra, lacking in OPTIONAL.items():
        if extra in absent:
            yield Finding(f"armwise[{extra}] is not installed: {lacking}")


def check_libraries(config: AppConfig) -> Iterator[Finding]:
    """Yield the libraries that the configuration needs and that are not installed."""
    needed: dict[str, list[tuple[str, str]]] = {}
    for what, libraries in _libraries(config):
        for module in find_missing(libraries):
            needed.setdefault(install_command([module]), []).append((module, what))
    for command, pairs in needed.items():
        modules, whats = (", ".join(dict.fromkeys(names)) for names in zip(*pairs, strict=True))
        yield Finding(f"{modules} must be installed for {whats}", f"run {command}")


def check_proxies(config: AppConfig) -> Iterator[Finding]:
    """Yield the arms whose proxy cannot be used."""
    for name, why in ArmGraph(config.arms).describe_bad_proxies().items():
        yield Finding(f"arm {name!r} cannot ask its service, so it is left out: {why}", AROUND_A_PROXY)


def require_libraries(config: AppConfig) -> None:
    """Refuse a configuration that names what is not installed. Raises ConfigError."""
    if missing := list(check_libraries(config)):
        raise ConfigError("\n".join(f"{finding.what}; {finding.remedy}" for finding in missing))


def require_models(config: AppConfig) -> None:
    """Refuse a configuration that names an encoder or a file of weights that cannot be found.

    Encoders named by a hub are looked up there; that takes half a minute if the hub does not answer.

    Raises:
        ConfigError: Each line has the key of the configuration and the model.
    """
    problems: list[str] = []
    for name, backbone in config.backbones.items():
        problems += _missing(f"backbones.{name}.model", partial(digest_backbone, backbone))
    for name, llm in config.models.items():
        if isinstance(llm, catalog.EmbeddedSpec):
            problems += _missing(f"{_llm_key(name)}.model", partial(locate_here, llm.model))
    if problems:
        raise ConfigError("\n".join(problems))


def _missing(key: str, find: Callable[[], object]) -> Iterator[str]:
    try:
        find()
    except ModelNotFoundError as error:
        yield f"{key}: {error}"


def _libraries(config: AppConfig) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield what the configuration names, with the modules beyond `armwise[serve]` that it needs."""
    for name, llm in config.models.items():
        yield _name_model(name), llm.libraries
    for name, backbone in config.backbones.items():
        yield f"backbone {name!r}", backbone.libraries
    graph = ArmGraph(config.arms)
    for name, spec in config.arms.items():
        yield f"arm {name!r} of kind {spec.kind!r}", graph.resolve(name)[0].libraries
    if config.warm_start is not None and config.warm_start.router is not None:
        yield "warm_start.router", build_router(config.warm_start.router).libraries


# -- what is open by configuration ------------------------------------------------------------------


def check_configuration(config: AppConfig, host: str, *, is_open: bool | None) -> Iterator[Finding]:
    """Yield what the configuration leaves open to others.

    Args:
        config: The configuration.
        host: Address on which the service listens.
        is_open: Whether both configuration and log lack keys; None: unknown.
    """
    yield from _keys(config, host, is_open)
    yield from _database(config)
    for name, spec in sorted(config.arms.items()):
        if spec.kind in ("remote", "mcp"):
            yield from _remote(f"arm {name!r} sends questions", str(spec.params.get("url", "")))
    if config.digest is not None:
        try:
            yield from _remote("the digest is sent", config.digest.read_url())
        except ValueError as error:
            yield Finding(str(error), "set it to the address of the receiver")
    yield from _quoting(config)
    yield from _find_unpriced(config)
    if problem := describe_budget_without_prices(config):
        yield Finding(problem, "or disable the key: `armwise key disable`")
    elif unpriced := config.unpriced:
        yield Finding(
            f"no price is known for {unpriced}, so answers count as free", PRICE_REMEDY, serious=False
        )


def describe_budget_without_prices(config: AppConfig) -> str:
    """Return that a valid key of the log has a budget in dollars and a model has no known price; empty: no.

    A log that cannot be read is the subject of other checks.
    """
    if not config.unpriced:
        return ""
    try:
        with closing(Store(config.database_url, create=False)) as store:
            made = keys.read(store)
    except StoreError:
        return ""
    now = time.time()
    limited = (
        key.public_id
        for key in made
        if key.settings.limits.max_budget is not None
        and key.disabled_at is None
        and (key.settings.expires is None or key.settings.expires > now)
    )
    key_id = next(limited, "")
    return key_id and config.describe_unpriced(f"the budget of key {key_id} is in dollars (`max_budget`)")


def is_open_to_all(config: AppConfig, host: str) -> bool | None:
    """Return whether a service lacks keys; None: the log, which may have keys, cannot be read.

    Raises:
        LogUnavailableError: The log cannot be read, and the service would listen beyond loopback.
    """
    keyring = Keyring(config.keys, time.time)
    if keyring.is_open and (config.log_path is None or config.log_path.exists()):
        try:
            with closing(Store(config.database_url, create=False)) as store:
                keyring.refresh(store)
        except NoLogError:
            pass  # it has no keys, either
        except LogUnavailableError:
            if not is_loopback(host):
                raise
            return None
    return keyring.is_open


def _keys(config: AppConfig, host: str, is_open: bool | None) -> Iterator[Finding]:
    if is_open is None:
        what = "the log cannot be read, so Armwise does not know whether an API key is set"
        yield Finding(what, "see the finding on the log", serious=False)
    if is_open:
        what = f"no API key is set, so everyone who reaches {host} can use and administer the service"
        yield Finding(
            what, "run `armwise key create --name me`, or set `keys`", serious=not is_loopback(host)
        )
    for key in config.keys:
        length = len(read_secret(key.env))
        if length < SHORTEST_KEY:
            yield Finding(
                f"the key in {key.env} has {length} characters",
                f"use at least {SHORTEST_KEY} random characters, for example from `openssl rand -hex 32`",
            )
    if is_open is False and not is_loopback(host):
        what = f"clients send their keys and questions to {host} in plain text"
        yield Finding(what, "put a proxy that terminates TLS in front of the service", serious=False)


def _database(config: AppConfig) -> Iterator[Finding]:
    address = urlsplit(config.database_url)
    if not address.scheme.startswith("postgresql"):
        return
    options = parse_qs(address.query)
    host = address.hostname or options.get("host", [""])[0]
    mode = options.get("sslmode", [os.environ.get("PGSSLMODE", "prefer")])[0]
    if host and not host.startswith("/") and not is_loopback(host):
        if mode not in ENCRYPTED:
            what = f"the connection to PostgreSQL on {host} may be unencrypted (sslmode={mode})"
            yield Finding(what, "add ?sslmode=verify-full to log_url")
        elif mode == "require":
            what = f"sslmode=require encrypts the connection, but does not check that the server is {host}"
            yield Finding(what, "use sslmode=verify-full with sslrootcert", serious=False)
    if address.password or "password" in options:
        yield Finding(
            "log_url contains a password", "move it to the file that PGPASSFILE names", serious=False
        )


def _remote(who: str, url: str) -> Iterator[Finding]:
    """Yield that what is sent goes to an inner address, or in plain text."""
    address = urlsplit(url)
    for ip in _addresses(address.hostname or ""):
        if ip.is_link_local:
            what = f"{who} to {ip}, a link-local address, where clouds keep credentials"
            yield Finding(what, "set `url` to the address of the receiver")
            return
        if ip.is_private:
            what = f"{who} to {ip}, a private address"
            yield Finding(what, "ignore this if your own service runs there", serious=False)
            return
    if address.scheme == "http":
        what = f"{who} to {address.hostname} in plain text"
        yield Finding(what, "use an https address", serious=False)


def _quoting(config: AppConfig) -> Iterator[Finding]:
    """Yield that most answers are quoted passages although a real model is configured."""
    model = config.models[config.answering.llm]
    placeholder = isinstance(model, catalog.EmbeddedSpec) and model.model == catalog.DEFAULT_MODEL
    if config.answering.quote and not placeholder:
        what = "answering.quote is set, so Armwise mostly quotes passages instead of asking your model"
        yield Finding(what, "remove answering.quote to let the model answer", serious=False)


def _find_unpriced(config: AppConfig) -> Iterator[Finding]:
    """Yield arms with a price in dollars that neither a reward nor a budget counts."""
    rule, budget = config.reward, config.budget
    if (rule.cost.usd and rule.cost_weight) or (budget is not None and budget.unit == "usd"):
        return
    if paid := ", ".join(repr(name) for name, spec in config.arms.items() if spec.usd):
        zero = "reward.cost_weight" if rule.cost.usd else "reward.cost.usd"
        what = f"searches with {paid} cost dollars, but {zero} is 0, so rewards ignore that cost"
        yield Finding(what, f"set {zero} or `budget.usd_per_request`", serious=False)


def _addresses(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return the addresses of a host; empty if its name cannot be resolved here."""
    try:
        endpoints = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [ipaddress.ip_address(str(place[0])) for *_, place in endpoints]


# -- files and sockets of this machine --------------------------------------------------------------


def check_files(config: AppConfig) -> Iterator[Finding]:
    """Yield files that others can read or change, and a disk that is nearly full."""
    if other := config.overridden_home:
        what = f"the home is {config.home_path} (from ARMWISE_HOME), not {other} (from the configuration)"
        remedy = "unset ARMWISE_HOME, or remove `home`: services with the same home share corpora and log"
        yield Finding(what, remedy, serious=False)
    for place in filter(None, (config.home_path, config.log_path)):
        mode = _mode(place)
        if mode & 0o022:
            yield Finding(f"other users can change {place} (mode {mode:o})", f"run `chmod go-rwx {place}`")
        elif mode & 0o055:
            what = f"other users can read {place} (mode {mode:o}), which contains your users' questions"
            yield Finding(what, f"run `chmod go-rwx {place}`", serious=False)
    for place in secret_files(os.environ):
        mode = _mode(place)
        if mode & 0o077:
            yield Finding(f"other users can read {place} (mode {mode:o})", f"run `chmod 600 {place}`")
    there = next((each for each in (config.home_path, *config.home_path.parents) if each.exists()), Path("/"))
    free = shutil.disk_usage(there).free
    if free < LEAST_FREE:
        what = f"the disk of {there} has only {free / 2**20:,.0f} MiB of free space"
        remedy = (
            f"free at least {LEAST_FREE / 2**20:,.0f} MiB: the service refuses requests if the disk is full"
        )
        yield Finding(what, remedy)


def check_home(config: AppConfig) -> Iterator[Finding]:
    """Yield whether the home can be used or made, in the words in which a service refuses it."""
    if problem := find_home_problem(config):
        yield Finding(problem, HOME_REMEDY)


def secret_files(environment: Mapping[str, str]) -> list[Path]:
    """Return the files of secrets that the service reads, existing or not.

    A local Ray has its token in a private folder; the one in the user's home belongs to a cluster.
    """
    home = Path.home()
    paths = [Path(environment.get("PGPASSFILE") or home / ".pgpass")]
    if token := environment.get("RAY_AUTH_TOKEN_PATH"):
        paths.append(Path(token))
    elif "RAY_ADDRESS" in environment:
        paths.append(home / ".ray/auth_token")
    return paths


def _mode(place: Path) -> int:
    """Return the permissions of a file; 0 if it is missing or cannot be examined."""
    try:
        return place.stat().st_mode & 0o777
    except OSError:
        return 0


def check_sockets(own: tuple[str, int]) -> Iterator[Finding]:
    """Yield the sockets of Ray and HAProxy that listen beyond loopback.

    Args:
        own: Configured host and port, which are meant to be reached.
    """
    for process in psutil.process_iter():
        try:
            name = process.name()
            if name not in PROGRAMS and not name.startswith("ray::"):
                continue
            # one process sets the variable for others, and some overwrite it
            related = (process, *process.parents()[:1], *process.children())
            guarded = any(each.environ().get("RAY_AUTH_MODE") == "token" for each in related)
            listening = {
                (place.laddr.ip, place.laddr.port)
                for place in process.net_connections(kind="tcp")
                if place.status == psutil.CONN_LISTEN
            }
        except psutil.Error:  # it has ended, or belongs to another user
            continue
        for ip, port in sorted(listening):
            if is_loopback(ip) or port == own[1]:
                continue
            yield Finding(
                f"{name} (process {process.pid}) listens on {ip}:{port}"
                + (" and requires Ray's token" if guarded else " and requires no token"),
                "block the port for other machines"
                if guarded
                else "set RAY_AUTH_MODE=token, and block the port for other machines",
                serious=not guarded,
            )


# -- memory, file handles and the address -----------------------------------------------------------


def check_resources(config: AppConfig) -> Iterator[Finding]:
    """Yield whether memory and file handles suffice."""
    free = available_memory()
    what = f"{free / 2**20:,.0f} MiB of memory and {os.cpu_count()} processors are available"
    if free < USUAL_MEMORY:
        usual = f"{USUAL_MEMORY / 2**20:,.0f} MiB"
        remedy = f"free some memory: the default service needs {usual}, and larger models need more"
        yield Finding(what, remedy, serious=free < LEAST_MEMORY)
    else:
        yield Finding(what)
    shared = Path("/dev/shm")  # only its size is looked at # nosec B108
    if shared.is_dir() and (size := shutil.disk_usage(shared).total) < SHARED_MEMORY:
        what = f"{shared} has only {size / 2**20:,.0f} MiB, and Ray keeps its objects there"
        remedy = "give the container more: `docker run --shm-size=512m`, or a volume with `medium: Memory`"
        yield Finding(what, remedy)
    handles, most = hard_limit_of_files(), most_connections()
    if config.http.connections > most:
        needed = 2 * config.http.connections + OTHER_HANDLES
        what = (
            f"{config.http.connections:,} connections (http.connections) need {needed:,} file handles, but a "
            f"process may have only {handles:,}, so the service accepts {most:,} connections"
        )
        yield Finding(
            what, "raise the hard limit (`ulimit -Hn`, or LimitNOFILE= in systemd), or lower http.connections"
        )
    else:
        yield Finding("there are enough file handles for http.connections")


def available_memory(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes of memory that new processes may take, by the machine and by a control group."""
    free = int(psutil.virtual_memory().available)
    try:
        limit = int((group / "memory.max").read_text())
        return min(free, limit - int((group / "memory.current").read_text()))
    except (OSError, ValueError):  # there is none, or it is `max`
        return free


def check_address(host: str, port: int) -> Iterator[Finding]:
    """Yield whether the service can listen at an address, or already does; and a cluster that is gone."""
    if (problem := bind_problem(host, port)) is None:
        yield Finding(f"port {port} on {host} is free")
    elif _is_ours(host, port):
        yield Finding(f"an Armwise service answers on port {port} on {host}")
        yield from _check_running(host, port)
    else:
        remedy = "stop the program that uses it, or change http_options.port in the configuration"
        yield Finding(problem + describe_owner(port), remedy)
    if (cluster := os.environ.get("RAY_ADDRESS")) and (problem := cluster_problem(cluster)):
        remedy = "start one with `ray start --head`, or unset RAY_ADDRESS to let Armwise start its own"
        yield Finding(problem, remedy)


def _check_running(host: str, port: int) -> Iterator[Finding]:
    """Yield what fails in the service that answers at an address, as far as it says so without a key."""
    name, look = f"the service on port {port}", "look at its output, and at `armwise status`"
    try:
        ready = get(f"{local_url(host, port)}/ready", {}, ANSWER_TIMEOUT_S).json()
        if "error" in ready:
            yield Finding(f"{name} is not ready: {ready['error']['message']}", look, serious=False)
        for one in ready.get("failed", ()):
            why = one["why"] or "`armwise status` with a key says why"
            yield Finding(f"{name} says that something failed: {one['what']} ({why})", one["remedy"])
    except (httpx.HTTPError, ValueError, AttributeError, KeyError, TypeError):
        yield Finding(f"{name} does not say whether it is ready", look, serious=False)


def _is_ours(host: str, port: int) -> bool:
    """Return whether a service of this kind answers, ready or not."""
    try:
        url = f"{local_url(host, port)}/health/decides"
        health = get(url, {}, ANSWER_TIMEOUT_S).json()
        return bool(health.get("status") == "decides" or health["error"]["code"] == "not_ready")
    except (httpx.HTTPError, ValueError, AttributeError, KeyError, TypeError):
        return False


def describe_owner(port: int) -> str:
    """Return which process listens on a port, to append to a problem; empty if it is unknown."""
    try:
        for place in psutil.net_connections(kind="tcp"):
            if place.status == psutil.CONN_LISTEN and place.laddr.port == port and place.pid:
                name = psutil.Process(place.pid).name()
                return f"; {name[:LONGEST_NAME]} (process {place.pid}) is using it"
    except (psutil.Error, OSError):  # it has ended, or shows nothing of itself
        pass
    return ""


# -- the log ----------------------------------------------------------------------------------------


def check_log(config: AppConfig) -> Iterator[Finding]:
    """Yield whether the log can be read and written: schema, rights, durability, clock; read-only."""
    url, path = config.database_url, config.log_path
    where = f"the log {without_password(url)}"
    if path is not None:
        if (system := _file_system(path)) in REMOTE_FILES:
            yield Finding(
                f"{where} is on a network file system ({system}), which can damage it",
                "move it to a local disk, or use PostgreSQL",
            )
        if lacks_wal(path):
            yield Finding(f"{where}: {COPIED_IN_USE[0]}", COPIED_IN_USE[1], serious=False)
        yield from (findings := [*_file(path, where)])
        if findings:
            return
    try:
        state = schema.inspect_database(url)
        yield from _state(state, where)
        if state.schema == tables.SCHEMA:
            with closing(Store(url, create=False)) as store:
                store.check_tables()
                store.check_clock()
                store.probe()
            yield Finding(f"{where} has schema {state.schema} and can be written")
    except LogUnavailableError as error:
        yield Finding(f"{where}: {error}", error.remedy or "start the database, or correct log_url")
    except ClockError as error:
        yield Finding(f"{where}: {error}", "synchronise the clocks (chrony, systemd-timesyncd)")
    except SchemaError as error:
        remedy = "grant its user all rights on its tables, or restore it from a backup"
        yield Finding(f"{where}: {error}", remedy)
    except StoreError as error:
        yield Finding(f"{where}: {error}", "correct log_url")


def _file(path: Path, where: str) -> Iterator[Finding]:
    """Yield that the file of a log cannot be written, or does not exist yet."""
    there = find_existing(path)
    if there != path and not there.is_dir():
        yield Finding(f"{where}: {describe_file_for_folder(there)}", "correct log_url")
    elif not os.access(there, os.W_OK):
        yield Finding(
            f"this user cannot write to {there}",
            f"run as its owner, or change its owner: `chown USER {there}`",
        )
    elif there != path:
        yield Finding(f"{where} does not exist yet: Armwise creates it at the first start")


def _state(state: schema.DatabaseState, where: str) -> Iterator[Finding]:
    for setting in state.lossy:
        what = f"{where} may lose committed data in a crash ({setting})"
        yield Finding(what, f"remove {setting} from the settings of PostgreSQL")
    if not state.schema and not state.may_create:
        yield Finding(
            f"{where} is empty, and its user may not create tables",
            "run GRANT CREATE ON SCHEMA for that user",
        )
    elif not state.schema:
        yield Finding(f"{where} is empty: Armwise creates its tables at the first start")
    elif state.schema != tables.SCHEMA:
        what = f"{where} has schema {state.schema}, but this version of Armwise reads {tables.SCHEMA}"
        yield Finding(what, "use the version that wrote it, or set log_url to a new log")


def _file_system(path: Path) -> str:
    """Return the type of the file system of a path, existing or not."""
    mounts = {Path(mount.mountpoint): str(mount.fstype) for mount in psutil.disk_partitions(all=True)}
    return next((mounts[each] for each in (path, *path.absolute().parents) if each in mounts), "")


# -- the corpus and what is made of it --------------------------------------------------------------


def check_corpus(config: AppConfig) -> Iterator[Finding]:
    """Yield whether each corpus was read, or can be."""
    parts = []
    for source in config.corpus_sources:
        finding, corpus = _corpus(source)
        yield finding
        parts += [] if corpus is None else [corpus]
    if restricted := sum(corpus.manifest.restricted for corpus in parts):
        yield _check_permissions(config, restricted)
    if parts and len(parts) == len(config.corpus_sources):
        whole = Corpora(parts) if config.corpora else parts[0]
        yield from _engines(config, whole)


def _corpus(source: CorpusSource) -> tuple[Finding, Corpus | None]:
    """Return the finding on a corpus, and the corpus if it was read and is complete."""
    name, place = source.folder.name, source.source
    key = f"corpora.{name}.source" if source.name else "corpus.source"
    try:
        open_source(locate_source(place))
        trouble = source.find_trouble()
    except CorpusError as error:
        trouble = source.find_trouble(f"corpus {name!r}: {error}")
    if trouble is not None:
        remedy = f"make the source readable, or correct {key}, then restart the service"
        return Finding(str(trouble), remedy, serious=trouble.read_at is None), None
    if damage := problems(source.folder, contents=True):
        what = f"corpus {name!r} in {source.folder} is damaged: {', '.join(damage)}"
        return Finding(what, "run `armwise serve --prepare-only` to read it again"), None
    try:
        corpus = source.open()
    except CorpusError:
        return Finding(f"corpus {name!r} will be read from {place} at the first start"), None
    unread = f"; {len(skipped):,} files or records were skipped" if (skipped := corpus.list_skipped()) else ""
    size = f"{len(corpus):,} passages, digest {corpus.digest[:12]}{unread}"
    return Finding(f"corpus {name!r} has {size}"), corpus


def _check_permissions(config: AppConfig, n: int) -> Finding:
    """Return whether every arm respects the permissions of passages; `n` passages are restricted."""
    what = f"{n:,} passages are restricted to some groups"
    graph = ArmGraph(config.arms)
    unable = [name for name in config.actions if not graph.filters(name)]
    if not unable:
        return Finding(what)
    return Finding(
        f"{what}, so no request uses {', '.join(unable)}, which cannot filter by group",
        "use other arms, or add a filter in an arm class of your own",
        serious=False,
    )


def _engines(config: AppConfig, corpus: Corpus) -> Iterator[Finding]:
    """Yield whether the collections of arms over search engines hold the corpus."""
    resources = Resources(corpus, config.indexes_path, config.backbones, config.arms)
    read_ingested = wings.load(wings.READ_INGESTED)
    for name in config.arms:
        remedy = f"run `armwise ingest --into {name}`, unless another program fills it"
        try:
            held = read_ingested(name, resources)
        except (ArmError, ModelNotFoundError) as error:
            yield Finding(str(error), "start the search engine, or correct the arm", serious=False)
            continue
        if held is None:
            continue
        version, current = held
        if not version:
            yield Finding(f"arm {name!r}: Armwise has not filled its collection", remedy, serious=False)
        elif not current:
            what = f"arm {name!r}: its collection holds version {version}, not the current corpus"
            yield Finding(what, remedy, serious=False)
        else:
            yield Finding(f"arm {name!r}: its collection holds version {version}")


def check_derived(config: AppConfig) -> Iterator[Finding]:
    """Yield files of indexes, trained models and labels that differ from the digests in their manifests."""
    indexes = build_once.list_finished(config.indexes_path)
    yield from _compare_digests("index", indexes, "run `armwise serve --prepare-only` to build it again")
    trained = set() if config.router is None else {config.router.path}
    trained |= {Path(value) for spec in config.arms.values() for value in _texts(spec.params)}
    yield from _compare_digests(
        "trained model", _with_manifest(trained), "train it again with `armwise lab train`"
    )
    sources = () if config.warm_start is None else config.warm_start.sources.values()
    labels = {source.path for source in sources if isinstance(source, warm_start.OutcomesSource)}
    again = "delete it, and make it again with `armwise lab label` or `armwise lab score`"
    yield from _compare_digests("labels", _with_manifest(labels), again)


def _texts(params: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parameters that may name a folder."""
    yield from (value for value in params.values() if isinstance(value, str) and "\0" not in value)


def _with_manifest(paths: Iterable[Path]) -> list[Path]:
    """Return the folders that have a manifest of their files, by name."""
    folders = {path.expanduser() for path in paths}
    return sorted(folder for folder in folders if (folder / manifest.MANIFEST).is_file())


def _compare_digests(what: str, folders: Collection[Path], remedy: str) -> Iterator[Finding]:
    """Yield one finding for each folder with damaged files, or a single one if all are intact."""
    damaged = {folder: manifest.problems(folder, contents=True) for folder in folders}
    for folder, damage in damaged.items():
        if damage:
            yield Finding(f"{what} {folder}: {', '.join(damage)}", remedy)
    if damaged and not any(damaged.values()):
        yield Finding(f"{what}: all files are intact (folders: {len(damaged)})")


# -- the models -------------------------------------------------------------------------------------


def check_models(config: AppConfig) -> Iterator[Finding]:
    """Yield whether the encoders and the language models are available."""
    for name, backbone in config.backbones.items():
        yield from _backbone(name, backbone)
    for name, llm in config.distinct_models.items():
        yield from check_llm(llm, _name_model(name), _llm_key(name))


def _name_model(name: str) -> str:
    return "the language model" if name == writing.DEFAULT else f"language model {name!r}"


def _llm_key(name: str) -> str:
    """Return the key of a language model in the configuration."""
    return "llm" if name == writing.DEFAULT else f"llms.{name}"


def _backbone(name: str, backbone: Backbone) -> Iterator[Finding]:
    if not backbone.model.startswith("hashing:"):
        for model in backbone.models:
            yield from _weights(f"encoder {name!r}", model, f"backbones.{name}.model")


def _weights(
    what: str, model: str, key: str, find: Callable[[str], str | Path] = locate
) -> Iterator[Finding]:
    try:
        place = find(model)
    except ModelNotFoundError as error:
        yield Finding(f"{what}: {error}", f"correct {key}, or copy the model to that place")
        return
    if damage := model_problems(model):
        yield Finding(f"{what} {model}: {', '.join(damage)}", AGAIN)
    elif isinstance(place, Path):
        yield Finding(f"{what} is {model}, sha256 {digest_file(place)[:12]}")
    else:
        remedy = f"make sure that this machine can reach the hub, or set {key} to a folder"
        yield Finding(f"{what} {model} is downloaded from a hub if it is not cached", remedy, serious=False)


def check_llm(llm: LlmSpec, what: str = "the language model", key: str = "llm") -> Iterator[Finding]:
    """Yield whether a language model is available; this asks an endpoint for its models.

    Args:
        llm: The model.
        what: Name of the model in findings.
        key: Key of the model in the configuration.
    """
    match llm:
        case catalog.EmbeddedSpec():
            yield from _weights(what, llm.model, f"{key}.model", locate_here)
        case catalog.VllmSpec():
            if find_missing(["vllm"]):
                yield Finding("vLLM is not installed", install_command(["vllm"]))
            yield from _weights(what, llm.model, f"{key}.model")
        case catalog.EndpointSpec(engine="litellm"):
            if missing := describe_missing(llm.libraries):
                yield Finding(missing, install_command(llm.libraries))
            elif llm.api_key_env is not None and not read_secret(llm.api_key_env):
                yield _without_key(what, llm.api_key_env)
            else:
                yield Finding(
                    f"{what} is {llm.model!r}, called through LiteLLM; doctor does not call its provider"
                )
        case catalog.EndpointSpec():
            yield from _endpoint(llm, what, key)
        case catalog.ScriptedSpec():
            yield Finding(
                f"{what} is scripted and gives fixed replies", f"set {key} for real answers", serious=False
            )


def _without_key(what: str, variable: str) -> Finding:
    return Finding(f"{what} needs an API key, but {variable} is not set", f"set the variable {variable}")


def _endpoint(
    llm: catalog.EndpointSpec, what: str, setting: str, timeout_s: float = MODELS_TIMEOUT_S
) -> Iterator[Finding]:
    if llm.api_key_env is not None and not read_secret(llm.api_key_env):
        yield _without_key(what, llm.api_key_env)
        return
    address = llm.address.rstrip("/")
    base = without_password(address)
    began = time.monotonic()
    try:
        names = list_models(address, llm.api_key_env, llm.engine, timeout_s)
    except EndpointError as error:
        if error.remedy:
            yield Finding(f"{what} cannot be asked: {error}", error.remedy)
        elif error.status is None:
            yield Finding(str(error), f"start it, or correct {setting}.base_url")
        elif error.refuses:
            yield Finding(str(error), f"set {setting}.api_key_env to a variable with a valid key")
        else:
            remedy = f"check {setting}.base_url; it usually ends in /v1"
            yield Finding(str(error), remedy, serious=False)
        return
    # Anthropic lists each model under a name with a date
    dated = llm.engine == "anthropic" and any(name.startswith(f"{llm.model}-") for name in names)
    if llm.model in names or dated:
        yield Finding(f"{base} has model {llm.model!r}; it answered in {time.monotonic() - began:.2f} s")
    else:
        what = f"{base} has no model {llm.model!r}; {list_nearest(llm.model, names)}"
        yield Finding(what, f"correct {setting}.model")


def check_endpoints(config: AppConfig, wait_s: float = START_WAIT_S) -> list[Finding]:
    """Return what is wrong with the models at an address, all of which are asked at once, by name.

    Args:
        config: The configuration.
        wait_s: Most seconds to wait; an endpoint that has not answered by then is left out.
    """
    found: dict[str, list[Finding]] = {}

    def look(name: str, llm: catalog.EndpointSpec) -> None:
        found[name] = [*_endpoint(llm, _name_model(name), _llm_key(name), wait_s)]

    remote = [
        (name, llm)
        for name, llm in config.distinct_models.items()
        if isinstance(llm, catalog.EndpointSpec) and llm.engine != "litellm"
    ]
    threads = [threading.Thread(target=look, args=each, daemon=True) for each in remote]
    ends_at = time.monotonic() + wait_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(ends_at - time.monotonic(), 0.0))
    return [one for name in sorted(found) for one in found[name] if one.level == "problem"]

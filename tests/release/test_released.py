"""What a release keeps: its clients, configurations and logs work with the present code.

A failure names what broke. A break that was decided stands in accepted.toml with its reason. Before the
release is tagged, its snapshot is written again by `python -m tests.release write`.
"""

import asyncio
import json
import re
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml

from armwise.agent.cli import start_ray
from armwise.agent.config import ConfigError, parse
from armwise.feedback.log import Store
from armwise.feedback.log.database import open_database
from armwise.feedback.log.schema import MIGRATIONS, migrate
from tests.agent.fakes import Service
from tests.postgres import Server
from tests.release import history, snapshot
from tests.release.snapshot import RELEASES, Contract

VERSIONS = snapshot.versions()


@pytest.fixture(scope="module")
def present(tmp_path_factory: pytest.TempPathFactory, postgres: Server) -> Iterator[Contract]:
    url = postgres.fresh()
    yield snapshot.present(f"sqlite:///{tmp_path_factory.mktemp('shape') / 'log.db'}", url)
    postgres.drop(url)


def test_the_first_release_is_kept() -> None:
    assert VERSIONS[0] == "0.1.0"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.slow
def test_nothing_of_a_release_breaks(version: str, present: Contract) -> None:
    known = snapshot.accepted()
    found = snapshot.breaks(snapshot.stored(version), present)
    broken = [one for one in found if (version, one) not in known]
    assert broken == [], "\n".join(broken)


@pytest.mark.slow
def test_every_accepted_break_is_one_and_has_a_reason(present: Contract) -> None:
    found = {
        (version, one) for version in VERSIONS for one in snapshot.breaks(snapshot.stored(version), present)
    }
    known = snapshot.accepted()
    assert known.keys() - found == set()
    assert all(len(why.split()) >= 3 for why in known.values())


def test_an_accepted_break_is_read_by_release_and_sentence(tmp_path: Path) -> None:
    file = tmp_path / "accepted.toml"
    lines = snapshot.ACCEPTED.read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join(line.removeprefix("#   ") for line in lines if line.startswith("#   ")))
    assert tomllib.loads(file.read_text())
    assert [*snapshot.accepted(file)] == [("0.1.0", "GET /v1/old: is gone")]


# -- each part of the contract is compared -----------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (("openapi", "paths", "/v1/chat/completions"), "POST /v1/chat/completions: is gone"),
        (("http", "errors", "not_ready"), "error not_ready: is gone"),
        (("http", "routes", "POST /mcp"), "POST /mcp: is gone"),
        (("config", "$defs", "Limits", "properties", "in_flight"), "setting `limits.in_flight`: is gone"),
        (("log", "migrations", 0), "migration 16: is gone"),
        (("log", "sqlite", "ticks"), "sqlite: table ticks: is gone"),
        (("log", "postgresql", "feedback", "columns", "tags"), "postgresql: column feedback.tags: is gone"),
        (("python", "armwise", "ips"), "armwise.ips: is gone"),
    ],
    ids=lambda one: ".".join(map(str, one)) if isinstance(one, tuple) else "",
)
@pytest.mark.slow
def test_what_is_missing_in_a_part_is_named(path: tuple[Any, ...], expected: str) -> None:
    old, new = snapshot.stored("0.1.0"), json.loads(json.dumps(snapshot.stored("0.1.0")))
    *outer, last = path
    part = new
    for step in outer:
        part = part[step]
    if isinstance(part, list) and last in part:
        part.remove(last)
    else:
        del part[last]
    assert snapshot.breaks(old, new) == [expected]


def test_a_changed_default_of_a_setting_is_named_once() -> None:
    old = snapshot.stored("0.1.0")["config"]
    new = json.loads(json.dumps(old))
    new["$defs"]["Limits"]["properties"]["in_flight"]["default"] = 7
    new["$defs"]["AppConfig"]["properties"]["limits"]["default"]["in_flight"] = 7
    was = old["$defs"]["Limits"]["properties"]["in_flight"]["default"]
    assert f"setting `limits.in_flight`: has the default 7, and had {was}" in snapshot.broken_settings(
        old, new
    )
    assert len(snapshot.broken_settings(old, new)) == 1


@pytest.mark.slow
def test_a_route_that_enters_the_document_is_not_gone() -> None:
    old, new = snapshot.stored("0.1.0"), json.loads(json.dumps(snapshot.stored("0.1.0")))
    new["http"]["routes"].remove("GET /docs")
    new["openapi"]["paths"]["/docs"] = {"get": {"responses": {}}}
    assert snapshot.breaks(old, new) == []


# -- configurations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "file", sorted(RELEASES.glob("*/*.yaml")), ids=lambda file: f"{file.parent.name}/{file.name}"
)
def test_a_configuration_of_a_release_is_still_read(file: Path) -> None:
    args = yaml.safe_load(file.read_text(encoding="utf-8"))["applications"][0]["args"]
    if file.name == "template.yaml":
        with pytest.raises(ConfigError, match="no router of kind 'blend' any more: name one of its members"):
            parse(args)
        args["warm_start"]["router"]["params"]["router"] = {"kind": "ridge", "params": {"sees": "features"}}
    parse(args)


# -- logs --------------------------------------------------------------------------------------------

Rows = dict[str, list[dict[str, Any]]]


def rows_of(engine: sa.Engine) -> Rows:
    """Return all rows of a database by table, as it reports their types."""
    metadata = sa.MetaData()
    metadata.reflect(engine)
    with engine.connect() as connection:
        return {
            table.name: [
                dict(row)
                for row in connection.execute(sa.select(table).order_by(*table.primary_key)).mappings()
            ]
            for table in metadata.sorted_tables
        }


def filled(engine: sa.Engine, rows: Rows) -> None:
    """Put rows into the empty tables of another database."""
    metadata = sa.MetaData()
    metadata.reflect(engine)
    with engine.begin() as connection:
        for table in metadata.sorted_tables:
            connection.execute(sa.delete(table))
            if rows[table.name]:
                connection.execute(sa.insert(table), rows[table.name])
            if (numbered := table.autoincrement_column) is not None and rows[table.name]:
                last = max(row[numbered.name] for row in rows[table.name])
                sequence = sa.func.pg_get_serial_sequence(table.name, numbered.name)
                connection.execute(sa.select(sa.func.setval(sequence, last)))


def older(folder: Path, newest: str) -> Path:
    """Return the migrations up to a revision, as the release had them."""
    known = snapshot.log.migrations_of(MIGRATIONS)
    number = [one["revision"] for one in known].index(newest) + 1
    (folder / "versions").mkdir(parents=True)
    for one in known[:number]:
        content = (MIGRATIONS / "versions" / one["file"]).read_bytes()
        (folder / "versions" / one["file"]).write_bytes(content)
    return folder


@pytest.fixture(params=VERSIONS)
def released(
    request: pytest.FixtureRequest, database_url: str, tmp_path: Path
) -> tuple[str, Rows, dict[str, Any]]:
    """A database with the log of a release, its rows, and its configuration."""
    folder = RELEASES / request.param
    script = (folder / "log.sql").read_text(encoding="utf-8")
    configuration = json.loads((folder / "service.json").read_text(encoding="utf-8"))
    source = tmp_path / "released.db"
    history.restored(script, source)
    engine = open_database(f"sqlite:///{source}").engine
    rows = rows_of(engine)
    engine.dispose()
    if database_url.startswith("sqlite"):
        history.restored(script, Path(sa.make_url(database_url).database or ""))
    else:
        newest = rows["alembic_version"][0]["version_num"]
        migrate(database_url, older(tmp_path / "before", newest))
        engine = open_database(database_url).engine
        filled(engine, rows)
        engine.dispose()
    return database_url, rows, configuration


@pytest.mark.slow
def test_the_log_of_a_release_has_what_services_write(released: tuple[str, Rows, dict[str, Any]]) -> None:
    _, rows, _ = released
    decided = rows["decisions"]
    assert {"explore", "continued", "forced"} <= {one["mode"] for one in decided}
    assert {one["policy"] for one in decided} >= {"adaptive", "observed"}
    assert any(one["candidate"] for one in decided), "a canary took part"
    assert any(one["propensity"] is None for one in decided)
    assert any(one["erased"] for one in decided)
    for table in ("feedback", "executions", "examples", "versions", "checkpoints", "promotions", "switches"):
        assert rows[table], table
    for table in ("keys", "disabled_keys", "erasures", "evaluations", "metrics", "usage", "rollups"):
        assert rows[table], table
    assert len(rows["versions"]) > len(rows["checkpoints"]), "some versions have to be learned again"


@pytest.mark.slow
def test_the_log_of_a_release_migrates_with_nothing_lost(released: tuple[str, Rows, dict[str, Any]]) -> None:
    url, before, _ = released
    migrate(url)
    engine = open_database(url).engine
    after = rows_of(engine)
    engine.dispose()
    for table in before.keys() - {"alembic_version"}:
        kept = [
            {name: row[name] for name in was} for was, row in zip(before[table], after[table], strict=False)
        ]
        assert kept == before[table], table
    with closing(Store(url)) as store:
        assert store.counts()["decisions"] == len(before["decisions"])


@asynccontextmanager
async def serving(url: str, configuration: dict[str, Any], folder: Path) -> AsyncIterator[Service]:
    """Migrate the log of a release, and serve on it."""
    await asyncio.to_thread(migrate, url)
    with history.keyed() as headers:
        async with Service(folder, **{**configuration, "log_url": url}).running() as service:
            service.client.headers.update(headers)
            yield service


@pytest.mark.slow
async def test_the_decisions_of_a_release_are_verified_unless_its_policy_learned_otherwise(
    released: tuple[str, Rows, dict[str, Any]], tmp_path: Path
) -> None:
    url, rows, configuration = released
    of_policies = {one["version"]: one["policy"]["kind"] for one in rows["versions"]}
    async with serving(url, configuration, tmp_path) as service:
        verified, otherwise = [], []
        for one in rows["decisions"]:
            reply = await service.client.get(f"/v1/decisions/{one['id']}/verify")
            if reply.status_code == 409:
                assert reply.json()["error"]["code"] == "version_unavailable"
                why = reply.json()["error"]["message"]
                assert '"layout": 4' in why or "of its release learned otherwise" in why
                otherwise.append({of_policies[one["version"]], of_policies.get(one["candidate"], "adaptive")})
            else:
                assert (reply.status_code, reply.json()["why"]) == (200, []), reply.text
                verified.append(one["id"])
    assert len(verified) + len(otherwise) >= 25
    assert all("adaptive" in kinds for kinds in otherwise)


@pytest.mark.slow
async def test_a_service_goes_on_with_the_log_of_a_release(
    released: tuple[str, Rows, dict[str, Any]], tmp_path: Path
) -> None:
    url, rows, configuration = released
    async with serving(url, configuration, tmp_path) as service:
        answered = await service.client.post("/v1/retrieve", json={"query": history.QUESTIONS[0]})
        assert answered.status_code == 200, answered.text
        decided = answered.json()["agent"]
        assert decided["policy_version"] >= rows["versions"][-1]["version"]
        body = {"decision_id": decided["decision_id"], "metric_name": "thumb", "value": 1.0}
        assert (await service.client.post("/v1/feedback", json=body)).is_success
        await service.learn()
        policy = (await service.client.get("/v1/policy")).json()
        assert policy["version"] > rows["versions"][-1]["version"]


# -- the policy in words -----------------------------------------------------------------------------


def test_the_page_names_what_is_compared() -> None:
    page = (snapshot.ROOT / "docs/reference/compatibility.md").read_text(encoding="utf-8")
    assert [face for face in snapshot.FACES if f"`{face}`" not in page] == []
    codes = re.findall(r"^\| (\d) \|", page, re.MULTILINE)
    assert codes == ["0", "1", "2", str(start_ray.GAVE_UP)]


# -- writing a snapshot ------------------------------------------------------------------------------


def test_a_file_of_a_snapshot_changes_in_the_line_of_what_changed() -> None:
    value = {"b": {f"key{n}": [n, n + 1] for n in range(20)}, "a": "x" * 200, "c": [1]}
    written = snapshot.text(value)
    assert json.loads(written) == value
    assert '  "key3": [3, 4],\n' in written
    changed = snapshot.text({**value, "b": {**value["b"], "key3": [3, 5]}})
    differing = [
        one for one in zip(written.splitlines(), changed.splitlines(), strict=True) if one[0] != one[1]
    ]
    assert differing == [('  "key3": [3, 4],', '  "key3": [3, 5],')]


def test_versions_are_in_the_order_of_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("0.10.0", "0.2.0", "1.0.0", "0.2.1", "no release"):
        (tmp_path / name).mkdir()
        if name != "no release":
            (tmp_path / name / "openapi.json").touch()
    monkeypatch.setattr(snapshot, "RELEASES", tmp_path)
    assert snapshot.versions() == ["0.2.0", "0.2.1", "0.10.0", "1.0.0"]

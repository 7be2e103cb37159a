"""Recovery to a point in time: a service goes on from all that its PostgreSQL had acknowledged by then."""

import re
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from armwise.agent.learning.rebuild import verify_states
from armwise.feedback.log import Store
from tests.agent.asking import ask, tell
from tests.agent.fakes import Service
from tests.postgres import Server, running

pytestmark = pytest.mark.slow

TIME = "2026-11-21 12:00:00+00"

ARCHIVE = r"""psql -c "ALTER SYSTEM SET archive_mode = on" \
  -c "ALTER SYSTEM SET archive_timeout = '1min'" \
  -c "ALTER SYSTEM SET archive_command = 'cmp -s %p /archive/%f || (test ! -f /archive/%f && \
cp %p /archive/.%f && sync /archive/.%f && mv /archive/.%f /archive/%f)'"
pg_ctl restart
"""
"""Archives the write-ahead log from now on."""

BASE_BACKUP = "pg_basebackup --pgdata=/backup/2026-11-21 --checkpoint=fast\n"

RESTORE = r"""pg_ctl stop     # if it still runs: archives the rest of its log
mv "$PGDATA" "$PGDATA.lost"
cp -a /backup/2026-11-21 "$PGDATA"
cat >> "$PGDATA/postgresql.auto.conf" <<'END'
restore_command = 'cp /archive/%f %p'
recovery_target_time = '2026-11-21 12:00:00+00'
recovery_target_action = 'promote'
hot_standby = off
END
touch "$PGDATA/recovery.signal"
pg_ctl start
"""
"""Goes back to TIME."""


def follow(server: Server, block: str, folder: Path, time: str = TIME) -> None:
    """Run commands as the user of the server; one that starts it is the last."""
    script = block.replace("/archive/", f"{folder}/archive/").replace("/backup/", f"{folder}/backup/")
    script, starts = re.subn(r"^pg_ctl start$", "", script.replace(TIME, time), flags=re.MULTILINE)
    script, restarts = re.subn(r"^pg_ctl restart$", "pg_ctl stop", script, flags=re.MULTILINE)
    server.run(script)
    if starts or restarts:
        server.kill()  # it has ended
        server.start()


async def asked(service: Service, number: int) -> list[str]:
    """Ask, say of every second answer what it was worth, learn, and return the ids of the decisions."""
    names = [(await ask(service)).headers["x-decision-id"] for _ in range(number)]
    assert [(await tell(service, name)).status_code for name in names[::2]] == [202] * len(names[::2])
    await service.learn()
    return names


async def recorded(service: Service, names: list[str]) -> dict[str, Any]:
    """Return what the service tells of decisions."""
    return {name: (await service.client.get(f"/v1/decisions/{name}")).json() for name in names}


async def policy(service: Service) -> dict[str, Any]:
    found: dict[str, Any] = (await service.client.get("/v1/policy")).json()
    return found


async def test_a_service_goes_on_from_the_last_moment_before_a_disaster(tmp_path: Path) -> None:
    with running() as server:
        url, folder = server.fresh(), server.folder
        server.run(f"mkdir {folder}/archive {folder}/backup")
        follow(server, ARCHIVE, folder)
        async with Service(tmp_path, log_url=url).running() as service:
            names = await asked(service, 10)
            follow(server, BASE_BACKUP, folder)
            names += await asked(service, 30)
            before, served = await recorded(service, names), await policy(service)
            with server.connect() as connection:
                (moment,) = connection.execute("SELECT clock_timestamp()").fetchone() or (datetime.min,)
            later = await asked(service, 5)
        with server.connect() as connection:
            connection.execute("SET search_path TO log1; UPDATE executions SET served = 'overwritten'")
            connection.execute("TRUNCATE log1.decisions, log1.feedback, log1.versions CASCADE")
        follow(server, RESTORE, folder, moment.isoformat(" "))
        with closing(Store(url)) as store:
            assert verify_states(store, service.config, lambda *_: None, every=True).sound
        async with Service(tmp_path, log_url=url).running() as service:
            restored = await policy(service)
            assert (restored["version"], restored["log_seq"]) == (served["version"], served["log_seq"])
            assert await recorded(service, names) == before
            gone = [(await service.client.get(f"/v1/decisions/{name}")).status_code for name in later]
            assert gone == [404] * 5
            names = await asked(service, 5)
            assert (await policy(service))["version"] > served["version"]
            verified = await service.client.get(f"/v1/decisions/{names[0]}/verify")
            assert verified.json()["verified"], verified.text
            assert verify_states(service.replica.store, service.config, lambda *_: None, every=True).sound

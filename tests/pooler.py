"""PgBouncer of this machine before a PostgreSQL."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from tests.postgres import PATIENCE_S, Server

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

WITH_POOLER = pytest.mark.skipif(
    PROGRAM is None, reason="install pgbouncer, as by `apt-get install pgbouncer`"
)

SESSIONS = 2
"""Sessions of the server that all clients of the pooler share."""


@contextmanager
def pooled(server: Server, mode: str) -> Iterator[str]:
    """Run a pooler before a new log, and return the URL of the log through it."""
    url = sa.make_url(server.fresh())
    folder = server.folder / f"pool-{url.username}-{mode}"
    server.run(f"mkdir {folder}")
    settings = {
        "unix_socket_dir": folder,
        "listen_port": 6432,
        "auth_type": "trust",
        "auth_file": folder / "users",
        "pool_mode": mode,
        "default_pool_size": SESSIONS,
        "pidfile": folder / "pid",
    }
    lines = ["[databases]", f"* = host={server.folder}", "[pgbouncer]"]
    lines += [f"{name} = {setting}" for name, setting in settings.items()]
    for name, text in (("users", f'"{url.username}" ""\n'), ("ini", "\n".join(lines))):
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)
    with (folder / "log").open("wb") as log:
        # as the user of the server, since it refuses to run as root
        run = subprocess.Popen([str(PROGRAM), str(folder / "ini")], stdout=log, stderr=log, **server.identity)
    give_up = time.monotonic() + PATIENCE_S
    try:
        while not (folder / ".s.PGSQL.6432").exists():
            if run.poll() is not None or time.monotonic() > give_up:
                pytest.fail((folder / "log").read_text())
            time.sleep(0.01)
        through = url.update_query_dict({"host": str(folder), "port": "6432"})
        yield through.render_as_string(hide_password=False)
    finally:
        run.terminate()
        run.wait(PATIENCE_S)

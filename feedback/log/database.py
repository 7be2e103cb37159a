"""Open the database of a URL, and translate the errors of its driver."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from armwise.feedback.errors import LogUnavailableError, SchemaError, StoreError
from armwise.feedback.log.backend import ANSWER_S, Database
from armwise.feedback.log.sqlite import SQLite

SUCH_AS = "sqlite:////var/lib/armwise/log.db or postgresql://armwise@localhost/armwise"


def locate_url(url: str, folder: Path) -> str:
    """Return the URL of a log with its paths made absolute; one that is malformed is returned unchanged.

    These are the file of SQLite, and the files of certificates and passwords that a URL of PostgreSQL names.

    Args:
        url: URL of the log.
        folder: The folder that relative paths are relative to.

    >>> locate_url("sqlite:///data/log.db", Path("/srv")), locate_url("sqlite://", Path("/srv"))
    ('sqlite:////srv/data/log.db', 'sqlite://')
    >>> locate_url("postgresql://ada@db/log?sslrootcert=root.crt", Path("/srv"))
    'postgresql://ada@db/log?sslrootcert=%2Fsrv%2Froot.crt'
    """
    try:
        parsed = _parse_url(url)
    except StoreError:
        return url
    if parsed.get_backend_name() == "sqlite":
        if parsed.database in (None, "", ":memory:"):
            return url
        located = parsed.set(database=str(folder / os.path.expanduser(str(parsed.database))))
    else:
        named = {key: parsed.query[key] for key in _FILES if key in parsed.query}
        paths = {
            key: str(folder / os.path.expanduser(path))
            for key, path in named.items()
            if isinstance(path, str) and path != "system"  # those of the operating system
        }
        located = parsed.update_query_dict(paths)
    return url if located == parsed else located.render_as_string(hide_password=False)


_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl", "sslcrldir", "passfile")
"""Options of libpq that are paths."""


def _parse_url(url: str) -> sa.URL:
    try:
        return sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # the latter of a port
        raise StoreError(f"{without_password(url)!r} is not a database URL such as {SUCH_AS}") from None


def open_database(url: str, answer_s: float = ANSWER_S, *, create: bool = True) -> Database:
    """Return the database of a URL; it connects on first use.

    Args:
        url: URL of SQLite or PostgreSQL.
        answer_s: Longest time of a statement on a server, in seconds.
        create: Whether to create a missing file of SQLite.

    Raises:
        NoLogError: The file is missing, and is not to be created.
        StoreError: The URL is malformed, or the database is not supported.
    """
    parsed = _parse_url(url)
    match parsed.drivername:
        case "sqlite" | "sqlite+pysqlite":
            return SQLite(parsed, create=create)
        case "postgresql" | "postgresql+psycopg":
            from armwise.feedback.log.postgres import PostgreSQL  # psycopg, where a server is used

            return PostgreSQL(parsed, answer_s)
    raise StoreError(f"database {parsed.drivername!r} is not supported; use a URL such as {SUCH_AS}")


@contextmanager
def translate_errors(database: Database) -> Iterator[None]:
    """Translate driver errors into ours; an integrity error of SQLAlchemy Core is raised unchanged."""
    try:
        yield
    except sa.exc.IntegrityError:
        raise
    except sa.exc.TimeoutError as error:
        raise LogUnavailableError("the log cannot be used: all connections to it are busy") from error
    except sa.exc.DBAPIError as error:
        raise _meaning(database, error.orig if isinstance(error.orig, Exception) else error) from error
    except sa.exc.StatementError as error:  # a value that cannot be written: its message quotes the others
        raise StoreError(f"the database refused a value: {error.orig}") from error
    except database.engine.dialect.loaded_dbapi.Error as error:
        raise _meaning(database, error) from error


def _meaning(database: Database, error: Exception) -> StoreError:
    message, _, _ = str(error).partition("\n")  # further lines are hints, and parts of the rows
    if database.is_away(error):
        return LogUnavailableError(f"the log cannot be used: {message}", database.find_remedy(error))
    if database.is_damaged(error):
        return SchemaError(f"the tables of the log are missing or changed: {message}")
    return StoreError(f"the database refused a value: {message}")


_PASSWORD = re.compile(r"^([^:]*://[^:@/?]*):.*@|(?<=password=)[^&]*")


def without_password(url: str) -> str:
    """Return a database URL, well-formed or not, without its password.

    >>> without_password("postgresql://ada:se/cr@t@db/log?sslpassword=hidden&connect_timeout=3")
    'postgresql://ada:***@db/log?sslpassword=***&connect_timeout=3'
    >>> without_password("sqlite:////var/lib/armwise/log.db")
    'sqlite:////var/lib/armwise/log.db'
    """
    return _PASSWORD.sub(lambda password: f"{password[1]}:***@" if password[1] is not None else "***", url)

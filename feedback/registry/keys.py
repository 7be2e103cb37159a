"""API keys: a row makes a key, another row disables it, and every replica reads both.

A key is `sk-aw-<public id>-<secret>`. The public id names it in lists and logs; the log stores the SHA-256 of
the secret, which suffices for 192 random bits.
"""

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace

import sqlalchemy as sa

from armwise.feedback.errors import ProjectTakenError
from armwise.feedback.log import Operation, Store, operations, row_time
from armwise.feedback.log import tables as t

TOKEN = re.compile(r"sk-aw-([0-9a-f]{12})-([0-9a-f]{48})")
"""A key as callers send it: its public id and its secret."""

DEFAULT = "default"
"""The project whose ids are stored as clients send them; ids of others are prefixed."""

SEPARATOR = "~"
"""Between a project and an id that its client gave. The API refuses it in the id of a decision."""

PROJECT = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
"""A name of a project."""


def ids_within(project: str) -> tuple[str, str]:
    """Return the prefix of the ids of a project in the log, and the text that they must not contain.

    >>> ids_within("acme"), ids_within(DEFAULT)
    (('acme~', ''), ('', '~'))
    """
    return ("", SEPARATOR) if project == DEFAULT else (project + SEPARATOR, "")


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Limits of a key; None: unlimited.

    Attributes:
        rpm_limit: Requests a minute.
        tpm_limit: Tokens a minute, read and written.
        max_budget: USD in a budget period.
        token_budget: Tokens in a budget period.
        budget_duration: The budget period: `1d`, a day, or `1mo`, a month, in UTC.
    """

    rpm_limit: int | None = None
    tpm_limit: int | None = None
    max_budget: float | None = None
    token_budget: int | None = None
    budget_duration: str | None = None

    def __bool__(self) -> bool:
        """Return whether anything is limited."""
        return any(getattr(self, name) is not None for name in _AMOUNTS)

    @property
    def counts_tokens(self) -> bool:
        """Whether tokens or their price are limited, not only the number of requests."""
        return any(getattr(self, name) is not None for name in _AMOUNTS if name != "rpm_limit")


UNLIMITED = KeyLimits()

_AMOUNTS = ("rpm_limit", "tpm_limit", "max_budget", "token_budget")


@dataclass(frozen=True, slots=True)
class KeySettings:
    """Settings of a key, given when it is made.

    Attributes:
        name: Name for operators.
        scopes: Kinds of requests that it allows.
        project: Project whose decisions, episodes and feedback it reads and writes.
        source: Source of feedback sent with it: user, judge or operator.
        limits: Limits of its use.
        expires: When it expires, seconds since the epoch; None: never.
        tags: Free text pairs.
        groups: Groups whose passages its callers may see, besides public ones.
    """

    name: str
    scopes: tuple[str, ...]
    project: str = DEFAULT
    source: str = "user"
    limits: KeyLimits = UNLIMITED
    expires: float | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key in the log.

    Attributes:
        public_id: Name of the key in lists and logs.
        secret_hash: SHA-256 of the secret, hexadecimal.
        settings: What was chosen when it was made.
        created_at: Seconds since the epoch.
        disabled_at: When it was disabled, seconds since the epoch.
    """

    public_id: str
    secret_hash: str
    settings: KeySettings
    created_at: float
    disabled_at: float | None = None


def hash_secret(secret: str) -> str:
    """Return the SHA-256 of a secret, hexadecimal."""
    return hashlib.sha256(secret.encode()).hexdigest()


def create(store: Store, settings: KeySettings, now: float) -> tuple[ApiKey, str]:
    """Make a key; return it with the text that its caller sends, which is stored nowhere.

    Raises:
        ProjectTakenError: The log has ids that would become those of a new project.
        LogUnavailableError: Nothing was written.
    """
    public_id, secret = secrets.token_hex(6), secrets.token_hex(24)
    chosen = {
        setting.name: getattr(settings, setting.name)
        for setting in fields(settings)
        if setting.name != "limits"
    }
    with store.writing() as connection:
        _require_unused(connection, settings.project)
        key = ApiKey(public_id, hash_secret(secret), settings, row_time(connection, now))
        row = {"public_id": public_id, "secret_hash": key.secret_hash, "created_at": key.created_at}
        connection.execute(
            sa.insert(t.keys),
            {
                **row,
                **chosen,
                "tags": dict(settings.tags),
                "groups": list(settings.groups),
                **asdict(settings.limits),
            },
        )
    return key, f"sk-aw-{public_id}-{secret}"


def _require_unused(connection: sa.Connection, project: str) -> None:
    """Check that feedback sent without a key leaves the ids of a new project free. Raises ProjectTakenError.

    Only ids of feedback are checked: the API refuses the separator in ids of decisions and episodes.
    """
    f, key_of_project = t.feedback.c, sa.select(t.keys.c.seq).where(t.keys.c.project == project).limit(1)
    if project == DEFAULT or connection.scalar(key_of_project) is not None:
        return
    prefix = project + SEPARATOR
    # as a part of the text: LIKE, and the order of texts, depend on the collation of the database
    begins = sa.func.substr(f.id, 1, len(prefix)) == prefix
    feedback_id = connection.scalar(sa.select(f.id).where(begins, f.key.is_(None)).limit(1))
    if feedback_id is not None:
        raise ProjectTakenError(
            f"project {project!r} cannot be created: feedback {feedback_id!r} already uses its name"
        )


def disable(store: Store, public_id: str, now: float) -> ApiKey | None:
    """Disable a key and return it, if it exists."""
    with store.writing() as connection:
        disabled = {key.public_id: key for key in _read(connection)}.get(public_id)
        if disabled is not None and disabled.disabled_at is None:
            at = max(row_time(connection, now), disabled.created_at)
            operations.record(connection, Operation.DISABLED_KEY, at, {}, once=public_id)
            disabled = replace(disabled, disabled_at=at)
        return disabled


def read(store: Store) -> Sequence[ApiKey]:
    """Return every key, the oldest first."""
    with store.reading() as connection:
        return _read(connection)


def head(store: Store) -> tuple[int, int]:
    """Return the positions of the newest key and of the newest disabling; 0 before the first."""
    with store.reading() as connection:
        made = connection.scalar(sa.select(sa.func.max(t.keys.c.seq)))
        disabled = operations.find_newest(connection, Operation.DISABLED_KEY)
    return made or 0, 0 if disabled is None else disabled.seq


def _read(connection: sa.Connection) -> list[ApiKey]:
    disabled_at = {row.once: row.at for row in operations.read_all(connection, Operation.DISABLED_KEY)}
    rows = connection.execute(sa.select(t.keys).order_by(t.keys.c.seq)).mappings()
    return [_read_key(row, disabled_at.get(row["public_id"])) for row in rows]


def _read_key(row: sa.RowMapping, disabled_at: float | None) -> ApiKey:
    chosen = {column.name: row[column.name] for column in fields(KeySettings) if column.name in row}
    limits = KeyLimits(**{column.name: row[column.name] for column in fields(KeyLimits)})
    lists = {"scopes": tuple(row["scopes"]), "groups": tuple(row["groups"] or ())}
    settings = KeySettings(**{**chosen, **lists, "limits": limits})
    return ApiKey(row["public_id"], row["secret_hash"], settings, row["created_at"], disabled_at)

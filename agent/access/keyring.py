"""The valid keys, and their callers: what a key permits, and the ids of its project.

Keys come from the configuration and from the log.
"""

import hmac
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    Field,
    StrictFloat,
    StrictInt,
    StringConstraints,
    model_validator,
)

from armwise.agent.config import Key, KeyBase, Scope
from armwise.arms.secrets import read_secret
from armwise.feedback.clock import require_date
from armwise.feedback.events import SIGNAL
from armwise.feedback.log import DrawSecret, Store
from armwise.feedback.registry import KeyLimits, KeySettings, keys

SCOPES: tuple[Scope, ...] = get_args(Scope)

IMPLIED: dict[Scope, tuple[Scope, ...]] = {"operate": ("read",), "admin": SCOPES}
"""Further scopes that a scope includes."""

LONGEST = {"feedback": 256}
"""Most characters of an id in the log, if other than 128, by kind."""


_ANSWER = re.compile(r"(?:chatcmpl-|msg_|resp_)(.+)")
"""Form of the id of an answer: the prefix of a protocol, and the id of its decision as callers know it."""


class ForeignIdError(ValueError):
    """An id names a project that is not the caller's, is the service's own, or is too long for the log."""


class UnloggedIdError(ForeignIdError):
    """An id names a decision that was made while the log was away."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller, by its key.

    Attributes:
        key: Public id of the key; None: the service is open.
        scopes: Scopes of the key, including implied ones.
        project: Project that owns the ids it creates and reads.
        source: Name under which its feedback is recorded; None: the service is open.
        expires: When the key expires, seconds since the epoch; None: never.
        limits: Rate limits and budgets of the key.
        groups: Groups whose restricted passages it may see.
        address: Network address of a request without a key, to distinguish raters.
    """

    key: str | None
    scopes: frozenset[Scope]
    project: str = keys.DEFAULT
    source: str | None = None
    expires: float | None = None
    limits: KeyLimits = keys.UNLIMITED
    groups: frozenset[str] = frozenset()
    address: str | None = None

    @property
    def prefix(self) -> str:
        """The prefix of its ids in the log.

        >>> Caller("k", frozenset(), "acme").prefix, Caller("k", frozenset()).prefix
        ('acme~', '')
        """
        return "" if self.project == keys.DEFAULT else self.project + keys.SEPARATOR

    @property
    def sees_all(self) -> bool:
        """Whether it may read the decisions of every project, by their ids in the log."""
        return "admin" in self.scopes

    def reads(self, name: str) -> bool:
        """Return whether it may read a decision with this id in the log.

        >>> Caller("k", frozenset(), "acme").reads("d-1"), Caller("k", frozenset()).reads("acme~d-1")
        (False, False)
        """
        if self.prefix:
            return name.startswith(self.prefix)
        return self.sees_all or keys.SEPARATOR not in name

    def identify(self, secret: DrawSecret) -> str | None:
        """Return who asks or rates: its key or, without one, its address, in its project; None: unknown.

        >>> Caller("k", frozenset(), "acme").identify(DrawSecret("s3cret"))
        'acme~k'
        """
        name = self.key if self.address is None else secret.rater_at(self.address)
        return name and self.prefix + name

    def find_rater(self, secret: DrawSecret) -> str | None:
        """Return the rater of its feedback; see `Feedback.rater`."""
        return "" if self.source in ("judge", "operator") else self.identify(secret)

    def to_stored_id(self, name: str, kind: str = "decision") -> str:
        """Return the stored id for an id that the caller sent.

        Args:
            name: The id as sent.
            kind: Kind of the id: decision, episode or feedback.

        Raises:
            ForeignIdError: The id names another project, is the service's own, or is too long.
            UnloggedIdError: It names a decision that was made while the log was away.

        >>> Caller("k", frozenset(), "acme").to_stored_id("d-1")
        'acme~d-1'
        """
        if kind == "feedback" and name.startswith(SIGNAL):
            raise ForeignIdError(
                f"feedback id {name!r} begins with {SIGNAL!r}, which is reserved for signals: choose another"
            )
        if kind == "decision" and is_unlogged(name):
            raise UnloggedIdError(
                f"decision {name!r} was made while the log was unavailable, so it is not logged and takes no "
                "feedback; skip answers that have the header x-armwise-log: away"
            )
        project, separator, _ = name.partition(keys.SEPARATOR)
        is_exempt = self.sees_all or self.project != keys.DEFAULT
        if not is_exempt and separator and keys.PROJECT.fullmatch(project):
            raise ForeignIdError(f"{kind} {name!r} names a project: that needs a key with the scope 'admin'")
        longest = LONGEST.get(kind, 128) - len(self.prefix)
        if len(name) > longest:
            raise ForeignIdError(f"{kind} {name!r} has {len(name)} characters; at most {longest} are allowed")
        return self.prefix + name

    def find_answered(self, stored: str) -> str | None:
        """Return the stored id of the decision that an id has in it, if it has the form of an answer's id.

        Another decision may have the whole id, since a client chooses idempotency keys: look that up first.

        >>> Caller("k", frozenset(), "acme").find_answered("acme~chatcmpl-d-1")
        'acme~d-1'
        """
        answer = _ANSWER.fullmatch(stored.removeprefix(self.prefix))
        decision = answer and self.prefix + answer[1]
        return decision if decision and self.reads(decision) else None

    def new_id(self) -> str:
        """Return a new id of the caller's project for the log."""
        return self.prefix + new_id()

    def strip_prefix(self, text: str) -> str:
        """Return a message with stored ids replaced by the ids that the caller knows.

        >>> Caller("k", frozenset(), "acme").strip_prefix("'acme~d-1' is in progress")
        "'d-1' is in progress"
        """
        return text.replace(self.prefix, "") if self.prefix else text


def caller_scopes(scopes: tuple[Scope, ...]) -> frozenset[Scope]:
    """Return scopes with those that they imply.

    >>> sorted(caller_scopes(("operate",)))
    ['operate', 'read']
    """
    return frozenset(scopes).union(*(IMPLIED.get(scope, ()) for scope in scopes))


def new_id() -> str:
    """Return an id that sorts by time: 12 hexadecimal digits of milliseconds, 20 random ones."""
    return f"{time.time_ns() // 1_000_000:012x}{next(_DIGITS)}"


_UNLOGGED = re.compile(r"(?:chatcmpl-|msg_|resp_)?unlogged-[0-9a-f]{32}")


def make_unlogged_id() -> str:
    """Return a new id of a decision that is not logged; no feedback can be given on it."""
    return f"unlogged-{new_id()}"


def is_unlogged(name: str) -> bool:
    """Return whether an id, stored or shown, names a decision that is not logged, or its answer.

    >>> is_unlogged(make_unlogged_id()), is_unlogged(f"news:{make_unlogged_id()}"), is_unlogged("unlogged-1")
    (True, True, False)
    """
    return _UNLOGGED.fullmatch(re.split("[:~]", name)[-1]) is not None


def _digits(at_once: int = 256) -> Iterator[str]:
    """Yield 20 random hexadecimal digits, drawn in batches: each system call releases the GIL."""
    while True:
        random = secrets.token_hex(10 * at_once)
        yield from (random[i : i + 20] for i in range(0, len(random), 20))


_DIGITS = _digits()

OPEN = Caller(None, frozenset(SCOPES))
"""The caller of every request to a service without keys."""


Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,128}$")]
"""Text of one line."""


def _no_seconds(value: object) -> object:
    """Refuse a number, which pydantic would read as seconds since the epoch."""
    if not isinstance(value, str | datetime) or (isinstance(value, str) and "-" not in value[1:]):
        raise ValueError("expected a date and a time with a zone, such as 2027-01-31T00:00Z")
    return value


def _has_date(value: datetime) -> datetime:
    """Refuse a time whose year in UTC is out of range."""
    require_date(value.timestamp())
    return value


Instant = Annotated[AwareDatetime, BeforeValidator(_no_seconds), AfterValidator(_has_date)]
"""A date and a time with a zone, in the form of ISO 8601."""


class UnauthorizedError(Exception):
    """A request has no valid key."""


class ForbiddenError(Exception):
    """A key lacks the scope of a route."""


class NewKey(KeyBase):
    """A key that is to be made."""

    name: Line = Field(description="What the key is for.")
    rpm_limit: StrictInt | None = Field(
        default=None, ge=1, le=10**9, description="Requests per minute. Unlimited by default."
    )
    tpm_limit: StrictInt | None = Field(
        default=None, ge=1, le=10**12, description="Tokens per minute. Unlimited by default."
    )
    max_budget: StrictFloat | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="USD per `budget_duration`. Unlimited by default.",
    )
    token_budget: StrictInt | None = Field(
        default=None, ge=1, le=10**15, description="Tokens per `budget_duration`. Unlimited by default."
    )
    budget_duration: Literal["1d", "1mo"] | None = Field(
        default=None, description="Period of the budgets: a day or a month, in UTC."
    )
    expires: Instant | None = Field(
        default=None, description="When the key expires, such as 2027-01-31T00:00Z. Never by default."
    )
    tags: dict[Line, Line] = Field(
        default_factory=dict, max_length=32, description="Your own names and values."
    )

    @model_validator(mode="after")
    def _check_budget(self) -> Self:
        budgets = self.max_budget is not None or self.token_budget is not None
        if budgets != (self.budget_duration is not None):
            raise ValueError("a budget needs both an amount and budget_duration (1d or 1mo)")
        if "chat" in self.scopes and not budgets:
            raise ValueError(
                "everybody can read a key of scope 'chat' in a page, so it needs a budget, such as "
                "token_budget 200000 with budget_duration 1d"
            )
        return self

    def settings(self, now: float) -> KeySettings:
        """Return the settings to store, for a key made at `now`. Raises ValueError if it would be expired."""
        if self.expires is not None and self.expires.timestamp() <= now:
            at = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
            raise ValueError(f"expires {self.expires.isoformat()} is in the past: it is {at} now")
        limits = KeyLimits(
            self.rpm_limit, self.tpm_limit, self.max_budget, self.token_budget, self.budget_duration
        )
        expires = None if self.expires is None else self.expires.timestamp()
        return KeySettings(
            self.name, self.scopes, self.project, self.source, limits, expires, self.tags, self.groups
        )


class Keyring:
    """Finds the caller of a request by its key, without reading the log.

    Args:
        configured: Keys of the configuration, whose secrets are in the environment.
        clock: Seconds since the epoch.

    Raises:
        ValueError: The environment variable or file of a key is missing, empty or unreadable.
    """

    def __init__(self, configured: Sequence[Key], clock: Callable[[], float]) -> None:
        self._clock = clock
        self._configured = [(read_secret(key.env).encode(), _read_configured_key(key)) for key in configured]
        missing = [
            key.env for key, (secret, _) in zip(configured, self._configured, strict=True) if not secret
        ]
        if missing:
            raise ValueError(
                f"`keys` names the environment variable {missing[0]}, which is not set: put a key into it"
            )
        self._logged: dict[str, tuple[keys.ApiKey, Caller]] = {}
        self._head = (0, 0)

    @property
    def configured(self) -> list[Caller]:
        """The callers with keys of the configuration."""
        return [caller for _, caller in self._configured]

    @property
    def is_open(self) -> bool:
        """Whether the service accepts requests without a key: none was ever configured or made."""
        return not self._configured and not self._logged

    def find_project(self, name: str) -> str | None:
        """Return the project of a key, by public id or configured name; None if there is no such key."""
        caller = self._callers().get(name)
        return None if caller is None else caller.project

    def _callers(self) -> dict[str | None, Caller]:
        """Return the callers of all keys, including expired and disabled ones, by public id or name."""
        named = {caller.key: caller for _, caller in self._configured}
        return named | {public_id: caller for public_id, (_, caller) in self._logged.items()}

    def holder(self, name: str | None) -> Caller:
        """Return the caller of a valid key, by public id or configured name; None: a request without a key.

        Raises:
            UnauthorizedError: The key is unknown or no longer valid, or None although the service has keys.
        """
        if self.is_open:
            return OPEN
        caller = self._callers().get(name)
        if caller is None:
            raise UnauthorizedError("this key was deleted")
        if name in self._logged:
            _require_valid(*self._logged[name], self._clock())
        return caller

    def refresh(self, store: Store) -> None:
        """Read keys from the log if any was added or disabled. Raises LogUnavailableError."""
        if (head := keys.head(store)) != self._head:
            self._logged = {key.public_id: (key, _read_logged_key(key)) for key in keys.read(store)}
            self._head = head

    def caller(self, authorization: str | None) -> Caller:
        """Return the caller of an `Authorization` header.

        Raises:
            UnauthorizedError: The header has no valid key.
        """
        if self.is_open:
            return OPEN
        scheme, _, key = (authorization or "").partition(" ")
        token = key.strip() if scheme.lower() == "bearer" else ""
        if parts := keys.TOKEN.fullmatch(token):
            return self._authenticate(*parts.groups())
        # every key is compared, in constant time, so that the duration reveals nothing
        held = [caller for secret, caller in self._configured if hmac.compare_digest(secret, token.encode())]
        if not held:
            problem = "unknown key" if token else "a key is needed"
            raise UnauthorizedError(f"{problem}: send the header Authorization: Bearer <key>")
        return replace(
            held[0],
            scopes=frozenset[Scope]().union(*(caller.scopes for caller in held)),
            groups=frozenset[str]().union(*(caller.groups for caller in held)),
        )

    def _authenticate(self, public_id: str, secret: str) -> Caller:
        key, caller = self._logged.get(public_id, (None, OPEN))
        if key is None or not hmac.compare_digest(key.secret_hash, keys.hash_secret(secret)):
            raise UnauthorizedError(f"unknown key sk-aw-{public_id}, or its secret is wrong")
        _require_valid(key, caller, self._clock())
        return caller


def _require_valid(key: keys.ApiKey, caller: Caller, now: float) -> None:
    """Check that a key of the log is neither disabled nor expired. Raises UnauthorizedError."""
    if key.disabled_at is not None:
        raise UnauthorizedError(f"key sk-aw-{key.public_id} is disabled")
    if caller.expires is not None and caller.expires <= now:
        raise UnauthorizedError(f"key sk-aw-{key.public_id} has expired")


def require_scope(caller: Caller, scopes: Sequence[Scope]) -> None:
    """Check that a caller has one of these scopes. Raises ForbiddenError."""
    if caller.scopes.isdisjoint(scopes):
        expected = " or ".join(map(repr, scopes))
        raise ForbiddenError(f"this key lacks the scope {expected}")


def _read_configured_key(key: Key) -> Caller:
    scopes, groups = caller_scopes(key.scopes), frozenset(key.groups)
    return Caller(key.env, scopes, key.project, key.source, groups=groups)


def _read_logged_key(key: keys.ApiKey) -> Caller:
    s = key.settings
    scopes = caller_scopes(tuple(s.scopes))  # type: ignore[arg-type]  # as they were checked when it was made
    groups = frozenset(s.groups)
    return Caller(key.public_id, scopes, s.project, s.source, s.expires, s.limits, groups=groups)

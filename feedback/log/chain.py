"""The chain of the log: hashes that show whether a fact was changed, removed or added.

    seal of a fact    hash of a salt, its texts and the other columns that an erasure empties
    chain at a fact   hash of the chain before it, of the columns that an erasure keeps, and of its seal

The salt of a seal is stored with the texts and erased with them, so the seal says nothing about erased texts.
Both are over the bytes that the database has, and not over what is read from them: a JSON document with a
name twice, or an infinite number instead of none, is another one.

The learner reads every fact in order, folds the chain and stores it with its position. Versions and
receipts keep that head. This proves that the facts are those that were read then, unless somebody who can
write to the database has folded another chain, which only a head that is kept elsewhere shows.
"""

import hashlib
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

from armwise.feedback.log import operations
from armwise.feedback.log import tables as t
from armwise.feedback.log.operations import Operation
from armwise.feedback.log.rows import IDS, look_up
from armwise.feedback.log.schema import require_row
from armwise.feedback.log.under_way import Scope
from armwise.feedback.texts import pseudonym

if TYPE_CHECKING:
    from armwise.feedback.log.store import Store

FACTS = (t.decisions, t.executions, t.feedback, t.observations, t.ticks)

ERASABLE: Mapping[sa.Table, tuple[str, ...]] = {
    t.decisions: ("question_digest", "request_digest", "user_digest"),
}
"""Columns, besides the texts, that an erasure empties."""

PORTION = 500
"""Positions that are verified at once."""

FOLDED = 5000
"""Positions that are folded at once."""

_BYTES = 32

_UNCHAINED = (*ERASABLE[t.decisions], "erased")


@dataclass(frozen=True, slots=True)
class LogHead:
    """The end of the log, or of a part of it.

    Attributes:
        seq: Position of its last fact; 0: it has none.
        chain: The chain there: 64 hexadecimal digits.
    """

    seq: int
    chain: str


@dataclass(frozen=True, slots=True)
class ChainReport:
    """What a walk along the chain has found.

    Attributes:
        head: The end of the log when the walk began, and the chain there.
        compared: Position up to which the facts are those of a head that was kept; 0: no head was.
        erased: Number of decisions whose texts are gone, by the number of their erasure.
        changes: What was changed, a sentence each; empty: nothing.
    """

    head: LogHead
    compared: int
    erased: Mapping[int, int]
    changes: tuple[str, ...]


def make_salt() -> str:
    """Return a new salt: 96 random bits, in hexadecimal."""
    return secrets.token_hex(t.SALT_CHARS // 2)


def make_seal(salt: bytes, document: bytes, erasable: Sequence[bytes | None]) -> str:
    """Return the seal of a fact: 40 hexadecimal digits.

    Args:
        salt: The salt that is stored with its texts.
        document: The texts of the fact, as they are stored.
        erasable: Columns that an erasure empties, as they are stored.
    """
    return hashlib.blake2b(_spell((salt, document, *erasable)), digest_size=t.SEAL_CHARS // 2).hexdigest()


def fold(connection: sa.Connection, head: LogHead, upto: int) -> LogHead:
    """Return the head at a position, from an earlier one and the facts in between."""
    between = {"after": head.seq, "upto": upto}
    facts = [(row[0], table, row) for table in FACTS for row in connection.execute(_ROWS[table], between)]
    facts.sort(key=lambda fact: fact[0])
    link = bytes.fromhex(head.chain)
    for _, table, row in facts:
        link = _link(link, table, row)
    return LogHead(upto, link.hex())


def fold_all(store: "Store") -> LogHead:
    """Return the head of the whole log, from the newest head that a join has stored.

    Raises:
        LogGapError: The log has no head.
    """
    with store.reading() as connection:
        end = _read_end(connection)
        newest = connection.execute(_STORED.order_by(t.progress.c.log_seq.desc()).limit(1)).first()
    head = LogHead(*newest) if newest is not None and newest[0] <= end else LogHead(0, t.NO_FACTS)
    while head.seq < end:
        with store.reading() as connection:
            head = fold(connection, head, min(head.seq + FOLDED, end))
    return head


_STORED = sa.select(t.progress.c.log_seq, t.progress.c.chain)

_JOINED = sa.select(t.progress.c.reader, t.progress.c.log_seq, t.progress.c.chain)


def _read_end(connection: sa.Connection) -> int:
    """Return the position of the last fact, as the log has it. Raises LogGapError."""
    found = connection.scalars(sa.select(t.log.c.seq)).all()
    require_row(len(found))
    return int(found[0])


def _link(before: bytes, table: sa.Table, row: Sequence[Any]) -> bytes:
    """Return the chain at a fact."""
    kept = [*row[: _N_KEPT[table]]]
    if table is t.feedback:  # an erasure leaves its pseudonym
        kept[_ID] = pseudonym(_decode(kept[_ID]))
    return hashlib.blake2b(before + _spell((table.name, *kept)), digest_size=_BYTES).digest()


def _spell(values: Sequence[object]) -> bytes:
    """Return values as bytes that no other values have."""
    parts = (
        (b"b", value) if isinstance(value, bytes) else (b"r", repr(value).encode(errors="surrogatepass"))
        for value in values
    )
    return b"".join(b"%b%d:%b" % (kind, len(part), part) for kind, part in parts)


def _decode(stored: object) -> str:
    return stored.decode(errors="replace") if isinstance(stored, bytes) else repr(stored)


# -- the bytes of a row --------------------------------------------------------------------------------


class stored_bytes(GenericFunction[Any]):  # noqa: N801 - SQLAlchemy names a function by its class
    """The bytes of a text or a document in a column; on SQLite, anything else there as SQL."""

    inherit_cache = True


@compiles(stored_bytes, "sqlite")
def _read_bytes_of_sqlite(function: stored_bytes, compiler: SQLCompiler, **options: Any) -> str:
    (column,) = (compiler.process(clause, **options) for clause in function.clauses)
    as_blob = f"WHEN 'text' THEN CAST({column} AS BLOB)"
    return f"CASE typeof({column}) {as_blob} WHEN 'null' THEN NULL ELSE quote({column}) END"


@compiles(stored_bytes, "postgresql")
def _read_bytes_of_postgresql(function: stored_bytes, compiler: SQLCompiler, **options: Any) -> str:
    (column,) = (compiler.process(clause, **options) for clause in function.clauses)
    return f"convert_to(CAST({column} AS TEXT), 'UTF8')"


def _as_stored(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    if isinstance(column.type, sa.String | sa.JSON):
        return stored_bytes(column).label(column.name)
    return sa.type_coerce(column, sa.types.NULLTYPE).label(column.name)


def _between(seq: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    return (seq > sa.bindparam("after")) & (seq <= sa.bindparam("upto"))


_KEPT = {table: [column for column in table.c if column.name not in _UNCHAINED] for table in FACTS}

_N_KEPT = {table: len(kept) for table, kept in _KEPT.items()}

_ID = [column.name for column in _KEPT[t.feedback]].index("id")

_ROWS = {
    table: sa.select(
        *map(_as_stored, _KEPT[table]),
        *(_as_stored(column) for column in table.c if column.name in _UNCHAINED),
    ).where(_between(table.c.seq))
    for table in FACTS
}

_TEXTS = sa.select(t.texts.c.seq, *map(_as_stored, (t.texts.c.document, t.texts.c.salt))).where(
    _between(t.texts.c.seq)
)

_d = t.decisions.c

_ERASED = sa.select(_d.id, _d.erased).where(_d.id.in_(IDS))

_ERASED_EPISODES = (
    sa.select(_d.episode_id, sa.func.max(_d.erased)).where(_d.episode_id.in_(IDS)).group_by(_d.episode_id)
)

_ENDS = {
    table: sa.select(
        sa.select(sa.func.min(table.c.seq)).scalar_subquery(),
        sa.select(sa.func.max(table.c.seq)).scalar_subquery(),
    )
    for table in FACTS
}


# -- verify --------------------------------------------------------------------------------------------


def verify_chain(
    store: "Store", checkpoints: Mapping[str, LogHead], on_progress: Callable[[int, int], None]
) -> ChainReport:
    """Fold the log again, and compare it with heads that were kept, with its texts and its erasures.

    Args:
        store: The log.
        checkpoints: Earlier heads of the log, by what has them, such as `version 3`.
        on_progress: Called with the number of facts read, and of all facts.

    Raises:
        LogGapError: The head of the log is missing.
    """
    with store.reading() as connection:
        end = _read_end(connection)
        ends = [(table, seq) for table, query in _ENDS.items() for seq in connection.execute(query).one()]
        joined = {
            f"the learner of {name[:12]}": LogHead(*head) for name, *head in connection.execute(_JOINED)
        }
    outside = [
        f"the {table.name} have a fact at position {seq:,}, outside of the log"
        for table, seq in ends
        if seq is not None and not 1 <= seq <= end
    ]
    last = min(end, max((seq for _, seq in ends if seq is not None), default=0))
    walk = _Walk({**checkpoints, **joined})
    for start in range(0, last, PORTION):
        upto = min(start + PORTION, last)
        with store.reading() as connection:
            walk.read(connection, start, upto)
        on_progress(upto, last)
    changes = *walk.found.values(), *walk.compare(last, end), *outside
    return ChainReport(LogHead(last, walk.chain), walk.agreed, dict(walk.erased), changes)


_Placed = tuple[sa.Table, Mapping[str, Any]]
"""A fact, by its table, with the values of its row as they are stored."""


class _Walk:
    """Folds the facts in order, and notes where they are not what they were.

    Args:
        checkpoints: Heads to compare with, by what has them.

    Attributes:
        found: The first fact that is missing, that does not match its seal, or that lost its texts.
        erased: Number of erased decisions, by the number of their erasure.
    """

    def __init__(self, checkpoints: Mapping[str, LogHead]) -> None:
        self._checkpoints = checkpoints
        self.found: dict[str, str] = {}
        self.erased = Counter[int]()
        self._link = bytes.fromhex(t.NO_FACTS)
        self._due = defaultdict[int, list[tuple[str, str]]](list)
        self._compared: list[tuple[int, str, bool]] = []  # position, name, and whether the chain agrees
        for name, head in checkpoints.items():
            self._due[head.seq].append((name, head.chain))
        self._note(0)

    @property
    def chain(self) -> str:
        """The chain after the facts that were read."""
        return self._link.hex()

    @property
    def agreed(self) -> int:
        """Position of the last head that agrees; 0: none does."""
        return max((seq for seq, _, agrees in self._compared if agrees), default=0)

    def _note(self, seq: int) -> None:
        """Compare the chain at a position with those that are due there."""
        self._compared += [(seq, name, chain == self.chain) for name, chain in self._due.pop(seq, ())]

    def read(self, connection: sa.Connection, start: int, end: int) -> None:
        """Fold the facts at the positions from `start` + 1 to `end`, and compare them with their texts."""
        between = {"after": start, "upto": end}
        texts = {seq: (document, salt) for seq, document, salt in connection.execute(_TEXTS, between)}
        facts = defaultdict[int, list[tuple[sa.Table, sa.Row[Any]]]](list)
        for table, query in _ROWS.items():
            for row in connection.execute(query, between):
                facts[row[0]].append((table, row))
        gone = list[_Placed]()
        for seq in range(start + 1, end + 1):
            if len(facts[seq]) != 1:
                what = "are several facts" if facts[seq] else "is no fact"
                self.found.setdefault("position", f"there {what} at position {seq:,}")
            for table, row in facts[seq]:
                self._link = _link(self._link, table, row)
                values = dict(zip(row._fields, row, strict=True))
                is_gone = _lacks_texts(table, values, *texts.get(seq, (b"{}", b"")))
                if is_gone is None:
                    about = f"the fact at position {seq:,}, of the {table.name}"
                    self.found.setdefault(
                        "seal", f"{about}, does not match its seal: it or its texts changed"
                    )
                elif is_gone:
                    gone.append((table, values))
                    if table is t.decisions:
                        self.erased[values["erased"]] += 1
            self._note(seq)
        for table, seq in _list_unexplained(connection, gone):
            about = f"the texts of the fact at position {seq:,}, of the {table.name}"
            self.found.setdefault("texts", f"{about}, are gone, and no erasure on record removed them")

    def compare(self, last: int, end: int) -> Iterator[str]:
        """Yield what the comparisons say of facts that end at a position, in a log that ends at another."""
        agreed = self.agreed
        for seq, name, agrees in self._compared:
            if agrees:
                continue
            if seq > agreed:
                between = f"between positions {agreed + 1:,} and {seq:,}"
                yield f"a fact {between} was changed, removed or added: {name} has another chain"
                break
            yield f"the chain of {name} at position {seq:,} was changed"
        beyond, name = max(((head.seq, name) for name, head in self._checkpoints.items()), default=(0, ""))
        if beyond > max(last, end):
            between = f"between positions {last + 1:,} and {beyond:,}"
            yield f"the facts {between} were removed: {name} was made after them"
        elif end > last:
            yield f"the facts between positions {last + 1:,} and {end:,} were removed: the log counts them"


def _lacks_texts(table: sa.Table, row: Mapping[str, Any], document: object, salt: object) -> bool | None:
    """Return whether what an erasure removes is gone from a fact; None: it does not match its seal."""
    erasable, seal = [row[name] for name in ERASABLE.get(table, ())], row.get("seal")
    marked = row.get("erased") is not None
    if not isinstance(document, bytes) or not isinstance(salt, bytes):
        return None
    if salt.strip():
        agrees = all(part is None or isinstance(part, bytes) for part in erasable)
        agrees = agrees and seal == make_seal(salt, document, erasable).encode()
        return False if agrees and not marked else None
    if document.strip() != b"{}" or any(erasable) or (table is t.decisions and not marked):
        return None
    return marked or seal is not None


def _list_unexplained(connection: sa.Connection, gone: Sequence[_Placed]) -> Iterator[tuple[sa.Table, int]]:
    """Yield the facts without texts that no erasure on record has reached.

    An erasure reaches the decisions that name it, and all other facts on them or on their episodes; one by
    age reaches all positions up to its last; one of an episode or a decision also what is in the log of it
    before any decision is. Whether it had to reach them is not known any more.
    """
    if not gone:
        return
    rows = operations.read_all(connection, Operation.ERASURE, Operation.RETENTION)
    numbers = {row.seq for row in rows}
    scopes = {row.document["scope"] for row in rows}
    aged = max((row.document.get("upto") or 0 for row in rows), default=0)
    named = {_decode(row["decision_id"]) for table, row in gone if row.get("decision_id") is not None}
    episodes = {
        _decode(row["episode_id"]) for table, row in gone if table is t.feedback and row["episode_id"]
    }
    of_decisions = dict(map(tuple, look_up(connection, _ERASED, named)))
    of_episodes = dict(map(tuple, look_up(connection, _ERASED_EPISODES, episodes)))
    for table, row in gone:
        if table is t.decisions:
            explained = row["erased"] in numbers
        elif row["seq"] <= aged:
            explained = True
        elif row["decision_id"] is not None:
            name = _decode(row["decision_id"])
            explained = of_decisions[name] is not None if name in of_decisions else Scope.DECISION in scopes
        else:
            name = _decode(row["episode_id"])
            explained = of_episodes[name] is not None if name in of_episodes else Scope.EPISODE in scopes
        if not explained:
            yield table, row["seq"]

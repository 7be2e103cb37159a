"""The chain of the log: hashes that show whether a fact was changed, removed or added afterwards.

    seal of a fact    hash of a salt, its texts and the other columns that an erasure empties
    chain at a fact   hash of the chain before it, of the columns that an erasure keeps, and of its seal

The salt of a seal is stored with the texts and erased with them, so the seal says nothing about erased texts.
The chain is folded fact by fact, however they are committed. The head of the log has it, and so has whatever
keeps a copy, a checkpoint, to compare with later. Someone who can write to the database can fold another
chain: only a checkpoint that is kept elsewhere shows that.

The order of the names in a document counts, since both databases keep it and it has a meaning.
"""

import hashlib
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import orjson
import sqlalchemy as sa

from armwise.feedback.log import tables as t
from armwise.feedback.log.backend import dumps
from armwise.feedback.log.schema import require_row
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

_BYTES = 32

_UNCHAINED = (*ERASABLE[t.decisions], "erased")

Row = Mapping[str, Any]


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
        head: The head of the log when the walk began.
        changes: What was changed, a sentence each; empty: nothing.
    """

    head: LogHead
    changes: tuple[str, ...]


def make_salt() -> str:
    """Return a new salt: 96 random bits, in hexadecimal."""
    return secrets.token_hex(t.SALT_CHARS // 2)


def make_seal(table: sa.Table, row: Row, texts: Mapping[str, Any], salt: str) -> str:
    """Return the seal of a fact: 40 hexadecimal digits.

    Args:
        table: One of `FACTS`.
        row: Values of the fact by column.
        texts: What is in `texts` as the document of the fact.
        salt: The salt that is stored with them.
    """
    sealed = [salt, texts, *(row[name] for name in ERASABLE.get(table, ()))]
    return hashlib.blake2b(_spell(sealed), digest_size=t.SEAL_CHARS // 2).hexdigest()


def fold(chain: str, rows: Mapping[sa.Table, Sequence[Row]]) -> str:
    """Return the chain after the facts that follow it.

    Args:
        chain: The chain before them.
        rows: Their rows, by table; rows of other tables are ignored.
    """
    facts = [(row["seq"], table, row) for table in FACTS for row in rows.get(table, ())]
    facts.sort(key=itemgetter(0))
    link = bytes.fromhex(chain)
    for _, table, row in facts:
        link = _link(link, table, row)
    return link.hex()


def _link(before: bytes, table: sa.Table, row: Row) -> bytes:
    """Return the chain at a fact."""
    kept = [table.name, *_GET_KEPT[table](row)]
    for place, convert in _CONVERSIONS[table]:
        if kept[place] is not None:
            kept[place] = convert(kept[place])
    return hashlib.blake2b(before + _spell(kept), digest_size=_BYTES).digest()


def _spell(values: Sequence[Any]) -> bytes:
    """Return values as bytes that are the same before they are written and after they are read."""
    try:
        spelt = orjson.dumps(values)
    except TypeError:  # what `dumps` writes otherwise, such as half of a surrogate pair
        spelt = b""
    return spelt if spelt and b"\\u0000" not in spelt else orjson.dumps(orjson.loads(dumps(values)))


def _as_float(value: float) -> float:
    return value + 0.0  # an integer becomes a float; SQLite writes -0.0 as 0.0


def _as_integer(value: float) -> float:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _find_conversion(column: sa.Column[Any]) -> Callable[[Any], Any] | None:
    """Return what makes values of a column equal before they are written and after they are read."""
    match column.type:
        case _ if column is t.feedback.c.id:
            return pseudonym
        case sa.Double():
            return _as_float
        case sa.Integer():
            return _as_integer
        case sa.Boolean():
            return bool
    return None


_KEPT = {table: [column for column in table.c if column.name not in _UNCHAINED] for table in FACTS}

_GET_KEPT = {table: itemgetter(*(column.name for column in kept)) for table, kept in _KEPT.items()}

_CONVERSIONS = {
    table: [
        (place, convert)
        for place, column in enumerate(kept, 1)  # after the name of the table
        if (convert := _find_conversion(column))
    ]
    for table, kept in _KEPT.items()
}


# -- read and verify -----------------------------------------------------------------------------------


def read_head(connection: sa.Connection) -> LogHead:
    """Return the head of the log. Raises LogGapError."""
    found = connection.execute(sa.select(t.log.c.seq, t.log.c.chain)).all()
    require_row(len(found))
    return LogHead(*found[0])


def verify_chain(
    store: "Store", checkpoints: Mapping[str, LogHead], on_progress: Callable[[int, int], None]
) -> ChainReport:
    """Fold the log again, and compare it with its head, with checkpoints and with its texts.

    Args:
        store: The log.
        checkpoints: Earlier heads of the log, by what has them, such as `version 3`.
        on_progress: Called with the number of facts read, and of all facts.

    Raises:
        LogGapError: The head of the log is missing.
        LogUnavailableError: Try again later.
    """
    with store.reading() as connection:
        head = read_head(connection)
        ends = [(table, seq) for table, query in _ENDS.items() for seq in connection.execute(query).one()]
    outside = [
        f"the {table.name} have a fact at position {seq:,}, outside of the log"
        for table, seq in ends
        if seq is not None and not 1 <= seq <= head.seq
    ]
    last = min(head.seq, max((seq for _, seq in ends if seq is not None), default=0))
    walk = _Walk({**checkpoints, "the head": head})
    for start in range(0, last, PORTION):
        end = min(start + PORTION, last)
        with store.reading() as connection:
            walk.read(connection, start, end)
        on_progress(end, last)
    return ChainReport(head, (*walk.found.values(), *walk.compare(last), *outside))


class _Walk:
    """Folds the facts in order, and notes where they are not what they were.

    Args:
        checkpoints: Heads to compare with, by what has them.

    Attributes:
        found: The first fact that is missing, and the first that does not match its seal.
    """

    def __init__(self, checkpoints: Mapping[str, LogHead]) -> None:
        self.found: dict[str, str] = {}
        self._link = bytes.fromhex(t.NO_FACTS)
        self._due: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
        for name, head in checkpoints.items():
            self._due[head.seq].append((name, head.chain))
        self._compared: list[tuple[int, str, bool]] = []
        self._note(0)

    def read(self, connection: sa.Connection, start: int, end: int) -> None:
        """Fold the facts at the positions from `start` + 1 to `end`."""
        between = {"after": start, "upto": end}
        texts = {seq: some for seq, *some in connection.execute(_TEXTS, between)}
        facts: defaultdict[int, list[tuple[sa.Table, dict[str, Any]]]] = defaultdict(list)
        for table, query in _ROWS.items():
            for found in connection.execute(query, between).mappings():
                facts[found["seq"]].append((table, dict(found)))
        for seq in range(start + 1, end + 1):
            if len(facts[seq]) != 1:
                what = "are several facts" if facts[seq] else "is no fact"
                self.found.setdefault("position", f"there {what} at position {seq:,}")
            for table, row in facts[seq]:
                try:
                    _load(table, row)
                    sealed = _agrees_with_texts(table, row, *texts.get(seq, ("{}", "")))
                    self._link = _link(self._link, table, row)
                except (TypeError, ValueError):  # of a kind that was never written
                    sealed = False
                if not sealed:
                    about = f"the fact at position {seq:,}, of the {table.name}"
                    self.found.setdefault(
                        "seal", f"{about}, does not match its seal: it or its texts changed"
                    )
            self._note(seq)

    def _note(self, seq: int) -> None:
        """Compare the chain at a position with those that are due there."""
        chain = self._link.hex()
        self._compared += [(seq, name, known == chain) for name, known in self._due.get(seq, ())]

    def compare(self, end: int) -> Iterator[str]:
        """Yield what the comparisons of the chain say of a log that ends at a position."""
        agreed = max((seq for seq, _, agrees in self._compared if agrees), default=0)
        for seq, name, agrees in self._compared:
            if agrees:
                continue
            if seq > agreed:
                between = f"between positions {agreed + 1:,} and {seq:,}"
                yield f"a fact {between} was changed, removed or added: {name} has another chain"
                break
            yield f"the chain of {name} at position {seq:,} was changed"
        last = max(self._due)
        if last > end:
            between, (name, _) = f"between positions {end + 1:,} and {last:,}", self._due[last][0]
            yield f"the facts {between} were removed: {name} was made after them"


def _agrees_with_texts(table: sa.Table, row: Row, document: str, salt: str) -> bool:
    """Return whether a fact and its texts are what was sealed, or what an erasure leaves."""
    texts = orjson.loads(document)
    if salt.strip():
        return row.get("seal") == make_seal(table, row, texts, salt) and row.get("erased") is None
    erasable = [texts, *(row[name] for name in ERASABLE.get(table, ()))]
    return not any(erasable) and (table is not t.decisions or row["erased"] is not None)


def _load(table: sa.Table, row: dict[str, Any]) -> None:
    """Read the documents of a row. Raises ValueError."""
    for name in _DOCUMENTS[table]:
        row[name] = orjson.loads(row[name] or "null")


def _between(seq: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    return (seq > sa.bindparam("after")) & (seq <= sa.bindparam("upto"))


_DOCUMENTS = {
    table: [column.name for column in table.c if isinstance(column.type, sa.JSON)] for table in FACTS
}

_ROWS = {
    table: sa.select(
        *(
            sa.cast(column, sa.Text).label(column.name) if isinstance(column.type, sa.JSON) else column
            for column in table.c
        )
    ).where(_between(table.c.seq))
    for table in FACTS
}

_ENDS = {
    table: sa.select(
        sa.select(sa.func.min(table.c.seq)).scalar_subquery(),
        sa.select(sa.func.max(table.c.seq)).scalar_subquery(),
    )
    for table in FACTS
}

_TEXTS = sa.select(t.texts.c.seq, sa.cast(t.texts.c.document, sa.Text), t.texts.c.salt).where(
    _between(t.texts.c.seq)
)

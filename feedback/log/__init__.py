"""The SQL log: facts in, facts out.

    facts, append, group_commit       what is stored of a fact; how facts are committed together
    rows, listing, conversations      how they are read
    erasures, chain                   how texts are removed; whether anything else was changed
    tables, schema, operations        the tables; what operators decided
    store, backend, sqlite, postgres  one log in one database

Whatever reads or writes a log raises LogUnavailableError while its database is away. Try again later.
"""

from . import chain, conversations, counting, erasures, listing, operations, rows, schema, tables
from .append import FeedbackStatus, Receipt
from .backend import avoid_index, dumps, storable
from .changes import ChangeWatch
from .database import locate_url, without_password
from .facts import Fact
from .group_commit import SLOW_S, GroupCommit
from .open import SERVING_S, open_log
from .operations import Operation
from .rows import insert
from .sqlite import COPIED_IN_USE, lacks_wal
from .store import DrawSecret, LoggedDecision, Store, row_time
from .tables import LARGEST

__all__ = [
    "COPIED_IN_USE",
    "LARGEST",
    "SERVING_S",
    "SLOW_S",
    "ChangeWatch",
    "DrawSecret",
    "Fact",
    "FeedbackStatus",
    "GroupCommit",
    "LoggedDecision",
    "Operation",
    "Receipt",
    "Store",
    "avoid_index",
    "chain",
    "conversations",
    "counting",
    "dumps",
    "erasures",
    "insert",
    "lacks_wal",
    "listing",
    "locate_url",
    "open_log",
    "operations",
    "row_time",
    "rows",
    "schema",
    "storable",
    "tables",
    "without_password",
]

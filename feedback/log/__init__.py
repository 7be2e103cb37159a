"""The SQL log: append, read, group commit, schema."""

from . import chain, conversations, counting, erasures, listing, operations, rows, schema, tables
from .append import FeedbackStatus, Receipt
from .backend import avoid_index, dumps, storable
from .changes import ChangeWatch
from .database import locate_url, without_password
from .facts import Fact
from .group_commit import SLOW_S, GroupCommit
from .limits import LARGEST, Limited
from .open import SERVING_S, open_log
from .operations import Operation
from .rows import insert
from .sqlite import COPIED_IN_USE, lacks_wal
from .store import DrawSecret, LoggedDecision, Store, row_time

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
    "Limited",
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

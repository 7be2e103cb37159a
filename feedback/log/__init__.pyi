from . import database, erasures, key_tables, listing, rollup_tables, rows, schema, tables
from .batch import Fact, FeedbackStatus, Receipt
from .group_commit import GroupCommit
from .open import SERVING_S, open_log
from .store import Record, Store, row_time

__all__ = [
    "SERVING_S",
    "Fact",
    "FeedbackStatus",
    "GroupCommit",
    "Receipt",
    "Record",
    "Store",
    "database",
    "erasures",
    "key_tables",
    "listing",
    "open_log",
    "rollup_tables",
    "row_time",
    "rows",
    "schema",
    "tables",
]

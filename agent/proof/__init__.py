"""The receipt: savings beside quality, stated so that it holds at every look and can be computed again."""

from .knowledge import Remark, assess
from .receipt import (
    SavingsReceipt,
    keep_receipt,
    make_receipt,
    read_kept,
    read_receipt,
    verify,
    write_receipt,
)
from .statements import SURE, About, Statement, Statements, state
from .traffic import (
    LoggedTraffic,
    NoTrafficError,
    leave_costs_out,
    open_traffic,
    read_between,
    read_file,
    read_store,
)
from .words import state_kept_audit, write_badge, write_markdown, write_sentence

__all__ = [
    "SURE",
    "About",
    "LoggedTraffic",
    "NoTrafficError",
    "Remark",
    "SavingsReceipt",
    "Statement",
    "Statements",
    "assess",
    "keep_receipt",
    "leave_costs_out",
    "make_receipt",
    "open_traffic",
    "read_between",
    "read_file",
    "read_kept",
    "read_receipt",
    "read_store",
    "state",
    "state_kept_audit",
    "verify",
    "write_badge",
    "write_markdown",
    "write_receipt",
    "write_sentence",
]

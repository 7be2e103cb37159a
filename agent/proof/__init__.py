"""The receipt: savings beside quality, stated so that it holds at every look and can be computed again."""

from .knowledge import Remark, assess
from .receipt import (
    SavingsReceipt,
    choose_reference,
    keep_receipt,
    make_receipt,
    read_kept,
    read_receipt,
    verify,
    write_receipt,
)
from .traffic import LoggedTraffic, NoTrafficError, open_traffic, read_file, read_store
from .words import round_down, write_badge, write_markdown, write_sentence

__all__ = [
    "LoggedTraffic",
    "NoTrafficError",
    "Remark",
    "SavingsReceipt",
    "assess",
    "choose_reference",
    "keep_receipt",
    "make_receipt",
    "open_traffic",
    "read_file",
    "read_kept",
    "read_receipt",
    "read_store",
    "round_down",
    "verify",
    "write_badge",
    "write_markdown",
    "write_receipt",
    "write_sentence",
]

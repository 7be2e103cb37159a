"""Audit the log of another system: a table with the arm and the propensity of each decision.

    table --ProductionLog--> export in a temporary folder --report_log--> the document of `armwise audit`

Rows that an import would leave out are what an audit looks for: probabilities that cannot be, ids that stand
twice, and rows that another arm answered than the one that was drawn.
"""

import time
from collections.abc import Collection
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from armwise.agent.proof.audit import When, report_log
from armwise.agent.proof.propensity_audit import Check, CheckStatus
from armwise.arms.base import Progress
from armwise.feedback.exchange import (
    DUPLICATE,
    IMPOSSIBLE,
    REWARD,
    Columns,
    Faults,
    ImportRequest,
    ProductionLog,
    make_rule,
    read_records,
    value_at,
)
from armwise.feedback.jsonl import FORMAT, ExchangeError, Header, appearing, read_lines, write_export
from armwise.feedback.sources import ExportSource

SCALE = (-1e6, 1e6)
"""Rewards that are read: an audit asks only whether they are there, and what they go with."""

DRAWN = ("drawn", "drawn_arm", "chosen", "chosen_arm", "selected", "selected_arm", "sampled", "sampled_arm")
"""Columns of the arm that was drawn, beside one of the arm that answered."""

SERVED = (
    *("served", "served_arm", "served_model", "answered_by", "used_arm", "model_used", "actual_arm"),
    *("final_arm", "final_model", "executed_arm"),
)
"""Columns of the arm that answered, beside one of the arm that was drawn."""

FIRST = 100
"""Rows in which these columns are looked for."""

REWARDED = (
    "Every row has a reward. If the file leaves out decisions without one, arms with more feedback have more "
    "rows than they were drawn, and may fail for this reason."
)


def is_export(path: Path) -> bool:
    """Return whether a file begins as an export or an import of Armwise does, or does not exist."""
    if not path.exists():
        return True  # reading it gives the message
    if path.is_dir() or not path.name.removesuffix(".gz").endswith((".jsonl", ".json", ".ndjson")):
        return False
    begin = f'{{"format":"{FORMAT}"'.encode()
    return any(line[:99].replace(b" ", b"").startswith(begin) for _, line in islice(read_lines(path), 1))


def report_table(path: Path, given: Columns, when: When, on_progress: Progress) -> dict[str, Any]:
    """Audit a table, and return the report of it; see `report_log`.

    Args:
        path: CSV, JSON lines, JSON or Parquet, or a folder of these.
        given: The columns that options name; the others are guessed by their names.
        when: From when and until when decisions count.
        on_progress: Called with the progress.

    Raises:
        ExchangeError: The file cannot be read, or no column holds the arm.
        NothingToAuditError: No row can be used.
    """
    log = ProductionLog(path, ImportRequest(columns=given, scale=SCALE, questions=False), on_progress)
    rule = make_rule(REWARD, SCALE)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "log.jsonl"
        with appearing(file) as written:
            header = Header(written_at=time.time(), reward=rule, arms=log.arms)
            write_export(log.examples(), written, header)
        summary, faults = log.summary, log.faults
        impossible = {reason: faults.counts.pop(reason) for reason in IMPOSSIBLE if reason in faults.counts}
        if not summary.rows and not impossible:
            raise ExchangeError(f"{path}: no row can be used{_first_fault(faults)}")
        read = summary.rows + sum(impossible.values())
        checks = [
            *_check_impossible(impossible, faults, read),
            *_check_ids(faults.counts.pop(DUPLICATE, 0), read),
            *_check_served(path, log.skipped, log.columns.arm or "", explicit=given.arm is not None),
        ]
        source = ExportSource(file)
        report = report_log(source, str(path), rule, when, on_progress, checks, may_be_empty=bool(impossible))
    columns = (f"{what} from {column}" for what, column in log.columns.list_columns() if what != "question")
    report["notes"].append(f"Read: {', '.join(columns)}.")
    report["excluded"] |= faults.counts
    if summary.rewarded == summary.rows:
        report["notes"].append(REWARDED)
    return report


def _first_fault(faults: Faults) -> str:
    shown = next(chain.from_iterable(faults.shown.values()), "")
    return f"; {shown}" if shown else ""


def _check_impossible(impossible: dict[str, int], faults: Faults, of: int) -> list[Check]:
    if not impossible:
        return []
    n = sum(impossible.values())
    shown = [faults.shown[reason][0] for reason in impossible]
    return [
        Check(
            "propensities possible",
            CheckStatus.FAIL,
            "in (0, 1], summing to 1, the drawn arm among the eligible ones",
            f"{n:,} of {of:,} are not",
            advice=f"For example {'; '.join(shown)}. Log the distribution that the draw was made from.",
        )
    ]


def _check_ids(again: int, of: int) -> list[Check]:
    advice = (
        f"{again:,} rows have the id of an earlier one, so they would count twice. Write each decision once; "
        "later rewards belong to it."
    )
    found = Check(
        "ids", CheckStatus.FAIL, "each decision once", f"{again:,} of {of + again:,}", advice=advice
    )
    return [found] if again else []


def _check_served(path: Path, skipped: Collection[str], arm: str, *, explicit: bool) -> list[Check]:
    """Return the check that the arm that answered is the one that was drawn; empty without both columns."""
    names: dict[str, None] = {}
    for record in islice(read_records(path, skipped), FIRST):
        names.update(dict.fromkeys(record.values))
    others = (*DRAWN, "arm", "arm_id", "action", "route") if arm in SERVED else (*SERVED, *DRAWN)
    other = next((name for name in others if name in names and name != arm), None)
    if other is None:
        return []
    n, of, example = 0, 0, ""
    for record in read_records(path, skipped):
        one, two = (str(value_at(record.values, column) or "") for column in (arm, other))
        if one and two:
            of += 1
            n += one != two
            example = example or ("" if one == two else f"{record.where}: {arm} is {one!r}, {other} {two!r}")
    if n == of:
        return []  # it holds other names than those of the arms
    served = arm if arm in SERVED or other in DRAWN else other
    drawn = other if served == arm else arm
    name, expected = "drawn arm served", f"{drawn} and {served} are the same arm"
    if not n:
        return [Check(name, CheckStatus.PASS, expected, f"all {of:,} are")]
    kept = explicit and arm == drawn
    advice = (
        f"{example}. If the propensity belongs to the drawn arm, the reward belongs to another one. "
        "Log the propensity of the arm that answered, or leave these rows out."
    )
    if kept:
        advice = f"{example}. What is estimated of an arm includes the answers of others that replaced it."
    status = CheckStatus.WARN if kept else CheckStatus.FAIL
    return [Check(name, status, expected, f"{n:,} of {of:,} differ", advice=advice)]

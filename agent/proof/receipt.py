"""The receipt: a statement of savings and quality with all that is needed to compute it again.

prove(traffic) --> SavingsReceipt --JSON--> read_receipt --> verify(receipt, traffic) --> what differs
"""

import hashlib
import json
import math
import time
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from armwise.agent.proof import noninferiority
from armwise.agent.proof.documents import (
    Finite,
    Name,
    Number,
    ProofDocument,
    Stated,
    list_differences,
    read_document,
    write_document,
)
from armwise.agent.proof.judged import AnswerAudit, recompute
from armwise.agent.proof.noninferiority import (
    ArmComparison,
    Sessions,
    Settlement,
)
from armwise.agent.proof.statements import choose_reference, describe_reward
from armwise.agent.proof.traffic import LoggedTraffic, name_log
from armwise.feedback.jsonl import ExchangeError
from armwise.feedback.reward import RewardRule

if TYPE_CHECKING:
    from armwise.agent.config import AppConfig

METHOD = "betting confidence sequences: importance-weighted, quality by session, beside dollars as paid"

METHOD_VERSION = 6
"""Rises when the same rows give other figures."""

LARGEST_FILE = 1 << 20
"""Most bytes of a receipt."""

RECEIPT = "receipt.json"
"""File of the home with the newest receipt."""

AUDITED = "audited.json"
"""File of the home with the newest receipt that has an audit."""


class StatedHead(Stated):
    """The head of the log; see `armwise.feedback.log.chain`."""

    seq: Number = Field(description="Position of its last fact.")
    chain: str = Field(pattern="^[0-9a-f]{64}$", description="Hash over all facts up to there.")


class SavingsReceipt(ProofDocument):
    """A statement of savings and quality, and all that is needed to compute it again from the log."""

    format: Literal["armwise-receipt"] = "armwise-receipt"
    number: Literal[1] = Field(default=1, alias="schema")
    armwise: Name
    made_at: Finite
    source: Name
    method: Name = METHOD
    method_version: Number = METHOD_VERSION
    error: Annotated[float, Field(gt=0.0, lt=1.0)] = noninferiority.ERROR
    before: Finite = Field(description="Decisions before this time count, seconds since the epoch.")
    begun_before: Finite | None = Field(description="Sessions that began before it count; null for all.")
    rows: Number = Field(description="Explored decisions of that time.")
    digest: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of all that was read of these rows.")
    rule: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the rule of quality.")
    reward: Name = Field(description="What quality is, in words.")
    figures: ArmComparison
    audit: AnswerAudit | None = Field(
        default=None, description="What a judge says of all answers; null: quality is about rated answers."
    )
    head: StatedHead | None = Field(
        default=None, description="Head of the log as it was read; null for a file or a service."
    )

    @property
    def settlement(self) -> Settlement:
        """The part of the log that it is about."""
        return Settlement(self.before, math.inf if self.begun_before is None else self.begun_before)


def make_receipt(
    traffic: LoggedTraffic, sessions: Sessions, settlement: Settlement, beside: str | None = None
) -> SavingsReceipt:
    """Compare what was served with always using one arm.

    Args:
        traffic: The log.
        sessions: The explored decisions of its final part.
        settlement: That part.
        beside: The arm; None: by `choose_reference`.

    Raises:
        NothingComparableError: There is nothing to compare with, or too little.
        ValueError: The arm is not in the log.
    """
    reference = choose_reference(sessions) if beside is None else beside
    if reference not in sessions.names:
        raise ValueError(
            f"`--beside {reference}`: one of {', '.join(sessions.names)} was expected, which could be drawn"
        )
    return SavingsReceipt(
        armwise=metadata.version("armwise"),
        made_at=time.time(),
        source=traffic.source,
        before=settlement.before,
        begun_before=settlement.begun_before if settlement.begun_before < math.inf else None,
        rows=len(sessions.rows),
        digest=sessions.digest(),
        rule=digest_rule(traffic.rule),
        reward=describe_reward(traffic.rule, before_costs=traffic.before_costs),
        figures=traffic.compare(sessions, settlement, reference),
        head=None if traffic.head is None else StatedHead(**asdict(traffic.head)),
    )


def digest_rule(rule: RewardRule) -> str:
    """Return the SHA-256 of what makes quality of feedback, in hexadecimal."""
    document = {
        name: value
        for name, value in rule.model_dump(mode="json").items()
        if name in ("metrics", "default", "failed", "clip", "complete", "wait_time")
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def verify(receipt: SavingsReceipt, traffic: LoggedTraffic) -> list[str]:
    """Compute a receipt again from the log; return what differs, a sentence each."""
    if (receipt.method, receipt.method_version) != (METHOD, METHOD_VERSION):
        return [
            f"method: it was made by version {receipt.method_version} of {receipt.method!r}, this Armwise "
            f"has version {METHOD_VERSION} of {METHOD!r}: use Armwise {receipt.armwise}"
        ]
    differences = [traffic.doubt] if traffic.doubt else []
    if receipt.error != noninferiority.ERROR:
        differences.append(f"error: {receipt.error:g} on the receipt, {noninferiority.ERROR:g} here")
    if receipt.rule != digest_rule(traffic.rule):
        differences.append("rule: quality is made of feedback by another rule here")
    sessions = traffic.sessions(receipt.settlement)
    if receipt.rows != len(sessions.rows):
        differences.append(f"rows: {receipt.rows:,} on the receipt, {len(sessions.rows):,} in the log")
    if receipt.digest != (digest := sessions.digest()):
        differences.append(f"digest: {receipt.digest[:16]}... on the receipt, {digest[:16]}... of the log")
    try:
        again = make_receipt(traffic, sessions, receipt.settlement, receipt.figures.reference).figures
    except ValueError as error:
        return [*differences, f"figures: {error}"]
    differences += list_differences(asdict(receipt.figures), asdict(again))
    if receipt.audit is not None:
        differences += recompute(receipt.audit, sessions, receipt.figures.reference, traffic.rule)
    return differences


def read_receipt(path: Path) -> SavingsReceipt:
    """Read a receipt. Raises ExchangeError: it cannot be read; the message names the file and the value."""
    return read_document(path, SavingsReceipt, "receipt", LARGEST_FILE)


def write_receipt(receipt: SavingsReceipt, path: Path) -> None:
    """Write a receipt as JSON."""
    write_document(receipt, path, indent=2)


def keep_receipt(receipt: SavingsReceipt, config: "AppConfig") -> None:
    """Keep a receipt for reports and the console: as the newest, and as the newest with an audit if so."""
    config.home_path.mkdir(exist_ok=True, parents=True, mode=0o700)
    for name in (RECEIPT, *([] if receipt.audit is None else [AUDITED])):
        write_receipt(receipt, config.home_path / name)


def read_kept(config: "AppConfig", name: str = RECEIPT) -> SavingsReceipt | None:
    """Return the newest receipt of the log, with `AUDITED` the newest that has an audit; None: no such."""
    path = config.home_path / name
    try:
        receipt = read_receipt(path) if path.is_file() else None
    except (ExchangeError, OSError):
        return None
    of_this = receipt is not None and receipt.source == name_log(config)
    return receipt if of_this else None

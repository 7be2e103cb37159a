"""The verbs of the receipt: `prove`, and the part of `verify` that computes a receipt again."""

import json
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from armwise.agent.cli.console import PLAIN, console, errors, progress, report_errors
from armwise.agent.cli.options import CONFIG, ConfigPath, with_log
from armwise.agent.cli.whole_log import verify_log
from armwise.agent.proof.documents import ProofDocument, find_format
from armwise.agent.proof.judged import AnswerAudit, judge_answers, offer_audit
from armwise.agent.proof.knowledge import assess
from armwise.agent.proof.noninferiority import NothingComparableError, Sessions
from armwise.agent.proof.receipt import (
    SavingsReceipt,
    keep_receipt,
    make_receipt,
    read_kept,
    read_receipt,
    verify,
    write_receipt,
)
from armwise.agent.proof.statements import choose_reference
from armwise.agent.proof.traffic import LoggedTraffic, is_address, open_traffic
from armwise.agent.proof.verdict import is_verdict, read_verdict, verify_pairs, write_verdict
from armwise.agent.proof.verdict_words import write_verdict_markdown, write_verdict_text
from armwise.agent.proof.words import state_kept_audit, write_badge, write_markdown, write_sentence
from armwise.arms.llm import writing
from armwise.feedback.jsonl import ExchangeError, appearing
from armwise.feedback.log.chain import LogHead

if TYPE_CHECKING:
    from armwise.agent.config import AppConfig

MOST_AUDITED = 10_000
"""Most answers of an audit: a receipt holds all grades."""


def prove(
    log: Annotated[
        str | None,
        typer.Argument(
            metavar="[LOG]",
            help="A file of `armwise log export` or `armwise import`. By default the log. "
            "With --challenger: a file of requests, JSON lines.",
        ),
    ] = None,
    beside: Annotated[
        str | None,
        typer.Option(
            "--beside", help="Arm to compare with. By default `baseline`, or the most expensive arm."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the receipt or verdict to this .json file.")
    ] = None,
    badge: Annotated[
        Path | None, typer.Option("--badge", help="Write a badge of the receipt to this .svg file.")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print only Markdown, for a pull request.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON and nothing else.")
    ] = False,
    challenger: Annotated[
        str | None,
        typer.Option(
            "--challenger", help="Compare this arm with the reference: both answer the same requests."
        ),
    ] = None,
    judge: Annotated[
        str, typer.Option("--judge", help="Language model that judges answers, a name of `llms`.")
    ] = writing.DEFAULT,
    audit: Annotated[
        int | None,
        typer.Option(
            "--audit",
            min=1,
            max=MOST_AUDITED,
            help="Have the judge grade about so many of all answers, rated or not.",
        ),
    ] = None,
    pairs: Annotated[int, typer.Option("--pairs", help="Most pairs.")] = 200,
    budget: Annotated[float, typer.Option("--budget", help="Most dollars for answers and verdicts.")] = 5.0,
    by: Annotated[
        str,
        typer.Option("--by", help="Field of a request that names its class, such as metadata.task."),
    ] = "",
    each: Annotated[
        str,
        typer.Option(
            "--each", help="Field that names a conversation, such as metadata.session: one request of each."
        ),
    ] = "",
    margin: Annotated[
        float, typer.Option("--margin", help="Largest loss that you accept, in points of 100.")
    ] = 5.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed that draws requests or answers.")] = 0,
    labels: Annotated[
        Path | None, typer.Option("--labels", help="File of --ask-labels that you have filled in.")
    ] = None,
    ask_labels: Annotated[
        int, typer.Option("--ask-labels", help="Write so many pairs to a file, for verdicts of your own.")
    ] = 0,
    outcomes: Annotated[
        Path | None,
        typer.Option(
            "--outcomes", help="Write the outcomes of both arms to this file, for `armwise lab train`."
        ),
    ] = None,
    config: ConfigPath = CONFIG,
) -> None:
    """State what was saved, and at which quality, compared with always using one arm.

    The intervals hold however often you check. The command first lists what it can and cannot know about
    this traffic. It exits with 1 if nothing can be stated.

    With --challenger, it says whether to switch to another arm, from pairs of answers that a judge compares.
    A run that was interrupted continues where it stopped.
    """
    with report_errors():
        if markdown and as_json:
            raise ValueError("--markdown and --json: name one of them")
        for option, path, suffix in (
            ("--output", output, ".json"),
            ("--badge", badge, ".svg"),
            ("--outcomes", outcomes, ""),
        ):
            _require_file(option, path, suffix)
        if challenger is None:
            if by or each or labels or ask_labels or outcomes:
                raise ValueError("--by, --each, --labels, --ask-labels and --outcomes need --challenger")
            if audit is not None and log is not None:
                raise ValueError(
                    "--audit needs the texts of answers: run it where the log is, and name no log"
                )
            judged = None if audit is None else partial(judge_answers, asked=audit, budget=budget, seed=seed)
            receipt = _prove_log(
                *(log, beside, output, config, judge, judged), markdown=markdown, as_json=as_json
            )
            command = _verify_command(output, log)
            text = write_markdown(receipt, command) if markdown else write_sentence(receipt)
            _print(receipt, text, markdown=markdown, as_json=as_json)
            if badge is not None:
                with appearing(badge) as file:
                    file.write(write_badge(receipt).encode())
            return
        if badge is not None or audit is not None:
            raise ValueError("--badge and --audit are of a receipt, and --challenger states a verdict")
        from armwise.agent.proof.verdict_verbs import prove_pairs

        verdict = prove_pairs(
            None if log is None else Path(log),
            config,
            challenger=challenger,
            beside=beside,
            judge=judge,
            most=pairs,
            budget=budget,
            by=by,
            each=each,
            margin=margin,
            seed=seed,
            labels=labels,
            ask_labels=ask_labels,
            labels_path=Path("labels.jsonl") if output is None else output.with_suffix(".labels.jsonl"),
            outcomes=outcomes,
        )
        if output is not None:
            write_verdict(verdict, output)
        command = _verify_command(output)
        text = write_verdict_markdown(verdict, command) if markdown else write_verdict_text(verdict)
        _print(verdict, text, markdown=markdown, as_json=as_json)


def _verify_command(output: Path | None, log: str | None = None) -> str:
    """Return the command that computes a document again; empty if it was not written."""
    if output is None:
        return ""
    return shlex.join(["armwise", "verify", output.name, *([] if log is None else [Path(log).name])])


def _require_file(option: str, path: Path | None, suffix: str) -> None:
    if path is not None and suffix and path.suffix != suffix:
        raise ValueError(f"{option} {path}: a name that ends with {suffix} was expected")
    if path is not None and not path.parent.is_dir():
        raise ValueError(f"{option} {path}: there is no folder {path.parent}")


def _print(document: ProofDocument, text: str, *, markdown: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(document.as_json(), indent=2))
    elif markdown:
        typer.echo(text, nl=False)
    else:
        _print_lines(text)


def _print_lines(text: str) -> None:
    for line in text.splitlines():
        console.print(line, markup=False, **PLAIN)


def _prove_log(
    log: str | None,
    beside: str | None,
    output: Path | None,
    config: Path,
    judge: str,
    judged: Callable[..., AnswerAudit] | None,
    *,
    markdown: bool,
    as_json: bool,
) -> SavingsReceipt:
    """Print what a log can say and what it cannot, and return its receipt; exit with 1 if there is none."""
    traffic, settings = _open(log, config)
    settlement = traffic.settlement
    sessions = traffic.sessions(settlement)
    remarks = assess(traffic, settlement, sessions)
    quiet = markdown or as_json
    for known, title in ((True, "Known:"), (False, "Not known:")):
        some = [one.text for one in remarks if one.known is known and not one.fatal]
        for line in [] if not some or (quiet and known) else [title, *(f"  {text}" for text in some)]:
            (errors if quiet else console).print(line, markup=False, **PLAIN)
    reason = " ".join(remark.text for remark in remarks if remark.fatal)
    if not reason:
        earlier = [_read_earlier(output, traffic.source), None if settings is None else read_kept(settings)]
        if settings is not None and settings.baseline in sessions.names:
            beside = beside or settings.baseline
        try:
            before = [one.figures.reference for one in earlier if one is not None]
            reference = beside or choose_reference(sessions, *before)
            receipt = make_receipt(traffic, sessions, settlement, reference)
            printed = errors if quiet else console
            receipt = _audit(receipt, traffic, sessions, settings, judge, judged, printed)
        except NothingComparableError as error:
            reason = str(error)
    if reason:
        if as_json:
            refusal = {"format": "armwise-refusal", "source": traffic.source, "reason": reason}
            typer.echo(json.dumps(refusal, indent=2))
        said = reason if reason == traffic.doubt else f"Nothing can be stated: {reason}"
        errors.print(said, style="red", **PLAIN)
        raise typer.Exit(1)
    if output is not None:
        write_receipt(receipt, output)
    if settings is not None:
        keep_receipt(receipt, settings)
    return receipt


def _audit(
    receipt: SavingsReceipt,
    traffic: LoggedTraffic,
    sessions: Sessions,
    settings: "AppConfig | None",
    judge: str,
    judged: Callable[..., AnswerAudit] | None,
    printed: Console,
) -> SavingsReceipt:
    """Return a receipt with its audit, if one was asked for; if few answers are rated, say what it costs."""
    if settings is None:
        return receipt
    settings, reference = settings.resolve_places(), receipt.figures.reference
    if judged is None:
        if said := state_kept_audit(settings):
            printed.print(f"An audit is kept. {said.text}", markup=False, **PLAIN)
        elif offer := offer_audit(settings, sessions, reference, judge):
            printed.print(offer, markup=False, **PLAIN)
        return receipt
    with progress(errors) as on_progress:
        found = judged(settings, sessions, reference, traffic.rule, model=judge, on_progress=on_progress)
    return receipt.model_copy(update={"audit": found})


def _read_earlier(output: Path | None, source: str) -> SavingsReceipt | None:
    """Return the receipt that is about to be written again, if it is of the same log."""
    if output is None or not output.is_file():
        return None
    try:
        receipt = read_receipt(output)
    except ExchangeError:
        return None
    return receipt if receipt.source == source else None


def _open(log: str | None, config: Path) -> tuple[LoggedTraffic, "AppConfig | None"]:
    """Read a log, and the configuration where it is that of a service."""
    if log is not None and (kind := find_format(Path(log))):
        raise ValueError(f"{log} is no log, but has the format {kind}. Run: armwise verify {log}")
    settings = with_log(config) if log is None else None
    with progress(errors) as on_progress:
        return open_traffic(log, settings, on_progress), settings


def verify_receipt(path: Path, log: str | None, config: Path = CONFIG) -> None:
    """Compute a receipt again from a log, and print whether it is the same; exit with 1 where it differs.

    Where that is the log of a configuration, verify its chain, too.

    Args:
        path: The receipt.
        log: A file; None: the log of a configuration.
        config: The configuration, where no log is named.
    """
    with report_errors():
        if is_verdict(path):
            _verify_verdict(path)
            return
        receipt = read_receipt(path)
        of_file = not is_address(receipt.source)
        if log is None and of_file:
            command = shlex.join(["armwise", "verify", str(path), receipt.source])
            raise ValueError(f"{path} is the receipt of a file, {receipt.source}. Name the file: {command}")
        traffic, _ = _open(log, config)
        differences = verify(receipt, traffic)
        if differences and log is not None and not of_file:
            raise ValueError(
                f"{path} is the receipt of the log {receipt.source}, and {log} is another source: an export "
                f"lacks decisions. Where the log is, run: {shlex.join(['armwise', 'verify', str(path)])}"
            )
        for difference in differences:
            errors.print(difference, style="red", **PLAIN)
        if differences:
            errors.print(f"{path} differs from what {traffic.source} gives.", style="red", **PLAIN)
        else:
            console.print(f"match: {receipt.rows:,} decisions give what {path} states.", **PLAIN)
            console.print(write_sentence(receipt), **PLAIN)
        if log is None:
            head = receipt.head
            verify_log(config, {} if head is None else {str(path): LogHead(head.seq, head.chain)})
        if differences:
            raise typer.Exit(1)


def _verify_verdict(path: Path) -> None:
    verdict = read_verdict(path)
    differences = verify_pairs(verdict)
    for difference in differences:
        errors.print(difference, style="red", **PLAIN)
    if differences:
        errors.print(f"{path} differs from what its pairs give.", style="red", **PLAIN)
        raise typer.Exit(1)
    console.print(f"match: {len(verdict.pairs):,} pairs give what {path} states.", **PLAIN)
    _print_lines(write_verdict_text(verdict))

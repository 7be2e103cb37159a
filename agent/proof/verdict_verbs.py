"""The part of `prove` that compares two arms by pairs, and the part of `verify` that computes it again."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from armwise.agent.cli.console import PLAIN, console, errors, progress
from armwise.agent.cli.options import open_config, with_log
from armwise.agent.proof.labels import label_pairs, read_labels, require_new, write_labels
from armwise.agent.proof.pairs import (
    EVERYTHING,
    Collected,
    RequestFile,
    read_logged_pairs,
    read_requests,
    run_pairs,
)
from armwise.agent.proof.traffic import NAME_CHARS, name_log
from armwise.agent.proof.verdict import (
    PairDraws,
    PairsVerdict,
    make_verdict,
    read_verdict,
    verify_pairs,
    write_verdict,
)
from armwise.agent.proof.verdict_words import (
    write_verdict_markdown,
    write_verdict_text,
)
from armwise.arms.lab.portfolio.outcomes import write_outcomes
from armwise.arms.suggestions import did_you_mean

if TYPE_CHECKING:
    from armwise.agent.config import AppConfig

FREE = (
    "By the prices of the configuration, these models are free, so --budget limits nothing. Set "
    "`usd_per_kilotoken_in` and `usd_per_kilotoken_out` if one of them is not."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsOptions:
    """What `armwise prove --challenger` is asked.

    Attributes:
        requests: File of requests; None: the pairs of the log.
        challenger: The arm that may take over.
        beside: The arm that it is compared with; None: the baseline.
        judge: Name of the language model that judges.
        pairs: Most draws.
        budget: Most dollars.
        by: Field that names the class of a request; empty: none does.
        margin: Largest loss that is accepted, in points of 100.
        seed: Seed of the draws.
        labels: File with labels; None: there are none.
        ask_labels: Number of pairs to write to a file to fill in; 0: none.
        output: File of the verdict; None: it is not written.
        outcomes: File for the outcomes of both arms; None: it is not written.
    """

    requests: Path | None
    challenger: str
    beside: str | None
    judge: str
    pairs: int
    budget: float
    by: str
    margin: float
    seed: int
    labels: Path | None
    ask_labels: int
    output: Path | None
    outcomes: Path | None

    def __post_init__(self) -> None:
        if self.pairs < 1 or self.budget < 0.0 or not 0.0 <= self.margin <= 100.0 or self.ask_labels < 0:
            raise ValueError(
                "--pairs of 1 or more, --budget of 0 or more, --margin from 0 to 100 and --ask-labels of 0 "
                "or more were expected"
            )
        if self.requests is None and (self.by or self.labels or self.ask_labels or self.outcomes):
            raise ValueError("--by, --labels, --ask-labels and --outcomes need a file of requests")

    @property
    def labels_path(self) -> Path:
        """The file to fill in."""
        return Path("labels.jsonl") if self.output is None else self.output.with_suffix(".labels.jsonl")


def prove_pairs(options: PairsOptions, config: Path, *, markdown: bool, as_json: bool) -> None:
    """Compare two arms by pairs, and print the verdict. Raises ValueError."""
    if options.requests is None:
        verdict = _read_log(options, with_log(config))
    else:
        verdict = _ask(options, options.requests, open_config(config, without=["router"]))
    if options.output is not None:
        write_verdict(verdict, options.output)
    if as_json:
        typer.echo(json.dumps(verdict.as_json(), indent=1))
    elif markdown:
        typer.echo(write_verdict_markdown(verdict), nl=False)
    else:
        _print(verdict)


def _print(verdict: PairsVerdict) -> None:
    for line in write_verdict_text(verdict).splitlines():
        console.print(line, markup=False, **PLAIN)


def _choose_arms(options: PairsOptions, settings: "AppConfig") -> tuple[str, str]:
    """Return the challenger and the reference. Raises ValueError."""
    reference = options.beside or settings.baseline
    if reference is None:
        raise ValueError(
            "the reference is missing: name the arm to compare with, or set `baseline` in the configuration"
        )
    for option, arm in (("--challenger", options.challenger), ("--beside", reference)):
        if arm not in settings.actions:
            raise ValueError(f"{option} {arm}: no such arm{did_you_mean(arm, settings.actions)}")
    if options.challenger == reference:
        raise ValueError(f"--challenger {reference}: it is the reference, and another arm was expected")
    return options.challenger, reference


def _read_log(options: PairsOptions, settings: "AppConfig") -> PairsVerdict:
    """Return the verdict of the pairs of the log."""
    challenger, reference = _choose_arms(options, settings)
    digest, stored = read_logged_pairs(settings, challenger, reference)
    draws = PairDraws(sizes=(len(stored),), seed=None, drawn=len(stored))
    described = _describe(options, challenger, reference)
    return make_verdict(
        draws,
        stored,
        options.margin / 100.0,
        [EVERYTHING],
        source=name_log(settings),
        digest=digest,
        **described,
    )


def _describe(options: PairsOptions, challenger: str, reference: str) -> dict[str, Any]:
    names = {"challenger": challenger, "reference": reference}
    return {**names, "judge": options.judge, "by": options.by}


def _ask(options: PairsOptions, path: Path, settings: "AppConfig") -> PairsVerdict:
    """Return the verdict of pairs of requests of a file, which are asked now or were before."""
    settings = settings.resolve_places()
    challenger, reference = _choose_arms(options, settings)
    if options.judge not in settings.models:
        known = did_you_mean(options.judge, settings.models)
        raise ValueError(f"--judge {options.judge}: no language model of that name{known}")
    requests = read_requests(path, options.by, settings.limits.question_chars)
    for why, n in requests.left_out.items():
        errors.print(f"{n:,} lines are left out: they {why}.", **PLAIN)
    if options.ask_labels:
        require_new(options.labels_path)  # before anything is paid for
    with progress(errors) as on_progress:
        found = run_pairs(
            settings,
            requests,
            challenger=challenger,
            reference=reference,
            model=options.judge,
            seed=options.seed,
            most=options.pairs,
            budget=options.budget,
            margin=options.margin / 100.0,
            on_progress=on_progress,
        )
    if found.resumed:
        errors.print(f"{found.resumed:,} pairs were there already.", **PLAIN)
    if found.stopped == "budget":
        errors.print(f"The budget of ${options.budget:g} allows no further pair.", style="yellow", **PLAIN)
    if found.asked and not any(any(one.pair.usd) for one in found.asked):
        errors.print(FREE, style="yellow", **PLAIN)
    if options.ask_labels:
        n = write_labels(found.asked, options.seed, options.ask_labels, options.labels_path)
        errors.print(
            f"{options.labels_path}: set `better` of its {n} pairs to first, second or equal. Then repeat "
            f"the command with --labels {options.labels_path} instead of --ask-labels.",
            **PLAIN,
        )
    return _state(options, path, requests, found, challenger, reference)


def _state(
    options: PairsOptions,
    path: Path,
    requests: RequestFile,
    found: Collected,
    challenger: str,
    reference: str,
) -> PairsVerdict:
    draws, stored = found.draws, [one.pair for one in found.asked]
    if options.labels is not None:
        draws, stored = label_pairs(draws, stored, read_labels(options.labels))
    if options.outcomes is not None:
        pairs = (replace(one, pair=pair) for one, pair in zip(found.asked, stored, strict=True))
        arms, classes = (challenger, reference), requests.classes
        lines = (line for one in pairs for line in one.list_outcomes(arms, classes[one.pair.group]))
        write_outcomes(options.outcomes, lines)
    return make_verdict(
        draws,
        stored,
        options.margin / 100.0,
        requests.classes,
        source=path.name[:NAME_CHARS],
        digest=requests.digest,
        **_describe(options, challenger, reference),
    )


def verify_verdict(path: Path) -> None:
    """Compute a verdict again from its pairs, and print whether it is the same; exit with 1 if it differs."""
    verdict = read_verdict(path)
    differences = verify_pairs(verdict)
    for difference in differences:
        errors.print(difference, style="red", **PLAIN)
    if differences:
        errors.print(f"{path} differs from what its pairs give.", style="red", **PLAIN)
        raise typer.Exit(1)
    console.print(f"match: {len(verdict.pairs):,} pairs give what {path} states.", **PLAIN)
    _print(verdict)

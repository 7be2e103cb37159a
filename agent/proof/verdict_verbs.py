"""The part of `prove` that compares two arms by pairs."""

from pathlib import Path
from typing import TYPE_CHECKING

from armwise.agent.cli.console import PLAIN, errors, progress
from armwise.agent.cli.options import open_config, with_log
from armwise.agent.proof.labels import label_pairs, read_labels, require_new, write_labels
from armwise.agent.proof.pairs import (
    EVERYTHING,
    Collected,
    read_logged_pairs,
    read_requests,
    run_pairs,
)
from armwise.agent.proof.traffic import NAME_CHARS, name_log
from armwise.agent.proof.verdict import PairDraws, PairsVerdict, make_verdict
from armwise.arms.lab.portfolio.outcomes import write_outcomes
from armwise.arms.suggestions import did_you_mean

if TYPE_CHECKING:
    from armwise.agent.config import AppConfig

FREE = (
    "By the prices of the configuration, these models are free, so --budget limits nothing. Set "
    "`usd_per_kilotoken_in` and `usd_per_kilotoken_out` if one of them is not."
)


def prove_pairs(
    requests: Path | None,
    config: Path,
    *,
    challenger: str,
    beside: str | None,
    judge: str,
    most: int,
    budget: float,
    by: str,
    each: str,
    margin: float,
    seed: int,
    labels: Path | None,
    ask_labels: int,
    labels_path: Path,
    outcomes: Path | None,
) -> PairsVerdict:
    """Compare two arms by pairs: of a file of requests, or, without one, those of the log.

    Args:
        requests: File of requests, which are asked now or were before.
        config: The configuration.
        challenger: The arm that may take over.
        beside: The arm that it is compared with; None: the baseline.
        judge: Name of the language model that judges.
        most: Most pairs.
        budget: Most dollars.
        by: Field that names the class of a request; empty: none does.
        each: Field that names its conversation: one request of each is drawn; empty: all count.
        margin: Largest loss that is accepted, in points of 100.
        seed: Seed of the draws.
        labels: File with labels.
        ask_labels: Number of pairs to write to a file to fill in.
        labels_path: That file.
        outcomes: File for the outcomes of both arms.

    Raises:
        ValueError: An option is wrong, an arm is unknown, or there is no pair.
    """
    if most < 1 or budget < 0.0 or not 0.0 <= margin <= 100.0 or ask_labels < 0:
        raise ValueError(
            "--pairs of 1 or more, --budget of 0 or more, --margin from 0 to 100 and --ask-labels of 0 or "
            "more were expected"
        )
    if requests is None and (by or each or labels or ask_labels or outcomes):
        raise ValueError("--by, --each, --labels, --ask-labels and --outcomes need a file of requests")
    settings = with_log(config) if requests is None else open_config(config, without=["router"])
    reference = _choose_reference(settings, challenger, beside)
    described = {"challenger": challenger, "reference": reference, "judge": judge, "by": by, "each": each}
    if requests is None:
        digest, pairs = read_logged_pairs(settings, challenger, reference)
        draws = PairDraws(sizes=(len(pairs),), seed=None, drawn=len(pairs))
        named = {"source": name_log(settings), "digest": digest}
        return make_verdict(draws, pairs, margin / 100.0, [EVERYTHING], **named, **described)
    settings = settings.resolve_places()
    if judge not in settings.models:
        known = did_you_mean(judge, settings.models)
        raise ValueError(f"--judge {judge}: no language model of that name{known}")
    file = read_requests(requests, by, settings.limits.question_chars, each, seed)
    for why, n in file.left_out.items():
        errors.print(f"{n:,} lines are left out: they {why}.", **PLAIN)
    if ask_labels:
        require_new(labels_path)  # before anything is paid for
    with progress(errors) as on_progress:
        found = run_pairs(
            settings,
            file,
            challenger=challenger,
            reference=reference,
            model=judge,
            seed=seed,
            most=most,
            budget=budget,
            margin=margin / 100.0,
            on_progress=on_progress,
        )
    _explain(found, budget)
    if ask_labels:
        n = write_labels(found.draws, found.asked, ask_labels, labels_path)
        errors.print(
            f"{labels_path}: set `better` of its {n} pairs to first, second or equal. Then repeat the "
            f"command with --labels {labels_path} instead of --ask-labels.",
            **PLAIN,
        )
    draws, pairs = found.draws, [one.pair for one in found.asked]
    if labels is not None:
        draws, pairs = label_pairs(draws, pairs, read_labels(labels))
    if outcomes is not None:
        asked = (one.model_copy(update={"pair": pair}) for one, pair in zip(found.asked, pairs, strict=True))
        arms = challenger, reference
        write_outcomes(
            outcomes,
            (line for one in asked for line in one.list_outcomes(arms, file.classes[one.pair.group])),
        )
    named = {"source": requests.name[:NAME_CHARS], "digest": file.digest}
    return make_verdict(draws, pairs, margin / 100.0, file.classes, **named, **described)


def _explain(found: Collected, budget: float) -> None:
    if found.resumed:
        errors.print(f"{found.resumed:,} pairs were there already.", **PLAIN)
    if found.beyond_budget:
        errors.print(f"The budget of ${budget:g} allows no further pair.", style="yellow", **PLAIN)
    if found.asked and not any(any(one.pair.usd) for one in found.asked):
        errors.print(FREE, style="yellow", **PLAIN)


def _choose_reference(settings: "AppConfig", challenger: str, beside: str | None) -> str:
    reference = beside or settings.baseline
    if reference is None:
        raise ValueError(
            "the reference is missing: name the arm to compare with, or set `baseline` in the configuration"
        )
    for option, arm in (("--challenger", challenger), ("--beside", reference)):
        if arm not in settings.actions:
            raise ValueError(f"{option} {arm}: no such arm{did_you_mean(arm, settings.actions)}")
    if challenger == reference:
        raise ValueError(f"--challenger {reference}: it is the reference, and another arm was expected")
    return reference

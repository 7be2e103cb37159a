"""Train a relevance model: it learns which passages are gold."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import Field
from rich.console import Console
from rich.table import Table

from armwise.agent.config import AppConfig
from armwise.agent.lab.offline.labelled_data import (
    PLAIN,
    LabelledQuestions,
    Retrieved,
    print_foreign,
    select_arms,
)
from armwise.agent.lab.offline.training import (
    FoldedData,
    check_output,
    print_results,
)
from armwise.agent.routers import (
    RouterError,
    dataset,
    saved,
)
from armwise.arms.base import Progress
from armwise.arms.lab.portfolio import Outcomes
from armwise.arms.lab.relevance import Case, Examples, Fitting
from armwise.arms.relevance import RelevanceModel, write_model
from armwise.arms.retrievers import fuse
from armwise.arms.suggestions import select_names

ABOUT = "relevance.json"
"""File with settings, digests of the training questions, and figures on held-out questions."""

LEARNED, RRF, BEST, EVERY = "learned fusion", "rrf of all", "best arm a question", "every passage found"


class RelevanceTraining(FoldedData):
    """Training data of a relevance model, and its settings."""

    fitting: Fitting = Field(default=Fitting(), description="How the model is fitted.")


@dataclass(frozen=True, slots=True)
class RelevanceValidation:
    """The recall of rankings on held-out questions.

    Attributes:
        questions: Number of questions.
        k: Passages of a ranking.
        auc: Probability that a gold passage has a higher predicted relevance than another passage.
        recall: Mean share of the gold passages among the first k, by ranking.
        complete: Share of questions with all gold passages among the first k, by ranking.
    """

    questions: int
    k: int
    auc: float
    recall: Mapping[str, float]
    complete: Mapping[str, float]

    def table(self) -> Table:
        """Return the results as a table."""
        table = Table(title=f"{self.questions:,} questions that were held out")
        for column in ("", f"recall@{self.k}", "all found"):
            table.add_column(column, justify="right" if column else "left")
        for name, recall in self.recall.items():
            style = "bold" if name == LEARNED else None
            table.add_row(name, f"{recall:.4f}", f"{self.complete[name]:.4f}", style=style)
        return table

    def conclusion(self) -> str:
        """Return a summary in one line."""
        return f"AUC of the relevance of a passage: {self.auc:.4f}"


def train_relevance(settings: RelevanceTraining, console: Console, on_progress: Progress) -> RelevanceModel:
    """Train a relevance model, write it to `settings.output`, print its validation, and return it.

    Args:
        settings: The data, settings of the model, and the output.
        console: Where the report goes.
        on_progress: Called with the progress.

    Raises:
        ValueError: Outcomes or questions are invalid; subclasses distinguish these.
        CorpusError: The corpus cannot be read.
    """
    check_output(settings.output)
    outcomes = with_gold(settings, settings.arms)
    cases, foreign = read_cases(outcomes, settings.config.resolve_places(), on_progress)
    print_foreign(foreign, settings.config, console)
    parts = settings.parts([case.question for case in cases])
    examples = Examples.from_cases(cases, settings.fitting, on_progress)
    relevance = examples.out_of_fold(parts, on_progress)
    validated = validate_relevance(cases, relevance, examples.k)
    model = examples.fit()
    write_model(settings.output, model)
    about: dict[str, Any] = {
        "fitting": settings.fitting.model_dump(),
        "questions": len(cases),
        "inputs": settings.digests(),
        "held_out": validated,
        "trained_on": sorted({digest_of_text(case.question) for case in cases}),
    }
    saved.write_files(settings.output, {ABOUT: orjson.dumps(about, option=orjson.OPT_INDENT_2)})
    print_results(validated, console, "no question was held out")
    console.print(
        f"relevance on {len(cases):,} questions and {len(outcomes.arms)} arms, written to {settings.output}",
        **PLAIN,
    )
    members = ", ".join(arm for arm in outcomes.arms if any(case.found.get(arm) for case in cases))
    arm = f"{{kind: learned_fusion, params: {{arms: [{members}], model: {settings.output.absolute()}}}}}"
    console.print(f"serve it as an arm   {arm}", **PLAIN)
    return model


def digest_of_text(text: str) -> str:
    """Return the digest by which `relevance.json` lists a training question."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def read_trained_on(folder: Path) -> frozenset[str]:
    """Return the digests of a model's training questions; empty: the model has no record of them.

    Raises:
        RouterError: The record is damaged.
    """
    path = folder / ABOUT
    if not path.exists():
        return frozenset()
    try:
        return frozenset(orjson.loads(saved.read_file(folder, ABOUT))["trained_on"])
    except RouterError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RouterError(f"{path} is damaged: {error!r}; train the model again") from None


def with_gold(labelled: LabelledQuestions, arms: Sequence[str]) -> Outcomes:
    """Read the outcomes of some arms on the questions whose gold passages are known. Raises ValueError."""
    outcomes = labelled.read()
    names = select_names(outcomes.arms, arms, "no arm of the outcomes", RouterError)
    has_gold = [bool(question.gold_ids) for question in outcomes.questions]
    if not any(has_gold):
        queries = labelled.queries
        remedy = "give them with --queries" if queries is None else f"add them to {queries}, which has none"
        raise RouterError(f"relevance is learned from the gold_ids of questions: {remedy}")
    return select_arms(outcomes.only(has_gold), dataset.positions(outcomes.arms, names))


def read_cases(outcomes: Outcomes, config: AppConfig, on_progress: Progress) -> tuple[list[Case], int]:
    """Return the questions of outcomes with the passages of each arm.

    Args:
        outcomes: Outcomes with passages.
        config: Configuration with defaults resolved, which has the corpus.
        on_progress: Called with the progress.

    Returns:
        The questions, and the number of passages of another corpus, which are left out.

    Raises:
        RouterError: The outcomes have no passages, or only passages of another corpus.
        CorpusError: The corpus cannot be read.
    """
    retrieved = Retrieved.look_up(outcomes, config, on_progress)
    if retrieved.corpus is None:
        raise RouterError("a relevance model scores passages, but the outcomes have no passages")
    cases = [
        Case(question.text, dict(zip(outcomes.arms, row, strict=True)), frozenset(question.gold_ids))
        for question, row in zip(outcomes.questions, retrieved.rankings, strict=True)
    ]
    return cases, retrieved.foreign


def validate_relevance(
    cases: Sequence[Case], relevance: Sequence[Mapping[str, float] | None], k: int
) -> RelevanceValidation | None:
    """Compare the passages of the highest relevance with those of each arm and of rank fusion.

    Args:
        cases: The questions.
        relevance: Out-of-fold relevance of each question's passages; None: the question is left out.
        k: Passages of a ranking.

    Returns:
        None: all questions are left out.
    """
    pairs = [
        (case, predicted) for case, predicted in zip(cases, relevance, strict=True) if predicted is not None
    ]
    if not pairs:
        return None
    arms = dict.fromkeys(arm for case in cases for arm, passages in case.found.items() if passages)
    shares: dict[str, list[float]] = {name: [] for name in (*arms, RRF, LEARNED, BEST, EVERY)}
    for case, predicted in pairs:
        rankings = [case.found.get(arm, ()) for arm in arms]
        single = [recall([passage.id for passage in passages[:k]], case.gold) for passages in rankings]
        for arm, share in zip(arms, single, strict=True):
            shares[arm].append(share)
        shares[RRF].append(recall([passage.id for passage in fuse(rankings)[:k]], case.gold))
        shares[LEARNED].append(recall(top(predicted, k), case.gold))
        shares[BEST].append(max(single))
        shares[EVERY].append(recall(predicted, case.gold))
    every = [(value, name in case.gold) for case, predicted in pairs for name, value in predicted.items()]
    return RelevanceValidation(
        len(pairs),
        k,
        auc(np.array([value for value, _ in every]), np.array([gold for _, gold in every])),
        {name: float(np.mean(values)) for name, values in shares.items()},
        {name: float(np.mean(np.array(values) == 1.0)) for name, values in shares.items()},
    )


def recall(ids: Collection[str], gold: Collection[str]) -> float:
    """Return the share of the gold passages that are in `ids`.

    >>> recall(["a", "b"], {"a", "c"})
    0.5
    """
    return len(set(ids) & set(gold)) / len(gold)


def top(relevance: Mapping[str, float], k: int) -> list[str]:
    """Return the ids of the k passages with the highest relevance, ties broken by id.

    >>> top({"b": 0.5, "a": 0.5, "c": 0.7}, 2)
    ['c', 'a']
    """
    return sorted(relevance, key=lambda name: (-relevance[name], name))[:k]


def auc(values: dataset.Floats, positive: NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve: how often a positive has a higher value than a negative.

    >>> auc(np.array([0.1, 0.4, 0.4]), np.array([False, False, True]))
    0.75
    """
    from scipy.stats import rankdata

    n = int(positive.sum())
    above = rankdata(values)[positive].sum() - n * (n + 1) / 2
    return float(above / max(1, n * (len(values) - n)))

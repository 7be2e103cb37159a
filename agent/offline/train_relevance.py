"""Train a model of the relevance of passages, validate it on held-out questions, and save it to a folder.

outcomes, gold_ids --> examples --fit--> model --> recall of the fused list on held-out questions
                          '------fit------> the model that is kept, of all questions

relevance.model   the trees, with the names of their columns and a digest
relevance.json    what they were trained on, with digests of the questions, and figures on held-out ones
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import Field
from rich.console import Console
from rich.table import Table
from scipy.stats import rankdata

from agent.config import AppConfig
from agent.offline.labelled_data import of_arms, read_labelled
from agent.offline.score import read_questions
from agent.offline.train_router import PLAIN, FromOutcomes, check_output
from agent.routers import RouterError, dataset, saved
from arms.base import Progress
from arms.corpus import ingest
from arms.models import digest_of as digest_of_file
from arms.portfolio import Outcomes
from arms.relevance import Case, Examples, Fitting, RelevanceModel, write_model
from arms.retrievers import fusion
from arms.suggestions import select_names

ABOUT = "relevance.json"

LEARNED, RRF, BEST, EVERY = "learned fusion", "rrf of all", "best arm a question", "every passage found"

FUSION_CONSTANT = 60.0


class RelevanceTraining(FromOutcomes):
    """What a model of relevance is trained on."""

    fitting: Fitting = Field(default=Fitting(), description="How it is fitted.")


@dataclass(frozen=True, slots=True)
class RelevanceValidation:
    """The recall of rankings on held-out questions.

    Attributes:
        questions: Number of questions.
        k: Passages of a ranking.
        auc: Probability that a gold passage has a higher relevance than another one.
        recall: Mean share of the gold passages among the first k, by ranking.
        complete: Share of questions with all gold passages among them, by ranking.
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

    def show(self, console: Console) -> None:
        """Print the results."""
        console.print(self.table())
        console.print(f"AUC of the relevance of a passage: {self.auc:.4f}", **PLAIN)


def run(settings: RelevanceTraining, console: Console, on_progress: Progress) -> RelevanceModel:
    """Train a model of relevance, write it to `settings.output`, print its validation, and return it.

    Args:
        settings: What to train.
        console: Where the report goes.
        on_progress: Called with the progress.

    Raises:
        ValueError: Outcomes or questions do not fit; a subclass of it says which.
        CorpusError: The corpus cannot be read.
    """
    check_output(settings.output)
    outcomes = labelled_passages(settings.outcomes, settings.queries, settings.arms)
    cases, foreign = cases_of(outcomes, settings.config.settled(), on_progress)
    if foreign:
        corpus = settings.config.corpus.name
        console.print(f"{foreign:,} passages not of corpus {corpus!r} count as not found", **PLAIN)
    parts = settings.parts([case.question for case in cases])
    examples = Examples.of(cases, settings.fitting, on_progress)
    relevance = examples.out_of_fold(parts, on_progress)
    validated = validate_relevance(cases, relevance, examples.k)
    model = examples.fit()
    write_model(settings.output, model)
    inputs = {str(path): digest_of_file(path) for path in (*settings.outcomes, settings.queries) if path}
    about: dict[str, Any] = {
        "fitting": settings.fitting.model_dump(),
        "questions": len(cases),
        "inputs": inputs,
        "held_out": validated and asdict(validated),
        "trained_on": sorted({digest_of_text(case.question) for case in cases}),
    }
    saved.write_files(settings.output, {ABOUT: orjson.dumps(about, option=orjson.OPT_INDENT_2)})
    if validated is None:
        console.print("not validated: no question was held out", **PLAIN)
    else:
        validated.show(console)
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


def trained_on(folder: Path) -> frozenset[str]:
    """Return the digests of a model's training questions; none for a model without a record of them.

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


def labelled_passages(paths: Sequence[Path], queries: Path | None, arms: Sequence[str]) -> Outcomes:
    """Read the outcomes of some arms on the questions whose gold passages are known. Raises ValueError."""
    questions = [] if queries is None else read_questions(queries)
    outcomes = read_labelled(paths, questions)
    asked = select_names(outcomes.arms, arms, "no arm of the outcomes", RouterError)
    known = [bool(question.gold_ids) for question in outcomes.questions]
    if not any(known):
        where = "give them with --queries" if queries is None else f"those of {queries} have none"
        raise RouterError(f"relevance is learned from the gold_ids of questions: {where}")
    return of_arms(outcomes.only(known), dataset.positions(outcomes.arms, asked))


def cases_of(outcomes: Outcomes, config: AppConfig, on_progress: Progress) -> tuple[list[Case], int]:
    """Return the questions of outcomes with what each arm found.

    Args:
        outcomes: With passages.
        config: Settled; names the corpus.
        on_progress: Called with the progress.

    Returns:
        The questions, and the number of passages that are not of the corpus, which count as not found.

    Raises:
        RouterError: No passage is of the corpus.
        CorpusError: The corpus cannot be read.
    """
    corpus = ingest(config.corpus.source, config.corpus_path, progress=on_progress)
    wanted = sorted({name for row in outcomes.passages for ids in row for name in ids or ()})
    at = corpus.known(wanted)
    if not at:
        found = f"such as {wanted[0]!r}, " if wanted else ""
        raise RouterError(
            f"none of the {len(wanted):,} passages of the outcomes, {found}is of corpus "
            f"{config.corpus.name!r}"
        )
    passages = {one.id: one for one in corpus.passages(at.values())}
    cases = [
        Case(
            question.text,
            {
                arm: [passages[name] for name in ids or () if name in passages]
                for arm, ids in zip(outcomes.arms, row, strict=True)
            },
            frozenset(question.gold_ids),
        )
        for question, row in zip(outcomes.questions, outcomes.passages, strict=True)
    ]
    return cases, len(wanted) - len(at)


def validate_relevance(
    cases: Sequence[Case], relevance: Sequence[Mapping[str, float] | None], k: int
) -> RelevanceValidation | None:
    """Compare the passages of the highest relevance with those of each arm and of rank fusion.

    Args:
        cases: The questions.
        relevance: Relevance of the passages of each question, by a model not fitted to it; None to omit it.
        k: Passages of a ranking.

    Returns:
        None if all are left out.
    """
    asked = [(case, known) for case, known in zip(cases, relevance, strict=True) if known is not None]
    if not asked:
        return None
    arms = dict.fromkeys(arm for case in cases for arm, found in case.found.items() if found)
    shares: dict[str, list[float]] = {name: [] for name in (*arms, RRF, LEARNED, BEST, EVERY)}
    for case, known in asked:
        found = [case.found.get(arm, ()) for arm in arms]
        single = [recall([one.id for one in passages[:k]], case.gold) for passages in found]
        for arm, share in zip(arms, single, strict=True):
            shares[arm].append(share)
        shares[RRF].append(recall([one.id for one in fusion.fuse(found, FUSION_CONSTANT)[:k]], case.gold))
        shares[LEARNED].append(recall(top(known, k), case.gold))
        shares[BEST].append(max(single))
        shares[EVERY].append(recall(known, case.gold))
    every = [(value, name in case.gold) for case, known in asked for name, value in known.items()]
    return RelevanceValidation(
        len(asked),
        k,
        auc(np.array([value for value, _ in every]), np.array([gold for _, gold in every])),
        {name: float(np.mean(values)) for name, values in shares.items()},
        {name: float(np.mean(np.array(values) == 1.0)) for name, values in shares.items()},
    )


def recall(ids: Collection[str], gold: Collection[str]) -> float:
    """Return the share of the gold passages among some.

    >>> recall(["a", "b"], {"a", "c"})
    0.5
    """
    return len(set(ids) & set(gold)) / len(gold)


def top(relevance: Mapping[str, float], k: int) -> list[str]:
    """Return the ids of the k passages of the highest relevance, ties broken by id.

    >>> top({"b": 0.5, "a": 0.5, "c": 0.7}, 2)
    ['c', 'a']
    """
    return sorted(relevance, key=lambda name: (-relevance[name], name))[:k]


def auc(values: dataset.Floats, positive: NDArray[np.bool_]) -> float:
    """Return the area under the curve: how often a positive has a higher value than a negative.

    >>> auc(np.array([0.1, 0.4, 0.4]), np.array([False, False, True]))
    0.75
    """
    n = int(positive.sum())
    above = rankdata(values)[positive].sum() - n * (n + 1) / 2
    return float(above / max(1, n * (len(values) - n)))

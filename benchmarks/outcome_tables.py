"""Write nine tables of outcomes as CSV files, `question` and one column of rewards an arm, for `learners.py`.

    python benchmarks/outcome_tables.py FOLDER TABLES
    for t in TABLES/*.csv; do python benchmarks/learners.py --outcomes $t --seeds 8 --json $t.json; done

    qa             11 retrievers: F1 of a language model's answer
    qa-cost        the same less .02 a step and at most .03 for the tokens of the prompt
    mba            3 ways to answer of MBA-RAG: correct or not, less .02 a step
    routellm       2 language models of RouteLLM: correct or not, the dear one less .1
    routerdc       7 language models of RouterDC: score
    routerbench    11 language models of RouterBench: score
    feb4rag        16 sources of FeB4RAG: graded relevance
    paretobandit   4 language models of ParetoBandit: score of a judge
    llmrouter      9 language models of LLMRouter: score

FOLDER holds `qa/`, `mba_outcomes/`, `router_outcomes/` and `outside/`. Of a longer table 4,300 questions are
kept.
"""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from routing_data import csv_rows, json_lines, qa_outcomes

MOST = 4300
"""Most questions of a table."""

STEP, TOKENS, DEAR = 0.02, 0.03, 0.1
"""What a step, the longest prompt, and an answer of the dear model cost in rewards."""

Table = tuple[Sequence[str], Sequence[str], NDArray[np.float64]]
"""Questions, names of arms, and rewards of shape (n, n_arms)."""


def _qa(folder: Path) -> Iterator[tuple[str, Table]]:
    every = qa_outcomes(folder / "qa")
    texts, f1 = [question.text for question in every.questions], every.scores["f1"]
    tokens = every.costs["prompt_tokens"]
    yield "qa", (texts, every.arms, f1)
    yield "qa-cost", (texts, every.arms, f1 - STEP * every.costs["steps"] - TOKENS * tokens / tokens.max())


def _models(folder: Path) -> Iterator[tuple[str, Table]]:
    rows = [row for row in csv_rows(folder / "mba_outcomes/outcomes.csv.gz") if row["question"]]
    arms = ["none", "single", "multi"]
    reward = [[float(row[f"correct_{arm}"]) - STEP * k for k, arm in enumerate(arms)] for row in rows]
    yield "mba", ([row["question"] for row in rows], arms, np.array(reward))
    rows = [*csv_rows(folder / "router_outcomes/routellm_mixtral_vs_gpt4.csv.gz")]
    reward = [[float(row["correct_mixtral"]), float(row["correct_gpt4"]) - DEAR] for row in rows]
    yield "routellm", ([row["question"] for row in rows], ["mixtral", "gpt4"], np.array(reward))
    for name, file in (("routerdc", "routerdc_split2_model7"), ("routerbench", "routerbench_zs_sample")):
        rows = [*csv_rows(folder / f"router_outcomes/{file}.csv.gz")]
        arms = [column.removeprefix("score|") for column in rows[0] if column.startswith("score|")]
        rows = [row for row in rows if all(row[f"score|{arm}"] for arm in arms)]
        reward = [[float(row[f"score|{arm}"]) for arm in arms] for row in rows]
        yield name, ([row["question"] for row in rows], arms, np.array(reward))


def _outside(folder: Path) -> Iterator[tuple[str, Table]]:
    for name in ("feb4rag", "paretobandit", "llmrouter"):
        rows = [*json_lines(folder / f"outside/{name}.jsonl.gz")]
        arms = sorted(rows[0]["rewards"])
        reward = np.array([[row["rewards"][arm] for arm in arms] for row in rows], dtype=np.float64)
        yield name, ([row["question"] for row in rows], arms, reward)


def main(
    folder: Annotated[Path, typer.Argument(help="Holds the data.")],
    to: Annotated[Path, typer.Argument(help="Folder of the tables.")],
) -> None:
    """Write the tables."""
    to.mkdir(parents=True, exist_ok=True)
    for tables in (_qa(folder), _models(folder), _outside(folder)):
        for name, (questions, arms, reward) in tables:
            kept = np.sort(np.random.default_rng(0).permutation(len(questions))[:MOST])
            with (to / f"{name}.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["question", *arms])
                writer.writerows([questions[at], *(f"{value:.6g}" for value in reward[at])] for at in kept)
            print(f"{name}: {len(kept)} questions, {len(arms)} arms")


if __name__ == "__main__":
    typer.run(main)

"""Sixteen sources with a sentence about each: what descriptions are worth before there is feedback.

    python benchmarks/sources_feb4rag.py DATA [--orders 20]

DATA holds `outside/feb4rag.jsonl.gz`: 409 questions, and what people said of the passages that sixteen search
engines found for them (FeB4RAG). A question is asked once, of one source, and the reward of that source is
learned. What is known at first is how similar a question is to the description of each source. A cell is the
mean reward, exploration included, of the first 100 questions, of all and of the last third.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.box import MARKDOWN
from rich.console import Console
from rich.progress import track
from rich.table import Table
from routing_data import json_lines
from routing_online import DENSE
from sources import ENCODER, POLICIES, parts, play
from threadpoolctl import threadpool_limits

from armwise.agent.policies import describe
from armwise.arms.models import build_embedder

DESCRIPTIONS: Mapping[str, str] = {
    "arguana": "Arguments and counterarguments of debates.",
    "climate-fever": "Encyclopedia articles to check claims about the climate and its change.",
    "dbpedia-entity": "Abstracts of encyclopedia articles about people, places, works and things.",
    "fever": "Introductions of encyclopedia articles to check claims of facts.",
    "fiqa": "Posts and answers about personal finance, investing, taxes and money.",
    "hotpotqa": "First paragraphs of encyclopedia articles about people, films, bands and places.",
    "msmarco": "Passages of web pages that answer everyday questions to a search engine.",
    "nfcorpus": "Abstracts of medical papers about nutrition, diet, food and health.",
    "nq": "Encyclopedia passages that answer questions to a search engine.",
    "robust04": "Newspaper articles of the nineties on politics, crime, economy and the world.",
    "scidocs": "Abstracts of scientific papers, mostly of computer science.",
    "scifact": "Abstracts of biomedical papers to check scientific claims.",
    "signal1m": "Short messages of a social network about news.",
    "trec-covid": "Scientific papers about the corona virus and COVID-19.",
    "trec-news": "Newspaper articles and blog posts of recent years on politics, sports and life.",
    "webis-touche2020": "Arguments for and against controversial questions.",
}
"""A sentence on what each collection holds, from its name and documentation, not from the questions."""

FIRST = 100


def main(
    data: Annotated[Path, typer.Argument(help="Holds `outside/`.")],
    orders: Annotated[int, typer.Option(min=1, help="Orders of the questions.")] = 20,
) -> None:
    """Play the policies from nothing and from descriptions, and print the table."""
    threadpool_limits(1)  # matrices of a decision are small
    lines: list[Mapping[str, Any]] = [*json_lines(data / "outside" / "feb4rag.jsonl.gz")]
    names = tuple(DESCRIPTIONS)
    reward = np.array([[line["rewards"][name] for name in names] for line in lines])
    embedder = build_embedder(ENCODER)
    vectors = embedder.encode_queries([line["question"] for line in lines])
    similar = vectors @ embedder.encode_passages([*DESCRIPTIONS.values()]).T
    about = {name: {} for name in names}
    plain = [
        describe(line["question"], DENSE, embedding=vector, arms=about)
        for line, vector in zip(lines, vectors, strict=True)
    ]
    known = [
        context.with_scores(dict(zip(names, row.tolist(), strict=True)))
        for context, row in zip(plain, similar, strict=True)
    ]
    table = Table("", f"first {FIRST}", "all", "last third", box=MARKDOWN)
    rng = np.random.default_rng(0)
    shuffled = np.stack([rng.permutation(len(lines)) for _ in range(orders)])
    table.add_row("a source at random", *parts(reward.mean(axis=1)[shuffled], FIRST))
    table.add_row(
        "the best source in hindsight", *parts(reward[:, reward.mean(axis=0).argmax()][shuffled], FIRST)
    )
    chosen = reward[np.arange(len(lines)), similar.argmax(axis=1)]
    table.add_row("the most similar description, which learns nothing", *parts(chosen[shuffled], FIRST))
    for start, contexts in {"nothing": plain, "descriptions": known}.items():
        for name, spec in POLICIES.items():
            seeds = track(range(orders), f"{name} from {start}")
            table.add_row(
                f"{name} from {start}",
                *parts(np.stack([play(spec, contexts, reward, names, s) for s in seeds]), FIRST),
            )
    table.add_row("the right source", *parts(reward.max(axis=1)[shuffled], FIRST))
    Console(width=110).print(table)


if __name__ == "__main__":
    typer.run(main)

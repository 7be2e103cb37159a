"""Which source to ask, in a service: what `sources.py` plays by itself, over HTTP.

    python benchmarks/sources_live.py write DATA FOLDER      # the corpora, the questions and sources.yaml
    cd FOLDER
    armwise serve --single-process -c serve_config.yaml      # made questions, indexes and a router first
    armwise lab simulate questions.jsonl.gz --endpoint retrieve --metric recall=recall --concurrency 1
    python benchmarks/sources_live.py read FOLDER

DATA holds `qa/`. Each of six corpora is a source with an index of words; an arm searches one of them, once. A
reward is the share of the gold passages among four, posted as feedback after each question.
"""

import gzip
import shutil
from pathlib import Path
from typing import Annotated

import numpy as np
import orjson
import typer
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table
from routing_data import json_lines
from sources import write_corpora

SETTINGS = Path(__file__).with_name("sources.yaml")

PART = 300
"""Questions of a part of the table."""

app = typer.Typer(no_args_is_help=True)


@app.command()
def write(
    data: Annotated[Path, typer.Argument(help="Holds `qa/`.")],
    folder: Annotated[Path, typer.Argument(help="Where corpora, questions and the configuration go.")],
) -> None:
    """Write what the service and the simulation read."""
    folder.mkdir(parents=True, exist_ok=True)
    write_corpora(data, folder)
    questions = [line for line in json_lines(data / "qa" / "queries.jsonl.gz") if line["gold_ids"]]
    (folder / "questions.jsonl.gz").write_bytes(gzip.compress(b"\n".join(map(orjson.dumps, questions))))
    shutil.copy(SETTINGS, folder / "serve_config.yaml")


@app.command()
def read(
    folder: Annotated[Path, typer.Argument(help="In which `armwise lab simulate` ran.")],
) -> None:
    """Print the mean recall, and how often the right source was asked."""
    gold = {line["id"]: line["gold_ids"] for line in json_lines(folder / "questions.jsonl.gz")}
    turns = [orjson.loads(line) for line in (folder / "simulation/turns.jsonl").read_bytes().splitlines()]
    recall = np.array([turn["metrics"]["recall"] for turn in turns])
    right = np.array([any(name.startswith(f"{t['drawn']}/") for name in gold[t["id"]]) for t in turns])
    table = Table("questions", "gold passages found", "95 % interval", "right source", box=MARKDOWN)
    for title, part in {
        f"first {PART}": slice(PART),
        f"last {PART}": slice(-PART, None),
        f"all {len(turns):,}": slice(None),
    }.items():
        mean, error = recall[part].mean(), recall[part].std() / np.sqrt(len(recall[part]))
        interval = f"{mean - 1.96 * error:.3f} to {mean + 1.96 * error:.3f}"
        table.add_row(title, f"{mean:.3f}", interval, f"{right[part].mean():.3f}")
    Console().print(table)


if __name__ == "__main__":
    app()

"""A service that chooses among fourteen pipelines of two language models, from labels to a promotion.

    python benchmarks/pipelines.py MODEL.gguf [--output pipelines] [--labelled 40] [--rounds 2]

`examples/pipelines.yaml` is served, with MODEL.gguf as `large`. Some questions are labelled: every pipeline
answers them, and a portfolio is chosen from the labels within dollars. The others are asked of a service that
knows nothing, round by round, and each answer is judged by its F1. The log is replayed, a warm start makes a
candidate of the labels, and the gate judges it; where the gate holds it, an operator promotes it. The same
questions are then asked once more. Every step is a command of `armwise`, which is printed; what a step has
left is not made again.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
import typer
import yaml

from agent.client import Client
from agent.simulation import shuffled
from arms.portfolio import Outcomes, read_outcomes
from examples.demo.service import armwise, serving

CONFIG = Path("examples/pipelines.yaml")
QUESTIONS = Path("examples/stdlib_questions.jsonl")
URL = "http://127.0.0.1:8020"


class Run:
    """The folder of a run, and its commands."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder.absolute()
        self.home = self.folder / "home"
        self.config = self.folder / "config.yaml"
        self.labelled, self.traffic = self.folder / "labelled.jsonl", self.folder / "traffic.jsonl"
        document = yaml.safe_load(CONFIG.read_text())
        document["http_options"]["port"] = int(URL.rpartition(":")[2])
        args = document["applications"][0]["args"]
        args["llms"]["large"]["model"] = str(model.absolute())
        args["warm_start"]["sources"]["labels"]["path"] = str(self.folder / "labels")
        self.args: dict[str, Any] = args
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config.write_text(yaml.safe_dump(document, sort_keys=False))

    def split(self, labelled: int) -> None:
        """Write the questions to label, and those to ask."""
        lines = shuffled(QUESTIONS.read_bytes().splitlines(keepends=True), 0)
        self.labelled.write_bytes(b"".join(lines[:labelled]))
        self.traffic.write_bytes(b"".join(lines[labelled:]))

    def armwise(self, *words: str, leaves: str = "", allowed: tuple[int, ...] = (0,)) -> int:
        """Run a command, unless what it leaves is there."""
        if leaves and (self.folder / leaves).exists():
            return 0
        print(f"$ armwise {shlex.join(words)}", flush=True)
        environment = {**os.environ, "ARMWISE_HOME": str(self.home), "COLUMNS": "150"}
        done = subprocess.run(armwise(*words), env=environment, cwd=self.folder, check=False)
        if done.returncode not in allowed:
            sys.exit(f"armwise {words[0]} ended with {done.returncode}")
        return done.returncode

    def simulate(self, name: str, seed: int) -> None:
        """Ask the questions of the traffic in an order of its own, and send what the answers are worth."""
        words = ("--metric", "f1=f1", "--seed", str(seed), "--concurrency", "4", "--url", URL, "-o", name)
        self.armwise("simulate", str(self.traffic), *words, leaves=f"{name}/summary.json")

    def turns(self, name: str) -> list[dict[str, Any]]:
        """Return the turns of a simulation that have a reward."""
        rows = [orjson.loads(line) for line in (self.folder / name / "turns.jsonl").read_bytes().splitlines()]
        return [row for row in rows if row.get("reward") is not None]


def main(
    model: Annotated[Path, typer.Argument(help="A GGUF file: the larger language model.")],
    output: Annotated[Path, typer.Option(help="Folder of the run; continued where it is there.")] = Path(
        "pipelines"
    ),
    labelled: Annotated[int, typer.Option(min=10, help="Questions that are labelled.")] = 40,
    rounds: Annotated[int, typer.Option(min=1, help="Times that the others are asked before.")] = 2,
) -> None:
    """Label, choose, serve, learn, replay, warm-start, promote; then print the tables."""
    if not model.is_file():
        sys.exit(f"{model}: a GGUF file was expected")
    run = Run(output, model)
    run.split(labelled)
    config = ("-c", str(run.config))
    label = ("--queries", str(run.labelled), "--block", "4", "--workers", "1", "--at-once", "8")
    run.armwise("label", *label, "-o", "labels", *config, leaves="labels/manifest.json")
    run.armwise(
        "score", "--from-labels", "labels", "--measure", "f1", "-o", "scores", *config, leaves="scores"
    )
    run.armwise("portfolio", "scores", "--budget", "0.0001", "--cost", "usd", "--splits", "20")
    with serving(run.config, run.home, run.folder / "service.log", URL):
        cold = [f"cold{number}" for number in range(1, rounds + 1)]
        for number, name in enumerate(cold, start=1):
            run.simulate(name, number)
        run.armwise("replay", *config, "-o", "replay.json", leaves="replay.json")
        if not (run.folder / "warm").exists():
            run.armwise("warm-start", *config)
            promoted(run)
        run.simulate("warm", rounds + 1)
        run.armwise("replay", "--policy", "configured", "--policy", "uniform", *config)
    print(labels_table(run))
    print(traffic_table(run, [*cold, "warm"]))


def promoted(run: Run) -> None:
    """Promote the candidate of the warm start, where the gate has not done so."""
    with Client(URL) as client:
        newest = client.request("GET", "/v1/warm-starts", None)["warm_starts"][0]
    print(f"warm start {newest['id']}: {newest['status']}, candidate {newest['candidate']}", flush=True)
    if newest["status"] != "promoted":
        words = ("--reason", "labels of every pipeline", "--force", "--url", URL)
        run.armwise("promote", str(newest["candidate"]), *words)


def labels_table(run: Run) -> str:
    """What every pipeline is worth on the labelled questions."""
    outcomes: Outcomes = read_outcomes(run.folder / "labels")
    weight = run.args["reward"]["cost_weight"] * run.args["reward"]["cost"]["usd"]
    f1, usd = outcomes.scores["f1"], outcomes.costs["usd"]
    reward = f1 - weight * usd
    rows = ["| pipeline | F1 | USD for 1000 | reward |", "| --- | --- | --- | --- |"]
    rows += [
        f"| {outcomes.arms[at]} | {f1[:, at].mean():.3f} | {1000 * usd[:, at].mean():.3f} "
        f"| {reward[:, at].mean():+.3f} |"
        for at in np.argsort(-reward.mean(axis=0))
    ]
    best = reward.max(axis=1)
    rows.append(f"| the best for each question | | | {best.mean():+.3f} |")
    return "\n".join(rows)


def traffic_table(run: Run, names: list[str]) -> str:
    """What the traffic earned, by thirds of a round."""
    rows = [
        "| traffic | turns | F1 | USD for 1000 | reward | +- | large | most drawn |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in names:
        turns = run.turns(name)
        for third in range(3):
            part = turns[len(turns) * third // 3 : len(turns) * (third + 1) // 3]
            reward = np.array([turn["reward"] for turn in part])
            arms, counts = np.unique([turn["drawn"] for turn in part], return_counts=True)
            large = np.mean(["-large" in turn["drawn"] for turn in part])
            f1 = np.mean([turn["metrics"]["f1"] for turn in part])
            usd = 1000 * np.mean([turn["cost"]["usd"] for turn in part])
            half = 1.96 * reward.std(ddof=1) / len(part) ** 0.5
            rows.append(
                f"| {name}, third {third + 1} | {len(part)} | {f1:.3f} | {usd:.3f} | {reward.mean():+.3f} "
                f"| {half:.3f} | {large:.0%} | {arms[counts.argmax()]} ({counts.max() / len(part):.0%}) |"
            )
    return "\n".join(rows)


if __name__ == "__main__":
    typer.run(main)

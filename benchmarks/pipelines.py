"""A service that chooses among fourteen pipelines of two language models, from labels to a promotion.

    python benchmarks/pipelines.py MODEL.gguf [--output pipelines] [--labelled 40] [--rounds 2]

`examples/pipelines.yaml` is served, with MODEL.gguf as `large`. Some questions are labelled: every pipeline
answers them, and a portfolio is chosen from the labels within dollars. The others are asked of two services:

    cold    knows nothing, and learns round by round from the pipelines that it draws
    gate    draws each pipeline as often; a warm start makes a candidate of the labels, which takes half of
            the traffic as a canary until the gate lets that version through, and is then promoted

Each answer is judged by its F1, and both logs are replayed. Every step is a command of `armwise`, which is
printed; what a step has left is not made again.
"""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import httpx
import numpy as np
import orjson
import typer
import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from armwise.agent.client import Client
from armwise.agent.lab.simulation import shuffle
from armwise.arms.lab.portfolio import Outcomes, read_outcomes

CONFIG = Path("examples/pipelines.yaml")
QUESTIONS = Path("examples/stdlib_questions.jsonl")
URL = "http://127.0.0.1:8020"
ARMWISE = str(Path(sys.executable).with_name("armwise"))


class Run:
    """The folder of a run, and its commands.

    Args:
        folder: Of everything.
        model: The larger language model.
    """

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder.absolute()
        self.home = self.folder / "home"
        self.labelled, self.traffic = self.folder / "labelled.jsonl", self.folder / "traffic.jsonl"
        document = yaml.safe_load(CONFIG.read_text())
        document["http_options"]["port"] = int(URL.rpartition(":")[2])
        args = document["applications"][0]["args"]
        args["llms"]["large"]["model"] = str(model.absolute())
        args["warm_start"]["sources"]["labels"]["path"] = str(self.folder / "labels")
        self.args: dict[str, Any] = args
        self.home.mkdir(parents=True, exist_ok=True)
        self.config("cold").write_text(yaml.safe_dump(document, sort_keys=False))
        args["log_url"] = f"sqlite:///{self.home / 'gate.db'}"
        args["warm_start"]["policy"], args["policy"] = args["policy"], {"kind": "uniform"}
        self.config("gate").write_text(yaml.safe_dump(document, sort_keys=False))

    def config(self, service: str) -> Path:
        """The configuration of a service."""
        return self.folder / f"{service}.yaml"

    def split(self, labelled: int) -> None:
        """Write the questions to label, and those to ask."""
        lines = shuffle(QUESTIONS.read_bytes().splitlines(keepends=True), 0)
        self.labelled.write_bytes(b"".join(lines[:labelled]))
        self.traffic.write_bytes(b"".join(lines[labelled:]))

    def armwise(self, *words: str, leaves: str = "", may_fail: bool = False) -> bool:
        """Run a command, unless what it leaves is there; return whether it succeeded."""
        if leaves and (self.folder / leaves).exists():
            return True
        print(f"$ armwise {shlex.join(words)}", flush=True)
        environment = {**os.environ, "ARMWISE_HOME": str(self.home), "COLUMNS": "150"}
        done = subprocess.run([ARMWISE, *words], env=environment, cwd=self.folder, check=False)
        if done.returncode and not may_fail:
            sys.exit(f"armwise {shlex.join(words)} ended with {done.returncode}")
        return not done.returncode

    def simulate(self, name: str, seed: int) -> None:
        """Ask the questions of the traffic in an order of its own, and send what the answers are worth."""
        words = ("--metric", "f1=f1", "--seed", str(seed), "--concurrency", "4", "--url", URL, "-o", name)
        self.armwise("lab", "simulate", str(self.traffic), *words, leaves=f"{name}/summary.json")

    def replay(self, service: str, *policies: str, judged: str = "") -> None:
        """Print what policies would have earned on the log of a service; the gate's verdicts go to a file."""
        words = [word for policy in policies for word in ("--policy", policy)]
        gate = ("--gate", "-o", judged) if judged else ()
        self.armwise("replay", *words, *gate, "-c", str(self.config(service)), may_fail=bool(judged))

    def turns(self, name: str) -> list[dict[str, Any]]:
        """Return the turns of a simulation that have a reward."""
        rows = [orjson.loads(line) for line in (self.folder / name / "turns.jsonl").read_bytes().splitlines()]
        return [row for row in rows if row.get("reward") is not None]


@contextmanager
def serving(run: Run, service: str) -> Iterator[None]:
    """Run a service on Ray Serve, from when it is ready until the block is left."""
    command = [ARMWISE, "serve", "--ray", "--config", str(run.config(service))]
    environment = {**os.environ, "ARMWISE_HOME": str(run.home)}
    with (run.folder / f"{service}.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        while True:
            with suppress(httpx.HTTPError):
                if httpx.get(f"{URL}/ready").is_success:
                    break
            if process.poll() is not None:
                sys.exit(f"the service ended: see {run.folder / service}.log")
            time.sleep(0.5)
        yield
    finally:
        process.terminate()
        process.wait()


def main(
    model: Annotated[Path, typer.Argument(help="A GGUF file: the larger language model.")],
    output: Annotated[Path, typer.Option(help="Folder of the run; continued where it is there.")] = Path(
        "pipelines"
    ),
    labelled: Annotated[int, typer.Option(min=10, help="Questions that are labelled.")] = 40,
    rounds: Annotated[
        int, typer.Option(min=1, help="Times that the service that knows nothing is asked.")
    ] = 2,
    canary: Annotated[int, typer.Option(min=1, help="Rounds that a canary may take.")] = 5,
) -> None:
    """Label, choose, learn, replay, warm-start, promote by the gate; then print the tables."""
    if not model.is_file():
        sys.exit(f"{model}: a GGUF file was expected")
    run = Run(output, model)
    run.split(labelled)
    config = ("-c", str(run.config("cold")))
    label = ("--queries", str(run.labelled), "--block", "4", "--workers", "1", "--at-once", "8")
    run.armwise("lab", "label", *label, "-o", "labels", *config, leaves="labels/manifest.json")
    scores = ("--from-labels", "labels", "--measure", "f1", "-o", "scores")
    run.armwise("lab", "score", *scores, *config, leaves="scores")
    run.armwise("lab", "portfolio", "scores", "--budget", "0.0001", "--cost", "usd", "--splits", "20")
    run.armwise("serve", "--prepare-only", *config)
    cold = [f"cold{number}" for number in range(1, rounds + 1)]
    with serving(run, "cold"):
        for number, name in enumerate(cold, start=1):
            run.simulate(name, number)
        run.replay("cold", "configured", "uniform")
    with serving(run, "gate"):
        decided = promoted(run, canary)
        run.simulate("promoted", canary + 1)
    print(labels_table(run))
    print(traffic_table(run, [*cold, *decided, "promoted"]))


def promoted(run: Run, rounds: int) -> list[str]:
    """Let a warm start's candidate take half of the traffic until the gate promotes it; return the rounds."""
    if not warm_starts():
        run.armwise("lab", "warm-start", "-c", str(run.config("gate")))
    newest = warm_starts()[0]
    version = str(newest["candidate"])
    print(f"warm start {newest['id']}: {newest['status']}, candidate {version}", flush=True)
    reason = ("--url", URL, "--reason", "labels of every pipeline")
    names: list[str] = []
    if newest["status"] == "promoted":
        return names
    run.armwise("policy", "canary", version, "--share", "0.5", *reason)
    for number in range(1, rounds + 1):
        names.append(f"canary{number}")
        run.simulate(names[-1], number)
        if passes(run, version, f"{names[-1]}/gate.json") and run.armwise(
            *("policy", "promote", version, *reason), may_fail=True
        ):
            return names
    sys.exit(f"the gate held version {version} after {rounds} rounds: its reasons are above")


def passes(run: Run, version: str, report: str) -> bool:
    """Return whether the gate lets a version through, as it was a canary; and print it."""
    judged = f"version:{version}"
    run.replay("gate", judged, f"recipe:{version}", "uniform", judged=report)
    candidates = orjson.loads((run.folder / report).read_bytes())["candidates"]
    return any(candidate["verdict"]["promote"] for candidate in candidates if candidate["name"] == judged)


def warm_starts() -> list[dict[str, Any]]:
    """Return the warm starts of the service, the newest first."""
    with Client(URL) as client:
        starts: list[dict[str, Any]] = client.request("GET", "/v1/warm-starts", None)["warm_starts"]
    return starts


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

"""Which files does a value enter on its way?

    python benchmarks/journeys.py            # the files of each journey, in order
    python benchmarks/journeys.py --all      # with those that only check or format on the way

A service runs in this process, and each call of one of our functions is looked at. A file counts where one of
its functions is given the value, or an object that holds it: a text or a number of its own, in a container,
a record or a model, three levels deep. What a function reads of the replica (its logs, its caches) is not
given to it.

    question -> row            `/v1/retrieve` with a text of its own, until its decision is committed
    feedback -> version        `/v1/feedback` with a value of its own, until a replica serves the version
    distribution -> estimate   a replay of the log, whose decisions carry their distributions

Files in which only helpers are entered (a check of a name, an encoding, a clock) are listed with `--all`: a
helper is a function that is entered with the bare text or number, and not with what carries it.
"""

import asyncio
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated

import httpx
import numpy as np
import typer
from pydantic import BaseModel
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1]))

from armwise.agent.api import create_app
from armwise.agent.config import parse
from armwise.agent.evaluation import EvaluationRequest, evaluate_log
from armwise.agent.learning import Learner, Recipe
from armwise.agent.serving import Replica
from armwise.feedback.sources import LogSource
from armwise.feedback.training_log import take_epoch
from benchmarks.http_target import settings
from benchmarks.tracing import opened

ROOT = Path(__file__).resolve().parents[1] / "armwise"
PREFIXES = tuple(f"{ROOT / package}/" for package in ("agent", "arms", "feedback"))
QUESTION, VALUE = "which function merges sorted inputs 8c1f", 0.8125731
"""What is looked for."""

FLOOR = 0.0123
"""Gives each probability a value that no setting has."""

LEVELS, ITEMS = 3, 50
"""How deep a value is looked for, and among how many items of a container."""


def bare(value: object, token: object) -> bool:
    """Return whether a value is the token itself, or a text or array around it."""
    if isinstance(value, str | bytes):
        return isinstance(token, str) and (token if isinstance(value, str) else token.encode()) in value
    if isinstance(value, np.ndarray):
        return isinstance(token, float) and value.dtype.kind == "f" and bool(np.isclose(value, token).any())
    return isinstance(value, float) and value == token


def holds(value: object, token: object, levels: int = LEVELS) -> bool:
    """Return whether a value is the token, or a container, record or model that holds it."""
    if bare(value, token):
        return True
    if not levels:
        return False
    parts: list[object] = []
    if isinstance(value, Mapping):
        parts = [*value.keys(), *value.values()][:ITEMS]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = [*value][:ITEMS]
    elif is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, member.name, None) for member in fields(value)]
    elif isinstance(value, BaseModel):
        parts = [getattr(value, name, None) for name in type(value).model_fields]
    return any(holds(part, token, levels - 1) for part in parts)


@dataclass
class Journey:
    """The files that a value enters.

    Attributes:
        tokens: What is looked for.
        carried: First function of each file that was given what holds the value, by file, in order.
        helped: The same of files that were given the bare value alone.
    """

    tokens: list[object]
    carried: dict[str, str] = field(default_factory=dict)
    helped: dict[str, str] = field(default_factory=dict)

    def see(self, frame: FrameType) -> None:
        """Look at a call."""
        code = frame.f_code
        if not code.co_filename.startswith(PREFIXES):
            return
        file = str(Path(code.co_filename).relative_to(ROOT))
        if file in self.carried:
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        given = [frame.f_locals.get(name) for name in names]
        if any(holds(value, token) and not bare(value, token) for value in given for token in self.tokens):
            self.carried[file] = code.co_qualname
        elif any(bare(value, token) for value in given for token in self.tokens):
            self.helped.setdefault(file, code.co_qualname)


@contextmanager
def watched(journeys: Sequence[Journey]) -> Iterator[None]:
    """Look at every call of this thread, and of those that begin meanwhile."""

    def see(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            for journey in journeys:
                journey.see(frame)

    threading.setprofile(see)
    sys.setprofile(see)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def started(folder: Path) -> tuple[Replica, Learner]:
    """Open the log of a service whose reward is the value of its feedback, and what learns from it."""
    reward = {"metrics": {"recall": {"range": [0, 1]}}, "cost_weight": 0.0, "complete": "any"}
    config = parse(settings(folder) | {"reward": reward, "floor": FLOOR}).resolve_places()
    replica = opened(config)
    epoch = take_epoch(replica.store, "journeys", 1.0)
    return replica, Learner(replica.store, Recipe.from_config(config), list(config.actions), epoch)


async def serve(replica: Replica, learner: Learner, question: Journey, value: Journey) -> None:
    """Ask, send feedback, learn, and serve what was learned.

    Args:
        replica: Answers.
        learner: Publishes a version.
        question: Sees the question until it is answered, as its decision is committed before.
        value: Sees the value of its metric, and from its publication on the version.
    """
    others = [(f"question {i}", i / 30) for i in range(30)]
    app, version = create_app(replica), None
    async with app.router.lifespan_context(app):
        while not replica.ready:
            await asyncio.sleep(0.1)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for turns in (others, [(QUESTION, VALUE)]):
                for text, number in turns:
                    response = await client.post("/v1/retrieve", json={"query": text})
                    decision = response.raise_for_status().headers["x-decision-id"]
                    if text == QUESTION:
                        question.tokens.clear()
                    body = {"decision_id": decision, "metric_name": "recall", "value": number}
                    (await client.post("/v1/feedback", json=body)).raise_for_status()
                learned = len(others) + (turns is not others)
                while version is None or version.examples_seq < learned:
                    version = await asyncio.to_thread(learner.step) or version
                if turns is not others:
                    value.tokens.append(version.digest)
                await replica.refresh()


def replay(replica: Replica) -> Journey:
    """Estimate from the log what another policy would have earned; follow the probability of an arm."""
    store, config = replica.store, replica.config
    journey = Journey([max(store.newest(1)[0].probabilities)])
    request = EvaluationRequest(candidates=("uniform", "configured"))
    with watched([journey]):
        evaluate_log(config, request, LogSource(store, config.reward), store, lambda *_: None)
    return journey


def main(
    everything: Annotated[bool, typer.Option("--all", help="Also files that only helpers are in.")] = False,
) -> None:
    """Print the files of each journey, in the order in which they are entered."""
    console = Console(width=110)
    question, value = Journey([QUESTION]), Journey([VALUE])
    with tempfile.TemporaryDirectory() as folder:
        with watched([question, value]):  # before the threads of the log begin
            replica, learner = started(Path(folder))
            asyncio.run(serve(replica, learner, question, value))
        journeys = {"question -> row": question, "feedback -> version": value}
        journeys["distribution -> estimate"] = replay(replica)
    for name, journey in journeys.items():
        if not journey.carried:
            raise SystemExit(f"{name}: no call of ours was seen below {ROOT}")
        console.print(f"{name}: {len(journey.carried)} files", style="bold")
        for file, function in journey.carried.items():
            console.print(f"  {file}  {function}", markup=False, highlight=False)
        helpers = {file: name for file, name in journey.helped.items() if file not in journey.carried}
        for file, function in helpers.items() if everything else ():
            console.print(f"  ({file}  {function})", markup=False, highlight=False)


if __name__ == "__main__":
    typer.run(main)

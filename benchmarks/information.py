"""What more information a turn is worth: the service over replayed outcomes, with and without observations.

    python benchmarks/information.py DATA [--turns 3000] [--orders 4] [--only NAME] [--home /dev/shm]

A replica answers the questions of `qa` with its real draw, turn, log, observer and learner, without Ray: arms
return recorded passages, the language model the recorded answer of the arm, feedback is its F1, and the
learner publishes every `--every` turns. The policy is LinUCB and sees no context. A judge prefers the answer
with the higher F1; the noisy one gives a random verdict three times in ten. A grade is .3 + .6 F1 with
noise of sd .3. The lead is the mean reward (F1 minus .02 a step) over the last third of the turns,
exploration included, less that of the arm that is the best over all of them; the gain is paired by order.
"""

import asyncio
import gzip
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import NormalDist
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import orjson
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from armwise.agent.api import choose_code
from armwise.agent.config import parse
from armwise.agent.evaluation import verdict
from armwise.agent.learning import Learner, Recipe
from armwise.agent.policies import sampling
from armwise.agent.serving import Backends, Replica, Telemetry
from armwise.agent.turn import Ask, Embeddings, Finished
from armwise.arms.base import Passage, Query, Retrieval
from armwise.arms.llm import Chunk, Prompt, base
from armwise.feedback.answer_metrics import token_f1
from armwise.feedback.clock import SteadyClock
from armwise.feedback.events import Feedback
from armwise.feedback.log import Store
from armwise.feedback.training_log import take_epoch

STEP = 0.02
"""Reward given up for a step."""

GRADE_NOISE = 0.3
"""Standard deviation of the error of a grade."""

NOISE = 0.3
"""Share of the verdicts of the noisy judge that are random."""

ARM = re.compile(r"found by (\w+)")

ANSWER = re.compile(r"<answer>\n(.*?)\n</answer>", re.DOTALL)

VARIANTS: Mapping[str, dict[str, Any]] = {
    "rewards alone": {},
    "a second answer, 30 %": {"shadow": 0.3},
    "a second answer, 30 %, noisy judge": {"shadow": 0.3, "noise": NOISE},
    "all arms answer, 5 %": {"shadow": 0.05, "arms": 10},
    "feedback on 20 % alone": {"feedback": 0.2},
    "feedback on 20 %, grades on all": {"feedback": 0.2, "judge": 1.0},
}
"""What is observed beside the reward; `noise` and `feedback` are of the benchmark."""

BASELINES = {"feedback on 20 %, grades on all": "feedback on 20 % alone"}
"""What a variant is compared with, if not with rewards alone."""


@dataclass(frozen=True)
class Questions:
    """The outcomes of all arms on all questions.

    Attributes:
        texts: The questions.
        golds: Right answers to each.
        arms: Names of the arms.
        answers: By question and arm.
        passages: Ids that the arm found, by question and arm.
        f1: Shape (n_questions, n_arms).
        steps: The same.
    """

    texts: list[str]
    golds: list[list[str]]
    arms: list[str]
    answers: list[list[str]]
    passages: list[list[tuple[str, ...]]]
    f1: NDArray[np.float64]
    steps: NDArray[np.float64]

    @classmethod
    def read(cls, folder: Path) -> "Questions":
        """Read the folder; of questions with the same text the first one is kept."""
        questions = {q["question"]: q for q in reversed(list(_lines(folder / "queries.jsonl.gz")))}
        outcomes: dict[str, dict[str, Any]] = {}
        for row in _lines(folder / "outcomes.jsonl.gz"):
            outcomes.setdefault(row["id"], {})[row["arm"]] = row
        kept = [q for q in questions.values() if q["id"] in outcomes]
        arms = list(next(iter(outcomes.values())))
        rows = [[outcomes[q["id"]][arm] for arm in arms] for q in kept]
        return cls(
            [q["question"] for q in kept],
            [q["answers"] for q in kept],
            arms,
            [[row["answer"] for row in some] for some in rows],
            [[tuple(row["passages"]) for row in some] for some in rows],
            np.array([[row["f1"] for row in some] for some in rows]),
            np.array([[row["steps"] for row in some] for some in rows], dtype=np.float64),
        )


def _lines(path: Path) -> list[Any]:
    with gzip.open(path) as file:
        return [orjson.loads(line) for line in file]


class Recorded:
    """Arms and encoders that return what was recorded.

    Attributes:
        searches: How often an arm was run.
    """

    loading: frozenset[str] = frozenset()

    def __init__(self, questions: Questions) -> None:
        self._at = {text: n for n, text in enumerate(questions.texts)}
        self._questions = questions
        self.searches = 0

    async def search(self, arm: str, query: Query, k: int) -> Retrieval:
        """Return the recorded passages; their text names the arm, by which the model finds its answer."""
        del k
        self.searches += 1
        row, column = self._at[query.text], self._questions.arms.index(arm)
        ids = self._questions.passages[row][column]
        steps = int(self._questions.steps[row, column])
        return Retrieval(tuple(Passage(name, "", f"found by {arm}") for name in ids), steps=steps)

    async def recall(self, arm: str, query: Query, k: int) -> None:
        """Return nothing: no search is cached."""

    async def is_restricted(self) -> bool:
        """Return that every caller may see all passages."""
        return False

    async def passages(self, ids: Sequence[str]) -> list[Passage]:
        """Raise: no passage is read again."""
        raise NotImplementedError

    async def vectors(self, backbone: str, ids: Sequence[str]) -> Embeddings:
        """Raise: no router reads them."""
        raise NotImplementedError

    async def embed(self, question: str, backbones: frozenset[str]) -> Embeddings:
        """Raise: no policy reads them."""
        raise NotImplementedError

    async def load(self, specs: object) -> None:
        """Do nothing."""

    def know(self, specs: object) -> None:
        """Do nothing."""


class Model(base.Generator):
    """Answers as recorded, and compares two answers by their F1.

    Attributes:
        answers: How many it wrote.
    """

    model = "recorded"

    def __init__(self, questions: Questions, noise: float) -> None:
        self._at = {text: n for n, text in enumerate(questions.texts)}
        self._questions, self._noise = questions, noise
        self.answers = 0

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        """Write the answer at once."""
        system, text = prompt.messages[0]["content"], prompt.messages[-1]["content"]
        judged = {"You compare": self._verdict, "You grade a": self._grade}.get(system[:11])
        yield Chunk(judged(text) if judged else self._answer(system, text))
        yield Chunk(finish_reason="stop", prompt_tokens=500, completion_tokens=5)

    async def close(self) -> None:
        """Do nothing."""

    def _answer(self, system: str, question: str) -> str:
        self.answers += 1
        match = ARM.search(system)
        arm = match[1] if match else "none"
        return self._questions.answers[self._at[question]][self._questions.arms.index(arm)] or "-"

    def _f1(self, text: str) -> list[float]:
        """Return the F1 of each answer in a prompt of a judge."""
        question = text.split("<question>\n")[1].split("\n</question>")[0]
        golds = self._questions.golds[self._at[question]]
        return [token_f1(answer, golds) for answer in ANSWER.findall(text)]

    def _grade(self, text: str) -> str:
        noise = NormalDist(0.0, GRADE_NOISE).inv_cdf(0.5 / (1 << 53) + sampling.uniform_from(text, "grade"))
        return f'{{"score": {round(10 * min(1.0, max(0.0, 0.3 + 0.6 * self._f1(text)[0] + noise)))}}}'

    def _verdict(self, text: str) -> str:
        first, second = self._f1(text)
        better = 0 if first == second else 1 if first > second else 2
        if sampling.uniform_from(text, "noise") < self._noise:
            better = int(3 * sampling.uniform_from(text, "verdict"))
        return f'{{"better": {better}}}'


@dataclass(frozen=True)
class Run:
    """What a run earned, and what it took.

    Attributes:
        lead: Mean reward of the last third, less that of the best fixed arm.
        searches: Beyond one a turn.
        answers: The same.
    """

    lead: float
    searches: int
    answers: int


async def replayed(
    questions: Questions,
    order: Sequence[int],
    salt: str,
    spec: Mapping[str, Any],
    policy: Mapping[str, Any],
    every: int,
    folder: Path,
    step: Callable[[], object],
) -> Run:
    """Ask the questions in an order, each with its feedback; publish a version every few turns."""
    spec = dict(spec)
    answered = spec.pop("feedback", 1.0)
    arms, model = Recorded(questions), Model(questions, spec.pop("noise", 0.0))
    config = parse(
        {
            "log_url": f"sqlite:///{folder / 'log.db'}",
            "arms": {arm: {"kind": "none"} for arm in questions.arms},
            "llm": {"engine": "scripted"},
            "features": {"words": 0, "shape": False},
            "policy": policy,
            "reward": {"metrics": {"f1": {}}, "cost_weight": STEP},
            "floor": 0.002,
            "drift": None,
            "observations": {
                **spec,
                "tokens_per_hour": None,
                "usd_per_hour": None,
                "also": {"shadow": 1.0, "judge": "judge" in spec} if spec else None,
            },
        }
    )
    clock = SteadyClock()
    backends = Backends(arms, arms, {"default": model})
    replica = Replica(
        config, backends, clock=clock, telemetry=Telemetry(), gate=verdict, choose_code=choose_code
    )
    replica.decider.salt = salt  # in place of the secret of the log: each run draws the same
    earned = []
    with closing(Store(config.database_url)) as store:
        learner = Learner(
            store, Recipe.from_config(config), questions.arms, take_epoch(store, "benchmark", 0.0)
        )
        learner.step()
        replica.start()
        await replica.refresh()
        for n, row in enumerate(order):
            text = questions.texts[row]
            messages = ({"role": "user", "content": text},)
            ask = Ask(f"q-{n}", text, messages, k=len(questions.passages[row][1]))
            async for event in replica.turns.turn(ask):
                if isinstance(event, Finished):
                    at = questions.arms.index(event.execution.served or "none")
            earned.append(questions.f1[row, at] - STEP * questions.steps[row, at])
            await replica.find_step("second_answers").drain()
            if sampling.uniform_from(ask.decision_id, "feedback") < answered:
                f1 = float(questions.f1[row, at])
                await replica.log.append(Feedback(f"f-{n}", ask.decision_id, "f1", f1, clock()))
            if n % every == every - 1:
                learner.step()
                await replica.refresh()
            step()
        await replica.stop()
    rewards = (questions.f1 - STEP * questions.steps)[list(order)]
    last = len(order) // 3
    best = rewards[-last:, int(rewards.mean(axis=0).argmax())]
    extra = len(order)
    return Run(float(np.mean(earned[-last:]) - best.mean()), arms.searches - extra, model.answers - extra)


def main(
    data: Annotated[Path, typer.Argument(help="The folder with queries and outcomes.")],
    turns: Annotated[int, typer.Option(help="Questions of a run.")] = 3000,
    orders: Annotated[int, typer.Option(help="Random orders.")] = 4,
    every: Annotated[int, typer.Option(help="Turns between two versions.")] = 10,
    ridge: Annotated[float, typer.Option(help="Of LinUCB.")] = 100.0,
    only: Annotated[str, typer.Option(help="Run the variants whose names contain this.")] = "",
    home: Annotated[Path | None, typer.Option(help="Folder of the logs; else a temporary one.")] = None,
) -> None:
    """Print the lead over the best fixed arm, and what it took."""
    questions, console = Questions.read(data), Console()
    policy = {"kind": "linucb", "params": {"ridge": ridge}}
    variants = {name: spec for name, spec in VARIANTS.items() if only in name}
    runs_by_name: dict[str, list[Run]] = {name: [] for name in variants}
    started = time.perf_counter()
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("turns", total=turns * orders * len(variants))
        for seed in range(orders):
            order = np.random.default_rng(seed).permutation(len(questions.texts))[:turns].tolist()
            for name, spec in variants.items():
                with TemporaryDirectory(dir=home) as folder:
                    step = partial(progress.advance, task)
                    run = replayed(questions, order, f"order {seed}", spec, policy, every, Path(folder), step)
                    runs_by_name[name].append(asyncio.run(run))
    title = f"{turns:,} turns in {orders} orders, {time.perf_counter() - started:,.0f} s"
    table = Table("beside the reward", "lead, last third", "paired gain", "searches", "answers", title=title)
    for name, runs in runs_by_name.items():
        leads = np.array([run.lead for run in runs])
        base_leads = np.array(
            [run.lead for run in runs_by_name.get(BASELINES.get(name, "rewards alone"), runs)]
        )
        table.add_row(
            name,
            _mean(leads),
            _mean(leads - base_leads),
            f"{np.mean([run.searches for run in runs]):,.0f}",
            f"{np.mean([run.answers for run in runs]):,.0f}",
        )
    console.print(table)


def _mean(values: NDArray[np.float64]) -> str:
    """Return the mean and its standard error."""
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    return f"{values.mean():+.4f} ± {error:.4f}"


if __name__ == "__main__":
    typer.run(main)

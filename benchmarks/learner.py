"""What it takes to learn a log from nothing, joins included, beside Vowpal Wabbit alone.

    python benchmarks/learner.py [--examples 100000] [--rounds 3] [--url URL] [--folder FOLDER]

The log holds decisions with the features of `benchmarks/log.py`, twenty a second, each with its execution
and, a few seconds later, its feedback. `joined and learned` is what a learner does that finds such a log:
it folds the facts into a training log and commits that, reads the training log, teaches the policy,
publishes. What that is made of is timed alone, too.

The peers: `VW text` parses the same decisions, already written as text, and learns them. `Core` reads the
rows of the training log with SQLAlchemy and makes nothing of them. `Core, facts to rows` reads the columns of
the facts that the fold needs, makes nothing of them, and writes the rows of the training log, already made.

Rounds alternate between the sides. Rates and ratios are of medians of the processor's time, which other
processes take less away from; the time on the clock stands beside it. The log is in SQLite, or in the empty
database of `--url`. Memory is that of the whole process, while it learns the log for the first time.
"""

import gc
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import psutil
import sqlalchemy as sa
import typer
from log import ARMS, invent
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from vowpalwabbit import Workspace

from armwise.agent.learning import Learner, Recipe, train_on
from armwise.agent.policies import PolicySpec, build_policy
from armwise.agent.policies.vowpal import DEFAULT
from armwise.feedback.events import Cost, Example, Execution, Status
from armwise.feedback.log import Fact, Store
from armwise.feedback.log import tables as t
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.training_log import Joiner, read_examples, take_epoch

RULE = RewardRule(correction_time="PT0S", metrics={"recall": Metric()})
POLICIES = ("vowpal", "linucb")
GOAL, GOAL_RATIO = 15_000, 1.5
SEED = 7

BEGAN = 1_700_000_000.0
GAP_S = 0.05
"""Seconds between two decisions."""

LATE = 60
"""Decisions that are made before the feedback on one comes."""

BLOCK = 500
"""Turns that are committed together."""

SAMPLE = 5000
"""Examples, ready in memory, that VW and the policies are timed on alone."""

Tell = Callable[[int], None]


def history(n: int) -> Iterator[list[Fact]]:
    """Yield the facts of turns, some of them at a time."""
    rng = np.random.default_rng(SEED)
    waiting: list[Fact] = []
    for start in range(0, n, BLOCK):
        facts: list[Fact] = []
        for i, (decision, feedback) in enumerate(invent(min(BLOCK, n - start), rng), start):
            at = BEGAN + GAP_S * i
            name = f"decision-{i}"
            facts.append(replace(decision, id=name, decided_at=at, deadline=at + RULE.wait_s))
            cost = Cost(1, 400, 60, 0.02, 0.4)
            passages, answer = tuple(f"passage-{i}-{k}" for k in range(4)), "some words of an answer " * 8
            facts.append(Execution(name, decision.drawn, Status.OK, cost, passages, answer, "", at + 0.5))
            received_at = at + GAP_S * LATE
            waiting.append(replace(feedback, id=f"feedback-{i}", decision_id=name, received_at=received_at))
            if len(waiting) > LATE:
                facts.append(waiting.pop(0))
        yield facts
    yield waiting


def emptied(store: Store) -> int:
    """Forget all that was made from the facts, and return a new epoch."""
    with store.writing() as connection:
        for table in (t.examples, t.progress, t.versions):
            connection.execute(sa.delete(table))
    return take_epoch(store, "benchmark", BEGAN)


def learn(store: Store, kind: str, tell: Tell) -> None:
    """Join and learn the log from nothing."""
    spec = PolicySpec(kind=kind)
    epoch = emptied(store)
    # By this clock nothing is overdue: what waits for feedback is not closed.
    learner = Learner(store, Recipe(spec, RULE), ARMS, epoch, clock=lambda: BEGAN)
    while learner.step() is None or learner.behind:
        tell(learner.learned)


def join(store: Store) -> None:
    """Make the training log, and learn nothing."""
    joiner = Joiner(store, RULE, emptied(store))
    joiner.advance(BEGAN)
    while joiner.left:
        joiner.advance(BEGAN)


def read(store: Store) -> None:
    """Read the training log, and learn nothing."""
    for _ in read_examples(store, RULE.join):
        pass


def read_with_core(store: Store, chunk: int = 1000) -> None:
    """Read the same columns of the same rows, in the same pieces, and leave them as they come."""
    d, e, x = t.decisions.c, t.executions.c, t.examples.c
    raw = (e.status, e.steps, e.prompt_tokens, e.completion_tokens, e.retrieval_s, e.llm_s, e.usd)
    columns = [column for column in d if column.name not in ("seq", "logged_at", "propensity")]
    query = (
        sa.select(x.seq, x.metrics, *raw, *columns)
        .join(t.decisions, d.id == x.decision_id)
        .join(t.executions, e.decision_id == x.decision_id)
        .where(x.join == RULE.join)
        .order_by(x.seq)
        .limit(chunk)
    )
    after = 0
    while True:
        with store.reading() as connection:
            rows = connection.execute(query.where(x.seq > after)).all()
        if not rows:
            return
        after = rows[-1].seq


def join_with_core(store: Store, rows: Sequence[dict[str, object]], chunk: int = 5000) -> None:
    """Read what the fold needs of the facts, and write the rows of the training log, in the same pieces."""
    d, e, f = t.decisions.c, t.executions.c, t.feedback.c
    facts = (
        (d.seq, d.id, d.decided_at, d.logged_at, d.mode, d.episode_id, d.deferred, d.policy),
        (e.seq, e.decision_id, e.finished_at, e.status),
        (f.seq, f.more, f.id, f.decision_id, f.metric, f.value, f.received_at, f.episode_id, f.kind),
    )
    emptied(store)
    of_a_piece = chunk // len(facts)
    for i, first in enumerate(range(0, len(rows), of_a_piece)):
        with store.reading() as connection:
            for columns in facts:
                seq = columns[0]
                piece = sa.select(*columns).where(seq > i * chunk, seq <= (i + 1) * chunk)
                connection.execute(piece.order_by(seq)).all()
        with store.writing() as connection:
            connection.execute(sa.insert(t.examples), rows[first : first + of_a_piece])


def text_of(example: Example) -> list[str]:
    """Write an example as Vowpal Wabbit reads it, in the namespaces that our policy uses."""
    decision, context = example.decision, example.decision.context
    named = " ".join(f"{name}:{value}" for name, value in context.features.items())
    dense = " ".join(f"{i}:{value}" for i, value in enumerate(context.embedding))
    lines = [f"shared |s {named} |e {dense}"]
    reward = RULE.compute_reward(example)
    assert reward is not None
    for arm in sorted(decision.arms):
        label = f"0:{1 - reward}:{decision.propensity} " if arm == decision.drawn else ""
        about = " ".join(f"{name}:{value}" for name, value in context.arms[arm].items())
        lines.append(f"{label}|a {arm} |f {about}")
    return lines


def learn_text(texts: Sequence[list[str]]) -> None:
    """Let Vowpal Wabbit parse and learn."""
    learner = Workspace(arg_list=[*shlex.split(DEFAULT), "--quiet"])
    for text in texts:
        learner.learn(text)


def teach_anew(kind: str, examples: Sequence[Example]) -> None:
    """Teach a policy examples that are in memory."""
    train_on(build_policy(PolicySpec(kind=kind), ARMS), RULE, examples)


def remember(store: Store, n: int, console: Console) -> None:
    """Write the log."""
    with Progress(console=console) as progress:
        writing = progress.add_task("writing the log", total=n)
        for facts in history(n):
            store.append(facts)
            progress.advance(writing, BLOCK)


def measure_memory(store: Store, kind: str, n: int, console: Console) -> Table:
    """Learn the log once, and return the resident memory on the way."""
    process, every = psutil.Process(), max(n // 10, 1)
    table = Table("examples", "resident MB", title=f"memory, {kind}")
    with Progress(console=console) as progress:
        learning = progress.add_task(f"learning with {kind}", total=n)
        due = 0

        def tell(learned: int) -> None:
            nonlocal due
            progress.update(learning, completed=learned)
            if learned >= due:
                table.add_row(f"{learned:,}", f"{process.memory_info().rss / 2**20:.0f}")
                due += every

        learn(store, kind, tell)
        tell(n)
    return table


def compare(store: Store, n: int, rounds: int, console: Console) -> Table:
    """Time all sides, and return what each takes an example."""
    examples = list(islice(read_examples(store, RULE.join), SAMPLE))
    texts = [text_of(example) for example in examples]
    with store.reading() as connection:
        rows = [dict(row._mapping) for row in connection.execute(sa.select(t.examples))]  # noqa: SLF001
    gc.freeze()
    sample = len(examples)
    sides: dict[str, tuple[Callable[[], None], int]] = {
        "VW text, parsed and learned": (partial(learn_text, texts), sample),
        "Core, facts to rows": (partial(join_with_core, store, rows), n),
        "joining": (partial(join, store), n),
        "reading": (partial(read, store), n),
        "Core, the same rows": (partial(read_with_core, store), n),
    }
    for kind in POLICIES:
        sides[f"{kind}, learning"] = partial(teach_anew, kind, examples), sample
        sides[f"{kind}, joined and learned"] = partial(learn, store, kind, lambda _: None), n
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    with Progress(console=console) as progress:
        timing = progress.add_task("timing", total=rounds * len(sides))
        for _ in range(rounds):
            for name, (run, count) in sides.items():
                began = time.perf_counter(), time.process_time()
                run()
                ended = time.perf_counter(), time.process_time()
                took[name].append(((ended[0] - began[0]) / count, (ended[1] - began[1]) / count))
                progress.advance(timing)
    medians = {name: np.median(times, axis=0).tolist() for name, times in took.items()}
    _, text_s = medians["VW text, parsed and learned"]
    columns = ("", "us an example", "of processor", "examples/s", "x VW text")
    table = Table(*columns, title=f"{n:,} examples, one core")
    for name, (clock_s, core_s) in medians.items():
        times = f"{1e6 * clock_s:.1f}", f"{1e6 * core_s:.1f}"
        table.add_row(name, *times, f"{1 / core_s:,.0f}", f"{core_s / text_s:.2f}")
    table.caption = f"goal: {GOAL:,} examples/s joined and learned, reaching for {GOAL_RATIO} x VW text"
    return table


def main(
    examples: Annotated[int, typer.Option(min=1000, help="Decisions in the log.")] = 100_000,
    rounds: Annotated[int, typer.Option(min=0, help="Alternating rounds; 0 for the memory alone.")] = 3,
    url: Annotated[str | None, typer.Option(help="An empty database; SQLite when left out.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Where SQLite's file goes; else temporary.")] = None,
) -> None:
    """Write a log, learn it, and print what that takes."""
    console = Console()
    with TemporaryDirectory(dir=folder) as name:
        store = Store(url or f"sqlite:///{name}/log.db", RULE.join)
        try:
            remember(store, examples, console)
            gc.freeze()  # as the host of a learner does
            for kind in POLICIES:
                console.print(measure_memory(store, kind, examples, console))
            if rounds:
                console.print(compare(store, examples, rounds, console))
        finally:
            store.close()


if __name__ == "__main__":
    typer.run(main)

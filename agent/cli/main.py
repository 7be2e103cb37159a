"""The verbs: ingest, serve, ask, feed back, migrate, simulate; score, choose, label, train, warm up, replay.

And what an operator does with a service that runs: status, apply, promote, rollback, verify,
export, import.

A verb that fails says in one line what is wrong and what would be right, and
exits with 2 for a wrong request, 1 for a failure on the way.
"""

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import openai
import typer

from agent.cli import exchange as exchanging
from agent.cli import launch
from agent.cli import operate as operating
from agent.cli import portfolio as offline
from agent.cli import replay as judging
from agent.cli import training as teaching
from agent.cli.console import console, errors, explained, progress
from agent.cli.operate import URL, Key, Url, request
from agent.cli.options import ConfigPath
from agent.cli.training import named_once, scored
from agent.client import ClientError
from agent.config import CONFIG, CorpusSpec, load
from agent.simulation import Simulation, simulate
from arms.corpus import Corpus, ingest
from feedback.log import schema

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, rich_markup_mode=None)


@app.command()
def serve(
    config: ConfigPath = CONFIG,
    prepare_only: Annotated[
        bool, typer.Option("--prepare-only", help="Build what is missing and stop.")
    ] = False,
    question: Annotated[
        str | None, typer.Option("--ask", help="Ask this once it is ready, then stop.")
    ] = None,
    key: Key = None,
) -> None:
    """Build what is missing (corpus, indexes), then serve until interrupted or, with --ask, answered."""
    with explained():
        settings = load(config)
        address = launch.address_of(config)
        launch.require_free_port(*address)
        with progress() as tell:
            launch.prepare(settings, tell)
        if not prepare_only:
            once = None if question is None else partial(_ask, question, None, key=key)
            raise typer.Exit(launch.serve(config, address, console, once))


@app.command("ingest")
def ingest_corpus(
    source: Annotated[
        str, typer.Argument(help="JSONL file, BEIR folder, folder of Markdown and text, or `stdlib`.")
    ],
    name: Annotated[
        str, typer.Option("--name", help="Name of the corpus, as the configuration will call it.")
    ],
    config: ConfigPath = CONFIG,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out what cannot be read, and list it.")
    ] = False,
) -> None:
    """Read passages into a corpus; an interrupted run goes on where it stopped."""
    with explained():
        named = CorpusSpec(name=name, source=source)
        target = load(config).home_path / "corpora" / named.name
        with progress() as tell:
            corpus = ingest(source, target, skip_bad=skip_bad, progress=tell)
        _tell_corpus(corpus, name, source)


def _tell_corpus(corpus: Corpus, name: str, source: str) -> None:
    console.print(f"{len(corpus):,} passages in corpus {name!r}, digest {corpus.digest[:12]}", markup=False)
    for line in corpus.skipped():
        errors.print(f"skipped {line}", markup=False)
    console.print(
        f"serve it with   corpus: {{name: {name}, source: {Path(source).absolute()}}}", markup=False
    )


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="What to ask.")],
    arm: Annotated[
        str | None, typer.Option("--arm", help="Force an arm instead of letting the policy choose.")
    ] = None,
    url: Url = URL,
    key: Key = None,
) -> None:
    """Ask a question and watch the answer being written."""
    with explained():
        _ask(question, arm, url, key)


def _ask(question: str, arm: str | None, url: str, key: str | None) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=key or "unused", max_retries=2)
    stream = client.chat.completions.create(
        model=f"arm/{arm}" if arm else "auto",
        messages=[{"role": "user", "content": question}],
        stream=True,
        extra_body={"agent": {"return": ["passages"]}},
    )
    decided: dict[str, Any] = {}
    for chunk in stream:
        decided |= (chunk.model_extra or {}).get("agent") or {}
        for choice in chunk.choices:
            console.print(choice.delta.content or "", end="", markup=False, highlight=False)
    console.print()
    _tell_decision(decided)


def _tell_decision(decided: dict[str, Any]) -> None:
    for rank, passage in enumerate(decided.get("passages", []), start=1):
        console.print(
            f"  [{rank}] {passage['id']}  {passage['title']}", style="dim", markup=False, highlight=False
        )
    cost = decided.get("cost") or {}
    line = (
        f"arm {decided['arm_served']} (probability {decided['propensity']:.3f}, policy version "
        f"{decided['policy_version']}), {cost.get('tokens', 0)} tokens, "
        f"{cost.get('retrieval_ms', 0):.0f} + {cost.get('llm_ms', 0):.0f} ms"
    )
    console.print(line, style="dim", markup=False, highlight=False)
    console.print(
        f"armwise feedback {decided['decision_id']} thumb=1", style="dim", markup=False, highlight=False
    )


@app.command()
def feedback(
    decision_id: Annotated[str, typer.Argument(help="The decision that is judged.")],
    values: Annotated[
        list[str], typer.Argument(help="metric=value, one or more; true and false are values too.")
    ],
    url: Url = URL,
    key: Key = None,
) -> None:
    """Say how good an answer was."""
    with explained():
        items = [
            {"decision_id": decision_id, "metric_name": name, "value": value}
            for name, value in map(_value, values)
        ]
        for row in request("POST", url, "/v1/feedback", key, {"items": items})["items"]:
            if "error" in row:
                raise ClientError(f"{row['error']['code']}: {row['error']['message']}")
            console.print(f"{row['status']}, log position {row['log_seq']}", markup=False)


def _value(text: str) -> tuple[str, float | bool]:
    """Read one `metric=value`.

    >>> _value("thumb=1"), _value("answer_correct=true")
    (('thumb', 1.0), ('answer_correct', True))
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"{text!r}: metric=value was expected, such as thumb=1")
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    try:
        return name, float(value)
    except ValueError:
        raise ValueError(f"{text!r}: {value!r} is neither a number, nor true or false") from None


@app.command()
def migrate(config: ConfigPath = CONFIG) -> None:
    """Bring the log of an older Armwise to the tables of this one; stop the service first."""
    with explained():
        before, after = schema.migrate(load(config, without=["router"]).database_url)
        console.print(f"the log had schema {before}, it has schema {after}", markup=False)


@app.command("simulate")
def simulate_traffic(
    questions: Annotated[
        Path, typer.Argument(help="JSON lines with questions, answers and gold_ids; plain or .gz.")
    ],
    metric: Annotated[
        list[str],
        typer.Option("--metric", help="declared=score, where score is em, f1, acc or recall; repeatable."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for figures, plot and rows.")] = Path(
        "simulation"
    ),
    endpoint: Annotated[str, typer.Option("--endpoint", help="retrieve or chat.")] = "chat",
    k: Annotated[int, typer.Option("-k", help="Passages to ask for, and the cut of recall.")] = 4,
    limit: Annotated[int | None, typer.Option("--limit", help="Ask this many.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Fixes the order.")] = 0,
    concurrency: Annotated[int, typer.Option("--concurrency", help="Questions in flight.")] = 4,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Also ask each arm, to know the truth.")
    ] = False,
    url: Url = URL,
    key: Key = None,
) -> None:
    """Send questions with known answers to a live service, score, feed back, and draw the learning curve."""
    with explained():
        settings = Simulation.model_validate(
            {
                "url": url,
                "api_key": key or None,
                "questions": questions,
                "metrics": named_once("--metric", map(scored, metric)),
                "endpoint": endpoint,
                "k": k,
                "limit": limit,
                "seed": seed,
                "concurrency": concurrency,
                "baselines": baselines,
                "output": output,
            }
        )
        asyncio.run(simulate(settings, console))


for verb in (
    operating.status,
    operating.apply,
    operating.promote,
    operating.rollback,
    operating.canary,
    operating.verify,
    offline.score,
    offline.portfolio,
    teaching.label,
    teaching.train,
    teaching.enter_labels,
    teaching.warm_start,
    judging.replay,
    operating.rebuild,
    exchanging.export,
):
    app.command()(verb)

app.command("import")(exchanging.import_log)


def main() -> None:
    """Run the command line."""
    app()

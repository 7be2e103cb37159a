"""The demo: start a service, run a scenario on it, and report on one page.

    questions --> labels, and the traffic of two worlds
    examples/demo.yaml --> config.yaml --> `armwise serve` --HTTP--> story --> story.json, index.html

All that it writes is in one folder, the log among it. Corpora and indexes are those of the user's home, so
that they need not be made again.
"""

import asyncio
import shlex
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import yaml
from pydantic import BaseModel, ConfigDict, Field

from agent.cli.console import ProgressCallback
from agent.cli.serve import LaunchError, address_of, require_free_port
from agent.client import AsyncClient
from agent.config import ConfigError, CorpusSpec, load
from agent.simulation import load_questions, shuffled
from agent.simulation.questions import Question, QuestionsError
from examples.demo.operator import Operator
from examples.demo.page import page
from examples.demo.record import Story
from examples.demo.service import Desk, prepare, serving
from examples.demo.story import Narrator, Plan
from examples.demo.traffic import METRIC, Traffic, World

DEMO = Path("examples/demo.yaml")

QUESTIONS = Path("examples/stdlib_questions.jsonl")
"""The default questions."""

KINDS = ("exact", "two_facts"), ("paraphrase",)
"""Kinds: the one that is asked at first, and the paraphrased kind after the drift."""

MADE = ("corpora", "indexes")
"""What the home of the demo shares with the user's: it is derived from its name, and immutable."""

LABELLED = "labelled.jsonl"
"""Where the labels are, which runs of the warm start look for."""

PAGE, RECORD, SERVED, PRINTED = "index.html", "story.json", "config.yaml", "service.log"

WRITTEN = (PAGE, RECORD, SERVED, PRINTED, LABELLED)
"""What a demo leaves in its folder, beside the home of its service."""

LEAST = 5
"""Questions of a world at least, for the labels and for the traffic."""


class Demo(BaseModel):
    """What is asked, by how much, and where the page goes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: Path = Field(default=DEMO, description="Configuration of the service.")
    questions: Path = Field(
        default=QUESTIONS, description="JSON lines with gold_ids and type or dataset; plain or .gz."
    )
    before: tuple[str, ...] = Field(default=(), description="A kind of question asked at first.")
    after: tuple[str, ...] = Field(default=(), description="A kind asked after the drift.")
    corpus: CorpusSpec | None = Field(
        default=None, description="name=source, in place of the configured corpus."
    )
    output: Path = Field(
        default=Path("demo"),
        description="Folder of the page and all else; earlier ones are replaced.",
    )
    k: int = Field(default=2, ge=1, le=50, description="Passages to ask for, and the cut of recall.")
    concurrency: int = Field(default=4, ge=1, le=64, description="Questions in flight.")
    most: int = Field(
        default=60, ge=LEAST, description="Questions of a world that are asked at most; labelled, too."
    )
    labelled: float = Field(default=0.5, gt=0, lt=1, description="Share of the questions that is labelled.")
    seed: int = Field(default=0, ge=0, description="Splits the questions, and draws the traffic.")
    plan: Plan = Plan()

    @property
    def command(self) -> str:
        """The command that asks for the same."""
        configured = type(self).model_fields
        words = ["python", "-m", "examples.demo", "--config", str(self.config), "--output", str(self.output)]
        for name in ("questions", "k", "concurrency", "seed"):
            if getattr(self, name) != configured[name].default:
                words += [f"--{name}" if len(name) > 1 else f"-{name}", str(getattr(self, name))]
        for name in ("before", "after"):
            words += [word for kind in getattr(self, name) for word in (f"--{name}", kind)]
        if self.corpus is not None:
            words += ["--corpus", f"{self.corpus.name}={self.corpus.source}"]
        return shlex.join(words)


@dataclass(frozen=True, slots=True)
class Split:
    """A world, and questions like its own that are labelled."""

    world: World
    labelled: tuple[Question, ...]


def run(
    settings: Demo, on_progress: ProgressCallback, on_serving: Callable[[str], object] = lambda _: None
) -> Story:
    """Run the demo from its start to its page, and leave no process behind.

    Args:
        settings: What is asked, and where the page goes.
        on_progress: Called with the progress.
        on_serving: Called with the address of the service once that answers.

    Raises:
        QuestionsError: The questions cannot be read, or are too few.
        ConfigError: The configuration cannot be used.
        LaunchError: The port is taken, or the service does not start.
        ClientError: The service refuses what it should not.
    """
    before, after = worlds(settings)
    output = settings.output.absolute()
    address = address_of(settings.config)
    require_free_port(*address)
    configured = load(settings.config)
    if configured.warm_start is None or configured.drift is None or METRIC not in configured.reward.metrics:
        raise ConfigError(f"{settings.config}: a demo needs `warm_start`, `drift` and a metric {METRIC!r}")
    config = lay_out(settings, output, configured.home_path)
    write_labels(output / LABELLED, before.labelled)
    home, url = output / "home", f"http://{address[0]}:{address[1]}"
    prepare(config, home)
    story = Story(config=config.read_text(encoding="utf-8"), command=settings.command)
    on_progress("starting the service", 0, 1)
    with serving(config, home, output / PRINTED, url):
        on_progress("starting the service", 1, 1)
        on_serving(url)
        try:
            asyncio.run(_live(settings, url, before, after, story, on_progress))
        finally:
            if story.turns:  # an interrupted run is reported, too
                (output / RECORD).write_bytes(orjson.dumps(story, option=orjson.OPT_NON_STR_KEYS))
                (output / PAGE).write_text(page(story), encoding="utf-8")
    return story


async def _live(
    settings: Demo, url: str, before: Split, after: Split, story: Story, on_progress: ProgressCallback
) -> None:
    by_name = {split.world.name: split.labelled for split in (before, after)}

    def label(world: World) -> int:
        write_labels(settings.output / LABELLED, by_name[world.name])
        return len(by_name[world.name])

    limits = httpx.Limits(max_connections=settings.concurrency + 1)
    async with httpx.AsyncClient(base_url=url, timeout=120.0, limits=limits) as http:
        client = AsyncClient(url, http=http)
        rule = (await client.policy()).reward
        rng = np.random.default_rng(settings.seed)
        traffic = Traffic(client, rule, settings.k, settings.concurrency, rng)
        operator = Operator(Desk(http), story)
        await Narrator(
            operator, traffic, before.world, after.world, label, settings.plan, story, on_progress
        ).live()


def worlds(settings: Demo) -> tuple[Split, Split]:
    """Return what is asked before and after the drift, and what is labelled for each.

    Kinds that are not given are split in their order: the first half, and the others.

    Raises:
        QuestionsError: The questions cannot be read, are of one kind, or are too few.
    """
    known = [question for question in load_questions(settings.questions) if question.gold_ids]
    if not known:
        raise QuestionsError(f"{settings.questions}: no question has gold_ids, by which answers are judged")
    kinds = list(dict.fromkeys(question.group for question in known))
    first, then = settings.before, settings.after
    if not first and not then:
        half = (len(kinds) + 1) // 2
        first, then = KINDS if settings.questions == QUESTIONS else (tuple(kinds[:half]), tuple(kinds[half:]))
    first = first or tuple(kind for kind in kinds if kind not in then)
    then = then or tuple(kind for kind in kinds if kind not in first)
    for kind in (*first, *then):
        if kind not in kinds:
            message = f"{settings.questions} has no questions of kind {kind!r} with gold_ids"
            raise QuestionsError(f"{message}, but of: {', '.join(kinds)}")
    if not first or not then or set(first) & set(then):
        raise QuestionsError(
            f"{settings.questions}: kinds before {list(first)} and after {list(then)} must be some each, and "
            "not the same: a drift is a change of what is asked"
        )
    return _split(settings, known, first), _split(settings, known, then)


def _split(settings: Demo, known: Sequence[Question], kinds: Collection[str]) -> Split:
    drawn = shuffled([question for question in known if question.group in kinds], settings.seed)
    cut = round(len(drawn) * settings.labelled)
    name = ", ".join(kinds)
    if min(cut, len(drawn) - cut) < LEAST:
        raise QuestionsError(
            f"{settings.questions}: {len(drawn)} questions of {name} cannot be split into {LEAST} that are "
            "labelled and as many that are asked"
        )
    asked = tuple(drawn[cut : cut + settings.most])
    examples = " and ".join(f"“{question.question}”" for question in asked[:2])
    about = f"People ask {len(asked)} questions of kind {name}, again and again, such as {examples}."
    return Split(world=World(name, about, asked), labelled=tuple(drawn[: min(cut, settings.most)]))


def write_labels(path: Path, questions: Sequence[Question]) -> None:
    """Write questions with the passages that answer them, in place of those before."""
    lines = [question.model_dump_json(exclude_none=True) for question in questions]
    unfinished = path.with_suffix(".part")
    unfinished.write_text("\n".join([*lines, ""]), encoding="utf-8")
    unfinished.replace(path)


def lay_out(settings: Demo, output: Path, shared: Path) -> Path:
    """Replace the folder of the demo.

    Args:
        settings: What is asked, and of which corpus.
        output: The folder; what an earlier demo left there is removed.
        shared: The home whose corpora and indexes are used, and made where they are not there.

    Returns:
        The configuration of the service, in the folder.

    Raises:
        LaunchError: The folder holds a home that is not of a demo.
    """
    home = output / "home"
    if home.exists():
        if not (output / SERVED).exists():
            raise LaunchError(f"{home} is there, and no demo has made it: name another folder by --output")
        shutil.rmtree(home)  # it leaves alone what links in it lead to
    for name in WRITTEN:
        (output / name).unlink(missing_ok=True)
    home.mkdir(parents=True)
    for name in MADE:
        (shared / name).mkdir(parents=True, exist_ok=True)
        (home / name).symlink_to((shared / name).absolute())
    document: dict[str, Any] = yaml.safe_load(settings.config.read_text(encoding="utf-8"))
    args = document["applications"][0]["args"]
    if settings.corpus is not None:
        args["corpus"] = settings.corpus.model_dump()
    measure = f"R@{settings.k}"
    source = {"kind": "questions", "path": str(output / LABELLED), "measure": measure}
    args["warm_start"]["sources"] = {"labelled": {**source, "metrics": {METRIC: measure}}}
    if router := args["warm_start"].get("router"):
        router["utility"] = {**router.get("utility", {}), "measures": {measure: 1.0}}
    config = output / SERVED
    config.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return config

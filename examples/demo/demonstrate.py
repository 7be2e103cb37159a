"""The demo: start a service, run a scenario on it, and report on one page.

    questions --> traffic of two worlds            search API of another team <--HTTP--.
    examples/demo.yaml --> config.yaml --> `armwise serve` <--HTTP--> story --> story.json, index.html

All that it writes is in one folder, the log among it. Corpora and indexes are those of the user's home, so
that they need not be made again.
"""

import asyncio
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import httpx
import numpy as np
import orjson
import yaml
from pydantic import BaseModel, ConfigDict, Field

from armwise.agent.cli.console import ProgressCallback
from armwise.agent.cli.serve import require_free_port
from armwise.agent.cli.serve_config import LaunchError, read_listening_address
from armwise.agent.client import AsyncClient
from armwise.agent.config import AppConfig, ConfigError, load
from armwise.agent.lab.simulation import load_questions
from armwise.agent.lab.simulation.questions import QuestionsError
from armwise.arms.places import located
from armwise.arms.retrievers.bm25 import BM25Arm, BM25Params
from examples.demo.operator import Operator
from examples.demo.page import page
from examples.demo.record import Story
from examples.demo.service import PATIENCE_S, Desk, PatientTransport, prepare, serving
from examples.demo.story import ADDED, STALE, Narrator, Plan
from examples.demo.team import team
from examples.demo.traffic import METRIC, Traffic, World

DEMO = Path("examples/demo.yaml")

QUESTIONS = Path("examples/questions.jsonl")

OF_TEAM = "language"
"""The corpus that the search API of another team has."""

MADE = ("corpora", "indexes")
"""What the home of the demo shares with the user's: it is derived from its name, and immutable."""

PAGE, RECORD, SERVED, PRINTED = "index.html", "story.json", "config.yaml", "service.log"

WRITTEN = (PAGE, RECORD, SERVED, PRINTED)
"""What a demo leaves in its folder, beside the home of its service."""


class Demo(BaseModel):
    """How much is asked, and where the page goes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: Path = Field(default=DEMO, description="Configuration of the service.")
    output: Path = Field(
        default=Path("demo"),
        description="Folder of the page and all else; earlier ones are replaced.",
    )
    k: int = Field(default=2, ge=1, le=50, description="Passages to ask for, and the cut of recall.")
    concurrency: int = Field(default=4, ge=1, le=64, description="Questions in flight.")
    seed: int = Field(default=0, ge=0, description="Draws the traffic.")
    ray: bool = Field(default=False, description="Serve by deployments of Ray Serve, not by one process.")
    plan: Plan = Plan()

    @property
    def mode(self) -> str:
        """The option of `armwise serve` that serves so."""
        return "--ray" if self.ray else "--single-process"

    @property
    def command(self) -> str:
        """The command that asks for the same."""
        configured = type(self).model_fields
        words = ["python", "-m", "examples.demo", "--config", str(self.config), "--output", str(self.output)]
        for name in ("k", "concurrency", "seed"):
            if getattr(self, name) != configured[name].default:
                words += [f"--{name}" if len(name) > 1 else f"-{name}", str(getattr(self, name))]
        words += ["--ray"] if self.ray else []
        return shlex.join(words)


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
    before, after = worlds(QUESTIONS)
    output = settings.output.absolute()
    address = read_listening_address(settings.config)
    require_free_port(*address)
    configured = load(settings.config)
    there = place_of_team(configured)
    if there is None or configured.warm_start is None or METRIC not in configured.reward.metrics:
        message = f"needs `warm_start`, an arm {STALE!r} of kind remote and a metric {METRIC!r}"
        raise ConfigError(f"{settings.config}: a demo {message}")
    require_free_port(*there)
    config = lay_out(settings, output, configured.home_path)
    home, url = output / "home", f"http://{address[0]}:{address[1]}"
    prepare(config, home)
    story = Story(config=config.read_text(encoding="utf-8"), command=settings.command)
    on_progress("starting the service", 0, 1)
    with _team(configured, there) as stale, serving(config, home, output / PRINTED, url, settings.mode):
        on_progress("starting the service", 1, 1)
        on_serving(url)
        try:
            asyncio.run(_live(settings, url, before, after, stale, story, on_progress))
        finally:
            if story.turns:  # an interrupted run is reported, too
                (output / RECORD).write_bytes(orjson.dumps(story, option=orjson.OPT_NON_STR_KEYS))
                (output / PAGE).write_text(page(story), encoding="utf-8")
    return story


def place_of_team(configured: AppConfig) -> tuple[str, int] | None:
    """Return the host and the port of the other team's search; None where no arm asks it."""
    arm = configured.arms.get(STALE)
    if arm is None or arm.kind != "remote":
        return None
    url = httpx.URL(arm.params["url"])
    return url.host, url.port or 80


@contextmanager
def _team(configured: AppConfig, place: tuple[str, int]) -> Iterator[Event]:
    """Serve a corpus of the configuration, which is prepared, as another team would."""
    (source,) = (candidate for candidate in configured.corpus_sources if candidate.name == OF_TEAM)
    indexes, params = configured.indexes_path, BM25Params(title_weight=30, k1=10)
    corpus = source.open()
    BM25Arm.prepare(corpus, indexes, params)
    with team(BM25Arm.open(STALE, corpus, indexes, params), *place) as stale:
        yield stale


async def _live(
    settings: Demo,
    url: str,
    before: World,
    after: World,
    stale: Event,
    story: Story,
    on_progress: ProgressCallback,
) -> None:
    limits = httpx.Limits(max_connections=settings.concurrency + 1)
    transport = PatientTransport(httpx.AsyncHTTPTransport(limits=limits))
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, transport=transport) as http:
        client = AsyncClient(url, timeout_s=PATIENCE_S, http=http)
        rule = (await client.policy()).reward
        rng = np.random.default_rng(settings.seed)
        traffic = Traffic(client, rule, settings.k, settings.concurrency, rng)
        operator = Operator(Desk(http), story)
        await Narrator(operator, traffic, before, after, stale.set, settings.plan, story, on_progress).live()


def worlds(path: Path) -> tuple[World, World]:
    """Return what is asked before the last source is added, and from then on.

    Raises:
        QuestionsError: The questions cannot be read, or none is about the source that is added.
    """
    answerable = tuple(question for question in load_questions(path) if question.gold_ids)
    first = tuple(question for question in answerable if question.group != ADDED)
    if not first or len(first) == len(answerable):
        raise QuestionsError(
            f"{path}: questions of {ADDED!r} and of other kinds were expected, with gold_ids"
        )
    return World("at first", first), World("at the end", answerable)


def lay_out(settings: Demo, output: Path, shared: Path) -> Path:
    """Replace the folder of the demo.

    Args:
        settings: What is served.
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
    config, text = output / SERVED, settings.config.read_text(encoding="utf-8")
    args = yaml.safe_load(text)["applications"][0]["args"]
    for source in {corpus["source"] for corpus in args.get("corpora", {}).values()}:
        absolute = located(source, settings.config.absolute().parent)  # as it is read there, not here
        text = re.sub(rf"(?<=source: ){re.escape(source)}(?=[\s}}])", lambda _, to=absolute: to, text)
    config.write_text(text, encoding="utf-8")
    return config

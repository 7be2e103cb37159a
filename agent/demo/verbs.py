"""The verb `demo`: starts a service and the world around it, lives through the story, and writes the page."""

import asyncio
import os
import shutil
import socket
import string
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from armwise.agent.cli.child_service import ChildService
from armwise.agent.cli.console import PLAIN, console, progress, report_errors
from armwise.agent.cli.serve_config import LaunchError
from armwise.agent.client import AsyncClient
from armwise.agent.config import AppConfig, load
from armwise.agent.demo.page import render
from armwise.agent.demo.story import Narrator, Story
from armwise.agent.demo.world import LARGE, SMALL, USD_PER_KILOTOKEN, World
from armwise.arms.retrievers import BM25Arm, BM25Params, NoRetrieval, Resources

CONFIG, LOG, PAGE, HOME = "serve_config.yaml", "service.log", "index.html", "home"
"""What the demo writes into its folder."""

LOCAL = "127.0.0.1"

START_S, POLL_S = 90.0, 0.1
"""Seconds that the service may take to become ready, and between two looks."""

ELSEWHERE = ("ARMWISE_API_KEY", "ARMWISE_URL", "RAY_ADDRESS")
"""Variables that are about another service."""


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of the page, the configuration and the log.")
    ] = Path("armwise-demo"),
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Draws the questions and the wrong ratings.")
    ] = 0,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port of the page; 0 takes a free one.")
    ] = 0,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the service and the page running until Ctrl-C.")
    ] = False,
) -> None:
    """Watch a service learn from scripted users and models, on one page that fills as it runs.

    It takes about a minute, and needs no key, network or model. Exits with 1 if a chapter of the story did
    not come about.
    """
    with report_errors():
        folder = output.absolute()
        _lay_out(folder)
        for name in ELSEWHERE:
            os.environ.pop(name, None)
        os.environ["ARMWISE_HOME"] = str(folder / HOME)
        try:
            story = asyncio.run(_run(folder, seed, port, keep=keep))
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        raise typer.Exit(0 if all(chapter.came_about for chapter in story.chapters) else 1)


def _lay_out(folder: Path) -> None:
    """Make the folder, without what an earlier demo left in it. Raises LaunchError."""
    if (folder / HOME).exists():
        if not (folder / LOG).exists():
            raise LaunchError(f"{folder / HOME} is not from a demo: name another folder with --output")
        shutil.rmtree(folder / HOME)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).unlink(missing_ok=True)


async def _run(folder: Path, seed: int, port: int, *, keep: bool) -> Story:
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(_bind(port))
        with _bind(0) as reserved:
            here, there = (f"http://{LOCAL}:{bound.getsockname()[1]}" for bound in (listener, reserved))
        _write_config(folder / CONFIG, here, there)
        story, app = Story(there), Starlette()
        await stack.enter_async_context(_page(app, story, listener))
        console.print(f"watch  {here}", **PLAIN)
        with progress() as on_progress:
            on_progress(story.now, 0, 1)
            await stack.enter_async_context(_service(folder, there))
            on_progress(story.now, 1, 1)
            client = await stack.enter_async_context(AsyncClient(there))
            config = load(folder / CONFIG).resolve_places()
            world = _open_world(config, seed)
            app.router.routes.extend(world.routes)
            try:
                await Narrator(client, config, world, story, on_progress).live()
            finally:
                story.now = f"{len(story.turns):,} questions in {story.took_s:.0f} s"
                (folder / PAGE).write_text(render(story, live=False), encoding="utf-8")
        for chapter in story.chapters:
            mark, style = ("ok", None) if chapter.came_about else ("FAILED", "red")
            console.print(f"{mark:7}{chapter.said}", style=style, **PLAIN)
        console.print(f"page   {folder / PAGE}", **PLAIN)
        if keep:
            console.print(f"open   {there}/console (Ctrl-C ends the service)", **PLAIN)
            await asyncio.Event().wait()
    return story


@contextmanager
def _bind(port: int) -> Iterator[socket.socket]:
    """Yield a socket of this machine on a port; 0 takes a free one. Raises LaunchError."""
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((LOCAL, port))
        except OSError as error:
            raise LaunchError(f"port {port} cannot be used ({error.strerror}): leave out --port") from None
        yield bound


def _write_config(path: Path, world: str, service: str) -> None:
    text = string.Template((Path(__file__).parent / CONFIG).read_text(encoding="utf-8"))
    prices = {f"{model}_usd": USD_PER_KILOTOKEN[model] for model in (SMALL, LARGE)}
    values = {
        name: f"usd_per_kilotoken_in: {read}, usd_per_kilotoken_out: {written}"
        for name, (read, written) in prices.items()
    }
    path.write_text(text.substitute(world=world, port=service.rpartition(":")[2], **values), encoding="utf-8")


def _open_world(config: AppConfig, seed: int) -> World:
    """Open the corpora and the index that the service has built."""
    library, language = (source.open() for source in config.corpus_sources)
    params = BM25Params.model_validate(config.arms["reference"].params)
    reference = BM25Arm.build(
        "reference", params, Resources(language, config.indexes_path, {}, {}), NoRetrieval
    )
    passages = [corpus.passages(range(len(corpus))) for corpus in (library, language)]
    return World(passages[0], passages[1], reference, seed)


@asynccontextmanager
async def _page(app: Starlette, story: Story, listener: socket.socket) -> AsyncIterator[None]:
    """Serve the page, and the routes that are added later."""

    async def page(_: Request) -> HTMLResponse:
        return HTMLResponse(render(story, live=True))

    app.router.routes.append(Route("/", page))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none"))
    server.capture_signals = nullcontext  # type: ignore[assignment,method-assign]  # Ctrl-C is for the demo
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield
    finally:
        server.should_exit = server.force_exit = True
        await serving


@asynccontextmanager
async def _service(folder: Path, url: str) -> AsyncIterator[None]:
    """Run `armwise serve` in a process of its own, once it is ready. Raises LaunchError."""
    service = ChildService(folder / CONFIG, url, folder / LOG)
    try:
        give_up = time.monotonic() + START_S
        while not await asyncio.to_thread(service.is_ready):
            if time.monotonic() > give_up:
                raise LaunchError(f"the service does not start: see {folder / LOG}")
            await asyncio.sleep(POLL_S)
        yield
    finally:
        await asyncio.to_thread(service.stop)

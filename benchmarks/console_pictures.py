"""Take the pictures of the console that its guide shows, of a service that has learned for a day.

    make pictures
    python -m benchmarks.console_pictures [--folder docs/img] [--scheme light]
    python -m benchmarks.console_pictures --demo armwise-demo/index.html

A help desk answers questions of three kinds by four arms, of which each kind has another best one. The day is
played from a seed, over HTTP, by a clock that begins a day ago: at first arms are drawn evenly; then the gate
judges a policy that has learned from this, which is promoted; in the evening another one becomes a canary.
The pages are those of the service as it is, in Debian's chromium; the chat is in a page of another site.
With `--demo`, it takes a picture of the page that `armwise demo` has left instead.
"""

import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import httpx
import numpy as np
import sqlalchemy as sa
import typer
from PIL import Image
from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parents[1]))

from armwise.agent.lab.warmstart import warm_start
from armwise.agent.learning import Recipe, publish_candidate
from armwise.agent.policies import PolicySpec
from armwise.arms.base import Passage, Query, Retrieval, Usage
from armwise.arms.llm.base import Prompt, ScriptedGenerator
from armwise.feedback.clock import SteadyClock
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.registry import runs
from tests.agent.browsing import browsing, listening
from tests.agent.fakes import FakeArms, Service
from tests.agent.gateways.test_buttons import an_app

console = Console(width=100)

DAY_S = 86_400.0

EVENLY, LEARNING, TOGETHER = 900, 3600, 500
"""Questions with even draws, with the promoted policy alone, and beside a canary."""

LEARNED_EVERY = 60
"""Questions between two versions."""

SOLVED = {
    "error message": {"none": 0.1, "bm25": 0.85, "dense": 0.45, "fused": 0.75},
    "how-to": {"none": 0.2, "bm25": 0.45, "dense": 0.85, "fused": 0.75},
    "small talk": {"none": 0.85, "bm25": 0.5, "dense": 0.55, "fused": 0.6},
}
"""Probability that a person's question is solved, by its kind and the arm that answers."""

USD = {"none": 0.0, "bm25": 0.0002, "dense": 0.0008, "fused": 0.002}
"""Dollars of a search, by arm."""

QUESTIONS = {
    "error message": {
        "The reader app says E-41 when I renew, what is that?": "errors-1",
        "Error 403 at the catalogue": "online-4",
        "What does 'card blocked (B7)' mean?": "cards-2",
        "E-{n}0 when I scan my card": "errors-1",
    },
    "how-to": {
        "How do I keep a book for longer?": "loans-3",
        "Can my daughter borrow with my card?": "cards-2",
        "How can I read newspapers from home?": "online-4",
        "I would like to reserve a room for {n} people": "rooms-1",
        "What do I do with a book that got wet?": "damage-1",
    },
    "small talk": {
        "Thank you, that was quick!": "loans-3",
        "Good morning, are you a person?": "rooms-1",
        "Which book do you like best?": "damage-1",
    },
}
"""Questions of each kind, and the passage that answers each best."""

PASSAGES = (
    Passage(
        "loans-3",
        "Renewing a loan",
        "A loan is renewed in the account, under Loans, up to three times for four weeks each, unless another"
        " reader waits for the book. A loan that is overdue by more than ten days is renewed at the desk.",
    ),
    Passage(
        "errors-1",
        "Codes of the reader app",
        "E-41: the loan cannot be renewed, as another reader has reserved the book. E-20: the card was not "
        "read; hold it flat. E-30: the card belongs to another branch.",
    ),
    Passage(
        "cards-2",
        "Cards of a family",
        "Children under 14 borrow with a card of their own, which is free. A parent's card lends for the "
        "parent alone. A card that was blocked with B7 is opened at the desk, with an identity card.",
    ),
    Passage(
        "rooms-1",
        "Rooms for groups",
        "Rooms for two to twelve people are reserved in the account, under Rooms, for two hours at most, up"
        " to fourteen days ahead. A room that is not entered within fifteen minutes is given to others.",
    ),
    Passage(
        "online-4",
        "Newspapers and films from home",
        "Newspapers of forty countries and two thousand films are read and seen from home: sign in with the "
        "number of the card. A page that answers 403 asks for a card that holds: renew it at the desk.",
    ),
    Passage(
        "damage-1",
        "Books that got wet",
        "A wet book is brought to the desk as soon as possible and is not dried with heat. Whoever reports "
        "it the same week pays for the repair alone.",
    ),
)

ANSWERS = {
    "loans-3": "Renew it in your account, under Loans: up to three times for four weeks each, unless another "
    "reader waits for it [1].",
    "errors-1": "The reader app explains its codes under Help: E-41 says that another reader has reserved"
    " the book, E-20 and E-30 are about the card [1].",
}

ELSE = "It is explained at the desk of every branch, and in the passage that was found [1]."

WITHOUT = "I cannot look that up. Please ask at the desk of your branch."

PATIENCE_S = 30.0

SHOWN = "How do I keep a book for longer?"
"""The question of the playground and of the decision."""


class HelpDesk(FakeArms):
    """Arms that find the right passage first as often as they solve questions of its kind."""

    async def search(self, arm: str, query: Query, k: int) -> Retrieval:
        """Return the passages that an arm finds, the same each time; none by the arm without retrieval."""
        self.calls.append((arm, query, k))
        if arm == "none":
            return Retrieval((), steps=0)
        kind, right = answered_by(query.text)
        rng = np.random.default_rng([*arm.encode(), *query.text.encode()])
        passages = [PASSAGES[i] for i in rng.permutation(len(PASSAGES)) if PASSAGES[i].id != right]
        place = 0 if rng.random() < SOLVED[kind][arm] else 2
        passages.insert(place, next(passage for passage in PASSAGES if passage.id == right))
        scores = np.sort(rng.uniform(0.2, 0.9, len(passages)))[::-1].tolist()
        scored = [replace(passage, score=score) for passage, score in zip(passages, scores, strict=True)]
        usage = Usage(usd=USD[arm], search_usd=USD[arm])
        return Retrieval(tuple(scored[: min(k, 3)]), steps=2 if arm == "fused" else 1, usage=usage)

    async def passages(self, ids: Sequence[str]) -> list[Passage]:
        """Return the passages with these ids."""
        return [passage for passage in PASSAGES if passage.id in ids]


def answered_by(question: str) -> tuple[str, str]:
    """Return the kind of a question, and the passage that answers it."""
    for kind, questions in QUESTIONS.items():
        for text, passage in questions.items():
            if question.startswith(text.partition("{")[0]):
                return kind, passage
    raise ValueError(f"{question!r} is no question of the help desk")


def reply(prompt: Prompt) -> str:
    """Return the answer to the last message of a conversation: from a passage, where one was found."""
    texts = " ".join(str(message["content"]) for message in prompt.messages)
    if not any(passage.text in texts for passage in PASSAGES):
        return WITHOUT
    _, passage = answered_by(str(prompt.messages[-1]["content"]))
    return ANSWERS.get(passage, ELSE)


class DayClock:
    """A clock that begins a day ago and is moved on from question to question, up to the present."""

    def __init__(self) -> None:
        self.behind_s = DAY_S

    def __call__(self) -> float:
        """Return seconds since the epoch."""
        return time.time() - self.behind_s


def configuration() -> dict[str, Any]:
    """Return what differs from the configuration of the tests."""
    return {
        "arms": {
            "none": {"kind": "none"},
            "bm25": {"kind": "bm25"},
            "dense": {"kind": "dense", "params": {"backbone": "tiny"}},
            "fused": {"kind": "rrf", "params": {"arms": ["bm25", "dense"]}},
        },
        "policy": {"kind": "uniform"},
        "exploration": 0.1,
        "warm_start": {
            "policy": {"kind": "adaptive"},
            "sources": {"people": {"kind": "feedback", "measure": "reward"}},
            "portfolio": {"measure": "reward", "k": 3},
        },
        "reward": {"metrics": {"solved": {"type": "boolean"}}, "complete": "any", "cost_weight": 0.05},
    }


class Day:
    """Questions to a service, and what their answers are worth.

    Args:
        service: The service.
        clock: Its clock.
        address: Where it listens.
    """

    def __init__(self, service: Service, clock: DayClock, address: str) -> None:
        self.service, self.clock = service, clock
        self.client = httpx.Client(base_url=address, timeout=60.0)
        self.rng = np.random.default_rng(7)
        self.asked = 0
        self.step_s = DAY_S / (EVENLY + LEARNING + TOGETHER + 1)

    def ask(self, n: int, what: str) -> None:
        """Ask questions, judge the answers, and learn from these now and then."""
        for i in track(range(1, n + 1), what, console=console):
            self.clock.behind_s = max(0.0, self.clock.behind_s - self.step_s)
            kind = str(self.rng.choice(list(SOLVED), p=(0.35, 0.45, 0.2)))
            question = str(self.rng.choice(list(QUESTIONS[kind]))).format(n=self.rng.integers(2, 9))
            body = {
                "model": "auto",
                "messages": [{"role": "user", "content": question}],
                "agent": {"context": {"kind": kind}},
            }
            self.asked += 1
            name = {"idempotency-key": f"question-{self.asked:04}"}  # its hash is the draw
            answer = self.client.post("/v1/chat/completions", json=body, headers=name).raise_for_status()
            answered = answer.json()["agent"]
            if self.rng.random() < 0.85:
                solved = bool(self.rng.random() < SOLVED[kind][answered["arm_served"]])
                item = {"decision_id": answered["decision_id"], "metric_name": "solved", "value": solved}
                self.client.post("/v1/feedback", json=item).raise_for_status()
            if i % LEARNED_EVERY == 0:
                self.learn()

    def learn(self) -> None:
        """Publish a version of the active recipe, and wait until it decides."""
        self.service.step()
        deadline = time.monotonic() + PATIENCE_S
        while True:
            state = self.client.get("/v1/policy").raise_for_status().json()
            if state["newest"] and state["serving"]["version"] == state["newest"]["version"]:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"version {state['newest']} does not decide after {PATIENCE_S:g} s")
            time.sleep(0.05)

    def publish(self, **policy: Any) -> int:
        """Publish a version of another recipe that has learned the log; return its number."""
        config = self.service.config
        with closing(Store(config.database_url, config.reward.join, self.service.clock)) as store:
            recipe = Recipe(PolicySpec(**policy), config.reward)
            return publish_candidate(store, recipe, list(config.actions), self.service.clock).version


@contextmanager
def helping(folder: Path) -> Iterator[tuple[Service, str, int]]:
    """Serve the help desk after a day; yield it, its address, and the number of its canary."""
    clock = DayClock()
    with closing(Store(f"sqlite:///{folder / 'log.db'}")) as store, store.writing() as connection:
        connection.execute(sa.update(t.log).values(secret="the same in each run"))
    service = Service(
        folder,
        ScriptedGenerator(reply),
        searched=HelpDesk(),
        clock=SteadyClock(clock, clock),
        home=str(folder / "home"),
        **configuration(),
    )
    with listening(service) as address:
        day = Day(service, clock, address)
        with closing(day.client):
            day.ask(EVENLY, "even draws")
            warm_start(service.config, runs.Trigger.REQUEST, console, lambda *_: None, service.clock)
            day.ask(LEARNING, "the promoted policy")
            canary = day.publish(kind="linucb", params={"ridge": 5.0})
            canary_request = {"reason": "is a simpler policy as good?", "share": 0.1}
            day.client.post(f"/v1/policies/{canary}/canary", json=canary_request).raise_for_status()
            day.ask(TOGETHER, "beside a canary")
            clock.behind_s = 0.0
            day.learn()
            service.summarise()
        yield service, address, canary


def take_all(service: Service, address: str, canary: int, folder: Path, scheme: str) -> None:
    """Write a picture of each page that the guide shows."""
    folder.mkdir(parents=True, exist_ok=True)
    suffix = suffix_of(scheme)
    with browsing() as visit, service.working():
        pictures = {
            "overview": "",
            "arms": "/arms",
            "decision": "/decisions?text=longer&arm=dense&metric=solved",
            "playground": "/playground",
            "policies": f"/policies/act?action=judge&version={canary}",
        }
        for name, path in pictures.items():
            page = visit(1280, scheme)
            page.goto(f"{address}/console{path}")
            if name == "playground":
                page.get_by_label("Question").fill(SHOWN)
                page.get_by_role("button", name="Ask every arm").click()
                page.locator(".after .judge").nth(3).wait_for()
            if name == "decision":
                page.locator("tbody a").first.click()
                page.locator("#passages summary").first.wait_for()
            if name == "policies":
                page.get_by_role("button", name="Judge").click()
                judged = page.locator("#gate article", has_text=f":{canary}:")
                judged.get_by_text(re.compile("hold|promote")).wait_for(timeout=120_000)
            take(page, folder / f"console-{name}{suffix}.png")


def take_demo(story: Path, folder: Path, scheme: str) -> None:
    """Write a picture of the page that `armwise demo` has left."""
    with browsing() as visit:
        page = visit(1280, scheme)
        page.goto(story.absolute().as_uri())
        take(page, folder / f"demo{suffix_of(scheme)}.png")


LIBRARY = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>The town library</title>
<style>:root { color-scheme: light dark }
body { font: 1.1rem/1.6 serif; margin: 3rem; width: 28rem }</style>
<script src="ADDRESS/chat.js" data-title="Ask the library" data-open defer></script></head><body><main>
<h1>The town library</h1><p>Twelve branches, 900,000 books, and a reading room.</p>
<p>Your card is free. Bring an identity card to any desk.</p></main></body></html>"""


def take_chat(folder: Path, scheme: str) -> None:
    """Write a picture of the chat in a page of another site."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as log, TemporaryDirectory() as app:
        changes: dict[str, Any] = {"arms": {"bm25": {"kind": "bm25"}}, "limits": {"body_bytes": 65536}}
        service = Service(Path(log), ScriptedGenerator(reply), searched=HelpDesk(), **changes)
        with listening(service) as address, an_app(Path(app), "base-uri 'none'") as site, browsing() as visit:
            (Path(app) / "index.html").write_text(LIBRARY.replace("ADDRESS", address))
            page = visit(1000, scheme)
            page.set_viewport_size({"width": 1000, "height": 700})
            page.goto(site)
            chat = page.frame_locator("iframe")
            chat.get_by_label("Your question").fill(SHOWN)
            chat.get_by_role("button", name="Ask").click()
            chat.get_by_role("button", name="Passage 1").click()
            chat.get_by_role("button", name="Good answer").click()
            chat.get_by_text("Thank you.").wait_for()
            take(page, folder / f"chat{suffix_of(scheme)}.png")


def suffix_of(scheme: str) -> str:
    """Return what the names of pictures in a colour scheme end with.

    >>> suffix_of("light"), suffix_of("dark")
    ('', '-dark')
    """
    return "" if scheme == "light" else f"-{scheme}"


def take(page: Any, file: Path) -> None:
    """Write a picture of the upper part of a page, in few colours."""
    page.wait_for_timeout(300)
    height = min(1400, page.evaluate("document.documentElement.scrollHeight"))
    clip = {"x": 0, "y": 0, "width": page.viewport_size["width"], "height": height}
    page.screenshot(path=file, clip=clip, full_page=True)
    Image.open(file).convert("RGB").quantize(128, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        file, optimize=True
    )
    console.print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


def main(
    folder: Annotated[Path, typer.Option(help="Where the pictures are written.")] = Path("docs/img"),
    scheme: Annotated[str, typer.Option(help="light, or dark: these have -dark in their names.")] = "light",
    demo: Annotated[
        Path | None, typer.Option(exists=True, help="Page of a demo, whose picture is taken instead.")
    ] = None,
) -> None:
    """Play the day, and take the pictures."""
    if demo is not None:
        take_demo(demo, folder, scheme)
        return
    take_chat(folder, scheme)
    with TemporaryDirectory() as log, helping(Path(log)) as (service, address, canary):
        take_all(service, address, canary, folder, scheme)


if __name__ == "__main__":
    typer.run(main)

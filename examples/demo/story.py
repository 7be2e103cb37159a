"""The story of the demo, as it happens: one rule for all questions, and a policy that follows them.

    one rule -> run on made questions, canary, promoted -> report -> warm -> a source becomes stale
             -> a source is added, another run, canary, promoted -> one rollback, one promotion

Each step is a chapter: what was sent, what was answered, and what came of it. Nothing is taken for granted:
where the gate holds a candidate, or a source is not left, the chapter says so and the story goes on.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

from pydantic import BaseModel, ConfigDict, Field

from armwise.agent.evaluation.report import CandidateResult
from armwise.arms.base import Progress
from examples.demo.operator import Document, Operator
from examples.demo.record import Chapter, Mark, Story, Value
from examples.demo.traffic import Traffic, World

STALE = "manual"
"""The arm that asks the search of another team, which becomes stale."""

ADDED = "guides"
"""The source that is added: its arm, its corpus and the kind of its questions."""

FIRST, LAST = "at first", "at the end"
"""When every arm is asked every question."""


class Plan(BaseModel):
    """How many questions each part of the story takes, and how often something is tried."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rule: int = Field(default=150, ge=1, description="Before the run.")
    judged: int = Field(default=1000, ge=1, description="While a candidate is judged, at most.")
    again: int = Field(default=100, ge=1, description="Between two looks at what the gate has decided.")
    warm: int = Field(default=600, ge=1, description="After the run.")
    stale: int = Field(default=800, ge=1, description="After a source has become stale.")
    missing: int = Field(default=200, ge=1, description="With questions of a source that no arm searches.")
    found: int = Field(default=800, ge=1, description="After an arm over it was added.")
    switched: int = Field(default=100, ge=1, description="After the rollback, and after the promotion.")


class Narrator:
    """Lives through the story, and writes it down.

    Args:
        operator: Sends what an operator sends.
        traffic: What users ask.
        before: What they ask at first.
        after: What they ask once there are questions of another source.
        spoil: Makes the search of the other team stale.
        plan: How much of everything.
        story: Takes what happens.
        on_progress: Called with the progress.
    """

    def __init__(
        self,
        operator: Operator,
        traffic: Traffic,
        before: World,
        after: World,
        spoil: Callable[[], None],
        plan: Plan,
        story: Story,
        on_progress: Progress,
    ) -> None:
        self._operator, self._traffic, self._plan, self._story, self._on_progress = (
            operator,
            traffic,
            plan,
            story,
            on_progress,
        )
        self._before, self._after, self._spoil = before, after, spoil

    async def live(self) -> Story:
        """Live through all of it. Raises ClientError where the service refuses what it should not."""
        started = time.perf_counter()
        story = self._story
        story.turns = self._traffic.turns
        story.arms = tuple(await self._traffic.client.arms())
        await self._truth(FIRST, self._before)
        for step in (self.rule, self.run, self.report, self.warm, self.stale, self.added, self.switch):
            await step()
        story.took_s = time.perf_counter() - started
        return story

    async def rule(self) -> None:
        """Ask a service that has one rule for all questions, and knows nothing."""
        async with self._chapter("One rule for all questions") as chapter:
            kinds = " and ".join(self._story.truth[FIRST])
            chapter.paragraphs.append(
                "The service starts without a single decision in its log, with what many begin with: every "
                "question goes to the same source, and only the floor tries the others. "
                f"{kinds} questions come in turn, {len(self._before.questions)} of them again and again, "
                f"such as “{self._before.questions[0].question}” For each it draws an arm, logs with which "
                "probability, searches, and answers; feedback says how much of what was needed was found."
            )
            took_s = await self._ask(self._before, self._plan.rule)
            await self._operator.turn(chapter, self._before.questions[0], self._traffic.k)
            chapter.facts["questions a second"] = f"{self._plan.rule / took_s:.1f}"

    async def run(self) -> None:
        """Warm it up from questions made of the sources, and let the gate decide."""
        async with self._chapter("Made questions, and the gate") as chapter:
            chapter.paragraphs.append(
                "A run makes questions from the passages of the sources by rules: what answers them is known "
                "without a person who labels. Every arm searches for them, a router learns which arm finds "
                "what, a candidate that begins from its scores is evaluated on the log of the real "
                "questions, and the gate is asked whether it may go live. Where the evidence is too little, "
                "it gets a small share of the traffic by itself. Nothing is forced."
            )
            chapter.succeeded = await self._judged(chapter, self._before, self._plan.judged)

    async def _judged(self, chapter: Chapter, world: World, n: int) -> bool:
        """Have a run, then ask questions until the gate has decided on its candidate, `n` at most.

        Returns:
            Whether there is a candidate; it may have been promoted, ended, or still have a share.
        """
        operator, begun = self._operator, len(self._story.turns)
        run = await operator.warm_start(chapter)
        version, status = run["candidate"], run["status"]
        if version is None or status not in ("promoted", "held"):
            chapter.paragraphs.append("There is no candidate: what was served goes on as it was.")
            return False
        if status == "promoted":
            self._mark(f"v{version} promoted")
            return True
        steps = await operator.steps(version)  # of the log: a replica may not have followed it yet
        if not steps:
            chapter.paragraphs.append(f"Version {version} got no share: what was served goes on as it was.")
            return True
        self._mark(f"canary v{version}")
        chapter.paragraphs.append(
            f"The gate holds it for want of evidence, so version {version} takes {steps[-1]['share']:.0%} of "
            "each decision by itself, in the place of exploration of arms that no candidate would draw. "
            "Every distribution is mixed of both policies and logged as it was drawn from."
        )
        while (n_asked := len(self._story.turns) - begun) < n:
            await self._ask(world, min(self._plan.again, n - n_asked))
            await operator.looked()
            step = (await operator.steps(version))[0]
            if step["action"] == "promote" or not step["share"]:
                n_asked = len(self._story.turns) - begun
                await operator.judged(chapter, step)
                ends = "promoted" if step["action"] == "promote" else "ends"
                self._mark(f"v{version} {ends}")
                chapter.paragraphs.append(f"After {n_asked:,} questions it {_decided(step)}")
                return True
        share = f"{(await operator.steps(version))[0]['share']:.0%}"
        await operator.end_canary(chapter, version, "not decided: leave the exploration to the next")
        self._mark(f"v{version} ends")
        chapter.paragraphs.append(
            f"After {n:,} questions nothing is decided, at a share of {share}: an operator ends it, so that "
            "the next candidate has all of the exploration."
        )
        return True

    async def report(self) -> None:
        """See what the log says of others."""
        async with self._chapter("A replay report") as chapter:
            candidates = ("uniform", *(f"fixed:{arm}" for arm in self._story.arms), "configured")
            evaluation = await self._operator.evaluate(chapter, {"candidates": candidates})
            chapter.values = [*_values(evaluation["result"]["candidates"])]
            self._story.report = await self._operator.report(evaluation["id"])
            chapter.paragraphs.append(
                f"The {evaluation['result']['rows']:,} decisions so far show what other policies would have "
                "earned on them, as each was drawn with a known probability: every arm by itself, an even "
                "draw, the configured policy learning anew. The page that the service hands out is below."
            )

    async def warm(self) -> None:
        """Go on for a while."""
        async with self._chapter("The warm service") as chapter:
            await self._ask(self._before, self._plan.warm)
            moved = self._story.shares(chapter.first, len(self._story.turns))
            for change in moved:
                useful = [arm for arm, value in self._story.worth(FIRST, change.kind).items() if value > 0.0]
                share = sum(change.last[arm] for arm in useful)
                chapter.paragraphs.append(
                    f"Of {change.kind} questions, {share:.0%} go to an arm that finds passages for them, "
                    f"which is not said to the service: {', '.join(useful)}."
                )
                chapter.succeeded &= share > 0.5

    async def stale(self) -> None:
        """Let the other team's search become out of date."""
        async with self._chapter("A source becomes stale") as chapter:
            alarms_before = (await self._operator.policy())["drift"]["alarms"]
            earlier = self._story.shares(chapter.first - self._plan.warm, chapter.first)
            self._spoil()
            self._mark(f"{STALE} stale")
            chapter.paragraphs.append(
                f"From now on the search of the other team, the arm {STALE}, answers from an edition that "
                "was withdrawn. It fails in no other way: only feedback says that what it finds supports "
                "nothing."
            )
            await self._ask(self._before, self._plan.stale)
            drift = (await self._operator.policy())["drift"]
            if drift["alarms"] > alarms_before:
                last = drift["last"]
                chapter.paragraphs.append(
                    f"An alarm was raised: {last['subject']}, {last['before']:.2f} before and "
                    f"{last['after']:.2f} since."
                )
                self._operator.show(chapter, "/v1/policy", {"drift": drift})
            else:
                chapter.paragraphs.append(f"No alarm was raised within {self._plan.stale:,} questions.")
            now = self._story.shares(chapter.first, len(self._story.turns))
            kind, share = max(
                ((change.kind, change.last[STALE]) for change in earlier), key=lambda pair: pair[1]
            )
            (left,) = (change for change in now if change.kind == kind)
            best = max(left.last, key=left.last.__getitem__)
            chapter.paragraphs.append(
                f"Its share of {kind} questions was {share:.0%} before and is {left.last[STALE]:.0%} now; "
                f"most of them, {left.last[best]:.0%}, go to {best}."
            )
            chapter.succeeded = left.last[STALE] < share / 2

    async def added(self) -> None:
        """Let people ask of another source, add an arm over it, and have a run with questions made of it."""
        async with self._chapter("A source is added") as chapter:
            self._mark(f"{ADDED} questions")
            await self._ask(self._after, self._plan.missing)
            lost = self._earned(ADDED, chapter.first)
            await self._operator.add_arm(chapter, ADDED)
            self._mark(f"arm {ADDED}")
            begun = len(self._story.turns)
            self._story.arms = tuple(await self._traffic.client.arms())
            chapter.paragraphs.append(
                f"A third of the questions are about {ADDED} now, which no arm searches: each of them earns "
                f"{lost:.3f}. While they are asked, an arm over that corpus is added. The policy tries it "
                "now and then; a run makes questions of the new corpus, too, so that its candidate knows at "
                "once what the arm is for."
            )
            await self._judged(chapter, self._after, self._plan.found)
            if (left := self._plan.found - (len(self._story.turns) - begun)) > 0:
                await self._ask(self._after, left)
            (moved,) = (
                change for change in self._story.shares(begun, len(self._story.turns)) if change.kind == ADDED
            )
            chapter.paragraphs.append(
                f"Its share of {ADDED} questions is {moved.last[ADDED]:.0%} at the end of "
                f"{self._plan.found:,} questions more, of which those about {ADDED} earned "
                f"{self._earned(ADDED, begun):.3f} each."
            )
            chapter.succeeded = moved.last[ADDED] > 0.5
            await self._truth(LAST, self._after)

    def _earned(self, kind: str, first: int) -> float:
        """Return the mean reward of questions of a kind since a turn; NaN for none."""
        rewards = [turn.reward for turn in self._story.turns[first:] if turn.group == kind]
        received = [reward for reward in rewards if reward is not None]
        return sum(received) / len(received) if received else float("nan")

    async def switch(self) -> None:
        """Put policy and router of a run in service together, and take both back; or the other way round."""
        async with self._chapter("One promotion, one rollback") as chapter:
            before = await self._operator.policy()
            candidates = [run["candidate"] for run in self._story.runs[::-1] if run["candidate"]]
            if not candidates:
                chapter.succeeded = False
                chapter.paragraphs.append("No run had a candidate, so there is nothing to put in service.")
                return
            chapter.paragraphs.append(
                "A candidate comes with the router that its run trained. One promotion, which an operator "
                "may force, puts both in service; one rollback takes both back. Questions go on."
            )
            steps = [(candidates[0], True), (before["serving"]["version"], False)]
            if _router(before) and before["promotion"]:
                steps = [(1, False), (before["promotion"]["version"], True)]
            for version, promoted in steps:
                if not await self._switched(chapter, version, promoted=promoted):
                    chapter.succeeded = False
                    return
            after = await self._operator.policy()
            chapter.succeeded = _router(after) == _router(before)

    async def _switched(self, chapter: Chapter, version: int, *, promoted: bool) -> bool:
        """Promote a version, or roll back to it; then ask on. Return whether it was done."""
        operator, before = self._operator, await self._operator.policy()
        if not promoted:
            await operator.rollback(chapter, version, "shown in the demo")
        else:
            granted, reasons = await operator.promote(chapter, version, "shown in the demo", force=True)
            if not granted:
                chapter.paragraphs.append(f"The promotion was refused: {' '.join(reasons)}")
                return False
        now = await operator.served(lambda policy: _router(policy) != _router(before))
        operator.show(chapter, "/v1/policy", {"version": now["version"], "router": _router(now)})
        self._mark(f"v{version} by hand" if promoted else f"back to v{version}")
        await self._traffic.ask(self._after, self._plan.switched, self._on_progress)
        return True

    async def _truth(self, when: str, world: World) -> None:
        """Ask every arm every question of a world, and keep what each earns by kind of question."""
        earned = await self._traffic.truth(world, self._story.arms, self._on_progress)
        kept: dict[str, dict[str, dict[str, float]]] = {}
        for question in world.questions:
            kept.setdefault(question.group, {})[question.id] = earned[question.id]
        self._story.truth[when] = kept

    async def _ask(self, world: World, n: int) -> float:
        """Ask questions until all that was said of the answers is learned; return the seconds of asking."""
        took_s = await self._traffic.ask(world, n, self._on_progress)
        await self._traffic.learned()
        return took_s

    def _mark(self, text: str) -> None:
        self._story.marks.append(Mark(len(self._story.turns), text))

    @asynccontextmanager
    async def _chapter(self, title: str) -> AsyncIterator[Chapter]:
        """Begin a chapter; it is kept with what happened in it."""
        chapter = Chapter(title, first=len(self._story.turns))
        self._story.chapters.append(chapter)
        self._on_progress(title, 0, 1)
        started = time.perf_counter()
        try:
            yield chapter
        except BaseException:
            chapter.succeeded = False
            chapter.paragraphs.append("The demo was broken off here.")
            raise
        finally:
            chapter.last, chapter.took_s = len(self._story.turns), time.perf_counter() - started
        if chapter.last > chapter.first:
            chapter.facts["questions"] = f"{chapter.last - chapter.first:,}"
            chapter.moved = self._story.shares(chapter.first, chapter.last)
            chapter.facts["earned a question"] = f"{self._story.earned(chapter.first, chapter.last):.3f}"
        chapter.facts["seconds"] = f"{chapter.took_s:.0f}"
        self._on_progress(title, 1, 1)


def _decided(step: Document) -> str:
    """Return how the gate has decided on a canary, as the rest of a sentence."""
    reason = str(step["reason"]).removeprefix("canary: ")
    if step["action"] == "promote":
        return f"is promoted by the gate, which nobody asked: {reason}."
    return f"is ended: {reason}."


def _router(policy: Document) -> str | None:
    """Return the digest of the router that serves; None without one."""
    return policy["router"] and str(policy["router"]["digest"])


def _values(candidates: Sequence[Document]) -> Iterator[Value]:
    """Yield the figure that stands for each candidate, where there is one."""
    for candidate in candidates:
        result = CandidateResult.model_validate(candidate)
        best = result.headline
        if best is not None and best.value is not None:
            gain = None if best.difference is None else best.difference.value
            value = best.value
            yield Value(
                result.name, best.estimator, value.value, value.low, value.high, gain, best.effective_n
            )

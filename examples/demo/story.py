"""The story of the demo, as it happens: a cold service learns, is warmed up, is surprised, and recovers.

    cold -> run -> promoted -> report -> warm -> drift, alarm -> labels, run -> canary -> promoted -> recovery
         -> one promotion of policy and router, one rollback

Each step is a chapter: what was sent, what was answered, and what came of it. Nothing is taken for granted:
where the gate holds a candidate, or no alarm is raised, the chapter says so and the story goes on.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

from pydantic import BaseModel, ConfigDict, Field

from agent.evaluation.report import CandidateResult
from arms.base import Progress
from examples.demo.operator import Document, Operator
from examples.demo.record import Chapter, Mark, Story, Value
from examples.demo.traffic import Traffic, World


class Plan(BaseModel):
    """How many questions each part of the story takes, and how often something is tried."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cold: int = Field(default=300, ge=1, description="Before the first run.")
    again: int = Field(default=150, ge=1, description="More evidence, each time that a candidate is held.")
    attempts: int = Field(default=6, ge=1, description="Verdicts at most that are asked for of a candidate.")
    warm: int = Field(default=1000, ge=1, description="After the first run, before the drift.")
    drift: int = Field(default=500, ge=1, description="At most until an alarm.")
    settle: int = Field(default=200, ge=1, description="After it, while further alarms may come.")
    share: float = Field(default=0.5, gt=0, lt=1, description="Share of the traffic for the canary.")
    recovered: int = Field(default=1000, ge=1, description="After the second run.")
    switched: int = Field(default=50, ge=1, description="After the last promotion, and after its rollback.")


class Narrator:
    """Lives through the story, and writes it down.

    Args:
        operator: Sends what an operator sends.
        traffic: What users ask.
        before: What they ask at first.
        after: What they ask after the drift.
        label: Writes down the labels of a world, for the next run to find.
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
        label: Callable[[World], int],
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
        self._before, self._after, self._label = before, after, label

    async def live(self) -> Story:
        """Live through all of it. Raises ClientError where the service refuses what it should not."""
        started = time.perf_counter()
        story = self._story
        story.turns = self._traffic.turns
        story.worlds = {world.name: world.about for world in (self._before, self._after)}
        arms = await self._traffic.client.arms()
        story.arms = tuple(arms)
        for world in (self._before, self._after):
            story.truth[world.name] = await self._traffic.truth(world, arms, self._on_progress)
        for step in (
            self.cold,
            self.run,
            self.report,
            self.warm,
            self.drift,
            self.labels,
            self.canary,
            self.recovery,
            self.switch,
        ):
            await step()
        story.took_s = time.perf_counter() - started
        return story

    async def cold(self) -> None:
        """Ask a service that knows nothing."""
        async with self._chapter("A cold service") as chapter:
            chapter.paragraphs.append(
                "The service starts without a single decision in its log. "
                f"{self._before.about} For each question it draws an arm, logs with which "
                "probability, searches, and answers; feedback says how much of what was needed was "
                "found, and the policy learns from that."
            )
            took_s = await self._ask(self._before, self._plan.cold)
            await self._operator.turn(chapter, self._before.questions[0], self._traffic.k)
            chapter.facts["questions a second"] = f"{self._plan.cold / took_s:.1f}"

    async def run(self) -> None:
        """Warm it up."""
        async with self._chapter("A warm start, and the gate") as chapter:
            n = self._label(self._before)
            chapter.paragraphs.append(
                f"{n} questions that are not part of the traffic are labelled: the passages that answer them "
                "are known, so every arm can be asked without a user seeing it. A run of the warm start "
                "scores the arms, teaches a candidate what they did beside what the log holds, evaluates it "
                "on the log, and asks the gate whether it may go live."
            )
            for attempt in range(self._plan.attempts):
                if attempt:
                    chapter.paragraphs.append(
                        f"So {self._plan.again:,} more questions are asked, and a run again."
                    )
                    await self._ask(self._before, self._plan.again)
                found = await self._operator.warm_start(chapter)
                if found["status"] not in ("held", "nothing_new"):
                    break
            chapter.succeeded = found["status"] == "promoted"
            if chapter.succeeded:
                self._mark(f"v{found['candidate']} promoted")
            else:
                chapter.paragraphs.append("No candidate went live: what was served goes on as it was.")

    async def report(self) -> None:
        """See what the log says of others."""
        async with self._chapter("A replay report") as chapter:
            candidates = ("uniform", *(f"fixed:{arm}" for arm in self._story.arms), "configured")
            found = await self._operator.evaluate(chapter, {"candidates": candidates})
            chapter.values = [*_values(found["result"]["candidates"])]
            self._story.report = await self._operator.report(found["id"])
            chapter.paragraphs.append(
                f"The {found['result']['rows']:,} decisions so far show what other policies would have "
                "earned on them, as each was drawn with a known probability: every arm by itself, an even "
                "draw, the configured policy learning anew. The page that the service hands out is below."
            )

    async def warm(self) -> None:
        """Go on for a while."""
        async with self._chapter("The warm service") as chapter:
            await self._ask(self._before, self._plan.warm)
            best, value = next(iter(self._story.worth(self._before.name).items()))
            chapter.paragraphs.append(
                f"After {self._plan.warm:,} questions more. The best single arm, {best}, would earn "
                f"{value:.3f} a question, which the service does not know."
            )

    async def drift(self) -> None:
        """Let people ask otherwise."""
        async with self._chapter("The traffic drifts") as chapter:
            known = (await self._operator.policy())["drift"]["alarms"]
            earlier = len(await self._operator.settled())
            self._mark("drift")

            async def alarmed() -> bool:
                return bool((await self._operator.policy())["drift"]["alarms"] > known)

            await self._ask(self._after, self._plan.drift, alarmed)
            seen = (await self._operator.policy())["drift"]
            asked = len(self._story.turns) - chapter.first
            used = next(iter(self._story.worth(self._before.name)))
            worth = self._story.worth(self._after.name)
            best = next(iter(worth))
            chapter.paragraphs.append(
                f"{self._after.about} The best single arm until now, {used}, earns {worth[used]:.3f} on "
                f"such questions; {best} would earn {worth[best]:.3f}."
            )
            chapter.succeeded = seen["alarms"] > known
            if not chapter.succeeded:
                chapter.paragraphs.append(f"No alarm was raised within {asked:,} questions.")
                return
            last = seen["last"]
            self._mark("alarm")
            chapter.paragraphs.append(
                f"Within {asked:,} questions an alarm is raised: {last['subject']}, {last['before']:.2f} "
                f"before and {last['after']:.2f} now. The floor under every arm is {seen['floor']:g} for a "
                "while: more is tried where it is no longer known what is best."
            )
            self._operator.show(chapter, "/v1/policy", {"drift": seen})
            await self._ask(self._after, self._plan.settle)
            for run in (await self._operator.settled())[earlier:]:
                chapter.paragraphs.append(f"Run {run['id']} began by itself: {run['trigger']}.")
                await self._operator.describe_run(chapter, run["id"])

    async def labels(self) -> None:
        """Label questions like the new ones, and warm up again."""
        async with self._chapter("Labels of the new questions") as chapter:
            n, seen = self._label(self._after), (await self._operator.policy())["drift"]
            chapter.paragraphs.append(
                f"{n} questions like the new ones are labelled, and a run is asked for. "
                + (
                    "As an alarm is open, its candidate leaves behind what was known before that."
                    if seen["warm_start_open"]
                    else "As no alarm is open, its candidate learns them beside all that was known before."
                )
            )
            found = await self._operator.warm_start(chapter)
            chapter.succeeded = found["candidate"] is not None
            if found["status"] == "promoted":
                self._mark(f"v{found['candidate']} promoted")

    async def canary(self) -> None:
        """Let the candidate take a share until the gate has seen enough of it."""
        async with self._chapter("A canary, and a promotion") as chapter:
            run, operator = self._story.runs[-1], self._operator
            version = run["candidate"]
            if version is None or run["status"] != "held":
                chapter.succeeded = run["status"] == "promoted"
                chapter.paragraphs.append(f"No canary is needed: the run ended as {run['status']}.")
                return
            await operator.canary(chapter, version, self._plan.share, "evidence for the gate")
            self._mark(f"canary v{version}")
            chapter.paragraphs.append(
                f"Version {version} takes {self._plan.share:.0%} of the traffic. Every distribution is mixed "
                "of both policies and logged as it was drawn from, so evidence grows faster and stays exact."
            )
            for _ in range(self._plan.attempts):
                await self._ask(self._after, self._plan.again)
                verdict = await operator.judge(chapter, version)
                why = " ".join(verdict["reasons"]) or "nothing speaks against it."
                asked = len(self._story.turns) - chapter.first
                chapter.paragraphs.append(
                    f"After {asked:,} questions the gate says {verdict['verdict']}: {why}"
                )
                if verdict["promote"]:
                    granted, reasons = await operator.promote(chapter, version, "the gate lets it through")
                    chapter.succeeded = granted
                    if granted:
                        self._mark(f"v{version} promoted")
                        return
                    chapter.paragraphs.append(f"The promotion was refused: {' '.join(reasons)}")
            chapter.succeeded = False
            await operator.canary(chapter, version, 0.0, "the gate holds it")
            chapter.paragraphs.append("So the canary ends, and what was served goes on.")

    async def recovery(self) -> None:
        """See where it ends."""
        async with self._chapter("Recovery") as chapter:
            await self._ask(self._after, self._plan.recovered)
            story, half = self._story, self._plan.recovered // 2
            (drift,) = (one for one in story.chapters if one.title == "The traffic drifts")
            fallen, last = story.earned(drift.first, drift.last), story.earned(-half, len(story.turns))
            best, value = next(iter(story.worth(self._after.name).items()))
            chapter.paragraphs.append(
                f"While the traffic drifted, a question earned {fallen:.3f}; the last {half:,} earned "
                f"{last:.3f} each. The best single arm, {best}, would earn {value:.3f}."
            )
            chapter.succeeded = last > fallen

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
            steps = [candidates[0], None]
            if _router(before) and before["promotion"]:
                steps = [None, before["promotion"]["version"]]
            for version in steps:
                if not await self._switched(chapter, version):
                    chapter.succeeded = False
                    return
            after = await self._operator.policy()
            chapter.succeeded = _router(after) == _router(before)

    async def _switched(self, chapter: Chapter, version: int | None) -> bool:
        """Promote a version, or roll back to the first for None; then ask on. Return whether it was done."""
        operator, before = self._operator, await self._operator.policy()
        if version is None:
            await operator.rollback(chapter, 1, "shown in the demo")
        else:
            granted, reasons = await operator.promote(chapter, version, "shown in the demo", force=True)
            if not granted:
                chapter.paragraphs.append(f"The promotion was refused: {' '.join(reasons)}")
                return False
        now = await operator.served(lambda policy: _router(policy) != _router(before))
        operator.show(chapter, "/v1/policy", {"version": now["version"], "router": _router(now)})
        self._mark(f"v{version} by hand" if version else "back to v1")
        await self._ask(self._after, self._plan.switched)
        return True

    async def _ask(self, world: World, n: int, enough: Callable[[], Awaitable[bool]] | None = None) -> float:
        """Ask questions until all that was said of the answers is learned; return the seconds of asking."""
        took_s = await self._traffic.ask(world, n, self._on_progress, enough)
        await self._traffic.learned()
        return took_s

    def _mark(self, said: str) -> None:
        self._story.marks.append(Mark(len(self._story.turns), said))

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
            chapter.facts["earned a question"] = f"{self._story.earned(chapter.first, chapter.last):.3f}"
        chapter.facts["seconds"] = f"{chapter.took_s:.0f}"
        self._on_progress(title, 1, 1)


def _router(policy: Document) -> str | None:
    """Return the digest of the router that serves; None without one."""
    return policy["router"] and str(policy["router"]["digest"])


def _values(candidates: Sequence[Document]) -> Iterator[Value]:
    """Yield the figure that stands for each candidate, where there is one."""
    for candidate in candidates:
        one = CandidateResult.model_validate(candidate)
        best = one.headline
        if best is not None and best.value is not None:
            gain = None if best.difference is None else best.difference.value
            value = best.value
            yield Value(one.name, best.estimator, value.value, value.low, value.high, gain, best.effective_n)

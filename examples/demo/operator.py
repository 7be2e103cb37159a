"""What an operator does in the demo: asks for runs and evaluations, waits for them, and steers.

What was sent for a chapter, and what was answered, is kept in it.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from armwise.agent.client import ClientError
from armwise.agent.lab.simulation.questions import SimulatedQuestion
from armwise.agent.lab.warmstart.canary import READ_S
from armwise.feedback.answer_metrics import recall_at_k
from examples.demo.record import Chapter, Story, Trail
from examples.demo.service import PATIENCE_S, Desk, Patience
from examples.demo.traffic import METRIC

POLL_S = 0.5
"""Pause between two looks at what works beside the service."""

LOOK_S = 2 * READ_S
"""Time in which the service begins to look at a canary that is due, and does what follows from a verdict."""

ENDED = ("promoted", "held", "nothing_new", "failed", "abandoned")
"""How a run stands that is over."""

BAD, CONFLICT = 400, 409

ATTEMPTS = 3
"""Times that a run is asked for, where another one came before."""

Document = Mapping[str, Any]


class Operator:
    """Operates the service over HTTP, and records the exchanges.

    Args:
        desk: Sends the requests.
        story: Takes marks, runs, and how evidence grew.
        patience_s: Seconds in which a run or an evaluation may stay as it is.
        poll_s: Pause between two looks at one.
        look_s: Time in which the service begins to look at a canary, and does what follows.
    """

    def __init__(
        self,
        desk: Desk,
        story: Story,
        patience_s: float = PATIENCE_S,
        poll_s: float = POLL_S,
        look_s: float = LOOK_S,
    ) -> None:
        self._desk, self._story = desk, story
        self._patience_s, self._poll_s, self._look_s = patience_s, poll_s, look_s

    async def policy(self) -> Document:
        """Return the policy that decides."""
        return dict(await self._desk.get("/v1/policy"))

    def show(self, chapter: Chapter, path: str, answer: object) -> None:
        """Keep a look at the service."""
        chapter.exchanges.append(self._desk.exchange("GET", path, None, answer))

    async def turn(self, chapter: Chapter, question: SimulatedQuestion, k: int) -> None:
        """Ask a question and send feedback on the answer, as any user would. Raises ClientError."""
        path, body = "/v1/retrieve", {"query": question.question, "k": k}
        status, answer = await self._desk.send("POST", path, body)
        self._require(status, path, answer)
        ids = [passage["id"] for passage in answer["passages"]]
        agent = {name: answer["agent"][name] for name in ("decision_id", "arm_drawn", "propensity", "pmf")}
        shown = {"passages": [{"id": name} for name in ids], "agent": agent}
        chapter.exchanges.append(self._desk.exchange("POST", path, body, shown))
        value = recall_at_k(ids, question.gold_ids, k)
        item = {"decision_id": agent["decision_id"], "metric_name": METRIC, "value": value}
        path, body = "/v1/feedback", {"items": [item]}
        status, answer = await self._desk.send("POST", path, body)
        self._require(status, path, answer)
        chapter.exchanges.append(self._desk.exchange("POST", path, body, answer))

    async def warm_start(self, chapter: Chapter) -> Document:
        """Ask for a run, wait for its end, on_progress of its steps, and return it. Raises ClientError."""
        path = "/v1/warm-starts"
        for _ in range(ATTEMPTS):  # an alarm may begin a run at any time, and one is done at a time
            await self.settled()
            status, reply = await self._desk.send("POST", path, {})
            if status != CONFLICT:
                break
        self._require(status, path, reply)
        chapter.exchanges.append(self._desk.exchange("POST", path, {}, _short(reply)))
        run = await self._once(f"/v1/warm-starts/{reply['id']}", lambda run: run["status"] in ENDED)
        self.show(chapter, f"{path}/{run['id']}", _short(run))
        await self._keep(chapter, run)
        return run

    async def settled(self) -> list[Document]:
        """Wait until no run is under way or due, and return all that there were, oldest first."""

        def quiet(listed: Document) -> bool:
            due = listed["next"] is not None and listed["next"]["trigger"] != "schedule"
            return not due and all(run["status"] in ENDED for run in listed["warm_starts"])

        listed = await self._once("/v1/warm-starts", quiet)
        return list(listed["warm_starts"][::-1])

    async def add_arm(self, chapter: Chapter, name: str) -> None:
        """Make a declared arm live beside those that are. Raises ClientError."""
        path = "/v1/arms"
        now = await self._desk.get(path)
        body = {"arms": [*(arm["name"] for arm in now["arms"]), name]}
        status, answer = await self._desk.send("PUT", path, body)
        self._require(status, path, answer)
        chapter.exchanges.append(self._desk.exchange("PUT", path, body, {"arm_set": answer["arm_set"]}))

    async def evaluate(self, chapter: Chapter, body: Document) -> Document:
        """Ask for an evaluation, and return it once it is done. Raises ClientError."""
        path = "/v1/evaluations"
        status, reply = await self._desk.send("POST", path, body)
        self._require(status, path, reply)
        chapter.exchanges.append(self._desk.exchange("POST", path, body, _short(reply)))
        evaluation = await self._once(
            f"{path}/{reply['id']}", lambda document: document["status"] in ("done", "failed")
        )
        if evaluation["status"] == "failed":
            raise ClientError(f"evaluation {reply['id']} failed: {evaluation['error']}")
        return evaluation

    async def report(self, number: int) -> str:
        """Return the page of an evaluation."""
        return await self._desk.text(f"/v1/evaluations/{number}/report")

    async def looked(self) -> None:
        """Wait until the gate has looked at what was asked, as it would have where people ask less often."""
        await asyncio.sleep(self._look_s)
        ended = ("done", "failed")
        await self._once(
            "/v1/evaluations",
            lambda listing: all(evaluation["status"] in ended for evaluation in listing["evaluations"]),
        )
        await asyncio.sleep(self._look_s)

    async def steps(self, version: int) -> list[Document]:
        """Return the promotions and canaries of a version, newest first."""
        listed = await self._desk.get("/v1/policies")
        return [step for step in listed["promotions"] if step["version"] == version]

    async def judged(self, chapter: Chapter, step: Document) -> None:
        """Keep how the gate decided on a canary, with the evidence."""
        self.show(chapter, "/v1/policies", {"promotions": [step]})
        if step["evaluation"] is not None:
            evaluation = await self._desk.get(f"/v1/evaluations/{step['evaluation']}")
            self._verdict(evaluation, f"canary:{step['version']}")

    async def promote(
        self, chapter: Chapter, version: int, reason: str, *, force: bool = False
    ) -> tuple[bool, list[str]]:
        """Ask for a promotion; return whether it was granted, and else why not. Raises ClientError."""
        path, body = f"/v1/policies/{version}/promote", {"reason": reason, "force": force}
        status, answer = await self._desk.send("POST", path, body)
        if status == CONFLICT:
            chapter.exchanges.append(self._desk.exchange("POST", path, body, answer))
            return False, list(answer["error"].get("reasons", [answer["error"]["message"]]))
        self._require(status, path, answer)
        shown = {name: answer[name] for name in ("version", "promotion", "canaries")}
        chapter.exchanges.append(self._desk.exchange("POST", path, body, shown))
        return True, []

    async def rollback(self, chapter: Chapter, version: int, reason: str) -> None:
        """Let exactly this version serve. Raises ClientError."""
        path, body = f"/v1/policies/{version}/rollback", {"reason": reason}
        status, answer = await self._desk.send("POST", path, body)
        self._require(status, path, answer)
        shown = {name: answer[name] for name in ("version", "promotion", "canaries")}
        chapter.exchanges.append(self._desk.exchange("POST", path, body, shown))

    async def served(self, so: Callable[[Document], bool]) -> Document:
        """Wait until the policy that decides meets a condition; return it. Raises ClientError."""
        return await self._once("/v1/policy", so)

    async def end_canary(self, chapter: Chapter, version: int, reason: str) -> None:
        """Take the share of a canary back. Raises ClientError."""
        path, body = f"/v1/policies/{version}/canary", {"share": 0.0, "reason": reason}
        status, answer = await self._desk.send("POST", path, body)
        self._require(status, path, answer)
        shown = {name: answer[name] for name in ("version", "canaries")}
        chapter.exchanges.append(self._desk.exchange("POST", path, body, shown))

    async def _keep(self, chapter: Chapter, run: Document) -> None:
        """Keep a run: its steps, and how the evidence for its candidate grew."""
        self._story.runs.append(dict(run))
        for step in run["steps"]:
            chapter.paragraphs.append(f"Run {run['id']}, {step['name']}: {step['said']}.".replace("..", "."))
        if run["error"]:
            chapter.paragraphs.append(f"Run {run['id']} failed: {run['error']}")
        if run["evaluation"] is not None and run["candidate"] is not None:
            evaluation = await self._desk.get(f"/v1/evaluations/{run['evaluation']}")
            self._verdict(evaluation, f"recipe:{run['candidate']}")

    def _verdict(self, evaluation: Document, name: str) -> Document:
        """Return the verdict of an evaluation on a version or its recipe, and keep its trail."""
        version = int(name.partition(":")[2])
        verdicts = [
            candidate["verdict"]
            for candidate in evaluation["result"]["candidates"]
            if candidate["name"] == name
        ]
        if not verdicts or verdicts[0] is None:
            raise ClientError(f"evaluation {evaluation['id']} has no verdict on {name}")
        verdict = verdicts[0]
        if "figures" in verdict:
            figures = verdict["figures"]
            points = tuple((point["n"], point["gain"], point["low"]) for point in verdict["trail"])
            self._story.trails[version] = Trail(
                version, verdict["promote"], figures["margin"], figures["level"], points
            )
        return dict(verdict)

    async def _once(self, path: str, so: Callable[[Document], bool]) -> Document:
        """Poll a path until its reply meets a condition; return it. Raises ClientError if nothing changes."""
        patience = Patience(self._patience_s)
        while True:
            document: Document = await self._desk.get(path)
            if so(document):
                return document
            if not patience.lasts(document):
                raise ClientError(
                    f"{path} was waited for in vain, and stayed as it is for {self._patience_s:g} s: "
                    f"{_short(document)}"
                )
            await asyncio.sleep(self._poll_s)

    def _require(self, status: int, path: str, answer: Document) -> None:
        if status >= BAD:
            raise ClientError(f"POST {path} gave {status}: {answer['error']['message']}")


def _short(document: Document) -> dict[str, Any]:
    """Return of a run or an evaluation what fits a line or two."""
    shown = ("id", "trigger", "status", "candidate", "evaluation", "error", "next")
    return {name: document[name] for name in shown if name in document}

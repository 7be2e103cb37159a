"""Callers and operators: what they send, again and again, and what they remember of the answers.

A caller repeats what was not answered, under the same key, changes its mind, hangs up, sends feedback early,
late, twice, in another form and takes it back, and looks at what is not its own.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.history import Admitted, Answered, Change, Erased, Fault, History, Kept
from tests.simulation.plan import STORM, Event, Kind
from tests.simulation.scheduler import EPOCH, World
from tests.simulation.service import Part, Response, Service

ATTEMPTS, PAUSE_S = 20, 0.4
"""How often one thing is sent before a caller gives up, and its pauses."""

PATIENCE_S = 30.0
"""How long a caller waits: nothing may take so long, whatever fails."""

RECENT = 3
"""Among how many of the newest decisions one is erased: its turn may be under way."""

RETRYABLE = (408, 409, 429, 500, 502, 503, 504)
TENANTS = ("red", "red", "red", "blue", "blue", "blue", "green")
LIMITED, LIMIT = "green", 16
"""The tenant whose requests are limited, and to how many a minute."""


@dataclass(slots=True)
class Callers:
    """All callers of a world.

    Attributes:
        history: What they were told.
        keys: Secrets, by name of the key.
        said: Text of each decision by its id in the log, for erasures.
        unfinished: Callers that have not ended.
    """

    world: World
    service: Service
    history: History
    keys: Mapping[str, str]
    public: Mapping[str, str]
    look: Callable[[Answered], None]
    clocks_agree: bool
    said: dict[str, str] = field(default_factory=dict)
    unfinished: int = 0

    def act(self, event: Event, seed: int) -> None:
        """Do what an event says; in a thread of its own."""
        rng = event.stream(seed)
        try:
            match event.kind:
                case Kind.TALK:
                    Talk(self, rng, f"t{event.number}").run()
                case Kind.TWINS:
                    self._start_twins(event, seed)
                case Kind.CROWD:
                    self._crowd(rng)
                case Kind.STORM:
                    self._storm(event, seed)
                case _:
                    self._operate(event, rng)
        finally:
            self.unfinished -= 1

    def _operate(self, event: Event, rng: random.Random) -> None:
        """Do what an operator does."""
        match event.kind:
            case Kind.TRAIN:
                self.service.train(event.settings["kind"], anew=event.settings["anew"])
            case Kind.SWITCH:
                path, enabled = f"/v1/arms/{event.settings['arm']}", event.settings["enabled"]
                self.operate(rng, "PATCH", path, enabled=enabled)
            case Kind.REPLACE:
                self._replace_arms(rng)
            case Kind.PROMOTE | Kind.ROLLBACK | Kind.CANARY:
                self._change_policy(event, rng)
            case Kind.EVALUATE:
                self._ask_for_evaluation(event, rng)
            case Kind.ERASE:
                self._erase(rng)

    def _start_twins(self, event: Event, seed: int) -> None:
        """Let another caller, who knows nothing of the first, ask the same under the same key."""
        name, streams = f"w{event.number}", (event.stream(seed), event.stream(seed))
        first, second = (Talk(self, stream, name) for stream in streams)
        second.differ(streams[1].random())
        self._start(f"twin {name}", second.run)
        first.run()

    def _start(self, name: str, act: Callable[[], None]) -> None:
        """Let a further caller act."""
        self.unfinished += 1

        def run() -> None:
            try:
                act()
            finally:
                self.unfinished -= 1

        self.world.start(self.world.outside, name, run)

    def _storm(self, event: Event, seed: int) -> None:
        """Let more ask at once than may be in flight; each of them once."""
        for number in range(STORM):
            name = f"s{event.number}x{number}"
            talk = Talk(self, random.Random(f"{seed}/event {event.number}/{number}"), name)
            self._start(f"caller {name}", talk.ask_once)

    def _crowd(self, rng: random.Random) -> None:
        """Send more requests than the limit of a key, to all replicas."""
        for _ in range(LIMIT + 8):
            self.send(rng.choice(self.service.replicas), "GET", "/v1/arms", key=LIMITED)
            self.world.sleep(rng.choice((0.0, 0.0, 0.3)))

    def operate(self, rng: random.Random, method: str, path: str, **body: Any) -> Response | None:
        """Send what an operator sends."""
        part = rng.choice(self.service.replicas)
        response = self.send(part, method, path, body or None, key="operator")
        if response is not None and response.status >= 500 and response.status != 503:
            self.odd(f"{method} {path}", response)
        return response

    def _replace_arms(self, rng: random.Random) -> None:
        arms = ["none", "bm25"]
        arms += [name for name in ("again", "dense") if rng.random() < 0.5]
        self.operate(rng, "PUT", "/v1/arms", arms=arms)

    def _change_policy(self, event: Event, rng: random.Random) -> None:
        listed = self.operate(rng, "GET", "/v1/policies")
        if listed is None or listed.status != 200:
            return
        versions = [row["version"] for row in listed.document["versions"] if row["kept"]]
        if versions:
            act = {Kind.PROMOTE: "promote", Kind.ROLLBACK: "rollback", Kind.CANARY: "canary"}[event.kind]
            version, begun = rng.choice(versions), self.world.now
            path = f"/v1/policies/{version}/{act}"
            response = self.operate(rng, "POST", path, reason="simulated", **event.settings)
            done = response is not None and response.status == 200
            pin = version if event.kind is Kind.ROLLBACK and done else None
            self.history.changes.append(Change(pin, begun, self.world.now, event.kind is not Kind.CANARY))

    def _ask_for_evaluation(self, event: Event, rng: random.Random) -> None:
        asked = ["uniform", *(["fixed:bm25"] if event.number % 2 else [])]
        response = self.operate(rng, "POST", "/v1/evaluations", candidates=asked)
        if response is not None and response.status == 202:
            self.history.evaluations.append((response.document["id"], tuple(asked)))

    def _erase(self, rng: random.Random) -> None:
        if not self.said:
            return
        name = rng.choice([*self.said][-RECENT:])
        response = self.operate(rng, "DELETE", f"/v1/decisions/{name}")
        done = response is not None and response.status == 200
        self.history.erased.append(Erased(name, (self.said[name],), done))
        self.world.note(f"{name} {'was' if done else 'may have been'} erased")

    def send(
        self,
        part: Part,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str,
        patience_s: float = PATIENCE_S,
        headers: dict[str, str] | None = None,
    ) -> Response | None:
        """Send a request, and note what came back."""
        world = self.world
        begun, replica = EPOCH + world.now, str(part.process)
        response = self.service.request(
            part, method, path, body, key=self.keys[key], patience_s=patience_s, headers=headers or {}
        )
        if patience_s >= PATIENCE_S and world.now - begun + EPOCH >= PATIENCE_S and part.process.alive:
            self.history.odd.append(Fault("stuck", f"{method} {path} was not answered for {patience_s:g} s"))
        status = "nothing" if response is None else f"{response.status}{'' if response.whole else ' cut'}"
        world.note(f"{part.process} {method} {path} {status}")
        admitted = response is not None and response.status not in (401, 403, 429, 503)
        if key == LIMITED and self.clocks_agree and admitted:
            ended = EPOCH + world.now
            self.history.admitted.append(Admitted(self.public[key], replica, LIMIT, begun, ended))
        return response

    def odd(self, what: str, response: Response) -> None:
        """Remember an answer that no caller should get."""
        self.history.odd.append(
            Fault("odd", f"{what} was answered {response.status} {response.body[:300]!r}")
        )


class Talk:
    """One question of a caller, with everything around it."""

    def __init__(self, callers: Callers, rng: random.Random, name: str) -> None:
        self._callers, self._rng, self._name = callers, rng, name
        self._key = rng.choice(TENANTS)
        self._stored = f"{self._key}~{name}"
        self._history = callers.history
        self._word = f"secretword{name}x{rng.randrange(10**6)}"
        self._chat = rng.random() < 0.6
        self._streamed = self._chat and rng.random() < 0.4
        self._first: dict[str, Any] | None = None
        self._begun = 0.0

    def differ(self, chance: float) -> None:
        """Ask something else under the same key, one time in five."""
        if chance < 0.2:
            self._word += "other"

    def run(self) -> None:
        """Ask, and tell what one thinks of the answer."""
        rng = self._rng
        if rng.random() < 0.15:
            self._tell("early", rng.uniform(-1, 1))
        if not self._ask() and rng.random() < 0.5:
            return
        if rng.random() < 0.2:
            self._ask()  # a client that did not trust its ears
        if rng.random() < 0.2:
            self._look_as("blue" if self._key == "red" else "red")
        for number in range(rng.choice((0, 1, 1, 2, 3))):
            if rng.random() < 0.15:
                self._callers.world.sleep(rng.choice((1.0, 7.0)))
            value = rng.uniform(-1, 1)
            self._tell(f"f{number}", value)
            if rng.random() < 0.2:
                self._tell(f"f{number}", value)
            if rng.random() < 0.2:
                self._tell(f"f{number}", None)
            if rng.random() < 0.1:
                self._tell(f"f{number}", value / 2)  # another value under a used id

    def ask_once(self) -> None:
        """Ask, and leave it at that."""
        self._make_attempt()()

    def _part(self) -> Part:
        return self._rng.choice(self._callers.service.replicas)

    def _until(self, attempt: Callable[[], bool | None]) -> bool:
        """Try again until something has an outcome."""
        for _ in range(ATTEMPTS):
            outcome = attempt()
            if outcome is not None:
                return outcome
            self._callers.world.sleep(PAUSE_S * self._rng.uniform(0.5, 1.5))
        return False

    # -- asking ------------------------------------------------------------------------------------

    def _ask(self) -> bool:
        return self._until(self._make_attempt())

    def _make_attempt(self) -> Callable[[], bool | None]:
        """Return what asks once, and returns whether there is an answer; None: it may be asked again."""
        question = f"what of {self._word}?"
        options = {"return": ["decision"]}
        if self._chat:
            path, body = (
                "/v1/chat/completions",
                {
                    "model": "auto",
                    "messages": [{"role": "user", "content": question}],
                    "stream": self._streamed,
                    "agent": options,
                },
            )
        else:
            path, body = "/v1/retrieve", {"query": question, "model": "auto", "agent": options}
        self._callers.said[self._stored] = self._word
        self._begun = self._callers.world.now

        def attempt() -> bool | None:
            patience_s = self._rng.choice((PATIENCE_S, PATIENCE_S, PATIENCE_S, 0.05, 0.5))
            headers = {"idempotency-key": self._name}
            response = self._callers.send(
                self._part(), "POST", path, body, key=self._key, patience_s=patience_s, headers=headers
            )
            if response is None:
                return None
            if response.status != 200:
                return self._judge_refusal(path, response)
            return self._note_answer(response)

        return attempt

    def _judge_refusal(self, path: str, response: Response) -> bool | None:
        error = response.document["error"] if response.whole else {}
        if response.status in RETRYABLE and error.get("retryable", True):
            return None
        if error.get("code") not in (
            "arm_failed",
            "llm_failed",
            "llm_timeout",
            "idempotency_conflict",
            "internal_error",
        ):
            self._callers.odd(path, response)
        return False

    def _note_answer(self, response: Response) -> bool | None:
        if self._streamed:
            return self._note_stream(response)
        if not response.whole:
            return None
        document = response.document
        agent = document["agent"]
        text = document["choices"][0]["message"]["content"] if self._chat else None
        return self._note(agent, text, done=True)

    def _note_stream(self, response: Response) -> bool | None:
        import orjson

        frames = [frame for frame in response.body.decode().split("\n\n") if frame.startswith("data: ")]
        chunks = [orjson.loads(frame[6:]) for frame in frames if frame != "data: [DONE]"]
        agent = next((chunk["agent"] for chunk in chunks if chunk.get("agent")), None)
        failed = any("error" in chunk for chunk in chunks)
        if agent is None:
            return False if failed else None
        done = response.whole and frames[-1:] == ["data: [DONE]"] and not failed
        text = "".join(
            choice["delta"].get("content") or "" for chunk in chunks for choice in chunk.get("choices", ())
        )
        outcome = self._note(agent, text if done else None, done=done)
        return outcome if done else None

    def _note(self, agent: dict[str, Any], text: str | None, *, done: bool) -> bool:
        fields = {
            name: agent[name]
            for name in ("policy_version", "mode", "arm_drawn", "propensity", "pmf", "episode_id")
            if name in agent
        }
        if self._first is None:
            self._first = fields
        elif fields != self._first:
            what = f"{self._stored} was first told {self._first}, and then {fields}"
            self._history.odd.append(Fault("changed", what))
        now = self._callers.world.now
        served = agent.get("arm_served") if done else None
        answered = Answered(self._stored, fields, served, text, done, None, self._begun, now)
        self._history.answered.append(answered)
        self._callers.look(answered)
        return True

    # -- telling -----------------------------------------------------------------------------------

    def _tell(self, name: str, value: float | None) -> None:
        metric = "thumb" if name != "f1" else "right"
        if metric == "right" and value is not None:
            value = float(value > 0)
        body = {
            "decision_id": self._name,
            "feedback_id": f"{self._name}-{name}",
            "metric_name": metric,
            "value": value,
        }
        if value is not None and name == "f0":
            body["comment"] = f"on {self._word}"

        def attempt() -> bool | None:
            response = self._callers.send(self._part(), "POST", "/v1/feedback", body, key=self._key)
            if response is None or not response.whole:
                return None
            if response.status != 202:
                error = response.document["error"]
                if response.status == 409 and error["code"] == "idempotency_conflict":
                    return False
                if response.status in RETRYABLE and error["retryable"]:
                    return None
                self._callers.odd("/v1/feedback", response)
                return False
            receipt = response.document
            self._callers.world.note(f"{body['feedback_id']} is {receipt['status']} at {receipt['log_seq']}")
            kind = "retraction" if value is None else "value"
            self._history.kept.append(
                Kept(
                    f"{self._key}~{self._name}-{name}",
                    kind,
                    self._stored,
                    None,
                    metric,
                    value,
                    receipt["log_seq"],
                )
            )
            return True

        self._until(attempt)

    def _look_as(self, other: str) -> None:
        """Try to read the decision with the key of another tenant."""
        path = f"/v1/decisions/{self._name}"
        response = self._callers.send(self._part(), "GET", path, key=other)
        if response is not None and response.status == 200 and self._word.encode() in response.body:
            what = f"{other} was shown {self._stored}"
            self._history.odd.append(Fault("foreign", what))

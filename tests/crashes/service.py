"""A service with clients, whatever runs it: whether it answers, what it learned, and how it is checked."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from tests.crashes.audit import Verdict, audit
from tests.crashes.children import PATIENCE_S, CrashError
from tests.crashes.ledger import Ledger
from tests.crashes.traffic import Traffic

T = TypeVar("T")

LOOK_S = 0.01
"""Pause between two looks at whether the service is back."""


@dataclass(slots=True)
class Kill:
    """One kill, and what came of it.

    Attributes:
        victim: What was killed.
        step: What was under way.
        point: Where exactly.
        answers_s: Seconds until a question was answered.
        learns_s: Seconds until everything in the log was learned, and served.
        version: The version that was served then.
        acknowledged: Acknowledgements since the kill before was over.
    """

    victim: str
    step: str
    point: str
    answers_s: float = 0.0
    learns_s: float = 0.0
    version: int = 0
    acknowledged: int = 0


class Service:
    """A service over a log of its own.

    Args:
        document: Its settings.
        base_urls: Where it listens; the first is asked whether it answers.
        clients: How many ask at once.
        seed: Draws what they ask.

    Attributes:
        ledger: The acknowledgements that its clients received.
        traffic: The clients.
        kills: Those so far.
        patience_s: How long it may take to come back.
    """

    patience_s = PATIENCE_S

    def __init__(self, document: dict[str, Any], base_urls: Sequence[str], clients: int, seed: int) -> None:
        self.ledger = Ledger()
        self.kills: list[Kill] = []
        self.traffic = Traffic(base_urls, self.ledger, clients, seed, patience_s=self.patience_s)
        self._document = document
        self._http = httpx.Client(base_url=base_urls[0], timeout=PATIENCE_S)
        self._probes = 0
        self._counted = 0

    @property
    def output(self) -> str:
        """What its processes wrote last."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise what a client stopped for, if one did."""
        self.traffic.check()

    def begin(self) -> None:
        """Wait until the service answers, and let the clients ask. Raises CrashError."""
        self.asked()
        self.traffic.begin()

    def recovered(self, kill: Kill, began: float) -> Kill:
        """Wait until the service answers, and has learned what the log holds; note the kill down.

        Args:
            kill: What was killed.
            began: When, by the monotonic clock.

        Raises:
            CrashError: That takes too long.
        """
        self.asked()
        kill.answers_s = time.monotonic() - began
        kill.version = self.learned()
        kill.learns_s = time.monotonic() - began
        self.check()
        kill.acknowledged, self._counted = len(self.ledger) - self._counted, len(self.ledger)
        self.kills.append(kill)
        self.ledger.round += 1
        return kill

    def asked(self) -> None:
        """Ask a question until it is answered. Raises CrashError."""
        self._probes += 1
        key, body = f"probe-{self._probes}", {"query": "is anybody there?"}
        self.until(lambda: self._answer("/v1/retrieve", body, key))

    def learned(self) -> int:
        """Wait until the log is learned as far as it goes now, and return the version. Raises CrashError."""
        goal = self.until(lambda: self._answer("/v1/policy"))["log_seq"]

        def reached() -> dict[str, Any] | None:
            policy = self._answer("/v1/policy")
            return policy if policy is not None and policy["applied_seq"] >= goal else None

        return int(self.until(reached)["version"])

    def send(self, path: str, body: Mapping[str, Any] | None = None, key: str = "") -> httpx.Response:
        """Speak to the service. Raises httpx.TransportError."""
        if body is None:
            return self._http.get(path)
        return self._http.post(path, json=body, headers={"Idempotency-Key": key} if key else None)

    def _answer(self, path: str, body: Mapping[str, Any] | None = None, key: str = "") -> Any:
        """Return what the service says; None where it does not answer now."""
        try:
            response = self.send(path, body, key)
        except httpx.TransportError:
            return None
        return response.json() if response.is_success else None

    def until(self, look: Callable[[], T | None]) -> T:
        """Look again and again until there is something to see. Raises CrashError."""
        deadline = time.monotonic() + self.patience_s
        while time.monotonic() < deadline:
            if (value := look()) is not None:
                return value
            self.check()
            time.sleep(LOOK_S)
        raise CrashError(f"the service did not come back within {self.patience_s:g} s:\n{self.output}")

    def quiet(self) -> None:
        """Let the clients end, and wait until all their feedback is learned. Raises CrashError."""
        self.traffic.end()
        self.check()
        self.learned()

    def close(self) -> None:
        """Kill its processes for good."""
        self._http.close()

    def audited(self) -> Verdict:
        """Check the log, which has no writers any more."""
        return audit(self._document, self.ledger)

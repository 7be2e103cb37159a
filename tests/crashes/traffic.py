"""Clients that ask and judge over HTTP, send again what was not answered, and write down what was.

A response with a 2xx, or the beginning of a stream, is an acknowledgement: the log must have the same
content. A request is repeated under the same key until it is acknowledged.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any

import httpx
import numpy as np
import orjson

from armwise.feedback.events import UNRECOVERED
from tests.crashes.children import BAD_WORD, PATIENCE_S, CrashError
from tests.crashes.ledger import Ledger

PAUSE_S = 0.02
"""Between two turns of a client, and before it sends something again."""

ANSWER_S = 5.0
"""How long a client waits for an answer before it asks again."""

WORDS = ("river", "king", "bridge", "moon", "city", "sea")
AGAIN = frozenset({408, 429, 503})
"""Answers after which the same is sent again."""


class Client:
    """One client, with one request under way at a time.

    Args:
        base_urls: Where the service listens; where one does not answer, the next one is asked.
        ledger: Records its acknowledgements.
        name: Begins its keys.
        rng: Draws what it asks and says.
        second: A metric that it judges by besides `thumb`: 0 or 1.
        patience_s: How long it sends one thing again and again before it gives up.
    """

    def __init__(
        self,
        base_urls: Sequence[str],
        ledger: Ledger,
        name: str,
        rng: np.random.Generator,
        second: str,
        patience_s: float,
    ) -> None:
        self._base_urls = cycle(base_urls)
        self._http = httpx.Client(base_url=next(self._base_urls), timeout=ANSWER_S)
        self._ledger = ledger
        self._name = name
        self._rng = rng
        self._second = second
        self._patience_s = patience_s
        self._turns = 0
        self._last = "nothing"  # the last refusal

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def turn(self) -> None:
        """Ask, and say how good it was: in one of many ways."""
        self._turns += 1
        key, rng = f"{self._name}-{self._turns}", self._rng
        options: dict[str, Any] = {"explore": bool(rng.random() < 0.9)}
        episode = f"{self._name}-e{self._turns // 4}" if rng.random() < 0.3 else None
        options |= {"episode_id": episode, "defer_activation": bool(rng.random() < 0.15)}
        early = rng.random() < 0.1
        if early:
            self._judge(key, None)
        answered = self.ask(key, options)
        if answered and options["defer_activation"] and rng.random() < 0.7:
            self._activate(key)
        if not early and rng.random() < 0.8:
            self._judge(key, episode if rng.random() < 0.3 else None)

    def ask(self, key: str, options: Mapping[str, Any]) -> bool:
        """Ask one question until it is answered; say whether it is worth judging."""
        rng = self._rng
        question = f"which {rng.choice(WORDS)} runs by the {rng.choice(WORDS)} of number {self._turns}?"
        if rng.random() < 0.1:
            question += f" {BAD_WORD}"
        model = "arm/bm25" if rng.random() < 0.05 else "auto"
        if rng.random() < 0.5:
            query = {"query": question, "model": model, "agent": options}
            return self._until(lambda: self._whole("/v1/retrieve", query, key))
        body = {"messages": [{"role": "user", "content": question}], "model": model, "agent": options}
        if rng.random() < 0.5:
            return self._until(lambda: self._whole("/v1/chat/completions", body, key))
        return self._until(lambda: self._streamed(body | {"stream": True}, key))

    # -- one attempt -----------------------------------------------------------------------------

    def _whole(self, path: str, body: Mapping[str, Any], key: str) -> bool | None:
        response = self._http.post(path, json=body, headers={"Idempotency-Key": key})
        if response.status_code != 200:
            return self._failed(response, key)
        answer = response.json()
        choices = answer.get("choices")
        text = choices[0]["message"]["content"] if choices else None
        self._ledger.note_answer(answer["agent"], text, over=True)
        return True

    def _streamed(self, body: Mapping[str, Any], key: str) -> bool | None:
        headers = {"Idempotency-Key": key}
        with self._http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
            if response.status_code != 200:
                response.read()
                return self._failed(response, key)
            words = ""
            for line in response.iter_lines():
                event = line.removeprefix("data: ")
                if not event or event.startswith(":") or event == "[DONE]":
                    continue  # a comment says that the stream goes on
                frame = orjson.loads(event)
                if "error" in frame:
                    code = frame["error"]["code"]
                    if code in UNRECOVERED:
                        self._ledger.note_failure(key, code)
                        return False
                    return None if frame["error"]["retryable"] else self._is_odd(200, event)
                delta, ours = frame["choices"][0]["delta"], frame.get("agent")
                words += delta.get("content", "")
                if ours is not None:
                    self._ledger.note_answer(ours, words, over=ours["cost"] is not None)
        return True

    def _failed(self, response: httpx.Response, key: str) -> bool | None:
        """Return what an answer other than 200 means: False for an end, None for another attempt."""
        status, self._last = response.status_code, response.text
        error = response.json()["error"]
        if status in AGAIN and (status == 408 or "retry-after" in response.headers):
            self._ledger.refused += 1
            return None
        if error["code"] in UNRECOVERED:
            self._ledger.note_failure(key, error["code"])
            return False
        if status == 409 and "not answered" in error["message"]:
            self._ledger.note_failure(key, None)
            return False
        return self._is_odd(status, response.text)

    def _is_odd(self, status: int, text: str) -> bool:
        self._ledger.odd.append(f"{status}: {text}")
        return False

    def _until(self, attempt: Callable[[], bool | None]) -> bool:
        """Try until there is an outcome. Raises CrashError where that takes too long."""
        deadline = time.monotonic() + self._patience_s
        while time.monotonic() < deadline:
            try:
                outcome = attempt()
            except httpx.TransportError as error:
                outcome, self._last = None, repr(error)
                self._http.base_url = httpx.URL(next(self._base_urls))
            if outcome is not None:
                return outcome
            time.sleep(PAUSE_S)
        raise CrashError(f"client {self._name} got no answer in {self._patience_s:g} s but {self._last}")

    # -- judging -----------------------------------------------------------------------------------

    def _judge(self, key: str, episode: str | None) -> None:
        rng = self._rng
        about = {"decision_id": key} if episode is None else {"episode_id": episode}
        value, right = float(rng.uniform(-1, 1)), float(rng.random() < 0.5)
        thumb = {**about, "feedback_id": f"{key}-t", "metric_name": "thumb", "value": value}
        truth = {**about, "feedback_id": f"{key}-r", "metric_name": self._second, "value": right}
        items = [thumb, truth][: 1 + int(rng.random() < 0.4)]
        self._tell(items)
        if rng.random() < 0.1:
            self._tell(items)  # a client that did not trust its ears
        if rng.random() < 0.1:
            self._tell([{**thumb, "value": None}])

    def _tell(self, items: list[dict[str, Any]]) -> None:
        body = items[0] if len(items) == 1 else {"items": items}

        def attempt() -> bool | None:
            response = self._http.post("/v1/feedback", json=body)
            if response.status_code != 202:
                return self._failed(response, items[0]["feedback_id"])
            receipt = response.json()
            rows = receipt["items"] if len(items) > 1 else [receipt]
            for item, row in zip(items, rows, strict=True):
                if "error" in row:
                    return None if row["error"]["retryable"] else self._is_odd(202, response.text)
                self._ledger.note_receipt(item, row)
            return True

        self._until(attempt)

    def _activate(self, key: str) -> None:
        def attempt() -> bool | None:
            response = self._http.post(f"/v1/decisions/{key}/activate")
            if response.status_code != 202:
                return self._failed(response, key)
            self._ledger.note_receipt({"feedback_id": key, "decision_id": key}, response.json())
            return True

        self._until(attempt)


class Traffic:
    """Several clients at once, each in its thread, until it is stopped.

    Args:
        base_urls: Where the service listens; each client begins with another one.
        ledger: Records their acknowledgements.
        clients: How many.
        seed: Draws what they ask and say.
        second: A metric that they judge by besides `thumb`: 0 or 1.
        patience_s: How long they send one thing again and again before they give up.
    """

    def __init__(
        self,
        base_urls: Sequence[str],
        ledger: Ledger,
        clients: int,
        seed: int,
        *,
        second: str = "right",
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._over = threading.Event()
        self._asking = threading.Event()
        self._asking.set()
        self._failure: Exception | None = None
        askers = [
            Client(
                [*base_urls[number % len(base_urls) :], *base_urls[: number % len(base_urls)]],
                *(ledger, f"c{number}", np.random.default_rng(child), second, patience_s),
            )
            for number, child in enumerate(np.random.SeedSequence(seed).spawn(clients))
        ]
        self._threads = [threading.Thread(target=self._run, args=(client,), daemon=True) for client in askers]

    def begin(self) -> None:
        """Let the clients begin to ask."""
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Let every client end its turn, and wait for that."""
        self._over.set()
        self._asking.set()
        for thread in self._threads:
            thread.join()

    def pause(self) -> None:
        """Let every client end its turn, and begin no other."""
        self._asking.clear()

    def go_on(self) -> None:
        """Let the clients ask again."""
        self._asking.set()

    def check(self) -> None:
        """Raise what a client stopped for."""
        if self._failure is not None:
            raise self._failure

    def _run(self, client: Client) -> None:
        try:
            while not self._over.wait(PAUSE_S):
                self._asking.wait()
                client.turn()
        except Exception as error:  # noqa: BLE001 - raised where the traffic is checked
            self._failure = error
        finally:
            client.close()

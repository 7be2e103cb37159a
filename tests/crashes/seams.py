"""The points of a child: our own seams, wrapped in its process and nowhere else.

The product is not changed for them. What a child commits is named by the function that it is in,
so that one wrapper round the commits of a store serves all of them.
"""

import threading
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import wraps
from itertools import count
from typing import Any

from armwise.agent.hosts import learner as learner_host
from armwise.agent.policies.vowpal import VowpalWabbit
from armwise.agent.turn import Decider
from armwise.feedback.events import Decision, Execution, Feedback, Tick
from armwise.feedback.log import GroupCommit, Receipt, Store
from armwise.feedback.log.append import FeedbackStatus
from armwise.feedback.registry import versions
from armwise.feedback.training_log import Joiner
from armwise.feedback.training_log import joiner as joins
from tests.crashes.points import LEARNER, REPLICA, Tripwire

Function = Callable[..., Any]


def _wrap(owner: Any, name: str, wrapper: Callable[[Function], Function]) -> None:
    """Put a wrapper round a function of a class or a module."""
    function = getattr(owner, name)
    setattr(owner, name, wraps(function)(wrapper(function)))


def watch_replica(trip: Tripwire) -> None:
    """Place the points of an ingress replica."""
    _watch_commits(trip)
    _wrap(Decider, "decide", _passing(trip, after="arm drawn"))
    loaded = count()

    def queueing(append: Function) -> Function:
        def watched(self: GroupCommit, *facts: Any) -> Any:
            if isinstance(facts[0], Feedback):
                trip.reach("feedback received")
            return append(self, *facts)

        return watched

    def serving(load: Function) -> Function:
        def watched(self: VowpalWabbit, state: bytes) -> VowpalWabbit:
            policy: VowpalWabbit = load(self, state)
            trip.reach("version about to be served" if next(loaded) else "first version about to be served")
            return policy

        return watched

    _wrap(GroupCommit, "append", queueing)
    _wrap(VowpalWabbit, "load", serving)


def watch_learner(trip: Tripwire) -> None:
    """Place the points of the learner."""
    _watch_commits(trip)
    _wrap(Joiner, "advance", _committing("join"))
    _wrap(versions, "publish", _committing("version"))
    _wrap(learner_host, "take_epoch", _committing("epoch"))
    _wrap(joins, "read_window", _passing(trip, after="facts joined"))
    _wrap(VowpalWabbit, "load", _passing(trip, before="state about to be resumed"))
    _wrap(VowpalWabbit, "learn", _passing(trip, after="example learned"))
    _wrap(VowpalWabbit, "save", _passing(trip, before="state asked for", after="state saved"))


def _passing(trip: Tripwire, *, before: str = "", after: str = "") -> Callable[[Function], Function]:
    """Wrap a function that passes points on its way in and out."""

    def wrapper(function: Function) -> Function:
        def passing(*args: Any, **kwargs: Any) -> Any:
            trip.reach(before)
            result = function(*args, **kwargs)
            trip.reach(after)
            return result

        return passing

    return wrapper


# -- commits -----------------------------------------------------------------------------------------

_FACTS = {Decision: "decision", Execution: "execution", Feedback: "feedback", Tick: "tick"}
_thread = threading.local()


def _what() -> tuple[str, ...]:
    """Return what this thread is about to commit."""
    facts: tuple[str, ...] = getattr(_thread, "what", ())
    return facts


@contextmanager
def _about_to_commit(*what: str) -> Iterator[None]:
    before = _what()
    _thread.what = what
    try:
        yield
    finally:
        _thread.what = before


def _committing(what: str) -> Callable[[Function], Function]:
    """Wrap a function whose transactions commit something."""

    def wrapper(function: Function) -> Function:
        def named(*args: Any, **kwargs: Any) -> Any:
            with _about_to_commit(what):
                return function(*args, **kwargs)

        return named

    return wrapper


def _watch_commits(trip: Tripwire) -> None:
    """Let every commit of facts, of the training log, of versions and of epochs pass two points."""

    def writing(open_transaction: Function) -> Function:
        @contextmanager
        def watched(self: Store) -> Iterator[Any]:
            what = _what()
            with open_transaction(self) as connection:
                yield connection
                trip.reach(*(f"{name} inserted" for name in what))
            trip.reach(*(f"{name} committed" for name in what))

        return watched

    def appending(append: Function) -> Function:
        def watched(self: Store, facts: Any) -> list[Receipt]:
            what = dict.fromkeys(_FACTS[type(fact)] for fact in facts)
            with _about_to_commit(*what):
                receipts: list[Receipt] = append(self, facts)
                return receipts

        return watched

    for transaction in ("writing", "_appending"):
        _wrap(Store, transaction, writing)
    _wrap(Store, "append", appending)


# -- answers -----------------------------------------------------------------------------------------

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

BEGINS = {
    "/v1/feedback": "receipt begins",
    "/v1/retrieve": "answer begins",
    "/v1/chat/completions": "answer begins",
}
"""The point that an answer passes before its first byte, by the path that was asked for."""


def watch_answers(app: Application, trip: Tripwire) -> Application:
    """Return the same ASGI application, whose answers pass points before and between their parts."""

    async def watched(scope: Message, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                trip.reach(BEGINS.get(scope["path"], ""))
            await send(message)
            if message["type"] == "http.response.body" and message.get("more_body"):
                trip.reach("answer half out")

        await app(scope, receive, sending)

    return watched


# -- what shows that the checks can fail -----------------------------------------------------------------


def acknowledge_early() -> None:
    """Break a replica: what is appended counts as durable before it is."""

    def appending(append: Function) -> Function:
        def promised(self: GroupCommit, *facts: Any) -> Any:
            future = append(self, *facts)
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            early = future.get_loop().create_future()
            early.set_result([Receipt(1, FeedbackStatus.STORED) for _ in facts])
            return early

        return promised

    _wrap(GroupCommit, "append", appending)


def learn_twice() -> None:
    """Break a learner: what it learns first after its start, it learns twice."""
    learned = count()

    def learning(learn: Function) -> Function:
        def doubled(self: VowpalWabbit, decision: Decision, reward: float) -> None:
            learn(self, decision, reward)
            if not next(learned):
                learn(self, decision, reward)

        return doubled

    _wrap(VowpalWabbit, "learn", learning)


SABOTAGE = {"early": (REPLICA, acknowledge_early), "twice": (LEARNER, learn_twice)}
"""How each process can be broken, by the name of what it then does."""

"""A world whose processes, threads, event loops and clock are a function of a seed.

Everything runs in one thread of the machine. A simulated thread is a greenlet; where one would wait, it
hands over to the scheduler, which draws the next one that can run, and moves the clock where none can. A
process may be killed wherever one of its threads waits: these never run again, not even their `finally`.

`time`, the randomness and the process ids of the operating system, and the threads of our modules are
replaced once in a process, by `install`, before anything of ours is imported, since default arguments keep
what they were given then. They are the real ones outside of a world.
"""

import asyncio
import gc
import heapq
import os
import random
import sys
import threading as real
import time as clocks
from collections import deque
from collections.abc import Callable
from concurrent import futures
from contextlib import suppress
from types import ModuleType, SimpleNamespace, TracebackType
from typing import Any, NoReturn, Self

import greenlet

EPOCH = 1_790_000_000.0
"""The time at which a world begins, seconds since the epoch."""

MOST_STEPS = 400_000
"""Steps after which a world is called endless."""

BETWEEN_CALLBACKS = 0.25
"""Probability that others run between two rounds of callbacks of an event loop."""

_urandom = os.urandom


class StuckError(Exception):
    """A world in which something waits that nothing will wake, or that does not come to rest."""


class Process:
    """A simulated process.

    Attributes:
        ahead_s: What its wall clock is ahead of the world's, seconds.
        at_commit: Called before and after each of its commits, with whether it is done.
        at_death: Called once it is dead.
        threads: How many it has that have not ended; work that waits for a thread has one here.
        most_threads: The largest number of these so far.
    """

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number = name, number
        self.threads = self.most_threads = 0
        self.alive = True
        self.ahead_s = 0.0
        self.at_commit: Callable[[bool], None] | None = None
        self.at_death: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"{self.name}/{self.number}"


class Thread:
    """A simulated thread."""

    __slots__ = ("_hooks", "_loop", "blocked", "greenlet", "name", "process", "ticket", "woken")

    def __init__(self, process: Process, name: str, run: Callable[[], None], hub: Any) -> None:
        self.process, self.name = process, name
        self.greenlet = greenlet.greenlet(run, parent=hub)
        self.blocked = self.woken = False
        self.ticket = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hooks: Any = (None, None)

    def resume(self) -> None:
        """Run until it waits; the running event loop is one of a thread, and there are many here."""
        if self._loop is not None:
            asyncio._set_running_loop(self._loop)
            sys.set_asyncgen_hooks(*self._hooks)
        self.greenlet.switch()
        self._loop = asyncio._get_running_loop()
        if self._loop is not None:
            self._hooks = tuple(sys.get_asyncgen_hooks())  # the collector does not see into the original
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(None, None)


class World:
    """The scheduler, the clock and the processes.

    Args:
        seed: Draws every choice.

    Attributes:
        now: Seconds since the beginning.
        steps: Choices so far.
        processes: All that were started.
        loops: All event loops.
        trace: What happened, for people: a time, a process and a text each.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"{seed}/schedule")
        self.random_bytes = random.Random(f"{seed}/system")
        self.now, self.steps = 0.0, 0
        self.over = False
        self.trace: list[tuple[float, str, str]] = []
        self.digest = 0
        self._hub = greenlet.getcurrent()
        self._ready: list[Thread] = []
        self._timers: list[tuple[float, int, int, Thread]] = []
        self._order = 0
        self.processes: list[Process] = []
        self._threads: list[Thread] = []
        self._stalled: dict[Process, list[Thread]] = {}
        self._errors: list[BaseException] = []
        self.loops: list[EventLoop] = []
        self.current: Thread | None = None
        self.outside = Process("outside", 0)

    @property
    def process(self) -> Process:
        """The process that runs now."""
        return self.outside if self.current is None else self.current.process

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append((self.now, repr(self.process), text))

    def start_process(self, name: str) -> Process:
        """Return a new process, without a thread."""
        process = Process(name, len(self.processes) + 1)
        self.processes.append(process)
        return process

    def stall(self, process: Process) -> None:
        """Let no thread of a process run, as under SIGSTOP; what it waits for goes on."""
        if process.alive:
            self._stalled.setdefault(process, [])

    def go_on(self, process: Process) -> None:
        """Let a stalled process run again."""
        self._ready += self._stalled.pop(process, []) if process.alive else []

    def start(self, process: Process, name: str, run: Callable[[], object]) -> Thread:
        """Start a thread of a process."""

        def body() -> None:
            try:
                run()
            except greenlet.GreenletExit:
                raise
            except BaseException as error:  # noqa: BLE001 - raised by `run` of the world
                self._errors.append(error)
            process.threads -= 1

        process.threads += 1
        process.most_threads = max(process.most_threads, process.threads)
        thread = Thread(process, name, body, self._hub)
        self._threads.append(thread)
        self._ready.append(thread)
        return thread

    def kill(self, process: Process) -> None:
        """End a process: its threads never run again. A thread may kill its own process."""
        if not process.alive:
            return
        process.alive = False
        self._stalled.pop(process, None)
        self._ready = [thread for thread in self._ready if thread.process is not process]
        for do in process.at_death:
            do()
        if self.process is process:
            self._switch()

    # -- waiting -----------------------------------------------------------------------------------

    def pause(self) -> None:
        """Let others run."""
        assert self.current is not None
        self._ready.append(self.current)
        self._switch()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.block(max(0.0, seconds))

    def block(self, timeout_s: float | None = None) -> bool:
        """Wait to be woken, or until a time has passed; return whether it was woken."""
        thread = self.current
        if self.over or thread is None:
            raise greenlet.GreenletExit
        thread.blocked, thread.woken = True, False
        thread.ticket += 1
        if timeout_s is not None:
            self._order += 1
            heapq.heappush(self._timers, (self.now + timeout_s, self._order, thread.ticket, thread))
        self._switch()
        return thread.woken

    def wake(self, thread: Thread) -> None:
        """Let a waiting thread go on."""
        if thread.blocked and thread.process.alive:
            thread.blocked, thread.woken = False, True
            self._ready.append(thread)

    def _switch(self) -> None:
        if self.over:
            raise greenlet.GreenletExit
        self._hub.switch()
        if self.over:
            raise greenlet.GreenletExit

    # -- running -----------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool]) -> None:
        """Run until something holds. Raises StuckError, or the error of a thread."""
        while not until():
            self.step()

    def step(self) -> None:
        """Let one thread that can run go on until it waits."""
        if not self._ready:
            self._let_time_pass()
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise StuckError(f"no rest after {MOST_STEPS} steps, at {self.now:.1f} s")
        index = self.rng.randrange(len(self._ready))
        self._ready[index], self._ready[-1] = self._ready[-1], self._ready[index]
        thread = self._ready.pop()
        if thread.process in self._stalled:
            self._stalled[thread.process].append(thread)
            return
        self.current = thread
        self.digest = (self.digest * 1_000_003 + index * 31 + thread.process.number) & 0xFFFFFFFF
        try:
            thread.resume()
        finally:
            self.current = None
        if self._errors:
            raise self._errors[0]

    def _let_time_pass(self) -> None:
        while self._timers:
            at, _, ticket, thread = heapq.heappop(self._timers)
            if thread.blocked and thread.ticket == ticket and thread.process.alive:
                self.now = max(self.now, at)
                thread.blocked = False
                self._ready.append(thread)
                return
        raise StuckError(f"everything waits, at {self.now:.3f} s")

    def end(self) -> None:
        """End all threads, dead ones too."""
        self.over = True
        for thread in self._threads:
            if thread.greenlet:
                with suppress(BaseException):  # what a `finally` says of a world that is gone
                    thread.greenlet.throw(greenlet.GreenletExit)
        asyncio._set_running_loop(None)
        sys.set_asyncgen_hooks(None, None)
        for loop in self.loops:
            loop.close()


WORLD: list[World] = []
"""The world that runs, if one does."""


def _now() -> World | None:
    return WORLD[-1] if WORLD else None


# -- the module `time`, and the system's randomness ------------------------------------------------------


def _clock(real_clock: Callable[[], float], simulated: Callable[[World], float]) -> Callable[[], float]:
    def read() -> float:
        world = _now()
        return real_clock() if world is None else simulated(world)

    return read


def _sleep(real_sleep: Callable[[float], None]) -> Callable[[float], None]:
    def sleep(seconds: float) -> None:
        world = _now()
        real_sleep(seconds) if world is None else world.sleep(seconds)

    return sleep


def _random_bytes(n: int) -> bytes:
    world = _now()
    return _urandom(n) if world is None else world.random_bytes.randbytes(n)


def install() -> None:
    """Replace the clocks and the randomness of this process; before anything of ours is imported."""

    def wall(world: World) -> float:
        return EPOCH + world.now + world.process.ahead_s

    def steady(world: World) -> float:
        return world.now

    gettime = clocks.clock_gettime
    patched = {
        "time": _clock(clocks.time, wall),
        "monotonic": _clock(clocks.monotonic, steady),
        "perf_counter": _clock(clocks.perf_counter, steady),
        "sleep": _sleep(clocks.sleep),
        "time_ns": lambda real_ns=clocks.time_ns: real_ns() if _now() is None else int(wall(WORLD[-1]) * 1e9),
        "clock_gettime": lambda which: gettime(which) if _now() is None else WORLD[-1].now,
    }
    for name, function in patched.items():
        setattr(clocks, name, function)
    freeze = gc.freeze
    gc.freeze = lambda: freeze() if _now() is None else None  # it would keep what is left of earlier worlds
    getpid = os.getpid
    os.getpid = lambda: getpid() if _now() is None else 1000 + WORLD[-1].process.number
    os.urandom = _random_bytes
    random._urandom = _random_bytes  # type: ignore[attr-defined]


def replace_threads(package: str) -> None:
    """Let all loaded modules of a package use simulated threads."""
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] != package:
            continue
        if getattr(module, "threading", None) is real:
            module.threading = THREADING  # type: ignore[attr-defined]
        if getattr(module, "ThreadPoolExecutor", None) is futures.ThreadPoolExecutor:
            module.ThreadPoolExecutor = ThreadPool  # type: ignore[attr-defined]


# -- the module `threading` --------------------------------------------------------------------------------


class Lock:
    """A lock; also one that its owner may take again."""

    again = False

    def __init__(self) -> None:
        self._owner: Thread | object | None = None
        self._times = 0
        self._waiting: deque[Thread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it."""
        world = WORLD[-1]
        me = world.current or world
        if self._owner is None or (self.again and self._owner is me):
            self._owner, self._times = me, self._times + 1
            return True
        if not blocking:
            return False
        assert world.current is not None
        deadline = None if timeout < 0 else world.now + timeout
        while self._owner is not None:
            if deadline is not None and world.now >= deadline:
                return False
            self._waiting.append(world.current)
            world.block(None if deadline is None else deadline - world.now)
        self._owner, self._times = me, 1
        return True

    def release(self) -> None:
        """Give it back."""
        self._times -= 1
        if self._times:
            return
        self._owner = None
        for thread in self._waiting:
            WORLD[-1].wake(thread)
        self._waiting.clear()

    def locked(self) -> bool:
        """Whether somebody has it."""
        return self._owner is not None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """A lock that its owner may take again."""

    again = True


class Condition:
    """A condition."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or RLock()
        self._waiting: deque[Thread] = deque()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait to be notified."""
        world = WORLD[-1]
        assert world.current is not None
        self._waiting.append(world.current)
        self._lock.release()
        woken = world.block(timeout)
        self._lock.acquire()
        return woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until something holds."""
        world = WORLD[-1]
        deadline = None if timeout is None else world.now + timeout
        while not (result := predicate()):
            left = None if deadline is None else deadline - world.now
            if left is not None and left <= 0:
                return result
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        """Wake some."""
        for _ in range(min(n, len(self._waiting))):
            WORLD[-1].wake(self._waiting.popleft())

    def notify_all(self) -> None:
        """Wake all."""
        self.notify(len(self._waiting))


class Event:
    """An event."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[Thread] = []

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it."""
        self._is_set = True
        for thread in self._waiting:
            WORLD[-1].wake(thread)
        self._waiting.clear()

    def clear(self) -> None:
        """Clear it."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set."""
        world = WORLD[-1]
        if self._is_set:
            return True
        if timeout is not None and timeout <= 0:
            world.pause()
            return self._is_set
        assert world.current is not None
        self._waiting.append(world.current)
        world.block(timeout)
        return self._is_set


class BoundedSemaphore:
    """A number of places."""

    def __init__(self, value: int = 1) -> None:
        self._free = value
        self._waiting: deque[Thread] = deque()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take a place."""
        world = WORLD[-1]
        deadline = None if timeout is None else world.now + timeout
        while not self._free:
            if not blocking or (deadline is not None and world.now >= deadline):
                return False
            assert world.current is not None
            self._waiting.append(world.current)
            world.block(None if deadline is None else deadline - world.now)
        self._free -= 1
        return True

    def release(self) -> None:
        """Give a place back."""
        self._free += 1
        if self._waiting:
            WORLD[-1].wake(self._waiting.popleft())

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class _Started:
    """A thread as our modules know it."""

    def __init__(
        self,
        target: Callable[..., object],
        name: str = "thread",
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        daemon: bool = True,
    ) -> None:
        del daemon
        self.name = name
        self._run = lambda: target(*args, **(kwargs or {}))
        self._ended = Event()
        self._begun = False

    def start(self) -> None:
        """Start it, in the process that runs."""

        def run() -> None:
            try:
                self._run()
            finally:
                if not WORLD[-1].over:
                    self._ended.set()

        world = WORLD[-1]
        self._begun = True
        world.start(world.process, self.name, run)

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended."""
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._begun and not self._ended.is_set()


class ThreadPool:
    """Threads that share a queue, in the process that made them."""

    def __init__(self, max_workers: int, thread_name_prefix: str = "pool") -> None:
        self._most, self._name = max_workers, thread_name_prefix
        self._running, self._closed = 0, False
        self._queued: deque[tuple[futures.Future[Any], Callable[[], Any]]] = deque()

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> "futures.Future[Any]":
        """Run a function once a thread is free."""
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: futures.Future[Any] = futures.Future()
        self._queued.append((future, lambda: function(*args, **kwargs)))
        if self._running < self._most:
            self._running += 1
            world = WORLD[-1]
            world.start(world.process, self._name, self._work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept nothing more."""
        del wait
        self._closed = True
        while cancel_futures and self._queued:
            self._queued.popleft()[0].cancel()

    def _work(self) -> None:
        while self._queued:
            future, function = self._queued.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function()
            except greenlet.GreenletExit:
                raise
            except BaseException as error:  # noqa: BLE001 - given to whoever awaits it
                future.set_exception(error)
            else:
                future.set_result(result)
        self._running -= 1


def _unknown(name: str) -> NoReturn:
    raise AttributeError(f"threading.{name} has no simulated counterpart")


class _Threading(ModuleType):
    def __getattr__(self, name: str) -> Any:
        _unknown(name)


THREADING = _Threading("threading")
THREADING.__dict__.update(
    Thread=_Started,
    Lock=Lock,
    RLock=RLock,
    Condition=Condition,
    Event=Event,
    BoundedSemaphore=BoundedSemaphore,
    Semaphore=BoundedSemaphore,
    get_ident=lambda: id(WORLD[-1].current),
    local=SimpleNamespace,
)


# -- event loops ---------------------------------------------------------------------------------------------


class EventLoop(asyncio.BaseEventLoop):
    """An event loop of a simulated process: it waits by the scheduler, and its executor is a thread each."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world, self._process = world, world.process
        self._thread, self._selecting = world.current, False
        self._selector = self  # type: ignore[assignment]
        self.set_exception_handler(self._failed)
        world.loops.append(self)

    def time(self) -> float:
        """Return seconds of the world."""
        return self._world.now

    def select(self, timeout: float | None) -> list[Any]:
        """Wait for a callback or a timer."""
        if timeout is not None and timeout <= 0:
            if self._world.rng.random() < BETWEEN_CALLBACKS:
                self._world.pause()
            return []
        self._selecting = True
        self._world.block(timeout)
        self._selecting = False
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        del event_list

    def _write_to_self(self) -> None:
        if self._selecting and self._thread is not None:
            self._world.wake(self._thread)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Run a function in a thread of its own."""
        del executor
        future = self.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def run() -> None:
            result, error = None, None
            try:
                result = func(*args)
            except greenlet.GreenletExit:
                raise
            except BaseException as raised:  # noqa: BLE001 - given to whoever awaits it
                error = raised
            self.call_soon_threadsafe(settle, result, error)

        self._world.start(self._process, "executor", run)
        return future

    def _failed(self, _loop: Any, context: dict[str, Any]) -> None:
        if not self._world.over:
            self._world.note(f"event loop: {context.get('message')} {context.get('exception')!r}")

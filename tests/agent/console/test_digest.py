"""The digest: what a reader of Slack sees, what arrives, and that nothing arrives twice."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.agent.config import AppConfig, DigestSpec, load
from armwise.agent.console.changes import list_changes
from armwise.agent.console.digest import (
    Delivery,
    describe,
    post,
    read_body,
    send_claimed,
    send_now,
    write_message,
)
from armwise.agent.console.digest_task import Digests
from armwise.agent.console.period import read_period
from armwise.feedback.guard import Fall, GuardSpec, make_key
from armwise.feedback.log import Store
from armwise.feedback.registry import DigestState, arm_sets, digests, guards
from armwise.feedback.training_log import take_epoch
from tests.agent.canned_service import ANY, Canned
from tests.agent.cli.test_cli import said
from tests.agent.evaluation.logged import BEGIN, World, configured, fill, quietly

WORLD = World({"small": 0.4, "large": 0.8}, usd={"small": 0.001, "large": 0.02}, every_s=60.0)

DAY = 86400.0

SPAN = BEGIN, BEGIN + DAY


@pytest.fixture
def receiver() -> Iterator[Canned]:
    with closing(Canned()) as receiver:
        receiver.reply(ANY, b"ok")
        yield receiver


@pytest.fixture
def config(tmp_path: Path, receiver: Canned) -> AppConfig:
    path = configured(tmp_path, WORLD)
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    document["applications"][0]["args"]["digest"] = {"url": f"{receiver.url}/T0/secret", "by": "ask"}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    (tmp_path / "home").mkdir(mode=0o700)
    return load(path, ["router"])


@pytest.fixture
def store(config: AppConfig) -> Iterator[Store]:
    """A log with a day of decisions."""
    with closing(Store(config.database_url, config.reward.join)) as store:
        arm_sets.start(store, {name: {"kind": "none"} for name in WORLD.right})
        fill(store, WORLD, 600, seed=3)
        yield store


def spec_of(config: AppConfig) -> DigestSpec:
    assert config.digest is not None
    return config.digest


def texts_of(message: dict[str, Any]) -> list[str]:
    blocks = message["blocks"]
    sections = [block["text"]["text"] for block in blocks if "text" in block]
    return [*sections, *(each["text"] for block in blocks for each in block.get("elements", ()))]


# -- what is sent ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_message_has_what_was_saved_quality_by_class_what_changed_and_what_to_decide(
    store: Store, config: AppConfig
) -> None:
    period = read_period(store, config, *SPAN, quietly, "ask")
    held = (BEGIN + 60.0, "The gate held version 7: too few ratings.")
    failing = replace(period.arms[0], failed=60)
    period = replace(period, held=(held,), arms=(failing, *period.arms[1:]))
    document = describe(period)
    assert document["decisions"] == 600
    assert {one["class"]: one["decisions"] for one in document["classes"]} == {
        "fact": 200,
        "how": 200,
        "why": 200,
    }
    counted = [int(one["population"].split()[0]) for one in (document["saved"][1], *document["classes"])]
    assert counted[0] > 200 >= max(counted[1:]), "each class is about its own answers"
    message = "\n".join(texts_of(write_message(document)))
    for heading in ("*Saved and quality*", "*Quality by class*", "*What changed*", "*To decide*"):
        assert heading in message
    for one in document["saved"]:
        assert one["headline"] in message
    assert "\n\u2022 how: " in message
    assert "The gate held version 7: too few ratings. Promote it all the same, or wait." in message
    assert f"{failing.name} failed in 60 of {failing.decisions} requests" in message
    assert "600 requests, 600 with a reward. Drawn: " in message
    changes = tuple((BEGIN + day * DAY, f"change {day}") for day in range(11))
    (changed,) = (
        text
        for text in texts_of(write_message(describe(replace(period, changes=changes, held=()))))
        if "change" in text
    )
    assert changed.startswith("*What changed*\n\u2022 2023-11-24: change 10\n\u2022 2023-11-23: change 9\n")
    assert changed.endswith("change 3\n\u2026 and 3 more")


@pytest.mark.slow
def test_what_is_certainly_worse_is_to_be_decided_and_what_is_not_known_is_not(
    store: Store, config: AppConfig
) -> None:
    period = read_period(store, config, *SPAN, quietly, "ask")
    name, n, one = period.classes[0]
    sure = replace(
        one, headline="Rated answers: worse than large's", tone="warn", low=-9.0, high=-2.0, silence=""
    )
    period = replace(period, classes=((name, n, sure), *period.classes[1:]), held=())
    assert (
        f"{name}: Rated answers: worse than large's. Go back to large there, or accept it."
        in describe(period)["decide"]
    )
    config = config.model_copy(update={"guard": GuardSpec.model_construct(reference="large", by="ask")})
    send_back(store, config, replace(FALL, key=make_key(name), name=name), BEGIN + 5.0)
    for by, back in (("ask", True), ("topic", False)):
        returned = read_period(store, config, *SPAN, quietly, by).returned
        (said,) = (line for line in describe(replace(period, returned=returned))["decide"] if name in line)
        assert ("The guard sent it back to large on 2023-11-14." in said) is back
        assert ("Go back" in said) is not back
    calm = replace(period, classes=(), statements=replace(period.statements, all=()))
    assert describe(calm)["decide"] == []
    assert "*To decide*\n\u2022 Nothing." in texts_of(write_message(describe(calm)))


def test_texts_of_others_mention_nobody_and_forge_no_link(store: Store, config: AppConfig) -> None:
    nasty = "<!channel> & <@U1> <https://x.example|free>\n\u202egnp"
    period = read_period(store, config, *SPAN, quietly, "ask")
    statement = period.classes[0][2]
    arms = tuple(replace(arm, name=nasty, failed=99) for arm in period.arms)
    period = replace(
        period,
        arms=arms,
        classes=((nasty, 5, replace(statement, detail=nasty)),) * 3,
        changes=((BEGIN, nasty),),
        held=((BEGIN, nasty),),
    )
    message = write_message(describe(period))
    for text in (message["text"], *texts_of(message)):
        assert "<" not in text
        assert ">" not in text
        assert "\u202e" not in text
    assert "&lt;!channel&gt; &amp; &lt;@U1&gt;" in "".join(texts_of(message))
    blocks = [block["text"] for block in message["blocks"][1:-1]]
    assert all(text["verbatim"] is True for text in blocks)
    assert describe(period)["classes"][0]["class"] == nasty, "data is not escaped"


def test_a_message_is_as_long_as_slack_takes(store: Store, config: AppConfig) -> None:
    period = read_period(store, config, *SPAN, quietly)
    long = "&" * 5000
    arms = tuple(replace(arm, name=long, failed=99) for arm in period.arms)
    period = replace(period, arms=arms, changes=((BEGIN, long),) * 50, held=((BEGIN, long),) * 50)
    message = write_message(describe(period))
    assert len(message["blocks"]) <= 50
    assert max(map(len, texts_of(message))) <= 3000
    assert " more" in texts_of(message)[2]
    assert len(message["blocks"][0]["text"]["text"]) <= 150


def test_an_end_that_nothing_bounds_is_null_as_data(store: Store, config: AppConfig) -> None:
    period = read_period(store, config, *SPAN, quietly)
    open_ended = tuple(replace(one, low=-inf, high=nan) for one in period.statements.all)
    period = replace(period, statements=replace(period.statements, all=open_ended))
    document = json.loads(json.dumps(describe(period), allow_nan=False))
    assert [(one["low"], one["high"]) for one in document["saved"][:2]] == [(None, None)] * 2


def test_a_week_without_requests_says_so(store: Store, config: AppConfig) -> None:
    message = read_body(store, config, BEGIN + 90 * DAY, BEGIN + 97 * DAY, "slack", "ask")
    assert "Nothing was served. No decision was made from" in "".join(texts_of(message))
    assert read_body(store, config, BEGIN + 90 * DAY, BEGIN + 97 * DAY, "json", "ask")["decisions"] == 0


FALL = Fall("key", "tax", "large", 79.0, 94.0, 900, 900)


def send_back(store: Store, config: AppConfig, fall: Fall, at: float) -> None:
    spec = config.guard
    name = "one" if spec is None else spec.name(config.reward.join)
    guards.publish(store, take_epoch(store, "test", at), name, {"since": 0}, [fall], at)


def test_a_week_without_requests_says_what_changed_and_what_is_to_be_decided(
    store: Store, config: AppConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    span = BEGIN + 90 * DAY, BEGIN + 97 * DAY
    monkeypatch.setattr(
        "armwise.agent.console.period._list_held", lambda *span: [(span[2] - 5.0, "Run 3 was held.")]
    )
    mine = digests.claim(store, BEGIN + 80 * DAY, span[0], 1, span[0])
    assert mine is not None
    digests.advance(store, mine, DigestState.SENDING, span[0] + 1.0)  # and then its process was killed
    send_back(store, config, FALL, BEGIN + 93 * DAY)
    document = read_body(store, config, *span, "json", "ask")
    interrupted, fell, held = (one["text"] for one in document["changed"])
    assert "it may not have arrived" in interrupted
    assert "'tax' went back to large" in fell
    assert held == "Run 3 was held."
    assert document["decide"] == ["Run 3 was held. Promote it all the same, or wait."]
    assert "'tax' went back to large" in "".join(texts_of(read_body(store, config, *span, "slack", "ask")))


# -- what arrives ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (200, DigestState.SENT),
        (204, DigestState.SENT),
        (429, DigestState.REFUSED),
        (500, DigestState.REFUSED),
        (503, DigestState.REFUSED),
        (302, DigestState.FAILED),
        (400, DigestState.FAILED),
        (404, DigestState.FAILED),
        (502, DigestState.FAILED),  # the server behind a gateway may have taken it
        (504, DigestState.FAILED),
    ],
)
def test_what_was_surely_not_taken_is_tried_again(receiver: Canned, status: int, state: DigestState) -> None:
    receiver.reply(ANY, b"" if status == 204 else b"no_service", status)
    found = post(f"{receiver.url}/T0/secret", {"text": "a"})
    assert found.state is state
    assert "secret" not in found.why
    assert receiver.asked == [{"text": "a"}]
    if state is not DigestState.SENT:
        assert found.why == f"the receiver answered {status}: no_service"


def test_a_receiver_that_is_not_there_is_tried_again() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = post(f"http://127.0.0.1:{port}/T0/secret", {})
    assert found.state is DigestState.REFUSED
    assert found.why.startswith("the receiver cannot be reached")
    assert "secret" not in found.why


def test_a_receiver_that_does_not_answer_in_time_is_not_tried_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        found = post(f"http://127.0.0.1:{silent.getsockname()[1]}/", {}, timeout_s=0.2)
        assert time.monotonic() - began < 5.0
    assert found == Delivery(
        DigestState.FAILED, "the receiver did not answer within 0.2 s: it may have arrived"
    )


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 99\r\n\r\n"])
def test_a_receiver_that_answers_byte_by_byte_has_one_deadline(head: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.sendall(head)
                while not done.wait(0.05):
                    connection.sendall(b" " if head else b"H")

        done = threading.Event()
        dripping = threading.Thread(target=drip)
        dripping.start()
        began = time.monotonic()
        found = post(f"http://127.0.0.1:{server.getsockname()[1]}/", {}, timeout_s=0.5)
        took = time.monotonic() - began
        done.set()
        dripping.join()
    assert took < 5.0
    assert found.state is DigestState.FAILED
    assert "within 0.5 s" in found.why


def test_an_answer_without_end_is_not_read(receiver: Canned) -> None:
    receiver.reply(ANY, b"x" * 100_000, 400)
    assert len(post(receiver.url, {}).why) < 300


def claimed(store: Store, attempt: int = 1) -> Any:
    mine = digests.claim(store, *SPAN, attempt, BEGIN)
    assert mine is not None
    return mine


def test_what_is_sent_is_in_the_log_before_it_is_sent(store: Store, config: AppConfig) -> None:
    """So that a service that stops in between does not send it again."""
    states = []

    def send(_: str, body: Any) -> Delivery:
        assert body["text"].startswith("Armwise, ")
        newest = digests.newest(store)
        assert newest is not None
        states.append(newest.state)
        return Delivery(DigestState.SENT)

    send_claimed(store, config, spec_of(config), claimed(store), send)
    newest = digests.newest(store)
    assert newest is not None
    assert [*states, newest.state] == [DigestState.SENDING, DigestState.SENT]


def test_the_last_attempt_that_is_refused_has_failed(store: Store, config: AppConfig) -> None:
    def refuse(*_: object) -> Delivery:
        return Delivery(DigestState.REFUSED, "503")

    outcomes = [send_claimed(store, config, spec_of(config), claimed(store, n), refuse) for n in (1, 2, 3, 4)]
    assert [one.state for one in outcomes] == [*([DigestState.REFUSED] * 3), DigestState.FAILED]
    period = read_period(store, config, BEGIN, time.time() + 1.0, quietly)
    assert "failed: 503." in period.changes[-1][1]


def test_an_address_that_is_not_set_fails_without_a_try(store: Store, config: AppConfig) -> None:
    found = send_claimed(store, config, DigestSpec(url_env="NO_SUCH_URL"), claimed(store))
    assert found == Delivery(DigestState.FAILED, "digest: the environment variable NO_SUCH_URL is not set")


# -- by itself -------------------------------------------------------------------------------------


class Clock:
    now = BEGIN + 3600.0

    def __call__(self) -> float:
        return self.now


def child(code: str = "") -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True)


def test_a_task_sends_each_period_once_whatever_restarts(store: Store, config: AppConfig) -> None:
    clock, asked = Clock(), list[int]()

    def begin(_: AppConfig, number: int) -> "subprocess.Popen[bytes]":
        asked.append(number)
        mine = digests.newest(store)
        assert mine is not None
        digests.advance(store, mine, DigestState.SENT, clock())
        return child()

    for week in (1, 2):
        clock.now += 7 * DAY
        for _ in range(3):  # each time as after a restart
            task = Digests(store, config, clock, begin)
            clock.now += 60.0
            if task.due(clock.now):
                task.run(threading.Event())
        assert len(asked) == week - 1, "the first one only begins the schedule"


def test_a_task_reports_a_class_that_went_back_before_its_time(store: Store, config: AppConfig) -> None:
    clock, periods = Clock(), list[tuple[float, float]]()

    def begin(_: AppConfig, number: int) -> "subprocess.Popen[bytes]":
        mine = digests.newest(store)
        assert mine is not None
        assert mine.seq == number
        periods.append((mine.since, mine.until))
        digests.advance(store, mine, DigestState.SENT, clock())
        return child()

    task = Digests(store, config, clock, begin)
    clock.now += DAY / 2
    assert not task.due(clock.now)
    send_back(store, config, FALL, fell := clock.now)
    for _ in range(3):
        clock.now += 60.0
        if task.due(clock.now):
            task.run(threading.Event())
    assert [until for _, until in periods] == [fell + 1.0]
    ((at, text),) = list_changes((), (), (), guards.newest_falls(store, 3))
    assert at == fell
    assert "'tax' went back to large" in text


@pytest.mark.parametrize(
    ("reached", "settled", "why"),
    [
        (DigestState.READING, DigestState.REFUSED, "its process ended with status 3"),
        (DigestState.SENDING, DigestState.FAILED, "it may not have arrived"),
        (DigestState.SENT, DigestState.SENT, ""),
    ],
)
def test_a_child_that_dies_is_tried_again_only_if_nothing_was_sent(
    store: Store, config: AppConfig, reached: DigestState, settled: DigestState, why: str
) -> None:
    clock = Clock()

    def begin(*_: object) -> "subprocess.Popen[bytes]":
        mine = digests.newest(store)
        assert mine is not None
        digests.advance(store, mine, reached, clock())
        dying = child("raise SystemExit(3)")
        dying.wait()
        return dying

    task = Digests(store, config, clock, begin)
    clock.now += 7 * DAY
    assert task.due(clock.now)
    task.run(threading.Event())
    newest = digests.newest(store)
    assert newest is not None
    assert newest.state is settled
    assert why in newest.why


def test_a_child_that_takes_too_long_or_a_service_that_stops_ends_it(store: Store, config: AppConfig) -> None:
    clock, children = Clock(), list["subprocess.Popen[bytes]"]()

    def begin(*_: object) -> "subprocess.Popen[bytes]":
        children.append(child("import time; time.sleep(600)"))
        return children[-1]

    stop = threading.Event()
    stop.set()
    for lease_s, event, why in (
        (0.0, threading.Event(), "its process ended"),
        (60.0, stop, "stopped before"),
    ):
        task = Digests(store, config, clock, begin, lease_s)
        clock.now += 7 * DAY
        assert task.due(clock.now)
        task.run(event)
        newest = digests.newest(store)
        assert newest is not None
        assert newest.state is DigestState.REFUSED
        assert why in newest.why
    assert all(one.returncode is not None for one in children)


@pytest.mark.slow
def test_a_child_reads_the_log_and_sends(
    store: Store, config: AppConfig, receiver: Canned, capfd: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    task = Digests(store, config, clock)
    clock.now += 7 * DAY
    assert task.due(clock.now)
    task.run(threading.Event())
    newest = digests.newest(store)
    assert newest is not None
    assert (newest.state, newest.why) == (DigestState.SENT, "")
    assert receiver.paths == ["/T0/secret"]
    assert "secret" not in "".join(capfd.readouterr())
    assert receiver.asked[0]["text"].startswith("Armwise, 2023-11-13 09:00 UTC to 2023-11-20 09:00 UTC: ")
    assert not task.due(clock.now + 60.0)


# -- by hand ---------------------------------------------------------------------------------------


def run(*words: object, code: int = 0) -> str:
    return said(CliRunner().invoke(app, ["report", *(str(word) for word in words)]), code)


def test_it_is_sent_by_hand_which_mends_a_failure(store: Store, config: AppConfig, receiver: Canned) -> None:
    digests.advance(store, claimed(store), DigestState.FAILED, BEGIN, "404")
    receiver.reply(ANY, b"channel_is_archived", 410)
    found = send_now(store, config, spec_of(config), *SPAN)
    assert found.why == "the receiver answered 410: channel_is_archived"
    newest = digests.newest(store)
    assert newest is not None
    assert newest.state is DigestState.FAILED
    receiver.reply(ANY, b"ok")
    assert send_now(store, config, spec_of(config), *SPAN).state is DigestState.SENT
    newest = digests.newest(store)
    assert newest is not None
    assert newest.state is DigestState.SENT


@pytest.mark.slow
@pytest.mark.usefixtures("store")
def test_the_command_sends_or_prints_what_would_be_sent(receiver: Canned, tmp_path: Path) -> None:
    words = ("-c", tmp_path / "config.yaml", "--since", "2023-11-14", "--until", "2023-11-16", "--send")
    printed = json.loads(
        CliRunner().invoke(app, ["report", *map(str, words), "--dry-run"]).stdout, strict=False
    )
    assert receiver.paths == []
    assert "The digest was sent." in run(*words)
    assert receiver.asked == [printed]
    receiver.reply(ANY, b"invalid_token", 403)
    assert "The digest was not sent: the receiver answered 403: invalid_token." in run(*words, code=1)
    assert "leave out --output and --text" in run(*words, "--text", code=2)


@pytest.mark.slow
@pytest.mark.usefixtures("store")
def test_without_the_setting_the_command_says_which(tmp_path: Path) -> None:
    path = configured(tmp_path, WORLD)
    assert "set `digest`, for example to {url_env: SLACK_WEBHOOK_URL}" in run("-c", path, "--send", code=2)

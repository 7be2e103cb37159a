"""The remote arm against a real HTTP server that misbehaves on demand."""

import gzip
import ipaddress
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tenacity import wait_none

from armwise.arms import upstream
from armwise.arms.base import Arm, ArmError, Passage, Query, QuestionRefusedError
from armwise.arms.corpus import Corpus
from armwise.arms.retrievers import ArmSpec, NewArms, Trust, new_arms, remote
from armwise.arms.retrievers.remote import (
    KIND,
    Fields,
    RemoteParams,
    UnreadableResponseError,
    at,
    fill,
    read,
)
from armwise.arms.tokenizer import words
from tests.arms.contract import check_arm

Reply = Callable[["Handler"], None]


class Server(ThreadingHTTPServer):
    """Gives the replies that it was told, in order, the last one over and over."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/search"
        self.over = threading.Event()
        self.replies: list[Reply] = []
        self.asked: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self._lock = threading.Lock()

    def note(self, method: str, asked: dict[str, Any], headers: dict[str, str]) -> Reply:
        with self._lock:
            self.asked.append((method, asked, headers))
            return self.replies[min(len(self.asked), len(self.replies)) - 1]

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that hang up."""


class Handler(BaseHTTPRequestHandler):
    """Reads a request and leaves the reply to the server's script."""

    server: Server
    protocol_version = "HTTP/1.1"  # connections are kept
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        asked = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        self.server.note("GET", asked, dict(self.headers))(self)

    def do_POST(self) -> None:
        asked = orjson.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.note("POST", asked, dict(self.headers))(self)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


def say(status: int, content: bytes = b"", **headers: str) -> Reply:
    return lambda handler: handler.answer(
        status, content, {name.replace("_", "-"): value for name, value in headers.items()}
    )


def found(*results: object) -> Reply:
    return say(200, orjson.dumps({"results": list(results)}))


def stay_silent(handler: Handler) -> None:
    handler.server.over.wait()
    handler.close_connection = True


def drip(handler: Handler) -> None:
    """Send a byte of an endless answer now and then: no single wait of the client is long."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    while not handler.server.over.wait(0.01):
        handler.wfile.write(b" ")


def hang_up(handler: Handler) -> None:
    handler.close_connection = True


ONE = {"id": "a", "title": "A", "text": "one"}
TWO = {"id": "b", "title": "B", "text": "two"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(remote, "random_pause_s", wait_none())
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    thread.join()
    server.server_close()


def build(server: Server, trust: Trust | None = None, **params: object) -> Arm:
    told = {"url": server.url, "request": {"q": "{question}", "k": "{k}"}, **params}
    no_member: Any = None
    have: Any = SimpleNamespace(trust=trust)
    return KIND.build("far", RemoteParams.model_validate(told), have, no_member)


def ids(arm: Arm, k: int = 9) -> list[str]:
    return [passage.id for passage in arm.search(Query("Why?"), k).passages]


def test_a_remote_arm_keeps_the_contract(server: Server, corpus: Corpus) -> None:
    def search(handler: Handler) -> None:
        question = set(words(handler.server.asked[-1][1]["q"]))
        shared = [(len(question & set(words(p.text))), p) for p in corpus]
        found(*({"id": p.id, "title": p.title, "text": p.text, "n": n} for n, p in shared if n))(handler)

    server.replies = [search]
    check_arm(build(server, fields={"score": "n"}), corpus)


def test_get_asks_in_the_url_and_keeps_what_stands_there(server: Server) -> None:
    server.replies = [found(ONE)]
    arm = build(
        server, url=f"{server.url}?site=x", request={"q": "on {question}", "limit": "{k}", "exact": True}
    )
    arm.search(Query("{k} & cafés?"), 3)
    assert server.asked[0][:2] == (
        "GET",
        {"site": "x", "q": "on {k} & cafés?", "limit": "3", "exact": "true"},
    )


def test_post_asks_in_a_body_and_the_answer_is_read_where_its_paths_lead(server: Server) -> None:
    hit = {"_id": "x", "_source": {"name": "X", "body": {"en": "ex"}}, "_score": 2}
    server.replies = [say(200, orjson.dumps({"hits": {"hits": [{**hit, "_id": "w", "_score": 1.5}, hit]}}))]
    arm = build(
        server,
        method="POST",
        request={"query": {"match": {"body": "{question}"}}, "size": "{k}", "fields": ["*"]},
        results="hits.hits",
        fields={"id": "_id", "title": "_source.name", "text": "_source.body.en", "score": "_score"},
    )
    answer = arm.search(Query("Why?"), 2)
    body = {"query": {"match": {"body": "Why?"}}, "size": 2, "fields": ["*"]}
    assert server.asked[0][:2] == ("POST", body)
    assert answer.passages == (Passage("x", "X", "ex", 2.0), Passage("w", "X", "ex", 1.5))
    assert (answer.steps, answer.tokens) == (1, 0)


def test_headers_come_from_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_KEY", "Bearer 42\n")
    server.replies = [found(ONE)]
    ids(build(server, header_env={"Authorization": "SEARCH_KEY"}))
    assert server.asked[0][2]["Authorization"] == "Bearer 42"


@pytest.mark.parametrize(
    ("value", "told"), [(None, "set the variable SEARCH_KEY"), ("a\nb", "SEARCH_KEY"), ("clé", "SEARCH_KEY")]
)
def test_a_header_that_cannot_be_sent_is_an_error_when_the_arm_is_built_that_keeps_it_secret(
    server: Server, monkeypatch: pytest.MonkeyPatch, value: str | None, told: str
) -> None:
    if value is not None:
        monkeypatch.setenv("SEARCH_KEY", value)
    with pytest.raises(ArmError, match=f"arm 'far': .*header X-Key .*{told}") as caught:
        build(server, header_env={"X-Key": "SEARCH_KEY"})
    assert value is None or value not in str(caught.value)


def test_without_scores_the_order_of_the_answer_counts_and_of_equal_ids_the_first(server: Server) -> None:
    server.replies = [found(TWO, ONE, {**TWO, "text": "again"})]
    found_ = build(server).search(Query("?"), 9).passages
    assert found_ == (Passage("b", "B", "two", 1.0), Passage("a", "A", "one", 0.5))


def test_no_more_than_k_are_returned_the_best_first_and_ties_by_id(server: Server) -> None:
    scores = {"d": 1.0, "c": 3.0, "b": 2.0, "a": 2.0}
    server.replies = [found(*({"id": name, "text": name, "s": s} for name, s in scores.items()))]
    assert ids(build(server, fields={"score": "s"}), k=3) == ["c", "a", "b"]


@pytest.mark.parametrize(
    "trouble",
    [say(503, b"busy"), say(500), say(429, Retry_After="0"), hang_up],
    ids=["503", "500", "429", "hang up"],
)
@pytest.mark.slow
def test_a_trouble_that_passes_is_tried_again(server: Server, trouble: Reply) -> None:
    server.replies = [trouble, found(ONE)]
    assert ids(build(server)) == ["a"]
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (say(503, b"come back later " * 50), "failed: 503 Service Unavailable$"),
        (hang_up, "failed: RemoteProtocolError"),
    ],
    ids=["503", "hang up"],
)
@pytest.mark.slow
def test_a_trouble_that_stays_is_an_error_after_the_last_attempt(
    server: Server, trouble: Reply, told: str
) -> None:
    server.replies = [trouble]
    with pytest.raises(ArmError, match=f"arm 'far': {server.url}: attempt 3 of 3 in 8 s {told}") as caught:
        ids(build(server))
    assert len(server.asked) == 3
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("trouble", [stay_silent, drip], ids=["silent", "drip"])
@pytest.mark.slow
def test_all_attempts_together_end_in_time(server: Server, trouble: Reply) -> None:
    server.replies = [trouble]
    started = time.monotonic()
    with pytest.raises(ArmError, match=r"in 0\.6 s failed: no response within 0\.6 s"):
        ids(build(server, timeout_s=0.6))
    assert 0.4 < time.monotonic() - started < 5


def test_a_service_that_asks_for_more_time_than_there_is_is_given_up_at_once(server: Server) -> None:
    server.replies = [say(429, b"quota", Retry_After="30")]
    started = time.monotonic()
    with pytest.raises(ArmError, match="attempt 1 of 3 in 8 s failed: 429 Too Many Requests"):
        ids(build(server))
    assert time.monotonic() - started < 5


def test_a_service_is_given_the_time_that_it_asks_for() -> None:
    soon = datetime.now(UTC) + timedelta(seconds=100)
    asked_s = upstream.retry_after_s({"retry-after": format_datetime(soon, usegmt=True)})
    assert asked_s is not None
    assert 90 < asked_s <= 100
    nowhere = "Fri, 02 Jan 1970 00:00:00 -0000"  # of no known zone
    for header in ("", "-1", "soon", nowhere):
        assert upstream.retry_after_s({"retry-after": header}) is None


@pytest.mark.parametrize(("attempt", "most_s"), [(1, 0.1), (2, 0.2), (3, 0.4), (9, 2.0)])
def test_a_pause_is_drawn_from_a_range_that_doubles_up_to_two_seconds(attempt: int, most_s: float) -> None:
    state: Any = SimpleNamespace(attempt_number=attempt)
    pauses = [remote.random_pause_s(state) for _ in range(200)]
    assert 0.0 <= min(pauses) < most_s / 2 < max(pauses) <= most_s


@pytest.mark.parametrize("status", [301, 400, 401, 404, 413, 414, 422])
def test_a_refusal_is_not_tried_again(server: Server, status: int) -> None:
    server.replies = [say(status, b"no such index; " * 50)]
    with pytest.raises(ArmError, match=rf"/search returned {status} [A-Z][A-Za-z -]*$") as caught:
        ids(build(server))
    assert len(server.asked) == 1
    assert len(str(caught.value)) < 300
    assert isinstance(caught.value, QuestionRefusedError) == (status in (400, 413, 414, 422))


def test_a_refused_connection_is_an_error_that_hides_the_password(server: Server) -> None:
    server.replies = [found(ONE)]
    port = server.server_port
    server.shutdown()
    server.server_close()
    with pytest.raises(ArmError, match="attempt 3 of 3 in 8 s failed: ConnectError") as caught:
        ids(build(server, url=f"http://me:secret@127.0.0.1:{port}/search?key=secret"))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"<html>", "no JSON"),
        (b'{"results": [{"id": "a", "text": "", "s": NaN}]}', "no JSON"),
        (b'{"hits": []}', "there is no 'results' in {'hits': []}"),
        (b'{"results": {"a": 1}}', "at 'results' is {'a': 1}, not a list"),
        (b'{"results": null}', "at 'results' is None, not a list"),
        (b'{"results": [3]}', "result 1: there is no 'id' in 3"),
        (b'{"results": [{"id": 7, "text": "t"}]}', "result 1: at 'id' is 7, not a string"),
        (b'{"results": [{"id": "a"}]}', "result 1: there is no 'text' in {'id': 'a'}"),
        (b'{"results": [{"id": "a", "text": null}]}', "result 1: at 'text' is None, not a string"),
        (b'{"results": [{"id": "a", "text": "t", "title": 1}]}', "result 1: at 'title' is 1, not a string"),
    ],
)
def test_an_answer_of_another_shape_is_an_error_that_names_what_came(
    server: Server, content: bytes, told: str
) -> None:
    server.replies = [say(200, content)]
    with pytest.raises(ArmError) as caught:
        ids(build(server))
    assert str(caught.value).startswith(
        f"arm 'far': {server.url} gave a response that cannot be read: {told}"
    )
    assert len(server.asked) == 1


@pytest.mark.parametrize("score", ["null", "true", '"2"', "1e999"])
def test_a_score_that_is_no_finite_number_is_an_error(score: str) -> None:
    content = f'[{{"id": "a", "text": "t", "s": {score}}}]'.encode()
    with pytest.raises(UnreadableResponseError, match=r"result 1: at 's' is .*, not a finite number|no JSON"):
        read(content, "", Fields(score="s"))


def test_a_title_may_be_missing_or_null() -> None:
    content = b'[{"id": "a", "text": "t"}, {"id": "b", "text": "t", "title": null}]'
    assert [passage.title for passage in read(content, "", Fields())] == ["", ""]


@given(st.lists(st.text(st.characters(exclude_characters="."), min_size=1), min_size=1, max_size=5))
def test_a_path_leads_where_its_names_do(names: list[str]) -> None:
    value: Any = 42
    for name in reversed(names):
        value = {name: value, f"{name}-else": 0}
    assert at(value, ".".join(names)) == 42


@pytest.mark.parametrize("path", ["2", "-1", "x", "1.b", "1.a.c"])
def test_a_path_that_leads_nowhere_is_an_error(path: str) -> None:
    assert at([{}, {"a": 1}], "1.a") == 1
    with pytest.raises(UnreadableResponseError, match="there is no"):
        at([{}, {"a": 1}], path)


@given(st.text(), st.integers(1, 99))
def test_a_question_is_put_in_as_it_is(question: str, k: int) -> None:
    assert fill(["{question}", "<{question}|{k}>", "{k}", 5], question, k) == [
        question,
        f"<{question}|{k}>",
        k,
        5,
    ]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"url": "ftp://host/x"}, "no http or https address"),
        ({"url": "host/x"}, "no http or https address"),
        ({"url": "http:///x"}, "no http or https address"),
        ({"url": "http://host:x"}, "no address"),
        ({"request": {"q": "{query}"}}, "must hold {question}"),
        ({"request": {"q": {"text": "{question}"}}}, "set method to POST"),
        ({"timeout_s": 0.0}, "greater than 0"),
        ({"header_env": {"X Key": "KEY"}}, "match pattern"),
        ({"fields": {"name": "n"}}, "Extra inputs"),
    ],
)
def test_parameters_that_cannot_work_are_refused(wrong: dict[str, object], told: str) -> None:
    params = {"url": "https://host/x", "request": {"q": "{question}"}, **wrong}
    with pytest.raises(ValidationError, match=told):
        RemoteParams.model_validate(params)


def test_many_threads_share_the_connections_and_get_their_own_answers(server: Server) -> None:
    def echo(handler: Handler) -> None:
        asked = dict(parse_qsl(urlsplit(handler.path).query))["q"]
        found({"id": asked, "text": asked})(handler)

    server.replies = [echo]
    arm = build(server)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: arm.search(Query(f"q{n}"), 1).passages[0].id, range(64)))
    assert answers == [f"q{n}" for n in range(64)]


@pytest.mark.slow
def test_attempts_that_were_called_off_give_their_connections_back(server: Server) -> None:
    server.replies = [stay_silent]
    hasty = build(server, timeout_s=0.02)

    def fail(_: int) -> None:
        with pytest.raises(ArmError, match="no response within"):
            ids(hasty)

    attempts = 2 * (remote.LIMITS.max_connections or 0)
    with ThreadPoolExecutor(16) as pool:
        assert len(list(pool.map(fail, range(attempts)))) == attempts
    server.replies, server.asked = [found(ONE)], []
    assert ids(build(server)) == ["a"]


def limited(*networks: str, hosts: dict[str, tuple[str, ...]]) -> Trust:
    """Return what arms may reach that are not those of the configuration file."""
    return Trust((), NewArms.model_validate({"hosts": hosts, "networks": networks}))


class Resolver:
    """Gives the addresses of a name, one answer after the other, the last one over and over."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers, self.asked = list(answers), list[str]()

    async def __call__(self, host: str, _port: int) -> list[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Resolver]:
    """Give the host `inner.example` addresses."""

    def answers(*found: list[str]) -> Resolver:
        resolver = Resolver(*found)
        monkeypatch.setattr(new_arms, "resolve", resolver)
        return resolver

    return answers


def place(server: Server) -> str:
    return f"inner.example:{server.server_port}"


def url(server: Server) -> str:
    return f"http://{place(server)}/search"


def test_a_new_arm_whose_host_is_not_named_is_not_built(server: Server) -> None:
    for hosts in ({}, {"127.0.0.1": ()}, {f"127.0.0.1:{server.server_port + 1}": ()}):
        with pytest.raises(
            ArmError, match=f"127.0.0.1:{server.server_port} is not a host that `new_arms.hosts`"
        ):
            build(server, limited("127.0.0.0/8", hosts=hosts))


def test_an_arm_of_the_configuration_reaches_what_it_names(server: Server) -> None:
    server.replies = [found(ONE)]
    params = {"url": server.url, "request": {"q": "{question}", "k": "{k}"}}
    trust = Trust((ArmSpec(kind="remote", params=params),), NewArms())
    assert ids(build(server, trust)) == ["a"]
    with pytest.raises(ArmError, match="is not a host"):
        build(server, trust, results="hits")


def test_each_arm_of_the_configuration_reaches_what_it_names(server: Server) -> None:
    server.replies = [found(ONE)]
    own = {"url": server.url, "request": {"q": "{question}", "k": "{k}"}}
    first = ArmSpec(kind="remote", params={**own, "timeout_s": 1.0})
    another_kind = ArmSpec(kind="bm25", params={"k1": 1.0})
    trust = Trust((another_kind, first, ArmSpec(kind="remote", params=own)), NewArms())
    assert ids(build(server, trust)) == ["a"]
    assert ids(build(server, trust, timeout_s=1.0)) == ["a"]


def test_an_address_that_is_named_as_a_host_may_be_inner(
    server: Server, named: Callable[..., Resolver]
) -> None:
    server.replies = [found(ONE)]
    named(["127.0.0.1"])
    assert ids(build(server, limited(hosts={f"127.0.0.1:{server.server_port}": ()}))) == ["a"]


def test_a_named_host_at_an_inner_address_gets_no_request(
    server: Server, named: Callable[..., Resolver]
) -> None:
    named(["127.0.0.1"])
    arm = build(server, limited(hosts={place(server): ()}), url=url(server))
    with pytest.raises(ArmError, match=r"inner.example is at 127.0.0.1, which is not a public address"):
        ids(arm)
    assert server.asked == []


def test_one_inner_address_among_public_ones_is_enough_for_a_refusal(
    server: Server, named: Callable[..., Resolver]
) -> None:
    named(["1.1.1.1", "127.0.0.1"])
    arm = build(server, limited(hosts={place(server): ()}), url=url(server))
    with pytest.raises(ArmError, match=r"is at 127.0.0.1, which"):
        ids(arm)
    assert server.asked == []


def test_a_named_network_is_reached_and_gets_the_variables_that_are_named_for_the_host(
    server: Server, named: Callable[..., Resolver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_KEY", "secret")
    server.replies = [found(ONE)]
    named(["127.0.0.1"])
    trust = limited("127.0.0.0/30", hosts={place(server): ("SEARCH_KEY",)})
    assert ids(build(server, trust, url=url(server), header_env={"X-Key": "SEARCH_KEY"})) == ["a"]
    _, _, headers = server.asked[0]
    assert (headers["Host"], headers["X-Key"]) == (place(server), "secret")
    with pytest.raises(ArmError, match=r"the variable HOME may not be sent to inner\.example"):
        build(server, trust, url=url(server), header_env={"X-Key": "HOME"})


def test_the_address_that_was_checked_is_the_one_that_is_connected_to(
    server: Server, named: Callable[..., Resolver]
) -> None:
    """A name that changes its address between a check and a use (DNS rebinding) finds no such gap."""
    server.replies = [found(ONE)]
    resolver = named(["127.0.0.1"], ["127.0.0.9"])
    arm = build(server, limited("127.0.0.1/32", hosts={place(server): ()}), url=url(server))
    assert ids(arm) == ["a"]
    assert resolver.asked == ["inner.example"]


def test_each_address_of_a_name_is_tried_until_one_answers(
    server: Server, named: Callable[..., Resolver]
) -> None:
    server.replies = [found(ONE)]
    trust = limited("10.0.0.0/8", "127.0.0.0/30", hosts={place(server): ()})
    named(["127.0.0.2"])
    with pytest.raises(ArmError, match="attempt 3 of 3 in 8 s failed: ConnectError"):
        ids(build(server, trust, url=url(server)))
    named(["127.0.0.2", "127.0.0.1"])
    assert ids(build(server, trust, url=url(server))) == ["a"]


@pytest.mark.parametrize(
    ("answer", "message"), [(OSError("no such name"), "inner.example: no such name"), ([], "has no address")]
)
def test_a_name_without_an_address_fails_as_a_connection_does(
    server: Server, monkeypatch: pytest.MonkeyPatch, answer: Exception | list[str], message: str
) -> None:
    async def resolve(_host: str, _port: int) -> list[str]:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(new_arms, "resolve", resolve)
    arm = build(server, limited(hosts={place(server): ()}), url=url(server))
    with pytest.raises(ArmError, match=f"attempt 3 of 3 in 8 s failed: ConnectError .*{message}"):
        ids(arm)


def test_an_address_of_the_older_protocol_is_in_a_named_network_however_it_is_written() -> None:
    backend = new_arms.CheckedBackend((ipaddress.ip_network("127.0.0.0/8"),))
    addresses = ("127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::1")
    reached = [backend._may_be_reached(ipaddress.ip_address(one)) for one in addresses]  # noqa: SLF001
    assert reached == [True, True, False, False]


async def test_a_connection_has_the_limit_and_the_options_that_it_was_asked_for_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[object, ...]] = []

    async def connect(*told: object) -> None:
        asked.append(told)

    backend = new_arms.CheckedBackend(())
    monkeypatch.setattr(backend, "_backend", SimpleNamespace(connect_tcp=connect))
    await backend.connect_tcp("1.1.1.1", 443, 2.5, "0.0.0.0", [(1, 2, 3)])
    assert asked == [("1.1.1.1", 443, 2.5, "0.0.0.0", [(1, 2, 3)])]


def test_a_new_connection_is_checked_again(server: Server, named: Callable[..., Resolver]) -> None:
    server.replies = [say(200, orjson.dumps({"results": [ONE]}), Connection="close")]
    named(["127.0.0.1"], ["127.0.0.9"])
    arm = build(server, limited("127.0.0.1/32", hosts={place(server): ()}), url=url(server))
    assert ids(arm) == ["a"]
    with pytest.raises(ArmError, match=r"is at 127.0.0.9, which"):
        ids(arm)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("trusted", [True, False])
def test_a_redirect_is_not_followed(
    server: Server, named: Callable[..., Resolver], status: int, trusted: bool
) -> None:
    named(["127.0.0.1"])
    server.replies = [say(status, Location="/elsewhere"), found(ONE)]
    trust = None if trusted else limited("127.0.0.1/32", hosts={place(server): ()})
    with pytest.raises(ArmError, match=f"returned {status}"):
        ids(build(server, trust, url=server.url if trusted else url(server)))
    assert len(server.asked) == 1


def test_a_proxy_of_the_environment_is_not_asked_to_resolve_the_name(
    server: Server, named: Callable[..., Resolver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.url)
    monkeypatch.setenv("ALL_PROXY", server.url)
    named(["127.0.0.1"])
    arm = build(server, limited(hosts={place(server): ()}), url=url(server))
    with pytest.raises(ArmError, match="not a public address"):
        ids(arm)
    assert server.asked == []


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "0.0.0.0",
        "::1",
        "::",
        "::ffff:127.0.0.1",
    ],
)
async def test_no_way_of_writing_an_inner_address_leads_there(server: Server, host: str) -> None:
    with pytest.raises(ArmError, match="not a public address"):
        await new_arms.CheckedBackend(()).connect_tcp(host, server.server_port)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("1.1.1.1", True),
        ("2606:4700:4700::1111", True),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("127.0.0.1", False),
        ("169.254.169.254", False),  # where clouds keep credentials
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("255.255.255.255", False),
        ("224.0.0.1", False),
        ("240.0.0.1", False),
        ("192.0.2.1", False),
        ("198.18.0.1", False),
        ("::1", False),
        ("::", False),
        ("fe80::1", False),
        ("fc00::1", False),
        ("fd12:3456::1", False),
        ("fec0::1", False),
        ("ff02::1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:169.254.169.254", False),
        ("::127.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
        ("2002:a9fe:a9fe::1", False),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", False),
        ("2001:db8::1", False),
    ],
)
def test_public_addresses_are_told_from_inner_ones(address: str, public: bool) -> None:
    assert new_arms.is_public(ipaddress.ip_address(address)) is public


def test_a_response_may_have_8_mib_and_one_whose_compression_is_damaged_is_an_error(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert remote.MAX_BYTES == 8_388_608
    content = orjson.dumps({"results": [ONE]})
    server.replies = [say(200, content), say(200, content), say(200, content, Content_Encoding="gzip")]
    monkeypatch.setattr(remote, "MAX_BYTES", len(content))
    assert ids(build(server)) == ["a"]
    monkeypatch.setattr(remote, "MAX_BYTES", len(content) - 1)
    with pytest.raises(ArmError, match="more than"):
        ids(build(server))
    with pytest.raises(ArmError, match=r"arm 'far': .* gave a response of damaged compressed data"):
        ids(build(server))


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_a_response_is_no_longer_than_so_many_bytes(
    server: Server, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, close = list[int](), httpx.Response.aclose

    async def aclose(response: httpx.Response) -> None:
        closed.append(response.status_code)
        await close(response)

    monkeypatch.setattr(httpx.Response, "aclose", aclose)
    monkeypatch.setattr(remote, "MAX_BYTES", 1000)
    content = b"[" + b" " * 100_000 + b"]"
    server.replies = [
        say(200, gzip.compress(content) if encoding == "gzip" else content, Content_Encoding=encoding),
        found(ONE),
    ]
    with pytest.raises(ArmError, match="gave a response of more than 1,000 bytes"):
        ids(build(server))
    assert closed == [200], "its connection can be used again"
    assert ids(build(server)) == ["a"]


@pytest.mark.parametrize(
    "host",
    ["", "http://a.example", "a.example/x", "A.example", "user@a.example", "a.example:x", "a b", "::1"],
)
def test_a_host_is_named_as_an_address_names_it(host: str) -> None:
    with pytest.raises(ValidationError):
        NewArms(hosts={host: ()})


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("http://a.example/x", True),
        ("https://A.example:443/x", True),
        ("https://user:password@a.example", True),
        ("http://a.example:443", False),
        ("https://a.example:80", False),
        ("https://a.example.", False),
        ("https://a.example.evil", False),
        ("https://a.example@evil", False),
        ("https://b.example:8443", True),
        ("https://b.example", False),
        ("http://[::1]:80", True),
    ],
)
def test_a_host_is_compared_with_its_port(url: str, named: bool) -> None:
    limits = NewArms(hosts={"a.example": (), "b.example:8443": (), "[::1]": ()})
    assert (limits.variables(httpx.URL(url)) is not None) is named

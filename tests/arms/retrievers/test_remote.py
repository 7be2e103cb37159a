"""The remote arm against a real HTTP server that misbehaves on demand."""

import gzip
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
from armwise.arms.retrievers import remote
from armwise.arms.retrievers.remote import (
    Fields,
    RemoteArm,
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


def build(server: Server, wait_s: float = 8.0, **params: object) -> Arm:
    told = {"url": server.url, "request": {"q": "{question}", "k": "{k}"}, **params}
    no_member: Any = None
    have: Any = SimpleNamespace(wait_s=wait_s)
    return RemoteArm.build("far", RemoteParams.model_validate(told), have, no_member)


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


def test_post_asks_in_a_body_and_paths_lead_to_the_answer(server: Server) -> None:
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
    ("value", "told"),
    [(None, "set the environment variable SEARCH_KEY"), ("a\nb", "SEARCH_KEY"), ("clé", "SEARCH_KEY")],
)
def test_a_header_that_cannot_be_sent_is_a_secret_error(
    server: Server, monkeypatch: pytest.MonkeyPatch, value: str | None, told: str
) -> None:
    if value is not None:
        monkeypatch.setenv("SEARCH_KEY", value)
    with pytest.raises(ArmError, match=f"arm 'far': .*{told}") as caught:
        build(server, header_env={"X-Key": "SEARCH_KEY"})
    assert value is None or value not in str(caught.value)


def test_without_scores_the_order_of_the_answer_counts(server: Server) -> None:
    server.replies = [found(TWO, ONE, {**TWO, "text": "again"})]
    found_ = build(server).search(Query("?"), 9).passages
    assert found_ == (Passage("b", "B", "two", 1.0), Passage("a", "A", "one", 0.5))


def test_k_are_returned_the_best_first_and_ties_by_id(server: Server) -> None:
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
def test_a_trouble_that_stays_is_an_error(server: Server, trouble: Reply, told: str) -> None:
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
        ids(build(server, wait_s=0.6))
    assert 0.4 < time.monotonic() - started < 5


def test_a_service_is_given_the_time_that_it_asks_for() -> None:
    soon = datetime.now(UTC) + timedelta(seconds=100)
    asked_s = upstream.retry_after_s({"retry-after": format_datetime(soon, usegmt=True)})
    assert asked_s is not None
    assert 90 < asked_s <= 100
    nowhere = "Fri, 02 Jan 1970 00:00:00 -0000"  # of no known zone
    for header in ("", "-1", "soon", nowhere):
        assert upstream.retry_after_s({"retry-after": header}) is None


@pytest.mark.parametrize(("attempt", "most_s"), [(1, 0.1), (2, 0.2), (3, 0.4), (9, 2.0)])
def test_a_pause_doubles_up_to_two_seconds(attempt: int, most_s: float) -> None:
    state: Any = SimpleNamespace(attempt_number=attempt)
    pauses = [remote.random_pause_s(state) for _ in range(200)]
    assert 0.0 <= min(pauses) < most_s / 2 < max(pauses) <= most_s


@pytest.mark.parametrize("status", [400, 401, 404, 413, 414, 422])
def test_a_refusal_is_not_tried_again(server: Server, status: int) -> None:
    server.replies = [say(status, b"no such index; " * 50)]
    with pytest.raises(ArmError, match=rf"/search returned {status} [A-Z][A-Za-z -]*$") as caught:
        ids(build(server))
    assert len(server.asked) == 1
    assert len(str(caught.value)) < 300
    assert isinstance(caught.value, QuestionRefusedError) == (status in (400, 413, 414, 422))


def test_a_refused_connection_hides_the_password(server: Server) -> None:
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
        (b"<html>", "not JSON"),
        (b'{"results": [{"id": "a", "text": "", "s": NaN}]}', "not JSON"),
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
def test_an_answer_of_another_shape_names_what_came(server: Server, content: bytes, told: str) -> None:
    server.replies = [say(200, content)]
    with pytest.raises(ArmError) as caught:
        ids(build(server))
    assert told in str(caught.value)
    assert len(server.asked) == 1


@pytest.mark.parametrize("score", ["null", "true", '"2"', "1e999"])
def test_a_score_that_is_no_finite_number_is_an_error(score: str) -> None:
    content = f'[{{"id": "a", "text": "t", "s": {score}}}]'.encode()
    with pytest.raises(
        UnreadableResponseError, match=r"result 1: at 's' is .*, not a finite number|not JSON"
    ):
        read(content, "", Fields(score="s"))


def test_a_title_may_be_missing_or_null() -> None:
    content = b'[{"id": "a", "text": "t"}, {"id": "b", "text": "t", "title": null}]'
    assert [passage.title for passage in read(content, "", Fields())] == ["", ""]


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
        ({"url": "ftp://host/x"}, "not an http or https address"),
        ({"url": "host/x"}, "not an http or https address"),
        ({"url": "http:///x"}, "not an http or https address"),
        ({"url": "http://host:x"}, "not a valid address"),
        ({"request": {"q": "{query}"}}, "put {question} into"),
        ({"request": {"q": {"text": "{question}"}}}, "set method to POST"),
        ({"header_env": {"X Key": "KEY"}}, "match pattern"),
        ({"fields": {"name": "n"}}, "Extra inputs"),
    ],
)
def test_parameters_that_cannot_work_are_refused(wrong: dict[str, object], told: str) -> None:
    params = {"url": "https://host/x", "request": {"q": "{question}"}, **wrong}
    with pytest.raises(ValidationError, match=told):
        RemoteParams.model_validate(params)


def test_many_threads_get_their_own_answers(server: Server) -> None:
    def echo(handler: Handler) -> None:
        asked = dict(parse_qsl(urlsplit(handler.path).query))["q"]
        found({"id": asked, "text": asked})(handler)

    server.replies = [echo]
    arm = build(server)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: arm.search(Query(f"q{n}"), 1).passages[0].id, range(64)))
    assert answers == [f"q{n}" for n in range(64)]


@pytest.mark.slow
def test_abandoned_attempts_give_their_connections_back(server: Server) -> None:
    server.replies = [stay_silent]
    hasty = build(server, wait_s=0.02)

    def fail(_: int) -> None:
        with pytest.raises(ArmError, match="no response within"):
            ids(hasty)

    attempts = 2 * (remote.LIMITS.max_connections or 0)
    with ThreadPoolExecutor(16) as pool:
        assert len(list(pool.map(fail, range(attempts)))) == attempts
    server.replies, server.asked = [found(ONE)], []
    assert ids(build(server)) == ["a"]


@pytest.mark.parametrize("status", [301, 307])
def test_a_redirect_is_not_followed(server: Server, status: int) -> None:
    server.replies = [say(status, Location="/elsewhere"), found(ONE)]
    with pytest.raises(ArmError, match=f"returned {status}"):
        ids(build(server))
    assert len(server.asked) == 1


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
    with pytest.raises(ArmError, match="returned more than 1,000 bytes"):
        ids(build(server))
    assert closed == [200], "its connection can be used again"
    assert ids(build(server)) == ["a"]

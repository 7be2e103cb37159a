"""The configuration of HAProxy: admission of connections, and queues of requests.

Requests are sorted into lanes, each with its own limit per replica and its own queue, so that one kind of
work cannot delay another:

    probes      /health, /metrics
    ready       /ready
    feedback    feedback, which needs only the log
    chat        answers of the language model, which take seconds
    large       bodies larger than half a buffer: slow uploads hold only these few places
    work        everything else

Probes and feedback go to every healthy replica. The other lanes go to replicas that decide: a replica that is
still loading would refuse what another can answer. While no replica decides, their requests take the lane
`starting` to any healthy replica, whose reply says what it is waiting for.

A request reaches a replica once its header and the first `BUFFER_BYTES` of its body have arrived. When no
replica runs, or a queue is full, the proxy refuses with the envelope of `armwise.agent.api.errors`. A request
that reached no replica is sent again; one that a replica may have begun, only if it is idempotent.

Connections are admitted by address (IPv4: the address, IPv6: its /64), before a byte is read:

    any address      `connections_per_address`, at most the free part of `connections`
    a stranger       a quarter of the free part of the unreserved connections
    a trusted proxy  all of `connections`; its clients are known by PROXY protocol or X-Forwarded-For

A replica marks its response to a caller with a valid key (`KNOWN_CALLER`): the connection is kept alive, and
its address is known, the opposite of a stranger, for `KNOWN_S`. Other connections end with their first
response. When it is crowded all do, so that idle connections free their places.

A limit that shrinks with the free part leaves room for the next address: n strangers hold 1 - (4 / 5) ** n.
Source: A. K. Choudhury and E. L. Hahne, Dynamic queue length thresholds for shared-memory packet switches,
IEEE/ACM Transactions on Networking 6(2), 1998.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from armwise.agent.proxy.limits import most_connections

if TYPE_CHECKING:  # the process that waits for the service needs none of it, and loading takes seconds
    from armwise.agent.api import ApiError
    from armwise.agent.config import AppConfig, Http

BUFFER_BYTES = 64 * 1024
"""Size of the buffer in which a request is collected."""

RESERVED_BYTES = 4 * 1024
"""Bytes of a buffer that are kept free for headers that the proxy adds."""

MOST_HEADERS = BUFFER_BYTES // 8
"""Most header lines that are parsed: more than fit a buffer, which needs 8 bytes for each besides its text.

A request that exceeds the buffer is refused before it is parsed, as is one that is not HTTP. For these, and
for a header that times out, HAProxy 2.8 sends fixed texts, which `http-error` cannot replace.
"""

HEADER_BYTES, HEADER_LINES = 16 * 1024, 100
"""The largest header of a request; larger ones get 431."""

QUEUE, QUEUE_S = 64, 1.0
"""Requests of one lane that wait for a replica, and for how many seconds; others get 503."""

RESERVED = 0.5
"""Share of all connections for addresses from which a key was accepted within an hour."""

SIZES = {"probes": 16, "ready": 16, "large": 8}
"""Concurrent requests of a replica in the lanes of fixed size."""

CHECKED = {
    "/health/decides": ("work", "chat", "large", "ready"),
    "/health": ("feedback", "probes", "starting"),
}
"""Lanes by the health check of their replicas; the first lane of each checks, the others follow it."""

REFUSED_WITHOUT = "feedback"
"""Lane whose servers show whether a replica runs; with all of them down every request is refused."""

CONFIGURATION = "haproxy.cfg"
"""Name of the configuration file in the folder of the sockets."""

ADMIN_SOCKET = "admin.sock"
"""Socket for commands to HAProxy, in the folder of the sockets."""

REPEATABLE = "METH_GET or { req.hdr(idempotency-key) -m found }"
"""Condition for sending a request again when its replica closed the connection without a byte."""

UNBOUNDED = ("probes", "ready")
"""Lanes with unlimited queues."""

CONDITIONS = {
    "chat": "{ path /v1/chat/completions /v1/responses /v1/messages /console/playground/ask /chat/ask }",
    "feedback": "{ path /v1/feedback } or { path_end /activate }",
    "large": f"{{ req.body_size gt {BUFFER_BYTES // 2} }}",
    "probes": "{ path /health /health/decides /metrics }",
    "ready": "{ path /ready }",
}
"""Conditions of the lanes other than `work`; the last that holds decides."""

CHECK_MS = 1000
"""Milliseconds between two health checks of a replica."""

DOWN_CHECK_MS = 50
"""Milliseconds between two health checks of a replica that is down."""

CHECK_PATIENCE_S = 5.0
"""Seconds after which a health check without an answer has failed.

A replica that many ask at once, or on a busy machine, answers late: it is not down. One that has ended
refuses connections, and is down at once.
"""

SPARE_S = 10.0
"""Seconds that a replica may be silent beyond the limit of a turn."""

ADDRESSES = 100_000
"""Most addresses of a table."""

KNOWN_S = 3600.0
"""Seconds for which an address is known after a replica accepted a key from it."""

CROWDED = 0.75
"""Share of the connections, of all or of an address, above which every response ends its connection."""

SHARE = 4
"""An unknown address may hold one in this many of the free connections."""

HOPS = 4
"""Most trusted proxies in a row behind which a client's address is looked for."""

COUNTED = "ipmask(32,64)"
"""Mask that makes one address of an IPv6 /64, the network of one subscriber."""


def socket_path(folder: Path, slot: int) -> Path:
    """Return the socket of the replica in a slot."""
    return folder / f"ingress-{slot}.sock"


@dataclass(frozen=True)
class Listening:
    """Where the proxy and its replicas listen.

    Attributes:
        host: Address that clients connect to.
        port: Port that clients connect to.
        folder: Folder of the sockets, readable by this user alone.
        replicas: Number of replicas of the ingress.
    """

    host: str
    port: int
    folder: Path
    replicas: int = 1

    @property
    def slots(self) -> int:
        """Most replicas at once: during a replacement, the old and the new ones."""
        return 2 * self.replicas


def write_configuration(config: "AppConfig", listening: Listening) -> Path:
    """Write the configuration file into the folder, and return its path.

    `http.connections` is lowered to what the limit of open files permits.
    """
    if config.http.connections > (most := most_connections()):
        http = config.http.model_copy(update={"connections": int(most)})
        config = config.model_copy(update={"http": http})
    lines = [*_globals(config, listening), *_frontend(config, listening), *_lanes(config, listening)]
    path = listening.folder / CONFIGURATION
    unfinished = path.with_suffix(".next")
    unfinished.write_text("\n".join(lines) + "\n", encoding="ascii")
    unfinished.replace(path)  # atomic: a process waits for the file
    return path


def _globals(config: "AppConfig", listening: Listening) -> Iterator[str]:
    from armwise.agent.api import ApiError

    http = config.http
    silent_s = config.limits.answer_s + SPARE_S
    yield "global"
    yield f"    maxconn {http.connections}"
    yield "    nbthread 1"
    yield "    noreuseport"  # else two services would share the port without a word
    yield "    max-spread-checks 1"  # replicas count as healthy until their first check
    yield f"    tune.bufsize {BUFFER_BYTES}"
    yield f"    tune.maxrewrite {RESERVED_BYTES}"
    yield f"    tune.http.maxhdr {MOST_HEADERS}"
    yield f"    stats socket {listening.folder / ADMIN_SOCKET} mode 600 level admin expose-fd listeners"
    yield f"    hard-stop-after {_ms(silent_s)}"
    yield ""
    yield "defaults"
    yield "    mode http"
    yield "    option abortonclose"
    yield "    option redispatch 1"
    yield "    option http-no-delay"
    yield "    retries 3"
    yield "    retry-on conn-failure empty-response"
    yield "    http-reuse always"
    yield "    timeout connect 1s"
    yield f"    timeout check {_ms(CHECK_PATIENCE_S)}"
    yield f"    timeout http-request {_ms(http.request_s)}"
    yield f"    timeout http-keep-alive {_ms(http.idle_s)}"
    yield f"    timeout client {_ms(silent_s)}"
    yield f"    timeout server {_ms(silent_s)}"
    yield f"    timeout queue {_ms(QUEUE_S)}"
    failures = {
        408: ApiError("request_timeout", f"the request was not complete within {http.request_s:g} s"),
        502: ApiError("replica_lost", "the replica that was answering has stopped"),
        503: ApiError("overloaded", f"all replicas were busy for {QUEUE_S:g} s"),
        504: ApiError("replica_lost", f"the replica that was answering sent nothing for {silent_s:g} s"),
    }
    for status, error in failures.items():
        yield f"    http-error status {status} {_body(error)}"
    yield ""


def _frontend(config: "AppConfig", listening: Listening) -> Iterator[str]:
    from armwise.agent.api import KNOWN_CALLER, ApiError

    http, host = config.http, f"[{listening.host}]" if ":" in listening.host else listening.host
    limits = f"{HEADER_BYTES} bytes, or {HEADER_LINES} lines"
    too_large = ApiError("header_too_large", f"the header has more than {limits}")
    not_ready = ApiError("not_ready", "the service is starting or stopping, or a replica is being replaced")
    crowded = ApiError("overloaded", f"{QUEUE} requests are already waiting")
    yield from _tables()
    yield "frontend clients"
    yield f"    bind {host}:{listening.port}"
    yield from _admission(http)
    yield "    http-request set-var(txn.echo) req.hdr(x-request-id)"
    yield "    http-request set-var(txn.request_id) str(null)"
    named = '"\\"%[req.hdr(x-request-id),json(utf8s)]\\""'
    yield f"    http-request set-var-fmt(txn.request_id) {named} if {{ req.hdr(x-request-id) -m found }}"
    long, many = f"{{ req.hdrs,length gt {HEADER_BYTES} }}", f"{{ req.hdr_cnt() gt {HEADER_LINES} }}"
    yield from _client(http)
    yield _refuse(too_large, f"{long} or {many}")
    yield _refuse(not_ready, f"{{ nbsrv({REFUSED_WITHOUT}) eq 0 }}")
    yield f"    http-request wait-for-body time {_ms(http.request_s)}"
    yield "    http-request set-var(txn.lane) str(work)"
    for lane, condition in CONDITIONS.items():
        yield f"    http-request set-var(txn.lane) str({lane}) if {condition}"
    deciding, answering = CHECKED.values()
    waiting = f"{{ var(txn.lane) -m str {' '.join(deciding)} }} {{ nbsrv({deciding[0]}) eq 0 }}"
    yield f"    http-request set-var(txn.lane) str(starting) if {waiting}"
    for lane in (*deciding, *answering):
        if lane not in UNBOUNDED:
            full = f"{{ var(txn.lane) -m str {lane} }} {{ queue({lane}) ge {QUEUE} }}"
            yield _refuse(crowded, full)
    yield f"    http-request disable-l7-retry unless {REPEATABLE}"
    yield "    use_backend %[var(txn.lane)]"
    # the proxy reports a lost replica as a 503; a 502 or 504 of a replica is the failure of an arm
    yield "    http-response set-var(txn.answered) bool(true)"
    marked = f"{{ res.hdr({KNOWN_CALLER}) -m found }}"
    yield f"    http-response set-var(sess.known) bool(true) if {marked}"
    yield f"    http-response track-sc2 var(txn.client),{COUNTED} table known if {marked}"
    yield f"    http-response del-header {KNOWN_CALLER}"
    echoed = "{ var(txn.echo) -m found } !{ var(txn.answered) -m bool }"
    yield f"    http-after-response set-header x-request-id %[var(txn.echo)] if {echoed}"
    yield "    http-after-response set-header x-content-type-options nosniff"
    yield "    http-after-response set-status 503 if { status 502 504 } !{ var(txn.answered) -m bool }"
    # a 503 of the proxy keeps the connection: the key is still unchecked, and the request may be repeated
    ends = ["!known { var(txn.answered) -m bool }", "!known { status 400:499 }", "crowded"]
    yield f"    http-after-response set-header connection close if {' or '.join(ends)}"
    yield ""


def _tables() -> Iterator[str]:
    """Yield the tables: connections of all strangers, known addresses, requests of forwarded clients."""
    tables = {
        "strangers": "type integer size 1 store conn_cur",
        "known": f"type ipv6 size {ADDRESSES} expire {_ms(KNOWN_S)}",
        "forwarded": f"type ipv6 size {ADDRESSES} expire {_ms(KNOWN_S)} store conn_cur",
    }
    for name, table in tables.items():
        yield f"backend {name}"
        yield f"    stick-table {table}"
        yield ""


def _admission(http: "Http") -> Iterator[str]:
    """Yield the rules by which a connection is accepted or closed before a byte is read."""
    per_address, strangers = http.connections_per_address, round(http.connections * (1 - RESERVED))
    yield "    acl trusted always_false"
    yield from (f"    acl trusted src {network}" for network in http.trusted_proxies)
    yield "    acl known var(sess.known) -m bool"
    yield f"    acl crowded fe_conn gt {round(CROWDED * http.connections)}"
    yield f"    acl crowded sc0_conn_cur gt {round(CROWDED * per_address)}"
    yield f"    stick-table type ipv6 size {ADDRESSES} expire {_ms(KNOWN_S)} store conn_cur"
    if http.proxy_protocol:
        yield "    tcp-request connection expect-proxy layer4 if trusted"
    yield f"    tcp-request session track-sc0 src,{COUNTED} unless trusted"
    yield "    tcp-request session accept if trusted"
    yield f"    tcp-request session reject if {{ sc0_conn_cur gt {per_address} }}"
    yield "    tcp-request session set-var(sess.taken) fe_conn"
    yield f"    tcp-request session reject if {{ sc0_conn_cur,add(sess.taken) gt {http.connections} }}"
    yield f"    tcp-request session accept if {{ src,{COUNTED},in_table(known) }}"
    yield "    tcp-request session track-sc1 int(0) table strangers"
    yield "    tcp-request session set-var(sess.taken) sc1_conn_cur"
    yield f"    tcp-request session reject if {{ sc0_conn_cur,mul({SHARE}),add(sess.taken) gt {strangers} }}"


def _client(http: "Http") -> Iterator[str]:
    """Yield the rules that determine a client's address, and forward only this address to replicas."""
    yield "    http-request set-var(txn.client) src"
    if http.trusted_proxies:
        yield from _write_forwarding(http)
    yield "    http-request set-header x-forwarded-for %[var(txn.client)]"
    yield "    http-request del-header x-forwarded-proto unless trusted"


def _write_forwarding(http: "Http") -> Iterator[str]:
    """Yield the rules that find a client behind trusted proxies, and limit its concurrent requests."""
    from armwise.agent.api import ApiError

    through = "trusted"
    for hop in range(1, HOPS + 1):
        address = f"req.hdr_ip(x-forwarded-for,-{hop})"
        yield f"    http-request set-var(txn.client) {address} if {through}"
        yield from (f"    acl via{hop} {address} {network}" for network in http.trusted_proxies)
        through += f" via{hop}"
    busy = ApiError("overloaded", "this address has too many requests in progress")
    excess = f"{{ sc1_conn_cur(forwarded) gt {http.connections_per_address} }}"
    share = f"{{ sc1_conn_cur(forwarded),mul({SHARE}),add(txn.taken) gt {http.connections} }}"
    yield f"    http-request track-sc1 var(txn.client),{COUNTED} table forwarded if trusted"
    yield "    http-request set-var(txn.taken) fe_conn if trusted"
    yield _refuse(busy, f"trusted {excess} or trusted {share}")


def _refuse(error: "ApiError", condition: str) -> str:
    return f"    http-request return status {error.status} {_body(error)} if {condition}"


def _lanes(config: "AppConfig", listening: Listening) -> Iterator[str]:
    checked = (
        f"check inter {CHECK_MS} fastinter {DOWN_CHECK_MS} downinter {DOWN_CHECK_MS} fall 2 rise 1 "
        "observe layer4 error-limit 1 on-error mark-down"
    )
    for path, lanes in CHECKED.items():
        for lane in lanes:
            yield f"backend {lane}"
            yield "    balance leastconn"
            if lane == lanes[0]:
                yield f"    option httpchk GET {path}"
            for slot in range(listening.slots):
                address = f"unix@{socket_path(listening.folder, slot)}"
                size = f"maxconn {SIZES.get(lane, config.limits.in_flight)}"
                state = checked if lane == lanes[0] else f"track {lanes[0]}/replica{slot}"
                yield f"    server replica{slot} {address} {size} {state}"
            yield ""


def _body(error: "ApiError") -> str:
    """Return HAProxy's arguments for the body of an error: its envelope, with the client's request id."""
    document = json.dumps(error.envelope("<id>").model_dump()).replace("'", "\\u0027").replace("%", "%%")
    document = document.replace('"<id>"', "%[var(txn.request_id)]")
    wait = f" hdr retry-after {error.retry_after_s}" if error.status == 503 else ""
    return f"content-type application/json lf-string '{document}'{wait}"


def _ms(seconds: float) -> str:
    return f"{max(1, round(1000 * seconds))}ms"

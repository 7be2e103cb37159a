"""What `armwise doctor` finds: what others can reach, read or change."""

from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from armwise.agent import doctor
from armwise.agent.config import AppConfig, parse
from armwise.agent.doctor import check_configuration, check_files, check_sockets

ARGS: dict[str, Any] = {
    "arms": {"none": {"kind": "none"}},
    "llm": {"engine": "scripted"},
    "policy": {"kind": "uniform"},
    "reward": {"metrics": {"thumb": {}}},
}

SECRETS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "PGPASSFILE", "PGSSLMODE", "ARMWISE_HOME", "A_KEY")


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in SECRETS:
        monkeypatch.delenv(name, raising=False)


def configured(**changes: Any) -> AppConfig:
    return parse({**ARGS, **changes})


def found(config: AppConfig, host: str = "127.0.0.1") -> list[str]:
    """Return the findings on a configuration as lines."""
    return [str(finding) for finding in check_configuration(config, host, is_open=not config.keys)]


@pytest.mark.parametrize(
    ("host", "begins"), [("127.0.0.1", "note"), ("::1", "note"), ("0.0.0.0", "problem"), ("::", "problem")]
)
def test_a_service_without_keys_is_a_problem_where_others_reach_it(host: str, begins: str) -> None:
    (line,) = found(configured(), host)
    assert line.startswith(f"{begins}: no API key is set, so everyone who reaches {host} can use")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_where_the_log_cannot_be_read_it_is_not_said_that_there_is_no_key(host: str) -> None:
    (finding,) = check_configuration(configured(), host, is_open=None)
    assert str(finding).startswith("note: the log cannot be read, so Armwise does not know whether")


PLACEHOLDER = {"engine": "embedded"}


@pytest.mark.parametrize(
    "llm", [{"engine": "scripted"}, {"engine": "embedded", "model": "mine.gguf"}, PLACEHOLDER]
)
def test_it_is_noted_where_passages_are_quoted_though_there_is_a_model(llm: dict[str, Any]) -> None:
    for quote in (True, False):
        lines = found(configured(llm=llm, answering={"quote": quote}))
        noted = [line for line in lines if line.startswith("note: answering.quote is set")]
        assert len(noted) == (quote and llm != PLACEHOLDER)


PAID = {"none": {"kind": "none"}, "web": {"kind": "bm25", "usd": 0.002}, "free": {"kind": "bm25"}}


@pytest.mark.parametrize(
    ("reward", "rest", "zero"),
    [
        ({"cost_weight": 0.1, "cost": {"usd": 0}}, {}, "reward.cost.usd"),
        ({"cost_weight": 0, "cost": {"usd": 1}}, {}, "reward.cost_weight"),
        ({"cost_weight": 0.1}, {"budget": {"steps_per_request": 1}}, "reward.cost.usd"),
        ({"cost_weight": 0.1, "cost": {"usd": 1}}, {}, None),
        ({"cost_weight": 0.1}, {"budget": {"usd_per_request": 0.001}}, None),
    ],
)
def test_a_price_that_counts_in_no_reward_and_in_no_budget_is_noted(
    reward: dict[str, Any], rest: dict[str, Any], zero: str | None
) -> None:
    lines = found(configured(arms=PAID, reward={**ARGS["reward"], **reward}, **rest))
    noted = [line for line in lines if "cost dollars" in line]
    assert noted == (
        []
        if zero is None
        else [
            f"note: searches with 'web' cost dollars, but {zero} is 0, so rewards ignore that cost; "
            f"set {zero} or `budget.usd_per_request`"
        ]
    )


@pytest.mark.parametrize(("key", "length"), [(None, 0), ("secret", 6), ("x" * 15, 15), ("x" * 16, None)])
def test_a_key_that_is_missing_or_short_is_a_problem_and_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, key: str | None, length: int | None
) -> None:
    if key is not None:
        monkeypatch.setenv("A_KEY", key)
    lines = found(configured(keys=[{"env": "A_KEY", "scopes": ["decide"]}]))
    expected = [] if length is None else [f"problem: the key in A_KEY has {length} characters"]
    assert [line.partition(";")[0] for line in lines] == expected
    assert not any("secret" in line for line in lines)


@pytest.mark.parametrize(("host", "noted"), [("127.0.0.1", False), ("::1", False), ("0.0.0.0", True)])
def test_keys_that_pass_a_network_in_plain_text_are_noted(
    monkeypatch: pytest.MonkeyPatch, host: str, noted: bool
) -> None:
    monkeypatch.setenv("A_KEY", "x" * 16)
    lines = found(configured(keys=[{"env": "A_KEY", "scopes": ["decide"]}]), host)
    expected = f"note: clients send their keys and questions to {host} in plain text"
    assert [line.partition(";")[0] for line in lines] == ([expected] if noted else [])


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "postgresql://ada@db.internal/log",
            "problem: the connection to PostgreSQL on db.internal may be unenc",
        ),
        (
            "postgresql://ada@db.internal/log?sslmode=prefer",
            "problem: the connection to PostgreSQL on db.internal may be",
        ),
        (
            "postgresql:///log?host=db.internal",
            "problem: the connection to PostgreSQL on db.internal may be unenc",
        ),
        ("postgresql://ada@db.internal/log?sslmode=require", "note: sslmode=require encrypts"),
        ("postgresql://ada@db.internal/log?sslmode=verify-ca", ""),
        ("postgresql://ada@db.internal/log?sslmode=verify-full", ""),
        ("postgresql://ada@localhost/log?password=hidden", "note: log_url contains a password"),
        ("postgresql://ada@localhost/log", ""),
        ("postgresql:///log?host=/run/postgresql", ""),
        ("postgresql://ada:hidden@localhost/log", "note: log_url contains a password"),
        ("sqlite:////tmp/log.db", ""),
    ],
)
def test_a_database_on_another_host_needs_tls(url: str, expected: str) -> None:
    lines = found(configured(log_url=url))[1:]  # after the one on keys
    assert [line[: len(expected)] for line in lines] == ([expected] if expected else [])
    assert "hidden" not in str(lines)


def test_tls_may_be_required_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def lines(query: str = "") -> list[str]:
        return found(configured(log_url=f"postgresql://ada@db.internal/log{query}"))[1:]

    monkeypatch.setenv("PGSSLMODE", "verify-full")
    assert lines() == []
    assert lines("?sslmode=disable")[0].startswith(
        "problem: the connection to PostgreSQL on db.internal may be"
    ), "first"
    monkeypatch.setenv("PGSSLMODE", "allow")
    assert "(sslmode=allow); add ?sslmode=verify-full to log_url" in lines()[0]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://169.254.169.254/latest", "problem: arm 'far' sends questions to 169.254.169.254"),
        ("https://10.0.0.5/search", "note: arm 'far' sends questions to 10.0.0.5, a private address"),
        ("http://192.0.1.1/search", "note: arm 'far' sends questions to 192.0.1.1 in plain text"),
        ("https://192.0.1.1/search", ""),
    ],
)
def test_where_a_remote_arm_sends_questions_is_looked_at(url: str, expected: str) -> None:
    far = {"kind": "remote", "params": {"url": url, "request": {"q": "{question}"}}}
    lines = found(configured(arms={"none": {"kind": "none"}, "far": far}))[1:]
    assert [line[: len(expected)] for line in lines] == ([expected] if expected else [])


def test_every_arm_that_sends_questions_away_is_looked_at() -> None:
    urls = {"there": "http://192.0.1.1/mcp", "here": "http://10.0.0.5/mcp"}
    arms = {name: {"kind": "mcp", "params": {"url": url, "tool": "find"}} for name, url in urls.items()}
    assert [line.partition(" sends")[0] for line in found(configured(arms=arms))[1:]] == [
        *("note: arm 'here'", "note: arm 'there'")
    ]


@pytest.mark.parametrize(
    ("mode", "begins"),
    [
        *((0o700, None), (0o755, "note"), (0o740, "note"), (0o701, "note")),
        *((0o777, "problem"), (0o720, "problem"), (0o702, "problem")),
    ],
)
def test_a_home_that_others_can_read_or_change_is_found(
    tmp_path: Path, mode: int, begins: str | None
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(mode)
    lines = [str(finding) for finding in check_files(configured(home=str(home)))]
    assert [line.partition(":")[0] for line in lines] == ([begins] if begins else [])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (0o644, "note: other users can read {log} (mode 644), which contains your users' questions"),
        (0o666, "problem: other users can change {log} (mode 666)"),
    ],
)
def test_a_log_that_others_can_read_or_change_is_found(tmp_path: Path, mode: int, expected: str) -> None:
    log = tmp_path / "log.db"
    log.touch()
    log.chmod(mode)
    config = configured(home=str(tmp_path / "none"), log_url=f"sqlite:///{log}")
    (finding,) = check_files(config)
    assert str(finding).partition(";")[0] == expected.format(log=log)


@pytest.mark.parametrize("name", ["RAY_AUTH_TOKEN_PATH", "PGPASSFILE"])
def test_a_file_of_a_secret_that_others_can_read_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    monkeypatch.setenv(name, str(secret))
    for mode, expected in (
        (0o600, []),
        (0o700, []),
        (0o640, [f"problem: other users can read {secret} (mode 640)"]),
        (0o601, [f"problem: other users can read {secret} (mode 601)"]),
    ):
        secret.chmod(mode)
        lines = [str(finding) for finding in check_files(configured(home=str(tmp_path / "none")))]
        assert [line.partition(";")[0] for line in lines] == expected


def test_a_disk_that_is_nearly_full_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage(2**40, 2**40, 2**20))
    (finding,) = check_files(configured(home=str(tmp_path / "none")))
    assert finding.what == f"the disk of {tmp_path} has only 1 MiB of free space"
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage(2**40, 2**40, 2**30 - 1))
    assert len([*check_files(configured(home=str(tmp_path / "none")))]) == 1
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage(2**40, 2**40, 2**30))
    assert [*check_files(configured(home=str(tmp_path / "none")))] == []


class Process:
    """A process that listens everywhere, with its name, its variables and its relatives."""

    pid = 7

    def __init__(self, name: str, parents: tuple[Any, ...] = (), children: tuple[Any, ...] = ()) -> None:
        self._name, self._parents, self._children = name, parents, children
        self.token = False

    def name(self) -> str:
        return self._name

    def environ(self) -> dict[str, str]:
        return {"RAY_AUTH_MODE": "token" if self.token else "disabled"}

    def parents(self) -> list[Any]:
        return [*self._parents]

    def children(self) -> list[Any]:
        return [*self._children]

    def net_connections(self, kind: str) -> list[Any]:
        assert kind == "tcp"
        return [
            SimpleNamespace(laddr=SimpleNamespace(ip=ip, port=port), status=status)
            for ip, port, status in (
                ("10.0.0.7", 6379, "LISTEN"),
                ("10.0.0.7", 50_000, "ESTABLISHED"),
                ("127.0.0.1", 6380, "LISTEN"),
                ("10.0.0.7", 10_001, "LISTEN"),
            )
        ]


@pytest.mark.parametrize("name", ["raylet", "gcs_server", "ray::Ingress", "haproxy"])
def test_each_socket_of_the_programs_of_a_service_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    others = [Process("sleep"), Process("python"), Process("ray")]
    monkeypatch.setattr(doctor.psutil, "process_iter", lambda: [*others, Process(name)])
    places = [finding.what.partition(" listens on ")[2] for finding in check_sockets(("0.0.0.0", 8000))]
    assert places == [f"10.0.0.7:{port} and requires no token" for port in (6379, 10_001)]


@pytest.mark.parametrize(
    ("holder", "level"),
    [("own", "note"), ("parent", "note"), ("child", "note"), ("grandparent", "problem"), ("none", "problem")],
)
def test_a_socket_that_answers_to_a_token_alone_is_a_remark(
    monkeypatch: pytest.MonkeyPatch, holder: str, level: str
) -> None:
    family = {name: Process(name) for name in ("parent", "grandparent", "child")}
    own = Process("raylet", parents=(family["parent"], family["grandparent"]), children=(family["child"],))
    family |= {"own": own, "none": Process("none")}
    family[holder].token = True
    monkeypatch.setattr(doctor.psutil, "process_iter", lambda: [own])
    found = [*check_sockets(("0.0.0.0", 10_001))]
    assert [(one.level, one.what) for one in found] == [
        (
            level,
            "raylet (process 7) listens on 10.0.0.7:6379 and requires "
            + ("Ray's token" if level == "note" else "no token"),
        )
    ]


def test_a_clusters_token_is_looked_at_only_with_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    token = tmp_path / ".ray/auth_token"
    assert doctor.secret_files({}) == [tmp_path / ".pgpass"]
    assert token in doctor.secret_files({"RAY_ADDRESS": "10.0.0.1:6379"})
    assert tmp_path / "own" in doctor.secret_files({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "own")})


@pytest.mark.parametrize(
    ("digest", "expected"),
    [
        (
            {"url": "http://169.254.169.254/latest"},
            "problem: the digest is sent to 169.254.169.254, a link-local",
        ),
        ({"url": "https://10.0.0.5/hook"}, "note: the digest is sent to 10.0.0.5, a private address"),
        ({"url": "http://192.0.1.1/hook"}, "note: the digest is sent to 192.0.1.1 in plain text"),
        ({"url_env": "NO_SUCH_URL"}, "problem: digest: the environment variable NO_SUCH_URL is not set"),
        ({"url": "https://192.0.1.1/hook"}, ""),
    ],
)
def test_where_the_digest_is_sent_is_looked_at(digest: dict[str, str], expected: str) -> None:
    lines = found(configured(digest=digest))[1:]
    assert [line[: len(expected)] for line in lines] == ([expected] if expected else [])

"""A key gives access to the routes of its scopes until it is disabled or expires, and to no other."""

import re
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic import ValidationError

from armwise.agent.access import OPEN, Keyring, NewKey, require_scope
from armwise.agent.access.keyring import (
    SCOPES,
    Caller,
    ForbiddenError,
    ForeignIdError,
    UnauthorizedError,
    caller_scopes,
    new_id,
)
from armwise.agent.config import Key, Scope
from armwise.feedback.errors import ProjectTakenError
from armwise.feedback.events import Feedback
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.registry import KeyLimits, KeySettings, keys

NOW = 1_800_000_000.0


def keyring(*configured: Key) -> Keyring:
    return Keyring(configured, lambda: NOW)


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Keyring:
    monkeypatch.setenv("USER_KEY", "u-secret")
    monkeypatch.setenv("ADMIN_KEY", "a-secret")
    return keyring(
        Key(env="USER_KEY", project="acme", source="judge"), Key(env="ADMIN_KEY", scopes=("admin",))
    )


@pytest.fixture
def store(log_url: str) -> Iterator[Store]:
    with closing(Store(log_url, clock=lambda: NOW)) as store:
        yield store


def test_without_keys_everything_is_open() -> None:
    assert keyring().is_open
    assert keyring().caller(None) is OPEN
    assert OPEN.scopes == set(SCOPES)


def test_a_configured_key_has_its_scopes_and_its_project(configured: Keyring) -> None:
    user = configured.caller("Bearer u-secret")
    assert (user.key, user.scopes, user.project) == ("USER_KEY", {"decide", "feedback"}, "acme")
    assert user.source == "judge"
    assert configured.caller("Bearer a-secret").scopes == set(SCOPES)


def test_a_secret_of_two_keys_has_the_scopes_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ONE_KEY", "SAME_KEY"):
        monkeypatch.setenv(name, "one-secret")
    monkeypatch.setenv("OTHER_KEY", "another")
    found = keyring(
        Key(env="OTHER_KEY", scopes=("operate",), groups=("c",)),
        Key(env="ONE_KEY", scopes=("decide",), groups=("a",)),
        Key(env="SAME_KEY", scopes=("feedback",), groups=("b",)),
    ).caller("Bearer one-secret")
    assert (found.key, found.scopes, found.groups) == ("ONE_KEY", {"decide", "feedback"}, {"a", "b"})


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Bearer "])
def test_the_scheme_is_read_in_any_case(configured: Keyring, scheme: str) -> None:
    assert configured.caller(f"{scheme} u-secret").key == "USER_KEY"


@pytest.mark.parametrize(
    "header", [None, "", "Bearer ", "Bearer wrong", "u-secret", "Basic u-secret", "Bearer ü"]
)
def test_no_key_or_a_wrong_one_is_unauthorized(configured: Keyring, header: str | None) -> None:
    said = "unknown key" if header in ("Bearer wrong", "Bearer ü") else "a key is needed"
    with pytest.raises(UnauthorizedError, match=said):
        configured.caller(header)


@pytest.mark.parametrize(
    ("held", "required", "allowed"),
    [
        ("decide", ("decide", "read"), True),
        ("decide", ("read",), False),
        ("feedback", ("decide",), False),
        ("operate", ("read",), True),
        ("operate", ("decide",), False),
        ("read", ("operate",), False),
        ("admin", ("decide",), True),
        ("admin", ("admin",), True),
    ],
)
def test_a_scope_opens_what_it_includes(held: Scope, required: tuple[Scope, ...], allowed: bool) -> None:
    caller = Caller("k", caller_scopes((held,)))
    if allowed:
        require_scope(caller, required)
        return
    with pytest.raises(ForbiddenError, match=f"scope '{required[0]}'"):
        require_scope(caller, required)


def test_a_variable_without_a_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ABSENT_KEY", raising=False)
    with pytest.raises(ValueError, match="ABSENT_KEY"):
        keyring(Key(env="ABSENT_KEY"))


# -- keys of the log ---------------------------------------------------------------------------------


def test_a_key_of_the_configuration_may_stand_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    path.write_text("x" * 40 + "\n")
    monkeypatch.delenv("A_KEY", raising=False)
    monkeypatch.setenv("A_KEY_FILE", str(path))
    ring = keyring(Key(env="A_KEY", scopes=("decide",)))
    assert ring.caller("Bearer " + "x" * 40).scopes == {"decide"}
    with pytest.raises(UnauthorizedError):
        ring.caller("Bearer " + "y" * 40)


def test_a_key_of_the_log_is_known_after_the_next_refresh_and_refused_once_disabled(store: Store) -> None:
    ring = keyring()
    made, token = keys.create(store, KeySettings("app", ("decide",), project="acme", source="judge"), NOW)
    assert keys.TOKEN.fullmatch(token)
    ring.refresh(store)
    caller = ring.caller(f"Bearer {token}")
    assert (caller.key, caller.scopes, caller.prefix) == (made.public_id, {"decide"}, "acme~")
    assert caller.source == "judge"
    assert keys.disable(store, made.public_id, NOW) == keys.disable(store, made.public_id, NOW + 1), "once"
    assert ring.caller(f"Bearer {token}") == caller, "what a refresh has not read is not known"
    ring.refresh(store)
    with pytest.raises(UnauthorizedError, match=f"sk-aw-{made.public_id} is disabled"):
        ring.caller(f"Bearer {token}")
    assert not ring.is_open, "a service that had a key does not open because it is disabled"


def test_a_key_expires_without_a_row_that_says_so(store: Store) -> None:
    now = NOW
    ring = Keyring((), lambda: now)
    _, token = keys.create(store, KeySettings("app", ("decide",), expires=NOW + 60), NOW)
    ring.refresh(store)
    assert ring.caller(f"Bearer {token}").key
    now += 60
    with pytest.raises(UnauthorizedError, match="has expired"):
        ring.caller(f"Bearer {token}")


def test_the_project_of_a_key_is_found_by_name_or_id(configured: Keyring, store: Store) -> None:
    made, _ = keys.create(store, KeySettings("app", ("decide",), project="beta"), NOW)
    configured.refresh(store)
    names = ("USER_KEY", "ADMIN_KEY", made.public_id, "another")
    assert [configured.find_project(name) for name in names] == ["acme", "default", "beta", None]
    assert [caller.key for caller in configured.configured] == ["USER_KEY", "ADMIN_KEY"]


def test_the_log_holds_a_hash_and_not_the_secret(store: Store) -> None:
    made, token = keys.create(store, KeySettings("app", ("decide",)), NOW)
    _, _, _, secret = token.split("-")
    with store.reading() as connection:
        (row,) = connection.execute(sa.select(t.keys)).mappings()
    assert secret not in str(dict(row))
    assert row["secret_hash"] == keys.hash_secret(secret)
    ring = keyring()
    ring.refresh(store)
    other = f"sk-aw-{made.public_id}-{'0' * 48}"
    with pytest.raises(
        UnauthorizedError, match=f"unknown key sk-aw-{made.public_id}, or its secret is wrong"
    ):
        ring.caller(f"Bearer {other}")


def test_a_refresh_without_news_reads_no_key(store: Store) -> None:
    ring = keyring()
    keys.create(store, KeySettings("app", ("decide",)), NOW)
    ring.refresh(store)
    executed: list[str] = []
    sa.event.listen(store.engine, "before_cursor_execute", lambda *call: executed.append(call[2]))
    ring.refresh(store)
    assert not any("secret_hash" in statement for statement in executed)


def test_a_project_whose_ids_feedback_without_a_key_has_taken_cannot_be_made(store: Store) -> None:
    store.append([Feedback("acme~f-1", "d-1", "thumb", 1.0, NOW)])
    with pytest.raises(ProjectTakenError, match="'acme' cannot be created: feedback 'acme~f-1'"):
        keys.create(store, KeySettings("app", ("feedback",), project="acme"), NOW)
    assert keys.read(store) == []
    keys.create(store, KeySettings("app", ("feedback",), project="acm"), NOW)


# -- what is asked for -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scopes": []}, "at least 1"),
        ({"scopes": ["root"]}, "'decide'"),
        ({"project": "Acme"}, "String should match"),
        ({"project": "a~b"}, "String should match"),
        ({"project": "acme", "scopes": ["admin"]}, "all projects"),
        ({"rpm_limit": 0}, "greater than or equal to 1"),
        ({"max_budget": 5.0}, "needs both an amount and budget_duration"),
        ({"token_budget": 5}, "needs both an amount and budget_duration"),
        ({"budget_duration": "1d"}, "needs both"),
        ({"rpm_limit": 10**9 + 1}, "less than or equal to 1000000000"),
        ({"tpm_limit": 0}, "greater than or equal to 1"),
        ({"tpm_limit": 10**12 + 1}, "less than or equal to 1000000000000"),
        ({"token_budget": 10**15 + 1, "budget_duration": "1d"}, "less than or equal to 1000000000000000"),
        ({"max_budget": 0.0, "budget_duration": "1d"}, "greater than 0"),
        ({"max_budget": float("inf"), "budget_duration": "1d"}, "finite"),
        ({"name": "n" * 129}, "String should match"),
        ({"name": ""}, "String should match"),
        ({"tags": {f"tag-{n}": "x" for n in range(33)}}, "at most 32 items"),
        ({"expires": 1_900_000_000}, "expected a date and a time with a zone"),
        ({"expires": "1900000000"}, "expected a date and a time with a zone"),
        ({"expires": "-1900000000"}, "expected a date and a time with a zone"),
        ({"expires": "2027-01-31T00:00"}, "should have timezone info"),
        ({"max_budget": 5.0, "budget_duration": "1y"}, "'1d' or '1mo'"),
        ({"name": "a\nb"}, "String should match"),
        ({"expires": "9999-12-31T23:59:59-14:00"}, "expected a time up to the year 9999 in UTC"),
        ({"owner": "me"}, "Extra inputs"),
    ],
)
def test_a_key_that_makes_no_sense_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        NewKey.model_validate({"name": "app"} | fields)


def test_a_key_that_has_expired_already_is_refused() -> None:
    key = NewKey(name="app", expires=datetime.fromtimestamp(NOW, UTC))
    with pytest.raises(
        ValueError, match=r"expires 2027-01-15T08:00:00.* is in the past: it is 2027-01-15T08:00:00"
    ):
        key.settings(NOW)


def test_all_that_is_said_of_a_key_is_kept_of_it() -> None:
    said: dict[str, Any] = {
        "name": "n" * 128,
        "scopes": ["decide", "read"],
        "project": "acme",
        "source": "judge",
        "rpm_limit": 1,
        "tpm_limit": 2,
        "max_budget": 3.0,
        "token_budget": 4,
        "budget_duration": "1mo",
        "expires": "2027-01-31T00:00Z",
        "tags": {"team": "search"},
        "groups": ["a", "b"],
    }
    assert NewKey.model_validate(said).settings(NOW) == KeySettings(
        name="n" * 128,
        scopes=("decide", "read"),
        project="acme",
        source="judge",
        limits=KeyLimits(1, 2, 3.0, 4, "1mo"),
        expires=1_801_353_600.0,
        tags={"team": "search"},
        groups=("a", "b"),
    )


def test_a_key_of_the_log_has_its_limits_its_groups_and_its_end(store: Store) -> None:
    limits = KeyLimits(rpm_limit=7)
    settings = KeySettings("app", ("operate",), limits=limits, expires=NOW + 60, groups=("a",))
    _, token = keys.create(store, settings, NOW)
    ring = keyring()
    ring.refresh(store)
    found = ring.caller(f"Bearer {token}")
    assert (found.limits, found.groups, found.expires) == (limits, {"a"}, NOW + 60)
    assert found.scopes == {"operate", "read"}


# -- ids ---------------------------------------------------------------------------------------------


def test_ids_of_a_project_have_its_prefix_in_the_log_and_not_for_its_callers() -> None:
    acme = Caller("k", frozenset({"decide"}), "acme")
    assert acme.to_stored_id("d-1") == "acme~d-1"
    assert re.fullmatch("acme~[0-9a-f]{32}", acme.new_id())
    assert (
        acme.strip_prefix("id 'acme~d-1' was used for another request")
        == "id 'd-1' was used for another request"
    )
    assert acme.strip_prefix("acme~d-1 and acme~d-2") == "d-1 and d-2"
    assert acme.to_stored_id("beta~d-1") == "acme~beta~d-1", "not the decision of beta"


def test_the_default_project_cannot_name_the_ids_of_another() -> None:
    default = Caller("k", frozenset({"feedback"}))
    assert default.to_stored_id("d-1") == "d-1"
    assert default.to_stored_id("A~b", "feedback") == "A~b", "no project has this name"
    with pytest.raises(ForeignIdError, match="feedback 'acme~f-1' names a project"):
        default.to_stored_id("acme~f-1", "feedback")
    assert Caller("k", frozenset({"admin"})).to_stored_id("acme~f-1", "feedback") == "acme~f-1"


@pytest.mark.parametrize("caller", [Caller("k", frozenset({"admin"})), Caller("k", frozenset(), "acme")])
def test_no_caller_can_name_a_signal(caller: Caller) -> None:
    with pytest.raises(ForeignIdError, match="feedback id 'signal:retry:d-1' begins with 'signal:'"):
        caller.to_stored_id("signal:retry:d-1", "feedback")
    assert caller.to_stored_id("signal:d-1").endswith("signal:d-1"), "a decision may have this id"
    assert caller.to_stored_id("signals", "feedback").endswith("signals")


def test_new_ids_differ_and_begin_with_the_time() -> None:
    ids = [new_id() for _ in range(600)]
    assert len(set(ids)) == 600
    assert all(re.fullmatch("[0-9a-f]{32}", name) for name in ids)
    assert [name[:12] for name in ids] == sorted(name[:12] for name in ids)
    assert abs(int(ids[0][:12], 16) / 1000 - time.time()) < 3600.0, "milliseconds"


@pytest.mark.parametrize(
    ("project", "kind", "longest"),
    [("", "decision", 128), ("", "episode", 128), ("", "feedback", 256), ("acme", "decision", 123)],
)
def test_the_longest_id_of_each_kind_fits(project: str, kind: str, longest: int) -> None:
    caller = Caller("k", frozenset(), project) if project else Caller("k", frozenset())
    assert caller.to_stored_id("x" * longest, kind).endswith("x" * longest)
    with pytest.raises(ForeignIdError, match=f"at most {longest} are allowed"):
        caller.to_stored_id("x" * (longest + 1), kind)


@pytest.mark.parametrize("prefix", ["chatcmpl-", "msg_", "resp_"])
def test_the_id_of_an_answer_leads_to_what_the_caller_reads(prefix: str) -> None:
    acme, default = Caller("k", frozenset(), "acme"), Caller("k", frozenset())
    assert acme.find_answered(f"acme~{prefix}d-1") == "acme~d-1"
    assert acme.find_answered(f"acme~{prefix}beta~d-1") == "acme~beta~d-1", "not the decision of beta"
    assert default.find_answered(f"{prefix}d-1") == "d-1"
    assert default.find_answered(f"{prefix}acme~d-1") is None
    assert Caller("k", frozenset({"admin"})).find_answered(f"{prefix}acme~d-1") == "acme~d-1"
    for other in (prefix, "d-1", f"x{prefix}d-1", f"acme~{prefix}d-1"):
        assert default.find_answered(other) is None

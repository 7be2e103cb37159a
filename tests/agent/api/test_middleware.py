"""A key gives access to the routes of its scopes, and to no other."""

import pytest

from agent.api.errors import ApiError
from agent.api.middleware import Access
from agent.config import Key, Scope


@pytest.fixture
def access(monkeypatch: pytest.MonkeyPatch) -> Access:
    monkeypatch.setenv("USER_KEY", "u-secret")
    monkeypatch.setenv("ADMIN_KEY", "a-secret")
    return Access((Key(env="USER_KEY"), Key(env="ADMIN_KEY", scopes=("admin",))))


def test_without_keys_everything_is_open() -> None:
    Access(()).check(None, "admin")


def test_a_key_opens_its_scopes(access: Access) -> None:
    access.check("Bearer u-secret", "decide")
    access.check("Bearer u-secret", "feedback")
    access.check("Bearer a-secret", "admin")


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Bearer "])
def test_the_scheme_is_read_in_any_case(access: Access, scheme: str) -> None:
    access.check(f"{scheme} u-secret", "decide")


@pytest.mark.parametrize(
    "header", [None, "", "Bearer ", "Bearer wrong", "u-secret", "Basic u-secret", "Bearer ü"]
)
def test_no_key_or_a_wrong_one_is_unauthorized(access: Access, header: str | None) -> None:
    with pytest.raises(ApiError) as refused:
        access.check(header, "decide")
    assert (refused.value.status, refused.value.code) == (401, "unauthorized")


@pytest.mark.parametrize(("header", "scope"), [("Bearer u-secret", "admin"), ("Bearer a-secret", "decide")])
def test_a_key_without_the_scope_is_forbidden(access: Access, header: str, scope: Scope) -> None:
    with pytest.raises(ApiError, match=f"scope '{scope}'") as refused:
        access.check(header, scope)
    assert (refused.value.status, refused.value.code) == (403, "forbidden")


def test_a_variable_without_a_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ABSENT_KEY", raising=False)
    with pytest.raises(ValueError, match="ABSENT_KEY"):
        Access((Key(env="ABSENT_KEY"),))

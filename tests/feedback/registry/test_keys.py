"""Keys: read back as they were made, disabled once, and never over ids that are there already."""

from dataclasses import replace

import pytest

from armwise.feedback.errors import ProjectTakenError
from armwise.feedback.log import Store
from armwise.feedback.registry import KeyLimits, KeySettings, keys
from tests.feedback.conftest import value

SETTINGS = KeySettings(
    "shop",
    ("decide", "feedback"),
    "acme",
    "judge",
    KeyLimits(60, 9000, 2.5, 100_000, "1mo"),
    4e9,
    {"team": "search"},
    ("staff", "board"),
)


def test_a_key_is_read_back_as_it_was_made_and_its_secret_is_kept_as_a_hash(store: Store) -> None:
    made, token = keys.create(store, SETTINGS, 100.0)
    plain, other = keys.create(store, KeySettings("plain", ()), 101.0)
    assert keys.read(store) == [made, plain], "the oldest first"
    assert (made.settings, made.created_at, made.disabled_at) == (SETTINGS, 100.0, None)
    assert plain.settings == KeySettings("plain", (), "default", "user", KeyLimits(), None, {}, ())
    found = keys.TOKEN.fullmatch(token)
    assert found is not None
    assert found[1] == made.public_id
    assert keys.hash_secret(found[2]) == made.secret_hash
    assert token != other
    assert keys.hash_secret("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_key_is_disabled_once_and_no_other_with_it(store: Store) -> None:
    first, second = (keys.create(store, KeySettings(name, ()), 100.0)[0] for name in "ab")
    assert keys.head(store) == (2, 0)
    disabled = replace(first, disabled_at=150.0)
    assert keys.disable(store, first.public_id, 150.0) == disabled
    assert keys.disable(store, first.public_id, 170.0) == disabled, "it stays as it is"
    assert keys.disable(store, "unknown", 150.0) is None
    assert keys.read(store) == [disabled, second]
    assert keys.head(store) == (2, 1)


@pytest.mark.parametrize("limit", ["rpm_limit", "tpm_limit", "max_budget", "token_budget"])
def test_any_amount_is_a_limit_also_of_nothing(limit: str) -> None:
    assert KeyLimits(**{limit: 0})  # type: ignore[arg-type]
    assert not KeyLimits(budget_duration="1d")


def test_a_new_project_takes_no_ids_that_were_sent_without_a_key(store: Store) -> None:
    store.append(
        [value("d1", key="acme~1"), replace(value("d1", key="own~1"), key="k1"), value("d2", key="b~1")]
    )
    with pytest.raises(ProjectTakenError, match="project 'acme' cannot be created: feedback 'acme~1'"):
        keys.create(store, SETTINGS, 100.0)
    assert keys.read(store) == []
    for project in ("own", "ACME", "acm", "default"):
        keys.create(store, replace(SETTINGS, project=project), 100.0)
    store.append([value("d3", key="own~2")])
    keys.create(store, replace(SETTINGS, project="own"), 101.0)
    assert [one.settings.project for one in keys.read(store)] == ["own", "ACME", "acm", "default", "own"]

"""Erasure and redaction from the caller's side: what is gone, what still verifies, and who may."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from armwise.agent.config import ConfigError, Privacy, parse
from armwise.agent.learning import verify_states
from armwise.agent.policies import Policy, Uniform
from armwise.arms.base import Query, Retrieval
from armwise.feedback.events import Context, Decision, Mode
from armwise.feedback.texts import by_pseudonym
from tests.agent.asking import QUESTION, ask, look_up, refused, tell
from tests.agent.fakes import CONFIG, FakeArms, Service
from tests.agent.turns import verify
from tests.steps import record as record_steps

MAIL = {"name": "mail", "pattern": r"[\w.]+@[\w.]+", "replacement": "[mail]"}


async def record(service: Service, name: str) -> dict[str, Any]:
    found: dict[str, Any] = (await service.client.get(f"/v1/decisions/{name}")).json()
    return found


async def asked(service: Service, **fields: Any) -> str:
    response = await ask(service, **fields)
    assert response.status_code == 200, response.text
    return str(response.headers["x-decision-id"])


async def test_a_user_is_erased_and_the_decision_still_verifies(service: Service) -> None:
    mine, other = await asked(service, user="mary"), await asked(service, user="bob")
    assert (await look_up(service, agent={"user": "mary"})).status_code == 200
    assert (await tell(service, mine, comment="Mary was here", tags={"page": "mary"})).status_code == 202
    await service.learn()
    before = await record(service, mine)
    response = await service.client.delete("/v1/users/mary")
    assert response.status_code == 200
    done = response.json()
    assert (done["scope"], done["decisions"], done["feedback"], done["by"]) == ("user", 2, 1, "anybody")
    after = await record(service, mine)
    assert (after["question"], after["answer"], after["erased"]) == ("", "", True)
    assert after["passage_ids"] == []
    assert (after["feedback"][0]["content"], after["feedback"][0]["tags"]) == ({}, {})
    assert after["features"] == by_pseudonym(before["features"]) != before["features"]
    for kept in ("embedding", "propensity", "reward", "metrics", "arm_drawn", "example_seq"):
        assert after[kept] == before[kept]
    verified = (await service.client.get(f"/v1/decisions/{mine}/verify")).json()
    assert (verified["verified"], verified["erased"]) == (True, True)
    assert (await record(service, other))["question"] == QUESTION
    shown = {name: (await service.client.get(f"/console/decisions/{name}")).text for name in (mine, other)}
    assert "Its texts were erased" in shown[mine]
    assert "Its texts were erased" not in shown[other]
    listed = (await service.client.get("/v1/erasures")).json()["erasures"]
    assert listed == [done]
    assert "mary" not in str(listed)
    report = verify_states(service.replica.store, service.config, lambda *_: None)
    assert report.sound
    assert any("2 decisions have no texts any more" in note for note in report.notes)


async def test_the_answer_of_an_erased_turn_is_not_given_again(service: Service) -> None:
    headers = {"idempotency-key": "k-1"}
    await asked(service, user="ada", headers=headers)
    await service.client.delete("/v1/users/ada")
    refused(await ask(service, user="ada", headers=headers), 409, "idempotency_conflict", "Idempotency-Key")


async def test_an_episode_of_another_project_is_named_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP", "shop-secret")
    monkeypatch.setenv("ADMIN", "admin-secret")
    keys = [{"env": "SHOP", "project": "shop"}, {"env": "ADMIN", "scopes": ["admin"]}]
    shop, admin = ({"authorization": f"Bearer {name}-secret"} for name in ("shop", "admin"))
    async with Service(tmp_path, keys=keys).running() as service:
        for _ in range(2):
            assert (await look_up(service, shop, agent={"episode_id": "e", "user": "ada"})).status_code == 200
        delete = service.client.delete
        refused(await delete("/v1/episodes/e", headers=shop), 403, "forbidden")
        assert (await delete("/v1/episodes/e", headers=admin)).json()["decisions"] == 0
        assert (await delete("/v1/users/ada", headers=admin)).json()["decisions"] == 0
        found = (await delete("/v1/users/ada?project=shop", headers=admin)).json()
        assert (found["decisions"], found["by"]) == (2, "ADMIN")
        assert (await delete("/v1/episodes/shop~e", headers=admin)).json()["decisions"] == 0, "they are gone"


async def test_a_question_is_redacted_before_a_feature_is_made_of_it(tmp_path: Path) -> None:
    async with Service(tmp_path, privacy={"redact": [MAIL]}).running() as service:
        body = {"query": "mail of ada@example.com please", "agent": {"context": {"from": "ada@example.com"}}}
        response = await service.client.post("/v1/retrieve", json=body)
        assert response.status_code == 200, response.text
        name = response.json()["agent"]["decision_id"]
        await tell(service, name, comment="write to ada@example.com")
        found = await record(service, name)
        assert found["question"] == "mail of [mail] please"
        assert found["feedback"][0]["content"] == {"comment": "write to [mail]"}
        assert "example.com" not in str(found)
        assert not any("ada" in feature for feature in found["features"])
        assert b"ada@example" not in b"".join(one.read_bytes() for one in tmp_path.glob("log.db*"))


class Reader(Uniform):
    """A policy that would need the text."""

    reads_question = True


@pytest.mark.parametrize(
    ("policy", "candidate", "reads"),
    [
        (Uniform(), None, False),
        (Reader(), None, True),
        (Uniform(), Uniform(), False),
        (Uniform(), Reader(), True),
    ],
)
def test_a_policy_that_reads_texts_cannot_recompute_what_was_erased(
    policy: Policy, candidate: Policy | None, reads: bool
) -> None:
    share = 0.0 if candidate is None else 0.5
    steps = record_steps(("a",), floor=0.01, candidate=2 if share else 0, share=share)
    whole = Decision("d", Context(""), ("a",), (1.0,), "a", "uniform", 1, Mode.EXPLORE, steps=steps)
    assert verify(whole, policy, "salt", candidate=candidate).why == ()
    found = verify(replace(whole, erased=True), policy, "salt", candidate=candidate)
    assert (found.verified, found.reply("d").erased) == (not reads, True)
    assert ["reads the text of the question, which was erased" in why for why in found.why[:1]] == [
        True
    ] * reads


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ({"redact": [MAIL | {"pattern": "("}]}, "valid regular expression"),
        ({"redact": [MAIL | {"pattern": "x*"}]}, "'x*' matches the empty text"),
        ({"redact": [MAIL | {"replacement": "a@b"}]}, "'a@b' of 'mail' matches the pattern of 'mail'"),
        ({"hook": "os.system"}, "privacy.hook"),
        ({"keep_texts_days": 0}, "privacy.keep_texts_days"),
    ],
)
def test_a_wrong_setting_is_named(privacy: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse({**CONFIG, "privacy": privacy})
    assert message in str(refusal.value)


def test_a_hook_comes_after_the_patterns_and_fails_closed() -> None:
    redact = Privacy.model_validate({"redact": [MAIL], "hook": "textwrap:dedent"}).redactor()
    assert redact is not None
    assert redact("  to ada@example.com") == "to [mail]"
    for hook, message in (("no.such:thing", "cannot be imported"), ("os:sep", "is not a function")):
        with pytest.raises(ValueError, match=message):
            Privacy(hook=hook).redactor()
    broken = Privacy(hook="builtins:len").redactor()
    assert broken is not None
    with pytest.raises(TypeError, match="a text was expected"):
        broken("ada")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "x(.*)*y"])
@pytest.mark.slow
def test_a_pattern_that_its_own_characters_make_slow_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"takes too long for .* repeated \d+ times"):
        parse(CONFIG | {"privacy": {"redact": [MAIL | {"pattern": pattern}]}})


@pytest.mark.slow
def test_a_pattern_that_a_text_makes_slow_stops_and_nothing_passes() -> None:
    rule = MAIL | {"pattern": r"id:(i|ii)+\Z"}
    redact = Privacy.model_validate({"redact": [rule]}).redactor()
    assert redact is not None
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        redact("id:" + "i" * 500 + "!")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "pattern",
    [
        r"[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64})+",
        r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}\b",
        r"\+?\d[\d -]{7,20}\d",
        r"[\w.]+@[\w.]+",
        "(?i)(?:mr|mrs|dr)[.] [a-z]+",
    ],
)
def test_a_pattern_of_linear_or_quadratic_time_is_accepted(pattern: str) -> None:
    assert parse(CONFIG | {"privacy": {"redact": [MAIL | {"pattern": pattern}]}}).privacy.redact


@pytest.mark.slow
async def test_feedback_on_what_never_came_is_erased_by_its_id(service: Service) -> None:
    for about in ({"decision_id": "typo"}, {"episode_id": "gone"}):
        item = about | {"metric_name": "comment", "value": "Ada was here", "tags": {"at": "Ada"}}
        response = await service.client.post("/v1/feedback", json=item | {"feedback_id": f"Ada {about}"})
        assert response.json()["status"] == "stored"
    for path in ("/v1/decisions/typo", "/v1/episodes/gone"):
        done = (await service.client.delete(path)).json()
        assert (done["decisions"], done["feedback"]) == (0, 1)
    exported = (await service.client.get("/v1/export?format=feedback")).text
    assert exported.count("\n") == 2
    assert "Ada" not in exported


async def test_a_turn_under_way_loses_its_texts_when_its_user_is_erased(tmp_path: Path) -> None:
    entered, may_go_on = asyncio.Event(), asyncio.Event()

    async def slow(query: Query, k: int) -> Retrieval:
        del query, k
        entered.set()
        await may_go_on.wait()
        return Retrieval()

    arms = FakeArms(dict.fromkeys(CONFIG["arms"], slow))
    async with Service(tmp_path, searched=arms).running() as service:
        turn = asyncio.create_task(ask(service, user="ada"))
        await entered.wait()
        assert (await service.client.delete("/v1/users/ada")).status_code == 200
        may_go_on.set()
        response = await turn
        assert response.status_code == 200
        assert response.json()["choices"][0]["message"]["content"], "the caller has the answer"
        found = await record(service, response.headers["x-decision-id"])
        assert (found["erased"], found["question"], found["answer"]) == (True, "", "")
        files = b"".join(one.read_bytes() for one in tmp_path.glob("log.db*"))
        assert QUESTION.encode() not in files
        later = await record(service, await asked(service, user="bob"))
        assert (later["erased"], later["question"]) == (False, QUESTION)

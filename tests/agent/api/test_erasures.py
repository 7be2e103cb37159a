"""Erasure and redaction from the caller's side: what is gone, what still verifies, and who may."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from agent.cli.main import app
from agent.config import ConfigError, parse
from agent.config.privacy import Privacy
from agent.learning.rebuild import rebuild
from agent.learning.verify import verify
from agent.policies import Policy, Uniform
from feedback.events import Context, Decision, Mode
from feedback.log import Store
from feedback.texts import by_pseudonym
from tests.agent.asking import QUESTION, ask, look_up, refused, tell
from tests.agent.fakes import CONFIG, Service

MAIL = {"name": "mail", "pattern": r"[\w.]+@[\w.]+", "replacement": "[mail]"}


async def record(service: Service, name: str) -> dict[str, Any]:
    found: dict[str, Any] = (await service.client.get(f"/v1/decisions/{name}")).json()
    return found


async def asked(service: Service, **fields: Any) -> str:
    response = await ask(service, **fields)
    assert response.status_code == 200, response.text
    return str(response.headers["x-decision-id"])


async def test_a_user_is_erased_and_the_decision_still_verifies(service: Service) -> None:
    mine, other = await asked(service, user="ada"), await asked(service, user="bob")
    assert (await look_up(service, agent={"user": "ada"})).status_code == 200
    assert (await tell(service, mine, comment="Ada was here", tags={"page": "ada"})).status_code == 202
    await service.learn()
    before = await record(service, mine)
    response = await service.client.delete("/v1/users/ada")
    assert response.status_code == 200
    (done,) = response.json()["erasures"]
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
    assert "ada" not in str(listed)
    report = rebuild(service.replica.store, service.config, lambda *_: None)
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
        assert (await delete("/v1/users/ada", headers=admin)).json()["erasures"][0]["decisions"] == 0
        found = (await delete("/v1/users/ada?project=shop", headers=admin)).json()["erasures"][0]
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


@pytest.mark.parametrize(("policy", "erased", "verified"), [(Uniform(), True, True), (Reader(), True, False)])
def test_a_policy_that_reads_texts_cannot_recompute_what_was_erased(
    policy: Policy, erased: bool, verified: bool
) -> None:
    decision = Decision(
        "d", Context(""), ("a",), (1.0,), "a", "uniform", 1, Mode.EXPLORE, floor=0.01, erased=erased
    )
    found = verify(decision, policy, "salt")
    assert found.verified == verified
    assert found.document()["erased"]
    assert verified or "reads the text of the question, which was erased" in found.why[0]


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
    for hook, message in (("no.such:thing", "cannot be imported"), ("os:sep", "is no function")):
        with pytest.raises(ValueError, match=message):
            Privacy(hook=hook).redactor()
    broken = Privacy(hook="builtins:len").redactor()
    assert broken is not None
    with pytest.raises(TypeError, match="a text was expected"):
        broken("ada")


async def test_the_command_erases_without_a_service(tmp_path: Path) -> None:
    service = Service(tmp_path)
    async with service.running():
        name = await asked(service, user="ada")
    document = {**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}"}
    config = tmp_path / "serve.yaml"
    config.write_text(yaml.safe_dump({"applications": [{"args": document}]}))
    run = CliRunner().invoke(app, ["backup", str(tmp_path / "copies"), "--config", str(config)])
    assert (run.exit_code, "copies/log.db: 1 decisions" in run.output.replace("\n", "")) == (0, True)
    run = CliRunner().invoke(app, ["erase", "--user", "ada", "--config", str(config)])
    assert run.exit_code == 0, run.output
    assert "erasure 1: the texts of 1 decisions and of 0 items of feedback are gone" in run.output
    found = Store(service.config.database_url)
    one = found.record(name)
    assert one is not None
    assert one.decision.erased
    found.close()
    wrong = CliRunner().invoke(app, ["erase", "--config", str(config)])
    assert (wrong.exit_code, "either --user or --episode" in wrong.output) == (2, True)

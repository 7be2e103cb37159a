"""The first start: words answer first, and all arms enter once they are built, in the log."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from armwise.agent import run_folder
from armwise.agent.cli import first_start
from armwise.agent.cli.main import app
from armwise.agent.cli.preparation import EXAMPLE_QUESTION, suggest_question
from armwise.agent.config import AppConfig, parse
from armwise.agent.hosts.jobs import FirstStart
from armwise.agent.jobs import JobFailedError
from armwise.agent.run_folder import QUESTION, RUN_FOLDER, Building, BuildingProgress
from armwise.arms.corpus import CorpusSource
from armwise.arms.retrievers import ArmGraph, ArmSpec
from armwise.feedback.log import Store
from armwise.feedback.registry import arm_sets
from tests.agent.cli.test_launch import program
from tests.live.conftest import free_port

ARMS: dict[str, dict[str, Any]] = {
    "none": {"kind": "none"},
    "small_words": {"kind": "bm25", "corpus": "small", "action": False},
    "small_near": {"kind": "dense", "corpus": "small", "params": {"backbone": "hashed"}, "action": False},
    "small": {"kind": "rrf", "params": {"arms": ["small_words", "small_near"]}},
    "large_words": {"kind": "bm25", "corpus": "large", "action": False},
    "large_near": {"kind": "dense", "corpus": "large", "params": {"backbone": "hashed"}, "action": False},
    "large": {"kind": "rrf", "params": {"arms": ["large_words", "large_near"]}},
    "near": {"kind": "dense", "corpus": "large", "params": {"backbone": "hashed"}},
}

FIRST = ["large_words", "none", "small_words"]


def nothing(*_: object) -> None: ...


def actions(arms: Any) -> list[str]:
    """Return the actions among arms or their documents."""
    specs = {name: ArmSpec.model_validate(spec) for name, spec in arms.items()}
    return sorted(name for name, spec in specs.items() if spec.action)


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A configuration with a small corpus and a large one, in an empty home."""
    monkeypatch.delenv("ARMWISE_HOME", raising=False)
    (tmp_path / "run").mkdir()
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path / "run"))
    for name, n in (("small", 5), ("large", 40)):
        lines = [{"id": f"p{i}", "text": f"the {name} river {i} flows"} for i in range(n)]
        (tmp_path / f"{name}.jsonl").write_bytes(b"\n".join(map(orjson.dumps, lines)))
    return {
        "home": str(tmp_path / "home"),
        "corpora": {name: {"source": str(tmp_path / f"{name}.jsonl")} for name in ("large", "small")},
        "backbones": {"hashed": {"model": "hashing:16"}},
        "arms": ARMS,
        "policy": {"kind": "epsilon_greedy"},
        "llm": {"engine": "scripted"},
        "reward": {"metrics": {"right": {}}},
        "features": {"similarity": {"backbone": "hashed"}},
    }


@pytest.fixture
def config(document: dict[str, Any]) -> AppConfig:
    found = parse(document)
    found.home_path.mkdir(mode=0o700)
    return found


@pytest.fixture
def store(config: AppConfig) -> Iterator[Store]:
    with closing(Store(config.database_url)) as opened:
        yield opened


def begun(config: AppConfig) -> bool:
    return first_start.begin(config, nothing)


def live(store: Store) -> list[str]:
    found = arm_sets.live(store)
    assert found is not None
    return sorted(found.arms)


def vectors_of(config: AppConfig) -> list[str]:
    return sorted(
        path.name for path in config.resolve_places().indexes_path.glob("vectors-*") if path.is_dir()
    )


# -- which arms are live ------------------------------------------------------------------------------


def test_members_without_an_encoder_are_live_in_place_of_what_is_not_built(config: AppConfig) -> None:
    assert sorted(first_start.entering(config.arms)) == FIRST


@given(chosen=st.sets(st.sampled_from(["none", "small", "large", "near"]), min_size=1))
def test_live_arms_read_no_model(chosen: set[str]) -> None:
    specs = {name: ArmSpec.model_validate(spec) for name, spec in ARMS.items()}
    arms = {name: spec for name, spec in specs.items() if not spec.action or name in chosen}
    for name in first_start.entering(arms):
        assert not any(spec.kind == "dense" for spec in ArmGraph(arms).closure(name).values())


def test_an_arm_of_words_alone_is_live_as_it_is_and_its_members_are_not() -> None:
    fused = {"kind": "rrf", "params": {"arms": ["small_words", "large_words"]}}
    arms = {name: ArmSpec.model_validate(spec) for name, spec in {**ARMS, "words": fused}.items()}
    alone = {name: arms[name] for name in ("small_words", "large_words", "words")}
    assert sorted(first_start.entering(alone)) == ["words"]
    assert sorted(first_start.entering(arms)) == [*FIRST, "words"]


# -- the beginning --------------------------------------------------------------------------------------


def test_a_first_start_builds_words_alone_and_makes_them_live(config: AppConfig, store: Store) -> None:
    assert begun(config)
    assert live(store) == FIRST
    assert not vectors_of(config)
    assert len(list(config.resolve_places().indexes_path.glob("bm25-*"))) == 2
    assert not list(config.resolve_places().indexes_path.glob("profile-*")), "samples are embedded later"
    assert len(list(config.resolve_places().indexes_path.glob("words-*"))) == 2


def test_a_first_start_that_was_killed_begins_again(config: AppConfig, store: Store) -> None:
    assert begun(config)
    assert begun(config)
    assert len(arm_sets.every(store)) == 1


def test_a_first_start_with_an_arm_of_words_begins_again(document: dict[str, Any], tmp_path: Path) -> None:
    arms = {"words": {"kind": "bm25"}, "near": {"kind": "dense", "params": {"backbone": "hashed"}}}
    single = {key: value for key, value in document.items() if key not in ("corpora", "features")}
    config = parse(
        {**single, "corpus": {"name": "small", "source": str(tmp_path / "small.jsonl")}, "arms": arms}
    )
    config.home_path.mkdir(mode=0o700)
    with closing(Store(config.database_url)) as store:
        assert begun(config)
        assert live(store) == ["words"]
        assert begun(config), "it was stopped before its vectors were built"
        assert live(store) == ["words"]
        assert first_start.enter(config.resolve_places(), nothing)
        assert live(store) == ["near", "words"]
        for path in config.resolve_places().indexes_path.glob("vectors-*"):
            path.rename(path.with_name("lost"))
        assert not begun(config), "it has ended"


def test_a_first_start_whose_file_is_cut_off_is_left_alone(config: AppConfig) -> None:
    assert begun(config)
    (config.home_path / run_folder.UNDER_WAY).write_text("")
    assert not begun(config)


def test_arms_of_an_operator_stay_through_a_first_start(config: AppConfig, store: Store) -> None:
    assert begun(config)
    arm_sets.replace(store, ["none"], config.arm_documents)
    assert not begun(config)
    assert live(store) == ["none"]


def test_a_home_that_has_served_is_left_alone(config: AppConfig, store: Store) -> None:
    first_start.prepare(config, nothing)
    arm_sets.start(store, config.arm_documents)
    for path in config.resolve_places().indexes_path.glob("vectors-*"):
        path.rename(path.with_name("lost"))
        break
    assert not begun(config)
    assert live(store) == actions(ARMS)


def test_where_nothing_is_missing_all_arms_are_live_at_once(config: AppConfig, store: Store) -> None:
    first_start.prepare(config, nothing)
    assert not begun(config)
    assert arm_sets.live(store) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"arms": {"none": {"kind": "none"}, "near": ARMS["near"]}},
        {"arms": {"words": {"kind": "bm25", "corpus": "small"}}},
        {"fallback": "large"},
    ],
    ids=["no arm without an encoder", "no arm with one", "a setting names an arm"],
)
def test_what_cannot_begin_with_words_is_built_before(
    document: dict[str, Any], changes: dict[str, Any]
) -> None:
    config = parse({**document, **changes})
    config.home_path.mkdir(mode=0o700)
    assert not begun(config)
    assert not list(config.home_path.glob("**/vectors-*"))


# -- what follows -----------------------------------------------------------------------------------------


def test_all_arms_of_the_file_enter_once_they_are_built(
    config: AppConfig, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(config)
    assert first_start.enter(config.resolve_places(), nothing)
    sets = [sorted(one.arms) for one in arm_sets.every(store)]
    assert sets == [FIRST, actions(ARMS)]
    last = arm_sets.live(store)
    assert last is not None
    assert last.arms == tuple(config.actions)
    assert len(vectors_of(config)) == 2
    assert len(list(config.resolve_places().indexes_path.glob("profile-*"))) == 2
    assert "Arms now: large, near, none, small" in capsys.readouterr().err
    assert arm_sets.start(store, config.arm_documents).seq == last.seq, "a later start goes on with it"


def test_arms_that_an_operator_has_put_in_place_meanwhile_are_left(
    config: AppConfig, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(config)

    def on_progress(*_: object) -> None:
        if live(store) == FIRST:
            arm_sets.replace(store, ["none"], config.arm_documents)

    assert not first_start.enter(config.resolve_places(), on_progress)
    assert live(store) == ["none"]
    assert "The arms were replaced in the meantime" in capsys.readouterr().err
    assert not begun(config), "nor at the next start"


def test_arms_that_were_replaced_before_anything_else_was_built_are_left(
    config: AppConfig, store: Store
) -> None:
    begun(config)
    arm_sets.replace(store, ["none"], config.arm_documents)
    assert not first_start.enter(config.resolve_places(), nothing)
    assert live(store) == ["none"]


def builds(config: AppConfig, stop: threading.Event | None = None) -> None:
    """Do what the service does while a first start is under way."""
    task = FirstStart(config.resolve_places())
    assert task.due(0.0)
    task.run(stop or threading.Event())


@pytest.mark.slow
def test_a_child_of_the_service_builds_and_all_arms_enter(
    config: AppConfig, store: Store, tmp_path: Path
) -> None:
    assert not FirstStart(config.resolve_places()).due(0.0)
    begun(config)
    BuildingProgress(tmp_path / "run")("waiting for the service")
    builds(config)
    assert live(store) == actions(ARMS)
    assert Building.read() is None
    assert not FirstStart(config.resolve_places()).due(0.0)


@pytest.mark.slow
def test_why_it_fails_is_told_and_the_arms_that_answer_stay(
    document: dict[str, Any], config: AppConfig, store: Store
) -> None:
    begun(config)
    lost = parse({**document, "backbones": {"hashed": {"model": "/no/such/model"}}})
    with pytest.raises(JobFailedError, match="/no/such/model"):
        builds(lost)
    assert live(store) == FIRST
    assert Building.read() is None
    builds(config)
    assert live(store) == actions(ARMS), "the next attempt"


def test_what_builds_and_is_killed_is_told(
    config: AppConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(config)
    program(tmp_path, monkeypatch, "kill -9 $$")
    with pytest.raises(JobFailedError, match="ended with status -9"):
        builds(config)


def test_what_builds_may_say_more_than_a_pipe_holds(
    config: AppConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(config)
    program(tmp_path, monkeypatch, "echo no space left; yes | head -c 200000; exit 1")
    with pytest.raises(JobFailedError, match="no space left") as caught:
        builds(config)
    assert len(str(caught.value)) < 5000


def test_what_builds_ends_with_the_service_and_its_children_too(
    config: AppConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(config)
    program(
        tmp_path, monkeypatch, f"sleep 600 & echo $! > {tmp_path / 'child'}; echo x > {tmp_path / 'up'}; wait"
    )
    stop = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        building = thread.submit(builds, config, stop)
        while not (tmp_path / "up").exists():
            threading.Event().wait(0.01)
        stop.set()
        building.result(30)
    child = psutil.Process(int((tmp_path / "child").read_text()))
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def written(document: dict[str, Any], folder: Path) -> str:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"args": document}]}))
    return str(path)


def test_what_prepares_leaves_a_note_of_what_is_left(document: dict[str, Any], tmp_path: Path) -> None:
    path = Path(written(document, tmp_path))
    text = yaml.safe_load(path.read_text()) | {"http_options": {"port": free_port()}}
    path.write_text(yaml.safe_dump(text))
    done = CliRunner().invoke(app, ["serve", "--prepare-only", "-c", str(path)])
    assert done.exit_code == 0, done.output
    assert str(Building.read()) == "waiting for the service"
    assert (tmp_path / "run" / QUESTION).read_text() == "What is said about the large river 20 flows?"


@pytest.mark.parametrize(
    ("lines", "question"),
    [
        (['{"id": "a", "title": "The Danube", "text": "It is long."}'], "What is said about The Danube?"),
        (['{"id": "a", "text": "One two three four five six seven."}'], "What is said about One two three"),
        (
            [
                '{"id": "a", "title": "v1.2", "text": "It is old."}',
                '{"id": "b", "title": "Black Sea", "text": "It is deep."}',
                '{"id": "c", "title": "v1.3", "text": "It is new."}',
                '{"id": "d", "title": "v1.4", "text": "It is newer."}',
            ],
            "What is said about Black Sea?",
        ),
        (
            [
                '{"id": "a", "title": "Black Sea", "text": "It is deep."}',
                '{"id": "b", "title": "Danube", "text": "It is long."}',
                '{"id": "c", "title": "Inn", "text": "It is cold."}',
            ],
            "What is said about Black Sea?",
        ),
    ],
    ids=["title", "text", "phrase", "words"],
)
def test_the_first_question_is_of_the_documents(tmp_path: Path, lines: list[str], question: str) -> None:
    (tmp_path / "docs.jsonl").write_text("\n".join(lines))
    source = CorpusSource(str(tmp_path / "docs.jsonl"), tmp_path / "corpus")
    source.ingest()
    assert suggest_question([source]).startswith(question)


def test_the_first_question_says_nothing_of_passages_that_are_for_some_groups_alone(tmp_path: Path) -> None:
    own = '{"id": "a", "title": "Secret Plan", "text": "Buy.", "metadata": {"allowed_groups": ["board"]}}'
    for lines, question in (
        ([own], "YOUR QUESTION"),
        ([own, '{"id": "b", "title": "Danube", "text": "It is long."}'], "What is said about Danube?"),
    ):
        (tmp_path / "docs.jsonl").write_text("\n".join(lines))
        source = CorpusSource(str(tmp_path / "docs.jsonl"), tmp_path / "corpus")
        source.ingest()
        assert suggest_question([source]) == question


def test_the_first_question_of_the_example_is_of_its_library(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    assert suggest_question([CorpusSource("language", nowhere), CorpusSource("stdlib", nowhere)]) == (
        EXAMPLE_QUESTION
    )
    assert suggest_question([]) == "YOUR QUESTION"


# -- its progress --------------------------------------------------------------------------------------------


def test_progress_has_an_estimate_from_the_steps_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(run_folder.time, "monotonic", lambda: now[0])
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
    report = BuildingProgress(tmp_path)
    assert report("embedding", 40, 100).left_s is None, "the first 40 were there before"
    now[0] += 10.0
    assert report("embedding", 60, 100).left_s == pytest.approx(20.0)
    assert str(Building.read()) == "embedding: 60 of 100, about 20 s left"
    now[0] += 0.1
    report("embedding", 61, 100)
    assert str(Building.read()).startswith("embedding: 60"), "it is written twice a second at most"
    report("scoring", 0, None)
    assert str(Building.read()) == "scoring"
    report.end()
    report.end()
    assert Building.read() is None


def test_without_a_run_nothing_is_being_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    BuildingProgress(tmp_path)("embedding", 1, 2)
    monkeypatch.delenv(RUN_FOLDER, raising=False)
    assert Building.read() is None

"""A damaged derived file is made again before the service starts, or named with the command that makes it."""

import base64
import hashlib
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from filelock import FileLock
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.agent.config import ConfigError
from armwise.agent.routers import RouterError, out_of_fold, read_trained, saved
from armwise.arms import models
from armwise.arms.base import ArmError
from armwise.arms.corpus import Corpus, CorpusError
from armwise.arms.indexes import IndexMismatchError, build_once
from armwise.arms.lab.portfolio import read_matrix, read_outcomes
from armwise.arms.lab.portfolio.outcomes import OutcomesError
from armwise.arms.lab.portfolio.score_matrix import MatrixError
from armwise.arms.manifest import MANIFEST
from armwise.arms.models import ModelNotFoundError
from armwise.arms.retrievers import build_arm, prepare
from tests.agent.derived import DAMAGES, Home, damage

REBUILT = ("bm25-", "dense-", "graph-", "vectors-")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home that no test changes."""
    home = Home(tmp_path_factory.mktemp("made"))
    home.make()
    return home


@pytest.fixture
def home(made: Home, monkeypatch: pytest.MonkeyPatch) -> Home:
    """The same home, with its files as they were made."""
    monkeypatch.delenv("ARMWISE_HOME", raising=False)
    kept = made.root.with_name("kept")
    if not kept.exists():
        shutil.copytree(made.root, kept)
    shutil.rmtree(made.root)
    shutil.copytree(kept, made.root)
    return made


def index(home: Home, kind: str) -> Path:
    """Return the folder of the only index of a kind."""
    (folder,) = (home.root / "home/indexes").glob(f"{kind}-*")
    return folder


def doctor(home: Home) -> list[str]:
    """Return the problems that `armwise doctor` prints."""
    path = home.root / "config.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"args": home.document}]}))
    result = CliRunner().invoke(app, ["doctor", "-c", str(path)])
    return [line for line in result.output.splitlines() if line.startswith("problem")]


# -- what can be made again --------------------------------------------------------------------------


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.slow
def test_preparing_makes_each_damaged_index_again_and_names_its_file(
    home: Home, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = home.results()
    rebuilt = [path for path in home.files() if path.parent.name.startswith(REBUILT)]
    assert {kind for kind in REBUILT for path in rebuilt if path.parent.name.startswith(kind)} == set(REBUILT)
    for path in rebuilt:
        damage(path, how)
        assert any(path.name in line and line.startswith("problem") for line in home.findings()), path
        with caplog.at_level(logging.WARNING):
            home.prepare()
        (line,) = [line for line in caplog.messages if "built again when it is needed" in line]
        assert path.name in line
        assert path.parent.name in line
        assert home.results() == before, path
        assert not [line for line in home.findings() if line.startswith("problem")], path
        caplog.clear()


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", ["passages.db", MANIFEST])
def test_a_damaged_corpus_is_read_again_and_indexes_stay(
    home: Home, how: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = home.results()
    indexes = {path: path.stat().st_ino for path in home.files() if path.parent.name.startswith(REBUILT)}
    damage(home.config.corpus_sources[0].folder / name, how)
    assert any(name in line and line.startswith("problem: corpus 'rivers'") for line in home.findings())
    with caplog.at_level(logging.WARNING):
        home.prepare()
    assert any("reading corpus rivers again" in line and name in line for line in caplog.messages)
    assert home.results() == before
    assert indexes == {path: path.stat().st_ino for path in indexes}


def test_a_corpus_that_cannot_be_opened_names_what_reads_it_again(home: Home) -> None:
    damage(home.config.corpus_sources[0].folder / "passages.db", "cut to half")
    with pytest.raises(CorpusError, match=r"passages\.db is not a corpus .*`armwise serve --prepare-only`"):
        Corpus.open(home.config.corpus_sources[0].folder)


def test_the_second_of_two_damaged_files_is_named_too(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("order.npy", "weights.npy"):
        damage(index(home, "bm25") / name, "cut to half")
    damage(next(index(home, "graph").glob("keys.npy")), "one bit flipped")
    home.prepare()
    (words,) = [line for line in caplog.messages if "bm25" in line]
    assert "order.npy is damaged: 184 bytes instead of 368" in words
    assert "weights.npy is damaged: " in words
    assert sum("keys.npy" in line for line in caplog.messages) == 1


def test_an_index_of_an_earlier_version_without_digests_is_built_again(home: Home) -> None:
    before, folder = home.results(), index(home, "bm25")
    (folder / MANIFEST).write_text('{"corpus": "c0ffee"}')
    home.prepare()
    assert home.results() == before


def test_what_is_whole_is_left_alone(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in home.files()}
    home.prepare()
    assert before == {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in home.files()}
    assert not caplog.messages


@pytest.mark.parametrize("kind", ["bm25", "dense", "vectors", "graph"])
def test_a_host_that_nobody_prepared_names_a_file_of_another_size(home: Home, kind: str) -> None:
    names = {"bm25": "bm25", "dense": "dense", "vectors": "diverse", "graph": "graph"}
    path = max(
        set(index(home, kind).iterdir()) - {index(home, kind) / MANIFEST},
        key=lambda path: path.stat().st_size,
    )
    damage(path, "cut to half")
    with pytest.raises(
        IndexMismatchError, match=rf"{path.name} is damaged: .*`armwise serve --prepare-only`"
    ):
        build_arm(names[kind], home.resources())
    prepare(home.resources(), [names[kind]])  # as each host does before it builds an arm
    build_arm(names[kind], home.resources())


def test_an_index_that_another_process_has_rebuilt_stays(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = index(home, "bm25")
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    damage(folder / "rows.npy", "cut to half")

    class AfterTheOther(FileLock):
        """Is acquired once another process has built the index."""

        def acquire(self, *args: Any, **options: Any) -> Any:
            for name, content in whole.items():
                (folder / name).write_bytes(content)
            return super().acquire(*args, **options)

    monkeypatch.setattr("filelock.FileLock", AfterTheOther)
    inode = folder.stat().st_ino
    build_once.discard_damaged(home.config.indexes_path)
    assert folder.stat().st_ino == inode


def test_a_killed_removal_leaves_nothing_that_stops_the_next(home: Home) -> None:
    folder = index(home, "bm25")
    shutil.copytree(folder, folder.with_name(f".{folder.name}.damaged"))
    damage(folder / "rows.npy", "deleted")
    home.prepare()
    assert (folder / "rows.npy").exists()
    assert not folder.with_name(f".{folder.name}.damaged").exists()


def test_unfinished_vectors_that_were_cut_off_are_made_again(home: Home) -> None:
    before, folder = home.results(), index(home, "vectors")
    part = folder.with_name(f".{folder.name}.part")
    folder.rename(part)
    (part / MANIFEST).unlink()
    damage(part / "vectors.npy", "cut to half")
    (part / "done.txt").write_text("30")
    home.prepare()
    assert home.results() == before


# -- what cannot -------------------------------------------------------------------------------------


def read_router(home: Home) -> object:
    return read_trained(home.root / "router")


def read_unseen(home: Home) -> object:
    about = saved.read_about(home.root / "router")
    return out_of_fold.read_out_of_fold(home.root / "router", about)


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize(
    ("file", "read", "error", "command"),
    [
        ("router/router.model", read_router, RouterError, "armwise lab train"),
        ("router/router.json", read_router, RouterError, "armwise lab train"),
        ("router/unseen.jsonl", read_unseen, RouterError, "armwise lab train"),
        ("relevance/relevance.model", Home.prepare, ArmError, "armwise lab train --model relevance"),
        (
            "scores/scores.npy",
            lambda home: read_matrix(home.root / "scores"),
            MatrixError,
            "armwise lab score",
        ),
        (
            "scores/arms.json",
            lambda home: read_matrix(home.root / "scores"),
            MatrixError,
            "armwise lab score",
        ),
        (
            "labels/outcomes.jsonl",
            lambda home: read_outcomes(home.root / "labels"),
            OutcomesError,
            "armwise lab label",
        ),
    ],
)
def test_a_damaged_file_is_named_with_the_command_that_makes_it(
    home: Home, how: str, file: str, read: Callable[[Home], object], error: type[Exception], command: str
) -> None:
    assert not [line for line in doctor(home) if "damaged" in line or "missing" in line]
    damage(home.root / file, how)
    name = Path(file).name
    with pytest.raises(error, match=rf"(?s){name}.*`{command}`"):
        read(home)
    assert any(name in line and "armwise lab" in line for line in doctor(home))
    if read is read_router:
        with pytest.raises(ConfigError, match=name):
            home.prepare()


def test_a_router_with_a_damaged_manifest_is_refused(home: Home) -> None:
    damage(home.root / "router" / MANIFEST, "one bit flipped")
    with pytest.raises(RouterError, match=r"manifest\.json is damaged.*train it again"):
        saved.read_about(home.root / "router")


# -- models of packages ------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a model, as pip installs it; return the folder of the model."""
    model = tmp_path / "site/river_model/weights"
    model.mkdir(parents=True)
    (tmp_path / "site/river_model/__init__.py").touch()
    (model / "a.bin").write_bytes(b"a" * 100)
    (model / "b.bin").write_bytes(b"b" * 100)
    info = tmp_path / "site/river_model-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: river-model\nVersion: 1\n")
    (info / "top_level.txt").write_text("river_model\n")
    rows = ["river_model/__init__.py,,", "river_model-1.dist-info/RECORD,,"]
    for name in ("a.bin", "b.bin"):
        digest = hashlib.sha256((model / name).read_bytes()).digest()
        encoded = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        rows.append(f"river_model/weights/{name},sha256={encoded},100")
    (info / "RECORD").write_text("\n".join(rows))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return model


MODEL = "package:river_model/weights"


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", ["a.bin", "b.bin"])
@pytest.mark.slow
def test_a_damaged_model_is_named_with_what_installs_it(package: Path, how: str, name: str) -> None:
    assert models.model_problems(MODEL) == []
    damage(package / name, how)
    with pytest.raises(ModelNotFoundError, match=rf"{name} is .*`armwise models`"):
        models.require_whole(["hashing:8", MODEL])


@pytest.mark.slow
def test_a_file_elsewhere_in_the_package_is_not_of_the_model(package: Path) -> None:
    (package.parent / "__init__.py").write_text("changed = True")
    damage(package / "b.bin", "deleted")
    (problem,) = models.model_problems(MODEL)
    assert problem.endswith("b.bin is missing")
    assert models.model_problems(str(package)) == []


@pytest.mark.parametrize("beside", [False, True])
def test_a_model_is_compared_whichever_distribution_has_installed_it(package: Path, beside: bool) -> None:
    site = package.parents[1]
    info = (site / "river_model-1.dist-info").rename(site / "weights_of_rivers-1.dist-info")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: weights-of-rivers\nVersion: 1\n")
    if beside:  # one with the name of the package, and none of its files
        other = site / "river_model-1.dist-info"
        other.mkdir()
        (other / "METADATA").write_text("Metadata-Version: 2.1\nName: river-model\nVersion: 1\n")
        (other / "RECORD").write_text("river_model-1.dist-info/RECORD,,")
    assert models.model_problems(MODEL) == []
    damage(package / "a.bin", "one bit flipped")
    (problem,) = models.model_problems(MODEL)
    assert "a.bin is damaged" in problem


def test_a_model_may_be_a_single_file_of_a_package(package: Path) -> None:
    damage(package / "b.bin", "deleted")
    assert models.model_problems(f"{MODEL}/a.bin") == []
    damage(package / "a.bin", "one bit flipped")
    (problem,) = models.model_problems(f"{MODEL}/a.bin")
    assert "a.bin is damaged" in problem


def test_preparing_refuses_a_damaged_model(
    home: Home, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(package / "a.bin", "one bit flipped")
    config = home.config
    tiny = config.backbones["tiny"].model_copy(update={"model": MODEL})
    changed = config.model_copy(update={"backbones": {"tiny": tiny}, "router": None})
    monkeypatch.setattr(Home, "config", property(lambda _: changed))
    with pytest.raises(ModelNotFoundError, match=r"a\.bin is damaged.*`armwise models`"):
        home.prepare()

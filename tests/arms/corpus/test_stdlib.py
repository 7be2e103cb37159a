"""The documentation of the standard library is a corpus of real text that every machine has."""

import subprocess
import sys
from pathlib import Path

import pytest

from armwise.arms.corpus import stdlib
from armwise.arms.corpus.corpus import Corpus, ingest
from armwise.arms.corpus.readers import open_source
from armwise.arms.corpus.records import CorpusError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return ingest("stdlib", tmp_path_factory.mktemp("stdlib"))


def test_there_are_thousands_of_passages_and_no_two_are_alike(corpus: Corpus) -> None:
    passages = list(corpus)
    assert len(passages) >= 3_000
    assert len({passage.id for passage in passages}) == len(passages)
    first = [passage for passage in passages if "#" not in passage.id]
    assert len({passage.text for passage in first}) == len(first)
    assert all(len(passage.text.split()) <= 240 for passage in passages)


def test_a_function_is_told_by_name_signature_and_docstring(corpus: Corpus) -> None:
    (merge,) = corpus.passages(corpus.positions(["heapq.merge"]))
    assert merge.title == "heapq.merge"
    assert merge.text.startswith(
        "heapq.merge(*iterables, key=None, reverse=False)\n\nMerge multiple sorted inputs"
    )


@pytest.mark.parametrize(
    ("home", "alias"),
    [
        ("json.JSONEncoder", "json.encoder.JSONEncoder"),
        ("asyncio.gather", "asyncio.tasks.gather"),
        ("builtins.OSError", "builtins.IOError"),
        ("os.path.join", "posixpath.join"),
        ("random.randint", "random.Random.randint"),
        ("functools.reduce", "_functools.reduce"),
        ("concurrent.futures.ThreadPoolExecutor", "concurrent.futures.thread.ThreadPoolExecutor"),
    ],
)
def test_a_thing_with_several_names_is_told_once_at_its_home(corpus: Corpus, home: str, alias: str) -> None:
    ids = set(corpus.ids())
    assert home in ids
    assert alias not in ids


def test_modules_that_act_and_private_names_are_left_out(corpus: Corpus) -> None:
    parts = [passage_id.partition("#")[0].split(".") for passage_id in corpus.ids()]
    assert not {first for first, *_ in parts} & {
        *("antigravity", "this", "test", "idlelib", "turtledemo", "distutils", "lib2to3"),
        *("encodings", "pydoc_data", "posix", "posixpath", "ntpath", "genericpath"),
    }
    assert not [
        names for names in parts if any(name.startswith("_") for name in names if name != "__future__")
    ]


def test_inherited_docstrings_are_not_repeated(corpus: Corpus) -> None:
    ids = set(corpus.ids())
    assert "pathlib.PurePath.with_name" in ids
    assert "pathlib.Path.with_name" not in ids
    assert "unittest.mock.NonCallableMock.mock_add_spec" in ids
    assert "unittest.mock.MagicMock.mock_add_spec" not in ids, "inherited from the second of its bases"


def test_nothing_of_this_process_or_its_environment_gets_in(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARMWISE_TEST_SECRET", "s3cret")
    (tmp_path / "heapq.py").write_text("raise SystemExit('shadowed')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    imported = set(sys.modules)
    again = ingest("stdlib", tmp_path / "again")
    assert again.digest == corpus.digest
    assert "turtle" not in set(sys.modules) - imported
    assert not any("s3cret" in passage.text or " at 0x" in passage.text for passage in again)


def test_reading_writes_nothing_to_standard_error() -> None:
    reading = subprocess.run([sys.executable, "-I", "-S", stdlib.__file__], capture_output=True, check=True)
    assert reading.stderr == b""
    assert reading.stdout.count(b"\n") >= 3_000


def test_the_library_of_another_interpreter_is_another_source(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [open_source("stdlib").fingerprint()]
    for name, other in (("version", "3.11.999 of another build"), ("platform", "beos")):
        with monkeypatch.context() as patch:
            patch.setattr(sys, name, other)
            found.append(open_source("stdlib").fingerprint())
    assert len(set(found)) == 3
    assert open_source("stdlib").fingerprint() == found[0]


def test_an_interpreter_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = tmp_path / "failing.py"
    failing.write_text("print('{}', flush=True)\nraise SystemExit('first line\\nno module named this')\n")
    monkeypatch.setattr(stdlib, "__file__", str(failing))
    with pytest.raises(CorpusError, match=r"could not be read: no module named this$"):
        list(open_source("stdlib").records())

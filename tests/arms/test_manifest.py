"""A manifest finds each file that is not as it was written, and says what differs."""

from pathlib import Path

import orjson
import pytest

from armwise.arms import manifest
from armwise.arms.manifest import MANIFEST, DamagedFileError, problems


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files and their manifest."""
    (tmp_path / "a").write_bytes(b"x" * 1234)
    (tmp_path / "b").write_bytes(b"y" * 10)
    manifest.write(tmp_path, {"corpus": "c0ffee", "k1": 1.2, "format": 1})
    return tmp_path


def test_a_folder_that_nothing_has_changed_has_no_problem(folder: Path) -> None:
    assert problems(folder, contents=True) == problems(folder, contents=False) == []
    assert manifest.identify(folder) == {"corpus": "c0ffee", "k1": 1.2, "format": 1}
    assert manifest.read(folder, "b") == b"y" * 10


@pytest.mark.parametrize("name", ["a", "b"])
def test_each_file_is_compared_by_size(folder: Path, name: str) -> None:
    size = (folder / name).stat().st_size
    (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    expected = f"{name} is damaged: {size - 1:,} bytes instead of {size:,}"
    assert problems(folder, contents=False) == [expected]
    with pytest.raises(DamagedFileError, match=expected):
        manifest.read(folder, name)


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_changed_byte_is_found_by_contents_and_not_by_size(folder: Path, name: str) -> None:
    (folder / name).write_bytes((folder / name).read_bytes()[:-1] + b"z")
    assert problems(folder, contents=False) == []
    (problem,) = problems(folder, contents=True)
    assert problem.startswith(f"{name} is damaged: its SHA-256 is ")
    with pytest.raises(DamagedFileError, match=f"{name} is damaged: its SHA-256 is"):
        manifest.read(folder, name)


def test_all_damaged_files_are_named(folder: Path) -> None:
    (folder / "a").unlink()
    (folder / "b").write_bytes(b"")
    expected = ["a is missing", "b is damaged: 0 bytes instead of 10"]
    assert problems(folder, contents=True) == problems(folder, contents=False) == expected


def test_a_file_that_is_now_a_folder_is_a_problem(folder: Path) -> None:
    (folder / "b").unlink()
    (folder / "b").mkdir()
    assert problems(folder, contents=True)[0].startswith("b is damaged: ")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "manifest.json is missing"),
        (b"", "manifest.json is damaged"),
        (b"[]", "manifest.json is damaged"),
        (b'{"corpus": "c0ffee"}', "manifest.json is damaged"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_a_problem(
    folder: Path, content: bytes | None, expected: str
) -> None:
    (folder / MANIFEST).unlink()
    if content is not None:
        (folder / MANIFEST).write_bytes(content)
    assert problems(folder, contents=False) == [expected]
    with pytest.raises(DamagedFileError, match=expected):
        manifest.identify(folder)


@pytest.mark.parametrize("part", ["identity", "files"])
def test_a_manifest_of_which_any_part_was_changed_is_refused(folder: Path, part: str) -> None:
    document = orjson.loads((folder / MANIFEST).read_bytes())
    changed = {"identity": {"corpus": "decaf"}, "files": {"a": document["files"]["a"]}}
    (folder / MANIFEST).write_bytes(orjson.dumps({**document, part: changed[part]}))
    expected = "manifest.json is damaged: its digest does not match its contents"
    assert problems(folder, contents=False) == [expected]
    with pytest.raises(DamagedFileError, match=expected):
        manifest.read(folder, "b")


def test_no_bit_of_a_manifest_can_change_unnoticed(folder: Path) -> None:
    content = (folder / MANIFEST).read_bytes()
    for at in range(len(content)):
        if chr(content[at]).isspace():
            continue  # layout means nothing
        (folder / MANIFEST).write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert problems(folder, contents=False), at


def test_files_are_added_beside_those_that_are_described(folder: Path) -> None:
    (folder / "b").write_bytes(b"new")
    (folder / "c").write_bytes(b"added")
    manifest.add(folder, ["b", "c"])
    assert problems(folder, contents=True) == []
    assert manifest.identify(folder)["corpus"] == "c0ffee"
    for name in "abc":
        assert name in orjson.loads((folder / MANIFEST).read_bytes())["files"]


def test_a_manifest_describes_files_alone(
    folder: Path,
) -> None:
    (folder / "sub").mkdir()
    (folder / "b").unlink()
    manifest.write(folder)
    assert problems(folder, contents=True) == []
    assert [*manifest.Manifest.load(folder).files] == ["a"]
    assert manifest.identify(folder) == {}


def test_files_are_described_where_there_was_no_manifest_before(folder: Path) -> None:
    (folder / MANIFEST).unlink()
    manifest.add(folder, ["b"])
    assert [*manifest.Manifest.load(folder).files] == ["b"]
    assert problems(folder, contents=True) == []


def test_what_cannot_be_opened_is_a_problem(folder: Path) -> None:
    (folder / "a").unlink()
    (folder / "a").symlink_to("a")
    assert problems(folder, contents=False) == ["a cannot be read: Too many levels of symbolic links"]
    (folder / MANIFEST).unlink()
    (folder / MANIFEST).mkdir()
    assert problems(folder, contents=False) == ["manifest.json cannot be read: Is a directory"]


def test_a_file_that_no_manifest_names_is_read_as_it_is(folder: Path) -> None:
    (folder / "theirs").write_bytes(b"anything")
    assert manifest.read(folder, "theirs") == b"anything"
    (folder / MANIFEST).unlink()
    (folder / "a").write_bytes(b"changed")
    assert manifest.read(folder, "a") == b"changed"

"""Kinds are found in the modules of a package and in what other packages register; none is replaced."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from typing_extensions import override

from armwise.arms.catalog import Catalogue
from tests.packages import install_package


class Numbers(Catalogue[int]):
    """The whole numbers of the modules of a package, each by its name in small letters."""

    @override
    def find_kinds(self, module: ModuleType) -> Iterator[tuple[str, int]]:
        return ((name.lower(), value) for name, value in vars(module).items() if type(value) is int)

    @override
    def accept(self, kind: str, registered: object, path: str) -> int:
        if not isinstance(registered, int):
            raise self.error(f"{self.what} {kind!r}: {path} is no number")
        return registered


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of two modules, a private one and a folder, on the path of imports."""
    name = f"numbers_of_{tmp_path.name.replace('-', '_')}"
    files = {
        "__init__.py": "",
        "b.py": "SEVEN = 70 - 63\n",
        "a.py": "THREE = 3\nTWO = 2\n",
        "_hidden.py": "NINE = 9\n",
        "aside/__init__.py": "",
        "aside/a.py": "ONE = 1\n",
    }
    for file, source in files.items():
        (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name / file).write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    __import__(name)
    yield tmp_path / name
    for module in [one for one in sys.modules if one.partition(".")[0] == name]:
        del sys.modules[module]


def numbers(package: Path, *, folders: bool = True) -> Numbers:
    return Numbers([package.name], "tests.numbers", "number", NumberError, folders=folders)


class NumberError(ValueError):
    """The error of the catalogue of these tests."""


def test_kinds_are_those_of_modules_then_of_folders(package: Path) -> None:
    assert list(numbers(package).items()) == [("three", 3), ("two", 2), ("seven", 7), ("one", 1)]
    assert list(numbers(package, folders=False)) == ["three", "two", "seven"]


def test_nothing_is_imported_before_a_kind_is_looked_up(package: Path) -> None:
    kinds = numbers(package)
    assert f"{package.name}.a" not in sys.modules
    assert kinds["two"] == 2
    assert f"{package.name}.a" in sys.modules
    assert f"{package.name}._hidden" not in sys.modules


def test_a_kind_that_two_modules_define_is_refused(package: Path) -> None:
    source = f"from {package.name}.a import TWO\n"
    (package / "b.py").write_text(source)
    assert numbers(package)["two"] == 2
    del sys.modules[f"{package.name}.b"]
    (package / "b.py").write_text("TWO = 2222\n# of other bytes\n")
    with pytest.raises(TypeError, match=rf"{package.name}\.b defines number 'two'"):
        len(numbers(package))


def test_a_registered_kind_replaces_none_of_ours(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = ["five = their_numbers:FIVE", "two = their_numbers:FIVE"]
    install_package(tmp_path, monkeypatch, "their_numbers", "FIVE = 5", "tests.numbers", points)
    kinds = numbers(package)
    assert "five" in kinds
    assert "six" not in kinds
    assert len(kinds) == len(list(kinds)) == 5
    assert "their_numbers" not in sys.modules
    assert (kinds["five"], kinds["two"]) == (5, 2)
    assert "five" not in kinds.own


@pytest.mark.parametrize(
    ("source", "points", "message"),
    [
        (
            "FIVE = 5",
            ["five = their_numbers:FIVE", "five = their_numbers:SIX"],
            r"number 'five' is registered more than once, by theirs-0 \(their_numbers:FIVE\) "
            r"and by theirs-1 \(their_numbers:SIX\)",
        ),
        (
            "1 / 0",
            ["five = their_numbers:FIVE"],
            "number 'five': their_numbers:FIVE cannot be imported: Zero",
        ),
        ("FIVE = 'V'", ["five = their_numbers:FIVE"], "number 'five': their_numbers:FIVE is no number"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(
    package: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    points: list[str],
    message: str,
) -> None:
    install_package(tmp_path, monkeypatch, "their_numbers", source, "tests.numbers", points)
    kinds = numbers(package)
    assert "five" in kinds
    with pytest.raises(NumberError, match=message):
        kinds["five"]

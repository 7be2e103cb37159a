"""The check before a release: a right tree has no problem, each wrong one is named with what is right."""

import io
import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.release import changelog, check
from tests.release.check import Candidate

ROOT = Path(__file__).parents[2]
TODAY = date(2026, 11, 25)

PYPROJECT = """[project]
name = "armwise"
version = "0.2.0"
description = "Chooses."
license = "Apache-2.0"
"""
CHANGELOG = """# Changelog

## [Unreleased]

## 0.2.0 - 2026-11-24

A second release.

### Added

- More.

## 0.1.0 - 2026-11-02

### Added

- All.
"""
CHART = """name: armwise
version: 0.2.0
appVersion: "0.2.0"
"""
DOCKERFILE = """ARG BASE=debian
FROM ${BASE} AS runtime
# LABEL org.opencontainers.image.title="none"
ARG BASE
ARG VERSION=0.2.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="Armwise" \\
      org.opencontainers.image.description="Chooses." \\
      org.opencontainers.image.licenses="Apache-2.0" \\
      org.opencontainers.image.version="${VERSION}" \\
      org.opencontainers.image.revision="${REVISION}" \\
      org.opencontainers.image.created="${CREATED}" \\
      org.opencontainers.image.source="${SOURCE}" \\
      org.opencontainers.image.base.name="${BASE}"
"""
BILL = {
    "bomFormat": "CycloneDX",
    "specVersion": "1.6",
    "metadata": {"component": {"type": "application", "name": "armwise", "version": "0.2.0"}},
    "components": [{"type": "library", "name": "numpy", "version": "2.0"}],
}

FILES = {
    "pyproject.toml": PYPROJECT,
    "CHANGELOG.md": CHANGELOG,
    ".gitignore": "/build/\n/dist/\n/auditor\n",
    "deploy/helm/armwise/Chart.yaml": CHART,
    "deploy/helm/armwise/README.md": "helm install armwise . --set image.tag=0.2.0\n",
    "deploy/docker/Dockerfile": DOCKERFILE,
    "serve_config.yaml": "a: 1\n",
    "agent/config/template.yaml": "b: 2\n",
    "agent/config/schema.json": "{}\n",
    "agent/__init__.py": '"""Agent."""\n',
    "arms/__init__.py": '"""Arms."""\n',
    "feedback/log/__init__.py": '"""Log."""\n',
}
INSIDE = ("agent/__init__.py", "agent/config/schema.json", "arms/__init__.py", "feedback/log/__init__.py")


def git(root: Path, *words: str) -> None:
    own = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run([*own, *words], cwd=root, check=True, capture_output=True)


LICENCE = "armwise-0.2.0.dist-info/licenses/LICENSE"


def wheel(file: Path, files: dict[str, str], version: str = "0.2.0") -> None:
    metadata = {
        f"armwise-{version}.dist-info/METADATA": f"Metadata-Version: 2.4\nName: armwise\nVersion: {version}\n"
    }
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in {**files, **metadata}.items():
            archive.writestr(name, text)


def source(file: Path, files: dict[str, str], version: str = "0.2.0") -> None:
    described = {
        "PKG-INFO": f"Metadata-Version: 2.4\nName: armwise\nVersion: {version}\n",
        "LICENSE": "Apache",
    }
    with tarfile.open(file, "w:gz") as archive:
        for name, text in {**files, **described}.items():
            member = tarfile.TarInfo(f"armwise-0.2.0/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))


@pytest.fixture
def right(tmp_path: Path) -> Candidate:
    """A tree that can be released."""
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    (tmp_path / "build").mkdir()
    (tmp_path / "build/sbom.json").write_text(json.dumps(BILL))
    auditor = tmp_path / "auditor"  # stands for the environment of `make sbom`, which the tests do not make
    auditor.write_text("#!/bin/sh\nexit 0\n")
    auditor.chmod(0o700)
    (tmp_path / "dist").mkdir()
    inside = {name: FILES[name] for name in INSIDE}
    wheel(tmp_path / "dist/armwise-0.2.0-py3-none-any.whl", {**inside, LICENCE: "Apache"})
    source(tmp_path / "dist/armwise-0.2.0.tar.gz", inside)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "all")
    return Candidate(tmp_path, "0.2.0", "0.2.0", TODAY, auditor)


def test_a_right_tree_can_be_released(right: Candidate) -> None:
    assert check.problems(right) == []


def put(name: str, old: str, new: str) -> Callable[[Path], None]:
    """Return a change of a file that is committed."""

    def change(root: Path) -> None:
        text = (root / name).read_text(encoding="utf-8")
        assert old in text
        (root / name).write_text(text.replace(old, new), encoding="utf-8")
        git(root, "commit", "--quiet", "--all", "--message", "change")

    return change


def bill(**changes: Any) -> Callable[[Path], object]:
    return lambda root: (root / "build/sbom.json").write_text(json.dumps({**BILL, **changes}))


def removed(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).unlink()


def built(version: str = "0.2.0", **changes: str | None) -> Callable[[Path], None]:
    """Return a change of the wheel: its version, and files by their names; None leaves one out."""

    def change(root: Path) -> None:
        files = {name: FILES[name] for name in INSIDE} | {LICENCE: "Apache"} | changes
        kept = {name: text for name, text in files.items() if text is not None}
        wheel(root / "dist/armwise-0.2.0-py3-none-any.whl", kept, version)

    return change


WHEEL = "dist/armwise-0.2.0-py3-none-any.whl"
DOCKER = "deploy/docker/Dockerfile"

SDIST = "dist/armwise-0.2.0.tar.gz"
CHART_FILE = "deploy/helm/armwise/Chart.yaml"

WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "version of the chart": (
        put(CHART_FILE, "version: 0.2.0", "version: 0.1.0"),
        f"{CHART_FILE} has the version 0.1.0: write 0.2.0",
    ),
    "appVersion of the chart": (
        put(CHART_FILE, '"0.2.0"', '"0.2.1"'),
        f"{CHART_FILE} has the appVersion 0.2.1: write 0.2.0",
    ),
    "page of the chart": (
        put("deploy/helm/armwise/README.md", "0.2.0", "0.1.0"),
        "README.md has image.tag=0.1.0: write 0.2.0",
    ),
    "version of the image": (put(DOCKER, "VERSION=0.2.0", "VERSION=0.1.0"), "version '0.1.0': write '0.2.0'"),
    "licence of the image": (put(DOCKER, '"Apache-2.0"', '"MIT"'), "licenses 'MIT': write 'Apache-2.0'"),
    "description of the image": (put(DOCKER, "Chooses.", "Draws."), "'Draws.': write 'Chooses.'"),
    "label missing": (
        put(DOCKER, 'org.opencontainers.image.source="${SOURCE}" \\\n', "\\\n"),
        "no label org.opencontainers.image.source",
    ),
    "label fixed": (put(DOCKER, "${REVISION}", "abc"), "a fixed revision"),
    "argument undeclared": (put(DOCKER, "ARG CREATED=1970-01-01T00:00:00Z\n", ""), "a fixed created"),
    "changelog of another version": (
        put("CHANGELOG.md", "## 0.2.0 - 2026-11-24", "## 0.3.0 - 2026-11-24"),
        "CHANGELOG.md begins with 0.3.0: write the section `## 0.2.0 - 2026-11-25`",
    ),
    "file not committed": (lambda root: (root / "notes.txt").write_text("a"), "notes.txt is not committed"),
    "file changed": (
        lambda root: (root / "serve_config.yaml").write_text("a: 1\n#\n"),
        "serve_config.yaml is not committed",
    ),
    "released already": (lambda root: git(root, "tag", "v0.2.0"), "the tag v0.2.0 exists"),
    "bill missing": (removed("build/sbom.json"), "build/sbom.json is missing: `make sbom`"),
    "auditor missing": (removed("auditor"), "auditor is missing: `make sbom`"),
    "bill of another version": (
        bill(metadata={"component": {"name": "armwise", "version": "0.1.0"}}),
        "build/sbom.json is of armwise 0.1.0",
    ),
    "bill of another program": (
        bill(metadata={"component": {"name": "other", "version": "0.2.0"}}),
        "build/sbom.json is of other 0.2.0",
    ),
    "bill of nothing": (bill(components=[]), "build/sbom.json lists no component"),
    "bill that is not valid": (
        lambda root: (root / "auditor").write_text("#!/bin/sh\necho 'no type' >&2\nexit 1\n"),
        "build/sbom.json is not valid CycloneDX: no type",
    ),
    "wheel missing": (removed(WHEEL), f"{WHEEL} is missing: `make dist`"),
    "source missing": (removed(SDIST), f"{SDIST} is missing: `make dist`"),
    "file of an earlier release": (
        lambda root: (root / "dist/armwise-0.1.0.tar.gz").touch(),
        "armwise-0.1.0.tar.gz is of no release: remove it",
    ),
    "wheel of another version": (built("0.1.0"), f"{WHEEL} is of armwise 0.1.0: `make dist`"),
    "module missing": (built(**{"arms/__init__.py": None}), f"{WHEEL}: arms/__init__.py is missing"),
    "settings missing": (built(**{"agent/config/schema.json": None}), "agent/config/schema.json is missing"),
    "module of before": (
        built(**{"arms/__init__.py": '"""Other."""\n'}),
        f"{WHEEL}: arms/__init__.py is another one",
    ),
    "licence missing": (built(**{LICENCE: None}), f"{WHEEL} has no LICENSE"),
    "module that was removed": (built(**{"agent/gone.py": ""}), f"{WHEEL}: agent/gone.py is not in the tree"),
    "source of another version": (
        lambda root: source(root / SDIST, {name: FILES[name] for name in INSIDE}, "0.1.0"),
        f"{SDIST} is of armwise 0.1.0: `make dist`",
    ),
    "module missing in the source": (
        lambda root: source(root / SDIST, {name: FILES[name] for name in INSIDE[1:]}),
        f"{SDIST}: agent/__init__.py is missing",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_tree_is_named_with_what_would_be_right(case: str, right: Candidate) -> None:
    change, words = WRONG[case]
    change(right.root)
    (problem,) = check.problems(right)
    assert words in problem


@pytest.mark.parametrize("what", ["installed", "documented"])
def test_what_runs_is_compared_with_the_tree(right: Candidate, what: str) -> None:
    (problem,) = check.problems(replace(right, **{what: "0.1.0"}))  # type: ignore[arg-type]
    assert "0.1.0" in problem
    assert "0.2.0" in problem


@pytest.mark.parametrize("version", ["0.2", "v0.2.0", "0.02.0", "0.2.0rc1"])
def test_a_version_has_three_numbers(right: Candidate, version: str) -> None:
    put("pyproject.toml", '"0.2.0"', f'"{version}"')(right.root)
    expected = f"pyproject.toml has the version {version!r}: write MAJOR.MINOR.PATCH"
    assert expected in [*check.versions(right)]


def test_all_problems_are_found_at_once(right: Candidate) -> None:
    for case in ("version of the chart", "label fixed", "bill missing", "wheel missing"):
        WRONG[case][0](right.root)
    assert len(check.problems(replace(right, installed="0.1.0"))) == 5


# -- the changelog -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("## [Unreleased]\n", ""),
        ("## 0.2.0 -", "## [0.2.0] -"),
        ("2026-11-24", "2026-11-25"),
        ("2026-11-02", "2026-11-24"),
    ],
)
def test_a_changelog_may_begin_with_the_release(old: str, new: str) -> None:
    assert old in CHANGELOG
    assert changelog.problems(CHANGELOG.replace(old, new), "0.2.0", TODAY) == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("## [Unreleased]\n", "## [Unreleased]\n\n- More.\n", "unreleased changes: move them"),
        ("2026-11-24", "YYYY-MM-DD", "'YYYY-MM-DD' for 0.2.0: write `## 0.2.0 - 2026-11-25`"),
        (" - 2026-11-24", "", "'no date' for 0.2.0"),
        ("2026-11-24", "2026-11-31", "'2026-11-31' for 0.2.0"),
        ("2026-11-24", "20261124", "'20261124' for 0.2.0"),
        ("2026-11-24", "2026-11-26", "dates 0.2.0 in the future, 2026-11-26"),
        ("2026-11-02", "2026-11-25", "dates 0.2.0 before 0.1.0"),
        ("\nA second release.\n\n### Added\n\n- More.\n", "", "nothing below `## 0.2.0 - 2026-11-25`"),
        ("### Added\n\n- More", "### Improved\n\n- More", "'Improved' below 0.2.0: use one of Added"),
        (CHANGELOG, "# Changelog\n", "begins with nothing"),
    ],
)
def test_a_wrong_changelog_is_named(old: str, new: str, words: str) -> None:
    assert old in CHANGELOG
    (problem,) = changelog.problems(CHANGELOG.replace(old, new), "0.2.0", TODAY)
    assert words in problem


def test_the_notes_are_the_section_of_the_release(right: Candidate) -> None:
    written = check.write_notes(right)
    assert written == right.root / "build/RELEASE_NOTES.md"
    notes = written.read_text(encoding="utf-8")
    assert notes == "Armwise 0.2.0\n\nA second release.\n\n### Added\n\n- More.\n"
    assert changelog.notes(CHANGELOG, "0.1.0") == "Armwise 0.1.0\n\n### Added\n\n- All.\n"
    with pytest.raises(LookupError, match=r"no section of 0\.3\.0"):
        changelog.notes(CHANGELOG, "0.3.0")


# -- this tree ---------------------------------------------------------------------------------------


def test_this_tree_names_one_version_and_labels_its_image() -> None:
    candidate = Candidate(ROOT, "", "", TODAY, Path(sys.executable))
    version = candidate.version
    found = [
        *check.versions(replace(candidate, installed=version, documented=version)),
        *check.image(candidate),
    ]
    assert found == []


def test_sections_of_this_changelog_have_known_headings() -> None:
    found = changelog.sections((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert found[0].version == changelog.UNRELEASED
    assert all(set(one.kinds) <= set(changelog.KINDS) for one in found)
    assert all(one.date is not None for one in found[1:])


AUDITOR = ROOT / ".venv-audit/bin/python"


@pytest.mark.skipif(
    not AUDITOR.exists(), reason="`make sbom` makes the environment with the library of CycloneDX"
)
@pytest.mark.parametrize(
    ("changes", "valid"),
    [({}, True), ({"components": [{"name": "no type"}]}, False), ({"specVersion": "0.1"}, False)],
)
@pytest.mark.slow
def test_a_bill_is_validated_by_the_schema_of_cyclonedx(
    right: Candidate, changes: dict[str, Any], valid: bool
) -> None:
    bill(**changes)(right.root)
    found = [*check.bill_of_materials(replace(right, auditor=AUDITOR))]
    assert [one.startswith("build/sbom.json is not valid CycloneDX: ") for one in found] == [True] * (
        not valid
    )

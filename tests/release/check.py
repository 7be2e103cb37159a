"""What a version lacks for its release, as far as a machine sees it; RELEASING.md has the rest.

Each function returns sentences: what is wrong, and what would be right.
"""

import io
import json
import re
import shlex
import subprocess
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from email.parser import Parser
from pathlib import Path
from typing import Any

import yaml

from tests.release import changelog

PACKAGES = ("agent", "arms", "feedback")

LABELS = ("title", "description", "licenses", "version", "revision", "created", "source", "base.name")
"""Labels of an image that every release has, below `org.opencontainers.image`."""

GIVEN = ("revision", "created", "source")
"""Labels whose value is known when the image is built."""

VALIDATED = """
import json, sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
text = open(sys.argv[1], encoding="utf-8").read()
error = JsonStrictValidator(SchemaVersion.from_version(json.loads(text)["specVersion"])).validate_str(text)
sys.exit(str(error)[:500] if error else 0)
"""
"""Validates a file in the environment that `make sbom` makes."""


@dataclass(frozen=True)
class Candidate:
    """What is to be released.

    Attributes:
        root: The tree.
        installed: Version of the installed package, which the service reports.
        documented: Version that the OpenAPI document names.
        today: The day of the release.
        auditor: Python with the library of CycloneDX.
    """

    root: Path
    installed: str
    documented: str
    today: date
    auditor: Path

    @property
    def project(self) -> dict[str, Any]:
        """The table `project` of pyproject.toml."""
        content = tomllib.loads((self.root / "pyproject.toml").read_text(encoding="utf-8"))
        project: dict[str, Any] = content["project"]
        return project

    @property
    def version(self) -> str:
        """The version of pyproject.toml, to which everything else is compared."""
        return str(self.project["version"])

    def text(self, name: str) -> str:
        """Return a file of the tree."""
        return (self.root / name).read_text(encoding="utf-8")


def problems(candidate: Candidate) -> list[str]:
    """Return all that is wrong."""
    return [
        *versions(candidate),
        *changelog.problems(candidate.text("CHANGELOG.md"), candidate.version, candidate.today),
        *image(candidate),
        *tree(candidate),
        *bill_of_materials(candidate),
        *distributions(candidate),
    ]


def versions(candidate: Candidate) -> Iterator[str]:
    """Yield the places that name another version."""
    version = candidate.version
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", version):
        yield f"pyproject.toml has the version {version!r}: write MAJOR.MINOR.PATCH"
    if candidate.installed != version:
        yield f"the installed package is {candidate.installed}: install {version}, `make release-check` does"
    if candidate.documented != version:
        yield f"the OpenAPI document has the version {candidate.documented}: it is {version}"
    chart = yaml.safe_load(candidate.text("deploy/helm/armwise/Chart.yaml"))
    for key in ("version", "appVersion"):
        if str(chart[key]) != version:
            yield f"deploy/helm/armwise/Chart.yaml has the {key} {chart[key]}: write {version}"
    for tag in re.findall(r"image\.tag=(\S+)", candidate.text("deploy/helm/armwise/README.md")):
        if tag != version:
            yield f"deploy/helm/armwise/README.md has image.tag={tag}: write {version}"


def image(candidate: Candidate) -> Iterator[str]:
    """Yield what the labels of the image lack."""
    labels, arguments = _labels(candidate.text("deploy/docker/Dockerfile"))
    for name in LABELS:
        if not labels.get(name):
            yield f"deploy/docker/Dockerfile has no label org.opencontainers.image.{name}: add it"
    expected = {
        "version": candidate.version,
        "licenses": candidate.project["license"],
        "description": candidate.project["description"],
    }
    for name, value in expected.items():
        given = _substituted(labels.get(name, value), arguments)
        if given != value:
            yield f"deploy/docker/Dockerfile has the {name} {given!r}: write {value!r}"
    for name in GIVEN:
        argument = re.fullmatch(r"\$\{(\w+)\}", labels.get(name, ""))
        if name in labels and (argument is None or argument[1] not in arguments):
            yield f"deploy/docker/Dockerfile has a fixed {name}: take it from an ARG, which a build gives"


def _labels(dockerfile: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the labels of the image, without their prefix, and the arguments with their defaults."""
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    labels, arguments = {}, {}
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, rest = line.partition(" ")
        for pair in shlex.split(rest) if name in ("ARG", "LABEL") else ():
            key, _, value = pair.partition("=")
            if name == "LABEL":
                labels[key.removeprefix("org.opencontainers.image.")] = value
            else:
                arguments[key] = value or arguments.get(key, "")
    return labels, arguments


def _substituted(value: str, arguments: dict[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda name: arguments.get(name[1], ""), value)


def tree(candidate: Candidate) -> Iterator[str]:
    """Yield what is not committed, and a tag that the version has already."""
    for line in _git(candidate.root, "status", "--porcelain"):
        yield f"{line[3:]} is not committed: commit or remove it"
    if _git(candidate.root, "tag", "--list", f"v{candidate.version}"):
        yield f"the tag v{candidate.version} exists: give the next release another version"


def _git(root: Path, *words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def bill_of_materials(candidate: Candidate) -> Iterator[str]:
    """Yield what is wrong with build/sbom.json."""
    file = candidate.root / "build/sbom.json"
    for needed in (file, candidate.auditor):
        if not needed.exists():
            yield f"{needed.relative_to(candidate.root)} is missing: `make sbom` makes it"
            return
    done = subprocess.run(
        [candidate.auditor, "-c", VALIDATED, file], capture_output=True, text=True, check=False
    )
    if done.returncode:
        yield f"build/sbom.json is not valid CycloneDX: {done.stderr.strip()[-500:]}"
        return
    content = json.loads(file.read_text(encoding="utf-8"))
    main = content.get("metadata", {}).get("component", {})
    named = (main.get("name"), main.get("version"))
    if named != ("armwise", candidate.version):
        yield f"build/sbom.json is of {named[0]} {named[1]}: `make sbom` writes it of this version"
    if not content.get("components"):
        yield "build/sbom.json lists no component: `make sbom` lists what is installed"


def distributions(candidate: Candidate) -> Iterator[str]:
    """Yield what is wrong with the files of dist/: both are there, of this version and of this tree."""
    folder, version = candidate.root / "dist", candidate.version
    expected = {f"armwise-{version}-py3-none-any.whl", f"armwise-{version}.tar.gz"}
    present = {path.name for path in folder.iterdir()} if folder.exists() else set()
    yield from (f"dist/{name} is missing: `make dist` builds it" for name in sorted(expected - present))
    yield from (f"dist/{name} is of no release: remove it" for name in sorted(present - expected))
    for name in sorted(expected & present):
        files = _members(folder / name)
        (described,) = [
            one for one in files if re.fullmatch(r"([^/]+\.dist-info/METADATA|[^/]+/PKG-INFO)", one)
        ]
        metadata = Parser().parsestr(files[described].decode())
        if (metadata["Name"], metadata["Version"]) != ("armwise", version):
            yield f"dist/{name} is of {metadata['Name']} {metadata['Version']}: `make dist` builds {version}"
        root = "" if name.endswith(".whl") else f"armwise-{version}/"
        if not any(one.endswith("/LICENSE") for one in files):
            yield f"dist/{name} has no LICENSE: `make dist` adds it"
        yield from (
            f"dist/{name}: {one}; `make dist` builds it again" for one in _differences(candidate, files, root)
        )


def _members(file: Path) -> dict[str, bytes]:
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as archive:
            return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    with tarfile.open(fileobj=io.BytesIO(file.read_bytes())) as archive:
        return {
            one.name: content.read()
            for one in archive.getmembers()
            if (content := archive.extractfile(one)) is not None
        }


def _differences(candidate: Candidate, files: dict[str, bytes], root: str) -> Iterator[str]:
    """Yield the modules and settings of the packages that a distribution has otherwise than the tree."""
    tracked = _git(candidate.root, "ls-files", *PACKAGES)
    own = {name for name in tracked if name.endswith((".py", "schema.json"))}
    inside = {
        name.removeprefix(root)
        for name in files
        if name.removeprefix(root).startswith(tuple(f"{one}/" for one in PACKAGES)) and name.endswith(".py")
    }
    yield from (f"{name} is not in the tree" for name in sorted(inside - own))
    for name in sorted(own):
        if (content := files.get(f"{root}{name}")) is None:
            yield f"{name} is missing"
        elif content != (candidate.root / name).read_bytes():
            yield f"{name} is another one"


def write_notes(candidate: Candidate) -> Path:
    """Write the notes of the release into build/, for an annotated tag; return the file."""
    file = candidate.root / "build/RELEASE_NOTES.md"
    file.parent.mkdir(exist_ok=True)
    file.write_text(changelog.notes(candidate.text("CHANGELOG.md"), candidate.version), encoding="utf-8")
    return file

"""The manifest of a derived folder: size and SHA-256 of each file, and the identity of the contents.

    {"identity": {"corpus": "c0ffee"}, "files": {"rows.npy": {"bytes": 9, "sha256": "..."}}, "sha256": "..."}

The last digest is of the rest of the manifest, so that a changed manifest is found, too. Sizes are compared
wherever a folder is opened: that reads one file. Contents are compared where the service is prepared, and by
`armwise doctor`: SHA-256 reads about 1.6 GB/s (docs/benchmarks/attacks.md).
"""

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Self

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

Identity = Mapping[str, str | int | float]
"""All inputs of the contents of a folder, flat and readable."""

MANIFEST = "manifest.json"

SHOWN = 12
"""Characters of a digest in a message."""


class DamagedFileError(ValueError):
    """A file of a derived folder is missing or has changed; the message names it and what differs."""


class WrittenFile(BaseModel):
    """A file as it was written.

    Attributes:
        bytes: Size.
        sha256: Digest of the content, in hexadecimal.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    bytes: int
    sha256: str

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Describe a file."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return cls(bytes=file.tell(), sha256=digest)


class Manifest(BaseModel):
    """The files of a folder when it was finished.

    Attributes:
        identity: Inputs of the contents.
        files: Files by name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    identity: dict[str, str | int | float] = {}
    files: dict[str, WrittenFile]

    def to_json(self) -> bytes:
        """Return the manifest with its digest, as JSON."""
        document = self.model_dump()
        return orjson.dumps({**document, "sha256": _digest(document)}, option=orjson.OPT_INDENT_2)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the manifest of a folder. Raises DamagedFileError."""
        try:
            document: dict[str, Any] = orjson.loads((folder / MANIFEST).read_bytes())
            digest = document.pop("sha256", None)
            manifest = cls.model_validate(document)
        except FileNotFoundError:
            raise DamagedFileError(f"{MANIFEST} is missing") from None
        except OSError as error:
            raise DamagedFileError(f"{MANIFEST} cannot be read: {error.strerror}") from None
        except (orjson.JSONDecodeError, ValidationError, AttributeError, TypeError):
            raise DamagedFileError(f"{MANIFEST} is damaged") from None
        if digest != _digest(document):
            raise DamagedFileError(f"{MANIFEST} is damaged: its digest does not match its contents")
        return manifest

    def problem(self, folder: Path, name: str, *, contents: bool) -> str | None:
        """Return the problem of a file of the folder, if it has one.

        Args:
            folder: The folder.
            name: Name of the file, which is one of `files`.
            contents: Whether to compare the digest, too, which reads the file.
        """
        expected = self.files[name]
        try:
            size = (folder / name).stat().st_size
            if size != expected.bytes:
                return f"{name} is damaged: {size:,} bytes instead of {expected.bytes:,}"
            if contents and (digest := WrittenFile.from_file(folder / name).sha256) != expected.sha256:
                return _another(name, digest, expected)
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
        return None


def write(folder: Path, identity: Identity | None = None, names: Collection[str] | None = None) -> None:
    """Write the manifest of a finished folder, in place of an earlier one.

    Args:
        folder: The folder; its files are complete.
        identity: Inputs of its contents.
        names: Files that the manifest describes; None: all files of the folder.
    """
    if names is None:
        names = [path.name for path in folder.iterdir() if path.is_file() and path.name != MANIFEST]
    files = {name: WrittenFile.from_file(folder / name) for name in sorted(names)}
    _replace(folder, Manifest(identity=dict(identity or {}), files=files))


def add(folder: Path, names: Collection[str]) -> None:
    """Describe files that were written into a folder, and leave the other entries of its manifest."""
    files = {name: WrittenFile.from_file(folder / name) for name in names}
    try:
        before = Manifest.load(folder)
    except DamagedFileError:
        before = Manifest(files={})
    _replace(folder, Manifest(identity=before.identity, files=dict(sorted((before.files | files).items()))))


def identify(folder: Path) -> Identity:
    """Return the identity of the contents of a folder. Raises DamagedFileError."""
    return Manifest.load(folder).identity


def problems(folder: Path, *, contents: bool) -> list[str]:
    """Return the problems of the files of a folder, by name; empty if they are as they were written.

    Args:
        folder: The folder.
        contents: Whether to compare digests, which reads all files; otherwise only sizes are compared.
    """
    try:
        manifest = Manifest.load(folder)
    except DamagedFileError as error:
        return [str(error)]
    results = (manifest.problem(folder, name, contents=contents) for name in manifest.files)
    return [problem for problem in results if problem is not None]


def read(folder: Path, name: str) -> bytes:
    """Return the content of a file, compared with the manifest of its folder.

    The comparison is left out if the manifest is missing or does not list the file: others wrote it then.

    Raises:
        DamagedFileError: The file has changed, or the manifest has.
        OSError: The file cannot be read.
    """
    content = (folder / name).read_bytes()
    if not (folder / MANIFEST).exists():
        return content
    expected = Manifest.load(folder).files.get(name)
    if expected is None:
        return content
    if len(content) != expected.bytes:
        raise DamagedFileError(f"{name} is damaged: {len(content):,} bytes instead of {expected.bytes:,}")
    if (digest := hashlib.sha256(content).hexdigest()) != expected.sha256:
        raise DamagedFileError(_another(name, digest, expected))
    return content


def _another(name: str, digest: str, expected: WrittenFile) -> str:
    return f"{name} is damaged: its SHA-256 is {digest[:SHOWN]}, not {expected.sha256[:SHOWN]}"


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(document, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _replace(folder: Path, manifest: Manifest) -> None:
    unfinished = folder / f".{MANIFEST}.part"
    unfinished.write_bytes(manifest.to_json())
    unfinished.replace(folder / MANIFEST)

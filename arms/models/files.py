"""Locations of model weights: a package, a folder or a hub."""

import base64
import csv
import hashlib
import importlib.util
import os
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Annotated

from armwise.arms import extras, proxies
from armwise.arms.relative_paths import InFolder

PACKAGE = "package:"


class ModelNotFoundError(LookupError):
    """A model cannot be found, or a file of it is damaged; the message says how to install it."""


def locate(model: str) -> str | Path:
    """Return the path of a model that is on this machine, or its hub name unchanged.

    Args:
        model: `package:NAME/PATH`, a file or folder of an installed package; a file or folder
            on disk, `~` allowed; or a hub name, `owner/name`, taken unchecked.

    Raises:
        ModelNotFoundError: The package or the path does not exist, or a proxy cannot be used to reach a hub.

    >>> locate("sentence-transformers/all-mpnet-base-v2")
    'sentence-transformers/all-mpnet-base-v2'
    """
    if model.startswith(PACKAGE):
        return _in_package(model)
    path = Path(model).expanduser()
    if path.exists():
        return path.resolve()
    if _is_written_as_path(model):
        raise ModelNotFoundError(f"model {model!r}: there is no file or folder {path}")
    try:
        proxies.require_usable()  # the library of the hubs reads all of them, whichever it needs
    except proxies.ProxySettingError as error:
        raise ModelNotFoundError(f"model {model!r}: {error}") from None
    return model


def locate_in(model: str | None, folder: Path) -> str | None:
    """Return a model whose file or folder is below a folder by its absolute path, and another one unchanged.

    Args:
        model: As for `locate`; or the name of another kind of model, such as `hashing:64`.
        folder: The folder that a relative path is relative to.

    >>> locate_in("./minilm", Path("/srv")), locate_in("owner/minilm", Path("/srv"))
    ('/srv/minilm', 'owner/minilm')
    """
    if model is None or model.startswith(PACKAGE):
        return model
    path = folder / os.path.expanduser(model)
    return str(path) if _is_written_as_path(model) or path.exists() else model


def _is_written_as_path(model: str) -> bool:
    """Return whether a model can be no name of a hub."""
    return model.startswith(("/", ".", "~")) or model.endswith(".gguf") or model.count("/") > 1


LocalModel = Annotated[str, InFolder(locate_in)]


def locate_here(model: str) -> Path:
    """Return the path of a model that no hub gives, such as a GGUF file. Raises ModelNotFoundError."""
    if isinstance(place := locate(model), Path):
        return place
    raise ModelNotFoundError(f"model {model!r}: there is no such file or folder")


def _in_package(model: str) -> Path:
    """Find a path in a package by its spec alone: its dependencies may be missing, so an import may fail."""
    package, _, inside = model.removeprefix(PACKAGE).partition("/")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        known = extras.find_extra(package) is not None
        remedy = (
            extras.install_command([package]) if known else "`armwise models` to install the default ones"
        )
        raise ModelNotFoundError(f"model {model!r}: the package {package!r} is not installed; run {remedy}")
    folder = Path(next(iter(spec.submodule_search_locations)))
    if not (folder / inside).exists():
        raise ModelNotFoundError(f"model {model!r}: the package {package!r} has no {inside!r} in {folder}")
    return folder / inside


AGAIN = "install it again; `armwise models` does that for the default ones"
"""Remedy for a damaged model of a package."""


def model_problems(model: str) -> list[str]:
    """Return a message for each file of a model that is missing or differs from pip's record.

    Sizes and digests are compared. Only models in packages with a record can be checked. Raises
    ModelNotFoundError.
    """
    if not model.startswith(PACKAGE):
        return []
    folder, problems = _in_package(model), []
    for path, size, mode, digest in _list_installed(model.removeprefix(PACKAGE).partition("/")[0], folder):
        if not path.is_file():
            problems.append(f"{path} is missing")
        elif size and path.stat().st_size != int(size):
            problems.append(f"{path} is damaged: {path.stat().st_size:,} bytes instead of {int(size):,}")
        elif digest and _digest_file(path, mode) != digest:
            problems.append(f"{path} is damaged: its {mode} differs from the installed one")
    return problems


def _list_installed(package: str, folder: Path) -> list[tuple[Path, str, str, str]]:
    """Return path, size in bytes, hash function and digest of the files below a folder in pip's records.

    The record of the distribution with the name of the package is read first: which others have files in the
    package is in no index, and takes a third of a second to find out.
    """
    with suppress(metadata.PackageNotFoundError):
        if rows := _list_recorded(package, folder):
            return rows
    names = metadata.packages_distributions().get(package, ())
    return [row for name in names for row in _list_recorded(name, folder)]


def _list_recorded(distribution: str, folder: Path) -> list[tuple[Path, str, str, str]]:
    """Return the rows of pip's record of a distribution; unrecorded: empty.

    `importlib.metadata.files` omits missing files from Python 3.12 on, so the record is read directly.
    """
    installed, rows = metadata.distribution(distribution), []
    for file, digest, size in csv.reader((installed.read_text("RECORD") or "").splitlines()):
        path, (mode, _, value) = Path(str(installed.locate_file(file))), digest.partition("=")
        if path == folder or folder in path.parents:
            rows.append((path, size, mode, value))
    return rows


def _digest_file(path: Path, mode: str) -> str:
    """Return the digest of a file as pip records it: in URL-safe base64 without padding."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, mode).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def require_whole(models: Iterable[str]) -> None:
    """Check the files of models in packages against pip's record.

    Raises:
        ModelNotFoundError: A file is damaged or missing; the message names it.
    """
    for model in models:
        if faults := model_problems(model):
            raise ModelNotFoundError(f"model {model!r}: {', '.join(faults)}; {AGAIN}")


def digest_file(path: Path) -> str:
    """Return a hash of a file, or of the names and contents of all files in a folder."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    states = tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    return _digest(path, states)


def digest_weights(place: str | Path) -> str:
    """Return a hash of the files of a model, or the commit of a hub name."""
    return digest_file(place) if isinstance(place, Path) else hub_commit(place)


@lru_cache(maxsize=64)  # hundreds of arms may use one model, and must use one commit of it
@extras.explain_missing()
def hub_commit(name: str) -> str:
    """Return the current commit of a hub name; offline, the cached commit.

    Raises:
        ModelNotFoundError: The hub does not give the model, and it is not cached.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(hf_hub_download(name, "config.json")).parent.name
    except GatedRepoError:
        problem = "only users who accepted its terms get it: accept them, and set HF_TOKEN to your token"
    except RepositoryNotFoundError:
        problem = "the hub has no such model, or a private one: correct the name, or set HF_TOKEN"
    except LocalEntryNotFoundError:
        problem = "it is not here, and the hub does not answer: let this machine reach it, or name a folder"
    except (OSError, ValueError) as error:
        problem = f"the hub does not give it: {str(error).partition(chr(10))[0]}"
    raise ModelNotFoundError(f"model {name!r}: {problem}")


@lru_cache(maxsize=64)  # hundreds of arms may use one model of some hundred megabytes
def _digest(path: Path, files: tuple[tuple[Path, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for file, size, _ in files:
        digest.update(f"{file.relative_to(path)}\0{size}\0".encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()

"""Installed libraries, and the extras of the package that bring others."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec

DISTRIBUTIONS = {
    "Stemmer": "pystemmer",
    "backports": "backports-zstd",
    "faiss": "faiss-cpu",
    "haystack": "haystack-ai",
    "llama_index": "llama-index-core",
    "opentelemetry": "opentelemetry-sdk",
    "xgboost": "xgboost-cpu",
}
"""Distributions of modules that have another name, by module."""


def find_version(distribution: str) -> str:
    """Return the version of a distribution; empty: it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def is_installed(module: str) -> bool:
    """Return whether a top-level module can be imported, without importing it.

    >>> is_installed("numpy"), is_installed("no_such_module")
    (True, False)
    """
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):
        return False


def find_extra(module: str) -> str | None:
    """Return the extra that brings a module, if one does.

    Args:
        module: Full name, such as `pyarrow.parquet`.

    >>> find_extra("vowpalwabbit"), find_extra("pyarrow.parquet"), find_extra("numpy")
    ('serve', 'parquet', None)
    """
    top = module.partition(".")[0]
    distribution = DISTRIBUTIONS.get(top, top).replace("_", "-").lower()
    try:
        requirements = metadata.requires("armwise") or ()
    except metadata.PackageNotFoundError:  # the files alone are on the path
        return None
    for requirement in requirements:  # read by hand: `packaging` is an extra's, too
        what, _, marker = requirement.partition(";")
        name = re.split(r"[^\w.-]", what, maxsplit=1)[0]
        if name.replace("_", "-").lower() == distribution != "armwise" and "extra ==" in marker:
            return marker.partition("extra ==")[2].split()[0].strip("'\"")
    return None


def advice(error: ModuleNotFoundError) -> str | None:
    """Return what to install for a missing module, if an extra brings it."""
    name = error.name or ""
    return None if find_extra(name) is None else _advise([name])


def find_missing(modules: Iterable[str]) -> list[str]:
    """Return which of some top-level modules are not installed.

    >>> find_missing(["numpy", "no_such_module"])
    ['no_such_module']
    """
    return [module for module in modules if not is_installed(module)]


def install_command(modules: Iterable[str]) -> str:
    """Return the command that installs some modules: by their extras, or by their names if none is known.

    >>> install_command(["faiss", "pyarrow"]), install_command(["no_such_module"])
    ("`pip install 'armwise[serve,parquet]'`", '`pip install no_such_module`')
    """
    names = list(modules)
    extras = dict.fromkeys(extra for name in names if (extra := find_extra(name)) is not None)
    what = f"'armwise[{','.join(extras)}]'" if extras else " ".join(DISTRIBUTIONS.get(n, n) for n in names)
    return f"`pip install {what}`"


def describe_missing(modules: Iterable[str]) -> str:
    """Return that some of these modules are not installed, and what brings them; empty: all are.

    >>> describe_missing(["numpy"]), describe_missing(["no_such_module"])
    ('', 'no_such_module is not installed: `pip install no_such_module` brings it')
    """
    missing = find_missing(modules)
    return _advise(missing) if missing else ""


def _advise(missing: Sequence[str]) -> str:
    are, them = ("is", "it") if len(missing) == 1 else ("are", "them")
    return f"{', '.join(missing)} {are} not installed: {install_command(missing)} brings {them}"


@contextmanager
def explain_missing() -> Iterator[None]:
    """Add to the error of a missing module which extra brings it.

    Raises:
        ModuleNotFoundError: The original error, with that in its message.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (text := advice(error)) is None:
            raise
        raise ModuleNotFoundError(text, name=error.name, path=error.path) from None

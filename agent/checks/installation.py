"""Checks of what is installed: Python, and the packages that this version was made for."""

import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from platform import python_version

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from agent.checks.finding import Finding

NAMED = ("ray", "vowpalwabbit", "torch", "faiss-cpu")
"""Packages whose versions are always listed."""

LOCK = Path(__file__).parents[2] / "requirements" / "base.txt"
"""Beside the packages in a checkout; not there where a wheel is installed."""

REMEDY = "install what is pinned: `make .venv/ready`, or `pip install --no-deps -r requirements/base.txt`"


def version_findings(lock: Path = LOCK) -> Iterator[Finding]:
    """Yield the versions of Python and of the most important packages, and which are not as required.

    Args:
        lock: Pins of all packages, `NAME==VERSION` a line; one that is not there is left out.
    """
    about = metadata.metadata("armwise")
    wanted = SpecifierSet(about["Requires-Python"])
    if python_version() in wanted:
        yield Finding(f"Armwise {about['Version']} on Python {python_version()}")
    else:
        yield Finding(f"Python {python_version()} is not {wanted}", f"install Python {wanted}")
    unlike: dict[str, str] = {}
    for requirement in map(Requirement, about.get_all("Requires-Dist") or ()):
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        found = _installed(requirement.name)
        if found is None:
            yield Finding(f"{requirement.name} is not installed", REMEDY)
        elif not requirement.specifier.contains(found.partition("+")[0], prereleases=True):
            yield Finding(f"{requirement.name} {found} is installed, not {requirement.specifier}", REMEDY)
            unlike[canonicalize_name(requirement.name)] = found
    yield Finding(", ".join(f"{name} {_installed(name) or 'missing'}" for name in NAMED))
    differing = [
        f"{name} {found} (pinned {version})"
        for name, version in _pins(lock)
        if (found := _installed(name)) is not None and found != version and name not in unlike
    ]
    if differing:
        what = f"not as {lock.name} pins them: {', '.join(differing)}"
        yield Finding(what, REMEDY, serious=False)


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _pins(lock: Path) -> list[tuple[str, str]]:
    text = lock.read_text(encoding="utf-8") if lock.is_file() else ""
    return re.findall(r"^([\w.-]+)==([\w.+]+)", text, re.MULTILINE)

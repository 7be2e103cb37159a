"""Write the documentation of the running interpreter's standard library as JSON lines.

`armwise.arms.corpus.readers` runs this file as a program, without site-packages: importing some
three hundred modules loads Tk, registers exit handlers and warns about deprecation. The
process exits without running the handlers. It imports nothing of this project.

Each line is `{"id": "heapq.merge", "title": "heapq.merge", "text": ...}`; the text
starts with the signature. An object with several names is written once, under the
shallowest package that exports it under its own name.
"""

import importlib
import inspect
import json
import os
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

LEFT_ALONE = frozenset(
    (
        *("antigravity", "this", "test", "idlelib", "turtledemo"),  # have side effects, or are programs
        *("distutils", "lib2to3"),  # removed from later versions
        *("encodings", "pydoc_data"),  # tables
        *("posix", "posixpath", "ntpath", "genericpath"),  # read as os and os.path
    )
)
"""Packages that are skipped."""

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

SIGNATURE_LINE = re.compile(r"\A\w[\w.]*\(.*?\)( *-> *[^\n]*)?", re.DOTALL)

WORD = re.compile(r"[A-Za-z]{2,}")

FEWEST_WORDS = 3
"""A docstring with fewer words, without its signature, is skipped."""


class Entry(NamedTuple):
    """A documented object: its qualified name, and its signature with the docstring."""

    name: str
    text: str


class Claim(NamedTuple):
    """A name of an object; the smallest claim is the canonical one."""

    renamed: bool
    foreign: bool
    depth: int
    module: str
    name: str


def modules() -> Iterator[tuple[str, ModuleType]]:
    """Import and yield every public module of this platform, sorted by name."""
    for name in sorted(sys.stdlib_module_names):
        if name not in LEFT_ALONE and (not name.startswith("_") or name == "__future__"):
            yield from _tree(name)
        if name == "os":
            yield "os.path", os.path


def _tree(name: str) -> Iterator[tuple[str, ModuleType]]:
    try:
        module = importlib.import_module(name)
    except ImportError:  # of another platform, or not built
        return
    yield name, module
    below = pkgutil.iter_modules(getattr(module, "__path__", ()))
    for child in sorted(info.name for info in below):
        if not child.startswith("_") and child not in {"test", "tests"}:
            yield from _tree(f"{name}.{child}")


def homes(modules: list[tuple[str, ModuleType]]) -> dict[int, Claim]:
    """Return the canonical name of every public class and function, by its identity."""
    best: dict[int, Claim] = {}
    for module_name, module in modules:
        exported = getattr(module, "__all__", None)
        for name in exported if exported is not None else dir(module):
            thing = getattr(module, name, None)
            if name.startswith("_") or not (inspect.isclass(thing) or inspect.isroutine(thing)):
                continue
            defined_in = getattr(thing, "__module__", None) or ""
            foreign = not (defined_in + ".").startswith(module.__name__ + ".")
            if exported is None and foreign and not defined_in.startswith("_"):
                continue  # only imported there
            renamed = getattr(thing, "__name__", "") != name
            claim = Claim(renamed, foreign, module_name.count("."), module_name, name)
            key = identity(thing)
            best[key] = min(claim, best.get(key, claim))
    return best


def identity(thing: object) -> int:
    """Return the identity of an object, or of the function of a bound method."""
    return id(getattr(thing, "__func__", thing))


def entries() -> Iterator[Entry]:
    """Yield every documented object, by module and name."""
    imported = list(modules())
    home = homes(imported)
    claimed = {(claim.module, claim.name): key for key, claim in home.items()}
    for module_name, module in imported:
        yield from _entry(module_name, module.__doc__)
        for name in sorted(dir(module)):
            if (module_name, name) in claimed:
                thing = getattr(module, name)
                full_name = f"{module_name}.{name}"
                if inspect.isclass(thing):
                    yield from _class(full_name, thing, home)
                else:
                    yield from _entry(full_name, thing.__doc__, signature(thing))


def _class(full_name: str, cls: type, home: dict[int, Claim]) -> Iterator[Entry]:
    """Yield a class with its constructor, then its own public members."""
    how = vars(cls).get("__init__")
    constructor = how.__doc__ if inspect.isfunction(how) else None
    docs = [inspect.cleandoc(doc) for doc in (vars(cls).get("__doc__"), constructor) if isinstance(doc, str)]
    yield from _entry(full_name, "\n\n".join(docs), signature(cls))
    for name, member in sorted(vars(cls).items()):
        inherited = {getattr(getattr(base, name, None), "__doc__", None) for base in cls.__mro__[1:]}
        if name.startswith("_") or identity(member) in home or member.__doc__ in inherited:
            continue
        if inspect.isroutine(member) or isinstance(member, (classmethod, staticmethod)):
            yield from _entry(f"{full_name}.{name}", member.__doc__, signature(getattr(cls, name)))
        elif inspect.isdatadescriptor(member):
            yield from _entry(f"{full_name}.{name}", member.__doc__)


def _entry(name: str, doc: object, call: str = "") -> Iterator[Entry]:
    if isinstance(doc, str) and not is_trivial(doc):
        yield Entry(name, ADDRESS.sub("", f"{name}{call}\n\n{inspect.cleandoc(doc)}"))


def is_trivial(doc: str) -> bool:
    """Return whether a docstring holds no more than a signature.

    >>> is_trivial("Point(x, y)"), is_trivial("Alias for field number 0"), is_trivial("Close the file.")
    (True, True, False)
    """
    text = SIGNATURE_LINE.sub("", doc.strip())
    return text.startswith("Alias for field number") or len(WORD.findall(text)) < FEWEST_WORDS


def signature(thing: object) -> str:
    """Return the signature of an object, or an empty text if it has none.

    >>> signature(json.loads)[:10]
    '(s, *, cls'
    """
    try:
        return str(inspect.signature(thing))  # type: ignore[arg-type]
    except (AttributeError, TypeError, ValueError):  # such as defaults that exist only at run time
        return ""


def main() -> None:
    """Write every entry to standard output, out of reach of imported modules."""
    warnings.simplefilter("ignore")
    os.environ.clear()  # a default such as cgi's environ would print secrets
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        for name, text in entries():
            out.write(json.dumps({"id": name, "title": name, "text": text}) + "\n")
    os._exit(0)  # no exit handler of an imported module may run


if __name__ == "__main__":
    main()

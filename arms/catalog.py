"""Kinds by name: those that packages of ours define in their modules, and those that others register.

A kind stands in one file of its package, and nothing else lists it. Another package registers a kind by an
entry point: the name of the entry is that of the kind.
"""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import TypeVar

from typing_extensions import override

T = TypeVar("T")


class Catalogue(Mapping[str, T], ABC):
    """The kinds of packages of ours, and those that installed packages register.

    The modules of our packages are imported when a kind is first looked up, what another package registers
    when its kind is. A kind of another package cannot replace one of ours.

    Args:
        packages: Names of the packages, the core's before those of wings; a module whose name begins with an
            underscore defines no kind.
        group: Entry point group in which other packages register kinds.
        what: Noun for a kind, for messages.
        error: Class of the error of what is registered and cannot be used.
        folders: Whether the folders of the packages define kinds, too.
    """

    def __init__(
        self,
        packages: Sequence[str],
        group: str,
        what: str,
        error: type[ValueError],
        *,
        folders: bool = False,
    ) -> None:
        self._packages, self._group, self._folders = packages, group, folders
        self.what, self.error = what, error
        self._loaded: dict[str, T] = {}

    @abstractmethod
    def find_kinds(self, module: ModuleType) -> Iterator[tuple[str, T]]:
        """Yield the kinds that a module defines, each with its name, in the order of their definition."""

    @abstractmethod
    def accept(self, kind: str, registered: object, path: str) -> T:
        """Return the kind that another package registers.

        Args:
            kind: Name of the kind.
            registered: Object that the entry point names.
            path: Import path of the object, `module:attribute`, for messages.

        Raises:
            ValueError: It is none of that name; the class of the error is `error`.
        """

    @cached_property
    def own(self) -> Mapping[str, T]:
        """The kinds of our packages: of each, those of its modules by name, then those of its folders.

        Raises:
            TypeError: Two of them have one name.
        """
        kinds: dict[str, T] = {}
        for name in self._modules():
            for kind, value in self.find_kinds(importlib.import_module(name)):
                if kinds.setdefault(kind, value) is not value:
                    raise TypeError(f"{name} defines {self.what} {kind!r} a second time")
        return kinds

    def _modules(self) -> list[str]:
        """Return the names of the modules that may define kinds, those of folders last."""
        names: list[str] = []
        for package in self._packages:
            path, prefix = importlib.import_module(package).__path__, f"{package}."
            walk = pkgutil.walk_packages if self._folders else pkgutil.iter_modules
            defining = (
                module.name
                for module in walk(path, prefix)
                if not module.name.rpartition(".")[2].startswith("_")
            )
            names += sorted(defining, key=lambda name: (name.count("."), name))
        return names

    @cached_property
    def _registered(self) -> Mapping[str, Sequence[EntryPoint]]:
        """What other packages register, by kind."""
        registered: dict[str, list[EntryPoint]] = {}
        for entry in entry_points(group=self._group):
            if entry.name not in self.own:
                registered.setdefault(entry.name, []).append(entry)
        return registered

    @override
    def __getitem__(self, kind: str) -> T:
        """Return a kind.

        Raises:
            KeyError: Neither the package nor an installed one has it.
            ValueError: What another package registers under its name cannot be used.
        """
        if kind in self.own:
            return self.own[kind]
        if kind not in self._loaded:
            self._loaded[kind] = self._load(kind, self._registered[kind])
        return self._loaded[kind]

    @override
    def __contains__(self, kind: object) -> bool:
        """Return whether there is a kind of that name; nothing of another package is imported."""
        return kind in self.own or kind in self._registered

    @override
    def __iter__(self) -> Iterator[str]:
        return iter([*self.own, *self._registered])

    @override
    def __len__(self) -> int:
        return len(self.own) + len(self._registered)

    def _load(self, kind: str, registered: Sequence[EntryPoint]) -> T:
        """Import what another package registers."""
        name, (entry, *others) = f"{self.what} {kind!r}", registered
        if others:
            packages = sorted(f"{_distribution(point)} ({point.value})" for point in registered)
            raise self.error(f"{name} is registered more than once, by {' and by '.join(packages)}")
        try:
            value: object = entry.load()
        except Exception as error:  # what an import can raise has no end
            reason = f"{type(error).__name__}: {error}"
            raise self.error(f"{name}: {entry.value} cannot be imported: {reason}") from error
        return self.accept(kind, value, entry.value)


def _distribution(entry: EntryPoint) -> str:
    """Return the name of the distribution that has an entry point."""
    return entry.dist.name if entry.dist is not None else "an unnamed distribution"

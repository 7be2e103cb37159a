"""Settings that may be relative paths, and the folder that they are relative to.

A field marked with `InFolder` becomes absolute when its model is validated. A relative path is relative to
the folder in the validation context: the folder of the configuration file, or else the current folder.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from armwise.arms.places import locate_source

FOLDER = "folder"
"""Key of the folder in the context of a validation."""


def read_folder(info: ValidationInfo) -> Path:
    """Return the folder that relative paths in what is validated are relative to."""
    return Path((info.context or {}).get(FOLDER) or Path.cwd())


@dataclass(frozen=True)
class InFolder:
    """Marks a field that may be a relative path.

    Attributes:
        locate: Returns a value with its path made absolute, by the folder that it is relative to.
    """

    locate: Callable[[Any, Path], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of the type, followed by `locate`."""

        def validate(value: Any, info: ValidationInfo) -> Any:
            return self.locate(value, read_folder(info))

        return core_schema.with_info_after_validator_function(validate, handler(source))


def locate_path(path: Any, folder: Path) -> Any:
    """Return a path as an absolute one of the same type; what is empty stays as it is.

    >>> [locate_path(path, Path("/srv")) for path in ("home", "/var/log.db", "")]
    ['/srv/home', '/var/log.db', '']
    """
    return type(path)(folder / os.path.expanduser(path)) if path else path


def locate_params(params: Mapping[str, Any], model: type[BaseModel], folder: Path) -> dict[str, Any]:
    """Return the parameters of a kind with the paths among them made absolute; nothing is validated.

    Args:
        params: Parameters by name.
        model: The model of the parameters of the kind, whose fields may be marked.
        folder: The folder that they are relative to.
    """
    markers = {
        name: mark
        for name, field in model.model_fields.items()
        if (mark := find_mark((field.annotation, *field.metadata)))
    }
    return {
        name: markers[name].locate(value, folder) if name in markers and isinstance(value, str) else value
        for name, value in params.items()
    }


def find_mark(annotation: Any) -> InFolder | None:
    """Return the first mark in a type, also in one that may be null, or among metadata.

    >>> find_mark(LocalName | None) == find_mark(LocalName), find_mark(str | None)
    (True, None)
    """
    if isinstance(annotation, InFolder):
        return annotation
    inner = annotation if isinstance(annotation, tuple) else get_args(annotation)
    return next((mark for each in inner if (mark := find_mark(each))), None)


LocalPath = Annotated[Path, InFolder(locate_path)]
LocalName = Annotated[str, InFolder(locate_path)]
LocalSource = Annotated[str, InFolder(locate_source)]

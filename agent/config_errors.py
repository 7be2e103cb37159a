"""What is wrong with a configuration, in the words of the file: the key, and the nearest right one."""

from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from arms.nearest import nearest


def lines(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """Say what is wrong with the settings of a model, a line a key."""
    lines = []
    for problem in error.errors():
        key, known = _follow(problem["loc"], root)
        message = problem["msg"].removeprefix("Value error, ")
        match problem["type"]:
            case "extra_forbidden":
                lines.append(f"unknown key {key!r}{nearest(str(problem['loc'][-1]), known)}")
            case "missing":
                lines.append(f"key {key!r} is missing")
            case "union_tag_not_found":
                lines.append(f"key {key + '.engine'!r} is missing")
            case "value_error":  # one of ours, which names the value
                lines.append(f"{key}: {message}" if key else message)
            case _:
                lines.append(f"{key or 'args'}: {message}, got {problem['input']!r}")
    return lines


def _follow(place: tuple[int | str, ...], root: type[BaseModel]) -> tuple[str, list[str]]:
    """Return a place as it is written in the file, and the keys that may stand beside its last part."""
    annotation: Any = root
    written: list[str] = []
    known: list[str] = []
    for part in place:
        models = models_in(annotation)
        if len(models) > 1:  # the part says which of them was chosen, and is no key
            annotation = next(m for m in models if part in get_args(m.model_fields["engine"].annotation))
            continue
        written.append(str(part))
        if get_origin(annotation) in (dict, list, tuple):
            annotation = next(inner for inner in reversed(get_args(annotation)) if inner is not Ellipsis)
        else:
            fields = models[0].model_fields if models else {}
            known = sorted(fields)
            annotation = fields[str(part)].annotation if part in fields else None
    return ".".join(written), known


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the models inside an annotation, such as the values of a dict."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in getattr(annotation, "__args__", ()) for model in models_in(inner)]

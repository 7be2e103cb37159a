"""What is wrong with a configuration, in the words of the file: the key, and the nearest right one."""

from typing import Any, Literal, get_args, get_origin

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
                lines.append(f"key {key + '.' + _tag(problem['ctx']['discriminator'])!r} is missing")
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
        models, container = models_in(annotation), get_origin(annotation) in (dict, list, tuple)
        if len(models) > 1 and not container:  # the part says which of them was chosen, and is no key
            annotation = next(model for model in models if part in tags_of(model).values())
            continue
        written.append(str(part))
        if container:
            annotation = next(inner for inner in reversed(get_args(annotation)) if inner is not Ellipsis)
        else:
            fields = models[0].model_fields if models else {}
            known = sorted(fields)
            annotation = fields[str(part)].annotation if part in fields else None
    return ".".join(written), known


def _tag(discriminator: str) -> str:
    """Return the key that tells models apart, as pydantic quotes it.

    >>> _tag("'kind'")
    'kind'
    """
    return discriminator.strip("'")


def tags_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the keys of a model that can have one value only, with that value: they tell it from others.

    >>> class Circle(BaseModel):
    ...     kind: Literal["circle"]
    ...     radius: float
    >>> tags_of(Circle)
    {'kind': 'circle'}
    """
    found = {name: get_args(field.annotation) for name, field in model.model_fields.items()}
    literal = {name for name in found if get_origin(model.model_fields[name].annotation) is Literal}
    return {name: values[0] for name, values in found.items() if name in literal and len(values) == 1}


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the models inside an annotation, such as the values of a dict."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in getattr(annotation, "__args__", ()) for model in models_in(inner)]

"""Build objects from specs (a kind of a catalogue, and parameters), and describe invalid settings."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from arms.suggestions import did_you_mean


def lines(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """Return one line per invalid key of the settings of a model."""
    lines = []
    for problem in error.errors():
        key, known = _locate(problem["loc"], root)
        message = problem["msg"].removeprefix("Value error, ")
        match problem["type"]:
            case "extra_forbidden":
                lines.append(f"unknown key {key!r}{did_you_mean(str(problem['loc'][-1]), known)}")
            case "missing":
                lines.append(f"key {key!r} is missing")
            case "union_tag_not_found":
                lines.append(f"key {key + '.' + _tag(problem['ctx']['discriminator'])!r} is missing")
            case "value_error":  # raised by a validator here, which names the value
                lines.append(f"{key}: {message}" if key else message)
            case _:
                lines.append(f"{key or 'args'}: {message}, got {problem['input']!r}")
    return lines


def _locate(place: tuple[int | str, ...], root: type[BaseModel]) -> tuple[str, list[str]]:
    """Return a location as the file writes it, and the keys that are valid for its last part."""
    annotation: Any = root
    written: list[str] = []
    known: list[str] = []
    for part in place:
        models, container = models_in(annotation), get_origin(annotation) in (dict, list, tuple)
        if len(models) > 1 and not container:  # the part is the tag of the chosen model, not a key
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
    """Return the discriminating key, which pydantic quotes.

    >>> _tag("'kind'")
    'kind'
    """
    return discriminator.strip("'")


def tags_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the keys of a model with a single possible value, which discriminate it from others.

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


Built = TypeVar("Built")


class Spec(BaseModel):
    """A kind and its parameters, as data."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str = Field(description="Name in the catalogue")
    params: dict[str, Any] = Field(default_factory=dict, description="Arguments of its class, by name")


def build(
    spec: Spec, what: str, catalogue: Mapping[str, Callable[..., Built]], error: type[ValueError]
) -> Built:
    """Build the object that a spec describes.

    Args:
        spec: Kind and parameters.
        what: Noun for the entries of the catalogue, for messages.
        catalogue: Classes by kind. Their parameters are the fields of their model `Params`, where they have
            one; else those of the signature that do not begin with an underscore.
        error: Class of the error.

    Raises:
        error: An unknown kind or parameter, or a value that the class refuses.

    >>> build(Spec(kind="whole", params={"real": 2}), "number", {"whole": complex}, ValueError)
    (2+0j)
    >>> build(Spec(kind="hole"), "number", {"whole": complex}, ValueError)
    Traceback (most recent call last):
    ValueError: no number of kind 'hole'; did you mean 'whole'?
    """
    if spec.kind not in catalogue:
        raise error(f"no {what} of kind {spec.kind!r}{did_you_mean(spec.kind, catalogue)}")
    make = catalogue[spec.kind]
    if fields := getattr(inspect.unwrap(make), "Params", None):  # a model describes them
        known = list(fields.model_fields)
    else:
        known = [name for name in inspect.signature(make).parameters if not name.startswith("_")]
    for name in spec.params:
        if name not in known:
            raise error(f"{what} {spec.kind!r} has no parameter {name!r}{did_you_mean(name, known)}")
    try:
        return make(**spec.params)
    except TypeError as wrong:
        raise error(f"{what} {spec.kind!r} cannot be built: {wrong}") from wrong

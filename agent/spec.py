"""Settings as models: the keys of a setting, errors in settings, and classes built from a spec.

Every setting is a field of a pydantic model. A class of a catalogue without a model `Params` gets one made
from its signature. The reference of the configuration, its JSON Schema, the options of verbs and the
variables of the environment all read these fields through the functions here.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import ModuleType, UnionType
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo
from typing_extensions import override

from armwise.arms.catalog import Catalogue
from armwise.arms.relative_paths import FOLDER, locate_params, read_folder
from armwise.arms.suggestions import did_you_mean
from armwise.number import Number

# -- types of settings ---------------------------------------------------------------------------


def choices_in(annotation: Any) -> list[Any]:
    """Return the types that a value of an annotation may have.

    >>> choices_in(Annotated[int, "seconds"] | str | None)
    [<class 'int'>, <class 'str'>, <class 'NoneType'>]
    """
    origin = get_origin(annotation)
    if origin is Annotated:
        return choices_in(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [choice for inner in get_args(annotation) for choice in choices_in(inner)]
    return [annotation]


def list_models(annotation: Any) -> list[type[BaseModel]]:
    """Return the models that a value itself may have."""
    return [
        choice
        for choice in choices_in(annotation)
        if isinstance(choice, type) and issubclass(choice, BaseModel)
    ]


def list_fields(annotation: Any) -> dict[str, FieldInfo]:
    """Return the keys that a value may have, with the fields that describe them; empty without keys.

    >>> list(list_fields(Spec | None))
    ['kind', 'params']
    """
    return {name: field for model in list_models(annotation) for name, field in model.model_fields.items()}


def find_item_type(annotation: Any) -> Any:
    """Return the type of the values of a mapping or a sequence; None for other values.

    >>> find_item_type(dict[str, int] | None), find_item_type(tuple[float, ...]), find_item_type(str)
    (<class 'int'>, <class 'float'>, None)
    """
    for choice in choices_in(annotation):
        if get_origin(choice) in (dict, list, tuple):
            return next(inner for inner in reversed(get_args(choice)) if inner is not Ellipsis)
    return None


def list_tags(model: type[BaseModel]) -> dict[str, tuple[Any, ...]]:
    """Return the keys of a model that discriminate it from others, with their values.

    These have a single possible value, or one of a few that must be given.

    >>> class Circle(BaseModel):
    ...     kind: Literal["circle", "disc"]
    ...     radius: float
    >>> list_tags(Circle)
    {'kind': ('circle', 'disc')}
    """
    literal = {
        name: field for name, field in model.model_fields.items() if get_origin(field.annotation) is Literal
    }
    values = {name: get_args(field.annotation) for name, field in literal.items()}
    return {name: values[name] for name in literal if len(values[name]) == 1 or literal[name].is_required()}


# -- what is wrong with settings -----------------------------------------------------------------


def lines(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """Return one line per invalid key of the settings of a model."""
    lines = []
    for problem in error.errors():
        key, keys = _locate(problem["loc"], root)
        message = problem["msg"].removeprefix("Value error, ")
        match problem["type"]:
            case "extra_forbidden":
                lines.append(f"unknown key {key!r}{did_you_mean(str(problem['loc'][-1]), keys)}")
            case "missing":
                lines.append(f"key {key!r} is missing")
            case "union_tag_not_found":
                tag = problem["ctx"]["discriminator"].strip("'")  # pydantic quotes it
                lines.append(f"key {key + '.' + tag!r} is missing")
            case "value_error":  # raised by a validator here, which names the value
                lines.append(f"{key}: {message}" if key else message)
            case _:
                lines.append(f"{key or 'args'}: {message}, got {problem['input']!r}")
    return lines


def _locate(place: tuple[int | str, ...], root: type[BaseModel]) -> tuple[str, list[str]]:
    """Return a location as it is written in the file, and the valid keys for its last part."""
    annotation: Any = root
    written: list[str] = []
    keys: list[str] = []
    for part in place:
        models = list_models(annotation)
        if len(models) > 1:  # the part is the tag of the chosen model, not a key
            annotation = next(
                model for model in models if any(part in tags for tags in list_tags(model).values())
            )
            continue
        written.append(str(part))
        fields = list_fields(annotation)
        keys = sorted(fields)
        annotation = fields[str(part)].annotation if part in fields else find_item_type(annotation)
    return ".".join(written), keys


# -- specs ---------------------------------------------------------------------------------------

Built = TypeVar("Built")


class Spec(BaseModel):
    """A kind and its parameters, as data."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str = Field(description="Name in the catalogue.")
    params: dict[str, Any] = Field(default_factory=dict, description="Parameters of that kind, by name.")

    catalogue: ClassVar[Mapping[str, Callable[..., object]]] = {}
    """The classes of the kinds, whose parameters may be paths."""

    @model_validator(mode="after")
    def _locate_params(self, info: ValidationInfo) -> Self:
        """Make the paths among the parameters of a configuration absolute."""
        if self.params and FOLDER in (info.context or {}) and self.kind in self.catalogue:
            model = find_params(self.catalogue[self.kind])
            object.__setattr__(self, "params", locate_params(self.params, model, read_folder(info)))
        return self

    def with_default(self, name: str, value: object) -> Self:
        """Return the spec with a parameter that its kind has, unless it is given."""
        if name in self.params or self.kind not in self.catalogue:
            return self
        if name not in find_params(self.catalogue[self.kind]).model_fields:
            return self
        return self.model_copy(update={"params": {**self.params, name: value}})


@cache
def find_params(make: Callable[..., object]) -> type[BaseModel]:
    """Return the model of the parameters of a class: its `Params`, or one made of its signature.

    Arguments whose names begin with an underscore are left out. The docstring describes the others.

    >>> find_params(complex).model_fields["real"].default
    0
    """
    make = inspect.unwrap(make)
    if isinstance(model := getattr(make, "Params", None), type):
        return model
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    described = _arguments_in(inspect.getdoc(make) or "")
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(make, eval_str=True).parameters.items():
        if parameter.kind in variadic or name.startswith("_"):
            continue
        empty = parameter.default is inspect.Parameter.empty
        field = Field(default=... if empty else parameter.default, description=described.get(name))
        typed = parameter.annotation is not inspect.Parameter.empty
        fields[name] = (_with_numbers(parameter.annotation) if typed else Any, field)
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    return create_model(f"{getattr(make, '__name__', 'Kind')}Params", __config__=config, **fields)


def _with_numbers(annotation: Any) -> Any:
    """Return the type of an argument as a setting, in which `float` accepts any finite number."""
    if annotation is float:
        return Number
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return Annotated[_with_numbers(inner[0]), *inner[1:]]
    if origin in (Union, UnionType):
        return Union[tuple(map(_with_numbers, inner))]  # noqa: UP007 - of a list
    return annotation


def _arguments_in(doc: str) -> dict[str, str]:
    r"""Return the descriptions of arguments in a Google-style docstring, with null in place of None.

    >>> _arguments_in("Do.\n\nArgs:\n    a: One,\n        and two.\n    b: None: no\n\nRaises:\n    E: No")
    {'a': 'One, and two.', 'b': 'null: no'}
    """
    section = re.search(r"^Args:\n((?:[ ].*\n?|\n)*)", doc, re.MULTILINE)
    descriptions: dict[str, str] = {}
    for name, text in re.findall(
        r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section[1] if section else "", re.MULTILINE
    ):
        null = re.sub(r"\bNone\b", "null", " ".join(text.split()))
        descriptions[name] = null.replace(". null ", ". Null ")
    return descriptions


class ClassCatalogue(Catalogue[Callable[..., Built]], Generic[Built]):
    """The classes of a package by their kinds, and those that installed packages register.

    A kind is a class with an attribute `kind`, a text. Its parameters are those of `find_params`.
    """

    @override
    def find_kinds(self, module: ModuleType) -> Iterator[tuple[str, Callable[..., Built]]]:
        members: list[Any] = [member for member in vars(module).values() if isinstance(member, type)]
        for member in members:
            if member.__module__ == module.__name__ and isinstance(getattr(member, "kind", None), str):
                yield member.kind, member

    @override
    def accept(self, kind: str, registered: object, path: str) -> Callable[..., Built]:
        if not isinstance(registered, type) or getattr(registered, "kind", None) != kind:
            raise self.error(f"{self.what} {kind!r}: {path} is not a class with kind = {kind!r}")
        made: Callable[..., Built] = registered
        return made


def build(
    spec: Spec, what: str, catalogue: Mapping[str, Callable[..., Built]], error: type[ValueError]
) -> Built:
    """Build the object that a spec describes.

    Args:
        spec: Kind and parameters.
        what: Noun for the entries of the catalogue, for messages.
        catalogue: Classes by kind, whose parameters are those of `find_params`.
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
    fields = find_params(make).model_fields
    for name in spec.params:
        if name not in fields:
            raise error(f"{what} {spec.kind!r} has no parameter {name!r}{did_you_mean(name, fields)}")
    try:
        return make(**spec.params)
    except TypeError as wrong:
        raise error(f"{what} {spec.kind!r} cannot be built: {wrong}") from wrong

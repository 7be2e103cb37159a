"""The bytes of a policy's state: a header with a digest, and plain data in place of a pickle.

seal, unseal    one line of JSON with the settings of the policy and a digest of the body, then the body
pack, unpack    JSON facts and arrays as a body; equal ones give equal bytes
ObjectFormat    objects of allowed classes as a body, for a library without a format for its states
"""

import base64
import copyreg
import hashlib
import importlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from operator import attrgetter
from types import FunctionType, MethodType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies.base import PolicyError
from armwise.arms import extras

HEADER_CHARS = 300
"""Bytes of a refused header that a message quotes."""

PLAIN = frozenset({float, int, str, bool, type(None)})
"""Types that JSON preserves."""


def seal(made_by: Mapping[str, Any], body: bytes) -> bytes:
    """Return a state: the settings and a digest on one line, then the body.

    >>> seal({"kind": "coin"}, b"heads").splitlines()
    [b'{"blake2b": "413288f2f678eced61e80eb7456b07c2", "kind": "coin"}', b'heads']
    """
    digest = hashlib.blake2b(body, digest_size=16).hexdigest()
    return _line({**made_by, "blake2b": digest}) + b"\n" + body


def unseal(state: bytes, made_by: Mapping[str, Any]) -> bytes:
    """Return the body of a state.

    Raises:
        PolicyError: The state is damaged, or of other settings.

    >>> unseal(seal({"kind": "coin"}, b"heads"), {"kind": "coin"})
    b'heads'
    """
    header, _, body = state.partition(b"\n")
    if seal(made_by, body) != state:
        theirs, ours = header[:HEADER_CHARS].decode(errors="replace"), _line(made_by).decode()
        raise PolicyError(f"state of {theirs or 'nothing'} is damaged, or not of {ours}")
    return body


@extras.explained()
def pack(facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return facts, which must be JSON, and arrays as one body."""
    from safetensors.numpy import save  # here: a policy that only decides has no need of it

    return json.dumps(facts).encode() + b"\n" + save(dict(arrays))


@extras.explained()
def unpack(body: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the facts and the arrays of a body; the arrays are writable.

    Raises:
        PolicyError: The body is not from `pack`.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    facts, _, arrays = body.partition(b"\n")
    try:
        return json.loads(facts), {name: array.copy() for name, array in load(arrays).items()}
    except (ValueError, SafetensorError) as error:
        raise PolicyError(f"state with the facts {facts[:HEADER_CHARS]!r} cannot be read: {error}") from error


Refer = Callable[[object], list[int]]
"""An object -> the value that refers to it."""

Find = Callable[[int], Any]
"""The number of a row -> its object."""


class ObjectFormat:
    """Objects of allowed classes as JSON, with shared references and any depth of links.

    The body is a list of rows, one for each object that others refer to, the root first:

        ["list", *values]   ["set", *values]   ["dict", key, value, ...]
        ["array", dtype, order, shape, base64]
        ["new", class, args, state, key, value, ...]     made by `class.__new__(class, *args)`
        ["call", class, args, state, key, value, ...]    made by `class(*args)`, for the classes of `called`

    A value is null, a boolean, a number or a text; [n] for the object of row n; or a list that begins with
    another tag. Reading a body runs only these constructors and `__setstate__` of these classes.

    Args:
        names: Allowed classes and functions, as `module:name`.
        prefixes: Prefixes of modules whose classes are allowed.
        called: Allowed classes whose constructor is called.
    """

    def __init__(
        self, names: Collection[str], prefixes: tuple[str, ...] = (), called: Collection[str] = ()
    ) -> None:
        self._names, self._prefixes, self._called = names, prefixes, called

    def dump(self, root: object) -> bytes:
        """Return an object as a body; equal objects give equal bytes. Raises PolicyError."""
        objects, numbers = [root], {id(root): 0}

        def refer(value: object) -> list[int]:
            number = numbers.setdefault(id(value), len(objects))
            if number == len(objects):
                objects.append(value)
            return [number]

        rows = [self._row(value, refer) for value in objects]  # each may add to `objects`
        return json.dumps(rows, separators=(",", ":")).encode()

    def load(self, body: bytes) -> Any:
        """Return the object of a body. Raises PolicyError if it names something that is not allowed."""
        try:
            rows, objects = json.loads(body), dict[int, Any]()

            def find(number: int) -> Any:
                if number not in objects:
                    objects[number] = self._made(find, *rows[number])
                return objects[number]

            for number, (tag, *parts) in enumerate(rows):
                if tag != "array":
                    _fill(find(number), tag, self._read_all(parts, find))
            return find(0)
        except Exception as error:  # the constructors of a library can raise anything
            raise PolicyError(f"state cannot be read: {error!r}") from error

    def _row(self, value: Any, refer: Refer) -> list[Any]:
        kind = type(value)
        if kind is list:
            return ["list", *self._all(value, refer)]
        if kind is set:
            return ["set", *sorted(self._all(value, refer), key=json.dumps)]
        if kind is dict:
            return ["dict", *self._all(chain(*value.items()), refer)]
        if kind is np.ndarray:
            order = "C" if value.flags.c_contiguous else "F"
            body = base64.b64encode(value.tobytes(order)).decode()
            return ["array", _numeric(value.dtype).str, order, value.shape, body]
        make, args, state, _, items = (*value.__reduce_ex__(4), None, None, None)[:5]
        how = "call"
        if make is copyreg.__newobj__:  # type: ignore[attr-defined]
            how, (make, *args) = "new", args
        if make is not kind or (how == "call" and self._name(kind) not in self._called):
            raise PolicyError(f"{kind} is not allowed in a state")
        given, held = self._written(tuple(args), refer, levels=9), self._written(state, refer, levels=1)
        return [how, self._name(kind), given, held, *self._all(chain(*(items or ())), refer)]

    def _all(self, values: Iterable[Any], refer: Refer, levels: int = 0) -> list[Any]:
        # a call for each of some thousand numbers would take most of the time
        return [v if type(v) in PLAIN else self._written(v, refer, levels) for v in values]

    def _written(self, value: Any, refer: Refer, levels: int = 0) -> Any:
        """Return a value as it is written in a row; dicts up to `levels` deep are written inline."""
        kind = type(value)
        if kind in PLAIN:
            return value
        if kind is tuple:
            return ["tuple", *self._all(value, refer, levels)]
        if kind is dict and levels:
            return ["dict", *self._all(chain(*value.items()), refer, levels - 1)]
        if kind is bytes:
            return ["bytes", base64.b64encode(value).decode()]
        if isinstance(value, np.generic):
            return ["number", _numeric(value.dtype).str, value.item()]
        if isinstance(value, type | FunctionType):
            return ["named", self._name(value)]
        if kind is MethodType:
            return ["method", self._name(value.__func__), self._written(value.__self__, refer)]
        return refer(value)

    def _made(self, find: Find, tag: str, *parts: Any) -> Any:
        """Return the object of a row, still empty."""
        match tag, *parts:
            case "list" | "set" | "dict", *_:
                return {"list": list, "set": set, "dict": dict}[tag]()
            case "array", dtype, order, shape, text:
                flat = np.frombuffer(base64.b64decode(text), _numeric(np.dtype(dtype)))
                return flat.reshape(shape, order=order).copy(order="K")
            case "new", name, args, *_:
                made = self._found(name)
                return made.__new__(made, *self._read(args, find))
            case "call", name, args, *_ if name in self._called:
                return self._found(name)(*self._read(args, find))
        raise PolicyError(f"no row begins with {[tag, *parts[:1]]}")

    def _read(self, value: Any, find: Find) -> Any:
        if type(value) in PLAIN:
            return value
        match value:
            case [int(number)]:
                return find(number)
            case ["tuple", *parts]:
                return tuple(self._read_all(parts, find))
            case ["dict", *parts]:
                return _paired(self._read_all(parts, find))
            case ["bytes", text]:
                return base64.b64decode(text)
            case ["number", dtype, number]:
                return _numeric(np.dtype(dtype)).type(number)
            case ["named", name]:
                return self._found(name)
            case ["method", name, instance]:
                return MethodType(self._found(name), self._read(instance, find))
        raise PolicyError(f"no value begins with {value[:1]}")

    def _read_all(self, values: Iterable[Any], find: Find) -> list[Any]:
        return [v if type(v) in PLAIN else self._read(v, find) for v in values]

    def _name(self, target: Any) -> str:
        """Return the name of a class or a function. Raises PolicyError if it is not allowed."""
        name = f"{target.__module__}:{target.__qualname__}"
        if name not in self._names and not (isinstance(target, type) and name.startswith(self._prefixes)):
            raise PolicyError(f"{name} is not allowed in a state")
        return name

    def _found(self, name: str) -> Any:
        """Return the class or function of a name; only allowed ones are imported. Raises PolicyError."""
        if name not in self._names and not name.startswith(self._prefixes):
            raise PolicyError(f"{name} is not allowed in a state")
        module, _, path = name.partition(":")
        target = attrgetter(path)(importlib.import_module(module))
        if self._name(target) != name:
            raise PolicyError(f"{name} is a name of {self._name(target)}")
        return target


def _fill(made: Any, tag: str, parts: list[Any]) -> None:
    """Give an object of a row its contents."""
    match tag:
        case "list":
            made.extend(parts)
        case "set" | "dict":
            made.update(parts if tag == "set" else _paired(parts))
        case _:
            _, _, state, *items = parts
            if state is not None and hasattr(made, "__setstate__"):
                made.__setstate__(state)
            else:
                for attributes in state if isinstance(state, tuple) else (state,):
                    for name, value in (attributes or {}).items():
                        object.__setattr__(made, name, value)
            for key, value in _paired(items).items():
                made[key] = value


def _paired(parts: Iterable[Any]) -> dict[Any, Any]:
    """Return keys and values that alternate as a dict."""
    alternating = iter(parts)
    return dict(zip(alternating, alternating, strict=True))


def _numeric(dtype: "np.dtype[Any]") -> "np.dtype[Any]":
    if dtype.kind not in "fiub":
        raise PolicyError(f"an array of {dtype} is not allowed in a state")
    return dtype


def _line(facts: Mapping[str, Any]) -> bytes:
    return json.dumps(facts, sort_keys=True, default=str).encode()

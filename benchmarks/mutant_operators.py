"""The small faults that a mutation run plants: one change of one expression or statement at a time.

Left alone is what no test should notice, or every test does: annotations, decorators, texts of messages and
of help, logging, assertions, bodies of protocols.
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import TypeVar

N = TypeVar("N", bound=ast.AST)

BOUNDARIES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}

OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}

OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}

UNDONE = {"strip", "lstrip", "rstrip", "lower", "upper", "casefold", "copy", "removeprefix", "removesuffix"}
"""Methods whose call is replaced by the object."""

LEFT_ALONE = {
    *(
        "strict",
        "help",
        "description",
        "title",
        "encoding",
        "exist_ok",
        "daemon",
        "stacklevel",
        "metavar",
        "name",
    ),
    *(
        "examples",
        "slots",
        "frozen",
        "rich_help_panel",
        "show_default",
        "capture_output",
        "text",
        "check",
        "dtype",
        "compression",
        "write_statistics",
        "highlight",
        "markup",
        "soft_wrap",
        "style",
    ),
}
"""Keyword arguments that are not dropped: texts, and what changes a type or nothing."""

UNTESTED = {"Option", "Argument", "Field", "logger", "log", "TypeVar", "NewType", "cast", "warn", "fsync"}
"""Functions, and objects of methods, whose arguments are left as they are."""


@dataclass(frozen=True, slots=True, order=True)
class Mutant:
    """One change.

    Attributes:
        path: File, relative to the root.
        line: Line at which it begins.
        start: First byte that is replaced.
        end: The byte after the last.
        before: What stands there, on one line.
        after: What is planted.
        names: Names under which code that runs at import is used elsewhere; empty in a function.
    """

    path: str
    line: int
    start: int
    end: int
    before: str
    after: str
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return where it is, and what it changes."""
        return f"{self.path}:{self.line}  " + "  ->  ".join(_windows(self.before, self.after))

    def planted(self, source: bytes) -> bytes:
        """Return the file with the change."""
        return source[: self.start] + self.after.encode() + source[self.end :]


Node = ast.expr | ast.stmt
Change = tuple[Node, Node]
"""A node and what is planted in its place."""


def mutants(path: str, root: Path = Path()) -> list[Mutant]:
    """Return all changes of a file, sorted."""
    source = (root / path).read_bytes()
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))
    distinct = set()
    for node, names in _nodes(ast.parse(source), (), in_function=False):
        for replaced, by in changes(node):
            start = starts[replaced.lineno - 1] + replaced.col_offset
            end = starts[(replaced.end_lineno or 0) - 1] + (replaced.end_col_offset or 0)
            after = f"({ast.unparse(by)})" if isinstance(by, ast.expr) else ast.unparse(by)
            distinct.add(Mutant(path, replaced.lineno, start, end, ast.unparse(replaced), after, names))
    return sorted(distinct)


def _windows(before: str, after: str, most: int = 90) -> Iterator[str]:
    """Yield two texts on a line each, cut to where they begin to differ."""
    lines = [" ".join(text.split()) for text in (before, after.removeprefix("(").removesuffix(")"))]
    same = next((i for i, (left, right) in enumerate(zip(*lines, strict=False)) if left != right), 0)
    start = max(0, min(same - 30, max(map(len, lines)) - most))
    for line in lines:
        yield (
            ("..." if start else "")
            + line[start : start + most]
            + ("..." if len(line) > start + most else "")
        )


def _nodes(
    node: ast.AST, names: tuple[str, ...], *, in_function: bool
) -> Iterator[tuple[Node, tuple[str, ...]]]:
    """Yield what may be changed, with the names of what it makes where it runs at import."""
    if isinstance(node, ast.expr | ast.stmt):
        yield node, () if in_function else names
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _left_alone(node, field, child):
                inside = in_function or (field == "body" and isinstance(node, Function))
                yield from _nodes(child, names + _names(node, child), in_function=inside)


Function = ast.FunctionDef | ast.AsyncFunctionDef


def _names(node: ast.AST, child: ast.AST) -> tuple[str, ...]:
    """Return the names that a statement which runs at import gives to what it makes."""
    if isinstance(child, ast.ClassDef):
        return (child.name,)
    if isinstance(child, ast.Assign):
        return tuple(
            part.id for target in child.targets for part in ast.walk(target) if isinstance(part, ast.Name)
        )
    if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
        return (child.target.id,)
    if isinstance(child, ast.arguments) and isinstance(node, Function):
        return (node.name,)
    return ()


def _left_alone(node: ast.AST, field: str, child: ast.AST) -> bool:
    if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
        return True
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if field == "decorator_list":
            return True
        case ast.ClassDef(bases=bases) if any(ast.unparse(base).startswith("Protocol") for base in bases):
            return True
        case ast.Call(func=function) if _called(function) & UNTESTED:
            return True
        case ast.keyword(arg=name) if name in LEFT_ALONE:
            return True
        case ast.Subscript() if isinstance(child, ast.Tuple):  # of types, or of an array
            return True
    of_text = isinstance(child, ast.JoinedStr | ast.Raise | ast.Assert | ast.Import | ast.ImportFrom)
    return of_text or field in {"annotation", "returns", "bases", "targets", "target"}


def _called(function: ast.expr) -> set[str]:
    """Return the name of a function, and that of the object whose method it is."""
    match function:
        case ast.Name(id=name):
            return {name}
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return {owner, name}
        case ast.Attribute(attr=name):
            return {name}
    return set()


@singledispatch
def changes(node: ast.AST) -> Iterator[Change]:
    """Yield what may be planted in the place of a node, or of a part of it."""
    del node
    yield from ()


@changes.register
def _(node: ast.Compare) -> Iterator[Change]:
    for i, operator in enumerate(node.ops):
        yield node, _with(node, ops=[*node.ops[:i], BOUNDARIES[type(operator)](), *node.ops[i + 1 :]])


@changes.register
def _(node: ast.BoolOp) -> Iterator[Change]:
    for i in range(len(node.values)):
        rest = [*node.values[:i], *node.values[i + 1 :]]
        yield node, rest[0] if len(rest) == 1 else _with(node, values=rest)


@changes.register
def _(node: ast.UnaryOp) -> Iterator[Change]:
    if isinstance(node.op, ast.Not | ast.USub):
        yield node, ast.Constant(0) if isinstance(node.operand, ast.Constant) else node.operand


@changes.register
def _(node: ast.IfExp) -> Iterator[Change]:
    yield node, node.body
    yield node, node.orelse


@changes.register
def _(node: ast.BinOp) -> Iterator[Change]:
    texts = [side for side in (node.left, node.right) if _is_text(side)]
    if type(node.op) in OPERATORS and not texts:
        yield node, _with(node, op=OPERATORS[type(node.op)]())
        yield node, node.left
    elif isinstance(node.op, ast.BitOr | ast.BitAnd):
        yield node, node.left
        yield node, node.right


@changes.register
def _(node: ast.Constant) -> Iterator[Change]:
    match node.value:
        case bool():
            yield node, ast.Constant(not node.value)
        case int() if node.value < 10:
            yield node, ast.Constant(node.value + 1)
        case int() | float():
            yield node, ast.Constant(2 * node.value or 1.0)


@changes.register
def _(node: ast.Subscript) -> Iterator[Change]:
    if isinstance(node.slice, ast.Slice):
        for field in ("lower", "upper"):
            if getattr(node.slice, field) is not None:
                yield node, _with(node, slice=_with(node.slice, **{field: None}))


@changes.register
def _(node: ast.Call) -> Iterator[Change]:
    if _called(node.func) & UNTESTED:
        return
    for i, keyword in enumerate(node.keywords):
        if keyword.arg and keyword.arg not in LEFT_ALONE:
            yield node, _with(node, keywords=[*node.keywords[:i], *node.keywords[i + 1 :]])
    match node.func:
        case ast.Name(id=name) if name in OPPOSITES:
            yield node, _with(node, func=ast.Name(OPPOSITES[name], ast.Load()))
        case ast.Attribute(value=value, attr=name) if name in UNDONE:
            yield node, value
        case ast.Attribute(attr="shield") if node.args:
            yield node, node.args[0]


@changes.register(ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp)
def _(node: ast.ListComp) -> Iterator[Change]:
    for loop in node.generators:
        for condition in loop.ifs:
            yield condition, ast.Constant(value=True)
        if not loop.is_async:
            yield loop.iter, _first_of(loop.iter)


@changes.register(ast.List | ast.Set | ast.Tuple)
def _(node: ast.List) -> Iterator[Change]:
    if len(node.elts) > 1 and not isinstance(getattr(node, "ctx", None), ast.Store):
        yield node, _with(node, elts=node.elts[:-1])
        if not isinstance(node, ast.Tuple):
            yield node, _with(node, elts=node.elts[1:])


@changes.register
def _(node: ast.Dict) -> Iterator[Change]:
    if len(node.keys) > 1:
        yield node, _with(node, keys=node.keys[1:], values=node.values[1:])
        yield node, _with(node, keys=node.keys[:-1], values=node.values[:-1])


@changes.register
def _(node: ast.Expr) -> Iterator[Change]:
    called = node.value.value if isinstance(node.value, ast.Await) else node.value
    if isinstance(called, ast.Call) and not _called(called.func) & UNTESTED:
        yield node, ast.Pass()


@changes.register
def _(node: ast.Delete) -> Iterator[Change]:
    yield node, ast.Pass()


@changes.register
def _(node: ast.Assign) -> Iterator[Change]:
    if isinstance(node.targets[0], ast.Subscript | ast.Attribute):
        yield node, ast.Pass()


@changes.register
def _(node: ast.AugAssign) -> Iterator[Change]:
    yield node, ast.Assign([node.target], node.value, lineno=node.lineno)
    if type(node.op) in OPERATORS:
        yield node, _with(node, op=OPERATORS[type(node.op)]())


@changes.register
def _(node: ast.If) -> Iterator[Change]:
    yield node.test, ast.Constant(value=False)


@changes.register
def _(node: ast.Continue) -> Iterator[Change]:
    yield node, ast.Break()


@changes.register
def _(node: ast.For) -> Iterator[Change]:
    yield node.iter, _first_of(node.iter)


@changes.register
def _(node: ast.Try) -> Iterator[Change]:
    for handler in node.handlers:
        match handler.type:
            case ast.Name(id="BaseException"):
                yield handler.type, ast.Name("Exception", ast.Load())


def _first_of(iterable: ast.expr) -> ast.expr:
    """Return an expression that yields only the first of what another one does."""
    islice = ast.parse("__import__('itertools').islice", mode="eval").body
    return ast.Call(islice, [iterable, ast.Constant(1)], [])


def _with(node: N, **fields: object) -> N:
    """Return a copy of a node with other fields."""
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))

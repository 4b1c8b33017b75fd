"""Generates mutants of a module: copies with one small bug each, which a useful test must detect.

A mutant has a comparison off by one or inverted, `and` for `or`, a missing `not`, plus for minus, min for max, a number
one too high, or a statement left out. Only functions are mutated, except audits (`check`), assertions and error texts.
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}
TWINS = {"min": "max", "max": "min", "any": "all", "all": "any"}
PARTS = (ast.arguments, ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop)
UNTOUCHED = (ast.Assert, ast.Raise, ast.JoinedStr, ast.FunctionDef, ast.AnnAssign)


@dataclass(frozen=True, slots=True)
class Mutant:
    """`code` replaces the code of the whole function."""

    file: str
    line: int
    function: str  # qualified with its class
    change: str
    code: CodeType

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {self.change}"

    def plant(self, module: ModuleType) -> None:
        function_named(module, self.function).__code__ = self.code


def mutants(path: Path, file: str) -> Iterator[Mutant]:
    """All mutants of one module, in the order of its lines."""
    for function, name in functions(ast.parse(path.read_text())):
        for number, node in enumerate(parts(function)):
            for which in range(num_changes(node)):
                twin = copy.deepcopy(function)
                change = apply(list(parts(twin))[number], which)
                yield Mutant(file, node.lineno, name, change, compiled(twin, name, str(path)))


def parts(function: ast.FunctionDef) -> Iterator[Any]:
    for statement in function.body:
        yield from changeable(statement)


def compiled(function: ast.FunctionDef, name: str, path: str) -> CodeType:
    """The code object of a function, compiled without the rest of its module."""
    parents = name.split(".")[:-1]
    function.decorator_list = []
    around = [ast.ClassDef(parent, [], [], [function], []) for parent in parents] or [function]
    code = compile(ast.fix_missing_locations(ast.Module(around, [])), path, "exec")
    for part in name.split("."):
        code = next(inner for inner in code.co_consts if isinstance(inner, CodeType) and inner.co_name == part)
    return code


def functions(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, str]]:
    for node in tree.body:
        for function in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(function, ast.FunctionDef) and not function.name.startswith("check"):
                prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
                yield function, prefix + function.name


def changeable(node: ast.AST) -> Iterator[Any]:
    """`node` and its descendants, except those whose changes no test needs to detect."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if isinstance(node, UNTOUCHED) or is_text or (isinstance(node, ast.keyword) and node.arg == "strict"):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, PARTS):
            yield from changeable(child)


def num_changes(node: ast.AST) -> int:
    match node:
        case ast.Compare(ops=ops):
            return sum(type(op) in COMPARISONS for op in ops)
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in OPERATORS:
            return 1 + isinstance(node, ast.AugAssign)
        case ast.BoolOp() | ast.Continue() | ast.AugAssign():
            return 1
        case ast.UnaryOp(op=ast.Not()):
            return 1
        case ast.Constant(value=value):
            return int(type(value) in (int, float, bool))
        case ast.Name(id=name):
            return int(name in TWINS)
        case ast.Expr(value=ast.Call()) | ast.Delete():
            return 1
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return 1
        case ast.Return(value=None):
            return 1
    return 0


def apply(node: Any, which: int) -> str:
    """Apply the change in place; returns its description."""
    before = ast.unparse(node)
    match node:
        case ast.Compare():
            index = [i for i, op in enumerate(node.ops) if type(op) in COMPARISONS][which]
            node.ops[index] = COMPARISONS[type(node.ops[index])]()
        case ast.BinOp() | ast.AugAssign() if which == 0 and type(node.op) in OPERATORS:
            node.op = OPERATORS[type(node.op)]()
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.UnaryOp():
            return replace_node(node, ast.Call(ast.Name("bool", ast.Load()), [node.operand], []), before)
        case ast.Constant():
            node.value = not node.value if isinstance(node.value, bool) else node.value + 1
        case ast.Name():
            node.id = TWINS[node.id]
        case _:
            replace_node(node, ast.Pass(), before)
            return f"{before} → left out"
    return f"{before} → {ast.unparse(node)}"


def replace_node(node: Any, other: Any, before: str) -> str:
    """Replace `node` by `other` in place; returns a description of the change."""
    place = {name: getattr(node, name) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")}
    node.__class__ = type(other)
    node.__dict__.clear()
    node.__dict__.update({**other.__dict__, **place})
    return f"{before} → {ast.unparse(node)}"


def function_named(module: ModuleType, name: str) -> FunctionType:
    found: Any = module
    for part in name.split("."):
        found = vars(found)[part]
    return found.fget if isinstance(found, property) else found

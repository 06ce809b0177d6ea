"""Enums of a Python file and the values of their members, and predicates over them. Read with `ast`, never imported."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

BASES = ("Enum", "IntEnum", "StrEnum", "Flag", "IntFlag")
Values = dict[str, str | None]
"""Members in order, and their values as text; None where the file alone does not say."""


@dataclass(frozen=True)
class EnumChange:
    """One enum, from the pristine file to the installed one. moved: (member, was, now); kept: members that stayed."""

    name: str
    moved: tuple[tuple[str, str, str], ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    kept: int


def enums(source: str) -> dict[str, Values]:
    """Enum classes at the top of a file. {} where it cannot be parsed."""
    return {node.name: _members(node) for node in _classes(source) if _base(node)}


def compare(was: Mapping[str, Values], now: Mapping[str, Values]) -> list[EnumChange]:
    """Enums of both, whether or not something changed. A value that is not known is not called moved."""
    found = []
    for name, after in now.items():
        before = was.get(name)
        if before is None:
            continue
        both = [(member, before[member], value) for member, value in after.items() if member in before]
        moved = tuple((m, old, new) for m, old, new in both if old is not None and new is not None and old != new)
        added = tuple(member for member in after if member not in before)
        removed = tuple(member for member in before if member not in after)
        found.append(EnumChange(name, moved, added, removed, len(both) - len(moved)))
    return found


def true_for(source: str, enum: str) -> dict[str, list[str]]:
    """For which members of an enum each of its predicates is true, where that can be read off the file.

    A predicate is a method of no arguments besides self that returns comparisons of self with members, other such
    predicates, and `and`, `or`, `not` of those. Others are left out.
    """
    for node in _classes(source):
        if node.name == enum:
            members = list(_members(node))
            methods = {
                inner.name: _returned(inner)
                for inner in node.body
                if isinstance(inner, ast.FunctionDef) and len(inner.args.args) == 1 and not inner.decorator_list
            }
            found = {}
            for name, body in methods.items():
                if body is not None:
                    answers = {member: _ask(body, member, enum, methods, 0) for member in members}
                    if None not in answers.values():
                        found[name] = [member for member, answer in answers.items() if answer]
            return found
    return {}


def _classes(source: str) -> list[ast.ClassDef]:
    try:
        return [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _base(node: ast.ClassDef) -> str | None:
    for base in node.bases:
        name = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
        if name in BASES:
            return str(name)
    return None


def _members(node: ast.ClassDef) -> Values:
    """auto() is one more than the highest so far, in a flag the next bit, in a StrEnum the name (Python 3.11 on)."""
    base, found = _base(node), Values()
    highest: int | None = 0
    for inner in node.body:
        if isinstance(inner, ast.Assign) and len(inner.targets) == 1:
            target, value = inner.targets[0], inner.value
        elif isinstance(inner, ast.AnnAssign) and inner.value is not None:
            target, value = inner.target, inner.value
        else:
            continue
        if not isinstance(target, ast.Name) or target.id.startswith("_"):
            continue
        known = _value(value, highest, base, target.id, found)
        found[target.id] = None if known is None else str(known)
        if not isinstance(known, int):
            highest = None  # what comes after it cannot be counted
        elif highest is not None:
            highest = known if len(found) == 1 else max(highest, known)
    return found


def _value(node: ast.expr, highest: int | None, base: str | None, name: str, found: Values) -> object:
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called != "auto":
            return None
        if base == "StrEnum":
            return name.lower()
        if highest is None:
            return None
        return highest + 1 if base not in ("Flag", "IntFlag") else 1 << highest.bit_length()
    if isinstance(node, ast.Name) and found.get(node.id) is not None:
        text = str(found[node.id])
        return int(text) if text.lstrip("-").isdigit() else text
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, int | str | float | tuple) else None


def _returned(function: ast.FunctionDef) -> ast.expr | None:
    body = [node for node in function.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
    return body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None


def _ask(
    node: ast.expr | None, member: str, enum: str, methods: Mapping[str, ast.expr | None], depth: int
) -> bool | None:
    """Whether it is true for `self` = member; None where the file alone does not say."""
    if node is None or depth > 20:
        return None
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return node.value
    if isinstance(node, ast.BoolOp):
        answers = [_ask(value, member, enum, methods, depth + 1) for value in node.values]
        if None in answers:
            return None
        return all(answers) if isinstance(node.op, ast.And) else any(answers)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        answer = _ask(node.operand, member, enum, methods, depth + 1)
        return None if answer is None else not answer
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and not node.args
        and _is_self(node.func.value)
    ):
        return _ask(methods.get(node.func.attr), member, enum, methods, depth + 1)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and _is_self(node.left):
        return _compared(node.ops[0], node.comparators[0], member, enum)
    return None


def _compared(how: ast.cmpop, with_: ast.expr, member: str, enum: str) -> bool | None:
    if isinstance(how, ast.Eq | ast.Is | ast.NotEq | ast.IsNot):
        name = _member(with_, enum)
        same = None if name is None else name == member
        return same if same is None or isinstance(how, ast.Eq | ast.Is) else not same
    if isinstance(how, ast.In | ast.NotIn) and isinstance(with_, ast.Tuple | ast.List | ast.Set):
        names = [_member(item, enum) for item in with_.elts]
        if None in names:
            return None
        return (member in names) is isinstance(how, ast.In)
    return None


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _member(node: ast.expr, enum: str) -> str | None:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in (enum, "self", "cls"):
        return node.attr
    return None

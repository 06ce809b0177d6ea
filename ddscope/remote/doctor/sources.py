"""Two versions of a Python file compared: which functions changed, as text and by meaning. Parsed, never imported."""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass
from typing import Literal

Change = Literal["changed", "added", "removed"]
TOP = "<module>"


@dataclass(frozen=True)
class FunctionChange:
    """A function or class body that differs. name: qualified, `SpeculativeAlgorithm.is_dflash`; lines: unified diff."""

    name: str
    change: Change
    lines: tuple[str, ...]


def diff_functions(was: str, now: str) -> list[FunctionChange] | None:
    """What changed from `was` to `now` by function, in the order of `now`; comments and layout alone are no change.

    Statements of a class or module outside its functions count under the name of the class, or `<module>`. None where
    one of the two cannot be parsed.
    """
    before, after = _parts(was), _parts(now)
    if before is None or after is None:
        return None
    changes = []
    for name in [*after, *(name for name in before if name not in after)]:
        old, new = before.get(name), after.get(name)
        if old is None and new is not None:
            changes.append(FunctionChange(name, "added", _unified([], new.lines, new.first)))
        elif new is None and old is not None:
            changes.append(FunctionChange(name, "removed", _unified(old.lines, [], old.first)))
        elif old is not None and new is not None and old.meaning != new.meaning:
            changes.append(FunctionChange(name, "changed", _unified(old.lines, new.lines, new.first)))
    return changes


def unified(was: str, now: str, before: str, after: str, context: int = 3) -> list[str]:
    """A unified diff as lines without line ends."""
    return list(difflib.unified_diff(was.splitlines(), now.splitlines(), before, after, lineterm="", n=context))


@dataclass
class _Part:
    meaning: str
    lines: list[str]
    first: int


def _parts(source: str) -> dict[str, _Part] | None:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    lines = source.splitlines()
    parts: dict[str, _Part] = {}

    def take(body: list[ast.stmt], owner: str) -> None:
        rest: list[ast.stmt] = []
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{owner}.{node.name}" if owner else node.name
                while name in parts:  # overloads and conditional definitions share a name
                    name += "'"
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                parts[name] = _Part(_meaning([node]), lines[first - 1 : node.end_lineno], first)
            elif isinstance(node, ast.ClassDef):
                name = f"{owner}.{node.name}" if owner else node.name
                bare = ast.ClassDef(node.name, node.bases, node.keywords, [], node.decorator_list)
                rest.append(bare)
                bare.lineno, bare.end_lineno = node.lineno, node.lineno
                take(node.body, name)
            else:
                rest.append(node)
        if rest:
            text = [line for node in rest for line in lines[node.lineno - 1 : node.end_lineno]]
            parts[owner or TOP] = _Part(_meaning(rest), text, rest[0].lineno)

    try:
        take(tree.body, "")
    except RecursionError:
        return None
    return parts


def _meaning(nodes: list[ast.stmt]) -> str:
    return "\n".join(ast.dump(_without_docstring(node)) for node in nodes)


def _without_docstring(node: ast.stmt) -> ast.stmt:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and len(node.body) > 1 and _is_text(node.body[0]):
        kind = type(node)
        fields = {name: value for name, value in ast.iter_fields(node) if name != "body"}
        return kind(body=node.body[1:], **fields)
    return ast.Pass() if _is_text(node) else node


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _unified(was: list[str], now: list[str], first: int) -> tuple[str, ...]:
    found = list(difflib.unified_diff(was, now, lineterm="", n=2))[2:]
    return (f"@ line {first}", *(line for line in found if not line.startswith("@@")))

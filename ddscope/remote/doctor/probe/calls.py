"""Where predicates of the algorithms are asked (`spec_algorithm.is_dflash()`): `ast` on the installed files."""

from __future__ import annotations

import ast
import os
import re
from typing import Any

from ddscope.remote.doctor.probe.commands import read

CLASSES = ("SpeculativeAlgorithm", "CustomSpecAlgo")
SITES = 4000


def predicates(sources: list[str]) -> list[str]:
    """Names of the methods of the algorithm classes that answer yes or no."""
    bodies = [inner for source in sources for node in _classes(source) for inner in node.body]
    names = [inner.name for inner in bodies if isinstance(inner, ast.FunctionDef)]
    return [name for name in dict.fromkeys(names) if re.match(r"(is|has|supports|needs?|carries|uses)_", name)]


def sites(root: str, package: str, names: list[str]) -> list[dict[str, Any]]:
    """[{predicate, file, line, function, code}]: calls of `.NAME()` in the package, tests left out.

    file is relative to root.
    """
    if not names:
        return []
    any_name = re.compile(rb"\.(%s)\b" % "|".join(re.escape(name) for name in names).encode())
    found: list[dict[str, Any]] = []
    for folder, folders, files in os.walk(os.path.join(root, package)):
        folders[:] = sorted(name for name in folders if name not in ("__pycache__", "test", "tests"))
        for name in sorted(files):
            if not name.endswith(".py") or name.startswith("test_"):
                continue
            data = read(os.path.join(folder, name), 4 << 20)
            if data is None or not any_name.search(data):
                continue
            path = os.path.relpath(os.path.join(folder, name), root)
            found += _in_file(data, path, frozenset(names))
            if len(found) >= SITES:
                return found[:SITES]
    return found


def _in_file(data: bytes, path: str, names: frozenset[str]) -> list[dict[str, Any]]:
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError):
        return []
    lines = data.decode("utf-8", "replace").splitlines()
    found: list[dict[str, Any]] = []

    def visit(node: ast.AST, where: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = where
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inner = where + "." + child.name if where else child.name
            elif isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute) and child.func.attr in names:
                # The name stands where the attribute ends; a chain over several lines begins elsewhere.
                line = getattr(child.func, "end_lineno", None) or child.lineno
                code = lines[line - 1].strip()[:160] if line <= len(lines) else ""
                found.append(
                    {"predicate": child.func.attr, "file": path, "line": line, "function": where, "code": code}
                )
            visit(child, inner)

    try:
        visit(tree, "")
    except RecursionError:
        return []
    return found


def _classes(source: str) -> list[ast.ClassDef]:
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError):
        return []
    return [node for node in body if isinstance(node, ast.ClassDef) and node.name in CLASSES]

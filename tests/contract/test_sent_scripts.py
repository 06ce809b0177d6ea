"""What is sent to a host runs there: the standard library alone, an old grammar, in the order in which it is sent."""

from __future__ import annotations

import ast
import sys
from importlib import resources

import pytest

from ddscope.remote.bundle import script
from ddscope.remote.doctor.collected import SCRIPT as DOCTOR
from ddscope.remote.hooks.environment import SCRIPT as HOOKS

MODULES = sorted({*DOCTOR, *HOOKS})
OLDEST = (3, 8)


def source(name: str) -> str:
    package, _, module = name.rpartition(".")
    return resources.files(package).joinpath(f"{module}.py").read_text("utf-8")


def imports(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_is_sent_parses_in_an_old_python(name: str) -> None:
    ast.parse(source(name), feature_version=OLDEST)
    assert "from __future__ import annotations" in source(name)


@pytest.mark.parametrize("modules", [DOCTOR, HOOKS], ids=["doctor", "hooks"])
def test_modules_import_the_standard_library_and_what_was_sent_before(modules: tuple[str, ...]) -> None:
    for place, name in enumerate(modules):
        for wanted in imports(ast.parse(source(name))):
            if wanted.split(".")[0] in sys.stdlib_module_names or wanted.startswith("__future__"):
                continue
            assert wanted in modules[:place] or wanted.rpartition(".")[0] in modules[:place], (name, wanted)


def test_a_script_is_ascii_and_holds_whatever_argument() -> None:
    sent = script(DOCTOR, "main", {"unit": "a'b\"c\\\n\u2028é\udcff"})
    assert sent.isascii()
    compile(sent, "sent", "exec")

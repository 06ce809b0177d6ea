"""The hooks in a server's process: importing the plug-in, or the taps, pulls in nothing third-party.

The contract in pyproject.toml allows taps to import torch and the server; that they do so only inside functions is
shown here, in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

FOREIGN = """
import sys
{statement}
roots = {{name.partition(".")[0] for name in sys.modules}}
print(sorted(roots - set(sys.stdlib_module_names) - {{"ddscope_hooks", "__main__"}} - before))
"""


def foreign(statement: str, **environ: str) -> str:
    """Modules outside of the standard library that are loaded by the statement, beyond those of an idle start."""
    code = "import sys\nbefore = {name.partition('.')[0] for name in sys.modules}\n" + FOREIGN.format(
        statement=statement
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**environ})
    return run.stdout.strip()


@pytest.mark.parametrize(
    "statement",
    [
        "import ddscope_hooks.plugin",
        "from ddscope_hooks import plugin; plugin.register()",
    ],
)
def test_the_plugin_imports_nothing_third_party(statement: str) -> None:
    assert foreign(statement) == "[]"


def test_asked_for_but_outside_of_a_scheduler_it_imports_nothing_third_party() -> None:
    assert foreign("from ddscope_hooks import plugin; plugin.register()", DDSCOPE="unix:/tmp/never/s") == "[]"


def test_without_ddscope_not_even_the_emitter_is_imported() -> None:
    code = (
        "import sys\nfrom ddscope_hooks import plugin; plugin.register()\n"
        "print(sorted(name for name in sys.modules if name.startswith('ddscope_hooks')))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={})
    assert run.stdout.strip() == "['ddscope_hooks', 'ddscope_hooks.config', 'ddscope_hooks.plugin']"


def test_taps_import_neither_torch_nor_the_server() -> None:
    """orjson is the encoder's, where the environment has it."""
    assert foreign("from ddscope_hooks.taps import registry, setup; registry.families()") in ("[]", "['orjson']")

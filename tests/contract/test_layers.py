"""The layers at run time: what a fresh interpreter has loaded after importing one of them, and what start-up costs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "triton", "numpy", "safetensors", "tokenizers", "gguf", "transformers", "sglang")
SCREEN = ("textual", "rich")


def loaded_by(statement: str) -> set[str]:
    code = f"import sys, json\n{statement}\nprint(json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return set(json.loads(out.splitlines()[-1]))


@pytest.mark.parametrize(
    "module",
    [
        "ddscope.model",
        "ddscope.trace",
        "ddscope.sources",
        "ddscope.remote",
        "ddscope.session",
        "ddscope.diagnose",
        "ddscope.cli",
        "ddscope.cli.parser",
    ],
)
def test_a_layer_below_the_screen_loads_neither_screen_nor_torch(module: str) -> None:
    assert not loaded_by(f"import {module}") & {*HEAVY, *SCREEN}


def test_the_screen_loads_no_torch() -> None:
    assert not loaded_by("import ddscope.tui.app") & set(HEAVY)


def test_the_hooks_load_the_standard_library_only() -> None:
    loaded = loaded_by("import ddscope_hooks, ddscope_hooks.emit")
    bare = loaded_by("pass")
    foreign = {name for name in loaded - bare if name not in sys.stdlib_module_names and not name.startswith("_")}
    assert foreign <= {"ddscope_hooks", "orjson"}


def test_the_kernels_load_nothing_of_the_viewer() -> None:
    loaded = loaded_by("import ddscope_kernels")
    assert "torch" in loaded
    assert not loaded & {"ddscope", "ddscope_hooks", "msgspec", *SCREEN}


def test_the_engine_loads_nothing_of_the_viewer() -> None:
    viewer = tuple(f"ddscope.{layer}" for layer in ("trace", "sources", "session", "diagnose", "tui", "cli"))
    code = f"import ddscope.engine.server, sys; assert not [m for m in sys.modules if m.startswith({viewer!r})]"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_replay_opens_where_torch_cannot_be_imported(tmp_path) -> None:
    """The viewer alone: torch and numpy are made unimportable, and a trace still opens, index and findings included."""
    blocker = "\n".join(
        [
            "import sys",
            "class No:",
            "    def find_spec(self, name, path=None, target=None):",
            f"        if name.split('.')[0] in {HEAVY!r}: raise ImportError(name + ' is not installed')",
            "sys.meta_path.insert(0, No())",
            "from ddscope.cli import main",
            "from ddscope.cli.replay import sample_trace",
            "import ddscope.tui.app",
            "sys.exit(main(['findings', str(sample_trace())]) or main(['trace', 'verify', str(sample_trace())]))",
        ]
    )
    done = subprocess.run([sys.executable, "-c", blocker], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr

"""What is sent to a host: standard library only, each other only, and nothing newer than Python 3.8."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import ddscope.remote.there
from ddscope.remote.agent import MODULES, PACKAGE, payload, starter

FILES = sorted(Path(ddscope.remote.there.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_module_for_hosts_needs_nothing_that_is_not_there(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names = [node.module or ""]
        for name in names:
            assert name.startswith(PACKAGE) or name.split(".")[0] in sys.stdlib_module_names, name
        assert not isinstance(node, ast.Match | ast.TryStar), "newer than Python 3.8"
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("removeprefix", "removesuffix", "pairwise", "bit_count"), node.attr


def test_every_module_is_sent() -> None:
    length, text = payload({})[:12], payload({})[12:]
    assert int(length) == len(text)
    modules, options = json.loads(text)
    sent = {name for name, _ in modules}
    assert {f"{PACKAGE}.{name}" if name else PACKAGE for name in MODULES} == sent and options == {}
    assert {path.stem for path in FILES} - {"__init__", "follow"} == {name for name in MODULES if name}


def test_the_agent_runs_in_a_bare_python_and_ends_with_its_input() -> None:
    """-I -S: no site-packages, no folder of ours; what it needs came over standard input."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", starter()],
        input=payload({"pid": 1 << 29, "probe": False}),
        capture_output=True,
        timeout=30,
        check=False,
    )
    told = json.loads(done.stdout.splitlines()[0])
    assert done.returncode == 0 and done.stderr == b""
    assert told["kind"] == "host" and told["problems"] == [f"there is no process {1 << 29}"]

"""The doctor on an environment with a real SGLang (`make setup-sglang`)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ddscope.remote import Host
from ddscope.remote.doctor.collected import Collected, collect
from ddscope.remote.doctor.enums import enums, true_for

PYTHON = Path(__file__).parents[3] / ".venv-sglang/bin/python"
pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-sglang: make setup-sglang"),
]
SPEC = "sglang/srt/speculative/spec_info.py"
ASK = """
import json
from sglang.srt.speculative.spec_info import SpecInputType, SpeculativeAlgorithm as A
names = [name for name in vars(A) if name.startswith(("is_", "supports_", "has_", "carries_"))]
print(json.dumps({
    "values": {E.__name__: {name: str(one.value) for name, one in E.__members__.items()} for E in (A, SpecInputType)},
    "true": {name: [one.name for one in A if getattr(one, name)()] for name in names},
}))
"""


@pytest.fixture(scope="module")
def found() -> Collected:
    with Host("localhost") as host:
        return collect(host, str(PYTHON), {"load": False})


def test_an_installed_sglang_is_as_its_wheel(found: Collected) -> None:
    skew = found.skew_of("sglang")
    assert skew is not None and skew.checked > 3000 and skew.differ == []


def test_values_and_predicates_read_off_the_file_are_those_of_the_running_code(found: Collected) -> None:
    content = found.content("sglang", SPEC)
    text = content.text() if content is not None else None
    assert text is not None
    done = subprocess.run([str(PYTHON), "-B", "-c", ASK], capture_output=True, timeout=300, check=True)
    real = json.loads(done.stdout.splitlines()[-1])
    assert {name: enums(text)[name] for name in real["values"]} == real["values"]
    read = true_for(text, "SpeculativeAlgorithm")
    both = [name for name in read if name in real["true"]]
    assert len(both) > 10 and {name: read[name] for name in both} == {name: real["true"][name] for name in both}


def test_every_gate_on_dflash_is_found(found: Collected) -> None:
    """Against a plain search: what `ast` finds is every line that calls it, and none in a comment or a string."""
    skew = found.skew_of("sglang")
    assert skew is not None
    root = Path(skew.root)
    lines = set()
    for path in (root / "sglang").rglob("*.py"):
        name = str(path.relative_to(root))
        if {"test", "tests"} & set(name.split("/")) or path.name.startswith("test_"):
            continue
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if ".is_dflash()" in line.partition("#")[0]:
                lines.add((name, number))
    sites = {(site.file, site.line) for site in found.calls if site.predicate == "is_dflash"}
    assert sites == lines and len(sites) >= 8

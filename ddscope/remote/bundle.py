"""Modules of ours as one script for another machine's Python: read from standard input, nothing on its disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

_LOADER = """\
import json, sys, types
def _load(sources):
    for name, source in sources:
        parts = name.split(".")
        for n in range(1, len(parts)):
            parent = ".".join(parts[:n])
            if parent not in sys.modules:
                sys.modules[parent] = types.ModuleType(parent)
                sys.modules[parent].__path__ = []
        module = types.ModuleType(name)
        sys.modules[name] = module
        exec(compile(source, name, "exec"), module.__dict__)
        setattr(sys.modules[".".join(parts[:-1])], parts[-1], module)
"""


def script(modules: Sequence[str], call: str, argument: Mapping[str, Any]) -> bytes:
    """A script that makes modules of ours importable, in this order, and calls one function of the last.

    modules: by their whole names; they may import each other and the standard library. argument: as JSON.
    """
    sources = [(name, _source(name)) for name in modules]
    # JSON is ASCII here, so the script does not depend on the other side's locale; repr makes it a literal of Python.
    packed, told = repr(json.dumps(sources)), repr(json.dumps(dict(argument)))
    run = f"sys.modules[{modules[-1]!r}].{call}(json.loads({told}))"
    return f"{_LOADER}_load(json.loads({packed}))\n{run}\n".encode("ascii")


def _source(name: str) -> str:
    package, _, module = name.rpartition(".")
    return resources.files(package).joinpath(f"{module}.py").read_text("utf-8")

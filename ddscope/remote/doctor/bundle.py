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


def script(package: str, modules: Sequence[str], call: str, argument: Mapping[str, Any]) -> bytes:
    """A script that makes `modules` of `package` importable, in this order, and calls one function of the last."""
    folder = resources.files(package)
    sources = [(f"{package}.{name}", folder.joinpath(f"{name}.py").read_text("utf-8")) for name in modules]
    # JSON is ASCII here, so the script does not depend on the other side's locale; repr makes it a literal of Python.
    packed, told = repr(json.dumps(sources)), repr(json.dumps(dict(argument)))
    run = f"sys.modules[{package + '.' + modules[-1]!r}].{call}(json.loads({told}))"
    return f"{_LOADER}_load(json.loads({packed}))\n{run}\n".encode("ascii")


def doctor_script(plan: Mapping[str, Any]) -> bytes:
    """The doctor's script with its plan (`probe.main.collect` says what a plan is)."""
    order = ("secret", "commands", "machine", "packages", "contents", "calls", "loading", "process", "units", "main")
    return script("ddscope.remote.doctor.probe", order, "main", plan)

"""Libraries that do not load: each import tried in a child process with a timeout, and who needs what does not load.

A parent of the children imports torch once; each package is then imported in a fork of it, so that a crash or a hang
of one is seen as such and touches nothing else. No byte code is written.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from importlib import metadata
from typing import Any

from ddscope.remote.doctor.probe.commands import read
from ddscope.remote.doctor.probe.packages import normal

TRIED = (
    ("torch", "torch"),
    ("torchcodec", "torchcodec"),
    ("torchvision", "torchvision"),
    ("torchaudio", "torchaudio"),
    ("triton", "triton"),
    ("sglang-kernel", "sgl_kernel"),
    ("sgl-kernel", "sgl_kernel"),
    ("flashinfer-python", "flashinfer"),
    ("sgl-deep-gemm", "deep_gemm"),
    ("flash-attn", "flash_attn"),
    ("flash-attn-4", "flash_attn.cute"),
    ("sgl-flash-mla", "flash_mla"),
    ("xgrammar", "xgrammar"),
    ("vllm", "vllm._C"),
    ("av", "av"),
    ("soundfile", "soundfile"),
    ("nixl", "nixl"),
    ("mooncake-transfer-engine", "mooncake.engine"),
    ("numba", "numba"),
    ("cuda-bindings", "cuda.bindings.driver"),
)
"""(distribution, what is imported of it): those that bring compiled code of their own."""

_CHILD = r"""
import json, os, select, signal, sys, time, traceback
sys.dont_write_bytecode = True
plan = json.loads(sys.argv[1])
told = os.dup(1)
os.dup2(2, 1)
first = {}
def say(row):
    os.write(told, (json.dumps(row) + "\n").encode())
def arch():
    import torch
    flags = torch._C._cuda_getArchFlags() if hasattr(torch._C, "_cuda_getArchFlags") else None
    return {"arch_list": flags.split() if flags else [], "abi": bool(torch.compiled_with_cxx11_abi())}
def attempt(name):
    begun = time.monotonic()
    try:
        __import__(name)
        row = {"module": name, "loads": True}
        if name == "torch":
            try:
                row.update(arch())
            except Exception:
                pass
    except BaseException:
        row = {"module": name, "loads": False, "error": traceback.format_exc()[-16000:]}
    row["s"] = round(time.monotonic() - begun, 2)
    return row
for name, seconds in plan:
    if name == "torch":
        say(attempt(name))
        continue
    here, there = os.pipe()
    child = os.fork()
    if not child:
        os.close(here)
        data = json.dumps(attempt(name)).encode()
        while data:
            data = data[os.write(there, data):]
        os._exit(0)
    os.close(there)
    data, late, end = b"", False, time.monotonic() + seconds
    while True:
        ready, _, _ = select.select([here], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            late = True
            os.kill(child, signal.SIGKILL)
            break
        block = os.read(here, 65536)
        if not block:
            break
        data += block
    os.close(here)
    status = os.waitpid(child, 0)[1]
    if late:
        say({"module": name, "loads": False, "error": f"it did not end within {seconds:g} s"})
    elif os.WIFSIGNALED(status):
        say({"module": name, "loads": False, "error": f"it ended the process with signal {os.WTERMSIG(status)}"})
    elif data:
        say(json.loads(data.decode()))
    else:
        code = os.WEXITSTATUS(status)
        say({"module": name, "loads": False, "error": f"it ended the process with exit status {code}"})
"""


def load(dists: dict[str, metadata.Distribution], environment: dict[str, str], seconds: float) -> list[dict[str, Any]]:
    """[{package, module, loads, s, error?}] of the packages in TRIED that are installed.

    environment: the server's, for LD_LIBRARY_PATH and its kin. seconds: for one package.
    """
    plan = list(dict.fromkeys((module, seconds) for package, module in TRIED if package in dists))
    if not plan:
        return []
    owner = {module: package for package, module in reversed(TRIED) if package in dists}
    env = dict(os.environ, OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", PYTHONFAULTHANDLER="0")
    names = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES")
    env.update({name: environment[name] for name in names if name in environment})
    why, out = "", b""
    try:
        done = subprocess.run(
            [sys.executable, "-B", "-c", _CHILD, json.dumps(plan)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=seconds * 3 + 60, env=env, cwd="/", preexec_fn=_gently,
        )  # fmt: skip
        out = done.stdout
        if done.returncode:
            why = f"its process ended with status {done.returncode}"
    except subprocess.TimeoutExpired as late:
        out, why = late.stdout or b"", "it did not end in time"
    except OSError as error:
        why = f"it could not be tried: {error.strerror or error}"
    rows = {}
    for line in out.decode("utf-8", "replace").splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            rows[row["module"]] = dict(row, package=owner[row["module"]])
    for module, _ in plan:
        if module not in rows and why:
            # The first without an answer is the one that ended the process; what comes after it was not tried.
            rows[module] = {"module": module, "package": owner[module], "loads": False, "error": why}
            break
    return [rows[module] for module, _ in plan if module in rows]


def _gently() -> None:
    os.nice(10)


def needs(
    dists: dict[str, metadata.Distribution], package: str, module: str, server: tuple[str, str] | None
) -> dict[str, Any]:
    """Who needs a package: {required_by [distribution], imported_by [{file, line, how}]}.

    server: (root, package folder) whose files are searched. how: `at import` where it stands at the top of a module
    and nothing catches it, `guarded` in a try, `later` inside a function.
    """
    required = []
    for name, dist in dists.items():
        for line in dist.requires or []:
            bare = re.match(r"[A-Za-z0-9._-]+", line)
            if bare and normal(bare[0]) == package and "extra ==" not in line:
                required.append(name)
                break
    told: dict[str, Any] = {"required_by": sorted(set(required)), "imported_by": []}
    if server is not None:
        told["imported_by"] = _importers(server[0], server[1], module.split(".", 1)[0])
    return told


def _importers(root: str, package: str, module: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    word = re.compile(rb"^\s*(import|from)\s+" + re.escape(module).encode() + rb"\b", re.M)
    for folder, folders, files in os.walk(os.path.join(root, package)):
        folders[:] = sorted(name for name in folders if name not in ("__pycache__", "test", "tests"))
        for name in sorted(files):
            data = read(os.path.join(folder, name), 4 << 20) if name.endswith(".py") else None
            if data is None or not word.search(data):
                continue
            path = os.path.relpath(os.path.join(folder, name), root)
            try:
                found += [dict(row, file=path) for row in _imports(ast.parse(data), module)]
            except (SyntaxError, ValueError, RecursionError):
                continue
    return found[:100]


def _imports(tree: ast.AST, module: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def visit(node: ast.AST, how: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = how
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                inner = "later"
            elif isinstance(child, ast.Try) and how == "at import" and child.handlers:
                inner = "guarded"
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            names = []
            if isinstance(child, ast.Import):
                names = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom) and not child.level:
                names = [child.module or ""]
            if any(name.split(".", 1)[0] == module for name in names):
                found.append({"line": child.lineno, "how": how})  # type: ignore[attr-defined]
            visit(child, inner)

    visit(tree, "at import")
    return found

"""py-spy for a host that has none: this environment's own, into a private folder there, and away again at the end."""

from __future__ import annotations

import contextlib
import os
import platform
import posixpath
import shutil
import sys
from pathlib import Path

from ddscope.remote.host import Host, HostError

TRANSFER_S = 120.0
SCRIPT = """
d=$(mktemp -d "${TMPDIR:-/tmp}/ddscope-XXXXXX") && cat >"$d/py-spy" && chmod 700 "$d/py-spy" && echo "$d/py-spy"
"""


def local_py_spy() -> Path | None:
    """py-spy of this environment, else of PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("py-spy")
    return Path(found) if found else None


def push_py_spy(host: Host, machine: str) -> str:
    """Its path on the host. Raises HostError in one sentence where there is none to push, or it would not run there."""
    local = local_py_spy()
    if local is None:
        raise HostError(
            f"py-spy is neither on {host.name} nor here: `pip install py-spy` on either side gives the stacks."
        )
    if machine != platform.machine():
        raise HostError(
            f"py-spy is not on {host.name}, and this one is for {platform.machine()}, not {machine}: install it there."
        )
    if host.is_local:
        return str(local)
    done = host.run(["sh", "-c", SCRIPT], input=local.read_bytes(), timeout=TRANSFER_S)
    path = done.out.decode("utf-8", "replace").strip()
    if done.status or not path.endswith("/py-spy"):
        said = done.err.decode("utf-8", "replace").strip().splitlines()
        raise HostError(f"py-spy could not be put on {host.name}: {said[-1] if said else 'no reason was given'}.")
    return path


def remove(host: Host, path: str) -> None:
    """Take away what was pushed. A host that is gone keeps it."""
    if host.is_local or not host.connected:
        return
    with contextlib.suppress(HostError):
        host.run(["rm", "-rf", "--", posixpath.dirname(path)], timeout=5)

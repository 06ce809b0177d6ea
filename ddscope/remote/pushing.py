"""py-spy for a host that has none: this environment's own, into a private folder there. The agent takes it away."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

from ddscope.remote.host import Host, HostError

TRANSFER_S = 120.0
SCRIPT = """
trap '' HUP PIPE
d=$(mktemp -d "${TMPDIR:-/tmp}/ddscope-XXXXXX") || exit 1
cat >"$d/py-spy" && [ "$(wc -c <"$d/py-spy")" -eq "$1" ] && chmod 700 "$d/py-spy" && echo "$d/py-spy" && exit 0
rm -rf "$d"; exit 1
"""  # a connection that is lost looks like the end of the file; and nobody would know of it then


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
    data = local.read_bytes()
    done = host.run(["sh", "-c", SCRIPT, "sh", str(len(data))], input=data, timeout=TRANSFER_S)
    path = done.out.decode("utf-8", "replace").strip()
    if done.status or not path.endswith("/py-spy"):
        said = done.err.decode("utf-8", "replace").strip().splitlines()
        raise HostError(f"py-spy could not be put on {host.name}: {said[-1] if said else 'no reason was given'}.")
    return path

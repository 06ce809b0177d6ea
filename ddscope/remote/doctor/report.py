"""What was found and what it means as plain values, for `--json`: everything of the page, and whole diffs."""

from __future__ import annotations

from typing import Any

from ddscope.remote.doctor.examine import Examined
from ddscope.remote.doctor.facts import facts


def to_json(one: Examined) -> dict[str, Any]:
    """{host, server, items, facts, diffs}; facts as in docs/trace-format.md."""
    server = one.server
    return {
        "host": one.found.host,
        "server": {"python": server.python, "pid": server.pid, "unit": server.unit, "port": server.port},
        "machine": one.found.machine,
        "items": [item.to_json() for item in one.items],
        "facts": [{"name": name, "value": value} for name, value in facts(one)],
        "diffs": [
            {
                "package": package.skew.package,
                "path": file.row.path,
                "against": file.pristine.origin if file.pristine is not None else None,
                "diff": list(file.diff),
                "functions": None
                if file.functions is None
                else [{"name": f.name, "change": f.change, "lines": list(f.lines)} for f in file.functions],
            }
            for package in one.audit.packages
            for file in package.files
        ],
        "failed": one.found.failed,
    }

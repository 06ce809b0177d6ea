"""`python -m ddscope_hooks`: what the hooks would do in this environment, told before a server is started.

A whitelist in SGLANG_PLUGINS keeps SGLang from calling the plug-in at all; here is where that can be seen.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import metadata

from ddscope_hooks import __version__, config, plugin


def report(environ: Mapping[str, str]) -> tuple[list[str], bool]:
    """(lines, whether a server started with this environment would have hooks)."""
    asked, lines, good = config.read(environ), [f"ddscope_hooks {__version__}"], True
    if not config.wanted(environ):
        lines.append("DDSCOPE is not set: the hooks stay off.")
        good = False
    elif not asked.targets:
        good = False
    else:
        lines.append(
            f"DDSCOPE: {', '.join(asked.targets)}; control {'on' if asked.control else 'off'}; top-k {asked.topk}"
        )
        now = asked.sample
        lines.append(
            f"sampling: every={now.every}, rid={now.rid or 'any'}, max_bytes_per_s={now.max_bytes_per_s or 'any'}"
        )
        relay = "a process of their own" if asked.relay else "the scheduler's process"
        lines.append(f"redacted: {asked.redact or 'nothing'}; records are made in {relay}")
    lines += asked.problems
    found = [point for point in metadata.entry_points(group=plugin.GROUP) if point.name == plugin.NAME]
    if not found:
        lines.append(f"No entry point {plugin.NAME!r} in {plugin.GROUP}: install the package in this environment.")
        good = False
    allowed = {name.strip() for name in environ.get("SGLANG_PLUGINS", "").split(",") if name.strip()}
    if allowed and plugin.NAME not in allowed:
        lines.append(
            f"SGLANG_PLUGINS allows only {', '.join(sorted(allowed))}: SGLang skips the hooks. Add {plugin.NAME}."
        )
        good = False
    try:
        lines.append(f"sglang {metadata.version('sglang')}")
    except metadata.PackageNotFoundError:
        lines.append("sglang is not installed in this environment.")
        good = False
    return lines, good


def main() -> int:
    """0 when a server would have hooks."""
    lines, good = report(os.environ)
    print("\n".join(lines))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""A command that ends with its standard input: what is run on a host must not outlive who reads it."""

from __future__ import annotations

from collections.abc import Sequence

# The whole process group, for a shell's own children; on a host it is that of the ssh session.
_SCRIPT = """exec 3<&0
"$@" </dev/null & p=$!
{ cat >/dev/null; kill 0; } <&3 >/dev/null 2>&1 & g=$!
wait $p; s=$?
kill $g 2>/dev/null
exit $s
"""


def guarded(argv: Sequence[str]) -> list[str]:
    """The command, to be started with a pipe as its standard input. Its exit status and output are the command's."""
    return ["sh", "-c", _SCRIPT, "sh", *argv]

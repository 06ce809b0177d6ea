"""The command line: parsing and exit codes. Each command is a module here; what it needs is imported when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ddscope.cli.errors import CommandError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0 fine, 1 problems found, 2 could not be done (one sentence on stderr)."""
    from ddscope.cli.parser import build_parser

    args = build_parser().parse_args(argv)
    try:
        return int(args.run(args))
    except CommandError as problem:
        return _say(str(problem))
    except BrokenPipeError:
        # The reader of a pipe went away (`| head`): not worth a word, but the interpreter must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    except OSError as problem:
        name = f" ({problem.filename})" if problem.filename else ""
        return _say(f"{problem.strerror or problem}{name}.")


def _say(sentence: str) -> int:
    from ddscope.cli.text import printable

    print(f"ddscope: {printable(sentence)}", file=sys.stderr)
    return 2

"""A picture of what `ddscope doctor …` prints: `python screenshots/command.py [--width N] NAME -- doctor --host A …`.

The hosts are real ones that are named on the command line, so `make screenshots` cannot make it by itself.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys

from make import RUN, write
from rich.console import Console
from rich.text import Text

from ddscope.cli.doctor import coloured


def main() -> None:
    """Run the command and draw what it wrote to standard output, below the line that started it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="of the picture")
    parser.add_argument("--width", type=int, default=120, help="columns")
    parser.add_argument("--lines", type=int, default=60, help="lines at most")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- and the arguments of ddscope")
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    done = subprocess.run([sys.executable, "-c", RUN, *command], capture_output=True, text=True, check=False)
    if done.returncode == 2:
        raise SystemExit(done.stderr.strip())
    lines = done.stdout.splitlines()
    more = len(lines) - args.lines
    text = "\n".join(lines[: args.lines] + ([f"… {more} more lines"] if more > 0 else []))
    console = Console(record=True, width=args.width, file=io.StringIO(), highlight=False)
    console.print(Text(f"$ ddscope {' '.join(command)}\n", style="bold"))
    console.print(coloured(text), overflow="ellipsis", no_wrap=True)
    console.print()  # else the frame cuts the last line
    write(args.name, console.export_svg(title="ddscope doctor"), shutil.which("rsvg-convert"))


if __name__ == "__main__":
    main()

"""How long `ddscope replay` takes from the start of the process to the first tree on the screen, on a real terminal.

    python benchmarks/first_paint.py [--runs 7] [TRACE …]

A pseudo-terminal of 120 × 40 is what the process draws on; the clock stops when the title of the tree pane has been
written. Beside it, in turn: a Textual app that shows one word, which is the least that a screen costs here. Prints the
median wall time and the median CPU time of each, and their ratio to the bare app.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import resource
import select
import signal
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path
from statistics import median

SAMPLE = Path(__file__).parents[1] / "ddscope" / "data" / "sample.jsonl"
BARE = """
from textual.app import App
from textual.widgets import Static
class Bare(App):
    def compose(self):
        yield Static("Tree")
Bare().run()
"""
PATIENCE_S = 60.0


def paint(command: list[str], until: bytes) -> tuple[float, float]:
    """(wall, CPU) seconds from the start of `command` until it has written `until` to its terminal."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
        os.execv(command[0], command)
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    seen, took = b"", 0.0
    while until not in seen:
        if time.perf_counter() - began > PATIENCE_S or not select.select([fd], [], [], PATIENCE_S)[0]:
            raise SystemExit(f"{command} drew nothing within {PATIENCE_S:.0f} s")
        seen = seen[-len(until) :] + os.read(fd, 1 << 16)
    took = time.perf_counter() - began
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(fd)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, default=[SAMPLE])
    parser.add_argument("--runs", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.py"
        bare.write_text(BARE, encoding="utf-8")
        jobs = {"a bare Textual app": [sys.executable, str(bare)]}
        for trace in args.traces:
            jobs[f"replay of {trace.name}"] = [sys.executable, "-m", "ddscope", "replay", str(trace)]
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
        for run in range(args.runs + 1):
            for name, command in jobs.items():
                times = paint(command, b"Tree" if "bare" in name else "Tree · ".encode())
                if run:  # the first one fills the page cache
                    took[name].append(times)
    base = [median(column) for column in zip(*took["a bare Textual app"], strict=True)]
    print(f"{'':34} {'wall s':>7} {'CPU s':>7} {'× bare':>7}")
    for name, times in took.items():
        wall, cpu = (median(column) for column in zip(*times, strict=True))
        print(f"{name:34} {wall:7.2f} {cpu:7.2f} {wall / base[0]:7.2f}")


if __name__ == "__main__":
    main()

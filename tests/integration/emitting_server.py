"""A process that emits like a rank of a server, for tests: `python -m tests.integration.emitting_server SOCKET RANK`.

Obeys lines on its standard input, each answered by one line: `steps N`, `differ` (the next step is one token shorter
than other ranks'), `request RID`, `finish`, `fact NAME JSON`, `counters`. It leaves when its input ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ddscope_hooks.emit import Emitter

ROOT = Path(__file__).parents[2]


class Rank:
    """Emits whole trees on rank 0, counts on others; every rank takes the same decisions."""

    def __init__(self, socket: str, rank: int) -> None:
        self.rank = rank
        config = {"tp": rank, "tp_size": 2}
        engine = {"name": "sglang", "version": "0.5.23", "algorithm": "EAGLE3", "config": config}
        self.emitter = Emitter(
            f"engine/{rank}",
            {"engine": engine, "model": {"target": "t", "draft": "d"}, "host": "h", "boot_id": "b"},
            token_text=lambda ids: [f"w{i}" for i in ids],
            on_control=self.control,
            control=True,
        )
        self.rid, self.step, self.base, self.root, self.emitted = "", 0, 0, 3, 0
        self.shorter = False
        self.sampling: dict[str, Any] = {"every": 1, "rid": "", "max_bytes_per_s": 0, "control": True}
        self.fact("hooks.taps", [{"tap": "eagle", "live": True, "target": "x.eagle_sample"}])
        self.fact("hooks.sampling", self.sampling)
        self.path = self.emitter.listen(f"unix:{socket}")

    def control(self, message: dict[str, Any]) -> None:
        """Sampling is told back; anything else is refused."""
        if message["command"] == "sampling":
            self.sampling = self.sampling | message["args"]
            self.fact("hooks.sampling", self.sampling)
        else:
            self.fact("control.refused", {"command": message["command"], "why": "not in this test"})

    def fact(self, name: str, value: Any) -> None:
        """Tell one."""
        self.emitter.emit("fact", {"name": name, "value": value})

    def request(self, rid: str) -> None:
        """A request begins."""
        self.rid, self.step, self.base, self.root, self.emitted = rid, 0, 2, 3, 1
        if self.rank == 0:
            self.emitter.emit("request", {"rid": rid, "prompt_len": 2, "prompt_ids": [1, 2]})

    def steps(self, count: int) -> None:
        """Steps, as fast as may be, but never faster than the ring is emptied: what is lost then is a viewer's."""
        for _ in range(count):
            while self.emitter.counters.in_flight > 2000:
                time.sleep(0.001)
            ids = [5, 6, 7][: 1 + self.step % 3]
            if self.shorter:
                ids, self.shorter = ids[:-1] or [9, 9], False
            self._step(ids)

    def _step(self, ids: list[int]) -> None:
        fields: dict[str, Any] = {"rid": self.rid, "step": self.step, "emitted": ids}
        if self.rank == 0:
            fields |= {
                "base": self.base,
                "root": self.root,
                "tree": {"budget": 4, "tokens": [*ids[:-1], 9], "parents": list(range(len(ids)))},
                "path": list(range(len(ids))),
                "bonus": ids[-1],
                "time": {"verify": 900, "total": 1000},
            }
        self.emitter.emit("step", fields)
        self.step, self.base, self.root, self.emitted = (
            self.step + 1,
            self.base + len(ids),
            ids[-1],
            self.emitted + len(ids),
        )

    def finish(self) -> None:
        """The request ends."""
        if self.rank == 0:
            done = {"rid": self.rid, "reason": "length", "emitted": self.emitted, "steps": self.step}
            self.emitter.emit("finish", done)

    def obey(self, line: str) -> str:
        """One command."""
        word, _, rest = line.strip().partition(" ")
        match word:
            case "request":
                self.request(rest)
            case "steps":
                self.steps(int(rest))
            case "differ":
                self.shorter = True
            case "finish":
                self.finish()
            case "fact":
                name, _, value = rest.partition(" ")
                self.fact(name, json.loads(value))
            case "counters":
                return json.dumps(
                    {"emitted": self.emitter.counters.emitted, "in_flight": self.emitter.counters.in_flight}
                )
        return "ok"


def main() -> None:
    """Serve until standard input ends."""
    rank = Rank(sys.argv[1], int(sys.argv[2]))
    print(rank.path, flush=True)
    for line in sys.stdin:
        print(rank.obey(line), flush=True)
    rank.emitter.close()


class Server:
    """Such a process, from the test's side."""

    def __init__(self, socket: Path, rank: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.emitting_server", str(socket), str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        self.socket = Path(self.process.stdout.readline().strip())

    def tell(self, *lines: str) -> str:
        """Commands; the answer to the last."""
        answer = ""
        for line in lines:
            assert self.process.stdin is not None and self.process.stdout is not None
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline().strip()
            assert answer, f"the server ended at {line!r}"
        return answer

    def kill(self) -> None:
        """As the kernel does it when memory is short."""
        self.process.kill()
        self.process.wait()
        self._let_go()

    def end(self) -> None:
        """Orderly."""
        if self.process.poll() is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait(20)
        self._let_go()

    def _let_go(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()


if __name__ == "__main__":
    main()

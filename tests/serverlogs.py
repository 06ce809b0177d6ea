"""Logs of a server on paper, for tests of the rules that read them: lines of SGLang, systemd and the kernel, probes."""

from __future__ import annotations

from typing import Any

from ddscope.diagnose import Detector, Finding
from ddscope.model import Fact, Gap, Log, Probe, Record, Step, Tree
from tests.diagnosing import run

UNIT = "sglang.service"
SRC = f"journal/{UNIT}"
ARGS = (
    "server_args=ServerArgs(model_path='/m', speculative_algorithm='EAGLE', speculative_num_draft_tokens=4, tp_size=1)"
)
READY = "The server is fired up and ready to roll!"
TORCHCODEC = (
    "Traceback (most recent call last):",
    '  File "/opt/venv/lib/python3.12/site-packages/torchcodec/_core/ops.py", line 75, in load',
    "RuntimeError: Could not load libtorchcodec. Likely causes:",
    "          1. FFmpeg is not properly installed in your environment.",
    "[start of libtorchcodec loading traceback]",
    "FFmpeg version 8: OSError: {0}: cannot open shared object file: No such file or directory",
    "FFmpeg version 7: OSError: {0}: cannot open shared object file: No such file or directory",
    "[end of libtorchcodec loading traceback].",
)


class ServerLog:
    """Writes records in order; every line comes a second after the one before unless `after` says otherwise."""

    def __init__(self, pid: int | None = 4100, src: str = SRC) -> None:
        self.pid = pid
        self.src = src
        self.t = 1_790_000_000_000_000
        self.records: list[Record] = []
        self._seq: dict[str, int] = {}

    def add(self, kind: type[Record], src: str, after: float = 1.0, **fields: Any) -> ServerLog:
        self.t += int(after * 1e6)
        seq = self._seq.get(src, 0)
        self._seq[src] = seq + 1
        self.records.append(kind(src=src, seq=seq, t=self.t, mono=self.t, **fields))
        return self

    def say(self, *lines: str, after: float = 1.0, pid: int | None = None, stamp: bool = True) -> ServerLog:
        """Lines of the server, with its prefix unless they are parts of a traceback."""
        for line in lines:
            text = line if not stamp or line[:1] == " " else f"[2026-09-21 14:10:00] {line}"
            ident = "python3" if self.src.startswith("journal") else None
            self.add(Log, self.src, after, message=text, pid=self.pid if pid is None else pid, ident=ident)
        return self

    def raw(self, *lines: str, after: float = 0.001) -> ServerLog:
        return self.say(*lines, after=after, stamp=False)

    def systemd(self, text: str, after: float = 0.3) -> ServerLog:
        return self.add(Log, self.src, after, message=text, pid=1, ident="systemd")

    def kernel(self, text: str, after: float = 0.3) -> ServerLog:
        return self.add(Log, "journal/kernel", after, message=text, ident="kernel")

    def probe(self, rung: str, ok: bool, detail: str = "", ms: float = 1.0, after: float = 0.1) -> ServerLog:
        return self.add(Probe, "probe", after, rung=rung, ok=ok, detail=detail, ms=ms)

    def fact(self, name: str, value: Any, after: float = 0.1) -> ServerLog:
        return self.add(Fact, "doctor", after, name=name, value=value)

    def gap(self, reason: str = "rate_limited", count: int | None = 100, after: float = 20.0) -> ServerLog:
        seq = self._seq.get(self.src, 0) + (count or 1) - 1
        self._seq[self.src] = seq
        return self.add(Gap, self.src, after, of=self.src, count=count, reason=reason)

    def start(self, args: str = ARGS, pid: int | None = None) -> ServerLog:
        """From the arguments to the line that says that it is ready."""
        if pid is not None:
            self.pid = pid
        return self.say(args, "Load weight begin. avail mem=1 GB", "Load weight end. avail mem=1 GB", READY)

    def exit(self, how: str = "code=exited, status=1/FAILURE", after: float = 0.3) -> ServerLog:
        return self.systemd(f"{UNIT}: Main process exited, {how}", after)

    def prefill(self, new: int = 100, cached: int = 0, after: float = 1.0, running: int = 0) -> ServerLog:
        text = f"Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: {cached}, token usage: 0.01, "
        return self.say(text + f"#running-req: {running}, #queue-req: 0", after=after)

    def decode(
        self, length: float = 2.9, rate: float = 0.63, *, tokens: int = 600, running: int = 1, after: float = 0.5
    ) -> ServerLog:
        text = f"Decode batch, #running-req: {running}, #token: {tokens}, token usage: 0.00, accept len: {length:.2f}, "
        text += f"accept rate: {rate:.2f}, cuda graph: True, gen throughput (token/s): 190.00, #queue-req: 0"
        return self.say(text, after=after)

    def step(self, number: int = 0, after: float = 0.1) -> ServerLog:
        tree = Tree(budget=3, tokens=[1, 2, 3], parents=[0, 1, 2])
        return self.add(
            Step, "engine/0", after, rid="r0", step=number, algorithm="eagle", base=10, tree=tree, path=[0, 1]
        )

    def wait(self, seconds: float) -> ServerLog:
        """Time that passes, told by a line of another log."""
        return self.add(Log, "journal/kernel", seconds, message="tick", ident="kernel")

    def findings(self, detector: Detector | None = None) -> list[Finding]:
        return run(self.records, detector)

    def ids(self, info: bool = True) -> list[str]:
        return [finding.id for finding in self.findings() if info or finding.severity != "info"]

    def of(self, id: str) -> Finding:
        """The only finding of that id."""
        found = [finding for finding in self.findings() if finding.id == id]
        assert len(found) == 1, [(f.id, f.kind, f.title) for f in self.findings()]
        return found[0]


def torchcodec(library: str) -> list[str]:
    return [line.format(library) for line in TORCHCODEC]

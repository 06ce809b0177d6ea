"""Whatever a log holds: no parser raises, no rule raises, and memory stays bounded however long it goes on."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FunctionType, MethodType, ModuleType

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ddscope.diagnose import Diagnosis, vllm_log
from ddscope.diagnose.abi import classify
from ddscope.diagnose.journal import MAX_SERVICES, Journal
from ddscope.diagnose.kv_allocator import balance
from ddscope.diagnose.log_events import Line
from ddscope.diagnose.sglang_log import parse
from ddscope.diagnose.simulated import simulated
from ddscope.diagnose.system_log import read
from ddscope.model import Log, Record, Text
from ddscope.sources import SourceError
from ddscope.sources.lines import as_text
from ddscope.sources.recorded import Recorded, kind_of

PIECES = (
    "[2026-09-21 14:10:36 TP0 DP1] ", "[2026-09-21 14:10:36", "Decode batch", "Decode batch [7], ", "Prefill batch, ",
    "#running-req: 1, ", "accept len: 1.00, ", "accept rate: 0.00, ", "#new-seq: 1, #cached-token: 3, ", ": ", ", ",
    "'", '"', "server_args=ServerArgs(", "server_args={", "speculative_num_draft_tokens=4", ")", "]", "}", "\\", "\r",
    "\n", "\x1b[31m", "Load weight begin", "Load weight end", "Capture cuda graph begin", " 40% Completed | 2/5 ",
    "checkpoint shards", "The server is fired up and ready to roll!", "Scheduler hit an exception: ",
    "Traceback (most recent call last):", "  File x", "ImportError: ", "Could not load libtorchcodec",
    "FFmpeg version 8: OSError: libnvrtc.so.13: cannot open shared object file", "[start of libx loading",
    "[end of libx", "The above exception was the direct cause", "During handling of the above exception",
    "Ignore import error when loading a.b: ", "undefined symbol: ", "_ZN3c10", "cuGreen",
    "no kernel image is available", "an illegal memory access", "memory leak detected! ", "total=3, available=4, ",
    "self.max_total_num_tokens=9", "watchdog timeout (self.watchdog_timeout=3, self.soft=False)",
    "sigquit from a child", "crashed with exit code -9",
    "x.service: Main process exited, code=exited, status=1/FAILURE",
    "x.service: Scheduled restart job, restart counter is at 9.", "x.service: Start request repeated too quickly",
    "Stopping x.service...", "Started x.service", "Deactivated successfully", "NVRM: Xid (PCI:0): 31, pid=7, name=x",
    "Out of memory: Killed process 7 (x)", "Suppressed 9 messages from x.service", "SGLANG_SIMULATE_ACC_LEN=",
    "sglang version 0.5.9", '"GET /health HTTP/1.1" 200', "9999999999999999999999999999999999999999", "\x00",
    "\ufeff", "é", "⟂", "nan", "invalid eagle tree!!! check if the logprob has nan", "address already in use",
    "GLIBCXX_3.4.32' not found", "version `", "(EngineCore_DP0 pid=7) ", "INFO 08-04 20:51:08 [core.py:7] ",
    "(VllmWorker rank=7 pid=7) ERROR 08-21 08:26:21 [a.py:7] ", "EngineCore failed to start.", "non-default args: {",
    "Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 1.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs",
    "SpecDecoding metrics: Mean acceptance length: 1.00, ", "Avg Draft acceptance rate: 1.2.3%",
)  # fmt: skip
lines = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=80),
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=6).map("".join),
)
idents = st.sampled_from([None, "python3", "systemd", "kernel", "systemd-journald", "journalctl", ""])
sources = st.sampled_from(["journal/a.service", "journal/b.service", "log/x", "journal/kernel"])


@settings(max_examples=500, deadline=None)
@given(lines)
@example("Decode batch, " + ", ".join(f"a{n}: {n}" for n in range(5000)))
@example("server_args=ServerArgs(" + "[" * 30_000)
@example("server_args=ServerArgs(" + "a=1, " * 30_000)
@example("[" * 100_000)
@example("(A pid=1) INFO 08-04 20:51:08 [a.py:1] SpecDecoding metrics: " + "Avg Draft acceptance rate: 1" * 5000)
@example("(A pid=1) INFO 08-04 20:51:08 [a.py:1] non-default args: {" + "[" * 30_000)
@example("(A pid=1) " + "Mean acceptance length: 1.2.3 Waiting: " * 900)
@example("[2026-09-21 14:10:36" + " TP1" * 1000 + "] x")
@example("watchdog timeout" * 5000)
@example("Loading checkpoint shards " + "9%" * 50_000)
def test_a_line_is_taken_apart_whatever_it_is(text: str) -> None:
    assert isinstance(parse(text), Line)
    assert isinstance(vllm_log.parse(text), Line | None)
    classify(text)
    balance(text)
    simulated(text)
    for ident in ("systemd", "kernel", "systemd-journald", None):
        read(Log(src="journal/a", seq=0, t=0, mono=0, message=text, ident=ident), text)


def record(seq: int, src: str, text: Text | None, ident: str | None, pid: int | None) -> Log:
    return Log(src=src, seq=seq, t=seq * 250_000, mono=0, message=text, ident=ident, pid=pid)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            sources, st.one_of(lines, st.binary(max_size=30), st.none()), idents, st.sampled_from([None, 1, 7, 8])
        ),
        max_size=40,
    )
)
def test_no_rule_raises_on_any_log(told: list[tuple[str, str | bytes | None, str | None, int | None]]) -> None:
    diagnosis = Diagnosis()
    for seq, (src, text, ident, pid) in enumerate(told):
        message: Text | None = as_text(text) if isinstance(text, bytes) else text
        diagnosis.observe(record(seq, src, message, ident, pid), seq)
    findings = diagnosis.findings()
    assert all(finding.id != "diagnose.detector_failed" for finding in findings)
    assert findings == diagnosis.findings()
    for finding in findings:
        assert finding.evidence and finding.next and finding.title.endswith(".") and "\n" not in finding.title


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=300), st.lists(lines, max_size=5).map(lambda told: "\n".join(told).encode())))
@example(b'{"__CURSOR": "' + b"x" * 70_000)
@example(b'{"MESSAGE": ' + b"[" * 5000)
@example(b"__CURSOR=x\nMESSAGE\n\xff\xff\xff\xff\xff\xff\xff\x7f")
def test_any_file_is_read_or_refused_in_a_sentence(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.write_bytes(content)
        try:
            kind = kind_of(path)
        except SourceError as refused:
            assert str(refused).endswith(".") and "\n" not in str(refused).replace(str(path), "")
            return
        if kind != "trace":
            assert all(isinstance(one, Record) for one in Recorded().read(path, kind))


UNITS = 8
PIDS = 16


def reachable(root: object) -> int:
    """Objects that something keeps, itself included; code is not counted."""
    seen: dict[int, object] = {}
    todo = [root]
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | FunctionType | MethodType | re.Pattern):
            continue
        seen[id(one)] = one
        todo += gc.get_referents(one)
    return len(seen)


def kept(told: list[tuple[str, str | None]], diagnosis: Diagnosis, turns: range) -> int:
    """Objects that a diagnosis keeps after so many rounds over units and processes, with ever new numbers and names."""
    seq = turns[0] * len(told)
    for turn in turns:
        for text, ident in told:
            src = f"journal/unit{turn % UNITS}.service"
            diagnosis.observe(record(seq, src, text.replace("7", str(turn + 10)), ident, turn % PIDS), seq)
            seq += 1
    assert len(diagnosis.findings()) < 2000
    return reachable(diagnosis)


def test_units_of_a_whole_system_do_not_fill_the_memory() -> None:
    journal = Journal()
    for number in range(500):
        said = "vllm" if number in (3, 400) else "hello"
        journal.observe(record(number, f"journal/{number}.service", said, None, number))
    assert len(journal.services) <= MAX_SERVICES
    assert {service.src for service in journal.servers()} == {"journal/3.service", "journal/400.service"}


def test_memory_stays_bounded_however_long_a_log_is() -> None:
    server = (
        "Traceback (most recent call last):", "ImportError: No module named 'mod7'",
        "ImportError: undefined symbol: sym7",
        "server_args=ServerArgs(speculative_num_draft_tokens=4, name7=7)", "The server is fired up and ready to roll!",
        "Prefill batch, #new-seq: 1, #new-token: 7, #cached-token: 0, #running-req: 0",
        "Decode batch [7], #running-req: 1, #token: 7, accept len: 2.00, accept rate: 0.50",
        "[2026-09-21 14:10:36 TP1] Decode batch [7], #running-req: 1, #token: 7, accept len: 1.00, accept rate: 0.00",
        "Load weight begin", "Scheduler watchdog timeout (self.watchdog_timeout=7, self.soft=False)",
        "CUDA error: an illegal memory access was encountered at 7", "Received sigquit from a child process",
        "pool7 memory leak detected! total=7, available=3, evictable=1", "patch 7 could not install",
        "mat1 and mat2 shapes cannot be multiplied (7x57 and 75x7)", "check if the logprob has nan",
        "Ignore import error when loading a7: No module named 'b7'", "SGLANG_SIMULATE_ACC_LEN=7",
    )  # fmt: skip
    system = (
        ("unit7.service: Main process exited, code=exited, status=1/FAILURE", "systemd"),
        ("unit7.service: Scheduled restart job, restart counter is at 7.", "systemd"),
        ("NVRM: Xid (PCI:0): 31, pid=7, name=x", "kernel"),
        ("Out of memory: Killed process 7 (x)", "kernel"),
        ("Suppressed 7 messages from unit7.service", "systemd-journald"),
    )
    told: list[tuple[str, str | None]] = [*((text, None) for text in server), *system]
    diagnosis = Diagnosis()
    once = kept(told, diagnosis, range(1200))
    assert kept(told, diagnosis, range(1200, 2400)) < 1.02 * once, once

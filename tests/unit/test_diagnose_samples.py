"""Excerpts of journals: each yields the finding that is expected of it, first, and says nothing that it must not.

Lines of a sample that begin with `ddtrace:` stand for records of a trace, and are put into one here.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddscope.diagnose import Finding, diagnose_files, render_text
from ddscope.model import FORMAT, Engine, Header, Producer, Record, Request, Step, Target, Tree
from ddscope.trace import TraceWriter

SAMPLES = Path(__file__).parents[1] / "data" / "journal"
NAMES = sorted(path.name.removesuffix(".expect.json") for path in SAMPLES.glob("*.expect.json"))
SEVERITY = {"warn": "warning"}


def expected(name: str) -> dict[str, Any]:
    return json.loads((SAMPLES / f"{name}.expect.json").read_text("utf-8"))  # type: ignore[no-any-return]


def entries(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (SAMPLES / f"{name}.jsonl").read_text("utf-8").splitlines()]


def told(entry: dict[str, Any]) -> dict[str, Any] | None:
    """The record of a trace that an entry stands for."""
    message = entry["MESSAGE"]
    return json.loads(message.removeprefix("ddtrace: ")) if message.startswith("ddtrace: ") else None


def chain(count: int, first: int = 100) -> Tree:
    return Tree(budget=count, tokens=list(range(first, first + count)), parents=list(range(count)))


def steps_of(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The steps behind one line."""
    if record["ev"] == "accept":
        length = record["n"][0]
        tree = chain(3) if record["rank"] == 0 else None
        yield {
            "src": f"engine/{record['rank']}",
            "rid": "r0",
            "step": record["step"],
            "path": list(range(length)),
            "tree": tree,
        }
    elif record["ev"] == "commit":  # accept length 1.00
        for step, token in enumerate(record["ids"]):
            yield {
                "rid": record["rid"],
                "step": step,
                "path": [0],
                "emitted": [token],
                "bonus": token,
                "tree": chain(7),
            }
    elif record["ev"] == "commit_ngram":  # accept length 8.00
        loop = max(1, round(record["distinct4_ratio"] * record["window"]))
        tokens = [100 + at % loop for at in range(record["window"])]
        for step, at in enumerate(range(0, len(tokens), 8)):
            emitted = tokens[at : at + 8]
            tree = Tree(budget=7, tokens=emitted[:7], parents=list(range(7)))
            yield {"rid": record["rid"], "step": step, "path": list(range(8)), "emitted": emitted, "tree": tree}


def trace_of(name: str, path: Path) -> Path | None:
    """A trace with the records that the sample's lines stand for; None where there are none."""
    records: list[Record] = []
    seqs: dict[str, int] = {}

    def add(kind: type[Record], t: int, src: str = "engine/0", **fields: Any) -> None:
        if src not in seqs:
            seqs[src] = 1
            engine = Engine(name="sglang", version="0", algorithm="eagle", config={"tp": int(src[-1]), "tp_size": 2})
            records.append(
                Header(
                    src=src, seq=0, t=t, mono=t, format=FORMAT, version="1.0", min_reader="1.0", host="gpu-alpha",
                    producer=Producer("test", "1"), engine=engine,
                )
            )  # fmt: skip
        records.append(kind(src=src, seq=seqs[src], t=t, mono=t, **fields))
        seqs[src] += 1

    for entry in entries(name):
        record, t = told(entry), int(entry["__REALTIME_TIMESTAMP"])
        if record is None:
            continue
        if record["ev"] == "request":
            add(Request, t, rid=record["rid"], prompt_len=900, sampling=record["sampling"])
        for fields in steps_of(record):
            add(Step, t, target=Target(ids=[0]) if fields.get("emitted") == [0] else None, **fields)
    if not records:
        return None
    with_trace = path / f"{name}.trace.jsonl"
    writer = TraceWriter(with_trace)
    for written in records:
        writer.write(written)
    writer.close()
    return with_trace


def journal_of(name: str, path: Path, export: bool) -> Path:
    """The sample's journal without those lines, as JSON or in the export format."""
    kept = [entry for entry in entries(name) if told(entry) is None]
    file = path / f"{name}.journal"
    if export:
        file.write_bytes(b"".join(map(exported, kept)))
    else:
        file.write_text("".join(json.dumps(entry) + "\n" for entry in kept), "utf-8")
    return file


def exported(entry: dict[str, str]) -> bytes:
    out = b""
    for name, value in entry.items():
        data = value.encode()
        out += name.encode() + (b"\n" + struct.pack("<Q", len(data)) + data if b"  " in data else b"=" + data) + b"\n"
    return out + b"\n"


def findings(name: str, path: Path, export: bool = False) -> list[Finding]:
    files = [journal_of(name, path, export)]
    trace, said = trace_of(name, path), SAMPLES / f"{name}.stderr.txt"
    files += [file for file in (trace, said) if file is not None and file.exists()]
    return diagnose_files(files)


def test_there_are_samples() -> None:
    assert len(NAMES) == 12


@pytest.mark.parametrize("export", [False, True], ids=["json", "export"])
@pytest.mark.parametrize("name", NAMES)
def test_a_sample_yields_what_is_expected_of_it_and_no_fault_beside(name: str, export: bool, tmp_path: Path) -> None:
    expect = expected(name)
    found = findings(name, tmp_path, export)
    assert (found[0].id, found[0].severity) == (expect["finding"], SEVERITY.get(expect["severity"], expect["severity"]))
    beside = {finding.id for finding in found[1:] if finding.severity != "info"}
    assert beside <= set(expect["also_ok"]), beside


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_is_not_said_what_must_not_be_said_of_it(name: str, tmp_path: Path) -> None:
    alone = diagnose_files([SAMPLES / f"{name}.jsonl"])  # its lines taken as lines: less is known, nothing wrong said
    for found in (findings(name, tmp_path), alone):
        said = " ".join(render_text(found, 10_000).lower().split())
        for words in expected(name)["must_not_say"]:
            plain = re.sub(r"\s*\([^)]*\)", "", words).lower()
            assert not re.search(rf"\b{re.escape(plain)}\b", said), (words, said)


DETAILS = {
    "s01_torchcodec_noise_then_ready": ["torchcodec", "noise", "process 4100"],
    "s02_torchcodec_fatal_exit": [
        "libnvrtc.so.13",
        "cuda toolkit",
        "5 runs",
        "startup.crash_loop",
        "ruled out",
        "ffmpeg",
    ],
    "s04_low_accept_from_first_batch": ["pairing", "8 reports", "prefix cache"],
    "s06_nan_draft_bang_output": ["id 0 is committed by the target", "the drafter alone", "status 200"],
    "s07_simulated_acceptance": ["set to 1.", "sglang_simulate_acc_len=1", "accept.low_from_start"],
    "s08_tp_deadlock_health_ok": ["step 88", "5 min older", "tp0, tp1", "serve.alive_not_serving"],
    "s10_kv_leak_with_semaphore_noise": ["59 missing", "leak", "idle", "270,331"],
    "s12_rate_limited_gap": ["18,422", "31 s", "from 100 to 7,340"],
    "s14_gpu_fault_exit_zero": ["xid 31", "0.4 s", "restart=on-failure", "in good order"],
    "s15_runaway_repetition": ["repeats itself", "repetition_penalty 1.15", "4% of the four-grams"],
    "s17_accept_rate_redefined": ["0.5.9", "0.5.12", "(m + 1) / (k + 1)", "2.81", "as it was"],
    "s19_no_permission_empty": ["may not read", "status 0", "systemd-journal"],
}


@pytest.mark.parametrize("name", NAMES)
def test_the_finding_of_a_sample_tells_what_decides(name: str, tmp_path: Path) -> None:
    said = " ".join(render_text(findings(name, tmp_path)[:1], 10_000).lower().split())
    assert [words for words in DETAILS[name] if words not in said] == [], said
    first = findings(name, tmp_path)[0]
    assert first.evidence and first.next
    assert first.ruled_out or name.startswith("s19")

"""Any number of files as one: merged by time, with names that do not collide, and one ranked list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddscope.cli import main
from ddscope.diagnose import diagnose, diagnose_files
from ddscope.model import Log, Record
from ddscope.sources import SourceError
from ddscope.trace import TraceError, TraceWriter
from tests.diagnosing import DEPTH_1_ONLY, HEALTHY, Stream
from tests.serverlogs import UNIT, ServerLog
from tests.unit.test_sources_recorded import entry

XID = "NVRM: Xid (PCI:0000:01:00): 31, pid=951, name=python3, MMU Fault"


def journal(path: Path, records: list[Record]) -> Path:
    """Log records as `journalctl -o json` writes them."""
    lines = []
    for number, record in enumerate(records):
        assert isinstance(record, Log)
        kernel = record.ident == "kernel"
        fields: dict[str, Any] = {"_TRANSPORT": "kernel", "_SYSTEMD_UNIT": ...} if kernel else {"_SYSTEMD_UNIT": UNIT}
        if record.ident == "systemd":
            fields = {"_SYSTEMD_UNIT": "init.scope", "UNIT": UNIT}
        told = entry(
            MESSAGE=record.message, __REALTIME_TIMESTAMP=str(record.t), __CURSOR=f"{record.src} {number}",
            SYSLOG_IDENTIFIER=record.ident, _PID=... if record.pid is None else str(record.pid), **fields,
        )  # fmt: skip
        lines.append(json.dumps(told) + "\n")
    path.write_text("".join(lines))
    return path


def trace(path: Path, stream: Stream) -> Path:
    with TraceWriter(path) as writer:
        for record in stream.records:
            writer.write(record)
    return path


def faulty(tmp_path: Path) -> tuple[Path, Path]:
    """A unit's journal and the kernel's, of one incident."""
    log = ServerLog().start().decode().kernel(XID).systemd(f"{UNIT}: Deactivated successfully.", 0.4)
    unit = [record for record in log.records if record.src != "journal/kernel"]
    kernel = [record for record in log.records if record.src == "journal/kernel"]
    return journal(tmp_path / "unit.json", unit), journal(tmp_path / "kernel.json", kernel)


def test_a_line_of_one_file_explains_an_end_in_another(tmp_path: Path) -> None:
    unit, kernel = faulty(tmp_path)
    assert [f.id for f in diagnose_files([unit])] == []
    for order in ([unit, kernel], [kernel, unit]):
        [finding] = diagnose_files(order)
        assert finding.id == "gpu.fault"
        assert {Path(shown.file).name for shown in finding.evidence} == {"unit.json", "kernel.json"}


def test_evidence_names_the_record_of_its_file(tmp_path: Path) -> None:
    unit, kernel = faulty(tmp_path)
    shown = diagnose_files([unit, kernel])[0].evidence
    assert (Path(shown[0].file).name, shown[0].record) == ("kernel.json", 0)
    lines = unit.read_text().splitlines()
    assert "Deactivated" in lines[shown[-1].record or 0]


def test_one_file_needs_no_name(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.jsonl", Stream().header().run(DEPTH_1_ONLY))
    assert diagnose_files([path]) == diagnose(path)
    assert all(not shown.file for finding in diagnose_files([path]) for shown in finding.evidence)


def test_traces_and_journals_are_one_ranked_list(tmp_path: Path) -> None:
    bad = trace(tmp_path / "t.jsonl", Stream().header().run(DEPTH_1_ONLY))
    assert [f.id for f in diagnose_files([bad, *faulty(tmp_path)])] == ["gpu.fault", "accept.curve"]


def test_a_hook_and_a_log_that_tell_the_same_exception_are_one_finding(tmp_path: Path) -> None:
    words = "ValueError: DFLASH target_hidden feature dim mismatch. Expected shape [N, 2880] (num_context_features=5, "
    words += "hidden_size=576), but got shape=(60, 2304)."
    log = (
        ServerLog().start().say("Scheduler hit an exception: Traceback (most recent call last):").raw("  File x", words)
    )
    stream = Stream().header()
    stream.fact("engine.error", {"rid": "r0", "step": 0, "where": "draft", "message": words})
    [finding] = diagnose_files([trace(tmp_path / "t.jsonl", stream), journal(tmp_path / "j", log.records)])
    assert (finding.id, finding.kind, finding.severity) == ("shape.mismatch", "layers", "critical")
    assert "four layers given, five expected" in finding.title
    assert finding.consequences[0].startswith("serve.down")


def test_engines_of_two_traces_are_two_engines(tmp_path: Path) -> None:
    """Their steps have the same names and numbers, and neither is a repetition of the other."""
    good = trace(tmp_path / "a.jsonl", Stream().header().run(HEALTHY))
    bad = trace(tmp_path / "b.jsonl", Stream().header().run(HEALTHY[:20]))
    assert diagnose_files([good, bad]) == []


def test_an_entry_that_two_files_hold_is_taken_once(tmp_path: Path) -> None:
    log = ServerLog().start()
    for _ in range(3):
        log.decode(1.0, 0.0)
    one, two = journal(tmp_path / "1", log.records), journal(tmp_path / "2", log.records)
    assert diagnose_files([one, two]) == []  # three reports of low acceptance, not six
    for _ in range(3):
        log.decode(1.0, 0.0)
    assert [f.id for f in diagnose_files([journal(tmp_path / "3", log.records)])] == ["accept.low_from_start"]


def test_the_same_file_twice_is_read_once(tmp_path: Path) -> None:
    unit, kernel = faulty(tmp_path)
    assert diagnose_files([unit, kernel, unit]) == diagnose_files([unit, kernel])


def test_a_file_that_goes_back_in_time_keeps_its_order(tmp_path: Path) -> None:
    log = ServerLog().start()
    log.t -= 3_600_000_000
    for _ in range(6):
        log.decode(1.0, 0.0)
    other = ServerLog(src="journal/other.service").say("x", after=1.5)
    files = [journal(tmp_path / "1", log.records), journal(tmp_path / "2", other.records)]
    assert [f.id for f in diagnose_files(files)] == ["accept.low_from_start"]


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    unit, _ = faulty(tmp_path)
    with pytest.raises(SourceError):
        diagnose_files([unit, tmp_path / "missing"])
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"type":"step"}\n')
    with pytest.raises(TraceError):
        diagnose_files([unit, broken])


def test_the_command_takes_them_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unit, kernel = faulty(tmp_path)
    assert main(["findings", "--json", str(unit), str(kernel)]) == 1
    [finding] = json.loads(capsys.readouterr().out)
    assert finding["id"] == "gpu.fault" and finding["evidence"][0]["file"].endswith("kernel.json")
    assert main(["findings", str(unit)]) == 0
    assert capsys.readouterr().out == "No findings.\n"
    assert main(["findings", str(unit), str(kernel)]) == 1
    assert "kernel.json, record 0" in capsys.readouterr().out
    assert main(["findings", str(unit), str(tmp_path / "missing")]) == 2

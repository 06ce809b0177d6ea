"""Files of logs: which format they have by their content, and what of each entry becomes which record."""

from __future__ import annotations

import json
import struct
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ddscope.model import Gap, Log, Raw64, Record
from ddscope.sources import SourceError
from ddscope.sources.recorded import Recorded, kind_of

T = 1_790_000_000_000_000


def entry(**fields: Any) -> dict[str, Any]:
    common = {"__CURSOR": "s=1", "__REALTIME_TIMESTAMP": str(T), "__MONOTONIC_TIMESTAMP": "5", "_HOSTNAME": "alpha",
              "_SYSTEMD_UNIT": "a.service", "_PID": "41", "PRIORITY": "6", "SYSLOG_IDENTIFIER": "python3"}  # fmt: skip
    return {name: value for name, value in (common | fields).items() if value is not ...}


def as_json(*entries: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in entries)


def as_export(*entries: dict[str, Any]) -> bytes:
    out = b""
    for one in entries:
        for name, value in one.items():
            data = value if isinstance(value, bytes) else str(value).encode()
            if b"\n" in data or name == "MESSAGE":
                out += name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
            else:
                out += name.encode() + b"=" + data + b"\n"
        out += b"\n"
    return out


def read(path: Path, content: bytes) -> list[Record]:
    path.write_bytes(content)
    return list(Recorded().read(path, kind_of(path)))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "whatever.txt"


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (as_json(entry(MESSAGE="x")), "json"),
        (b"\x1e" + as_json(entry(MESSAGE="x")), "json"),
        (as_json({"MESSAGE": "x"}), "json"),
        (as_json(entry(MESSAGE="x" * 200_000)), "json"),
        (as_export(entry(MESSAGE="x")), "export"),
        (b'{"type":"header","src":"engine/0"}\n', "trace"),
        (b'{"type":"log","MESSAGE":"x"}\n', "trace"),
        (b"{garbage}\n", "trace"),  # the reader of traces says what is wrong with it
        (b"[2026-09-21 14:10:36] Decode batch\n", "text"),
        (b"Sep 21 14:10:36 alpha python3[41]: hello\n", "text"),
        (b"Hint: You are currently not seeing messages from other users and the system.\n", "text"),
        (b"some banner\nTraceback (most recent call last):\n", "text"),
        (b"", "empty"),
        (b"\n \n", "empty"),
    ],
)
def test_a_format_is_told_by_content(file: Path, content: bytes, kind: str) -> None:
    file.write_bytes(content)
    assert kind_of(file) == kind


@pytest.mark.parametrize("content", [b"# A readme\n", b"\x7fELF\0\0", b"a,b\n1,2\n", bytes(range(256)) * 9])
def test_any_other_file_is_refused_in_one_sentence(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(SourceError, match=r"is neither a trace, nor a journal .*\.$"):
        kind_of(file)


def test_the_pretty_form_of_json_is_named(file: Path) -> None:
    file.write_text(json.dumps(entry(MESSAGE="x"), indent=1))
    with pytest.raises(SourceError, match="json-pretty"):
        kind_of(file)


@pytest.mark.parametrize("path", ["missing", "."])
def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path, path: str) -> None:
    with pytest.raises(SourceError, match=r"cannot be read: .*\.$"):
        kind_of(tmp_path / path)


@pytest.mark.parametrize("form", [as_json, as_export])
def test_an_entry_becomes_a_log_record(file: Path, form: Any) -> None:
    [record] = read(file, form(entry(MESSAGE="hello")))
    assert record == Log(
        src="journal/a.service", seq=0, t=T, mono=5, message="hello", cursor="s=1", unit="a.service", pid=41,
        priority=6, ident="python3",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "src"),
    [
        ({}, "journal/a.service"),
        ({"_SYSTEMD_UNIT": "init.scope", "UNIT": "b.service", "_PID": "1"}, "journal/b.service"),
        ({"_TRANSPORT": "kernel", "_SYSTEMD_UNIT": ..., "SYSLOG_IDENTIFIER": "kernel"}, "journal/kernel"),
        ({"_SYSTEMD_UNIT": ...}, "journal/python3"),
        ({"_SYSTEMD_UNIT": ..., "SYSLOG_IDENTIFIER": ...}, "journal/journal"),
    ],
)
def test_an_entry_belongs_to_the_unit_it_is_about(file: Path, fields: dict[str, Any], src: str) -> None:
    assert [record.src for record in read(file, as_json(entry(MESSAGE="x", **fields)))] == [src]


def test_journalds_notice_is_a_gap_of_whose_messages_were_dropped(file: Path) -> None:
    notice = entry(MESSAGE="Suppressed 9 messages", N_DROPPED="9", OBJECT_SYSTEMD_UNIT="a.service",
                   _SYSTEMD_UNIT="systemd-journald.service")  # fmt: skip
    gap, log, after = read(file, as_json(notice, entry(MESSAGE="x")))
    assert isinstance(gap, Gap) and (gap.of, gap.src, gap.seq, gap.count) == (
        "journal/a.service",
        "journal/a.service",
        8,
        9,
    )
    assert (log.src, log.seq, after.seq) == ("journal/a.service", 9, 10)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("text", "text"),
        ([104, 105, 13], "hi\r"),
        ([255, 254], Raw64("//4=")),
        (["one", "two"], "one\ntwo"),
        (None, None),
        ([], ""),
        ([300, -1], ""),
        (7, None),
        ({"a": 1}, None),
    ],
)
def test_every_form_of_a_message_is_taken(file: Path, message: Any, text: Any) -> None:
    [record] = read(file, as_json(entry(MESSAGE=message)))
    assert isinstance(record, Log) and record.message == text


def test_bytes_in_the_export_format_are_kept(file: Path) -> None:
    [record] = read(file, as_export(entry(MESSAGE=b"a\nb\n\n=\xff")))
    assert isinstance(record, Log) and record.message == Raw64("YQpiCgo9/w==")


def test_damage_is_a_gap_and_the_rest_is_read(file: Path) -> None:
    content = as_json(entry(MESSAGE="1")) + b"{broken\n" + as_json(entry(MESSAGE="2")) + b'{"MESSAGE": "cut'
    records = read(file, content)
    assert [getattr(record, "message", getattr(record, "reason", None)) for record in records] == [
        "1",
        "damaged",
        "2",
        "cut_off",
    ]
    assert [record.seq for record in records] == [0, 1, 2, 3]


def test_an_export_that_is_cut_or_damaged_ends_with_a_gap(file: Path) -> None:
    whole = as_export(entry(MESSAGE="1"), entry(MESSAGE="2"))
    assert [r.reason for r in read(file, whole[:-9]) if isinstance(r, Gap)] == ["cut_off"]
    damaged = as_export(entry(MESSAGE="1")) + b"__CURSOR=x\n=y\n" + as_export(entry(MESSAGE="2"))
    assert [r.reason for r in read(file, damaged) if isinstance(r, Gap)] == ["damaged"]


def test_a_second_host_has_its_name_before_the_unit(tmp_path: Path) -> None:
    recorded, one, two = Recorded(), tmp_path / "1", tmp_path / "2"
    one.write_bytes(as_json(entry(MESSAGE="x")))
    two.write_bytes(as_json(entry(MESSAGE="x", _HOSTNAME="beta"), entry(MESSAGE="y", _HOSTNAME="beta")))
    told = [(r.src, r.seq) for path in (one, two) for r in recorded.read(path, "json")]
    assert told == [("journal/a.service", 0), ("journal/beta/a.service", 0), ("journal/beta/a.service", 1)]


def test_lines_of_a_text_log_have_the_time_of_the_last_one_that_told_it(file: Path) -> None:
    records = read(file, b"a banner\n[2026-09-21 14:10:36] INFO one\r\n  two\n[2026-09-21 14:10:38.5] ERROR three")
    banner, *records = records
    at = [int(datetime(2026, 9, 21, 14, 10, 36).timestamp() * 1e6) + us for us in (0, 0, 2_500_000)]
    assert banner.t == at[0]
    assert [record.t for record in records] == at
    assert [r.message for r in records if isinstance(r, Log)] == ["[2026-09-21 14:10:36] INFO one", "  two",
                                                                 "[2026-09-21 14:10:38.5] ERROR three"]  # fmt: skip
    assert [r.priority for r in records if isinstance(r, Log)] == [6, None, 3]


def test_what_journalctl_prints_by_default_tells_who_wrote_it(file: Path) -> None:
    [record] = read(
        file, b"Sep 21 14:10:36 alpha systemd[1]: a.service: Main process exited, code=exited, status=1/FAILURE\n"
    )
    assert isinstance(record, Log) and (record.ident, record.pid) == ("systemd", 1)
    assert record.message == "a.service: Main process exited, code=exited, status=1/FAILURE"
    assert datetime.fromtimestamp(record.t / 1e6).strftime("%b %d %H:%M:%S") == "Sep 21 14:10:36"


def test_a_very_long_line_comes_in_pieces(file: Path) -> None:
    records = read(file, b"[2026-09-21 14:10:36] " + b"x" * 100_000)
    assert [(len(str(r.message)), r.partial) for r in records if isinstance(r, Log)] == [
        (49152, True),
        (49152, True),
        (1718, None),
    ]


def test_an_empty_file_is_a_gap_that_says_so(file: Path) -> None:
    [record] = read(file, b"")
    assert isinstance(record, Gap) and record.reason == "empty" and record.of == "journal/whatever.txt"

"""The file sink: whole lines, a bound, a full disk, a footer; never another recording's bytes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ddscope_hooks.emit import EmitError, Emitter
from tests.unit.emit_support import HEADER, Books


def books_of(path: str | Path) -> Books:
    books = Books()
    books.take_all(Path(path).read_bytes())
    return books


def test_a_recording_ends_with_a_footer_that_fits_it(tmp_path: Path) -> None:
    emitter = Emitter("engine/0", HEADER)
    path = emitter.listen(f"file:{tmp_path}/new/t.jsonl")
    for n in range(100):
        emitter.emit("mark", {"n": n})
    emitter.emit("fact", {"name": "x", "value": object()})
    emitter.close()
    books = books_of(path)
    footer = books.records.pop()
    assert footer["type"] == "footer" and footer["seq"] == footer["emitted"] == books.records[-1]["seq"] + 1
    assert footer["records"] == dict(Counter(r["type"] for r in books.records))
    assert footer["dropped"] == 1
    body = Path(path).read_bytes()
    assert footer["sha256"] == hashlib.sha256(body[: body[:-1].rindex(b"\n") + 1]).hexdigest()


def test_an_earlier_recording_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("an earlier one\n")
    names = []
    for _ in range(2):
        emitter = Emitter("engine/0", HEADER)
        names.append(emitter.listen(f"file:{tmp_path}/t.jsonl"))
        emitter.close()
    assert names == [f"{tmp_path}/t.1.jsonl", f"{tmp_path}/t.2.jsonl"]
    assert (tmp_path / "t.jsonl").read_text() == "an earlier one\n"
    assert os.stat(names[0]).st_mode & 0o777 == 0o600


def test_a_file_stays_below_its_bound_and_says_what_it_lacks(tmp_path: Path) -> None:
    emitter = Emitter("engine/0", HEADER)
    path = emitter.listen(f"file:{tmp_path}/t.jsonl", max_bytes=20_000)
    for n in range(1000):
        emitter.emit("mark", {"n": n, "pad": "x" * 100})
    emitter.close()
    assert os.path.getsize(path) <= 20_000
    books = books_of(path)
    marks = [r["n"] for r in books.of("mark")]
    assert marks == list(range(len(marks))) and 50 < len(marks) < 1000, "the beginning, without holes"
    assert books.records[-1]["type"] == "footer" and books.gaps() == [
        (books.records[-2]["seq"], books.records[-2]["count"], "ring_full")
    ]
    assert books.records[-1]["emitted"] == emitter.counters.emitted
    assert books.emitted["engine/0"] == emitter.counters.emitted + 1


def test_a_bound_that_leaves_no_room_costs_no_other_consumer_anything(tmp_path: Path) -> None:
    emitter = Emitter("engine/0", HEADER)
    small = emitter.listen(f"file:{tmp_path}/small.jsonl", max_bytes=100)
    good = emitter.listen(f"file:{tmp_path}/good.jsonl")
    for n in range(10):
        emitter.emit("mark", {"n": n})
    emitter.close()
    assert len(books_of(good).of("mark")) == 10
    assert books_of(good).of("fact")[0]["value"]["file"] == "small.jsonl"
    assert os.path.getsize(small) <= 2048
    books_of(small)


def test_a_file_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "d").mkdir()
    emitter = Emitter("engine/0", HEADER)
    assert emitter.listen(f"file:{tmp_path}/d").endswith("d.1"), "a folder is in the way: the next name"
    with pytest.raises(EmitError, match=r"^Cannot make the folder .*/file: a file is in the way\.$"):
        emitter.listen(f"file:{tmp_path}/file/x")
    with pytest.raises(EmitError, match=r"^Cannot write .*: File name too long\.$"):
        emitter.listen(f"file:{tmp_path}/{'x' * 300}")
    emitter.close()


WRITES = """
    import os, resource, signal, sys, time
    from ddscope_hooks.emit import Emitter
    path, limit = sys.argv[1], int(sys.argv[2])
    e = Emitter("engine/0", {})
    path = e.listen("file:" + path)
    def settle():
        until = time.monotonic() + 20
        while e.counters.in_flight or e.counters.emitted < sent:
            assert time.monotonic() < until
            time.sleep(0.005)
    def emit(a, b):
        for n in range(a, b):
            e.emit("mark", {"n": n, "pad": "x" * 700})
    %s
    e.close()
    print(e.counters.emitted, flush=True)
"""


def script(body: str) -> str:
    return textwrap.dedent(WRITES) % textwrap.dedent(body).strip()


def run(code: str, *args: Any) -> int:
    """emitted, as the process says at its end."""
    done = subprocess.run([sys.executable, "-c", code, *map(str, args)], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return int(done.stdout)


LIMITED = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
emit(0, 60); sent = 61; settle()                 # runs into the limit in the middle of a line
assert e.counters.viewers[0].behind > 0
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
until = time.monotonic() + 20
while e.counters.viewers[0].behind:              # there is room again: the gap is told without a new record
    assert time.monotonic() < until; time.sleep(0.01)
emit(60, 70); sent = 72; settle()
"""


def test_a_limit_hit_inside_a_line_leaves_whole_lines_and_a_gap_when_there_is_room_again(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    emitted = run(script(LIMITED), path, 20_000)
    books = books_of(path)
    assert books.emitted["engine/0"] == emitted + 1
    marks = [r["n"] for r in books.of("mark")]
    kept = marks.index(60)
    assert marks == [*range(kept), *range(60, 70)] and 20 < kept < 30
    assert [r["value"]["error"] for r in books.of("fact") if r["name"] == "emit.file"] in (
        ["File too large"],
        ["the disk is full"],
    )
    assert books.records[-1]["type"] == "footer"


FULL = """
emit(0, 400); sent = 401; settle()
assert e.counters.viewers[0].behind > 0
os.unlink(os.path.dirname(path) + "/ballast")    # somebody makes room
until = time.monotonic() + 20
while e.counters.viewers[0].behind:
    assert time.monotonic() < until; time.sleep(0.01)
emit(400, 410); sent = 412; settle()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_is_a_counted_loss_and_no_crash(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount: {mounted.stderr.decode().strip()}")
    try:
        (tmp_path / "ballast").write_bytes(b"x" * 100_000)
        emitted = run(script(FULL), tmp_path / "t.jsonl", 0)
        books = books_of(tmp_path / "t.jsonl")
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert books.emitted["engine/0"] == emitted + 1
    errors = [r["value"]["error"] for r in books.of("fact") if r["name"] == "emit.file"]
    assert errors and set(errors) <= {"No space left on device", "the disk is full"}
    assert [json.dumps(r["n"]) for r in books.of("mark")][-10:] == [str(n) for n in range(400, 410)]
    assert len(books.gaps()) >= 1 and books.records[-1]["type"] == "footer"

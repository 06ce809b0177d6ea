"""The doctor on real environments of this machine: patched files, moved enum members, libraries that do not load."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddscope.cli import main
from ddscope.remote import Host, HostError
from ddscope.remote.doctor.collected import Collected, collect, read
from ddscope.remote.doctor.examine import Examined, examine
from ddscope.remote.doctor.facts import facts, write
from ddscope.remote.doctor.locate import Server
from ddscope.remote.doctor.pristine import PristineFiles
from ddscope.trace import TraceFile, verify
from tests.integration.environments.venvs import KEEPS, MOVES, SPEC, SPEC_INFO, Venv, digest, server
from tests.unit.emit_support import wait_for


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    return server(tmp_path / "env")


@pytest.fixture
def here() -> Any:
    with Host("localhost") as host:
        yield host


def looked(host: Host, venv: Venv, **plan: Any) -> Collected:
    return collect(host, venv.python, {"load": False, **plan})


def examined(host: Host, venv: Venv, **plan: Any) -> Examined:
    return examine(Server(venv.python), looked(host, venv, **plan), download=False)


def told(one: Examined, name: str) -> list[dict[str, Any]]:
    return [value for fact, value in facts(one) if fact == name]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_an_environment_as_installed_has_nothing_to_say_and_stays_as_it_is(here: Host, venv: Venv) -> None:
    before = tree(venv.folder)
    one = examined(here, venv)
    assert [item.severity for item in one.items if item.area == "skew.files"] == ["fine"]
    (skew,) = told(one, "files.skew")
    assert (skew["package"], skew["version"], skew["differ"]) == ("sglang", "9.9.1", []) and skew["checked"] > 5
    assert tree(venv.folder) == before  # no byte code either


def test_a_patch_that_moves_members_is_told_member_by_member(here: Host, venv: Venv) -> None:
    (venv.site / (SPEC + ".bak")).write_text(SPEC_INFO)
    venv.patch(SPEC, *MOVES)
    one = examined(here, venv)
    enum = next(value for value in told(one, "enum.values") if value["enum"] == "SpeculativeAlgorithm")
    assert enum["added"] == ["DDTREE"]
    assert {row["member"]: (row["was"], row["now"]) for row in enum["moved"]} == {
        "EAGLE": ("2", "3"),
        "STANDALONE": ("3", "4"),
        "NONE": ("4", "5"),
    }
    assert any("3 members moved" in item.title and item.severity == "high" for item in one.items)
    (skew,) = told(one, "files.skew")
    changed = next(row for row in skew["differ"] if row["path"] == SPEC)
    assert {row["name"] for row in changed["functions"]} == {"SpeculativeAlgorithm", "SpeculativeAlgorithm.is_dflash"}
    assert any("ddscope hooks rollback" in line and SPEC in line for line in skew["restore"])


def test_a_patch_that_moves_none_says_so(here: Host, venv: Venv) -> None:
    (venv.site / (SPEC + ".orig")).write_text(SPEC_INFO)
    venv.patch(SPEC, *KEEPS)
    one = examined(here, venv)
    assert all(value["moved"] == [] for value in told(one, "enum.values"))
    assert any("all 4 existing members kept their values" in item.title for item in one.items)
    assert not any("moved" in item.title for item in one.items)


def test_a_changed_predicate_comes_with_all_places_that_ask_it(here: Host, venv: Venv) -> None:
    (venv.site / (SPEC + ".bak")).write_text(SPEC_INFO)
    venv.patch(SPEC, *KEEPS)
    one = examined(here, venv)
    (calls,) = told(one, "predicate.calls")
    assert calls["predicate"] == "is_dflash"
    assert (calls["true_for"], calls["was_true_for"]) == (["DFLASH", "DDTREE"], ["DFLASH"])
    lines = (venv.site / SPEC).read_text().splitlines()
    assert [(site["file"], site.get("function"), site["line"]) for site in calls["sites"]] == [
        ("sglang/srt/model_runner.py", "ModelRunner.capture", 3),
        ("sglang/srt/model_runner.py", "sizes", 11),
        (SPEC, "SpeculativeAlgorithm.is_dflash_family", lines.index("        return self.is_dflash()") + 1),
    ]


def test_without_a_pristine_file_the_skew_is_told_and_nothing_is_guessed(here: Host, venv: Venv) -> None:
    venv.patch(SPEC, *MOVES)
    one = examined(here, venv)
    (skew,) = told(one, "files.skew")
    assert skew["differ"] == [{"path": SPEC, "change": "changed"}]
    assert told(one, "enum.values") == []


def test_a_backup_that_is_not_the_wheels_file_is_no_pristine_file(here: Host, venv: Venv) -> None:
    (venv.site / (SPEC + ".bak")).write_text(SPEC_INFO + "# older patch\n")
    venv.patch(SPEC, *MOVES)
    assert told(examined(here, venv), "enum.values") == []


def test_the_other_hosts_copy_serves_as_pristine(here: Host, venv: Venv, tmp_path: Path) -> None:
    other = looked(here, server(tmp_path / "other"))
    venv.patch(SPEC, *MOVES)
    one = examine(Server(venv.python), looked(here, venv), others=[other], download=False)
    assert any(value["moved"] for value in told(one, "enum.values"))


def test_missing_added_and_compiled_files_are_told_apart(here: Host, venv: Venv) -> None:
    (venv.site / "sglang/srt/video.py").unlink()
    (venv.site / "sglang/srt/ddtree_worker.py").write_text("x = 1\n")
    cache = venv.site / "sglang/srt/__pycache__"
    cache.mkdir()
    (cache / "video.cpython-311.pyc").write_bytes(b"x")
    (skew,) = told(examined(here, venv), "files.skew")
    assert [(row["path"], row["change"]) for row in skew["differ"]] == [
        ("sglang/srt/ddtree_worker.py", "added"),
        ("sglang/srt/video.py", "missing"),
    ]


def test_hostile_names_and_contents_stay_on_their_line(here: Host, venv: Venv, tmp_path: Path) -> None:
    folder = os.fsencode(venv.site / "sglang")
    for name in (b"a\nfine: b.py", b"\xff\xfe.py", b"[red]\x1b[31m.py", b"-rf.py"):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(b"\x00\xff[/bold] \x1b]0;x\x07\n")
    (venv.site / (SPEC + ".bak")).write_text(SPEC_INFO)
    venv.patch(SPEC, ("return self in (SpeculativeAlgorithm.EAGLE,)", "return '\x1b[31m[/red]' == self"))
    out = tmp_path / "t.jsonl"
    options = ["--python", venv.python, "--no-download", "--no-load", "-o", str(out)]
    done = subprocess.run([sys.executable, "-m", "ddscope", "doctor", *options], capture_output=True, timeout=120)
    text = done.stdout.decode()
    assert done.returncode == 1 and "Traceback" not in done.stderr.decode()
    assert "\x1b" not in text and "\x07" not in text and "\x00" not in text
    assert "a\\nfine: b.py" in text and "\\xff\\xfe.py" in text and "[red]\\x1b[31m.py" in text
    assert verify(out).problems == []


def test_a_file_that_is_not_python_is_shown_as_text(here: Host, venv: Venv) -> None:
    (venv.site / (SPEC + ".bak")).write_text(SPEC_INFO)
    (venv.site / SPEC).write_text(SPEC_INFO + "\ndef broken(:\n")
    one = examined(here, venv)
    (skew,) = told(one, "files.skew")
    assert "functions" not in next(row for row in skew["differ"] if row["path"] == SPEC)
    assert any("+def broken(:" in line for item in one.items for line in item.evidence)


def test_a_library_that_does_not_load_is_told_with_who_needs_it(here: Host, venv: Venv) -> None:
    venv.install("torchcodec", "0.9", {"torchcodec/__init__.py": "import ctypes\nctypes.CDLL('libnvrtc.so.13')\n"})
    venv.install("xgrammar", "0.1", {"xgrammar/__init__.py": "import os\nprint('noise')\nos.kill(os.getpid(), 11)\n"})
    venv.install("triton", "3.0", {"triton/__init__.py": "import time\ntime.sleep(60)\n"})
    venv.install("av", "1.0", {"av/__init__.py": ""})
    found = collect(here, venv.python, {"load": True, "load_s": 2.0})
    one = examine(Server(venv.python), found, download=False)
    rows = {value["library"]: value for value in told(one, "host.library")}
    assert rows["av"] == {"host": "localhost", "library": "av", "loads": True}
    codec = rows["torchcodec"]
    assert (codec["loads"], codec["missing"], codec["needed"]) == (False, "libnvrtc.so.13", False)
    assert codec["needed_by"] == ["sglang", "sglang/srt/video.py"]
    assert "signal 11" in rows["xgrammar"]["error"]
    assert "2 s" in rows["triton"]["error"] and rows["triton"]["needed"] is True
    assert not list(venv.folder.rglob("__pycache__/*av*"))


def test_a_server_that_answers_is_compared_with_its_command_line(here: Host, venv: Venv, tmp_path: Path) -> None:
    launch = """
import http.server, json, os, sys
def option(name): return sys.argv[sys.argv.index(name) + 1]
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        good = self.headers.get("Authorization") == "Bearer sEcReT" and self.path == "/server_info"
        self.send_response(200 if good else 401); self.end_headers()
        if good:
            self.wfile.write(json.dumps({"speculative_algorithm": "EAGLE", "page_size": 16, "api_key": "sEcReT",
                "disable_overlap_schedule": True, "model_path": "/m", "internal_states": [{}]}).encode())
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
open(option("--ready") + ".new", "w").write(str(server.server_address[1]))
os.rename(option("--ready") + ".new", option("--ready"))
server.serve_forever()
"""
    (venv.site / "sglang/launch_server.py").write_text(launch)
    ready = tmp_path / "ready"
    command = [venv.python, "-m", "sglang.launch_server", "--model-path", "/m", "--speculative-algorithm", "NEXTN"]
    command += ["--page-size", "1", "--api-key", "sEcReT", "--ready", str(ready)]
    environ = {**os.environ, "SGLANG_SIMULATE_ACC_LEN": "2.5", "HF_TOKEN": "sEcReT"}
    with subprocess.Popen(command, env=environ) as process:
        try:
            wait_for(ready.exists)
            port = int(ready.read_text())
            found = collect(here, venv.python, {"load": False, "pid": process.pid, "port": port})
            one = examine(Server(venv.python, process.pid, port=port), found, download=False)
        finally:
            process.kill()
    (args,) = told(one, "server.args")
    assert args["requested"]["speculative_algorithm"] == "NEXTN" and args["effective"]["page_size"] == 16
    assert args["env"]["SGLANG_SIMULATE_ACC_LEN"] == "2.5"
    assert "sEcReT" not in json.dumps([item.to_json() for item in one.items]) + json.dumps(list(facts(one)))
    assert any(item.title == "1 argument not in force as asked for: page_size." for item in one.items)
    assert any("Acceptance is simulated" in item.title and item.severity == "critical" for item in one.items)


def test_the_changed_predicate_is_judged_for_the_algorithm_that_runs(here: Host, venv: Venv) -> None:
    (venv.site / (SPEC + ".bak")).write_text(SPEC_INFO)
    venv.patch(SPEC, *KEEPS)
    sleeper = "import time; time.sleep(600)"
    command = [venv.python, "-c", sleeper, "--speculative-algorithm", "NEXTN"]
    with subprocess.Popen(command) as process:
        try:
            wait_for(lambda: b"NEXTN" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
            one = examined(here, venv, pid=process.pid)
        finally:
            process.kill()
    item = next(item for item in one.items if item.title.startswith("is_dflash changed"))
    assert item.severity == "info" and "For EAGLE" in item.title and "not on its path" in item.title


def test_a_package_in_the_folder_of_the_server_hides_the_installed_one(here: Host, venv: Venv, tmp_path: Path) -> None:
    (tmp_path / "checkout/sglang").mkdir(parents=True)
    (tmp_path / "checkout/sglang/__init__.py").write_text("")
    (tmp_path / "checkout/sglang/launch_server.py").write_text("import time; time.sleep(600)")
    with subprocess.Popen([venv.python, "-m", "sglang.launch_server"], cwd=tmp_path / "checkout") as process:
        try:
            wait_for(lambda: b"launch_server" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
            one = examined(here, venv, pid=process.pid)
            # Installed again while it runs.
            os.utime(next(venv.site.glob("sglang-*.dist-info")) / "RECORD", (2e9, 2e9))
            later = examined(here, venv, pid=process.pid)
        finally:
            process.kill()
    (item,) = [item for item in one.items if item.title.startswith("The server takes sglang from")]
    assert str(tmp_path / "checkout/sglang") in item.title and item.severity == "high"
    assert not any("was installed after" in item.title for item in one.items)
    assert any("was installed after" in item.title for item in later.items)


def test_two_environments_side_by_side(
    venv: Venv, tmp_path: Path, here: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    from ddscope.remote.doctor.against import differences, folded, meanings
    from ddscope.remote.doctor.page import table

    other = server(tmp_path / "other")
    other.install("torch", "2.9.0", {"torch/version.py": "__version__ = '2.9.0'\ncuda = '12.8'\n"})
    venv.install("torch", "2.9.0", {"torch/version.py": "__version__ = '2.9.0'\ncuda = '13.0'\n"})
    venv.patch(SPEC, *MOVES)
    rows = differences(examined(here, venv), examined(here, other))
    assert [(row.severity, row.what, row.here, row.there) for row in rows[:3]] == [
        ("critical", "SpeculativeAlgorithm.EAGLE", "3", "2"),
        ("critical", "SpeculativeAlgorithm.STANDALONE", "4", "3"),
        ("critical", "SpeculativeAlgorithm.NONE", "5", "4"),
    ]
    assert ("torch built for CUDA", "13.0", "12.8") in [(row.what, row.here, row.there) for row in rows]
    file = next(row for row in rows if row.what == SPEC)
    assert (file.here, file.there) == ("changed", "as in its wheel")
    page = table(
        [(row.severity, row.what, row.here, row.there) for row in folded(rows)], "a", "b", meanings(rows, "a", "b")
    )
    first, *_ = [line for line in page.splitlines() if line.startswith("critical")]
    assert re.split(" {2,}", first)[1:] == [
        "SpeculativeAlgorithm: 3 members", "EAGLE 3, STANDALONE 4, NONE 5", "EAGLE 2, STANDALONE 3, NONE 4",
    ]  # fmt: skip
    assert page.count("critical") == 1 and "means another member than the other" in " ".join(page.split())
    assert "→ ddscope doctor --host a\n" in page, "where the file was changed"
    assert "--host b" not in page


def test_a_file_that_both_changed_in_another_way_is_told_by_its_sums(venv: Venv, tmp_path: Path, here: Host) -> None:
    from ddscope.remote.doctor.against import differences

    other = server(tmp_path / "other")
    venv.patch(SPEC, *MOVES)
    other.patch(SPEC, ("Algorithms of speculation.", "Algorithms of ours."))
    (row,) = [row for row in differences(examined(here, venv), examined(here, other)) if row.what == SPEC]
    assert row.here.startswith("changed (sha256 ") and row.there.startswith("changed (sha256 ")
    assert row.here != row.there


def test_a_long_cell_goes_on_below_itself() -> None:
    from ddscope.remote.doctor.page import table

    page = table([("high", "--draft", "a " * 30, "b")], "one", "two").splitlines()
    assert page[4].endswith("  b") and page[5].startswith(" " * 9) and page[5].split() == ["a"] * 15


def test_a_trace_of_the_facts_holds_and_can_be_read_again(here: Host, venv: Venv, tmp_path: Path) -> None:
    one = examined(here, venv)
    write(tmp_path / "one.jsonl", [one])
    other = replace(one, found=msgspec.structs.replace(one.found, host="ct200"))
    write(tmp_path / "two.jsonl", [one, other])
    write(tmp_path / "same.jsonl", [one, one])
    for name in ("one", "two", "same"):
        assert verify(tmp_path / f"{name}.jsonl").problems == []
    trace = TraceFile(tmp_path / "two.jsonl")
    while trace.poll():
        pass
    assert trace.index.sources[:2] == ["doctor/localhost", "doctor/ct200"]


def test_a_trace_that_is_there_is_never_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("mine\n")
    assert main(["doctor", "--python", sys.executable, "-o", str(path)]) == 2
    assert "is not empty" in capsys.readouterr().err and path.read_text() == "mine\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--python", "/no/such/python"], "/no/such/python"),
        (["--python", "/bin/true"], "/bin/true"),
        (["--pid", "999999999"], "process"),
        (["--host=-oProxyCommand=x"], "name of a host"),
        (["--python", sys.executable, "-o", "/dev/null/x"], "/dev/null/x"),
    ],
)
def test_what_cannot_be_looked_at_is_said_in_one_sentence(
    args: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--no-load", "--no-download", *args]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("Looking at")]
    assert len(said) == 1 and words in said[0]


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"skew": 1}', b"[" * 100_000, b'{"packages": {"a": 1}}', b"\xff"])
def test_an_answer_of_another_kind_is_refused(answer: bytes) -> None:
    with pytest.raises(HostError, match="something else"):
        read(answer, "ct129")


def test_a_wheel_is_kept_and_used_only_where_its_hash_fits(
    here: Host, venv: Venv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import zipfile

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    venv.patch(SPEC, *MOVES)
    found = looked(here, venv)
    tag = "".join(found.machine["python"].split(".")[:2])
    folder = tmp_path / "cache/ddscope/wheels" / f"sglang-9.9.1-{tag}-{found.machine['arch']}"
    folder.mkdir(parents=True)
    for text, good in ((SPEC_INFO, True), (SPEC_INFO + "#", False)):
        with zipfile.ZipFile(folder / "sglang-9.9.1-py3-none-any.whl", "w") as wheel:
            wheel.writestr(SPEC, text)
        files = PristineFiles(download=False)
        skew = found.skew_of("sglang")
        assert skew is not None
        (row,) = skew.differ
        one = files.file(skew, row, None, found.machine["python"], found.machine["arch"])
        assert (one is not None) is good
        assert row.record == digest(SPEC_INFO.encode()) and bool(files.why) is not good


def test_a_distribution_whose_name_could_be_an_option_is_never_given_to_pip(tmp_path: Path) -> None:
    from ddscope.remote.doctor.collected import Differs, Skew

    files = PristineFiles(download=True)
    skew = Skew("--index-url=http://x", "1", "/", 1, 0, [])
    assert files.file(skew, Differs("a.py", "changed", record="x"), None) is None
    assert "not one that an index knows" in files.why["--index-url=http://x"]

"""What the doctor makes of tracebacks, command lines, unit files and secrets."""

from __future__ import annotations

import pytest

from ddscope.remote.doctor.arguments import parse
from ddscope.remote.doctor.causes import cause, explain
from ddscope.remote.doctor.collected import Gpu, Process, Unit, UnitFile
from ddscope.remote.doctor.drift import drift, merge
from ddscope.remote.doctor.drift import parse as parse_unit
from ddscope.remote.doctor.judge_machine import runs_on
from ddscope.remote.doctor.probe import secret

FFMPEG = """\
Traceback (most recent call last):
  File "<string>", line 1, in <module>
RuntimeError: Could not load libtorchcodec. Likely causes:
          1. FFmpeg is not properly installed in your environment.
        [start of libtorchcodec loading traceback]
FFmpeg version 8:
Traceback (most recent call last):
  File "torch/_ops.py", line 1503, in load_library
OSError: libavutil.so.60: cannot open shared object file: No such file or directory

The above exception was the direct cause of the following exception:

OSError: Could not load this library: /env/libtorchcodec_core8.so
FFmpeg version 7:
OSError: {other}: cannot open shared object file: No such file or directory
[end of libtorchcodec loading traceback].
"""


def test_ffmpeg_is_the_cause_only_where_nothing_else_is_missing() -> None:
    found = cause(FFMPEG.format(other="libavutil.so.59"))
    assert (found.ffmpeg_only, found.missing) == (True, "libavutil.so.60")
    assert "FFmpeg" in explain(found, "13.0")


def test_the_library_that_is_really_missing_is_found_behind_ffmpegs() -> None:
    found = cause(FFMPEG.format(other="libnvrtc.so.13"))
    assert found.inner == "OSError: libnvrtc.so.13: cannot open shared object file: No such file or directory"
    assert (found.missing, found.ffmpeg_only) == ("libnvrtc.so.13", False)
    assert "CUDA 13" in explain(found, "12.8") and "12.8" in explain(found, "12.8")


@pytest.mark.parametrize(
    ("error", "word"),
    [
        ("ImportError: /x/common_ops.abi3.so: undefined symbol: _ZN3c1013MessageLoggerC1EPKcii", "another torch"),
        ("ImportError: /x/common_ops.abi3.so: undefined symbol: cuGreenCtxStreamCreate", "driver"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "architecture"),
    ],
)
def test_the_symbol_says_which_layer_is_old(error: str, word: str) -> None:
    assert word in explain(cause(error), "12.8")


def test_an_error_without_a_traceback_is_its_own_cause() -> None:
    assert cause("it ended the process with signal 11").inner == "it ended the process with signal 11"
    assert cause("").inner


@pytest.mark.parametrize(
    ("capability", "listed", "runs"),
    [
        ("9.0", ["sm_80", "sm_90"], True),
        ("8.6", ["sm_80", "sm_90"], True),  # the same major runs it
        ("12.0", ["sm_80", "sm_90a"], False),
        ("12.0", ["sm_90", "compute_90"], True),  # compiled when it is loaded
        ("9.0", ["sm_90a"], True),
        ("10.3", ["sm_100a"], False),  # bound to one architecture
        ("7.5", ["sm_80"], False),
    ],
)
def test_which_code_runs_on_which_gpu(capability: str, listed: list[str], runs: bool) -> None:
    assert runs_on(Gpu("card", capability), listed) is runs


GIVEN = ["--tp", "2", "--disable-radix-cache", "--model=/m", "--x", "1", "2"]


@pytest.mark.parametrize(
    "program",
    [
        ["/env/bin/python", "-m", "sglang.launch_server"],
        ["python3", "-u", "-X", "dev", "-m", "sglang.launch_server"],
        ["sglang", "serve"],
    ],
)
def test_arguments_are_read_off_a_command_line(program: list[str]) -> None:
    assert parse([*program, *GIVEN]) == {
        "tp_size": "2",
        "disable_radix_cache": True,
        "model_path": "/m",
        "x": ["1", "2"],
    }


@pytest.mark.parametrize(
    "text",
    [
        'Environment="HF_TOKEN=sEcReT" CUDA_VISIBLE_DEVICES=0',
        "Environment=OPENAI_API_KEY='sEcReT more' A=1",
        'Environment="API_KEY=sEcReT sEcReT" B=1',
        "ExecStart=/env/bin/python -m x --api-key sEcReT --port 1",
        "ExecStart=/env/bin/python -m x --api-key=sEcReT",
        "Environment=HTTPS_PROXY=http://user:sEcReT@proxy:3128",
        "ExecStart=/bin/sh -c 'DB_PASSWORD=sEcReT exec server'",
    ],
)
def test_no_secret_leaves_a_unit_file(text: str) -> None:
    told = secret.text(text)
    assert "sEcReT" not in told and secret.HIDDEN in told


def test_what_is_no_secret_stays() -> None:
    line = "ExecStart=/p -m x --speculative-num-draft-tokens 16 --max-total-tokens=5 --port 30000 --mask-token m"
    assert secret.text(line) == line
    assert secret.arguments(["p", "--api-key", "s", "--port", "1"]) == ["p", "--api-key", secret.HIDDEN, "--port", "1"]


def test_settings_lose_their_secrets_at_any_depth() -> None:
    words = secret.settings(
        {"launch_command": ["sglang", "--api-key", "s"], "line": "sglang serve --api-key s --port 1"}
    )
    assert words == {
        "launch_command": ["sglang", "--api-key", secret.HIDDEN],
        "line": f"sglang serve --api-key {secret.HIDDEN} --port 1",
    }
    told = secret.settings({"a": [{"api_key": "s", "admin_api_key": None}], "url": "http://u:p@h/"})
    assert told == {"a": [{"api_key": secret.HIDDEN, "admin_api_key": None}], "url": f"http://u:{secret.HIDDEN}@h/"}


def test_only_variables_that_say_how_a_server_runs_are_told() -> None:
    told = secret.environment({"HOME": "/root", "MY_COMPANY": "x", "CUDA_VISIBLE_DEVICES": "0", "SGLANG_API_KEY": "s"})
    assert told == {"CUDA_VISIBLE_DEVICES": "0", "SGLANG_API_KEY": secret.HIDDEN}


UNIT = """\
[Unit]
Description=x
[Service]
# comment
Environment="A=1 2" B=3
ExecStart=/env/bin/python -m sglang.launch_server \\
    --speculative-algorithm NEXTN --port 30000
[Install]
ExecStart=/not/this
"""


def unit(text: str = UNIT, **shown: str) -> Unit:
    command = "/env/bin/python -m sglang.launch_server --speculative-algorithm NEXTN --port 30000"
    loaded = {
        "MainPID": "7",
        "ExecStart": f"{{ path=/env/bin/python ; argv[]={command} ; ignore_errors=no ; pid=7 }}",
        "Environment": '"A=1 2" B=3',
        "NeedDaemonReload": "no",
        **shown,
    }
    return Unit("s.service", shown=loaded, files=[UnitFile("/etc/s.service", text, 50.0, "h")])


ARGV = ["/env/bin/python", "-m", "sglang.launch_server", "--speculative-algorithm", "NEXTN", "--port", "30000"]


def test_a_unit_file_is_read_as_systemd_reads_it() -> None:
    assert merge([parse_unit(UNIT)]) == {
        "Environment=A": "1 2",
        "Environment=B": "3",
        "ExecStart": "/env/bin/python -m sglang.launch_server  --speculative-algorithm NEXTN --port 30000",
    }
    drop_in = "[Service]\nEnvironment=\nEnvironment=C=4\nExecStart=\nExecStart=-/bin/other\n"
    assert merge([parse_unit(UNIT), parse_unit(drop_in)]) == {"Environment=C": "4", "ExecStart": "/bin/other"}


def test_a_unit_that_runs_as_its_file_says_has_no_drift() -> None:
    seen = drift(unit(), Process(7, ARGV, {"A": "1 2", "B": "3"}, started=100.0))
    assert not seen.any and seen.newer == ()


def test_an_edited_file_differs_from_what_runs() -> None:
    edited = UNIT.replace("NEXTN", "DDTREE").replace("B=3", "B=4")
    seen = drift(unit(edited), Process(7, ARGV, {"A": "1 2", "B": "3"}, started=10.0))
    assert [one.what for one in seen.running] == ["ExecStart", "Environment=B"]
    assert seen.running[1].one == "3" and seen.running[1].other == "4"
    assert seen.newer == ("/etc/s.service",)


def test_a_process_started_by_hand_is_not_taken_for_the_unit() -> None:
    assert not drift(unit(), Process(8, ["/other"], {}, started=10.0)).any


def test_a_hidden_value_is_not_called_different() -> None:
    seen = drift(unit(UNIT.replace("B=3", "B=(hidden)")), Process(7, ARGV, {"A": "1 2", "B": "3"}))
    assert not seen.any


def test_a_backup_differs_in_what_matters_or_only_in_the_file() -> None:
    one = unit()
    backups = [
        UnitFile("/etc/s.service.bak", UNIT.replace("NEXTN", "EAGLE"), 1.0, "other", "/etc/s.service"),
        UnitFile("/etc/s.service.old", UNIT + "# x\n", 1.0, "third", "/etc/s.service"),
        UnitFile("/etc/s.service~", UNIT, 1.0, "h", "/etc/s.service"),
    ]
    seen = drift(Unit(one.unit, shown=one.shown, files=one.files, backups=backups), None)
    assert [[d.what for d in backup.differ] for backup in seen.backups] == [["ExecStart"], ["file"], []]

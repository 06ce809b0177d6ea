"""The command line without an engine: parsing, refusals in one sentence, hostile text, start-up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddscope import __version__
from ddscope.cli import main
from ddscope.cli.errors import CommandError
from ddscope.cli.prompts import prompts_of
from ddscope.cli.text import printable


def run(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ddscope", *args], capture_output=True, text=True, cwd=cwd, timeout=60)


def one_sentence(text: str) -> bool:
    return text.count("\n") == 1 and text.startswith("ddscope: ") and "Traceback" not in text


def test_the_version_is_printed() -> None:
    assert run("--version").stdout == f"ddscope {__version__}\n"


@pytest.mark.parametrize(
    "args",
    [
        ["replay", "no-such-file.jsonl"],
        ["findings", "no-such-file.jsonl"],
        ["trace", "verify", "no-such-file.jsonl"],
        ["trace", "stats", "no-such-file.jsonl"],
        ["trace", "recover", "no-such-file.jsonl"],
        ["trace", "verify", "."],
        ["run", "--headless"],
        ["run", "--headless", "-i", "no-such-file.jsonl"],
        ["run", "--headless", "--prompt", "  "],
        ["run", "--prompt", "x"],  # no terminal here
        ["record", "--socket", "no-such.sock", "-o", "t.jsonl"],
        ["record", "--socket", ".", "-o", "t.jsonl"],
        ["record", "--socket", "*.sock", "-o", "t.jsonl"],
        ["record", "--socket", "/dev/null", "-o", "t.jsonl", "--wait", "60"],
        ["record", "--socket", "x", "-o", "/dev/null/t.jsonl"],
        ["attach", "--socket", "no-such.sock"],  # no terminal either
    ],
    ids=" ".join,
)
def test_what_cannot_be_done_is_said_in_one_sentence(args: list[str], tmp_path: Path) -> None:
    done = run(*args, cwd=tmp_path)
    assert done.returncode == 2
    assert one_sentence(done.stderr), done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["run", "--budget", "-1"],
        ["run", "--budget", "most"],
        ["run", "--temperature", "nan"],
        ["run", "--fault", "x"],
        ["replay"],
        ["record", "--socket", "x"],
        ["record", "-o", "x"],
        ["record", "--socket", "x", "-o", "x", "--for", "nan"],
        ["attach"],
        ["attach", "--socket", "x", "--wait", "-1"],
    ],
)
def test_an_option_out_of_range_is_refused_by_the_parser(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(args)
    assert refused.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n",
        b"not json\n",
        b"[]\n",
        b'{"prompt": ""}\n',
        b'{"prompt_ids": []}\n',
        b'{"prompt_ids": [1.5]}\n',
        b'{"prompt_ids": [true]}\n',
        b"\xff\xfe\n",
        b'{"other": 1}\n',
    ],
)
def test_an_input_file_that_does_not_fit_names_the_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    with pytest.raises(CommandError, match=r"in\.jsonl"):
        prompts_of(None, path)


def test_prompts_come_in_order_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "a"}\n\n{"prompt_ids": [1, 0]}\n', "utf-8")
    assert prompts_of(["first"], path) == [{"prompt": "first"}, {"prompt": "a"}, {"prompt_ids": [1, 0]}]


@given(st.text())
def test_printable_text_holds_no_control_character_and_hides_nothing(text: str) -> None:
    shown = printable(text)
    assert all(c == "\n" or c.isprintable() for c in shown)
    assert len(shown) >= len(text)


def test_completion_scripts_name_every_command() -> None:
    script = run("completion", "bash").stdout
    assert all(name in script for name in ("run", "attach", "record", "replay", "trace", "findings", "completion"))


def test_a_recording_never_writes_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("precious")
    done = run("record", "--socket", "x.sock", "-o", "t.jsonl", cwd=tmp_path)
    assert done.returncode == 2 and one_sentence(done.stderr)
    assert (tmp_path / "t.jsonl").read_text() == "precious"


def test_what_it_waits_for_is_said_before_it_gives_up(tmp_path: Path) -> None:
    done = run("record", "--socket", "*.sock", "-o", "t.jsonl", "--wait", "0.2", cwd=tmp_path)
    waiting, said = done.stderr.splitlines()
    assert done.returncode == 2
    assert (
        waiting.startswith("Waiting. No socket matches *.sock")
        and said == f"ddscope: {waiting.removeprefix('Waiting. ')}"
    )


def test_nothing_is_written_where_there_is_no_server(tmp_path: Path) -> None:
    done = run("record", "--socket", "x.sock", "-o", "t.jsonl", cwd=tmp_path)
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_leaves_a_pipe_early_causes_no_complaint(tmp_path: Path) -> None:
    code = f"{sys.executable} -m ddscope completion bash | head -n 1"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_the_sample_trace_is_a_valid_run_without_faults() -> None:
    from ddscope.cli.replay import sample_trace

    assert main(["trace", "verify", str(sample_trace())]) == 0
    done = run("findings", "--json", str(sample_trace()))
    assert done.returncode == 0
    assert [finding for finding in json.loads(done.stdout) if finding["severity"] != "info"] == []

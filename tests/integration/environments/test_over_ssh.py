"""Doctor and hooks on a host that is reached over a real ssh connection."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.environments.test_hooks import hashed
from tests.integration.environments.venvs import MOVES, SPEC, SPEC_INFO, server
from tests.integration.host.conftest import sshd  # noqa: F401 (a fixture)
from tests.integration.host.sshd import NAME, Sshd


@pytest.fixture
def environ(sshd: Sshd, tmp_path: Path) -> dict[str, str]:  # noqa: F811
    """For ddscope; on the host, its own things are kept in a folder of this test."""
    sshd.stop()
    sshd.write_config(f"SetEnv DDSCOPE_STATE={tmp_path / 'state'}")
    sshd.start()
    return {**os.environ, **sshd.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def ddscope(environ: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ddscope", *args], capture_output=True, text=True, timeout=300, env=environ
    )


def test_a_host_is_looked_at_and_put_back_with_the_command_that_the_doctor_gave(
    environ: dict[str, str], tmp_path: Path
) -> None:
    venv = server(tmp_path / "env with space")
    (venv.site / (SPEC + ".bak")).write_text(SPEC_INFO)
    before = hashed(venv.folder)
    venv.patch(SPEC, *MOVES)
    done = ddscope(environ, "doctor", "--host", NAME, "--python", venv.python, "--no-download", "--no-load", "--json")
    assert done.returncode == 1, done.stderr
    (one,) = json.loads(done.stdout)["hosts"]
    facts = {fact["name"]: fact["value"] for fact in one["facts"]}
    assert one["host"] == NAME == facts["host.env"]["host"]
    command = shlex.split(facts["files.skew"]["restore"][0])
    assert command[:4] == ["ddscope", "hooks", "rollback", "--host"]
    back = ddscope(environ, *command[1:], "--yes", "--no-download")
    assert back.returncode == 0, back.stderr
    assert hashed(venv.folder) == before


@pytest.mark.slow
def test_hooks_go_in_and_out_over_ssh(environ: dict[str, str], tmp_path: Path) -> None:
    venv = server(tmp_path / "env")
    before = hashed(venv.folder)
    options = ["--host", NAME, "--python", venv.python]
    assert ddscope(environ, "hooks", "install", *options, "--yes").returncode == 0
    told = json.loads(ddscope(environ, "hooks", "status", *options, "--json").stdout)
    assert told["installed"] == told["viewer"] and told["journal"].startswith(str(tmp_path / "state"))
    back = ddscope(environ, "hooks", "rollback", *options, "--yes")
    assert back.returncode == 0 and "Equal: every byte" in back.stdout
    assert hashed(venv.folder) == before


def test_a_host_against_another_is_one_table(environ: dict[str, str], tmp_path: Path) -> None:
    venv = server(tmp_path / "env")
    options = ["--python", venv.python, "--no-download", "--no-load"]
    done = ddscope(environ, "doctor", "--host", NAME, "--against", "localhost", *options)
    assert done.returncode == 0 and "do not differ" in done.stdout, done.stderr


@pytest.mark.parametrize("command", [["doctor"], ["hooks", "status"], ["hooks", "install", "--yes"]])
def test_a_host_that_cannot_be_reached_is_one_sentence(
    environ: dict[str, str],
    sshd: Sshd,  # noqa: F811
    command: list[str],
) -> None:
    sshd.stop()
    done = ddscope(environ, *command, "--host", NAME, "--python", sys.executable)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    assert NAME in done.stderr


def test_a_host_without_a_server_is_one_sentence(environ: dict[str, str]) -> None:
    done = ddscope(environ, "doctor", "--host", NAME, "--pid", "999999999")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--python" in done.stderr

"""The hooks put into real environments and taken out again, every byte; and turned on by a drop-in."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddscope.cli import main
from ddscope.remote import Host, HostError
from ddscope.remote.doctor.locate import Server
from ddscope.remote.hooks import enabling, operations
from ddscope.remote.hooks.environment import Environment
from ddscope.remote.hooks.ledger import add_up
from ddscope.remote.hooks.status import lines, status
from ddscope.remote.hooks.wheel import ENTRY, build
from ddscope.remote.sudo import Sudo
from tests.integration.environments.systemctl import Units
from tests.integration.environments.venvs import MOVES, SPEC, SPEC_INFO, Venv, digest, server

UNIT = "sglang-qwen.service"
TEXT = "[Service]\nEnvironment=A=1\nExecStart={python} -m sglang.launch_server --port 30000\n"


def hashed(folder: Path) -> str:
    """Names, modes, links and contents of a folder, counted here and not by what is tested."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(f"{path.relative_to(folder)} {path.lstat().st_mode:o}\n".encode())
        if path.is_symlink():
            digest.update(os.readlink(path).encode())
        elif path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is written outside of it: state, units, caches."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("DDSCOPE_STATE", str(folder / "state"))
    return folder


@pytest.fixture
def here(home: Path) -> Iterator[Host]:
    with Host("localhost") as host:
        yield host


@pytest.fixture
def units(home: Path, monkeypatch: pytest.MonkeyPatch) -> Units:
    made = Units(home)
    monkeypatch.setenv("PATH", f"{made.bin}:{os.environ['PATH']}")
    return made


def command(*args: str, python: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ddscope", "hooks", *args, "--python", python],
        capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
    )  # fmt: skip


class Person:
    """Says yes or no, and remembers what was said to it."""

    def __init__(self, answer: bool = True) -> None:
        self.answer = answer
        self.heard: list[str] = []

    def say(self, line: str) -> None:
        self.heard.append(line)

    def ask(self, question: str) -> bool:
        self.heard.append(question)
        return self.answer

    @property
    def text(self) -> str:
        return "\n".join(self.heard)


# the wheel ---------------------------------------------------------------------------------------------------------


def test_equal_sources_make_equal_wheels_of_nothing_but_hooks() -> None:
    one, two = build(), build()
    assert one.data == two.data and one.version == two.version
    with zipfile.ZipFile(io.BytesIO(one.data)) as wheel:
        names = wheel.namelist()
        assert {name.split("/")[0].split("-")[0] for name in names} == {"ddscope_hooks"}
        assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
        assert {info.date_time for info in wheel.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        entry = wheel.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    from ddscope_hooks import plugin

    assert ENTRY == (plugin.GROUP, plugin.NAME, "ddscope_hooks.plugin:register")
    assert entry == f"[{plugin.GROUP}]\n{plugin.NAME} = ddscope_hooks.plugin:register\n"


# into an environment and out of it ---------------------------------------------------------------------------------


PIP = pytest.mark.parametrize("pip", [pytest.param(True, marks=pytest.mark.slow), False], ids=["pip", "without pip"])


@PIP
def test_install_and_rollback_leave_every_byte_as_it_was(home: Path, tmp_path: Path, pip: bool) -> None:
    venv = server(tmp_path / "env", pip=pip)
    before = hashed(venv.folder)
    done = command("install", "--yes", python=venv.python)
    assert done.returncode == 0, done.stderr
    assert hashed(venv.folder) != before
    # SGLang's way to find it, in the server's own Python; this one does write byte code, as a server does.
    found = subprocess.run(
        [venv.python, "-c", "from importlib.metadata import entry_points as e; import ddscope_hooks.emit;"
         "print([p.load().__name__ for p in e(group='sglang.srt.plugins')])"],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""}, cwd="/",
    )  # fmt: skip
    assert found.stdout == "['register']\n"
    assert list(venv.site.glob("ddscope_hooks/__pycache__/*.pyc"))
    again = command("install", "--yes", python=venv.python)
    assert again.returncode == 0 and "installed already" in again.stdout
    back = command("rollback", "--yes", python=venv.python)
    assert back.returncode == 0 and "Equal: every byte" in back.stdout, back.stdout + back.stderr
    assert hashed(venv.folder) == before
    assert ("-m pip" in done.stdout) is pip


def test_every_command_is_shown_before_and_none_runs_without_a_yes(here: Host, tmp_path: Path) -> None:
    venv = server(tmp_path / "env")
    before, person = hashed(venv.folder), Person(answer=False)
    assert operations.install(Environment(here, venv.python), person.say, person.ask, quick=False) is False
    assert hashed(venv.folder) == before
    assert person.heard[-2] == "Go on?" and "ddscope_hooks" in person.text and str(venv.site) in person.text
    done = command("install", python=venv.python)
    assert done.returncode == 2 and "--yes" in done.stderr and hashed(venv.folder) == before


def test_what_else_changed_meanwhile_is_told_and_left_alone(home: Path, tmp_path: Path) -> None:
    venv = server(tmp_path / "env")
    assert command("install", "--yes", python=venv.python).returncode == 0
    (venv.site / "sglang/extra.py").write_text("x = 1\n")
    back = command("rollback", "--yes", python=venv.python)
    assert back.returncode == 1 and "Not equal" in back.stdout and "added: " in back.stdout
    assert (venv.site / "sglang/extra.py").exists() and not (venv.site / "ddscope_hooks").exists()


def test_byte_code_of_others_is_no_difference_that_counts(home: Path, tmp_path: Path) -> None:
    venv = server(tmp_path / "env")
    assert command("install", "--yes", python=venv.python).returncode == 0
    subprocess.run([venv.python, "-c", "import sglang"], check=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""})
    back = command("rollback", "--yes", python=venv.python)
    assert back.returncode == 0 and "Equal but for byte code" in back.stdout


@PIP
def test_a_newer_viewer_replaces_its_hooks_and_goes_back_to_before_the_first(
    here: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pip: bool
) -> None:
    venv = server(tmp_path / "env", pip=pip)
    before, person, environment = hashed(venv.folder), Person(), Environment(here, venv.python)
    assert operations.install(environment, person.say, person.ask, quick=False)
    with monkeypatch.context() as patch:
        patch.setattr("ddscope.remote.hooks.wheel.__version__", "0.2.0")
        assert operations.install(environment, person.say, person.ask, quick=False)
        holder = environment.state().holder()
    assert holder is not None and holder.version.startswith("0.2.0+h") and holder.whole
    assert operations.undo(environment, person.say, person.ask)
    assert "Equal: every byte" in person.text and hashed(venv.folder) == before


def test_an_installation_that_broke_off_is_taken_back(
    here: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = server(tmp_path / "env")
    before, person, environment = hashed(venv.folder), Person(), Environment(here, venv.python)
    (venv.site / "ddscope_hooks").mkdir()
    (venv.site / "ddscope_hooks" / "plugin.py").write_text("mine\n")
    with pytest.raises(HostError, match="in the way"):
        operations.install(environment, person.say, person.ask, quick=False)
    assert [entry["state"] for entry in environment.state().journal] == ["begun", "failed"]
    assert (venv.site / "ddscope_hooks" / "plugin.py").read_text() == "mine\n"
    (venv.site / "ddscope_hooks" / "plugin.py").unlink()
    (venv.site / "ddscope_hooks").rmdir()
    assert hashed(venv.folder) == before


def test_hooks_of_somebody_else_are_neither_replaced_nor_removed(here: Host, tmp_path: Path) -> None:
    venv = server(tmp_path / "env")
    venv.install("ddscope", "0.1.0", {"ddscope_hooks/__init__.py": "", "ddscope/__init__.py": ""})
    before, person, environment = hashed(venv.folder), Person(), Environment(here, venv.python)
    with pytest.raises(HostError, match="nothing to install"):
        operations.install(environment, person.say, person.ask, quick=False)
    assert operations.undo(environment, person.say, person.ask) and "nothing to take back" in person.text
    assert hashed(venv.folder) == before


def test_a_record_that_lists_foreign_files_is_refused(here: Host, tmp_path: Path) -> None:
    venv = server(tmp_path / "env")
    person, environment = Person(), Environment(here, venv.python)
    assert operations.install(environment, person.say, person.ask, quick=False)
    record = next(venv.site.glob("ddscope_hooks-*.dist-info")) / "RECORD"
    record.write_text("sglang/__init__.py,,\n" + record.read_text())
    with pytest.raises(HostError, match="not of the hooks"):
        operations.undo(environment, person.say, person.ask)
    assert (venv.site / "sglang/__init__.py").exists()


# a file that somebody patched --------------------------------------------------------------------------------------


def test_a_patched_file_goes_back_to_its_wheels_after_its_diff_was_shown(home: Path, tmp_path: Path) -> None:
    venv = server(tmp_path / "env")
    (venv.site / (SPEC + ".bak")).write_text(SPEC_INFO)
    (venv.site / SPEC).chmod(0o640)
    before = hashed(venv.folder)
    venv.patch(SPEC, *MOVES)
    patched = (venv.site / SPEC).read_text()
    done = command("rollback", "--yes", "--no-download", "--file", SPEC, python=venv.python)
    assert done.returncode == 0, done.stderr
    assert "-    DDTREE = auto()" in done.stdout and "its backup" in done.stdout
    assert hashed(venv.folder) == before
    assert [path.read_text() for path in home.rglob("*-spec_info.py.*")] == [patched]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sglang/srt/ddtree_worker.py", "never in a wheel"),
        ("sglang/__init__.py", "is as its wheel has it"),
        ("../../../etc/passwd", "is as its wheel has it"),
        (SPEC, "cannot be put back"),
    ],
)
def test_what_cannot_be_put_back_is_said(home: Path, tmp_path: Path, name: str, words: str) -> None:
    venv = server(tmp_path / "env")
    (venv.site / "sglang/srt/ddtree_worker.py").write_text("x\n")
    venv.patch(SPEC, *MOVES)
    before = hashed(venv.folder)
    done = command("rollback", "--yes", "--no-download", "--file", name, python=venv.python)
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1
    assert hashed(venv.folder) == before


@pytest.mark.parametrize(
    ("path", "was", "words"),
    [("../x.py", None, "leads out"), ("/etc/x", None, "leads out"), (SPEC, "other", "has changed since")],
)
def test_the_host_refuses_to_write_elsewhere_or_over_something_new(
    here: Host, tmp_path: Path, path: str, was: str | None, words: str
) -> None:
    venv = server(tmp_path / "env")
    with pytest.raises(HostError, match=words):
        Environment(here, venv.python).ask(
            "restore", root=str(venv.site), path=path, was=was, data="eA==", sha256=digest(b"x")
        )


# a unit ------------------------------------------------------------------------------------------------------------


def enabled(host: Host, venv: Venv, person: Person, **options: object) -> bool:
    environment, one = Environment(host, venv.python), Server(venv.python, unit=UNIT, user=True)
    settings = {"target": None, "settings": {}, **options}
    return operations.enable(environment, one, person.say, person.ask, **settings)  # type: ignore[arg-type]


def test_the_whole_way_there_and_back(here: Host, units: Units, tmp_path: Path) -> None:
    venv = server(tmp_path / "env")
    text = TEXT.format(python=venv.python)
    path = units.add(UNIT, text)
    before, person, environment = hashed(venv.folder), Person(), Environment(here, venv.python)
    assert operations.install(environment, person.say, person.ask, quick=False)
    assert enabled(here, venv, person, settings={"DDSCOPE_TOPK": "8"})
    drop = units.folder / f"{UNIT}.d" / enabling.FILE
    assert drop.read_text() == (
        f"{enabling.MARK}\n[Service]\nRuntimeDirectory=ddscope/sglang-qwen\nRuntimeDirectoryMode=0700\n"
        'Environment="DDSCOPE=unix:%t/ddscope/sglang-qwen/%%p.sock"\nEnvironment="DDSCOPE_TOPK=8"\n'
    )
    assert path.read_text() == text  # the unit itself is nobody's business
    found = status(here, Server(venv.python, unit=UNIT, user=True), environment.state(), build())
    told = "\n".join(lines(found))
    assert "unix:/run/user/0/ddscope/sglang-qwen/%p.sock" in told and str(drop) in told
    assert operations.undo(environment, person.say, person.ask)
    assert not drop.parent.exists() and hashed(venv.folder) == before
    assert units.asked() == ["--user daemon-reload", "--user daemon-reload"]  # and never a restart
    assert f"systemctl --user restart {UNIT} && rm -r $XDG_RUNTIME_DIR/ddscope/sglang-qwen" in person.text
    states = [entry["state"] for entry in environment.state().journal]
    assert states == ["begun", "done"] * 4 and add_up(environment.state().journal) == add_up([])


def test_disable_removes_the_drop_in_and_keeps_the_wheel(here: Host, units: Units, tmp_path: Path) -> None:
    venv = server(tmp_path / "env")
    units.add(UNIT, TEXT.format(python=venv.python))
    folder = units.folder / f"{UNIT}.d"
    folder.mkdir()
    (folder / "10-mine.conf").write_text("[Service]\n")
    person, environment = Person(), Environment(here, venv.python)
    operations.install(environment, person.say, person.ask, quick=True)
    assert enabled(here, venv, person) and enabled(here, venv, person)
    assert operations.disable(environment, person.say, person.ask)
    assert [one.name for one in folder.iterdir()] == ["10-mine.conf"]
    assert environment.state().holder() is not None
    assert operations.disable(environment, person.say, person.ask) and "Nothing is enabled" in person.text


def test_a_drop_in_of_somebody_else_is_left_alone(here: Host, units: Units, tmp_path: Path) -> None:
    venv = server(tmp_path / "env")
    units.add(UNIT, TEXT.format(python=venv.python))
    person = Person()
    operations.install(Environment(here, venv.python), person.say, person.ask, quick=True)
    drop = units.folder / f"{UNIT}.d" / enabling.FILE
    drop.parent.mkdir()
    drop.write_text("[Service]\nEnvironment=MINE=1\n")
    with pytest.raises(HostError, match="not ddscope's"):
        enabled(here, venv, person)
    assert drop.read_text() == "[Service]\nEnvironment=MINE=1\n" and units.asked() == []


def test_a_list_of_allowed_plugins_gets_ours_added(here: Host, units: Units, tmp_path: Path) -> None:
    venv = server(tmp_path / "env")
    units.add(UNIT, TEXT.format(python=venv.python) + "Environment=SGLANG_PLUGINS=eagle_harness\n")
    person, environment = Person(), Environment(here, venv.python)
    operations.install(environment, person.say, person.ask, quick=True)
    found = status(here, Server(venv.python, unit=UNIT, user=True), environment.state(), build())
    assert "allows only eagle_harness" in "\n".join(lines(found))
    assert enabled(here, venv, person, target='file:/tmp/100%/a b"c.jsonl')
    text = (units.folder / f"{UNIT}.d" / enabling.FILE).read_text()
    assert 'Environment="SGLANG_PLUGINS=eagle_harness,ddscope"' in text
    assert 'Environment="DDSCOPE=file:/tmp/100%%/a b\\"c.jsonl"' in text and "RuntimeDirectory" not in text
    unit = enabling.load_unit(here, UNIT, True)
    assert unit.environment["DDSCOPE"] == 'file:/tmp/100%/a b"c.jsonl'


@pytest.mark.parametrize(
    ("program", "target", "settings", "words"),
    [
        ("/usr/bin/docker run x", None, {}, "container"),
        ("/bin/python -m x", "tcp:1.2.3.4:5", {}, "TCP is not served"),
        ("/bin/python -m x", None, {"DDSCOPE_TOPK": "many"}, "DDSCOPE_TOPK"),
        ("/bin/python -m x", None, {"LD_PRELOAD": "/x.so"}, "not a variable of the hooks"),
        ("/bin/python -m x", "unix:/run/a\nExecStart=/bin/sh", {}, "line break"),
    ],
)
def test_what_must_not_be_enabled_is_refused_and_nothing_written(
    here: Host, units: Units, tmp_path: Path, program: str, target: str | None, settings: dict[str, str], words: str
) -> None:
    venv = server(tmp_path / "env")
    units.add(UNIT, f"[Service]\nExecStart={program}\n")
    person = Person()
    operations.install(Environment(here, venv.python), person.say, person.ask, quick=True)
    with pytest.raises(HostError, match=words):
        enabled(here, venv, person, target=target, settings=settings)
    assert not (units.folder / f"{UNIT}.d").exists() and units.asked() == []


def test_enabling_before_installing_or_without_a_unit_is_one_sentence(
    here: Host, units: Units, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = server(tmp_path / "env")
    person, environment = Person(), Environment(here, venv.python)
    units.add(UNIT, TEXT.format(python=venv.python))
    with pytest.raises(HostError, match="install comes first"):
        enabled(here, venv, person)
    with pytest.raises(HostError, match="no systemd unit"):
        operations.enable(environment, Server(venv.python), person.say, person.ask, target=None, settings={})
    operations.install(environment, person.say, person.ask, quick=True)
    (units.bin / "systemctl").unlink()
    monkeypatch.setenv("PATH", f"{units.bin}:{Path(sys.executable).parent}")
    with pytest.raises(HostError, match="no systemd"):
        enabled(here, venv, person)


def test_the_status_as_json_is_one_object(home: Path, tmp_path: Path) -> None:
    venv = server(tmp_path / "env")
    done = command("status", "--json", python=venv.python)
    told = json.loads(done.stdout)
    assert told["installed"] is None and told["viewer"] == build().version and told["changes"] == 0


@pytest.mark.parametrize("part", ["status", "install", "rollback"])
def test_a_python_that_is_not_there_is_one_sentence(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hooks", part, "--python", "/no/such/python"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "/no/such/python" in said


# as root -----------------------------------------------------------------------------------------------------------


def test_with_sudo_everything_goes_through_it_and_a_refusal_is_one_sentence(
    here: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv, programs = server(tmp_path / "env"), tmp_path / "programs"
    programs.mkdir()
    (programs / "sudo").write_text(
        f'#!/bin/sh\nprintf "%s " "$@" >> {programs}/log; echo >> {programs}/log\nshift 2\nexec "$@"\n'
    )
    (programs / "sudo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    before, person, environment = hashed(venv.folder), Person(), Environment(Sudo(here), venv.python)
    assert operations.install(environment, person.say, person.ask, quick=False)
    assert operations.undo(environment, person.say, person.ask) and hashed(venv.folder) == before
    asked = (programs / "log").read_text().splitlines()
    assert len(asked) > 6 and all(line.startswith(f"-n -- {venv.python} -B -") for line in asked)
    (programs / "sudo").write_text("#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n")
    with pytest.raises(HostError, match="a password is required"):
        environment.state()
    (programs / "sudo").unlink()
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(HostError, match="has no sudo"):
        environment.state()

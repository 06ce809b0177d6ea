"""Taking a socket's path: who may read it, whose it is, what is in the way."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ddscope_hooks.emit import EmitError, Emitter
from ddscope_hooks.emit.sockets import Listener
from tests.unit.emit_support import HEADER, RawViewer, emitting, wait_for

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else for a moment")


def test_the_socket_is_its_users_alone_and_so_is_a_folder_made_for_it(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        listener = Listener(str(tmp_path / "new" / "deep" / "s"))
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.lstat(listener.path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(tmp_path / "new" / "deep").st_mode) == 0o700
    assert os.listdir(tmp_path / "new" / "deep") == ["s"], "nothing else is left in the folder"
    listener.close()
    assert not os.path.lexists(listener.path)


def test_a_folder_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(0o755)
    Listener(str(tmp_path / "there" / "s")).close()
    assert stat.S_IMODE(os.stat(tmp_path / "there").st_mode) == 0o755


def test_percent_p_is_the_pid(tmp_path: Path) -> None:
    emitter = Emitter("engine/0", HEADER)
    assert emitter.listen(f"unix:{tmp_path}/%p.sock") == f"{tmp_path}/{os.getpid()}.sock"
    emitter.close()


def test_the_socket_of_a_dead_process_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    code = "import socket,sys,os; s=socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); os._exit(0)"
    assert subprocess.run([sys.executable, "-c", code, path], check=False).returncode == 0
    assert os.path.exists(path)
    with emitting(tmp_path) as (_, used):
        assert used == path
        RawViewer(path).until(lambda b: b.of("header"), "the header")


def test_a_path_that_a_live_process_serves_is_refused_and_left_alone(tmp_path: Path) -> None:
    with emitting(tmp_path) as (_, path):
        second = Emitter("engine/0", HEADER)
        with pytest.raises(EmitError, match="A running process listens on"):
            second.listen(f"unix:{path}")
        second.close()
        RawViewer(path).until(lambda b: b.of("header"), "the first one's header")


def test_a_live_process_with_a_full_queue_of_callers_is_still_alive(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(path)
        busy.listen(0)
        callers = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        for caller in callers:
            caller.setblocking(False)
            caller.connect_ex(path)
        with pytest.raises(EmitError, match="A running process listens"):
            Listener(path)
        for caller in callers:
            caller.close()


def test_what_is_no_socket_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(EmitError, match="is not a socket"):
            Listener(str(tmp_path / name))
    assert (tmp_path / "file").read_text() == "precious" and (tmp_path / "link").is_symlink()


def test_a_path_too_long_for_a_socket_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(EmitError, match="too long for a unix socket"):
        Listener(str(tmp_path / ("x" * 120)))


def test_a_path_of_the_greatest_length_works(tmp_path: Path) -> None:
    path = str(tmp_path / "x")
    listener = Listener(path + "x" * (107 - len(path)))
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(listener.path)
    listener.close()


@pytest.mark.parametrize("target", ["tcp:127.0.0.1:1", "unix:", "file:", "/just/a/path", "http://x", ""])
def test_anything_but_a_unix_socket_or_a_file_is_refused(target: str) -> None:
    emitter = Emitter("engine/0", HEADER)
    with pytest.raises(EmitError, match="must be unix:PATH or file:PATH"):
        emitter.listen(target)
    emitter.close()


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "s", tmp_path / "file" / "deeper" / "s"):
        with pytest.raises(EmitError, match=r"^Cannot make the folder .*file.*: a file is in the way\.$"):
            Listener(str(path))


def test_closing_does_not_remove_a_successors_socket(tmp_path: Path) -> None:
    first = Listener(str(tmp_path / "s"))
    os.unlink(first.path)
    second = Listener(str(tmp_path / "s"))
    first.close()
    assert os.path.exists(second.path)
    second.close()


@as_root
def test_another_users_socket_file_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(path))
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(EmitError, match=f"belongs to user id {NOBODY}"):
        Listener(str(path))
    assert path.exists()


@as_root
def test_another_user_gets_nothing_even_when_the_mode_would_let_him_in(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o755)
    with emitting(tmp_path) as (emitter, path):
        os.chmod(path, 0o666)
        code = (
            "import os,socket,sys; os.setuid(65534); s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
            "s.settimeout(10); sys.exit(0 if s.recv(100) == b'' else 5)"
        )
        assert subprocess.run([sys.executable, "-S", "-c", code, path], check=False).returncode == 0
        assert emitter.counters.viewers == ()
        v = RawViewer(path)
        v.until(lambda b: b.of("header"), "the header for its own user")
        wait_for(lambda: len(emitter.counters.viewers) == 1, "the one viewer")

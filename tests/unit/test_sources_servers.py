"""From sockets, folders and patterns to the servers behind them: what is found, what is refused, what comes later."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ddscope.sources import NotThereError, Servers, SourceError, await_servers
from ddscope.sources.finding import find, is_many, sockets_of
from ddscope.sources.intake import Names
from ddscope_hooks.emit import Emitter
from tests.unit.emit_support import HEADER, Books, wait_for


def listening(path: Path, src: str = "engine/0", **options: Any) -> Emitter:
    emitter = Emitter(src, HEADER, **options)
    emitter.listen(f"unix:{path}")
    return emitter


def dead(path: Path) -> Path:
    """A socket whose process is gone."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
    return path


class Sink:
    """Keeps the books of what comes, from any thread."""

    def __init__(self) -> None:
        self.books = Books()
        self._lock = threading.Lock()

    def __call__(self, batch: bytes) -> None:
        with self._lock:
            self.books.take_all(batch)


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def emitters() -> Iterator[list[Emitter]]:
    made: list[Emitter] = []
    yield made
    for emitter in made:
        emitter.close()


# finding --------------------------------------------------------------------------------------------------------


def test_a_folder_and_a_pattern_stand_for_the_sockets_that_have_a_server(
    tmp_path: Path, emitters: list[Emitter]
) -> None:
    emitters += [listening(tmp_path / f"{name}.sock") for name in ("b", "a")]
    dead(tmp_path / "dead.sock")
    (tmp_path / "note.txt").write_text("no socket")
    live = [tmp_path / "a.sock", tmp_path / "b.sock"]
    assert find([tmp_path]) == live
    assert find([f"{tmp_path}/*.sock"]) == live
    assert find([tmp_path / "b.sock", f"{tmp_path}/?.sock"]) == [tmp_path / "b.sock", tmp_path / "a.sock"], "each once"


def test_a_name_with_magic_characters_that_exists_is_itself(tmp_path: Path, emitters: list[Emitter]) -> None:
    emitters.append(listening(tmp_path / "[x].sock"))
    assert not is_many(tmp_path / "[x].sock")
    assert find([tmp_path / "[x].sock"]) == [tmp_path / "[x].sock"]
    (tmp_path / "[d]").mkdir()
    emitters.append(listening(tmp_path / "[d]" / "s"))
    assert sockets_of(tmp_path / "[d]") == [tmp_path / "[d]" / "s"]


def sentence(caught: pytest.ExceptionInfo[SourceError]) -> str:
    text = str(caught.value)
    assert "\n" not in text and text.endswith((".", "?"))
    return text


def test_what_is_not_there_is_said_and_waiting_may_help(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for wanted, said in (
        (tmp_path / "no.sock", "There is no socket at"),
        (dead(tmp_path / "dead.sock"), "Nobody listens on"),
        (tmp_path / "folder", "There is no socket in"),
        (f"{tmp_path}/nothing-*.sock", "No socket matches"),
        (f"{tmp_path}/d*.sock", "Nobody listens on"),
        (tmp_path / "no" / "folder" / "s", "There is no socket at"),
    ):
        with pytest.raises(NotThereError) as caught:
            find([wanted])
        assert sentence(caught).startswith(said)


def test_what_can_never_be_followed_is_refused_at_once_however_long_it_may_wait(
    tmp_path: Path, emitters: list[Emitter]
) -> None:
    (tmp_path / "file").write_text("x")
    emitters.append(listening(tmp_path / "s"))
    stranger = os.geteuid() + 1
    with pytest.raises(SourceError) as caught:
        await_servers([tmp_path / "file"], 60.0)
    assert sentence(caught) == f"{tmp_path}/file is not a socket."
    if os.geteuid() != 0:
        with pytest.raises(SourceError) as caught:
            await_servers([tmp_path / "s"], 60.0, uid=stranger)
        assert "not followed" in sentence(caught)
    else:
        os.chown(tmp_path / "s", 65534, 65534)
        with pytest.raises(SourceError) as caught:
            await_servers([tmp_path / "s"], 60.0)
        assert sentence(caught) == f"{tmp_path}/s belongs to user id 65534: not followed."


def test_a_server_that_is_starting_is_waited_for_and_that_is_told_once(tmp_path: Path, emitters: list[Emitter]) -> None:
    told: list[str] = []
    found: queue.Queue[list[Path]] = queue.Queue()
    waiting = threading.Thread(
        target=lambda: found.put(await_servers([tmp_path / "s"], 20.0, waiting=told.append)), daemon=True
    )
    waiting.start()
    wait_for(lambda: told, "the word that it waits")
    emitters.append(listening(tmp_path / "s"))
    assert found.get(timeout=20.0) == [tmp_path / "s"]
    waiting.join(20.0)
    assert len(told) == 1 and told[0].startswith("There is no socket at")


# following ------------------------------------------------------------------------------------------------------


def test_servers_of_one_name_get_names_of_their_own_and_each_has_its_books(
    tmp_path: Path, sink: Sink, emitters: list[Emitter]
) -> None:
    emitters += [listening(tmp_path / name) for name in ("a", "b")]
    servers = Servers([tmp_path / "a", tmp_path / "b"], sink)
    servers.start()
    for number, emitter in enumerate(emitters):
        for _ in range(20 + number):
            emitter.emit("mark", {"n": number})
    wait_for(lambda: len(sink.books.of("mark")) == 41, "all marks")
    assert {"engine/0", "engine/0#2"} == set(sink.books.emitted)
    assert sorted(sink.books.received.values()) == [21, 22]
    servers.stop()


def test_a_socket_that_appears_in_a_folder_is_followed_and_what_dead_servers_left_is_not(
    tmp_path: Path, sink: Sink, emitters: list[Emitter]
) -> None:
    dead(tmp_path / "dead.sock")
    emitters.append(listening(tmp_path / "0.sock"))
    servers = Servers([tmp_path], sink)
    servers.start()
    wait_for(lambda: servers.state == "connected", "the first server")
    emitters.append(listening(tmp_path / "1.sock", "engine/1"))
    wait_for(lambda: len(sink.books.of("header")) == 2, "the second server")
    assert [member.path.name for member in servers.members] == ["0.sock", "1.sock"]
    os.unlink(tmp_path / "dead.sock")
    emitters.append(listening(tmp_path / "dead.sock", "engine/2"))
    wait_for(lambda: len(sink.books.of("header")) == 3, "the server that came in the place of a dead one")
    servers.stop()


def test_all_are_gone_when_the_last_is_and_not_before(tmp_path: Path, sink: Sink, emitters: list[Emitter]) -> None:
    servers = Servers([tmp_path / "a", tmp_path / "b"], sink)
    assert servers.gone_s is None and servers.state == "connecting"
    emitters += [listening(tmp_path / name) for name in ("a", "b")]
    servers.start()
    wait_for(lambda: all(member.state == "connected" for member in servers.members), "both")
    assert servers.reason == ""
    emitters[0].close()
    wait_for(lambda: servers.members[0].state == "lost", "the first loss")
    assert servers.gone_s is None and servers.state == "connected"
    emitters[1].close()
    wait_for(lambda: servers.gone_s is not None, "the second loss")
    assert servers.state == "lost" and str(tmp_path) in servers.reason
    with closing(listening(tmp_path / "b")):
        wait_for(lambda: servers.gone_s is None, "the one that came back")
        servers.stop()


def test_a_command_goes_to_every_server_that_is_connected(tmp_path: Path, sink: Sink, emitters: list[Emitter]) -> None:
    got: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
    emitters += [
        listening(tmp_path / name, control=True, on_control=lambda m, name=name: got.put((name, m["args"])))
        for name in ("a", "b")
    ]
    servers = Servers([tmp_path], sink)
    with pytest.raises(SourceError, match="`flush` was not sent: no server is connected"):
        servers.send("flush", {})
    servers.start()
    wait_for(lambda: all(member.state == "connected" for member in servers.members), "both")
    servers.send("sampling", {"every": 3})
    assert sorted(got.get(timeout=20.0) for _ in range(2)) == [("a", {"every": 3}), ("b", {"every": 3})]
    emitters[0].close()
    wait_for(lambda: servers.members[0].state == "lost", "the loss")
    servers.send("flush", {})
    assert got.get(timeout=20.0)[0] == "b"
    servers.stop()


def test_names_count_up_a_source() -> None:
    names = Names()
    assert [names.give(src) for src in ("engine/0", "engine/1", "engine/0", "engine/0")] == [
        "engine/0", "engine/1", "engine/0#2", "engine/0#3",
    ]  # fmt: skip

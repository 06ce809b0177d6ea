"""From what a person names (a socket, a folder, a pattern) to the sockets that have a server, or why there are none.

Nothing is followed here. A server with %p or %r in its path makes one socket a rank, so a folder or a pattern is usual.
"""

from __future__ import annotations

import glob
import os
import socket
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ddscope.sources.errors import SourceError
from ddscope.sources.trust import check_peer, check_socket, trusted

Wanted = str | os.PathLike[str]

PROBE_S = 2.0
LOOK_S = 0.1


class NotThereError(SourceError):
    """Nobody listens, as yet: waiting may help."""


def is_many(wanted: Wanted) -> bool:
    """Whether it stands for any number of sockets: a folder, or a pattern that is not the name of something."""
    text = os.fspath(wanted)
    return os.path.isdir(text) or (glob.has_magic(text) and not os.path.lexists(text))


def sockets_of(wanted: Wanted) -> list[Path]:
    """Sockets of a folder or pattern, in the order of their names; the path itself otherwise, whatever is there."""
    text = os.fspath(wanted)
    if not is_many(wanted):
        return [Path(text)]
    names = glob.glob(os.path.join(glob.escape(text), "*") if os.path.isdir(text) else text)
    return [Path(name) for name in sorted(names) if _is_socket(name)]


def _is_socket(name: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(name).st_mode)
    except OSError:
        return False


def probe(path: Path, uid: int | None = None) -> None:
    """Raises NotThereError when nobody listens, SourceError when the path is no socket or a stranger's."""
    uids = trusted(uid)
    try:
        check_socket(path, uids)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(PROBE_S)
            sock.connect(os.fspath(path))
            check_peer(sock, path, uids)
    except (FileNotFoundError, NotADirectoryError):
        raise NotThereError(f"There is no socket at {path}: is a server running with DDSCOPE=unix:{path}?") from None
    except ConnectionRefusedError:
        raise NotThereError(f"Nobody listens on {path}: the server that made it is gone.") from None
    except TimeoutError:
        raise NotThereError(f"The server on {path} takes no new viewer.") from None
    except OSError as error:
        raise SourceError(f"{path} cannot be followed: {error.strerror or error}.") from None


def find(wanted: Sequence[Wanted], uid: int | None = None) -> list[Path]:
    """Every socket that somebody listens on, each once. Raises NotThereError or SourceError for the first that fails.

    A path that was named must have a server; of a folder or pattern one is enough, and what is left of servers that are
    gone does not count.
    """
    found: dict[Path, None] = {}
    for one in wanted:
        paths = sockets_of(one)
        if not is_many(one):
            probe(paths[0], uid)
            found[paths[0]] = None
            continue
        live, why = _alive(paths, uid)
        if not live:
            raise why or NotThereError(
                f"There is no socket in {os.fspath(one)}: is a server running with DDSCOPE=unix:…/%p.sock?"
                if os.path.isdir(one)
                else f"No socket matches {os.fspath(one)}: is a server running with DDSCOPE set to such a path?"
            )
        found.update(dict.fromkeys(live))
    return list(found)


def _alive(paths: Sequence[Path], uid: int | None) -> tuple[list[Path], SourceError | None]:
    """Those of a folder that can be followed, and why the first of the others cannot."""
    live: list[Path] = []
    why: SourceError | None = None
    for path in paths:
        try:
            probe(path, uid)
        except SourceError as problem:
            why = why or problem
        else:
            live.append(path)
    return live, why


def await_servers(
    wanted: Sequence[Wanted], wait_s: float, *, waiting: Callable[[str], None] = lambda _: None, uid: int | None = None
) -> list[Path]:
    """`find`, given `wait_s` seconds for servers that are just starting. waiting: told once why it waits."""
    deadline = time.monotonic() + wait_s
    told = False
    while True:
        try:
            return find(wanted, uid)
        except NotThereError as problem:
            if time.monotonic() >= deadline:
                raise
            if not told:
                told = True
                waiting(str(problem))
            time.sleep(min(LOOK_S, max(deadline - time.monotonic(), 0)))

"""Small things: running a tool of the host (its output, or why there is none), reading a file, text for JSON."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any


def tool(argv: list[str], timeout: float = 10.0) -> tuple[str, str]:
    """(standard output, what went wrong): one of them is empty."""
    if shutil.which(argv[0]) is None:
        return "", argv[0] + " is not there"
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            env=dict(os.environ, LC_ALL="C", SYSTEMD_PAGER="", SYSTEMD_COLORS="0"),
        )
    except subprocess.TimeoutExpired:
        return "", f"{argv[0]} did not answer in {timeout:g} s"
    except OSError as error:
        return "", f"{argv[0]}: {error.strerror or error}"
    out, err = done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
    if done.returncode:
        said = (err.strip() or out.strip() or f"exit status {done.returncode}").splitlines()
        return "", f"{argv[0]}: {said[-1]}"
    return out, ""


def read(path: str, limit: int = 1 << 20) -> bytes | None:
    """The first `limit` bytes of a file; None when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except OSError:
        return None


def read_text(path: str, limit: int = 1 << 20) -> str | None:
    """A file as text, bytes that are not UTF-8 replaced."""
    data = read(path, limit)
    return None if data is None else data.decode("utf-8", "replace")


def named(pairs: dict[str, Any]) -> dict[str, Any]:
    """Without what is not known."""
    return {name: value for name, value in pairs.items() if value is not None}


def plain(value: Any) -> Any:
    """Strings that any JSON reader takes: file names that are not UTF-8 with their bytes as \\xNN."""
    if isinstance(value, str):
        try:
            data = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:  # half of a pair, from somebody's JSON
            data = value.encode("utf-8", "backslashreplace")
        return data.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {plain(name): plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value

"""Lines of an SGLang server's log as small values: batches, readiness, phases of the start, requests, deaths. Pure.

A line is text from anywhere: whatever comes, `parse` returns, looks at no more than a bounded head, and never raises.
The prefix `[2026-09-21 14:10:36 DP0 TP1] ` is taken apart word by word, as the order of the rank tags is not fixed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isfinite
from typing import Any

from ddscope.diagnose.log_events import (
    Death,
    Decode,
    Event,
    Http,
    Line,
    Phase,
    Prefill,
    Prefix,
    Ready,
    ServerArgs,
    Stop,
    Version,
    Watchdog,
)

MAX_TEXT = 20_000  # characters of a line that are looked at
MAX_PREFIX = 160
MAX_FIELDS = 64  # of a batch line, or of the server's arguments ×16
MAX_ARGS = 1024


_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d\d:\d\d:\d\d(?:[.,]\d{1,6})?")
_TAG = re.compile(r"([A-Z][A-Z_]{0,15})(\d{1,6})")
_ITERATION = re.compile(r" \[(\d{1,15})\]")
_HTTP = re.compile(r'"([A-Z]{3,8}) (\S{1,300})(?: HTTP/[\d.]{1,4})?" (\d{3})\b')
_WATCHDOG = re.compile(
    r"([\w ]{0,40}?) ?watchdog timeout(?: \((?:self\.)?watchdog_timeout=([\d.]{1,12}), (?:self\.)?soft=(True|False)\))?"
)
_CRASHED = re.compile(r"Subprocess (\S{1,80})(?: \(pid=(\d{1,10})\))? crashed with exit code (-?\d{1,6})")
_WORKER = re.compile(r"Worker proc(?:ess)? (\S{1,80}) died unexpectedly")
_SIGNUM = re.compile(r"signum=(\d{1,3})")
_VERSION = re.compile(r"sglang version:? v?(\d[\w.+-]{0,40})", re.I)
_SHARE = re.compile(r"(\d{1,3})%[^\r]{0,40}?(?:\|[^|\r]{0,80}\| ?|Completed \| )(\d{1,7})/(\d{1,7})")
_PERCENT = re.compile(r"(\d{1,3})%")
_BEGIN_END = re.compile(r"(Load weight|Capture [\w ]{0,40}?(?:graph|graphs)) (begin|end)\b", re.I)

_PROGRESS = (
    ("checkpoint shards", "loading weights"),
    ("loading shards", "loading weights"),
    ("Capturing batches", "capturing graphs"),
    ("Capturing num tokens", "capturing graphs"),
    ("Capturing CUDA graphs", "capturing graphs"),
    ("DeepGEMM warmup", "compiling kernels"),
    ("DeepGEMM JIT", "compiling kernels"),
    ("JIT Pre-Compile", "compiling kernels"),
    ("Compiling", "compiling kernels"),
    ("Autotuning", "tuning kernels"),
)  # fmt: skip


def parse(message: str) -> Line:
    """A line taken apart. Of a line that a progress bar wrote over itself, the last state counts."""
    text = message[:MAX_TEXT]
    prefix: Prefix | None = None
    if text[:1] == "[":
        prefix, text = _prefix(text)
    return Line(text, prefix, event_of(text))


def _prefix(text: str) -> tuple[Prefix | None, str]:
    end = text.find("]", 0, MAX_PREFIX)
    words = text[1:end].split() if end > 0 else []
    if len(words) < 2 or not _DATE.fullmatch(words[0]) or not _TIME.fullmatch(words[1]):
        return None, text
    ranks = {tag[1]: int(tag[2]) for tag in map(_TAG.fullmatch, words[2:]) if tag}
    return Prefix(f"{words[0]} {words[1]}", ranks), text[end + 1 :].removeprefix(" ")


def event_of(text: str) -> Event | None:
    """What a message without its prefix says; None where that is not known."""
    head = text[:12]
    if head == "Decode batch":
        return _decode(text)
    if head == "Prefill batc":
        return _prefill(text)
    for mark, read in _READERS:
        if mark in text:
            event = read(text)
            if event is not None:
                return event
    return None


def _fields(text: str, skip: int) -> tuple[int | None, dict[str, float], dict[str, bool]]:
    """(iteration, numbers, truths) of `Decode batch [12], name: value, …`."""
    numbers: dict[str, float] = {}
    truths: dict[str, bool] = {}
    iteration = _ITERATION.match(text, skip)
    for part in text[skip : skip + 4000].split(", ")[:MAX_FIELDS]:
        name, colon, value = part.rpartition(": ")
        if not colon:
            continue
        number = _number(value)
        if number is not None:
            numbers[name[:60]] = number
        elif value in ("True", "False"):
            truths[name[:60]] = value == "True"
    return (int(iteration[1]) if iteration else None), numbers, truths


def _number(value: str) -> float | None:
    if len(value) > 24 or not value.isascii() or "_" in value:
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if isfinite(number) else None


def _count(fields: dict[str, float], *names: str) -> int | None:
    for name in names:
        value = fields.get(name)
        if value is not None and 0 <= value < 2**53 and value == int(value):
            return int(value)
    return None


def _positive(fields: dict[str, float], name: str) -> float | None:
    value = fields.get(name)
    return value if value is not None and value >= 0 else None


def _graph(truths: dict[str, bool]) -> bool | None:
    """The label names the backend: `cuda graph`, `cpu graph`, `npu graph`."""
    return next((truth for name, truth in truths.items() if name.endswith("graph")), None)


def _decode(text: str) -> Decode | None:
    iteration, numbers, truths = _fields(text, 12)
    if not numbers:
        return None
    return Decode(
        **_load(iteration, numbers, truths),
        tokens=_count(numbers, "#token", "#full token"),
        accept_len=_positive(numbers, "accept len"),
        accept_rate=_positive(numbers, "accept rate"),
        cap_len=_positive(numbers, "cap len"),
        block_accept_len=_positive(numbers, "block accept len"),
        throughput=_positive(numbers, "gen throughput (token/s)"),
    )


def _prefill(text: str) -> Prefill | None:
    iteration, numbers, truths = _fields(text, 13)
    if not numbers:
        return None
    return Prefill(
        **_load(iteration, numbers, truths),
        new_seqs=_count(numbers, "#new-seq"),
        new_tokens=_count(numbers, "#new-token"),
        cached_tokens=_count(numbers, "#cached-token"),
    )


def _load(iteration: int | None, numbers: dict[str, float], truths: dict[str, bool]) -> dict[str, Any]:
    """What both kinds of batch lines tell."""
    return {
        "running": _count(numbers, "#running-req"),
        "queue": _count(numbers, "#queue-req"),
        "graph": _graph(truths),
        "iteration": iteration,
        "fields": numbers,
    }


# -- other lines -----------------------------------------------------------------------------------------------------


def _ready(text: str) -> Ready | None:
    return Ready()


def _http(text: str) -> Http | None:
    found = _HTTP.search(text, 0, 600)
    return Http(found[1], found[2], int(found[3])) if found else None


def _watchdog(text: str) -> Watchdog | None:
    found = _WATCHDOG.search(text, 0, 400)
    if not found:
        return None
    timeout = _number(found[2]) if found[2] else None
    return Watchdog(found[1].strip(), timeout, None if found[3] is None else found[3] == "True")


def _crashed(text: str) -> Death | None:
    found = _CRASHED.search(text, 0, 400)
    return Death("subprocess", found[1], int(found[2]) if found[2] else None, int(found[3])) if found else None


def _worker(text: str) -> Death | None:
    found = _WORKER.search(text, 0, 400)
    return Death("worker", found[1]) if found else None


def _exception(text: str) -> Death | None:
    who = text.partition(" hit an exception")[0]
    return Death("exception", who) if len(who) <= 60 else None


def _sigquit(text: str) -> Death | None:
    signum = _SIGNUM.search(text, 0, 400)
    return Death("sigquit", code=int(signum[1]) if signum else None)


def _stop(text: str) -> Stop | None:
    return Stop() if text.startswith("SIGTERM received.") else None


def _version(text: str) -> Version | None:
    found = _VERSION.search(text, 0, 400)
    return Version(found[1]) if found else None


def _phase(text: str) -> Phase | None:
    named = _BEGIN_END.search(text, 0, 400)
    if named:
        name = "loading weights" if named[1].lower() == "load weight" else "capturing graphs"
        return Phase(name, named[2].lower())
    text = text.rpartition("\r")[2] if "\r" in text else text
    for mark, name in _PROGRESS:
        if mark in text:
            share = _SHARE.search(text, 0, 1000)
            if share:
                done = share[2] == share[3]
                return Phase(name, "end" if done else "progress", f"{share[2]}/{share[3]}")
            percent = _PERCENT.search(text, 0, 1000)
            if percent:
                return Phase(name, "progress", f"{percent[1]}%")
            return Phase(name, "begin") if mark.startswith(("DeepGEMM JIT", "JIT")) else None
    return None


def _server_args(text: str) -> ServerArgs | None:
    found = re.search(r"server_args=\s*(?:[\w.]{0,60}\(|\{)", text[:MAX_PREFIX])
    return arguments(text, found.end(), ":" if found[0].endswith("{") else "=") if found else None


def arguments(text: str, start: int, between: str) -> ServerArgs | None:
    """Arguments from a place in a line on, up to the bracket that closes them. between: a name and its value."""
    values: dict[str, str] = {}
    for part in _top_level(text, start):
        name, sign, value = part.partition(between)
        if sign and len(name) <= 80:
            values[_unquoted(name.strip())] = _unquoted(value.strip())
    return ServerArgs(values) if values else None


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) >= 2 and value[0] in "'\"" and value[-1] == value[0] else value


def _top_level(text: str, start: int) -> list[str]:
    """Parts between commas that are in no bracket and no string, up to the bracket that closes it all."""
    parts: list[str] = []
    depth, quote, begin = 0, "", start
    at = start
    while at < len(text) and len(parts) < MAX_ARGS:
        char = text[at]
        if quote:
            if char == "\\":
                at += 1
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth < 0:
                break
        elif char == "," and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
        at += 1
    parts.append(text[begin:at])
    return parts


_READERS: tuple[tuple[str, Callable[[str], Event | None]], ...] = (
    (" HTTP/", _http),
    ("server_args=", _server_args),
    ("fired up and ready to roll", _ready),
    ("watchdog timeout", _watchdog),
    ("crashed with exit code", _crashed),
    ("died unexpectedly", _worker),
    (" hit an exception", _exception),
    ("sigquit from a child", _sigquit),
    ("SIGQUIT received", _sigquit),
    ("SIGTERM received", _stop),
    ("sglang version", _version),
    ("Load weight ", _phase),
    ("Capture ", _phase),
    *((mark, _phase) for mark, _ in _PROGRESS),
)

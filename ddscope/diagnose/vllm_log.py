"""Lines of a vLLM server's log as the same small values that SGLang's become. Pure; whatever comes, it returns.

A line is vLLM's when it begins as its loggers do: `(EngineCore_DP0 pid=12) INFO 08-04 20:51:08 [loggers.py:310] …`, of
old versions without the bracket, or with the bracket alone (progress bars, the web server).
"""

from __future__ import annotations

import re

from ddscope.diagnose.log_events import Death, Decode, Event, Line, Phase, Prefix, Ready, Version
from ddscope.diagnose.sglang_log import MAX_TEXT, arguments, event_of

_PROCESS = re.compile(r"\(([A-Z]\w{1,40})(?: rank=(\d{1,6}))? pid=(\d{1,10})\) ?")
_LEVEL = re.compile(
    r"(?:\[[\w.-]{1,40}\] )?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) +"
    r"((?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?) \[?[\w./-]{1,120}:\d{1,6}\] ?"
)
_RANK = re.compile(r"(TP|DP|PP|EP)(\d{1,6})")
_LOAD = re.compile(
    r"Avg prompt throughput: ([\d.]{1,15}) tokens/s, Avg generation throughput: ([\d.]{1,15}) tokens/s, "
    r"Running: (\d{1,9}) reqs, .{0,80}?Waiting: (\d{1,9}) reqs"
)
_LENGTH = re.compile(r"Mean acceptance length: ([\d.]{1,12})")
_RATE = re.compile(r"Avg Draft acceptance rate: ([\d.]{1,12})%")
_VERSION = re.compile(r"vLLM API server version (\d[\w.+-]{0,40})")
_ARGUMENTS = re.compile(r"(?:non-default args: |args: Namespace)[{(]")
_DRAFTED = re.compile(r"Drafted: (\d{1,15}) tokens")
FEW = 100  # drafted tokens: a report of fewer says nothing of acceptance
_HEAD = 400  # characters in which a line says what it is

_PHASES = (
    ("Starting to load model ", "loading weights", "begin"),
    ("Loading weights took ", "loading weights", "end"),
    ("Model loading took ", "loading weights", "end"),
    ("Dynamo bytecode transform time", "compiling kernels", "begin"),
    ("torch.compile takes ", "compiling kernels", "end"),
    ("torch.compile took ", "compiling kernels", "end"),
    ("Graph capturing finished", "capturing graphs", "end"),
)
_READY = "Starting vLLM API server"
"""Said when the engine is up, weights, kernels and graphs included; the port opens within the second."""

_DEATHS = ("EngineCore failed to start", "EngineCore encountered a fatal error", "EngineCore hit an exception")


def parse(message: str) -> Line | None:
    """A line of vLLM's taken apart; None for one that is not vLLM's."""
    if message[:1] not in "([DIWEC" or not message:
        return None
    text = message[:MAX_TEXT]
    who, at = _PROCESS.match(text), 0
    if who is not None:
        at = who.end()
    level = _LEVEL.match(text, at)
    if level is not None:
        at = level.end()
    elif who is None:
        return None
    ranks = {tag: int(number) for tag, number in _RANK.findall(who[1])} if who is not None else {}
    if who is not None and who[2] is not None:
        ranks["TP"] = int(who[2])
    prefix = Prefix(level[1] if level is not None else "", ranks, int(who[3]) if who is not None else None)
    rest = text[at:]
    return Line(rest, prefix, _event(rest) or event_of(rest))


def _event(text: str) -> Event | None:
    head = text[:_HEAD]
    if "throughput: " in head:
        if "SpecDecoding metrics" in head:
            return _acceptance(text)
        return _load(text)
    if "SpecDecoding metrics" in head:
        return _acceptance(text)
    if _READY in head:
        return Ready()
    if head.startswith(_DEATHS):
        return Death("exception", "EngineCore")
    for mark, name, state in _PHASES:
        if mark in head:
            return Phase(name, state)
    found = _VERSION.search(head)
    if found:
        return Version(found[1])
    begun = _ARGUMENTS.search(head)
    if begun:
        return arguments(text, begun.end(), ":" if begun[0].endswith("{") else "=")
    return None


def _load(text: str) -> Decode | None:
    """Every ten seconds, also while nothing moves: only a line that tells of tokens is a sign of work."""
    found = _LOAD.search(text, 0, 1000)
    if found is None:
        return None
    prompt, generated = _number(found[1]), _number(found[2])
    if not prompt and not generated:
        return None
    return Decode(running=int(found[3]), queue=int(found[4]), throughput=generated)


def _acceptance(text: str) -> Decode | None:
    """The mean length counts the target's own token, the rate is of what was drafted."""
    length, rate = _LENGTH.search(text, 0, 1000), _RATE.search(text, 0, 2000)
    if length is None and rate is None:
        return None
    drafted = _DRAFTED.search(text, 0, 1000)
    if drafted is not None and int(drafted[1]) < FEW:
        return Decode()  # it works, and that is all
    told, share = _number(length[1]) if length else None, _number(rate[1]) if rate else None
    return Decode(accept_len=told, accept_rate=share / 100 if share is not None else None)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None

"""The environment of a server, parsed: where to emit, what to leave out, who may command. Nothing is imported for it.

A wrong value never stops a server: it turns the hooks off, or the option back to its default, and is said once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

REDACTIONS = ("", "text", "ids")
MAX_TOPK = 64


@dataclass(frozen=True)
class Sample:
    """What is left out on a busy server.

    every: record each N-th decoding pass; 0 records no step at all. rid: only requests whose id begins with it.
    max_bytes_per_s: bound of what steps make as lines; 0 is no bound.
    """

    every: int = 1
    rid: str = ""
    max_bytes_per_s: int = 0


@dataclass(frozen=True)
class Config:
    """targets: `unix:PATH` and `file:PATH`; none: the hooks stay off. relay: records are made and sent by a process of
    their own. problems: sentences about bad values."""

    targets: tuple[str, ...] = ()
    control: bool = False
    sample: Sample = field(default_factory=Sample)
    topk: int = 0
    redact: str = ""
    relay: bool = True
    problems: tuple[str, ...] = ()


def wanted(environ: Mapping[str, str]) -> bool:
    """Whether the hooks were asked for at all: the one question a process without them pays for."""
    return bool(environ.get("DDSCOPE", "").strip())


def read(environ: Mapping[str, str]) -> Config:
    """The configuration that `environ` asks for. Never raises."""
    problems: list[str] = []
    config = Config(targets=_targets(environ.get("DDSCOPE", ""), problems))
    config = replace(
        config,
        control=_switch(environ, "DDSCOPE_CONTROL", False, problems),
        relay=_switch(environ, "DDSCOPE_RELAY", True, problems),
    )
    try:
        config = replace(config, sample=sample(_pairs(environ.get("DDSCOPE_SAMPLE", ""))))
    except ValueError as error:
        problems.append(f"DDSCOPE_SAMPLE is ignored: {error}")
    try:
        config = replace(config, topk=whole("DDSCOPE_TOPK", environ.get("DDSCOPE_TOPK", "").strip() or 0, MAX_TOPK))
    except ValueError as error:
        problems.append(f"DDSCOPE_TOPK is ignored: {error}")
    redact = environ.get("DDSCOPE_REDACT", "").strip().lower()
    if redact not in REDACTIONS:
        # Somebody wanted something kept private, and nobody knows what: nothing is recorded then.
        problems.append(f"DDSCOPE_REDACT takes text or ids, not {redact!r}: the hooks stay off.")
        return replace(config, targets=(), problems=tuple(problems))
    return replace(config, redact=redact, problems=tuple(problems))


def sample(values: Mapping[str, object], before: Sample | None = None) -> Sample:
    """Sampling controls by name over `before`. Raises ValueError in one sentence for the first that is wrong."""
    now = before or Sample()
    for name, value in values.items():
        if name == "every":
            now = replace(now, every=whole("every", value, 1 << 30))
        elif name == "max_bytes_per_s":
            now = replace(now, max_bytes_per_s=whole("max_bytes_per_s", value, 1 << 40))
        elif name == "rid":
            if not isinstance(value, str) or len(value) > 256:
                raise ValueError("rid takes the beginning of a request id.")
            now = replace(now, rid=value)
        else:
            raise ValueError(f"there is no {name!r}; there are every, rid and max_bytes_per_s.")
    return now


def whole(name: str, value: object, high: int) -> int:
    """A whole number from 0 to `high`, given as one or as text. Raises ValueError in one sentence."""
    number = -1
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() and len(value) < 20:
        number = int(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    if not 0 <= number <= high:
        raise ValueError(f"{name} takes a whole number from 0 to {high:,}, not {value!r}.")
    return number


def _targets(text: str, problems: list[str]) -> tuple[str, ...]:
    targets = [part.strip() for part in text.split(",") if part.strip()]
    for target in targets:
        scheme, _, path = target.partition(":")
        if scheme not in ("unix", "file") or not path:
            why = "TCP is not served" if scheme == "tcp" else "it must be unix:PATH or file:PATH"
            problems.append(f"DDSCOPE: cannot emit to {target!r} ({why}): the hooks stay off.")
            return ()
    return tuple(targets)


def _switch(environ: Mapping[str, str], name: str, default: bool, problems: list[str]) -> bool:
    value = environ.get(name, "").strip().lower()
    if value in ("1", "true", "yes", "on"):
        return True
    if value in ("0", "false", "no", "off"):
        return False
    if value:
        problems.append(f"{name} takes 0 or 1, not {value!r}: it stays {int(default)}.")
    return default


def _pairs(text: str) -> dict[str, object]:
    pairs: dict[str, object] = {}
    for part in text.split(","):
        if part.strip():
            name, _, value = part.partition("=")
            pairs[name.strip()] = value.strip()
    return pairs

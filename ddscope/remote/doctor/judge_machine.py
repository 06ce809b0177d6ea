"""What torch build, driver, GPU and libraries mean together."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddscope.remote.doctor.causes import Cause, cause, explain
from ddscope.remote.doctor.collected import Collected, Gpu, Loading
from ddscope.remote.doctor.items import Item, Severity, several, shown

CORE = ("torch", "triton", "sglang-kernel", "sgl-kernel", "vllm")
"""Without these no server of the kind begins."""


def judge(found: Collected) -> Iterator[Item]:
    """Items about torch, driver and GPUs, then about libraries."""
    yield from _build(found)
    yield from _architecture(found)
    for row in found.loading or ():
        if not row.loads:
            yield _library(found, row)
    tried = [row for row in found.loading or () if row.loads]
    if tried:
        yield Item("env.abi", "fine", f"Load: {several([row.module for row in tried], 20)}.")


def _major(version: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d+)(?:\.(\d+))?", version or "")
    return (int(found[1]), int(found[2] or 0)) if found else None


def _build(found: Collected) -> Iterator[Item]:
    torch, gpu = found.torch, found.gpu
    if torch is None or torch.version is None:
        yield Item(
            "env.abi",
            "critical",
            "There is no torch in this Python: is it the server's?",
            next=("Name it with --python or --pid.",),
        )
        return
    built = f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}" if torch.hip else "the CPU only"
    said = f"torch {shown(torch.version)} is built for {shown(built)}"
    machine = (f"driver {shown(gpu.driver)}" if gpu.driver else "no NVIDIA driver") + (
        f", takes up to CUDA {shown(gpu.driver_cuda)}" if gpu.driver_cuda else ""
    )
    have, need = _major(gpu.driver_cuda), _major(torch.cuda)
    if gpu.gpus and not torch.cuda and not torch.hip:
        title = f"{said}, but there are GPUs: {several([one.name for one in gpu.gpus])}."
        yield Item("env.abi", "high", title, (machine,), ("Install the CUDA build of this torch.",))
    elif have is not None and need is not None and have[0] < need[0]:
        steps = (f"A newer driver, or a torch built for CUDA {have[0]}.",)
        yield Item(
            "env.abi", "critical", f"{said}; the driver takes only CUDA {shown(gpu.driver_cuda)}.", (machine,), steps
        )
    elif torch.cuda and not gpu.gpus:
        yield Item("env.abi", "high", f"{said}, and no GPU answers: {shown(gpu.why or 'none is listed')}.", (machine,))
    else:
        fits = f" on {several([one.name for one in gpu.gpus])}" if gpu.gpus else ""
        yield Item("env.abi", "fine", f"{said}{fits}; {machine}.")


def _architecture(found: Collected) -> Iterator[Item]:
    listed = next((row.arch_list for row in found.loading or () if row.module == "torch" and row.arch_list), None)
    for gpu in dict.fromkeys(found.gpu.gpus):
        if listed and _major(gpu.capability) is not None and not runs_on(gpu, listed):
            title = f"torch holds no code for {shown(gpu.name)} (compute capability {shown(gpu.capability)})."
            yield Item(
                "env.abi",
                "critical",
                title,
                (f"it holds {several(listed, 12)}",),
                ("Install a torch built for this GPU.",),
            )


def runs_on(gpu: Gpu, listed: list[str]) -> bool:
    """Whether code of these architectures (`sm_90`, `compute_90`) runs on a GPU.

    sm_XY runs on its own major with the same or a higher minor; compute_XY is compiled for anything newer; a trailing
    letter binds code to one architecture (CUDA C++ programming guide, section Compute capability).
    """
    own = _major(gpu.capability)
    for name in listed:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", name)
        if found is None or own is None:
            continue
        have = int(found[2]), int(found[3])
        if have == own or (not found[4] and have <= own and (found[1] == "compute" or have[0] == own[0])):
            return True
    return False


def needed(found: Collected, row: Loading) -> bool | None:
    """Whether the server cannot serve without a library that does not load; None where that cannot be told."""
    if found.server_info is not None and found.server_info.settings is not None:
        return False  # it answers, so it began without
    if row.package in CORE:
        return True
    if row.needs is None or not row.needs.imported_by:
        return False if row.needs is not None else None
    first = [one for one in row.needs.imported_by if one.how == "at import" and "/multimodal/" not in one.file]
    return None if first else False


def _library(found: Collected, row: Loading) -> Item:
    why = cause(row.error or "")
    must = needed(found, row)
    severity: Severity = "critical" if must else "info" if must is False else "warning"
    end = {
        True: "The server cannot begin without it.",
        False: "The server answers without it." if _answers(found) else "Nothing needs it to serve text.",
        None: "Whether the server needs it depends on what it runs.",
    }[must]
    title = f"{shown(row.module)} does not load: {shown(why.inner, 200)}. {end}"
    return Item("env.abi", severity, title, tuple(_evidence(found, row, why)), tuple(_steps(why, must)))


def _answers(found: Collected) -> bool:
    return found.server_info is not None and found.server_info.settings is not None


def _evidence(found: Collected, row: Loading, why: Cause) -> Iterator[str]:
    if why.outer != why.inner:
        yield f"said last: {shown(why.outer, 200)}"
    meaning = explain(why, found.torch.cuda if found.torch is not None else None)
    if meaning:
        yield meaning
    if row.needs is None:
        return
    if row.needs.required_by:
        yield f"required by: {several(row.needs.required_by)}"
    ways = {"at import": "when the module is imported", "guarded": "in a try", "later": "inside a function"}
    for one in row.needs.imported_by[:6]:
        yield f"imported by: {shown(one.file)}:{one.line} ({ways.get(one.how, shown(one.how))})"
    if len(row.needs.imported_by) > 6:
        yield f"and {len(row.needs.imported_by) - 6} more places"


def _steps(why: Cause, must: bool | None) -> Iterator[str]:
    if must is False:
        yield (
            "Nothing, unless requests with audio, video or pictures are to be served."
            if why.ffmpeg_only
            else "Nothing now."
        )
        return
    if why.missing:
        yield f"Find it: find / -name '{why.missing.split('.so')[0]}.so*' 2>/dev/null; ldconfig -p"

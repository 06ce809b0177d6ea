"""Why an import failed: the outermost message, the innermost cause, and the library that was not found. Pure text."""

from __future__ import annotations

import re
from dataclasses import dataclass

_RAISED = re.compile(
    r"^\s*((?:[A-Za-z_][\w.]*\.)?[A-Za-z_]\w*(?:Error|Exception|Warning|Exit|Interrupt)): ?(.*)$", re.M
)
_MISSING = re.compile(r"([\w.+-]*\.so[\w.]*): cannot open shared object file")
_CONCRETE = re.compile(
    r"cannot open shared object file|undefined symbol|version `[^']*' not found|no kernel image|No module named"
    r"|wrong ELF class|invalid ELF header|driver version is insufficient"
)
_FFMPEG = re.compile(r"lib(av\w+|sw\w+|postproc)\.so")
_CUDA_LIBRARY = re.compile(
    r"^lib(cudart|cublas|cublasLt|cudnn|cufft|curand|cusolver|cusparse|nvrtc|nvJitLink|nppi\w*)\.so\.(\d+)"
)


@dataclass(frozen=True)
class Cause:
    """outer: what was raised last; inner: what it goes back to; missing: the library file that was not found."""

    outer: str
    inner: str
    missing: str | None = None
    ffmpeg_only: bool = False


def cause(error: str) -> Cause:
    """The cause in a traceback.

    torchcodec tries one FFmpeg after another and shows an error for each: errors about the FFmpegs that are not
    installed are expected, so any other one is the cause. Only where there is no other is FFmpeg what is missing.
    """
    raised = [f"{kind}: {said}".rstrip(": ") for kind, said in _RAISED.findall(error)]
    if not raised:
        last = error.strip().splitlines()
        line = last[-1].strip() if last else "it failed without a word"
        return Cause(line, line)
    concrete = [line for line in raised if _CONCRETE.search(line)]
    others = [line for line in concrete if not _FFMPEG.search(line)]
    inner = (others or concrete or raised)[0]
    missing = _MISSING.search(inner)
    return Cause(raised[-1], inner, missing[1] if missing else None, bool(concrete) and not others)


def explain(found: Cause, torch_cuda: str | None) -> str:
    """What the cause means, in a sentence; empty where it speaks for itself."""
    library = _CUDA_LIBRARY.match(found.missing or "")
    if library and torch_cuda and library[2] != torch_cuda.split(".")[0] and library[1] not in ("cudnn", "cufft"):
        return f"It was built for CUDA {library[2]}; torch here is built for CUDA {torch_cuda}."
    if library:
        return "A library of the CUDA toolkit is missing or not on the library path."
    if found.ffmpeg_only:
        return "The shared libraries of FFmpeg are not installed; a static ffmpeg program does not bring them."
    symbol = re.search(r"undefined symbol: (\S+)", found.inner)
    if symbol and re.search(r"c10|torch|2at|aten", symbol[1]):
        return "It was built against another torch (the symbol is torch's): install the build that fits this torch."
    if symbol and re.match(r"cu[A-Z]", symbol[1]):
        return (
            "The driver is older than it needs (the symbol is the driver's): a newer one, or a build for an older CUDA."
        )
    if "no kernel image" in found.inner:
        return "It holds no code for this GPU's architecture."
    if "No module named" in found.inner:
        return "A package that it needs is not installed."
    return ""

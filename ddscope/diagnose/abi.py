"""Errors of binaries that do not fit each other, told apart by what they name. Pure functions over text.

Which layer is too old is in the symbol: `c10`/`torch` is PyTorch's C++ interface, `cu` and a capital letter is the
driver, `GLIBCXX` the C++ library. The advice that is printed with it is not asked: it is the same for all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST = 4000

_SYMBOL = re.compile(r"undefined symbol: ?([\w.@:~<>*&, ()]{1,300})")
_VERSION = re.compile(r"version [`']((?:GLIBCXX|GLIBC|CXXABI)_[\d.]{1,12})'? not found")
_NO_IMAGE = ("no kernel image is available", "cudaErrorNoKernelImageForDevice")
_DRIVER_OLD = (
    "CUDA driver version is insufficient",
    "driver on your system is too old",
    "provided PTX was compiled with an unsupported toolchain",
)
_TORCH = re.compile(
    r"(?:^|[^a-z])(?:c10|torch|at|aten|caffe2)(?:::|\d)|_Z\w*?(?:3c10|5torch|2at)\d?|THPVariable|aoti_torch"
)
_DRIVER = re.compile(r"^cu[A-Z]\w*")
_RUNTIME = re.compile(r"^(?:__)?(?:cuda[A-Z]|cublas|cudnn|nccl|nvrtc|nvjitlink|__nvJitLink)\w*", re.I)


@dataclass(frozen=True, slots=True)
class Misfit:
    """kind: torch, driver, runtime, architecture, libc, symbol. name: the symbol or version named."""

    kind: str
    name: str = ""

    @property
    def words(self) -> str:
        """What does not fit what, as the middle of a sentence."""
        named = f" (undefined symbol {self.name})" if self.name else ""
        return {
            "torch": f"a compiled library was built against another PyTorch than the one installed{named}",
            "driver": f"the NVIDIA driver is older than the CUDA that a library was built for{named}",
            "runtime": f"a library was built against another version of a CUDA library than the one it finds{named}",
            "architecture": "a library holds no code for this GPU's architecture",
            "libc": f"a library needs a newer C or C++ library than this system has ({self.name})",
            "symbol": f"a compiled library does not fit what it is loaded with{named}",
        }[self.kind]

    @property
    def next(self) -> tuple[str, ...]:
        """What to do."""
        return (_NEXT[self.kind],)


def classify(text: str) -> Misfit | None:
    """What an error message says of binaries that do not fit; None when it says nothing of them."""
    text = text[:LONGEST]
    if "undefined symbol" in text:
        found = _SYMBOL.search(text)
        return of_symbol(found[1].strip()) if found else None
    if any(mark in text for mark in _NO_IMAGE):
        return Misfit("architecture")
    if any(mark in text for mark in _DRIVER_OLD):
        return Misfit("driver")
    if "not found" in text and (found := _VERSION.search(text)) is not None:
        return Misfit("libc", found[1])
    return None


def of_symbol(symbol: str) -> Misfit:
    """Which layer an undefined symbol belongs to."""
    name = symbol[:120]
    if _DRIVER.match(symbol):
        return Misfit("driver", name)
    if _RUNTIME.match(symbol):
        return Misfit("runtime", name)
    return Misfit("torch" if _TORCH.search(symbol) else "symbol", name)


_NEXT = {
    "torch": "Compare the versions of torch and of the library that fails; install the build made for this torch.",
    "driver": "Compare the driver's CUDA with the one that torch and the library were built for; update the driver, or "
    "take builds for an older CUDA.",
    "runtime": "Look which file is loaded (LD_LIBRARY_PATH, pip's nvidia-… packages), and which version is wanted.",
    "architecture": "Compare the GPU's compute capability with the architectures of the build; take one that has it.",
    "libc": "Use the environment's own libstdc++ (LD_LIBRARY_PATH), or a build for this system.",
    "symbol": "Find which package holds the library, and which version of what it was built against.",
}

"""What the three commands share: where to compute, which target, and draws that depend on names alone."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch

from ddscope.engine.config import TargetConfig, read_target_config
from ddscope.engine.convert import default_target
from ddscope.engine.errors import EngineError
from ddscope.engine.training.progress import Progress

DEFAULT_NAME = "SmolLM2-135M-Instruct"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Place:
    """Where models compute and in which dtype."""

    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, device: str | None, dtype: str | None) -> Place:
        """None: the GPU if there is one; bfloat16 there, float32 on a CPU. Raises EngineError for what there is not."""
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            place = torch.device(device)
        except RuntimeError:
            raise EngineError(f"No device {device!r}; there are cpu and cuda") from None
        if place.type not in ("cpu", "cuda"):
            raise EngineError(f"No device {device!r}; there are cpu and cuda")
        if place.type == "cuda" and not torch.cuda.is_available():
            raise EngineError("This torch sees no CUDA device; use the cpu")
        if dtype is None:
            dtype = "bfloat16" if place.type == "cuda" else "float32"
        if dtype not in DTYPES:
            raise EngineError(f"No dtype {dtype!r}; there are {', '.join(DTYPES)}")
        return cls(place, DTYPES[dtype])

    @property
    def dtype_name(self) -> str:
        """float32 or bfloat16."""
        return str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class TargetFolder:
    """A target's folder, its configuration and what tells it from others."""

    folder: Path
    name: str
    config: TargetConfig
    fingerprint: str


def find_target(folder: Path | None, progress: Progress) -> TargetFolder:
    """The target in a folder; by default the engine's own, converted now if it is not there yet."""
    found = folder if folder is not None else default_target(progress.at)
    config = read_target_config(found)
    digest = hashlib.sha256((found / "config.json").read_bytes())
    for path in sorted(found.glob("*.safetensors")):
        # The whole of a large model is not read: its first MiB has names and shapes of all tensors and some weights.
        with path.open("rb") as file:
            digest.update(f"{path.name}:{path.stat().st_size}".encode() + file.read(1 << 20))
    name = DEFAULT_NAME if folder is None else found.resolve().name
    return TargetFolder(found, name, config, digest.hexdigest()[:16])


def seed_of(*names: object) -> int:
    """A seed for draws that depend on these names and on nothing drawn before, so that any point can be taken up."""
    return int.from_bytes(hashlib.sha256(":".join(map(str, names)).encode()).digest()[:8], "big") >> 1


def draws(device: torch.device, *names: object) -> torch.Generator:
    """A generator seeded by `seed_of`."""
    return torch.Generator(device).manual_seed(seed_of(*names))

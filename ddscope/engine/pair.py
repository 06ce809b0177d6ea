"""A target and its drafter, loaded together, with what is known about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ddscope.engine.config import DrafterConfig, check_pair, read_drafter_config, read_target_config
from ddscope.engine.convert import PACKAGE, Progress, default_target
from ddscope.engine.drafter import Drafter
from ddscope.engine.errors import EngineError
from ddscope.engine.faults import MASK_TOKEN, SOUND, Faults
from ddscope.engine.step import Params
from ddscope.engine.target import Target
from ddscope.engine.tokenizer import Tokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SHIPPED_DRAFT = Path(__file__).parent / "data" / "smollm2-dflash"
"""Folder of the drafter that comes with ddscope, with 192 held-out prompts beside it."""


@dataclass(frozen=True)
class Pair:
    """What a generator needs. `checkpoint` is the drafter's own configuration, `drafter.config` the one in force."""

    target: Target
    drafter: Drafter
    tokenizer: Tokenizer
    checkpoint: DrafterConfig
    target_name: str
    draft_name: str
    faults: Faults = SOUND

    @property
    def fault(self) -> Faults | None:
        """The deliberate fault in force, None when the engine is sound."""
        return self.faults if self.faults.name is not None else None

    @property
    def dtype_name(self) -> str:
        """float32 or bfloat16."""
        return str(self.target.dtype).removeprefix("torch.")

    @property
    def device_name(self) -> str:
        """cpu, cuda:0 …"""
        return str(self.target.device)

    @property
    def title(self) -> str:
        """The pair in words."""
        return f"{self.target_name} with {self.draft_name}, {self.dtype_name} on {self.device_name}"

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end a text."""
        return self.target.config.eos_ids

    def default_params(self) -> Params:
        """What decodes well on this device: on a GPU a row more of a verify costs little (docs/performance.md)."""
        return Params(budget=63) if self.target.device.type == "cuda" else Params()

    def describe(self) -> dict[str, Any]:
        """Fields of a header's `model`: names, never paths."""
        stack = self.target.config.stack
        return {
            "target": self.target_name,
            "draft": self.draft_name,
            "vocab_size": stack.vocab,
            "hidden_size": stack.hidden,
            "num_layers": stack.layers,
            "tokenizer_sha256": self.tokenizer.sha256,
        }

    def drafter_checkpoint(self) -> dict[str, Any]:
        """What the drafter's own configuration says, as the fact `drafter.checkpoint`."""
        return _as_fact(self.checkpoint)

    def drafter_in_force(self) -> dict[str, Any]:
        """The same keys, as the engine uses them, as the fact `drafter.in_force`."""
        return _as_fact(self.drafter.config)

    def with_faults(self, faults: Faults) -> Pair:
        """The same pair, weights shared, broken in one way (or sound again)."""
        target, drafter = self.target, self.drafter
        sound = {"mask_token_id": self.checkpoint.mask_token_id, "target_layer_ids": self.checkpoint.target_layer_ids}
        if "mask-token" in faults:
            drafter = drafter.with_config(**{**sound, "mask_token_id": MASK_TOKEN})
        elif "reversed-layers" in faults:
            drafter = drafter.with_config(**{**sound, "target_layer_ids": self.checkpoint.target_layer_ids[::-1]})
        else:
            drafter = drafter.with_config(**sound)
        if "nan-norm" in faults:
            weight = target.norm.weight.clone()
            weight[len(weight) // 2] = torch.nan
            target = target.with_norm(weight)
        return replace(self, target=target, drafter=drafter, faults=faults)


def check_prompt(pair: Pair, prompt_ids: Sequence[int]) -> None:
    """Raises EngineError when a prompt is empty, too long, or has ids outside the vocabulary."""
    stack = pair.target.config.stack
    if not prompt_ids:
        raise EngineError("The prompt is empty: at least one token is needed.")
    outside = [token for token in prompt_ids if not 0 <= token < stack.vocab]
    if outside:
        raise EngineError(f"The prompt has token {outside[0]}, outside the target's vocabulary of {stack.vocab:,}.")
    if len(prompt_ids) >= stack.max_positions:
        raise EngineError(f"The prompt has {len(prompt_ids):,} tokens; the target takes {stack.max_positions - 1:,}.")


def load_pair(
    target: Path | None = None,
    draft: Path | None = None,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    *,
    fault: str | None = None,
    progress: Progress | None = None,
) -> Pair:
    """Load a target and its drafter; by default SmolLM2-135M-Instruct and the drafter that comes with ddscope.

    target:   folder in Hugging Face's layout, of the Llama or Qwen3 family.
    draft:    folder in the z-lab DFlash layout, made for this target.
    progress: called with (what, done, total) while something takes long.
    Raises EngineError, in one sentence, when something is missing or the two do not fit.
    """
    faults = Faults(fault)
    if target is not None and draft is None:
        raise EngineError(f"{target} needs a drafter that was trained for it: give its folder too")
    kind, place = _dtype(dtype), _device(device)
    draft_folder = draft if draft is not None else SHIPPED_DRAFT
    checkpoint = read_drafter_config(draft_folder)
    folder = target if target is not None else default_target(progress)
    check_pair(read_target_config(folder), checkpoint)  # before hundreds of megabytes are read
    if progress is not None:
        progress("Loading the target", 0, 1)
    model = Target.load(folder, kind, place)
    pair = Pair(
        target=model,
        drafter=Drafter.load(draft_folder, model),
        tokenizer=Tokenizer(folder),
        checkpoint=checkpoint,
        target_name=f"SmolLM2-135M-Instruct ({PACKAGE})" if target is None else target.resolve().name,
        draft_name="smollm2-dflash" if draft is None else draft_folder.resolve().name,
    )
    if progress is not None:
        progress("Loading the target", 1, 1)
    return pair.with_faults(faults) if faults.name is not None else pair


def _as_fact(config: DrafterConfig) -> dict[str, Any]:
    fields = asdict(config)
    return {
        "block_size": fields["block_size"],
        "mask_token_id": fields["mask_token_id"],
        "target_layer_ids": list(fields["target_layer_ids"]),
        "num_target_layers": fields["num_target_layers"],
        "hidden_size": config.stack.hidden,
    }


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise EngineError(f"No dtype {name!r}; there are {', '.join(DTYPES)}")
    return DTYPES[name]


def _device(device: str | torch.device) -> torch.device:
    try:
        place = torch.device(device)
    except RuntimeError:
        raise EngineError(f"No device {device!r}; there are cpu and cuda") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise EngineError("This torch sees no CUDA device; use the cpu")
    if place.type not in ("cpu", "cuda"):
        raise EngineError(f"No device {str(device)!r}; there are cpu and cuda")
    return place

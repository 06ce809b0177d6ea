"""Options of the three commands: dataclasses, from whose fields the command lines are made, with defaults and units."""

# ruff: noqa: RUF009 -- _option is dataclasses.field
from __future__ import annotations

import argparse
import types
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from ddscope.engine.errors import EngineError
from ddscope.engine.pair import SHIPPED_DRAFT


def _option(help: str, default: Any = MISSING, *, low: float | None = None, high: float | None = None) -> Any:
    """A field with its help; low, high: the range of a number."""
    return field(default=default, metadata={"help": help, "low": low, "high": high})


@dataclass(frozen=True, kw_only=True)
class _Common:
    target: Path | None = _option("folder of the target in Hugging Face's layout (the embedded engine's own)", None)
    device: str | None = _option("cpu, cuda, cuda:1 … (cuda if there is one)", None)
    dtype: str | None = _option("of the target: float32 or bfloat16 (bfloat16 on cuda, float32 on a cpu)", None)
    seed: int = _option("equal seeds on equal machines give equal results", 0, low=0)

    def __post_init__(self) -> None:
        for one in fields(self):
            value, low, high = getattr(self, one.name), one.metadata["low"], one.metadata["high"]
            if value is None or (low is None and high is None):
                continue
            if (low is not None and value < low) or (high is not None and value > high) or value != value:
                bounds = f"at least {low:g}" if high is None else f"from {low:g} to {high:g}"
                raise EngineError(f"--{one.name.replace('_', '-')} must be {bounds}, not {value}")


@dataclass(frozen=True, kw_only=True)
class DataOptions(_Common):
    """The target writes prompts after its own chat prefix and answers them."""

    out: Path = _option("folder of the data; what is there already is kept and gone on with")
    sequences: int = _option("conversations wanted", 60_000, low=1)
    seconds: float | None = _option("begin no batch after so many seconds, however many there are", None, low=1)
    batch: int | None = _option("conversations written at once (4096 on cuda, 16 on a cpu)", None, low=1)
    prompt_tokens: int = _option("tokens of a prompt at most", 64, low=1)
    answer_tokens: int = _option("tokens of an answer at most", 256, low=2)
    min_prompt: int = _option("tokens; shorter prompts are left out", 4, low=1)
    min_answer: int = _option("tokens; shorter answers are left out", 8, low=3)
    prompt_temperature: float = _option("temperature at which prompts are written", 0.9, low=0)
    answer_temperature: float = _option("temperature of the answers that are not greedy", 0.7, low=0)
    greedy_share: float = _option("share of the answers that are greedy", 0.6, low=0, high=1)
    held_out: int = _option("prompts that are drawn first and kept out of the data", 192, low=1)
    held_out_file: Path | None = _option(
        "keep these prompts out instead, JSON lines (for the engine's own target: those beside the shipped drafter)",
        None,
    )
    graphs: bool = _option("one CUDA graph a token (cuda only)", True)
    compile: bool = _option("torch.compile what lies between products and attention (cuda only)", True)


@dataclass(frozen=True, kw_only=True)
class TrainOptions(_Common):
    """Train a DFlash drafter on such data and write it to RUN/drafter."""

    data: Path = _option("folder that `data` wrote")
    run: Path = _option("folder of the run: checkpoint, log, drafter; a run that is there is gone on with")
    steps: int = _option("optimizer steps", 10_000, low=1)
    seconds: float | None = _option("train for so many seconds instead of so many steps; not repeatable", None, low=1)
    start_from: Path | None = _option("drafter folder whose weights and shape are the start (random weights)", None)
    layers: int = _option("layers of the drafter", 4, low=1)
    block: int = _option("rows of a block, the anchor included", 16, low=2)
    intermediate: int | None = _option("width of the drafter's MLP (the target's)", None, low=1)
    heads: int | None = _option("attention heads (the target's)", None, low=1)
    kv_heads: int | None = _option("key-value heads (the target's)", None, low=1)
    features: int = _option("layers of the target that feed the drafter, evenly spaced", 5, low=1)
    mask_token: int = _option("id of the token that stands where one is to be drafted", 0, low=0)
    max_megabytes: float = _option("megabytes (10^6 bytes) of the bfloat16 file at most", 32.0, low=0)
    batch: int = _option("conversations a batch", 64, low=1)
    max_tokens: int = _option("tokens of a conversation at most; the rest is cut off", 384, low=16)
    anchors: int = _option("blocks a conversation", 32, low=1)
    passes: int = _option("optimizer steps a batch, for one forward of the target", 2, low=1)
    on_policy: float = _option(
        "share of anchors right after a rejection, from a batch's second pass on", 0.5, low=0, high=1
    )
    decay: float = _option("depths; a token at depth k weighs exp(-(k - 1) / decay)", 7.0, low=0.01)
    reach: float = _option(
        "share of a token's weight that goes with the likelihood that a step gets there", 0.9, low=0, high=1
    )
    deep: float = _option(
        "share of the blocks whose deeper half is judged: those likeliest to get there", 0.5, low=0.01, high=1
    )
    kl: float = _option(
        "share of the loss towards the target's distribution, the rest towards the text", 0.0, low=0, high=1
    )
    kl_topk: int = _option("likeliest tokens of the target that --kl looks at", 32, low=1)
    muon: bool = _option("Muon for matrices, with about three times the learning rate of AdamW", True)
    lr: float = _option("peak learning rate", 3e-3, low=0)
    final_lr: float = _option("share of it that is left at the end of the cosine", 0.02, low=0, high=1)
    warmup: int = _option("steps of linear warm-up", 200, low=0)
    weight_decay: float = _option("on matrices", 0.01, low=0)
    clip: float = _option("norm of the gradient at most", 1.0, low=0)
    graphs: bool = _option("one CUDA graph an optimizer step (cuda only)", True)
    compile: bool = _option("torch.compile what lies between products and attention (cuda only)", True)
    log_every: int = _option("steps between lines of the log", 50, low=1)
    checkpoint_every: int = _option("steps between checkpoints", 1000, low=1)


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(_Common):
    """Free-running mean emitted tokens per target forward (τ) on held-out prompts, greedy."""

    draft: Path = _option("drafter folder", SHIPPED_DRAFT)
    prompts: Path | None = _option("prompts, JSON lines (those beside the drafter, else beside the shipped one)", None)
    count: int = _option("prompts at most", 192, low=1)
    max_new_tokens: int = _option("tokens a prompt at most", 128, low=2)
    budgets: str = _option("chain and budgets of trees (nodes without the root), with commas", "chain,15,32,64,128")
    batch: int | None = _option(
        "prompts at once; 1 takes the engine's own generator (192 on cuda, 1 on a cpu)", None, low=1
    )
    json: Path | None = _option("file for the scores", None)
    card: bool = _option("write the scores into the drafter's folder and model card", False)


COMMANDS: dict[str, type[_Common]] = {"data": DataOptions, "train": TrainOptions, "evaluate": EvaluateOptions}


def parser() -> argparse.ArgumentParser:
    """The command line of `python -m ddscope.engine.training`."""
    top = argparse.ArgumentParser(
        prog="python -m ddscope.engine.training",
        description="Make a DFlash drafter: data that the target writes itself, training, evaluation.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="{data,train,evaluate}")
    for name, options in COMMANDS.items():
        summary = (options.__doc__ or "").strip()
        sub = commands.add_parser(name, help=summary, description=summary)
        hints = get_type_hints(options)
        for one in fields(options):
            _add(sub, one, hints[one.name])
    return top


def options_of(arguments: argparse.Namespace) -> _Common:
    """Checked options. Raises EngineError for a value outside its range."""
    values = {name: value for name, value in vars(arguments).items() if name != "command"}
    return COMMANDS[arguments.command](**values)


def _add(to: argparse.ArgumentParser, one: Field[Any], hint: Any) -> None:
    name, said = f"--{one.name.replace('_', '-')}", str(one.metadata["help"]).replace("%", "%%")
    if hint is bool:
        to.add_argument(
            name, action=argparse.BooleanOptionalAction, default=one.default, help=f"{said} [{one.default}]"
        )
        return
    kind = (
        next(t for t in get_args(hint) if t is not type(None)) if get_origin(hint) in (Union, types.UnionType) else hint
    )
    required = one.default is MISSING
    default = None if required else one.default
    if required:
        said += " [required]"
    elif default is not None:
        said += f" [{default.name if isinstance(default, Path) else default}]"
    metavar = {Path: "PATH", int: "N", float: "X", str: "TEXT"}[kind]
    to.add_argument(name, type=kind, required=required, default=default, metavar=metavar, help=said)

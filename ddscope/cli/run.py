"""`ddscope run`: the embedded engine on a prompt, in the workbench or headless."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ddscope.cli.errors import CommandError
from ddscope.cli.options import log_options, number, record_option, theme_option, whole

if TYPE_CHECKING:
    from ddscope.cli.types import Commands

ALGORITHMS = ("autoregressive", "dflash", "ddtree")
FAULTS = {
    "nan-norm": "a NaN in the target's final norm",
    "final-layer-only": "the drafter gets one captured layer where it expects all (shape mismatch)",
    "tiled-layer": "the last captured layer in place of every one",
    "reversed-layers": "captured layers in reverse order",
    "mask-token": "the wrong mask token in the drafter's block",
    "verify-position": "the target verifies at positions one too high",
    "sibling-leak": "siblings see each other in the tree mask",
    "causal-mask": "a plain lower-triangular mask instead of the tree's",
    "flat-positions": "positions by node number instead of depth",
    "no-compaction": "rows of rejected nodes stay in the KV cache",
}


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "run",
        help="run the embedded engine, in the workbench or --headless",
        description="Run the embedded engine: SmolLM2-135M-Instruct with its DFlash drafter, or a pair from local "
        "folders. Every run is recorded as a trace.",
    )
    _prompt_options(parser)
    _engine_options(parser)
    _output_options(parser)
    parser.set_defaults(run=_run)


def _prompt_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompts")
    group.add_argument("--prompt", action="append", metavar="TEXT", help="a user message; may be given several times")
    group.add_argument(
        "-i", "--input", type=Path, metavar="FILE.jsonl", help='one object a line with "prompt" or "prompt_ids"'
    )


def _engine_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    group.add_argument("--algorithm", choices=ALGORITHMS, default="ddtree")
    group.add_argument(
        "--budget",
        type=_budget,
        metavar="N|auto",
        help="nodes of the draft tree without the root; auto: as many as pay, by measured cost and expected gain, step "
        "by step (default: what suits the device)",
    )
    group.add_argument(
        "--topk", type=whole(1, 1024), metavar="K", help="candidates per depth (default: as many as the budget)"
    )
    group.add_argument(
        "--draft-rows", type=whole(2, 1 << 12), metavar="N", help="rows of the drafter's block (default: all of them)"
    )
    group.add_argument(
        "--draft-vocab", type=whole(1, 1 << 30), metavar="N", help="draft only ids below N (default: the vocabulary)"
    )
    group.add_argument(
        "--cut", type=number(0, 0.99), metavar="P", help="leave out nodes whose path is less likely than this"
    )
    group.add_argument("--temperature", type=number(0, 10), default=0.0, metavar="T")
    group.add_argument("--seed", type=whole(0, 2**53 - 1), default=0, metavar="S")
    group.add_argument("--max-new-tokens", type=whole(1, 1 << 20), default=128, metavar="N")
    group.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="default: float32, which is lossless"
    )
    group.add_argument("--target", type=Path, metavar="DIR", help="a Llama- or Qwen3-family model folder")
    group.add_argument("--draft", type=Path, metavar="DIR", help="a z-lab DFlash drafter folder that fits the target")
    group.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    group.add_argument(
        "--self-check",
        type=whole(0, 1 << 20),
        default=0,
        metavar="N",
        help="replay probe every N steps: is the tree verify right?",
    )
    group.add_argument(
        "--fault",
        choices=tuple(FAULTS),
        metavar="NAME",
        help="break the engine on purpose: " + "; ".join(f"{k} ({v})" for k, v in FAULTS.items()),
    )


def _output_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--headless", action="store_true", help="no screen: progress, text, a summary and the findings")
    group.add_argument("--json", action="store_true", help="headless, with one object on stdout")
    record_option(group)
    log_options(group, hosts=False)
    theme_option(group)


def _budget(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return int(whole(0, 1024)(text))
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"takes a whole number from 0 to 1,024 or auto, not {text}") from None


def engine_options(args: argparse.Namespace) -> list[str]:
    """The options of `python -m ddscope.engine` that `args` ask for."""
    options: list[str] = []
    for name in (
        "algorithm",
        "budget",
        "topk",
        "draft_rows",
        "draft_vocab",
        "cut",
        "temperature",
        "seed",
        "max_new_tokens",
        "dtype",
        "target",
        "draft",
        "device",
        "self_check",
        "fault",
    ):
        value = getattr(args, name)
        if value is not None:
            options += [f"--{name.replace('_', '-')}", str(value)]
    return options


def _run(args: argparse.Namespace) -> int:
    from ddscope.cli.live import run_headless, run_workbench
    from ddscope.cli.prompts import prompts_of

    prompts = prompts_of(args.prompt, args.input)
    headless = args.headless or args.json
    if headless and not prompts:
        raise CommandError("A headless run needs something to run: --prompt TEXT or -i FILE.jsonl.")
    if not headless:
        from ddscope.cli.screen import need_terminal

        need_terminal()
    return run_headless(args, prompts) if headless else run_workbench(args, prompts)

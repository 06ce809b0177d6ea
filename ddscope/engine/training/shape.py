"""The shape of a new drafter: from options and its target, or from a drafter it starts from; within a file size."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ddscope.engine.config import DrafterConfig, TargetConfig, check_pair, default_layer_ids, read_drafter_config
from ddscope.engine.errors import EngineError
from ddscope.engine.training.options import TrainOptions
from ddscope.engine.weights import layer_shapes


def drafter_shape(options: TrainOptions, target: TargetConfig) -> DrafterConfig:
    """Raises EngineError when the shape does not fit the target, or its file would be too large."""
    config = _asked(options, target) if options.start_from is None else read_drafter_config(options.start_from)
    check_pair(target, config)
    size, limit = megabytes(config), options.max_megabytes
    if size > limit:
        raise EngineError(
            f"This drafter would take {size:.1f} MB in bfloat16, more than --max-megabytes {limit:g}: "
            "fewer --layers, or a smaller --intermediate"
        )
    return config


def parameters(config: DrafterConfig) -> int:
    """Numbers in the drafter's file."""
    hidden = config.stack.hidden
    stack = sum(prod(shape) for shape in layer_shapes(config.stack, "").values())
    return stack + hidden * hidden * len(config.target_layer_ids) + 2 * hidden


def megabytes(config: DrafterConfig) -> float:
    """Size of the drafter's file in bfloat16, in 10^6 bytes, without its header of a few kB."""
    return 2 * parameters(config) / 1e6


def _asked(options: TrainOptions, target: TargetConfig) -> DrafterConfig:
    stack = target.stack
    heads, kv_heads = options.heads or stack.heads, options.kv_heads or stack.kv_heads
    if heads % kv_heads:
        raise EngineError(f"{heads} --heads are no multiple of {kv_heads} --kv-heads")
    if options.features > stack.layers:
        raise EngineError(f"The target has {stack.layers} layers, so --features cannot be {options.features}")
    if options.mask_token >= stack.vocab:
        raise EngineError(f"--mask-token {options.mask_token} is outside the target's vocabulary of {stack.vocab:,}")
    layers = default_layer_ids(stack.layers, options.features)
    if len(set(layers)) < len(layers) or min(layers) < 0:
        layers = list(range(options.features))
    own = replace(
        stack,
        layers=options.layers,
        heads=heads,
        kv_heads=kv_heads,
        intermediate=options.intermediate or stack.intermediate,
        qk_norm=True,
        attention_bias=False,
        mlp_bias=False,
    )
    return DrafterConfig(own, options.block, options.mask_token, tuple(layers), stack.layers)

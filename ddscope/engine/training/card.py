"""The model card of a trained drafter: what it is, how it was made, with the exact commands, and what it scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddscope.engine.config import read_json
from ddscope.engine.training.shards import HELD_OUT, write_whole

CARD, FACTS, SCORES = "README.md", "training.json", "scores.json"


def write_card(folder: Path) -> None:
    """README.md from config.json, training.json and, when it has been evaluated, scores.json."""
    config, facts = read_json(folder / "config.json"), read_json(folder / FACTS)
    scores = read_json(folder / SCORES) if (folder / SCORES).is_file() else None
    write_whole(folder / CARD, _card(config, facts, scores).encode())


def _card(config: dict[str, Any], facts: dict[str, Any], scores: dict[str, Any] | None) -> str:
    commands = [
        facts["data"].get("command") or "python -m ddscope.engine.training data …",
        facts["command"] or "python -m ddscope.engine.training train …",
        (scores or {}).get("command") or "python -m ddscope.engine.training evaluate …",
    ]
    made = _made(facts["data"], facts["options"], facts)
    return "\n".join(
        [
            f"# A DFlash drafter for {facts['target']}",
            "",
            f"A block-parallel drafter: it proposes the next {config['block_size'] - 1} tokens in one pass and",
            "the target verifies them, so it changes the speed of a text and never the text. Made with",
            "`python -m ddscope.engine.training`; use it with `ddscope run --draft FOLDER`.",
            "",
            "| | |",
            "|---|---|",
            *(f"| {name} | {text} |" for name, text in _rows(config, facts)),
            "",
            "## How it was made",
            "",
            *made,
            "",
            "```",
            *commands,
            "```",
            "",
            "## What it scores",
            "",
            *_scores(scores),
            "",
            f"`{HELD_OUT}` has the held-out prompts: no conversation that begins with one of them was trained on.",
            "",
        ]
    )


def _rows(config: dict[str, Any], facts: dict[str, Any]) -> list[tuple[str, str]]:
    own = config["dflash_config"]
    size = f"bfloat16, {facts['parameters'] / 1e6:.1f} M parameters, {facts['megabytes']} MB"
    heads = (
        f"{config['num_attention_heads']} heads and {config['num_key_value_heads']} KV heads of {config['head_dim']}"
    )
    return [
        ("Files", f"`config.json`, `model.safetensors` ({size}), in the z-lab DFlash layout"),
        (
            "Shape",
            f"{config['num_hidden_layers']} layers, hidden {config['hidden_size']}, {heads}, "
            f"MLP {config['intermediate_size']}, block of {config['block_size']} rows",
        ),
        (
            "Inputs",
            f"the target's hidden states after layers {', '.join(map(str, own['target_layer_ids']))} (0-based); "
            f"mask token {own['mask_token_id']}",
        ),
        ("Embedding, head", "the target's own"),
    ]


def _made(data: dict[str, Any], options: dict[str, Any], facts: dict[str, Any]) -> list[str]:
    optimizer = "Muon for the matrices, AdamW for the norms" if options["muon"] else "AdamW"
    lines = [
        "All data was written by the target itself: prompts after its own chat prefix (temperature "
        f"{data.get('prompt_temperature', 0):g}),",
        f"then answers ({data.get('greedy_share', 0):.0%} greedy, the rest at {data.get('answer_temperature', 0):g}): "
        f"{data['sequences']:,} conversations, {data['tokens']:,} tokens.",
        f"Training: {facts['steps']:,} steps ({facts['epochs']:g} epochs, {facts['seconds']:,.0f} s on "
        f"{facts['machine']}, torch {facts['torch']}),",
        f"{options['batch']} conversations × {options['anchors']} blocks a step, {options['passes']} steps a batch, "
        f"{options['on_policy']:.0%} of the anchors right after a rejection from the second on.",
        f"Cross-entropy weighted exp(−(k − 1) / {options['decay']:g}) at depth k, {options['reach']:.0%} of it times",
        "the likelihood that a step gets there;",
        f"{optimizer}, learning rate {options['lr']:g}, cosine, seed {options['seed']}.",
    ]
    if options["kl"]:
        lines.append(
            f"{options['kl']:.0%} of the loss goes towards the target's distribution over its "
            f"{options['kl_topk']} likeliest tokens."
        )
    if facts.get("start"):
        lines.append(f"The weights of `{facts['start']}` were the start.")
    if "loss" in facts["last"]:
        lines.append(f"The loss ended at {facts['last']['loss']:.3f}.")
    return lines


def _scores(scores: dict[str, Any] | None) -> list[str]:
    if scores is None:
        return ["Not evaluated yet: `python -m ddscope.engine.training evaluate --draft FOLDER --card`."]
    entries = scores["scores"]
    return [
        "Mean emitted tokens per target forward (τ), greedy, free-running, "
        f"{scores['prompts']} held-out prompts × at most {scores['max_new_tokens']} tokens,",
        f"{scores['dtype']} on {scores['machine']}:",
        "",
        f"| {' | '.join(str(entry['name']) for entry in entries)} |",
        "|---" * len(entries) + "|",
        f"| {' | '.join(format(entry['tau'], '.2f') for entry in entries)} |",
    ]

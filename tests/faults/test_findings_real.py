"""Every deliberate fault on the real engine, headless, must be named by the right finding and by no wrong one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddscope.cli import main
from ddscope.cli.run import FAULTS

pytestmark = [pytest.mark.engine, pytest.mark.slow]

HELDOUT = Path(__file__).parents[2] / "ddscope" / "engine" / "data" / "smollm2-dflash" / "heldout-prompts.jsonl"
PROMPTS = 4
TOKENS = 48

EXPECTED: dict[str, set[str]] = {
    "nan-norm": {"nan.logits"},
    "final-layer-only": {"shape.mismatch"},
    "tiled-layer": {"accept.curve"},
    "reversed-layers": {"accept.curve"},
    "mask-token": {"accept.curve"},
    "verify-position": {"tree.invalid", "verify.replay_mismatch"},
    "sibling-leak": {"tree.invalid", "verify.replay_mismatch"},
    "causal-mask": {"tree.invalid", "verify.replay_mismatch"},
    "flat-positions": {"tree.invalid", "verify.replay_mismatch"},
    "no-compaction": {"verify.replay_mismatch"},
}

NAMED: dict[str, tuple[str, ...]] = {
    "final-layer-only": ("2,880", "576"),
    "tiled-layer": ("identical",),
    "reversed-layers": ("27, 20, 14, 8, 1", "1, 8, 14, 20, 27"),
    "mask-token": ("mask", "2"),
    "verify-position": ("position",),
    "flat-positions": ("position",),
    "sibling-leak": ("sibling",),
    "causal-mask": ("lower-triangular",),
    "no-compaction": ("cache",),
}
"""Words that the findings of a fault must use, so that a person knows which fault it is."""


def headless(tmp_path: Path, *options: str, self_check: int = 4) -> tuple[dict[str, Any], Path]:
    prompts = tmp_path / "prompts.jsonl"
    lines = HELDOUT.read_text("utf-8").splitlines(keepends=True)[:PROMPTS]
    prompts.write_text("".join(lines), "utf-8")
    trace = tmp_path / "t.jsonl"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ddscope", "run", "--json", "-i", str(prompts), "--out", str(trace)),
            *("--max-new-tokens", str(TOKENS), "--self-check", str(self_check), "--budget", "15"),
            *options,
        ],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
    )
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout), trace


def named(result: dict[str, Any]) -> set[str]:
    return {finding["id"] for finding in result["findings"] if finding["severity"] != "info"}


def test_every_fault_of_the_command_line_is_tested_here() -> None:
    from ddscope.engine.faults import WHAT

    assert set(EXPECTED) == set(FAULTS) == set(WHAT)


@pytest.mark.parametrize("fault", EXPECTED)
def test_a_fault_is_named_by_the_right_finding_and_by_no_wrong_one(fault: str, tmp_path: Path) -> None:
    result, trace = headless(tmp_path, "--fault", fault)
    assert named(result) == EXPECTED[fault]
    said = json.dumps(result["findings"], ensure_ascii=False)
    assert all(word in said for word in NAMED.get(fault, ())), said
    for finding in result["findings"]:
        assert finding["next"], finding["id"]
        assert finding["evidence"], finding["id"]
        assert 0 < finding["confidence"] <= 1
    assert main(["findings", str(trace)]) == 1  # the same from the file alone


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--algorithm", "dflash"),
        ("--algorithm", "autoregressive"),
        ("--temperature", "1.0"),
        ("--dtype", "bfloat16"),
        ("--budget", "0"),
    ],
    ids=lambda options: " ".join(options) or "plain",
)
def test_a_sound_engine_has_no_finding(options: tuple[str, ...], tmp_path: Path) -> None:
    result, trace = headless(tmp_path, *options)
    assert named(result) == set(), result["findings"]
    assert main(["findings", str(trace)]) == 0
    assert main(["trace", "verify", str(trace)]) == 0
    assert result["dropped"] == 0


@pytest.mark.parametrize("fault", ["verify-position", "sibling-leak", "causal-mask", "flat-positions", "no-compaction"])
def test_without_a_self_check_a_broken_verify_never_blames_the_drafter(fault: str, tmp_path: Path) -> None:
    result, _ = headless(tmp_path, "--fault", fault, self_check=0)
    assert named(result) <= {"tree.invalid"}

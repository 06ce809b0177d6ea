"""A trace whose texts were left out on purpose is whole: `trace verify` asks for none, and still sees the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddscope.trace import verify
from ddscope_hooks.emit import Emitter


def problems(path: Path, redacted: str | None, **step: Any) -> list[str]:
    config = {} if redacted is None else {"redacted": redacted}
    engine = {"name": "sglang", "version": "0", "algorithm": "ngram", "config": config}
    emitter = Emitter("engine/0", {"engine": engine})
    used = emitter.listen(f"file:{path}")
    emitter.emit("request", {"rid": "r", "prompt_len": 2, "prompt_ids": [1, 2]})
    emitter.emit("step", {"rid": "r", "step": 0, "base": 2, "root": 5, "path": [0], "emitted": [7]} | step)
    emitter.close()
    return [problem.text for problem in verify(Path(used)).problems]


@pytest.mark.parametrize("redacted", ["text", "ids"])
def test_texts_are_not_missed_where_the_header_says_they_were_left_out(tmp_path: Path, redacted: str) -> None:
    assert problems(tmp_path / "t.jsonl", redacted) == []


def test_elsewhere_they_are_missed(tmp_path: Path) -> None:
    assert problems(tmp_path / "t.jsonl", None) == ["no `tokens` record tells the text of 4 token ids"]


def test_other_problems_are_still_told(tmp_path: Path) -> None:
    assert any("base of the first step is 9" in text for text in problems(tmp_path / "t.jsonl", "text", base=9))

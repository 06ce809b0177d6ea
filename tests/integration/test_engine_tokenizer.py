"""The tokenizer and the converted weights of the real target."""

from __future__ import annotations

import json

import pytest

from ddscope.engine.convert import default_target
from ddscope.engine.pair import SHIPPED_DRAFT
from ddscope.engine.tokenizer import Tokenizer

pytestmark = pytest.mark.engine

ROWS = [json.loads(line) for line in (SHIPPED_DRAFT / "heldout-prompts.jsonl").read_text("utf-8").splitlines()]

# Lines in which the target, which made these prompts up, spelled a word in other pieces than the tokenizer does.
SPELLED_OTHERWISE = 11


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(default_target())


def test_chat_prompts_encode_to_the_ids_they_were_made_of(tokenizer: Tokenizer) -> None:
    assert len(ROWS) == 192
    others = []
    for row in ROWS:
        ids = tokenizer.encode_chat(row["prompt"])
        assert tokenizer.decode(ids) == tokenizer.decode(row["prompt_ids"])
        if ids != row["prompt_ids"]:
            assert len(ids) <= len(row["prompt_ids"])  # merging as far as it goes never needs more pieces here
            others.append(row["prompt"])
    assert len(others) == SPELLED_OTHERWISE


def test_ids_of_text_survive_a_round_trip(tokenizer: Tokenizer) -> None:
    for text in (
        "I have 1234 apples.",
        "naïve café — 日本語 🦀",
        "\tif x:\n\n    return  0\n",
        "[/INST] [red]markup[/red]",
    ):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("1234")) == 4  # digits one by one


def test_the_bytes_of_every_token_together_are_the_vocabulary(tokenizer: Tokenizer) -> None:
    pieces = tokenizer.token_bytes_of(range(tokenizer.vocab_size))
    assert len(pieces) == 49_152
    assert all(pieces)
    assert {bytes([value]) for value in range(256)} - set(pieces) <= {
        bytes([value]) for value in (*range(0xC0, 0x100), *range(0x20))
    }
    assert (pieces[0], pieces[1], pieces[2]) == (b"<|endoftext|>", b"<|im_start|>", b"<|im_end|>")
    assert tokenizer.token_bytes(49_152) == b""

"""A byte-level BPE tokenizer as `tokenizer.json`, built from the metadata of a GGUF file of the SmolLM family."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from ddscope.engine.errors import EngineError

_CONTROL = 3  # token_type of a token that text never spells: <|im_start|> and the like
_USER_DEFINED = 4


def tokenizer_files(meta: dict[str, Any]) -> dict[str, str]:
    """File name → content: `tokenizer.json` and `tokenizer_config.json` (the chat template).

    meta: the GGUF file's key-value pairs. Raises EngineError for a tokenizer that is not SmolLM's: its pre-tokenizer
    (digits one by one, then GPT-2's byte level) is named in the file, not spelled out.
    """
    model, pre = meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre")
    if (model, pre) != ("gpt2", "smollm"):
        raise EngineError(f"The GGUF file's tokenizer is {model}/{pre}, where gpt2/smollm is expected")
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    types: list[int] = meta["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [
        AddedToken(t, special=True, normalized=False) for t, kind in zip(tokens, types, strict=True) if kind == _CONTROL
    ]
    user = [AddedToken(t, normalized=False) for t, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(user)
    config = {
        "chat_template": meta["tokenizer.chat_template"],
        "eos_token": tokens[meta["tokenizer.ggml.eos_token_id"]],
    }
    return {
        "tokenizer.json": tokenizer.to_str(),
        "tokenizer_config.json": json.dumps(config, indent=2, ensure_ascii=False) + "\n",
    }

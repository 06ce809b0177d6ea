"""Model folders that fit, and folders that do not: those are refused in one sentence, with names and numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from ddscope.engine.config import Rope, default_layer_ids, read_drafter_config, read_target_config
from ddscope.engine.errors import EngineError
from ddscope.engine.generate import Generator, Params
from ddscope.engine.pair import load_pair
from tests.engine_models import (
    drafter_config,
    drafter_tensors,
    target_config,
    target_tensors,
    tiny_pair,
    write_folder,
    write_pair,
    write_tokenizer,
)


def refused(target: Path, drafter: Path) -> str:
    with pytest.raises(EngineError) as caught:
        load_pair(target, drafter)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def folders(
    tmp_path: Path, *, target: dict[str, Any] | None = None, drafter: dict[str, Any] | None = None
) -> tuple[Path, Path]:
    return write_pair(tmp_path, target_config(**(target or {})), drafter_config(**(drafter or {})))


def test_sharded_weights_are_the_same_weights(tmp_path: Path) -> None:
    one = load_pair(*write_pair(tmp_path / "one"))
    config, draft = target_config(), drafter_config()
    write_folder(tmp_path / "many" / "target", config, target_tensors(config), shards=3)
    write_folder(tmp_path / "many" / "drafter", draft, drafter_tensors(draft), shards=2)
    write_tokenizer(tmp_path / "many" / "target")
    many = load_pair(tmp_path / "many" / "target", tmp_path / "many" / "drafter")
    texts = []
    for pair in (one, many):
        generator = Generator(pair, [1, 2, 3], Params(max_new_tokens=12))
        generator.start()
        while not generator.done:
            generator.commit(generator.draft_and_verify())
        texts.append(generator.output)
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("drafter", "says"),
    [
        ({"hidden_size": 32}, "hidden_size 32 in the drafter, 24 in the target"),
        ({"vocab_size": 17}, "vocab_size 17 in the drafter, 16 in the target"),
        ({"num_target_layers": 5}, "num_target_layers 5 in the drafter, 4 in the target"),
    ],
)
def test_a_drafter_for_another_target_is_refused_with_both_numbers(
    tmp_path: Path, drafter: dict[str, Any], says: str
) -> None:
    assert says in refused(*folders(tmp_path, drafter=drafter))


def test_all_numbers_that_disagree_are_said_at_once(tmp_path: Path) -> None:
    sentence = refused(*folders(tmp_path, drafter={"hidden_size": 32, "vocab_size": 17}))
    assert "hidden_size 32" in sentence
    assert "vocab_size 17" in sentence


@pytest.mark.parametrize(
    ("drafter", "says"),
    [
        (
            {"dflash_config": {"mask_token_id": 0, "target_layer_ids": [0, 4]}},
            r"target_layer_ids \[0, 4\] leave .* 0 … 3",
        ),
        ({"dflash_config": {"mask_token_id": 0, "target_layer_ids": [-1, 2]}}, r"target_layer_ids \[-1, 2\]"),
        ({"dflash_config": {"mask_token_id": 16, "target_layer_ids": [0, 2]}}, "mask_token_id is 16, outside .* of 16"),
        ({"dflash_config": {"target_layer_ids": [0, 2]}}, "mask_token_id is None"),
        ({"dflash_config": None}, "no dflash_config"),
        ({"block_size": 1}, "block_size is 1"),
        ({"block_size": None}, "block_size is None"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers is 'two'"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "3 heads, 2 KV heads"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    ],
)
def test_a_drafters_configuration_that_cannot_be_used_is_refused(
    tmp_path: Path, drafter: dict[str, Any], says: str
) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(drafter_config(**drafter)))
    with pytest.raises(EngineError, match=says):
        read_drafter_config(folder)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ({"model_type": "mamba"}, "model_type is 'mamba', and the engine knows llama and qwen3"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "rope scaling 'yarn' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "rope scaling llama3 lacks low_freq_factor"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"vocab_size": 0}, "vocab_size is 0"),
    ],
)
def test_a_target_that_the_decoder_does_not_know_is_refused(tmp_path: Path, target: dict[str, Any], says: str) -> None:
    with pytest.raises(EngineError, match=says):
        load_pair(*folders(tmp_path, target=target))


def test_missing_extra_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    target, drafter = write_pair(tmp_path)
    config = drafter_config()
    tensors = drafter_tensors(config)
    del tensors["layers.1.mlp.up_proj.weight"]
    tensors["layers.7.extra.weight"] = torch.zeros(3)
    tensors["fc.weight"] = torch.zeros(24, 24)
    write_folder(drafter, config, tensors)
    sentence = refused(target, drafter)
    assert "missing: layers.1.mlp.up_proj.weight" in sentence
    assert "not expected: layers.7.extra.weight" in sentence
    assert "fc.weight is [24, 24], expected [24, 48]" in sentence


def test_a_long_list_of_tensors_is_counted(tmp_path: Path) -> None:
    target, drafter = write_pair(tmp_path)
    write_folder(drafter, drafter_config(), {"fc.weight": torch.zeros(24, 48)})
    assert " and 21 more" in refused(target, drafter)


def test_a_target_whose_head_is_missing_is_refused(tmp_path: Path) -> None:
    target, drafter = write_pair(tmp_path)
    write_folder(target, target_config(tie_word_embeddings=False), target_tensors(target_config()))
    assert "missing: lm_head.weight" in refused(target, drafter)


def test_a_head_stored_beside_a_tied_embedding_is_no_error(tmp_path: Path) -> None:
    target, drafter = write_pair(tmp_path)
    tensors = target_tensors(target_config())
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    write_folder(target, target_config(), tensors)
    load_pair(target, drafter)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda target: (target / "config.json").unlink(), "has no config.json"),
        (lambda target: (target / "config.json").write_text("{"), "cannot be read as JSON"),
        (lambda target: (target / "config.json").write_text("[1]"), "a list where a JSON object is expected"),
        (lambda target: (target / "config.json").write_bytes(b"\xff\xfe"), "cannot be read as JSON"),
        (lambda target: (target / "model.safetensors").unlink(), "has neither model.safetensors nor"),
        (lambda target: (target / "model.safetensors").write_bytes(b"\x10" * 40), "is no readable safetensors file"),
        (lambda target: (target / "tokenizer.json").unlink(), "has no tokenizer.json"),
        (lambda target: (target / "tokenizer.json").write_text("{}"), "is no readable tokenizer"),
    ],
)
def test_a_missing_or_broken_file_is_refused_in_one_sentence(tmp_path: Path, damage: Any, says: str) -> None:
    target, drafter = write_pair(tmp_path)
    damage(target)
    assert says in refused(target, drafter)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    target, drafter = write_pair(tmp_path)
    (target / "model.safetensors").unlink()
    write_folder(target, target_config(), target_tensors(target_config()), shards=2)
    (target / "model-00002-of-00002.safetensors").unlink()
    assert "has no model-00002-of-00002.safetensors, which its index lists" in refused(target, drafter)


def test_an_index_may_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    target, drafter = write_pair(tmp_path)
    (target / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../elsewhere.safetensors"}}))
    assert "has no elsewhere.safetensors" in refused(target, drafter)


def test_folders_that_are_not_there(tmp_path: Path) -> None:
    target, drafter = write_pair(tmp_path)
    assert "config.json" in refused(tmp_path / "no", drafter)
    assert "config.json" in refused(target, tmp_path / "no")


def test_a_target_alone_is_refused(tmp_path: Path) -> None:
    target, _ = write_pair(tmp_path)
    with pytest.raises(EngineError, match="needs a drafter that was trained for it"):
        load_pair(target)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dtype": "int8"}, "No dtype 'int8'; there are float32, bfloat16"),
        ({"device": "tpu"}, "No device 'tpu'"),
        ({"device": "meta"}, "No device 'meta'"),
        ({"fault": "gremlins"}, "No fault 'gremlins'; there are nan-norm,"),
    ],
)
def test_options_that_are_none_are_refused(tmp_path: Path, options: dict[str, str], says: str) -> None:
    with pytest.raises(EngineError, match=says):
        load_pair(*write_pair(tmp_path), **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this torch has a CUDA device")
def test_cuda_without_a_device_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="sees no CUDA device"):
        load_pair(*write_pair(tmp_path), device="cuda")


def test_what_is_known_about_a_pair(tmp_path: Path) -> None:
    pair = tiny_pair(tmp_path)
    known = pair.describe()
    assert (known["target"], known["draft"]) == ("target", "drafter")  # folder names, no paths
    assert (known["vocab_size"], known["hidden_size"], known["num_layers"]) == (16, 24, 4)
    assert len(known["tokenizer_sha256"]) == 64
    assert pair.drafter_checkpoint() == pair.drafter_in_force()
    assert pair.drafter_checkpoint() == {
        "block_size": 6,
        "mask_token_id": 0,
        "target_layer_ids": [0, 2],
        "num_target_layers": 4,
        "hidden_size": 24,
    }
    assert pair.fault is None
    assert str(tmp_path) not in pair.title


def test_several_end_tokens_and_the_generation_configs_word(tmp_path: Path) -> None:
    target, _ = folders(tmp_path, target={"eos_token_id": [3, 4]})
    assert read_target_config(target).eos_ids == {3, 4}
    (target / "generation_config.json").write_text('{"eos_token_id": 5}')
    assert read_target_config(target).eos_ids == {5}


def test_layers_of_a_drafter_that_does_not_name_them() -> None:
    assert default_layer_ids(30, 5) == [1, 8, 14, 20, 27]
    assert default_layer_ids(36, 5) == [1, 9, 17, 25, 33]
    assert default_layer_ids(28, 1) == [14]


def test_llama_3_scaling_stretches_long_wavelengths_only() -> None:
    plain, scaled = Rope(500_000.0), Rope(500_000.0, 8.0, 1.0, 4.0, 8192)
    pairs = list(zip(plain.inverse_frequencies(128), scaled.inverse_frequencies(128), strict=True))
    for before, after in pairs:
        turns = 8192 * before / (2 * math.pi)
        if turns > 4:
            assert after == before
        elif turns < 1:
            assert after == before / 8
        else:
            assert before / 8 <= after <= before
    assert sum(before / 8 < after < before for before, after in pairs) > 5  # the smooth part is there
    ratios = [after / before for before, after in pairs]
    assert ratios == sorted(ratios, reverse=True)


def test_rope_of_newer_files_is_read_from_rope_parameters(tmp_path: Path) -> None:
    target, _ = folders(
        tmp_path, target={"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}
    )
    assert read_target_config(target).stack.rope == Rope(77.0)

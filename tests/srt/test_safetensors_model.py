"""Hugging Face folders: the same model as from GGUF, and clear refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.gguf_files import (
    hf_config,
    hf_tensors,
    random_weights,
    tiny_config,
    write_gguf_model,
    write_hf_model,
)

from stolon.errors import ModelFileError, ModelNotFound, StolonError, UnsupportedModel
from stolon.srt.loaders import GGUFModel, SafetensorsModel, open_model
from stolon.srt.loaders.hf_config import read_config
from stolon.srt.models.config import RopeScaling

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tied", [True, False])
def test_the_same_model_as_from_gguf(tmp_path: Path, architecture: Any, tied: bool) -> None:
    config = tiny_config(architecture, tie_embeddings=tied)
    weights = random_weights(config)
    folder = open_model(write_hf_model(tmp_path / "m", config, weights))
    file = open_model(write_gguf_model(tmp_path / "m.gguf", config, weights))
    assert isinstance(folder, SafetensorsModel)
    assert isinstance(file, GGUFModel)
    assert folder.config == file.config == config
    assert folder.names == file.names
    for name in folder.names:
        for dtype in (torch.float32, torch.bfloat16):
            ours = folder.tensor(name, dtype)
            assert ours.dtype is dtype
            assert ours.is_contiguous()
            assert torch.equal(ours, file.tensor(name, dtype)), name
    with pytest.raises(ModelFileError, match="no tensor 'x'"):
        folder.tensor("x", torch.float32)
    folder.close()
    file.close()


def test_tensors_are_copies(tmp_path: Path) -> None:
    config = tiny_config("llama")
    model = SafetensorsModel(write_hf_model(tmp_path / "m", config, random_weights(config)))
    first = model.tensor("model.norm.weight", torch.float32)
    kept = first.clone()
    first.zero_()
    assert torch.equal(model.tensor("model.norm.weight", torch.float32), kept)
    model.close()


def test_gemma3_norms_add_one_before_rounding(tmp_path: Path) -> None:
    config = tiny_config("gemma3")
    weights = random_weights(config)
    folder = write_hf_model(tmp_path / "m", config, weights)
    tensors = hf_tensors(config, weights)
    tensors["model.norm.weight"] = torch.full((32,), 2.0**-9).bfloat16()
    save_file(tensors, folder / "model.safetensors")
    model = SafetensorsModel(folder)
    assert model.tensor("model.norm.weight", torch.float32)[0].item() == 1 + 2.0**-9
    model.close()


def write_shards(folder: Path, weight_map: Callable[[dict[str, str]], dict[str, Any]]) -> Path:
    """A model in two files whose index is changed by `weight_map`."""
    config = tiny_config("llama")
    write_hf_model(folder, config, random_weights(config))
    (folder / "model.safetensors").unlink()
    tensors = hf_tensors(config, random_weights(config))
    names, files = sorted(tensors), ("a.safetensors", "b.safetensors")
    parts = {files[i]: {n: tensors[n] for n in names[i::2]} for i in range(2)}
    for file, part in parts.items():
        save_file(part, folder / file)
    index = {name: file for file, part in parts.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map(index)})
    )
    return folder


def test_shards_are_found_through_the_index(tmp_path: Path) -> None:
    weights = random_weights(tiny_config("llama"))
    model = SafetensorsModel(write_shards(tmp_path / "m", lambda index: index))
    for name, values in weights.items():
        np.testing.assert_array_equal(model.tensor(name, torch.float32).numpy(), values)
    model.close()


@pytest.mark.parametrize(
    "file",
    [
        "../a.safetensors",
        "/tmp/a.safetensors",
        "x/a.safetensors",
        "x\\a.safetensors",
        "c:a.safetensors",
        "..safetensors",
        "a.bin",
        "",
        None,
        3,
    ],
)
def test_file_names_stay_inside_the_folder(tmp_path: Path, file: Any) -> None:
    folder = write_shards(tmp_path / "m", lambda index: index | {"model.norm.weight": file})
    with pytest.raises(ModelFileError, match="unsafe name"):
        SafetensorsModel(folder)


def test_index_must_agree_with_the_files(tmp_path: Path) -> None:
    def swapped(index: dict[str, str]) -> dict[str, Any]:
        other = {"a.safetensors": "b.safetensors", "b.safetensors": "a.safetensors"}
        return index | {"model.norm.weight": other[index["model.norm.weight"]]}

    def lost(index: dict[str, str]) -> dict[str, Any]:
        return index | {"model.norm.weight": "c.safetensors"}

    for change, message in ((swapped, "where the index puts it"), (lost, "is missing")):
        with pytest.raises(ModelFileError, match=message):
            SafetensorsModel(write_shards(tmp_path / message, change))
    with pytest.raises(ModelFileError, match="weight_map"):
        SafetensorsModel(write_shards(tmp_path / "empty", lambda _: {}))


def test_missing_extra_and_misshapen_tensors(tmp_path: Path) -> None:
    config = tiny_config("llama")
    weights = random_weights(config)
    folder = write_hf_model(tmp_path / "m", config, weights)
    name = "model.layers.1.mlp.up_proj.weight"
    good = hf_tensors(config, weights)
    bias = {"model.layers.0.self_attn.o_proj.bias": torch.zeros(32)}
    half = {name: good[name].to(torch.float64)}
    cases: list[tuple[dict[str, torch.Tensor], type[StolonError], str]] = [
        ({k: v for k, v in good.items() if k != name}, ModelFileError, f"'{name}' is missing"),
        (good | {name: torch.zeros(32, 64)}, ModelFileError, r"shape \[32, 64\]"),
        (good | bias, UnsupportedModel, r"o_proj\.bias"),
        (good | half, UnsupportedModel, "F64"),
        ({}, ModelFileError, "embed_tokens"),
    ]
    for tensors, error, message in cases:
        save_file(tensors, folder / "model.safetensors")
        with pytest.raises(error, match=message):
            SafetensorsModel(folder)
    # A stored copy of a tied head and old rotary tables change nothing.
    more = {
        "lm_head.weight": torch.zeros(64, 32),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4),
    }
    save_file(good | more, folder / "model.safetensors")
    SafetensorsModel(folder).close()


def test_damaged_files(tmp_path: Path) -> None:
    config = tiny_config("llama")
    folder = write_hf_model(tmp_path / "m", config, random_weights(config))
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for length in (0, 4, 8, 100, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            SafetensorsModel(folder)
    file.write_bytes(b"\xff" * 8 + whole[8:])
    with pytest.raises(ModelFileError):
        SafetensorsModel(folder)
    file.unlink()
    with pytest.raises(ModelFileError, match=r"no model\.safetensors"):
        SafetensorsModel(folder)
    for text in ("{", "[]", "[" * 100_000, '{"a": 1e999}', "\udcff"):
        (folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(ModelFileError):
            SafetensorsModel(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelFileError, match=r"no config\.json"):
        SafetensorsModel(folder)
    with pytest.raises(ModelNotFound):
        SafetensorsModel(tmp_path / "absent")


@pytest.mark.parametrize("style", ["language_model.model.", "model.language_model."])
def test_language_model_inside_a_vision_model(tmp_path: Path, style: str) -> None:
    config = tiny_config("gemma3")
    weights = random_weights(config)
    folder = tmp_path / "m"
    folder.mkdir()
    text = hf_config(config)
    del text["architectures"]
    nested = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    (folder / "config.json").write_text(json.dumps(nested))
    tensors = {
        name.replace("model.", style, 1): value
        for name, value in hf_tensors(config, weights).items()
    }
    save_file(tensors | {"vision_tower.x": torch.zeros(3)}, folder / "model.safetensors")
    model = SafetensorsModel(folder)
    assert model.config == config
    for name, values in weights.items():
        np.testing.assert_array_equal(model.tensor(name, torch.float32).numpy(), values)
    model.close()


LLAMA = hf_config(tiny_config("llama"))
QWEN2 = hf_config(tiny_config("qwen2"))
GEMMA3 = hf_config(tiny_config("gemma3"))
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_rope_settings_of_both_generations_of_transformers() -> None:
    llama3 = RopeScaling(kind="llama3", factor=8.0)
    old = read_config(LLAMA | {"rope_theta": 5e5, "rope_scaling": LLAMA3_ROPE})
    assert (old.rope_theta, old.rope_scaling) == (5e5, llama3)
    new = {k: v for k, v in LLAMA.items() if k != "rope_theta"}
    new["rope_parameters"] = LLAMA3_ROPE | {"rope_theta": 5e5}
    assert read_config(new) == old
    linear = read_config(LLAMA | {"rope_scaling": {"type": "linear", "factor": 2}})
    assert linear.rope_scaling == RopeScaling(kind="linear", factor=2.0)
    plain = read_config(LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 7e4}})
    assert (plain.rope_theta, plain.rope_scaling) == (7e4, None)


def test_rope_settings_by_layer_type() -> None:
    by_type = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0},
    }
    config = read_config(GEMMA3 | {"rope_parameters": by_type})
    assert config.rope_theta == 1e6
    assert config.rope_theta_local == 20000.0
    assert config.rope_scaling == RopeScaling(kind="linear", factor=8.0)


def test_gemma3_constants() -> None:
    layers = {"num_hidden_layers": 12}
    config = read_config(GEMMA3 | layers | {"query_pre_attn_scalar": 168})
    assert config.query_scale == 168**-0.5
    assert config.embedding_scale == 32**0.5
    assert config.local_layers == set(range(12)) - {5, 11}
    assert read_config(GEMMA3 | layers | {"sliding_window_pattern": 3}).local_layers == {
        0, 1, 3, 4, 6, 7, 9, 10,
    }  # fmt: skip
    types = ["full_attention"] * 11 + ["sliding_attention"]
    assert read_config(GEMMA3 | layers | {"layer_types": types}).local_layers == {11}


def test_sliding_windows_of_qwen2_and_mistral() -> None:
    window = {"sliding_window": 16, "max_window_layers": 1}
    assert read_config(QWEN2 | window).sliding_window is None
    on = read_config(QWEN2 | window | {"use_sliding_window": True})
    assert (on.sliding_window, on.local_layers) == (16, {1})
    assert on.rope_theta_local == on.rope_theta
    mistral = LLAMA | {"architectures": ["MistralForCausalLM"]}
    assert read_config(mistral | {"sliding_window": None}).sliding_window is None
    local = read_config(mistral | {"sliding_window": 16})
    assert (local.architecture, local.sliding_window) == ("llama", 16)
    assert local.local_layers == {0, 1}


def test_defaults_and_biases() -> None:
    short = {k: v for k, v in LLAMA.items() if k not in ("head_dim", "num_key_value_heads")}
    config = read_config(short)
    assert (config.head_dim, config.num_kv_heads) == (8, 4)
    assert not config.attention_bias
    assert read_config(LLAMA | {"attention_bias": True}).attention_bias
    assert read_config(QWEN2).attention_bias
    assert not read_config(
        {k: v for k, v in LLAMA.items() if k != "tie_word_embeddings"}
    ).tie_embeddings


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, UnsupportedModel, "MambaForCausalLM"),
        ({"architectures": None}, ModelFileError, "architectures"),
        ({"architectures": [3]}, ModelFileError, "architectures"),
        ({"hidden_size": "32"}, ModelFileError, "hidden_size"),
        ({"hidden_size": True}, ModelFileError, "hidden_size"),
        ({"hidden_size": None}, ModelFileError, "hidden_size.*missing"),
        ({"hidden_size": 10**300}, ModelFileError, "hidden_size"),
        ({"num_attention_heads": 0}, ModelFileError, "num_attention_heads"),
        ({"num_hidden_layers": -1}, ModelFileError, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, ModelFileError, "multiple"),
        ({"rms_norm_eps": 5}, ModelFileError, "norm_eps"),
        ({"rope_theta": 10**400}, ModelFileError, "rope_theta"),
        ({"tie_word_embeddings": "yes"}, ModelFileError, "tie_word_embeddings"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, UnsupportedModel, "yarn"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, UnsupportedModel, "dynamic"),
        ({"rope_scaling": {"rope_type": "linear"}}, ModelFileError, "factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1}}, ModelFileError, "rope scaling"),
        ({"rope_scaling": [1]}, ModelFileError, "rope_scaling"),
        ({"hidden_act": "gelu"}, UnsupportedModel, "gelu"),
        ({"mlp_bias": True}, UnsupportedModel, "mlp_bias"),
        ({"partial_rotary_factor": 0.5}, UnsupportedModel, "partial_rotary_factor"),
        ({"quantization_config": {"bits": 4}}, UnsupportedModel, "quantization_config"),
    ],
)
def test_wrong_settings_are_refused_by_name(
    changes: dict[str, Any], error: type[StolonError], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_config(LLAMA | changes)

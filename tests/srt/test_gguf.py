"""The GGUF container and the models in it: every damaged file ends in an error of ours."""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from support.gguf_files import (
    Stored,
    gguf_bytes,
    gguf_metadata,
    gguf_tensors,
    metadata_value,
    random_weights,
    string,
    tiny_config,
    write_gguf_model,
)

from stolon.errors import ModelFileError, ModelNotFound, StolonError, UnsupportedModel
from stolon.srt.loaders import (
    DEFAULT_MODEL,
    GGMLType,
    GGUFFile,
    GGUFModel,
    StringArray,
    list_models,
    open_model,
)
from stolon.srt.loaders.gguf_config import llama3_scaling
from stolon.srt.models.config import RopeScaling

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")

SMALL_METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "a.bool": True,
    "a.int": 7,
    "a.float": 0.5,
    "a.strings": ["one", "", "zwei ü"],
    "a.numbers": np.array([1, 2, 3], "<i4"),
    "a.bools": np.array([True, False]),
    "a.empty": [],
}
SMALL_TENSORS = {
    "x": Stored.f32(np.arange(6.0).reshape(2, 3)),
    "y": Stored((2, 32), GGMLType.Q8_0, bytes(range(68))),
}


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "small.gguf"
    path.write_bytes(data)
    return path


def read_everything(path: Path) -> None:
    file = GGUFFile.open(path)
    for value in file.metadata.values():
        if isinstance(value, StringArray):
            value.to_list()
    for name in file.tensors:
        assert file.raw(name).size == file.tensors[name].nbytes
    file.close()


def test_values_and_tensors_are_read_back(tmp_path: Path) -> None:
    file = GGUFFile.open(write(tmp_path, gguf_bytes(SMALL_METADATA, SMALL_TENSORS)))
    assert file.version == 3
    assert file.get_str("general.architecture") == "llama"
    assert file.get_bool("a.bool") is True
    assert file.get_int("a.int") == 7
    assert file.get_float("a.float") == 0.5
    assert file.get_float("a.int") == 7.0
    assert file.get_strings("a.strings").to_list() == ["one", "", "zwei ü"]
    assert file.get_strings("a.strings").to_bytes()[2] == "zwei ü".encode()
    assert len(file.get_strings("a.empty")) == 0
    assert file.get_array("a.numbers").tolist() == [1, 2, 3]
    assert file.get_array("a.bools").tolist() == [True, False]
    assert file.get_int("absent", default=5) == 5
    assert file.tensors["x"].shape == (2, 3)
    assert file.tensors["y"].type is GGMLType.Q8_0
    assert file.raw("x").view("<f4").tolist() == [0, 1, 2, 3, 4, 5]
    assert file.raw("y").tobytes() == bytes(range(68))
    with pytest.raises(ValueError, match="read-only"):
        file.raw("x")[0] = 1
    file.close()


def test_typed_getters_refuse_other_types(tmp_path: Path) -> None:
    file = GGUFFile.open(write(tmp_path, gguf_bytes(SMALL_METADATA, {})))
    for get, key in (
        (file.get_int, "a.bool"),
        (file.get_int, "a.float"),
        (file.get_float, "a.bool"),
        (file.get_str, "a.int"),
        (file.get_bool, "a.int"),
        (file.get_array, "a.strings"),
        (file.get_strings, "a.numbers"),
        (file.get_int, "absent"),
    ):
        with pytest.raises(ModelFileError, match=key):
            get(key)
    with pytest.raises(ModelFileError, match="'z' is missing"):
        file.raw("z")


def test_the_gguf_package_reads_what_the_helper_writes(tmp_path: Path) -> None:
    path = write(tmp_path, gguf_bytes(SMALL_METADATA, SMALL_TENSORS))
    reader = gguf.GGUFReader(path)
    assert reader.fields["a.strings"].contents() == ["one", "", "zwei ü"]
    assert [t.name for t in reader.tensors] == ["x", "y"]
    np.testing.assert_array_equal(reader.tensors[0].data, np.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize("version", [2, 3])
def test_truncation_at_every_length_is_a_model_file_error(tmp_path: Path, version: int) -> None:
    whole = gguf_bytes(SMALL_METADATA, SMALL_TENSORS, version=version)
    path = write(tmp_path, whole)
    read_everything(path)
    for length in reversed(range(len(whole))):
        os.truncate(path, length)
        with pytest.raises(ModelFileError) as caught:
            read_everything(path)
        assert caught.value.hint
        assert "small.gguf" in (caught.value.where or "")


def test_random_damage_gives_a_value_or_an_error_of_ours(tmp_path: Path) -> None:
    config = replace(tiny_config("llama"), num_layers=1)
    metadata = gguf_metadata(config) | SMALL_METADATA
    whole = gguf_bytes(metadata, gguf_tensors(config, random_weights(config)))
    header = len(gguf_bytes(metadata, {})) + 64 * len(gguf_tensors(config, random_weights(config)))
    path = write(tmp_path, whole)
    rng = np.random.default_rng(1)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(2000):
        damaged = bytearray(whole)
        for _ in range(rng.integers(1, 3)):
            damaged[rng.integers(0, header)] = rng.integers(0, 256)
        with path.open("r+b") as file:  # in place, which is much quicker than a new file
            file.write(damaged)
        try:
            read_everything(path)
            model = GGUFModel(path)
            for name in model.names:
                model.tensor(name, torch.float32)
            model.close()
            outcomes["read"] += 1
        except StolonError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 100


HEADER = b"GGUF" + struct.pack("<I", 3)
ONE_PAIR = struct.pack("<QQ", 0, 1)
ONE_TENSOR = struct.pack("<QQ", 1, 0)
PAD = bytes(64)


def described(*dims: int, kind: int = 0, offset: int = 0, name: str = "t") -> bytes:
    body = struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
    return HEADER + ONE_TENSOR + string(name) + body + PAD


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GGML" + PAD, "not a GGUF file"),
        (HEADER + struct.pack("<QQ", 2**63, 0) + PAD, "tensors can't fit"),
        (HEADER + struct.pack("<QQ", 0, 2**64 - 1) + PAD, "metadata entries can't fit"),
        (HEADER + ONE_PAIR + struct.pack("<Q", 2**64 - 1) + PAD, "metadata key of"),
        (HEADER + ONE_PAIR + struct.pack("<Q", 0) + PAD, "metadata key of 0"),
        (HEADER + ONE_PAIR + struct.pack("<Q", 2) + b"\xff\xfe" + PAD, "not UTF-8"),
        (HEADER + ONE_PAIR + string("k") + struct.pack("<IQ", 8, 2**60) + PAD, "needs"),
        (HEADER + ONE_PAIR + string("k") + struct.pack("<I", 13) + PAD, "value type 13"),
        (HEADER + ONE_PAIR + string("k") + struct.pack("<IB", 7, 2) + PAD, "boolean"),
        (HEADER + ONE_PAIR + string("k") + struct.pack("<IIQ", 9, 9, 1) + PAD, "arrays of arrays"),
        (HEADER + ONE_PAIR + string("k") + struct.pack("<IIQ", 9, 77, 1) + PAD, "element type 77"),
        (HEADER + ONE_PAIR + string("k") + struct.pack("<IIQ", 9, 10, 2**61) + PAD, "needs"),
        (HEADER + ONE_PAIR + string("k") + struct.pack("<IIQ", 9, 8, 2**61) + PAD, "longer"),
        (
            HEADER + ONE_PAIR + string("k") + struct.pack("<IIQQ", 9, 8, 2, 2**64 - 8) + PAD,
            "cut short",
        ),
        (HEADER + ONE_PAIR + string("k") + struct.pack("<IIQQ", 9, 8, 1, 999) + PAD, "longer than"),
        (described(), "0 dimensions"),
        (described(1, 1, 1, 1, 1), "5 dimensions"),
        (described(4, 0), "impossible shape"),
        (described(2**40, 2**40), "impossible shape"),
        (described(2**32, 2**32), "impossible shape"),
        (described(33, kind=8), "not whole Q8_0 blocks"),
        (described(2, offset=8), "not a multiple of 32"),
        (described(2, offset=2**63), "the file ends at"),
        (described(2**40), "the file ends at"),
        (described(2, name="\0" * 0), "tensor name of 0"),
        (gguf_bytes({"general.alignment": 24}, {}), "general.alignment"),
        (gguf_bytes({"general.alignment": True}, {}), "general.alignment"),
        (
            HEADER + struct.pack("<QQ", 0, 2) + 2 * (string("k") + metadata_value(1)) + PAD,
            "appears twice",
        ),
        (
            HEADER
            + struct.pack("<QQ", 2, 0)
            + 2 * (string("t") + struct.pack("<IQIQ", 1, 1, 0, 0))
            + PAD,
            "described twice",
        ),
    ],
)
def test_absurd_numbers_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(ModelFileError, match=message) as caught:
        GGUFFile.open(write(tmp_path, data))
    assert "small.gguf:byte" in (caught.value.where or "")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GGUF" + struct.pack("<I", 1) + PAD, "version 1"),
        (b"GGUF" + struct.pack("<I", 4) + PAD, "version 4"),
        (b"GGUF" + struct.pack(">I", 3) + PAD, "big-endian"),
        (described(2, kind=99), "unknown type 99"),
    ],
)
def test_unknown_versions_and_types_are_unsupported(
    tmp_path: Path, data: bytes, message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        GGUFFile.open(write(tmp_path, data))


def test_other_alignments_are_honoured(tmp_path: Path) -> None:
    data = gguf_bytes({"general.alignment": 128}, SMALL_TENSORS)
    file = GGUFFile.open(write(tmp_path, data))
    assert file.tensors["y"].offset % 128 == 0
    assert file.raw("y").tobytes() == bytes(range(68))


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        GGUFFile.open(tmp_path / "absent.gguf")
    with pytest.raises(ModelNotFound, match="no file or folder"):
        open_model(tmp_path / "absent.gguf")
    with pytest.raises(ModelFileError, match="empty"):
        GGUFFile.open(write(tmp_path, b""))
    with pytest.raises(ModelFileError, match="not a GGUF file"):
        open_model(write(tmp_path, b"PK\3\4"))
    with pytest.raises(ModelFileError, match="can't be read"):
        GGUFFile.open(tmp_path)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tied", [True, False])
def test_config_and_tensors_of_each_architecture(
    tmp_path: Path, architecture: Any, tied: bool
) -> None:
    config = tiny_config(architecture, tie_embeddings=tied)
    weights = random_weights(config)
    model = open_model(write_gguf_model(tmp_path / "m.gguf", config, weights))
    assert model.config == config
    assert model.names == weights.keys()
    for name, values in weights.items():
        got = model.tensor(name, torch.float32)
        assert got.is_contiguous()
        np.testing.assert_array_equal(got.numpy(), values, err_msg=name)
        assert model.tensor(name, torch.bfloat16).dtype is torch.bfloat16
    with pytest.raises(ModelFileError, match="no tensor 'x'"):
        model.tensor("x", torch.float32)
    model.close()


def test_quantised_rows_are_in_canonical_order(tmp_path: Path) -> None:
    config = tiny_config("llama")
    tensors = gguf_tensors(config, random_weights(config))
    name = "blk.0.attn_q.weight"
    values = np.frombuffer(tensors[name].data, "<f4").reshape(32, 32)
    packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    tensors[name] = Stored((32, 32), GGMLType.Q8_0, packed.tobytes())
    model = GGUFModel(write(tmp_path, gguf_bytes(gguf_metadata(config), tensors)))
    kind, raw, shape = model.quantised("model.layers.0.self_attn.q_proj.weight")
    assert (kind, shape) == (GGMLType.Q8_0, (32, 32))
    rows = raw.reshape(32, 34)
    # Head 0 holds rows 0-7; the file interleaves its halves, so canonical row 1 is stored row 2.
    np.testing.assert_array_equal(rows[1], packed[2])
    np.testing.assert_array_equal(rows[4], packed[1])
    expected = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType.Q8_0)
    got = model.tensor("model.layers.0.self_attn.q_proj.weight", torch.float32)
    np.testing.assert_array_equal(got.numpy(), expected)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"general.architecture": "mamba"}, UnsupportedModel, "'mamba'"),
        ({"general.architecture": 3}, ModelFileError, "general.architecture"),
        ({"llama.block_count": None}, ModelFileError, "llama.block_count"),
        ({"llama.block_count": 0}, ModelFileError, "llama.block_count"),
        ({"llama.block_count": 4_000_000_000}, ModelFileError, "llama.block_count"),
        ({"llama.block_count": 3}, ModelFileError, "blk.2"),
        ({"llama.block_count": 1}, UnsupportedModel, "blk.1.*no place"),
        ({"llama.attention.head_count": 0}, ModelFileError, "head_count"),
        ({"llama.attention.head_count_kv": 3}, ModelFileError, "multiple"),
        ({"llama.attention.head_count_kv": np.array([2, 1], "<u4")}, UnsupportedModel, "layer"),
        ({"llama.attention.key_length": 7}, ModelFileError, "odd"),
        ({"llama.attention.value_length": 16}, UnsupportedModel, "value_length"),
        ({"llama.rope.dimension_count": 4}, UnsupportedModel, "dimension_count"),
        (
            {"llama.attention.layer_norm_rms_epsilon": float("nan")},
            ModelFileError,
            "layer_norm_rms_epsilon",
        ),
        ({"llama.rope.freq_base": float("inf")}, ModelFileError, "freq_base"),
        ({"llama.rope.scaling.type": "yarn"}, UnsupportedModel, "yarn"),
        ({"llama.rope.scaling.type": "linear"}, ModelFileError, "scaling|scale_linear"),
        ({"llama.expert_count": 8}, UnsupportedModel, "experts"),
        ({"llama.embedding_length": 64}, ModelFileError, "token_embd.*shape"),
        ({"llama.feed_forward_length": 48}, ModelFileError, "ffn_gate.*shape"),
        ({"tokenizer.ggml.tokens": ["x"] * 65}, ModelFileError, "65 tokens"),
    ],
)
def test_wrong_metadata_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], error: type[StolonError], message: str
) -> None:
    config = tiny_config("llama")
    metadata = gguf_metadata(config) | changes
    metadata = {key: value for key, value in metadata.items() if value is not None}
    tensors = gguf_tensors(config, random_weights(config))
    with pytest.raises(error, match=message):
        GGUFModel(write(tmp_path, gguf_bytes(metadata, tensors)))


def test_missing_extra_and_misshapen_tensors(tmp_path: Path) -> None:
    config = tiny_config("llama")
    metadata, tensors = gguf_metadata(config), gguf_tensors(config, random_weights(config))
    name = "blk.1.ffn_up.weight"

    missing = {key: value for key, value in tensors.items() if key != name}
    with pytest.raises(ModelFileError, match=f"'{name}' is missing"):
        GGUFModel(write(tmp_path, gguf_bytes(metadata, missing)))

    misshapen = tensors | {name: Stored.f32(np.zeros((32, 64)))}
    with pytest.raises(ModelFileError, match=r"has shape \[32, 64\].*needs \[64, 32\]"):
        GGUFModel(write(tmp_path, gguf_bytes(metadata, misshapen)))

    extra = tensors | {"blk.0.attn_output.bias": Stored.f32(np.zeros(32))}
    with pytest.raises(UnsupportedModel, match=r"attn_output\.bias"):
        GGUFModel(write(tmp_path, gguf_bytes(metadata, extra)))


def test_unsupported_tensor_type_is_named_when_read(tmp_path: Path) -> None:
    config = tiny_config("llama")
    tensors = gguf_tensors(config, random_weights(config))
    tensors["blk.0.attn_v.weight"] = Stored((16, 32), GGMLType.IQ4_NL, bytes(16 * 18))
    model = GGUFModel(write(tmp_path, gguf_bytes(gguf_metadata(config), tensors)))
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.attn_v\.weight.*IQ4_NL") as caught:
        model.tensor("model.layers.0.self_attn.v_proj.weight", torch.float32)
    assert "Q4_K" in (caught.value.hint or "")


def test_linear_scaling_and_window_patterns(tmp_path: Path) -> None:
    config = tiny_config("gemma3")
    weights = random_weights(config)
    path = tmp_path / "g.gguf"
    scaled = {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
    model = GGUFModel(write_gguf_model(path, config, weights, **scaled))
    assert model.config.rope_scaling == RopeScaling(kind="linear", factor=8.0)
    model.close()
    key = "gemma3.attention.sliding_window_pattern"
    for pattern, local in ((2, {0}), (np.array([False, True]), {1})):
        model = GGUFModel(write_gguf_model(path, config, weights, **{key: pattern}))
        assert model.config.local_layers == local
        model.close()
    for pattern in (0, "x", np.array([True])):
        with pytest.raises(ModelFileError, match="sliding_window_pattern"):
            GGUFModel(write_gguf_model(path, config, weights, **{key: pattern}))


def llama3_factors(
    theta: float, half: int, factor: float, original: int
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The rule as the Llama 3.1 reference writes it, one frequency at a time."""
    factors = []
    for i in range(half):
        wavelength = 2 * np.pi * theta ** (i / half)
        if wavelength < original / 4:
            factors.append(1.0)
        elif wavelength > original:
            factors.append(factor)
        else:
            smooth = (original / wavelength - 1) / 3
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors)


def test_llama3_scaling_is_derived_from_its_factors(tmp_path: Path) -> None:
    config = tiny_config("llama")
    factors = llama3_factors(10000.0, 4, 32.0, 64)
    tensors = gguf_tensors(config, random_weights(config))
    metadata = gguf_metadata(config) | {"llama.rope.scaling.original_context_length": 64}
    tensors["rope_freqs.weight"] = Stored.f32(factors)
    model = GGUFModel(write(tmp_path, gguf_bytes(metadata, tensors)))
    assert model.config.rope_scaling == RopeScaling(kind="llama3", factor=32.0, original_context=64)
    model.close()
    tensors["rope_freqs.weight"] = Stored.f32(factors[::-1])
    with pytest.raises(UnsupportedModel, match="llama3"):
        GGUFModel(write(tmp_path, gguf_bytes(metadata, tensors)))


def test_llama3_scaling_of_the_published_sizes() -> None:
    for factor in (8.0, 32.0):
        found = llama3_scaling(llama3_factors(500000.0, 64, factor, 8192), 500000.0, 8192)
        assert found == RopeScaling(kind="llama3", factor=factor)
    assert llama3_scaling(np.full(64, np.nan), 500000.0, 8192) is None


def test_the_default_model_opens_and_reads() -> None:
    entry = next(model for model in list_models() if model.name == DEFAULT_MODEL)
    if entry.path is None:
        pytest.skip(f"the model {DEFAULT_MODEL} is not in the cache: stolon pull {DEFAULT_MODEL}")
    model = GGUFModel(entry.path)
    config = model.config
    assert (config.num_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert config.tie_embeddings
    assert len(model.file.get_strings("tokenizer.ggml.tokens").to_list()) == 49152
    for name in ("model.layers.29.mlp.down_proj.weight", "model.layers.0.self_attn.k_proj.weight"):
        kind, raw, shape = model.quantised(name)
        reference = gguf.GGMLQuantizationType(int(kind))
        expected = gguf.quants.dequantize(raw.reshape(shape[0], -1), reference)
        np.testing.assert_array_equal(model.tensor(name, torch.float32).numpy(), expected)
    model.close()

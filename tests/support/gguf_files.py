"""Small model files for tests: GGUF written by hand, so that it can be wrong, and HF folders."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file

from stolon.srt.loaders.ggml import GGMLType
from stolon.srt.loaders.gguf_model import stored_name
from stolon.srt.loaders.layout import tensor_shapes
from stolon.srt.models.config import Architecture, ModelConfig

Weights = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as it goes into the file: torch-order shape, type number, bytes."""

    shape: tuple[int, ...]
    kind: int
    data: bytes

    @classmethod
    def f32(cls, values: npt.ArrayLike) -> Stored:
        array = np.ascontiguousarray(values, dtype="<f4")
        return cls(array.shape, GGMLType.F32, array.tobytes())


def gguf_bytes(
    metadata: Mapping[str, Any], tensors: Mapping[str, Stored], *, version: int = 3
) -> bytes:
    """A whole file. Values: bool, int (u32), float (f32), str, list of str, or a numpy array."""
    out = bytearray(b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata)))
    for key, value in metadata.items():
        out += string(key) + metadata_value(value)
    alignment = metadata.get("general.alignment", 32)
    data = bytearray()
    for name, tensor in tensors.items():
        data += bytes(-len(data) % alignment)
        out += string(name) + struct.pack("<I", len(tensor.shape))
        out += struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape[::-1])
        out += struct.pack("<IQ", tensor.kind, len(data))
        data += tensor.data
    out += bytes(-len(out) % alignment)
    return bytes(out + data)


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


_ARRAY_KINDS = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "b1": 7, "f8": 12}


def metadata_value(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<IB", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + string(value)
        case list():
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(string, value))
        case np.ndarray():
            kind = _ARRAY_KINDS[value.dtype.str[1:]]
            return struct.pack("<IIQ", 9, kind, value.size) + value.tobytes()
        case _:
            raise TypeError(f"no metadata type for {value!r}")


def tiny_config(architecture: Architecture, *, tie_embeddings: bool = True) -> ModelConfig:
    """Two layers, hidden size 32, four heads of 8, two KV heads, 64 tokens."""
    gemma = architecture == "gemma3"
    return ModelConfig(
        architecture=architecture,
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        context_length=128,
        norm_eps=float(np.float32(1e-5)),
        query_scale=8**-0.5,
        rope_theta=10000.0,
        attention_bias=architecture == "qwen2",
        qk_norm=architecture in ("qwen3", "gemma3"),
        sliding_window=16 if gemma else None,
        local_layers=frozenset({0, 1}) if gemma else frozenset(),
        tie_embeddings=tie_embeddings,
        embedding_scale=32**0.5 if gemma else 1.0,
        post_norms=gemma,
        activation="gelu_tanh" if gemma else "silu",
    )


def random_weights(config: ModelConfig, *, seed: int = 0) -> Weights:
    """Weights by canonical name; every value survives a trip through bfloat16."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in tensor_shapes(config).items():
        values = rng.integers(-64, 64, shape).astype(np.float32) / 128
        weights[name] = 1 + values / 4 if name.endswith("norm.weight") else values
    return weights


def gguf_metadata(config: ModelConfig) -> dict[str, Any]:
    """The metadata that describes a config without rope scaling."""
    prefix = config.architecture
    metadata: dict[str, Any] = {
        "general.architecture": prefix,
        f"{prefix}.block_count": config.num_layers,
        f"{prefix}.context_length": config.context_length,
        f"{prefix}.embedding_length": config.hidden_size,
        f"{prefix}.feed_forward_length": config.intermediate_size,
        f"{prefix}.attention.head_count": config.num_heads,
        f"{prefix}.attention.head_count_kv": config.num_kv_heads,
        f"{prefix}.attention.key_length": config.head_dim,
        f"{prefix}.attention.layer_norm_rms_epsilon": config.norm_eps,
        f"{prefix}.rope.freq_base": config.rope_theta,
    }
    if config.sliding_window is not None:
        metadata[f"{prefix}.attention.sliding_window"] = config.sliding_window
    return metadata


def gguf_tensors(config: ModelConfig, weights: Weights) -> dict[str, Stored]:
    """Tensors in float32 as a GGUF file stores them: llama's q and k rows interleaved."""
    stored = {}
    for name, values in weights.items():
        heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(name.split(".")[-2])
        if config.architecture == "llama" and heads:
            rows = values.reshape(heads, 2, -1, *values.shape[1:])
            values = rows.swapaxes(1, 2).reshape(values.shape)
        stored[stored_name(name, config)] = Stored.f32(values)
    return stored


def write_gguf_model(path: Path, config: ModelConfig, weights: Weights, **extra: Any) -> Path:
    """A valid model file; `extra` metadata is added with dots for double underscores."""
    metadata = gguf_metadata(config) | {k.replace("__", "."): v for k, v in extra.items()}
    path.write_bytes(gguf_bytes(metadata, gguf_tensors(config, weights)))
    return path


_HF_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}


def hf_config(config: ModelConfig) -> dict[str, Any]:
    """config.json of a config without rope scaling, in the layout of transformers 4."""
    data: dict[str, Any] = {
        "architectures": [_HF_CLASSES[config.architecture]],
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_embeddings,
    }
    if config.architecture == "gemma3":
        data |= {"sliding_window": config.sliding_window, "query_pre_attn_scalar": config.head_dim}
    return data


def hf_tensors(config: ModelConfig, weights: Weights) -> dict[str, torch.Tensor]:
    """Tensors as a Hugging Face folder stores them: gemma3 norms as the distance from one."""
    offset = 1.0 if config.architecture == "gemma3" else 0.0
    return {
        name: torch.from_numpy(values - (offset if name.endswith("norm.weight") else 0.0))
        for name, values in weights.items()
    }


def write_hf_model(folder: Path, config: ModelConfig, weights: Weights, **extra: Any) -> Path:
    """A valid model folder; `extra` overrides fields of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_config(config) | extra))
    save_file(hf_tensors(config, weights), folder / "model.safetensors")
    return folder

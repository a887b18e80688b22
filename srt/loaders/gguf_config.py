"""The metadata of a GGUF file as a ModelConfig."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from stolon.errors import ModelFileError, UnsupportedModel
from stolon.srt.loaders.dequant import dequantise
from stolon.srt.loaders.gguf import GGUFFile
from stolon.srt.loaders.layout import (
    SUPPORTED_ARCHITECTURES,
    check_config,
    check_number,
    check_tensor,
)
from stolon.srt.models.config import Architecture, ModelConfig, RopeScaling

ROPE_FREQS = "rope_freqs.weight"


def read_config(file: GGUFFile) -> ModelConfig:
    """The validated config of a GGUF file. Raises ModelFileError or UnsupportedModel."""
    where = file.path.name
    name = file.get_str("general.architecture")
    if name not in SUPPORTED_ARCHITECTURES:
        raise UnsupportedModel(
            f"the architecture {name!r} is not supported",
            where=where,
            hint="supported: " + ", ".join(SUPPORTED_ARCHITECTURES),
        )
    architecture = cast(Architecture, name)
    keys = _Keys(file, architecture)
    if keys.has("expert_count") and keys.integer("expert_count"):
        raise UnsupportedModel("mixture-of-experts models are not supported", where=where)

    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelFileError("tensor 'token_embd.weight' is missing or not a table", where=where)
    vocab_size = embedding.shape[0]
    if "tokenizer.ggml.tokens" in file.metadata:
        tokens = len(file.get_strings("tokenizer.ggml.tokens"))
        if tokens > vocab_size:
            raise ModelFileError(
                f"the tokenizer has {tokens} tokens, the embedding only {vocab_size}", where=where
            )

    hidden = keys.integer("embedding_length", "hidden_size")
    heads = keys.integer("attention.head_count", "num_heads")
    kv_heads = keys.integer("attention.head_count_kv", "num_kv_heads", default=heads)
    head_dim = keys.integer("attention.key_length", "head_dim", default=hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.integer(key, default=head_dim) != head_dim:
            raise UnsupportedModel(
                f"{architecture}.{key} differs from the head size {head_dim}", where=where
            )
    layers = keys.integer("block_count", "num_layers")
    gemma = architecture == "gemma3"
    theta = keys.number("rope.freq_base", "rope_theta", default=1e6 if gemma else 1e4)
    window = _sliding_window(keys, layers, gemma=gemma)
    query_width = head_dim
    if gemma and layers == 62:  # gemma3 27b scales by hidden / heads, and has no key that says so
        query_width = hidden // heads
    return check_config(
        ModelConfig(
            architecture=architecture,
            vocab_size=vocab_size,
            hidden_size=hidden,
            intermediate_size=keys.integer("feed_forward_length", "intermediate_size"),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            context_length=keys.integer("context_length", "context_length"),
            norm_eps=keys.number("attention.layer_norm_rms_epsilon", "norm_eps"),
            query_scale=query_width**-0.5,
            rope_theta=theta,
            rope_theta_local=keys.number(
                "rope.freq_base_swa", "rope_theta_local", default=1e4 if gemma else theta
            ),
            rope_scaling=_rope_scaling(keys, theta, head_dim),
            attention_bias="blk.0.attn_q.bias" in file.tensors,
            qk_norm=architecture in ("qwen3", "gemma3"),
            sliding_window=window[0],
            local_layers=window[1],
            tie_embeddings="output.weight" not in file.tensors,
            embedding_scale=hidden**0.5 if gemma else 1.0,
            post_norms=gemma,
            activation="gelu_tanh" if gemma else "silu",
            final_softcap=keys.optional_number("final_logit_softcapping", "final_softcap"),
            attention_softcap=keys.optional_number("attn_logit_softcapping", "attention_softcap"),
        ),
        where=where,
    )


class _Keys:
    """Metadata under an architecture's prefix, with range checks that name the key."""

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self.file = file
        self.prefix = architecture
        self.where = file.path.name

    def has(self, key: str) -> bool:
        return f"{self.prefix}.{key}" in self.file.metadata

    def integer(self, key: str, field: str | None = None, *, default: int | None = None) -> int:
        full = f"{self.prefix}.{key}"
        if isinstance(self.file.metadata.get(full), np.ndarray):
            raise UnsupportedModel(f"{full} differs from layer to layer", where=self.where)
        value = self.file.get_int(full, default=default)
        if field is not None:
            check_number(full, value, field, where=self.where)
        return value

    def number(self, key: str, field: str, *, default: float | None = None) -> float:
        full = f"{self.prefix}.{key}"
        value = self.file.get_float(full, default=default)
        check_number(full, value, field, where=self.where)
        return value

    def optional_number(self, key: str, field: str) -> float | None:
        return self.number(key, field) if self.has(key) else None


def _sliding_window(keys: _Keys, layers: int, *, gemma: bool) -> tuple[int | None, frozenset[int]]:
    """Width of local attention and the layers that use it."""
    if not gemma and not keys.has("attention.sliding_window"):
        return None, frozenset()
    window = keys.integer("attention.sliding_window", "sliding_window")
    pattern_key = f"{keys.prefix}.attention.sliding_window_pattern"
    pattern = keys.file.metadata.get(pattern_key, 6 if gemma else None)
    if isinstance(pattern, np.ndarray):
        if pattern.size != layers:
            raise ModelFileError(
                f"{pattern_key} has {pattern.size} entries for {layers} layers", where=keys.where
            )
        return window, frozenset(np.flatnonzero(pattern).tolist())
    if pattern is None:
        return window, frozenset(range(layers))
    if type(pattern) is not int or pattern < 1:
        raise ModelFileError(f"{pattern_key} must be a positive integer", where=keys.where)
    return window, frozenset(i for i in range(layers) if (i + 1) % pattern)


def _rope_scaling(keys: _Keys, theta: float, head_dim: int) -> RopeScaling | None:
    """Rotary scaling from the metadata or from the table of frequency factors."""
    kind = keys.file.get_str(f"{keys.prefix}.rope.scaling.type", default="")
    scaling = None
    if kind == "linear" or (not kind and keys.has("rope.scale_linear")):
        key = "rope.scaling.factor" if keys.has("rope.scaling.factor") else "rope.scale_linear"
        factor = keys.file.get_float(f"{keys.prefix}.{key}")
        scaling = RopeScaling(kind="linear", factor=factor) if factor != 1.0 else None
    elif kind not in ("", "none"):
        raise UnsupportedModel(f"rope scaling of type {kind!r} is not supported", where=keys.where)
    info = keys.file.tensors.get(ROPE_FREQS)
    if info is None:
        return scaling
    check_tensor(ROPE_FREQS, info.shape, (head_dim // 2,), where=keys.where)
    factors = dequantise(
        keys.file.raw(ROPE_FREQS), info.type, info.shape, torch.float32, name=ROPE_FREQS
    )
    original = keys.integer("rope.scaling.original_context_length", default=8192)
    llama3 = llama3_scaling(factors.double().numpy(), theta, original)
    if scaling is not None or llama3 is None:
        raise UnsupportedModel(
            f"the frequency factors in {ROPE_FREQS!r} do not follow the llama3 rule",
            where=keys.where,
        )
    return llama3 if llama3.factor != 1.0 else None


def llama3_scaling(
    factors: npt.NDArray[np.float64], theta: float, original: int
) -> RopeScaling | None:
    """The llama3 rule that gives these divisors of the rotary frequencies, or None if none does.

    The rule leaves wavelengths under original/high as they are, divides the frequencies of those
    over original/low by `factor`, and interpolates between (Llama 3.1 reference implementation; low
    1, high 4).
    """
    factor = float(factors.max())
    if not (math.isfinite(factor) and factor >= 1.0 and original > 0):
        return None
    low, high = 1.0, 4.0
    half = len(factors)
    frequencies = theta ** -(np.arange(half) / half)
    turns = original * frequencies / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    expected = 1.0 / ((1.0 - smooth) / factor + smooth)
    if not np.allclose(factors, expected, rtol=1e-3):
        return None
    return RopeScaling(
        kind="llama3",
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_context=original,
    )

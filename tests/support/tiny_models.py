"""Tiny models made of random tensors: real architectures, no files, no downloads."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from stolon.errors import ModelFileError
from stolon.kernels import StoredWeight
from stolon.srt.models.config import Architecture, ModelConfig
from stolon.srt.weights import WeightSource


class TensorSource:
    """A `WeightSource` over tensors in memory."""

    def __init__(self, config: ModelConfig, tensors: dict[str, Tensor]) -> None:
        self._config = config
        self._tensors = tensors

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def tensor(self, name: str, dtype: torch.dtype) -> Tensor:
        if name not in self._tensors:
            raise ModelFileError(f"there is no tensor {name!r}")
        return self._tensors[name].to(dtype, copy=True).contiguous()

    def stored(self, name: str) -> StoredWeight:
        return StoredWeight.of(self.tensor(name, torch.float32))

    def close(self) -> None:
        pass


def tiny_config(
    architecture: Architecture = "llama", *, vocab_size: int = 288, **changes: Any
) -> ModelConfig:
    """Two layers (gemma3: three, the last one global), 48 wide, 4 query heads over 2 key-value
    heads."""
    values: dict[str, Any] = {
        "architecture": architecture,
        "vocab_size": vocab_size,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "context_length": 2048,
        "norm_eps": 1e-5,
        "query_scale": 16**-0.5,
        "tie_embeddings": True,
        "attention_bias": architecture == "qwen2",
        "qk_norm": architecture in ("qwen3", "gemma3"),
    }
    if architecture == "gemma3":
        values |= {
            "num_layers": 3,
            "rope_theta": 1e6,
            "sliding_window": 8,
            "local_layers": frozenset({0, 1}),
            "embedding_scale": math.sqrt(48),
            "post_norms": True,
            "activation": "gelu_tanh",
        }
    return ModelConfig(**(values | changes))


def tiny_model(
    architecture: Architecture = "llama", vocab_size: int = 288, seed: int = 0, **changes: Any
) -> WeightSource:
    """A random model, the same for the same arguments.

    Weights are large enough that attention is sharp and greedy text neither repeats itself at once
    nor follows from the last token alone. `changes` are fields of `ModelConfig`.
    """
    config = tiny_config(architecture, vocab_size=vocab_size, **changes)
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, gain: float) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * (gain / math.sqrt(columns))

    def factor(size: int) -> Tensor:
        return 1 + 0.2 * torch.randn(size, generator=generator)

    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    query, shared = config.num_heads * dim, config.num_kv_heads * dim
    # The stream starts small, so that what the layers add outweighs the last token's own embedding,
    # and the final norm brings logits to a spread of about 3.
    spread = 0.3 / config.embedding_scale
    output = spread * math.sqrt(hidden) if config.tie_embeddings else 1.0
    tensors = {
        "model.embed_tokens.weight": torch.randn(vocab_size, hidden, generator=generator) * spread,
        "model.norm.weight": factor(hidden) * (3.0 / output),
    }
    for index in range(config.num_layers):
        layer = f"model.layers.{index}."
        for part, rows in (("q", query), ("k", shared), ("v", shared)):
            tensors[f"{layer}self_attn.{part}_proj.weight"] = matrix(rows, hidden, 1.6)
            if config.attention_bias:
                tensors[f"{layer}self_attn.{part}_proj.bias"] = 0.3 * torch.randn(
                    rows, generator=generator
                )
        if config.qk_norm:
            tensors[f"{layer}self_attn.q_norm.weight"] = 1.5 * factor(dim)
            tensors[f"{layer}self_attn.k_norm.weight"] = 1.5 * factor(dim)
        tensors[f"{layer}self_attn.o_proj.weight"] = matrix(hidden, query, 2.0)
        tensors[f"{layer}mlp.gate_proj.weight"] = matrix(inner, hidden, 1.5)
        tensors[f"{layer}mlp.up_proj.weight"] = matrix(inner, hidden, 1.5)
        tensors[f"{layer}mlp.down_proj.weight"] = matrix(hidden, inner, 2.0)
        norms = ["input_layernorm", "post_attention_layernorm"]
        if config.post_norms:
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        for norm in norms:
            tensors[f"{layer}{norm}.weight"] = factor(hidden)
    if not config.tie_embeddings:
        tensors["lm_head.weight"] = matrix(vocab_size, hidden, 1.0)
    return TensorSource(config, tensors)

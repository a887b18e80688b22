"""The shape of a model, read as data from GGUF metadata or a Hugging Face config.json."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Architecture = Literal["llama", "qwen2", "qwen3", "gemma3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Stretching of rotary frequencies: ``linear`` (arXiv 2306.15595), ``llama3``, or ``yarn`` is refused."""

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and constants of a decoder-only transformer. Loaders validate; models trust.

    Attributes:
        context_length: longest sequence the model was made for.
        query_scale: factor on q·k (usually ``head_dim ** -0.5``).
        attention_bias: q, k, v projections carry a bias (qwen2).
        qk_norm: per-head RMSNorm on q and k before rotary embedding (qwen3, gemma3).
        sliding_window: width of local attention, on the layers of `local_layers`.
        local_layers: indices of the layers that attend locally.
        rope_theta, rope_theta_local: base frequency for global and local layers.
        tie_embeddings: the output head is the embedding table.
        embedding_scale: factor on embeddings (gemma3: sqrt(hidden_size)).
        post_norms: also normalise the output of attention and MLP before adding it (gemma3).
        activation: of the gated MLP.
    """

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    norm_eps: float
    query_scale: float
    rope_theta: float = 10000.0
    rope_theta_local: float = 10000.0
    rope_scaling: RopeScaling | None = None
    attention_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    local_layers: frozenset[int] = field(default_factory=frozenset)
    tie_embeddings: bool = False
    embedding_scale: float = 1.0
    post_norms: bool = False
    activation: Literal["silu", "gelu_tanh"] = "silu"
    final_softcap: float | None = None
    attention_softcap: float | None = None

"""What a model of a given config must contain: possible numbers, names and shapes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from stolon.errors import ModelFileError, UnsupportedModel
from stolon.srt.models.config import ModelConfig

SUPPORTED_ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")


@dataclass(frozen=True, slots=True)
class _Range:
    low: float
    high: float


# Far above any real model and far below anything that could overflow an allocation's arithmetic.
_RANGES: dict[str, _Range] = {
    "vocab_size": _Range(2, 1 << 22),
    "hidden_size": _Range(1, 1 << 17),
    "intermediate_size": _Range(1, 1 << 20),
    "num_layers": _Range(1, 1024),
    "num_heads": _Range(1, 1024),
    "num_kv_heads": _Range(1, 1024),
    "head_dim": _Range(2, 1024),
    "context_length": _Range(1, 1 << 24),
    "norm_eps": _Range(1e-12, 0.1),
    "query_scale": _Range(1e-4, 1e4),
    "rope_theta": _Range(1.0, 1e12),
    "rope_theta_local": _Range(1.0, 1e12),
    "sliding_window": _Range(1, 1 << 24),
    "embedding_scale": _Range(1e-4, 1e4),
    "final_softcap": _Range(1e-3, 1e6),
    "attention_softcap": _Range(1e-3, 1e6),
}


def check_number(name: str, value: float, field: str, *, where: str) -> None:
    """Raise ModelFileError if `value`, read under `name`, is out of a ModelConfig field's range."""
    allowed = _RANGES[field]
    if not allowed.low <= value <= allowed.high:  # also true of NaN
        shown = f"{value:g}" if abs(value) < 1e300 else "too large"
        raise ModelFileError(
            f"{name} is {shown}, outside {allowed.low:g} to {allowed.high:g}",
            where=where,
            hint="the file is damaged or its config is wrong",
        )


def check_values(name: str, values: Tensor, *, where: str) -> Tensor:
    """The values of a tensor that was read, which are checked if it is a vector (norms, biases). Matrices
    are too large for that; what they spoil shows in the logits.

    Raises ModelFileError for NaN or infinity.
    """
    if values.ndim == 1 and not bool(values.isfinite().all()):
        raise ModelFileError(
            f"tensor {name!r} holds NaN or infinity",
            where=where,
            hint="the weights are damaged, or too large for their dtype: download the model again",
        )
    return values


def check_config(config: ModelConfig, *, where: str) -> ModelConfig:
    """The config if its numbers are possible. Raises ModelFileError or UnsupportedModel."""
    for field in _RANGES:
        value = getattr(config, field)
        if value is not None:
            check_number(field, value, field, where=where)
    if config.num_heads % config.num_kv_heads:
        raise ModelFileError(
            f"num_heads {config.num_heads} is not a multiple of num_kv_heads {config.num_kv_heads}",
            where=where,
        )
    if config.head_dim % 2:
        raise ModelFileError(f"head_dim {config.head_dim} is odd", where=where)
    scaling = config.rope_scaling
    if scaling is not None:
        numbers = (scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor)
        if not all(math.isfinite(n) and 0 < n <= 1e4 for n in numbers):
            raise ModelFileError(f"rope scaling with the factors {numbers}", where=where)
        if not 0 < scaling.original_context <= 1 << 24:
            raise ModelFileError(
                f"rope scaling from a context of {scaling.original_context}", where=where
            )
        if scaling.kind == "llama3" and scaling.high_freq_factor <= scaling.low_freq_factor:
            raise ModelFileError(
                "rope scaling with high_freq_factor <= low_freq_factor", where=where
            )
        if config.local_layers and config.architecture != "gemma3":
            raise UnsupportedModel("rope scaling together with sliding windows", where=where)
    return config


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Canonical name (see stolon.srt.weights) to shape of every tensor of a model."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries = config.num_heads * config.head_dim
    keys = config.num_kv_heads * config.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.attention_bias:
        layer["self_attn.q_proj.bias"] = (queries,)
        layer["self_attn.k_proj.bias"] = (keys,)
        layer["self_attn.v_proj.bias"] = (keys,)
    if config.qk_norm:
        layer["self_attn.q_norm.weight"] = (config.head_dim,)
        layer["self_attn.k_norm.weight"] = (config.head_dim,)
    if config.post_norms:
        layer["pre_feedforward_layernorm.weight"] = (hidden,)
        layer["post_feedforward_layernorm.weight"] = (hidden,)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for i in range(config.num_layers):
        shapes.update({f"model.layers.{i}.{name}": shape for name, shape in layer.items()})
    return shapes


def check_tensor(
    name: str, found: tuple[int, ...] | None, expected: tuple[int, ...], *, where: str
) -> None:
    """Raise ModelFileError if a tensor (by its stored name) is missing or of the wrong shape."""
    if found is None:
        raise ModelFileError(
            f"tensor {name!r} is missing", where=where, hint="download the model again"
        )
    if found != expected:
        raise ModelFileError(
            f"tensor {name!r} has shape {list(found)}; the config needs {list(expected)}",
            where=where,
            hint="the file is damaged, or its config belongs to another model",
        )

"""A Hugging Face config.json as a ModelConfig.

Reads the layouts of transformers 4 (`rope_theta`, `rope_scaling`) and 5 (`rope_parameters`). A
setting that changes the arithmetic and is not implemented is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from stolon.errors import ModelFileError, UnsupportedModel
from stolon.srt.loaders.layout import check_config, check_number
from stolon.srt.models.config import Architecture, ModelConfig, RopeScaling

_ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",
}

# The defaults of each family's own config class: config.json leaves out what equals them.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048},
    "MistralForCausalLM": {
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    "Qwen2ForCausalLM": {"rms_norm_eps": 1e-6, "max_position_embeddings": 32768},
    "Qwen3ForCausalLM": {"rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "head_dim": 128},
    "gemma3": {
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 131072,
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
    },
}


def is_vision_config(data: Mapping[str, Any]) -> bool:
    """Whether the language model is one part of a model with vision, with prefixed tensor names."""
    return isinstance(data.get("text_config"), Mapping)


def read_config(data: Mapping[str, Any], *, where: str = "config.json") -> ModelConfig:
    """The validated config of a parsed config.json. Raises ModelFileError or UnsupportedModel."""
    names = data.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ModelFileError("'architectures' must name the model's class", where=where)
    name = names[0]
    if name not in _ARCHITECTURES:
        raise UnsupportedModel(
            f"the architecture {name!r} is not supported",
            where=where,
            hint="supported: " + ", ".join(_ARCHITECTURES),
        )
    architecture = _ARCHITECTURES[name]
    body = dict(data)
    if is_vision_config(data):
        if architecture != "gemma3":
            raise UnsupportedModel(f"{name} with a nested text_config", where=where)
        body = {"tie_word_embeddings": data.get("tie_word_embeddings", True)} | data["text_config"]
    defaults = _DEFAULTS[architecture if architecture == "gemma3" else name]
    fields = _Fields(defaults | {k: v for k, v in body.items() if v is not None}, where)
    if "sliding_window" in body and body["sliding_window"] is None:
        fields.data.pop("sliding_window", None)
    return _build(architecture, name, fields)


def _build(architecture: Architecture, name: str, fields: _Fields) -> ModelConfig:
    where, gemma = fields.where, architecture == "gemma3"
    if fields.data.get("quantization_config"):
        raise UnsupportedModel("'quantization_config': quantised safetensors", where=where)
    if fields.flag("mlp_bias", False):
        raise UnsupportedModel("'mlp_bias': biases in the MLP", where=where)
    if gemma and fields.flag("use_bidirectional_attention", False):
        raise UnsupportedModel("'use_bidirectional_attention'", where=where)
    activation = fields.text("hidden_activation" if gemma else "hidden_act", "silu")
    if activation != ("gelu_pytorch_tanh" if gemma else "silu"):
        raise UnsupportedModel(f"the activation {activation!r}", where=where)

    hidden = fields.integer("hidden_size", "hidden_size")
    heads = fields.integer("num_attention_heads", "num_heads")
    head_dim = fields.integer("head_dim", "head_dim", default=hidden // heads)
    layers = fields.integer("num_hidden_layers", "num_layers")
    if fields.number("partial_rotary_factor", default=1.0) != 1.0:
        raise UnsupportedModel("'partial_rotary_factor': partial rotary embedding", where=where)
    theta, local_theta, scaling = _rope(fields, gemma=gemma)
    window, local = _sliding_window(fields, name, layers, gemma=gemma)
    query_width = fields.number("query_pre_attn_scalar", default=head_dim) if gemma else head_dim
    if not (math.isfinite(query_width) and query_width > 0):
        raise ModelFileError(f"'query_pre_attn_scalar' is {query_width}", where=where)
    config = ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size", "vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size", "intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", "num_kv_heads", default=heads),
        head_dim=head_dim,
        context_length=fields.integer("max_position_embeddings", "context_length"),
        norm_eps=fields.number("rms_norm_eps"),
        query_scale=query_width**-0.5,
        rope_theta=theta,
        rope_theta_local=local_theta,
        rope_scaling=scaling,
        attention_bias=architecture == "qwen2" or fields.flag("attention_bias", False),
        qk_norm=architecture in ("qwen3", "gemma3"),
        sliding_window=window,
        local_layers=local,
        tie_embeddings=fields.flag("tie_word_embeddings", False),
        embedding_scale=hidden**0.5 if gemma else 1.0,
        post_norms=gemma,
        activation="gelu_tanh" if gemma else "silu",
        final_softcap=fields.optional_number("final_logit_softcapping") if gemma else None,
        attention_softcap=fields.optional_number("attn_logit_softcapping") if gemma else None,
    )
    return check_config(config, where=where)


class _Fields:
    """Typed access to a JSON object, with errors that name the field."""

    def __init__(self, data: dict[str, Any], where: str) -> None:
        self.data = data
        self.where = where

    def _wrong(self, name: str, wanted: str) -> ModelFileError:
        value = self.data.get(name)
        found = "missing" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
        return ModelFileError(f"{name!r} must be {wanted}, but is {found}", where=self.where)

    def integer(self, name: str, field: str, *, default: int | None = None) -> int:
        value = self.data.get(name, default)
        if type(value) is not int:
            raise self._wrong(name, "an integer")
        check_number(repr(name), value, field, where=self.where)
        return value

    def number(self, name: str, *, default: float | None = None) -> float:
        value = self.data.get(name, default)
        # The bound keeps huge JSON integers from overflowing; every real setting is far below it.
        if type(value) not in (int, float) or not abs(cast(float, value)) <= 1e30:
            raise self._wrong(name, "a number")
        return float(cast(float, value))

    def optional_number(self, name: str) -> float | None:
        return self.number(name) if self.data.get(name) is not None else None

    def flag(self, name: str, default: bool) -> bool:
        value = self.data.get(name, default)
        if type(value) is not bool:
            raise self._wrong(name, "true or false")
        return value

    def text(self, name: str, default: str) -> str:
        value = self.data.get(name, default)
        if type(value) is not str:
            raise self._wrong(name, "a string")
        return value

    def part(self, name: str) -> _Fields | None:
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return _Fields({k: v for k, v in value.items() if v is not None}, f"{self.where}#/{name}")


def _rope(fields: _Fields, *, gemma: bool) -> tuple[float, float, RopeScaling | None]:
    """Base frequency of global and of local layers, and the scaling of the global ones."""
    theta = fields.number("rope_theta", default=10000.0)
    local = fields.number("rope_local_base_freq", default=1e4) if gemma else None
    # transformers 5 writes everything about rotary embedding into one object, by layer type for
    # gemma3.
    parameters = fields.part("rope_parameters") or fields.part("rope_scaling")
    if parameters is not None and any(k.endswith("_attention") for k in parameters.data):
        near = parameters.part("sliding_attention")
        if near is not None:
            local = near.number("rope_theta", default=local)
            if _scaling(near) is not None:
                raise UnsupportedModel("rope scaling of local layers", where=near.where)
        parameters = parameters.part("full_attention")
    if parameters is None:
        return theta, theta if local is None else local, None
    theta = parameters.number("rope_theta", default=theta)
    if parameters.number("partial_rotary_factor", default=1.0) != 1.0:
        raise UnsupportedModel(
            "'partial_rotary_factor': partial rotary embedding", where=parameters.where
        )
    return theta, theta if local is None else local, _scaling(parameters)


def _scaling(parameters: _Fields) -> RopeScaling | None:
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=parameters.number("factor"))
    if kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=parameters.number("factor"),
            low_freq_factor=parameters.number("low_freq_factor"),
            high_freq_factor=parameters.number("high_freq_factor"),
            original_context=parameters.integer(
                "original_max_position_embeddings", "context_length"
            ),
        )
    raise UnsupportedModel(
        f"rope scaling of type {kind!r} is not supported",
        where=parameters.where,
        hint="supported: linear, llama3",
    )


def _sliding_window(
    fields: _Fields, name: str, layers: int, *, gemma: bool
) -> tuple[int | None, frozenset[int]]:
    """Width of local attention and the layers that use it."""
    optional = name.startswith("Qwen")
    if (optional and not fields.flag("use_sliding_window", False)) or (
        name.startswith("Llama") or fields.data.get("sliding_window") is None
    ):
        return None, frozenset()
    window = fields.integer("sliding_window", "sliding_window")
    types = fields.data.get("layer_types")
    if types is not None:
        known = {"full_attention", "sliding_attention"}
        if not isinstance(types, list) or len(types) != layers or not known.issuperset(types):
            raise ModelFileError(
                f"'layer_types' must name full_attention or sliding_attention {layers} times",
                where=fields.where,
            )
        local = {i for i, kind in enumerate(types) if kind == "sliding_attention"}
    elif gemma:
        pattern = fields.data.get("sliding_window_pattern", 6)
        if type(pattern) is not int or pattern < 1:
            raise ModelFileError(
                "'sliding_window_pattern' must be a positive integer", where=fields.where
            )
        local = {i for i in range(layers) if (i + 1) % pattern}
    elif optional:
        first = fields.data.get("max_window_layers", 28)
        if type(first) is not int or first < 0:
            raise ModelFileError("'max_window_layers' must be an integer", where=fields.where)
        local = set(range(first, layers))
    else:
        local = set(range(layers))
    return (window, frozenset(local)) if local else (None, frozenset())

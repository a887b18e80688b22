"""Gemma 3 (arXiv 2503.19786), text only.

Differs from Llama in normalised queries and keys, a norm behind attention and MLP as well, local
layers with a sliding window and their own rotary base, and embeddings scaled by sqrt(hidden). The
scale is applied exactly; the published code rounds it to the model's dtype first, which bfloat16
runs can tell.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from stolon.kernels import Ops
from stolon.srt.models.config import ModelConfig
from stolon.srt.models.llama import DecoderLayer, Llama, Weights
from stolon.srt.models.qwen3 import NormedHeads
from stolon.srt.models.rope import rope_frequencies


class Gemma3Layer(DecoderLayer):
    """``x + norm(attention(norm(x)))``, then ``x + norm(mlp(norm(x)))``."""

    attention_kind = NormedHeads
    mlp_norm_name = "pre_feedforward_layernorm"

    def __init__(self, config: ModelConfig, index: int, weights: Weights, ops: Ops) -> None:
        super().__init__(config, index, weights, ops)
        self.after_attention = weights.norm("post_attention_layernorm")
        self.after_mlp = weights.norm("post_feedforward_layernorm")

    def complete(self, x: Tensor, y: Tensor) -> Tensor:
        ops = self.ops
        y = ops.linear(y, self.attention.output)
        x = ops.rms_norm(y, self.after_attention, self.eps, add=x)
        y = ops.rms_norm(x, self.mlp_norm, self.eps)
        y = ops.linear(ops.gated_linear(y, self.gate_up, self.activation), self.down)
        return ops.rms_norm(y, self.after_mlp, self.eps, add=x)


class Gemma3(Llama):
    layer_kind = Gemma3Layer

    def rope_tables(self, positions: int) -> list[Any]:
        config = self.config
        local = rope_frequencies(config.head_dim, config.rope_theta_local)
        return [*super().rope_tables(positions), self.ops.rope_table(local, positions)]

    def rope_index(self, layer: int) -> int:
        return 1 if layer in self.config.local_layers else 0

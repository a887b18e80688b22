"""Qwen2 and 2.5 (arXiv 2407.10671, 2412.15115): Llama with a bias on queries, keys, values."""

from __future__ import annotations

from torch import Tensor

from stolon.srt.models.llama import Attention, DecoderLayer, Llama, Weights


class Qwen2Attention(Attention):
    def bias(self, weights: Weights) -> Tensor | None:
        return self.join(weights, "bias")


class Qwen2Layer(DecoderLayer):
    attention_kind = Qwen2Attention


class Qwen2(Llama):
    layer_kind = Qwen2Layer

"""Qwen3 (arXiv 2505.09388): Llama with RMSNorm on every head of queries and keys."""

from __future__ import annotations

import torch

from stolon.kernels import Ops
from stolon.srt.models.config import ModelConfig
from stolon.srt.models.llama import Attention, DecoderLayer, Llama, Weights


class NormedHeads(Attention):
    """Attention whose queries and keys are normalised head by head before rotation."""

    def __init__(self, config: ModelConfig, index: int, weights: Weights, ops: Ops) -> None:
        super().__init__(config, index, weights, ops)
        q = weights.vector("self_attn.q_norm.weight").expand(config.num_heads, -1)
        k = weights.vector("self_attn.k_norm.weight").expand(config.num_kv_heads, -1)
        self.head_norm = ops.pack_norm(torch.cat((q, k)))


class Qwen3Layer(DecoderLayer):
    attention_kind = NormedHeads


class Qwen3(Llama):
    layer_kind = Qwen3Layer

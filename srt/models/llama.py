"""Llama (arXiv 2302.13971), and with a sliding window Mistral (arXiv 2310.06825).

The decoder that every other architecture here is a variation of: pre-norm blocks of rotary
attention with shared key-value heads (arXiv 2305.13245) and a gated MLP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from stolon.kernels import AttentionSpec, Ops, RaggedBatch
from stolon.srt.models.config import ModelConfig
from stolon.srt.models.rope import rope_angles
from stolon.srt.weights import WeightSource


class Weights:
    """The tensors under one name prefix of a source, in the dtype of an op table."""

    def __init__(self, source: WeightSource, prefix: str, ops: Ops) -> None:
        self._source, self._prefix, self._ops = source, prefix, ops

    def __call__(self, name: str) -> Tensor:
        return self._source.tensor(self._prefix + name, self._ops.dtype)

    def norm(self, name: str) -> Any:
        return self._ops.pack_norm(self(f"{name}.weight"))

    def exact(self, name: str) -> Tensor:
        """In float32: packing rounds once, and sees what grid 4-bit weights lie on."""
        return self._source.tensor(self._prefix + name, torch.float32)

    def linear(self, name: str) -> Any:
        return self._ops.pack_linear(self.exact(f"{name}.weight"))


class Attention:
    """Queries, keys and values from one projection; the layer applies the output projection."""

    def __init__(self, config: ModelConfig, index: int, weights: Weights, ops: Ops) -> None:
        self.ops = ops
        self.rotated = config.num_heads + config.num_kv_heads
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        self.spec = AttentionSpec(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.query_scale,
            window=config.sliding_window if index in config.local_layers else None,
            softcap=config.attention_softcap,
        )
        bias = self.join(weights, "bias") if config.attention_bias else None
        self.qkv = ops.pack_linear(self.join(weights, "weight"), bias)
        self.output = weights.linear("self_attn.o_proj")

    def join(self, weights: Weights, kind: str) -> Tensor:
        """The parts of the projection as one, heads of q and k in the order that `rope` wants."""
        q, k, v = (weights.exact(f"self_attn.{part}_proj.{kind}") for part in "qkv")
        return torch.cat((self.order(q), self.order(k), v))

    def order(self, rows: Tensor) -> Tensor:
        """Permute ``[heads * head_dim, ...]`` within every head."""
        order = self.ops.rotary_order(self.head_dim)
        if order is None:
            return rows
        heads = rows.view(-1, self.head_dim, *rows.shape[1:])
        return heads.index_select(1, order).flatten(0, 1)

    def normalize(self, heads: Tensor) -> Tensor:
        """Of queries and keys, before rotation."""
        return heads

    def __call__(
        self, x: Tensor, rotary: Any, plan: Any, cache_k: Tensor, cache_v: Tensor
    ) -> Tensor:
        """x ``[T, hidden]`` -> ``[T, heads * head_dim]``; writes the rows' keys and values."""
        ops = self.ops
        heads = ops.linear(x, self.qkv).unflatten(1, (-1, self.head_dim))
        values = heads[:, self.rotated :]
        heads = ops.rope(self.normalize(heads[:, : self.rotated]), rotary)
        queries, keys = heads.split((self.spec.num_heads, self.num_kv_heads), dim=1)
        ops.write_kv(cache_k, cache_v, plan, keys, values)
        return ops.attention(queries, cache_k, cache_v, plan, self.spec)


class DecoderLayer:
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``."""

    attention_kind: ClassVar[type[Attention]] = Attention
    mlp_norm_name: ClassVar[str] = "post_attention_layernorm"

    def __init__(self, config: ModelConfig, index: int, weights: Weights, ops: Ops) -> None:
        self.ops = ops
        self.eps = config.norm_eps
        self.activation = config.activation
        self.attention_norm = weights.norm("input_layernorm")
        self.attention = self.attention_kind(config, index, weights, ops)
        self.mlp_norm = weights.norm(self.mlp_norm_name)
        self.gate_up = ops.pack_gated(
            weights.exact("mlp.gate_proj.weight"), weights.exact("mlp.up_proj.weight")
        )
        self.down = weights.linear("mlp.down_proj")

    def __call__(
        self, x: Tensor, rotary: Any, plan: Any, cache_k: Tensor, cache_v: Tensor
    ) -> Tensor:
        ops = self.ops
        y = ops.rms_norm(x, self.attention_norm, self.eps)
        y = self.attention(y, rotary, plan, cache_k, cache_v)
        x = ops.linear_add(y, self.attention.output, x)
        y = ops.rms_norm(x, self.mlp_norm, self.eps)
        y = ops.gated_linear(y, self.gate_up, self.activation)
        return ops.linear_add(y, self.down, x)


class Llama:
    """A decoder-only language model over an op table.

    Args:
        source: tensors are taken one by one, packed, and let go.
        max_context: positions that rotary tables are made for.
    """

    layer_kind: ClassVar[type[DecoderLayer]] = DecoderLayer

    def __init__(self, source: WeightSource, ops: Ops, *, max_context: int) -> None:
        config = source.config
        self.config, self.ops = config, ops
        weights = Weights(source, "model.", ops)
        self.embedding = weights("embed_tokens.weight")
        self.layers = [
            self.layer_kind(config, index, Weights(source, f"model.layers.{index}.", ops), ops)
            for index in range(config.num_layers)
        ]
        self.norm = weights.norm("norm")
        head = (
            self.embedding if config.tie_embeddings else Weights(source, "", ops)("lm_head.weight")
        )
        self.head = ops.pack_linear(head)
        self.rope = self.rope_tables(max_context)

    def rope_tables(self, positions: int) -> list[Any]:
        """Rotary tables; a layer uses the one at its `rope_index`."""
        config = self.config
        angles = rope_angles(positions, config.head_dim, config.rope_theta, config.rope_scaling)
        return [self.ops.rope_table(angles)]

    def rope_index(self, layer: int) -> int:
        return 0

    def forward(
        self, batch: RaggedBatch, keys: Sequence[Tensor], values: Sequence[Tensor]
    ) -> Tensor:
        """One step: write the rows' keys and values of every layer, return the logits that are
        wanted.

        Args:
            keys, values: the cache, one tensor ``[slots, kv_heads, head_dim]`` a layer.

        Returns:
            float32 ``[S, vocab]``, a row for each of `batch.output_rows`.
        """
        config, ops = self.config, self.ops
        plan = ops.plan(batch)
        rotary = [ops.rope_rows(table, batch.positions) for table in self.rope]
        x = ops.embed(batch.input_ids, self.embedding, config.embedding_scale)
        for index, layer in enumerate(self.layers):
            x = layer(x, rotary[self.rope_index(index)], plan, keys[index], values[index])
        if batch.output_rows.shape[0] == 0:
            return torch.empty(0, config.vocab_size)
        x = ops.rms_norm(x.index_select(0, batch.output_rows), self.norm, config.norm_eps)
        return ops.logits(x, self.head, config.final_softcap)

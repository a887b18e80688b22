"""Llama (arXiv 2302.13971), and with a sliding window Mistral (arXiv 2310.06825).

The decoder that every other architecture here is a variation of: pre-norm blocks of rotary
attention with shared key-value heads (arXiv 2305.13245) and a gated MLP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from stolon.kernels import AttentionSpec, Ops, RaggedBatch, StoredWeight
from stolon.srt.models.config import ModelConfig
from stolon.srt.models.rope import rope_frequencies
from stolon.srt.weights import WeightSource


class Weights:
    """The weights under one name prefix of a source, packed for an op table."""

    def __init__(self, source: WeightSource, prefix: str, ops: Ops) -> None:
        self._source, self._prefix, self._ops = source, prefix, ops

    def stored(self, name: str) -> StoredWeight:
        return self._source.stored(f"{self._prefix}{name}.weight")

    def vector(self, name: str) -> Tensor:
        return self._source.tensor(self._prefix + name, torch.float32)

    def norm(self, name: str) -> Any:
        return self._ops.pack_norm(self.vector(f"{name}.weight"))

    def linear(self, *names: str, bias: bool = False) -> Any:
        """Projections of the same rows, as one."""
        biases = torch.cat([self.vector(f"{name}.bias") for name in names]) if bias else None
        return self._ops.pack_linear([self.stored(name) for name in names], biases)


class Attention:
    """Queries, keys and values from one projection; the layer applies the output projection."""

    head_norm: Any = None

    def __init__(self, config: ModelConfig, index: int, weights: Weights, ops: Ops) -> None:
        self.ops = ops
        self.eps = config.norm_eps
        self.spec = AttentionSpec(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.query_scale,
            window=config.sliding_window if index in config.local_layers else None,
            softcap=config.attention_softcap,
        )
        parts = (f"self_attn.{part}_proj" for part in "qkv")
        self.qkv = weights.linear(*parts, bias=config.attention_bias)
        self.output = weights.linear("self_attn.o_proj")

    def __call__(
        self, x: Tensor, rotary: Any, plan: Any, cache_k: Tensor, cache_v: Tensor
    ) -> Tensor:
        """x ``[T, hidden]`` -> ``[T, heads * head_dim]``; writes the rows' keys and values."""
        return self.ops.attend(
            self.ops.linear(x, self.qkv),
            spec=self.spec,
            head_norm=self.head_norm,
            eps=self.eps,
            rotary=rotary,
            plan=plan,
            cache_k=cache_k,
            cache_v=cache_v,
        )


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
            weights.stored("mlp.gate_proj"), weights.stored("mlp.up_proj")
        )
        self.down = weights.linear("mlp.down_proj")

    def attend(self, x: Tensor, rotary: Any, plan: Any, cache_k: Tensor, cache_v: Tensor) -> Tensor:
        """``attention(norm(x))``, before the output projection."""
        y = self.ops.rms_norm(x, self.attention_norm, self.eps)
        return self.attention(y, rotary, plan, cache_k, cache_v)

    def complete(self, x: Tensor, y: Tensor) -> Tensor:
        """The rest of the layer, row by row: y is what `attend` gave for x."""
        ops = self.ops
        x = ops.linear(y, self.attention.output, residual=x)
        y = ops.rms_norm(x, self.mlp_norm, self.eps)
        y = ops.gated_linear(y, self.gate_up, self.activation)
        return ops.linear(y, self.down, residual=x)


class Llama:
    """A decoder-only language model over an op table.

    Args:
        source: weights are taken one by one, packed, and let go.
        max_context: positions that rotary tables are made for.
    """

    layer_kind: ClassVar[type[DecoderLayer]] = DecoderLayer

    def __init__(self, source: WeightSource, ops: Ops, *, max_context: int) -> None:
        config = source.config
        self.config, self.ops = config, ops
        weights = Weights(source, "model.", ops)
        self.embedding = ops.pack_embedding(weights.stored("embed_tokens"))
        self.layers = [
            self.layer_kind(config, index, Weights(source, f"model.layers.{index}.", ops), ops)
            for index in range(config.num_layers)
        ]
        self.norm = weights.norm("norm")
        if config.tie_embeddings:
            self.head = ops.tied_head(self.embedding)
        else:
            self.head = Weights(source, "", ops).linear("lm_head")
        self.rope = self.rope_tables(max_context)

    def rope_tables(self, positions: int) -> list[Any]:
        """Rotary tables; a layer uses the one at its `rope_index`."""
        config = self.config
        own = rope_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        return [self.ops.rope_table(own, positions)]

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
        x = ops.embed(plan, self.embedding, config.embedding_scale)
        for index, layer in enumerate(self.layers):
            rotary = self.rope[self.rope_index(index)]
            y = layer.attend(x, rotary, plan, keys[index], values[index])
            if index == config.num_layers - 1:  # nothing reads the other rows any more
                x, y = ops.take_outputs(x, plan), ops.take_outputs(y, plan)
            x = layer.complete(x, y)
        x = ops.rms_norm(x, self.norm, config.norm_eps)
        return ops.logits(x, self.head, config.final_softcap)

"""Where a model's tensors come from, whatever the file format.

Canonical names and layouts, the same for GGUF and safetensors (Hugging Face names and layouts):

    model.embed_tokens.weight                      [vocab, hidden]
    model.layers.{i}.input_layernorm.weight        [hidden]
    model.layers.{i}.self_attn.{q,k,v}_proj.weight [heads * head_dim, hidden], rotate-half rotary layout
    model.layers.{i}.self_attn.{q,k,v}_proj.bias   with ModelConfig.attention_bias
    model.layers.{i}.self_attn.{q,k}_norm.weight   [head_dim], with ModelConfig.qk_norm
    model.layers.{i}.self_attn.o_proj.weight       [hidden, heads * head_dim]
    model.layers.{i}.post_attention_layernorm.weight
    model.layers.{i}.mlp.{gate,up,down}_proj.weight
    model.layers.{i}.{pre,post}_feedforward_layernorm.weight   with ModelConfig.post_norms (gemma3)
    model.norm.weight                              [hidden]
    lm_head.weight                                 [vocab, hidden], absent with ModelConfig.tie_embeddings

RMSNorm weights are the factors to multiply by: a source whose file stores ``w - 1`` (Hugging Face gemma3)
adds the one.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from stolon.kernels import StoredWeight
from stolon.srt.models.config import ModelConfig


class WeightSource(Protocol):
    """An opened model: its config and its tensors by canonical name."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def names(self) -> frozenset[str]:
        """Canonical names of all tensors in the file."""
        ...

    def tensor(self, name: str, dtype: torch.dtype) -> Tensor:
        """A fresh, contiguous, dequantised copy of one tensor. Raises ModelFileError if it is absent."""
        ...

    def stored(self, name: str) -> StoredWeight:
        """A matrix as the file holds it, rows in canonical order. Raises ModelFileError if it is absent,
        UnsupportedModel if its format is not implemented."""
        ...

    def close(self) -> None: ...

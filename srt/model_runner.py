"""A loaded model with its KV cache: one step in, logits out."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stolon.kernels import Ops, RaggedBatch, StoredWeight, mapped_zeros
from stolon.radix import KVCache
from stolon.srt.models.config import ModelConfig
from stolon.srt.models.registry import load_model
from stolon.srt.weights import WeightSource


class Runner(Protocol):
    """What the engine needs of a model: slots, a table of them, and logits for a step."""

    num_slots: int
    kv_token_bytes: int
    slot_table: NDArray[np.int64]
    architecture: str
    dtype: str
    vocab_size: int
    parameter_count: int
    team: Any
    row_invariant: bool
    """Whether the logits of a row are the same bits whatever other rows are computed with it."""

    def forward(self, batch: RaggedBatch) -> NDArray[np.float32]:
        """``[S, vocab]``, each row contiguous, for the S output rows of the batch; valid until the next
        call."""
        ...


class ModelRunner:
    """Owns the weights, the KV cache and the slot table.

    Args:
        source: opened model; may be closed afterwards.
        ops: op table that computes.
        num_slots: tokens that the KV cache holds.
        max_context: longest sequence, at most the model's own context length.
        table_rows: sequences that may have a row in the slot table at once.

    Attributes:
        config: of the model.
        kv: the cache, of dtype `ops.dtype`.
        slot_table: int64 ``[table_rows, max_context]``, KV slots by position. The scheduler writes
            it; steps read it through their batch.
        parameter_count: numbers in the model's tensors.
        weight_bytes: what the packed weights take in memory.
        kv_token_bytes: what one token takes in the cache.
    """

    def __init__(
        self,
        source: WeightSource,
        ops: Ops,
        *,
        num_slots: int,
        max_context: int,
        table_rows: int = 256,
    ) -> None:
        config = source.config
        self.config: ModelConfig = config
        self.architecture: str = config.architecture
        self.dtype = str(ops.dtype).removeprefix("torch.")
        self.num_slots = num_slots
        self.vocab_size = config.vocab_size
        self.ops = ops
        self.team = ops.team
        self.row_invariant = ops.team is not None
        self.max_context = min(max_context, config.context_length)
        counted = _CountingSource(source)
        before = ops.weight_bytes
        with torch.inference_mode():
            model = load_model(counted, ops, max_context=self.max_context)
        self.parameter_count = counted.parameters
        self.weight_bytes = ops.weight_bytes - before
        # Not inference tensors: others write to them outside of inference mode.
        self.kv = KVCache(
            config.num_layers, num_slots, config.num_kv_heads, config.head_dim, ops.dtype
        )
        self.slot_table = mapped_zeros((table_rows, self.max_context), np.int64)
        self.kv_token_bytes = KVCache.bytes_per_token(
            config.num_layers, config.num_kv_heads, config.head_dim, ops.dtype
        )
        keys, values = self.kv.k, self.kv.v
        self._step = ops.record(lambda batch: model.forward(batch, keys, values))

    def forward(self, batch: RaggedBatch) -> NDArray[np.float32]:
        """Run one step. Returns ``[S, vocab]``, S = len(batch.output_rows) (may be 0), valid until the
        next call."""
        return self._step(batch)


class _CountingSource:
    """A source that counts the parameters taken from it."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self.parameters = 0

    @property
    def config(self) -> ModelConfig:
        return self._source.config

    @property
    def names(self) -> frozenset[str]:
        return self._source.names

    def tensor(self, name: str, dtype: torch.dtype) -> Tensor:
        tensor = self._source.tensor(name, dtype)
        self.parameters += tensor.numel()
        return tensor

    def stored(self, name: str) -> StoredWeight:
        weight = self._source.stored(name)
        self.parameters += weight.shape[0] * weight.shape[1]
        return weight

    def close(self) -> None:
        self._source.close()

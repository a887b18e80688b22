"""The op table: every piece of arithmetic a model needs, as one contract with several implementations.

``kernels/reference`` is plain torch, slow and obviously right; every other implementation is tested
against it on one table of cases. Models (``srt/models``) are written over this table and over nothing else.

Layouts. Activations are row-major ``[T, features]``, one row per token of the step, all sequences
concatenated (ragged, no padding). A *run* is a maximal stretch of rows that extend one sequence. The KV
cache of a layer is ``[slots, kv_heads, head_dim]``; a token's slot is found through the slot table.

A row's result may depend on that row and its context only, never on its company in the batch. The
reference keeps that up to rounding; native kernels keep it bit for bit (reductions in an order fixed by
the row alone).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """One step's rows and where their keys and values live.

    Attributes:
        input_ids: int64 ``[T]``, token of each row.
        positions: int64 ``[T]``, position of each row in its sequence (0 is the first token).
        write_slots: int64 ``[T]``, KV slot that each row's key and value are written to. All rows are
            written before any row attends, so rows of one step may attend to each other.
        q_lens: rows of each run, in row order; sums to T. Decode runs (length 1) may stand anywhere.
        kv_lens: context length of each run, its own rows included; row i of a run of q rows attends to
            the first ``kv_len - q + i + 1`` slots (causal).
        slot_table: int64 ``[table_rows, max_context]``, KV slots by position.
        table_rows: row of `slot_table` of each run.
        output_rows: int64 ``[S]``, the rows whose logits are wanted.
    """

    input_ids: Tensor
    positions: Tensor
    write_slots: Tensor
    q_lens: list[int]
    kv_lens: list[int]
    slot_table: Tensor
    table_rows: list[int]
    output_rows: Tensor


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What attention a layer does.

    Attributes:
        num_heads, num_kv_heads, head_dim: as named; query head h reads kv head ``h // (num_heads // num_kv_heads)``.
        scale: factor on q·k.
        window: a row at position p attends to positions in ``(p - window, p]``; None is unlimited.
        softcap: scores become ``softcap * tanh(score / softcap)``; None is off.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None


class Ops(Protocol):
    """The table. Activations are float tensors of the implementation's `dtype`; logits are float32."""

    name: str
    dtype: torch.dtype

    def pack_linear(self, weight: Tensor, bias: Tensor | None = None) -> Any:
        """Take a ``[out, in]`` weight (any float dtype) into the layout `linear` wants. Done once at load."""
        ...

    def linear(self, x: Tensor, packed: Any) -> Tensor:
        """``[T, in] -> [T, out]``: ``x @ weight.T + bias``."""
        ...

    def linear_add(self, x: Tensor, packed: Any, residual: Tensor) -> Tensor:
        """``linear(x) + residual``; may reuse residual's memory."""
        ...

    def embed(self, ids: Tensor, table: Tensor, scale: float) -> Tensor:
        """``[T] -> [T, hidden]``: rows of `table` times `scale`."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Over the last dimension: ``x / sqrt(mean(x^2) + eps) * weight``, in float32 inside (arXiv 1910.07467)."""
        ...

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotary embedding (arXiv 2104.09864), rotate-half form. x ``[T, heads, head_dim]``; cos, sin
        ``[T, head_dim // 2]``, one row per row of x (gathered once per step by the model)."""
        ...

    def write_kv(self, cache_k: Tensor, cache_v: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Write k, v ``[T, kv_heads, head_dim]`` to the rows `slots` of one layer's cache."""
        ...

    def attention(
        self, q: Tensor, cache_k: Tensor, cache_v: Tensor, batch: RaggedBatch, spec: AttentionSpec
    ) -> Tensor:
        """q ``[T, heads, head_dim]`` -> ``[T, heads * head_dim]``, causal over each run's own context."""
        ...

    def gated_mlp(self, gate_up: Tensor, activation: str) -> Tensor:
        """``[T, 2 * inner] -> [T, inner]``: ``act(first half) * second half``; activation ``silu`` or
        ``gelu_tanh``."""
        ...

    def logits(self, x: Tensor, head: Any, softcap: float | None) -> Tensor:
        """Output head: ``[S, hidden] -> float32 [S, vocab]``."""
        ...

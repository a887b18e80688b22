"""The op table: every piece of arithmetic a model needs, as one contract with several
implementations.

``kernels/reference`` is plain torch, slow and obviously right; every other implementation is tested
against it on one table of cases. Models (``srt/models``) are written over this table and over
nothing else.

Layouts. Activations are row-major ``[T, features]``, one row per token of the step, all sequences
concatenated (ragged, no padding). A *run* is a maximal stretch of rows that extend one sequence.
The KV cache of a layer is ``[slots, kv_heads, head_dim]``; a token's slot is found through the slot
table.

A row's result may depend on that row and its context only, never on its company in the batch. The
reference keeps that up to rounding; native kernels keep it bit for bit (reductions in an order
fixed by the row alone).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """One step's rows and where their keys and values live.

    Attributes:
        input_ids: int64 ``[T]``, token of each row.
        positions: int64 ``[T]``, position of each row in its sequence (0 is the first token).
        write_slots: int64 ``[T]``, KV slot that each row's key and value are written to. All rows
            are written before any row attends, so rows of one step may attend to each other.
        q_lens: rows of each run, in row order; sums to T. Decode runs (length 1) may stand
            anywhere.
        kv_lens: context length of each run, its own rows included; row i of a run of q rows attends
            to the first ``kv_len - q + i + 1`` slots (causal).
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
        num_heads, num_kv_heads, head_dim: as named; query head h reads kv head ``h // (num_heads //
            num_kv_heads)``.
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
    """The table. Activations are float tensors of the implementation's `dtype`; logits are float32.

    The KV cache has that dtype too. Values that only an implementation understands (packed weights,
    a step's plan, rotary tables) are `Any` here: they are made by the table and handed back to it.
    """

    name: str
    dtype: torch.dtype

    def pack_linear(self, weight: Tensor, bias: Tensor | None = None) -> Any:
        """Take a ``[out, in]`` weight (any float dtype) into the layout `linear` wants. Done once
        at load."""
        ...

    def linear(self, x: Tensor, packed: Any) -> Tensor:
        """``[T, in] -> [T, out]``: ``x @ weight.T + bias``."""
        ...

    def linear_add(self, x: Tensor, packed: Any, residual: Tensor) -> Tensor:
        """``linear(x) + residual``; may reuse residual's memory."""
        ...

    def pack_gated(self, gate: Tensor, up: Tensor) -> Any:
        """Take the two ``[inner, in]`` weights of a gated MLP into the layout of `gated_linear`."""
        ...

    def gated_linear(self, x: Tensor, packed: Any, activation: Activation) -> Tensor:
        """``[T, in] -> [T, inner]``: ``act(x @ gate.T) * (x @ up.T)`` (arXiv 2002.05202)."""
        ...

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """``x + residual``; may reuse residual's memory."""
        ...

    def embed(self, ids: Tensor, table: Tensor, scale: float) -> Tensor:
        """``[T] -> [T, hidden]``: rows of `table` times `scale`."""
        ...

    def pack_norm(self, weight: Tensor) -> Any:
        """Take a ``[features]`` or ``[heads, features]`` factor into the layout of `rms_norm`."""
        ...

    def rms_norm(self, x: Tensor, packed: Any, eps: float) -> Tensor:
        """Over the last dimension of ``[T, features]`` or ``[T, heads, features]``:
        ``x / sqrt(mean(x^2) + eps) * weight``, in float32 inside (arXiv 1910.07467)."""
        ...

    def rotary_order(self, head_dim: int) -> Tensor | None:
        """Order in which `rope` wants the features of a head: int64 ``[head_dim]`` of indices into
        the rotate-half order that weights come in, or None for that order itself.

        The model applies it to the rows of the q and k projections (weights, biases, norm factors)
        at load. Queries and keys are permuted alike, so their products are what they were.
        """
        ...

    def rope_table(self, angles: Tensor) -> Any:
        """Take angles, float64 ``[positions, head_dim // 2]``, into cosines and sines. Done once at
        load."""
        ...

    def rope_rows(self, table: Any, positions: Tensor) -> Any:
        """The table's rows at `positions` ``[T]``. Done once per step."""
        ...

    def rope(self, x: Tensor, rows: Any) -> Tensor:
        """Rotary embedding (arXiv 2104.09864) of x ``[T, heads, head_dim]``, features in
        `rotary_order`."""
        ...

    def plan(self, batch: RaggedBatch) -> Any:
        """What attention needs of a step's layout, worked out once for all layers."""
        ...

    def write_kv(self, cache_k: Tensor, cache_v: Tensor, plan: Any, k: Tensor, v: Tensor) -> None:
        """Write k, v ``[T, kv_heads, head_dim]`` to the step's `write_slots` of one cache."""
        ...

    def attention(
        self, q: Tensor, cache_k: Tensor, cache_v: Tensor, plan: Any, spec: AttentionSpec
    ) -> Tensor:
        """q ``[T, heads, head_dim]`` -> ``[T, heads * head_dim]``, causal over each run's own
        context."""
        ...

    def logits(self, x: Tensor, head: Any, softcap: float | None) -> Tensor:
        """Output head, packed by `pack_linear`: ``[S, hidden] -> float32 [S, vocab]``; a softcap
        makes them ``softcap * tanh(logits / softcap)``."""
        ...

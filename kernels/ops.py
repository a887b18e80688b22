"""The op table: every piece of arithmetic a model needs, as one contract with several
implementations.

``kernels/reference`` is plain torch, slow and obviously right; every other implementation is tested
against it on one table of cases. Models (``srt/models``) are written over this table and over
nothing else: between two calls of the table they touch no value, so that what flows through them may
be a tensor or stand for one that a recorded step will compute.

Layouts. Activations are row-major ``[T, features]``, one row per token of the step, all sequences
concatenated (ragged, no padding). A *run* is a maximal stretch of rows that extend one sequence.
The KV cache of a layer is ``[slots, kv_heads, head_dim]``; a token's slot is found through the slot
table.

A row's result may depend on that row and its context only, never on its company in the batch. The
reference keeps that up to rounding; native kernels keep it bit for bit (reductions in an order
fixed by the row alone).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Activation = Literal["silu", "gelu_tanh"]
Ids = NDArray[np.int64]
Bytes = NDArray[np.uint8]

FLOAT_KINDS: dict[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A matrix as a model file holds it.

    Attributes:
        kind: ``F32``, ``F16``, ``BF16``, or one of GGUF's block formats: ``Q4_0``, ``Q4_1``, ``Q5_0``,
            ``Q5_1``, ``Q8_0``, ``Q4_K``, ``Q5_K``, ``Q6_K``.
        data: uint8, one row after the other, each a run of whole blocks. May be a read-only view of
            the file: valid until the source is closed.
        shape: rows (outputs) and inputs.
        tensor: the matrix as a fresh contiguous ``[rows, inputs]`` tensor of a float dtype.
    """

    kind: str
    data: Bytes
    shape: tuple[int, int]
    tensor: Callable[[torch.dtype], Tensor]

    @classmethod
    def of(cls, tensor: Tensor) -> StoredWeight:
        """A float32, float16 or bfloat16 matrix; `data` shares its memory if it is contiguous."""
        kinds = {dtype: kind for kind, dtype in FLOAT_KINDS.items()}
        rows, inputs = tensor.shape
        data = tensor.contiguous().flatten().view(torch.uint8).numpy()

        def copy(dtype: torch.dtype) -> Tensor:
            return tensor.to(dtype, copy=True).contiguous()

        return cls(kinds[tensor.dtype], data, (rows, inputs), copy)


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """One step's rows and where their keys and values live. All arrays are int64.

    Attributes:
        input_ids: ``[T]``, token of each row.
        positions: ``[T]``, position of each row in its sequence (0 is the first token).
        write_slots: ``[T]``, KV slot that each row's key and value are written to. All rows are
            written before any row attends, so rows of one step may attend to each other.
        q_lens: ``[R]``, rows of each run, in row order; sums to T. Decode runs (length 1) may stand
            anywhere.
        kv_lens: ``[R]``, context length of each run, its own rows included; row i of a run of q rows
            attends to the first ``kv_len - q + i + 1`` slots (causal).
        slot_table: ``[table_rows, max_context]``, KV slots by position.
        table_rows: ``[R]``, row of `slot_table` of each run.
        output_rows: ``[S]``, the rows whose logits are wanted.
        short_lists: for each of the last ``len(short_lists)`` of them the ids whose logits alone are
            wanted. What else stands in such a row of logits means nothing; a table may compute all of it.
    """

    input_ids: Ids
    positions: Ids
    write_slots: Ids
    q_lens: Ids
    kv_lens: Ids
    slot_table: Ids
    table_rows: Ids
    output_rows: Ids
    short_lists: Sequence[Ids] = ()


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


Step = Callable[[RaggedBatch], Tensor]
"""One step of a model: writes keys and values, and returns logits float32 ``[S, vocab]``."""

RecordedStep = Callable[[RaggedBatch], NDArray[np.float32]]
"""The same as an array in main memory, each row contiguous, valid until the next call. What is left of a
step in Python touches no tensor: after a forward pass the first call of torch takes 20 to 60 us."""


class Ops(Protocol):
    """The table. Logits are float32. Values that only an implementation understands (packed weights,
    a step's plan, rotary tables) are `Any` here: they are made by the table and handed back to it.

    Attributes:
        name: of the implementation.
        dtype: of the KV cache.
        activations: dtype of what flows between two calls.
        weight_bytes: what everything that this table has packed so far takes.
        team: threads of native kernels, on which sampling can run too; None where torch computes.
    """

    name: str
    dtype: torch.dtype
    activations: torch.dtype
    weight_bytes: int

    @property
    def team(self) -> Any: ...

    # Once, at load

    def pack_linear(self, weights: Sequence[StoredWeight], bias: Tensor | None = None) -> Any:
        """Take matrices with the same inputs, whose outputs follow one another, into the layout that
        `linear` and `logits` want; they may be of different kinds. `bias` ``[outputs of all]``."""
        ...

    def pack_gated(self, gate: StoredWeight, up: StoredWeight) -> Any:
        """Take the two ``[inner, in]`` weights of a gated MLP into the layout of `gated_linear`."""
        ...

    def pack_embedding(self, table: StoredWeight) -> Any:
        """Take a ``[vocab, hidden]`` table into the layout of `embed`."""
        ...

    def tied_head(self, embedding: Any) -> Any:
        """A packed embedding as the output head that `logits` takes."""
        ...

    def pack_norm(self, weight: Tensor) -> Any:
        """Take the factors of an RMSNorm: ``[features]`` for `rms_norm`, or one row a head, ``[heads +
        kv_heads, head_dim]``, for `attend`."""
        ...

    def rope_table(self, frequencies: Tensor, positions: int) -> Any:
        """Cosines and sines of the angles ``position * frequencies``, for positions below `positions`.

        Args:
            frequencies: float64 ``[head_dim // 2]``, radians a position.
        """
        ...

    # In a step

    def plan(self, batch: RaggedBatch) -> Any:
        """What the calls of a step need of its layout, worked out once for all layers."""
        ...

    def embed(self, plan: Any, embedding: Any, scale: float) -> Tensor:
        """``[T, hidden]``: the embeddings of the step's input ids, times `scale`."""
        ...

    def rms_norm(self, x: Tensor, packed: Any, eps: float, add: Tensor | None = None) -> Tensor:
        """``x / sqrt(mean(x^2) + eps) * weight`` over the features of ``[T, features]``, in float32
        inside (arXiv 1910.07467); plus `add`, whose memory may be reused."""
        ...

    def linear(self, x: Tensor, packed: Any, residual: Tensor | None = None) -> Tensor:
        """``[T, in] -> [T, out]``: ``x @ weight.T + bias``; plus `residual`, whose memory may be
        reused."""
        ...

    def gated_linear(self, x: Tensor, packed: Any, activation: Activation) -> Tensor:
        """``[T, in] -> [T, inner]``: ``act(x @ gate.T) * (x @ up.T)`` (arXiv 2002.05202)."""
        ...

    def attend(
        self,
        qkv: Tensor,
        *,
        spec: AttentionSpec,
        head_norm: Any,
        eps: float,
        rotary: Any,
        plan: Any,
        cache_k: Tensor,
        cache_v: Tensor,
    ) -> Tensor:
        """Attention of one layer, from its projections to the input of its output projection.

        Queries and keys are normalised head by head (RMSNorm with `eps`, if there is a `head_norm`)
        and rotated (arXiv 2104.09864, feature i pairs with ``i + head_dim / 2``); keys and values go to
        the step's slots of the cache; every row attends, causally, to its own run's context.

        Args:
            qkv: ``[T, (heads + 2 * kv_heads) * head_dim]``: queries, keys, values.
            head_norm: from `pack_norm`, or None.
            rotary: from `rope_table`.
            cache_k, cache_v: ``[slots, kv_heads, head_dim]``, written to.

        Returns:
            ``[T, heads * head_dim]``.
        """
        ...

    def take_outputs(self, x: Tensor, plan: Any) -> Tensor:
        """``[S, features]``: the rows whose logits are wanted."""
        ...

    def logits(self, x: Tensor, head: Any, softcap: float | None) -> Tensor:
        """Output head, of `pack_linear` or `tied_head`: ``[S, hidden] -> float32 [S, vocab]``; a
        softcap makes them ``softcap * tanh(logits / softcap)``."""
        ...

    def record(self, step: Step) -> RecordedStep:
        """A step that gives the same, as fast as the table can run it again and again. `step` must
        make the same calls for every batch."""
        ...


def in_inference_mode(step: Step) -> RecordedStep:
    """`Ops.record` for a table that computes on tensors: the step itself, its logits as an array."""

    @torch.inference_mode()
    def run(batch: RaggedBatch) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = step(batch).contiguous().numpy()
        return logits

    return run

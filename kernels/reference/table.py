"""The op table in plain torch, one formula a method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from stolon.kernels.ops import (
    Activation,
    AttentionSpec,
    RaggedBatch,
    RecordedStep,
    Step,
    StoredWeight,
    in_inference_mode,
)
from stolon.kernels.reference.attention import attend_run


@dataclass(frozen=True, slots=True)
class Linear:
    """A ``[out, in]`` weight and its bias."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Rotary:
    """Cosines and sines, float32 ``[positions, head_dim // 2]``."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True)
class Plan:
    """A step's arrays as tensors."""

    input_ids: Tensor
    positions: Tensor
    write_slots: Tensor
    q_lens: list[int]
    contexts: list[Tensor]
    output_rows: Tensor


class ReferenceOps:
    """`Ops` of the given dtype (float32 to be exact); packed weights are the weights."""

    name = "reference"
    team = None

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = self.activations = dtype
        self.weight_bytes = 0

    def pack_linear(self, weights: Sequence[StoredWeight], bias: Tensor | None = None) -> Linear:
        weight = torch.cat([part.tensor(self.dtype) for part in weights])
        return Linear(self._count(weight), None if bias is None else self._count(self._cast(bias)))

    def pack_gated(self, gate: StoredWeight, up: StoredWeight) -> tuple[Linear, Linear]:
        return self.pack_linear([gate]), self.pack_linear([up])

    def pack_embedding(self, table: StoredWeight) -> Linear:
        return self.pack_linear([table])

    def tied_head(self, embedding: Linear) -> Linear:
        return embedding

    def pack_norm(self, weight: Tensor) -> Tensor:
        return self._count(weight.float())

    def rope_table(self, frequencies: Tensor, positions: int) -> Rotary:
        angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies)
        return Rotary(angles.cos().float(), angles.sin().float())

    def plan(self, batch: RaggedBatch) -> Plan:
        table = torch.from_numpy(batch.slot_table)
        kv_lens, rows = batch.kv_lens.tolist(), batch.table_rows.tolist()
        return Plan(
            torch.from_numpy(batch.input_ids),
            torch.from_numpy(batch.positions),
            torch.from_numpy(batch.write_slots),
            batch.q_lens.tolist(),
            [table[row, :length] for row, length in zip(rows, kv_lens, strict=True)],
            torch.from_numpy(batch.output_rows),
        )

    def embed(self, plan: Plan, embedding: Linear, scale: float) -> Tensor:
        return embedding.weight[plan.input_ids] * scale

    def rms_norm(self, x: Tensor, packed: Tensor, eps: float, add: Tensor | None = None) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
        out = self._cast(wide * scale * packed)
        return out if add is None else out + add

    def linear(self, x: Tensor, packed: Linear, residual: Tensor | None = None) -> Tensor:
        out = F.linear(x, packed.weight, packed.bias)
        return out if residual is None else out + residual

    def gated_linear(
        self, x: Tensor, packed: tuple[Linear, Linear], activation: Activation
    ) -> Tensor:
        gate, up = (self.linear(x, part) for part in packed)
        if activation == "silu":
            return F.silu(gate) * up
        return F.gelu(gate, approximate="tanh") * up

    def attend(
        self,
        qkv: Tensor,
        *,
        spec: AttentionSpec,
        head_norm: Tensor | None,
        eps: float,
        rotary: Rotary,
        plan: Plan,
        cache_k: Tensor,
        cache_v: Tensor,
    ) -> Tensor:
        heads = qkv.unflatten(1, (-1, spec.head_dim))
        rotated = spec.num_heads + spec.num_kv_heads
        turned = heads[:, :rotated]
        if head_norm is not None:
            turned = self.rms_norm(turned, head_norm, eps)
        turned = self._cast(rotate(turned, rotary, plan.positions))
        cache_k[plan.write_slots] = turned[:, spec.num_heads :]
        cache_v[plan.write_slots] = heads[:, rotated:]
        queries = turned[:, : spec.num_heads].split(plan.q_lens)
        out = [
            attend_run(run, cache_k[slots], cache_v[slots], spec)
            for run, slots in zip(queries, plan.contexts, strict=True)
        ]
        return torch.cat(out) if out else turned[:, : spec.num_heads].flatten(1)

    def take_outputs(self, x: Tensor, plan: Plan) -> Tensor:
        return x[plan.output_rows]

    def logits(self, x: Tensor, head: Linear, softcap: float | None) -> Tensor:
        logits = self.linear(x, head).float()
        return logits if softcap is None else softcap * torch.tanh(logits / softcap)

    def record(self, step: Step) -> RecordedStep:
        return in_inference_mode(step)

    def _cast(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)

    def _count(self, weight: Tensor) -> Tensor:
        self.weight_bytes += weight.nbytes
        return weight


def rotate(x: Tensor, rotary: Rotary, positions: Tensor) -> Tensor:
    """Rotary embedding in float32 of x ``[T, heads, head_dim]``: feature i is the real and i + D / 2
    the imaginary part of a number that is turned by the angle."""
    cos, sin = rotary.cos[positions].unsqueeze(1), rotary.sin[positions].unsqueeze(1)
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

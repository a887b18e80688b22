"""The op table in plain torch, one formula a method."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from stolon.kernels.ops import Activation, AttentionSpec, RaggedBatch
from stolon.kernels.reference.attention import attend_run


@dataclass(frozen=True, slots=True)
class Linear:
    """A ``[out, in]`` weight and its bias."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Rotary:
    """Cosines and sines, float32 ``[rows, head_dim // 2]``."""

    cos: Tensor
    sin: Tensor


class ReferenceOps:
    """`Ops` of the given dtype (float32 to be exact); packed weights are the weights."""

    name = "reference"

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype

    def pack_linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return Linear(weight.to(self.dtype), None if bias is None else bias.to(self.dtype))

    def linear(self, x: Tensor, packed: Linear) -> Tensor:
        return F.linear(x, packed.weight, packed.bias)

    def linear_add(self, x: Tensor, packed: Linear, residual: Tensor) -> Tensor:
        return self.linear(x, packed) + residual

    def pack_gated(self, gate: Tensor, up: Tensor) -> tuple[Linear, Linear]:
        return self.pack_linear(gate), self.pack_linear(up)

    def gated_linear(
        self, x: Tensor, packed: tuple[Linear, Linear], activation: Activation
    ) -> Tensor:
        gate, up = (self.linear(x, part) for part in packed)
        if activation == "silu":
            return F.silu(gate) * up
        return F.gelu(gate, approximate="tanh") * up

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return x + residual

    def embed(self, ids: Tensor, table: Tensor, scale: float) -> Tensor:
        return table[ids] * scale

    def pack_norm(self, weight: Tensor) -> Tensor:
        return weight.float()

    def rms_norm(self, x: Tensor, packed: Tensor, eps: float) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
        return (wide * scale * packed).to(self.dtype)

    def rotary_order(self, head_dim: int) -> None:
        return None

    def rope_table(self, angles: Tensor) -> Rotary:
        return Rotary(angles.cos().float(), angles.sin().float())

    def rope_rows(self, table: Rotary, positions: Tensor) -> Rotary:
        return Rotary(table.cos[positions], table.sin[positions])

    def rope(self, x: Tensor, rows: Rotary) -> Tensor:
        cos, sin = rows.cos[:, None, :], rows.sin[:, None, :]
        first, second = x.float().chunk(2, dim=-1)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        return rotated.to(self.dtype)

    def plan(self, batch: RaggedBatch) -> RaggedBatch:
        return batch

    def write_kv(
        self, cache_k: Tensor, cache_v: Tensor, plan: RaggedBatch, k: Tensor, v: Tensor
    ) -> None:
        cache_k[plan.write_slots] = k
        cache_v[plan.write_slots] = v

    def attention(
        self, q: Tensor, cache_k: Tensor, cache_v: Tensor, plan: RaggedBatch, spec: AttentionSpec
    ) -> Tensor:
        out = []
        runs = zip(q.split(plan.q_lens), plan.kv_lens, plan.table_rows, strict=True)
        for run, kv_len, row in runs:
            slots = plan.slot_table[row, :kv_len]
            out.append(attend_run(run, cache_k[slots], cache_v[slots], spec))
        return torch.cat(out) if out else q.flatten(1)

    def logits(self, x: Tensor, head: Linear, softcap: float | None) -> Tensor:
        logits = self.linear(x, head).float()
        return logits if softcap is None else softcap * torch.tanh(logits / softcap)

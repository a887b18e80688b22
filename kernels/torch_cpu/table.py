"""The op table in as few torch calls a layer as we know how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stolon.kernels.ops import AttentionSpec, RaggedBatch
from stolon.kernels.torch_cpu.attention import attend
from stolon.kernels.torch_cpu.linear import Linears, best_linears
from stolon.kernels.torch_cpu.plan import StepPlan


@dataclass(frozen=True, slots=True)
class Norm:
    """Factors of an RMSNorm, and the same twice in a row if they are one vector."""

    weight: Tensor
    twice: Tensor | None


class TorchCpuOps:
    """`Ops` in bfloat16 where the CPU computes in it, else float32; sums are float32 throughout."""

    name = "torch_cpu"

    def __init__(self, linears: Linears | None = None) -> None:
        self._linears = best_linears() if linears is None else linears
        self.dtype = self._linears.dtype
        self.linear = self._linears.linear
        self.linear_add = self._linears.linear_add
        self.gated_linear = self._linears.gated_linear

    def pack_linear(self, weight: Tensor, bias: Tensor | None = None) -> Any:
        return self._linears.pack(weight, bias)

    def pack_gated(self, gate: Tensor, up: Tensor) -> Any:
        return self._linears.pack_gated(gate, up)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return residual.add_(x)

    def embed(self, ids: Tensor, table: Tensor, scale: float) -> Tensor:
        rows = F.embedding(ids, table)
        return rows if scale == 1.0 else rows.mul_(scale)

    def pack_norm(self, weight: Tensor) -> Norm:
        weight = weight.to(self.dtype)
        return Norm(weight, torch.cat((weight, weight)) if weight.dim() == 1 else None)

    def rms_norm(self, x: Tensor, packed: Norm, eps: float) -> Tensor:
        weight, twice = packed.weight, packed.twice
        if twice is None:
            return F.rms_norm(x, weight.shape[1:], None, eps).mul_(weight)
        if x.shape[0] > 64:
            return F.rms_norm(x, weight.shape, weight, eps)
        # (x, -x) has mean 0 and the mean square of x, so its layer norm begins with the RMSNorm of x.
        # That is one fused kernel, where RMSNorm is put together from six calls.
        both = torch.cat((x, x.neg()), dim=1)
        return F.layer_norm(both, twice.shape, twice, None, eps)[:, : x.shape[1]]

    def rotary_order(self, head_dim: int) -> Tensor:
        """Pairs side by side: a pair is a complex number, and rotation one multiplication."""
        return torch.arange(head_dim).view(2, -1).t().flatten()

    def rope_table(self, angles: Tensor) -> Tensor:
        return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)

    def rope_rows(self, table: Tensor, positions: Tensor) -> Tensor:
        return table.index_select(0, positions).unsqueeze(1)

    def rope(self, x: Tensor, rows: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().unflatten(2, (-1, 2)))
        return torch.view_as_real(pairs * rows).flatten(2).to(self.dtype)

    def plan(self, batch: RaggedBatch) -> StepPlan:
        return StepPlan(batch, self.dtype)

    def write_kv(
        self, cache_k: Tensor, cache_v: Tensor, plan: StepPlan, k: Tensor, v: Tensor
    ) -> None:
        slots = plan.write_slots
        if isinstance(slots, slice):
            cache_k[slots] = k
            cache_v[slots] = v
        else:
            cache_k.index_copy_(0, slots, k)
            cache_v.index_copy_(0, slots, v)

    def attention(
        self, q: Tensor, cache_k: Tensor, cache_v: Tensor, plan: StepPlan, spec: AttentionSpec
    ) -> Tensor:
        groups = plan.groups(spec)
        if len(groups) == 1:
            return attend(q, cache_k, cache_v, groups[0], spec)
        out = torch.empty(q.shape[0], spec.num_heads * spec.head_dim, dtype=q.dtype)
        for group in groups:
            out[group.rows] = attend(q[group.rows], cache_k, cache_v, group, spec)
        return out

    def logits(self, x: Tensor, head: Any, softcap: float | None) -> Tensor:
        logits = self._linears.linear_float32(x, head)
        return logits if softcap is None else logits.div_(softcap).tanh_().mul_(softcap)

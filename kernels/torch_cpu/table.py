"""The op table in as few torch calls a layer as we know how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stolon.kernels.ops import (
    AttentionSpec,
    RaggedBatch,
    RecordedStep,
    Step,
    StoredWeight,
    in_inference_mode,
)
from stolon.kernels.torch_cpu.attention import attend
from stolon.kernels.torch_cpu.linear import Linears, best_linears
from stolon.kernels.torch_cpu.plan import Rotary, StepPlan


@dataclass(frozen=True, slots=True)
class Norm:
    """Factors of an RMSNorm, and the same twice in a row if they are one vector."""

    weight: Tensor
    twice: Tensor | None


class TorchCpuOps:
    """`Ops` in bfloat16 where the CPU computes in it, else float32; sums are float32 throughout."""

    name = "torch_cpu"
    team = None

    def __init__(self, linears: Linears | None = None) -> None:
        self._linears = best_linears() if linears is None else linears
        self.dtype = self.activations = self._linears.dtype
        self.weight_bytes = 0
        self.gated_linear = self._linears.gated_linear

    def pack_linear(self, weights: Sequence[StoredWeight], bias: Tensor | None = None) -> Any:
        # In float32: packing rounds once, and sees what grid 4-bit weights lie on.
        parts = [weight.tensor(torch.float32) for weight in weights]
        packed = self._linears.pack(parts[0] if len(parts) == 1 else torch.cat(parts), bias)
        self.weight_bytes += packed.nbytes
        return packed

    def pack_gated(self, gate: StoredWeight, up: StoredWeight) -> Any:
        packed = self._linears.pack_gated(gate.tensor(torch.float32), up.tensor(torch.float32))
        self.weight_bytes += packed.nbytes
        return packed

    def pack_embedding(self, table: StoredWeight) -> Tensor:
        rows = table.tensor(self.dtype)
        self.weight_bytes += rows.nbytes
        return rows

    def tied_head(self, embedding: Tensor) -> Any:
        # A second copy: rows can't be read out of the layout that products want.
        packed = self._linears.pack(embedding, None)
        self.weight_bytes += packed.nbytes
        return packed

    def pack_norm(self, weight: Tensor) -> Norm:
        weight = weight.to(self.dtype)
        self.weight_bytes += weight.nbytes
        return Norm(weight, torch.cat((weight, weight)) if weight.dim() == 1 else None)

    def rope_table(self, frequencies: Tensor, positions: int) -> Rotary:
        angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies)
        sin = angles.sin()
        cos = angles.cos()
        return Rotary(torch.cat((cos, cos), dim=1).float(), torch.cat((-sin, sin), dim=1).float())

    def plan(self, batch: RaggedBatch) -> StepPlan:
        return StepPlan(batch, self.dtype)

    def embed(self, plan: StepPlan, embedding: Tensor, scale: float) -> Tensor:
        rows = F.embedding(plan.input_ids, embedding)
        return rows if scale == 1.0 else rows.mul_(scale)

    def rms_norm(self, x: Tensor, packed: Norm, eps: float, add: Tensor | None = None) -> Tensor:
        out = self._norm(x, packed, eps)
        return out if add is None else add.add_(out)

    def linear(self, x: Tensor, packed: Any, residual: Tensor | None = None) -> Tensor:
        if residual is None:
            return self._linears.linear(x, packed)
        return self._linears.linear_add(x, packed, residual)

    def attend(
        self,
        qkv: Tensor,
        *,
        spec: AttentionSpec,
        head_norm: Norm | None,
        eps: float,
        rotary: Rotary,
        plan: StepPlan,
        cache_k: Tensor,
        cache_v: Tensor,
    ) -> Tensor:
        heads = qkv.unflatten(1, (-1, spec.head_dim))
        rotated = spec.num_heads + spec.num_kv_heads
        turned = heads[:, :rotated]
        if head_norm is not None:
            turned = F.rms_norm(turned, (spec.head_dim,), None, eps).mul_(head_norm.weight)
        turned = self._rotate(turned, plan.rotary_rows(rotary))
        plan.write(cache_k, turned[:, spec.num_heads :])
        plan.write(cache_v, heads[:, rotated:])
        queries = turned[:, : spec.num_heads]
        groups = plan.groups(spec)
        if len(groups) == 1:
            return attend(queries, cache_k, cache_v, groups[0], spec)
        out = torch.empty(qkv.shape[0], spec.num_heads * spec.head_dim, dtype=queries.dtype)
        for group in groups:
            out[group.rows] = attend(queries[group.rows], cache_k, cache_v, group, spec)
        return out

    def take_outputs(self, x: Tensor, plan: StepPlan) -> Tensor:
        return x.index_select(0, plan.output_rows)

    def logits(self, x: Tensor, head: Any, softcap: float | None) -> Tensor:
        logits = self._linears.linear_float32(x, head)
        return logits if softcap is None else logits.div_(softcap).tanh_().mul_(softcap)

    def record(self, step: Step) -> RecordedStep:
        return in_inference_mode(step)

    def _norm(self, x: Tensor, packed: Norm, eps: float) -> Tensor:
        weight, twice = packed.weight, packed.twice
        if twice is None or x.shape[0] > 64:
            return F.rms_norm(x, weight.shape, weight, eps)
        # (x, -x) has mean 0 and the mean square of x, so its layer norm begins with the RMSNorm of x.
        # That is one fused kernel, where RMSNorm is put together from six calls.
        both = torch.cat((x, x.neg()), dim=1)
        return F.layer_norm(both, twice.shape, twice, None, eps)[:, : x.shape[1]]

    def _rotate(self, x: Tensor, rows: Rotary) -> Tensor:
        wide = x.float()
        half = wide.shape[-1] // 2
        turned = torch.addcmul(wide * rows.cos, wide.roll(half, dims=-1), rows.sin)
        return turned.to(self.dtype)

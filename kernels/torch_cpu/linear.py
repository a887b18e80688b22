"""Linear layers over weights packed once.

oneDNN can keep a weight in the blocked layout that its matrix kernels read, which streams several
times faster than the row-major weight does at few rows. Where this build of torch or this CPU lacks
that, `PlainLinears` gives the same results up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from stolon.kernels.ops import Activation
from stolon.kernels.torch_cpu.four_bit import FEW_ROWS, FourBit, four_bit

# Rows the packed layout is made for. Measured: a weight packed for many rows loses nothing at one
# row.
PACKED_ROWS = 512


class Linears(Protocol):
    """How linear layers are packed and applied. `x` and results have dtype `dtype`."""

    dtype: torch.dtype

    def pack(self, weight: Tensor, bias: Tensor | None) -> Any: ...

    def linear(self, x: Tensor, packed: Any) -> Tensor: ...

    def linear_add(self, x: Tensor, packed: Any, residual: Tensor) -> Tensor: ...

    def linear_float32(self, x: Tensor, packed: Any) -> Tensor:
        """`linear` with a float32 result that is not rounded to `dtype` on the way."""
        ...

    def pack_gated(self, gate: Tensor, up: Tensor) -> Any: ...

    def gated_linear(self, x: Tensor, packed: Any, activation: Activation) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight in the layout of its `Linears`, its bias, and for few rows its 4-bit codes if it has some."""

    weight: Tensor
    bias: Tensor | None
    few: FourBit | None = None

    @property
    def nbytes(self) -> int:
        """What this takes in memory."""
        weight = self.weight.numel() * self.weight.element_size()
        bias = 0 if self.bias is None else self.bias.nbytes
        return weight + bias + (0 if self.few is None else self.few.nbytes)


@dataclass(frozen=True, slots=True)
class PackedGated:
    """The two weights of a gated layer, and for few rows the codes of both, one after the other."""

    gate: Packed
    up: Packed
    few: FourBit | None

    @property
    def nbytes(self) -> int:
        """What this takes in memory."""
        return self.gate.nbytes + self.up.nbytes + (0 if self.few is None else self.few.nbytes)


class OneDnnLinears:
    """bfloat16 weights in oneDNN's blocked layout; additions are fused behind the product."""

    dtype = torch.bfloat16

    def __init__(self) -> None:
        ops = torch.ops.mkldnn
        self._pack = ops._reorder_linear_weight
        self._linear = ops._linear_pointwise.default
        self._linear_binary = ops._linear_pointwise.binary

    def pack(self, weight: Tensor, bias: Tensor | None) -> Packed:
        dense = weight.to(self.dtype).contiguous()
        bias = None if bias is None else bias.to(self.dtype)
        return Packed(self._pack(dense, PACKED_ROWS), bias, four_bit(weight))

    def linear(self, x: Tensor, packed: Packed) -> Tensor:
        if packed.few is not None and x.shape[0] <= FEW_ROWS:
            product = packed.few.product(x)
            return product if packed.bias is None else product.add_(packed.bias)
        out: Tensor = self._linear(x, packed.weight, packed.bias, "none", [], "")
        return out

    def linear_add(self, x: Tensor, packed: Packed, residual: Tensor) -> Tensor:
        if packed.few is not None and x.shape[0] <= FEW_ROWS:
            return self.linear(x, packed).add_(residual)
        out: Tensor = self._linear_binary(x, residual, packed.weight, packed.bias, "add")
        return out

    def linear_float32(self, x: Tensor, packed: Packed) -> Tensor:
        # oneDNN sums in float32 and rounds the result to bfloat16: at a logit of 20 that is a step of
        # 0.125. A second product, with the first result taken off before rounding, gives the lost part.
        rounded: Tensor = self._linear(x, packed.weight, packed.bias, "none", [], "")
        lost = self._linear_binary(x, rounded.neg(), packed.weight, packed.bias, "add")
        return rounded.float().add_(lost)

    def pack_gated(self, gate: Tensor, up: Tensor) -> PackedGated:
        few = four_bit(torch.cat((gate, up)))
        packed_gate, packed_up = (
            Packed(self._pack(half.to(self.dtype).contiguous(), PACKED_ROWS), None)
            for half in (gate, up)
        )
        return PackedGated(packed_gate, packed_up, few)

    def gated_linear(self, x: Tensor, packed: PackedGated, activation: Activation) -> Tensor:
        if packed.few is not None and x.shape[0] <= FEW_ROWS:
            return gate_halves(packed.few.product(x), activation)
        # The activation and the product with it are done by the two matrix kernels as they finish.
        name, algorithm = _ACTIVATIONS[activation]
        gate = self._linear(x, packed.gate.weight, None, name, [], algorithm)
        out: Tensor = self._linear_binary(x, gate, packed.up.weight, None, "mul")
        return out


_ACTIVATIONS: dict[Activation, tuple[str, str]] = {
    "silu": ("swish", ""),
    "gelu_tanh": ("gelu", "tanh"),
}


class PlainLinears:
    """`F.linear` over row-major weights of `dtype`."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def pack(self, weight: Tensor, bias: Tensor | None) -> Packed:
        return Packed(
            weight.to(self.dtype).contiguous(), None if bias is None else bias.to(self.dtype)
        )

    def linear(self, x: Tensor, packed: Packed) -> Tensor:
        return F.linear(x, packed.weight, packed.bias)

    def linear_add(self, x: Tensor, packed: Packed, residual: Tensor) -> Tensor:
        return F.linear(x, packed.weight, packed.bias) + residual

    def linear_float32(self, x: Tensor, packed: Packed) -> Tensor:
        return self.linear(x, packed).float()

    def pack_gated(self, gate: Tensor, up: Tensor) -> Packed:
        return self.pack(torch.cat((gate, up)), None)

    def gated_linear(self, x: Tensor, packed: Packed, activation: Activation) -> Tensor:
        return gate_halves(self.linear(x, packed), activation)


def gate_halves(gate_up: Tensor, activation: Activation) -> Tensor:
    """``[T, 2 * inner] -> [T, inner]``: act(first half) * second half."""
    gate, up = gate_up.chunk(2, dim=1)
    if activation == "silu":
        return F.silu(gate).mul_(up)
    return F.gelu(gate, approximate="tanh").mul_(up)


def best_linears() -> Linears:
    """Ask the machine: packed bfloat16 if oneDNN computes in it, else float32 `F.linear`."""
    if torch.backends.mkldnn.is_available():
        candidate = OneDnnLinears()
        weight = torch.eye(16, dtype=candidate.dtype)
        try:
            if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
                return PlainLinears(torch.float32)
            with torch.inference_mode():
                packed = candidate.pack(weight, None)
                if torch.equal(candidate.linear_add(weight, packed, weight), weight + weight):
                    return candidate
        except (AttributeError, NotImplementedError, RuntimeError):
            # The operators are not part of torch's public surface; a build without them is served
            # below.
            pass
    return PlainLinears(torch.float32)

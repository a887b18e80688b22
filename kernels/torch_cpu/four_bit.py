"""Few rows over weights that were stored in four bits.

A matrix from a Q4_1 file has, in every block of 32 inputs, at most 16 values at equal distances, and
the extremes are among them. Such a grid is found again from the values themselves and kept as codes
next to the bfloat16 weight: at few rows a product is bound by the bytes that it streams, and these are
less than a third of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 32
LEVELS = 16
# Measured: beyond this many rows the bfloat16 product is as fast.
FEW_ROWS = 6
# Of a step of the grid: what rounding of scales in the file can account for, with room.
_TOLERANCE = 0.1
_PROBED_ROWS = 16


@dataclass(frozen=True, slots=True)
class FourBit:
    """Codes in torch's layout for its 4-bit product, and bfloat16 scale and offset by block:
    ``[in / 32, out, 2]``, with weight = (code - 8) * scale + offset."""

    codes: Tensor
    scale_offset: Tensor

    @property
    def nbytes(self) -> int:
        """What this takes in memory."""
        return self.codes.nbytes + self.scale_offset.nbytes

    def product(self, x: Tensor) -> Tensor:
        """``[T, in] -> [T, out]``; torch's kernel reads contiguous rows only."""
        out: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x.contiguous(), self.codes, BLOCK, self.scale_offset
        )
        return out


def four_bit(weight: Tensor) -> FourBit | None:
    """The grid of a ``[out, in]`` weight, or None if it does not lie on one."""
    outputs, inputs = weight.shape
    if inputs % BLOCK or outputs % 16 or _grid(weight[:_PROBED_ROWS]) is None:
        return None
    found = _grid(weight)
    if found is None:
        return None
    codes, low, step = found
    offset = low + step * (LEVELS // 2)
    scale_offset = torch.stack((step, offset), dim=-1).transpose(0, 1).to(torch.bfloat16)
    return FourBit(
        torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1), scale_offset.contiguous()
    )


def _grid(weight: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Codes int32 ``[out, in]``, lowest value and step float32 ``[out, in / 32]``; None if a value is off."""
    blocks = weight.float().unflatten(1, (-1, BLOCK))
    low, high = torch.aminmax(blocks, dim=2, keepdim=True)
    step = (high - low).div_(LEVELS - 1)
    codes = blocks.sub(low).div_(step.clamp_min(torch.finfo(torch.float32).tiny)).round_()
    off = torch.addcmul(low, codes, step).sub_(blocks).abs_()
    if bool((off > _TOLERANCE * step).any()):
        return None
    return codes.flatten(1).to(torch.int32), low.squeeze(2), step.squeeze(2)

"""Block formats of GGUF tensors to floats, exactly as ggml defines them.

A quantised row is a run of blocks; a block holds small integers ``q`` and one or two scales, and
stands for ``d * q``, ``d * (q - z)`` or ``d * q + m``. The K formats are blocks of 256 with a
second level of integer scales for every 16 or 32 elements. Layouts:
https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h

All arithmetic is float32 with one rounding per operation, so results equal the reference bit for
bit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stolon.errors import ModelFileError, UnsupportedModel
from stolon.srt.loaders.ggml import GGMLType

# Elements converted at a time: intermediate results stay in the processor's cache, and in a few MB.
_CHUNK = 1 << 18


def dequantise(
    raw: npt.NDArray[np.uint8],
    kind: GGMLType,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    *,
    name: str = "tensor",
) -> Tensor:
    """Stored bytes as a fresh contiguous tensor of `shape` in a float `dtype`.

    `name` is for messages. Raises UnsupportedModel for a format that is not implemented,
    ModelFileError if the number of bytes does not fit the shape.
    """
    check_supported(kind, name=name)
    unpack = _FORMATS[kind]
    out = torch.empty(shape, dtype=dtype)
    blocks = out.numel() // kind.block_size
    if blocks * kind.block_size != out.numel() or blocks * kind.block_bytes != raw.size:
        raise ModelFileError(f"tensor {name!r}: {raw.size} bytes do not hold {kind.name} {shape}")
    stored = raw.reshape(blocks, kind.block_bytes)
    result = out.view(blocks, kind.block_size)
    step = _CHUNK // kind.block_size
    buffer = torch.empty((min(step, blocks), kind.block_size), dtype=torch.float32)
    for start in range(0, blocks, step):
        # The copy makes the read-only mapping a writable array, which torch insists on.
        chunk = torch.from_numpy(stored[start : start + step].copy())
        target = result[start : start + step]
        if dtype == torch.float32:
            unpack(chunk, target)
        else:
            floats = buffer[: len(chunk)]
            unpack(chunk, floats)
            target.copy_(floats)
    return out


def check_supported(kind: GGMLType, *, name: str) -> None:
    """Raise UnsupportedModel for a format that is not implemented."""
    if kind not in _FORMATS:
        raise UnsupportedModel(
            f"tensor {name!r} is stored as {kind.name}, which is not supported",
            hint="use a file quantised to one of " + ", ".join(k.name for k in SUPPORTED_TYPES),
        )


def _half(chunk: Tensor, start: int) -> Tensor:
    """The float16 at byte `start` of every block, as float32 [blocks, 1]."""
    return chunk[:, start : start + 2].contiguous().view(torch.float16).float()


def _f32(chunk: Tensor, out: Tensor) -> None:
    out.copy_(chunk.view(torch.float32))


def _f16(chunk: Tensor, out: Tensor) -> None:
    out.copy_(chunk.view(torch.float16))


def _bf16(chunk: Tensor, out: Tensor) -> None:
    out.copy_(chunk.view(torch.bfloat16))


def _q8_0(chunk: Tensor, out: Tensor) -> None:
    """d, 32 × int8."""
    torch.mul(chunk[:, 2:].view(torch.int8), _half(chunk, 0), out=out)


def _nibbles(packed: Tensor) -> Tensor:
    """Low nibbles of the last dimension's bytes, then the high ones: uint8, twice as long."""
    return torch.cat((packed & 15, packed >> 4), dim=-1)


# Row b: the bits of byte b, lowest first, as eight bytes of 0 or 16; seen as one number so that one
# look-up moves all eight.
_FIFTH_BITS = (
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") << 4
).view(np.int64)[:, 0]


def _five_bits(chunk: Tensor, start: int) -> Tensor:
    """Fifth bits (element i in bit i) at `start`, nibbles after them: uint8 [blocks, 32]."""
    fifth = _FIFTH_BITS.take(chunk[:, start : start + 4].numpy()).view(np.uint8)
    return _nibbles(chunk[:, start + 4 :]).bitwise_or_(torch.from_numpy(fifth))


def _q4_0(chunk: Tensor, out: Tensor) -> None:
    """d, 32 × 4 bits: d * (q - 8)."""
    out.copy_(_nibbles(chunk[:, 2:])).sub_(8).mul_(_half(chunk, 0))


def _q4_1(chunk: Tensor, out: Tensor) -> None:
    """d, m, 32 × 4 bits: d * q + m."""
    out.copy_(_nibbles(chunk[:, 4:])).mul_(_half(chunk, 0)).add_(_half(chunk, 2))


def _q5_0(chunk: Tensor, out: Tensor) -> None:
    """d, 32 fifth bits, 32 × 4 bits: d * (q - 16)."""
    out.copy_(_five_bits(chunk, 2)).sub_(16).mul_(_half(chunk, 0))


def _q5_1(chunk: Tensor, out: Tensor) -> None:
    """d, m, 32 fifth bits, 32 × 4 bits: d * q + m."""
    out.copy_(_five_bits(chunk, 4)).mul_(_half(chunk, 0)).add_(_half(chunk, 2))


def _k_scales(chunk: Tensor) -> tuple[Tensor, Tensor]:
    """The eight scales and minima of a Q4_K or Q5_K block, float32 [blocks, 8, 1] each.

    Twelve bytes hold eight pairs of six bits: the first four scales and minima in the low six bits
    of bytes 0-3 and 4-7, the others in the nibbles of bytes 8-11 with their top two bits above the
    former.
    """
    low, mid, high = chunk[:, 4:8], chunk[:, 8:12], chunk[:, 12:16]
    scales = torch.cat((low & 63, (high & 15) | ((low >> 2) & 48)), dim=1)
    minima = torch.cat((mid & 63, (high >> 4) | ((mid >> 2) & 48)), dim=1)
    d, dmin = _half(chunk, 0), _half(chunk, 2)
    return (scales * d).unsqueeze(-1), (minima * dmin).unsqueeze(-1)


def _q4_k(chunk: Tensor, out: Tensor) -> None:
    """d, dmin, 12 bytes of scales, 256 × 4 bits: (d * scale) * q - (dmin * minimum)."""
    scales, minima = _k_scales(chunk)
    groups = out.view(-1, 8, 32)
    groups.copy_(_nibbles(chunk[:, 16:].view(-1, 4, 32)).view(-1, 8, 32))
    groups.mul_(scales).sub_(minima)


_EIGHT = torch.arange(8, dtype=torch.uint8).unsqueeze(-1)


def _q5_k(chunk: Tensor, out: Tensor) -> None:
    """As Q4_K, with 32 bytes of fifth bits: bit g of byte i belongs to element i of group g."""
    scales, minima = _k_scales(chunk)
    quants = _nibbles(chunk[:, 48:].view(-1, 4, 32)).view(-1, 8, 32)
    fifth = (chunk[:, 16:48].unsqueeze(1) >> _EIGHT) & 1
    groups = out.view(-1, 8, 32)
    groups.copy_(quants.bitwise_or_(fifth << 4)).mul_(scales).sub_(minima)


_PAIRS = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).unsqueeze(-1)


def _q6_k(chunk: Tensor, out: Tensor) -> None:
    """128 bytes of low 4 bits, 64 of high 2 bits, 16 int8 scales, d: (d * scale) * (q - 32)."""
    scales = (chunk[:, 192:208].view(torch.int8) * _half(chunk, 208)).unsqueeze(-1)
    quants = _nibbles(chunk[:, :128].view(-1, 2, 64)).view(-1, 2, 4, 32)
    high = (chunk[:, 128:192].view(-1, 2, 1, 32) >> _PAIRS) & 3
    out.copy_(quants.bitwise_or_(high << 4).view(-1, 256)).sub_(32)
    out.view(-1, 16, 16).mul_(scales)


_FORMATS: dict[GGMLType, Callable[[Tensor, Tensor], None]] = {
    GGMLType.F32: _f32,
    GGMLType.F16: _f16,
    GGMLType.BF16: _bf16,
    GGMLType.Q4_0: _q4_0,
    GGMLType.Q4_1: _q4_1,
    GGMLType.Q5_0: _q5_0,
    GGMLType.Q5_1: _q5_1,
    GGMLType.Q8_0: _q8_0,
    GGMLType.Q4_K: _q4_k,
    GGMLType.Q5_K: _q5_k,
    GGMLType.Q6_K: _q6_k,
}
SUPPORTED_TYPES = tuple(_FORMATS)

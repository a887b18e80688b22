"""Every block format against the gguf package's own dequantisation, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf.quants import dequantize

from stolon.errors import ModelFileError, UnsupportedModel
from stolon.srt.loaders import dequant
from stolon.srt.loaders.dequant import SUPPORTED_TYPES, dequantise
from stolon.srt.loaders.ggml import GGMLType

# Byte offsets of the float16 scales in each format's block.
SCALES = {
    GGMLType.Q4_0: (0,),
    GGMLType.Q4_1: (0, 2),
    GGMLType.Q5_0: (0,),
    GGMLType.Q5_1: (0, 2),
    GGMLType.Q8_0: (0,),
    GGMLType.Q4_K: (0, 2),
    GGMLType.Q5_K: (0, 2),
    GGMLType.Q6_K: (208,),
}
EXTREMES = np.array(
    [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF], "<u2"
)


def random_blocks(kind: GGMLType, count: int, seed: int) -> npt.NDArray[np.uint8]:
    """Random bytes with finite scales; the first blocks go through all pairs of extreme scales."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (count, kind.block_bytes), dtype=np.uint8)
    if kind in SCALES:
        for place, at in enumerate(SCALES[kind]):
            scales = rng.integers(0, 0x7C00, count).astype("<u2")
            scales |= rng.integers(0, 2, count).astype("<u2") << 15
            edge = np.indices((10, 10))[place].ravel()[:count]
            scales[: len(edge)] = EXTREMES[edge]
            blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    else:
        floats = (rng.standard_normal(count) * 10.0 ** rng.integers(-30, 30, count)).astype("<f4")
        if kind is GGMLType.F16:
            blocks = EXTREMES[rng.integers(0, 10, count)].view(np.uint8).reshape(-1, 2)
        else:
            blocks = floats.view(np.uint8).reshape(-1, 4)[:, 4 - kind.block_bytes :].copy()
    return blocks


@pytest.mark.parametrize("kind", SUPPORTED_TYPES, ids=lambda kind: kind.name)
def test_float32_is_bitwise_the_reference(kind: GGMLType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dequant, "_CHUNK", 4096)  # several chunks, the last one short
    count = 8192 // kind.block_size * 3 + 1
    blocks = random_blocks(kind, count, seed=int(kind))
    expected = dequantize(blocks, gguf.GGMLQuantizationType(int(kind)))
    got = dequantise(blocks.ravel(), kind, (count, kind.block_size), torch.float32)
    assert got.is_contiguous()
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(
        got.numpy().view(np.uint32), np.ascontiguousarray(expected).view(np.uint32)
    )


@pytest.mark.parametrize("kind", SUPPORTED_TYPES, ids=lambda kind: kind.name)
def test_other_dtypes_are_float32_rounded_once(kind: GGMLType) -> None:
    blocks = random_blocks(kind, 300, seed=100 + int(kind))
    shape = (300, kind.block_size)
    exact = dequantise(blocks.ravel(), kind, shape, torch.float32)
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        got = dequantise(blocks.ravel(), kind, shape, dtype)
        assert got.dtype is dtype
        assert torch.equal(got, exact.to(dtype))


def test_the_result_is_a_copy() -> None:
    raw = np.zeros(16, np.uint8)
    got = dequantise(raw, GGMLType.F32, (4,), torch.float32)
    raw[:] = 255
    assert torch.equal(got, torch.zeros(4))


def test_unsupported_types_name_the_tensor_and_the_alternatives() -> None:
    with pytest.raises(UnsupportedModel, match=r"'blk\.0\.w' is stored as IQ2_XS") as caught:
        dequantise(np.zeros(74, np.uint8), GGMLType.IQ2_XS, (256,), torch.float32, name="blk.0.w")
    for kind in SUPPORTED_TYPES:
        assert kind.name in (caught.value.hint or "")


@pytest.mark.parametrize(("size", "shape"), [(33, (32,)), (34, (64,)), (34, (31,))])
def test_bytes_must_fit_the_shape(size: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelFileError, match="do not hold Q8_0"):
        dequantise(np.zeros(size, np.uint8), GGMLType.Q8_0, shape, torch.float32)


def test_block_sizes_are_those_of_the_gguf_package() -> None:
    for kind in GGMLType:
        reference = gguf.GGMLQuantizationType(int(kind))
        assert reference.name == kind.name
        assert gguf.GGML_QUANT_SIZES[reference] == (kind.block_size, kind.block_bytes)

"""Finding the grid of 4-bit weights again, and products over its codes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stolon.kernels import StoredWeight
from stolon.kernels.torch_cpu import TorchCpuOps
from stolon.kernels.torch_cpu.four_bit import FEW_ROWS, four_bit
from stolon.kernels.torch_cpu.linear import OneDnnLinears, best_linears


def grid_weight(outputs: int, inputs: int, *, seed: int = 0) -> Tensor:
    """Values as a Q4_1 file has them: 16 levels between the extremes of each block of 32."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (outputs, inputs // 32, 32), generator=generator)
    codes[..., 0], codes[..., 1] = 0, 15
    step = torch.rand(outputs, inputs // 32, 1, generator=generator) * 0.02 + 1e-3
    low = torch.randn(outputs, inputs // 32, 1, generator=generator) * 0.05
    return (low + codes * step).flatten(1)


def needs_four_bit_products() -> None:
    if not isinstance(best_linears(), OneDnnLinears):
        pytest.skip("this CPU has no bfloat16 products in oneDNN, so the 4-bit path is not used")


@pytest.mark.parametrize("shape", [(16, 32), (64, 96), (576, 576)])
def test_a_product_over_codes_is_the_product(shape: tuple[int, int]) -> None:
    needs_four_bit_products()
    weight = grid_weight(*shape)
    found = four_bit(weight)
    assert found is not None
    x = torch.randn(3, shape[1], generator=torch.Generator().manual_seed(1)).bfloat16()
    wanted = x.float() @ weight.T
    error = (found.product(x).float() - wanted).norm() / wanted.norm()
    assert error < 0.01


def test_a_constant_block_is_a_grid() -> None:
    needs_four_bit_products()
    weight = grid_weight(16, 64)
    weight[3, 32:] = 0.25
    weight[5] = 0.0
    found = four_bit(weight)
    assert found is not None
    x = torch.ones(1, 64).bfloat16()
    assert found.product(x)[0, 5].item() == 0.0


def test_weights_off_a_grid_are_left_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    assert four_bit(torch.randn(64, 64, generator=generator)) is None
    weight = grid_weight(64, 64)
    weight[63, 40] += 0.3 * (weight[63, 33] - weight[63, 32]) / 15
    assert four_bit(weight) is None
    assert four_bit(grid_weight(24, 64)) is None
    assert four_bit(torch.randn(16, 40, generator=generator)) is None


@pytest.mark.parametrize("rows", [1, 2, FEW_ROWS, 12, 70])
def test_a_product_behind_a_norm(rows: int) -> None:
    """A norm may return a slice of something wider."""
    needs_four_bit_products()
    ops = TorchCpuOps()
    weight = grid_weight(96, 64)
    x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(3)).bfloat16()
    normed = ops.rms_norm(x, ops.pack_norm(torch.ones(64)), 1e-5)
    wanted = torch.nn.functional.rms_norm(x.float(), (64,), None, 1e-5) @ weight.T
    gated = torch.nn.functional.silu(wanted) * wanted
    stored = StoredWeight.of(weight)
    packed = ops.pack_linear([stored])
    for got, expected in (
        (ops.linear(normed, packed), wanted),
        (ops.linear(normed, packed, torch.zeros(rows, 96).bfloat16()), wanted),
        (ops.gated_linear(normed, ops.pack_gated(stored, stored), "silu"), gated),
        (ops.logits(normed, packed, None), wanted),
    ):
        assert (got.float() - expected).norm() / expected.norm() < 0.03


@pytest.mark.parametrize("rows", [1, FEW_ROWS, FEW_ROWS + 1, 40])
@pytest.mark.parametrize("bias", [False, True])
def test_few_and_many_rows_agree(rows: int, bias: bool) -> None:
    needs_four_bit_products()
    linears = OneDnnLinears()
    weight = grid_weight(96, 64)
    offset = torch.linspace(-1, 1, 96) if bias else None
    packed = linears.pack(weight, offset)
    assert packed.few is not None
    x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(2)).bfloat16()
    wanted = x.float() @ weight.T + (0 if offset is None else offset)
    residual = torch.ones(rows, 96).bfloat16()
    for got, expected in (
        (linears.linear(x, packed), wanted),
        (linears.linear_add(x, packed, residual.clone()), wanted + 1),
        (linears.linear_float32(x, packed), wanted),
    ):
        assert (got.float() - expected).norm() / expected.norm() < 0.012
    dense = x.float() @ weight.bfloat16().float().T + (
        0 if offset is None else offset.bfloat16().float()
    )
    assert (linears.linear_float32(x, packed) - dense).abs().max() < 1e-4 * dense.abs().max()
